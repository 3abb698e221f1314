//! `hangscope attach PID...`

use crate::cli::{Attach, Common};
use crate::diagnose::{self, Options};
use crate::units::Pid;
use crate::verdict::Kind;

/// Attaches, reports, gives the exit code.
///
/// # Errors
/// When nothing could be analysed.
pub fn run(args: &Attach, common: &Common) -> anyhow::Result<u8> {
    let mut options = Options {
        no_stop: args.no_stop,
        max_pause: args.max_pause,
        samples: args.samples,
        interval: args.interval,
        save_core: args.save_core.clone(),
        ..common.diagnose_options()
    };
    let mut pids: Vec<Pid> = args.pids.iter().map(|p| Pid(*p)).collect();
    if args.tree {
        // a root that is not there has no family, and its own error is to be told
        let families: Vec<Pid> = pids.iter().flat_map(|p| crate::target::live::descendants(*p)).collect();
        options.found = families.iter().filter(|p| !pids.contains(p)).copied().collect();
        pids.extend(families);
    }
    pids.sort();
    pids.dedup();
    let diagnosis = diagnose::live(&pids, &options)?;
    let code = super::deliver(&diagnosis, common)?;
    if diagnosis.captured.unsaved {
        // the report has said why; a verdict that matters still counts
        let harmless = matches!(diagnosis.verdict.kind, Kind::Busy | Kind::Idle);
        if let Some(why) = diagnosis.captured.warnings.last() {
            eprintln!("hangscope: {why}");
        }
        return Ok(if harmless { super::NOTHING } else { code });
    }
    Ok(code)
}
