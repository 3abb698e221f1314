//! asyncio: event loops and the threads that run them, tasks, where they are suspended, and what they hold there.

use super::calls::{Call, is_asyncios};
use super::census::Census;
use super::code::Codes;
use super::frames::read_frame;
use super::objects::Objects;
use super::place::Framed;
use super::thread_names::{find_item, find_module};
use super::threads::Interpreter;
use crate::memory::{MemoryExt, walk};
use crate::units::Addr;
use std::collections::HashSet;

/// Tasks read at most.
pub(super) const MAX_TASKS: usize = 4096;
/// Coroutines that await each other followed at most.
const MAX_CHAIN: usize = 64;
/// Children of one `asyncio.gather` looked at.
const MAX_GATHERED: usize = 1024;
/// Callbacks of one loop looked at.
const MAX_READY: u64 = 256;
/// Bytes of a handle looked at.
const MAX_HANDLE: u64 = 256;
/// Items of a suspended frame's stack among which the one it awaits is looked for. Since 3.15 others may stand above it.
const MAX_TOP: u64 = 3;

/// Whose event loop it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LoopKind {
    /// asyncio's own.
    Asyncio,
    /// uvloop's: in C, its timers and descriptors are not known.
    Uvloop,
}

impl LoopKind {
    /// How it is known that a thread runs it.
    pub(super) fn proof(self) -> &'static str {
        match self {
            LoopKind::Asyncio => "_run_once is on its stack",
            LoopKind::Uvloop => "the loop, one of uvloop, keeps its ident",
        }
    }
}

/// An event loop that a thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RunningLoop {
    /// Which thread.
    pub thread: usize,
    /// The loop object.
    pub at: Addr,
    pub kind: LoopKind,
    /// Whether it runs a callback, a task's step above all, rather than waiting for something to do.
    pub in_callback: bool,
    /// Whether nothing but another thread or a signal can bring it to run a callback: it is in its selector, nothing is
    /// ready, there is no timer, and no descriptor but its own.
    pub exhausted: bool,
}

/// A task that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub at: Addr,
    pub name: String,
    /// Its loop.
    pub event_loop: Addr,
    /// What it waits for: a future or another task.
    pub waiter: Option<Addr>,
    /// The frames of its coroutines while it is suspended, innermost first; none while it runs.
    pub frames: Vec<Framed>,
    /// The call of asyncio's that it is in.
    pub call: Option<Call>,
    /// The `asyncio.Lock` that it is about to take and that is locked.
    pub wants: Option<Addr>,
    /// Those that have not ended of the children of the `asyncio.gather` or the `asyncio.TaskGroup` it waits for, or what it shields.
    pub gathers: Vec<Addr>,
    /// The `concurrent.futures.Future` it waits for: work of an executor.
    pub work: Option<Addr>,
    /// Those of the children that are such work, with it.
    pub gathered_work: Vec<(Addr, Addr)>,
    /// What it waits for by `asyncio.wait_for`, up to 3.11 a task of its own, or by `asyncio.wait`: locals of these.
    pub bounds: Vec<Addr>,
}

/// The event loop that these frames run.
pub(super) fn loop_of(objects: &Objects<'_>, thread: usize, frames: &[Framed]) -> Option<RunningLoop> {
    let runs = |f: &Framed| {
        f.is("base_events.py", "_run_once")
            && f.code.as_ref().is_some_and(|c| c.file.ends_with("asyncio/base_events.py"))
    };
    let at = frames.iter().position(runs)?;
    let inner = at.checked_sub(1).and_then(|i| frames.get(i));
    let this = frames.get(at)?.first_argument(objects)?;
    let selects = inner.is_some_and(|f| f.is("selectors.py", "select"));
    Some(RunningLoop {
        thread,
        at: this,
        kind: LoopKind::Asyncio,
        in_callback: inner.is_some_and(|f| f.is("events.py", "_run")),
        exhausted: selects && has_nothing_to_do(objects, this),
    })
}

fn has_nothing_to_do(objects: &Objects<'_>, event_loop: Addr) -> bool {
    let size = |name: &str, kind: &str| {
        let container = objects.attribute(event_loop, name).filter(|c| objects.is(*c, kind))?;
        objects.size(container)
    };
    let selector = objects.attribute(event_loop, "_selector");
    let watched = selector.and_then(|s| objects.dict(objects.attribute(s, "_fd_to_key")?).ok()).map(|d| d.len());
    size("_ready", "collections.deque") == Some(0) && size("_scheduled", "list") == Some(0) && watched == Some(1)
}

/// The tasks of all interpreters that have not ended, and whether there are no more of them. `busy` are the frames that
/// threads run.
pub(super) fn read_tasks(objects: &Objects<'_>, census: &Census, busy: &HashSet<Addr>) -> (Vec<Task>, bool) {
    let mut addrs: Vec<Addr> = Vec::new();
    for interpreter in &census.interpreters {
        if let (Some(node), Some(head)) = (objects.o.asyncio.task_node, objects.o.asyncio.thread_tasks) {
            addrs.extend(listed_tasks(objects, interpreter, node, head));
        }
        addrs.extend(weak_tasks(objects, interpreter));
    }
    addrs.sort_unstable();
    addrs.dedup();
    let complete = addrs.len() < MAX_TASKS;
    addrs.truncate(MAX_TASKS);
    objects.memory.expect(&addrs.iter().map(|a| (*a, 192)).collect::<Vec<_>>());
    let mut codes = census.codes.borrow_mut();
    (addrs.into_iter().filter_map(|a| read_task(objects, &mut codes, busy, a)).collect(), complete)
}

/// `asyncio.tasks._scheduled_tasks`, before 3.12 `_all_tasks`, a `WeakSet`. Since 3.14 only those of asyncio's Python half.
fn weak_tasks(objects: &Objects<'_>, interpreter: &Interpreter) -> Vec<Addr> {
    let read = || {
        let module = find_module(objects, interpreter.modules, "asyncio.tasks")?;
        let dict = objects.addr(module, objects.o.module_dict).ok()?;
        let set = find_item(objects, dict, "_scheduled_tasks").or_else(|| find_item(objects, dict, "_all_tasks"))?;
        objects.attribute(set, "data").filter(|d| objects.is(*d, "set"))
    };
    let references: Vec<Addr> = read().map(|s| objects.set(s)).unwrap_or_default();
    objects.memory.expect(&references.iter().take(MAX_TASKS).map(|r| (*r, 64)).collect::<Vec<_>>());
    let live = references.into_iter().filter(|r| objects.is_weak_reference(*r));
    live.filter_map(|r| objects.weak_target(r)).take(MAX_TASKS).collect()
}

/// Since 3.14: the lists of the threads and of the interpreter.
fn listed_tasks(objects: &Objects<'_>, interpreter: &Interpreter, node: u64, head: u64) -> Vec<Addr> {
    let threads = interpreter.threads.iter().filter_map(|t| t.addr.checked_add(head));
    let own = objects.o.asyncio.interpreter_tasks.and_then(|f| interpreter.addr.checked_add(f));
    let mut out = Vec::new();
    for head in threads.chain(own) {
        // a list of nodes that runs round to its head; one of no tasks points at itself
        let Ok(first) = objects.addr(head, 0) else { continue };
        if first == head {
            continue;
        }
        let (nodes, _) = walk(first, MAX_TASKS, |at| {
            let next = objects.addr(at, 0)?;
            Ok((next != head).then_some(next))
        });
        out.extend(nodes.into_iter().filter_map(|n| n.0.checked_sub(node).map(Addr)));
    }
    out
}

fn read_task(objects: &Objects<'_>, codes: &mut Codes, busy: &HashSet<Addr>, at: Addr) -> Option<Task> {
    let task = objects.pending_task(at)?;
    let waiter = task.waiter;
    let frames = task.coroutine.map(|c| coroutine_frames(objects, codes, busy, c)).unwrap_or_default();
    let call = Call::of(objects, &frames);
    // the innermost frame: of `async with condition` it is the one of the condition's lock
    let takes = frames.first().filter(|f| is_asyncios(f) && f.is("locks.py", "acquire"));
    let lock = takes.and_then(|f| f.first_argument(objects)).filter(|l| objects.is(*l, "Lock"));
    let is_true = |v: Addr| objects.is(v, "bool") && objects.int(v) == Ok(1);
    let wants = lock.filter(|l| objects.attribute(*l, "_locked").is_some_and(is_true));
    let mut gathers = waiter.map(|w| gathered(objects, w, &frames)).unwrap_or_default();
    // beyond these nothing is known: the null stands for them
    if gathers.len() > MAX_GATHERED {
        gathers.truncate(MAX_GATHERED);
        gathers.push(Addr::NULL);
    }
    let gathered_work: Vec<(Addr, Addr)> = gathers.iter().filter_map(|g| Some((*g, work_of(objects, *g)?))).collect();
    gathers.retain(|g| objects.may_be_pending(*g));
    let work = waiter.and_then(|w| work_of(objects, w));
    let waits =
        frames.iter().filter(|f| is_asyncios(f)).filter(|f| f.is("tasks.py", "wait_for") || f.is("tasks.py", "wait"));
    let bounds =
        waits.filter_map(|f| Some(objects.locals(&f.frame, f.code.as_ref()?))).flatten().map(|(_, v)| v).collect();
    Some(Task {
        at,
        name: task.name.unwrap_or_else(|| format!("Task at {at}")),
        event_loop: task.event_loop,
        waiter,
        call,
        wants,
        gathers,
        work,
        gathered_work,
        bounds,
        frames,
    })
}

/// The tasks and futures that must all end before `waiter` does: those of an `asyncio.gather`, of an `asyncio.TaskGroup` whose
/// block has ended, the one that `asyncio.shield` shields.
fn gathered(objects: &Objects<'_>, waiter: Addr, frames: &[Framed]) -> Vec<Addr> {
    if objects.is(waiter, "_GatheringFuture") {
        return objects.attribute(waiter, "_children").and_then(|c| objects.list(c).ok()).unwrap_or_default();
    }
    let ends = |f: &&Framed| is_asyncios(f) && (f.is("taskgroups.py", "__aexit__") || f.is("taskgroups.py", "_aexit"));
    if let Some(group) = frames.first().filter(ends).and_then(|f| f.first_argument(objects)) {
        let tasks = objects.attribute(group, "_tasks").filter(|t| objects.is(*t, "set"));
        return tasks.map(|t| objects.set(t)).unwrap_or_default();
    }
    // CPython `Lib/asyncio/tasks.py`, `shield`: the outer future's callback keeps the inner one
    let shields = |f: &Addr| objects.function_name(*f).is_some_and(|n| n == "_outer_done_callback");
    let callback = objects.callbacks(waiter).into_iter().find(shields);
    let kept = callback.map(|c| objects.closure(c)).unwrap_or_default();
    kept.into_iter().filter(|k| *k != waiter && objects.loop_of_future(*k).is_some()).take(1).collect()
}

/// The `concurrent.futures.Future` whose result a future of asyncio takes over (CPython `Lib/asyncio/futures.py`,
/// `_chain_future`): its callback keeps it.
fn work_of(objects: &Objects<'_>, waiter: Addr) -> Option<Addr> {
    let checks = |f: &Addr| objects.function_name(*f).is_some_and(|n| n == "_call_check_cancel");
    let callback = objects.callbacks(waiter).into_iter().find(checks)?;
    let is_work = |k: &Addr| objects.is_kind_of(*k, "Future") && objects.attribute(*k, "_condition").is_some();
    objects.closure(callback).into_iter().find(is_work)
}

/// The frames of a suspended coroutine and of those it awaits, innermost first. None where a thread runs it.
fn coroutine_frames(objects: &Objects<'_>, codes: &mut Codes, busy: &HashSet<Addr>, coroutine: Addr) -> Vec<Framed> {
    let mut out: Vec<Framed> = Vec::new();
    let mut here = Some(coroutine);
    while let Some(at) = here.take() {
        if out.len() >= MAX_CHAIN || !is_coroutine(objects, at) {
            break;
        }
        let Some(frame_at) = suspended_frame(objects, at) else { break };
        if busy.contains(&frame_at) || out.iter().any(|f| f.frame.addr == frame_at) {
            return if out.is_empty() { out } else { Vec::new() };
        }
        let Ok((frame, _)) = read_frame(objects, frame_at) else { break };
        let Some(code) = codes.load_one(objects, frame.code) else { break };
        let top = objects.top_of_stack(&frame, &code, MAX_TOP);
        here = top.into_iter().find_map(|o| awaited(objects, o)).flatten();
        let framed = Framed { frame, code: Some(code) };
        // the future of asyncio's Python half that is awaited: it is no more than that of the C half, which has no frame
        if here.is_none() && is_future_awaited(&framed) {
            break;
        }
        out.push(framed);
    }
    out.reverse();
    out
}

/// `Future.__await__` of asyncio's Python half.
fn is_future_awaited(framed: &Framed) -> bool {
    framed.code.as_ref().is_some_and(|c| c.name == "__await__" && c.file.ends_with("/asyncio/futures.py"))
}

/// What a suspended frame awaits, from an item of its stack: `None` where the item is none of those, `Some(None)` where it is
/// one without a frame of its own.
fn awaited(objects: &Objects<'_>, item: Addr) -> Option<Option<Addr>> {
    let first_field = || objects.addr(item, objects.o.ob_type + 8).ok().filter(|a| !a.is_null());
    match objects.type_of(item)?.name.as_str() {
        "coroutine" | "generator" => Some(Some(item)),
        // around an asynchronous generator, or a coroutine: it stands in their first field
        "async_generator_asend" | "async_generator_athrow" | "coroutine_wrapper" | "anext_awaitable" => {
            Some(first_field())
        }
        "_asyncio.FutureIter" | "_asyncio.Future" | "_asyncio.Task" => Some(None),
        _ => None,
    }
}

fn is_coroutine(objects: &Objects<'_>, object: Addr) -> bool {
    ["coroutine", "generator", "async_generator"].iter().any(|t| objects.is(object, t))
}

/// Where the frame of a generator or coroutine lies that is suspended.
pub(super) fn suspended_frame(objects: &Objects<'_>, generator: Addr) -> Option<Addr> {
    let o = objects.o;
    match (o.gen_iframe, o.gen_frame) {
        (Some(embedded), _) => {
            let state = objects.byte(generator, o.gen_state?).ok()?;
            o.gen_suspended.contains(&state).then(|| generator.checked_add(embedded)).flatten()
        }
        (None, Some(pointer)) => objects.addr(generator, pointer).ok().filter(|a| !a.is_null()),
        (None, None) => None,
    }
}

/// A future that the loop of a task completes when the task ends, and the task or coroutine.
#[derive(Clone, Debug)]
pub(super) struct Chained {
    /// The `concurrent.futures.Future`.
    pub future: Addr,
    /// The loop that completes it.
    pub event_loop: Addr,
    /// The task, or the coroutine it will be made of.
    pub source: Addr,
    /// What the coroutine is called, where the task does not exist yet.
    pub unborn: Option<String>,
    /// How that is known.
    pub how: String,
}

/// The future this thread asks for the result of, by its frames: `Future.result` or `Future.exception`.
pub(super) fn awaited_future(objects: &Objects<'_>, frames: &[Framed]) -> Option<Addr> {
    let asks = |f: &&Framed| f.is("_base.py", "result") || f.is("_base.py", "exception");
    let this = frames.iter().take(4).find(asks)?.first_argument(objects)?;
    objects.is_kind_of(this, "Future").then_some(this)
}

/// What completes `future`, if it was made by `asyncio.run_coroutine_threadsafe` or chained like those.
pub(super) fn chained(objects: &Objects<'_>, loops: &[RunningLoop], future: Addr) -> Option<Chained> {
    by_callbacks(objects, future).or_else(|| loops.iter().find_map(|l| scheduled(objects, *l, future)))
}

/// Chained already: its callback keeps the task in its closure (CPython `Lib/asyncio/futures.py`, `_chain_future`).
fn by_callbacks(objects: &Objects<'_>, future: Addr) -> Option<Chained> {
    let callbacks = objects.list(objects.attribute(future, "_done_callbacks")?).ok()?;
    let checks = |f: &Addr| objects.function_name(*f).is_some_and(|n| n == "_call_check_cancel");
    callbacks.into_iter().take(16).filter(checks).find_map(|callback| {
        objects.closure(callback).into_iter().find_map(|source| {
            let event_loop = objects.loop_of_future(source)?;
            let how = format!(
                "the future at {future} is chained to the task at {source}: its callback _call_check_cancel keeps it, and the \
                 task's loop is the one at {event_loop}"
            );
            Some(Chained { future, event_loop, source, unborn: None, how })
        })
    })
}

/// Not begun: the callback that makes the task still waits in the loop (`Lib/asyncio/tasks.py`,
/// `run_coroutine_threadsafe`).
fn scheduled(objects: &Objects<'_>, running: RunningLoop, future: Addr) -> Option<Chained> {
    let ready = objects.attribute(running.at, "_ready").filter(|d| objects.is(*d, "collections.deque"))?;
    let handles = objects.deque(ready, MAX_READY);
    objects.memory.expect(&handles.iter().map(|h| (*h, 128)).collect::<Vec<_>>());
    handles.into_iter().find_map(|handle| {
        let size = objects.type_of(handle)?.basicsize.min(MAX_HANDLE);
        let bytes = objects.memory.read_vec(handle, usize::try_from(size).ok()?).ok()?;
        let mut words = super::objects::words_of(&bytes).skip(2).map(Addr);
        let callback = words.find(|w| objects.function_name(*w).is_some_and(|n| n == "callback"))?;
        let cells = objects.closure(callback);
        let source = cells.contains(&future).then(|| cells.iter().copied().find(|c| is_coroutine(objects, *c)))??;
        let how = format!(
            "the loop at {} has yet to run the callback that makes a task of the coroutine at {source} for the future at \
             {future}: it lies in the loop's _ready",
            running.at
        );
        let unborn = coroutine_name(objects, source).unwrap_or_else(|| "?".to_owned());
        Some(Chained { future, event_loop: running.at, source, unborn: Some(unborn), how })
    })
}

/// The qualified name of a coroutine, or the bare one.
fn coroutine_name(objects: &Objects<'_>, coroutine: Addr) -> Option<String> {
    let frame = match (objects.o.gen_iframe, objects.o.gen_frame) {
        (Some(embedded), _) => coroutine.checked_add(embedded)?,
        (None, Some(pointer)) => objects.addr(coroutine, pointer).ok().filter(|a| !a.is_null())?,
        (None, None) => return None,
    };
    let (frame, _) = read_frame(objects, frame).ok()?;
    let mut codes = Codes::default();
    codes.load_one(objects, frame.code).map(|c| c.function.clone())
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;
    use crate::memory::WalkEnd;

    const HEAD: u64 = 0x1000;
    const NODE: u64 = 152;
    const TASKS: u64 = 880;

    fn interpreter() -> Interpreter {
        let thread = |addr| super::super::threads::PyThread {
            state: None,
            addr: Addr(addr),
            pthread: 1,
            native: None,
            frame: Addr::NULL,
            holds_gil: None,
            bound_gilstate: None,
        };
        Interpreter {
            addr: Addr(0x10_0000),
            id: 0,
            gil: None,
            own_gil: false,
            modules: Addr::NULL,
            threads: vec![thread(HEAD)],
            end: WalkEnd::Complete,
        }
    }

    #[test]
    fn the_list_of_a_threads_tasks_runs_round() {
        let o = Offsets::choose((14, None), false, None).unwrap();
        let mut m = Fake::new();
        let (a, b) = (0x20_0000, 0x20_1000);
        m.put_u64(Addr(HEAD + TASKS), a + NODE).put_u64(Addr(a + NODE), b + NODE).put_u64(Addr(b + NODE), HEAD + TASKS);
        let objects = Objects::new(&m, &o);
        assert_eq!(listed_tasks(&objects, &interpreter(), NODE, TASKS), [Addr(a), Addr(b)]);
        // no tasks: the head points at itself
        m.put_u64(Addr(HEAD + TASKS), HEAD + TASKS);
        assert!(listed_tasks(&Objects::new(&m, &o), &interpreter(), NODE, TASKS).is_empty());
        // a list that runs round past its head, and one that breaks off
        m.put_u64(Addr(HEAD + TASKS), a + NODE).put_u64(Addr(b + NODE), a + NODE);
        assert_eq!(listed_tasks(&Objects::new(&m, &o), &interpreter(), NODE, TASKS).len(), 2);
        m.put_u64(Addr(b + NODE), 0x66_0000);
        assert_eq!(listed_tasks(&Objects::new(&m, &o), &interpreter(), NODE, TASKS).len(), 3);
    }

    #[test]
    fn a_task_that_is_none_is_none() {
        let o = Offsets::choose((11, None), false, None).unwrap();
        let mut m = Fake::new();
        m.put(Addr(0x100), &[0; 1024]).put(Addr(0x800), &[0; 64]).put(Addr(0x800), b"dict");
        m.put_u64(Addr(0x100 + 24), 0x800).put(Addr(0x1000), &[0; 256]).put_u64(Addr(0x1008), 0x100);
        let objects = Objects::new(&m, &o);
        let mut codes = Codes::default();
        assert!(read_task(&objects, &mut codes, &HashSet::new(), Addr(0x1000)).is_none());
        // of the right type, but it has ended (its state is 2)
        m.put(Addr(0x800), b"_asyncio.Task").put_u32(Addr(0x1000 + 88), 2);
        assert!(read_task(&Objects::new(&m, &o), &mut codes, &HashSet::new(), Addr(0x1000)).is_none());
        m.put_u32(Addr(0x1000 + 88), 0).put_u64(Addr(0x1010), 0x7000);
        m.put(Addr(0x7000), &[0; 64]).put_u64(Addr(0x7008), 0x100);
        let task = read_task(&Objects::new(&m, &o), &mut codes, &HashSet::new(), Addr(0x1000)).unwrap();
        assert_eq!((task.event_loop, task.waiter, task.frames.len()), (Addr(0x7000), None, 0));
    }
}
