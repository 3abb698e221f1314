//! `io-wait`, `peer-wait`, `gpu-wait`: no cycle, but all wait behind a thread that waits for something outside.

use super::{Pattern, Scene, Shape, Story, is_device};
use crate::facts::{ResourceId, ResourceKind, Timeout, Wakers};
use crate::graph::Step;
use crate::units::ThreadRef;
use crate::verdict::voice::capital;

pub(super) const GPU_CYCLE: Pattern = Pattern { word: "gpu-wait", tell: through_gpu };
pub(super) const GPU: Pattern = Pattern { word: "gpu-wait", tell: gpu };
pub(super) const PEER: Pattern = Pattern { word: "peer-wait", tell: peer };
pub(super) const IO: Pattern = Pattern { word: "io-wait", tell: io };

/// A cycle in which one thread waits for the device, and the device for another.
fn through_gpu(scene: &Scene<'_>) -> Option<Story> {
    let (step, held) = scene.holding().find(|(s, _)| is_device(scene.kind(s.waits_for)))?;
    Some(Story {
        explanation: around_gpu(scene, step, held),
        advice: format!(
            "Let go of {} before waiting for the GPU, or let the callback take no lock that a thread holds while it waits: \
             hand the work over to another thread from there.",
            scene.voice.name(held)
        ),
        culprit: Some(step.thread),
    })
}

/// Why nobody can go on, of a cycle through the device: `step` waits for it and holds `held`.
pub(super) fn around_gpu(scene: &Scene<'_>, step: Step, held: ResourceId) -> String {
    let voice = scene.voice;
    let wanted = scene.holding().find(|(_, h)| *h == step.waits_for).map(|(s, _)| s);
    let wanted = wanted.map(|s| {
        format!(
            " The GPU waits for the program: {} runs a callback of it, and that {}. That it is this callback is inferred: \
             nothing records which one is to set the signal.",
            voice.thread(s.thread),
            voice.waits(s.waits_for)
        )
    });
    format!(
        "{} keeps {} while it {}{}.{}{}",
        capital(&voice.thread(step.thread)),
        voice.name(held),
        voice.waits(step.waits_for),
        voice.in_device_call(step.thread),
        device(scene, step.thread),
        wanted.unwrap_or_default(),
    )
}

fn gpu(scene: &Scene<'_>) -> Option<Story> {
    let Shape::Chain { root, holds, .. } = scene.shape else { return None };
    let facts = scene.look.facts;
    let call = facts.device_calls.get(&root).and_then(|calls| calls.first()).map_or("", |c| c.function.as_str());
    let debugger = match call {
        c if c.starts_with("hip") || c.starts_with("hsa") => "rocgdb (info agents, info queues, info dispatches)",
        c if c.starts_with("cu") => "cuda-gdb (info cuda kernels)",
        _ => "the GPU's debugger",
    };
    let held = if holds.is_empty() {
        ""
    } else {
        "Do not hold a lock or the GIL across a wait for the device: synchronise first, then lock. "
    };
    let device = facts.devices.get(&root);
    if device.is_some_and(|d| d.program) {
        let advice = format!(
            "{held}Find what was to set the signal: a thread of this process, a callback, or another process that shares it."
        );
        return tell(scene, is_device, &advice);
    }
    if device.is_some_and(|d| d.collective) {
        let advice = format!(
            "{held}Look at the other ranks, too: hangscope attach with all their PIDs, or --tree; hangscope merge puts reports \
             of several hosts together. The rank that is not in this collective, or in another one, is the cause."
        );
        let mut story = tell(scene, is_device, &advice)?;
        story.explanation += " The oldest kernel is a collective's: it waits on the GPU until all ranks take part.";
        return Some(story);
    }
    let advice = format!(
        "{held}Look at the oldest kernel with {debugger}, and in the kernel's log for a reset of the GPU. Let no kernel \
         wait for what the same process does only later."
    );
    let mut story = tell(scene, is_device, &advice)?;
    if let Some(m) = scene.look.movement.filter(|_| device.is_some_and(|d| !d.pulse.is_empty())) {
        story.explanation += &format!(
            " Between the looks, {} apart, the GPU did nothing that memory shows; a kernel that takes long looks the same: a \
             longer --interval tells them apart.",
            told(m.apart)
        );
    }
    Some(story)
}

/// `0.5 s`, `30 s`.
fn told(apart: std::time::Duration) -> String {
    let seconds = apart.as_secs_f64();
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

fn peer(scene: &Scene<'_>) -> Option<Story> {
    tell(
        scene,
        |k| matches!(k, ResourceKind::ProcessExit | ResourceKind::FileLock | ResourceKind::Collective),
        "Look at the process it waits for: hangscope attach takes several PIDs, or --tree, and draws them as one graph. \
         Drain the child's output before waiting for its end, and close every descriptor that is not needed right after \
         the fork.",
    )
}

fn io(scene: &Scene<'_>) -> Option<Story> {
    tell(
        scene,
        |k| {
            matches!(
                k,
                ResourceKind::Pipe
                    | ResourceKind::Socket
                    | ResourceKind::Eventfd
                    | ResourceKind::Epoll
                    | ResourceKind::Poll
                    | ResourceKind::Timer
                    | ResourceKind::Signal
                    | ResourceKind::Device
                    | ResourceKind::FileIo
                    // a descriptor whose kind nothing tells
                    | ResourceKind::Unknown
            )
        },
        "Do not hold a lock across a call that waits for the outside: take what is needed, let go, then wait. Give such \
         calls a time-out.",
    )
}

fn tell(scene: &Scene<'_>, of: fn(ResourceKind) -> bool, advice: &str) -> Option<Story> {
    let Shape::Chain { root, holds, behind, .. } = scene.shape else { return None };
    let kind = match scene.wait(root) {
        Some(wait) => scene.kind(wait.on),
        None if scene.voice.state(root).and_then(|s| s.state) == Some('D') => ResourceKind::FileIo,
        None => return None,
    };
    let outside =
        scene.wait(root).is_none_or(|w| scene.look.graph.resource(w.on).is_some_and(|r| r.wakers == Wakers::Outside));
    if !of(kind) || !(outside || kind != ResourceKind::Unknown) {
        return None;
    }
    let gil = holds.iter().any(|h| scene.kind(*h) == ResourceKind::Gil);
    let advice = if gil {
        format!(
            "Let go of the GIL around the call: Py_BEGIN_ALLOW_THREADS … Py_END_ALLOW_THREADS in C, py::gil_scoped_release \
             in pybind11, ctypes.CDLL instead of ctypes.PyDLL. {advice}"
        )
    } else {
        advice.to_owned()
    };
    let explanation = format!(
        "{}{} This is no cycle: what ends the wait lies outside these threads.",
        chain(scene, root, holds, behind),
        device(scene, root),
    );
    Some(Story { explanation, advice, culprit: Some(root) })
}

/// How the device stands that `root` waits for, in sentences with a space before.
pub(super) fn device(scene: &Scene<'_>, root: ThreadRef) -> String {
    let state = scene.look.facts.devices.get(&root).map_or(&[][..], |d| d.state.as_slice());
    let sentence = |s: &String| {
        let mut chars = s.chars();
        let first = chars.next().map(|c| c.to_uppercase().collect::<String>()).unwrap_or_default();
        format!(" {first}{}.", chars.as_str())
    };
    state.iter().map(sentence).collect()
}

/// `Thread 402 holds the GIL and waits for socket 12; 6 threads wait behind it.`
pub(super) fn chain(scene: &Scene<'_>, root: ThreadRef, holds: &[ResourceId], behind: usize) -> String {
    let voice = scene.voice;
    let who = capital(&voice.thread(root));
    let held: Vec<String> = holds.iter().map(|h| format!("{}{}", voice.name(*h), scene.doubt(*h, root))).collect();
    let holds = if held.is_empty() {
        String::new()
    } else {
        format!("holds {} and ", super::lock_order_inversion::list(&held))
    };
    let waits = match scene.wait(root) {
        Some(wait) => {
            let ends = match wait.timeout {
                Timeout::Seconds(s) => format!(" for at most {s} s"),
                Timeout::Some => " with a time-out".to_owned(),
                Timeout::None | Timeout::Periodic => String::new(),
            };
            format!("{}{}{ends}", voice.waits(wait.on), voice.in_device_call(root))
        }
        None => match voice.state(root).and_then(|s| s.wchan.clone()) {
            Some(wchan) => format!("is blocked in the kernel, in {}", crate::verdict::plain(&wchan)),
            None => "is blocked in the kernel (state D)".to_owned(),
        },
    };
    let tail = match behind {
        0 => String::new(),
        1 => " 1 thread waits behind it.".to_owned(),
        n => format!(" {n} threads wait behind it."),
    };
    format!("{who} {holds}{waits}.{tail}")
}
