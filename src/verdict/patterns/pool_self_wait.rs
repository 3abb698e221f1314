//! `pool-self-wait`: tasks of a pool wait for tasks of the same pool, which nobody is left to begin; of event loops see
//! `loop_self_wait`.

use super::{Pattern, Scene, Story};
use crate::facts::ResourceKind;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "pool-self-wait", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    of_pool(scene).or_else(|| super::loop_self_wait::tell(scene))
}

fn of_pool(scene: &Scene<'_>) -> Option<Story> {
    let steps = scene.steps();
    let step = steps.iter().find(|s| scene.kind(s.waits_for) == ResourceKind::WorkerPool)?;
    let voice = scene.voice;
    let pool = voice.thing(step.waits_for);
    let workers = scene.look.graph.holders(step.waits_for).len();
    let explanation = if steps.iter().all(|s| s.waits_for == step.waits_for) {
        let all = match workers {
            1 => "Its only worker is in a task that waits for a future".to_owned(),
            n if n == steps.len() => format!("All {n} workers are in tasks that wait for futures"),
            n => format!("All {n} workers are in tasks, and {} of these wait for futures", steps.len()),
        };
        format!(
            "{all} of the same pool: {pool}. The work they wait for is queued behind them, and no worker is left to begin it."
        )
    } else {
        format!(
            "{} waits for work that is queued in {pool}; each of its {workers} workers is in a task that cannot end before \
             {} goes on.",
            capital(&voice.thread(step.thread)),
            voice.thread(step.thread),
        )
    };
    Some(Story {
        explanation,
        advice: "Never block on a future of the same pool inside one of its tasks: run the inner work inline, give it a pool of \
                 its own, or chain it with add_done_callback. More workers only make the hang rarer."
            .to_owned(),
        culprit: None,
    })
}
