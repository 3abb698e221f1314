//! `import-cycle`: a module is being imported by a thread that waits for another one which wants to import the module.

use super::join_while_holding::joins;
use super::{Pattern, Scene, Story};
use crate::facts::ResourceKind;
use crate::verdict::voice::capital;

pub(super) const PATTERN: Pattern = Pattern { word: "import-cycle", tell };

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let steps = scene.steps();
    if steps.len() < 2 {
        return None;
    }
    let importer = |kind| kind == ResourceKind::PythonImportLock;
    let (step, held) = scene.holding().find(|(_, held)| importer(scene.kind(*held)))?;
    let voice = scene.voice;
    let started = if joins(scene.kind(step.waits_for)) {
        "Start threads, and wait for them, after the import: in a function that the program calls, not in the module's body."
    } else {
        "Import the module before the lock is taken, at the top of the file; and take no lock in a module's body that is \
         held anywhere while modules are imported."
    };
    Some(Story {
        explanation: format!(
            "{}. A module's import lock is kept until its body has run; {} imports it, and {} first.",
            capital(&scene.round()),
            voice.thread(step.thread),
            voice.waits(step.waits_for),
        ),
        advice: format!("{started} {} would then be free when others want it.", capital(&voice.name(held))),
        culprit: Some(step.thread),
    })
}
