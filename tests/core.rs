//! The core door on real cores: the kernel's and gcore's, whole and damaged, with and without their files; and minicores
//! written from them.

mod support;

use hangscope::memory::{FileBytes, Kept, Memory, MemoryExt, ReadError};
use hangscope::snapshot::{Snapshot, WithImages};
use hangscope::target::core::{CoreFile, CoreOptions};
use hangscope::target::minicore::{self, Minicore};
use hangscope::target::{Files, Mapping, Process, Target, TargetError, ThreadState};
use hangscope::units::{Addr, Tid};
use hangscope::unwind::{Stack, StackEnd, Trust, unwind_all};
use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/abba-mutex/program.c")
}

/// Compiles the sample as `name` in `dir`; more arguments make another build of it.
fn compile(dir: &Path, name: &str, more: &[&str]) -> Option<PathBuf> {
    let out = dir.join(name);
    let done = Command::new("cc").arg("-O2").args(["-pthread", "-o"]).arg(&out).arg(source()).args(more).output();
    match done {
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            Some(out)
        }
        Err(_) => {
            println!("skipped: needs cc");
            None
        }
    }
}

/// Ends the process it holds.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `program` in `dir`, with cores allowed, and waits until it hangs.
fn hang(dir: &Path, program: &Path, filter: Option<&str>) -> Running {
    let set = filter.map(|f| format!("echo {f} > /proc/self/coredump_filter; ")).unwrap_or_default();
    let line = format!("ulimit -c unlimited; {set}exec \"$0\" normal");
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .arg(program)
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let mut first = String::new();
    let out = child.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut first).expect("it writes");
    assert!(first.starts_with("ready"), "the sample said {first:?}");
    support::running::settled(child.id()).expect("it hangs");
    Running(child)
}

/// Ends a hanging program with SIGABRT; the core the kernel wrote, if it wrote one here.
fn kernel_core(dir: &Path, mut running: Running) -> Option<PathBuf> {
    let pid = running.0.id();
    let killed = Command::new("kill").args(["-ABRT", &pid.to_string()]).status().expect("kill runs");
    assert!(killed.success());
    running.0.wait().expect("it ends");
    let found = [dir.join("core"), dir.join(format!("core.{pid}"))].into_iter().find(|p| p.exists());
    if found.is_none() {
        let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
        println!("skipped: needs core files in the working directory (core_pattern is {})", pattern.trim());
    }
    found
}

fn gcore(dir: &Path, pid: u32) -> Option<PathBuf> {
    let out = dir.join("gcore");
    match Command::new("gcore").arg("-o").arg(&out).arg(pid.to_string()).output() {
        Err(_) => println!("skipped: needs gcore"),
        Ok(done) => {
            let file = dir.join(format!("gcore.{pid}"));
            if file.exists() {
                return Some(file);
            }
            println!("skipped: needs a gcore that may attach ({})", String::from_utf8_lossy(&done.stderr).trim());
        }
    }
    None
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(path: &Path) -> CoreFile {
    CoreFile::open(path, &CoreOptions::default()).expect("it opens")
}

fn mapping_of(core: &CoreFile, name: &str, execute: bool) -> Mapping {
    let mappings = core.mappings().expect("mappings");
    let found = mappings
        .iter()
        .find(|m| m.permissions.execute == execute && m.path.as_ref().is_some_and(|p| p.ends_with(name)));
    found.unwrap_or_else(|| panic!("no mapping of {name}, executable {execute}, in {mappings:#?}")).clone()
}

/// What must hold of every core of the hanging sample.
fn check(core: &CoreFile, program: &Path) {
    let threads = core.threads().expect("threads");
    assert_eq!(threads.len(), 3, "main and two more");
    let futexes: Vec<u64> =
        threads.iter().filter_map(|t| t.syscall.filter(|s| s.number == Some(202)).map(|s| s.args[0])).collect();
    assert_eq!(futexes.len(), 3, "all three sleep in futex: {threads:?}");
    // the two mutexes are owned by the two threads, each by the other than the one that waits
    let mut owners = Vec::new();
    for t in &threads[1..] {
        let futex = Addr(t.syscall.expect("asleep").args[0]);
        let owner = Tid(core.read_i32(futex.offset(8)).expect("a mutex"));
        assert_ne!(owner, t.tid);
        owners.push(owner);
        let base = Addr(t.registers.as_ref().expect("registers").tls_base.expect("fs_base"));
        assert_eq!(core.read_addr(base.offset(0x10)), Ok(base));
    }
    owners.sort();
    assert_eq!(owners, [threads[1].tid, threads[2].tid]);

    let process = core.process();
    assert_eq!(process.exe.as_deref(), Some(program));
    assert_eq!(process.command, [program.display().to_string(), "normal".into()]);
    assert_eq!(threads[0].host_tid.0, process.pid.0);
    assert_eq!(threads[0].name.as_deref(), program.file_name().and_then(|n| n.to_str()));

    // code is not in the core, but in the file, which is the one that was mapped
    let code = mapping_of(core, "libc.so.6", true);
    let file = core.files().open(&code).expect("libc is here");
    assert!(file.get_at(0, 4) == Some(b"\x7fELF"));
    assert_eq!(core.read_u8(code.start.offset(0x3000)), Err(ReadError::NotInCore(code.start.offset(0x3000))));
    let vdso = mapping_of(core, "[vdso]", true);
    assert!(core.files().open(&vdso).expect("the vdso is in the core").get_at(0, 4) == Some(b"\x7fELF"));
    assert_eq!(core.warnings(), Vec::<String>::new());

    let mut snapshot = Snapshot::prepare(core).expect("mappings");
    snapshot.freeze(threads, None);
    let names: Vec<&str> = snapshot.modules.iter().map(|m| m.name()).collect();
    for wanted in ["libc.so.6", "ld-linux-x86-64.so.2"] {
        assert!(names.contains(&wanted), "{names:?}");
    }
    let memory = WithImages::new(core, &snapshot);
    let mut bytes = [0; 16];
    memory.read(code.start.offset(0x3000), &mut bytes).expect("from the file");
    let at = usize::try_from(code.offset + 0x3000).expect("small");
    assert_eq!(Some(&bytes[..]), file.get_at(at, 16));
    for stack in unwind_all(&snapshot, &memory) {
        assert_eq!(stack.end, StackEnd::Complete);
        assert!(stack.frames.len() >= 4 && stack.frames.iter().all(|f| f.trust >= Trust::Cfi));
    }
}

#[test]
fn a_kernel_core_is_read() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &[]) else { return };
    let running = hang(dir.path(), &program, None);
    let Some(file) = kernel_core(dir.path(), running) else { return };
    check(&open(&file), &program);
    // as systemd and people keep them
    for packer in ["gzip", "xz", "zstd", "lz4"] {
        let packed = file.with_file_name(format!("core.{packer}"));
        let to = std::fs::File::create(&packed).expect("a file");
        match Command::new(packer).args(["-1", "-c"]).arg(&file).stdout(to).status() {
            Ok(done) => assert!(done.success()),
            Err(_) => {
                println!("skipped: needs {packer}");
                continue;
            }
        }
        check(&open(&packed), &program);
    }
}

#[test]
fn a_gcore_core_is_read() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &[]) else { return };
    let running = hang(dir.path(), &program, None);
    let Some(file) = gcore(dir.path(), running.0.id()) else { return };
    let core = open(&file);
    check(&core, &program);
    // gcore names no segment for the program's code: its rights come from the file's headers
    let code = mapping_of(&core, "abba", true);
    assert!(code.permissions.read && !code.permissions.write);
}

#[test]
fn a_replaced_or_missing_program_is_told() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &[]) else { return };
    let running = hang(dir.path(), &program, None);
    let Some(file) = kernel_core(dir.path(), running) else { return };
    let kept = dir.path().join("kept");
    std::fs::rename(&program, &kept).expect("renamed");
    let said = |options: &CoreOptions| {
        let core = CoreFile::open(&file, options).expect("it opens");
        let answer = core.files().open(&mapping_of(&core, "abba", true)).map(|_| ()).map_err(|e| e.to_string());
        (answer, core.warnings())
    };
    let shown = program.display();
    let (answer, warnings) = said(&CoreOptions::default());
    assert_eq!(answer, Err(format!("cannot open {shown}: missing; give --sysroot")));
    assert_eq!(warnings, [format!("cannot use {shown}: missing; give --sysroot")]);

    // another build at the same place
    compile(dir.path(), "abba", &["-O0", "-g"]);
    let (answer, _) = said(&CoreOptions::default());
    let answer = answer.expect_err("it is not the one");
    assert!(answer.starts_with(&format!("cannot open {shown}: replaced: build-id ")), "{answer}");
    assert!(answer.contains(" in the core, ") && answer.contains(" on disk"), "{answer}");

    // the right one, where the person says it is
    let exe = CoreOptions { exe: Some(kept.clone()), ..CoreOptions::default() };
    assert_eq!(said(&exe), (Ok(()), vec![]));
    let root = dir.path().join("root");
    let inside = root.join(program.strip_prefix("/").expect("absolute"));
    std::fs::create_dir_all(inside.parent().expect("a parent")).expect("made");
    std::fs::copy(&kept, &inside).expect("copied");
    let sysroot = CoreOptions { sysroot: Some(root), ..CoreOptions::default() };
    assert_eq!(said(&sysroot), (Ok(()), vec![]));

    // and by its build-id among debug files
    let core = CoreFile::open(&file, &exe).expect("it opens");
    let bytes = core.files().open(&mapping_of(&core, "abba", true)).expect("given");
    let id = hangscope::elf::ElfFile::parse(bytes).expect("ELF").build_id().expect("a build-id").to_vec();
    let hex: Vec<String> = id.iter().map(|b| format!("{b:02x}")).collect();
    let debug = dir.path().join("debug");
    let by_id = debug.join(".build-id").join(&hex[0]);
    std::fs::create_dir_all(&by_id).expect("made");
    std::fs::copy(&kept, by_id.join(hex[1..].concat())).expect("copied");
    assert_eq!(said(&CoreOptions { debug_dirs: vec![debug], ..CoreOptions::default() }), (Ok(()), vec![]));

    let none = CoreOptions { exe: Some(dir.path().join("nowhere")), ..CoreOptions::default() };
    let error = CoreFile::open(&file, &none).err().expect("no such program").to_string();
    assert!(error.ends_with("nowhere: there is no such file; check --exe"), "{error}");
}

/// Without its program a core tells no more than where each thread sleeps: that is not health.
#[test]
fn threads_in_a_missing_program_are_not_called_idle() {
    let dir = temporary();
    let text = dir.path().join("idles.c");
    std::fs::write(
        &text,
        "#include <unistd.h>\nint main(void) { alarm(300); write(1, \"ready\\n\", 6); for (;;) pause(); }\n",
    )
    .expect("written");
    let program = dir.path().join("idles");
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&text).status();
    if compiled.is_err() {
        return println!("skipped: needs cc");
    }
    let running = hang(dir.path(), &program, None);
    let Some(file) = kernel_core(dir.path(), running) else { return };
    let said = || {
        let out = support::hangscope().arg("core").arg(&file).output().expect("hangscope runs");
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, text) = said();
    assert!(code == Some(0) && text.starts_with("IDLE: "), "{code:?} {text}");
    std::fs::rename(&program, dir.path().join("elsewhere")).expect("renamed");
    let (code, text) = said();
    let told = "CANNOT TELL: the only thread is where code or stack could not be read";
    assert!(code == Some(4) && text.replace('\n', " ").starts_with(told), "{code:?} {text}");
    assert!(text.contains("idles: missing; give --sysroot"), "{text}");
}

#[test]
fn without_first_pages_files_are_taken_and_said_to_be_unverified() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &[]) else { return };
    let running = hang(dir.path(), &program, Some("0x23")); // 0x33 less the headers of ELF files
    let Some(file) = kernel_core(dir.path(), running) else { return };
    let core = open(&file);
    for name in ["libc.so.6", "abba"] {
        assert!(core.files().open(&mapping_of(&core, name, true)).is_ok());
    }
    let warnings = core.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("not verified, because the core lacks their build-id: "), "{warnings:?}");
    assert!(warnings[0].contains("libc.so.6"));
}

#[test]
fn wrong_files_have_one_line_each() {
    let dir = temporary();
    let error = |path: &Path| {
        let error = CoreFile::open(path, &CoreOptions::default()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(!error.is_empty() && !error.contains('\n'), "{error:?}");
        error
    };
    let empty = dir.path().join("empty");
    std::fs::write(&empty, b"").expect("written");
    assert!(error(&empty).contains("the file is empty"));
    assert!(error(dir.path()).contains("it is a directory"));
    assert!(error(&dir.path().join("nothing")).contains("there is no such file"));
    assert!(error(Path::new("/dev/null")).contains("not a regular file"));
    assert!(error(&source()).contains("it is not an ELF file"));
    let this = std::env::current_exe().expect("a path");
    assert!(
        error(&this).contains("it is a program or library, not a core; give the core here and the program with --exe")
    );
}

#[test]
fn a_truncated_kernel_core_gives_what_it_has() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &[]) else { return };
    let running = hang(dir.path(), &program, None);
    let Some(file) = kernel_core(dir.path(), running) else { return };
    let bytes = std::fs::read(&file).expect("read");
    let cut = dir.path().join("cut");
    std::fs::write(&cut, &bytes[..40_000]).expect("written");
    let core = open(&cut);
    assert_eq!(core.threads().expect("threads").len(), 3);
    let said = format!("the core is truncated: 40000 of {} bytes; memory beyond is missing", bytes.len());
    assert_eq!(core.warnings()[0], said);
    let stack = core.threads().expect("threads")[1].registers.as_ref().and_then(|r| r.sp()).expect("a stack");
    assert_eq!(core.read_u64(Addr(stack)), Err(ReadError::NotInCore(Addr(stack))));
}

/// All the open mapping-by-mapping reads one can do; nothing may panic.
fn use_all(path: &Path) {
    let core = match CoreFile::open(path, &CoreOptions::default()) {
        Ok(core) => core,
        Err(TargetError::BadCore { .. } | TargetError::WrongArch { .. }) => return,
        Err(other) => panic!("{other}"),
    };
    let mappings = core.mappings().expect("mappings");
    assert!(mappings.windows(2).all(|w| w[0].end <= w[1].start));
    for t in core.threads().expect("threads") {
        let _ = t.registers.and_then(|r| r.sp()).map(|sp| core.read_vec(Addr(sp), 256));
    }
    for m in &mappings {
        let _ = core.read_u64(m.start);
        let _ = core.files().open(m);
    }
    let _ = core.warnings();
}

#[test]
fn a_damaged_kernel_core_does_no_harm() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &[]) else { return };
    let running = hang(dir.path(), &program, None);
    let Some(file) = kernel_core(dir.path(), running) else { return };
    let bytes = std::fs::read(&file).expect("read");
    // headers, notes and first pages: all that is parsed
    let head = &bytes[..32_768.min(bytes.len())];
    let damaged = dir.path().join("damaged");
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut dice = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 33) as usize % below
    };
    for round in 0..2000 {
        let mut copy = head.to_vec();
        for _ in 0..=dice(3) {
            let at = dice(if round % 2 == 0 { 4096 } else { copy.len() });
            copy[at] = if dice(2) == 0 { copy[at] ^ (1 << dice(8)) } else { [0, 0xff, 0x7f, 0x80][dice(4)] };
        }
        if round % 4 == 0 {
            copy.truncate(dice(head.len()) + 1);
        }
        std::fs::write(&damaged, &copy).expect("written");
        use_all(&damaged);
    }
}

/// A core that keeps what is read from it, as the live door does.
struct Keeping<'a>(&'a CoreFile, RefCell<Kept>);

impl Memory for Keeping<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.read(at, buf)?;
        self.1.borrow_mut().keep(at, buf);
        Ok(())
    }
}

/// Keeps what an analysis would: live stacks, the words waited for, and what a debugger wants.
fn keep(core: &CoreFile) -> Kept {
    let memory = Keeping(core, RefCell::default());
    let mappings = core.mappings().expect("mappings");
    let threads = core.threads().expect("threads");
    for t in &threads {
        let Some(sp) = t.registers.as_ref().and_then(|r| r.sp()).map(Addr) else { continue };
        let top = mappings.iter().find(|m| m.contains(sp)).map_or(sp, |m| m.end);
        let len = usize::try_from(top.0 - sp.0).expect("small") + 128;
        memory.read_vec(sp.offset(-128), len).expect("a stack");
        let futex = Addr(t.syscall.expect("asleep").args[0]);
        memory.read_vec(futex, 40).expect("a mutex");
    }
    minicore::gather(&memory, core.process(), &mappings, &threads);
    memory.1.into_inner()
}

/// The program counters and trusts of all stacks.
fn stacks(target: &(impl Target + Sync)) -> Vec<Vec<(Addr, Trust)>> {
    let mut snapshot = Snapshot::prepare(target).expect("mappings");
    snapshot.freeze(target.threads().expect("threads"), None);
    snapshot.images_from_memory(target);
    let memory = WithImages::new(target, &snapshot);
    let frames = |s: Stack| s.frames.into_iter().map(|f| (f.pc.addr, f.trust)).collect();
    unwind_all(&snapshot, &memory).into_iter().map(frames).collect()
}

/// A core on a machine that has none of the program's files.
struct Elsewhere(CoreFile);

impl Memory for Elsewhere {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.read(at, buf)
    }
}

struct NoFiles;

impl Files for NoFiles {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        self.open_path(mapping.path.as_deref().unwrap_or(Path::new("?")))
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        Err(TargetError::File { path: path.display().to_string(), cause: "missing".into() })
    }
}

impl Target for Elsewhere {
    fn process(&self) -> &Process {
        self.0.process()
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        self.0.threads()
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        self.0.mappings()
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(NoFiles)
    }
}

#[test]
fn a_minicore_gives_back_the_same_and_gdb_opens_it() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &["-g"]) else { return };
    let running = hang(dir.path(), &program, None);
    let Some(file) = kernel_core(dir.path(), running) else { return };
    let core = open(&file);
    let kept = keep(&core);
    let small = dir.path().join("mini");
    let threads = core.threads().expect("threads");
    let mappings = core.mappings().expect("mappings");
    let what = Minicore {
        process: core.process(),
        threads: &threads,
        unlisted: false,
        mappings: &mappings,
        kept: &kept,
        files: &[],
    };
    let mut out = std::fs::File::create(&small).expect("created");
    let size = minicore::write(&what, &mut out).expect("written");
    assert_eq!(size, small.metadata().expect("there").len());
    assert!(size < 64 * 1024, "{size} bytes");

    let back = open(&small);
    assert_eq!(back.mappings().expect("mappings"), mappings);
    assert_eq!(format!("{:?}", back.threads().expect("threads")), format!("{threads:?}"));
    for (at, bytes) in kept.extents() {
        assert_eq!(back.read_vec(at, bytes.len()).as_deref(), Ok(bytes), "at {at}");
    }
    assert_eq!(stacks(&core), stacks(&back));

    let commands = ["-ex", "info threads", "-ex", "thread apply all bt"];
    match Command::new("gdb").args(["-nx", "-batch"]).args(commands).arg(&program).arg(&small).output() {
        Err(_) => println!("skipped: needs gdb"),
        Ok(done) => {
            let (text, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            assert!(text.matches("pthread_mutex_lock").count() >= 2, "{text}\n{errors}");
            for function in ["transfer", "audit", "main"] {
                assert!(text.contains(function), "{text}\n{errors}");
            }
            assert!(!errors.contains("rror"), "{errors}");
        }
    }
    if let Ok(done) = Command::new("eu-readelf").arg("-n").arg(&small).output() {
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && text.matches("PRSTATUS").count() == 3, "{text}");
    }
}

#[test]
fn a_minicore_with_file_bytes_is_unwound_where_no_file_is() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &["-g"]) else { return };
    let running = hang(dir.path(), &program, None);
    let Some(file) = kernel_core(dir.path(), running) else { return };
    let core = open(&file);
    let kept = keep(&core);
    let mut snapshot = Snapshot::prepare(&core).expect("mappings");
    snapshot.freeze(core.threads().expect("threads"), None);
    let files: Vec<(Addr, Vec<u8>)> = snapshot.modules.iter().flat_map(|m| m.analysis_bytes()).collect();
    let what = Minicore {
        process: core.process(),
        threads: &snapshot.threads,
        unlisted: snapshot.unlisted,
        mappings: &snapshot.mappings,
        kept: &kept,
        files: &files,
    };
    let small = dir.path().join("mini");
    let size = minicore::write(&what, &mut std::fs::File::create(&small).expect("created")).expect("written");
    assert!(size < 1 << 20, "{size} bytes");
    let here = stacks(&core);
    let elsewhere = stacks(&Elsewhere(open(&small)));
    assert!(here.iter().flatten().all(|(_, trust)| *trust >= Trust::Cfi), "{here:?}");
    assert_eq!(elsewhere, here);
}

/// gcore run outside the program's PID namespace writes outer ids; the mutexes name inner ones.
#[test]
fn a_gcore_from_outside_the_pid_namespace_is_read_by_inner_ids() {
    let dir = temporary();
    let Some(program) = compile(dir.path(), "abba", &[]) else { return };
    let inside = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(&program)
        .arg("normal")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = inside else { return println!("skipped: needs unshare") };
    let out = child.stdout.take().expect("a pipe");
    let running = Running(child);
    let mut first = String::new();
    BufReader::new(out).read_line(&mut first).expect("it writes");
    if !first.starts_with("ready") {
        return println!("skipped: needs the right to make PID namespaces");
    }
    let unshare = running.0.id();
    let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).expect("children");
    let pid: u32 = children.trim().parse().expect("one child");
    support::running::settled(pid).expect("it hangs");
    let Some(file) = gcore(dir.path(), pid) else { return };
    let core = open(&file);
    let threads = core.threads().expect("threads");
    let ids: Vec<(u32, i32)> = threads.iter().map(|t| (t.host_tid.0.cast_unsigned(), t.tid.0)).collect();
    assert_eq!(ids[0], (pid, 1), "the program is its namespace's first process");
    let mut owners: Vec<Tid> = threads[1..]
        .iter()
        .map(|t| Tid(core.read_i32(Addr(t.syscall.expect("asleep").args[0]).offset(8)).expect("a mutex")))
        .collect();
    owners.sort();
    assert_eq!(owners, [threads[1].tid, threads[2].tid], "{ids:?}");
    let said =
        "the core numbers its threads by another PID namespace than the program's own; the program's numbers are shown";
    assert_eq!(core.warnings(), [said]);
}
