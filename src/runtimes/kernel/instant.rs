//! What is asked of the kernel while a process is held, and what its answers say of a wait.

use super::{calls, int_arg, poll_set};
use crate::arch::Syscall;
use crate::facts::ResourceKind;
use crate::memory::{Memory, MemoryExt};
use crate::runtimes::{Held, View};
use crate::target::Inquiry;
use crate::units::{Addr, Pid};
use calls::{Call, Object};

/// Descriptors of one `poll` that are asked about, at most.
const MAX_POLLED: usize = 16;

/// What to ask of a held process: about descriptors, children and signals that its threads wait for.
#[must_use]
pub fn inquire(held: &Held<'_>) -> Inquiry {
    let mut inquiry = Inquiry::default();
    let ours = held.threads.iter().all(|t| t.tid.0 == t.host_tid.0);
    for thread in held.threads {
        let Some(syscall) = thread.syscall else { continue };
        let Some(call) = syscall.number.and_then(calls::find) else { continue };
        let fds: Vec<i32> = match call.object {
            Object::From(i) | Object::To(i) => vec![int_arg(&syscall, i)],
            Object::PollSet => polled(held.memory, &syscall).map(|(fd, _)| fd).take(MAX_POLLED).collect(),
            _ => Vec::new(),
        };
        let open = &held.snapshot.process.descriptors;
        inquiry.descriptors.extend(fds.into_iter().filter_map(|fd| Some((fd, open.get(&fd)?.clone()))));
        match child(call, &syscall) {
            // numbers of another PID namespace name other processes here
            Some(Child::One(pid)) if ours => drop(inquiry.children.insert(pid)),
            Some(Child::Any) => inquiry.any_child = true,
            _ => {}
        }
        if let Some(mask) = awaited_signals(held.memory, call, &syscall) {
            inquiry.signals.insert(thread.host_tid, mask);
        }
    }
    inquiry
}

/// Where the mask of signals of a call lies.
pub(super) fn mask_at(call: &Call, syscall: &Syscall) -> Option<Addr> {
    (call.kind == ResourceKind::Signal && call.name != "pause").then_some(Addr(syscall.args[0]))
}

/// The signals that end a call: those of its set, or those its mask does not block.
fn awaited_signals(memory: &dyn Memory, call: &Call, syscall: &Syscall) -> Option<u64> {
    let mask = memory.read_u64(mask_at(call, syscall)?).ok()?;
    Some(if call.name == "rt_sigsuspend" { !mask } else { mask })
}

/// Whose end a call waits for.
enum Child {
    One(Pid),
    Any,
}

fn child(call: &Call, syscall: &Syscall) -> Option<Child> {
    match (call.object, int_arg(syscall, 0), int_arg(syscall, 1)) {
        (Object::Child, pid, _) if pid > 0 => Some(Child::One(Pid(pid))),
        (Object::Child, -1, _) | (Object::ChildId, 0, _) => Some(Child::Any),
        (Object::ChildId, 1, pid) => Some(Child::One(Pid(pid))),
        _ => None,
    }
}

/// The descriptors of a `poll` and the events asked for of each.
fn polled(memory: &dyn Memory, syscall: &Syscall) -> impl Iterator<Item = (i32, u16)> + use<> {
    let (at, len) = poll_set(syscall);
    let bytes = if len == 0 { Vec::new() } else { memory.read_vec(at, len).unwrap_or_default() };
    let each = |e: &[u8]| {
        Some((i32::from_le_bytes(e.get(..4)?.try_into().ok()?), u16::from_le_bytes(e.get(4..6)?.try_into().ok()?)))
    };
    bytes.chunks_exact(8).filter_map(each).collect::<Vec<_>>().into_iter()
}

/// Why a wait is over, though the thread has not run since; `None` where it is not, or where that is not known.
pub(super) fn over(view: &View<'_>, index: usize, call: &Call, syscall: &Syscall) -> Option<String> {
    const POLLIN: u16 = 1;
    const POLLOUT: u16 = 4;
    let instant = &view.snapshot.process.at_instant;
    let thread = view.snapshot.threads.get(index)?;
    let ready = |fd: i32| instant.ready.get(&fd);
    match call.object {
        Object::From(i) if ready(int_arg(syscall, i)).is_some_and(|r| r.to_read) => {
            return Some(format!("at this instant fd {} has something to give", int_arg(syscall, i)));
        }
        Object::To(i) if ready(int_arg(syscall, i)).is_some_and(|r| r.to_write) => {
            return Some(format!("at this instant fd {} takes more", int_arg(syscall, i)));
        }
        Object::PollSet => {
            let came = |(fd, events): &(i32, u16)| {
                ready(*fd).is_some_and(|r| events & POLLIN != 0 && r.to_read || events & POLLOUT != 0 && r.to_write)
            };
            return polled(view.memory, syscall)
                .take(MAX_POLLED)
                .find(came)
                .map(|(fd, _)| format!("at this instant fd {fd} is ready"));
        }
        _ => {}
    }
    match child(call, syscall) {
        Some(Child::One(pid)) if instant.ended.contains(&pid) => return Some(format!("child {pid} has ended")),
        Some(Child::Any) if !instant.ended.is_empty() => return Some("a child has ended".to_owned()),
        _ => {}
    }
    let signalled = call.kind == ResourceKind::Signal && instant.signalled.contains(&thread.host_tid);
    signalled.then(|| "a signal that it waits for is pending".to_owned())
}
