//! `other`: a result is waited for that nobody is left to send: the worker that had the task is gone.

use super::{Pattern, Scene, Shape, Story};
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "other", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let Shape::Chain { root, .. } = scene.shape else { return None };
    let lost = scene.look.facts.lost_results.get(&scene.wait(root)?.on)?;
    let workers = match lost.workers.len() {
        1 => "its only worker waits".to_owned(),
        n => format!("all {n} workers wait"),
    };
    let ended = match lost.ended {
        1 => "1 worker has ended before its time and was replaced".to_owned(),
        n => format!("{n} workers have ended before their time and were replaced"),
    };
    Some(Story {
        explanation: format!(
            "{} {}, a result of a multiprocessing.Pool. No task is queued and {workers} for one, so no worker will send it. \
             {ended}: a pool does not hand out again the task that such a worker had, so the task is lost.",
            capital(&scene.voice.thread(root)),
            scene.voice.waits(scene.wait(root)?.on),
        ),
        advice: "Use concurrent.futures.ProcessPoolExecutor, which breaks the pool and says so when a worker ends, or give \
                 get() a time-out. Look in the kernel's log for why the worker ended (out of memory), and in the parent's \
                 output for its exit code."
            .to_owned(),
        culprit: None,
    })
}
