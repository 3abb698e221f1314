//! The GIL: who holds it, who waits for it.
//!
//! `locked` decides; `last_holder` alone is only the previous one. Each distinct GIL is a resource of its own.

use super::objects::{Objects, int_in, word_in};
use super::offsets::{COND_SIZE, GilOffsets};
use super::threads::Interpreter;
use crate::arch::{Syscall, ThreadRegisters, x86_64};
use crate::memory::{MemoryExt, ReadError};
use crate::runtimes::futex::is_plain_wait;
use crate::units::Addr;

/// One GIL (`struct _gil_runtime_state`).
#[derive(Clone, Debug)]
pub(super) struct Gil {
    pub addr: Addr,
    /// Whether it is in use: in a free-threaded build it may be off.
    pub enabled: bool,
    /// −1 not made yet, 0 free, 1 held.
    pub locked: i32,
    /// The holder's thread state where `locked` is 1, else the previous one's.
    pub last_holder: Addr,
    /// What reports call it.
    pub name: String,
}

/// Reads each GIL once.
pub(super) fn read_gils(objects: &Objects<'_>, interpreters: &[Interpreter]) -> (Vec<Gil>, Vec<(Addr, ReadError)>) {
    let mut gils: Vec<Gil> = Vec::new();
    let mut lost = Vec::new();
    // the main interpreter's first, so that those who share it bear its name
    let mut order: Vec<&Interpreter> = interpreters.iter().collect();
    order.sort_by_key(|i| (i.own_gil && i.id != 0, i.id));
    for interpreter in order {
        let Some(at) = interpreter.gil else { continue };
        if gils.iter().any(|g| g.addr == at) {
            continue;
        }
        let name = match interpreter.id {
            0 => "GIL".to_owned(),
            _ if !interpreter.own_gil => "GIL".to_owned(),
            n => format!("GIL of subinterpreter {n}"),
        };
        match read_gil(objects, at, name) {
            Ok(gil) => gils.push(gil),
            Err(e) => lost.push((at, e)),
        }
    }
    (gils, lost)
}

fn read_gil(objects: &Objects<'_>, at: Addr, name: String) -> Result<Gil, ReadError> {
    let g: GilOffsets = objects.o.gil;
    let blob = objects.memory.read_vec(at, g.size)?;
    Ok(Gil {
        addr: at,
        enabled: g.enabled.is_none_or(|f| int_in(&blob, f).is_some_and(|v| v != 0)),
        locked: int_in(&blob, g.locked).unwrap_or(-1),
        last_holder: Addr(word_in(&blob, g.last_holder).unwrap_or(0)),
        name,
    })
}

/// What a thread's system call says about a GIL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GilCall {
    /// It waits on the GIL's condition: it wants the GIL.
    Waits,
    /// It waits for, or has just taken, the mutex around the GIL's fields: on its way in or out.
    Passing,
    /// It has given the GIL away and waits until someone took it (`switch_cond`): no holder, wants nothing yet.
    Switching,
}

/// `futex` on x86-64.
const FUTEX: u64 = 202;

/// The address a thread waits on by futex, if it does. A call the kernel restarts has lost its number but not its
/// arguments.
pub(super) fn futex_wait(syscall: &Syscall) -> Option<Addr> {
    let is_wait = is_plain_wait(syscall.args[1]);
    (syscall.number.is_none_or(|n| n == FUTEX) && is_wait).then_some(Addr(syscall.args[0]))
}

/// The address of a futex wait that has just ended: the thread is on its way out of the system call, whose arguments still
/// stand in its registers.
pub(super) fn left_futex(registers: &ThreadRegisters) -> Option<Addr> {
    let operation = registers.file.read(x86_64::RSI)?;
    let is_wait = registers.syscall_register == Some(FUTEX.cast_signed()) && is_plain_wait(operation);
    is_wait.then_some(Addr(registers.file.read(x86_64::RDI)?))
}

/// Whether that futex operation has a time-out (its fourth argument).
pub(super) fn has_timeout(syscall: &Syscall) -> bool {
    syscall.args[3] != 0
}

impl Gil {
    /// What a wait on the futex at `at` means for this GIL. The word inside a condition variable moves between versions of
    /// glibc (cond + 40 or 44 in 2.36, + 32 or 36 in 2.43), so anything inside counts.
    pub(super) fn meaning_of(&self, o: &GilOffsets, at: Addr) -> Option<GilCall> {
        let into = at.0.checked_sub(self.addr.0)?;
        let inside = |from: u64| from <= into && into < from + COND_SIZE;
        if inside(o.cond) {
            Some(GilCall::Waits)
        } else if inside(o.switch_cond) {
            Some(GilCall::Switching)
        } else if o.mutex <= into && into < o.size as u64 {
            Some(GilCall::Passing)
        } else {
            None
        }
    }

    /// The mutexes around its two conditions (`gil->mutex`, `gil->switch_mutex`; CPython 3.8 to 3.15 `Python/ceval_gil.c`, or
    /// `.h`): nobody keeps one while it waits for the GIL.
    pub(super) fn mutexes(&self, o: &GilOffsets) -> [Addr; 2] {
        [Addr(self.addr.0.saturating_add(o.mutex)), Addr(self.addr.0.saturating_add(o.switch_mutex))]
    }

    /// Whether it is held, and so `last_holder` its holder.
    pub(super) fn holder(&self) -> Option<Addr> {
        (self.enabled && self.locked == 1 && !self.last_holder.is_null()).then_some(self.last_holder)
    }
}

/// Functions by which code outside the evaluation loop asks for the GIL, clone suffixes stripped.
const CALLS: &[&str] =
    &["PyEval_RestoreThread", "PyEval_AcquireThread", "PyEval_AcquireLock", "PyThreadState_Swap", "PyGILState_Ensure"];

/// Those that always mean taking, wherever they stand.
const SURELY_TAKING: &[&str] = &["take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread", "PyGILState_Ensure"];

/// Whether code outside the evaluation loop asks for the GIL by calling it.
pub(super) fn calls_for_it(function: &str) -> bool {
    CALLS.contains(&strip_clone(function))
}

/// Whether a thread found inside it, outside any system call, is taking the GIL.
pub(super) fn surely_takes(function: &str) -> bool {
    SURELY_TAKING.contains(&strip_clone(function))
}

/// A function's name without the suffixes GCC gives clones: `.lto_priv.0`, `.constprop.0`, `.cold`.
pub(super) fn strip_clone(function: &str) -> &str {
    function.split_once('.').map_or(function, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    fn gil(locked: u32) -> (Fake, Offsets) {
        let mut m = Fake::new();
        m.put(Addr(0x1000), &[0; 208]);
        m.put_u64(Addr(0x1000), 5000).put_u64(Addr(0x1008), 0x7000).put_u32(Addr(0x1010), locked);
        (m, Offsets::choose((11, None), false, None).unwrap())
    }

    #[test]
    fn the_last_holder_of_a_free_gil_holds_nothing() {
        let (m, o) = gil(0);
        let free = read_gil(&Objects::new(&m, &o), Addr(0x1000), "GIL".into()).unwrap();
        assert_eq!((free.last_holder, free.holder()), (Addr(0x7000), None));
        let (m, o) = gil(1);
        let held = read_gil(&Objects::new(&m, &o), Addr(0x1000), "GIL".into()).unwrap();
        assert_eq!(held.holder(), Some(Addr(0x7000)));
        let (m, o) = gil(u32::MAX);
        assert_eq!(read_gil(&Objects::new(&m, &o), Addr(0x1000), "GIL".into()).unwrap().holder(), None);
    }

    #[test]
    fn a_futex_inside_the_condition_is_a_wait() {
        let (m, o) = gil(1);
        let g = read_gil(&Objects::new(&m, &o), Addr(0x1000), "GIL".into()).unwrap();
        for (into, meaning) in [
            (32, Some(GilCall::Waits)),
            (32 + 44, Some(GilCall::Waits)),
            (80, Some(GilCall::Passing)),
            (120 + 40, Some(GilCall::Switching)),
            (168, Some(GilCall::Passing)),
            (208, None),
            (31, None),
        ] {
            assert_eq!(g.meaning_of(&o.gil, Addr(0x1000 + into)), meaning, "{into}");
        }
        assert_eq!(g.meaning_of(&o.gil, Addr(0x500)), None);
    }

    #[test]
    fn only_waits_are_waits() {
        let call = |number, op| Syscall { number, args: [0x1020, op, 0, 0x5000, 0, 0] };
        assert_eq!(futex_wait(&call(Some(202), 137)), Some(Addr(0x1020)));
        assert_eq!(futex_wait(&call(Some(202), 393)), Some(Addr(0x1020)));
        assert_eq!(futex_wait(&call(None, 137)), Some(Addr(0x1020)));
        assert_eq!(futex_wait(&call(Some(202), 129)), None, "a wake");
        assert_eq!(futex_wait(&call(Some(0), 137)), None);
        assert!(has_timeout(&call(Some(202), 137)));
    }

    #[test]
    fn clone_suffixes_do_not_hide_a_function() {
        assert!(surely_takes("take_gil.lto_priv.0"));
        assert!(calls_for_it("PyGILState_Ensure"));
        assert!(!surely_takes("take_gilded"));
        assert!(!surely_takes("_Py_HandlePending"));
    }
}
