//! Who left the core: the process, and its threads by the ids their own PID namespace gave them.

use super::notes::Notes;
use super::segments::Segments;
use crate::arch::{Arch, ThreadRegisters, x86_64};
use crate::memory::{Memory, MemoryExt, u64_at};
use crate::target::{AT_ENTRY, AT_PHDR, Mapping, Process, ThreadState};
use crate::units::{Addr, HostTid, Pid, PthreadT, Tid};
use std::collections::{HashMap, HashSet};

const AT_EXECFN: u64 = 31;

/// The largest pid Linux gives (`PID_MAX_LIMIT`).
const PID_MAX: u32 = 1 << 22;

/// Bytes searched for the auxiliary vector below the program's file name.
const STACK_TOP: usize = 1 << 18;
/// Words of a command line taken at most.
const MAX_WORDS: usize = 4096;

/// Who it is. The program is the file the auxiliary vector's entry point lies in.
pub(super) fn process(notes: &Notes, mappings: &[Mapping], memory: &Segments) -> Process {
    let value = |kind| notes.auxv.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v);
    let exe = notes.own.exe.clone().or_else(|| {
        [AT_ENTRY, AT_PHDR].into_iter().find_map(|kind| {
            let at = Addr(value(kind)?);
            let mapping = mappings.get(mappings.partition_point(|m| m.end <= at))?;
            mapping.path.clone().filter(|_| mapping.contains(at) && mapping.is_file())
        })
    });
    let command = match notes.own.command.is_empty() {
        false => notes.own.command.clone(),
        true => find_command(&notes.auxv, memory).unwrap_or_else(|| {
            // the kernel keeps 79 bytes and puts blanks between the words
            notes.arguments.iter().flat_map(|a| a.split_whitespace()).map(str::to_owned).collect()
        }),
    };
    let pid = notes.pid.or_else(|| notes.threads.first().map(|t| t.pid)).unwrap_or(0);
    Process {
        pid: Pid(pid),
        exe,
        command,
        arch: Arch::X86_64,
        auxv: notes.auxv.clone(),
        forked: notes.forked,
        parent: notes.own.parent.clone(),
        caught: notes.own.caught,
        descriptors: std::collections::BTreeMap::new(),
        at_instant: Default::default(),
    }
}

/// The command line as the kernel laid it out when the program began: argc, argv, NULL, environment, NULL, auxiliary
/// vector, and above them the strings, the program's file name (`AT_EXECFN`) last.
/// Source: Linux `fs/binfmt_elf.c`, `create_elf_tables`.
fn find_command(auxv: &[(u64, u64)], memory: &Segments) -> Option<Vec<String>> {
    let name = Addr(auxv.iter().find(|(k, _)| *k == AT_EXECFN)?.1);
    let [first, second, ..] = auxv else { return None };
    let pattern: Vec<u8> = [first.0, first.1, second.0, second.1].iter().flat_map(|w| w.to_le_bytes()).collect();
    let top = name.0 & !7;
    let bytes = (1..=STACK_TOP / 4096).rev().find_map(|pages| {
        let base = Addr((top & !4095).checked_sub(4096 * (pages as u64 - 1))?);
        let len = usize::try_from(top - base.0).ok()?;
        memory.read_vec(base, len).ok()
    })?;
    let at = bytes
        .chunks_exact(8)
        .enumerate()
        .find_map(|(i, _)| (bytes.get(i * 8..)?.starts_with(&pattern)).then_some(i * 8))?;
    let word = |at: usize| u64_at(&bytes, at);
    // back over the closing NULL of the environment, its pointers, and the NULL that closes argv
    let mut here = at.checked_sub(8).filter(|at| word(*at) == Some(0))?;
    loop {
        here = here.checked_sub(8)?;
        if word(here)? == 0 {
            break;
        }
    }
    let argv_end = here;
    let mut argc = 0u64;
    loop {
        here = here.checked_sub(8)?;
        if word(here)? == argc && argc > 0 {
            break;
        }
        argc += 1;
        if argc > MAX_WORDS as u64 {
            return None;
        }
    }
    bytes
        .get(here + 8..argv_end)?
        .chunks_exact(8)
        .map(|p| {
            let at = Addr(u64::from_le_bytes(p.try_into().ok()?));
            let word = memory.read_c_string(at, 4096).ok()?;
            Some(String::from_utf8_lossy(&word).into_owned())
        })
        .collect()
}

/// The threads, ascending by the id the core gives.
pub(super) fn threads(
    notes: &Notes,
    process: &Process,
    mappings: &[Mapping],
    memory: &Segments,
    warnings: &mut Vec<String>,
) -> Vec<ThreadState> {
    let told = notes.threads.iter().map(|t| (t.pid, t.registers.as_ref()));
    let inner = match notes.own.has_threads() {
        true => HashMap::new(),
        false => inner_tids(told, mappings, memory),
    };
    if !inner.is_empty() {
        warnings.push(
            "the core numbers its threads by another PID namespace than the program's own; the program's numbers are shown".into(),
        );
    }
    let own: HashMap<i32, ThreadState> = notes.own.threads.iter().map(|t| (t.tid, t.state())).collect();
    let mut threads: Vec<ThreadState> = notes
        .threads
        .iter()
        .map(|t| {
            let syscall = t.registers.as_ref().and_then(x86_64::sleeping_syscall);
            let mut thread = own.get(&t.pid).cloned().unwrap_or_else(|| ThreadState {
                tid: Tid(inner.get(&t.pid).copied().unwrap_or(t.pid)),
                host_tid: HostTid(t.pid),
                name: notes.name.clone().filter(|_| t.pid == process.pid.0),
                state: None,
                registers: None,
                syscall,
                sp_pc: None,
                wchan: None,
                progress: None,
                missing: t.registers.is_none().then(|| "the core's note for this thread is damaged".to_owned()),
            });
            thread.registers = t.registers.clone();
            thread
        })
        .collect();
    let noted: HashSet<i32> = notes.threads.iter().map(|t| t.pid).collect();
    threads.extend(own.into_values().filter(|t| !noted.contains(&t.tid.0)));
    threads.sort_by_key(|t| t.host_tid);
    threads
}

/// What each thread's `struct pthread` says its id is, where that differs from the core's numbering for *every* thread:
/// the core was then written from outside the program's PID namespace, as `gcore` does. Empty otherwise.
///
/// A single thread that differs proves nothing (a raw `clone` shares its creator's TLS base), nor does musl, whose
/// structure is another.
pub(in crate::target) fn inner_tids<'a>(
    threads: impl Iterator<Item = (i32, Option<&'a ThreadRegisters>)>,
    mappings: &[Mapping],
    memory: &dyn Memory,
) -> HashMap<i32, i32> {
    let musl =
        mappings.iter().filter_map(|m| m.path.as_deref()?.file_name()?.to_str()).any(|n| n.starts_with("ld-musl"));
    if musl {
        return HashMap::new();
    }
    let mut inner = HashMap::new();
    let mut seen = HashSet::new();
    for (told, registers) in threads {
        match registers.and_then(|r| pthread_tid(r, memory)) {
            Some(tid) if tid != told && seen.insert(tid) => inner.insert(told, tid),
            _ => return HashMap::new(),
        };
    }
    inner
}

/// The id glibc keeps for a thread, if its TLS base is a `struct pthread`.
fn pthread_tid(registers: &ThreadRegisters, memory: &dyn Memory) -> Option<i32> {
    let base = Addr(registers.tls_base?);
    if memory.read_addr(base.offset(PthreadT::SELF.cast_signed())).ok()? != base {
        return None;
    }
    let tid = memory.read_u32(base.offset(PthreadT::TID.cast_signed())).ok()?;
    (1..PID_MAX).contains(&tid).then_some(tid)?.try_into().ok()
}
