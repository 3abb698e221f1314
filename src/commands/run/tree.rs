//! The processes below us: found, proven to be ours, ended.
//!
//! A signal goes only to a process that is proven ours. A child of ours that was not reaped keeps its PID, and `waitid` tells
//! whether a PID is a child's; `/proc` merely says where to look, and where there is none every PID is asked. What lies deeper
//! is held by its handle (pidfd) while its parent, itself proven, is seen to be its parent. As child subreaper we inherit
//! whom their parents leave behind, so `waitid` saying `ECHILD` proves that nobody is left.

use super::sys::{self, Handle, Whose};
use crate::target::live;
use crate::units::Pid;
use nix::errno::Errno;
use nix::libc::{SIGCONT, SIGKILL, SIGTERM};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the tree may take to end after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(3);
/// How long SIGKILL may take: only a process deep in the kernel needs longer.
pub const KILL: Duration = Duration::from_secs(5);
/// How many times as long where new ones are met again and again: a storm of forks leaves us little of the CPU.
pub const PATIENCE: u32 = 4;
/// How long we sleep between two looks; the end of a child ends it.
const SLICE: Duration = Duration::from_millis(20);
/// Processes diagnosed at all. A larger tree is a build, not a deadlock; what is left out is said.
const AT_MOST: usize = 128;
/// How deep we look for children of children; each step holds a descriptor. Who lies deeper is met once it is ours.
const DEPTH: usize = 64;
/// No PID is larger (`PID_MAX_LIMIT`, Linux `include/linux/threads.h`).
const LARGEST_PID: i32 = 4 << 20;
/// The usual `pid_max`.
const USUAL_PID: i32 = 1 << 15;

/// Every living process below us, parents before their children, and how many more there are than we look at.
///
/// # Errors
/// Where `/proc` does not show them: one line.
pub fn to_diagnose() -> Result<(Vec<Pid>, usize), String> {
    if !proc_is_ours() {
        return Err("/proc is not mounted here, or shows another PID namespace; mount -t proc proc /proc".to_owned());
    }
    let us = Pid(nix::unistd::getpid().as_raw());
    let mut all: Vec<Pid> = live::descendants(us).into_iter().filter(|p| *p != us && has_living_thread(*p)).collect();
    let more = all.len().saturating_sub(AT_MOST);
    all.truncate(AT_MOST);
    Ok((all, more))
}

/// Whether `/proc` shows our own PID namespace: then its numbers mean what system calls mean by them.
fn proc_is_ours() -> bool {
    let us = nix::unistd::getpid().to_string();
    let link = fs::read_link("/proc/self").is_ok_and(|to| to.as_os_str() == OsStr::new(&us));
    // one number for each namespace from that of `/proc` down to our own; before Linux 4.1 there is no such line
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let numbers = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"));
    link && numbers.is_none_or(|n| n.trim_ascii() == us.as_bytes())
}

/// Whether any thread of the process still is there: a leader that has ended leaves a zombie while the others go on.
fn has_living_thread(pid: Pid) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().any(|task| {
        let (state, _) = state_and_parent(&task.path()).unwrap_or((b'X', 0));
        !matches!(state, b'Z' | b'X' | b'x')
    })
}

/// The state letter and the parent of a process or thread, from its directory in `/proc`. Its name may be any bytes.
fn state_and_parent(directory: &Path) -> Option<(u8, i32)> {
    let stat = fs::read(directory.join("stat")).ok()?;
    let after_name = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = stat.get(after_name + 1..)?.split(|b| *b == b' ').filter(|f| !f.is_empty());
    let state = *fields.next()?.first()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some((state, parent))
}

/// Takes a PID and what signals that process.
type Visit<'a> = dyn FnMut(i32, &dyn Fn(i32)) + 'a;

/// What lies below us.
pub struct Tree {
    /// Children we had before CMD (who became us by `exec` may have some): none of our business.
    spared: BTreeSet<i32>,
}

impl Tree {
    /// Of a process all of whose children belong to CMD.
    pub fn new_of_all() -> Tree {
        Tree { spared: BTreeSet::new() }
    }

    /// To be called before CMD exists.
    pub fn new() -> Tree {
        let mut tree = Tree { spared: BTreeSet::new() };
        if tree.reap() {
            tree.spared = tree.children().into_iter().collect();
        }
        tree
    }

    /// Reaps all children that have ended; whether any is left.
    fn reap(&mut self) -> bool {
        loop {
            match sys::child(Whose::Any, sys::REAP) {
                Ok(Some((pid, _))) => drop(self.spared.remove(&pid)),
                Err(Errno::ECHILD) => return false,
                _ => return self.spared.is_empty() || !self.children().is_empty(),
            }
        }
    }

    /// Our children but for those spared, zombies included, each of them proven.
    fn children(&self) -> Vec<i32> {
        let ours = |pid: &i32| !self.spared.contains(pid) && sys::is_child(*pid);
        let listed: Vec<i32> = listed_children("self").into_iter().filter(ours).collect();
        if !listed.is_empty() || sys::child(Whose::Any, sys::ENDED) == Err(Errno::ECHILD) {
            return listed;
        }
        // no usable list: all PIDs are asked, the usual ones first
        let usual: Vec<i32> = (1..=USUAL_PID).filter(ours).collect();
        if usual.is_empty() { (USUAL_PID + 1..=LARGEST_PID).filter(ours).collect() } else { usual }
    }

    /// Tells `visit` every process below us with a way to signal it, parents first. With `deep` all, else our children.
    fn each(&self, deep: bool, visit: &mut Visit<'_>) {
        let deep = deep && proc_is_ours();
        for pid in self.children() {
            visit(pid, &|signal| sys::send(pid, signal, None));
            if deep {
                // not reaped meanwhile, so it keeps its PID
                each_below(pid, &|| true, DEPTH, visit);
            }
        }
    }

    /// Ends everything below us: SIGTERM, `grace`, SIGKILL for at most `kill`. `pause` sleeps until a child ends, at most as
    /// long as it is told, and says whether to wait no longer. Returns who did not go.
    pub fn end(&mut self, grace: Duration, kill: Duration, pause: &mut dyn FnMut(Duration) -> bool) -> Vec<i32> {
        let until = Instant::now() + grace;
        let mut told = BTreeSet::new();
        while Instant::now() < until {
            if !self.reap() {
                return Vec::new();
            }
            self.each(true, &mut |pid, send| {
                if told.insert(pid) {
                    send(SIGTERM);
                    // a stopped process takes SIGTERM only once it goes on
                    send(SIGCONT);
                }
            });
            if pause(SLICE.min(until.saturating_duration_since(Instant::now()))) {
                break;
            }
        }
        let began = Instant::now();
        let mut until = began + kill;
        let mut met = BTreeSet::new();
        loop {
            if !self.reap() {
                return Vec::new();
            }
            let mut fresh = false;
            self.each(false, &mut |pid, send| {
                send(SIGKILL);
                fresh |= met.insert(pid);
            });
            // those that fork and end are outrun only without a rest
            if fresh {
                until = (Instant::now() + kill).min(began + kill * PATIENCE);
            } else {
                self.each(true, &mut |_, send| send(SIGKILL));
                pause(SLICE);
            }
            if Instant::now() >= until {
                return self.survivors();
            }
        }
    }

    /// Who still lives below us.
    fn survivors(&mut self) -> Vec<i32> {
        let mut all = Vec::new();
        if self.reap() {
            self.each(true, &mut |pid, _| all.push(pid));
        }
        all
    }
}

/// Reaps all children that have ended but `one`; what became of that.
pub fn reap_all_but(one: i32) -> Option<sys::How> {
    while let Ok(Some((pid, how))) = sys::child(Whose::Any, sys::ENDED) {
        if pid == one {
            return Some(how);
        }
        let _ = sys::child(Whose::One(pid), sys::REAP);
    }
    None
}

/// The children of every thread of a process, as `/proc` lists them; none where it does not.
fn listed_children(pid: &str) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<i32>>()).collect()
}

/// Tells `visit` every process below `parent`, of which `holds` says whether it still is the process meant.
fn each_below(parent: i32, holds: &dyn Fn() -> bool, depth: usize, visit: &mut Visit<'_>) {
    for pid in listed_children(&parent.to_string()) {
        // first held, then looked at, then seen to be alive still: so what was looked at is what is held
        let Ok(handle) = Handle::open(pid) else { continue };
        let child_of = state_and_parent(Path::new(&format!("/proc/{pid}"))).map(|(_, parent)| parent);
        if child_of != Some(parent) || handle.has_ended() || !holds() {
            continue;
        }
        visit(pid, &|signal| handle.send(signal));
        if depth > 0 {
            each_below(pid, &|| !handle.has_ended(), depth - 1, visit);
        }
    }
}
