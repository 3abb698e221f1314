//! One walk up one stack.

use super::fallback::{Ground, by_frame_pointer, by_scan, by_signal_frame, through_wild_pointer};
use super::rules::{Caller, apply};
use super::window::Window;
use super::{Frame, Stack, StackEnd, Trust};
use crate::arch::{RegisterFile, x86_64};
use crate::elf::{RowScratch, UnwindRow};
use crate::memory::Memory;
use crate::snapshot::{Pc, Snapshot};
use crate::units::{Addr, ModuleIx};
use std::collections::HashMap;
use std::rc::Rc;

/// Times a walk may go to another stack without a signal frame (coroutines, `call_on_stack` helpers).
const STACK_SWITCHES: u32 = 16;

/// What is known of the code at one address.
struct Code {
    module: Option<ModuleIx>,
    executable: bool,
    bias: u64,
    row: Option<UnwindRow>,
}

/// Walks stacks of one process, remembering the rules of each pc it met.
pub(super) struct Walker<'a> {
    ground: Ground<'a>,
    scratch: RowScratch,
    codes: HashMap<u64, Rc<Code>>,
    bound: usize,
}

/// A step outwards.
enum Step {
    To { cfa: Option<Addr>, registers: RegisterFile, trust: Trust, exact: bool },
    End { cfa: Option<Addr>, end: StackEnd },
}

impl<'a> Walker<'a> {
    /// `bound`: frames of one stack at most.
    pub(super) fn new(snapshot: &'a Snapshot, memory: &'a dyn Memory, bound: usize) -> Walker<'a> {
        Walker { ground: Ground { snapshot, memory }, scratch: RowScratch::new(), codes: HashMap::new(), bound }
    }

    /// Walks from these registers outwards.
    pub(super) fn walk(&mut self, registers: RegisterFile) -> Stack {
        let mut stack = Window::new(self.ground.memory);
        let mut frames = Vec::new();
        let mut registers = registers;
        let mut exact = true;
        let mut trust = Trust::Context;
        let mut switches = 0;
        loop {
            let Some(pc) = registers.read(x86_64::RIP) else { return Stack { frames, end: StackEnd::Lost } };
            if frames.len() >= self.bound {
                return Stack { frames, end: StackEnd::Bound };
            }
            let mut pc = Pc { addr: Addr(pc), exact };
            let mut code = self.code(pc.lookup());
            if code.row.is_none() && !exact {
                // a return address that nobody called from, made up to be returned to: makecontext's `__start_context`
                // begins there, and before it lies padding
                let at = self.code(pc.addr);
                if at.row.as_ref().is_some_and(|r| r.covers.start == pc.addr.0.wrapping_sub(at.bias)) {
                    code = at;
                    pc.exact = true;
                }
            }
            let signal = code.row.as_ref().is_some_and(|r| r.signal);
            let mut frame = Frame { pc, cfa: None, registers, trust, module: code.module, signal };
            let step = self.step(&code, &mut frame, &mut stack, frames.is_empty(), &mut switches);
            // nobody called a signal trampoline: it begins where its frame's pc stands
            frame.pc.exact |= frame.signal;
            match step {
                Step::End { cfa, end } => {
                    frame.cfa = cfa;
                    frames.push(frame);
                    return Stack { frames, end };
                }
                Step::To { cfa, registers: next, trust: found, exact: is_exact } => {
                    frame.cfa = cfa;
                    frames.push(frame);
                    registers = next;
                    trust = found;
                    exact = is_exact;
                }
            }
        }
    }

    fn code(&mut self, lookup: Addr) -> Rc<Code> {
        if let Some(code) = self.codes.get(&lookup.0) {
            return Rc::clone(code);
        }
        let found = self.ground.snapshot.module_at(lookup);
        let image = found.and_then(|(_, m)| m.image().ok());
        let code = Rc::new(Code {
            module: found.map(|(ix, _)| ix),
            executable: self.ground.is_executable(lookup.0),
            bias: image.map_or(0, |i| i.bias.0),
            row: image.and_then(|i| i.elf.unwind_row(i.bias.to_vaddr(lookup), &mut self.scratch)),
        });
        self.codes.insert(lookup.0, Rc::clone(&code));
        code
    }

    fn step(
        &self,
        code: &Code,
        frame: &mut Frame,
        stack: &mut Window<'_>,
        innermost: bool,
        switches: &mut u32,
    ) -> Step {
        let sp = frame.registers.read(x86_64::RSP);
        if let Some(row) = &code.row
            && let Some(Caller { cfa, registers }) = apply(row, &frame.registers, code.bias, stack)
        {
            let cfa_at = Some(Addr(cfa));
            let Some(registers) = registers else { return Step::End { cfa: cfa_at, end: StackEnd::Complete } };
            let pc = registers.read(x86_64::RIP).unwrap_or(0);
            if pc == 0 && !row.signal {
                return Step::End { cfa: cfa_at, end: StackEnd::Complete };
            }
            let risen = row.signal || sp.is_none_or(|sp| cfa > sp) || self.is_switch(sp, cfa, switches);
            if risen && (row.signal || self.ground.is_executable(pc)) {
                let trust = if row.signal { Trust::Context } else { Trust::Cfi };
                return Step::To { cfa: cfa_at, registers, trust, exact: row.signal };
            }
            return Step::End { cfa: cfa_at, end: StackEnd::Lost };
        }
        if code.row.is_none()
            && let Some(registers) = by_signal_frame(&self.ground, &frame.registers, stack)
        {
            frame.signal = true;
            return Step::To { cfa: None, registers, trust: Trust::Context, exact: true };
        }
        let found = if innermost_wild(innermost, frame, code) {
            through_wild_pointer(&self.ground, &frame.registers, stack).map(|r| (r, Trust::FramePointer))
        } else {
            None
        };
        let found = found
            .or_else(|| by_frame_pointer(&self.ground, &frame.registers, stack).map(|r| (r, Trust::FramePointer)))
            .or_else(|| by_scan(&self.ground, &frame.registers, stack).map(|r| (r, Trust::Scan)));
        match found {
            Some((registers, trust)) => {
                let cfa = registers.read(x86_64::RSP).map(Addr);
                Step::To { cfa, registers, trust, exact: false }
            }
            None => Step::End { cfa: None, end: StackEnd::Lost },
        }
    }

    /// Whether a CFA that does not lie above the stack pointer is on another stack, and that has not happened too often.
    fn is_switch(&self, sp: Option<u64>, cfa: u64, switches: &mut u32) -> bool {
        let mapping = |at: u64| self.ground.snapshot.mapping_at(Addr(at)).map(|m| m.start);
        *switches += 1;
        *switches <= STACK_SWITCHES && mapping(cfa).is_some() && sp.map(mapping) != Some(mapping(cfa))
    }
}

/// Whether a frame's pc is no code, so that what called it left its return address on top of the stack: the innermost
/// frame, or one that a signal interrupted.
fn innermost_wild(innermost: bool, frame: &Frame, code: &Code) -> bool {
    (innermost || frame.pc.exact) && !code.executable
}
