//! The live door on real programs: whatever happens to us while we hold them, they run on unharmed.

#[path = "support/inherited.rs"]
mod inherited;

use hangscope::arch::x86_64;
use hangscope::memory::{Memory, MemoryExt, ReadError};
use hangscope::target::live::{Live, StopLimits, ptrace_refusal, stop_all};
use hangscope::target::{Target, TargetError};
use hangscope::units::{Addr, HostTid, Pid};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The program under test, compiled once.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("live-target-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/target.c");
        let built = Command::new("cc").args(["-O1", "-g", "-pthread", "-o"]).arg(&out).arg(source).status();
        assert!(built.is_ok_and(|s| s.success()), "needs cc");
        out
    })
}

/// A running program, ended when dropped.
struct Running {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(args: &[&str]) -> Running {
        Running::of(Command::new(program()).args(args))
    }

    fn of(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    /// The line that comes before `ready`, or `ready` itself.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    fn ready(mut self) -> Running {
        assert_eq!(self.line(), "ready");
        self
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id().cast_signed())
    }

    fn signal(&self, s: Signal) {
        kill(NixPid::from_raw(self.pid().0), s).unwrap();
    }

    fn live(&self) -> Live {
        Live::open(self.pid()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// State letter and tracer of every thread, read afresh.
fn states(pid: Pid) -> Vec<(char, i32)> {
    let mut out = Vec::new();
    for t in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        // a thread may end while it is looked at
        let Ok(text) = std::fs::read_to_string(t.unwrap().path().join("status")) else { continue };
        let field = |k: &str| text.lines().find_map(|l| l.strip_prefix(k)).unwrap().trim().to_string();
        out.push((field("State:").chars().next().unwrap(), field("TracerPid:").parse().unwrap()));
    }
    out
}

/// Waits until every thread is untraced and in one of these states.
fn settles(pid: Pid, letters: &str) {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let now = states(pid);
        if now.iter().all(|(s, t)| *t == 0 && letters.contains(*s)) {
            return;
        }
        assert!(Instant::now() < until, "threads of {pid}: {now:?}, wanted {letters} and no tracer");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn threads_are_held_read_and_run_on() {
    let p = Running::start(&["threads", "20", "8"]).ready();
    let live = p.live();
    let stopped = live.stop(&StopLimits::default()).unwrap();
    assert!(states(p.pid()).iter().all(|(s, t)| *s == 't' && *t != 0));
    assert_eq!(stopped.thread_states().len(), 21);
    stopped.read_stacks();
    let waiters: Vec<_> = stopped.thread_states().iter().skip(1).collect();
    for t in &waiters {
        let r = t.registers.as_ref().unwrap();
        let call = t.syscall.unwrap();
        assert_eq!(
            (call.number, call.args[0]),
            (Some(202), waiters[0].syscall.unwrap().args[0]),
            "all wait for one futex"
        );
        // struct pthread names the thread
        let base = Addr(r.tls_base.unwrap());
        assert_eq!(stopped.memory().read_i32(base.offset(0x2d0)).unwrap(), t.tid.0);
        assert_eq!(t.state, Some('S'));
    }
    // the mutex they wait for is main's
    let owner = stopped.memory().read_i32(Addr(waiters[0].syscall.unwrap().args[0]).offset(8)).unwrap();
    assert_eq!(owner, p.pid().0);
    let released = stopped.release();
    settles(p.pid(), "S");
    assert!(released.pause > Duration::ZERO && released.pause < Duration::from_secs(1), "{:?}", released.pause);
    assert_eq!(released.mappings, None);
    assert_eq!(released.threads.len(), 21);
    assert!(released.warnings.is_empty(), "{:?}", released.warnings);
    // the whole live stack was kept, from the red zone to struct pthread
    for t in &released.threads {
        let r = t.registers.as_ref().unwrap();
        let sp = r.sp().unwrap();
        assert!(released.kept.covers(Addr(sp - 128), 128 + 1024), "{t:?}");
        if t.host_tid != HostTid(p.pid().0) {
            let top = r.tls_base.unwrap() + 0x2d4;
            assert!(released.kept.covers(Addr(sp), usize::try_from(top - sp).unwrap()));
            assert!(top - sp > 8 * 1024);
        }
    }
    let mut b = [0; 8];
    assert!(matches!(released.kept.read(Addr(0x10), &mut b), Err(ReadError::Released(_))));
}

#[test]
fn several_processes_are_held_side_by_side_and_let_go_one_by_one() {
    let processes: Vec<Running> = (0..10).map(|_| Running::start(&["threads", "3"])).collect();
    let processes: Vec<Running> = processes.into_iter().map(Running::ready).collect();
    let lives: Vec<Live> = processes.iter().map(Running::live).collect();
    let mut gone = Running::start(&["threads", "1"]).ready();
    let ended = gone.live();
    gone.child.kill().unwrap();
    gone.child.wait().unwrap();
    let began = Instant::now();
    let mut held = stop_all(&lives.iter().chain([&ended]).collect::<Vec<_>>(), &StopLimits::default());
    assert!(matches!(held.pop(), Some(Err(TargetError::NoSuchProcess(_)))));
    let is_held = |p: &Running| states(p.pid()).iter().all(|(s, t)| *s == 't' && *t != 0);
    assert!(processes.iter().all(is_held));
    let mut rest = held.into_iter().map(Result::unwrap);
    let mut first = rest.next().unwrap();
    first.read_stacks();
    first.let_go();
    settles(processes[0].pid(), "S");
    assert!(processes.iter().skip(1).all(is_held), "the others wait for their turn");
    let first = first.release();
    assert_eq!(first.threads.len(), 4);
    assert!(first.pause <= began.elapsed() && !first.cut_short);
    for (stopped, p) in rest.zip(processes.iter().skip(1)) {
        stopped.read_stacks();
        let released = stopped.release();
        assert!(released.threads.iter().all(|t| t.registers.is_some()) && !released.cut_short);
        settles(p.pid(), "S");
    }
}

#[test]
fn one_limit_is_for_all_processes_together() {
    let processes: Vec<Running> = (0..5).map(|_| Running::start(&["threads", "3"]).ready()).collect();
    let lives: Vec<Live> = processes.iter().map(Running::live).collect();
    let limits = StopLimits { max_pause: Duration::from_millis(100), ..StopLimits::default() };
    let held = stop_all(&lives.iter().collect::<Vec<_>>(), &limits);
    processes.iter().for_each(|p| settles(p.pid(), "S"));
    for stopped in held {
        let stopped = stopped.unwrap();
        assert!(stopped.is_over());
        let released = stopped.release();
        assert!(released.cut_short && released.pause < Duration::from_secs(1), "{:?}", released.pause);
    }
}

#[test]
fn eight_calls_a_thread_at_most() {
    let p = Running::start(&["threads", "500"]).ready();
    let live = p.live();
    let stopped = live.stop(&StopLimits::default()).unwrap();
    stopped.read_stacks();
    let released = stopped.release();
    let threads = released.threads.len() as u64;
    assert_eq!(threads, 501);
    println!("{threads} threads: pause {:?}, {} calls", released.pause, released.syscalls_in_pause);
    assert!(released.syscalls_in_pause <= threads * 8, "{} calls for {threads} threads", released.syscalls_in_pause);
}

#[test]
fn expected_pages_come_in_one_call() {
    let p = Running::start(&["threads", "2"]).ready();
    let live = p.live();
    let stopped = live.stop(&StopLimits::default()).unwrap();
    let maps = stopped.mappings().unwrap();
    let ranges: Vec<_> = maps.iter().filter(|m| m.permissions.read && m.is_file()).map(|m| (m.start, 100)).collect();
    assert!(ranges.len() > 5);
    let before = stopped.calls();
    stopped.memory().expect(&ranges);
    stopped.memory().expect(&[(Addr(0x10), 8), (Addr(u64::MAX - 4), 100), (Addr(u64::MAX), usize::MAX)]);
    for (at, _) in &ranges {
        stopped.memory().read_u64(*at).unwrap();
        stopped.memory().read_u64(at.offset(2048)).unwrap();
    }
    assert!(matches!(stopped.memory().read_u64(Addr(0x10)), Err(ReadError::Unmapped(_))));
    assert_eq!(stopped.calls(), before + 1);
    let released = stopped.release();
    for (at, _) in &ranges {
        released.kept.read_u64(at.offset(4088)).unwrap();
    }
}

#[test]
fn a_panic_while_it_is_held_lets_go() {
    let p = Running::start(&["threads", "5"]).ready();
    let live = p.live();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let stopped = live.stop(&StopLimits::default()).unwrap();
        stopped.read_stacks();
        std::panic::panic_any("in the middle");
    }));
    assert!(caught.is_err());
    settles(p.pid(), "S");
}

#[test]
fn a_spinning_program_is_held_and_spins_on() {
    let p = Running::start(&["spin"]).ready();
    let live = p.live();
    let released = live.stop(&StopLimits::default()).unwrap().release();
    let t = &released.threads[0];
    assert!(t.registers.is_some());
    assert_eq!(t.syscall, None);
    assert_eq!(t.state, Some('R'));
    settles(p.pid(), "R");
    let before = live.progress();
    let until = Instant::now() + Duration::from_secs(10);
    while before[0].2 == live.progress()[0].2 {
        assert!(Instant::now() < until, "it spins no more: {:?}", states(p.pid()));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_group_stopped_program_stays_stopped() {
    let p = Running::start(&["threads", "3"]).ready();
    p.signal(Signal::SIGSTOP);
    settles(p.pid(), "T");
    let live = p.live();
    let released = live.stop(&StopLimits::default()).unwrap().release();
    assert!(released.threads.iter().all(|t| t.registers.is_some() && t.state == Some('T')));
    settles(p.pid(), "T");
    p.signal(Signal::SIGCONT);
    settles(p.pid(), "S");
}

#[test]
fn a_vfork_parent_is_described_and_hangs_nobody() {
    let p = Running::start(&["vfork"]).ready();
    let live = p.live();
    let began = Instant::now();
    let released = live.stop(&StopLimits::default()).unwrap().release();
    assert!(began.elapsed() < Duration::from_secs(2));
    let t = &released.threads[0];
    assert!(t.registers.is_none());
    assert!(t.missing.as_ref().unwrap().contains("state D"), "{t:?}");
    assert!(matches!(t.syscall.unwrap().number, Some(56 | 58 | 435)), "{t:?}");
    settles(p.pid(), "D");
}

#[test]
fn signals_sent_meanwhile_arrive() {
    let mut p = Running::start(&["count"]).ready();
    let mut sender = Command::new(program()).args(["send", &p.pid().to_string(), "15000"]).spawn().unwrap();
    let live = p.live();
    let mut stops = 0;
    while sender.try_wait().unwrap().is_none() {
        drop(live.stop(&StopLimits::default()).unwrap());
        stops += 1;
    }
    assert!(sender.wait().unwrap().success());
    assert!(stops > 1);
    p.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let line = p.line();
    assert_eq!(line, "15000", "after {stops} stops");
}

#[test]
fn a_program_killed_while_it_is_held_is_said_to_be_gone() {
    let p = Running::start(&["threads", "4"]).ready();
    let live = p.live();
    let stopped = live.stop(&StopLimits::default()).unwrap();
    p.signal(Signal::SIGKILL);
    let until = Instant::now() + Duration::from_secs(5);
    let sp = stopped.thread_states()[0].registers.as_ref().unwrap().sp().unwrap();
    loop {
        // pages read before are kept, so each round reads the same page afresh from the process itself
        match live.read_u64(Addr(sp)) {
            Err(ReadError::Lost) => break,
            other => assert!(Instant::now() < until, "{other:?}"),
        }
    }
    assert_eq!(stopped.memory().read_u64(Addr(sp)), Err(ReadError::Lost));
    stopped.read_stacks();
    let released = stopped.release();
    assert_eq!(released.threads.len(), 5);
    assert!(released.warnings.iter().any(|w| w.contains("ended while")), "{:?}", released.warnings);
    assert!(matches!(live.stop(&StopLimits::default()), Err(TargetError::NoSuchProcess(_) | TargetError::Zombie(_))));
}

#[test]
fn the_limit_ends_the_pause_by_itself() {
    let p = Running::start(&["threads", "3"]).ready();
    let live = p.live();
    let limits = StopLimits { max_pause: Duration::from_millis(50), ..StopLimits::default() };
    let stopped = live.stop(&limits).unwrap();
    let sp = stopped.thread_states()[0].registers.as_ref().unwrap().sp().unwrap();
    stopped.memory().read_u64(Addr(sp)).unwrap();
    settles(p.pid(), "S");
    // what was read before is kept, nothing of now is taken for then
    stopped.memory().read_u64(Addr(sp)).unwrap();
    let exe = stopped.mappings().unwrap()[0].start;
    assert!(matches!(stopped.memory().read_u64(exe), Err(ReadError::Released(_))));
    let released = stopped.release();
    assert!(released.warnings.iter().any(|w| w.contains("limit")), "{:?}", released.warnings);
    assert!(released.pause >= Duration::from_millis(50) && released.pause < Duration::from_millis(500));
}

#[test]
fn threads_made_meanwhile_are_found() {
    let p = Running::start(&["churn"]).ready();
    let live = p.live();
    for _ in 0..100 {
        let stopped = live.stop(&StopLimits::default()).unwrap();
        let now = states(p.pid());
        let missing: Vec<_> = stopped.thread_states().iter().filter_map(|t| t.missing.as_ref()).collect();
        assert!(now.iter().all(|(s, _)| "tZX".contains(*s)), "{now:?} {missing:?}");
        drop(stopped);
    }
    settles(p.pid(), "SRDZX");
}

#[test]
fn a_leader_that_ended_before_its_threads_is_no_zombie() {
    let p = Running::start(&["zombie-leader"]).ready();
    let live = p.live();
    assert!(live.process().exe.is_some());
    let stopped = live.stop(&StopLimits::default()).unwrap();
    let maps = stopped.mappings().unwrap();
    stopped.memory().read_u64(maps[0].start).unwrap();
    assert!(live.files().open(&maps[0]).is_ok());
    let released = stopped.release();
    assert_eq!(released.threads.len(), 2);
    assert_eq!(released.threads[0].state, Some('Z'));
    assert!(released.threads[0].missing.as_ref().unwrap().contains("ended"));
    assert!(released.threads[1].registers.is_some());
    settles(p.pid(), "SZ");
}

#[test]
fn what_cannot_be_opened_says_why() {
    assert!(matches!(Live::open(Pid(i32::MAX)), Err(TargetError::NoSuchProcess(_))));
    assert!(matches!(Live::open(Pid(0)), Err(TargetError::NoSuchProcess(_))));
    assert!(matches!(Live::open(Pid(-5)), Err(TargetError::NoSuchProcess(_))));
    // kthreadd, where this namespace shows it
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|c| c.trim() == "kthreadd") {
        assert!(matches!(Live::open(Pid(2)), Err(TargetError::KernelThread(Pid(2)))));
    } else {
        println!("skipped: needs a PID namespace that shows kernel threads");
    }
    let mut p = Running::start(&["zombie"]);
    let zombie = Pid(p.line().parse().unwrap());
    assert_eq!(p.line(), "ready");
    assert!(matches!(Live::open(zombie), Err(TargetError::Zombie(z)) if z == zombie));
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    assert!(matches!(Live::open(Pid(ended.id().cast_signed())), Err(TargetError::NoSuchProcess(_))));
}

#[test]
fn a_threads_number_opens_its_process() {
    let p = Running::start(&["threads", "2"]).ready();
    let tid = p.live().threads().unwrap()[1].host_tid;
    let live = Live::open(Pid(tid.0)).unwrap();
    assert_eq!(live.process().pid, p.pid());
    assert!(live.warnings()[0].contains("is a thread of process"));
}

#[test]
fn ourselves_cannot_be_held() {
    let me = Pid(std::process::id().cast_signed());
    let live = Live::open(me).unwrap();
    match live.stop(&StopLimits::default()) {
        Err(TargetError::Refused { cause, .. }) => assert!(cause.contains("itself"), "{cause}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("we hold ourselves"),
    }
}

#[test]
fn a_traced_program_is_refused_by_name_and_still_observed() {
    let p = Running::start(&["threads", "3"]).ready();
    let live = p.live();
    let mut strace = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-p", &p.pid().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .ok();
    let Some(strace) = &mut strace else {
        println!("skipped: needs strace");
        return;
    };
    let until = Instant::now() + Duration::from_secs(5);
    // strace stops and starts each thread as it attaches
    let attached = || states(p.pid()).iter().all(|(s, t)| *t != 0 && *s == 'S');
    while !(attached() && live.progress().iter().all(|m| m.3.is_some())) {
        assert!(Instant::now() < until, "{:?}", states(p.pid()));
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = live.stop(&StopLimits::default()).err();
    let seen = ptrace_refusal(p.pid());
    let observed = live.observe(&StopLimits::default()).unwrap();
    observed.read_stacks();
    let released = observed.release();
    strace.kill().unwrap();
    strace.wait().unwrap();
    let Some(TargetError::Refused { cause, remedy, .. }) = refused else { panic!("{refused:?}") };
    assert!(cause.contains(&format!("strace ({}) traces it already", strace.id())), "{cause}");
    assert!(remedy.contains("--no-stop"));
    assert_eq!(seen.map(|s| s.0), Some(cause));
    assert_eq!(released.threads.iter().filter(|t| t.registers.is_some()).count(), 4);
}

#[test]
fn observing_gives_the_same_bytes_without_stopping() {
    let p = Running::start(&["threads", "6", "4"]).ready();
    settles(p.pid(), "S");
    let live = p.live();
    let held = {
        let s = live.stop(&StopLimits::default()).unwrap();
        s.read_stacks();
        s.release()
    };
    settles(p.pid(), "S");
    let seen = live.observe(&StopLimits::default()).unwrap();
    seen.read_stacks();
    let seen = seen.release();
    assert_eq!((seen.pause, seen.syscalls_in_pause), (Duration::ZERO, 0));
    for (a, b) in held.threads.iter().zip(&seen.threads) {
        let (ra, rb) = (a.registers.as_ref().unwrap(), b.registers.as_ref().unwrap());
        assert_eq!((a.tid, ra.sp(), ra.pc()), (b.tid, rb.sp(), rb.pc()));
        assert_eq!(ra.file.read(x86_64::RDI), rb.file.read(x86_64::RDI));
        assert_eq!(rb.file.read(x86_64::RBX), None);
        assert!(b.missing.is_none() && b.wchan.is_some());
        let sp = Addr(ra.sp().unwrap());
        let (mut x, mut y) = (vec![0; 2048], vec![0; 2048]);
        held.kept.read(sp, &mut x).unwrap();
        seen.kept.read(sp, &mut y).unwrap();
        assert_eq!(x, y);
        assert_eq!(ra.tls_base, rb.tls_base, "struct pthread is found without being told");
    }
    assert_eq!(seen.threads[1].syscall.unwrap(), held.threads[1].syscall.unwrap());
}

#[test]
fn what_moves_while_observed_loses_its_registers() {
    let mut p =
        Running::of(Command::new("sh").args(["-c", "echo ready; while read x; do read y; echo $x; done"])).ready();
    settles(p.pid(), "S");
    let live = p.live();
    let seen = live.observe(&StopLimits::default()).unwrap();
    assert!(seen.thread_states()[0].registers.is_some());
    // from one read to another place: the shell ends
    p.child.stdin.as_mut().unwrap().write_all(b"a\nb\n").unwrap();
    assert_eq!(p.line(), "a");
    drop(p.child.stdin.take());
    let mut rest = String::new();
    p.out.read_to_string(&mut rest).unwrap();
    let released = seen.release();
    assert!(released.threads[0].registers.is_none());
    assert!(released.threads[0].missing.as_ref().unwrap().contains("moved"));
}

/// Copies a program by another process: one that we wrote ourselves could not be started while a child forked meanwhile by
/// another test still has it open for writing.
fn copy_program(from: &std::path::Path, to: &std::path::Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn a_deleted_program_and_a_replaced_library_open() {
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("live-gone-{}", std::process::id()));
    copy_program(program(), &copy);
    let p = Running::of(Command::new(&copy).args(["threads", "1"])).ready();
    let before = std::fs::read(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(&copy, b"something else").unwrap();
    let live = p.live();
    assert_eq!(live.process().exe.as_ref(), Some(&copy));
    let maps = live.mappings().unwrap();
    let exe = maps.iter().find(|m| m.path.as_ref() == Some(&copy)).unwrap();
    assert!(exe.deleted);
    assert_eq!(live.files().open(exe).unwrap().all(), Some(&before[..]));
    std::fs::remove_file(&copy).unwrap();
}

/// Plays another hangscope, where a test below starts it: holds a process until it is ended itself, or tells what comes of
/// opening and holding it.
#[test]
fn helper_plays_another_hangscope() {
    let limits = StopLimits { max_pause: Duration::from_secs(60), ..StopLimits::default() };
    let pid = |name: &str| std::env::var(name).ok().map(|p| Pid(p.parse().unwrap()));
    let say = |what: String| {
        println!("helper: {what}");
        std::io::stdout().flush().unwrap();
    };
    if let Some(pid) = pid("HANGSCOPE_TEST_HOLDS") {
        let live = Live::open(pid).unwrap();
        let stopped = live.stop(&limits).unwrap();
        say("holding".into());
        std::thread::sleep(Duration::from_secs(60));
        drop(stopped);
    }
    if let Some(pid) = pid("HANGSCOPE_TEST_TRIES") {
        let live = match Live::open(pid) {
            Ok(l) => l,
            Err(e) => return say(format!("open: {e}")),
        };
        match live.stop(&limits) {
            Ok(s) => {
                s.read_stacks();
                let exe = live.mappings().unwrap().into_iter().find(|m| m.path == live.process().exe).unwrap();
                let opened = live.files().open(&exe).map(|b| b.len()).map_err(|e| e.to_string());
                let released = s.release();
                say(format!("held {} kept {} exe {opened:?}", released.threads.len(), released.kept.len()));
            }
            Err(e) => {
                let seen = ptrace_refusal(pid).map(|(cause, _)| e.to_string().contains(&cause));
                let o = live.observe(&limits).unwrap();
                o.read_stacks();
                let r = o.release();
                let registers = r.threads.iter().filter(|t| t.registers.is_some()).count();
                say(format!("stop: {e} (foreseen {seen:?}); observed {registers} kept {}", r.kept.len()));
            }
        }
    }
}

/// Another hangscope (see above), asked to do `what` to `pid`.
fn another(what: &str, pid: Pid) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "helper_plays_another_hangscope", "--nocapture"]).env(what, pid.to_string());
    c
}

/// The line it says.
fn said(running: &mut Running) -> String {
    loop {
        let line = running.line();
        if let Some((_, said)) = line.split_once("helper: ") {
            return said.to_string();
        }
        assert!(!line.contains("test result"), "it said nothing");
    }
}

#[test]
fn our_own_end_by_any_signal_lets_go() {
    let p = Running::start(&["threads", "10"]).ready();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL, Signal::SIGABRT, Signal::SIGHUP] {
        let mut holder = Running::of(&mut another("HANGSCOPE_TEST_HOLDS", p.pid()));
        assert_eq!(said(&mut holder), "holding");
        assert!(states(p.pid()).iter().all(|(s, _)| *s == 't'));
        holder.signal(signal);
        holder.child.wait().unwrap();
        settles(p.pid(), "S");
    }
}

#[test]
fn ctrl_z_waits_until_it_is_let_go() {
    let p = Running::start(&["threads", "1500"]).ready();
    let mut caught = 0;
    // it comes first where both want the CPU, and may be over before we look
    for _ in 0..40 {
        if caught > 0 {
            break;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_hangscope"));
        // dropped before the program is, and so ended before: who is held cannot be waited for
        let mut holder = Running::of(command.args(["attach", "--samples", "1", &p.pid().to_string()]));
        // the last thread it seizes: the pause is at its beginning
        while states(p.pid()).last().is_some_and(|(s, _)| *s != 't') && holder.child.try_wait().unwrap().is_none() {}
        if holder.child.try_wait().unwrap().is_some() {
            continue;
        }
        holder.signal(Signal::SIGTSTP);
        settles(p.pid(), "S");
        caught += u32::from(holder.child.try_wait().unwrap().is_none());
        holder.signal(Signal::SIGCONT);
        let _ = holder.out.read_to_end(&mut Vec::new());
        assert!(holder.child.wait().unwrap().code().is_some());
    }
    assert!(caught > 0, "it was never there to be stopped");
}

#[test]
fn signals_survive_our_own_end() {
    let mut p = Running::start(&["count"]).ready();
    let mut sender = Command::new(program()).args(["send", &p.pid().to_string(), "9000"]).spawn().unwrap();
    let mut ends = 0;
    while sender.try_wait().unwrap().is_none() {
        let mut holder = Running::of(&mut another("HANGSCOPE_TEST_HOLDS", p.pid()));
        assert_eq!(said(&mut holder), "holding");
        holder.signal(Signal::SIGKILL);
        holder.child.wait().unwrap();
        ends += 1;
    }
    assert!(sender.wait().unwrap().success() && ends > 1);
    p.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    assert_eq!(p.line(), "9000", "after {ends} ends");
}

/// A command run as nobody, where we may choose; `None` where we may not, or nobody cannot reach the programs.
fn as_nobody(command: &mut Command) -> Option<Running> {
    use std::os::unix::process::CommandExt;
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    match command.uid(65534).gid(65534).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
        Ok(mut child) => {
            let out = BufReader::new(child.stdout.take().unwrap());
            Some(Running { child, out })
        }
        Err(e) => {
            println!("skipped: nobody cannot start {command:?}: {e}");
            None
        }
    }
}

#[test]
fn another_users_process_is_refused_with_the_cause() {
    let p = Running::start(&["threads", "1"]).ready();
    let Some(mut other) = as_nobody(&mut another("HANGSCOPE_TEST_TRIES", p.pid())) else { return };
    let said = said(&mut other);
    assert!(
        said.starts_with(&format!("open: cannot attach to {}: it belongs to user 0 and we are user", p.pid())),
        "{said}"
    );
}

#[test]
fn where_a_filter_forbids_ptrace_proc_still_tells() {
    let p = Running::start(&["threads", "4"]).ready();
    settles(p.pid(), "S");
    let tries = another("HANGSCOPE_TEST_TRIES", p.pid());
    let mut filtered = Command::new(program());
    filtered.arg("without-ptrace").arg(tries.get_program()).args(tries.get_args());
    filtered.env("HANGSCOPE_TEST_TRIES", p.pid().to_string());
    let said = said(&mut Running::of(&mut filtered));
    assert!(said.contains("a seccomp filter forbids") && said.contains("(foreseen Some(true))"), "{said}");
    // five threads and their stacks, through /proc/PID/mem
    let kept: usize = said.rsplit_once("observed 5 kept ").unwrap().1.parse().unwrap();
    assert!(kept > 5 * 4096, "{said}");
}

#[test]
fn from_inside_a_user_namespace_the_outside_is_refused_with_the_cause() {
    let p = Running::start(&["threads", "1"]).ready();
    let tries = another("HANGSCOPE_TEST_TRIES", p.pid());
    let mut inside = Command::new("unshare");
    inside.args(["-U", "-r"]).arg(tries.get_program()).args(tries.get_args());
    inside.env("HANGSCOPE_TEST_TRIES", p.pid().to_string());
    let allowed = Command::new("unshare").args(["-U", "-r", "true"]).status().is_ok_and(|s| s.success());
    if !allowed {
        println!("skipped: needs the right to make a user namespace");
        return;
    }
    let said = said(&mut Running::of(&mut inside));
    assert!(said.contains("we are inside a user namespace"), "{said}");
}

#[test]
fn a_program_that_is_not_dumpable_is_refused_with_the_cause() {
    let Some(p) = as_nobody(Command::new(program()).arg("undumpable")).map(Running::ready) else { return };
    let Some(mut other) = as_nobody(&mut another("HANGSCOPE_TEST_TRIES", p.pid())) else { return };
    let said = said(&mut other);
    assert!(said.contains("not dumpable"), "{said}");
    // root may
    drop(p.live().stop(&StopLimits::default()).unwrap());
    settles(p.pid(), "S");
}

#[test]
fn an_ordinary_user_holds_his_own_processes() {
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(yama.trim(), "" | "0") {
        println!("skipped: needs kernel.yama.ptrace_scope 0");
        return;
    }
    let Some(p) = as_nobody(Command::new(program()).args(["threads", "4"])).map(Running::ready) else { return };
    let Some(mut other) = as_nobody(&mut another("HANGSCOPE_TEST_TRIES", p.pid())) else { return };
    let said = said(&mut other);
    assert!(said.starts_with("held 5 kept ") && said.contains("exe Ok("), "{said}");
    settles(p.pid(), "S");
}

#[test]
fn in_a_pid_namespace_threads_go_by_their_own_numbers() {
    let mut p = Running::of(Command::new("unshare").args(["-p", "-f"]).arg(program()).args(["threads", "3"]));
    if p.line() != "ready" {
        println!("skipped: needs unshare and the right to make a PID namespace");
        return;
    }
    let pid = hangscope::target::live::descendants(p.pid())[1];
    let live = Live::open(pid).unwrap();
    let stopped = live.stop(&StopLimits::default()).unwrap();
    let tids: Vec<i32> = stopped.thread_states().iter().map(|t| t.tid.0).collect();
    assert_eq!(tids, [1, 2, 3, 4]);
    assert_eq!(stopped.thread_states()[0].host_tid.0, pid.0);
    let futex = stopped.thread_states()[1].syscall.unwrap().args[0];
    assert_eq!(stopped.memory().read_i32(Addr(futex + 8)).unwrap(), 1, "and locks name them so too");
    drop(stopped);
    kill(NixPid::from_raw(pid.0), Signal::SIGKILL).unwrap();
}

#[test]
fn files_are_those_of_the_targets_root() {
    let root = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/target.c");
    let inside = root.path().join("program");
    let built =
        Command::new("cc").args(["-O1", "-static", "-pthread", "-o"]).arg(&inside).arg(source).status().unwrap();
    assert!(built.success());
    // an absolute link inside the root stays inside
    std::fs::write(root.path().join("real"), b"inside").unwrap();
    std::os::unix::fs::symlink("/real", root.path().join("link")).unwrap();
    let mut p = Running::of(Command::new("chroot").arg(root.path()).args(["/program", "threads", "1"]));
    if p.line() != "ready" {
        println!("skipped: needs the right to chroot");
        return;
    }
    let live = p.live();
    let maps = live.mappings().unwrap();
    let exe = maps.iter().find(|m| m.is_file()).unwrap();
    assert_eq!(exe.path.as_deref(), live.process().exe.as_deref());
    assert_eq!(live.files().open(exe).unwrap().all(), Some(&std::fs::read(&inside).unwrap()[..]));
    assert_eq!(live.files().open_path("/link".as_ref()).unwrap().all(), Some(&b"inside"[..]));
    assert!(live.files().open_path("/../../etc/passwd".as_ref()).is_err());
}

#[test]
fn a_32_bit_process_is_refused() {
    // pause() for ever, as a static program of 32 bits
    let code = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];
    let base = 0x0804_8000u32;
    let mut elf = b"\x7fELF\x01\x01\x01".to_vec();
    elf.resize(16, 0);
    for half in [2u16, 3] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1, base + 84, 52, 0, 0] {
        elf.extend(word.to_le_bytes());
    }
    for half in [52u16, 32, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1, 0, base, base, 84 + 9, 84 + 9, 5, 4096] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(code);
    let directory = tempfile::tempdir().unwrap();
    let (written, path) = (directory.path().join("written"), directory.path().join("program"));
    std::fs::write(&written, elf).unwrap();
    std::fs::set_permissions(&written, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    copy_program(&written, &path);
    let Ok(mut child) = Command::new(&path).spawn() else {
        println!("skipped: needs a kernel that runs 32-bit programs");
        return;
    };
    // it has become the program: `spawn` returns after exec
    let refused = Live::open(Pid(child.id().cast_signed())).err();
    child.kill().unwrap();
    child.wait().unwrap();
    let said = refused.unwrap().to_string();
    assert!(said.contains("is a 32-bit x86 process"), "{said}");
}
