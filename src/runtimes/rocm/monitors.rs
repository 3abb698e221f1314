//! HIP's own locks, `amd::Monitor`: a list of waiters, each asleep on a semaphore of its own, a name, and who owns it. (HIP 7
//! uses mutexes of the C++ library instead, which are glibc's to tell.)

use super::calls::{Call, Calls, is_hip_runtime};
use crate::arch::x86_64::CALLEE_SAVED;
use crate::facts::{
    Certainty, DeviceWait, Evidence, Facts, Gap, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind,
    Timeout, Wait, Wakers,
};
use crate::layout::{Layouts, StructLayout, Subject};
use crate::memory::{Memory, MemoryExt, walk};
use crate::runtimes::View;
use crate::runtimes::futex::FutexWait;
use crate::snapshot::Snapshot;
use crate::target::ThreadState;
use crate::units::{Addr, FrameIx};
use std::collections::BTreeMap;

/// Bytes of a waiter's stack looked through for its monitor: the waiter's node and the monitor's address lie close above.
const MAX_STACK: usize = 2 << 10;
/// Waiters of one monitor followed.
const MAX_WAITERS: usize = 4096;
/// `sched_yield` and the sleeps of a loop that polls.
const PAUSES: [u64; 3] = [24, 35, 230];
/// The largest stack believed.
const MAX_STACK_SIZE: u64 = 1 << 36;

/// The layouts of one version of HIP.
pub(super) struct MonitorLayouts {
    monitor: &'static StructLayout,
    node: &'static StructLayout,
    thread: &'static StructLayout,
    semaphore: &'static StructLayout,
}

/// Who may wait for a monitor.
struct Sleeper {
    /// The `amd::Semaphore` it sleeps on; absent where it polls: the next in turn does.
    semaphore: Option<Addr>,
    /// Words of registers and stack, and for those of the stack where they lie.
    words: Vec<(Option<Addr>, Addr)>,
}

impl MonitorLayouts {
    pub fn choose(subject: &Subject) -> Option<MonitorLayouts> {
        let table = Layouts::rocm();
        Some(MonitorLayouts {
            monitor: table.layout("amd::Monitor", subject)?,
            node: table.layout("amd::Monitor::LinkedNode", subject)?,
            thread: table.layout("amd::Thread", subject)?,
            semaphore: table.layout("amd::Semaphore", subject)?,
        })
    }

    /// What to read while the target is held: whatever a sleeper's stack may name as its monitor.
    pub fn candidates(&self, snapshot: &Snapshot, memory: &dyn Memory, threads: &[ThreadState]) -> Vec<(Addr, usize)> {
        let size = self.monitor.size.and_then(|s| usize::try_from(s).ok()).unwrap_or(0);
        let mut found: Vec<(Addr, usize)> = Vec::new();
        for sleeper in threads.iter().filter_map(|t| self.sleeper(snapshot, memory, t)) {
            found.extend(sleeper.words.iter().filter(|(_, w)| may_be_object(snapshot, *w)).map(|(_, w)| (*w, size)));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The owners of those, to be read next.
    pub fn owners(&self, memory: &dyn Memory, candidates: &[(Addr, usize)]) -> Vec<(Addr, usize)> {
        let Some((owner, size)) = self.monitor.field("owner_").zip(self.thread.size) else { return Vec::new() };
        let size = usize::try_from(size).unwrap_or(0);
        let mut found: Vec<(Addr, usize)> = candidates
            .iter()
            .filter_map(|(at, _)| Some((owner.read_addr(memory, *at).ok()?, size)))
            .filter(|(at, _)| !at.is_null() && at.0.is_multiple_of(8))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// A thread that sleeps on a semaphore, or polls, and whose stack comes back into HIP soon.
    fn sleeper(&self, snapshot: &Snapshot, memory: &dyn Memory, thread: &ThreadState) -> Option<Sleeper> {
        let sleeper = self.waiter(memory, thread)?;
        if sleeper.semaphore.is_none() {
            // between two looks at the lock it is in HIP or in the C library's sched_yield
            let (_, module) = snapshot.module_at(Addr(thread.registers.as_ref()?.pc()?))?;
            if !is_hip_runtime(module.name()) && !["libc.so", "libc-2"].iter().any(|p| module.name().starts_with(p)) {
                return None;
            }
        }
        let of_hip = |at: Addr| snapshot.module_at(at).is_some_and(|(_, m)| is_hip_runtime(m.name()));
        sleeper.words.iter().any(|(at, w)| at.is_some() && of_hip(*w)).then_some(sleeper)
    }

    /// The same, wherever its stack leads.
    fn waiter(&self, memory: &dyn Memory, thread: &ThreadState) -> Option<Sleeper> {
        let registers = thread.registers.as_ref()?;
        let semaphore = match thread.syscall {
            Some(call) if !call.number.is_some_and(|n| PAUSES.contains(&n)) => {
                let futex = FutexWait::parse(&call)?;
                let at = Addr(futex.at.0.checked_sub(self.semaphore.offset("sem_")?)?);
                Some(at).filter(|at| at.0.is_multiple_of(8))
            }
            _ => None,
        };
        let sp = Addr(registers.sp()?);
        let bytes = memory.read_vec(sp, MAX_STACK).or_else(|_| memory.read_vec(sp, MAX_STACK / 4)).ok()?;
        let on_stack = (0i64..)
            .zip(bytes.chunks_exact(8))
            .filter_map(|(i, w)| Some((Some(sp.offset(i * 8)), Addr(u64::from_le_bytes(w.try_into().ok()?)))));
        let in_registers = CALLEE_SAVED.iter().filter_map(|r| Some((None, Addr(registers.file.read(*r)?))));
        let words: Vec<(Option<Addr>, Addr)> = in_registers.chain(on_stack).collect();
        let named = semaphore.is_none_or(|s| words.iter().any(|(_, w)| *w == s));
        named.then_some(Sleeper { semaphore, words })
    }
}

/// Whether an object may lie at `at`: aligned, in memory that can be written.
fn may_be_object(snapshot: &Snapshot, at: Addr) -> bool {
    let writable = || snapshot.mapping_at(at).is_some_and(|m| m.permissions.write && !m.permissions.execute);
    !at.is_null() && at.0.is_multiple_of(8) && writable()
}

/// A monitor as it stood.
struct Monitor {
    at: Addr,
    name: Option<String>,
    locked: bool,
    owner: Addr,
    recursive: bool,
}

/// One instant's monitors.
pub(super) struct Monitors<'a> {
    pub view: &'a View<'a>,
    pub calls: &'a Calls<'a>,
    pub layouts: &'a MonitorLayouts,
}

impl Monitors<'_> {
    pub fn decode(&self, facts: &mut Facts) {
        let mut known: BTreeMap<Addr, ()> = BTreeMap::new();
        for (index, thread) in self.view.snapshot.threads.iter().enumerate() {
            let Some(sleeper) = self.layouts.sleeper(self.view.snapshot, self.view.memory, thread) else { continue };
            let calls = self.calls.of(index);
            let Some(call) = calls.first().filter(|c| c.domain == "hip") else { continue };
            let polls = sleeper.semaphore.is_none();
            if polls && facts.devices.contains_key(&self.view.thread(index)) {
                continue;
            }
            let Some((monitor, how)) = self.monitor_of(&sleeper) else {
                if polls {
                    continue;
                }
                let function = call.function.as_deref().unwrap_or("HIP");
                facts.gaps.push(Gap(format!(
                    "thread {} sleeps in {function} on a semaphore; whether one of HIP's locks is behind it was not found",
                    thread.tid
                )));
                continue;
            };
            let id = ResourceId::At(self.view.process, monitor.at);
            if polls {
                let pulse = vec![monitor.at.0, monitor.owner.0];
                let device = DeviceWait { polls, pulse, ..DeviceWait::default() };
                facts.devices.insert(self.view.thread(index), device);
            }
            facts.waits.push(Wait {
                thread: self.view.thread(index),
                on: id,
                mode: Mode::Exclusive,
                timeout: match thread.syscall.and_then(|call| FutexWait::parse(&call)) {
                    Some(futex) => futex.timeout(self.view.memory),
                    None => Timeout::None,
                },
                frame: outermost(call),
                managed_frame: None,
                evidence: vec![Evidence::new(how)],
            });
            if known.insert(monitor.at, ()).is_none() {
                let hold = self.hold(&monitor, id, facts);
                facts.holds.extend(hold);
                facts.resources.push(self.resource(&monitor, id));
            }
        }
    }

    /// The name of the monitor the thread at `index` waits for, and its owner's index: whatever its frames are.
    #[cfg(test)]
    pub fn told(&self, index: usize) -> Option<(String, Option<usize>)> {
        let thread = self.view.snapshot.threads.get(index)?;
        let sleeper = self.layouts.waiter(self.view.memory, thread)?;
        let (monitor, _) = self.monitor_of(&sleeper)?;
        Some((monitor.name.clone()?, self.thread_of(monitor.owner).map(|(index, _)| index)))
    }

    fn resource(&self, monitor: &Monitor, id: ResourceId) -> Resource {
        Resource {
            id,
            kind: ResourceKind::Mutex,
            name: monitor.name.as_ref().map(|name| format!("“{name}” (a mutex of HIP)")),
            address: Some(monitor.at),
            reentrancy: if monitor.recursive { Reentrancy::Recursive } else { Reentrancy::Plain },
            wakers: Wakers::Holders,
            idle: false,
        }
    }

    /// The monitor whose list of waiters leads to this sleeper, and how that was found.
    fn monitor_of(&self, sleeper: &Sleeper) -> Option<(Monitor, String)> {
        let memory = self.view.memory;
        let item = self.layouts.node.field("item")?;
        // the node on the waiter's own stack: its second word is the semaphore
        let nodes: Vec<Addr> = sleeper
            .words
            .iter()
            .filter(|(_, word)| Some(*word) == sleeper.semaphore)
            .filter_map(|(at, _)| Some(Addr((*at)?.0.checked_sub(item.offset)?)))
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        // words of the waiter's own stack look like a monitor that names its semaphore
        let stack = sleeper.words.iter().find_map(|(at, _)| self.view.snapshot.mapping_at((*at)?));
        let elsewhere = |at: Addr| stack.is_none_or(|m| !m.contains(at));
        let objects = sleeper.words.iter().map(|(_, w)| *w);
        let objects = objects.filter(|w| elsewhere(*w) && may_be_object(self.view.snapshot, *w));
        objects.filter(|at| seen.insert(*at)).find_map(|at| {
            let image = self.layouts.monitor.read(memory, at)?;
            let contenders = image.word("contendersList_")?;
            let locked = contenders & 1 != 0;
            let on_deck = Addr(image.word("onDeck_")? & !1);
            let how = match sleeper.semaphore {
                Some(s) if on_deck == s => {
                    format!("its semaphore {s} is the one that onDeck_ of the monitor at {at} names")
                }
                Some(s) => {
                    let node = nodes.iter().find(|n| self.leads_to(Addr(contenders & !1), **n))?;
                    format!("contendersList_ of the monitor at {at} leads to {node}, the node of its semaphore {s}")
                }
                // who is next in turn does not sleep
                None => {
                    let named = image.layout.field("name_").is_some();
                    let next =
                        named && locked && !on_deck.is_null() && sleeper.words.iter().any(|(_, w)| *w == on_deck);
                    let how =
                        format!("it polls; onDeck_ of the monitor at {at} names {on_deck}, which its stack names too");
                    next.then_some(how)?
                }
            };
            let name = match image.layout.field("name_") {
                // what has no readable name is no monitor
                Some(_) => Some(self.name_at(at)?),
                None => None,
            };
            let owner = Addr(image.word("owner_")?);
            // without a name the owner must tell that it is one
            if name.is_none() && !(locked && self.thread_of(owner).is_some()) {
                return None;
            }
            let monitor = Monitor { at, name, locked, owner, recursive: image.word("recursive_")? & 1 != 0 };
            Some((monitor, how))
        })
    }

    fn leads_to(&self, first: Addr, node: Addr) -> bool {
        let Some(next) = self.layouts.node.field("next") else { return false };
        let (nodes, _) = walk(first, MAX_WAITERS, |at| next.read_addr(self.view.memory, at).map(Some));
        nodes.contains(&node)
    }

    /// The text in the monitor: printable, and ended.
    fn name_at(&self, monitor: Addr) -> Option<String> {
        let field = self.layouts.monitor.field("name_")?;
        let bytes = self.view.memory.read_vec(field.at(monitor), usize::try_from(field.count).ok()?).ok()?;
        let text = bytes.split(|b| *b == 0).next()?;
        let printable = text.iter().all(|b| b.is_ascii_graphic() || *b == b' ');
        (printable && !text.is_empty() && text.len() < bytes.len()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    /// Who owns it: the thread on whose stack the owner's object says it runs.
    fn hold(&self, monitor: &Monitor, of: ResourceId, facts: &mut Facts) -> Option<Hold> {
        if monitor.owner.is_null() || !monitor.locked {
            return None;
        }
        let told = || monitor.name.clone().unwrap_or_else(|| format!("the monitor at {}", monitor.at));
        let Some((index, stack)) = self.thread_of(monitor.owner) else {
            facts.gaps.push(Gap(format!(
                "the owner of HIP's {}, {}, is no thread that was found",
                told(),
                monitor.owner
            )));
            return None;
        };
        let calls = self.calls.of(index);
        let tid = self.view.snapshot.threads.get(index).map_or(0, |t| t.tid.0);
        let said = format!(
            "owner_ of the monitor at {} is the amd::Thread {}, whose stack {stack} is that of thread {tid}",
            monitor.at, monitor.owner
        );
        Some(Hold {
            holder: Holder::Thread(self.view.thread(index)),
            of,
            mode: Mode::Exclusive,
            certainty: Certainty::Recorded,
            taken_at: calls.iter().rfind(|c| c.domain == "hip").map(outermost),
            taken_at_managed: None,
            evidence: vec![Evidence::new(said)],
        })
    }

    /// The thread of an `amd::Thread`: its index, and the stack that tells.
    fn thread_of(&self, owner: Addr) -> Option<(usize, String)> {
        let image = self.layouts.thread.read(self.view.memory, owner)?;
        let base = image.word("stackBase_")?;
        let size = image.word("stackSize_")?;
        let from = base.checked_sub(size).filter(|_| size > 0 && size <= MAX_STACK_SIZE)?;
        let sp = |t: &ThreadState| t.registers.as_ref().and_then(|r| r.sp()).or(t.sp_pc.map(|(sp, _)| sp));
        let mut on_it = self
            .view
            .snapshot
            .threads
            .iter()
            .enumerate()
            .filter(|(_, t)| sp(t).is_some_and(|sp| from <= sp && sp < base));
        let (index, _) = on_it.next()?;
        on_it.next().is_none().then(|| (index, format!("{from:#x} to {base:#x}")))
    }
}

fn outermost(call: &Call) -> FrameIx {
    FrameIx(u32::try_from(call.frames.end.saturating_sub(1)).unwrap_or(0))
}
