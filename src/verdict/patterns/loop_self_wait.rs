//! `pool-self-wait` of event loops: the thread that should run a task waits for it itself, or for a lock it holds.

use super::{Scene, Shape, Story};
use crate::facts::{ResourceId, ResourceKind, Task};
use crate::graph::Step;
use crate::verdict::plain;
use crate::verdict::voice::capital;

/// Tells of a cycle that goes through an event loop.
pub(super) fn tell(scene: &Scene<'_>) -> Option<Story> {
    if let Some(story) = of_tasks(scene) {
        return Some(story);
    }
    let tasks = &scene.look.facts.tasks;
    let through = |of: fn(&Task) -> &[ResourceId]| {
        scene.steps().iter().find_map(|s| {
            let task = tasks.iter().find(|t| t.thread == Some(s.held_by) && of(t).contains(&s.waits_for))?;
            Some((*s, task))
        })
    };
    through(|t| &t.completes)
        .map(|(s, t)| of_future(scene, s, t))
        .or_else(|| through(|t| &t.holds).map(|(s, t)| of_lock(scene, s, t)))
}

/// Tasks that wait for each other, or for a lock whose holder has ended: the decoder's own words say how.
fn of_tasks(scene: &Scene<'_>) -> Option<Story> {
    let (id, thread) = match scene.shape {
        Shape::Cycle([step]) => (step.waits_for, step.thread),
        Shape::Orphan { resource, waiters, .. } => (resource, *waiters.first()?),
        _ => return None,
    };
    if scene.kind(id) != ResourceKind::PythonTask {
        return None;
    }
    let proofs = scene.look.graph.holders(id).iter().flat_map(|h| h.evidence.first());
    let words = proofs.map(|e| capital(&e.0).replacen("task", "Task", 1)).next()?;
    Some(Story {
        explanation: format!(
            "{words}. Nothing else is left for the event loop of {} to do: it sleeps, and nobody can go on.",
            scene.voice.thread(thread)
        ),
        advice: "Take asyncio locks in one order, by async with, so that they are released however the task ends; hold none \
                 while awaiting a task that wants it. asyncio.timeout around the waits makes such a hang an error."
            .to_owned(),
        culprit: Some(thread),
    })
}

fn suspended(task: &Task) -> String {
    match &task.place {
        Some(place) => format!("task “{}”, suspended in {},", plain(&task.name), plain(place)),
        None => format!("task “{}”", plain(&task.name)),
    }
}

/// The future of a task and where that is suspended; of a coroutine that is no task yet only the future.
fn future(scene: &Scene<'_>, step: Step, task: &Task) -> String {
    match task.place {
        Some(_) => format!("the future of {}", suspended(task).trim_end_matches(',')),
        None => scene.voice.name(step.waits_for),
    }
}

fn of_future(scene: &Scene<'_>, step: Step, task: &Task) -> Story {
    let voice = scene.voice;
    let runs = voice.thread(step.held_by);
    let place = scene.waiting_place(step.thread).map(|p| format!(", in {p},")).unwrap_or_default();
    let doubt = scene.doubt(step.waits_for, step.held_by);
    let explanation = if step.thread == step.held_by {
        format!(
            "{} runs an event loop and{place} blocks on {}, which belongs to that same loop{doubt}. What it is the future of \
             can only go on in this thread, and this thread only after that.",
            capital(&runs),
            future(scene, step, task),
        )
    } else {
        format!(
            "{} waits{place} for {}, which belongs to the event loop that {runs} runs{doubt}. That loop stands still: {runs} \
             {}.",
            capital(&voice.thread(step.thread)),
            future(scene, step, task),
            scene.wait(step.held_by).map_or_else(|| "does not return to it".to_owned(), |w| voice.waits(w.on)),
        )
    };
    Story {
        explanation,
        advice: "Inside a loop await the coroutine instead of blocking on its future; run_coroutine_threadsafe(...).result() \
                 is for other threads only. Code that must block goes into a thread: await loop.run_in_executor(...), \
                 asyncio.to_thread."
            .to_owned(),
        culprit: Some(step.held_by),
    }
}

fn of_lock(scene: &Scene<'_>, step: Step, task: &Task) -> Story {
    let voice = scene.voice;
    let runs = voice.thread(step.held_by);
    let lock = voice.thing(step.waits_for);
    let place = scene.waiting_place(step.held_by).map(|p| format!(", in {p}")).unwrap_or_default();
    let tail = if step.thread == step.held_by {
        format!("Only {runs} can resume the task, and it blocks on the same lock itself")
    } else {
        let waits = scene.wait(step.held_by).map(|w| format!(", which {}", voice.waits(w.on))).unwrap_or_default();
        format!("Only {runs} can resume the task{waits}")
    };
    let doubt = scene.doubt(step.waits_for, step.held_by);
    Story {
        explanation: format!(
            "{} holds {lock} across an await{doubt}. {tail}{place}.",
            suspended(task).replacen("task", "Task", 1),
        ),
        advice:
            "Hold no lock of threads across an await: use asyncio.Lock with async with, or let go of the lock before \
                 awaiting. Blocking calls inside a loop belong into a thread (asyncio.to_thread)."
                .to_owned(),
        culprit: Some(step.held_by),
    }
}
