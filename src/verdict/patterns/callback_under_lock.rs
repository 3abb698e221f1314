//! `callback-under-lock`: a lock is held by an API that calls back, and the callback waits for what another holder of the
//! cycle has.

use super::{Pattern, Scene, Story, is_loader_lock, is_lock};
use crate::facts::{ResourceId, ResourceKind};
use crate::graph::Step;
use crate::units::FrameIx;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "callback-under-lock", tell };

/// Functions that call back while they hold a loader lock, and what their callbacks are.
/// Source: glibc elf/dl-iteratephdr.c (the write lock during all callbacks), elf/dl-open.c and elf/dl-close.c (the load
/// lock while constructors and destructors run); verified on 2.17 to 2.43.
const ITERATE: &[&str] = &["dl_iterate_phdr", "__dl_iterate_phdr"];
const OPEN: &[&str] = &["dlopen", "dlmopen", "_dl_open", "__libc_dlopen_mode"];
const CLOSE: &[&str] = &["dlclose", "_dl_close"];

struct Found {
    step: Step,
    held: ResourceId,
    /// The API's name, and what it runs under the lock.
    api: String,
    runs: &'static str,
    callback: Option<String>,
}

fn tell(scene: &Scene<'_>) -> Option<Story> {
    if scene.steps().len() < 2 {
        return None;
    }
    let found = scene.holding().find_map(|(step, held)| find(scene, step, held))?;
    let voice = scene.voice;
    let lock = voice.thing(found.held);
    let other = scene.holding().find(|(s, _)| s.thread == found.step.held_by);
    let callback = found.callback.clone().map(|c| format!(", {c},")).unwrap_or_default();
    let gil = scene.kind(found.step.waits_for) == ResourceKind::Gil;
    let wanted = voice.name(found.step.waits_for);
    let mut explanation = format!(
        "{} is inside {}, which keeps {lock} while it runs {}. In one of them{callback} it {}.",
        capital(&voice.thread(found.step.thread)),
        found.api,
        found.runs,
        voice.waits(found.step.waits_for),
    );
    if let Some((other, holds)) = other {
        explanation += &format!(
            " {} holds {} and {}{}.",
            capital(&voice.thread(other.thread)),
            voice.name(holds),
            voice.waits(other.waits_for),
            voice.in_device_call(other.thread),
        );
    }
    if gil && is_loader_lock(scene.kind(found.held)) {
        explanation += &format!(
            " The order is the GIL first, the loader's locks second: {} took them the other way round, in this {}.",
            voice.thread(found.step.thread),
            found.runs.trim_end_matches('s'),
        );
    }
    let advice = match (found.api.as_str(), gil) {
        (api, true) if ITERATE.contains(&api) => "Never enter Python from a dl_iterate_phdr callback: let a native \
            callback collect names and addresses, and call Python after dl_iterate_phdr has returned. On the other side, \
            release the GIL (Py_BEGIN_ALLOW_THREADS, py::gil_scoped_release) around calls that load code or enter the \
            loader, such as dlopen or hipModuleLoadData; either alone breaks this cycle."
            .to_owned(),
        (api, false) if ITERATE.contains(&api) => format!(
            "Take no lock, allocate nothing and throw nothing inside a dl_iterate_phdr callback: collect names and \
             addresses there, and use {wanted} after dl_iterate_phdr has returned. Do not call dlopen, dlclose or \
             dl_iterate_phdr while holding {wanted}."
        ),
        (_, true) => "Do not take the GIL in constructors or destructors that the loader runs: move that work to an init \
            function called after dlopen has returned. On the other side, release the GIL around dlopen, dlsym and calls \
            that load code."
            .to_owned(),
        (_, false) => format!(
            "Call back after the lock is released: copy what the callback needs, let go of {}, then call it. Or let the \
             callback take no lock that others hold while they want {}.",
            voice.name(found.held),
            voice.name(found.held),
        ),
    };
    Some(Story { explanation, advice, culprit: Some(found.step.thread) })
}

fn find(scene: &Scene<'_>, step: Step, held: ResourceId) -> Option<Found> {
    let kind = scene.kind(held);
    let named = |api: FrameIx| scene.voice.symbol(step.thread, api).unwrap_or_default();
    let loader = |names: &[&str], runs| {
        let api = scene.caller_named(step.thread, names)?;
        // without foreign code between the API and the wait it is the API itself that waits
        let callback = scene.called_back(step.thread, api)?;
        Some(Found { step, held, api: named(api).trim_start_matches('_').to_owned(), runs, callback: Some(callback) })
    };
    match kind {
        ResourceKind::LoaderWriteLock => loader(ITERATE, "callbacks"),
        ResourceKind::LoaderLock => loader(OPEN, "constructors")
            .or_else(|| loader(CLOSE, "destructors"))
            .or_else(|| loader(ITERATE, "callbacks")),
        // native code that took a lock and then called into Python
        kind if is_lock(kind) && kind != ResourceKind::Gil => {
            let taken = scene.hold(held, step.thread)?.taken_at?;
            let wait = scene.wait(step.thread)?;
            let entered = scene
                .voice
                .managed(step.thread)?
                .frames
                .iter()
                .find(|f| f.native.is_some_and(|n| wait.frame < n && n < taken))?;
            let api = scene.voice.symbol(step.thread, taken)?;
            Some(Found { step, held, api, runs: "callbacks", callback: Some(super::place(entered)) })
        }
        _ => None,
    }
}
