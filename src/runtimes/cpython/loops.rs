//! Which native frames are evaluation loops.
//!
//! Usually the symbol `_PyEval_EvalFrameDefault` tells. But compilers cut the function in pieces whose names `strip` takes
//! away (Debian's 3.14: 1,184 bytes bear the name, the loop itself lies elsewhere), and interpreters built with tail calls
//! have one function for each instruction. Such a frame is known by its caller, whose call instruction names the loop, or a
//! wrapper that ends by jumping to it (3.15's `_PyEval_Vector`).

use super::find::Found;
use crate::memory::{Memory, MemoryExt};
use crate::runtimes::View;
use crate::units::{Addr, FrameIx};
use crate::unwind::Stack;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

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
        let mut calls: HashMap<Addr, Option<Vec<Range<Addr>>>> = HashMap::new();
        let mut wrappers = Wrappers { view, known: HashMap::new() };
        let before = self.ranges.len();
        for stack in view.stacks {
            for pair in stack.frames.windows(2) {
                let [callee, caller] = pair else { continue };
                let pc = callee.pc.lookup();
                if caller.pc.exact || self.contain(pc) {
                    continue;
                }
                let back = caller.pc.addr;
                let way = calls.entry(back).or_insert_with(|| {
                    let called = calls_to(view.memory, back)?;
                    way_to(&mut wrappers, called, entry)
                });
                // a function on the way that is still there has not jumped yet: it is no loop
                let jumped = way.as_ref().is_some_and(|w| !w.iter().any(|r| r.contains(&pc)));
                if jumped && let Some(piece) = function_at(view, pc) {
                    self.ranges.push(piece);
                }
            }
        }
        self.ranges.len() > before
    }
}

/// Wrappers followed one after another at most.
const MAX_JUMPS: usize = 3;
/// Functions looked through for one call at most: the jumps of a wrapper are few.
const MAX_TRIED: usize = 512;
/// Functions looked through for all calls at most.
const MAX_FUNCTIONS: usize = 8192;
/// Bytes of a wrapper looked through.
const MAX_WRAPPER: u64 = 64 * 1024;
/// `jmp rel32` on x86-64.
const JUMP: u8 = 0xe9;

/// A function: its extent, and where its jumps go outside of it.
struct Wrapper {
    extent: Range<Addr>,
    jumps: Vec<Addr>,
}

/// The functions looked through so far.
struct Wrappers<'a> {
    view: &'a View<'a>,
    known: HashMap<Addr, Option<Rc<Wrapper>>>,
}

impl Wrappers<'_> {
    fn find(&mut self, at: Addr, entry: Addr) -> Option<Rc<Wrapper>> {
        if let Some(known) = self.known.get(&at) {
            return known.clone();
        }
        if self.known.len() >= MAX_FUNCTIONS {
            return None;
        }
        let found = self.read(at, entry).map(Rc::new);
        self.known.insert(at, found.clone());
        found
    }

    fn read(&self, at: Addr, entry: Addr) -> Option<Wrapper> {
        let extent = function_at(self.view, at).filter(|e| e.end.0 - e.start.0 <= MAX_WRAPPER)?;
        let len = usize::try_from(extent.end.0 - extent.start.0).ok()?;
        let code = self.view.memory.read_vec(extent.start, len).ok()?;
        let mut jumps = jumps(&code, extent.start);
        jumps.retain(|t| !extent.contains(t) && self.view.snapshot.module_at(*t).is_some());
        jumps.sort_by_key(|t| *t != entry);
        jumps.truncate(64);
        Some(Wrapper { extent, jumps })
    }
}

/// The shortest way from `at` to `entry`: the wrappers between, each of which ends by jumping to the next (a sibling call,
/// after which it has no frame any more). Empty where `at` is the entry; `None` where there is no such way.
fn way_to(wrappers: &mut Wrappers<'_>, at: Addr, entry: Addr) -> Option<Vec<Range<Addr>>> {
    let mut tried = HashSet::new();
    let mut open = VecDeque::from([(at, Vec::new())]);
    while let Some((here, way)) = open.pop_front() {
        if here == entry {
            return Some(way);
        }
        if way.len() >= MAX_JUMPS || tried.len() >= MAX_TRIED || !tried.insert(here) {
            continue;
        }
        let Some(wrapper) = wrappers.find(here, entry) else { continue };
        open.extend(
            wrapper.jumps.iter().map(|t| (*t, [way.as_slice(), std::slice::from_ref(&wrapper.extent)].concat())),
        );
    }
    None
}

/// Where the direct call before a return address went.
fn calls_to(memory: &dyn Memory, back: Addr) -> Option<Addr> {
    let mut code = [0; 5];
    memory.read(back.offset(-5), &mut code).ok()?;
    let [CALL, rel @ ..] = code else { return None };
    Some(back.offset(i64::from(i32::from_le_bytes(rel))))
}

/// Where the direct jumps of some code go, and some that are none: bytes that look like one.
fn jumps(code: &[u8], at: Addr) -> Vec<Addr> {
    let found = code.windows(5).zip(0i64..).filter_map(|(bytes, i)| {
        let [JUMP, a, b, c, d] = *bytes else { return None };
        Some(at.offset(i + 5).offset(i64::from(i32::from_le_bytes([a, b, c, d]))))
    });
    found.collect()
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

    #[test]
    fn tail_calls_are_jumps() {
        // jmp 0x5c6d90; jmp *%rax, as they stand in Debian's python3.15
        let code = [0xe9, 0xb5, 0x02, 0xe7, 0xff, 0xff, 0xe0];
        assert_eq!(jumps(&code, Addr(0x75_6ad6)), [Addr(0x5c_6d90)]);
        assert_eq!(jumps(&code[1..], Addr(0x75_6ad7)), []);
    }
}
