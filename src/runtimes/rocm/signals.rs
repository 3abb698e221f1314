//! HSA signals in host memory: what one is, and where all of them lie: up to HSA 6 in plain memory, since 7 in memory of the
//! render node, to which the queues lead, which are in plain memory still.

use super::queues;
use crate::layout::{Field, Layouts, Subject};
use crate::memory::{Memory, MemoryExt};
use crate::snapshot::Snapshot;
use crate::target::Mapping;
use crate::units::{Addr, PAGE};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bytes of a signal, and what its address is a multiple of: the runtime hands them out from blocks of whole pages.
pub(super) const SIZE: u64 = 128;
/// Memory searched for signals at most, and the largest mapping searched: the blocks are small.
const MAX_SEARCHED: u64 = 256 << 20;
const MAX_MAPPING: u64 = 64 << 20;
/// How long is searched, the small mappings first: through a debugger memory comes slowly.
const LONGEST: Duration = Duration::from_secs(5);
/// Bytes read at once while searching.
const PIECE: u64 = 256 << 10;
/// Pages with signals that are kept; each has 32.
const MAX_PAGES: usize = 256;
/// Queues found by their own shape at most.
const MAX_FOUND: usize = 1024;

/// A signal as it stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Signal {
    /// Its handle.
    pub at: Addr,
    /// Its value; of a doorbell the address that rings it.
    pub value: i64,
    /// The kernel's event it raises; 0: none, one polls it.
    pub event: u32,
    /// The runtime's own object for it.
    pub core: Addr,
    /// Of a doorbell: its queue.
    pub queue: Option<Addr>,
}

/// Kinds: a signal of a program, and the doorbells of a queue. Source: `amd_hsa_signal.h`, `amd_signal_kind_t`.
const USER: i64 = 1;
const DOORBELLS: [i64; 2] = [-1, -2];

/// Where a signal's fields lie, looked up once: there may be thousands of signals.
struct Fields {
    magic: Field,
    number: u64,
    kind: Field,
    value: Field,
    event: Field,
    core: Field,
    queue: Field,
}

impl Fields {
    fn of_table() -> Option<&'static Fields> {
        static FIELDS: OnceLock<Option<Fields>> = OnceLock::new();
        let find = || {
            let layout = Layouts::rocm().layout("amd_signal_t", &Subject::default())?;
            Some(Fields {
                magic: layout.field("magic")?,
                number: Layouts::rocm().number("signal_magic")?,
                kind: layout.field("kind")?,
                value: layout.field("value")?,
                event: layout.field("event_id")?,
                core: layout.field("core_signal")?,
                queue: layout.field("queue_ptr")?,
            })
        };
        FIELDS.get_or_init(find).as_ref()
    }
}

impl Signal {
    /// The signal with the handle `at`: `None` where there is none, a freed one, or its bytes cannot be read.
    pub fn read(memory: &dyn Memory, at: Addr) -> Option<Signal> {
        if at.is_null() || !at.0.is_multiple_of(SIZE) {
            return None;
        }
        let mut bytes = [0; SIZE as usize];
        memory.read(at, &mut bytes).ok()?;
        Signal::parse(at, &bytes)
    }

    /// The signal whose bytes are these: `None` where they are no signal's, or a freed one's.
    fn parse(at: Addr, bytes: &[u8]) -> Option<Signal> {
        let fields = Fields::of_table()?;
        if fields.magic.word_of(bytes)? != fields.number {
            return None;
        }
        let kind = fields.kind.value_of(bytes)?;
        let doorbell = DOORBELLS.contains(&kind);
        if !doorbell && kind != USER {
            return None;
        }
        Some(Signal {
            at,
            value: fields.value.value_of(bytes)?,
            event: u32::try_from(fields.event.word_of(bytes)?).ok()?,
            core: Addr(fields.core.word_of(bytes)?),
            queue: doorbell.then(|| fields.queue.word_of(bytes)).flatten().map(Addr),
        })
    }
}

/// Whether signals may lie in a mapping: they are in plain memory of the process.
fn may_hold(m: &Mapping) -> bool {
    let p = m.permissions;
    p.read && p.write && !p.execute && m.path.as_ref().is_none_or(|path| path.as_os_str() == "[heap]")
}

/// What a search found.
#[derive(Default)]
pub(super) struct Places {
    /// The pages that hold signals, found by their magic number.
    pub pages: Vec<Addr>,
    /// Queues, each with its doorbell, whether or not the doorbell's own page could be read.
    pub queues: Vec<(Addr, Addr)>,
    /// Whether there are more than are kept, or may be where no time was left to look.
    pub more: bool,
}

/// Looks for signals and queues.
pub(super) fn find_places(snapshot: &Snapshot, memory: &dyn Memory) -> Places {
    let mut plain: Vec<&Mapping> = snapshot.mappings.iter().filter(|m| may_hold(m)).collect();
    plain.sort_by_key(|m| m.end.0.saturating_sub(m.start.0));
    let mut search = Search {
        memory,
        began: Instant::now(),
        late: false,
        searched: 0,
        pages: BTreeSet::new(),
        queues: BTreeMap::new(),
    };
    for m in plain {
        if !search.mapping(m) {
            break;
        }
    }
    // only the mappings to which a queue leads: reading memory of a render node is slow, and most of it the device's
    let doorbells: Vec<(Addr, Addr)> = search.queues.iter().map(|(queue, doorbell)| (*doorbell, *queue)).collect();
    let mut of_node: BTreeMap<Addr, &Mapping> = BTreeMap::new();
    for (doorbell, queue) in &doorbells {
        let Some(m) = snapshot.mapping_at(*doorbell).filter(|m| !may_hold(m)) else { continue };
        if Signal::read(memory, *doorbell).is_some_and(|s| s.queue == Some(*queue)) {
            of_node.insert(m.start, m);
        }
    }
    (search.began, search.searched) = (Instant::now(), 0);
    for m in of_node.into_values() {
        if !search.mapping(m) {
            break;
        }
    }
    let more = search.late || search.pages.len() > MAX_PAGES;
    Places { pages: search.pages.into_iter().take(MAX_PAGES).collect(), queues: doorbells, more }
}

struct Search<'a> {
    memory: &'a dyn Memory,
    began: Instant,
    /// Whether there was no time for all of it.
    late: bool,
    searched: u64,
    pages: BTreeSet<Addr>,
    /// Queues, and the doorbell of each.
    queues: BTreeMap<Addr, Addr>,
}

impl Search<'_> {
    /// Searches one mapping; false when there is no time or room for more.
    fn mapping(&mut self, m: &Mapping) -> bool {
        let len = m.end.0.saturating_sub(m.start.0);
        if len > MAX_MAPPING || self.searched.saturating_add(len) > MAX_SEARCHED {
            return false;
        }
        self.searched = self.searched.saturating_add(len);
        let mut done = 0;
        while done < len {
            if self.began.elapsed() > LONGEST {
                self.late = true;
                return false;
            }
            let at = m.start.offset(done as i64);
            let piece = PIECE.min(len - done);
            match usize::try_from(piece).ok().and_then(|n| self.memory.read_vec(at, n).ok()) {
                Some(bytes) => self.bytes(&bytes, at),
                // a core may have some pages of it
                None => {
                    for page in (0..piece).step_by(PAGE as usize) {
                        let at = at.offset(page as i64);
                        if let Ok(bytes) = self.memory.read_vec(at, PAGE as usize) {
                            self.bytes(&bytes, at);
                        }
                    }
                }
            }
            done += piece;
        }
        self.pages.len() <= MAX_PAGES
    }

    fn bytes(&mut self, bytes: &[u8], at: Addr) {
        self.pages.extend(signals_in(bytes, at).map(|signal| signal.at.page()));
        for (page, bytes) in (0i64..).zip(bytes.chunks_exact(PAGE as usize)) {
            if self.queues.len() < MAX_FOUND
                && let Some(doorbell) = queues::doorbell_in(bytes)
            {
                self.queues.insert(at.offset(page * PAGE as i64), doorbell);
            }
        }
    }
}

/// The signals among the bytes that lie at `at`, which is aligned as they are.
fn signals_in(bytes: &[u8], at: Addr) -> impl Iterator<Item = Signal> + '_ {
    let slots = (0u64..).zip(bytes.chunks_exact(SIZE as usize));
    slots.filter_map(move |(slot, bytes)| Signal::parse(at.offset((slot * SIZE) as i64), bytes))
}

/// All signals that were read.
#[derive(Default)]
pub(super) struct Signals {
    by_handle: BTreeMap<Addr, Signal>,
    by_event: HashMap<u32, Vec<Addr>>,
    by_core: HashMap<Addr, Addr>,
}

impl Signals {
    /// Those of `pages`.
    pub fn read(memory: &dyn Memory, pages: &[Addr]) -> Signals {
        let mut signals = Signals::default();
        for page in pages {
            let Ok(bytes) = memory.read_vec(*page, PAGE as usize) else { continue };
            signals_in(&bytes, *page).for_each(|signal| signals.add(signal));
        }
        signals
    }

    /// The signal with this handle, read where it is not known yet.
    pub fn learn(&mut self, memory: &dyn Memory, at: Addr) -> Option<Signal> {
        if let Some(known) = self.by_handle.get(&at) {
            return Some(*known);
        }
        let signal = Signal::read(memory, at)?;
        self.add(signal);
        Some(signal)
    }

    fn add(&mut self, signal: Signal) {
        let at = signal.at;
        if self.by_handle.insert(at, signal).is_some() {
            return;
        }
        if signal.event != 0 && signal.queue.is_none() {
            self.by_event.entry(signal.event).or_default().push(at);
        }
        if !signal.core.is_null() {
            self.by_core.insert(signal.core, at);
        }
    }

    /// The signal with this handle, as far as it was read.
    pub fn at(&self, handle: Addr) -> Option<Signal> {
        self.by_handle.get(&handle).copied()
    }

    /// The signal that a word names: its handle, or the runtime's own object for it.
    pub fn named_by(&self, word: u64) -> Option<Signal> {
        self.at(Addr(word)).or_else(|| self.at(*self.by_core.get(&Addr(word))?)).filter(|s| s.queue.is_none())
    }

    /// The signals that raise an event.
    pub fn of_event(&self, event: u32) -> impl Iterator<Item = Signal> + '_ {
        self.by_event.get(&event).into_iter().flatten().filter_map(|at| self.at(*at))
    }

    /// The doorbells, each with its queue; and those of `found`, where the doorbell itself was not read.
    pub fn queues(&self, found: &[(Addr, Addr)]) -> Vec<(Addr, Addr)> {
        let told = self.by_handle.values().filter_map(|s| Some((s.at, s.queue.filter(|q| !q.is_null())?)));
        let mut queues: Vec<(Addr, Addr)> = told.collect();
        let known: BTreeSet<Addr> = queues.iter().map(|(_, queue)| *queue).collect();
        queues.extend(found.iter().filter(|(_, queue)| !known.contains(queue)));
        queues
    }
}
