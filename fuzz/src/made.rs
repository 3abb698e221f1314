//! A made-up process: three small libraries, threads asleep anywhere, and memory that is noise with something in it.

use super::dice::{Dice, mix};
use super::image::{DATA, Name, TEXT, library};
use hangscope::arch::Arch;
use hangscope::arch::x86_64::{USER_REGS, parse_user_regs, sleeping_syscall};
use hangscope::memory::{FileBytes, Memory, ReadError};
use hangscope::target::{Files, Mapping, Permissions, Process, Target, TargetError, ThreadState};
use hangscope::units::{Addr, HostTid, Pid, Tid};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which runtime's objects the noise is made for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Glibc,
    CPython,
    Rocm,
}

const LIBC: u64 = 0x7f10_0000_0000;
const LOADER: u64 = 0x7f20_0000_0000;
const PYTHON: u64 = 0x7f30_0000_0000;
const HSA: u64 = 0x7f40_0000_0000;
const HIP: u64 = 0x7f50_0000_0000;
const HEAP: u64 = 0x1000_0000;
const HEAP_LEN: u64 = 0x1_0000;
const STACKS: u64 = 0x7e00_0000_0000;
const STACK: u64 = 0x1_0000;
/// Where a thread's `struct pthread` lies in its stack.
const PTHREAD: u64 = 0xf000;

/// Names that types and functions bear.
const WORDS: &[&str] = &[
    "code",
    "_thread.lock",
    "_thread.RLock",
    "method",
    "builtin_function_or_method",
    "function",
    "dict",
    "__exit__",
    "_queue.SimpleQueue",
    "Condition",
    "wait",
    "threading.py",
    "_multiprocessing.SemLock",
    "_io.BufferedReader",
];

/// The process.
pub struct Made {
    process: Process,
    threads: Vec<ThreadState>,
    mappings: Vec<Mapping>,
    files: Arc<Libraries>,
    seed: u64,
    /// Words that are not noise.
    planted: HashMap<u64, u64>,
    tids: Vec<i32>,
}

struct Libraries(Vec<(PathBuf, FileBytes)>);

impl Files for Libraries {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        self.open_path(mapping.path.as_deref().unwrap_or(Path::new("")))
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        let found = self.0.iter().find(|(p, _)| p == path).map(|(_, bytes)| bytes.clone());
        found.ok_or_else(|| TargetError::File { path: path.display().to_string(), cause: "made up".into() })
    }
}

/// Functions, each of 256 bytes, from 0x4000 on.
fn functions(names: &[&'static str]) -> Vec<Name> {
    names.iter().enumerate().map(|(i, name)| (*name, 0x4000 + 0x100 * i as u64, 0x100, true)).collect()
}

impl Made {
    pub fn new(dice: &mut Dice<'_>, runtime: Runtime) -> Made {
        let frames: Vec<u8> = (0..dice.below(64)).flat_map(|_| dice.word().to_le_bytes()).collect();
        let minor = 8 + dice.below(8);
        let mut made = Made {
            process: Process {
                pid: Pid(100),
                exe: None,
                command: vec![],
                arch: Arch::X86_64,
                auxv: vec![],
                forked: None,
                parent: None,
                caught: None,
                descriptors: std::collections::BTreeMap::new(),
                at_instant: Default::default(),
            },
            threads: Vec::new(),
            mappings: Vec::new(),
            files: Arc::new(Libraries(Vec::new())),
            seed: dice.word(),
            planted: HashMap::new(),
            tids: (0..1 + dice.below(6)).map(|i| 100 + i as i32).collect(),
        };
        let mut libc = functions(&[
            "pthread_mutex_lock",
            "pthread_cond_wait",
            "malloc",
            "free",
            "fork",
            "exit",
            "dl_iterate_phdr",
            "syscall",
            "pthread_once",
            "fflush",
            "sem_wait",
            "pthread_join",
        ]);
        libc.extend([("__nptl_version", 0x7f00, 5, false), ("_IO_2_1_stdout_", TEXT + 0x100, 0xe0, false)]);
        let mut libraries = vec![
            ("/made/libc.so.6".to_owned(), LIBC, library(&libc, &frames, &[(0x7f00, b"2.36\0")])),
            (
                "/made/ld-linux-x86-64.so.2".to_owned(),
                LOADER,
                library(&[("_rtld_global", TEXT, 0x1000, false)], &frames, &[]),
            ),
        ];
        if runtime == Runtime::CPython {
            let mut python = functions(&["_PyEval_EvalFrameDefault", "take_gil", "PyGILState_Ensure"]);
            python.push(("_PyRuntime", TEXT, 0x3_0000, false));
            let name = format!("/made/libpython3.{minor}.so.1.0");
            libraries.push((name, PYTHON, library(&python, &frames, &[])));
            made.plant_python(dice, minor);
        }
        if runtime == Runtime::Rocm {
            let mut hsa =
                functions(&["hsa_signal_wait_scacquire", "hsaKmtWaitOnMultipleEvents_Ext", "hsa_queue_create"]);
            hsa.push(("_amdgpu_r_debug", TEXT + 0x200, 0x28, false));
            libraries.push(("/made/libhsa-runtime64.so.1".into(), HSA, library(&hsa, &frames, &[])));
            let hip = functions(&["hipDeviceSynchronize", "hipStreamSynchronize", "hipModuleLoadData"]);
            let version = dice.pick(&["5.2.21153", "5.7.31921", "6.4.43482", "7.2.26015"]);
            libraries.push((format!("/made/libamdhip64.so.{version}"), HIP, library(&hip, &frames, &[])));
            made.plant_signals(dice);
        }
        for (name, base, _) in &libraries {
            made.map(*base, TEXT, Some(name), true);
            made.map(*base + TEXT, DATA, Some(name), false);
        }
        made.files =
            Arc::new(Libraries(libraries.into_iter().map(|(n, _, f)| (n.into(), FileBytes::owned(f))).collect()));
        made.map(HEAP, HEAP_LEN, None, false);
        for (i, word) in WORDS.iter().enumerate() {
            let mut bytes = word.bytes().chain([0]).collect::<Vec<_>>();
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            for (j, w) in bytes.as_chunks::<8>().0.iter().enumerate() {
                made.planted.insert(word_at(i) + 8 * j as u64, u64::from_le_bytes(*w));
            }
        }
        for i in 0..made.tids.len() {
            made.thread(dice, i as u64, runtime);
        }
        made.mappings.sort_by_key(|m| m.start);
        made
    }

    /// What leads into the noise: the version since 3.13, pointers to interpreters and threads before.
    fn plant_python(&mut self, dice: &mut Dice<'_>, minor: u64) {
        let runtime = PYTHON + TEXT;
        if minor >= 13 {
            self.planted.insert(runtime, u64::from_le_bytes(*b"xdebugpy"));
            self.planted.insert(runtime + 8, 0x0300_00f0 | minor << 16);
            self.planted.insert(runtime + 16, dice.below(2));
        }
        // an object in every 64th word of the heap, whose type is in the heap and has a name
        for i in 0..HEAP_LEN / 512 {
            let at = HEAP + 512 * i;
            self.planted.insert(at + 8, HEAP + 0x2000 + 512 * dice.below(16));
            self.planted.insert(at + 24, word_at(dice.below(WORDS.len() as u64) as usize));
        }
        // one pointer for the whole runtime: every list of it is the same thing
        if dice.once_in(2) {
            let one = HEAP + 0x4000;
            for i in (24..0x3_0000).step_by(8) {
                self.planted.entry(runtime + i).or_insert(one);
            }
            for i in (0..0x1000).step_by(8) {
                self.planted.entry(one + i).or_insert(if dice.once_in(3) { one } else { one + 512 * dice.below(8) });
            }
        }
    }

    /// Signals of HSA (`amd_signal_t`: kind, value, mailbox, event) in every fourth 128 bytes of the heap; their numbers, and
    /// what they lead to, are noise.
    fn plant_signals(&mut self, dice: &mut Dice<'_>) {
        let magic = hangscope::layout::Layouts::rocm().number("signal_magic").unwrap_or_default();
        let at_magic = hangscope::layout::Layouts::rocm()
            .layout("amd_signal_t", &hangscope::layout::Subject::default())
            .and_then(|l| l.field("magic"))
            .map_or(0, |f| f.offset);
        for at in (HEAP..HEAP + HEAP_LEN).step_by(512) {
            self.planted.insert(at, dice.pick(&[1, 1, u64::MAX, u64::MAX - 1, 0]));
            self.planted.insert(at + 8, dice.pick(&[0, 1, u64::MAX, HEAP + 0x8000]));
            self.planted.insert(at + at_magic, magic);
            if dice.once_in(2) {
                // the queue of a doorbell, and its ring
                self.planted.insert(at + 0x48, HEAP + 64 * dice.below(256));
            }
        }
    }

    fn map(&mut self, at: u64, len: u64, path: Option<&str>, code: bool) {
        self.mappings.push(Mapping {
            start: Addr(at),
            end: Addr(at + len),
            offset: if code || path.is_none() { 0 } else { TEXT },
            permissions: Permissions { read: true, write: !code, execute: code, shared: false },
            device: (0, 0),
            inode: 0,
            path: path.map(PathBuf::from),
            deleted: false,
        });
    }

    fn thread(&mut self, dice: &mut Dice<'_>, index: u64, runtime: Runtime) {
        let stack = STACKS + 0x10_0000 * index;
        self.map(stack, STACK, None, false);
        let pthread = stack + PTHREAD;
        let tid = self.tids[index as usize];
        for (at, value) in [(0, pthread), (0x10, pthread), (0x2d0, tid as u64)] {
            self.planted.insert(pthread + at, value);
        }
        let object = match (dice.below(6), runtime) {
            (0, _) => LIBC + TEXT + 4 * dice.below(0x1000),
            (1, _) => LOADER + TEXT + 8 * dice.below(0x200),
            (2, Runtime::Rocm) => HEAP + 512 * dice.below(64),
            (2, Runtime::CPython) => PYTHON + TEXT + 8 * dice.below(0x6000),
            (3, _) => pthread + 0x2d0,
            _ => HEAP + 8 * dice.below(16),
        };
        if dice.once_in(2) {
            self.plant_mutex(dice, object & !7);
        }
        let code = LIBC + 0x4000 + 0x100 * dice.below(12) + dice.below(0x100);
        let word = |dice: &mut Dice<'_>| self.value(dice.word());
        let mut registers = [0u64; USER_REGS / 8];
        for r in &mut registers {
            *r = word(dice);
        }
        registers[15] = dice.pick(&[202, 202, 202, 219, 7, 230, 0, 455, u64::MAX]);
        registers[10] = dice.pick(&[-512i64, -512, -516, -4, 0]) as u64;
        registers[14] = object;
        registers[13] = dice.pick(&[0x80, 0x80, 0x189, 0, 9, 6, 0x86, 11]);
        registers[12] = dice.pick(&[0, 1, 2, 3, 2, 0x8000_0000, u64::MAX]);
        registers[7] = dice.pick(&[0, 0, HEAP + 64, 1]);
        registers[16] = code;
        registers[19] = stack + 8 * dice.below(PTHREAD / 8);
        registers[21] = pthread;
        let bytes: Vec<u8> = registers.iter().flat_map(|r| r.to_le_bytes()).collect();
        let registers = parse_user_regs(&bytes);
        self.threads.push(ThreadState {
            tid: Tid(tid),
            host_tid: HostTid(tid),
            name: None,
            state: Some('S'),
            syscall: registers.as_ref().and_then(sleeping_syscall),
            registers,
            sp_pc: None,
            wchan: None,
            progress: None,
            missing: None,
        });
    }

    /// Five words that read as a mutex, or nearly.
    fn plant_mutex(&mut self, dice: &mut Dice<'_>, at: u64) {
        let owner = dice.pick(&self.tids) as u64;
        let words = [2 | dice.below(2) << 32, owner | 1 << 32, dice.pick(&[0, 1, 2, 3, 0x80, 0x10, 0x20]), 0, 0];
        for (i, word) in words.into_iter().enumerate() {
            self.planted.insert(at + 8 * i as u64, word);
        }
    }

    /// What a word of noise is worth: often nothing, a small number, or a pointer into what is mapped.
    fn value(&self, noise: u64) -> u64 {
        let more = noise >> 8;
        match noise & 15 {
            0..=3 => 0,
            4..=7 => HEAP + ((more % HEAP_LEN) & !7),
            8 => more % 16,
            9 => STACKS + 0x10_0000 * (more % 6) + (more >> 8) % STACK,
            10 => self.tids[(more % self.tids.len() as u64) as usize] as u64,
            11 => LIBC + 0x4000 + more % 0xc00,
            12 => PYTHON + (more % (TEXT + DATA)),
            13 => 1 << (more % 64),
            14 => u64::MAX - more % 16,
            _ => noise,
        }
    }

    fn word(&self, at: u64) -> u64 {
        self.planted.get(&at).copied().unwrap_or_else(|| self.value(mix(self.seed ^ at)))
    }
}

/// Where one of [`WORDS`] stands.
fn word_at(i: usize) -> u64 {
    HEAP + 0x1000 + 64 * i as u64
}

impl Memory for Made {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        let (mut here, mut rest) = (at.0, buf);
        while !rest.is_empty() {
            let i = self.mappings.partition_point(|m| m.end.0 <= here);
            let mapping = self.mappings.get(i).filter(|m| m.contains(Addr(here)) && !m.permissions.execute);
            let end = mapping.ok_or(ReadError::Unmapped(Addr(here)))?.end.0;
            while here < end && !rest.is_empty() {
                let word = self.word(here & !7).to_le_bytes();
                let word = &word[(here & 7) as usize..];
                let n = word.len().min(rest.len());
                let (now, later) = rest.split_at_mut(n);
                now.copy_from_slice(&word[..n]);
                (here, rest) = (here + n as u64, later);
            }
        }
        Ok(())
    }
}

impl Target for Made {
    fn process(&self) -> &Process {
        &self.process
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(self.threads.clone())
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(self.mappings.clone())
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::clone(&self.files) as Arc<dyn Files>
    }
}
