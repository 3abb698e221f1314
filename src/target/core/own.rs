//! The notes a minicore carries beside the usual ones: what `NT_FILE` and `NT_PRSTATUS` have no room for.
//!
//! Owner `hangscope`; text, one record a line, fields apart by tabs, `\`, tab and newline escaped; an absent field is
//! empty. The numbers of the notes are unlike any other's: BFD, and so gdb, looks at the number before the owner. Numbers are
//! hexadecimal, thread ids and inodes decimal.

use crate::arch::Syscall;
use crate::target::{Mapping, Parent, Permissions, Process, ThreadState};
use crate::units::{Addr, HostTid, Pid, Tid};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The owner name of our notes.
pub(in crate::target) const NAME: &str = "hangscope";
/// `start end permissions offset major minor inode deleted path` a mapping.
pub(in crate::target) const MAPS: u32 = 0x6873_6d01;
/// `host-tid tid state name missing wchan sp pc call` a thread; `call` is the number (`?`: not known) and six arguments. A
/// record that is none, [`OTHERS`] for one, says that there may be more threads.
pub(in crate::target) const THREADS: u32 = 0x6873_6d02;
/// The program's path, then each word of its command line. Of a forked process whose parent is known, then the parent's id;
/// then `tid name` for each of the parent's threads. Last, where known, [`SIGNALS`] and the mask of caught signals.
pub(in crate::target) const PROCESS: u32 = 0x6873_6d03;

/// The record of [`THREADS`] for threads that could not be listed.
const OTHERS: &[u8] = b"others";

/// The record of [`PROCESS`] for the signals that are caught.
const SIGNALS: &[u8] = b"signals";

/// Records taken from one note at most.
const MAX_RECORDS: usize = 1 << 20;

/// What a thread's registers do not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnThread {
    pub host_tid: i32,
    pub tid: i32,
    pub state: Option<char>,
    pub name: Option<String>,
    pub missing: Option<String>,
    pub wchan: Option<String>,
    pub sp_pc: Option<(u64, u64)>,
    pub syscall: Option<Syscall>,
}

/// What our own notes told; empty in other people's cores.
#[derive(Default, Debug)]
pub(super) struct Own {
    pub mappings: Vec<Mapping>,
    pub threads: Vec<OwnThread>,
    /// Whether there may be more of them.
    pub lacks_threads: bool,
    pub exe: Option<PathBuf>,
    pub command: Vec<String>,
    pub parent: Option<Parent>,
    pub caught: Option<u64>,
}

impl Own {
    pub fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Takes one note; what does not parse is passed over.
    pub fn take(&mut self, kind: u32, desc: &[u8]) {
        match kind {
            MAPS => {
                self.mappings = records(desc).filter_map(|r| mapping(&r)).collect();
                self.mappings.sort_by_key(|m| (m.start, m.end));
                let mut last = Addr::NULL;
                self.mappings.retain(|m| {
                    let fits = m.start >= last;
                    last = last.max(m.end);
                    fits
                });
            }
            THREADS => {
                let threads: Vec<Option<OwnThread>> = records(desc).map(|r| thread(&r)).collect();
                self.lacks_threads |= threads.contains(&None) || threads.len() == MAX_RECORDS;
                self.threads = threads.into_iter().flatten().collect();
            }
            PROCESS => {
                let is_signals = |r: &Vec<Vec<u8>>| r.first().is_some_and(|word| word == SIGNALS);
                self.caught =
                    records(desc).skip(1).find(is_signals).and_then(|r| u64::from_str_radix(&field(&r, 1)?, 16).ok());
                let mut records = records(desc).enumerate().filter(|(i, r)| *i == 0 || !is_signals(r)).map(|(_, r)| r);
                let mut words = records.next().unwrap_or_default().into_iter();
                self.exe = words.next().filter(|w| !w.is_empty()).map(|w| PathBuf::from(OsString::from_vec(w)));
                self.command = words.map(|w| String::from_utf8_lossy(&w).into_owned()).collect();
                let parent = records.next().and_then(|r| field(&r, 0)?.parse().ok());
                let thread =
                    |r: Vec<Vec<u8>>| Some((Tid(field(&r, 0)?.parse().ok()?), field(&r, 1).unwrap_or_default()));
                let threads = records.filter_map(thread).collect();
                self.parent = parent.map(|pid| Parent { pid: Pid(pid), threads });
            }
            _ => {}
        }
    }
}

fn records(desc: &[u8]) -> impl Iterator<Item = Vec<Vec<u8>>> {
    desc.split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .take(MAX_RECORDS)
        .map(|line| line.split(|b| *b == b'\t').map(unescape).collect())
}

fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for b in bytes {
        match b {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b => out.push(*b),
        }
    }
}

fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut all = bytes.iter();
    while let Some(b) = all.next() {
        match (b, all.as_slice().first()) {
            (b'\\', Some(next)) => {
                out.push(match next {
                    b't' => b'\t',
                    b'n' => b'\n',
                    b => *b,
                });
                all.next();
            }
            (b, _) => out.push(*b),
        }
    }
    out
}

fn field(record: &[Vec<u8>], i: usize) -> Option<String> {
    record.get(i).filter(|f| !f.is_empty()).map(|f| String::from_utf8_lossy(f).into_owned())
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn mapping(r: &[Vec<u8>]) -> Option<Mapping> {
    let (start, end) = (hex(&field(r, 0)?)?, hex(&field(r, 1)?)?);
    let letters = field(r, 2)?;
    let permissions = Permissions {
        read: letters.contains('r'),
        write: letters.contains('w'),
        execute: letters.contains('x'),
        shared: letters.contains('s'),
    };
    let number = |i| field(r, i).and_then(|f| hex(&f));
    (start < end).then_some(Mapping {
        start: Addr(start),
        end: Addr(end),
        offset: number(3)?,
        permissions,
        device: (u32::try_from(number(4)?).ok()?, u32::try_from(number(5)?).ok()?),
        inode: field(r, 6)?.parse().ok()?,
        deleted: field(r, 7).is_some(),
        path: r.get(8).filter(|p| !p.is_empty()).map(|p| PathBuf::from(OsString::from_vec(p.clone()))),
    })
}

fn thread(r: &[Vec<u8>]) -> Option<OwnThread> {
    let number = |i| field(r, i).and_then(|f| hex(&f));
    Some(OwnThread {
        host_tid: field(r, 0)?.parse().ok()?,
        tid: field(r, 1)?.parse().ok()?,
        state: field(r, 2).and_then(|s| s.chars().next()),
        name: field(r, 3),
        missing: field(r, 4),
        wchan: field(r, 5),
        sp_pc: number(6).zip(number(7)),
        syscall: field(r, 8).and_then(|call| {
            let mut words = call.split(' ');
            let number = words.next()?;
            let mut args = [0; 6];
            for slot in &mut args {
                *slot = hex(words.next()?)?;
            }
            Some(Syscall { number: if number == "?" { None } else { Some(hex(number)?) }, args })
        }),
    })
}

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn line(fields: &[&[u8]], out: &mut Vec<u8>) {
    for (i, f) in fields.iter().enumerate() {
        if i > 0 {
            out.push(b'\t');
        }
        escape(f, out);
    }
    out.push(b'\n');
}

/// The bytes of a [`MAPS`] note.
pub(in crate::target) fn write_maps(mappings: &[Mapping]) -> Vec<u8> {
    let mut out = Vec::new();
    for m in mappings {
        let p = m.permissions;
        let letters = [(p.read, 'r'), (p.write, 'w'), (p.execute, 'x'), (p.shared, 's'), (!p.shared, 'p')];
        let letters: String = letters.iter().filter(|(on, _)| *on).map(|(_, c)| *c).collect();
        line(
            &[
                format!("{:x}", m.start.0).as_bytes(),
                format!("{:x}", m.end.0).as_bytes(),
                letters.as_bytes(),
                format!("{:x}", m.offset).as_bytes(),
                format!("{:x}", m.device.0).as_bytes(),
                format!("{:x}", m.device.1).as_bytes(),
                m.inode.to_string().as_bytes(),
                if m.deleted { b"deleted" } else { b"" },
                m.path.as_deref().map_or(b"", path_bytes),
            ],
            &mut out,
        );
    }
    out
}

/// The bytes of a [`THREADS`] note. `unlisted`: there may be threads beside these.
pub(in crate::target) fn write_threads(threads: &[ThreadState], unlisted: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for t in threads {
        let call = t.syscall.map(|c| {
            let number = c.number.map_or_else(|| "?".to_owned(), |n| format!("{n:x}"));
            c.args.iter().fold(number, |line, a| format!("{line} {a:x}"))
        });
        let (sp, pc) = t.sp_pc.map_or_else(Default::default, |(s, p)| (format!("{s:x}"), format!("{p:x}")));
        line(
            &[
                t.host_tid.to_string().as_bytes(),
                t.tid.to_string().as_bytes(),
                t.state.map(String::from).unwrap_or_default().as_bytes(),
                t.name.as_deref().unwrap_or_default().as_bytes(),
                t.missing.as_deref().unwrap_or_default().as_bytes(),
                t.wchan.as_deref().unwrap_or_default().as_bytes(),
                sp.as_bytes(),
                pc.as_bytes(),
                call.unwrap_or_default().as_bytes(),
            ],
            &mut out,
        );
    }
    if unlisted {
        line(&[OTHERS], &mut out);
    }
    out
}

/// The bytes of a [`PROCESS`] note.
pub(in crate::target) fn write_process(process: &Process) -> Vec<u8> {
    let mut fields = vec![process.exe.as_deref().map_or(&b""[..], path_bytes)];
    fields.extend(process.command.iter().map(String::as_bytes));
    let mut out = Vec::new();
    line(&fields, &mut out);
    if let Some(parent) = &process.parent {
        line(&[parent.pid.to_string().as_bytes()], &mut out);
        for (tid, name) in &parent.threads {
            line(&[tid.to_string().as_bytes(), name.as_bytes()], &mut out);
        }
    }
    if let Some(caught) = process.caught {
        line(&[SIGNALS, format!("{caught:x}").as_bytes()], &mut out);
    }
    out
}

impl OwnThread {
    /// The thread as the one who wrote the note saw it, without registers.
    pub fn state(&self) -> ThreadState {
        ThreadState {
            tid: Tid(self.tid),
            host_tid: HostTid(self.host_tid),
            name: self.name.clone(),
            state: self.state,
            registers: None,
            syscall: self.syscall,
            sp_pc: self.sp_pc,
            wchan: self.wchan.clone(),
            progress: None,
            missing: self.missing.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_come_back_as_they_were() {
        let mut out = Vec::new();
        line(&[b"a\tb\\n\nc", b"", b"\\"], &mut out);
        let back: Vec<_> = records(&out).collect();
        assert_eq!(back, [vec![b"a\tb\\n\nc".to_vec(), vec![], b"\\".to_vec()]]);
    }

    #[test]
    fn garbage_is_passed_over() {
        let mut own = Own::default();
        own.take(MAPS, b"zz\t1\n1000\t2000\trw-p\t0\t8\t1\t77\t\t/a b\n3000\t1000\tr\t0\t0\t0\t0\n\xff\xfe\t\t\n");
        assert_eq!(own.mappings.len(), 1);
        assert_eq!(own.mappings[0].path.as_deref(), Some(Path::new("/a b")));
        own.take(THREADS, b"1\n2\tx\n7\t3\tS\tmain\t\t\t\t\tca 1 2 3 4 5 6\n");
        assert_eq!(own.threads.len(), 1);
        assert_eq!(own.threads[0].syscall, Some(Syscall { number: Some(0xca), args: [1, 2, 3, 4, 5, 6] }));
    }
}
