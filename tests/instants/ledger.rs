//! What a program tells of its own locks (`programs/ledger.h`), and whether a diagnosis agrees.

use hangscope::diagnose::Diagnosis;
use hangscope::facts::{Certainty, Holder, Mode};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

const SLOTS: usize = 120;
const SLOT: usize = 512;
const FIRST: usize = 4096;
const ENTRIES: usize = 20;
const SIZE: usize = FIRST + SLOTS * SLOT;

/// What a thread has to do with a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    None,
    /// Inside the function that takes it or gives it back.
    Between,
    Held,
    HeldShared,
}

/// One reading.
pub struct Ledger {
    pub beats: u64,
    /// By the thread, as the program numbers it, and the lock's address.
    states: BTreeMap<(i32, u64), State>,
    threads: BTreeSet<i32>,
}

impl Ledger {
    /// Reads it; empty where the program tells nothing.
    pub fn read(file: Option<&File>) -> Ledger {
        let mut bytes = vec![0; SIZE];
        let mut ledger = Ledger { beats: 0, states: BTreeMap::new(), threads: BTreeSet::new() };
        if file.is_none_or(|f| f.read_exact_at(&mut bytes, 0).is_err()) {
            return ledger;
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        ledger.beats = word(0);
        for slot in (0..SLOTS).map(|i| FIRST + i * SLOT) {
            let tid = half(slot).cast_signed();
            if tid <= 0 {
                continue;
            }
            ledger.threads.insert(tid);
            for entry in (0..ENTRIES).map(|i| slot + 16 + i * 24) {
                if word(entry) == 0 {
                    break;
                }
                let state = match (half(entry + 8), half(entry + 12)) {
                    (0, _) => State::None,
                    (2, 0) => State::Held,
                    (2, _) => State::HeldShared,
                    _ => State::Between,
                };
                ledger.states.insert((tid, word(entry)), state);
            }
        }
        ledger
    }

    /// Holders that the diagnosis names and that do not hold, in words, with how sure it is; and how many it names of locks that
    /// the program tells of.
    pub fn contradicts(&self, diagnosis: &Diagnosis) -> (Vec<(Certainty, String)>, u64) {
        let (mut wrong, mut compared) = (Vec::new(), 0);
        let Some(snapshot) = diagnosis.snapshots.first() else { return (wrong, compared) };
        let known: BTreeSet<u64> = self.states.keys().map(|(_, at)| *at).collect();
        for (id, holds) in &diagnosis.graph.holds {
            let at = diagnosis.graph.resource(*id).and_then(|r| r.address).map_or(0, |a| a.0);
            if !known.contains(&at) {
                continue;
            }
            for hold in holds {
                let Holder::Thread(t) = hold.holder else { continue };
                let Some(thread) = snapshot.threads.get(t.thread as usize) else { continue };
                let tid = thread.tid.0;
                compared += 1;
                let own = self.states.get(&(tid, at)).copied().unwrap_or(State::None);
                let other = self.states.iter().find(|((who, of), state)| {
                    let excludes =
                        **state == State::Held || (**state == State::HeldShared && hold.mode == Mode::Exclusive);
                    *who != tid && *of == at && excludes
                });
                let what = match (own, other) {
                    (State::Held | State::HeldShared, _) => continue,
                    (_, Some(((who, _), state))) => format!("thread {who} does ({state:?})"),
                    (State::None, None) if self.threads.contains(&tid) => "it does not".to_owned(),
                    _ => continue,
                };
                let sure = hold.certainty;
                wrong.push((sure, format!("thread {tid} is said to hold {at:#x} ({}), but {what}", sure.word())));
            }
        }
        (wrong, compared)
    }
}
