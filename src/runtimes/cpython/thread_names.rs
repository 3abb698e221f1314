//! The names the program gave its threads: `threading._active`, without running code.

use super::objects::Objects;
use super::threads::Interpreter;
use crate::memory::MemoryExt;
use crate::units::Addr;
use std::collections::HashMap;

/// Bytes of a string or int object asked for ahead.
const SMALL: usize = 96;

/// The `Thread` objects of an interpreter: `threading.get_ident()` → object.
pub(super) fn read_active(objects: &Objects<'_>, interpreter: &Interpreter) -> HashMap<u64, Addr> {
    let Some(active) = find_module(objects, interpreter.modules, "threading")
        .and_then(|module| objects.addr(module, objects.o.module_dict).ok())
        .and_then(|dict| find_item(objects, dict, "_active"))
    else {
        return HashMap::new();
    };
    warm_dicts(objects, &[active]);
    let entries = objects.dict(active).unwrap_or_default();
    objects.memory.expect(&entries.iter().map(|(k, _)| (*k, SMALL)).collect::<Vec<_>>());
    entries.into_iter().filter_map(|(k, v)| Some((objects.int(k).ok()?, v))).collect()
}

/// The names of the threads in `active`.
pub(super) fn read_names(objects: &Objects<'_>, active: &HashMap<u64, Addr>) -> HashMap<u64, String> {
    let threads: Vec<Addr> = active.values().copied().collect();
    warm_attributes(objects, &threads);
    let names: Vec<(u64, Addr)> =
        active.iter().filter_map(|(id, t)| Some((*id, objects.attribute(*t, "_name")?))).collect();
    objects.memory.expect(&names.iter().map(|(_, n)| (*n, SMALL)).collect::<Vec<_>>());
    names.into_iter().filter_map(|(id, n)| Some((id, objects.string(n).ok()?))).collect()
}

/// A module of `sys.modules`.
pub(super) fn find_module(objects: &Objects<'_>, modules: Addr, name: &str) -> Option<Addr> {
    find_item(objects, modules, name).filter(|m| objects.is(*m, "module"))
}

/// The value of a string key; the keys are asked for together.
pub(super) fn find_item(objects: &Objects<'_>, dict: Addr, name: &str) -> Option<Addr> {
    warm_dicts(objects, &[dict]);
    let entries = objects.dict(dict).ok()?;
    objects.memory.expect(&entries.iter().map(|(k, _)| (*k, SMALL)).collect::<Vec<_>>());
    entries.into_iter().find(|(k, _)| objects.string_is(*k, name)).map(|(_, v)| v)
}

/// Asks for dicts and their tables together.
pub(super) fn warm_dicts(objects: &Objects<'_>, dicts: &[Addr]) {
    let o = objects.o;
    objects.memory.expect(&dicts.iter().map(|d| (*d, 48)).collect::<Vec<_>>());
    let tables: Vec<_> = dicts
        .iter()
        .flat_map(|d| [objects.addr(*d, o.dict_keys), objects.addr(*d, o.dict_values)])
        .flatten()
        .filter(|a| !a.is_null())
        .collect();
    objects.memory.expect(&tables.iter().map(|a| (*a, 320)).collect::<Vec<_>>());
    // a large table: its length stands at its start
    let large: Vec<_> = tables
        .iter()
        .filter_map(|a| {
            let n = objects.word(*a, o.keys.nentries).ok().filter(|n| (8..65_536).contains(n))?;
            Some((*a, usize::try_from(n * 32).ok()?))
        })
        .collect();
    objects.memory.expect(&large);
}

/// Asks for instances and the attributes they keep together.
pub(super) fn warm_attributes(objects: &Objects<'_>, instances: &[Addr]) {
    use super::offsets::Attributes;
    let o = objects.o;
    objects.memory.expect(&instances.iter().map(|t| (t.offset(-32), 320)).collect::<Vec<_>>());
    let at = |offset: i64| -> Vec<Addr> {
        instances.iter().filter_map(|t| objects.memory.read_addr(t.offset(offset)).ok()).collect()
    };
    match o.attributes {
        Attributes::DictOffset => {
            let dicts: Vec<_> = instances
                .iter()
                .filter_map(|t| {
                    let offset = objects.type_of(*t)?.dictoffset;
                    objects.memory.read_addr(t.offset(offset)).ok()
                })
                .filter(|d| !d.is_null())
                .collect();
            warm_dicts(objects, &dicts);
        }
        Attributes::ValuesPointer => {
            objects.memory.expect(&at(-32).iter().map(|v| (*v, 256)).collect::<Vec<_>>());
        }
        Attributes::TaggedWord => {
            objects.memory.expect(&at(-24).iter().map(|v| (Addr(v.0 & !1), 256)).collect::<Vec<_>>());
        }
        Attributes::Inline(_) => {}
    }
}
