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
