//! Event loops as facts: the future of a task is held by the thread that runs the task's loop, and so is a lock that a
//! suspended task took.

use super::event_loops::{Held, Suspended};
use super::executors::{Pool, Worker};
use super::facts::Telling;
use super::place::Framed;
use super::tasks::{LoopKind, RunningLoop, Task};
use crate::facts::{
    self, Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Wakers,
};
use crate::units::Addr;

/// Tasks told as resources at most.
const MAX_TOLD: usize = 256;

impl Telling<'_> {
    /// Tells of tasks, and who completes the futures and holds the locks that threads wait for.
    pub(super) fn tell_work(&self, facts: &mut Facts) {
        self.tell_other_loops(facts);
        self.tell_tasks(facts);
        self.tell_suspended(facts);
        self.tell_chained(facts);
        self.tell_rings(facts);
    }

    /// Says which loops run of which little or nothing is known.
    fn tell_other_loops(&self, facts: &mut Facts) {
        for running in self.scene.event_loops.loops.iter().filter(|l| l.kind == LoopKind::Uvloop) {
            facts.notes.push(format!(
                "thread {} runs an event loop of uvloop, at {}: its tasks are read, its timers and descriptors are not",
                self.tid(running.thread),
                running.at
            ));
        }
        let of_trio = |f: &Framed| {
            let code = f.code.as_ref().filter(|c| c.file.ends_with("trio/_core/_run.py"));
            code.is_some_and(|c| c.name == "run" || c.name == "unrolled_run")
        };
        for (thread, _) in self.scene.stacks.iter().filter(|(_, s)| s.frames.iter().any(of_trio)) {
            facts.notes.push(format!(
                "thread {} runs an event loop of trio, by its stack: tasks of trio are not decoded",
                self.tid(*thread)
            ));
        }
    }

    pub(super) fn at(&self, addr: Addr) -> ResourceId {
        ResourceId::At(self.view.process, addr)
    }

    /// The thread that runs a loop.
    pub(super) fn runner(&self, event_loop: Addr) -> Option<&RunningLoop> {
        self.scene.event_loops.loops.iter().find(|l| l.at == event_loop)
    }

    /// `fetch (client.py:12)`.
    pub(super) fn place(&self, framed: &Framed) -> Option<String> {
        let code = framed.code.as_ref()?;
        let line = code.line_of(self.objects, &framed.frame).map(|l| format!(":{l}")).unwrap_or_default();
        Some(format!("{} ({}{line})", code.function, code.file_name()))
    }

    /// Tells of every task: in the order of the work's tasks.
    fn tell_tasks(&self, facts: &mut Facts) {
        for (i, task) in self.scene.event_loops.tasks.iter().enumerate() {
            let own = task.frames.iter().find(|f| f.code.as_ref().is_some_and(|c| !c.is_of_asyncio()));
            let place = own.or(task.frames.first()).and_then(|f| self.place(f));
            let thread = self.runner(task.event_loop).map(|l| self.thread(l.thread));
            let awaits = self.awaits(task);
            if i < MAX_TOLD {
                let words = awaits.as_deref().map(|a| format!(", awaits {a}")).unwrap_or_default();
                let at = place.as_deref().map(|p| format!(" in {p}")).unwrap_or_default();
                facts.resources.push(Resource {
                    id: self.at(task.at),
                    kind: ResourceKind::PythonTask,
                    name: Some(format!("task “{}”{at}{words}", task.name)),
                    address: Some(task.at),
                    reentrancy: Reentrancy::Unknown,
                    wakers: Wakers::AnyThread,
                    idle: true,
                });
            }
            facts.tasks.push(facts::Task {
                id: self.at(task.at),
                name: task.name.clone(),
                thread,
                place,
                awaits,
                holds: Vec::new(),
                completes: Vec::new(),
            });
        }
    }

    /// What a task waits for, in words.
    fn awaits(&self, task: &Task) -> Option<String> {
        let work = &self.scene.event_loops;
        if let Some(future) = task.work {
            return Some(self.words_of_work(future));
        }
        let others = || match task.gathers.as_slice() {
            [one] => work.tasks.iter().find(|t| t.at == *one).map(|t| format!("task “{}”", t.name)),
            _ => None,
        };
        if let Some(call) = &task.call {
            let name = |at: Addr| work.names.get(&at).map(String::as_str);
            let holder = task.wants.and_then(|lock| {
                let holds = |s: &&Suspended| matches!(s.held, Held::Other(m, _) if m == lock);
                work.suspended.iter().find(holds).and_then(|s| work.tasks.get(s.task))
            });
            let holder = holder.map(|t| format!(", which task “{}” holds", t.name)).unwrap_or_default();
            return Some(format!("{}{holder}", call.words(call.object.and_then(name))));
        }
        let waiter = task.waiter?;
        if let Some(other) = work.tasks.iter().find(|t| t.at == waiter) {
            return Some(format!("task “{}”", other.name));
        }
        match task.gathers.len() {
            0 => Some(format!("a future at {waiter}")),
            1 if self.objects.is(waiter, "_GatheringFuture") => {
                Some(format!("asyncio.gather, of which {} is left", others().unwrap_or_else(|| "one".to_owned())))
            }
            1 => others().map(|o| format!("asyncio.shield of {o}")).or_else(|| Some(format!("a future at {waiter}"))),
            _ if task.gathers.contains(&Addr::NULL) => Some("asyncio.gather of many".to_owned()),
            n => Some(format!("asyncio.gather of {n}")),
        }
    }

    /// What an executor's work is called that a task waits for, and who does it.
    fn words_of_work(&self, future: Addr) -> String {
        for pool in &self.scene.pools {
            if let Some(worker) = pool.workers.iter().find(|w| w.task.is_some_and(|(f, _)| f == future)) {
                let function = self.function_of(worker).unwrap_or_else(|| "work".to_owned());
                return format!(
                    "{function}, which thread {} of {} runs",
                    self.tid(worker.thread),
                    self.name_of_pool(pool)
                );
            }
            if pool.queued.contains(&future) {
                return format!("work that is queued in {}", self.name_of_pool(pool));
            }
        }
        match self.scene.event_loops.chained.iter().find(|c| c.future == future).and_then(|c| self.runner(c.event_loop))
        {
            Some(other) => format!("a coroutine of the event loop that thread {} runs", self.tid(other.thread)),
            None => format!("a future of threads at {future}"),
        }
    }

    /// The function of Python's that a worker of an executor is in.
    fn function_of(&self, worker: &Worker) -> Option<String> {
        let (_, frame) = worker.task?;
        let framed = self.scene.stacks.get(&worker.thread)?.frames.get(frame)?;
        // work that is no function of Python's has no frame but that of the work item
        let code = framed.code.as_ref().filter(|_| !framed.is("thread.py", "run"))?;
        Some(code.function.clone())
    }

    /// What several pieces of work of executors are called together: `the result of check in executor "jobs"`.
    pub(super) fn name_of_work(&self, works: &[Addr]) -> String {
        let pools = &self.scene.pools;
        let has = |p: &&Pool, future: &Addr| {
            p.queued.contains(future) || p.workers.iter().any(|w| w.task.is_some_and(|(f, _)| f == *future))
        };
        let mut of: Vec<String> = works
            .iter()
            .map(|f| {
                pools.iter().find(|p| has(p, f)).map_or_else(|| "another loop".to_owned(), |p| self.name_of_pool(p))
            })
            .collect();
        of.sort();
        of.dedup();
        let function = match works {
            [one] => pools
                .iter()
                .flat_map(|p| &p.workers)
                .find(|w| w.task.is_some_and(|(f, _)| f == *one))
                .and_then(|w| self.function_of(w)),
            _ => None,
        };
        match (function, works.len()) {
            (Some(function), _) => format!("the result of {function} in {}", of.join(", ")),
            (None, 1) if of == ["another loop"] => "the result of a coroutine of another loop".to_owned(),
            (None, 1) => format!("the result of work in {}", of.join(", ")),
            (None, n) => format!("the results of {n} pieces of work in {}", of.join(", ")),
        }
    }

    /// Locks of threads that tasks hold while they are suspended: only the loop's thread can go on with those tasks.
    fn tell_suspended(&self, facts: &mut Facts) {
        let work = &self.scene.event_loops;
        for s in &work.suspended {
            let Held::Thread(lock) = &s.held else { continue };
            let Some(task) = work.tasks.get(s.task) else { continue };
            let Some(running) = self.runner(task.event_loop) else { continue };
            let id = self.at(lock.addr);
            // one that records its owner has said so; one that nobody waits for is of no interest
            let known = facts.holds.iter().any(|h| h.of == id) || !facts.waits.iter().any(|w| w.on == id);
            if known || lock.owner.is_some() || !lock.locked {
                continue;
            }
            let framed = task.frames.get(s.frame);
            let code = framed.and_then(|f| f.code.as_ref());
            let place = match (code, s.line) {
                (Some(code), Some(line)) => format!("{} at {}:{line}", code.function, code.file_name()),
                (Some(code), None) => code.function.clone(),
                (None, _) => "?".to_owned(),
            };
            let tid = self.tid(running.thread);
            facts.holds.push(Hold {
                holder: Holder::Thread(self.thread(running.thread)),
                of: id,
                mode: Mode::Exclusive,
                certainty: Certainty::Witnessed,
                taken_at: None,
                taken_at_managed: None,
                evidence: vec![Evidence::new(format!(
                    "task “{}” is suspended inside the `with` block of {place}: its frame's value stack keeps the lock's exit \
                     method; only thread {tid}, which runs its event loop, can resume it",
                    task.name
                ))],
            });
            if let Some(told) = facts.tasks.get_mut(s.task) {
                told.holds.push(id);
            }
        }
    }

    /// Lets `future` be held by the one thread that completes it. Nothing is done where nobody waits for it, or somebody
    /// holds it already.
    fn completes(&self, future: Addr, name: String, thread: usize, how: Vec<String>, facts: &mut Facts) -> bool {
        let id = self.at(future);
        let future = |r: &&mut Resource| r.id == id && r.kind == ResourceKind::PythonFuture;
        if facts.holds.iter().any(|h| h.of == id) {
            return false;
        }
        let Some(resource) = facts.resources.iter_mut().find(future) else { return false };
        resource.wakers = Wakers::Holders;
        resource.reentrancy = Reentrancy::Plain;
        resource.idle = false;
        resource.name = Some(name);
        for wait in facts.waits.iter_mut().filter(|w| w.on == id) {
            wait.mode = Mode::Exclusive;
        }
        facts.holds.push(Hold {
            holder: Holder::Thread(self.thread(thread)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Witnessed,
            taken_at: None,
            taken_at_managed: None,
            evidence: how.into_iter().map(Evidence::new).collect(),
        });
        true
    }

    /// Futures of coroutines handed to a loop by other threads, or by its own.
    fn tell_chained(&self, facts: &mut Facts) {
        for chained in &self.scene.event_loops.chained {
            let Some(running) = self.runner(chained.event_loop) else { continue };
            let tid = self.tid(running.thread);
            let mut how = vec![chained.how.clone()];
            how.push(match running.in_callback {
                true => format!(
                    "thread {tid} runs that loop: {}, with a callback it has not returned from",
                    running.kind.proof()
                ),
                false => format!("thread {tid} runs that loop: {}", running.kind.proof()),
            });
            let id = self.at(chained.source);
            let future = self.at(chained.future);
            let name = match (facts.tasks.iter().find(|t| t.id == id), &chained.unborn) {
                (Some(task), _) => format!("the future of task “{}”", task.name),
                (None, Some(coroutine)) => format!("the future of coroutine {coroutine}"),
                (None, None) => format!("the future of the task at {}", chained.source),
            };
            if !self.completes(chained.future, name, running.thread, how, facts) {
                continue;
            }
            match (facts.tasks.iter_mut().find(|t| t.id == id), &chained.unborn) {
                (Some(task), _) => task.completes.push(future),
                (None, name) => facts.tasks.push(facts::Task {
                    id,
                    name: match name {
                        Some(name) => name.clone(),
                        None => format!("at {}", chained.source),
                    },
                    thread: Some(self.thread(running.thread)),
                    place: None,
                    awaits: None,
                    holds: Vec::new(),
                    completes: vec![future],
                }),
            }
        }
    }
}
