//! `fork-inherited-lock`: the process was forked while a thread of the parent held the lock; that thread is not here.

use super::{Pattern, Scene, Shape, Story, frozen};
use crate::facts::ResourceKind;
use crate::units::{ThreadRef, Tid};
use crate::verdict::voice::{capital, plain};

pub(super) const PATTERN: Pattern = Pattern { word: "fork-inherited-lock", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let Shape::Orphan { resource, owner, waiters } = scene.shape else { return None };
    let voice = scene.voice;
    let first = waiters.first().copied()?;
    let snapshot = voice.snapshot(first)?;
    // a lock of tasks is nobody's who could stay behind
    let task = scene.kind(resource) == ResourceKind::PythonTask;
    if task || snapshot.process.forked != Some(true) || frozen(voice, first, owner).is_some() {
        return None;
    }
    let pid = snapshot.process.pid;
    let threads = match snapshot.threads.len() {
        1 => "one thread".to_owned(),
        n => format!("{n} threads"),
    };
    let holder = match owner.0 {
        0 => "nobody here holds it: a thread of the parent did when it forked".to_owned(),
        _ => stayed_behind(scene, first, owner)?,
    };
    let who = if waiters.len() == 1 {
        format!("{} waits for it", voice.thread(first))
    } else {
        format!("{} threads wait for it", waiters.len())
    };
    // of the fork is what this process says, of now what the parent does
    let parents = scene.look.facts.inherited.get(&resource);
    let parents = parents.map(|said| format!(" Read in the parent now: {said}.")).unwrap_or_default();
    Some(Story {
        explanation: format!(
            "Process {pid} was forked without an exec and has {threads}. {} is taken, and {holder}. A fork copies the lock \
             but not the thread that would let go of it, so {who} for ever.{parents}",
            capital(&voice.thing(resource)),
        ),
        advice: "Start workers by spawn or forkserver, or fork before the first thread is started. A library that must \
                 survive forks takes its locks in pthread_atfork (in Python os.register_at_fork) and makes them anew in the \
                 child. Do not log, allocate or import in an at-fork hook of the child."
            .to_owned(),
        culprit: None,
    })
}

/// How it shows that `owner` is a thread of before the fork; `None` where it may as well have begun, and ended, here.
fn stayed_behind(scene: &Scene<'_>, waiter: ThreadRef, owner: Tid) -> Option<String> {
    let snapshot = scene.voice.snapshot(waiter)?;
    let parent = snapshot.process.parent.as_ref();
    if let Some((parent, (_, name))) = parent.and_then(|p| Some((p, p.threads.iter().find(|(tid, _)| *tid == owner)?)))
    {
        return Some(format!("its owner is {owner}, the thread “{}” of the parent {}", plain(name), parent.pid));
    }
    // ids are given out in ascending order: every thread begun here has a greater one than the process itself
    let leader = snapshot.threads.iter().find(|t| t.host_tid.0 == snapshot.process.pid.0)?.tid;
    (owner < leader).then(|| {
        format!("its owner is {owner}, an id older than this process: a thread that stayed behind in the parent")
    })
}
