//! `gil-held-across-wait`: a thread keeps the GIL while it waits for another thread to do something that needs the GIL. Where
//! there is no GIL: it stays attached to the interpreter, and so in the way of who wants to stop all threads.

use super::outside_wait::{around_gpu, device};
use super::{Pattern, Scene, Shape, Story, is_device, is_rendezvous};
use crate::facts::{Mode, ResourceId, ResourceKind};
use crate::graph::Step;
use crate::units::ThreadRef;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "gil-held-across-wait", tell };

const ADVICE: &str = "Let go of the GIL around the wait: Py_BEGIN_ALLOW_THREADS … Py_END_ALLOW_THREADS in C, \
    py::gil_scoped_release in pybind11, nogil in Cython, Python::detach in PyO3, and ctypes.CDLL instead of ctypes.PyDLL. \
    Where the wait stands in a destructor, give the bound type a deleter that drops the GIL first.";

/// Without a GIL the same mistake is to stay attached: what stops the world then waits for the thread.
const ATTACHED_ADVICE: &str = "Detach from the interpreter around the wait, as one lets go of the GIL where there is one: \
    Py_BEGIN_ALLOW_THREADS … Py_END_ALLOW_THREADS in C, py::gil_scoped_release in pybind11, nogil in Cython, Python::detach \
    in PyO3, and ctypes.CDLL instead of ctypes.PyDLL. A build without the GIL needs them too: a collection, a fork and the \
    first call from a foreign thread stop all threads that are attached.";

fn tell(scene: &Scene<'_>) -> Option<Story> {
    match scene.shape {
        Shape::Cycle(_) => attached(scene).or_else(|| cycle(scene)),
        Shape::Chain { root, holds, .. } => chain(scene, root, holds),
        Shape::Orphan { .. } => None,
    }
}

fn cycle(scene: &Scene<'_>) -> Option<Story> {
    if scene.steps().len() < 2 {
        return None;
    }
    let through_gpu =
        |(s, held): &(Step, ResourceId)| scene.kind(*held) == ResourceKind::Gil && is_device(scene.kind(s.waits_for));
    if let Some((step, gil)) = scene.holding().find(through_gpu) {
        let explanation = around_gpu(scene, step, gil);
        return Some(Story { explanation, advice: ADVICE.to_owned(), culprit: Some(step.thread) });
    }
    let (step, gil) = scene
        .holding()
        .find(|(s, held)| scene.kind(*held) == ResourceKind::Gil && is_rendezvous(scene.kind(s.waits_for)))?;
    let voice = scene.voice;
    let me = voice.thread(step.thread);
    let them = voice.thread(step.held_by);
    let waiters = scene.look.graph.waiters(gil).count();
    let gil_name = voice.name(gil);
    let explanation = if let ResourceId::ThreadExit(joined) = step.waits_for {
        let joined = voice.thread(joined);
        format!(
            "{} joins {joined} and keeps {gil_name} while it waits. {} cannot end: before it returns it needs {gil_name}. \
             So the join never returns, and {gil_name} is never released.",
            capital(&me),
            capital(&joined),
        )
    } else {
        let who = match waiters {
            0 | 1 => format!("{them}, the only thread that could wake it, waits for {gil_name}"),
            n => format!("the {n} threads that could wake it wait for {gil_name}, {them} among them"),
        };
        format!(
            "{} keeps {gil_name} while it {}, without a time-out. {}. Who may signal is nowhere recorded; that nobody can \
             is inferred: {gil_name} is recorded as held by {me}, and every other thread of the process waits, directly \
             or through others, for {gil_name} or for a signal only such a thread could give.",
            capital(&me),
            voice.waits(step.waits_for),
            capital(&who),
        )
    };
    Some(Story { explanation, advice: ADVICE.to_owned(), culprit: Some(step.thread) })
}

/// A thread that stays attached while it waits, and so holds up a stop of the world.
fn attached(scene: &Scene<'_>) -> Option<Story> {
    // whoever asked for the stop holds it alone, those in its way each a part
    let in_the_way = |s: &Step, held| scene.hold(held, s.thread).is_some_and(|h| h.mode == Mode::Shared);
    let (step, stop) = scene
        .holding()
        .find(|(s, held)| scene.kind(*held) == ResourceKind::PythonStopTheWorld && in_the_way(s, *held))?;
    let voice = scene.voice;
    let asks = scene.steps().iter().find(|s| s.waits_for == stop)?;
    Some(Story {
        explanation: format!(
            "There is no GIL here, but {} {} and stays attached to the interpreter while it does. {} {}, which cannot come \
             before {} detaches or comes back to Python code. {}: none can go on.",
            voice.thread(step.thread),
            voice.waits(step.waits_for),
            capital(&voice.thread(asks.thread)),
            voice.waits(stop),
            voice.thread(step.thread),
            capital(&scene.round()),
        ),
        advice: ATTACHED_ADVICE.to_owned(),
        culprit: Some(step.thread),
    })
}

fn chain(scene: &Scene<'_>, root: ThreadRef, holds: &[ResourceId]) -> Option<Story> {
    let gil = holds.iter().find(|h| scene.kind(**h) == ResourceKind::Gil)?;
    let wait = scene.wait(root).filter(|w| is_rendezvous(scene.kind(w.on)) || is_device(scene.kind(w.on)))?;
    let voice = scene.voice;
    if is_device(scene.kind(wait.on)) {
        return Some(Story {
            explanation: format!(
                "{} keeps {} while it {}{}.{} If the GPU needs anything of a thread that waits for {}, a kernel to be \
                 launched, a flag to be set or a callback to be run, this is a deadlock through the GPU; nothing read shows \
                 that, so it is not claimed.",
                capital(&voice.thread(root)),
                voice.name(*gil),
                voice.waits(wait.on),
                voice.in_device_call(root),
                device(scene, root),
                voice.name(*gil),
            ),
            advice: format!("{ADVICE} See that no kernel waits for a later call of the same process."),
            culprit: Some(root),
        });
    }
    Some(Story {
        explanation: format!(
            "{} keeps {} while it {}. If what it waits for is to be done by a thread that needs {}, this is a deadlock; \
             other threads exist that could still wake it, so it is not claimed.",
            capital(&voice.thread(root)),
            voice.name(*gil),
            voice.waits(wait.on),
            voice.name(*gil),
        ),
        advice: ADVICE.to_owned(),
        culprit: Some(root),
    })
}
