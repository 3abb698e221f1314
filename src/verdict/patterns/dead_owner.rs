//! `dead-owner`: the lock's owner is not a thread of the process any more.

use super::{Pattern, Scene, Shape, Story, frozen};
use crate::facts::ResourceKind;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "dead-owner", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let Shape::Orphan { resource, owner, waiters } = scene.shape else { return None };
    let voice = scene.voice;
    // a lock of tasks: of those `pool-self-wait` speaks
    if scene.kind(resource) == ResourceKind::PythonTask {
        return None;
    }
    let first = waiters.first().copied()?;
    let pid = voice.snapshot(first).map(|s| s.process.pid.to_string()).unwrap_or_default();
    let who = if waiters.len() == 1 {
        format!("{} waits for it", voice.thread(first))
    } else {
        format!("{} threads wait for it", waiters.len())
    };
    if let Some(t) = frozen(voice, first, owner) {
        return Some(Story {
            explanation: format!(
                "{} is held by {}, a daemon thread that asked for the GIL after the interpreter had begun to shut down, and \
                 sleeps until the process ends. Only the owner can let go, so {who} for ever.",
                capital(&voice.thing(resource)),
                voice.thread(t),
            ),
            advice:
                "Take no locks in daemon threads that code run at exit needs (atexit, finalisers, logging). Tell such \
                     threads to stop, and join them, before the main thread returns."
                    .to_owned(),
            culprit: None,
        });
    }
    let says = match owner.0 {
        0 => format!("is taken, but no thread of process {pid} holds it"),
        tid => format!("says that its owner is {tid}, but process {pid} has no thread {tid}"),
    };
    Some(Story {
        explanation: format!(
            "{} {says}: the owner ended while it held the lock, or stayed behind in the parent at a fork. Only the owner can \
             let go, so {who} for ever.",
            capital(&voice.thing(resource)),
        ),
        advice:
            "No thread may end, be cancelled, or call fork() while it holds a lock: unlock on every path out of the \
                 critical section (in C++ a std::lock_guard, in C a cleanup handler). Between processes use a robust \
                 mutex (PTHREAD_MUTEX_ROBUST, made consistent after EOWNERDEAD) or flock, which the kernel releases. \
                 In forking programs start the children before the threads, or by spawn or forkserver."
                .to_owned(),
        culprit: None,
    })
}
