//! Processes that their terminal's driver stopped: one of a background process group that set the terminal, wrote to it where
//! `tostop` is on, or read from it (Linux `drivers/tty/tty_jobctrl.c`, `__tty_check_change`).
//!
//! The call is tried again as soon as the process runs on, and stops it again: SIGCONT alone does not help.

use super::calls;
use crate::facts::{Evidence, Facts, Mode, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait, Wakers};
use crate::snapshot::Snapshot;
use crate::units::{FrameIx, Pid, ProcessIx, ThreadRef};
use std::collections::BTreeMap;

/// A process's place at its terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminal {
    /// The process group.
    pub group: i32,
    /// The group in the foreground of the controlling terminal.
    pub foreground: i32,
}

/// What a stopped call did to the terminal.
struct Refused {
    signal: &'static str,
    call: &'static str,
}

/// Requests of `ioctl` that change the terminal (Linux `include/uapi/asm-generic/ioctls.h`): TCSETS, TCSETSW, TCSETSF, TCSETA,
/// TCSETAW, TCSETAF, TIOCSPGRP, TIOCSWINSZ is none of them.
fn of_request(request: u64) -> Option<&'static str> {
    match request & 0xffff_ffff {
        0x5402..=0x5404 | 0x5406..=0x5408 => Some("tcsetattr"),
        0x5410 => Some("tcsetpgrp"),
        0x5409 => Some("tcsendbreak or tcdrain"),
        0x540a => Some("tcflow"),
        0x540b => Some("tcflush"),
        _ => None,
    }
}

/// The number of `ioctl` by its entry in the table of calls.
fn is_named(number: Option<u64>, name: &str) -> bool {
    number.and_then(calls::find).is_some_and(|c| c.name == name)
}

fn refused(snapshot: &Snapshot) -> Option<Refused> {
    let syscall = snapshot.threads.iter().find_map(|t| t.syscall)?;
    let ([fd, second, ..], number) = (syscall.args, syscall.number);
    let fd = i32::try_from(fd & 0xffff_ffff).ok()?;
    // what is not known to be a terminal is none
    let open = snapshot.process.descriptors.get(&fd)?;
    if !(open.to.starts_with("/dev/pts/") || open.to.starts_with("/dev/tty")) {
        return None;
    }
    if is_named(number, "ioctl") {
        return of_request(second).map(|call| Refused { signal: "SIGTTOU", call });
    }
    if is_named(number, "write") {
        return Some(Refused { signal: "SIGTTOU", call: "write" });
    }
    is_named(number, "read").then_some(Refused { signal: "SIGTTIN", call: "read" })
}

/// Makes waits of the stops that the terminal caused; gives the processes that are stopped for another reason.
pub fn join(snapshots: &[Snapshot], terminals: &BTreeMap<Pid, Terminal>, facts: &mut Facts) -> Vec<Pid> {
    let mut others = Vec::new();
    for (index, snapshot) in snapshots.iter().enumerate() {
        if snapshot.threads.is_empty() || snapshot.threads.iter().any(|t| t.state != Some('T')) {
            continue;
        }
        let pid = snapshot.process.pid;
        let background = terminals.get(&pid).filter(|t| t.foreground > 0 && t.group != t.foreground);
        match background.zip(refused(snapshot)) {
            Some((terminal, refused)) => {
                let process = ProcessIx(u32::try_from(index).unwrap_or(u32::MAX));
                tell(process, pid, *terminal, &refused, snapshot.threads.len(), facts);
            }
            None => others.push(pid),
        }
    }
    others
}

fn tell(process: ProcessIx, pid: Pid, terminal: Terminal, refused: &Refused, threads: usize, facts: &mut Facts) {
    let number = u64::from(pid.0.unsigned_abs()) | STOPPED;
    let id = ResourceId::Numbered(process, ResourceKind::Signal, number);
    let Refused { signal, call } = refused;
    facts.resources.push(Resource {
        id,
        kind: ResourceKind::Signal,
        name: Some(format!(
            "the foreground of its terminal: {signal} stopped it in {call}, from a background process group"
        )),
        address: None,
        reentrancy: Reentrancy::Unknown,
        wakers: Wakers::Outside,
        idle: false,
    });
    let evidence = Evidence::new(format!(
        "process {pid} is stopped (state T) in {call} on its terminal; its process group is {}, the one in the foreground {}",
        terminal.group, terminal.foreground
    ));
    for thread in (0..u32::try_from(threads).unwrap_or(u32::MAX)).map(|thread| ThreadRef { process, thread }) {
        facts.waits.retain(|w| w.thread != thread);
        facts.waits.push(Wait {
            thread,
            on: id,
            mode: Mode::Exclusive,
            timeout: Timeout::None,
            frame: FrameIx(0),
            managed_frame: None,
            evidence: vec![evidence.clone()],
        });
        facts.terminal_stops.insert(thread, signal);
    }
}

/// Marks the number of a process as that of one its terminal stopped.
const STOPPED: u64 = 1 << 43;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtimes::tests::MadeUp;
    use crate::target::Descriptor;

    /// The name of what a process waits for that is stopped in a call on descriptor 0.
    fn stopped(number: u64, request: u64, to: &str, foreground: i32) -> Option<String> {
        let mut made = MadeUp::new();
        let t = made.thread(100, Some((number, [0, request, 0, 0, 0, 0])));
        made.snapshot.threads[t].state = Some('T');
        let open = Descriptor { to: to.to_owned(), pipe: None, reads: false, writes: false };
        made.snapshot.process.descriptors.insert(0, open);
        let terminals = [(made.snapshot.process.pid, Terminal { group: 100, foreground })].into();
        let mut facts = Facts::default();
        let others = join(&[made.snapshot], &terminals, &mut facts);
        assert_ne!(others.is_empty(), facts.waits.is_empty());
        facts.resources.first().and_then(|r| r.name.clone())
    }

    #[test]
    fn only_a_call_on_the_terminal_from_the_background() {
        let told = |signal, call| {
            Some(format!(
                "the foreground of its terminal: {signal} stopped it in {call}, from a background process group"
            ))
        };
        assert_eq!(stopped(16, 0x5403, "/dev/pts/3", 50), told("SIGTTOU", "tcsetattr"));
        assert_eq!(stopped(16, 0x5410, "/dev/tty", 50), told("SIGTTOU", "tcsetpgrp"));
        assert_eq!(stopped(0, 0x1000, "/dev/pts/3", 50), told("SIGTTIN", "read"));
        assert_eq!(stopped(16, 0x5403, "/dev/pts/3", 100), None, "in the foreground");
        assert_eq!(stopped(16, 0x5413, "/dev/pts/3", 50), None, "asking for the window's size stops nobody");
        assert_eq!(stopped(0, 0x1000, "pipe:[7]", 50), None);
        assert_eq!(stopped(230, 0, "/dev/pts/3", 50), None, "stopped while it slept");
    }
}
