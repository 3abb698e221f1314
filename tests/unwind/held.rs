//! A door of this test's own: it holds a hung process still, and nothing more.

use hangscope::arch::{Arch, x86_64};
use hangscope::memory::{FileBytes, Memory, ReadError};
use hangscope::target::{Files, Mapping, Permissions, Process, Target, TargetError, ThreadState};
use hangscope::units::{Addr, HostTid, Pid, Tid};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

pub struct Held {
    process: Process,
    memory: File,
    threads: Vec<ThreadState>,
}

struct HostFiles;

impl Files for HostFiles {
    fn open(&self, mapping: &Mapping) -> Result<FileBytes, TargetError> {
        let missing = || TargetError::File { path: format!("{:?}", mapping.path), cause: "deleted".to_owned() };
        if mapping.deleted {
            return Err(missing());
        }
        self.open_path(mapping.path.as_deref().ok_or_else(missing)?)
    }

    fn open_path(&self, path: &Path) -> Result<FileBytes, TargetError> {
        let open = || FileBytes::map(&File::open(path)?);
        open().map_err(|e: std::io::Error| TargetError::File { path: path.display().to_string(), cause: e.to_string() })
    }
}

impl Held {
    /// Stops every thread of `pid`, notes its registers, and keeps it stopped until dropped.
    pub fn new(pid: i32) -> Held {
        let mut threads = Vec::new();
        for tid in tids(pid) {
            let nix_tid = nix::unistd::Pid::from_raw(tid);
            ptrace::seize(nix_tid, ptrace::Options::empty()).unwrap();
            ptrace::interrupt(nix_tid).unwrap();
            waitpid(nix_tid, Some(WaitPidFlag::__WALL)).unwrap();
            let r = ptrace::getregs(nix_tid).unwrap();
            let words = [
                r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi, r.rdi,
                r.orig_rax, r.rip, r.cs, r.eflags, r.rsp, r.ss, r.fs_base, r.gs_base, r.ds, r.es, r.fs, r.gs,
            ];
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            threads.push(ThreadState {
                tid: Tid(tid),
                host_tid: HostTid(tid),
                name: None,
                state: None,
                registers: x86_64::parse_user_regs(&bytes),
                syscall: None,
                sp_pc: None,
                wchan: None,
                progress: None,
                missing: None,
            });
        }
        let process = Process { pid: Pid(pid), exe: None, command: Vec::new(), arch: Arch::X86_64, auxv: Vec::new() };
        Held { process, memory: File::open(format!("/proc/{pid}/mem")).unwrap(), threads }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for t in &self.threads {
            let _ = ptrace::detach(nix::unistd::Pid::from_raw(t.host_tid.0), None);
        }
    }
}

fn tids(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut tids: Vec<i32> = entries.map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    tids.sort_unstable();
    tids
}

impl Memory for Held {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.memory.read_exact_at(buf, at.0).map_err(|_| ReadError::Unmapped(at))
    }
}

impl Target for Held {
    fn process(&self) -> &Process {
        &self.process
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(self.threads.clone())
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.process.pid)).unwrap();
        Ok(text.lines().map(parse_mapping).collect())
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(HostFiles)
    }
}

fn parse_mapping(line: &str) -> Mapping {
    let fields: Vec<&str> = line.splitn(6, ' ').collect();
    let hex = |s: &str| u64::from_str_radix(s, 16).unwrap();
    let (from, to) = fields[0].split_once('-').unwrap();
    let has = |c| fields[1].contains(c);
    let path = fields.get(5).map(|p| p.trim()).filter(|p| !p.is_empty());
    Mapping {
        start: Addr(hex(from)),
        end: Addr(hex(to)),
        offset: hex(fields[2]),
        permissions: Permissions { read: has('r'), write: has('w'), execute: has('x'), shared: has('s') },
        device: (0, 0),
        inode: fields[4].parse().unwrap(),
        path: path.map(|p| p.trim_end_matches(" (deleted)").into()),
        deleted: path.is_some_and(|p| p.ends_with(" (deleted)")),
    }
}
