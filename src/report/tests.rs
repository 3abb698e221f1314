//! Reports of made-up processes.

use super::{Captured, Case, Part, TextOptions, Threads, dot, json, svg, text};
use crate::facts::{Gap, ResourceKind, RuntimeNote, TakenAt, Timeout};
use crate::units::{ProcessIx, ThreadRef};
use crate::verdict::made_up::{Made, Seen};
use std::time::{Duration, UNIX_EPOCH};

fn captured() -> Captured {
    Captured {
        at: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        source: "live",
        pause: Some(Duration::from_micros(1400)),
        warnings: vec!["libfoo.so: no symbols".to_owned()],
    }
}

fn notes() -> Vec<Vec<RuntimeNote>> {
    vec![vec![
        RuntimeNote { name: "glibc", version: Some("2.36".to_owned()), build: None },
        RuntimeNote { name: "cpython", version: Some("3.11.2".to_owned()), build: Some("gil") },
    ]]
}

fn with_case<T>(made: &Made, see: impl Fn(&Case<'_>) -> T) -> T {
    let (captured, runtimes) = (captured(), notes());
    made.seen(|seen: &Seen| {
        see(&Case {
            snapshots: seen.snapshots,
            stacks: seen.stacks,
            facts: seen.facts,
            runtimes: &runtimes,
            graph: seen.graph,
            verdict: seen.verdict,
            captured: &captured,
        })
    })
}

fn plain(made: &Made, options: TextOptions) -> String {
    with_case(made, |case| text(case, &options))
}

fn without_color(painted: &str) -> String {
    let mut out = String::new();
    let mut escape = false;
    for c in painted.chars() {
        match c {
            '\u{1b}' => escape = true,
            'm' if escape => escape = false,
            c if !escape => out.push(c),
            _ => {}
        }
    }
    out
}

/// Compares with a file beside this one; `HANGSCOPE_BLESS=1` writes it anew, to be read before it is committed.
fn matches_picture(name: &str, text: &str) {
    let path = format!("{}/src/report/tests/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("HANGSCOPE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(text == expected, "{path} differs from:\n{text}");
}

#[test]
fn the_text_of_the_loader_against_the_gil() {
    matches_picture("loader-lock-vs-gil", &plain(&Made::loader_against_gil(), TextOptions::default()));
}

#[test]
fn the_drawings_of_the_loader_against_the_gil() {
    with_case(&Made::loader_against_gil(), |case| {
        matches_picture("loader-lock-vs-gil-dot", &dot(case));
        matches_picture("loader-lock-vs-gil-svg", &svg(case));
    });
}

#[test]
fn parts_of_the_text_leave_the_others_out() {
    let made = Made::loader_against_gil();
    let part = |part| plain(&made, TextOptions { part, ..TextOptions::default() });
    let (edges, story) = (part(Part::Edges), part(Part::Story));
    assert!(edges.contains("Who waits for whom") && story.contains("What to change"));
    assert!(!edges.contains("What to change") && !edges.contains("Everyone else"), "{edges}");
    assert!(!story.contains("waits here") && !story.contains("Everyone else"), "{story}");
}

#[test]
fn text_keeps_to_its_page_with_and_without_colour() {
    let made = Made::loader_against_gil();
    for width in [48, 60, 80, 100, 120] {
        for threads in [Threads::All, Threads::Blocked, Threads::Cycle] {
            for verbose in [false, true] {
                let options = TextOptions { color: false, width, threads, verbose, ..TextOptions::default() };
                let text = plain(&made, options);
                let widest = text.lines().map(|l| l.chars().count()).max();
                assert!(widest <= Some(width), "{width}: {text}");
                assert!(!text.contains('\u{1b}') && text.ends_with('\n') && !text.contains(" \n"), "{text}");
                assert_eq!(without_color(&plain(&made, TextOptions { color: true, ..options })), text);
            }
        }
    }
}

#[test]
fn cycle_shows_nobody_else_and_all_everybody() {
    let made = Made::loader_against_gil();
    let cycle = plain(&made, TextOptions { threads: Threads::Cycle, ..TextOptions::default() });
    assert!(!cycle.contains("Everyone else") && !cycle.contains("load-7"));
    let all = plain(&made, TextOptions { threads: Threads::All, ..TextOptions::default() });
    for i in 4..10 {
        assert!(all.contains(&format!("load-{i}")), "{all}");
    }
}

#[test]
fn json_is_the_contracts() {
    let made = Made::loader_against_gil();
    let json = with_case(&made, json);
    let back: super::json::Report = serde_json::from_str(&json).unwrap();
    assert_eq!(back.schema, "hangscope/1");
    assert_eq!(back.captured.at, "2023-11-14T22:13:20Z");
    assert_eq!(back.captured.pause_us, Some(1400));
    assert_eq!(back.processes[0].command, ["/usr/bin/python3", "/home/user/train.py"]);
    assert_eq!(back.processes[0].libc.as_deref(), Some("glibc 2.36"));
    let ids: Vec<&str> = back.threads.iter().map(|t| t.id.as_str()).collect();
    assert_eq!(ids, ["t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"]);
    assert_eq!(back.threads[0].gil.as_deref(), Some("holds"));
    let functions: Vec<_> = back.threads[0].frames.iter().filter_map(|f| f.function.as_deref()).collect();
    assert_eq!(
        functions,
        [
            "__lll_lock_wait",
            "pthread_mutex_lock",
            "dl_iterate_phdr",
            "hipModuleLoadData",
            "ffi_call",
            "launch",
            "<module>",
            "_PyEval_EvalFrameDefault",
            "Py_RunMain",
            "_start"
        ]
    );
    assert_eq!(back.threads[0].frames[3].domain.as_deref(), Some("hip"));
    assert_eq!(back.threads[0].frames[5].kind, "python");
    let gil = back.resources.iter().find(|r| r.kind == "gil").unwrap();
    assert_eq!((gil.name.as_str(), gil.holders[0].tid, gil.waiters.len()), ("GIL", Some(402), 7));
    assert_eq!(back.threads[1].wait.as_ref().unwrap().timeout.as_deref(), Some("periodic"));
    // the ring closes
    let steps = &back.verdict.cycles[0].steps;
    for (i, step) in steps.iter().enumerate() {
        assert_eq!(step.held_by, steps[(i + 1) % steps.len()].thread);
        let resource = back.resources.iter().find(|r| r.id == step.waits_for).unwrap();
        assert!(resource.holders.iter().any(|h| h.thread.as_ref() == Some(&step.held_by)));
    }
    assert_eq!(back.verdict.blocked_behind.len(), 6);
    assert!(!json.contains("secret"), "arguments are not shown");
}

#[test]
fn recursion_is_told_once_in_every_format() {
    let mut made = Made::new();
    let t = made.thread(7, "deep");
    made.native(t, &["sem_wait libc.so.6", "_PyEval_EvalFrameDefault libpython3.11.so.1.0"]);
    let mut frames = vec![("leaf", "/srv/a.py", 1, 1)];
    for i in 0..20_000 {
        frames.push([("f", "/srv/a.py", 2, 1), ("g", "/srv/b.py", 3, 1)][i % 2]);
    }
    frames.push(("main", "/srv/a.py", 9, 1));
    made.python(t, None, &frames);
    let lock = made.resource(ResourceKind::PythonLock, "a.lock", 0x10);
    made.holds(t, lock).taken_at_managed = Some(TakenAt { frame: 10_001, line: Some(2) });
    made.waits(t, lock).managed_frame = Some(0);
    let text = plain(&made, TextOptions::default());
    assert!(text.contains("took it here") && text.lines().count() < 60, "{text}");
    for gap in ["(frames 6 to 10,001 repeat: g → f)", "(frames 10,003 to 19,999 repeat: f → g)"] {
        assert!(text.contains(gap), "{text}");
    }
    let json = with_case(&made, json);
    assert!(json.len() < 20_000, "{}", json.len());
    let back: super::json::Report = serde_json::from_str(&json).unwrap();
    let gap = back.threads[0].frames.iter().find_map(|f| f.frames_omitted.as_ref()).unwrap();
    assert_eq!((gap.first, gap.last, gap.repeats.join(" ").as_str()), (6, 10_001, "f g"));
}

#[test]
fn no_name_of_a_target_leaves_its_place() {
    let mut made = Made::loader_against_gil();
    let long = "x".repeat(10_000);
    let odd = format!("\u{1b}[31m\u{202e}\n\0\r\u{9b}<&>\"\\{long}");
    let t = made.thread(900, &odd);
    made.native(t, &[&format!("{} {}", odd.replace(' ', ""), "lib\u{1b}.so")]);
    made.python(t, None, &[(&odd, &odd, 1, 0)]);
    let lock = made.resource(ResourceKind::Mutex, &odd, 0x77_0000);
    made.waits(t, lock).evidence = vec![crate::facts::Evidence(odd.clone())];
    let main = ThreadRef { process: ProcessIx(0), thread: 0 };
    made.holds(main, lock);
    let every = TextOptions { threads: Threads::All, verbose: true, ..TextOptions::default() };
    let (dot, svg) = (with_case(&made, dot), with_case(&made, svg));
    for text in [plain(&made, TextOptions::default()), plain(&made, every), with_case(&made, json), dot, svg] {
        let obeyed = text.chars().find(|c| *c != '\n' && crate::units::harmless(*c) != *c);
        assert_eq!(obeyed, None, "{text}");
        assert!(!text.contains(&long[..3000]), "cut");
    }
}

#[test]
fn of_an_interpreters_arguments_only_script_or_module_are_shown() {
    for (arguments, shown) in [
        (&["-u", "train.py", "secret"][..], &["train.py"][..]),
        (&["-um", "torch.run", "secret"], &["-m", "torch.run"]),
        (&["-mtorch.run", "secret"], &["-m", "torch.run"]),
        (&["-Ic", "secret()", "secret"], &["-c"]),
        (&["-Ximporttime", "-W", "error", "-bX", "dev", "train.py"], &["train.py"]),
        (&["--check-hash-based-pycs", "never", "--", "train.py", "secret"], &["train.py"]),
        (&["-", "secret"], &["-"]),
        (&["-c"], &["-c"]),
    ] {
        let line: Vec<String> = ["python3"].iter().chain(arguments).map(ToString::to_string).collect();
        assert_eq!(super::command(&line)[1..], *shown, "{arguments:?}");
    }
}

#[test]
fn json_keys_stand_in_the_contracts_order_and_nothing_is_invented() {
    let mut made = Made::new();
    let t = made.thread(5, "alone");
    made.state(t, 'S');
    let json = with_case(&made, json);
    let keys = ["schema", "tool", "captured", "processes", "threads", "resources", "verdict"];
    let at: Vec<usize> = keys.iter().map(|k| json.find(&format!("\n  \"{k}\":")).unwrap()).collect();
    assert!(at.is_sorted(), "{json}");
    for unknown in
        ["\"pthread\": null", "\"python_name\": null", "\"gil\": null", "\"wait\": null", "\"certainty\": null"]
    {
        assert!(json.contains(unknown), "{unknown}: {json}");
    }
}

#[test]
fn a_deduced_hold_is_in_the_report() {
    let mut made = Made::new();
    let gil = made.gil();
    let done = made.resource(ResourceKind::Condvar, "", 0x3000);
    let (main, worker) = (made.thread(1, "main"), made.thread(2, "worker"));
    made.holds(main, gil);
    made.waits(main, done);
    made.waits(worker, gil);
    let back: super::json::Report = serde_json::from_str(&with_case(&made, json)).unwrap();
    let condvar = back.resources.iter().find(|r| r.kind == "condvar").unwrap();
    assert_eq!(condvar.holders[0].certainty, "inferred");
    assert_eq!(condvar.holders[0].thread.as_deref(), Some("t2"));
    let text = plain(&made, TextOptions::default());
    assert!(
        text.contains(" inferred ") && text.contains("DEADLOCK, 2 threads, inferred, if it was not moving:"),
        "{text}"
    );
}

#[test]
fn equal_input_gives_equal_bytes() {
    let mut made = Made::loader_against_gil();
    let first = (with_case(&made, json), plain(&made, TextOptions::default()));
    made.facts.waits.reverse();
    made.facts.holds.reverse();
    made.facts.resources.reverse();
    assert_eq!((with_case(&made, json), plain(&made, TextOptions::default())), first);
}

#[test]
fn gaps_and_notes_are_warnings_once() {
    let mut made = Made::loader_against_gil();
    made.facts.gaps = vec![Gap("x\u{1b}[31m cannot be read".to_owned()), Gap("x\u{1b}[31m cannot be read".to_owned())];
    made.facts.waits[1].timeout = Timeout::Seconds(5.0);
    let text = plain(&made, TextOptions::default());
    assert_eq!(text.matches("x?[31m cannot be read").count(), 1, "{text}");
    assert!(text.contains("! libfoo.so: no symbols"));
    assert!(text.contains("time-out"), "{text}");
}

#[test]
fn a_thread_that_could_not_be_read_is_shown_with_the_others() {
    let mut made = Made::loader_against_gil();
    let t = ThreadRef { process: ProcessIx(0), thread: 0 };
    made.native(t, &[]);
    let text = plain(&made, TextOptions::default());
    // the interpreter's frames are shown even where no native stack could be had
    assert!(text.contains("launch") && text.contains("load-3"), "{text}");
}

#[test]
fn a_frame_that_took_at_another_line_is_shown_at_both() {
    let mut made = Made::new();
    let t = made.thread(7, "user");
    made.native(t, &["sem_wait libc.so.6", "_PyEval_EvalFrameDefault libpython3.11.so.1.0"]);
    made.python(
        t,
        None,
        &[("lazy_call", "/srv/cuda.py", 5, 1), ("seed_all", "/srv/cuda.py", 9, 1), ("lazy_call", "/srv/cuda.py", 7, 1)],
    );
    let lock = made.resource(ResourceKind::PythonLock, "torch.cuda._initialization_lock", 0x10);
    made.holds(t, lock).taken_at_managed = Some(TakenAt { frame: 2, line: Some(5) });
    made.waits(t, lock).managed_frame = Some(0);
    let text = plain(&made, TextOptions::default());
    let expected = "    waits here ▸ lazy_call  cuda.py:5
                 seed_all   cuda.py:9
                 lazy_call  cuda.py:7
  took it here ▸ lazy_call  cuda.py:5
";
    assert!(text.contains(expected), "{text}");
    let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "which it took in lazy_call (cuda.py:5), and takes it again in lazy_call (cuda.py:5)",
        "Between the two: seed_all.",
    ] {
        assert!(words.contains(sentence), "{text}");
    }
}
