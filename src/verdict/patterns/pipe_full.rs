//! `pipe-full`: one process waits for room in a pipe whose reader waits for that very process.

use super::{Pattern, Scene, Story};
use crate::facts::ResourceKind;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "pipe-full", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let steps = scene.steps();
    // a healthy program waits for something to read, not for room
    let for_room = |id| scene.look.graph.resource(id).is_some_and(|r| r.kind == ResourceKind::Pipe && !r.idle);
    let step = steps.iter().find(|s| for_room(s.waits_for))?;
    let voice = scene.voice;
    let process = |t| voice.snapshot(t).map_or(0, |s| s.process.pid.0);
    let reader = step.held_by;
    let waits = scene.wait(reader).map_or_else(|| "does not read it".to_owned(), |w| voice.waits(w.on));
    let child = scene.wait(reader).is_some_and(|w| scene.kind(w.on) == ResourceKind::ProcessExit);
    let advice = if child {
        "Read the child's output before waiting for its end: in Python communicate() instead of wait(), or a thread that reads; \
         or send what nobody reads to DEVNULL or a file."
    } else {
        "Let one thread do nothing but read the pipe, or drain it before waiting; close the reading end where nobody reads, so \
         that the writer gets an error instead of waiting."
    };
    Some(Story {
        explanation: format!(
            "{} {}, which is full. Nobody else has its reading end open than process {}, of which {} {waits} (inferred: any \
             thread of it could read). Neither can go on.",
            capital(&voice.thread(step.thread)),
            voice.waits(step.waits_for),
            process(reader),
            voice.thread(reader),
        ),
        advice: advice.to_owned(),
        culprit: Some(reader),
    })
}
