//! Variables of Python frames: shown where they are asked for, on every interpreter, live and from a core; else nowhere.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use support::places::{self, Installed, Place};
use support::running::{self, Running};
use support::{Scratch, hangscope, home};

/// Variables and what is said of them; a `*` at the end stands for anything.
const EXPECTED: [(&str, &str); 17] = [
    ("argument", "\"given\""),
    ("rest", "tuple of 0 at 0x*"),
    ("named", "dict at 0x*"),
    ("small", "7"),
    ("large", "4611686018427387904"),
    ("huge", "int of 7 digits of 30 bits"),
    ("negative", "-2147483648"),
    ("zero", "0"),
    ("yes", "True"),
    ("nothing", "None"),
    ("half", "-0.5"),
    ("text", "\"plain\""),
    ("odd", "\"quote \\\" and \\n\""),
    ("data", "b\"\\x00bytes\""),
    ("session", "Session at 0x*"),
    ("function", "function outer"),
    ("kept", "\"in a cell\""),
];

#[test]
fn variables_are_shown_where_they_are_asked_for() {
    let pythons = places::python_places(&places::roots());
    assert!(!pythons.is_empty(), "needs a CPython");
    let wrong: Vec<String> = pythons.iter().flat_map(look).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn look(place: &Place) -> Vec<String> {
    let scratch = Scratch::new(&format!("locals-{}", place.name));
    let sources = home().join("tests/python_locals");
    let installed = place.root.as_ref().map(|root| Installed::new(root).expect("a directory in the root"));
    let (dir, cwd) = match &installed {
        Some(installed) => {
            let dir = installed.add(&format!("python-locals-{}", place.name), &sources).expect("a copy in the root");
            (dir.clone(), dir)
        }
        None => (sources, scratch.path().to_path_buf()),
    };
    let program = running::start(place, &dir, &[], &cwd).expect("the program");
    let core = scratch.path().join("core").display().to_string();
    let mut wrong = Vec::new();
    let mut check = |door: &str, words: &[&str], report: Result<Value, String>| match report {
        Ok(report) => {
            let said = variables(&report);
            match (&said, words.contains(&"--locals")) {
                (Some(said), true) => wrong.extend(differences(said).map(|d| format!("{} {door}: {d}", place.name))),
                (None, false) => {}
                (said, _) => wrong.push(format!("{} {door}: {said:?}", place.name)),
            }
        }
        Err(why) => wrong.push(format!("{} {door}: {why}", place.name)),
    };
    let attach = |program: &Running, words: &[&str]| {
        let mut command = hangscope();
        command.args(["attach", &program.pid.to_string(), "--json", "--samples", "1"]).args(words);
        report_of(command)
    };
    for words in [&["--locals", "--save-core", &core][..], &[]] {
        check("attach", words, attach(&program, words));
    }
    drop(program);
    for words in [&["--locals"][..], &[]] {
        let mut command = hangscope();
        command.args(["core", &core, "--json"]).args(words);
        if let Some(root) = &place.root {
            command.arg("--sysroot").arg(&root.path);
        }
        check("core", words, report_of(command));
    }
    wrong
}

fn report_of(command: std::process::Command) -> Result<Value, String> {
    let said = support::run(command, Duration::from_secs(60))?;
    serde_json::from_str(&said.out).map_err(|e| format!("no JSON ({e}): {}", said.err.trim()))
}

/// The variables of the function, if any are told.
fn variables(report: &Value) -> Option<BTreeMap<String, String>> {
    let threads = report["threads"].as_array()?.iter();
    let mut frames = threads.flat_map(|t| t["frames"].as_array().into_iter().flatten());
    let frame = frames.find(|f| f["kind"] == "python" && f["function"] == "outer")?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
    Some(frame["locals"].as_array()?.iter().map(|l| (text(&l["name"]), text(&l["value"]))).collect())
}

fn differences(said: &BTreeMap<String, String>) -> impl Iterator<Item = String> + '_ {
    EXPECTED.iter().filter_map(|(name, wanted)| {
        let value = said.get(*name).map_or("absent", String::as_str);
        let good = match wanted.strip_suffix('*') {
            Some(start) => value.starts_with(start),
            None => value == *wanted,
        };
        (!good).then(|| format!("{name} is {value}, not {wanted}"))
    })
}
