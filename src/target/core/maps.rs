//! The mappings of a core: segments tell permissions, the file note tells paths; gcore leaves out of its segments what
//! the program only read, so neither is complete.

use super::notes::{FileRange, Notes};
use super::segments::{Load, Segments};
use crate::target::{Mapping, Permissions};
use crate::units::Addr;
use std::path::PathBuf;

const AT_EXECFN: u64 = 31;
const AT_SYSINFO_EHDR: u64 = 33;
/// Where the kernel maps the legacy system call page of every process on x86-64.
const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// The union of segments and file note, ascending and disjoint. A minicore's own table stands for both.
pub(super) fn union(segments: &Segments, notes: &Notes) -> Vec<Mapping> {
    if !notes.own.mappings.is_empty() {
        return notes.own.mappings.clone();
    }
    let loads = &segments.loads;
    let files = &notes.files;
    let mut bounds: Vec<u64> =
        loads.iter().flat_map(|l| [l.start, l.end]).chain(files.iter().flat_map(|f| [f.start, f.end])).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut last: Option<(Option<&Load>, Option<&FileRange>)> = None;
    for pair in bounds.windows(2) {
        let &[start, end] = pair else { continue };
        let load = loads.get(loads.partition_point(|l| l.end <= start)).filter(|l| l.start <= start);
        let file = files.get(files.partition_point(|f| f.end <= start)).filter(|f| f.start <= start);
        if load.is_none() && file.is_none() {
            last = None;
            continue;
        }
        let permissions = load.map_or_else(Permissions::default, |l| l.permissions);
        // several segments over one file range with equal rights were one mapping, cut by whoever wrote the core
        let joins = last.is_some_and(|(l, f)| {
            file.is_some()
                && f.map(|f| f.start) == file.map(|f| f.start)
                && l.is_some() == load.is_some()
                && l.map(|l| l.permissions) == load.map(|l| l.permissions)
        });
        match mappings.last_mut() {
            Some(before) if joins => before.end = Addr(end),
            _ => mappings.push(Mapping {
                start: Addr(start),
                end: Addr(end),
                offset: file.map_or(0, |f| f.offset.saturating_add(start - f.start)),
                permissions,
                device: (0, 0),
                inode: 0,
                path: file.map(|f| PathBuf::from(f.path.strip_suffix(" (deleted)").unwrap_or(&f.path))),
                deleted: file.is_some_and(|f| f.path.ends_with(" (deleted)")),
            }),
        }
        last = Some((load, file));
    }
    name(&mut mappings, &notes.auxv);
    mappings
}

/// Names what the auxiliary vector points into.
fn name(mappings: &mut [Mapping], auxv: &[(u64, u64)]) {
    let value = |kind| auxv.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v);
    let named = [(value(AT_SYSINFO_EHDR), "[vdso]"), (value(AT_EXECFN), "[stack]"), (Some(VSYSCALL), "[vsyscall]")];
    for (at, name) in named {
        let Some(at) = at else { continue };
        let i = mappings.partition_point(|m| m.end.0 <= at);
        if let Some(m) = mappings.get_mut(i).filter(|m| m.start.0 <= at && m.path.is_none()) {
            m.path = Some(PathBuf::from(name));
        }
    }
}
