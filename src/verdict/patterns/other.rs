//! `other`: what no pattern fits is told as it is.

use super::{Pattern, Scene, Shape, Story, is_lock, is_rendezvous};
use crate::facts::Wakers;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "other", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let (explanation, advice, culprit) = match scene.shape {
        Shape::Cycle(steps) => match held_across(scene) {
            Some(story) => return Some(story),
            None => (
                format!("{}. Each waits for what only the next one can give: none can go on.", capital(&scene.round())),
                "Break the cycle at one of its edges: let go of what is held before waiting for another thread."
                    .to_owned(),
                steps.first().map(|s| s.thread),
            ),
        },
        Shape::Chain { root, holds, behind, .. } => (
            super::outside_wait::chain(scene, root, holds, behind),
            "Do not hold a lock across a wait for something another thread or the outside must do.".to_owned(),
            Some(root),
        ),
        Shape::Orphan { .. } => return None,
    };
    Some(Story { explanation, advice, culprit })
}

/// A lock other than the GIL, kept while its holder waits for a signal.
fn held_across(scene: &Scene<'_>) -> Option<Story> {
    let (step, held) =
        scene.holding().find(|(s, held)| is_rendezvous(scene.kind(s.waits_for)) && is_lock(scene.kind(*held)))?;
    let voice = scene.voice;
    let lock = voice.name(held);
    let any = scene.look.graph.resource(step.waits_for).is_some_and(|r| r.wakers == Wakers::AnyThread);
    let how = if any {
        " Who may signal is nowhere recorded; that nobody can is inferred: every other thread of the process waits, \
         directly or through others, for the lock or for a signal only such a thread could give."
    } else {
        ""
    };
    Some(Story {
        explanation: format!(
            "{} keeps {lock}{} while it {}, without a time-out. {} could wake it, but first needs {lock}.{how}",
            capital(&voice.thread(step.thread)),
            scene.doubt(held, step.thread),
            voice.waits(step.waits_for),
            capital(&voice.thread(step.held_by)),
        ),
        advice: format!(
            "Let go of {lock} before waiting for the signal, or make it the lock of the condition itself, so that waiting \
             lets go of it."
        ),
        culprit: Some(step.thread),
    })
}
