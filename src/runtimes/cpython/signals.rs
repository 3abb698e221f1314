//! The functions that Python signal handlers are: what runs in the main thread though no thread calls it.
//!
//! They stand in `Handlers` of CPython's `Modules/signalmodule.c` (since 3.12 `_PyRuntime.signals.handlers`), a table of
//! {tripped, function} by signal number. Stripped interpreters have no name for it; it is known by its contents: the
//! real-time signals nobody uses all bear the same object, the `int` 0 that stands for `SIG_DFL`.

use super::objects::Objects;
use crate::memory::{Memory, MemoryExt};
use crate::units::{Addr, PAGE};
use std::ops::Range;

/// Entries of the table: `Py_NSIG` on Linux.
const ENTRIES: u64 = 65;
/// Bytes of an entry.
const ENTRY: u64 = 16;
/// Signals from 34 to 64: the real-time signals that are not the libc's own.
const ALIKE: usize = 31;
/// `SIGKILL` and `SIGSTOP`, which nothing handles.
const UNHANDLED: [u64; 2] = [9, 19];
/// Signals 32 and 33 are the libc's own (NPTL): Python finds that it cannot ask for them, and keeps `None`.
const LIBC_OWN: [u64; 2] = [32, 33];
/// Bytes searched at most, and at a time.
const MAX_SEARCHED: u64 = 16 << 20;
const PIECE: u64 = 1 << 20;

/// Looks for the table in these ranges, a page at a time: a core may lack some.
pub(super) fn find_table(objects: &Objects<'_>, ranges: &[Range<Addr>]) -> Option<Addr> {
    let mut left = MAX_SEARCHED;
    for range in ranges {
        let mut run = Run::default();
        let mut at = range.start;
        while at < range.end && left > 0 {
            let n = (range.end.0 - at.0).min(left).min(PIECE);
            left -= n;
            let end = at.offset(n.cast_signed());
            let whole = usize::try_from(n).ok().and_then(|n| objects.memory.read_vec(at, n).ok());
            if let Some(bytes) = whole {
                if let Some(table) = run.go_on(objects, at, &bytes) {
                    return Some(table);
                }
                at = end;
            }
            while at < end {
                let n = PAGE.min(end.0 - at.0);
                match usize::try_from(n).ok().and_then(|n| objects.memory.read_vec(at, n).ok()) {
                    Some(bytes) => {
                        if let Some(table) = run.go_on(objects, at, &bytes) {
                            return Some(table);
                        }
                    }
                    None => run = Run::default(),
                }
                at = at.offset(n.cast_signed());
            }
        }
    }
    None
}

/// Entries alike, one after the other, that end at the word last seen; for either half of 16 bytes that they may end at.
#[derive(Default)]
struct Run {
    alike: [(u64, usize); 2],
    last: u64,
    odd: usize,
}

impl Run {
    /// Goes on with the bytes that follow, which lie at `at`; gives the table if it ends in them.
    fn go_on(&mut self, objects: &Objects<'_>, at: Addr, bytes: &[u8]) -> Option<Addr> {
        for (i, word) in super::objects::words_of(bytes).enumerate() {
            // of an entry this is the function, the word before it whether the signal has come
            let untripped = self.last & 0xffff_ffff == 0;
            self.last = word;
            self.odd ^= 1;
            let (of, n) = self.alike.get_mut(self.odd)?;
            (*of, *n) = match word != 0 && untripped {
                true if *of == word => (word, *n + 1),
                true => (word, 1),
                false => (0, 0),
            };
            if *n >= ALIKE {
                let end = at.checked_add((i as u64 + 1) * 8)?;
                let table = end.0.checked_sub(ENTRIES * ENTRY).map(Addr);
                if let Some(table) = table.filter(|t| is_table(objects, *t)) {
                    return Some(table);
                }
            }
        }
        None
    }
}

fn function(objects: &Objects<'_>, table: Addr, signal: u64) -> Option<Addr> {
    objects.addr(table, signal * ENTRY + 8).ok().filter(|f| !f.is_null())
}

fn is_table(objects: &Objects<'_>, table: Addr) -> bool {
    let is_default =
        |signal: u64| function(objects, table, signal).is_some_and(|f| objects.is(f, "int") && objects.int(f) == Ok(0));
    let none = |signal: u64| function(objects, table, signal).is_some_and(|f| objects.is(f, "NoneType"));
    UNHANDLED.iter().all(|s| is_default(*s)) && is_default(ENTRIES - 1) && LIBC_OWN.iter().all(|s| none(*s))
}

/// The signals that have a handler in Python, and the handlers. Python's own of `SIGINT`, which raises `KeyboardInterrupt`,
/// is none. `None` where the table cannot be read.
pub(super) fn read_handlers(objects: &Objects<'_>, table: Addr) -> Option<Vec<(u32, Addr)>> {
    let memory: &dyn Memory = objects.memory;
    memory.expect(&[(table, usize::try_from(ENTRIES * ENTRY).ok()?)]);
    if !is_table(objects, table) {
        return None;
    }
    let mut out = Vec::new();
    for signal in 1..ENTRIES {
        // an entry that cannot be read may be a handler
        let f = function(objects, table, signal)?;
        let is_function = !objects.is(f, "int") && !objects.is(f, "NoneType");
        if is_function && !is_default_int_handler(objects, f) {
            out.push((u32::try_from(signal).ok()?, f));
        }
    }
    Some(out)
}

fn is_default_int_handler(objects: &Objects<'_>, f: Addr) -> bool {
    let o = objects.o;
    objects.is(f, "builtin_function_or_method")
        && objects
            .addr(f, o.cfunction_ml)
            .and_then(|d| objects.addr(d, o.methoddef_name))
            .and_then(|n| objects.memory.read_c_string(n, 32))
            .is_ok_and(|n| n == b"default_int_handler")
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    const INT: u64 = 0x10_0000;
    const NONE: u64 = 0x10_1000;
    const ZERO: u64 = 0x10_2000;
    const NOTHING: u64 = 0x10_3000;
    const HANDLER: u64 = 0x10_4000;

    fn with_table(at: u64) -> Fake {
        let mut m = Fake::new();
        for (kind, name) in [(INT, "int"), (NONE, "NoneType"), (0x10_5000, "function")] {
            m.put(Addr(kind), &[0; 1024]).put(Addr(kind + 512), name.as_bytes());
            m.put_u64(Addr(kind + 24), kind + 512);
        }
        for (object, kind) in [(ZERO, INT), (NOTHING, NONE), (HANDLER, 0x10_5000)] {
            m.put(Addr(object), &[0; 64]).put_u64(Addr(object + 8), kind);
        }
        m.put(Addr(0x20_0000), &[0; 0x4000]);
        for signal in 1..ENTRIES {
            let function = match signal {
                15 => HANDLER,
                32 | 33 => NOTHING,
                _ => ZERO,
            };
            m.put_u64(Addr(at + signal * ENTRY + 8), function);
        }
        m
    }

    #[test]
    fn the_table_is_known_by_what_it_holds() {
        let o = Offsets::choose((11, None), false, None).unwrap();
        // at either half of 16 bytes, and over the end of a page
        for at in [0x20_0040, 0x20_0e48] {
            let m = with_table(at);
            let objects = Objects::new(&m, &o);
            let range = Addr(0x20_0000)..Addr(0x20_4000);
            assert_eq!(find_table(&objects, std::slice::from_ref(&range)), Some(Addr(at)));
            assert_eq!(read_handlers(&objects, Addr(at)), Some(vec![(15, Addr(HANDLER))]));
        }
        let m = with_table(0x20_0040);
        let objects = Objects::new(&m, &o);
        assert_eq!(read_handlers(&objects, Addr(0x20_0050)), None);
        // one entry that is not there: nobody can say that there is no handler
        let mut m = with_table(0x20_0040);
        m.put_u64(Addr(0x20_0040 + 15 * ENTRY + 8), 0);
        assert_eq!(read_handlers(&Objects::new(&m, &o), Addr(0x20_0040)), None);
        assert_eq!(find_table(&objects, &[Addr(0x20_2000)..Addr(0x20_4000)]), None);
    }
}
