//! A thread blocked in `open`: which file, and for what.
//!
//! The open of a FIFO sleeps until another process opens its other end (Linux `fs/pipe.c`, `fifo_open`). Whether the path
//! is a FIFO the machine must tell: memory holds the path alone.

use super::calls::{self, Object};
use super::{FIFOS, arg, int_arg};
use crate::facts::{Evidence, Facts, Opening, ResourceId, ResourceKind, Wakers};
use crate::memory::MemoryExt;
use crate::runtimes::View;
use crate::units::{Addr, ThreadRef, harmless};
use std::collections::BTreeMap;

/// Bytes of a path that are read at most.
pub(super) const MAX_PATH: usize = 512;
/// `O_ACCMODE` and its values (Linux `include/uapi/asm-generic/fcntl.h`).
const O_ACCMODE: i32 = 3;
const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;

/// What the thread at `index` is opening; `None` where it is in another call, or the path was not read.
pub(super) fn of(view: &View<'_>, index: usize) -> Option<Opening> {
    let syscall = view.syscall(index)?;
    let call = syscall.number.and_then(calls::find)?;
    let Object::Path(i) = call.object else { return None };
    let path = view
        .memory
        .read_c_string(Addr(arg(&syscall, i)), MAX_PATH)
        .ok()
        .filter(|p| (1..MAX_PATH).contains(&p.len()))?;
    let access = int_arg(&syscall, i + 1) & O_ACCMODE;
    // the directory of `openat`: AT_FDCWD is -100
    let directory = i.checked_sub(1).map(|d| int_arg(&syscall, d)).filter(|fd| *fd >= 0);
    Some(Opening { path, directory, reads: access == O_RDONLY, writes: access == O_WRONLY })
}

/// `open of answers.fifo for writing`.
pub(super) fn describe(opening: &Opening) -> String {
    let path = String::from_utf8_lossy(&opening.path);
    let path: String = path.chars().map(harmless).collect();
    let purpose = match (opening.reads, opening.writes) {
        (true, _) => " for reading",
        (_, true) => " for writing",
        _ => "",
    };
    format!("open of {path}{purpose}")
}

/// Makes of the opens of FIFOs waits for the other end: all who open one FIFO for the same purpose wait for one thing.
pub(super) fn name_fifos(fifos: &BTreeMap<ThreadRef, u64>, facts: &mut Facts) {
    for wait in &mut facts.waits {
        let Some((inode, opening)) = fifos.get(&wait.thread).zip(facts.openings.get(&wait.thread)) else { continue };
        let (end, mark) = match (opening.reads, opening.writes) {
            (true, _) => ("writing", 0),
            (_, true) => ("reading", 1),
            // O_RDWR does not wait
            _ => continue,
        };
        // another decoder's account of the thread is not about the open
        let Some(resource) = facts.resources.iter_mut().find(|r| r.id == wait.on && r.kind == ResourceKind::FileIo)
        else {
            continue;
        };
        let path = String::from_utf8_lossy(&opening.path);
        let file: String = path.rsplit('/').next().unwrap_or(&path).chars().map(harmless).collect();
        resource.id = ResourceId::Shared { device: FIFOS, inode: *inode, offset: mark };
        resource.kind = ResourceKind::Pipe;
        resource.name = Some(format!("the FIFO {file} to be opened for {end}"));
        resource.wakers = Wakers::Outside;
        wait.on = resource.id;
        wait.evidence.push(Evidence::new(format!(
            "it is in the {}, which returns when some process opens that FIFO for {end}",
            describe(opening)
        )));
    }
}
