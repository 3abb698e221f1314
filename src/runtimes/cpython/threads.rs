//! Interpreters and their thread states.

use super::objects::{Objects, byte_in, int_in, word_in};
use super::offsets::{FrameRoot, Offsets};
use crate::memory::{MemoryExt, ReadError, WalkEnd, walk};
use crate::units::Addr;

/// Interpreters of one process read at most.
const MAX_INTERPRETERS: usize = 256;
/// Thread states of one process read at most.
const MAX_THREADS: usize = 65_536;

/// One interpreter (`PyInterpreterState`).
#[derive(Clone, Debug)]
pub(super) struct Interpreter {
    pub addr: Addr,
    /// 0 is the main one.
    pub id: i64,
    /// The GIL its threads take.
    pub gil: Option<Addr>,
    /// Whether that GIL is its own (since 3.12 a subinterpreter may have one).
    pub own_gil: bool,
    /// `sys.modules`.
    pub modules: Addr,
    /// Newest first.
    pub threads: Vec<PyThread>,
    /// How the walk over its threads ended.
    pub end: WalkEnd,
}

/// One thread state (`PyThreadState`).
#[derive(Clone, Debug)]
pub(super) struct PyThread {
    pub addr: Addr,
    /// The `pthread_t`, which is `threading.get_ident()`; 0 until bound.
    pub pthread: u64,
    /// The kernel's id, since 3.11.
    pub native: Option<u64>,
    /// Its newest frame.
    pub frame: Addr,
    /// Whether it says that it holds the GIL (since 3.13), or is active (3.12), which it is from just after it took the GIL
    /// until just before it gives it away (CPython `Python/pystate.c`, `tstate_activate`).
    pub holds_gil: Option<bool>,
    /// Whether it is the one `PyGILState_Ensure` finds on its thread; since 3.12.
    pub bound_gilstate: Option<bool>,
    /// Whether it is attached, detached or suspended; builds without the GIL only.
    pub state: Option<i32>,
}

/// Why the runtime is not believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    /// Not readable.
    Unreadable(ReadError),
    /// Not yet, or no longer, initialised: no interpreter hangs there.
    Uninitialised,
    /// The lists do not hang together.
    Inconsistent(String),
}

/// Reads all interpreters of the runtime at `runtime`, with their threads, and says how the walk over them ended.
pub(super) fn read_interpreters(objects: &Objects<'_>, runtime: Addr) -> Result<(Vec<Interpreter>, WalkEnd), Doubt> {
    let o = objects.o;
    let head = objects.addr(runtime, o.runtime_head).map_err(Doubt::Unreadable)?;
    let main = objects.addr(runtime, o.runtime_main).map_err(Doubt::Unreadable)?;
    if head.is_null() || main.is_null() {
        return Err(Doubt::Uninitialised);
    }
    let (addrs, end) = walk(head, MAX_INTERPRETERS, |a| objects.addr(a, o.interp_next).map(Some));
    if !addrs.contains(&main) {
        return Err(Doubt::Inconsistent(format!(
            "the main interpreter {main} is not in the list that begins at {head}"
        )));
    }
    let mut interpreters = Vec::with_capacity(addrs.len());
    let mut left = MAX_THREADS;
    for at in addrs {
        let interpreter = read_interpreter(objects, runtime, at, left)?;
        left = left.saturating_sub(interpreter.threads.len());
        interpreters.push(interpreter);
    }
    Ok((interpreters, end))
}

fn read_interpreter(objects: &Objects<'_>, runtime: Addr, at: Addr, most: usize) -> Result<Interpreter, Doubt> {
    let o = objects.o;
    let read = |offset| objects.word(at, offset).map_err(Doubt::Unreadable);
    let first = Addr(read(o.interp_threads)?);
    let (gil, own_gil) = match (o.interp_gil, o.runtime_gil) {
        (Some(gil), _) => {
            let own = o.interp_own_gil.and_then(|f| objects.int32(at, f).ok()).is_some_and(|v| v != 0);
            (Some(Addr(read(gil)?)).filter(|g| !g.is_null()), own)
        }
        (None, Some(gil)) => (runtime.checked_add(gil), false),
        (None, None) => (None, false),
    };
    let (threads, end) = read_threads(objects, at, first, most)?;
    Ok(Interpreter {
        addr: at,
        id: read(o.interp_id)?.cast_signed(),
        gil,
        own_gil,
        modules: Addr(read(o.interp_modules)?),
        threads,
        end,
    })
}

fn read_threads(
    objects: &Objects<'_>,
    interp: Addr,
    first: Addr,
    most: usize,
) -> Result<(Vec<PyThread>, WalkEnd), Doubt> {
    let o = objects.o;
    let (mut threads, mut blobs) = (Vec::new(), Vec::new());
    let mut foreign = None;
    let (_, end) = walk(first, most, |at| {
        let blob = objects.memory.read_vec(at, o.tstate_size)?;
        // a list that leaves its interpreter is not followed further
        if word_in(&blob, o.tstate_interp) != Some(interp.0) {
            foreign = Some(at);
            return Ok(None);
        }
        let next = word_in(&blob, o.tstate_next).map(Addr);
        threads.push(read_thread(o, at, &blob));
        blobs.push(blob);
        Ok(next)
    });
    let end = match foreign {
        Some(at) if threads.is_empty() => {
            let why = format!("the thread state at {at} does not belong to the interpreter at {interp}");
            return Err(Doubt::Inconsistent(why));
        }
        Some(at) => WalkEnd::Circle(at),
        None => end,
    };
    prefetch_frames(objects, &mut threads, &blobs);
    Ok((threads, end))
}

fn read_thread(o: &Offsets, at: Addr, blob: &[u8]) -> PyThread {
    let bit = |f: Option<crate::layout::Field>| {
        let f = f?;
        let byte = byte_in(blob, f.offset)?;
        Some(match f.bits {
            Some((bit, _)) => byte.checked_shr(bit).unwrap_or(0) & 1 == 1,
            None => byte != 0,
        })
    };
    let root = match o.frame_root {
        FrameRoot::Direct(f) | FrameRoot::Through(f, _) => f,
    };
    PyThread {
        addr: at,
        pthread: word_in(blob, o.tstate_thread_id).unwrap_or(0),
        native: o.tstate_native_id.and_then(|f| word_in(blob, f)),
        frame: Addr(word_in(blob, root).unwrap_or(0)),
        holds_gil: bit(o.tstate_holds_gil),
        bound_gilstate: bit(o.tstate_bound_gilstate),
        state: o.attach.and_then(|a| int_in(blob, a.state)),
    }
}

/// Bytes of a thread's newest block of frames fetched ahead at most.
const MAX_CHUNK: u64 = 256 * 1024;

/// Follows the `_PyCFrame`s of 3.11 and 3.12, and asks for all threads' frames at once.
fn prefetch_frames(objects: &Objects<'_>, threads: &mut [PyThread], blobs: &[Vec<u8>]) {
    let o = objects.o;
    if let FrameRoot::Through(_, inner) = o.frame_root {
        let ranges: Vec<_> = threads.iter().filter(|t| !t.frame.is_null()).map(|t| (t.frame, 24)).collect();
        objects.memory.expect(&ranges);
        for t in threads.iter_mut().filter(|t| !t.frame.is_null()) {
            t.frame = objects.addr(t.frame, inner).unwrap_or(Addr::NULL);
        }
    }
    let (Some(chunk), Some(top)) = (o.tstate_chunk, o.tstate_chunk_top) else { return };
    let ranges: Vec<_> = blobs
        .iter()
        .filter_map(|b| {
            let from = word_in(b, chunk).filter(|a| *a != 0)?;
            let len = word_in(b, top)?.checked_sub(from).filter(|n| *n <= MAX_CHUNK)?;
            Some((Addr(from), usize::try_from(len).ok()?))
        })
        .collect();
    objects.memory.expect(&ranges);
}
