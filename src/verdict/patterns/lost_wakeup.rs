//! `lost-wakeup-suspected`: a thread waits for a signal that nobody is left to give.

use super::outside_wait::chain;
use super::{Pattern, Scene, Shape, Story};
use crate::facts::{ResourceKind, Wakers};
use crate::verdict::nobody;

pub(super) const PATTERN: Pattern = Pattern { word: "lost-wakeup-suspected", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let Shape::Chain { root, holds, behind } = scene.shape else { return None };
    let wait = scene.wait(root)?;
    if scene.look.graph.resource(wait.on).is_none_or(|r| r.wakers != Wakers::AnyThread) {
        return None;
    }
    let all = nobody::is_left(scene.look, root)?;
    let nobody = match all {
        1 => "It is the only thread of the process".to_owned(),
        n => format!(
            "All {n} threads of the process wait without a time-out, each for what only another one of them could do"
        ),
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
        explanation: format!(
            "{} {nobody}, and no function of the program is the handler of a signal: by elimination (inferred), nothing can \
             wake it any more.",
            chain(scene, root, holds, behind)
        ),
        advice: advice.to_owned(),
        culprit: Some(root),
    })
}
