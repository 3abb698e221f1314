//! What a Python frame holds: its locals and its value stack.

use super::code::Code;
use super::frames::PyFrame;
use super::objects::{Objects, words_of};
use super::offsets::FrameLayout;
use crate::memory::MemoryExt;
use crate::units::Addr;
use std::rc::Rc;

/// Slots of one frame read at most.
const MAX_SLOTS: i32 = 4096;

/// How a frame can name an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reference {
    /// A global of its module.
    Global(String),
    /// An attribute of its first argument, or of that one's class.
    Attribute(String),
    /// A local variable.
    Local(String),
}

impl Reference {
    /// The name.
    pub(super) fn name(&self) -> &str {
        match self {
            Reference::Global(n) | Reference::Attribute(n) | Reference::Local(n) => n,
        }
    }
}

impl Objects<'_> {
    /// The pointer in a stack reference; `None` for what is no object (NULL, a tagged integer).
    pub(super) fn untag(&self, word: u64) -> Option<Addr> {
        let mask = self.o.stack_mask;
        // pointers are aligned: tag 3 is an integer whatever the mask
        if mask != 0 && word & 3 == 3 {
            return None;
        }
        Some(Addr(word & !mask)).filter(|a| !a.is_null())
    }

    /// Where the value stack of `frame` begins.
    pub(super) fn value_stack(&self, frame: &PyFrame, code: &Code) -> Option<Addr> {
        match &self.o.frame {
            FrameLayout::Object(f) => self.addr(frame.addr, f.valuestack).ok().filter(|a| !a.is_null()),
            FrameLayout::Inline(f) => {
                let slots = u64::try_from(code.nlocalsplus).ok().filter(|n| *n <= MAX_SLOTS as u64)?;
                frame.addr.checked_add(f.localsplus + slots * 8)
            }
        }
    }

    /// The object in a slot of the value stack, counted from 0 at its bottom.
    pub(super) fn stack_slot(&self, frame: &PyFrame, code: &Code, slot: u32) -> Option<Addr> {
        if i64::from(slot) >= i64::from(code.stacksize) {
            return None;
        }
        let at = self.value_stack(frame, code)?.checked_add(u64::from(slot) * 8)?;
        self.untag(self.memory.read_u64(at).ok()?)
    }

    /// Every word of the value stack up to its greatest depth, lowest first. Above the live depth stand left-overs: what is
    /// found here proves nothing by itself.
    pub(super) fn stack_words(&self, frame: &PyFrame, code: &Code) -> Vec<Addr> {
        let Some(at) = self.value_stack(frame, code) else { return Vec::new() };
        let n = usize::try_from(code.stacksize.clamp(0, MAX_SLOTS)).unwrap_or(0);
        let Ok(bytes) = self.memory.read_vec(at, n * 8) else { return Vec::new() };
        words_of(&bytes).filter_map(|w| self.untag(w)).collect()
    }

    /// The local in slot `index`, cells followed.
    pub(super) fn local(&self, frame: &PyFrame, code: &Code, index: u64) -> Option<Addr> {
        (index < u64::try_from(code.nlocalsplus).ok()?).then(|| self.slot_value(frame, index)).flatten()
    }

    /// The locals of `frame` that have a value: name and value, cells followed.
    pub(super) fn locals(&self, frame: &PyFrame, code: &Code) -> Vec<(String, Addr)> {
        let mut out = Vec::new();
        for (index, name) in self.local_names(code).iter().enumerate() {
            if let Some(value) = self.slot_value(frame, index as u64) {
                out.push((name.clone(), value));
            }
        }
        out
    }

    /// Up to 3.10 an argument that an inner function uses too is moved to a cell, and its own slot left empty.
    pub(super) fn first_argument_in_cell(&self, frame: &PyFrame, code: &Code) -> Option<Addr> {
        self.o.code_varnames?;
        let names = self.local_names(code);
        let first = names.first()?;
        let cell = names.iter().skip(1).position(|n| n == first)? as u64 + 1;
        self.slot_value(frame, cell)
    }

    /// Whether a code object has a local, a cell or a free variable of this name.
    pub(super) fn has_local(&self, code: Addr, name: &str) -> bool {
        let names = self.name_tuples().into_iter().filter_map(|f| self.tuple(self.addr(code, f).ok()?).ok()).flatten();
        names.take(MAX_SLOTS as usize).any(|n| self.string_is(n, name))
    }

    /// Where a code object keeps the names of its local slots.
    fn name_tuples(&self) -> Vec<u64> {
        match (self.o.code_localsplus, self.o.code_varnames) {
            (Some((names, _)), _) => vec![names],
            (None, Some((vars, cells, frees))) => vec![vars, cells, frees],
            (None, None) => Vec::new(),
        }
    }

    fn slot_value(&self, frame: &PyFrame, index: u64) -> Option<Addr> {
        let base = match &self.o.frame {
            FrameLayout::Object(f) => f.localsplus,
            FrameLayout::Inline(f) => f.localsplus,
        };
        let value = self.untag(self.word(frame.addr, base + index * 8).ok()?)?;
        if self.is(value, "cell") {
            self.addr(value, self.o.cell_ref).ok().filter(|a| !a.is_null())
        } else {
            Some(value)
        }
    }

    /// The names of a code object's local slots, in their order: locals, cells, free variables.
    fn local_names(&self, code: &Code) -> Rc<Vec<String>> {
        if let Some(known) = self.local_names.borrow().get(&code.addr) {
            return Rc::clone(known);
        }
        let items =
            self.name_tuples().into_iter().filter_map(|f| self.tuple(self.addr(code.addr, f).ok()?).ok()).flatten();
        let names = items.take(MAX_SLOTS as usize).map(|n| self.string(n).unwrap_or_else(|_| "?".to_owned()));
        let names = Rc::new(names.collect::<Vec<_>>());
        self.local_names.borrow_mut().insert(code.addr, Rc::clone(&names));
        names
    }
}
