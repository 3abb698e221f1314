//! `other`: what no pattern fits is told as it is.

use super::{Pattern, Scene, Shape, Story};
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "other", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let (explanation, advice, culprit) = match scene.shape {
        Shape::Cycle(steps) => (
            format!("{}. Each waits for what only the next one can give: none can go on.", capital(&scene.round())),
            "Break the cycle at one of its edges: let go of what is held before waiting for another thread.".to_owned(),
            steps.first().map(|s| s.thread),
        ),
        Shape::Chain { root, holds, behind } => (
            super::outside_wait::chain(scene, root, holds, behind),
            "Do not hold a lock across a wait for something another thread or the outside must do.".to_owned(),
            Some(root),
        ),
        Shape::Orphan { .. } => return None,
    };
    Some(Story { explanation, advice, culprit })
}
