//! Which native frames are evaluation loops.
//!
//! Usually the symbol `_PyEval_EvalFrameDefault` tells. But compilers cut the function in pieces whose names `strip` takes
//! away (Debian's 3.14: 1,184 bytes bear the name, the loop itself lies elsewhere), and interpreters built with tail calls
//! have one function for each instruction. Such a frame is known by its caller, whose call instruction names the loop.

use super::find::Found;
use crate::memory::Memory;
use crate::runtimes::View;
use crate::units::{Addr, FrameIx};
use crate::unwind::Stack;
use std::collections::HashMap;
use std::ops::Range;

/// Where evaluation loops lie.
pub(super) struct Loops {
    /// Where calls to the loop go.
    entry: Option<Addr>,
    ranges: Vec<Range<Addr>>,
}

/// `call rel32` on x86-64.
const CALL: u8 = 0xe8;

impl Loops {
    /// What the symbols tell.
    pub(super) fn new(found: &Found) -> Loops {
        Loops { entry: found.loops.first().map(|r| r.start), ranges: found.loops.clone() }
    }

    /// Whether an evaluation loop is at `pc`.
    pub(super) fn contain(&self, pc: Addr) -> bool {
        self.ranges.iter().any(|r| r.contains(&pc))
    }

    /// The evaluation loops of a stack, innermost first.
    pub(super) fn of(&self, stack: &Stack) -> Vec<FrameIx> {
        let loops = stack.frames.iter().enumerate().filter(|(_, f)| self.contain(f.pc.lookup()));
        loops.filter_map(|(i, _)| u32::try_from(i).ok().map(FrameIx)).collect()
    }

    /// Learns the pieces that symbols do not name, from the call instructions of all stacks. Says whether there were any.
    pub(super) fn learn(&mut self, view: &View<'_>) -> bool {
        let Some(entry) = self.entry else { return false };
        let mut calls: HashMap<Addr, bool> = HashMap::new();
        let before = self.ranges.len();
        for stack in view.stacks {
            for pair in stack.frames.windows(2) {
                let [callee, caller] = pair else { continue };
                let pc = callee.pc.lookup();
                if caller.pc.exact || self.contain(pc) {
                    continue;
                }
                let back = caller.pc.addr;
                let is_call = *calls.entry(back).or_insert_with(|| calls_to(view.memory, back) == Some(entry));
                if is_call && let Some(piece) = function_at(view, pc) {
                    self.ranges.push(piece);
                }
            }
        }
        self.ranges.len() > before
    }
}

/// Where the direct call before a return address went.
fn calls_to(memory: &dyn Memory, back: Addr) -> Option<Addr> {
    let mut code = [0; 5];
    memory.read(back.offset(-5), &mut code).ok()?;
    let [CALL, rel @ ..] = code else { return None };
    Some(back.offset(i64::from(i32::from_le_bytes(rel))))
}

/// The extent the unwind information gives the function, or the piece of one, at `pc`.
fn function_at(view: &View<'_>, pc: Addr) -> Option<Range<Addr>> {
    let (_, module) = view.snapshot.module_at(pc)?;
    let image = module.image().ok()?;
    let extent = image.elf.frame_description_at(image.bias.to_vaddr(pc))?;
    let to = |v: u64| image.bias.to_addr(crate::units::Vaddr(v));
    Some(to(extent.start)..to(extent.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Fake;

    #[test]
    fn a_direct_call_names_its_target() {
        let mut m = Fake::new();
        // call 0x598b80, as it stands before the return address 0x5cdca4 in Debian's python3.14
        m.put(Addr(0x5c_dc9f), &[0xe8, 0xdc, 0xae, 0xfc, 0xff]);
        assert_eq!(calls_to(&m, Addr(0x5c_dca4)), Some(Addr(0x59_8b80)));
        m.put(Addr(0x64_a7ef), &[0x4c, 0x89, 0xef, 0xff, 0xd0]);
        assert_eq!(calls_to(&m, Addr(0x64_a7f4)), None, "an indirect call");
        assert_eq!(calls_to(&m, Addr(4)), None);
    }
}
