//! Who holds a lock that records no owner: by what the holder's own frames say.
//!
//! An exception may pass through most calls of C++ and Rust, and each function says for each of its calls what it would clean
//! up then. A landing pad that gives the lock back proves that the frame has it: it is the code the unwinder would run. A
//! one-time initialisation is held by the thread that runs it, further in than the very function that others wait in.

use super::calls::plain;
use super::words::State;
use super::{Lock, Pad, Releases, Scene};
use crate::arch::Reg;
use crate::arch::code::{Act, Bytes, Callee, Entry, computes, exchanges, follow, jumps_through};
use crate::arch::x86_64::{CALLEE_SAVED, RSP};
use crate::elf::LANDING_TABLE_BOUND;
use crate::facts::{Certainty, Evidence, Hold, Holder, Mode, ResourceKind};
use crate::layout::Layouts;
use crate::memory::MemoryExt;
use crate::snapshot::Pc;
use crate::units::{Addr, FrameIx};
use crate::unwind::{Frame, Trust};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Frames of one thread looked at.
const MAX_FRAMES: usize = 96;
/// Functions whose code is followed at most, over all landing pads.
const MAX_FOLLOWED: usize = 4_000;
/// Landing pads followed in one process.
const MAX_PADS: usize = 20_000;
/// How deep functions are followed into that a landing pad calls.
const MAX_DEPTH: u32 = 2;
/// Bytes of one frame searched for an address.
const MAX_FRAME: u64 = 16 << 10;

/// What a landing pad would do to something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Release {
    /// What: a lock, or a guard that lies in the frame and points at one.
    at: Addr,
    /// Whether it is done on every path.
    sure: bool,
    /// Whether it is taken first: what the frames further out hold was given back for the time of this call.
    again: bool,
}

/// A thread that may hold the lock.
struct Claim {
    thread: usize,
    frame: usize,
    certainty: Certainty,
    why: String,
}

impl Bytes for Scene<'_> {
    fn code(&self, at: u64) -> Vec<u8> {
        // the longest instruction; less at the end of a mapping
        let whole = self.view.memory.read_vec(Addr(at), 15);
        whole.unwrap_or_else(|_| {
            (1..15).rev().find_map(|n| self.view.memory.read_vec(Addr(at), n).ok()).unwrap_or_default()
        })
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.view.memory.read_u64(Addr(at)).ok()
    }
}

impl Scene<'_> {
    /// The holders of `lock`, as far as frames tell: one, or several who share it. Where more threads claim it than can have
    /// it nobody is named, and the sentence says why.
    pub(super) fn holders(&self, lock: &Lock) -> (Vec<Hold>, Option<String>) {
        if lock.state == Some(State::Free) {
            return (Vec::new(), None);
        }
        let mut claims: Vec<Claim> = self.threads().filter_map(|t| self.claim(t, lock)).collect();
        if claims.is_empty() && lock.is_initialisation() {
            claims = self.threads().filter_map(|t| self.claim_by_function(t, lock)).collect();
        }
        // a word that nothing else says to be a lock's is one only where a landing pad says so
        claims.retain(|c| lock.kind != ResourceKind::Futex || c.certainty > Certainty::Inferred);
        if claims.is_empty() && lock.kind != ResourceKind::Futex {
            claims = self.threads().filter_map(|t| self.claim_by_code(t, lock)).collect();
        }
        let (mode, room) = match lock.state {
            Some(State::Shared(n)) => (Mode::Shared, n),
            _ => (Mode::Exclusive, 1),
        };
        // what is proven counts before what is only likely
        let best = claims.iter().map(|c| c.certainty).max().unwrap_or(Certainty::Inferred);
        claims.retain(|c| c.certainty == best);
        if u64::try_from(claims.len()).is_ok_and(|n| n > room) {
            let tids: Vec<String> = claims.iter().map(|c| self.tid(c.thread).to_string()).collect();
            return (
                Vec::new(),
                Some(format!("threads {} may each have it: none is said to hold it", tids.join(", "))),
            );
        }
        let hold = |c: Claim| Hold {
            holder: Holder::Thread(self.view.thread(c.thread)),
            of: lock.id,
            mode,
            certainty: c.certainty,
            taken_at: u32::try_from(c.frame).ok().map(FrameIx),
            taken_at_managed: None,
            evidence: vec![Evidence::new(c.why)],
        };
        (claims.into_iter().map(hold).collect(), None)
    }

    /// Whether a thread sleeps by the C library's `syscall`, or by an instruction of its program's own: in none of the
    /// library's objects.
    pub(super) fn is_by_syscall(&self, thread: usize) -> bool {
        let Some(frame) = self.frames(thread).first() else { return false };
        let function = self.view.snapshot.function_at(frame.pc);
        function.map_or(frame.module.is_some(), |(f, _)| &*f.name == "syscall") || self.is_of_program(frame)
    }

    fn is_of_program(&self, frame: &Frame) -> bool {
        let name = frame.module.and_then(|ix| self.view.snapshot.module(ix)).map_or("", |m| m.name());
        !["libc.so", "libc-2.", "libpthread", "ld-linux", "ld-2."].iter().any(|lib| name.starts_with(lib))
            && !name.is_empty()
    }

    fn threads(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.view.snapshot.threads.len()
    }

    /// The frames of a thread that may have taken something: those further out than the call it waits in.
    fn outer_frames(&self, thread: usize) -> impl Iterator<Item = (usize, &Frame)> + '_ {
        let from = self.calls.get(thread).and_then(|c| c.as_ref()).map_or(0, |c| c.last + 1);
        let frames = self.frames(thread).iter().enumerate().take(MAX_FRAMES).skip(from);
        frames.filter(|(_, f)| f.trust >= Trust::Cfi && !f.signal)
    }

    fn claim(&self, thread: usize, lock: &Lock) -> Option<Claim> {
        let tid = self.tid(thread);
        let found = self.outer_frames(thread).find_map(|(i, frame)| {
            let releases = self.releases(thread, i, frame);
            let of = |r: &&Release| r.at == lock.at || self.points_at(frame, r.at, lock.at);
            releases.iter().filter(of).max_by_key(|r| (r.again, r.sure)).map(|r| (i, *r))
        });
        // `MutexGuard::unlocked` and its like: the lock is taken again when the call is over
        let found = found.filter(|(i, r)| !r.again && !self.gives_it_back_meanwhile(thread, *i, lock));
        let found = found.filter(|(i, _)| !self.is_lent_to_a_condition(thread, *i, lock));
        let found = found.map(|(i, r)| (i, r.sure));
        if let Some((frame, sure)) = found {
            let certainty = if sure { Certainty::Witnessed } else { Certainty::Inferred };
            let function = self.function_name(thread, frame);
            let why = format!(
                "thread {tid} is inside {function} (frame {frame}), whose landing pad for this call gives back {}",
                lock.at
            );
            return Some(Claim { thread, frame, certainty, why: worded(certainty, why) });
        }
        if !lock.is_initialisation() {
            return None;
        }
        let frame = self.runs(thread, lock)?;
        let function = self.function_name(thread, frame);
        let why = format!(
            "thread {tid} runs the initialiser: frame {frame} ({function}) is the function that others wait in, with {} in hand",
            lock.at
        );
        Some(Claim { thread, frame, certainty: Certainty::Witnessed, why })
    }

    /// The frame of `thread` in the very function the lock is waited in, with the lock's address: it runs the initialiser.
    fn runs(&self, thread: usize, lock: &Lock) -> Option<usize> {
        let mut outer = self.outer_frames(thread);
        outer
            .find(|(i, f)| self.function(f) == Some(lock.waited_in) && self.carries(thread, *i, lock.at))
            .map(|(i, _)| i)
    }

    /// The thread and frame that run the one-time initialisation `at`, which another waits for in the function of `waiter`.
    pub(super) fn runs_once(&self, waiter: &Frame, at: Addr) -> Option<(usize, usize)> {
        let function = self.function(waiter)?;
        self.threads().find_map(|t| {
            let waits_here = self.futexes.get(t).copied().flatten().is_some_and(|f| f.at == at);
            let frames = self.frames(t).iter().enumerate().take(MAX_FRAMES).skip(if waits_here { 2 } else { 0 });
            let mut frames = frames.filter(|(_, f)| f.trust >= Trust::Cfi && !f.signal);
            let hit = frames.find(|(i, f)| self.function(f) == Some(function) && self.carries(t, *i, at));
            hit.map(|(i, _)| (t, i))
        })
    }

    /// A static variable's initialiser runs in the function that also asks for the guard: a thread that is in it, other than
    /// asking.
    fn claim_by_function(&self, thread: usize, lock: &Lock) -> Option<Claim> {
        let asks = |i: usize| {
            let call = self.calls.get(thread).and_then(|c| c.as_ref());
            call.is_some_and(|c| c.last + 1 == i) && self.objects.get(thread).copied().flatten() == Some(lock.at)
        };
        let caller = lock.asked_in?;
        let mut outer = self.outer_frames(thread);
        let (frame, _) = outer.find(|(i, f)| self.function(f) == Some(caller) && !asks(*i))?;
        let function = self.function_name(thread, frame);
        let why = format!(
            "thread {} is the only other one inside {function} (frame {frame}), which initialises the variable",
            self.tid(thread)
        );
        Some(Claim { thread, frame, certainty: Certainty::Inferred, why: worded(Certainty::Inferred, why) })
    }

    /// A frame whose function names the lock in its code both before and after its call, where no exception may pass through.
    fn claim_by_code(&self, thread: usize, lock: &Lock) -> Option<Claim> {
        // who waits for it may have it further out, but a name in code is too little to say so
        if self.objects.get(thread).copied().flatten() == Some(lock.at) {
            return None;
        }
        let names = |f: &Frame| self.landing_pad(f).is_none() && self.names_around(f, lock.at);
        let (frame, _) = self.outer_frames(thread).find(|(_, f)| names(f))?;
        if self.gives_it_back_meanwhile(thread, frame, lock) {
            return None;
        }
        let function = self.function_name(thread, frame);
        let why = format!(
            "thread {} is the only one inside a function that names {} before and after its call: {function} (frame {frame})",
            self.tid(thread),
            lock.at
        );
        Some(Claim { thread, frame, certainty: Certainty::Inferred, why: worded(Certainty::Inferred, why) })
    }

    /// Whether the code of a frame's function computes the address `at` both before and after the frame's call.
    fn names_around(&self, frame: &Frame, at: Addr) -> bool {
        let Some((before, start)) = self.code_before(frame) else { return false };
        let end = self.function_end(frame);
        let here = frame.pc.addr;
        let Some(len) = end.and_then(|end| usize::try_from(end.0.checked_sub(here.0)?).ok()) else { return false };
        let Ok(after) = self.view.memory.read_vec(here, len.min(MAX_CODE)) else { return false };
        computes(&before, start.0, at.0) && computes(&after, here.0, at.0)
    }

    /// Whether a thread sleeps in a call that gives this lock, which its frame `holder` has, back while it lasts; or may do so,
    /// where the call is not known.
    fn gives_it_back_meanwhile(&self, thread: usize, holder: usize, lock: &Lock) -> bool {
        let known = self.calls.get(thread).and_then(|c| c.as_ref());
        match known.filter(|c| !c.is_inner()) {
            Some(call) => {
                let waits = call.signature.means.word("waits") == Some("condvar");
                let named = self.objects.get(thread).copied().flatten() == Some(lock.at);
                waits && (named || (0..=call.last).any(|i| self.carries(thread, i, lock.at)))
            }
            None => {
                let asleep = self.futexes.get(thread).copied().flatten().is_some() && self.is_by_syscall(thread);
                // what is known of the call gives nothing back by itself
                let from = known.map_or(1, |c| c.last + 1);
                asleep && self.is_handed_in(thread, from..holder, lock.at)
            }
        }
    }

    /// Whether a thread is inside a wait on a condition, further in than its frame `holder`, that gives this lock back and takes
    /// it again in the end: until it has it, it may run, or wait for the lock itself.
    fn is_lent_to_a_condition(&self, thread: usize, holder: usize, lock: &Lock) -> bool {
        let wants_it = self.objects.get(thread).copied().flatten() == Some(lock.at);
        let from = self.calls.get(thread).and_then(|c| c.as_ref()).map_or(0, |c| c.last + 1);
        let frames = self.frames(thread);
        let has_it = |upto: usize| (0..=upto).any(|i| self.carries(thread, i, lock.at));
        let between = frames.get(from..holder).unwrap_or(&[]);
        let lends = |(i, f): (usize, &Frame)| match self.waits_on_condition(f, false) {
            Some(waits) => waits && (wants_it || has_it(from + i)),
            // without a name: it has given something back before, as a condition does
            None => wants_it && self.code_before(f).is_some_and(|(code, start)| exchanges(&code, start.0)),
        };
        between.iter().enumerate().any(lends)
            || wants_it && frames.get(holder).is_some_and(|f| self.waits_on_condition(f, true) == Some(true))
    }

    /// Whether the frames of `inside` have `value` for themselves: more often than as a register of the frame behind them that
    /// they keep or have put aside.
    fn is_handed_in(&self, thread: usize, inside: std::ops::Range<usize>, value: Addr) -> bool {
        let frames = self.frames(thread);
        let Some(outer) = frames.get(inside.end) else { return true };
        let of_holder = |reg: &Reg| outer.registers.read(*reg) == Some(value.0);
        let kept = CALLEE_SAVED.iter().filter(|reg| of_holder(reg)).count();
        let inner = frames.get(inside.clone()).unwrap_or(&[]);
        let elsewhere = |f: &Frame| CALLEE_SAVED.iter().any(|r| f.registers.read(*r) == Some(value.0) && !of_holder(r));
        let words = |i: usize| self.words(thread, i).chunks_exact(8).filter(|w| **w == value.0.to_le_bytes()).count();
        inner.iter().any(elsewhere) || inside.map(words).sum::<usize>() > kept
    }

    /// Whether `at` lies in this frame's part of the stack and one of the two words there is `lock`: a guard.
    fn points_at(&self, frame: &Frame, at: Addr, lock: Addr) -> bool {
        let sp = frame.registers.read(RSP).map(Addr);
        let inside = sp.zip(frame.cfa).is_some_and(|(sp, cfa)| sp <= at && at < cfa);
        // Rust's guards of read-write locks begin with what is guarded
        inside && [0, 8].iter().any(|n| self.view.memory.read_u64(at.offset(*n)).is_ok_and(|word| word == lock.0))
    }

    /// Whether a frame has `value` in a register its callees keep, or in its part of the stack.
    fn carries(&self, thread: usize, index: usize, value: Addr) -> bool {
        let Some(frame) = self.frames(thread).get(index) else { return false };
        if CALLEE_SAVED.iter().any(|reg| frame.registers.read(*reg) == Some(value.0)) {
            return true;
        }
        self.words(thread, index).chunks_exact(8).any(|w| w == value.0.to_le_bytes())
    }

    /// A frame's part of the stack.
    fn words(&self, thread: usize, index: usize) -> Vec<u8> {
        let Some(frame) = self.frames(thread).get(index) else { return Vec::new() };
        let sp = frame.registers.read(RSP).map(Addr);
        let Some((sp, cfa)) = sp.zip(frame.cfa).filter(|(sp, cfa)| sp < cfa && cfa.0 - sp.0 <= MAX_FRAME) else {
            return Vec::new();
        };
        usize::try_from(cfa.0 - sp.0).ok().and_then(|len| self.view.memory.read_vec(sp, len).ok()).unwrap_or_default()
    }

    /// What the landing pad of a frame's call would give back.
    fn releases(&self, thread: usize, index: usize, frame: &Frame) -> Releases {
        if let Some(known) = self.released.borrow().get(&(thread, index)) {
            return Rc::clone(known);
        }
        let full = self.released.borrow().len() >= MAX_PADS;
        let found: Releases = if full { Rc::from([]) } else { self.find_releases(frame).into() };
        self.released.borrow_mut().insert((thread, index), Rc::clone(&found));
        found
    }

    /// The landing pad of a frame's call, and the code it is part of.
    fn landing_pad(&self, frame: &Frame) -> Option<Pad> {
        if let Some(known) = self.pads.borrow().get(&frame.pc.addr) {
            return known.clone();
        }
        let found = self.find_landing_pad(frame);
        self.pads.borrow_mut().insert(frame.pc.addr, found.clone());
        found
    }

    fn find_landing_pad(&self, frame: &Frame) -> Option<Pad> {
        let image = self.view.snapshot.module(frame.module?)?.image().ok()?;
        let pc = image.bias.to_vaddr(frame.pc.lookup());
        let table = image.elf.landing_table(pc)?;
        let at = image.bias.to_addr(table.at);
        let mut bytes = vec![0; LANDING_TABLE_BOUND];
        let mut len = bytes.len();
        // the table's end is not known: less is read where that much cannot be
        while self.view.memory.read(at, bytes.get_mut(..len)?).is_err() {
            len /= 2;
            if len < 16 {
                return None;
            }
        }
        let pad = table.landing_pad(bytes.get(..len)?, pc)?;
        let covers = image.elf.frame_description_at(pad)?;
        let start = image.bias.to_addr(crate::units::Vaddr(covers.start));
        Some((image.bias.to_addr(pad), start.0..start.0.wrapping_add(covers.end - covers.start)))
    }

    fn find_releases(&self, frame: &Frame) -> Vec<Release> {
        let Some((pad, within)) = self.landing_pad(frame) else { return Vec::new() };
        self.given_back(pad, &within, frame, Entry::Exception, MAX_DEPTH)
    }

    /// What the code from `from` on gives back, functions it calls included. What it takes first is none of it.
    fn given_back(
        &self,
        from: Addr,
        within: &std::ops::Range<u64>,
        frame: &Frame,
        entry: Entry,
        depth: u32,
    ) -> Vec<Release> {
        // each costs about as much as a frame's unwinding
        if self.followed.replace(self.followed.get() + 1) >= MAX_FOLLOWED {
            return Vec::new();
        }
        let doing = follow(self, from.0, within, &frame.registers, entry);
        let paths: Vec<Vec<Release>> = doing.paths.iter().map(|acts| self.given_back_on(acts, frame, depth)).collect();
        let mut out: Vec<Release> = Vec::new();
        for release in paths.iter().flatten() {
            let always = doing.whole && paths.iter().all(|p| p.iter().any(|r| r.at == release.at && r.sure));
            match out.iter_mut().find(|r| r.at == release.at) {
                Some(known) => known.again |= release.again,
                None => out.push(Release { sure: always, ..*release }),
            }
        }
        out
    }

    fn given_back_on(&self, acts: &[Act], frame: &Frame, depth: u32) -> Vec<Release> {
        // what was done first to an address counts
        let mut met: BTreeSet<u64> = BTreeSet::new();
        let mut out: Vec<Release> = Vec::new();
        for act in acts {
            match *act {
                Act::Takes { at } | Act::Releases { at } => {
                    let again = matches!(act, Act::Takes { .. });
                    out.extend(met.insert(at).then_some(Release { at: Addr(at), sure: !again, again }));
                }
                Act::Call { first: None, .. } => {}
                Act::Call { to, first: Some(first) } if self.is_release(to) => {
                    out.extend(met.insert(first).then_some(Release { at: Addr(first), sure: true, again: false }));
                }
                Act::Call { to, first: Some(first) } => {
                    if let (Callee::At(at), Some(depth)) = (to, depth.checked_sub(1))
                        && let Some(within) = self.function_around(Addr(at))
                    {
                        let inner = self.given_back(Addr(at), &within, frame, Entry::Called(first), depth);
                        out.extend(inner.into_iter().filter(|r| met.insert(r.at.0)));
                    }
                    // a function of any other name may take it
                    met.insert(first);
                }
            }
        }
        out
    }

    /// The code of the function that begins at `at`.
    fn function_around(&self, at: Addr) -> Option<std::ops::Range<u64>> {
        let (_, module) = self.view.snapshot.module_at(at)?;
        let image = module.image().ok()?;
        let covers = image.elf.frame_description_at(image.bias.to_vaddr(at))?;
        let start = image.bias.to_addr(crate::units::Vaddr(covers.start));
        (start == at).then(|| start.0..start.0.wrapping_add(covers.end - covers.start))
    }

    /// Whether a function of this name gives a lock back.
    fn is_release(&self, to: Callee) -> bool {
        if let Some(known) = self.release_calls.borrow().get(&to) {
            return *known;
        }
        let found = self.reads_as_release(to);
        self.release_calls.borrow_mut().insert(to, found);
        found
    }

    fn reads_as_release(&self, to: Callee) -> bool {
        let Some(name) = self.callee_name(to) else { return false };
        let dropped = name.strip_prefix("core::ptr::drop_in_place").map(|rest| rest.trim_start_matches("::"));
        let of_type = dropped.and_then(|rest| rest.strip_prefix('<')?.strip_suffix('>'));
        let name = plain(of_type.unwrap_or(&name));
        Layouts::waiting_frames().any(|s| s.means.word("gives_back").is_some() && s.matches("", &name))
    }

    fn callee_name(&self, to: Callee) -> Option<String> {
        let named = |at: u64| {
            let (symbol, into) = self.view.snapshot.function_at(Pc { addr: Addr(at), exact: true })?;
            (into == 0).then(|| crate::elf::demangle(&symbol.name))
        };
        let import = |slot: u64| {
            let (_, module) = self.view.snapshot.module_at(Addr(slot))?;
            let image = module.image().ok()?;
            image.elf.import_at(image.bias.to_vaddr(Addr(slot))).map(|n| crate::elf::demangle(&n))
        };
        match to {
            Callee::At(at) => named(at).or_else(|| import(jumps_through(self, at)?)),
            Callee::Through(slot) => import(slot).or_else(|| named(self.word(slot)?)),
            Callee::Unknown => None,
        }
    }

    /// Where a frame's function begins: by its frame description, else by its symbol.
    pub(super) fn function(&self, frame: &Frame) -> Option<Addr> {
        let image = self.view.snapshot.module(frame.module?)?.image().ok()?;
        match image.elf.frame_description_at(image.bias.to_vaddr(frame.pc.lookup())) {
            Some(covers) => Some(image.bias.to_addr(crate::units::Vaddr(covers.start))),
            None => {
                let (_, into) = self.view.snapshot.function_at(frame.pc)?;
                Some(Addr(frame.pc.addr.0.wrapping_sub(into)))
            }
        }
    }

    fn function_end(&self, frame: &Frame) -> Option<Addr> {
        let image = self.view.snapshot.module(frame.module?)?.image().ok()?;
        let covers = image.elf.frame_description_at(image.bias.to_vaddr(frame.pc.lookup()))?;
        Some(image.bias.to_addr(crate::units::Vaddr(covers.end)))
    }

    fn function_name(&self, thread: usize, index: usize) -> String {
        let frame = self.frames(thread).get(index);
        let name = frame.and_then(|f| self.view.snapshot.function_at(f.pc)).map(|(s, _)| crate::elf::demangle(&s.name));
        let module = || frame.and_then(|f| self.view.snapshot.module(f.module?)).map(|m| m.name().to_owned());
        name.or_else(|| module().map(|m| format!("a function of {m}"))).unwrap_or_else(|| "a function".to_owned())
    }
}

/// Bytes of a function looked through.
const MAX_CODE: usize = 64 << 10;

fn worded(certainty: Certainty, text: String) -> String {
    match certainty {
        Certainty::Inferred => format!("inferred: {text}"),
        _ => text,
    }
}
