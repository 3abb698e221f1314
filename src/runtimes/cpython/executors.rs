//! `concurrent.futures` thread pools: their workers, what each works on, what is queued. They tell who will complete a future.

use super::objects::Objects;
use super::place::PyStack;
use crate::units::Addr;
use std::collections::BTreeMap;

/// Queued work looked at.
const MAX_QUEUED: usize = 4096;

/// One `ThreadPoolExecutor`.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// The executor; where its workers' reference to it is dead, the queue they share.
    pub addr: Addr,
    queue: Addr,
    /// Its `thread_name_prefix`.
    pub prefix: Option<String>,
    pub workers: Vec<Worker>,
    /// The futures of its queued work.
    pub queued: Vec<Addr>,
    /// How many workers it may have; `None` where it takes no more work.
    limit: Option<u64>,
}

/// A thread of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worker {
    /// Index into the snapshot's threads.
    pub thread: usize,
    /// The task it is in: its future, and the index of the task's own outermost frame.
    pub task: Option<(Addr, usize)>,
}

impl Pool {
    /// Whether it has all the workers it may have and each is in a task, so that nobody can begin another.
    pub(super) fn is_exhausted(&self) -> bool {
        let full = self.limit.is_none_or(|limit| self.workers.len() as u64 >= limit);
        full && !self.workers.is_empty() && self.workers.iter().all(|w| w.task.is_some())
    }
}

/// Finds the pools whose workers run in these stacks.
pub(super) fn find_pools(objects: &Objects<'_>, stacks: &BTreeMap<usize, PyStack<'_>>) -> Vec<Pool> {
    let mut pools: Vec<Pool> = Vec::new();
    for (thread, stack) in stacks {
        let Some(at) = stack.frames.iter().rposition(|f| f.is("thread.py", "_worker")) else { continue };
        let Some(framed) = stack.frames.get(at) else { continue };
        let Some(code) = framed.code.as_ref().filter(|c| c.file.ends_with("concurrent/futures/thread.py")) else {
            continue;
        };
        let locals = objects.locals(&framed.frame, code);
        let local = |name: &str| locals.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        let Some(queue) = local("work_queue").filter(|q| objects.is(*q, "_queue.SimpleQueue")) else { continue };
        // the frames inside `_worker`, outermost first: `_WorkItem.run`, maybe its context's `run`, then the task
        let inner = stack.frames.get(..at).unwrap_or_default();
        let runs = |i: usize| {
            let framed = inner.get(i)?;
            let item = framed.first_argument(objects).filter(|_| framed.is("thread.py", "run"))?;
            objects.is(item, "_WorkItem").then(|| objects.attribute(item, "future")).flatten()
        };
        let task = at.checked_sub(1).and_then(|i| {
            let future = runs(i)?;
            let glue = inner.iter().take(i).rev().take_while(|f| f.is("thread.py", "run")).count();
            Some((future, i.saturating_sub(1 + glue)))
        });
        let worker = Worker { thread: *thread, task };
        match pools.iter_mut().find(|p| p.queue == queue) {
            Some(pool) => pool.workers.push(worker),
            None => {
                let executor = local("executor_reference")
                    .and_then(|r| objects.addr(r, objects.o.weakref_object?).ok())
                    .filter(|e| objects.is(*e, "ThreadPoolExecutor"));
                let prefix = executor.and_then(|e| objects.attribute(e, "_thread_name_prefix"));
                pools.push(Pool {
                    addr: executor.unwrap_or(queue),
                    queue,
                    prefix: prefix.and_then(|p| objects.string(p).ok()).filter(|p| !p.is_empty()),
                    workers: vec![worker],
                    queued: queued_futures(objects, queue),
                    limit: executor.map(|e| {
                        objects.attribute(e, "_max_workers").and_then(|n| objects.int(n).ok()).unwrap_or(u64::MAX)
                    }),
                });
            }
        }
    }
    pools
}

/// The futures of the work items in a `SimpleQueue`.
fn queued_futures(objects: &Objects<'_>, queue: Addr) -> Vec<Addr> {
    let items = objects.simple_queue(queue).unwrap_or_default();
    let future = |item: Addr| objects.is(item, "_WorkItem").then(|| objects.attribute(item, "future")).flatten();
    items.into_iter().take(MAX_QUEUED).filter_map(future).collect()
}
