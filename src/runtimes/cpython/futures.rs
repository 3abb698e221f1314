//! asyncio's futures and tasks as objects: those of its C half by their structs, those of its Python half, which runs where the
//! C half is missing or a program asks for it, by their attributes.

use super::objects::Objects;
use crate::layout::{Subject, Table};
use crate::memory::{Memory, MemoryExt};
use crate::units::Addr;

/// Offsets of asyncio's C half. Absent ones are not read.
#[derive(Clone, Debug, Default)]
pub(super) struct AsyncioOffsets {
    task_loop: Option<u64>,
    task_state: Option<u64>,
    task_waiter: Option<u64>,
    task_coro: Option<u64>,
    task_name: Option<u64>,
    future_loop: Option<u64>,
    /// Since 3.14 a loop's tasks are in a list of its thread's, and those of threads that ended in one of the interpreter's.
    pub task_node: Option<u64>,
    pub thread_tasks: Option<u64>,
    pub interpreter_tasks: Option<u64>,
}

/// Where the interpreter's own account says what (`.AsyncioDebug`, since 3.14), as 64-bit words.
const OWN_TASK_NAME: u64 = 8;
const OWN_TASK_CORO: u64 = 40;
const OWN_TASK_NODE: u64 = 48;
const OWN_INTERPRETER_TASKS: u64 = 64;
const OWN_THREAD_TASKS: u64 = 96;
/// Offsets beyond this are none.
const MAX_OFFSET: u64 = 1 << 20;
/// Bytes of a future of the C half looked at.
const MAX_FUTURE: u64 = 256;
/// Callbacks of one future looked at.
const MAX_CALLBACKS: usize = 16;

impl AsyncioOffsets {
    /// Takes them from a table.
    pub(super) fn choose(table: &Table, subject: &Subject) -> AsyncioOffsets {
        let one = |name: &str, field: &str| table.layout(name, subject).and_then(|s| s.offset(field));
        AsyncioOffsets {
            task_loop: one("TaskObj", "task_loop"),
            task_state: one("TaskObj", "task_state"),
            task_waiter: one("TaskObj", "task_fut_waiter"),
            task_coro: one("TaskObj", "task_coro"),
            task_name: one("TaskObj", "task_name"),
            future_loop: one("FutureObj", "fut_loop"),
            task_node: one("TaskObj", "task_node"),
            thread_tasks: one("_PyThreadStateImpl", "asyncio_tasks_head"),
            interpreter_tasks: one("PyInterpreterState", "asyncio_tasks_head"),
        }
    }

    /// Puts what the interpreter says of itself, at `section`, over what the tables say.
    pub(super) fn correct(&mut self, memory: &dyn Memory, section: Addr) {
        let own = |at: u64| memory.read_u64(section.checked_add(at)?).ok().filter(|v| (1..MAX_OFFSET).contains(v));
        self.task_name = own(OWN_TASK_NAME).or(self.task_name);
        self.task_coro = own(OWN_TASK_CORO).or(self.task_coro);
        self.task_node = own(OWN_TASK_NODE).or(self.task_node);
        self.interpreter_tasks = own(OWN_INTERPRETER_TASKS).or(self.interpreter_tasks);
        self.thread_tasks = own(OWN_THREAD_TASKS).or(self.thread_tasks);
    }
}

/// What a task says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskObject {
    pub event_loop: Addr,
    pub name: Option<String>,
    pub coroutine: Option<Addr>,
    /// The future it waits for.
    pub waiter: Option<Addr>,
}

impl Objects<'_> {
    /// A task that has not ended.
    pub(super) fn pending_task(&self, at: Addr) -> Option<TaskObject> {
        let a = &self.o.asyncio;
        if self.is_kind_of(at, "_asyncio.Task") {
            if self.int32(at, a.task_state?).ok()? != 0 {
                return None;
            }
            let field = |field: Option<u64>| self.some(self.addr(at, field?).ok()?);
            return Some(TaskObject {
                event_loop: field(a.task_loop)?,
                name: field(a.task_name).and_then(|n| self.task_name(n)),
                coroutine: field(a.task_coro),
                waiter: field(a.task_waiter),
            });
        }
        // CPython `Lib/asyncio/tasks.py`, `Task.__init__`; `Lib/asyncio/futures.py`, `Future.__init__`: `_state` stands in the
        // class until it ends
        let kept = self.python_half(at, "Task")?;
        let of = |name: &str| kept.iter().find(|(k, _)| self.string_is(*k, name)).and_then(|(_, v)| self.some(*v));
        if of("_state").is_some_and(|s| !self.string_is(s, "PENDING")) {
            return None;
        }
        let coroutine = Some(of("_coro")?);
        let name = of("_name").and_then(|n| self.task_name(n));
        Some(TaskObject { event_loop: of("_loop")?, name, coroutine, waiter: of("_fut_waiter") })
    }

    /// The loop of a future or task of asyncio.
    pub(super) fn loop_of_future(&self, at: Addr) -> Option<Addr> {
        let a = &self.o.asyncio;
        let field = match () {
            () if self.is_kind_of(at, "_asyncio.Task") => a.task_loop?,
            () if self.is_kind_of(at, "_asyncio.Future") => a.future_loop?,
            () => {
                let kept = self.python_half(at, "Future")?;
                let (_, event_loop) = kept.iter().find(|(k, _)| self.string_is(*k, "_loop"))?;
                return self.some(*event_loop);
            }
        };
        self.some(self.addr(at, field).ok()?)
    }

    /// Whether a future or task of asyncio has not ended, or is none of those.
    pub(super) fn may_be_pending(&self, at: Addr) -> bool {
        if self.is_kind_of(at, "_asyncio.Future") || self.is_kind_of(at, "_asyncio.Task") {
            // both begin alike (CPython `Modules/_asynciomodule.c`, `FutureObj_HEAD`)
            return self.o.asyncio.task_state.is_none_or(|f| self.int32(at, f).map_or(true, |s| s == 0));
        }
        let kept = self.python_half(at, "Future").unwrap_or_default();
        let state = kept.into_iter().find(|(k, _)| self.string_is(*k, "_state"));
        state.is_none_or(|(_, s)| self.string_is(s, "PENDING"))
    }

    /// The functions a future of asyncio will call when it ends, as far as they are Python's.
    pub(super) fn callbacks(&self, at: Addr) -> Vec<Addr> {
        let function = |f: &Addr| self.is(*f, "function");
        if let Some(kept) = self.python_half(at, "Future") {
            let list = kept.iter().find(|(k, _)| self.string_is(*k, "_callbacks")).map(|(_, v)| *v);
            let list = list.filter(|l| self.is(*l, "list")).and_then(|l| self.list(l).ok()).unwrap_or_default();
            let first = |pair: Addr| self.tuple(pair).ok().and_then(|p| p.first().copied());
            let pairs = list.into_iter().take(MAX_CALLBACKS).filter(|p| self.is(*p, "tuple"));
            return pairs.filter_map(first).filter(function).collect();
        }
        // the first has a field of its own (CPython `Modules/_asynciomodule.c`, `fut_callback0`)
        let size = self.type_of(at).map_or(0, |t| t.basicsize.min(MAX_FUTURE));
        let bytes = usize::try_from(size).ok().and_then(|n| self.memory.read_vec(at, n).ok()).unwrap_or_default();
        super::objects::words_of(&bytes).skip(2).map(Addr).filter(function).take(MAX_CALLBACKS).collect()
    }

    /// The attributes of a future of asyncio's Python half whose class, or one it is derived from, is called so.
    fn python_half(&self, at: Addr, class: &str) -> Option<Vec<(Addr, Addr)>> {
        if !self.is_kind_of(at, class) {
            return None;
        }
        let kept = self.attributes(at).ok()?;
        // concurrent.futures has a Future, too
        let has = |name: &str| kept.iter().any(|(k, _)| self.string_is(*k, name));
        (has("_loop") && has("_callbacks")).then_some(kept)
    }

    fn task_name(&self, object: Addr) -> Option<String> {
        match self.type_of(object)?.name.as_str() {
            "str" => self.string(object).ok(),
            // the number of a name nobody has asked for yet
            "int" => self.int(object).ok().map(|n| format!("Task-{n}")),
            _ => None,
        }
    }

    fn some(&self, object: Addr) -> Option<Addr> {
        (!object.is_null() && !self.is(object, "NoneType")).then_some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    #[test]
    fn asyncios_own_account_goes_before_the_table() {
        let mut m = Fake::new();
        m.put(Addr(0x5000), &[0xff; 104]);
        m.put_u64(Addr(0x5000 + OWN_TASK_NODE), 160);
        let mut o = Offsets::choose((14, None), false, None).unwrap().asyncio;
        let before = o.clone();
        o.correct(&m, Addr(0x5000));
        assert_eq!((o.task_node, o.task_coro), (Some(160), before.task_coro), "nonsense is no account");
        o.correct(&m, Addr(0x9000));
        assert_eq!(o.task_node, Some(160), "an account that cannot be read changes nothing");
    }
}
