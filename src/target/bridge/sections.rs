//! Mappings made up from the sections of files, where the debugger lists nothing else: a server that gives no files.

use crate::target::{Mapping, Permissions};
use crate::units::{Addr, PAGE};
use std::path::PathBuf;

/// A section of a file, where it is loaded.
pub(super) struct Section {
    pub start: u64,
    pub end: u64,
    /// As the file names it: `.text`.
    pub name: String,
    pub path: PathBuf,
}

/// Whether the program may write to it: then it lies in another segment than code and constants.
fn is_written(name: &str) -> bool {
    const WRITTEN: [&str; 9] = [
        ".data",
        ".bss",
        ".tdata",
        ".got",
        ".dynamic",
        ".init_array",
        ".fini_array",
        ".preinit_array",
        ".tm_clone_table",
    ];
    WRITTEN.iter().any(|w| name.starts_with(w)) || name.contains("vtables")
}

/// One mapping for what a file may not write to, one for what it may; ascending, whole pages.
pub(super) fn mappings(mut sections: Vec<Section>) -> Vec<Mapping> {
    sections.sort_by_key(|s| s.start);
    let mut out: Vec<Mapping> = Vec::new();
    // .tbss has an address and no bytes
    for s in sections.into_iter().filter(|s| s.start < s.end && s.name != ".tbss") {
        let write = is_written(&s.name);
        let end = Addr(s.end.checked_next_multiple_of(PAGE).unwrap_or(s.end));
        let start = Addr(s.start).page();
        match out.last_mut() {
            Some(last) if last.path.as_ref() == Some(&s.path) && last.permissions.write == write => {
                last.end = last.end.max(end);
            }
            last => {
                // the page that two segments of a file share
                let start = last.map_or(start, |last| start.max(last.end));
                if start < end {
                    out.push(Mapping {
                        start,
                        end,
                        offset: 0,
                        permissions: Permissions { read: true, write, execute: !write, shared: false },
                        device: (0, 0),
                        inode: 0,
                        path: Some(s.path),
                        deleted: false,
                    });
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_two_mappings() {
        let section = |start, end, name: &str, path: &str| Section { start, end, name: name.into(), path: path.into() };
        let made = mappings(vec![
            section(0x7000, 0x7010, ".text", "/lib/b"),
            section(0x1318, 0x1334, ".interp", "/bin/a"),
            section(0x2000, 0x2800, ".text", "/bin/a"),
            section(0x3d00, 0x3d10, ".tbss", "/bin/a"),
            section(0x3d00, 0x3e00, ".dynamic", "/bin/a"),
            section(0x4000, 0x5008, ".bss", "/bin/a"),
        ]);
        let told: Vec<_> = made.iter().map(|m| (m.start.0, m.end.0, m.permissions.execute)).collect();
        assert_eq!(told, [(0x1000, 0x3000, true), (0x3000, 0x6000, false), (0x7000, 0x8000, true)]);
    }
}
