//! Source lines and inlined functions, by addr2line.

use super::Location;
use super::headers::Headers;
use super::names::demangle;
use super::section::Part;
use crate::memory::FileBytes;
use std::sync::{Mutex, PoisonError};

/// Inlined functions given for one address at most.
const INLINED: usize = 64;

/// Debug information made ready to be asked.
pub(super) struct Lines(Mutex<addr2line::Context<Part>>);

impl Lines {
    /// Reads the units of `file`'s debug information; `supplement` is its dwz file. `None` where it has none.
    pub(super) fn open(file: (&FileBytes, &Headers), supplement: Option<(&FileBytes, &Headers)>) -> Option<Lines> {
        file.1.section(file.0, ".debug_info")?;
        let load = |(bytes, headers): (&FileBytes, &Headers)| {
            gimli::Dwarf::load(|id| Ok::<Part, gimli::Error>(Part::section(bytes, headers, id.name()))).ok()
        };
        let mut dwarf = load(file)?;
        if let Some(sup) = supplement.and_then(load) {
            dwarf.set_sup(sup);
        }
        Some(Lines(Mutex::new(addr2line::Context::from_dwarf(dwarf).ok()?)))
    }

    /// Where `at` stands in the source, innermost inlined function first. Empty where nothing is known.
    pub(super) fn locate(&self, at: u64) -> Vec<Location> {
        let context = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        // debug information split off into .dwo files is not looked for
        let Ok(mut frames) = context.find_frames(at).skip_all_loads() else { return found };
        while let Ok(Some(frame)) = frames.next() {
            if found.len() >= INLINED {
                break;
            }
            let name = frame.function.as_ref().and_then(|f| f.raw_name().ok()).map(|n| demangle(&n));
            let (file, line) = frame.location.map_or((None, None), |l| (l.file.map(str::to_owned), l.line));
            found.push(Location { function: name, file, line: line.filter(|n| *n > 0), inlined: true });
        }
        if let Some(last) = found.last_mut() {
            last.inlined = false;
        }
        found.retain(|l| l.function.is_some() || l.file.is_some());
        found
    }
}
