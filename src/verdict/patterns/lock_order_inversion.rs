//! `lock-order-inversion`: locks taken in different orders (ABBA, or a longer ring).

use super::{Pattern, Scene, Story, is_loader_lock, is_lock};
use crate::facts::{ResourceId, ResourceKind};
use crate::graph::Step;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "lock-order-inversion", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let steps = scene.steps();
    if steps.len() < 2 || !steps.iter().all(|s| is_lock(scene.kind(s.waits_for))) {
        return None;
    }
    let voice = scene.voice;
    let around: Vec<String> = scene.holding().map(|(step, held)| told(scene, &step, held)).collect();
    let order = if steps.len() == 2 {
        "Each took its first lock before the other could, and each wants the other's: neither can go on."
    } else {
        "Each wants the lock the next one holds: none can go on."
    };
    let mut explanation = format!("{} {order}", around.join(" "));
    let mut culprit = steps.first().map(|s| s.thread);
    let gil = scene.holding().find(|(_, held)| scene.kind(*held) == ResourceKind::Gil);
    let advice = match gil {
        // who waits for the GIL took the native lock first: the order is the GIL first
        Some((holder, gil)) => {
            let inverted = scene.holding().find(|(s, _)| s.waits_for == gil);
            if let Some((step, native)) = inverted {
                culprit = Some(step.thread);
                let rule = if is_loader_lock(scene.kind(native)) {
                    "the GIL first, the loader's locks second".to_owned()
                } else {
                    format!("the GIL first, {} second, or never both", voice.name(native))
                };
                explanation +=
                    &format!(" The order is {rule}: {} took them the other way round.", voice.thread(step.thread));
            }
            gil_advice(scene, holder.waits_for)
        }
        None => {
            let names: Vec<String> = steps.iter().map(|s| voice.name(s.waits_for)).collect();
            let native = |k| matches!(k, ResourceKind::Mutex | ResourceKind::Rwlock | ResourceKind::Spinlock);
            // only native code can take two at once without an order
            let both = if steps.iter().all(|s| native(scene.kind(s.waits_for))) {
                "where both are needed at once, std::scoped_lock(a, b) does it; where not,"
            } else {
                "by a rank they are given once, or by id() for locks of one kind; where that cannot be,"
            };
            format!(
                "Take {} in one order everywhere: {both} let go of the first before calling code that takes the second. \
                 Keep both locks: dropping one of them only trades the hang for a race.",
                list(&names)
            )
        }
    };
    Some(Story { explanation, advice, culprit })
}

/// `Thread 7 “a” holds left, taken in transfer (bank.c:36), and waits for right in take_both (bank.c:29).`
fn told(scene: &Scene<'_>, step: &Step, held: ResourceId) -> String {
    let voice = scene.voice;
    let hold = scene.hold(held, step.thread);
    let taken = hold.and_then(|h| scene.taken_place(h).or_else(|| voice.own_function(step.thread, h.taken_at?)));
    let taken = taken.map(|p| format!(", taken in {p},")).unwrap_or_default();
    let here = scene.waiting_place(step.thread);
    let here = here.map(|p| format!(" in {p}")).unwrap_or_default();
    format!(
        "{} holds {}{}{taken} and {}{here}.",
        capital(&voice.thread(step.thread)),
        voice.name(held),
        scene.doubt(held, step.thread),
        voice.waits(step.waits_for),
    )
}

fn gil_advice(scene: &Scene<'_>, native: ResourceId) -> String {
    if is_loader_lock(scene.kind(native)) {
        return "Release the GIL (Py_BEGIN_ALLOW_THREADS, py::gil_scoped_release) around calls that enter the loader: \
                dlopen, dlsym, dl_iterate_phdr, and drivers that load code. Never take the GIL while a loader lock is \
                held: not in a dl_iterate_phdr callback, not in a constructor run by dlopen."
            .to_owned();
    }
    let name = scene.voice.name(native);
    format!(
        "Never wait for {name} while holding the GIL, and never take the GIL while holding {name}: release the GIL \
         (Py_BEGIN_ALLOW_THREADS, py::gil_scoped_release) before locking it. In C++, declare the guard that releases the \
         GIL, and takes it back at its end, before the guard of {name}: then the lock is dropped before the GIL is waited \
         for. Keep the lock: dropping it only trades the hang for a race."
    )
}

/// `a and b`, `a, b and c`.
pub(super) fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
