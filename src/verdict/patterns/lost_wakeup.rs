//! `lost-wakeup-suspected`: a thread waits for a signal that nobody is left to give.

use super::outside_wait::chain;
use super::{Pattern, Scene, Shape, Story};
use crate::facts::ResourceKind;
use crate::units::ThreadRef;
use crate::verdict::actors::Handler;

/// Other threads of the set that are told, at most.
const MAX_TOLD: usize = 4;

pub(super) const PATTERN: Pattern = Pattern { word: "lost-wakeup-suspected", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let Shape::Chain { root, holds, behind, closed: Some(closed) } = scene.shape else { return None };
    let wait = scene.wait(root)?;
    let all = scene.look.snapshots.get(root.process.0 as usize).map_or(0, |s| s.threads.len());
    let nobody = match closed.threads.len() {
        1 if all == 1 => "It is the only thread of the process".to_owned(),
        1 => "Every other thread of the process waits for this one, directly or through others".to_owned(),
        n if n == all => {
            format!(
                "All {n} threads of the process wait without a time-out, each for what only another one of them could do"
            )
        }
        n => format!(
            "It is one of {n} threads that wait without a time-out, each for what only another one of them could do"
        ),
    };
    let others: Vec<String> =
        closed.threads.iter().filter(|t| **t != root).take(MAX_TOLD).map(|t| told(scene, *t)).collect();
    let others = if others.is_empty() { String::new() } else { format!(": {}", others.join("; ")) };
    let handler = match closed.handler {
        Handler::None => {
            ", and no function of the program is the handler of a signal: by elimination (inferred), nothing can \
                          wake it any more"
                .to_owned()
        }
        handler => format!(". Only the handler of a signal could wake it, and {}", handler.known()),
    };
    let advice = match scene.kind(wait.on) {
        ResourceKind::PythonQueue => {
            "Call task_done() for every item that was taken, in a finally; put a sentinel into the queue when no more will \
             come; give the wait a time-out."
        }
        ResourceKind::PythonBarrier => {
            "See that as many threads come to the barrier as it has parties, also when one fails: abort() it then, or give \
             the wait a time-out."
        }
        ResourceKind::PythonFuture => {
            "Complete the future on every path, by set_exception() too; hand it to an executor, which does; give result() a \
             time-out."
        }
        ResourceKind::PythonSemaphore => "Release it in a finally, or take it by with; give acquire() a time-out.",
        _ => {
            "Set the state before the signal, under the lock, and wait in a loop that looks at it first; signal also when \
             the work fails; give the wait a time-out."
        }
    };
    Some(Story {
        explanation: format!("{} {nobody}{others}{handler}.", chain(scene, root, holds, behind)),
        advice: advice.to_owned(),
        culprit: Some(root),
    })
}

/// `thread 411 “reader” waits for thread 402 “main” to end, in load (app.cpp:12)`.
fn told(scene: &Scene<'_>, t: ThreadRef) -> String {
    let waits = scene.wait(t).map_or_else(|| "waits".to_owned(), |w| scene.voice.waits(w.on));
    let place = scene.waiting_place(t).map(|p| format!(", in {p}")).unwrap_or_default();
    format!("{} {waits}{place}", scene.voice.thread(t))
}
