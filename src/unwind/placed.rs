//! Whether threads are where somebody can tell what they do: their code and stacks are there to be read.

use super::Stack;
use crate::memory::{Memory, ReadError};
use crate::snapshot::Snapshot;
use crate::units::{Addr, ModuleIx};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;

/// How many threads of `snapshot` nobody can place: some frame lies in a file that is missing (neither its code nor call frame
/// information is there), or the stack itself was not read. What such a thread waits for and holds is not known.
#[must_use]
pub fn count_unplaced(snapshot: &Snapshot, stacks: &[Stack], memory: &dyn Memory) -> usize {
    let mut known: HashMap<ModuleIx, bool> = HashMap::new();
    let mut is_known = |ix: ModuleIx, at: Addr| {
        *known.entry(ix).or_insert_with(|| {
            let image = snapshot.module(ix).and_then(|m| m.image().ok());
            let described = image.is_some_and(|i| i.elf.frame_description_at(i.bias.to_vaddr(at)).is_some());
            let code = || match memory.read(at, &mut [0]) {
                Ok(()) => true,
                // code made as the program runs: no file ever described it
                Err(why) => snapshot.mapping_at(at).is_some_and(|m| {
                    let made = m.path.as_deref().is_some_and(|p| p.as_os_str().as_bytes().starts_with(b"/memfd:"));
                    made || m.deleted && matches!(why, ReadError::Released(_))
                }),
            };
            described || code()
        })
    };
    let mut is_placed = |stack: &Stack, sp: Addr| {
        let there = stack.frames.iter().all(|f| f.module.is_none_or(|ix| is_known(ix, f.pc.lookup())));
        there && memory.read(sp, &mut [0; 8]).is_ok()
    };
    let threads = snapshot.threads.iter().zip(stacks).filter(|(t, _)| !matches!(t.state, Some('Z' | 'X')));
    threads.filter(|(t, s)| t.registers.as_ref().and_then(|r| r.sp()).is_some_and(|sp| !is_placed(s, Addr(sp)))).count()
}
