//! Bytes of a running or held process: `process_vm_readv`, many ranges a call, and `/proc/PID/mem` where that is
//! refused.

use crate::memory::ReadError;
use crate::units::{Addr, PAGE};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, pread, process_vm_readv};
use nix::unistd::Pid as NixPid;
use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Ranges one `process_vm_readv` takes (`UIO_MAXIOV`).
const RANGES_A_CALL: usize = 1024;

/// Unreadable pages met in one batch before the rest of the batch is left to single reads: each costs a system call.
const FAULTS_A_BATCH: usize = 64;

/// What of the ranges asked for a buffer holds: where it stood, where it begins in the buffer, its length.
pub(super) type Pieces = Vec<(Addr, usize, usize)>;

/// The target's address space. Its calls may take for ever: see [`super::guarded`].
pub(super) struct Remote {
    /// Any living thread of it.
    tid: NixPid,
    /// Opened at the start: it reads on where `process_vm_readv` is refused, and never another process's memory.
    mem: Result<File, Errno>,
    /// Set once `process_vm_readv` was refused though `mem` is open.
    use_mem: AtomicBool,
    /// System calls made so far.
    pub(super) calls: AtomicU64,
}

impl Remote {
    /// Opens the memory of the process one of whose living threads has this `/proc` directory and number.
    pub(super) fn open(directory: &Path, tid: i32) -> Remote {
        let mem = File::open(directory.join("mem")).map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw));
        Remote { tid: NixPid::from_raw(tid), mem, use_mem: AtomicBool::new(false), calls: AtomicU64::new(0) }
    }

    /// Why the memory cannot be read, when the system refuses it altogether.
    pub(super) fn refused(&self) -> Option<Errno> {
        self.mem.as_ref().err().copied()
    }

    /// Fills `buf` from `at`: all, or none and why.
    pub(super) fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        if buf.is_empty() {
            return Ok(());
        }
        if !self.use_mem.load(Ordering::Relaxed) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let remote = [RemoteIoVec { base: to_usize(at)?, len: buf.len() }];
            match process_vm_readv(self.tid, &mut [IoSliceMut::new(buf)], &remote) {
                Ok(n) => return whole(at, n, buf.len()),
                Err(Errno::EPERM | Errno::ENOSYS) if self.mem.is_ok() => self.use_mem.store(true, Ordering::Relaxed),
                Err(e) => return Err(reason(e, at)),
            }
        }
        self.read_by_mem(at, buf)
    }

    /// The same through `/proc/PID/mem`, which also gives what the program itself may not read, and what a driver reads for
    /// us. Not for mappings of devices.
    pub(super) fn read_by_mem(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        let n = self.read_mem(at, buf)?;
        whole(at, n, buf.len())
    }

    /// As much as one read of `/proc/PID/mem` gives.
    fn read_mem(&self, at: Addr, buf: &mut [u8]) -> Result<usize, ReadError> {
        let mem = self.mem.as_ref().map_err(|_| ReadError::Refused(at))?;
        let offset = i64::try_from(at.0).map_err(|_| ReadError::Unmapped(at))?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        match pread(mem, buf, offset) {
            // the address space is gone: ended, or replaced by an exec
            Ok(0) => Err(ReadError::Lost),
            Ok(n) => Ok(n),
            Err(e) => Err(reason(e, at)),
        }
    }

    /// Reads many ranges with as few calls as can be. Gives one buffer and what of the ranges it holds: (where it stood,
    /// where it begins in the buffer, length). Unreadable parts are left out. The caller bounds the sum of the lengths.
    pub(super) fn read_ranges(&self, ranges: &[(Addr, usize)]) -> (Vec<u8>, Pieces) {
        let total = ranges.iter().map(|(_, len)| *len).fold(0usize, usize::saturating_add);
        let mut buffer = vec![0u8; total];
        let mut pieces = Vec::with_capacity(ranges.len());
        let mut todo = Vec::with_capacity(ranges.len());
        let mut from = 0usize;
        for (at, len) in ranges.iter().filter(|(_, len)| *len > 0) {
            todo.push(Piece { at: *at, from, len: *len });
            from += len;
        }
        todo.reverse();
        let mut faults = 0;
        while !todo.is_empty() && faults <= FAULTS_A_BATCH {
            let many = if self.use_mem.load(Ordering::Relaxed) { 1 } else { RANGES_A_CALL };
            let mut now: Vec<Piece> = todo.split_off(todo.len().saturating_sub(many));
            now.reverse();
            match self.read_pieces(&mut buffer, &now) {
                Step::Had(bytes) => {
                    let (rest, fault) = account(&now, bytes, &mut pieces);
                    faults += usize::from(fault);
                    todo.extend(rest.into_iter().rev());
                }
                Step::Again => todo.extend(now.into_iter().rev()),
                Step::End => break,
            }
        }
        (buffer, pieces)
    }

    /// One call for the given pieces, which ascend in the buffer; by `/proc/PID/mem` there is one piece.
    fn read_pieces(&self, buffer: &mut [u8], pieces: &[Piece]) -> Step {
        if self.use_mem.load(Ordering::Relaxed) {
            let Some(p) = pieces.first() else { return Step::End };
            let Some(room) = buffer.get_mut(p.from..p.from.saturating_add(p.len)) else { return Step::End };
            return match self.read_mem(p.at, room) {
                Ok(n) => Step::Had(n),
                Err(ReadError::Unmapped(_)) => Step::Had(0),
                Err(_) => Step::End,
            };
        }
        let mut local = Vec::with_capacity(pieces.len());
        let mut remote = Vec::with_capacity(pieces.len());
        let mut rest = buffer;
        let mut passed = 0;
        for p in pieces {
            let Some((_, tail)) = rest.split_at_mut_checked(p.from.saturating_sub(passed)) else { break };
            let Some((room, tail)) = tail.split_at_mut_checked(p.len) else { break };
            let Ok(base) = to_usize(p.at) else { break };
            local.push(IoSliceMut::new(room));
            remote.push(RemoteIoVec { base, len: p.len });
            rest = tail;
            passed = p.from + p.len;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        match process_vm_readv(self.tid, &mut local, &remote) {
            Ok(n) => Step::Had(n),
            Err(Errno::EFAULT) => Step::Had(0),
            Err(Errno::EPERM | Errno::ENOSYS) if self.mem.is_ok() => {
                self.use_mem.store(true, Ordering::Relaxed);
                Step::Again
            }
            Err(_) => Step::End,
        }
    }
}

/// How one call of a batch went.
enum Step {
    /// So many bytes were had, in the order of the pieces; fewer than asked means the next byte cannot be read.
    Had(usize),
    /// Another way is to be tried for the same pieces.
    Again,
    /// There is no more to be had.
    End,
}

/// A range and its place in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: Addr,
    from: usize,
    len: usize,
}

/// Books `had` bytes on `asked`, in order: what was had goes to `pieces`; what is left to ask comes back, without the page
/// that could not be read, with whether there was such a page.
fn account(asked: &[Piece], had: usize, pieces: &mut Pieces) -> (Vec<Piece>, bool) {
    let mut left = had;
    for (i, p) in asked.iter().enumerate() {
        if left >= p.len {
            pieces.push((p.at, p.from, p.len));
            left -= p.len;
            continue;
        }
        if left > 0 {
            pieces.push((p.at, p.from, left));
        }
        let mut rest = Vec::new();
        let bad = p.at.0.saturating_add(left as u64);
        let skip = (bad & !(PAGE - 1)).saturating_add(PAGE).saturating_sub(p.at.0);
        if let Some(skip) = usize::try_from(skip).ok().filter(|s| *s < p.len) {
            rest.push(Piece { at: p.at.offset(skip as i64), from: p.from + skip, len: p.len - skip });
        }
        rest.extend_from_slice(asked.get(i + 1..).unwrap_or(&[]));
        return (rest, true);
    }
    (Vec::new(), false)
}

/// Whether all of `len` bytes from `at` were had.
fn whole(at: Addr, had: usize, len: usize) -> Result<(), ReadError> {
    if had == len { Ok(()) } else { Err(ReadError::Unmapped(Addr(at.0.saturating_add(had as u64)))) }
}

fn to_usize(at: Addr) -> Result<usize, ReadError> {
    usize::try_from(at.0).map_err(|_| ReadError::Unmapped(at))
}

fn reason(e: Errno, at: Addr) -> ReadError {
    match e {
        Errno::ESRCH => ReadError::Lost,
        Errno::EPERM | Errno::EACCES | Errno::ENOSYS => ReadError::Refused(at),
        _ => ReadError::Unmapped(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Remote {
        let pid = std::process::id().cast_signed();
        Remote::open(Path::new("/proc/self"), pid)
    }

    #[test]
    fn a_batch_steps_over_what_is_not_there() {
        let words: Vec<u64> = (0..100).collect();
        let at = Addr(words.as_ptr() as u64);
        let (bytes, pieces) = own().read_ranges(&[(at, 8), (Addr(0x10), 4), (at.offset(8), 16), (Addr(8), 9000)]);
        assert_eq!(pieces.iter().map(|p| (p.0, p.2)).collect::<Vec<_>>(), [(at, 8), (at.offset(8), 16)]);
        let (_, from, len) = pieces[1];
        assert_eq!(&bytes[from..from + len], &[1u64.to_le_bytes(), 2u64.to_le_bytes()].concat());
    }

    #[test]
    fn more_ranges_than_one_call_takes() {
        let words: Vec<u64> = (0..5000).collect();
        let at = Addr(words.as_ptr() as u64);
        let ranges: Vec<_> = (0..5000).map(|i| (at.offset(i * 8), 8)).collect();
        for by_mem in [false, true] {
            let r = own();
            r.use_mem.store(by_mem, Ordering::Relaxed);
            let (bytes, pieces) = r.read_ranges(&ranges);
            assert_eq!(pieces.len(), 5000);
            assert!(bytes.chunks_exact(8).zip(0u64..).all(|(b, i)| b == i.to_le_bytes()));
            assert_eq!(r.calls.load(Ordering::Relaxed), if by_mem { 5000 } else { 5 });
        }
    }

    #[test]
    fn a_short_read_leaves_the_rest_after_the_bad_page() {
        let asked = [Piece { at: Addr(0xff0), from: 0, len: 0x2020 }, Piece { at: Addr(0x9000), from: 0x2020, len: 8 }];
        let mut pieces = Vec::new();
        let (rest, fault) = account(&asked, 0x10, &mut pieces);
        assert!(fault);
        assert_eq!(pieces, [(Addr(0xff0), 0, 0x10)]);
        assert_eq!(rest, [Piece { at: Addr(0x2000), from: 0x1010, len: 0x1010 }, asked[1]]);
    }

    #[test]
    fn reading_nothing_there_says_where() {
        let mut b = [0; 8];
        assert_eq!(own().read(Addr(0x10), &mut b), Err(ReadError::Unmapped(Addr(0x10))));
    }
}
