//! `finalizer-relock`: the garbage collector ran a finaliser while the thread held the lock, and the finaliser takes it
//! again.

use super::{Pattern, Scene, Story, place};
use crate::facts::Entered;
use crate::verdict::plain;

pub(super) const PATTERN: Pattern = Pattern { word: "finalizer-relock", tell };

/// Where CPython calls finalisers and weakref callbacks. Source: Objects/typeobject.c, Objects/object.c, Python/gc.c,
/// Modules/gcmodule.c, Objects/weakrefobject.c.
const FINALISERS: &[&str] = &[
    "slot_tp_finalize",
    "PyObject_CallFinalizer",
    "PyObject_CallFinalizerFromDealloc",
    "handle_weakrefs",
    "handle_callback",
    "PyObject_ClearWeakRefs",
    "gc_collect_main",
];

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let [step] = scene.steps() else { return None };
    let (python, native) = scene.between(step);
    // the finaliser may itself be the function that waits
    let waits =
        scene.wait(step.thread).and_then(|w| scene.voice.managed(step.thread)?.frames.get(w.managed_frame? as usize));
    let del = waits.into_iter().chain(python).find(|f| f.function.rsplit('.').next() == Some("__del__"));
    let by_native = || {
        let mut names = native.iter().filter_map(|f| scene.voice.symbol(step.thread, *f));
        names.any(|n| FINALISERS.contains(&n.as_str()))
    };
    let what = match (scene.entered(step), del) {
        (Some((Entered::WeakReference, f)), _) => format!("The callback of a weak reference, {},", place(f)),
        (_, Some(f)) => plain(&f.function),
        (_, None) if by_native() => "A finaliser or weakref callback".to_owned(),
        (_, None) => return None,
    };
    Some(Story {
        explanation: format!(
            "{} {what} runs between the two: it was called when an object died inside the critical section, which may happen \
             at any allocation, and the thread cannot leave the section before it returns.",
            scene.twice(step)
        ),
        advice: "Take no lock in __del__, in weakref callbacks, or in what they call: hand the work to a \
                 queue.SimpleQueue or a collections.deque, which need none, and do it elsewhere. Closing explicitly (a \
                 with statement, contextlib.closing) makes the finaliser needless."
            .to_owned(),
        culprit: Some(step.thread),
    })
}
