//! `io-wait`: a process of a background group that its terminal stopped.

use super::{Pattern, Scene, Shape, Story};
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "io-wait", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let Shape::Chain { root, .. } = scene.shape else { return None };
    let signal = scene.look.facts.terminal_stops.get(&root)?;
    let pid = scene.voice.snapshot(root)?.process.pid;
    Some(Story {
        explanation: format!(
            "{} {}. It is stopped, not stuck on a lock. SIGCONT does not help: the call is tried again, and {signal} stops \
             the process again.",
            capital(&scene.voice.thread(root)),
            scene.voice.waits(scene.wait(root)?.on),
        ),
        advice: format!(
            "Run process {pid} in the foreground (fg in its shell, or tcsetpgrp by its parent), or let it ignore {signal} \
             around the call; do not touch the terminal's settings from a background job."
        ),
        culprit: Some(root),
    })
}
