//! `pipe-full`: one process waits for room in a pipe whose reader waits for that very process.

use super::{Pattern, Scene, Shape, Story};
use crate::facts::{Holder, ResourceKind};
use crate::units::ThreadRef;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "pipe-full", tell };

const DRAIN: &str = "Let one thread do nothing but read the pipe, or drain it before waiting; close the reading end where nobody \
                     reads, so that the writer gets an error instead of waiting.";

fn tell(scene: &Scene<'_>) -> Option<Story> {
    if let Shape::Chain { root, .. } = scene.shape {
        return of_writer(scene, root);
    }
    let steps = scene.steps();
    let for_room = |id| is_for_room(scene, id);
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
        DRAIN
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

/// A healthy program waits for something to read, not for room.
fn is_for_room(scene: &Scene<'_>, id: crate::facts::ResourceId) -> bool {
    scene.look.graph.resource(id).is_some_and(|r| r.kind == ResourceKind::Pipe && !r.idle)
}

/// A thread that waits for room in a pipe that nobody is seen to read.
fn of_writer(scene: &Scene<'_>, root: ThreadRef) -> Option<Story> {
    let wait = scene.wait(root).filter(|w| is_for_room(scene, w.on))?;
    let voice = scene.voice;
    let readers: Vec<ThreadRef> = scene
        .look
        .graph
        .holders(wait.on)
        .iter()
        .filter_map(|h| match h.holder {
            Holder::Thread(t) => Some(t),
            Holder::Gone(..) | Holder::Process(_) => None,
        })
        .collect();
    let reader = readers.iter().find(|t| scene.wait(**t).is_some()).or(readers.first()).copied();
    let who = match reader.and_then(|t| Some((t, voice.snapshot(t)?.process.pid))) {
        Some((t, pid)) => {
            let waits = scene.wait(t).map_or_else(|| "does something else".to_owned(), |w| voice.waits(w.on));
            format!("Process {pid} has its reading end open and does not read: {} {waits}", voice.thread(t))
        }
        None => "Its reader is not among the processes that were looked at".to_owned(),
    };
    Some(Story {
        explanation: format!(
            "{} {}, which is full. {who}. This is no cycle: whether it will be read yet is not known.",
            capital(&voice.thread(root)),
            voice.waits(wait.on),
        ),
        advice: DRAIN.to_owned(),
        culprit: reader.or(Some(root)),
    })
}
