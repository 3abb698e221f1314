//! ROCm: what threads in the HIP and HSA runtimes wait for. Of CUDA, NCCL and Level Zero the calls by name only.
//!
//! The libraries export C names only, and a call that an exported function hands on leaves no frame of its own: names are
//! taken from the calls. Knows nothing of interpreters, nor of what runs on the device.

mod call_site;
mod calls;

use super::{Decoder, Held, Runtime, View};
use crate::facts::{CalledAs, DeviceCall, Facts, Gap, RuntimeNote};
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::units::FrameIx;
use calls::{Calls, domain_of};

/// AMD's runtimes, and those of others by name.
pub struct Rocm;

impl Runtime for Rocm {
    fn name(&self) -> &'static str {
        "rocm"
    }

    fn find(&self, snapshot: &Snapshot, _memory: &dyn Memory) -> Option<Box<dyn Decoder>> {
        RocmDecoder::find(snapshot).map(|d| Box::new(d) as Box<dyn Decoder>)
    }
}

/// What was found of device libraries before the target was held.
struct RocmDecoder {
    /// HIP's version, by its file: `5.2.21153`.
    version: Option<String>,
    gaps: Vec<Gap>,
    notes: Vec<String>,
}

impl RocmDecoder {
    fn find(snapshot: &Snapshot) -> Option<RocmDecoder> {
        let mut of_device = snapshot.modules.iter().filter(|m| domain_of(m.name()).is_some()).peekable();
        of_device.peek()?;
        let mut hips: Vec<String> = snapshot
            .modules
            .iter()
            .filter(|m| m.name().starts_with("libamdhip64.so"))
            .map(|m| m.path.display().to_string())
            .collect();
        hips.sort();
        hips.dedup();
        let version = hips.first().and_then(|path| version_of(path.rsplit('/').next()?));
        let notes = if hips.len() > 1 {
            vec![format!(
                "two HIP runtimes are loaded, {}: each keeps its own streams, locks and modules, a known cause of trouble",
                hips.join(" and ")
            )]
        } else {
            Vec::new()
        };
        Some(RocmDecoder { version, gaps: Vec::new(), notes })
    }
}

/// The version a library's file name ends in: `libamdhip64.so.5.2.21153` is 5.2.21153. One number is the interface's.
fn version_of(file: &str) -> Option<String> {
    let (_, version) = file.split_once(".so.")?;
    let numbers = version.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    (numbers && version.contains('.')).then(|| version.to_owned())
}

impl Decoder for RocmDecoder {
    fn gather(&self, _held: &Held<'_>) {}

    fn decode(&self, view: &View<'_>) -> Facts {
        let mut facts = Facts { gaps: self.gaps.clone(), notes: self.notes.clone(), ..Facts::default() };
        facts.runtime = Some(RuntimeNote { name: "rocm", version: self.version.clone(), build: None });
        let calls = Calls::new(view);
        for index in 0..view.snapshot.threads.len() {
            let thread = view.thread(index);
            let of_thread = calls.of(index);
            for call in &of_thread {
                let (Some(function), Some(frame)) = (&call.function, call.frames.end.checked_sub(1)) else { continue };
                let frame = FrameIx(u32::try_from(frame).unwrap_or(u32::MAX));
                if call.hidden {
                    facts.called.push(CalledAs { thread, frame, function: function.clone() });
                }
                let said = DeviceCall { function: function.clone(), frame };
                facts.device_calls.entry(thread).or_default().insert(0, said);
            }
        }
        facts
    }
}
