//! The processes below us, as `/proc` tells them.

use super::AT_MOST;
use crate::target::live;
use crate::units::Pid;
use std::fs;

/// Every living process below us, parents before their children, and how many more there are than we look at.
pub fn of_our_children() -> (Vec<Pid>, usize) {
    let mut all: Vec<Pid> = descendants().into_iter().filter(|p| lives(*p)).collect();
    let more = all.len().saturating_sub(AT_MOST);
    all.truncate(AT_MOST);
    (all, more)
}

/// Every process below us, zombies included.
pub fn descendants() -> Vec<Pid> {
    let us = Pid(nix::unistd::getpid().as_raw());
    live::descendants(us).into_iter().filter(|p| *p != us).collect()
}

/// Whether any thread of the process still is there: a leader that has ended leaves a zombie while the others go on.
pub fn lives(pid: Pid) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // the name stands in parentheses and may hold any character, these included
        let state = stat.rfind(')').and_then(|end| stat.get(end + 2..end + 3));
        state.is_some_and(|s| !matches!(s, "Z" | "X" | "x"))
    })
}
