//! A process reads a pipe that only a process which waits for it could write to, or close.

use super::{Pattern, Scene, Story};
use crate::facts::ResourceKind;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "peer-wait", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let step = scene.steps().iter().find(|s| scene.kind(s.waits_for) == ResourceKind::Pipe)?;
    let voice = scene.voice;
    let process = |t| voice.snapshot(t).map_or(0, |s| s.process.pid.0);
    let writer = step.held_by;
    let reads = format!("{} {}", capital(&voice.thread(step.thread)), voice.waits(step.waits_for));
    if writer == step.thread {
        return Some(Story {
            explanation: format!(
                "{reads}, until something is written to it or the last of its writing ends is closed. Nobody has a writing \
                 end open but process {} itself (inferred: any thread of it could write): the end of the file never comes.",
                process(writer),
            ),
            advice:
                "Close the writing end in the process that reads, right after the fork; open pipes with O_CLOEXEC, so \
                     that programs which are executed do not inherit it."
                    .to_owned(),
            culprit: Some(writer),
        });
    }
    let waits = scene.wait(writer).map_or_else(|| "does not write".to_owned(), |w| voice.waits(w.on));
    let child = scene.wait(writer).is_some_and(|w| scene.kind(w.on) == ResourceKind::ProcessExit);
    let advice = if child {
        "Close the writing end before waiting for the reader to end: it reads until nobody has one open (in Python \
         communicate(), or stdin.close() and then wait()). After a fork close the ends that are not needed; open pipes with \
         O_CLOEXEC."
    } else {
        "One of them has to speak first: flush what is buffered before waiting for the answer, and close a pipe that nothing \
         more will be written to."
    };
    Some(Story {
        explanation: format!(
            "{reads}, until something is written to it or the last of its writing ends is closed. Nobody has a writing end \
             open but process {}, of which {} {waits} (inferred: any thread of it could write). Neither can go on.",
            process(writer),
            voice.thread(writer),
        ),
        advice: advice.to_owned(),
        culprit: Some(writer),
    })
}
