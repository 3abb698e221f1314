//! `threading.Condition` and the locks around `multiprocessing`'s semaphores: classes of the standard library, told from
//! others of the same name by the module that their own dicts name.

use super::objects::Objects;
use crate::units::Addr;

/// Classes of one object's line looked at.
const MAX_CLASSES: usize = 16;

/// Whether `object` is a `threading.Condition`, or of a class derived from it.
pub(super) fn is_condition(objects: &Objects<'_>, object: Addr) -> bool {
    line_of(objects, object).into_iter().any(|class| is_class(objects, class, "threading", "Condition"))
}

/// Whether an object may be one by its class's name: the quick answer, for many.
pub(super) fn is_condition_type(objects: &Objects<'_>, object: Addr) -> bool {
    objects.type_of(object).is_some_and(|t| t.name.ends_with("Condition"))
}

/// The lock of a `threading.Condition`.
pub(super) fn lock_of_condition(objects: &Objects<'_>, object: Addr) -> Option<Addr> {
    // the attributes first: most objects have none of this name
    let lock = objects.attribute(object, "_lock").filter(|l| objects.lock(*l).is_some())?;
    is_condition(objects, object).then_some(lock)
}

/// The lock that a manager's own exit method gives back, where `threading.Condition` defines that method.
pub(super) fn lock_of_entered_condition(objects: &Objects<'_>, manager: Addr) -> Option<Addr> {
    let lock = objects.attribute(manager, "_lock")?;
    let class = exit_class(objects, manager)?;
    is_class(objects, class, "threading", "Condition").then_some(lock)
}

/// The `SemLock` that a manager's own exit method gives back, where a lock or a semaphore of `multiprocessing` defines it.
pub(super) fn entered_sem_lock(objects: &Objects<'_>, manager: Addr) -> Option<Addr> {
    let lock = objects.attribute(manager, "_semlock")?;
    // or of a package made after it
    let module = module_of(objects, exit_class(objects, manager)?)?;
    (module == "synchronize" || module.ends_with(".synchronize")).then_some(lock)
}

/// The class that defines the exit method of an object.
fn exit_class(objects: &Objects<'_>, object: Addr) -> Option<Addr> {
    line_of(objects, object).into_iter().find(|c| entry(objects, *c, "__exit__").is_some())
}

fn is_class(objects: &Objects<'_>, class: Addr, module: &str, name: &str) -> bool {
    objects.read_type(class).is_ok_and(|t| t.name == name) && module_of(objects, class).as_deref() == Some(module)
}

/// `__module__` of a class written in Python.
fn module_of(objects: &Objects<'_>, class: Addr) -> Option<String> {
    entry(objects, class, "__module__").filter(|m| objects.is(*m, "str")).and_then(|m| objects.string(m).ok())
}

fn entry(objects: &Objects<'_>, class: Addr, name: &str) -> Option<Addr> {
    let dict = objects.addr(class, objects.o.type_dict).ok().filter(|d| !d.is_null())?;
    objects.dict(dict).ok()?.into_iter().find(|(k, _)| objects.string_is(*k, name)).map(|(_, v)| v)
}

/// An object's class and its bases, in the order attributes are looked up.
fn line_of(objects: &Objects<'_>, object: Addr) -> Vec<Addr> {
    let Some(kind) = objects.type_of(object) else { return Vec::new() };
    let line = objects.addr(kind.addr, objects.o.type_mro).ok().filter(|m| !m.is_null());
    let mut line = line.and_then(|m| objects.tuple(m).ok()).unwrap_or_else(|| vec![kind.addr]);
    line.truncate(MAX_CLASSES);
    line
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    /// Made-up objects of 3.11, each on a page of its own.
    struct Heap {
        m: Fake,
        o: Offsets,
        next: u64,
    }

    impl Heap {
        fn new() -> Heap {
            let o = Offsets::choose((11, None), false, None).unwrap();
            Heap { m: Fake::new(), o, next: 0x10_0000 }
        }

        fn page(&mut self) -> Addr {
            self.next += 0x1000;
            self.m.put(Addr(self.next), &[0; 0x1000]);
            Addr(self.next)
        }

        fn object(&mut self, kind: Addr) -> Addr {
            let at = self.page();
            self.m.put_u64(at.offset(8), kind.0);
            at
        }

        fn builtin(&mut self, name: &str, basicsize: u64) -> Addr {
            let (at, text) = (self.page(), self.page());
            self.m.put(text, name.as_bytes());
            self.m.put_u64(at.offset(self.o.type_name.cast_signed()), text.0);
            self.m.put_u64(at.offset(self.o.type_basicsize.cast_signed()), basicsize);
            at
        }

        fn text(&mut self, kind: Addr, text: &str) -> Addr {
            let at = self.object(kind);
            self.m.put_u64(at.offset(self.o.str_length.cast_signed()), text.len() as u64);
            // kind 1, compact, ASCII, ready
            self.m.put_u32(at.offset(32), 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7);
            self.m.put(at.offset(self.o.str_size.cast_signed()), text.as_bytes());
            at
        }

        fn dict(&mut self, entries: &[(Addr, Addr)]) -> Addr {
            let (at, keys) = (self.page(), self.page());
            self.m.put_u64(at.offset(self.o.dict_keys.cast_signed()), keys.0);
            let k = &self.o.keys;
            let first = keys.offset(k.indices.cast_signed() + 8);
            self.m.put(keys.offset(k.log2_index_bytes.unwrap().cast_signed()), &[3]);
            self.m.put(keys.offset(k.kind.unwrap().cast_signed()), &[1]);
            self.m.put_u64(keys.offset(k.nentries.cast_signed()), entries.len() as u64);
            for (i, (key, value)) in entries.iter().enumerate() {
                let entry = first.offset(i as i64 * 16);
                self.m.put_u64(entry, key.0).put_u64(entry.offset(8), value.0);
            }
            at
        }

        /// A class `Condition` whose module and only method are these, and an object of it with this `_lock`.
        fn condition(&mut self, module: &str, method: &str) -> (Addr, Addr) {
            let strings = self.builtin("str", 56);
            let lock_type = self.builtin("_thread.lock", 40);
            let lock = self.object(lock_type);
            let sleep = self.page();
            self.m.put_u64(lock.offset(16), sleep.0).put(lock.offset(32), &[1]);
            let module = self.text(strings, module);
            let (of_module, of_method) = (self.text(strings, "__module__"), self.text(strings, method));
            let class = self.builtin("Condition", 32);
            let entries = self.dict(&[(of_module, module), (of_method, class)]);
            self.m.put_u64(class.offset(self.o.type_dict.cast_signed()), entries.0);
            self.m.put_u64(class.offset(self.o.type_dictoffset.cast_signed()), 16);
            let this = self.object(class);
            let name = self.text(strings, "_lock");
            let attributes = self.dict(&[(name, lock)]);
            self.m.put_u64(this.offset(16), attributes.0);
            (this, lock)
        }
    }

    #[test]
    fn a_condition_is_one_by_its_module_not_by_its_name() {
        let mut heap = Heap::new();
        let (this, lock) = heap.condition("threading", "__exit__");
        let (other, _) = heap.condition("shop.orders", "__exit__");
        let (without, _) = heap.condition("threading", "wait");
        let objects = Objects::new(&heap.m, &heap.o);
        assert_eq!(
            (lock_of_condition(&objects, this), lock_of_entered_condition(&objects, this)),
            (Some(lock), Some(lock))
        );
        assert_eq!((lock_of_condition(&objects, other), lock_of_entered_condition(&objects, other)), (None, None));
        assert!(is_condition_type(&objects, other) && !is_condition(&objects, other));
        // an exit method from elsewhere need not give the lock back
        assert_eq!(lock_of_entered_condition(&objects, without), None);
        assert!(!is_condition(&objects, lock) && !is_condition(&objects, Addr(0x1234)));
    }
}
