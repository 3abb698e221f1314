//! Which thread an owner field means: by tid, and by `pthread_t`.

use crate::layout::StructLayout;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::units::Addr;
use std::collections::HashMap;

/// The threads of a process as glibc's own fields name them.
#[derive(Default)]
pub(super) struct Owners {
    by_tid: HashMap<i32, usize>,
    by_pthread: HashMap<u64, usize>,
}

/// What an owner field says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The thread at this index of the snapshot.
    Thread(usize),
    /// A tid no thread of the process has.
    Gone(i32),
}

/// The largest tid there can be (Linux `include/linux/threads.h`, `PID_MAX_LIMIT` on 64 bits).
const MAX_TID: i32 = 4 * 1024 * 1024;

impl Owners {
    /// Reads every thread's `struct pthread`. Its own `tid` field is what lock owners are written from (a core that
    /// gcore wrote from outside a PID namespace names threads otherwise); where it cannot be had, or two threads show
    /// the same, the kernel's number counts.
    pub fn read(snapshot: &Snapshot, memory: &(impl Memory + ?Sized), pthread: &StructLayout) -> Owners {
        let mut owners = Owners::default();
        let mut fields: Vec<Option<i32>> = Vec::new();
        let mut seen: HashMap<i32, u32> = HashMap::new();
        for (index, thread) in snapshot.threads.iter().enumerate() {
            let base = thread.registers.as_ref().and_then(|r| r.tls_base).filter(|base| *base != 0).map(Addr);
            let tid = base.and_then(|base| own_tid(memory, pthread, base));
            if let Some(base) = base {
                owners.by_pthread.entry(base.0).or_insert(index);
            }
            if let Some(tid) = tid {
                *seen.entry(tid).or_default() += 1;
            }
            fields.push(tid);
        }
        for (index, (thread, field)) in snapshot.threads.iter().zip(fields).enumerate() {
            let tid = field.filter(|tid| seen.get(tid) == Some(&1)).unwrap_or(thread.tid.0);
            owners.by_tid.entry(tid).or_insert(index);
        }
        owners
    }

    /// The thread a tid names; `None` where the number can be no tid.
    pub fn by_tid(&self, tid: i32) -> Option<Owner> {
        match self.by_tid.get(&tid) {
            Some(index) => Some(Owner::Thread(*index)),
            None => (2..=MAX_TID).contains(&tid).then_some(Owner::Gone(tid)),
        }
    }

    /// The thread whose `pthread_t` this is.
    pub fn by_pthread(&self, at: Addr) -> Option<usize> {
        self.by_pthread.get(&at.0).copied()
    }
}

/// The tid written in the `struct pthread` at `base`, if one stands there (it points at itself).
pub(super) fn own_tid(memory: &(impl Memory + ?Sized), pthread: &StructLayout, base: Addr) -> Option<i32> {
    let own = pthread.field("header.self")?.read_addr(memory, base).ok()?;
    let tid = i32::try_from(pthread.field("tid")?.read(memory, base).ok()?).ok()?;
    (own == base && (1..=MAX_TID).contains(&tid)).then_some(tid)
}
