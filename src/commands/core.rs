//! `hangscope core CORE`

use crate::cli::{Common, Core};
use crate::diagnose;

/// Opens the core, reports, gives the exit code.
///
/// # Errors
/// When nothing could be analysed.
pub fn run(args: &Core, common: &Common) -> anyhow::Result<u8> {
    let diagnosis = diagnose::core(&args.core, args.exe.as_deref(), &common.diagnose_options())?;
    super::deliver(&diagnosis, common)
}
