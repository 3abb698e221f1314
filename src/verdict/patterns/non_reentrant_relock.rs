//! `non-reentrant-relock`: a thread waits for a lock it holds itself, and the lock cannot be taken twice.

use super::{Pattern, Scene, Story};
use crate::facts::ResourceKind;

pub(super) const PATTERN: Pattern = Pattern { word: "non-reentrant-relock", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let [step] = scene.steps() else { return None };
    let python = matches!(scene.kind(step.waits_for), ResourceKind::PythonLock | ResourceKind::PythonMutex);
    let advice = if python {
        "Copy what the callback needs and call it after the lock is released; or use threading.RLock, if what the lock \
         protects may be seen half-changed by the second taker."
    } else {
        "Do not call out of the critical section into code that takes the same lock: split the function into a locked \
         outer and an unlocked inner one, or call back after unlocking. A recursive mutex (std::recursive_mutex, \
         PTHREAD_MUTEX_RECURSIVE) helps only if what it protects may be seen half-changed by the second taker."
    };
    Some(Story {
        explanation: format!(
            "{} The lock does not count its owner's takings, and the only thread that could let go is the one that waits.",
            scene.twice(step)
        ),
        advice: advice.to_owned(),
        culprit: Some(step.thread),
    })
}
