//! Event loops as facts: the future of a task is held by the thread that runs the task's loop, and so is a lock that a
//! suspended task took.

use super::event_loops::Held;
use super::facts::Telling;
use super::place::Framed;
use super::tasks::{RunningLoop, Task};
use crate::facts::{
    self, Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Wakers,
};
use crate::units::Addr;

/// Tasks told as resources at most.
const MAX_TOLD: usize = 256;

impl Telling<'_> {
    /// Tells of tasks, and who completes the futures and holds the locks that threads wait for.
    pub(super) fn tell_work(&self, facts: &mut Facts) {
        self.tell_tasks(facts);
        self.tell_suspended(facts);
        self.tell_chained(facts);
        self.tell_rings(facts);
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
            let own = task.frames.iter().find(|f| f.code.as_ref().is_some_and(|c| !c.file.contains("/asyncio/")));
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
        let code = task.frames.first()?.code.as_ref()?;
        let (this, class) = task.method_of.clone().map_or((None, String::new()), |(at, class)| (Some(at), class));
        let asyncio = code.file.contains("/asyncio/");
        match (code.file_name(), code.name.as_str()) {
            ("locks.py", "acquire" | "wait") | ("queues.py", "get" | "put" | "join") if asyncio => {
                let holder = work.suspended.iter().find(|s| matches!(s.held, Held::Other(m, _) if Some(m) == this));
                let holder =
                    holder.and_then(|s| work.tasks.get(s.task)).map(|t| format!(", which task “{}” holds", t.name));
                let at = this.map(|t| format!(" at {t}")).unwrap_or_default();
                Some(format!("asyncio.{class}{at}{}", holder.unwrap_or_default()))
            }
            ("tasks.py", "sleep") if asyncio => Some("asyncio.sleep".to_owned()),
            _ if !task.gathers.is_empty() => Some(format!("asyncio.gather of {}", task.gathers.len())),
            _ => {
                let waiter = task.waiter?;
                let other = work.tasks.iter().find(|t| t.at == waiter);
                Some(other.map_or_else(|| format!("a future at {waiter}"), |t| format!("task “{}”", t.name)))
            }
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
                    "thread {tid} runs that loop: _run_once is on its stack, with a callback it has not returned from"
                ),
                false => format!("thread {tid} runs that loop: _run_once is on its stack"),
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
