//! A sample's `expect.toml`, and whether a report says that.

use crate::support::places::Place;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What hangscope must say of a sample.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// `c`, `c++`, `rust` or `python`.
    language: String,
    /// More words for the compiler.
    #[serde(default)]
    pub flags: Vec<String>,
    /// A library's file name, as it begins: the sample runs in the roots that have it, and nowhere else.
    pub needs: Option<String>,
    /// The first CPython that has what it shows, as `3.12`.
    pub since: Option<String>,
    /// The last CPython that has it.
    pub until: Option<String>,
    /// Each a name and the program's arguments; the verdict is the same.
    #[serde(default)]
    variants: BTreeMap<String, Vec<String>>,
    /// It hangs by the GIL: an interpreter that is built without has it switched on.
    #[serde(default)]
    pub gil: bool,
    /// Never a deadlock of any kind, through no door.
    #[serde(default)]
    pub healthy: bool,
    /// Look so often at the running program (one stop each): never a deadlock.
    #[serde(default)]
    pub snapshots: u32,
    /// Look at the program's children, too, where it runs.
    #[serde(default)]
    pub tree: bool,
    /// The verdict's kind; of a healthy program only where two looks were possible.
    #[serde(default)]
    kind: OneOf,
    /// The same where the program is looked at without its children.
    #[serde(default)]
    alone: OneOf,
    certainty: Option<String>,
    #[serde(default)]
    pattern: OneOf,
    exit: Option<i32>,
    /// Words that the report must hold somewhere, where the process was held still.
    #[serde(default)]
    says: Vec<String>,
    /// Words that it must hold where the running process was; with `tree`, where its children were looked at, too.
    #[serde(default)]
    says_running: Vec<String>,
    /// The thread that matters may spin: without a stop nobody knows where, and the answer may be a partial one.
    #[serde(default)]
    spins: bool,
    /// Who holds its locks shows in the registers of frames alone: where those are lost, or nothing was stopped, the holder is
    /// not known, and no other may be named.
    #[serde(default)]
    by_frames: bool,
    /// How many threads are blocked behind the cycle.
    behind: Option<usize>,
    /// The cycle: each thread and what it waits for; held by the next one's.
    #[serde(default, rename = "step")]
    steps: Vec<Wait>,
    /// Threads that must wait for something, in a cycle or not.
    #[serde(default, rename = "wait")]
    waits: Vec<Wait>,
    /// What it is on an interpreter built without the GIL: the keys of the table `free-threaded` replace those above.
    #[serde(skip)]
    free_threaded: Option<Box<Expect>>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Wait {
    /// A thread's kernel or Python name; a `*` at the end stands for anything; `MainThread` is the first thread.
    thread: String,
    /// The resource's kind.
    waits_for: String,
    /// A part of the resource's name.
    name: Option<String>,
    /// `nobody`: its holder is no thread of the process.
    held_by: Option<String>,
}

/// A word, or several of which one will do; none: any.
#[derive(Deserialize, Clone, Default)]
#[serde(untagged)]
enum OneOf {
    #[default]
    Any,
    One(String),
    Several(Vec<String>),
}

impl OneOf {
    fn allows(&self, word: &str) -> bool {
        match self {
            OneOf::Any => true,
            OneOf::One(one) => one == word,
            OneOf::Several(several) => several.iter().any(|w| w == word),
        }
    }

    fn say(&self) -> String {
        match self {
            OneOf::Any => "anything".into(),
            OneOf::One(one) => one.clone(),
            OneOf::Several(several) => several.join(" or "),
        }
    }
}

/// The kinds that call something stuck.
const STUCK: [&str; 3] = ["deadlock", "self-deadlock", "orphaned-lock"];

impl Expect {
    pub fn read(sample: &str) -> Expect {
        let path = crate::support::home().join("samples").join(sample).join("expect.toml");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut table: toml::Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let otherwise = table.remove("free-threaded");
        let parse = |table: toml::Table| {
            let expect: Expect = table.try_into().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(
                expect.healthy || !matches!(expect.kind, OneOf::Any),
                "{}: a program that hangs names a kind",
                path.display()
            );
            expect
        };
        let mut expect = parse(table.clone());
        if let Some(toml::Value::Table(otherwise)) = otherwise {
            table.extend(otherwise);
            expect.free_threaded = Some(Box::new(parse(table)));
        }
        expect
    }

    /// What it says in this place.
    pub fn at(&self, place: &Place) -> &Expect {
        let without_gil = place.minor().is_some_and(|m| m.ends_with('t'));
        self.free_threaded.as_deref().filter(|_| without_gil).unwrap_or(self)
    }

    /// Whether only this machine can build and run it: the roots have no Rust compiler, and older C libraries.
    pub fn is_of_host(&self) -> bool {
        self.language == "rust"
    }

    pub fn is_python(&self) -> bool {
        self.language == "python"
    }

    /// Name and arguments; one without a name where there are none.
    pub fn variants(&self) -> Vec<(String, Vec<String>)> {
        if self.variants.is_empty() {
            return vec![(String::new(), Vec::new())];
        }
        self.variants.clone().into_iter().collect()
    }

    /// Compares a report, and the exit code it came with.
    pub fn check(&self, report: &Value, code: i32, known: &Known, looked: Looked) -> Result<(), String> {
        let mut wrong = Vec::new();
        let said = Report { value: report, known, looked };
        let looked_twice = matches!(looked, Looked::Twice | Looked::Unstopped);
        if report["schema"] != "hangscope/1" {
            wrong.push(format!("schema {}", report["schema"]));
        }
        let verdict = &report["verdict"];
        let kind = verdict["kind"].as_str().unwrap_or("absent");
        let one_process = report["processes"].as_array().is_some_and(|all| all.len() == 1);
        if one_process && !matches!(self.alone, OneOf::Any) {
            let good = self.alone.allows(kind);
            return if good { Ok(()) } else { Err(format!("alone its kind is {kind}, not {}", self.alone.say())) };
        }
        if self.healthy {
            if STUCK.contains(&kind) || code == 1 {
                wrong.push(format!("a healthy program is called {kind}, exit code {code}"));
            } else if looked_twice && !self.kind.allows(kind) {
                wrong.push(format!("kind is {kind}, not {}", self.kind.say()));
            }
        } else {
            if !self.kind.allows(kind) {
                wrong.push(format!("kind is {kind}, not {}", self.kind.say()));
            }
            let certainty = verdict["certainty"].as_str().unwrap_or("absent");
            if looked != Looked::Elsewhere && self.certainty.as_deref().is_some_and(|c| c != certainty) {
                wrong.push(format!("certainty is {certainty}, not {}", self.certainty.as_deref().unwrap_or_default()));
            }
        }
        // Without a stop much is missing; that nothing is stuck is then a partial answer.
        let partial = self.healthy && code == 4;
        if self.exit.is_some_and(|exit| exit != code) && !partial && (!self.healthy || looked_twice) {
            wrong.push(format!("exit code {code}, not {:?}", self.exit));
        }
        if !self.steps.is_empty() {
            wrong.extend(said.cycle(&self.steps).err());
        }
        wrong.extend(self.waits.iter().filter_map(|w| said.wait(w).err()));
        let pattern = said.pattern();
        let frames_tell = !matches!(looked, Looked::Damaged | Looked::Elsewhere);
        if !self.healthy && frames_tell && !self.pattern.allows(&pattern) {
            wrong.push(format!("pattern is {pattern}, not {}", self.pattern.say()));
        }
        if looked != Looked::Unstopped && !self.says.is_empty() {
            let text = report.to_string();
            let missing = self.says.iter().filter(|words| !text.contains(words.as_str()));
            wrong.extend(missing.map(|words| format!("nothing says {words:?}")));
        }
        if looked == Looked::Twice && !(self.tree && one_process) {
            let text = report.to_string();
            let missing = self.says_running.iter().filter(|words| !text.contains(words.as_str()));
            wrong.extend(missing.map(|words| format!("nothing says {words:?}")));
        }
        let behind = verdict["blocked_behind"].as_array().map_or(0, Vec::len);
        // A thread between two of its time-outs waits for nothing for a moment, and no stop holds it there; a join is told by
        // the libc's version.
        let fewer = matches!(looked, Looked::Unstopped | Looked::Elsewhere);
        if self.behind.is_some_and(|n| n != behind && (!fewer || behind > n)) {
            wrong.push(format!("{behind} blocked behind, not {}", self.behind.unwrap_or_default()));
        }
        // Since 3.14 a Python frame chain runs through the stacks that such a core lost: what is missing must be said, and
        // nothing else be claimed.
        let warned = report["captured"]["warnings"].as_array().is_some_and(|w| !w.is_empty());
        let rests_on_stacks = self.is_python() || self.by_frames || self.certainty.as_deref() == Some("inferred");
        let lost = looked == Looked::Damaged && rests_on_stacks && warned;
        if (self.spins || self.by_frames) && looked == Looked::Unstopped && warned && !STUCK.contains(&kind) {
            return Ok(());
        }
        if wrong.is_empty() || (lost && (self.kind.allows(kind) || !STUCK.contains(&kind))) {
            return Ok(());
        }
        let headline = verdict["headline"].as_str().unwrap_or("no headline");
        let warnings = report["captured"]["warnings"].as_array().map_or(0, Vec::len);
        let first = report["captured"]["warnings"][0].as_str().unwrap_or_default();
        Err(format!("{}\nheadline: {headline}\n{warnings} warnings {first}", wrong.join("\n")))
    }
}

/// What the test knows of the process.
pub struct Known {
    /// Its id, as it names itself.
    pub pid: i64,
    /// The kernel's names of its threads, which a core does not hold.
    pub names: BTreeMap<i64, String>,
}

/// How a door looked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// One instant: slow and stuck look the same.
    Once,
    /// One instant, and whole stacks are lost: the locks tell who, the frames no longer why.
    Damaged,
    /// One instant, without the target's files: what only they tell (symbols of the program, the libc's version) is missing.
    Elsewhere,
    /// Two stops, some time apart.
    Twice,
    /// Twice, while the process ran.
    Unstopped,
}

struct Report<'a> {
    value: &'a Value,
    known: &'a Known,
    looked: Looked,
}

impl<'a> Report<'a> {
    fn by_id(&self, list: &str, id: &Value) -> &'a Value {
        let all = self.value[list].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().find(|v| !id.is_null() && v["id"] == *id).unwrap_or(&Value::Null)
    }

    fn is_named(&self, thread: &Value, name: &str) -> bool {
        let fits = |said: &Value| match (said.as_str(), name.strip_suffix('*')) {
            (Some(said), Some(start)) => said.starts_with(start),
            (Some(said), None) => said == name,
            _ => false,
        };
        let tid = thread["tid"].as_i64().unwrap_or_default();
        let is_main = name == "MainThread" && tid == self.known.pid;
        let known = self.known.names.get(&tid).filter(|_| thread["name"].is_null());
        is_main
            || fits(&thread["name"])
            || fits(&thread["python_name"])
            || known.is_some_and(|n| fits(&n.as_str().into()))
    }

    /// Does the thread wait for what it should?
    fn waits_for(&self, resource: &Value, wait: &Wait) -> Result<(), String> {
        let kind = resource["kind"].as_str().unwrap_or("nothing");
        let elsewhere = self.looked == Looked::Elsewhere;
        if elsewhere && kind == "futex" && matches!(wait.waits_for.as_str(), "thread-exit" | "condvar") {
            return Ok(()); // which of them it is, the libc's version tells
        }
        if kind != wait.waits_for {
            return Err(format!("{} waits for {kind}, not {}", wait.thread, wait.waits_for));
        }
        let name = resource["name"].as_str().unwrap_or_default();
        match &wait.name {
            // A symbol of the program is in its file alone.
            Some(_) if elsewhere && kind == "mutex" => Ok(()),
            Some(part) if !name.contains(part.as_str()) => Err(format!("the {kind} is named {name:?}, not {part:?}")),
            _ => Ok(()),
        }
    }

    /// Some cycle that goes round exactly these steps, beginning anywhere; and `held_by` leads from each to the next.
    fn cycle(&self, steps: &[Wait]) -> Result<(), String> {
        let cycles = self.value["verdict"]["cycles"].as_array().cloned().unwrap_or_default();
        let mut why = "there is no cycle".to_string();
        for cycle in &cycles {
            let said = cycle["steps"].as_array().cloned().unwrap_or_default();
            for turn in 0..said.len() {
                let turned: Vec<&Value> = said.iter().cycle().skip(turn).take(said.len()).collect();
                match self.steps(&turned, steps) {
                    Ok(()) => return Ok(()),
                    Err(e) => why = e,
                }
            }
        }
        Err(format!("no cycle fits: {why}"))
    }

    fn steps(&self, said: &[&Value], steps: &[Wait]) -> Result<(), String> {
        if said.len() != steps.len() {
            return Err(format!("a cycle of {} steps, not {}", said.len(), steps.len()));
        }
        for (i, (said_step, step)) in said.iter().zip(steps).enumerate() {
            let thread = self.by_id("threads", &said_step["thread"]);
            if !self.is_named(thread, &step.thread) {
                return Err(format!(
                    "step {i} is thread {} {}, not {}",
                    thread["name"], thread["python_name"], step.thread
                ));
            }
            let resource = self.by_id("resources", &said_step["waits_for"]);
            self.waits_for(resource, step)?;
            let next = said[(i + 1) % said.len()];
            if said_step["held_by"] != next["thread"] {
                return Err(format!(
                    "step {i} is held by {}, and the next is {}",
                    said_step["held_by"], next["thread"]
                ));
            }
            let holders = resource["holders"].as_array().cloned().unwrap_or_default();
            if !holders
                .iter()
                .any(|h| h["thread"] == next["thread"] && h["evidence"].as_array().is_some_and(|e| !e.is_empty()))
            {
                return Err(format!("the {} has no holder {} with evidence", step.waits_for, next["thread"]));
            }
        }
        Ok(())
    }

    /// A thread outside any cycle that must wait for something.
    fn wait(&self, wait: &Wait) -> Result<(), String> {
        let threads = self.value["threads"].as_array().cloned().unwrap_or_default();
        let thread = threads.iter().find(|t| self.is_named(t, &wait.thread));
        let thread = thread.ok_or_else(|| format!("no thread {} among {}", wait.thread, threads.len()))?;
        let resource = self.by_id("resources", &thread["wait"]["resource"]);
        self.waits_for(resource, wait)?;
        let holders = resource["holders"].as_array().cloned().unwrap_or_default();
        let names = &self.known.names;
        let gone = |h: &Value| h["thread"].is_null() && h["tid"].as_i64().is_some_and(|tid| !names.contains_key(&tid));
        match wait.held_by.as_deref() {
            Some("nobody") if !holders.iter().any(gone) => {
                Err(format!("{} has no holder that is gone: {holders:?}", wait.waits_for))
            }
            _ => Ok(()),
        }
    }

    fn pattern(&self) -> String {
        let verdict = &self.value["verdict"];
        let of = |v: &Value| v["pattern"].as_str().map(String::from);
        of(&verdict["cycles"][0]).or_else(|| of(&verdict["root_causes"][0])).unwrap_or_else(|| "absent".into())
    }
}
