//! Who else may give a lock back: a plain Lock may be released by anyone, so having taken it is to hold it only where nobody
//! else's code gives it back.
//!
//! Looked at is the code a person would look at: the functions of the modules whose frames stand on the stacks and of the
//! program's own modules they import, what they define inside, the handlers of signals, and what timers will call. A function
//! that releases the lock by name and takes it nowhere makes the lock a signal. One that releases locks it is handed makes it
//! doubtful.

use super::code::{Code, Codes, is_installed};
use super::conditions::{is_condition_type, lock_of_condition};
use super::inferred::{Call, GIVING, Inference, Receiver, TAKING, gives_back};
use super::objects::Objects;
use super::place::Framed;
use crate::memory::MemoryExt;
use crate::units::{Addr, ByAddr};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Modules looked at at most.
const MAX_MODULES: usize = 32;
/// Code objects looked at at most.
const MAX_CODES: usize = 8192;
/// Functions inside functions, and behind decorators, followed at most.
const MAX_DEPTH: usize = 6;
/// Entries of one module or class looked at.
const MAX_ENTRIES: usize = 8192;
/// Frames of one stack looked at, newest first.
const MAX_FRAMES: usize = 256;
/// Objects of one module whose attributes are looked at.
const MAX_NAMED: usize = 128;
/// Locals of one frame whose attributes are looked at.
const MAX_LOCALS: usize = 24;

/// A function that gives locks back, or takes some.
struct Candidate {
    code: Addr,
    /// Its module's dict.
    module: Addr,
    /// The class it was found in.
    class: Option<Addr>,
    /// The code objects it is defined inside of.
    outer: Vec<Addr>,
    /// Whether it is a signal's handler, or waits for its time.
    pending: bool,
}

/// How a function gives the lock back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Giver {
    /// `done (jobs.py:12)`.
    pub place: String,
    /// Whether it says which lock; else it gives back whichever it is handed.
    pub named: bool,
    /// Whether there is code, too, that takes the lock by hand.
    pub taken_by_hand: bool,
    /// Whether it is the handler of a signal, or waits for its time: no thread has to call it.
    pub pending: bool,
}

/// The names a lock has, and conditions of it, which have its methods.
#[derive(Default)]
struct Handles {
    /// By module's dict.
    globals: BTreeSet<(Addr, String)>,
    attributes: BTreeSet<String>,
    /// The classes that have it as an attribute, and their bases.
    classes: BTreeSet<Addr>,
    /// Code object and the name it has in its frame.
    locals: BTreeSet<(Addr, String)>,
}

/// The functions of a process that give locks back.
pub(super) struct Givers<'a> {
    objects: &'a Objects<'a>,
    inference: &'a Inference<'a>,
    candidates: Vec<Candidate>,
    /// Functions that call `acquire`.
    takers: Vec<Candidate>,
    /// Bound `release` methods that are called some time: the locks themselves, and whether a signal or a timer calls it.
    released: BTreeMap<Addr, bool>,
    /// A function that names such a method in a text, for `getattr` or for C code.
    by_text: Option<Addr>,
    modules: Vec<Addr>,
    /// Whether some of it could not be read.
    pub incomplete: bool,
    /// The classes of those functions.
    classes: BTreeSet<Addr>,
}

/// Whether a file is part of Python: what it does with its own locks is known, and it knows no other's.
pub(super) fn is_standard(file: &str) -> bool {
    file.starts_with("<frozen") || (file.contains("/lib/python3") && !is_installed(file))
}

struct Search<'a, 'b> {
    objects: &'a Objects<'a>,
    inference: &'b Inference<'a>,
    seen: BTreeSet<Addr>,
    found: Vec<Candidate>,
    takers: Vec<Candidate>,
    released: BTreeMap<Addr, bool>,
    by_text: Option<Addr>,
    incomplete: bool,
}

/// Where something was found.
#[derive(Clone, Copy)]
struct At {
    module: Addr,
    class: Option<Addr>,
    pending: bool,
}

impl Search<'_, '_> {
    /// The functions that can be had by an object.
    fn object(&mut self, object: Addr, at: At, depth: usize) {
        let o = self.objects;
        if depth > MAX_DEPTH || self.seen.len() >= MAX_CODES {
            return;
        }
        let Some(kind) = o.type_of(object) else {
            self.incomplete |= o.type_addr(object).is_err();
            return;
        };
        match kind.name.as_str() {
            "function" => {
                // what another module defines is looked at there
                let globals = o.addr(object, o.o.function_globals).ok();
                if !at.pending && globals != Some(at.module) {
                    return;
                }
                if let Ok(code) = o.addr(object, o.o.function_code) {
                    self.incomplete |= o.type_addr(code).is_err();
                    self.code(code, At { module: globals.unwrap_or(at.module), ..at }, &mut Vec::new());
                }
                for inner in o.closure(object) {
                    if o.is(inner, "function") {
                        self.object(inner, at, depth + 1);
                    }
                }
            }
            // each keeps what it wraps right behind its header
            "staticmethod" | "classmethod" | "property" | "method" | "functools.partial" => {
                if let Ok(inner) = o.addr(object, o.o.method_func) {
                    self.object(inner, at, depth + 1);
                }
            }
            // kept to be called some time, be it under a name of the module
            "builtin_function_or_method" => {
                let definition = o.addr(object, o.o.cfunction_ml).and_then(|d| o.addr(d, o.o.methoddef_name));
                let name = definition.and_then(|n| o.memory.read_c_string(n, 16));
                let is_release = name.is_ok_and(|n| std::str::from_utf8(&n).is_ok_and(gives_back));
                let lock = o.addr(object, o.o.cfunction_self).ok().filter(|l| is_release && o.lock(*l).is_some());
                if let Some(lock) = lock {
                    *self.released.entry(lock).or_default() |= at.pending;
                }
            }
            "type" | "ABCMeta" if at.class.is_none() => {
                let dict = o.addr(object, o.o.type_dict).ok().filter(|d| !d.is_null());
                let entries = dict.and_then(|d| o.dict(d).ok()).unwrap_or_default();
                for (_, value) in entries.into_iter().take(MAX_ENTRIES) {
                    self.object(value, At { class: Some(object), ..at }, depth + 1);
                }
            }
            _ => {}
        }
    }

    /// A code object and those defined inside it.
    fn code(&mut self, code: Addr, at: At, outer: &mut Vec<Addr>) {
        let o = self.objects;
        if outer.len() > MAX_DEPTH || self.seen.len() >= MAX_CODES || !o.is(code, "code") || !self.seen.insert(code) {
            return;
        }
        let names = o.addr(code, o.o.code_names).and_then(|names| o.word(names, o.o.ob_size));
        self.incomplete |= names.is_err();
        for (names, list) in [(&GIVING[..], &mut self.found), (&TAKING[..], &mut self.takers)] {
            if self.inference.mentions_any(code, names) {
                let outer = outer.clone();
                list.push(Candidate { code, module: at.module, class: at.class, outer, pending: at.pending });
            }
        }
        let inside = o.addr(code, o.o.code_consts).ok().and_then(|c| o.tuple(c).ok()).unwrap_or_default();
        if self.by_text.is_none() && inside.iter().any(|c| self.is_method_in_text(code, *c)) {
            self.by_text = Some(code);
        }
        outer.push(code);
        for constant in inside {
            if o.is(constant, "code") {
                self.code(constant, at, outer);
            }
        }
        outer.pop();
    }

    /// Whether a constant of a function is the name of a method that gives a lock back: bytes, as C code is given them, or a
    /// text in a function that looks attributes up by name.
    fn is_method_in_text(&self, code: Addr, constant: Addr) -> bool {
        let o = self.objects;
        match o.type_of(constant).map(|t| t.name.clone()).as_deref() {
            Some("bytes") => {
                let short = o.bytes_extent(constant).is_ok_and(|(_, n)| n <= MAX_METHOD_NAME);
                short && o.bytes(constant).is_ok_and(|b| std::str::from_utf8(&b).is_ok_and(gives_back))
            }
            Some("str") => {
                GIVING.iter().any(|name| o.string_is(constant, name)) && self.inference.mentions_any(code, &BY_TEXT)
            }
            _ => false,
        }
    }
}

/// What looks a method up by a text (CPython `Python/bltinmodule.c`, `Modules/_operator.c`).
const BY_TEXT: [&str; 4] = ["getattr", "methodcaller", "attrgetter", "__getattribute__"];
/// Bytes of the longest such method's name.
const MAX_METHOD_NAME: usize = 16;

impl<'a> Givers<'a> {
    /// Looks for them. `handlers`: functions that signals run.
    pub(super) fn look<'f>(
        objects: &'a Objects<'a>,
        inference: &'a Inference<'a>,
        stacks: impl Iterator<Item = &'f [Framed]> + Clone,
        handlers: &[Addr],
    ) -> Givers<'a> {
        let mut search = Search {
            objects,
            inference,
            seen: BTreeSet::new(),
            found: Vec::new(),
            takers: Vec::new(),
            released: BTreeMap::new(),
            by_text: None,
            incomplete: false,
        };
        let frames = || stacks.clone().flat_map(|s| s.iter().take(MAX_FRAMES));
        for handler in handlers {
            search.object(*handler, At { module: Addr::NULL, class: None, pending: true }, 0);
        }
        // what a Timer will call
        for framed in frames().filter(|f| f.is("threading.py", "run") && f.may_be_of("Timer")) {
            let function = framed.first_argument(objects).and_then(|this| objects.attribute(this, "function"));
            if let Some(function) = function {
                search.object(function, At { module: Addr::NULL, class: None, pending: true }, 0);
            }
        }
        let modules = modules_of(objects, inference, frames());
        for module in &modules {
            let entries = inference.names().entries(*module);
            search.incomplete |= entries.is_empty() && objects.dict(*module).is_err();
            for (_, value) in entries.iter().take(MAX_ENTRIES) {
                search.object(*value, At { module: *module, class: None, pending: false }, 0);
            }
        }
        // what is defined inside the functions that run may be bound to nothing that shows
        let mut seen: HashSet<Addr, ByAddr> = HashSet::default();
        for framed in frames() {
            if let Some(code) = framed.code.as_ref().filter(|c| !c.is_standard && seen.insert(c.addr)) {
                let module = inference.names().globals_of(framed).unwrap_or(Addr::NULL);
                search.code(code.addr, At { module, class: None, pending: false }, &mut Vec::new());
            }
        }
        let incomplete = search.incomplete;
        let (candidates, takers, released, by_text) = (search.found, search.takers, search.released, search.by_text);
        let classes = candidates.iter().filter_map(|c| c.class).collect();
        Givers { objects, inference, candidates, takers, released, by_text, modules, incomplete, classes }
    }

    /// A function that gives `lock` back and does not take it; one that names it before one that is handed it.
    pub(super) fn of<'f>(
        &self,
        lock: Addr,
        frames: impl Iterator<Item = &'f Framed>,
        codes: &mut Codes,
    ) -> Option<Giver> {
        if let Some(pending) = self.released.get(&lock) {
            let place = "its bound method release, to be called later,".to_owned();
            return Some(Giver { place, named: true, taken_by_hand: true, pending: *pending });
        }
        if let Some(code) = self.by_text.and_then(|code| codes.load_one(self.objects, code)) {
            let place = format!("{} names such a method in a text: it", placed(&code));
            return Some(Giver { place, named: false, taken_by_hand: true, pending: false });
        }
        if self.candidates.is_empty() {
            return None;
        }
        let handles = self.handles(lock, frames);
        let mut found: Option<(&Candidate, bool)> = None;
        for candidate in &self.candidates {
            let Some(code) = codes.load_one(self.objects, candidate.code) else { continue };
            let calls = self.inference.calls_of(&code);
            let named: Vec<&Call> = calls.iter().filter(|c| self.names_it(candidate, c, &handles)).collect();
            if !named.is_empty() {
                // one that takes it again lends it meanwhile
                if named.first().is_some_and(|c| !c.acquires) {
                    found = Some((candidate, true));
                    break;
                }
                continue;
            }
            let any: Vec<&Call> = calls.iter().filter(|c| self.is_any(candidate, c)).collect();
            if found.is_none() && !any.is_empty() && any.iter().all(|c| !c.acquires) {
                let handed = any.iter().any(|c| c.on == Receiver::Other);
                found = Some((candidate, candidate.pending && handed));
            }
        }
        let (giver, named) = found?;
        let taken_by_hand = self.is_taken_by_hand(&handles, codes);
        let code = codes.find(giver.code)?;
        Some(Giver { place: placed(code), named, taken_by_hand, pending: giver.pending })
    }

    /// Whether code of the process that has returned may have taken `lock`.
    pub(super) fn may_be_taken<'f>(
        &self,
        lock: Addr,
        frames: impl Iterator<Item = &'f Framed>,
        codes: &mut Codes,
    ) -> bool {
        self.incomplete || self.is_taken_by_hand(&self.handles(lock, frames), codes)
    }

    /// Whether code of the program takes a lock of these names, or any that it is handed, by calling `acquire`.
    fn is_taken_by_hand(&self, handles: &Handles, codes: &mut Codes) -> bool {
        self.takers.iter().any(|taker| {
            let Some(code) = codes.load_one(self.objects, taker.code) else { return true };
            let calls = self.inference.calls_of(&code);
            let taking = |c: &Call| self.names_it(taker, c, handles) || (c.plain && c.on == Receiver::Other);
            calls.iter().filter(|c| c.acquires).any(taking)
        })
    }

    /// Whether a call is one on a lock of these names.
    fn names_it(&self, candidate: &Candidate, call: &Call, handles: &Handles) -> bool {
        match &call.on {
            Receiver::Global(name) => handles.globals.iter().any(|(m, n)| *m == candidate.module && n == name),
            Receiver::Attribute(name) => {
                let own = candidate.class.is_none_or(|c| handles.classes.contains(&c));
                let attribute = own && handles.attributes.contains(name);
                // `module.lock`
                let of_module =
                    || handles.globals.iter().any(|(dict, n)| n == name && self.imports(candidate.module, *dict));
                attribute || of_module()
            }
            Receiver::Other => {
                let inside = |(code, name): &(Addr, String)| {
                    (candidate.code == *code || candidate.outer.contains(code))
                        && self.objects.has_local(candidate.code, name)
                };
                let mut globals = handles.globals.iter().filter(|(m, _)| *m == candidate.module);
                let mut renamed = || globals.any(|(_, n)| self.inference.mentions(candidate.code, n));
                handles.locals.iter().any(inside) || renamed()
            }
        }
    }

    /// Whether a call may be one on any lock: one it is handed, or that of an object whose class only ever gives it back.
    fn is_any(&self, candidate: &Candidate, call: &Call) -> bool {
        match &call.on {
            _ if !call.plain => false,
            Receiver::Other => true,
            Receiver::Attribute(name) => {
                candidate.class.map_or(candidate.pending, |c| !self.takes(c, candidate.code, name))
            }
            Receiver::Global(_) => false,
        }
    }

    /// Whether a class has other methods that use an attribute of this name, but for the one that makes it.
    fn takes(&self, class: Addr, but: Addr, name: &str) -> bool {
        let o = self.objects;
        let dict = o.addr(class, o.o.type_dict).ok().filter(|d| !d.is_null());
        let entries = dict.map(|d| self.inference.names().entries(d));
        entries.iter().flat_map(|e| e.iter()).take(MAX_ENTRIES).any(|(key, value)| {
            let code = || o.addr(*value, o.o.function_code).ok().filter(|c| *c != but);
            o.is(*value, "function")
                && !o.string_is(*key, "__init__")
                && code().is_some_and(|c| self.inference.mentions(c, name))
        })
    }

    fn imports(&self, module: Addr, other: Addr) -> bool {
        let o = self.objects;
        module != other
            && self
                .inference
                .names()
                .entries(module)
                .iter()
                .any(|(_, v)| o.is(*v, "module") && o.addr(*v, o.o.module_dict).is_ok_and(|d| d == other))
    }

    /// The names by which the frames, and the modules looked at, know a lock.
    fn handles<'f>(&self, lock: Addr, frames: impl Iterator<Item = &'f Framed>) -> Handles {
        let names = self.inference.names();
        let mut handles = Handles::default();
        let o = self.objects;
        for module in &self.modules {
            handles.globals.extend(names.key_of(*module, lock).map(|name| (*module, name)));
            let conditions = names.entries(*module);
            let conditions = conditions.iter().take(MAX_ENTRIES).filter(|(_, v)| self.is_condition_of(*v, lock));
            handles.globals.extend(conditions.filter_map(|(k, _)| Some((*module, o.string(*k).ok()?))));
        }
        let mut seen = BTreeSet::new();
        let mut know = |handles: &mut Handles, value: Addr| {
            if !seen.insert(value) {
                return;
            }
            let mut known = names.attribute_and_classes(value, lock);
            if known.is_none() {
                let conditions = names.conditions_of(value).into_iter();
                let condition = conditions.take(MAX_NAMED).find(|c| self.is_condition_of(*c, lock));
                known = condition.and_then(|c| names.attribute_and_classes(value, c));
            }
            let (attribute, classes) = known.unzip();
            handles.attributes.extend(attribute);
            handles.classes.extend(classes.into_iter().flatten());
        };
        // objects of the program's own classes that its modules name
        for module in &self.modules {
            let own = |v: &Addr| o.type_of(*v).is_some_and(|t| self.classes.contains(&t.addr));
            let entries = names.entries(*module);
            for value in entries.iter().take(MAX_ENTRIES).map(|(_, v)| *v).filter(own).take(MAX_NAMED) {
                know(&mut handles, value);
            }
        }
        for framed in frames {
            let Some(code) = &framed.code else { continue };
            let global = names.globals_of(framed).and_then(|m| Some((m, names.key_of(m, lock)?)));
            handles.globals.extend(global);
            for (i, (name, value)) in self.objects.locals(&framed.frame, code).into_iter().enumerate() {
                if value == lock || self.is_condition_of(value, lock) {
                    handles.locals.insert((code.addr, name));
                } else if i < MAX_LOCALS {
                    know(&mut handles, value);
                }
            }
        }
        handles
    }

    fn is_condition_of(&self, object: Addr, lock: Addr) -> bool {
        is_condition_type(self.objects, object) && lock_of_condition(self.objects, object) == Some(lock)
    }
}

/// `done (jobs.py:12)`.
fn placed(code: &Code) -> String {
    format!("{} ({}:{})", code.function, code.file_name(), code.first_line)
}

/// The modules whose code is looked at: those of the frames, and the program's own among those they import from.
fn modules_of<'f>(
    objects: &Objects<'_>,
    inference: &Inference<'_>,
    frames: impl Iterator<Item = &'f Framed>,
) -> Vec<Addr> {
    let names = inference.names();
    let mut modules: Vec<Addr> = Vec::new();
    for framed in frames.filter(|f| f.code.as_ref().is_some_and(|c| !c.is_standard)) {
        let globals = names.globals_of(framed).filter(|g| !modules.contains(g) && modules.len() < MAX_MODULES);
        modules.extend(globals);
    }
    let own = |dict: Addr| {
        let file = names.entries(dict).iter().find(|(k, _)| objects.string_is(*k, "__file__")).map(|(_, v)| *v);
        file.and_then(|f| objects.string(f).ok())
            .is_some_and(|f| !is_standard(&f) && !is_installed(&f) && !f.ends_with(".so"))
    };
    let mut at = 0;
    while let Some(module) = modules.get(at).copied().filter(|_| modules.len() < MAX_MODULES) {
        at += 1;
        if !own(module) {
            continue;
        }
        for (_, value) in names.entries(module).iter().take(MAX_ENTRIES) {
            let other = match objects.type_of(*value).map(|t| t.name.clone()).as_deref() {
                Some("module") => objects.addr(*value, objects.o.module_dict).ok(),
                Some("function") => objects.addr(*value, objects.o.function_globals).ok(),
                _ => None,
            };
            if let Some(other) = other.filter(|d| !d.is_null() && !modules.contains(d))
                && modules.len() < MAX_MODULES
                && own(other)
            {
                modules.push(other);
            }
        }
    }
    modules
}
