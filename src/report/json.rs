//! The wire types of `hangscope/1`. Keys stand in the contract's order; unknown values are null.

use super::Case;
use super::frames::{FrameKind, Frames, Named};
use crate::facts::{Evidence, GilRole, Hold, Holder, ResourceId, ResourceKind, Timeout, Wait};
use crate::graph::display_name;
use crate::snapshot::Snapshot;
use crate::units::{ProcessIx, ThreadRef, harmless};
use crate::unwind::Trust;
use crate::verdict::{Voice, plain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format.
pub const SCHEMA: &str = "hangscope/1";

/// The report as JSON text, ending with a newline.
#[must_use]
pub fn json(case: &Case<'_>) -> String {
    let report = wire(case);
    match serde_json::to_string_pretty(&report) {
        Ok(text) => printable(&text) + "\n",
        // the types above hold nothing JSON cannot say; a floating number that is none is written as null
        Err(why) => format!("{{\"schema\": \"{SCHEMA}\", \"error\": \"{why}\"}}\n"),
    }
}

/// JSON whose strings keep every character of a name, but none that a terminal obeys: those are written `\u…`. The control
/// characters below U+0020 are escaped by the writer; they and these occur inside strings only, bar the layout's newlines.
fn printable(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    // nearly all of it is plain, and there may be tens of megabytes
    while let Some((plain, strange)) =
        rest.bytes().position(|b| !matches!(b, b' '..=b'~' | b'\n')).and_then(|at| rest.split_at_checked(at))
    {
        out.push_str(plain);
        let mut strange = strange.chars();
        match strange.next() {
            Some(c) if harmless(c) == c => out.push(c),
            Some(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            None => {}
        }
        rest = strange.as_str();
    }
    out + rest
}

/// A whole report.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the contract says what each is
pub struct Report {
    pub schema: String,
    pub tool: Tool,
    pub captured: CapturedAt,
    pub processes: Vec<Process>,
    pub threads: Vec<Thread>,
    pub resources: Vec<Resource>,
    pub verdict: Verdict,
}

/// Who wrote the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Tool {
    pub name: String,
    pub version: String,
}

/// When and how the target was captured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CapturedAt {
    pub at: String,
    pub source: String,
    pub pause_us: Option<u64>,
    pub warnings: Vec<String>,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Process {
    pub pid: i32,
    pub exe: Option<String>,
    pub command: Vec<String>,
    pub arch: String,
    pub libc: Option<String>,
    pub python: Option<Python>,
}

/// An interpreter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Python {
    pub version: Option<String>,
    pub build: Option<String>,
}

/// A thread.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Thread {
    pub id: String,
    pub pid: i32,
    pub tid: i32,
    pub name: Option<String>,
    pub state: Option<String>,
    pub pthread: Option<String>,
    pub python_name: Option<String>,
    pub gil: Option<String>,
    pub frames: Vec<Frame>,
    pub wait: Option<WaitsFor>,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Frame {
    pub kind: String,
    pub function: Option<String>,
    pub module: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub pc: Option<String>,
    pub trust: Option<String>,
    pub domain: Option<String>,
    /// Variables, with `--locals` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locals: Option<Vec<Variable>>,
    /// Frames left out behind this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_omitted: Option<FramesOmitted>,
}

/// Frames left out of a stack: recursion, or the middle of a very deep stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FramesOmitted {
    /// The first of them, counted from 0 in the whole stack.
    pub first: usize,
    /// The last of them.
    pub last: usize,
    /// The functions that repeat in them, innermost first; empty where nothing repeats.
    pub repeats: Vec<String>,
}

/// A variable of a frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Variable {
    pub name: String,
    pub value: String,
}

/// What a thread waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct WaitsFor {
    pub resource: String,
    pub mode: String,
    /// `none`, `periodic`, or seconds as a decimal; null: it has one of unknown length.
    pub timeout: Option<String>,
    pub evidence: Vec<String>,
}

/// A resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Resource {
    pub id: String,
    pub kind: String,
    pub name: String,
    pub address: Option<String>,
    pub holders: Vec<HeldBy>,
    pub waiters: Vec<String>,
}

/// Who holds a resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct HeldBy {
    pub thread: Option<String>,
    pub tid: Option<i32>,
    pub mode: String,
    pub certainty: String,
    pub evidence: Vec<String>,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Verdict {
    pub kind: String,
    pub certainty: Option<String>,
    pub headline: String,
    pub cycles: Vec<Cycle>,
    pub blocked_behind: Vec<BlockedBehind>,
    pub root_causes: Vec<RootCause>,
}

/// A cycle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Cycle {
    pub pattern: String,
    pub certainty: String,
    pub explanation: String,
    pub advice: String,
    pub steps: Vec<Step>,
}

/// One step of a cycle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Step {
    pub thread: String,
    pub waits_for: String,
    pub held_by: String,
}

/// A thread that queues behind another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct BlockedBehind {
    pub thread: String,
    pub behind: String,
}

/// Where it begins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RootCause {
    pub thread: Option<String>,
    pub pattern: String,
    pub explanation: String,
}

/// The report as wire types.
#[must_use]
pub fn wire(case: &Case<'_>) -> Report {
    let voice = Voice::new(case.graph, case.facts, case.snapshots, case.stacks);
    let ids = Ids::new(case);
    let frames = Frames::new(&voice, case);
    Report {
        schema: SCHEMA.to_owned(),
        tool: Tool { name: "hangscope".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        captured: CapturedAt {
            at: super::time::rfc3339(case.captured.at),
            source: case.captured.source.to_owned(),
            pause_us: case.captured.pause.and_then(|p| u64::try_from(p.as_micros()).ok()),
            warnings: case.warnings(),
        },
        processes: case.snapshots.iter().enumerate().map(|(i, s)| process(case, i, s)).collect(),
        threads: ids.threads.iter().map(|(t, id)| thread(case, &voice, &ids, &frames, *t, id)).collect(),
        resources: ids.resources.iter().map(|(r, id)| resource(case, &voice, &ids, *r, id)).collect(),
        verdict: verdict(case, &ids),
    }
}

/// `t1`, `t2`… in the order of processes and threads; `r1`, `r2`… in the order of the graph.
struct Ids {
    threads: BTreeMap<ThreadRef, String>,
    resources: BTreeMap<ResourceId, String>,
}

impl Ids {
    fn new(case: &Case<'_>) -> Ids {
        let mut threads = BTreeMap::new();
        for (p, snapshot) in case.snapshots.iter().enumerate() {
            for t in 0..snapshot.threads.len() {
                let (Ok(p), Ok(t)) = (u32::try_from(p), u32::try_from(t)) else { continue };
                let id = format!("t{}", threads.len() + 1);
                threads.insert(ThreadRef { process: ProcessIx(p), thread: t }, id);
            }
        }
        // what nobody waits for and nobody holds is no node of the graph; tasks are told all the same, with what they await
        let mut resources = BTreeMap::new();
        for (id, resource) in &case.graph.resources {
            if resource.kind == ResourceKind::PythonTask
                || case.graph.waiters(*id).next().is_some()
                || !case.graph.holders(*id).is_empty()
            {
                let name = format!("r{}", resources.len() + 1);
                resources.insert(*id, name);
            }
        }
        Ids { threads, resources }
    }

    fn thread(&self, t: ThreadRef) -> String {
        self.threads.get(&t).cloned().unwrap_or_default()
    }

    fn resource(&self, r: ResourceId) -> String {
        self.resources.get(&r).cloned().unwrap_or_default()
    }
}

fn process(case: &Case<'_>, index: usize, snapshot: &Snapshot) -> Process {
    let notes = case.runtimes.get(index).map_or(&[][..], Vec::as_slice);
    let note = |name: &str| notes.iter().find(|n| n.name == name);
    Process {
        pid: snapshot.process.pid.0,
        exe: snapshot.process.exe.as_ref().map(|p| p.display().to_string()),
        command: super::command(&snapshot.process.command),
        arch: snapshot.process.arch.name().to_owned(),
        libc: ["glibc", "musl"].iter().find_map(|n| note(n)).map(|n| match &n.version {
            Some(version) => format!("{} {}", n.name, plain(version)),
            None => n.name.to_owned(),
        }),
        python: note("cpython")
            .map(|n| Python { version: n.version.as_deref().map(plain), build: n.build.map(str::to_owned) }),
    }
}

fn thread(case: &Case<'_>, voice: &Voice<'_>, ids: &Ids, frames: &Frames<'_>, t: ThreadRef, id: &str) -> Thread {
    let state = voice.state(t);
    let managed = voice.managed(t);
    Thread {
        id: id.to_owned(),
        pid: voice.snapshot(t).map_or(0, |s| s.process.pid.0),
        tid: state.map_or(0, |s| s.tid.0),
        name: state.and_then(|s| s.name.as_deref()).map(plain),
        state: state.and_then(|s| s.state).map(String::from),
        pthread: state
            .and_then(|s| s.registers.as_ref()?.tls_base)
            .filter(|base| *base != 0)
            .map(|base| format!("{base:#x}")),
        python_name: managed.and_then(|m| m.name.as_deref()).map(plain),
        gil: managed.and_then(|m| m.gil).map(|g| match g {
            GilRole::Holds => "holds".to_owned(),
            GilRole::Waits => "waits".to_owned(),
        }),
        frames: frames.of(t).into_iter().map(frame).collect(),
        wait: case.graph.waits.get(&t).map(|w| wait(case, voice, ids, t, w)),
    }
}

fn frame(named: Named) -> Frame {
    Frame {
        kind: match named.kind {
            FrameKind::Native => "native",
            FrameKind::Inlined => "inlined",
            FrameKind::Python => "python",
        }
        .to_owned(),
        function: named.function,
        module: named.module,
        file: named.file,
        line: named.line,
        pc: named.pc.map(|pc| pc.to_string()),
        trust: named.trust.map(|t| {
            match t {
                Trust::Context => "context",
                Trust::Cfi => "cfi",
                Trust::FramePointer => "frame-pointer",
                Trust::Scan => "scan",
            }
            .to_owned()
        }),
        domain: named.domain.map(str::to_owned),
        locals: named.locals.map(|all| all.into_iter().map(|(name, value)| Variable { name, value }).collect()),
        frames_omitted: named.omitted.map(|o| FramesOmitted { first: o.first, last: o.last, repeats: o.repeats }),
    }
}

fn sentences(evidence: &[Evidence]) -> Vec<String> {
    evidence.iter().map(|e| super::sentence(&e.0)).collect()
}

fn wait(case: &Case<'_>, voice: &Voice<'_>, ids: &Ids, t: ThreadRef, wait: &Wait) -> WaitsFor {
    let mut evidence = sentences(&wait.evidence);
    for beneath in case.graph.beneath.get(&t).into_iter().flatten().rev() {
        let what = voice.name(beneath.on);
        let why = sentences(&beneath.evidence).join("; ");
        evidence.push(if why.is_empty() {
            format!("beneath it: {what}")
        } else {
            format!("beneath it: {what}: {why}")
        });
    }
    WaitsFor {
        resource: ids.resource(wait.on),
        mode: wait.mode.word().to_owned(),
        timeout: match wait.timeout {
            Timeout::None => Some("none".to_owned()),
            Timeout::Periodic => Some("periodic".to_owned()),
            Timeout::Seconds(s) => Some(s.to_string()),
            Timeout::Some => None,
        },
        evidence,
    }
}

fn resource(case: &Case<'_>, voice: &Voice<'_>, ids: &Ids, id: ResourceId, name: &str) -> Resource {
    let r = case.graph.resource(id);
    let deduced = case.verdict.inferred_holds.iter().filter(|h| h.of == id);
    Resource {
        id: name.to_owned(),
        kind: r.map_or("unknown", |r| r.kind.word()).to_owned(),
        name: match (id, r) {
            (ResourceId::ThreadExit(_), _) => voice.name(id).trim_start_matches("the ").to_owned(),
            (_, Some(r)) => plain(&display_name(r)),
            (_, None) => "unknown".to_owned(),
        },
        address: r.and_then(|r| r.address).map(|a| a.to_string()),
        holders: case.graph.holders(id).iter().chain(deduced).map(|h| holder(voice, ids, h)).collect(),
        waiters: case.graph.waiters(id).map(|t| ids.thread(t)).collect(),
    }
}

fn holder(voice: &Voice<'_>, ids: &Ids, hold: &Hold) -> HeldBy {
    let (thread, tid) = match hold.holder {
        Holder::Thread(t) => (Some(ids.thread(t)), voice.state(t).map(|s| s.tid.0)),
        Holder::Gone(_, tid) => (None, Some(tid.0).filter(|t| *t != 0)),
        Holder::Process(pid) => (None, Some(pid.0)),
    };
    HeldBy {
        thread,
        tid,
        mode: hold.mode.word().to_owned(),
        certainty: hold.certainty.word().to_owned(),
        evidence: sentences(&hold.evidence),
    }
}

fn verdict(case: &Case<'_>, ids: &Ids) -> Verdict {
    let v = case.verdict;
    let cycle = |c: &crate::verdict::Cycle| Cycle {
        pattern: c.pattern.to_owned(),
        certainty: c.certainty.word().to_owned(),
        explanation: c.explanation.clone(),
        advice: c.advice.clone(),
        steps: c
            .steps
            .iter()
            .map(|s| Step {
                thread: ids.thread(s.thread),
                waits_for: ids.resource(s.waits_for),
                held_by: ids.thread(s.held_by),
            })
            .collect(),
    };
    Verdict {
        kind: v.kind.word().to_owned(),
        certainty: v.certainty.map(|c| c.word().to_owned()),
        headline: v.headline.clone(),
        cycles: v.cycles.iter().map(cycle).collect(),
        blocked_behind: v
            .blocked_behind
            .iter()
            .map(|b| BlockedBehind { thread: ids.thread(b.thread), behind: ids.thread(b.behind) })
            .collect(),
        root_causes: v
            .root_causes
            .iter()
            .map(|r| RootCause {
                thread: r.thread.map(|t| ids.thread(t)),
                pattern: r.pattern.to_owned(),
                explanation: r.explanation.clone(),
            })
            .collect(),
    }
}
