//! Futures of thread pools as facts: a future that is being worked on is held by the worker; one that is queued waits for
//! any worker of its pool.

use super::executors::Pool;
use super::facts::Telling;
use super::waits::{PyWait, Wanted};
use crate::facts::{
    Certainty, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind, TakenAt, Wait,
    Wakers,
};
use crate::units::Addr;

impl Telling<'_> {
    /// The wait for a future of a pool that is known, with its resource and holds. `None` for other waits.
    pub(super) fn tell_future(
        &self,
        index: usize,
        wait: &PyWait,
        told: &mut Vec<ResourceId>,
        facts: &mut Facts,
    ) -> Option<Wait> {
        let Wanted::Signal(signal) = &wait.wanted else { return None };
        let object = (signal.kind == ResourceKind::PythonFuture).then_some(&signal.object)?;
        let pools = &self.scene.pools;
        let worked_on = pools.iter().find_map(|p| {
            let worker = p.workers.iter().find(|w| w.task.is_some_and(|(f, _)| f == *object))?;
            Some((p, worker.thread, worker.task?.1))
        });
        if let Some((pool, worker, frame)) = worked_on {
            let id = ResourceId::At(self.view.process, *object);
            if !told.contains(&id) {
                told.push(id);
                self.tell_worked_on(id, *object, pool, worker, frame, facts);
            }
            let mut wait = self.wait(index, wait, id);
            wait.mode = Mode::Exclusive;
            return Some(wait);
        }
        let pool = pools.iter().find(|p| p.is_exhausted() && p.queued.contains(object))?;
        let id = ResourceId::At(self.view.process, pool.addr);
        if !told.contains(&id) {
            told.push(id);
            self.tell_pool(id, pool, facts);
        }
        let mut wait = self.wait(index, wait, id);
        wait.mode = Mode::Any;
        wait.evidence.push(Evidence::new(format!(
            "the future at {object} is queued in {}, and each of its {} workers is in another task",
            self.name_of_pool(pool),
            pool.workers.len()
        )));
        Some(wait)
    }

    pub(super) fn name_of_pool(&self, pool: &Pool) -> String {
        match (&pool.prefix, self.scene.names.get(&pool.addr)) {
            (_, Some(name)) => format!("executor {name}"),
            (Some(prefix), None) => format!("executor \"{prefix}\""),
            (None, None) => format!("executor at {}", pool.addr),
        }
    }

    fn tell_worked_on(
        &self,
        id: ResourceId,
        future: Addr,
        pool: &Pool,
        worker: usize,
        frame: usize,
        facts: &mut Facts,
    ) {
        let task = self.scene.stacks.get(&worker).and_then(|s| s.frames.get(frame)).and_then(|f| f.code.as_ref());
        let function = task.map_or("a task", |c| c.function.as_str());
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::PythonFuture,
            name: Some(format!("the future of {function}")),
            address: Some(future),
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        });
        facts.holds.push(Hold {
            holder: Holder::Thread(self.thread(worker)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Witnessed,
            taken_at: None,
            taken_at_managed: u32::try_from(frame).ok().map(|frame| TakenAt { frame, line: None }),
            evidence: vec![Evidence::new(format!(
                "thread {} is a worker of {} and is in {function}, the work item of the future at {future}",
                self.tid(worker),
                self.name_of_pool(pool)
            ))],
        });
    }

    fn tell_pool(&self, id: ResourceId, pool: &Pool, facts: &mut Facts) {
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::WorkerPool,
            name: Some(format!(
                "{} ({} workers, {} tasks queued)",
                self.name_of_pool(pool),
                pool.workers.len(),
                pool.queued.len()
            )),
            address: Some(pool.addr),
            reentrancy: Reentrancy::Plain,
            wakers: Wakers::Holders,
            idle: false,
        });
        for worker in &pool.workers {
            let Some((future, frame)) = worker.task else { continue };
            facts.holds.push(Hold {
                holder: Holder::Thread(self.thread(worker.thread)),
                of: id,
                mode: Mode::Shared,
                certainty: Certainty::Witnessed,
                taken_at: None,
                taken_at_managed: u32::try_from(frame).ok().map(|frame| TakenAt { frame, line: None }),
                evidence: vec![Evidence::new(format!(
                    "thread {} is a worker of it and is in a task (its frame _WorkItem.run, future at {future})",
                    self.tid(worker.thread)
                ))],
            });
        }
    }
}
