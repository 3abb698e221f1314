//! Facts no decoder would tell: any thread holds and waits for anything, under any name.

use super::dice::Dice;
use hangscope::facts::{
    CalledAs, Certainty, DeviceCall, DeviceWait, Evidence, Facts, Gap, GilRole, Hold, Holder, Local, ManagedFrame,
    ManagedThread, Mode, Reentrancy, Resource, ResourceId, ResourceKind, RuntimeNote, TakenAt, Task, Timeout, Wait,
    Wakers,
};
use hangscope::units::{Addr, FrameIx, Pid, ProcessIx, ThreadRef, Tid};

const KINDS: &[ResourceKind] = &[
    ResourceKind::Gil,
    ResourceKind::Mutex,
    ResourceKind::LoaderWriteLock,
    ResourceKind::Condvar,
    ResourceKind::PythonLock,
    ResourceKind::PythonRlock,
    ResourceKind::PythonTask,
    ResourceKind::PythonFuture,
    ResourceKind::WorkerPool,
    ResourceKind::GpuSignal,
    ResourceKind::GpuStream,
    ResourceKind::Pipe,
    ResourceKind::ProcessExit,
    ResourceKind::Epoll,
    ResourceKind::FileLock,
    ResourceKind::Unknown,
];

const PIECES: &[&str] = &[
    "",
    " ",
    "f",
    "\u{1b}[31m",
    "\u{202e}",
    "\n",
    "\0",
    "\r",
    "\u{9b}",
    "<&>\"'",
    "\\",
    "“”",
    "é",
    "界",
    "😀",
    "\u{301}",
    "\u{e0041}",
    "site-packages/",
    "::",
    "@",
    "%s{}",
    "]]>",
];

/// Any text.
fn text(dice: &mut Dice<'_>) -> String {
    if dice.once_in(64) {
        return dice.pick(PIECES).repeat(10_000);
    }
    (0..dice.below(6)).map(|_| dice.pick(PIECES)).collect()
}

fn maybe<T>(dice: &mut Dice<'_>, make: impl FnOnce(&mut Dice<'_>) -> T) -> Option<T> {
    (!dice.once_in(3)).then(|| make(dice))
}

fn small(dice: &mut Dice<'_>) -> u32 {
    let large = dice.once_in(16);
    u32::try_from(dice.below(if large { u64::from(u32::MAX) } else { 6 })).unwrap_or(0)
}

struct Odd<'a, 'b> {
    dice: &'a mut Dice<'b>,
    threads: u32,
}

impl Odd<'_, '_> {
    fn thread(&mut self) -> ThreadRef {
        let most = u64::from(self.threads) + u64::from(self.dice.once_in(32));
        let thread = u32::try_from(self.dice.below(most)).unwrap_or(0);
        ThreadRef { process: ProcessIx(u32::from(self.dice.once_in(64))), thread }
    }

    fn resource(&mut self) -> ResourceId {
        let number = self.dice.below(8);
        match self.dice.below(8) {
            0 => ResourceId::ThreadExit(self.thread()),
            1 => ResourceId::Numbered(ProcessIx(0), self.dice.pick(KINDS), number),
            2 => ResourceId::Shared { device: (0, 1), inode: number, offset: 0 },
            _ => ResourceId::At(ProcessIx(0), Addr(0x1000 * number)),
        }
    }

    fn evidence(&mut self) -> Vec<Evidence> {
        (0..self.dice.below(4)).map(|_| Evidence(text(self.dice))).collect()
    }

    fn mode(&mut self) -> Mode {
        self.dice.pick(&[Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Any])
    }

    fn wait(&mut self) -> Wait {
        let seconds = self.dice.pick(&[0.0, 1.5, f64::NAN, f64::INFINITY, -1.0]);
        Wait {
            thread: self.thread(),
            on: self.resource(),
            mode: self.mode(),
            timeout: self.dice.pick(&[
                Timeout::None,
                Timeout::None,
                Timeout::Some,
                Timeout::Periodic,
                Timeout::Seconds(seconds),
            ]),
            frame: FrameIx(small(self.dice)),
            managed_frame: maybe(self.dice, small),
            evidence: self.evidence(),
        }
    }

    fn hold(&mut self) -> Hold {
        let holder = match self.dice.below(12) {
            0 => Holder::Gone(ProcessIx(0), Tid(self.dice.pick(&[0, 1, -1, i32::MAX]))),
            1 => Holder::Process(Pid(self.dice.pick(&[0, 1, i32::MIN]))),
            _ => Holder::Thread(self.thread()),
        };
        Hold {
            holder,
            of: self.resource(),
            mode: self.mode(),
            certainty: self.dice.pick(&[Certainty::Recorded, Certainty::Witnessed, Certainty::Inferred]),
            taken_at: maybe(self.dice, small).map(FrameIx),
            taken_at_managed: maybe(self.dice, |d| TakenAt { frame: small(d), line: maybe(d, small) }),
            evidence: self.evidence(),
        }
    }

    fn managed(&mut self) -> ManagedThread {
        let deep = if self.dice.once_in(8) { 4096 } else { 12 };
        let names: Vec<String> = (0..1 + self.dice.below(4)).map(|_| text(self.dice)).collect();
        let random = self.dice.once_in(2);
        let frames = (0..self.dice.below(deep)).map(|i| {
            let at = if random { self.dice.below(names.len() as u64) } else { i % names.len() as u64 };
            let name = &names[usize::try_from(at).unwrap_or(0)];
            ManagedFrame {
                function: name.clone(),
                file: format!("/{name}.py"),
                line: maybe(self.dice, small),
                native: maybe(self.dice, small).map(FrameIx),
                entered: None,
                locals: self.dice.once_in(8).then(|| vec![Local { name: name.clone(), value: text(self.dice) }]),
            }
        });
        let frames = frames.collect();
        ManagedThread {
            name: maybe(self.dice, text),
            frames,
            gil: self.dice.pick(&[None, Some(GilRole::Holds), Some(GilRole::Waits)]),
        }
    }

    fn task(&mut self) -> Task {
        Task {
            id: self.resource(),
            name: text(self.dice),
            thread: self.dice.once_in(2).then(|| self.thread()),
            place: maybe(self.dice, text),
            awaits: maybe(self.dice, text),
            holds: (0..self.dice.below(2)).map(|_| self.resource()).collect(),
            completes: (0..self.dice.below(2)).map(|_| self.resource()).collect(),
        }
    }
}

/// Facts of a process with `threads` threads.
pub fn facts(dice: &mut Dice<'_>, threads: usize) -> Facts {
    let mut facts = Facts::default();
    let mut odd = Odd { dice, threads: u32::try_from(threads.max(1)).unwrap_or(1) };
    for _ in 0..odd.dice.below(16) {
        let resource = Resource {
            id: odd.resource(),
            kind: odd.dice.pick(KINDS),
            name: maybe(odd.dice, text),
            address: maybe(odd.dice, |d| Addr(d.word())),
            reentrancy: odd.dice.pick(&[Reentrancy::Plain, Reentrancy::Recursive, Reentrancy::Unknown]),
            wakers: odd.dice.pick(&[Wakers::Holders, Wakers::Holders, Wakers::AnyThread, Wakers::Outside]),
            idle: odd.dice.once_in(4),
        };
        facts.resources.push(resource);
    }
    for _ in 0..odd.dice.below(12) {
        let (wait, hold) = (odd.wait(), odd.hold());
        facts.waits.push(wait);
        facts.holds.push(hold);
    }
    for _ in 0..odd.dice.below(4) {
        let (t, managed, task) = (odd.thread(), odd.managed(), odd.task());
        facts.managed.push((t, managed));
        facts.tasks.push(task);
        let (called, at) = (text(odd.dice), FrameIx(small(odd.dice)));
        facts.called.push(CalledAs { thread: t, frame: at, function: called.clone() });
        facts.device_calls.entry(t).or_default().push(DeviceCall { function: called, frame: at });
        let mut flip = || odd.dice.once_in(2);
        let (polls, over, program, collective) = (flip(), flip(), flip(), flip());
        let state = (0..odd.dice.below(3)).map(|_| text(odd.dice)).collect();
        let brief = maybe(odd.dice, text);
        facts.devices.insert(t, DeviceWait { polls, over, pulse: Vec::new(), state, program, collective, brief });
        facts.gaps.push(Gap(text(odd.dice)));
        facts.notes.push(text(odd.dice));
        let (a, b) = (odd.resource(), odd.resource());
        facts.given_back.insert(a, b);
        facts.returnable.insert(a, text(odd.dice));
        facts.inherited.insert(b, text(odd.dice));
    }
    facts
}

/// What runtimes would call themselves.
pub fn notes(dice: &mut Dice<'_>) -> Vec<RuntimeNote> {
    let name = |dice: &mut Dice<'_>| dice.pick(&["glibc", "cpython", "rocm", "musl"]);
    (0..dice.below(4))
        .map(|_| RuntimeNote { name: name(dice), version: maybe(dice, text), build: dice.pick(&[None, Some("gil")]) })
        .collect()
}
