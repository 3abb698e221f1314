//! Everything one CPython keeps, read once: the same reading is rehearsed on the running target, done in the pause, and
//! looked at afterwards.

use super::code::Codes;
use super::find::Found;
use super::frames::{Chain, read_chains};
use super::gil::{Gil, read_gils};
use super::objects::Objects;
use super::signals::read_handlers;
use super::thread_names::{read_active, read_names};
use super::threads::{Doubt, Interpreter, read_interpreters};
use crate::memory::{ReadError, WalkEnd};
use crate::units::Addr;
use std::cell::RefCell;
use std::collections::HashMap;

/// What was read.
pub(super) struct Census {
    /// `_PyRuntime`.
    pub runtime: Addr,
    pub interpreters: Vec<Interpreter>,
    /// How the walk over them ended.
    pub end: WalkEnd,
    /// The `pthread_key_t` under which each thread keeps its thread state, up to 3.14.
    pub key: Option<i32>,
    pub gils: Vec<Gil>,
    /// GILs whose fields could not be read.
    pub lost_gils: Vec<(Addr, ReadError)>,
    /// Frames by thread state.
    pub chains: HashMap<Addr, Chain>,
    pub codes: RefCell<Codes>,
    /// The Python functions that signals run; `None` where it is not known which.
    pub handlers: Option<Vec<(u32, Addr)>>,
    /// Names by `threading.get_ident()`, one map for each interpreter.
    pub names: Vec<HashMap<u64, String>>,
}

impl Census {
    /// Reads it.
    ///
    /// # Errors
    /// Where the runtime's lists make no sense.
    pub(super) fn take(objects: &Objects<'_>, found: &Found) -> Result<Census, Doubt> {
        let (interpreters, end) = read_interpreters(objects, found.runtime)?;
        let (gils, lost_gils) = read_gils(objects, &interpreters);
        let all: Vec<_> = interpreters.iter().flat_map(|i| &i.threads).collect();
        let newest: Vec<Addr> = all.iter().map(|t| t.frame).collect();
        let chains: HashMap<Addr, Chain> = all.iter().map(|t| t.addr).zip(read_chains(objects, &newest)).collect();
        let mut codes = Codes::default();
        codes.load(objects, chains.values().flat_map(|c| &c.frames).filter(|f| !f.shim).map(|f| f.code));
        let names = interpreters
            .iter()
            .map(|i| {
                let active = read_active(objects, i);
                read_names(objects, &active)
            })
            .collect();
        let key = objects.o.runtime_tss_key.and_then(|f| objects.int32(found.runtime, f).ok());
        let handlers = found.handlers.and_then(|table| read_handlers(objects, table));
        let runtime = found.runtime;
        let codes = RefCell::new(codes);
        Ok(Census { runtime, interpreters, end, key, gils, lost_gils, chains, codes, handlers, names })
    }
}

#[cfg(test)]
impl Census {
    /// One interpreter without a GIL, its threads without frames.
    pub(super) fn made_up(runtime: Addr, interpreter: Addr, threads: Vec<super::threads::PyThread>) -> Census {
        let interpreter = Interpreter {
            addr: interpreter,
            id: 0,
            gil: None,
            own_gil: false,
            modules: Addr::NULL,
            threads,
            end: WalkEnd::Complete,
        };
        Census {
            runtime,
            interpreters: vec![interpreter],
            end: WalkEnd::Complete,
            key: None,
            gils: Vec::new(),
            lost_gils: Vec::new(),
            chains: HashMap::new(),
            codes: RefCell::default(),
            handlers: None,
            names: Vec::new(),
        }
    }
}
