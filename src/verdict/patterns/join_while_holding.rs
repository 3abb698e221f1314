//! `join-while-holding`: a thread keeps a lock while it joins a thread that wants the lock.

use super::{Pattern, Scene, Story, is_lock};
use crate::facts::{ResourceId, ResourceKind};
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "join-while-holding", tell };

/// Whether a wait for this kind is a join.
pub(super) fn joins(kind: ResourceKind) -> bool {
    matches!(kind, ResourceKind::ThreadExit | ResourceKind::PythonThread)
}

fn tell(scene: &Scene<'_>) -> Option<Story> {
    if scene.steps().len() < 2 {
        return None;
    }
    let (step, held) =
        scene.holding().find(|(s, held)| joins(scene.kind(s.waits_for)) && is_lock(scene.kind(*held)))?;
    let voice = scene.voice;
    let joined = match step.waits_for {
        ResourceId::ThreadExit(t) => t,
        _ => step.held_by,
    };
    let lock = voice.thing(held);
    Some(Story {
        explanation: format!(
            "{} joins {} and keeps {lock} while it waits. {} cannot end before it has had {}. So the join never returns, \
             and the lock is never released.",
            capital(&voice.thread(step.thread)),
            voice.thread(joined),
            capital(&voice.thread(joined)),
            voice.name(held),
        ),
        advice:
            "Join after the lock is released: move the thread's handle out under the lock, unlock, then join. In a \
                 destructor, tell the thread to stop, unlock, join, and only then take the lock again."
                .to_owned(),
        culprit: Some(step.thread),
    })
}
