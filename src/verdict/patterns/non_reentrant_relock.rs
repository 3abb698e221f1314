//! `non-reentrant-relock`: a thread waits for a lock it holds itself, and the lock cannot be taken twice.

use super::{Pattern, Scene, Story};
use crate::facts::ResourceKind;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "non-reentrant-relock", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let [step] = scene.steps() else { return None };
    let voice = scene.voice;
    let hold = scene.hold(step.waits_for, step.thread)?;
    let thing = voice.thing(step.waits_for);
    let taken = scene
        .taken_place(hold)
        .or_else(|| hold.taken_at.and_then(|f| voice.own_function(step.thread, f)))
        .map(|p| format!(", which it took in {p},"))
        .unwrap_or_default();
    let again = scene
        .wait(step.thread)
        .and_then(|w| w.managed_frame.and_then(|i| voice.managed(step.thread)?.frames.get(i as usize)))
        .map(super::place)
        .or_else(|| scene.wait(step.thread).and_then(|w| voice.own_place(step.thread, w.frame)))
        .map(|p| format!(" again in {p}"))
        .unwrap_or_else(|| " a second time".to_owned());
    let doubt = scene.doubt(step.waits_for, step.thread);
    let kind = scene.kind(step.waits_for);
    let python = matches!(kind, ResourceKind::PythonLock | ResourceKind::PythonMutex);
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
            "{} holds {thing}{doubt}{taken} and takes it{again}. The lock does not count its owner's takings, and the \
             only thread that could let go is the one that waits.",
            capital(&voice.thread(step.thread)),
        ),
        advice: advice.to_owned(),
        culprit: Some(step.thread),
    })
}
