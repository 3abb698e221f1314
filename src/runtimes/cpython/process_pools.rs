//! `multiprocessing.Pool`: results that never come, because the worker that had the task is gone.
//!
//! The pool replaces a worker that ends, but keeps no note of the task it had (CPython `Lib/multiprocessing/pool.py`, 3.8 to
//! 3.15). A result that is waited for while no task is queued, all workers wait for one and nothing is on its way is lost.

use super::facts::Telling;
use super::objects::Objects;
use super::place::{Framed, PyStack};
use super::waits::{PyWait, Wanted};
use crate::facts::{Facts, LostResult, ManagedThread, ResourceId, ResourceKind};
use crate::runtimes::cpython::code::is_installed;
use crate::snapshot::Snapshot;
use crate::units::{Addr, ProcessIx, ThreadRef};
use std::collections::BTreeMap;

/// Workers of one pool looked at.
const MAX_WORKERS: usize = 1024;

/// One pool whose threads run here.
pub(super) struct ProcessPool {
    /// Its dictionary of unfinished results.
    cache: Addr,
    queue: Addr,
    workers: Vec<Worker>,
}

/// A worker as its pool keeps it.
#[derive(Clone, Copy)]
struct Worker {
    pid: i32,
    /// Counted from 1 over all workers the pool ever started.
    number: u64,
}

fn is(framed: &Framed, function: &str) -> bool {
    framed
        .code
        .as_ref()
        .is_some_and(|c| c.name == function && c.file.ends_with("/multiprocessing/pool.py") && !is_installed(&c.file))
}

/// Finds the pools by the thread that looks after their workers.
pub(super) fn find(objects: &Objects<'_>, stacks: &BTreeMap<usize, PyStack<'_>>) -> Vec<ProcessPool> {
    let pool = |stack: &PyStack<'_>| {
        let framed = stack.frames.iter().find(|f| is(f, "_handle_workers"))?;
        let locals = objects.locals(&framed.frame, framed.code.as_ref()?);
        let local = |name: &str| locals.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        // a worker that has done so many tasks ends by itself, and is replaced
        let limited = local("maxtasksperchild").is_none_or(|n| !objects.is(n, "NoneType"));
        let queue = local("taskqueue").filter(|q| objects.is(*q, "_queue.SimpleQueue"))?;
        let processes = objects.list(local("pool")?).ok().filter(|p| p.len() <= MAX_WORKERS && !limited)?;
        let workers: Option<Vec<Worker>> = processes.into_iter().map(|p| worker(objects, p)).collect();
        Some(ProcessPool { cache: local("cache")?, queue, workers: workers? })
    };
    stacks.values().filter_map(pool).collect()
}

fn worker(objects: &Objects<'_>, process: Addr) -> Option<Worker> {
    let popen = objects.attribute(process, "_popen")?;
    let pid = objects.attribute(popen, "pid").and_then(|p| objects.int(p).ok())?;
    let identity = objects.attribute(process, "_identity").and_then(|i| objects.tuple(i).ok())?;
    Some(Worker { pid: i32::try_from(pid).ok()?, number: objects.int(*identity.last()?).ok()? })
}

impl Telling<'_> {
    /// Results of pools that seem to be lost, as far as this process tells: no task is queued, and a worker was replaced.
    pub(super) fn tell_process_pools(&self, facts: &mut Facts) {
        for pool in &self.scene.process_pools {
            let ended =
                pool.workers.iter().map(|w| w.number).max().unwrap_or(0).saturating_sub(pool.workers.len() as u64);
            let queued = self.objects.simple_queue(pool.queue).map_or(usize::MAX, |q| q.len());
            if ended == 0 || queued > 0 {
                continue;
            }
            let Some(handlers) = self.handlers_of(pool) else { continue };
            for (index, wait) in &self.scene.waits {
                if let Some(id) = self.result_of(pool, *index, wait) {
                    facts.lost_results.insert(
                        id,
                        LostResult {
                            handlers: handlers.clone(),
                            workers: pool.workers.iter().map(|w| w.pid).collect(),
                            ended,
                            waits: Vec::new(),
                        },
                    );
                }
            }
        }
    }

    /// The threads that hand out the tasks and take in the results of the only pool here, if the first waits for a task.
    fn handlers_of(&self, pool: &ProcessPool) -> Option<Vec<ThreadRef>> {
        let threads = |function: &str| {
            let runs = |s: &PyStack<'_>| s.frames.iter().any(|f| is(f, function));
            self.scene.stacks.iter().filter(|(_, s)| runs(s)).map(|(i, _)| *i).collect::<Vec<_>>()
        };
        let (tasks, results) = (threads("_handle_tasks"), threads("_handle_results"));
        let waits = |i: &usize| {
            let wanted = self.scene.waits.get(i).map(|w| &w.wanted);
            matches!(wanted, Some(Wanted::Signal(s)) if s.kind == ResourceKind::PythonQueue && s.object == pool.queue)
        };
        // of several pools in one process nothing tells whose handler is whose
        (tasks.len() == 1 && results.len() == 1 && tasks.iter().all(waits))
            .then(|| tasks.into_iter().chain(results).map(|i| self.thread(i)).collect())
    }

    /// The event a thread waits for that a result of the pool sets.
    fn result_of(&self, pool: &ProcessPool, index: usize, wait: &PyWait) -> Option<ResourceId> {
        let Wanted::Signal(signal) = &wait.wanted else { return None };
        let stack = self.scene.stacks.get(&index)?;
        let framed = stack.frames.iter().find(|f| is(f, "wait"))?;
        let result = framed.first_argument(self.objects)?;
        let attribute = |name| self.objects.attribute(result, name);
        (attribute("_cache") == Some(pool.cache) && attribute("_event") == Some(signal.object))
            .then_some(ResourceId::At(self.view.process, signal.object))
    }
}

/// Keeps the lost results of which all workers are part of the run and wait for a task, too.
pub fn join(snapshots: &[Snapshot], facts: &mut Facts) {
    let lost = std::mem::take(&mut facts.lost_results);
    for (id, mut result) in lost {
        let workers: Option<Vec<ThreadRef>> =
            result.workers.iter().map(|pid| idle_worker(snapshots, facts, *pid)).collect();
        let Some(workers) = workers else { continue };
        result.waits = result.handlers.iter().copied().chain(workers).collect();
        // data in a pipe, or a semaphore that was posted: something is on its way
        let asleep = |t: &ThreadRef| !facts.woken.contains(t) && facts.waits.iter().any(|w| w.thread == *t);
        if result.waits.iter().all(asleep) {
            facts.lost_results.insert(id, result);
        }
    }
}

/// The main thread of the worker `pid`, if it waits for a task.
fn idle_worker(snapshots: &[Snapshot], facts: &Facts, pid: i32) -> Option<ThreadRef> {
    // the number is that of the parent's namespace: the leader's own, seen from there
    let index = snapshots.iter().position(|s| s.process.pid.0 == pid)?;
    let leader = snapshots.get(index)?.threads.iter().position(|t| t.host_tid.0 == pid)?;
    let thread = ThreadRef { process: ProcessIx(u32::try_from(index).ok()?), thread: u32::try_from(leader).ok()? };
    let (_, managed) = facts.managed.iter().find(|(t, _)| *t == thread)?;
    is_between_tasks(managed).then_some(thread)
}

/// Whether the frame that `worker` called is `SimpleQueue.get`.
fn is_between_tasks(managed: &ManagedThread) -> bool {
    let of = |file: &str, end: &str| file.ends_with(end) && !is_installed(file);
    let frames = &managed.frames;
    let worker = frames
        .iter()
        .position(|f| of(&f.file, "/multiprocessing/pool.py") && f.function.rsplit('.').next() == Some("worker"));
    let called = worker.and_then(|i| frames.get(i.checked_sub(1)?));
    called.is_some_and(|f| of(&f.file, "/multiprocessing/queues.py") && f.function.rsplit('.').next() == Some("get"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ManagedFrame;

    #[test]
    fn a_worker_in_a_task_is_not_between_tasks() {
        let frame = |function: &str, file: &str| ManagedFrame {
            function: function.to_owned(),
            file: format!("/usr/lib/python3.11/{file}"),
            line: None,
            native: None,
            entered: None,
            locals: None,
        };
        let stack = |inner: &[ManagedFrame]| {
            let mut frames = inner.to_vec();
            frames.push(frame("worker", "multiprocessing/pool.py"));
            frames.push(frame("BaseProcess.run", "multiprocessing/process.py"));
            is_between_tasks(&ManagedThread { frames, ..ManagedThread::default() })
        };
        let get = frame("SimpleQueue.get", "multiprocessing/queues.py");
        assert!(stack(std::slice::from_ref(&get)));
        assert!(stack(&[frame("Connection._recv", "multiprocessing/connection.py"), get.clone()]));
        assert!(!stack(&[frame("mapstar", "multiprocessing/pool.py")]));
        // a task that reads a queue of its own
        assert!(!stack(&[get, frame("mapstar", "multiprocessing/pool.py")]));
        assert!(!stack(&[]));
    }
}
