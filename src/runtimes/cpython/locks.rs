//! Lock objects: `threading.Lock`, `RLock`, buffered files, `multiprocessing`'s `SemLock`, `SimpleQueue`.
//!
//! Which layout a type has is told by its `tp_basicsize`, never by the version alone: 3.13.0 and 3.13.5 differ.

use super::objects::Objects;
use crate::layout::{Subject, Table};
use crate::memory::ReadError;
use crate::units::Addr;

/// How a lock sleeps: what its waiters' futex says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sleep {
    /// On a `sem_t` of its own: the futex address is this one.
    Semaphore(Addr),
    /// In the parking lot, by the address of a byte of the object (since 3.13).
    Parked(Addr),
}

/// The kind of a lock object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockKind {
    /// `_thread.lock`: no owner.
    Lock,
    /// `_thread.RLock`.
    RLock,
    /// `_io.BufferedReader` and its like.
    Buffered,
    /// `_multiprocessing.SemLock` that one can hold.
    SemLock,
    /// `_multiprocessing.SemLock` that counts: several hold it, of any process, and whoever likes gives it back.
    Semaphore,
    /// `_queue.SimpleQueue`: no lock; an empty one makes its readers wait.
    SimpleQueue,
}

/// One lock object as it stands.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub addr: Addr,
    pub kind: LockKind,
    /// Where its waiters sleep.
    pub sleep: Option<Sleep>,
    /// Whether it is taken; of one that counts, whether nothing of it is left.
    pub locked: bool,
    /// The owner's `threading.get_ident()`, where the lock records one and is taken.
    pub owner: Option<u64>,
    /// Whether the owner is who took it last, and others may give it back: `multiprocessing.Lock`.
    pub lendable: bool,
    /// What to call it where no name is found: `threading.Lock`.
    pub type_name: &'static str,
}

impl Lock {
    /// Whether a thread of this process may hold it. A `with` block alone does not say so of a lock between processes: a fork
    /// copies the frames of the block, but the count of what the process has taken is set to 0 in the copy (CPython
    /// `Lib/multiprocessing/synchronize.py`, `SemLock._after_fork`; 3.8 to 3.15).
    pub(super) fn can_be_held_here(&self) -> bool {
        match self.kind {
            LockKind::Lock | LockKind::RLock => self.locked,
            LockKind::SemLock => self.owner.is_some(),
            LockKind::Buffered | LockKind::Semaphore | LockKind::SimpleQueue => false,
        }
    }
}

/// Offsets of the lock objects; a list where the layouts of one version differ.
#[derive(Clone, Debug, Default)]
pub(super) struct LockOffsets {
    plain: Vec<PlainLock>,
    recursive: Vec<RecursiveLock>,
    buffered: Option<(u64, u64)>,
    sem_lock: Option<(u64, u64, u64, u64)>,
    queue_sem: Option<u64>,
    queue_byte: Option<u64>,
    /// Whether a `PyThread_type_lock` points at a PyMutex (3.15) instead of a `sem_t`.
    type_lock_is_mutex: bool,
    /// `wait_entry.addr` and `.sema`, where threads park.
    pub park: Option<(u64, u64)>,
    /// `wait_entry.is_unparking`, and `mutex_entry.handed_off` of what its first word points at.
    pub hand_over: Option<(u64, u64)>,
    /// `ThreadHandle.thread_is_exiting` and `.ident`.
    pub handle: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
enum PlainLock {
    Semaphore { size: u64, pointer: u64, locked: u64 },
    Mutex { size: u64, byte: u64 },
}

#[derive(Clone, Debug)]
enum RecursiveLock {
    Semaphore { size: u64, pointer: u64, owner: u64, count: u64 },
    Mutex { size: u64, byte: u64, owner: u64 },
}

impl LockOffsets {
    /// Takes them from a table.
    pub(super) fn choose(table: &Table, subject: &Subject) -> LockOffsets {
        let one = |name: &str, field: &str| table.layout(name, subject).and_then(|s| s.offset(field));
        // every variant, whatever micro version it is said to apply to: the type's size decides
        let variants = |name: &'static str| table.structs.iter().filter(move |s| s.name == name);
        let plain = variants("lockobject")
            .filter_map(|s| {
                let size = s.size?;
                Some(match (s.offset("lock_lock"), s.offset("locked"), s.offset("lock")) {
                    (Some(pointer), Some(locked), _) => PlainLock::Semaphore { size, pointer, locked },
                    (_, _, Some(byte)) => PlainLock::Mutex { size, byte },
                    _ => return None,
                })
            })
            .collect();
        let recursive = variants("rlockobject")
            .filter_map(|s| {
                let size = s.size?;
                Some(match (s.offset("rlock_lock"), s.offset("lock.mutex")) {
                    (Some(pointer), _) => RecursiveLock::Semaphore {
                        size,
                        pointer,
                        owner: s.offset("rlock_owner")?,
                        count: s.offset("rlock_count")?,
                    },
                    (_, Some(byte)) => RecursiveLock::Mutex { size, byte, owner: s.offset("lock.thread")? },
                    _ => return None,
                })
            })
            .collect();
        LockOffsets {
            plain,
            recursive,
            buffered: one("buffered", "lock").zip(one("buffered", "owner")),
            sem_lock: (|| {
                Some((
                    one("SemLockObject", "handle")?,
                    one("SemLockObject", "last_tid")?,
                    one("SemLockObject", "count")?,
                    one("SemLockObject", "maxvalue")?,
                ))
            })(),
            queue_sem: one("simplequeueobject", "lock"),
            queue_byte: one("simplequeueobject", "has_threads_waiting"),
            type_lock_is_mutex: table.word("PyThread_type_lock") == Some("PyMutex"),
            park: one("wait_entry", "addr").zip(one("wait_entry", "sema")),
            hand_over: one("wait_entry", "is_unparking").zip(one("mutex_entry", "handed_off")),
            handle: one("ThreadHandle", "thread_is_exiting").zip(one("ThreadHandle", "ident")),
        }
    }

    /// How far into a lock object the byte lies that its waiters park on: every distance any kind of object has.
    pub(super) fn park_distances(&self) -> Vec<u64> {
        let mut out: Vec<u64> = Vec::new();
        out.extend(self.plain.iter().filter_map(|l| match l {
            PlainLock::Mutex { byte, .. } => Some(*byte),
            PlainLock::Semaphore { .. } => None,
        }));
        out.extend(self.recursive.iter().filter_map(|l| match l {
            RecursiveLock::Mutex { byte, .. } => Some(*byte),
            RecursiveLock::Semaphore { .. } => None,
        }));
        out.extend(self.queue_byte);
        out.sort_unstable();
        out.dedup();
        out
    }
}

/// `sem_t` of glibc on x86-64: the value is the low half of its first word.
fn is_semaphore_taken(objects: &Objects<'_>, at: Addr) -> Result<bool, ReadError> {
    objects.int32(at, 0).map(|value| value == 0)
}

impl Objects<'_> {
    /// The lock object at `at`; `None` where there is none.
    pub(super) fn lock(&self, at: Addr) -> Option<Lock> {
        let kind = self.type_of(at)?;
        let lock = |kind, sleep, locked, owner: Option<u64>, type_name| {
            let owner = owner.filter(|o| locked && *o != 0);
            Some(Lock { addr: at, kind, sleep, locked, owner, lendable: false, type_name })
        };
        let l = &self.o.locks;
        match kind.name.as_str() {
            "_thread.lock" => {
                let layout = l.plain.iter().find(|p| match p {
                    PlainLock::Semaphore { size, .. } | PlainLock::Mutex { size, .. } => *size == kind.basicsize,
                })?;
                match layout {
                    PlainLock::Semaphore { pointer, locked, .. } => {
                        let sem = self.addr(at, *pointer).ok().filter(|s| !s.is_null())?;
                        let taken = self.byte(at, *locked).ok()? != 0;
                        lock(LockKind::Lock, Some(Sleep::Semaphore(sem)), taken, None, "threading.Lock")
                    }
                    PlainLock::Mutex { byte, .. } => {
                        let taken = self.byte(at, *byte).ok()? & 1 != 0;
                        lock(LockKind::Lock, at.checked_add(*byte).map(Sleep::Parked), taken, None, "threading.Lock")
                    }
                }
            }
            "_thread.RLock" => {
                let layout = l.recursive.iter().find(|p| match p {
                    RecursiveLock::Semaphore { size, .. } | RecursiveLock::Mutex { size, .. } => {
                        *size == kind.basicsize
                    }
                })?;
                match layout {
                    RecursiveLock::Semaphore { pointer, owner, count, .. } => {
                        let sleep = self.addr(at, *pointer).ok().filter(|s| !s.is_null()).map(Sleep::Semaphore);
                        let taken = self.word(at, *count).ok()? > 0;
                        lock(LockKind::RLock, sleep, taken, self.word(at, *owner).ok(), "threading.RLock")
                    }
                    RecursiveLock::Mutex { byte, owner, .. } => {
                        let taken = self.byte(at, *byte).ok()? & 1 != 0;
                        let sleep = at.checked_add(*byte).map(Sleep::Parked);
                        lock(LockKind::RLock, sleep, taken, self.word(at, *owner).ok(), "threading.RLock")
                    }
                }
            }
            "_io.BufferedReader" | "_io.BufferedWriter" | "_io.BufferedRandom" => {
                let (pointer, owner) = l.buffered?;
                let inner = self.addr(at, pointer).ok().filter(|p| !p.is_null())?;
                let sleep = if l.type_lock_is_mutex { Sleep::Parked(inner) } else { Sleep::Semaphore(inner) };
                let owner = self.word(at, owner).ok()?;
                let name = match kind.name.as_str() {
                    "_io.BufferedReader" => "io.BufferedReader",
                    "_io.BufferedWriter" => "io.BufferedWriter",
                    _ => "io.BufferedRandom",
                };
                lock(LockKind::Buffered, Some(sleep), owner != 0, Some(owner), name)
            }
            "_multiprocessing.SemLock" => {
                let (handle, last, count, most) = l.sem_lock?;
                let sem = self.addr(at, handle).ok().filter(|s| !s.is_null())?;
                if self.int32(at, most).ok()? != 1 {
                    let sleep = Some(Sleep::Semaphore(sem));
                    let none_left = is_semaphore_taken(self, sem).unwrap_or(true);
                    return lock(LockKind::Semaphore, sleep, none_left, None, "multiprocessing semaphore");
                }
                // only this process's taking is counted; another's shows in the semaphore's value alone, and so does that
                // another process has given it back. A core may lack it
                let own = self.int32(at, count).ok()? > 0;
                let taken = is_semaphore_taken(self, sem).unwrap_or(true);
                let owner = own.then(|| self.word(at, last).ok()).flatten();
                // `kind` follows `maxvalue`: RECURSIVE_MUTEX 0, SEMAPHORE 1
                let lendable = self.int32(at, most.checked_add(4)?).ok()? != 0;
                let sleep = Some(Sleep::Semaphore(sem));
                let lock = lock(LockKind::SemLock, sleep, taken, owner, "multiprocessing lock")?;
                Some(Lock { lendable, ..lock })
            }
            "_queue.SimpleQueue" => {
                let sleep = match (l.queue_byte, l.queue_sem) {
                    (Some(byte), _) => at.checked_add(byte).map(Sleep::Parked),
                    (None, Some(pointer)) => self.addr(at, pointer).ok().map(Sleep::Semaphore),
                    (None, None) => None,
                };
                lock(LockKind::SimpleQueue, sleep, false, None, "queue.SimpleQueue")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    /// A type named `name` at 0x100 with this basic size, and an object of it at 0x1000.
    fn object(m: &mut Fake, name: &str, basicsize: u64) {
        m.put(Addr(0x100), &[0; 1024]).put(Addr(0x800), &[0; 64]).put(Addr(0x800), name.as_bytes());
        m.put_u64(Addr(0x100 + 24), 0x800).put_u64(Addr(0x100 + 32), basicsize);
        m.put(Addr(0x1000), &[0; 160]).put_u64(Addr(0x1008), 0x100);
    }

    #[test]
    fn both_layouts_of_3_13_by_the_types_size() {
        let o = Offsets::choose((13, Some(4)), false, None).unwrap();
        let mut m = Fake::new();
        object(&mut m, "_thread.lock", 40);
        m.put_u64(Addr(0x1010), 0x7000).put(Addr(0x1020), &[1]);
        let lock = Objects::new(&m, &o).lock(Addr(0x1000)).unwrap();
        assert_eq!((lock.sleep, lock.locked), (Some(Sleep::Semaphore(Addr(0x7000))), true));
        let mut m = Fake::new();
        object(&mut m, "_thread.lock", 24);
        m.put(Addr(0x1010), &[3]);
        let lock = Objects::new(&m, &o).lock(Addr(0x1000)).unwrap();
        assert_eq!((lock.sleep, lock.locked, lock.owner), (Some(Sleep::Parked(Addr(0x1010))), true, None));
        let mut m = Fake::new();
        object(&mut m, "_thread.lock", 32);
        assert!(Objects::new(&m, &o).lock(Addr(0x1000)).is_none(), "a size nobody knows");
    }

    #[test]
    fn an_owner_counts_only_while_the_lock_is_taken() {
        let o = Offsets::choose((11, None), false, None).unwrap();
        let mut m = Fake::new();
        object(&mut m, "_thread.RLock", 48);
        m.put_u64(Addr(0x1010), 0x7000).put_u64(Addr(0x1018), 0xabc);
        assert_eq!(Objects::new(&m, &o).lock(Addr(0x1000)).unwrap().owner, None);
        m.put_u64(Addr(0x1020), 2);
        assert_eq!(Objects::new(&m, &o).lock(Addr(0x1000)).unwrap().owner, Some(0xabc));
    }

    #[test]
    fn a_lock_between_processes_is_what_its_semaphore_says() {
        let o = Offsets::choose((11, None), false, None).unwrap();
        let (handle, last, count, most) = o.locks.sem_lock.unwrap();
        let look = |value: Option<u32>, own: u32, max: u32| {
            let mut m = Fake::new();
            object(&mut m, "_multiprocessing.SemLock", 48);
            m.put_u64(Addr(0x1000 + handle), 0x7000).put_u64(Addr(0x1000 + last), 0xabc);
            m.put_u32(Addr(0x1000 + count), own).put_u32(Addr(0x1000 + most), max).put_u32(Addr(0x1000 + most + 4), 1);
            if let Some(value) = value {
                m.put_u32(Addr(0x7000), value);
            }
            let lock = Objects::new(&m, &o).lock(Addr(0x1000)).unwrap();
            (lock.locked, lock.owner, lock.can_be_held_here())
        };
        assert_eq!(look(Some(0), 1, 1), (true, Some(0xabc), true));
        assert_eq!(look(Some(0), 0, 1), (true, None, false), "another process has it");
        assert_eq!(look(Some(1), 1, 1), (false, None, false), "another process gave it back");
        assert_eq!(look(None, 1, 1), (true, Some(0xabc), true), "a core without the semaphore");
        assert_eq!(look(None, 0, 1), (true, None, false), "who sleeps on it may have to wait");
        assert_eq!(look(Some(3), 0, 5), (false, None, false), "one that counts");
        assert!(look(Some(0), 0, 5).0, "nothing of it is left");
    }

    #[test]
    fn other_objects_are_no_locks() {
        let o = Offsets::choose((11, None), false, None).unwrap();
        let mut m = Fake::new();
        object(&mut m, "dict", 48);
        assert!(Objects::new(&m, &o).lock(Addr(0x1000)).is_none());
        assert!(Objects::new(&m, &o).lock(Addr(0x1004)).is_none());
        assert!(Objects::new(&m, &o).lock(Addr(0)).is_none());
    }
}
