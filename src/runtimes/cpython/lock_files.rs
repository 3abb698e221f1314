//! Threads that poll for a lock of a file: they try, sleep a little and try again, in a function of a library known for it.
//!
//! No system call names the file meanwhile: the path is a variable of the function. Who holds the lock the machine must tell.

use super::facts::Telling;
use super::objects::Objects;
use super::place::{Framed, PyStack};
use crate::arch::Syscall;
use crate::facts::{
    Evidence, Facts, Mode, PolledFile, Reentrancy, Resource, ResourceId, ResourceKind, Timeout, Wait, Wakers,
};
use crate::target::ThreadState;
use crate::units::{Addr, FrameIx, harmless_text};
use std::collections::BTreeMap;

/// A function that returns when it has the lock of a file, and sleeps between its tries.
struct Poller {
    /// The end of the path of its source file.
    file: &'static str,
    function: &'static str,
    path: PathIn,
    /// Whether it gives up after a time.
    gives_up: GivesUp,
    /// Whether the file itself is the lock: it is taken by making the file, and nothing records who made it.
    by_existence: bool,
}

/// Where the function keeps the path: a `str`, or `bytes`.
enum PathIn {
    /// A local variable.
    Local(&'static str),
    /// An attribute of its first argument.
    Attribute(&'static str),
}

/// When a function gives up.
#[derive(Clone, Copy)]
enum GivesUp {
    /// Never.
    Never,
    /// Unless its variable `timeout` is `None` or negative.
    ByTimeout,
    /// After a time that its object keeps.
    Always,
}

/// Each as its project has it: filelock 3.0 to 3.20 (`acquire`), fasteners 0.14 to 0.20, portalocker 1 to 3, PyTorch 1.0 to 2.9
/// (`torch/utils/file_baton.py`, `FileBaton.wait`), lockfile 0.12.
const POLLERS: &[Poller] = &[
    Poller {
        file: "/filelock/_api.py",
        function: "acquire",
        path: PathIn::Local("lock_filename"),
        gives_up: GivesUp::ByTimeout,
        by_existence: false,
    },
    Poller {
        file: "/filelock.py",
        function: "acquire",
        path: PathIn::Local("lock_filename"),
        gives_up: GivesUp::ByTimeout,
        by_existence: false,
    },
    Poller {
        file: "/fasteners/process_lock.py",
        function: "acquire",
        path: PathIn::Attribute("path"),
        gives_up: GivesUp::ByTimeout,
        by_existence: false,
    },
    Poller {
        file: "/fasteners/process_lock.py",
        function: "_acquire",
        path: PathIn::Attribute("path"),
        gives_up: GivesUp::ByTimeout,
        by_existence: false,
    },
    Poller {
        file: "/portalocker/utils.py",
        function: "acquire",
        path: PathIn::Attribute("filename"),
        gives_up: GivesUp::Always,
        by_existence: false,
    },
    Poller {
        file: "/torch/utils/file_baton.py",
        function: "wait",
        path: PathIn::Attribute("lock_file_path"),
        gives_up: GivesUp::Never,
        by_existence: true,
    },
    Poller {
        file: "/lockfile/linklockfile.py",
        function: "acquire",
        path: PathIn::Attribute("lock_file"),
        gives_up: GivesUp::ByTimeout,
        by_existence: true,
    },
    Poller {
        file: "/lockfile/mkdirlockfile.py",
        function: "acquire",
        path: PathIn::Attribute("lock_file"),
        gives_up: GivesUp::ByTimeout,
        by_existence: true,
    },
];

/// Python frames between the sleep and the function: helpers that sleep for it.
const MAX_INNER: usize = 4;

/// Characters of a path that are told.
const MAX_NAME: usize = 160;

/// A thread that polls.
pub(super) struct Polling {
    /// Index of the function's frame.
    frame: usize,
    path: Vec<u8>,
    by_existence: bool,
    gives_up: bool,
}

/// The threads that poll for a lock of a file, by index into the snapshot's threads.
pub(super) fn find(
    objects: &Objects<'_>,
    stacks: &BTreeMap<usize, PyStack<'_>>,
    threads: &[ThreadState],
) -> BTreeMap<usize, Polling> {
    let polling = |(index, stack): (&usize, &PyStack<'_>)| {
        threads.get(*index)?.syscall.as_ref().filter(|s| may_sleep(s))?;
        let found = stack.frames.iter().take(MAX_INNER).enumerate();
        let (frame, poller, framed) = found.into_iter().find_map(|(i, f)| Some((i, poller_of(f)?, f)))?;
        let path = path_of(objects, framed, &poller.path).filter(|p| !p.is_empty())?;
        let gives_up = match poller.gives_up {
            GivesUp::Never => false,
            GivesUp::ByTimeout => !is_endless(objects, framed),
            GivesUp::Always => true,
        };
        Some((*index, Polling { frame, path, by_existence: poller.by_existence, gives_up }))
    };
    stacks.iter().filter_map(polling).collect()
}

/// Whether the call may be a sleep: `select`, `nanosleep`, `clock_nanosleep`, or one that our stop interrupted.
fn may_sleep(call: &Syscall) -> bool {
    matches!(call.number, None | Some(23 | 35 | 230))
}

fn poller_of(framed: &Framed) -> Option<&'static Poller> {
    let code = framed.code.as_ref()?;
    POLLERS.iter().find(|p| code.name == p.function && code.file.ends_with(p.file))
}

fn path_of(objects: &Objects<'_>, framed: &Framed, path: &PathIn) -> Option<Vec<u8>> {
    let value = match path {
        PathIn::Local(wanted) => {
            let locals = objects.locals(&framed.frame, framed.code.as_ref()?);
            locals.into_iter().find(|(name, _)| name == wanted).map(|(_, value)| value)?
        }
        PathIn::Attribute(name) => objects.attribute(framed.first_argument(objects)?, name)?,
    };
    text_of(objects, value)
}

/// Whether the variable `timeout` of a frame is `None` or a negative number.
fn is_endless(objects: &Objects<'_>, framed: &Framed) -> bool {
    let Some(code) = framed.code.as_ref() else { return false };
    let timeout = objects.locals(&framed.frame, code).into_iter().find(|(name, _)| name == "timeout");
    let Some((_, value)) = timeout else { return false };
    let Some(kind) = objects.type_of(value) else { return false };
    match kind.name.as_str() {
        "NoneType" => true,
        "int" => objects.int(value).is_err(),
        // PyFloatObject: the value follows the object's header (CPython `Include/cpython/floatobject.h`)
        "float" => objects.word(value, objects.o.ob_type + 8).is_ok_and(|bits| f64::from_bits(bits) < 0.0),
        _ => false,
    }
}

fn text_of(objects: &Objects<'_>, value: Addr) -> Option<Vec<u8>> {
    match objects.type_of(value)?.name.as_str() {
        "str" => objects.string(value).ok().map(String::into_bytes),
        "bytes" => objects.bytes(value).ok(),
        _ => None,
    }
}

impl Telling<'_> {
    /// The waits of threads that poll for locks of files.
    pub(super) fn tell_lock_files(&self, facts: &mut Facts) {
        for (index, polling) in &self.scene.lock_files {
            let thread = self.thread(*index);
            let number = u64::from(self.tid(*index).0.unsigned_abs());
            let id = ResourceId::Numbered(self.view.process, ResourceKind::FileLock, number | POLLED);
            let path = String::from_utf8_lossy(&polling.path);
            let file = path.rsplit('/').next().unwrap_or(&path);
            facts.resources.push(Resource {
                id,
                kind: ResourceKind::FileLock,
                name: Some(format!("the lock file {}", harmless_text(file, MAX_NAME))),
                address: None,
                reentrancy: Reentrancy::Plain,
                wakers: Wakers::Outside,
                idle: false,
            });
            let natives = self.natives.get(index).and_then(|n| n.get(polling.frame).copied().flatten());
            let how = if polling.by_existence {
                "it sleeps and looks again whether the file is gone"
            } else {
                "it tries to lock the file, sleeps and tries again"
            };
            facts.waits.push(Wait {
                thread,
                on: id,
                mode: Mode::Exclusive,
                timeout: if polling.gives_up { Timeout::Some } else { Timeout::Periodic },
                frame: natives.or_else(|| self.innermost_loop(*index)).unwrap_or(FrameIx(0)),
                managed_frame: u32::try_from(polling.frame).ok(),
                evidence: vec![Evidence::new(format!("{how}: {}", harmless_text(&path, MAX_NAME)))],
            });
            facts.polled.insert(id, PolledFile { path: polling.path.clone(), by_existence: polling.by_existence });
        }
    }
}

/// Marks the number of a lock that a thread polls for: of the thread's id, not of a descriptor.
const POLLED: u64 = 1 << 42;
