//! The loader's locks: three whole recursive mutexes inside `_rtld_global`, found by their shape.

use crate::facts::ResourceKind;
use crate::layout::{StructLayout, Subject, Table};
use crate::memory::{Memory, MemoryExt};
use crate::units::Addr;

/// `_rtld_global` of the target's `ld.so`: exported under that name in every version, with its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RtldGlobal {
    /// Where it lies.
    pub at: Addr,
    /// Its size in bytes, as the symbol says.
    pub size: u64,
}

/// Bytes of it read at most; the largest met is 4352.
const MAX_SIZE: u64 = 64 * 1024;

impl RtldGlobal {
    /// Whether `at` lies inside.
    pub fn contains(&self, at: Addr) -> bool {
        self.at <= at && at.0 - self.at.0 < self.size
    }

    /// How much of it is read.
    pub fn len(&self) -> usize {
        usize::try_from(self.size.min(MAX_SIZE)).unwrap_or(0)
    }
}

/// One of the loader's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LoaderLock {
    /// Where its mutex lies.
    pub at: Addr,
    /// Its name in glibc.
    pub name: &'static str,
    /// Its kind.
    pub kind: ResourceKind,
}

const LOCKS: [(&str, ResourceKind); 3] = [
    ("_dl_load_lock", ResourceKind::LoaderLock),
    ("_dl_load_write_lock", ResourceKind::LoaderWriteLock),
    ("_dl_load_tls_lock", ResourceKind::LoaderTlsLock),
];

/// The locks and how sure their places are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct LoaderLocks {
    /// In the order load, write, TLS; the last is absent before 2.35.
    pub locks: Vec<LoaderLock>,
    /// How they were found, for evidence.
    pub how: String,
    /// What is wrong with them, if anything.
    pub doubt: Option<String>,
}

impl LoaderLocks {
    /// The lock whose mutex begins at `at`.
    pub fn at(&self, at: Addr) -> Option<&LoaderLock> {
        self.locks.iter().find(|l| l.at == at)
    }

    /// Finds the locks: by their shape, checked against the table; by the table where the bytes cannot be read.
    pub fn find(
        memory: &(impl Memory + ?Sized),
        global: RtldGlobal,
        table: &Table,
        subject: &Subject,
        mutex: &StructLayout,
    ) -> LoaderLocks {
        let rows: Vec<&StructLayout> = table.layouts("rtld_global", subject).collect();
        // a release branch may have grown the struct under the same version: the row of this size first
        let row = rows.iter().find(|r| r.size == Some(global.size)).or(rows.first()).copied();
        let by_table = row.map(|row| LOCKS.iter().map_while(|(name, _)| row.offset(name)).collect::<Vec<u64>>());
        let shapes = match memory.read_vec(global.at, global.len()) {
            Ok(bytes) => find_shapes(&bytes, mutex),
            Err(why) => {
                return match by_table {
                    Some(offsets) => LoaderLocks {
                        how: by_table_alone(row),
                        doubt: Some(why.to_string()),
                        ..named(global, &offsets)
                    },
                    None => LoaderLocks { doubt: Some(why.to_string()), ..LoaderLocks::default() },
                };
            }
        };
        match (shapes.as_slice(), by_table) {
            ([one], None) => LoaderLocks { how: "by its shape in _rtld_global".into(), ..named(global, one) },
            ([one], Some(table)) if *one == table => LoaderLocks {
                how: format!("by its shape in _rtld_global, as in the table of {}", origin(row)),
                ..named(global, one)
            },
            ([one], Some(_)) => {
                LoaderLocks { how: "by its shape in _rtld_global, a place no table knows".into(), ..named(global, one) }
            }
            (many, Some(table)) if many.contains(&table) => {
                LoaderLocks { how: by_table_alone(row), ..named(global, &table) }
            }
            (many, _) => LoaderLocks {
                doubt: Some(format!("{} places in _rtld_global look like the loader's locks", many.len())),
                ..LoaderLocks::default()
            },
        }
    }
}

fn by_table_alone(row: Option<&StructLayout>) -> String {
    format!("by the table of {}", origin(row))
}

fn origin(row: Option<&StructLayout>) -> String {
    row.map(StructLayout::origin).unwrap_or_default()
}

fn named(global: RtldGlobal, offsets: &[u64]) -> LoaderLocks {
    let locks = LOCKS
        .iter()
        .zip(offsets)
        .filter_map(|((name, kind), offset)| {
            Some(LoaderLock { at: global.at.checked_add(*offset)?, name, kind: *kind })
        })
        .collect();
    LoaderLocks { locks, ..LoaderLocks::default() }
}

/// Where two or three recursive mutexes stand in a row behind a small number (`_dl_nns`, the namespaces in use), as
/// offsets of each. Gives every such place; in every version from 2.23 to 2.43 there is exactly one, the locks free or
/// held. Source: glibc sysdeps/generic/ldsodefs.h struct rtld_global.
fn find_shapes(bytes: &[u8], mutex: &StructLayout) -> Vec<Vec<u64>> {
    let Some(stride) = mutex.size.and_then(|s| usize::try_from(s).ok()) else { return Vec::new() };
    let is_lock =
        |at: usize| at.checked_add(stride).and_then(|end| bytes.get(at..end)).is_some_and(|b| recursive(b, mutex));
    let mut found = Vec::new();
    for at in (8..bytes.len()).step_by(8) {
        let namespaces = bytes.get(at - 8..at).and_then(|w| w.try_into().ok()).map(u64::from_le_bytes);
        if namespaces.is_some_and(|n| (1..=16).contains(&n)) && is_lock(at) && is_lock(at + stride) {
            let count = if is_lock(at + 2 * stride) { 3 } else { 2 };
            found.push((0..count).filter_map(|i| u64::try_from(at + i * stride).ok()).collect());
        }
    }
    found
}

/// Whether these bytes are a recursive mutex, free or held.
fn recursive(bytes: &[u8], mutex: &StructLayout) -> bool {
    let word = |field: &str| mutex.field(field).and_then(|f| f.word_of(bytes)).unwrap_or(u64::MAX);
    let (lock, owner) = (word("__lock"), word("__owner"));
    word("__kind") == 1
        && ["__spins", "__elision", "__list.prev", "__list.next"].iter().all(|f| word(f) == 0)
        && lock <= 2
        && owner <= 1 << 22
        && (owner == 0 || lock != 0 && word("__nusers") != 0)
        && word("__count") < 1 << 20
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layouts, Version};
    use crate::memory::Fake;

    const GLOBAL: Addr = Addr(0x7f00_0000_0000);

    fn mutex() -> &'static StructLayout {
        Layouts::glibc().layout("pthread_mutex_t", &Subject::default()).unwrap()
    }

    /// `_rtld_global` of one row of the table, all else zero but for the lock of the first namespace.
    fn made_up(row: &StructLayout, held_by: Option<u32>) -> Fake {
        let size = row.size.unwrap();
        let mut m = Fake::new();
        m.put(GLOBAL, &vec![0; size as usize]);
        m.put_u32(GLOBAL.offset(0x20 + 16), 1); // the decoy: a namespace's unique-symbol lock
        let nns = row.offset("_dl_nns").unwrap();
        m.put_u64(GLOBAL.offset(nns as i64), 1);
        for (name, _) in LOCKS {
            let Some(offset) = row.offset(name) else { continue };
            let at = GLOBAL.offset(offset as i64);
            m.put_u32(at.offset(16), 1);
            if let Some(tid) = held_by {
                m.put_u32(at, 2).put_u32(at.offset(4), 1).put_u32(at.offset(8), tid).put_u32(at.offset(12), 1);
            }
        }
        m
    }

    #[test]
    fn every_row_of_the_table_is_found_by_its_shape() {
        let table = Layouts::glibc();
        let rows: Vec<_> = table.structs.iter().filter(|s| s.name == "rtld_global").collect();
        assert!(rows.len() >= 16, "{} rows", rows.len());
        for row in rows {
            for held_by in [None, Some(4711)] {
                let m = made_up(row, held_by);
                let global = RtldGlobal { at: GLOBAL, size: row.size.unwrap() };
                // without a version: by shape alone
                let found = LoaderLocks::find(&m, global, table, &Subject::default(), mutex());
                let offsets: Vec<u64> = found.locks.iter().map(|l| l.at.0 - GLOBAL.0).collect();
                let expected: Vec<u64> = LOCKS.iter().filter_map(|(name, _)| row.offset(name)).collect();
                assert_eq!(offsets, expected, "{}", row.origin());
                assert_eq!(found.doubt, None);
            }
        }
    }

    #[test]
    fn the_table_agrees_and_evidence_says_so() {
        let table = Layouts::glibc();
        let subject = Subject::version(Version::parse("2.36")).with("arch", "x86_64");
        let row = table.layout("rtld_global", &subject).unwrap();
        let global = RtldGlobal { at: GLOBAL, size: row.size.unwrap() };
        let found = LoaderLocks::find(&made_up(row, None), global, table, &subject, mutex());
        assert!(found.how.contains("as in the table"), "{}", found.how);
        // nothing readable: the table alone
        let found = LoaderLocks::find(&Fake::new(), global, table, &subject, mutex());
        assert_eq!(found.locks.len(), 3);
        assert!(found.doubt.is_some());
    }

    #[test]
    fn zeros_and_noise_hold_no_locks() {
        let mut m = Fake::new();
        m.put(GLOBAL, &[0; 4096]);
        let global = RtldGlobal { at: GLOBAL, size: 4096 };
        assert!(LoaderLocks::find(&m, global, Layouts::glibc(), &Subject::default(), mutex()).locks.is_empty());
        m.put(GLOBAL, &[1; 4096]);
        assert!(LoaderLocks::find(&m, global, Layouts::glibc(), &Subject::default(), mutex()).locks.is_empty());
    }
}
