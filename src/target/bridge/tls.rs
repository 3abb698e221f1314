//! The thread pointer of threads whose debugger does not tell `fs_base` (lldb): found by what glibc keeps there.

use crate::memory::{Memory, MemoryExt};
use crate::target::{Mapping, ThreadState};
use crate::units::{Addr, PthreadT};
use std::collections::HashMap;

/// Bytes of one anonymous mapping searched at most, from its top; of all of them together; and of one stack.
const MAX_MAPPING: u64 = 64 << 10;
const MAX_ALL: u64 = 8 << 20;
const MAX_STACK: u64 = 1 << 20;

/// Fills in the TLS base of the threads that lack one: `struct pthread` begins with its own address, repeats it 16 bytes
/// on, and holds the thread's id. glibc puts it at the top of the thread's stack; the loader puts the first thread's into
/// an anonymous mapping of its own. `memory` holds the live stacks already.
pub(super) fn fill_in(threads: &mut [ThreadState], mappings: &[Mapping], memory: &dyn Memory) {
    let lacks = |t: &ThreadState| t.registers.as_ref().is_some_and(|r| r.tls_base.is_none());
    let mut wanted: HashMap<i32, usize> =
        threads.iter().enumerate().filter(|(_, t)| lacks(t)).map(|(i, t)| (t.tid.0, i)).collect();
    if wanted.is_empty() {
        return;
    }
    let mut ranges: Vec<(Addr, u64)> = Vec::new();
    for t in threads.iter().filter(|t| lacks(t)) {
        let Some(sp) = t.registers.as_ref().and_then(|r| r.sp()) else { continue };
        let i = mappings.partition_point(|m| m.end.0 <= sp);
        if let Some(m) = mappings.get(i).filter(|m| m.contains(Addr(sp))) {
            let from = sp.max(m.end.0.saturating_sub(MAX_STACK));
            ranges.push((Addr(from), m.end.0 - from));
        }
    }
    // the first thread's: near the loader and libc, so high addresses first
    let anonymous = mappings.iter().rev().filter(|m| m.path.is_none() && m.permissions.read && m.permissions.write);
    let mut all = 0;
    let mut others: Vec<(Addr, u64)> = Vec::new();
    for m in anonymous {
        let len = (m.end.0 - m.start.0).min(MAX_MAPPING);
        all += len;
        if all > MAX_ALL {
            break;
        }
        others.push((Addr(m.end.0 - len), len));
    }
    for ranges in [ranges, others] {
        if wanted.is_empty() {
            return;
        }
        let asked: Vec<(Addr, usize)> =
            ranges.iter().filter_map(|(at, len)| Some((*at, usize::try_from(*len).ok()?))).collect();
        memory.expect(&asked);
        for (at, len) in asked {
            search(at, len, memory, threads, &mut wanted);
        }
    }
}

fn search(at: Addr, len: usize, memory: &dyn Memory, threads: &mut [ThreadState], wanted: &mut HashMap<i32, usize>) {
    let first = Addr(at.0.next_multiple_of(64));
    let Some(len) = at.0.checked_add(len as u64).and_then(|end| usize::try_from(end.checked_sub(first.0)?).ok()) else {
        return;
    };
    let Ok(bytes) = memory.read_vec(first, len) else { return };
    // struct pthread is aligned to a cache line (TCB_ALIGNMENT, glibc sysdeps/x86_64/nptl/tls.h)
    for (i, words) in bytes.chunks(64).enumerate() {
        let here = first.offset((i * 64).cast_signed() as i64);
        if words.get(..8).is_none_or(|w| w != here.0.to_le_bytes()) {
            continue;
        }
        let tid = memory.read_i32(here.offset(PthreadT::TID.cast_signed()));
        if memory.read_addr(here.offset(PthreadT::SELF.cast_signed())) == Ok(here)
            && let Some(i) = tid.ok().and_then(|tid| wanted.remove(&tid))
            && let Some(registers) = threads.get_mut(i).and_then(|t| t.registers.as_mut())
        {
            registers.tls_base = Some(here.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64;
    use crate::memory::Fake;
    use crate::target::Permissions;
    use crate::units::{HostTid, Tid};

    #[test]
    fn a_thread_is_found_by_its_own_control_block_only() {
        let mut memory = Fake::new();
        memory.put(Addr(0x7000), &[0; 0x1000]);
        // the same shape with another thread's id, and the real one
        for (at, tid) in [(0x7100u64, 77i32), (0x7900, 12)] {
            memory.put(Addr(at), &at.to_le_bytes());
            memory.put(Addr(at + 16), &at.to_le_bytes());
            memory.put(Addr(at + 0x2d0), &tid.to_le_bytes());
        }
        let mut words = [None; 27];
        (words[16], words[19]) = (Some(0x1000), Some(0x7080));
        let thread = |tid| ThreadState {
            tid: Tid(tid),
            host_tid: HostTid(tid),
            name: None,
            state: None,
            registers: x86_64::from_words(&words),
            syscall: None,
            sp_pc: None,
            wchan: None,
            progress: None,
            missing: None,
        };
        let mapping = Mapping {
            start: Addr(0x7000),
            end: Addr(0x8000),
            offset: 0,
            permissions: Permissions { read: true, write: true, ..Permissions::default() },
            device: (0, 0),
            inode: 0,
            path: None,
            deleted: false,
        };
        let mut threads = [thread(12), thread(13)];
        fill_in(&mut threads, &[mapping], &memory);
        let base = |t: &ThreadState| t.registers.as_ref().unwrap().tls_base;
        assert_eq!((base(&threads[0]), base(&threads[1])), (Some(0x7900), None));
    }
}
