//! Stacks that signals interrupted: a handler that runs on its own stack (`sigaltstack`) leaves the thread's real stack
//! where no stack pointer leads to. Found while the target is held, so that a door can read them too.

use super::fallback::{SIGRETURN, interrupted_sp_slot};
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{Addr, PAGE};
use std::collections::BTreeSet;

/// Words looked at for the return address of a signal frame, of all threads together: 4 MiB of stacks.
const WORDS: usize = 1 << 19;
/// Bytes of one handler's stack looked at.
const HANDLER_STACK: u64 = 256 << 10;
/// Bytes of one interrupted stack asked for.
const INTERRUPTED_STACK: u64 = 1 << 20;
/// Bytes below the stack pointer that belong to the function (the System V ABI's red zone).
const RED_ZONE: u64 = 128;

/// The stacks that lie interrupted beneath a handler's own stack: where each begins and its bytes. `memory` holds the
/// live stacks already; code is compared in the modules' files, so this costs no system call.
#[must_use]
pub fn find_interrupted_stacks(
    snapshot: &Snapshot,
    threads: &[ThreadState],
    memory: &dyn Memory,
) -> Vec<(Addr, usize)> {
    let mut found = Vec::new();
    let mut words = WORDS;
    let mut trampolines = BTreeSet::new();
    for thread in threads {
        let Some(registers) = &thread.registers else { continue };
        let Some(sp) = registers.sp() else { continue };
        let Some(mapping) = snapshot.mapping_at(Addr(sp)) else { continue };
        // where the thread was born: glibc keeps its control block at the top of its stack, the kernel names the first one
        let own = registers.tls_base.is_some_and(|b| mapping.contains(Addr(b)));
        if own || mapping.path.as_ref().is_some_and(|p| p.as_os_str() == "[stack]") {
            continue;
        }
        let end = mapping.end.0.min(sp.saturating_add(HANDLER_STACK));
        let mut at = sp & !7;
        while at < end && words > 0 {
            words -= 1;
            let Ok(word) = memory.read_u64(Addr(at)) else { break };
            if (trampolines.contains(&word) || is_trampoline(snapshot, word, &mut trampolines))
                && let Some(slot) = interrupted_sp_slot(at.saturating_add(8))
                && let Ok(interrupted) = memory.read_u64(Addr(slot))
            {
                found.extend(range_from(snapshot, interrupted));
            }
            at = at.saturating_add(8);
        }
    }
    found
}

fn is_trampoline(snapshot: &Snapshot, at: u64, known: &mut BTreeSet<u64>) -> bool {
    let code = || {
        let mapping = snapshot.mapping_at(Addr(at)).filter(|m| m.permissions.execute)?;
        let (_, module) = snapshot.module_at(mapping.start)?;
        let image = module.image().ok()?;
        image.elf.read_only_bytes(image.bias.to_vaddr(Addr(at)), SIGRETURN.len())
    };
    let is = code() == Some(&SIGRETURN[..]);
    if is {
        known.insert(at);
    }
    is
}

fn range_from(snapshot: &Snapshot, sp: u64) -> Option<(Addr, usize)> {
    let mapping = snapshot.mapping_at(Addr(sp)).filter(|m| m.permissions.read)?;
    let from = (sp.saturating_sub(RED_ZONE) & !(PAGE - 1)).max(mapping.start.0);
    let len = mapping.end.0.saturating_sub(from).min(INTERRUPTED_STACK);
    Some((Addr(from), usize::try_from(len).ok()?))
}
