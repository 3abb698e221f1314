//! Readers of what objects are kept in: weak references, sets, deques, closures, suspended frames.

use super::code::Code;
use super::frames::PyFrame;
use super::objects::{Objects, words_of};
use super::offsets::FrameLayout;
use crate::layout::{Subject, Table};
use crate::memory::MemoryExt;
use crate::units::Addr;

/// Offsets of containers. Absent ones are not read.
#[derive(Clone, Debug, Default)]
pub(super) struct ContainerOffsets {
    /// `mask` and `table`.
    set: Option<(u64, u64)>,
    /// `leftblock`, `leftindex`, and of a block `data` and `rightlink`.
    deque: Option<(u64, u64, u64, u64)>,
    closure: Option<u64>,
    /// How deep the value stack of a suspended frame is.
    depth: Option<Depth>,
}

/// Where a suspended frame says how deep its value stack is.
#[derive(Clone, Copy, Debug)]
enum Depth {
    /// A pointer behind the topmost item: up to 3.9, and since 3.14.
    Pointer(u64),
    /// A number of items: 3.10.
    Items(u64),
    /// A number of slots, locals among them: 3.11 to 3.13.
    Slots(u64),
}

/// Items of one container read at most.
pub(super) const MAX_ITEMS: u64 = 65_536;
/// Items in a block of a deque (CPython `Modules/_collectionsmodule.c`, `BLOCKLEN`).
const BLOCK_ITEMS: u64 = 64;
/// Classes of an object's line looked at.
const MAX_CLASSES: usize = 32;

impl ContainerOffsets {
    /// Takes them from a table.
    pub(super) fn choose(table: &Table, subject: &Subject) -> ContainerOffsets {
        let one = |name: &str, field: &str| table.layout(name, subject).and_then(|s| s.offset(field));
        let deque = || {
            Some((
                one("dequeobject", "leftblock")?,
                one("dequeobject", "leftindex")?,
                one("deque_block", "data")?,
                one("deque_block", "rightlink")?,
            ))
        };
        ContainerOffsets {
            set: one("PySetObject", "mask").zip(one("PySetObject", "table")),
            deque: deque(),
            closure: one("PyFunctionObject", "func_closure"),
            depth: one("_PyInterpreterFrame", "stackpointer")
                .or_else(|| one("PyFrameObject", "f_stacktop"))
                .map(Depth::Pointer)
                .or_else(|| one("PyFrameObject", "f_stackdepth").map(Depth::Items))
                .or_else(|| one("_PyInterpreterFrame", "stacktop").map(Depth::Slots)),
        }
    }
}

impl Objects<'_> {
    /// Whether an object is an instance of the class with this `tp_name`, or of one derived from it.
    pub(super) fn is_kind_of(&self, object: Addr, type_name: &str) -> bool {
        let Some(kind) = self.type_of(object) else { return false };
        if kind.name == type_name {
            return true;
        }
        let line = self.addr(kind.addr, self.o.type_mro).ok().and_then(|mro| self.tuple(mro).ok()).unwrap_or_default();
        line.into_iter().take(MAX_CLASSES).any(|c| self.read_type(c).is_ok_and(|t| t.name == type_name))
    }

    /// Whether an object is a weak reference.
    pub(super) fn is_weak_reference(&self, object: Addr) -> bool {
        let name = self.type_of(object).map(|t| t.name.clone()).unwrap_or_default();
        matches!(name.as_str(), "weakref" | "weakref.ReferenceType" | "KeyedRef" | "weakref.KeyedRef")
    }

    /// What a weak reference refers to; `None` where that is gone.
    pub(super) fn weak_target(&self, reference: Addr) -> Option<Addr> {
        let target = self.addr(reference, self.o.weakref_object?).ok().filter(|t| !t.is_null())?;
        (!self.is(target, "NoneType")).then_some(target)
    }

    /// Whether a weak reference says that its object is gone.
    pub(super) fn is_gone(&self, reference: Addr) -> bool {
        let target = self.o.weakref_object.and_then(|f| self.addr(reference, f).ok());
        target.is_some_and(|t| self.is(t, "NoneType"))
    }

    /// The keys of a `set`, in the order of its table.
    pub(super) fn set(&self, object: Addr) -> Vec<Addr> {
        let read = || {
            let (mask, table) = self.o.containers.set?;
            let n = self.word(object, mask).ok()?.checked_add(1).filter(|n| *n <= MAX_ITEMS)?;
            let table = self.addr(object, table).ok()?;
            self.memory.read_vec(table, usize::try_from(n * 16).ok()?).ok()
        };
        let bytes = read().unwrap_or_default();
        let entries = bytes.as_chunks::<16>().0.iter().filter_map(|entry| {
            let mut words = words_of(entry);
            Some((words.next()?, words.next()?))
        });
        // a removed entry keeps a mark as its key and -1, which is no object's hash
        entries.filter(|(key, hash)| *key != 0 && *hash != u64::MAX).map(|(key, _)| Addr(key)).collect()
    }

    /// How many items a `deque`, a `list` or a `tuple` says it has.
    pub(super) fn size(&self, object: Addr) -> Option<u64> {
        self.word(object, self.o.ob_size).ok().filter(|n| *n < 1 << 40)
    }

    /// The first items of a `deque`, `most` at most.
    pub(super) fn deque(&self, object: Addr, most: u64) -> Vec<Addr> {
        let mut out = Vec::new();
        let Some((leftblock, leftindex, data, rightlink)) = self.o.containers.deque else { return out };
        let Some(mut left) = self.size(object).map(|n| n.min(most)) else { return out };
        let (Ok(mut block), Ok(mut index)) = (self.addr(object, leftblock), self.word(object, leftindex)) else {
            return out;
        };
        while left > 0 && index < BLOCK_ITEMS {
            let n = (BLOCK_ITEMS - index).min(left);
            let at = block.checked_add(data + index * 8);
            let Some(bytes) = at.and_then(|at| self.memory.read_vec(at, usize::try_from(n * 8).ok()?).ok()) else {
                break;
            };
            out.extend(words_of(&bytes).map(Addr));
            left -= n;
            index = 0;
            match self.addr(block, rightlink) {
                Ok(next) => block = next,
                Err(_) => break,
            }
        }
        out
    }

    /// The name of a Python function.
    pub(super) fn function_name(&self, function: Addr) -> Option<String> {
        if !self.is(function, "function") {
            return None;
        }
        self.string(self.addr(function, self.o.function_name).ok()?).ok()
    }

    /// What the cells of a function's closure hold.
    pub(super) fn closure(&self, function: Addr) -> Vec<Addr> {
        let cells = self.o.containers.closure.and_then(|f| self.addr(function, f).ok()).filter(|c| !c.is_null());
        let cells = cells.filter(|c| self.is(*c, "tuple")).and_then(|c| self.tuple(c).ok()).unwrap_or_default();
        let held = cells.into_iter().take(MAX_CLASSES).filter(|c| self.is(*c, "cell"));
        held.filter_map(|c| self.addr(c, self.o.cell_ref).ok()).filter(|a| !a.is_null()).collect()
    }

    /// The topmost items of the value stack of a frame that is suspended, topmost first.
    pub(super) fn top_of_stack(&self, frame: &PyFrame, code: &Code, most: u64) -> Vec<Addr> {
        let read = || {
            let bottom = self.value_stack(frame, code)?;
            let top = match self.o.containers.depth? {
                Depth::Pointer(f) => self.addr(frame.addr, f).ok()?,
                Depth::Items(f) => {
                    let n = u64::try_from(self.int32(frame.addr, f).ok()?).ok()?;
                    bottom.checked_add(n * 8)?
                }
                Depth::Slots(f) => {
                    let n = u64::try_from(self.int32(frame.addr, f).ok()?).ok()?;
                    let FrameLayout::Inline(inline) = &self.o.frame else { return None };
                    frame.addr.checked_add(inline.localsplus + n * 8)?
                }
            };
            let depth = top.0.checked_sub(bottom.0)? / 8;
            let n = depth.min(most);
            (depth <= u64::try_from(code.stacksize).ok()?).then_some(())?;
            self.memory.read_vec(top.offset(-((n * 8).cast_signed())), usize::try_from(n * 8).ok()?).ok()
        };
        let bytes = read().unwrap_or_default();
        let mut items: Vec<Addr> = words_of(&bytes).filter_map(|w| self.untag(w)).collect();
        items.reverse();
        items
    }
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    fn words(m: &mut Fake, at: u64, words: &[u64]) {
        for (i, w) in words.iter().enumerate() {
            m.put_u64(Addr(at + i as u64 * 8), *w);
        }
    }

    #[test]
    fn a_deque_over_two_blocks() {
        let o = Offsets::choose((11, None), false, None).unwrap();
        let mut m = Fake::new();
        // size 3, first item the last of its block
        words(&mut m, 0x1000, &[1, 0, 3, 0x2000, 0x3000, 63, 1]);
        m.put(Addr(0x2000), &[0; 528]).put(Addr(0x3000), &[0; 528]);
        m.put_u64(Addr(0x2000 + 8 + 63 * 8), 0xa).put_u64(Addr(0x2000 + 520), 0x3000);
        words(&mut m, 0x3008, &[0xb, 0xc]);
        let objects = Objects::new(&m, &o);
        assert_eq!(objects.deque(Addr(0x1000), 10), [Addr(0xa), Addr(0xb), Addr(0xc)]);
        assert_eq!(objects.deque(Addr(0x1000), 2).len(), 2);
        // an index outside its block
        m.put_u64(Addr(0x1000 + 40), 64);
        assert!(Objects::new(&m, &o).deque(Addr(0x1000), 10).is_empty());
    }

    #[test]
    fn a_set_passes_over_removed_entries() {
        let o = Offsets::choose((9, None), false, None).unwrap();
        let mut m = Fake::new();
        words(&mut m, 0x1000, &[1, 0, 2, 1, 3, 0x2000, 0]);
        words(&mut m, 0x2000, &[0xa, 77, 0, 0, 0xdead, u64::MAX, 0xb, 0]);
        assert_eq!(Objects::new(&m, &o).set(Addr(0x1000)), [Addr(0xa), Addr(0xb)]);
        m.put_u64(Addr(0x1020), u64::MAX);
        assert!(Objects::new(&m, &o).set(Addr(0x1000)).is_empty());
    }
}
