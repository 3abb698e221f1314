//! The README says what is: the report it shows is the one the demo gives, its verbs and options exist.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::build::{self, Toolchain};
use support::places::{self, Installed};
use support::running;

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("README.md")
}

fn hangscope(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hangscope"));
    // where the README's demo put its program
    command.args(arguments).env("TMPDIR", "/tmp").env("COLUMNS", "80").stdin(Stdio::null());
    command.output().expect("hangscope starts")
}

/// The first fenced block of this language.
fn block(readme: &str, language: &str) -> String {
    blocks(readme, language).into_iter().next().expect("such a block")
}

/// The fenced blocks of this language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let begins = format!("```{language}\n");
    let all = text.split(&begins).skip(1);
    all.map(|from| from.split_once("```").expect("its end").0.to_string()).collect()
}

/// What stays when thread ids, addresses, line numbers, times and the line breaks they cause are taken out.
fn essence(report: &str) -> String {
    let mut out = String::new();
    // the arrows of the margin stand where a line happens to be broken
    let margins = ["│", "┌▶", "└▶"];
    for word in report.split_whitespace().filter(|w| !margins.contains(w)) {
        let mut letters = word.chars().peekable();
        let mut kept = String::new();
        while let Some(c) = letters.next() {
            match c {
                '0' if letters.peek() == Some(&'x') => {
                    letters.next();
                    while letters.next_if(char::is_ascii_hexdigit).is_some() {}
                    kept.push('#');
                }
                c if c.is_ascii_digit() => {
                    while letters.next_if(char::is_ascii_digit).is_some() {}
                    kept.push('#');
                }
                other => kept.push(other),
            }
        }
        out.push_str(&kept);
        out.push(' ');
    }
    out
}

/// Debian 12's own Python is the one of the README's picture: another one has other frames.
fn python_of_the_picture() -> Option<&'static str> {
    const PYTHON: &str = "/usr/bin/python3";
    let version = Command::new(PYTHON).arg("--version").output().ok()?;
    let debian = fs::read_to_string("/etc/debian_version").unwrap_or_default();
    (debian.starts_with("12") && version.stdout.starts_with(b"Python 3.11.")).then_some(PYTHON)
}

#[test]
fn the_report_shown_is_the_report_given() {
    let Some(python) = python_of_the_picture() else {
        eprintln!("skipped: needs Debian 12 and its python3");
        return;
    };
    let shown = block(&readme(), "text");
    // waiting for the GIL is a timed wait taken up again every 5 ms: a look may fall between two of them, and says so
    let mut given = String::new();
    for _ in 0..10 {
        given = String::from_utf8_lossy(&hangscope(&["demo", "--python", python]).stdout).into_owned();
        if essence(&shown) == essence(&given) {
            break;
        }
    }
    if std::env::var_os("UPDATE_README").is_some() && essence(&shown) != essence(&given) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        fs::write(path, readme().replacen(&shown, &given, 1)).expect("README.md is written");
        return;
    }
    assert_eq!(
        essence(&shown),
        essence(&given),
        "README.md shows another report than this; UPDATE_README=1 cargo test --test readme takes it over:\n{given}"
    );
}

/// The section on ROCm.
fn rocm(readme: &str) -> String {
    let section = readme.split_once("\n## ROCm\n").expect("a section on ROCm").1;
    section.split_once("\n## ").map_or(section, |(section, _)| section).to_string()
}

/// The paragraph of a report that begins so.
fn paragraph<'a>(report: &'a str, first: &str) -> &'a str {
    report.split("\n\n").find(|p| p.starts_with(first)).unwrap_or_default().trim_end()
}

/// The sentence a report begins with.
fn headline(report: &str) -> &str {
    report.split_once("\nprocess ").map_or("", |(headline, _)| headline)
}

/// A report whose program lies in no directory.
fn with_a_short_command(report: &str) -> String {
    let Some(from) = report.find("\nprocess ").map(|i| i + 1) else { return report.to_owned() };
    let (before, rest) = report.split_at(from);
    let (process, after) = rest.split_once("\n\n").unwrap_or((rest, ""));
    let mut lines = vec![String::new()];
    for part in process.replace("\n", " ").split(" · ") {
        let words: Vec<&str> =
            part.split(' ').map(|w| if w.starts_with('/') { w.rsplit('/').next().unwrap_or(w) } else { w }).collect();
        let part = words.join(" ");
        let last = lines.last_mut().expect("there is one");
        if last.is_empty() {
            *last = part;
        } else if last.chars().count() + part.chars().count() + 3 <= 80 {
            *last += &format!(" · {part}");
        } else {
            lines.push(format!("· {part}"));
        }
    }
    format!("{before}{}\n\n{after}", lines.join("\n"))
}

/// Compares what the README shows, its block number `n` on ROCm, with what `excerpt` makes of the report on a sample that runs
/// in the bookworm root.
fn rocm_shows(n: usize, sample: &str, variant: &[&str], excerpt: fn(&str) -> String) {
    let roots = places::roots();
    let all = if sample.contains("gil") { places::python_places(&roots) } else { places::native_places(&roots) };
    let place = all.into_iter().find(|p| p.name.starts_with("bookworm") && p.has_library("libamdhip64.so."));
    let Some((place, root)) = place.and_then(|p| p.root.clone().map(|root| (p, root))) else {
        assert!(!support::in_ci(), "tests/roots makes a bookworm root with HIP");
        eprintln!("skipped: needs HIP in the bookworm root (tests/roots puts it there)");
        return;
    };
    let oldest = roots.iter().find(|r| r.suite == "bullseye");
    let built = build::build(sample, &["-ldl".to_owned()], Toolchain::OldestRoot, oldest).expect("the sample is built");
    let installed = Installed::new(&root).expect("a place in the root");
    let dir = installed.add(sample, &built).expect("it is copied");
    let cwd = dir.join("cwd");
    fs::create_dir_all(root.path.join(cwd.strip_prefix("/").expect("absolute"))).expect("its directory");
    let arguments: Vec<String> = variant.iter().map(|a| (*a).to_owned()).collect();
    let program = running::start(&place, &dir, &arguments, &cwd).expect("it gets ready");
    let shown = blocks(&rocm(&readme()), "text").get(n).cloned().expect("such a block");
    let mut given = String::new();
    for _ in 0..10 {
        let said = hangscope(&["attach", &program.pid.to_string()]);
        given = excerpt(&String::from_utf8_lossy(&said.stdout)) + "\n";
        if essence(&shown) == essence(&given) {
            return;
        }
    }
    if std::env::var_os("UPDATE_README").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        fs::write(path, readme().replacen(&shown, &given, 1)).expect("README.md is written");
        return;
    }
    assert_eq!(
        essence(&shown),
        essence(&given),
        "README.md shows another report of {sample} than this; UPDATE_README=1 cargo test --test readme takes it over:\n{given}"
    );
}

#[test]
fn the_reports_of_rocm_shown_are_those_given() {
    // one after the other: both may write the file
    rocm_shows(0, "hip-module-load-vs-gil", &[], |report| {
        let to_the_end_of_the_stacks = report.split_once("\n\nWhy ").map_or(report, |(before, _)| before);
        with_a_short_command(to_the_end_of_the_stacks.trim_end())
    });
    rocm_shows(1, "hip-sync", &["stream"], |report| {
        format!("{}\n\n{}", headline(report), paragraph(report, "What it waits for"))
    });
}

#[test]
fn the_essence_keeps_words_and_drops_numbers() {
    assert_eq!(
        essence("│ 411 “load-3”\n  at 0x7fab: held for 1.2 ms"),
        essence("999 “load-3” at 0x1: held for 33.4 ms")
    );
    assert_ne!(essence("411 holds"), essence("411 waits"));
}

#[test]
fn every_command_line_shown_is_understood() {
    let readme = readme();
    let mut seen = 0;
    for line in readme.lines().map(str::trim_start).filter(|l| l.starts_with("hangscope ")) {
        let words: Vec<&str> = line.split(" #").next().unwrap_or(line).split_whitespace().skip(1).collect();
        let (verb, rest) = words.split_first().expect("a verb");
        let help = hangscope(&["help", verb]);
        assert!(help.status.success(), "README.md: no verb `{verb}` in: {line}");
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for option in rest.iter().take_while(|w| **w != "--").filter(|w| w.starts_with('-')) {
            assert!(help.contains(option), "README.md: `{verb}` has no option {option}: {line}");
        }
        seen += 1;
    }
    assert!(seen >= 8, "only {seen} command lines found");
}

#[test]
fn the_two_commands_exist() {
    let commands = block(&readme(), "sh");
    assert_eq!(commands.lines().count(), 2, "{commands}");
    assert!(commands.starts_with("cargo run --release -- demo"), "{commands}");
    assert!(commands.lines().any(|l| l.starts_with("tests/run")), "{commands}");
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").is_file());
}
