//! The bridge against a peer that is played: one that serves a small core as a debugger would, and then one that breaks each
//! rule of `plugins/PROTOCOL.md`. No debugger is needed.

mod support;

use hangscope::arch::x86_64::WORD_NAMES;
use hangscope::memory::MemoryExt;
use hangscope::target::Target;
use hangscope::target::bridge::wire::hex;
use hangscope::target::core::{CoreFile, CoreOptions};
use hangscope::units::Addr;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use support::build::{Toolchain, build};
use support::places::Place;
use support::{Scratch, hangscope, running};

/// A small core of two threads that wait for each other's mutex, made once.
fn core() -> &'static PathBuf {
    static CORE: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, core) = CORE.get_or_init(|| {
        let scratch = Scratch::new("bridge");
        let dir = build("ring-of-three", &[], Toolchain::Host, None).expect("the sample builds");
        let sample = running::start(&Place::host(), &dir, &[], scratch.path()).expect("the sample starts");
        let core = scratch.path().join("core");
        let made = hangscope().args(["attach", &sample.pid.to_string(), "--json", "--save-core"]).arg(&core).output();
        assert_eq!(made.expect("hangscope runs").status.code(), Some(1));
        (scratch, core)
    });
    core
}

/// A debugger that has the core open and keeps to the protocol. It does not name the core.
struct Peer {
    core: CoreFile,
    kind: &'static str,
    /// What was asked, first words only.
    asked: Vec<String>,
    printed: String,
    variables: Vec<(String, String)>,
}

impl Peer {
    fn new(kind: &'static str) -> Peer {
        let core = CoreFile::open(core(), &CoreOptions::default()).expect("it opens");
        Peer { core, kind, asked: Vec::new(), printed: String::new(), variables: Vec::new() }
    }

    fn answer(&mut self, request: &str) -> String {
        let words: Vec<&str> = request.split(' ').collect();
        self.asked.push(words[0].to_owned());
        match words[0] {
            "hello" => "ok 1 played 1.0".to_owned(),
            "process" => {
                let process = self.core.process();
                let exe = process.exe.as_ref().map_or("-".to_owned(), |e| hex(e.display().to_string().as_bytes()));
                format!("ok {} i386:x86-64 {} {exe} - - {}", self.kind, process.pid, process.pid)
            }
            "threads" => {
                let mut out = "ok".to_owned();
                for t in self.core.threads().expect("threads") {
                    let raw = t.registers.as_ref().expect("registers").raw.clone();
                    let value = |name: &&str| {
                        let i = WORD_NAMES.iter().position(|n| n == name).expect("a register of that name");
                        let word = u64::from_le_bytes(raw[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
                        format!("{word:x}")
                    };
                    let values: Vec<String> = words[1..].iter().map(value).collect();
                    let name = hex(t.name.unwrap_or_default().as_bytes());
                    out += &format!(" {}:{name}:{}", t.host_tid, values.join(","));
                }
                out
            }
            "maps" => {
                let mut out = "ok".to_owned();
                for m in self.core.mappings().expect("mappings") {
                    let p = m.permissions;
                    let has = |c, yes| if yes { c } else { '-' };
                    let rights: String =
                        [has('r', p.read), has('w', p.write), has('x', p.execute), 'p'].iter().collect();
                    let file = m.path.as_ref().map_or("-".to_owned(), |p| hex(p.display().to_string().as_bytes()));
                    out += &format!(" {:x}-{:x}:{rights}:{:x}:{file}", m.start, m.end, m.offset);
                }
                out
            }
            "auxv" => {
                let entries = self.core.process().auxv.iter();
                format!("ok {}", entries.map(|(k, v)| format!("{k:x}={v:x}")).collect::<Vec<_>>().join(" "))
            }
            "read" => {
                let number = |w: &str| u64::from_str_radix(w, 16).expect("a number");
                let mut out = "ok".to_owned();
                for range in words[1..].chunks(2) {
                    // what a small core has of a page is all a debugger of a live process would have: the rest reads as 0
                    let (at, len) = (number(range[0]), number(range[1]));
                    let mut bytes = vec![0; usize::try_from(len).expect("a length")];
                    for (i, b) in bytes.iter_mut().enumerate() {
                        *b = self.core.read_u8(Addr(at + i as u64)).unwrap_or(0);
                    }
                    out += &format!(" {}", hex(&bytes));
                }
                out
            }
            "print" => {
                self.printed += &text(words[1]);
                "ok".to_owned()
            }
            "set" => {
                self.variables.push((words[1].to_owned(), text(words[2])));
                "ok".to_owned()
            }
            "select" | "end" => "ok".to_owned(),
            _ => format!("no {}", hex(b"not here")),
        }
    }
}

fn text(hex: &str) -> String {
    let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("digits");
    String::from_utf8((0..hex.len() / 2).map(|i| digit(i * 2)).collect()).expect("text")
}

/// How a conversation went.
struct Ended {
    code: Option<i32>,
    err: String,
    took: Duration,
}

/// Plays `answer` to `hangscope bridge ARGS`: what it returns is written as it stands; `None` closes the pipe.
fn play(args: &[&str], mut answer: impl FnMut(&str, &mut ChildStdin) -> Option<()>) -> Ended {
    let began = Instant::now();
    let mut command: Command = hangscope();
    command.arg("bridge").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("hangscope starts");
    let mut to = child.stdin.take().expect("a pipe");
    let mut from = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while from.read_line(&mut line).expect("text") > 0 {
        if answer(line.trim_end_matches('\n'), &mut to).is_none() {
            break;
        }
        line.clear();
    }
    drop(to);
    let mut err = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
    let code = child.wait().expect("it ends").code();
    Ended { code, err, took: began.elapsed() }
}

fn say(to: &mut ChildStdin, line: &str) -> Option<()> {
    to.write_all(line.as_bytes()).and_then(|()| to.write_all(b"\n")).ok()
}

/// Plays a debugger that keeps to the protocol.
fn play_well(peer: &mut Peer, args: &[&str]) -> Ended {
    play(args, |request, to| say(to, &peer.answer(request)))
}

#[test]
fn a_peer_that_keeps_to_the_protocol_gets_the_verdict() {
    for kind in ["remote", "core", "live"] {
        let mut peer = Peer::new(kind);
        let ended = play_well(&mut peer, &["json"]);
        assert_eq!(ended.code, Some(1), "{kind}: {}", ended.err);
        let report: Value = serde_json::from_str(&peer.printed).expect("the report is JSON");
        assert_eq!(report["captured"]["source"], "bridge");
        assert_eq!(report["verdict"]["kind"], "deadlock");
        assert_eq!(report["verdict"]["cycles"][0]["steps"].as_array().map(Vec::len), Some(3));
        let told = |name: &str| peer.variables.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!(told("verdict"), Some("deadlock"));
        assert_eq!(told("cycle_tids").map(|t| t.split(' ').count()), Some(3));
        assert_eq!(peer.asked.last().map(String::as_str), Some("end"));
        let reads = peer.asked.iter().filter(|a| *a == "read").count();
        assert!(reads < 60, "{reads} questions for memory");
    }
}

#[test]
fn verbs_show_their_part_and_goto_selects() {
    let printed = |args: &[&str]| {
        let mut peer = Peer::new("remote");
        let ended = play_well(&mut peer, args);
        assert_eq!(ended.code, Some(1), "{args:?}: {}", ended.err);
        (peer.printed, peer.asked)
    };
    let (whole, _) = printed(&[]);
    assert!(whole.starts_with("DEADLOCK, 3 threads") && whole.contains("What to change"), "{whole}");
    let (edges, _) = printed(&["graph"]);
    assert!(edges.contains("Who waits for whom") && !edges.contains("What to change"), "{edges}");
    let (story, _) = printed(&["explain"]);
    assert!(story.contains("What to change") && !story.contains("waits here"), "{story}");
    let (dot, _) = printed(&["graph", "dot"]);
    assert!(dot.starts_with("digraph hangscope {") && dot.matches("penwidth=2").count() == 6, "{dot}");
    let (svg, _) = printed(&["graph", "svg"]);
    assert!(svg.starts_with("<svg ") && svg.matches("<ellipse").count() == 4, "{svg}");
    let (_, asked) = printed(&["goto", "waits"]);
    assert!(asked.iter().any(|a| a == "select"));
    let (_, asked) = printed(&["goto", "holds"]);
    assert!(asked.iter().any(|a| a == "select"));
    let ended = play_well(&mut Peer::new("remote"), &["goto", "waits", "1"]);
    assert_eq!((ended.code, ended.err.contains("there is no thread 1")), (Some(2), true), "{}", ended.err);
}

#[test]
fn what_a_person_can_mend_is_said_in_one_line() {
    let with = |request: &'static str, line: &'static str| {
        let mut peer = Peer::new("remote");
        let ended = play(&[], |asked, to| match asked.split(' ').next() == Some(request) {
            true => say(to, line),
            false => say(to, &peer.answer(asked)),
        });
        assert_eq!(ended.code, Some(2), "{request} {line}: {}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        ended.err
    };
    for (request, line, part) in [
        ("hello", "ok 2 played 1.0", "speaks version 2"),
        ("hello", "no -", "does not give hello"),
        ("process", "ok none", "no process"),
        ("process", "ok running", "is running"),
        ("process", "ok live aarch64 5 - - - 5", "aarch64"),
        ("threads", "ok", "no thread"),
        ("threads", "no 7468652070726f6365737320656e646564", "the process ended"),
        ("threads", "ok 5:-:-,-,-,-,-,-,-,-,-,-,-,-,-,-,-,-,-,-,-", "no registers"),
        ("maps", "ok", "does not give maps"),
    ] {
        let said = with(request, line);
        assert!(said.starts_with("hangscope: ") && said.contains(part), "{said}");
    }
}

/// What a peer does instead of answering.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Close,
    CutLine,
    Silence,
    Garbage,
    Binary,
    Empty,
    Endless,
    TwoLines,
    HalfOfIt,
    TwiceOfIt,
}

#[test]
fn a_peer_that_breaks_the_rules_is_told_so_at_once() {
    use Fault::{Binary, Close, CutLine, Empty, Endless, Garbage, HalfOfIt, Silence, TwiceOfIt, TwoLines};
    let all = [Close, CutLine, Silence, Garbage, Binary, Empty, Endless, TwoLines, HalfOfIt, TwiceOfIt];
    for request in ["hello", "process", "threads", "maps", "read"] {
        for fault in all {
            let mut peer = Peer::new("remote");
            let ended = play(&["--answer-within", "700ms", "json"], |asked, to| {
                let good = peer.answer(asked);
                if asked.split(' ').next() != Some(request) {
                    return say(to, &good);
                }
                match fault {
                    Close => None,
                    CutLine => to.write_all(&good.as_bytes()[..good.len() / 2]).ok().and(None),
                    // the end is seen when hangscope closes its output
                    Silence => Some(()),
                    Garbage => say(to, "Run till exit from #0 main () at x.c:3"),
                    Binary => to.write_all(&[0xff, 0, 0xfe, b'\n']).ok(),
                    Empty => say(to, ""),
                    Endless => {
                        let piece = [b"ok ".as_slice(), &[b'f'; 1 << 16]].concat();
                        while to.write_all(&piece).is_ok() {}
                        Some(())
                    }
                    TwoLines => say(to, &format!("{good}\nok 1 2 3")),
                    HalfOfIt => say(to, &good[..good.len() / 2 + 1]),
                    TwiceOfIt => say(to, &format!("{good}{}", &good[2..])),
                }
            });
            // twice the files, or of a list the half that is whole, is an answer too
            let may_pass = matches!(
                (request, fault),
                ("hello" | "maps" | "threads", HalfOfIt | TwiceOfIt) | ("process", HalfOfIt)
            );
            let what = format!("{fault:?} for {request}: {:?} {}", ended.code, ended.err);
            assert!(ended.took < Duration::from_secs(20), "{what}, {:?}", ended.took);
            assert!(!ended.err.contains("panicked"), "{what}");
            if ended.code == Some(2) {
                assert_eq!(ended.err.lines().count(), 1, "{what}");
                assert!(ended.err.starts_with("hangscope: "), "{what}");
            } else {
                assert!(may_pass, "{what}");
            }
        }
    }
}

#[test]
fn a_peer_that_refuses_everything_it_may_still_gets_an_answer() {
    let mut peer = Peer::new("remote");
    let ended = play(&["json"], |asked, to| match asked.split(' ').next() {
        Some("auxv" | "files" | "fetch" | "set" | "read") => say(to, "no -"),
        _ => say(to, &peer.answer(asked)),
    });
    assert!(matches!(ended.code, Some(0 | 3 | 4)), "{:?} {}", ended.code, ended.err);
    let report: Value = serde_json::from_str(&peer.printed).expect("the report is JSON");
    assert_eq!(report["threads"].as_array().map(Vec::len), Some(4), "{report}");
}

#[test]
fn files_fetched_from_the_wrong_machine_are_not_believed() {
    let mut peer = Peer::new("remote");
    let ended = play(&["json"], |asked, to| {
        let words: Vec<&str> = asked.split(' ').collect();
        if words[0] != "fetch" {
            return say(to, &peer.answer(asked));
        }
        // whatever is asked for, of this process here
        let (theirs, ours) = (text(words[1]), text(words[2]));
        let name = theirs.rsplit('/').next().unwrap_or_default();
        let copied = std::fs::read(format!("/proc/self/{name}")).and_then(|bytes| std::fs::write(ours, bytes));
        say(to, if copied.is_ok() { "ok" } else { "no -" })
    });
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(peer.asked.iter().any(|a| a == "maps"), "{:?}", peer.asked);
    let report: Value = serde_json::from_str(&peer.printed).expect("the report is JSON");
    assert_eq!(report["verdict"]["kind"], "deadlock");
    assert!(!report["processes"][0]["command"].to_string().contains("bridge-"), "{}", report["processes"]);
}

#[test]
fn a_person_is_told_how_it_is_meant() {
    // a terminal of its own, as `script` makes one
    if !support::has_command("script") {
        println!("skipped: needs script (util-linux)");
        return;
    }
    let program = hangscope().get_program().to_string_lossy().into_owned();
    let said = Command::new("script").args(["-qec", &format!("{program} bridge"), "/dev/null"]).output();
    let said = String::from_utf8_lossy(&said.expect("script runs").stdout).into_owned();
    assert!(said.contains("hangscope plugin gdb"), "{said}");
}
