//! `hangscope bridge`: the report on what a debugger has open, told through the debugger.

use crate::cli::{Bridge as Args, Common, Drawing, Format, Place, Show};
use crate::diagnose::{self, Diagnosis};
use crate::facts::{Holder, ResourceId};
use crate::report::Part;
use crate::target::bridge::wire::Pipes;
use crate::target::bridge::{Bridge, BridgeOptions};
use crate::units::{Addr, FrameIx, HostTid, ProcessIx, ThreadRef};
use crate::unwind::Frame;
use anyhow::{Context, bail};
use std::io::IsTerminal;
use std::path::Path;

/// Talks with the debugger at the other end of stdin and stdout, reports through it, gives the exit code.
///
/// # Errors
/// When nothing could be analysed: one line on stderr, which the plugin shows.
pub fn run(args: &Args, common: &Common) -> anyhow::Result<u8> {
    if std::io::stdin().is_terminal() {
        bail!(
            "bridge talks to a debugger's plugin, not to a person: `hangscope plugin gdb > hangscope-gdb.py`, then \
             `source hangscope-gdb.py` and `hangscope` inside gdb"
        );
    }
    let options = BridgeOptions {
        sysroot: common.sysroot.clone(),
        debug_dirs: common.debug_dir.clone(),
        patience: args.answer_within,
    };
    let bridge = Bridge::connect(Box::new(Pipes::new(std::io::stdin(), std::io::stdout())), &options)?;
    let diagnosis = diagnose::bridge(&bridge)?;
    let code = diagnosis.verdict.exit_code();
    tell_variables(&bridge, &diagnosis)?;
    show(args.what.as_ref(), &bridge, &diagnosis, common)?;
    bridge.end(code)?;
    Ok(code)
}

fn show(what: Option<&Show>, bridge: &Bridge, diagnosis: &Diagnosis, common: &Common) -> anyhow::Result<()> {
    let mut common = common.clone();
    let mut part = Part::Whole;
    let mut file = common.output.clone();
    match what {
        None => {}
        Some(Show::Threads) => common.threads = crate::cli::Threads::All,
        Some(Show::Explain) => part = Part::Story,
        Some(Show::Graph { form: None, .. }) => part = Part::Edges,
        Some(Show::Graph { form: Some(form), file: to }) => {
            common.format = if *form == Drawing::Dot { Format::Dot } else { Format::Svg };
            file = to.clone().or(file);
        }
        Some(Show::Json { file: to }) => {
            common.json = true;
            file = to.clone().or(file);
        }
        Some(Show::Goto { place, tid }) => return go(*place, tid.map(HostTid), bridge, diagnosis),
    }
    let text = super::render_part(diagnosis, &common, false, part);
    match &file {
        Some(path) => write(path, &text, bridge),
        None => Ok(bridge.print(&text)?),
    }
}

fn write(path: &Path, text: &str, bridge: &Bridge) -> anyhow::Result<()> {
    super::write_text(path, text).with_context(|| format!("cannot write the report to {}", path.display()))?;
    Ok(bridge.print(&format!("Written to {}.\n", path.display()))?)
}

/// `$hangscope_verdict`, `$hangscope_headline` and `$hangscope_cycle_tids`: the first cycle's threads, as the debugger
/// numbers them.
fn tell_variables(bridge: &Bridge, diagnosis: &Diagnosis) -> anyhow::Result<()> {
    let steps = diagnosis.verdict.cycles.first().map_or(&[][..], |c| c.steps.as_slice());
    let tids: Vec<String> = steps.iter().filter_map(|s| Some(host_tid(diagnosis, s.thread)?.to_string())).collect();
    bridge.set("verdict", diagnosis.verdict.kind.word())?;
    bridge.set("headline", &diagnosis.verdict.headline)?;
    bridge.set("cycle_tids", &tids.join(" "))?;
    Ok(())
}

fn host_tid(diagnosis: &Diagnosis, t: ThreadRef) -> Option<HostTid> {
    Some(diagnosis.snapshots.first()?.threads.get(t.thread as usize)?.host_tid)
}

/// Selects the frame that waits, or the one that holds.
fn go(place: Place, tid: Option<HostTid>, bridge: &Bridge, diagnosis: &Diagnosis) -> anyhow::Result<()> {
    let waiter = waiter(tid, bridge, diagnosis)?;
    let wait = diagnosis.graph.waits.get(&waiter).context("it waits for nothing")?;
    let (thread, at) = match place {
        Place::Waits => (waiter, Some(wait.frame)),
        Place::Holds => holder(wait.on, waiter, diagnosis)?,
    };
    let stack = diagnosis.stacks.first().and_then(|s| s.get(thread.thread as usize));
    let frames = stack.map_or(&[][..], |s| s.frames.as_slice());
    // where the place is not known, the whole thread is meant
    let frame = at.and_then(|ix| frames.get(ix.0 as usize)).or_else(|| frames.first());
    let frame: &Frame = frame.context("the thread has no frames")?;
    let tid = host_tid(diagnosis, thread).context("the thread is unknown")?;
    let sp = frame.registers.read(crate::arch::x86_64::RSP).map(Addr);
    if bridge.select(tid, frame.pc.addr, sp)? {
        return Ok(());
    }
    // the debugger unwinds otherwise, or with other files: the thread at least
    let innermost = frames.first().context("the thread has no frames")?;
    let found = bridge.select(tid, innermost.pc.addr, None)?;
    let but = if found { ", but the thread is selected" } else { "" };
    Ok(bridge.print(&format!("The debugger itself finds no frame at {} in thread {tid}{but}.\n", frame.pc.addr))?)
}

/// The thread meant: the one that was named, or the selected one if it waits, or the first of the verdict.
fn waiter(tid: Option<HostTid>, bridge: &Bridge, diagnosis: &Diagnosis) -> anyhow::Result<ThreadRef> {
    let threads = diagnosis.snapshots.first().map_or(&[][..], |s| s.threads.as_slice());
    let find = |tid: HostTid| {
        let i = threads.iter().position(|t| t.host_tid == tid)?;
        Some(ThreadRef { process: ProcessIx(0), thread: u32::try_from(i).ok()? })
    };
    if let Some(tid) = tid {
        let thread = find(tid).with_context(|| format!("there is no thread {tid}; `info threads` lists them"))?;
        if !diagnosis.graph.waits.contains_key(&thread) {
            bail!("thread {tid} waits for nothing that is known");
        }
        return Ok(thread);
    }
    let verdict = diagnosis.verdict.protagonists();
    let selected = bridge.selected().and_then(find);
    let selected =
        selected.filter(|t| diagnosis.graph.waits.contains_key(t) && (verdict.contains(t) || verdict.is_empty()));
    selected
        .or_else(|| verdict.iter().copied().find(|t| diagnosis.graph.waits.contains_key(t)))
        .context("no thread waits for another; `hangscope threads` shows what they do")
}

/// Who holds `of`, and the frame that took it. In a cycle the one the cycle means.
fn holder(of: ResourceId, waiter: ThreadRef, diagnosis: &Diagnosis) -> anyhow::Result<(ThreadRef, Option<FrameIx>)> {
    let steps = diagnosis.verdict.cycles.iter().flat_map(|c| &c.steps);
    let meant = steps.filter(|s| s.thread == waiter && s.waits_for == of).map(|s| s.held_by).next();
    let holds = diagnosis.graph.holders(of);
    let held_by = |holder: &Holder| match holder {
        Holder::Thread(t) => Some(*t),
        Holder::Gone(..) | Holder::Process(_) => None,
    };
    let thread = meant.or_else(|| holds.iter().find_map(|h| held_by(&h.holder)));
    let thread = thread.context("no thread is known to hold what it waits for")?;
    let hold = diagnosis.graph.hold(of, thread);
    let managed = |frame: u32| {
        let (_, thread) = diagnosis.facts.managed.iter().find(|(t, _)| *t == thread)?;
        thread.frames.get(frame as usize)?.native
    };
    let taken = hold.and_then(|h| h.taken_at_managed.and_then(|at| managed(at.frame)).or(h.taken_at));
    Ok((thread, taken))
}
