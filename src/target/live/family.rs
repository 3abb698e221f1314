//! Which processes a process has started, as `/proc` tells it.

use super::proc::{read_file, read_short};
use crate::units::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Processes of one family we follow at most.
const MAX_FAMILY: usize = 65_536;

/// `of` and every process below it, parents before their children, zombies included. A process that was re-parented is
/// below its new parent. Empty where there is no process `of`.
#[must_use]
pub fn descendants(of: Pid) -> Vec<Pid> {
    if !Path::new(&format!("/proc/{of}")).exists() {
        return Vec::new();
    }
    let mut parents: Option<BTreeMap<Pid, Vec<Pid>>> = None;
    let mut seen = BTreeSet::from([of]);
    let mut family = vec![of];
    let mut next = 0;
    while let Some(pid) = family.get(next).copied().filter(|_| family.len() < MAX_FAMILY) {
        next += 1;
        let children = children(pid).unwrap_or_else(|| {
            let parents = parents.get_or_insert_with(by_parent);
            parents.get(&pid).cloned().unwrap_or_default()
        });
        family.extend(children.into_iter().filter(|c| seen.insert(*c)));
    }
    family
}

/// The children of each thread of `pid`; `None` where this kernel does not list them (`CONFIG_PROC_CHILDREN`).
#[must_use]
pub fn children(pid: Pid) -> Option<Vec<Pid>> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Some(Vec::new()) };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        match read_file(&task.path().join("children")) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                found.extend(text.split_ascii_whitespace().filter_map(|p| p.parse().ok()).map(Pid));
            }
            // a thread that ended meanwhile takes the file with it; a kernel without the option never had it
            Err(_) if task.path().exists() => return None,
            Err(_) => {}
        }
    }
    found.sort_unstable();
    Some(found)
}

/// Every process under its parent, from the parent's number in `stat`: its fourth field.
fn by_parent() -> BTreeMap<Pid, Vec<Pid>> {
    let mut parents: BTreeMap<Pid, Vec<Pid>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let Ok(stat) = read_short(&entry.path().join("stat")) else { continue };
        if let Some(parent) = parse_parent(&stat) {
            parents.entry(parent).or_default().push(Pid(pid));
        }
    }
    parents
}

pub(super) fn parse_parent(stat: &[u8]) -> Option<Pid> {
    let text = String::from_utf8_lossy(stat);
    let after_name = text.get(text.rfind(')')? + 1..)?;
    after_name.split_ascii_whitespace().nth(1)?.parse().ok().map(Pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_family_is_listed_parents_first() {
        let us = Pid(std::process::id().cast_signed());
        // `exec` only in the last: sh, its child sh, and that one's sleep
        let mut sh = Command::new("sh").args(["-c", "sh -c 'sleep 30; :' ; :"]).stdout(Stdio::null()).spawn().unwrap();
        let top = Pid(sh.id().cast_signed());
        let mut family = Vec::new();
        for _ in 0..500 {
            family = descendants(top);
            if family.len() == 3 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let ours = descendants(us);
        for pid in family.iter().rev() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.0), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = sh.wait();
        assert_eq!(family.len(), 3, "{family:?}");
        assert_eq!(family.first(), Some(&top));
        assert_eq!(ours.first(), Some(&us));
        assert!(family.iter().all(|p| ours.contains(p)), "{family:?} in {ours:?}");
    }

    #[test]
    fn the_slow_way_agrees() {
        let mut sleep = Command::new("sleep").arg("30").spawn().unwrap();
        let us = Pid(std::process::id().cast_signed());
        let listed = by_parent().get(&us).cloned().unwrap_or_default();
        let pid = Pid(sleep.id().cast_signed());
        let _ = sleep.kill();
        let _ = sleep.wait();
        assert!(listed.contains(&pid), "{listed:?}");
        assert_eq!(parse_parent(b"7 (a) b (c)) S 42 7 7 0"), Some(Pid(42)));
        assert_eq!(parse_parent(b"nonsense"), None);
    }

    #[test]
    fn nobody_has_no_family() {
        assert!(descendants(Pid(i32::MAX)).is_empty());
    }
}
