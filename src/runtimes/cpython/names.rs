//! What a person calls an object: a module's global, an attribute of a class or an instance, a local variable.
//!
//! Looked for in the frames of those who hold it and wait for it; never makes or breaks a fact.

use super::conditions::is_condition_type;
use super::objects::{Objects, words_of};
use super::offsets::FrameLayout;
use super::place::Framed;
use super::slots::Reference;
use crate::memory::MemoryExt;
use crate::units::{Addr, ByAddr};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Frames of one stack whose variables are looked at, newest first.
const MAX_FRAMES: usize = 48;
/// Locals of one frame whose attributes are looked at.
const MAX_LOCALS: usize = 24;
/// Classes of one object's line looked at.
const MAX_CLASSES: usize = 16;
/// Bytes of an instance searched for slots.
const MAX_INSTANCE: u64 = 4096;

/// Globals of one module that are looked into, and items of each.
const MAX_CONTAINERS: usize = 128;
const MAX_ITEMS: usize = 256;
/// Modules whose globals are looked into for one name.
const MAX_MODULES: usize = 8;

/// Types whose instances have no attributes.
const PLAIN: [&str; 8] = ["int", "str", "float", "bool", "bytes", "NoneType", "tuple", "_thread.lock"];

/// The classes of `multiprocessing.synchronize` around a `SemLock`.
const WRAPPERS: [&str; 4] = ["Lock", "RLock", "Semaphore", "BoundedSemaphore"];

type Entries = Rc<Vec<(Addr, Addr)>>;

/// Finds names; dicts are read once.
pub(super) struct Names<'a> {
    objects: &'a Objects<'a>,
    dicts: RefCell<HashMap<Addr, Entries, ByAddr>>,
}

impl<'a> Names<'a> {
    pub(super) fn new(objects: &'a Objects<'a>) -> Names<'a> {
        Names { objects, dicts: RefCell::default() }
    }

    /// The best name of `target` that the variables of these stacks give.
    pub(super) fn find(&self, target: Addr, stacks: &[&[Framed]]) -> Option<String> {
        let frames = || stacks.iter().flat_map(|s| s.iter().take(MAX_FRAMES));
        // multiprocessing's locks are known by the object around them
        let is_inner = self.objects.is(target, "_multiprocessing.SemLock");
        let around = is_inner.then(|| frames().find_map(|f| self.wrapper(f, target))).flatten();
        if let Some(name) = around.and_then(|around| self.find(around, stacks)) {
            return Some(name);
        }
        frames()
            .find_map(|f| self.global(f, target))
            .or_else(|| frames().find_map(|f| self.attribute_of_local(f, target)))
            .or_else(|| {
                // the frames of one module say the same
                let mut seen: Vec<Addr> = Vec::new();
                let mut unseen = |f: &&Framed| {
                    let globals = self.globals_of(f).filter(|g| !seen.contains(g) && seen.len() < MAX_MODULES);
                    seen.extend(globals);
                    globals.is_some()
                };
                frames().filter(|f| unseen(f)).find_map(|f| self.in_global(f, target))
            })
            .or_else(|| frames().find_map(|f| self.local(f, target)))
    }

    /// The object of `multiprocessing.synchronize` around a `SemLock`, if a local of the frame, or an attribute of one, is it.
    fn wrapper(&self, framed: &Framed, target: Addr) -> Option<Addr> {
        let o = self.objects;
        let wraps = |object: &Addr| {
            let kind = o.type_of(*object).map(|t| t.name.clone()).unwrap_or_default();
            WRAPPERS.contains(&kind.as_str()) && o.attribute(*object, "_semlock") == Some(target)
        };
        let locals = o.locals(&framed.frame, framed.code.as_ref()?);
        let locals: Vec<Addr> = locals.into_iter().take(MAX_LOCALS).map(|(_, v)| v).collect();
        let inside = || {
            let attributes = locals.iter().flat_map(|l| o.attributes(*l).unwrap_or_default().into_iter().take(64));
            attributes.map(|(_, v)| v).find(wraps)
        };
        locals.iter().copied().find(wraps).or_else(inside)
    }

    /// How the frame itself can name `target`.
    pub(super) fn reference(&self, framed: &Framed, target: Addr) -> Option<Reference> {
        let code = framed.code.as_ref()?;
        let locals = self.objects.locals(&framed.frame, code);
        if let Some((name, _)) = locals.iter().find(|(_, v)| *v == target) {
            return Some(Reference::Local(name.clone()));
        }
        if let Some(name) = self.globals_of(framed).and_then(|g| self.key_of(g, target)) {
            return Some(Reference::Global(name));
        }
        let this = framed.first_argument(self.objects)?;
        let class = self.objects.type_of(this)?;
        self.instance_attribute(this, target)
            .or_else(|| {
                self.line_of(class.addr).into_iter().find_map(|c| {
                    self.key_of(self.objects.addr(c, self.objects.o.type_dict).ok().filter(|d| !d.is_null())?, target)
                })
            })
            .map(Reference::Attribute)
    }

    /// The entries of a dict, read once.
    pub(super) fn entries(&self, dict: Addr) -> Entries {
        if let Some(known) = self.dicts.borrow().get(&dict) {
            return Rc::clone(known);
        }
        let read: Entries = Rc::new(self.objects.dict(dict).unwrap_or_default());
        self.dicts.borrow_mut().insert(dict, Rc::clone(&read));
        read
    }

    /// The key under which `target` stands in a dict.
    pub(super) fn key_of(&self, dict: Addr, target: Addr) -> Option<String> {
        let key = self.entries(dict).iter().find(|(_, v)| *v == target).map(|(k, _)| *k)?;
        self.objects.string(key).ok()
    }

    /// The dict of a frame's globals.
    pub(super) fn globals_of(&self, framed: &Framed) -> Option<Addr> {
        let at = match &self.objects.o.frame {
            FrameLayout::Object(f) => f.globals,
            FrameLayout::Inline(f) => f.globals,
        };
        self.objects.addr(framed.frame.addr, at).ok().filter(|g| !g.is_null())
    }

    /// `torch.cuda._initialization_lock`.
    fn global(&self, framed: &Framed, target: Addr) -> Option<String> {
        let o = self.objects;
        let globals = self.globals_of(framed)?;
        let name = self.key_of(globals, target)?;
        let module = self.entries(globals).iter().find(|(k, _)| o.string_is(*k, "__name__")).map(|(_, v)| *v);
        match module.and_then(|m| o.string(m).ok()) {
            Some(module) => Some(format!("{module}.{name}")),
            None => Some(name),
        }
    }

    /// `__main__.forks[1]`: an item of a list, a tuple or a dict that is a global.
    fn in_global(&self, framed: &Framed, target: Addr) -> Option<String> {
        let o = self.objects;
        let globals = self.entries(self.globals_of(framed)?);
        let (key, item) =
            globals.iter().take(MAX_CONTAINERS).find_map(|(key, value)| Some((*key, self.item(*value, target)?)))?;
        let module = globals.iter().find(|(k, _)| o.string_is(*k, "__name__")).and_then(|(_, v)| o.string(*v).ok());
        let module = module.map(|m| format!("{m}.")).unwrap_or_default();
        Some(format!("{module}{}[{item}]", o.string(key).ok()?))
    }

    /// Where in a container `target` stands: an index, or a key that is a number or a string.
    fn item(&self, container: Addr, target: Addr) -> Option<String> {
        let o = self.objects;
        let kind = o.type_of(container)?;
        let index = |items: Vec<Addr>| items.iter().take(MAX_ITEMS).position(|i| *i == target).map(|i| i.to_string());
        let small = || o.size(container).is_some_and(|n| n <= MAX_ITEMS as u64);
        match kind.name.as_str() {
            "list" if small() => index(o.list(container).ok()?),
            "tuple" if small() => index(o.tuple(container).ok()?),
            // the number of its entries stands where a sized object keeps its size
            "dict" if small() => {
                let entries = o.dict(container).ok().filter(|e| e.len() <= MAX_ITEMS)?;
                let (key, _) = entries.into_iter().find(|(_, v)| *v == target)?;
                match o.type_of(key)?.name.as_str() {
                    "int" => o.int(key).ok().map(|n| n.to_string()),
                    "str" => o.string(key).ok().map(|s| format!("'{}'", s.chars().take(64).collect::<String>())),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// `Session._lock (Session at 0x…)`, or `Session._lock` for an attribute of the class.
    fn attribute_of_local(&self, framed: &Framed, target: Addr) -> Option<String> {
        let o = self.objects;
        let code = framed.code.as_ref()?;
        o.locals(&framed.frame, code).into_iter().take(MAX_LOCALS).find_map(|(_, object)| {
            let class = o.type_of(object)?;
            // of a class only what its own line of classes holds is an attribute
            let is_class = class.name == "type"
                || self.line_of(class.addr).iter().any(|c| o.read_type(*c).is_ok_and(|t| t.name == "type"));
            if !is_class && let Some(attribute) = self.instance_attribute(object, target) {
                return Some(format!("{}.{attribute} ({} at {object})", short(&class.name), short(&class.name)));
            }
            let classes = if is_class { self.line_of(object) } else { self.line_of(class.addr) };
            classes.into_iter().find_map(|c| {
                let attribute = self.key_of(o.addr(c, o.o.type_dict).ok().filter(|d| !d.is_null())?, target)?;
                let name = o.read_type(c).ok()?.name;
                Some(format!("{}.{attribute}", short(&name)))
            })
        })
    }

    /// The attribute of an object, or of its class, that is `target`; and the line of classes that know it by this name.
    pub(super) fn attribute_and_classes(&self, object: Addr, target: Addr) -> Option<(String, Vec<Addr>)> {
        let o = self.objects;
        let kind = o.type_of(object)?;
        if kind.basicsize == 0 || PLAIN.contains(&kind.name.as_str()) {
            return None;
        }
        let line = self.line_of(kind.addr);
        let of_class = |class: &Addr| {
            let dict = o.addr(*class, o.o.type_dict).ok().filter(|d| !d.is_null())?;
            self.key_of(dict, target)
        };
        let attribute = self.instance_attribute(object, target).or_else(|| line.iter().find_map(of_class));
        if let Some(attribute) = attribute {
            return Some((attribute, line));
        }
        // the first argument of a class method
        let line = (kind.name == "type").then(|| self.line_of(object))?;
        line.iter().find_map(of_class).map(|attribute| (attribute, line))
    }

    /// The attributes of an object that may be conditions.
    pub(super) fn conditions_of(&self, object: Addr) -> Vec<Addr> {
        let o = self.objects;
        if o.type_of(object).is_none_or(|t| t.basicsize == 0 || PLAIN.contains(&t.name.as_str())) {
            return Vec::new();
        }
        let values = o.attributes(object).unwrap_or_default().into_iter().map(|(_, v)| v);
        values.filter(|v| is_condition_type(o, *v)).collect()
    }

    /// The attribute of one instance that is `target`: in its dict, its inline values, or a slot.
    fn instance_attribute(&self, object: Addr, target: Addr) -> Option<String> {
        let o = self.objects;
        let kind = o.type_of(object)?;
        let entries = o.attributes(object).unwrap_or_default();
        if let Some((key, _)) = entries.into_iter().find(|(_, v)| *v == target) {
            return o.string(key).ok();
        }
        let size = kind.basicsize.min(MAX_INSTANCE);
        let bytes = o.memory.read_vec(object, usize::try_from(size).ok()?).ok()?;
        let slot = words_of(&bytes).position(|w| w == target.0)? as u64 * 8;
        self.line_of(kind.addr).into_iter().find_map(|c| {
            let dict = o.addr(c, o.o.type_dict).ok().filter(|d| !d.is_null())?;
            self.entries(dict).iter().find_map(|(key, descriptor)| {
                let is_member = o.is(*descriptor, "member_descriptor");
                // the PyMemberDef pointer stands where a method descriptor keeps its PyMethodDef; its offset is the third word
                let member = is_member.then(|| o.addr(*descriptor, o.o.methoddescr_method).ok()).flatten()?;
                (o.word(member, 16).ok()? == slot).then(|| o.string(*key).ok()).flatten()
            })
        })
    }

    /// A class and its bases, in the order attributes are looked up.
    pub(super) fn line_of(&self, class: Addr) -> Vec<Addr> {
        let o = self.objects;
        let line = o.addr(class, o.o.type_mro).ok().filter(|m| !m.is_null()).and_then(|m| o.tuple(m).ok());
        let mut line = line.unwrap_or_else(|| vec![class]);
        line.truncate(MAX_CLASSES);
        line
    }

    /// `lock (local of worker)`.
    fn local(&self, framed: &Framed, target: Addr) -> Option<String> {
        let code = framed.code.as_ref()?;
        let locals = self.objects.locals(&framed.frame, code);
        let (name, _) = locals.into_iter().find(|(_, v)| *v == target)?;
        Some(format!("{name} (local of {})", code.function))
    }
}

/// A class name without its module.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
