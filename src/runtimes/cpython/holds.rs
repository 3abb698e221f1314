//! Who holds Python locks: by the `with` blocks their frames are inside of, and by the owners locks record.

use super::code::Codes;
use super::conditions::{entered_sem_lock, lock_of_entered_condition};
use super::frames::read_frame;
use super::locks::Lock;
use super::objects::Objects;
use super::place::Framed;
use super::with_blocks::{Block, WithBlocks, bound_exit};
use crate::units::Addr;

/// A lock a thread is inside the `with` block of.
#[derive(Clone, Debug)]
pub(super) struct Witnessed {
    /// Index into the snapshot's threads.
    pub thread: usize,
    pub lock: Lock,
    /// Index of the frame with the `with` statement.
    pub frame: usize,
    /// The line of that statement.
    pub line: Option<u32>,
    /// The object of that statement.
    pub manager: Addr,
    /// How the lock was reached from the manager, where it is not the manager itself: `Condition`, `@contextmanager f`.
    pub via: Option<String>,
    /// Why it is not proven after all.
    pub doubt: Option<String>,
    /// How others than the holder may end it, where the manager is within their reach.
    pub shared: Option<&'static str>,
}

impl Witnessed {
    /// Makes it no proof: others than the holder may have ended it, or may yet.
    pub(super) fn is_shared(&mut self, how: &'static str) {
        self.doubt = Some(how.to_owned());
        self.shared = Some(how);
    }
}

/// What a manager holds.
pub(super) struct Held {
    pub lock: Lock,
    /// How the lock was reached, where the manager is not the lock itself.
    pub via: Option<String>,
    /// How others may have ended it: another thread has the object that holds the lock, or can get at it.
    pub shared: Option<&'static str>,
}

/// Why a hold through a suspended generator is no proof.
const KEPT: &str = "the context manager is kept elsewhere too, and whoever has it may end it";
/// Why one through an `ExitStack` is none: its entries can be moved to another one, and made without entering anything.
const STACKED: &str = "an ExitStack can be closed or emptied by whoever has it";

/// Managers of one `ExitStack` looked at at most.
const MAX_STACKED: u64 = 64;
/// Generators that one frame refers to looked at at most.
const MAX_GENERATORS: usize = 32;
/// Managers inside managers followed at most.
const MAX_DEPTH: usize = 8;

/// Reads the `with` blocks of all stacks.
pub(super) struct Holds<'a> {
    objects: &'a Objects<'a>,
    blocks: WithBlocks,
}

impl<'a> Holds<'a> {
    pub(super) fn new(objects: &'a Objects<'a>) -> Holds<'a> {
        Holds { objects, blocks: WithBlocks::default() }
    }

    /// Every lock that a frame of a thread proves to hold, each once per thread with its outermost taking.
    pub(super) fn witnessed<'f>(
        &self,
        stacks: impl Iterator<Item = (usize, &'f [Framed])>,
        codes: &mut Codes,
    ) -> Vec<Witnessed> {
        let mut out = Vec::new();
        for (thread, frames) in stacks {
            let mut mine: Vec<Witnessed> = Vec::new();
            for (i, framed) in frames.iter().enumerate() {
                let Some(code) = &framed.code else { continue };
                for block in self.blocks.of(self.objects, &framed.frame, code) {
                    let inner = frames.get(..i).unwrap_or_default();
                    self.follow(&block, inner, codes, &mut |Held { lock, via, shared }| {
                        let doubt = shared.map(str::to_owned);
                        let (line, manager) = (block.line, block.manager);
                        mine.push(Witnessed { thread, lock, frame: i, line, manager, via, doubt, shared });
                    });
                }
            }
            // a recursive lock is taken where it was taken first
            mine.sort_by_key(|w| (w.lock.addr, w.doubt.is_some(), std::cmp::Reverse(w.frame)));
            mine.dedup_by_key(|w| w.lock.addr);
            out.extend(mine);
        }
        out
    }

    /// The `with` blocks a frame is inside of, innermost first.
    pub(super) fn blocks_of(&self, framed: &Framed) -> Vec<Block> {
        framed.code.as_ref().map(|code| self.blocks.of(self.objects, &framed.frame, code)).unwrap_or_default()
    }

    /// Gives `found` the locks that a block's manager holds. `inner` are the thread's frames inside it.
    pub(super) fn follow(&self, block: &Block, inner: &[Framed], codes: &mut Codes, found: &mut dyn FnMut(Held)) {
        self.follow_manager(block.manager, self.is_own(block), inner, codes, 0, found);
    }

    /// Whether nobody but the frame of a block can reach its manager.
    fn is_own(&self, block: &Block) -> bool {
        let o = self.objects;
        o.is_unshared(block.manager) && block.method.is_none_or(|m| o.is_unshared(m))
    }

    /// `own`: nobody else can reach the manager.
    fn follow_manager(
        &self,
        manager: Addr,
        own: bool,
        inner: &[Framed],
        codes: &mut Codes,
        depth: usize,
        found: &mut dyn FnMut(Held),
    ) {
        let o = self.objects;
        if let Some(lock) = o.lock(manager) {
            if lock.can_be_held_here() && !is_lent(o, inner, manager) {
                found(Held { lock, via: None, shared: None });
            }
            return;
        }
        let Some(kind) = o.type_of(manager) else { return };
        if depth >= MAX_DEPTH {
            return;
        }
        if let Some(lock) = lock_of_entered_condition(o, manager) {
            let lock = Some(lock).filter(|l| !is_lent(o, inner, *l)).and_then(|l| o.lock(l));
            if let Some(lock) = lock.filter(Lock::can_be_held_here) {
                found(Held { lock, via: Some("a Condition".to_owned()), shared: None });
            }
            return;
        }
        match kind.name.as_str() {
            "_GeneratorContextManager" | "_AsyncGeneratorContextManager" => {
                let Some(generator) = o.attribute(manager, "gen") else { return };
                let Some((framed, name)) = self.suspended(generator, codes) else { return };
                let Some(code) = framed.code.clone() else { return };
                let own = own && o.is_unshared(generator);
                for block in self.blocks.of(o, &framed.frame, &code) {
                    let own_too = own && self.is_own(&block);
                    self.follow_manager(block.manager, own_too, inner, codes, depth + 1, &mut |held| {
                        let via = held.via.map(|v| format!(", {v}")).unwrap_or_default();
                        let via = Some(format!("the context manager {name}{via}"));
                        found(Held { via, shared: held.shared.or((!own).then_some(KEPT)), ..held });
                    });
                }
            }
            // its entries are (whether it is synchronous, the exit method), each made once the manager was entered
            "ExitStack" | "AsyncExitStack" => {
                let entries = o.attribute(manager, "_exit_callbacks").filter(|d| o.is(*d, "collections.deque"));
                for entry in entries.map(|d| o.deque(d, MAX_STACKED)).unwrap_or_default() {
                    let exit = o.is(entry, "tuple").then(|| o.tuple(entry).ok()?.get(1).copied()).flatten();
                    let Some(manager) = exit.and_then(|e| bound_exit(o, e)) else { continue };
                    self.follow_manager(manager, false, inner, codes, depth + 1, &mut |held| {
                        let via = held.via.map(|v| format!(", {v}")).unwrap_or_default();
                        found(Held { via: Some(format!("an {}{via}", kind.name)), shared: Some(STACKED), ..held });
                    });
                }
            }
            _ if is_lent(o, inner, manager) => {}
            _ => {
                if let Some(lock) = entered_sem_lock(o, manager).and_then(|l| o.lock(l)).filter(Lock::can_be_held_here)
                {
                    found(Held { lock, via: None, shared: None });
                }
            }
        }
    }

    /// Gives `found` a manager whose block is entered, and those whose blocks it keeps entered itself: a generator's, an exit
    /// stack's. Of a condition of asyncio its lock, too, where none of the frames inside waits on the condition.
    pub(super) fn managers(
        &self,
        manager: Addr,
        inner: &[Framed],
        codes: &mut Codes,
        depth: usize,
        found: &mut dyn FnMut(Addr),
    ) {
        let o = self.objects;
        let Some(kind) = o.type_of(manager).filter(|_| depth < MAX_DEPTH) else { return };
        if !is_lent_by_task(o, inner, manager) {
            found(manager);
        }
        match kind.name.as_str() {
            "Condition" => {
                let lock = o.attribute(manager, "_lock").filter(|l| !is_lent_by_task(o, inner, *l));
                lock.into_iter().for_each(found);
            }
            "_GeneratorContextManager" | "_AsyncGeneratorContextManager" => {
                if let Some(generator) = o.attribute(manager, "gen") {
                    self.managers_of_generator(generator, inner, codes, depth + 1, found);
                }
            }
            "ExitStack" | "AsyncExitStack" => {
                let entries = o.attribute(manager, "_exit_callbacks").filter(|d| o.is(*d, "collections.deque"));
                for entry in entries.map(|d| o.deque(d, MAX_STACKED)).unwrap_or_default() {
                    let exit = o.is(entry, "tuple").then(|| o.tuple(entry).ok()?.get(1).copied()).flatten();
                    if let Some(manager) = exit.and_then(|e| bound_exit(o, e)) {
                        self.managers(manager, inner, codes, depth + 1, found);
                    }
                }
            }
            _ => {}
        }
    }

    /// The managers whose blocks a suspended generator is inside of.
    pub(super) fn managers_of_generator(
        &self,
        generator: Addr,
        inner: &[Framed],
        codes: &mut Codes,
        depth: usize,
        found: &mut dyn FnMut(Addr),
    ) {
        let Some((framed, _)) = self.suspended(generator, codes) else { return };
        for block in self.blocks_of(&framed) {
            self.managers(block.manager, inner, codes, depth, found);
        }
    }

    /// The generators that a frame can name, or iterates over, which are suspended inside the block of this lock: their
    /// names and the lines of the blocks. On the value stack may stand left-overs, so that none of it is proof.
    pub(super) fn in_generators(
        &self,
        framed: &Framed,
        lock: Addr,
        codes: &mut Codes,
    ) -> Option<(String, Option<u32>)> {
        let o = self.objects;
        let code = framed.code.as_ref()?;
        let mut values = o.stack_words(&framed.frame, code);
        values.extend(o.locals(&framed.frame, code).into_iter().map(|(_, v)| v));
        let mut seen: Vec<Addr> = Vec::new();
        for value in values {
            if seen.contains(&value) || seen.len() >= MAX_GENERATORS || !o.is(value, "generator") {
                continue;
            }
            seen.push(value);
            let Some((inside, name)) = self.suspended(value, codes) else { continue };
            let Some(code) = &inside.code else { continue };
            for block in self.blocks.of(o, &inside.frame, code) {
                let mut is_it = false;
                self.follow(&block, &[], codes, &mut |held| is_it |= held.lock.addr == lock);
                if is_it {
                    return Some((name, block.line));
                }
            }
        }
        None
    }

    /// What the blocks that a thread entered since have for managers: objects, and frames of suspended generators. `frames`
    /// are those of the holder.
    pub(super) fn entered_since(
        &self,
        witnessed: &Witnessed,
        frames: &[Framed],
        codes: &mut Codes,
    ) -> (Vec<Addr>, Vec<Framed>) {
        let o = self.objects;
        let (mut objects, mut generators) = (Vec::new(), Vec::new());
        for (i, framed) in frames.iter().enumerate().take(witnessed.frame.saturating_add(1)) {
            let own = |b: &Block| i == witnessed.frame && b.manager == witnessed.manager;
            for block in self.blocks_of(framed).into_iter().take_while(|b| !own(b)) {
                let generator = o
                    .is(block.manager, "_GeneratorContextManager")
                    .then(|| self.suspended(o.attribute(block.manager, "gen")?, codes))
                    .flatten();
                match generator {
                    Some((framed, _)) => generators.push(framed),
                    None => objects.push(block.manager),
                }
            }
        }
        (objects, generators)
    }

    /// The frame of a generator that is suspended, and the generator's name.
    fn suspended(&self, generator: Addr, codes: &mut Codes) -> Option<(Framed, String)> {
        let o = self.objects;
        let at = match (o.o.gen_iframe, o.o.gen_frame) {
            (Some(embedded), _) => {
                let state = o.byte(generator, o.o.gen_state?).ok()?;
                o.o.gen_suspended.contains(&state).then_some(())?;
                generator.checked_add(embedded)?
            }
            (None, Some(pointer)) => o.addr(generator, pointer).ok().filter(|a| !a.is_null())?,
            (None, None) => return None,
        };
        let (frame, _) = read_frame(o, at).ok()?;
        let code = codes.load_one(o, frame.code)?;
        let name = code.function.clone();
        Some((Framed { frame, code: Some(code) }, name))
    }
}

/// Whether one of the frames inside a block waits on a condition that `lock` belongs to: `Condition.wait` lets go of the lock
/// though the block is still entered. Several conditions may share one lock, and the block may name the lock itself.
fn is_lent(objects: &Objects<'_>, inner: &[Framed], lock: Addr) -> bool {
    let waits = |f: &Framed| f.is("threading.py", "wait") || f.is("synchronize.py", "wait");
    let belongs = |f: &Framed| f.first_argument(objects).and_then(|c| objects.attribute(c, "_lock")) == Some(lock);
    inner.iter().any(|f| waits(f) && belongs(f))
}

/// The same among tasks: whether one of the frames inside a block waits on a condition of asyncio that `lock` belongs to.
fn is_lent_by_task(objects: &Objects<'_>, inner: &[Framed], lock: Addr) -> bool {
    let waits = |f: &Framed| f.is("locks.py", "wait");
    let belongs = |f: &Framed| f.first_argument(objects).and_then(|c| objects.attribute(c, "_lock")) == Some(lock);
    inner.iter().any(|f| waits(f) && belongs(f))
}
