//! A made-up process for decoders' tests: threads asleep in system calls, mappings, bytes, stacks.

use super::{Decoder, View};
use crate::arch::x86_64::{RIP, RSP};
use crate::arch::{Arch, RegisterFile, Syscall, ThreadRegisters};
use crate::facts::Facts;
use crate::memory::{Fake, FileBytes};
use crate::snapshot::{Pc, Snapshot};
use crate::target::{Files, Mapping, Permissions, Process, TargetError, ThreadState};
use crate::units::{Addr, HostTid, Pid, ProcessIx, Tid};
use crate::unwind::{Frame, Stack, StackEnd, Trust};
use std::path::Path;
use std::sync::Arc;

/// No files at all.
struct NoFiles;

impl Files for NoFiles {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        Err(TargetError::File { path: format!("{:?}", mapping.path), cause: "made up".into() })
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        Err(TargetError::File { path: path.display().to_string(), cause: "made up".into() })
    }
}

/// The process being made up.
pub(crate) struct MadeUp {
    /// Its memory.
    pub memory: Fake,
    /// Its threads and mappings.
    pub snapshot: Snapshot,
    /// Its stacks; a thread starts with one frame in no module.
    pub stacks: Vec<Stack>,
}

/// Where thread `index`'s stack pointer stands.
pub(crate) fn sp_of(index: usize) -> Addr {
    Addr(0x7000_0000 + 0x10_0000 * index as u64)
}

/// Thread `index`'s `pthread_t`.
pub(crate) fn pthread_of(index: usize) -> Addr {
    sp_of(index).offset(0x8000)
}

impl MadeUp {
    pub fn new() -> MadeUp {
        let process = Process {
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
        };
        let snapshot = Snapshot {
            process,
            threads: vec![],
            unlisted: false,
            mappings: vec![],
            modules: vec![],
            files: Arc::new(NoFiles),
        };
        MadeUp { memory: Fake::new(), snapshot, stacks: vec![] }
    }

    /// Adds anonymous memory.
    pub fn map(&mut self, start: u64, len: u64) -> &mut MadeUp {
        self.snapshot.mappings.push(Mapping {
            start: Addr(start),
            end: Addr(start + len),
            offset: 0,
            permissions: Permissions { read: true, write: true, ..Permissions::default() },
            device: (0, 0),
            inode: 0,
            path: None,
            deleted: false,
        });
        self.snapshot.mappings.sort_by_key(|m| m.start);
        self
    }

    /// Adds a thread asleep in a system call (`None`: running), with a mapped stack and a `struct pthread`.
    pub fn thread(&mut self, tid: i32, call: Option<(u64, [u64; 6])>) -> usize {
        let index = self.snapshot.threads.len();
        let mut file = RegisterFile::default();
        file.write(RSP, sp_of(index).0);
        file.write(RIP, 0x40_1000);
        self.map(sp_of(index).0 - 0x1000, 0xa000);
        let pthread = pthread_of(index);
        self.memory.put(pthread, &[0; 0x700]);
        self.memory.put_u64(pthread, pthread.0).put_u64(pthread.offset(0x10), pthread.0);
        self.memory.put_u32(pthread.offset(0x2d0), tid as u32);
        self.snapshot.threads.push(ThreadState {
            tid: Tid(tid),
            host_tid: HostTid(tid),
            name: None,
            state: Some('S'),
            registers: Some(ThreadRegisters {
                arch: Arch::X86_64,
                file,
                tls_base: Some(pthread.0),
                syscall_register: call.map(|c| c.0 as i64),
                raw: vec![],
            }),
            syscall: call.map(|(number, args)| Syscall { number: Some(number), args }),
            sp_pc: None,
            wchan: None,
            progress: None,
            missing: None,
        });
        let frame = Frame {
            pc: Pc { addr: Addr(0x40_1000), exact: true },
            cfa: Some(sp_of(index).offset(0x100)),
            registers: file,
            trust: Trust::Context,
            module: None,
            signal: false,
        };
        self.stacks.push(Stack { frames: vec![frame], end: StackEnd::Complete });
        index
    }

    /// It as decoders see it.
    pub fn view(&self) -> View<'_> {
        View {
            process: ProcessIx(0),
            snapshot: &self.snapshot,
            stacks: &self.stacks,
            memory: &self.memory,
            locals: false,
        }
    }

    /// What a decoder says of it.
    pub fn decode(&self, decoder: &dyn Decoder) -> Facts {
        decoder.decode(&self.view())
    }
}
