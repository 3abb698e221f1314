//! Who probably holds a lock that was taken by `acquire()` instead of `with`: nothing on the stack proves it.
//!
//! A frame qualifies that can name the lock and whose code, up to where it stands, has called `acquire` on that name once
//! more than `release`. One thread must qualify, and one only. Words: "inferred", never "holds" alone.

use super::code::{Code, Codes};
use super::conditions::lock_of_condition;
use super::holds::Witnessed;
use super::names::Names;
use super::objects::Objects;
use super::place::{Framed, PyStack};
use super::slots::Reference;
use super::with_blocks::is_entering;
use crate::memory::MemoryExt;
use crate::units::{Addr, ByAddr};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Bytecode of one function looked at, in 2-byte units.
const MAX_UNITS: u64 = 65_536;
/// Frames of one stack looked at, newest first.
const MAX_FRAMES: usize = 256;
/// Locals of one frame of which it is asked whether they are conditions.
const MAX_LOCALS: usize = 24;

/// Opcodes the look at the code needs.
#[derive(Clone, Debug, Default)]
pub(super) struct CallOffsets {
    pub attribute_loads: Vec<u8>,
    pub attribute_shift: u32,
    pub global_loads: Vec<u8>,
    pub global_shift: u32,
    pub name_loads: Vec<u8>,
    /// Inline cache units after each opcode, by number.
    pub cache_units: Vec<u64>,
    pub extended_arg: Option<u8>,
}

/// A thread that probably holds a lock.
#[derive(Clone, Debug)]
pub(super) struct Probable {
    /// Index into the snapshot's threads.
    pub thread: usize,
    /// Index of the frame that called `acquire`.
    pub frame: usize,
    /// The line of that call.
    pub line: Option<u32>,
    /// How the frame names the lock.
    pub name: String,
    /// The suspended generator that is inside the lock's block, where not the frame itself took it.
    pub generator: Option<String>,
}

/// Methods that take a lock, and that give it back. A `Condition` has those of its lock, and lends it to whoever waits by
/// `_release_save` (CPython `Modules/_threadmodule.c`, `lock_methods`, `rlock_methods`; `Lib/threading.py`; 3.8 to 3.15).
pub(super) const TAKING: [&str; 4] = ["acquire", "acquire_lock", "__enter__", "_acquire_restore"];
pub(super) const GIVING: [&str; 5] = ["release", "release_lock", "__exit__", "_release_save", "_at_fork_reinit"];

/// Whether a method of this name gives a lock back.
pub(super) fn gives_back(method: &str) -> bool {
    GIVING.contains(&method)
}

/// One call of a method that takes or gives back a lock in a function's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Call {
    unit: i64,
    pub acquires: bool,
    pub on: Receiver,
    /// Whether it is `acquire` or `release`, which hardly anything but a lock has: the others say little where it is not known
    /// what they are called on.
    pub plain: bool,
    /// Where the code next looks for something by name: up to there nothing else is called.
    until: i64,
}

impl Call {
    fn is_on(&self, reference: &Reference) -> bool {
        match (reference, &self.on) {
            (Reference::Global(name), Receiver::Global(on)) => name == on,
            (Reference::Attribute(name), Receiver::Attribute(on)) => name == on,
            (Reference::Local(_), Receiver::Other) => true,
            _ => false,
        }
    }
}

/// How a thread that waits for a lock takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taking {
    /// By a `with` statement.
    ByWith,
    /// By calling `acquire`, in a function that gives it back, too.
    AndGiving,
    /// By calling `acquire`, and nothing in the same function gives it back.
    ByHand,
}

/// What a method was called on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Receiver {
    Global(String),
    Attribute(String),
    /// A local variable or something computed.
    Other,
}

impl Receiver {
    fn name(&self) -> &str {
        match self {
            Receiver::Global(n) | Receiver::Attribute(n) => n,
            Receiver::Other => "a local variable",
        }
    }
}

/// Looks for probable holders; each function's code is looked at once.
pub(super) struct Inference<'a> {
    objects: &'a Objects<'a>,
    names: Names<'a>,
    calls: RefCell<HashMap<Addr, Rc<Vec<Call>>, ByAddr>>,
}

impl<'a> Inference<'a> {
    pub(super) fn new(objects: &'a Objects<'a>) -> Inference<'a> {
        Inference { objects, names: Names::new(objects), calls: RefCell::default() }
    }

    /// The one thread that probably holds `lock`. `waits` gives, of a thread that waits for it now, the frame that does.
    pub(super) fn holder(
        &self,
        lock: Addr,
        stacks: &BTreeMap<usize, PyStack<'_>>,
        waits: &dyn Fn(usize) -> Option<usize>,
    ) -> Option<Probable> {
        let mut found: Vec<Probable> = Vec::new();
        for (thread, stack) in stacks {
            for (i, framed) in stack.frames.iter().take(MAX_FRAMES).enumerate() {
                let waiting_here = waits(*thread).is_some_and(|frame| i <= frame);
                if let Some(mut p) = self.in_frame(lock, framed, waiting_here, i == 0) {
                    (p.thread, p.frame) = (*thread, i);
                    found.push(p);
                    break;
                }
            }
        }
        match found.as_slice() {
            [_] => found.pop(),
            _ => None,
        }
    }

    /// Another thread that stands in code which gives `lock` back and never takes it, if there is one: the lock is then used as
    /// a signal, and having taken it is not to hold it. `waits`: whether a thread waits for the lock itself.
    pub(super) fn giver(
        &self,
        lock: Addr,
        holder: usize,
        stacks: &BTreeMap<usize, PyStack<'_>>,
        waits: &dyn Fn(usize) -> Option<usize>,
    ) -> Option<usize> {
        let others = stacks.iter().filter(|(thread, _)| **thread != holder && waits(**thread).is_none());
        others
            .filter(|(_, stack)| stack.frames.iter().take(MAX_FRAMES).any(|framed| self.gives(lock, framed)))
            .map(|(thread, _)| *thread)
            .next()
    }

    fn gives(&self, lock: Addr, framed: &Framed) -> bool {
        let Some(code) = &framed.code else { return false };
        let calls = self.calls_of(code);
        if !calls.iter().any(|c| !c.acquires) {
            return false;
        }
        let on_it: Vec<&Call> = match self.names.reference(framed, lock) {
            Some(reference) => {
                // `for lock in (a, b): lock.release()`: code that mentions the lock may call it by another name
                let renamed = self.mentions(code.addr, reference.name());
                let is_it = |c: &&Call| c.is_on(&reference) || (renamed && c.on == Receiver::Other);
                calls.iter().filter(|c| is_it(c) || self.is_on_condition(framed, lock, c)).collect()
            }
            None => calls.iter().filter(|c| self.is_on_condition(framed, lock, c)).collect(),
        };
        if !on_it.is_empty() {
            return on_it.iter().all(|c| !c.acquires);
        }
        // it gives back what it is handed, and may be handed this one next
        let mut handed = calls.iter().filter(|c| c.plain && c.on == Receiver::Other).peekable();
        !code.is_standard && handed.peek().is_some() && handed.all(|c| !c.acquires)
    }

    /// Whether a function's code uses a global or an attribute of this name.
    pub(super) fn mentions(&self, code: Addr, name: &str) -> bool {
        self.mentions_any(code, &[name])
    }

    /// Whether it uses one of these.
    pub(super) fn mentions_any(&self, code: Addr, names: &[&str]) -> bool {
        let o = self.objects;
        let used = o.addr(code, o.o.code_names).ok().and_then(|names| o.tuple(names).ok());
        used.unwrap_or_default().into_iter().any(|n| names.iter().any(|name| o.string_is(n, name)))
    }

    /// Whether a call in a frame of the program is one on a condition of `lock`: that has the lock's methods.
    fn is_on_condition(&self, framed: &Framed, lock: Addr, call: &Call) -> bool {
        let o = self.objects;
        let Some(code) = framed.code.as_ref().filter(|c| !c.is_standard) else { return false };
        let is_it = |object: Addr| lock_of_condition(o, object) == Some(lock);
        match &call.on {
            Receiver::Global(name) => {
                let entries = self.names.globals_of(framed).map(|g| self.names.entries(g)).unwrap_or_default();
                entries.iter().find(|(k, _)| o.string_is(*k, name)).is_some_and(|(_, v)| is_it(*v))
            }
            Receiver::Attribute(name) => {
                framed.first_argument(o).and_then(|this| o.attribute(this, name)).is_some_and(is_it)
            }
            Receiver::Other => {
                o.locals(&framed.frame, code).into_iter().take(MAX_LOCALS).any(|(_, value)| is_it(value))
            }
        }
    }

    /// Where names are looked for.
    pub(super) fn names(&self) -> &Names<'a> {
        &self.names
    }

    /// How the thread with these frames takes the lock that it waits for.
    pub(super) fn taking(&self, lock: Addr, frames: &[Framed]) -> Taking {
        let by_method = |f: &Framed| f.is("threading.py", "_acquire_restore") || f.is("threading.py", "__enter__");
        let waits = |f: &Framed| f.is("threading.py", "wait");
        // what a condition's methods do for the one who calls them
        let frames = match frames {
            [first, rest @ ..] if by_method(first) && !rest.first().is_some_and(waits) => rest,
            all => all,
        };
        let Some((framed, code)) = frames.first().and_then(|f| Some((f, f.code.as_ref()?))) else {
            return Taking::ByHand;
        };
        // Python's own classes give back what they take
        if is_entering(self.objects, &framed.frame, code) || code.is_standard {
            return Taking::ByWith;
        }
        let calls = self.calls_of(code);
        let Some(unit) = code.unit_of(self.objects, &framed.frame) else { return Taking::ByHand };
        let reference = self.names.reference(framed, lock);
        let is_it = |c: &&Call| {
            reference.as_ref().map_or(c.on == Receiver::Other, |r| c.is_on(r)) || self.is_on_condition(framed, lock, c)
        };
        let gives = calls.iter().filter(|c| c.unit > unit).any(|c| !c.acquires && is_it(&c));
        if gives { Taking::AndGiving } else { Taking::ByHand }
    }

    /// Takes back what the frames inside a `with` block have undone by hand, `waits` being the one that waits for the lock: a block whose lock was given back since proves
    /// nothing, one whose lock was taken again by hand is doubted. What a function that has returned did is not seen.
    pub(super) fn weigh(&self, witnessed: &mut Witnessed, frames: &[Framed], waits: Option<usize>) -> bool {
        let mut stands = true;
        let inside = frames.iter().enumerate().take(witnessed.frame.saturating_add(1));
        for (i, framed) in inside.rev() {
            let own = (i == witnessed.frame).then_some(witnessed.line);
            let waiting_here = waits.is_some_and(|frame| i <= frame);
            for acquires in self.since(witnessed.lock.addr, framed, own, (waiting_here, i == 0)) {
                stands = acquires;
                witnessed.is_shared("inside the block it was given back and taken again by hand");
            }
        }
        stands
    }

    /// The same for what the managers of blocks entered since have done: `with unlocked(lock):`.
    pub(super) fn weigh_managers(
        &self,
        witnessed: &mut Witnessed,
        (managers, generators): (Vec<Addr>, Vec<Framed>),
        codes: &mut Codes,
    ) -> bool {
        let mut stands = true;
        for framed in &generators {
            if let Some(acquires) = self.since(witnessed.lock.addr, framed, None, (false, false)).last() {
                stands = *acquires;
                witnessed.is_shared("inside the block it was given back and taken again by hand");
            }
        }
        let gives = |manager: &Addr| {
            let o = self.objects;
            let enter = self.names.line_of(o.type_of(*manager)?.addr).into_iter().find_map(|class| {
                let dict = o.addr(class, o.o.type_dict).ok().filter(|d| !d.is_null())?;
                self.names.entries(dict).iter().find(|(k, _)| o.string_is(*k, "__enter__")).map(|(_, v)| *v)
            })?;
            let code = o.is(enter, "function").then(|| o.addr(enter, o.o.function_code).ok()).flatten()?;
            let code = codes.load_one(o, code)?;
            self.calls_of(&code).iter().any(|c| !c.acquires).then_some(())
        };
        if !managers.iter().filter_map(gives).collect::<Vec<()>>().is_empty() {
            witnessed
                .is_shared("inside the block another one was entered, whose manager gives a lock back to begin with");
        }
        stands
    }

    /// The calls of `acquire` (true) and `release` on `lock` that a frame has done. `own`: it is the frame of the block, which
    /// begins at this line, where one is known; it may name the lock in ways that are not followed (`locks[i]`). And whether the
    /// thread waits for the lock in this frame, and whether it is its newest.
    fn since(
        &self,
        lock: Addr,
        framed: &Framed,
        own: Option<Option<u32>>,
        (waiting_here, newest): (bool, bool),
    ) -> Vec<bool> {
        let done = || {
            let code = framed.code.as_ref()?;
            let calls = self.calls_of(code);
            if !calls.iter().any(|c| !c.acquires) {
                return None;
            }
            let reference = self.names.reference(framed, lock);
            let is_named = |c: &Call| match &reference {
                Some(reference) => c.is_on(reference),
                None => own.is_some() && c.on == Receiver::Other,
            };
            let is_it = |c: &Call| is_named(c) || self.is_on_condition(framed, lock, c);
            let unit = code.unit_of(self.objects, &framed.frame)?;
            let is_later = |c: &&Call| match (own.flatten(), code.line_at(self.objects, c.unit)) {
                (Some(from), Some(line)) => line >= from,
                _ => true,
            };
            let before = calls.iter().filter(|c| c.unit < unit && is_it(c)).filter(is_later);
            let mut done: Vec<&Call> = before.collect();
            // the acquire a thread waits in has not succeeded
            let waiting_here = waiting_here && !is_entering(self.objects, &framed.frame, code);
            if done.last().is_some_and(|c| c.acquires && (waiting_here || self.may_be_amidst(code, c, unit, newest))) {
                done.pop();
            }
            Some(done.into_iter().map(|c| c.acquires).collect())
        };
        done().unwrap_or_default()
    }

    fn in_frame(&self, lock: Addr, framed: &Framed, waiting_here: bool, newest: bool) -> Option<Probable> {
        let code = framed.code.as_ref()?;
        let calls = self.calls_of(code);
        if !calls.iter().any(|c| c.acquires) {
            return None;
        }
        let reference = self.names.reference(framed, lock);
        let unit = code.unit_of(self.objects, &framed.frame)?;
        let is_it = |c: &Call| reference.as_ref().is_some_and(|r| c.is_on(r)) || self.is_on_condition(framed, lock, c);
        let before: Vec<&Call> = calls.iter().filter(|c| c.unit < unit && is_it(c)).collect();
        let waiting_here = waiting_here && !is_entering(self.objects, &framed.frame, code);
        // the acquire a thread waits in has not succeeded
        let mut done = match (waiting_here, before.as_slice()) {
            (true, [earlier @ .., last]) if last.acquires => earlier,
            (true, _) => return None,
            (false, all) => all,
        };
        if let [earlier @ .., last] = done
            && last.acquires
            && self.may_be_amidst(code, last, unit, newest)
        {
            done = earlier;
        }
        let balance: i64 = done.iter().map(|c| if c.acquires { 1 } else { -1 }).sum();
        let last = done.iter().rev().find(|c| c.acquires)?;
        (balance > 0).then(|| Probable {
            thread: 0,
            frame: 0,
            line: code.line_at(self.objects, last.unit),
            name: reference.as_ref().map_or(last.on.name(), |r| r.name()).to_owned(),
            generator: None,
        })
    }

    /// Without the GIL a thread may be stopped before a call on the line where it stands, or amidst it. With the GIL its newest
    /// frame may stand at the very call: it is about to sleep, has been woken, or has given up at the end of a time-out.
    fn may_be_amidst(&self, code: &Code, call: &Call, unit: i64, newest: bool) -> bool {
        let line = |unit| code.line_at(self.objects, unit);
        (self.objects.o.attach.is_some() || newest && unit < call.until) && line(call.unit) == line(unit)
    }

    pub(super) fn calls_of(&self, code: &Code) -> Rc<Vec<Call>> {
        if let Some(known) = self.calls.borrow().get(&code.addr) {
            return Rc::clone(known);
        }
        let found = Rc::new(find_calls(self.objects, code).unwrap_or_default());
        self.calls.borrow_mut().insert(code.addr, Rc::clone(&found));
        found
    }
}

/// The calls of methods that take and give back locks in a function's code, in its order.
fn find_calls(objects: &Objects<'_>, code: &Code) -> Option<Vec<Call>> {
    let o = objects.o;
    let names = objects.tuple(objects.addr(code.addr, o.code_names).ok()?).ok()?;
    let index_of =
        |text: &str| names.iter().position(|n| objects.string_is(*n, text)).and_then(|i| u32::try_from(i).ok());
    // the number of each such name among the function's, whether it takes, and whether it is one of the two plain ones
    let methods: Vec<(u32, bool, bool)> = TAKING
        .iter()
        .map(|name| (name, true))
        .chain(GIVING.iter().map(|name| (name, false)))
        .filter_map(|(name, acquires)| Some((index_of(name)?, acquires, matches!(*name, "acquire" | "release"))))
        .collect();
    if methods.is_empty() {
        return None;
    }
    let units = usize::try_from(code.units.min(MAX_UNITS)).ok()?;
    let bytes = objects.memory.read_vec(code.start, units * 2).ok()?;
    let name = |index: u32| {
        let name = names.get(usize::try_from(index).ok()?)?;
        objects.string(*name).ok()
    };
    Some(calls_in(&o.calls, &bytes, &methods, &name))
}

/// The calls of these methods in bytecode.
fn calls_in(
    c: &CallOffsets,
    bytes: &[u8],
    methods: &[(u32, bool, bool)],
    name: &dyn Fn(u32) -> Option<String>,
) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut receiver = Receiver::Other;
    for (unit, op, argument) in instructions(c, bytes) {
        let is_attribute = c.attribute_loads.contains(&op);
        if is_attribute || c.global_loads.contains(&op) || c.name_loads.contains(&op) {
            for call in calls.last_mut().into_iter().filter(|call| call.until == i64::MAX) {
                call.until = unit;
            }
        }
        if is_attribute {
            let index = argument >> c.attribute_shift;
            if let Some((_, acquires, plain)) = methods.iter().find(|(i, _, _)| *i == index) {
                let on = receiver.clone();
                calls.push(Call { unit, acquires: *acquires, on, plain: *plain, until: i64::MAX });
            }
            receiver = name(index).map_or(Receiver::Other, Receiver::Attribute);
        } else if c.global_loads.contains(&op) {
            receiver = name(argument >> c.global_shift).map_or(Receiver::Other, Receiver::Global);
        } else if c.name_loads.contains(&op) {
            receiver = name(argument).map_or(Receiver::Other, Receiver::Global);
        } else {
            receiver = Receiver::Other;
        }
    }
    calls
}

/// The instructions of bytecode: unit, opcode, full argument. Caches and prefixes are passed over.
fn instructions<'b>(o: &'b CallOffsets, bytes: &'b [u8]) -> impl Iterator<Item = (i64, u8, u32)> + 'b {
    let units = bytes.as_chunks::<2>().0;
    let mut at = 0usize;
    std::iter::from_fn(move || {
        let mut argument = 0u32;
        loop {
            let [op, arg] = *units.get(at)?;
            argument = (argument << 8) | u32::from(arg);
            let here = at;
            at += 1;
            if Some(op) == o.extended_arg {
                continue;
            }
            let caches = o.cache_units.get(usize::from(op)).copied().unwrap_or(0);
            at = at.saturating_add(usize::try_from(caches).unwrap_or(0));
            return Some((i64::try_from(here).ok()?, op, argument));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_no_instructions() {
        let mut cache_units = vec![0; 256];
        cache_units[106] = 4;
        let o = CallOffsets { cache_units, extended_arg: Some(144), ..CallOffsets::default() };
        let code = [151, 0, 106, 3, 106, 9, 106, 9, 106, 9, 106, 9, 144, 1, 100, 2, 83, 0];
        let all: Vec<_> = instructions(&o, &code).collect();
        assert_eq!(all, [(0, 151, 0), (1, 106, 3), (7, 100, 258), (8, 83, 0)]);
    }
    #[test]
    fn a_call_lasts_until_something_else_is_looked_for() {
        let (global, attribute, call, pop) = (116, 106, 171, 1);
        let o = CallOffsets {
            global_loads: vec![global],
            attribute_loads: vec![attribute],
            cache_units: vec![0; 256],
            ..CallOffsets::default()
        };
        // lock.acquire(); time.sleep()
        let code = [global, 0, attribute, 1, call, 0, pop, 0, global, 2, attribute, 3, call, 0, pop, 0];
        let name = |i: u32| ["lock", "acquire", "time", "sleep"].get(i as usize).map(|n| (*n).to_owned());
        let calls = calls_in(&o, &code, &[(1, true, true)], &name);
        let on = Receiver::Global("lock".to_owned());
        assert_eq!(calls, [Call { unit: 1, acquires: true, on, plain: true, until: 4 }]);
    }
}
