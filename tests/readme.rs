//! The README says what is: the report it shows is the one the demo gives, its verbs and options exist.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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
    let from = readme.split_once(&format!("```{language}\n")).expect("such a block").1;
    from.split_once("```").expect("its end").0.to_string()
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
