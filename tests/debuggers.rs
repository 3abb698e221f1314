//! Sessions in gdb as a person has them: stopped at a breakpoint, through gdbserver, on a stripped program; where the selected
//! thread and frame stay, what `goto` selects, and what is said where nothing can be looked at.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use support::places::{Installed, roots};
use support::{Said, Scratch, hangscope, has_command, home, in_ci, run};

/// Is there this command? Says what is skipped; in CI it must be there.
fn has(command: &str) -> bool {
    let there = has_command(command);
    assert!(there || !in_ci(), "needs {command}");
    if !there {
        println!("skipped: needs {command}");
    }
    there
}

/// A directory with the program, as it was compiled and stripped, and the plugin.
fn directory() -> &'static Path {
    static MADE: OnceLock<Scratch> = OnceLock::new();
    let scratch = MADE.get_or_init(|| {
        let scratch = Scratch::new("debuggers");
        let program = scratch.path().join("stuck");
        let done = |c: &mut Command| assert!(c.status().is_ok_and(|s| s.success()), "{c:?}");
        done(
            Command::new("cc")
                .args(["-g", "-O1", "-pthread", "-o"])
                .arg(&program)
                .arg(home().join("tests/debuggers/stuck.c")),
        );
        done(Command::new("strip").arg("-o").arg(scratch.path().join("stripped")).arg(&program));
        done(hangscope().args(["plugin", "gdb", "-o"]).arg(scratch.path().join("hangscope-gdb.py")));
        scratch
    });
    scratch.path()
}

struct Program(Child);

impl Program {
    fn start(name: &str) -> Program {
        Program::run(&mut Command::new(directory().join(name)))
    }

    fn run(command: &mut Command) -> Program {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("text");
        assert!(line.starts_with("ready"), "{line}");
        support::running::settled(child.id()).expect("it hangs");
        Program(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// gdb with the plugin, these words, and then these commands.
fn gdb(words: &[&str], commands: &[&str]) -> Said {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-batch", "-x"]).arg(directory().join("hangscope-gdb.py")).args(words);
    commands.iter().for_each(|c| {
        gdb.args(["-ex", c]);
    });
    let said = run(gdb, Duration::from_secs(120)).expect("gdb ends");
    assert!(!said.err.contains("panicked") && !said.err.contains("Traceback"), "{}", said.err);
    said
}

/// lldb 16 or later; Debian's own name carries the version.
fn lldb() -> Option<&'static str> {
    let works = |name: &&str| {
        let mut ask = Command::new(name);
        ask.args(["--no-lldbinit", "-b", "-o", "script print('can' + 'script')"]);
        has_command(name) && ask.output().is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("canscript"))
    };
    let found = ["lldb-21", "lldb-19", "lldb-18", "lldb-17", "lldb-16"].into_iter().find(works);
    assert!(found.is_some() || !in_ci(), "needs lldb");
    if found.is_none() {
        println!("skipped: needs lldb 16 (apt install lldb-16 python3-lldb-16)");
    }
    found
}

/// The report `name` says two threads wait for each other.
fn is_told(report: &PathBuf) {
    let text = std::fs::read_to_string(report).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["verdict"]["kind"], "deadlock", "{text}");
    assert_eq!(report["verdict"]["certainty"], "recorded");
    assert_eq!(report["verdict"]["cycles"][0]["steps"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["threads"].as_array().map(Vec::len), Some(3));
}

#[test]
fn stopped_at_a_breakpoint_the_persons_place_is_kept() {
    if !has("gdb") {
        return;
    }
    let program = Program::start("stuck");
    let report = directory().join("breakpoint.json");
    let json = format!("hangscope json {}", report.display());
    let place = "printf \"at %d %d\\n\", $_thread, $pc == (long) (&tick)";
    let commands = ["break *tick", "continue", "up", place, &json, place, "frame", "hangscope goto waits", "detach"];
    let said = gdb(&["-p", &program.pid()], &commands);
    is_told(&report);
    let places: Vec<&str> = said.out.lines().filter(|l| l.starts_with("at ")).collect();
    assert_eq!(places.len(), 2, "{}", said.out);
    assert_eq!(places[0], places[1]);
    let rest = said.out.split(places[0]).last().expect("the rest");
    assert!(rest.contains("in main ("), "the frame above the breakpoint is kept: {rest}");
    assert!(rest.contains("pthread_mutex_lock") || rest.contains("lll_lock_wait"), "goto: {rest}");
}

/// All that gdb can tell of a session, and all that it can dump of the process, before and after.
#[test]
fn a_session_is_left_as_it_was() {
    if !has("gdb") {
        return;
    }
    let program = Program::start("stuck");
    let dir = Scratch::new("debuggers-state");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let mut commands = vec![format!("source {}", home().join("tests/debuggers/state.py").display())];
    let set_up = [
        "set pagination on",
        "set height 10",
        "set print elements 7",
        "handle SIGUSR1 nostop noprint pass",
        "break tick",
        "continue",
        "watch *(int *) $sp",
        "tbreak takes",
        "display/i $pc",
        "set $mine = 42",
        "print 7",
        "list idles",
        "thread 2",
        "frame 3",
    ];
    commands.extend(set_up.map(str::to_owned));
    commands.extend([format!("state {}", at("before")), format!("generate-core-file {}", at("core-before"))]);
    commands.extend(["", "threads -v", "explain", "bogus", "goto waits 1"].map(|verb| format!("hangscope {verb}")));
    commands.extend([format!("hangscope json {}", at("json")), format!("hangscope graph svg {}", at("svg"))]);
    commands.extend([format!("state {}", at("after")), format!("generate-core-file {}", at("core-after"))]);
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let said = gdb(&["-p", &program.pid()], &commands);
    let read = |name: &str| std::fs::read(at(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{}", said.err));
    let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
    let (before, after) = (text("before"), text("after"));
    assert!(before.contains("$mine = 42") && before.contains("takes"), "{before}");
    let changed: Vec<_> = before.lines().zip(after.lines()).filter(|(b, a)| b != a).collect();
    assert!(changed.is_empty() && before.len() == after.len(), "{changed:#?}");
    assert!(read("core-before") == read("core-after"), "the process itself was changed");
    assert!(text("json").contains("\"deadlock\"") && text("svg").starts_with("<svg "));
}

/// A server that gives neither files nor `/proc`: what gdb itself knows of the files' sections is all there is.
#[test]
fn a_server_that_gives_no_files() {
    if !has("gdb") || !has("gdbserver") {
        return;
    }
    let program = Program::start("stripped");
    let report = directory().join("no-files.json");
    let remote = format!("target remote | gdbserver --attach - {}", program.pid());
    let file = format!("file {}", directory().join("stripped").display());
    let json = format!("hangscope json {}", report.display());
    let no_files = "set remote hostio-open-packet off";
    let said = gdb(&[], &["set sysroot /", no_files, &file, &remote, &json, "detach"]);
    assert!(report.exists(), "{}\n{}", said.out, said.err);
    is_told(&report);
}

#[test]
fn words_are_completed() {
    if !has("gdb") {
        return;
    }
    let program = Program::start("stuck");
    let files = directory().join("st").display().to_string();
    let asked =
        ["", "graph ", "goto h", "goto waits ", "explain ", &format!("graph svg {files}"), &format!("json {files}")];
    let commands: Vec<String> = asked.iter().map(|words| format!("complete hangscope {words}")).collect();
    let said = gdb(&["-p", &program.pid()], &commands.iter().map(String::as_str).collect::<Vec<_>>());
    let lines: Vec<&str> = said.out.lines().filter_map(|l| l.strip_prefix("hangscope ")).collect();
    let pid = program.pid();
    let (waits, svg, json) = (format!("goto waits {pid}"), format!("graph svg {files}"), format!("json {files}"));
    let mut wanted =
        vec!["explain", "goto", "graph", "json", "threads", "graph dot", "graph svg", "goto holds", &waits];
    let drawn = ["ripped", "uck"].map(|rest| format!("{svg}{rest}"));
    let written = ["ripped", "uck"].map(|rest| format!("{json}{rest}"));
    wanted.extend(drawn.iter().chain(&written).map(String::as_str));
    let missing: Vec<_> = wanted.iter().filter(|w| !lines.contains(w)).collect();
    assert!(missing.is_empty() && !lines.contains(&"explain "), "{missing:?} in {lines:#?}\n{}", said.err);
}

/// The same in lldb: what it tells of a session, before and after; then what `goto` selects, and its errors.
#[test]
fn a_session_in_lldb_is_left_as_it_was() {
    let Some(lldb) = lldb() else { return };
    let program = Program::start("stuck");
    let dir = Scratch::new("debuggers-lldb");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let plugin = at("hangscope_lldb.py");
    assert!(hangscope().args(["plugin", "lldb", "-o", &plugin]).status().is_ok_and(|s| s.success()));
    let commands = [
        "settings set plugin.process.gdb-remote.packet-timeout 60".to_owned(),
        format!("process attach -p {}", program.pid()),
        format!("command script import {}", home().join("tests/debuggers/state_lldb.py").display()),
        format!("command script import {plugin}"),
        "breakpoint set -n tick".to_owned(),
        "target stop-hook add -o version".to_owned(),
        "thread select 2".to_owned(),
        "frame select 4".to_owned(),
        format!("state {}", at("warm-up")),
        format!("state {}", at("before")),
        "hangscope".to_owned(),
        "hangscope threads -v".to_owned(),
        "hangscope bogus".to_owned(),
        "hangscope 'open".to_owned(),
        format!("hangscope json {}", at("json")),
        format!("state {}", at("after")),
        "hangscope goto holds".to_owned(),
        "thread info".to_owned(),
        "detach".to_owned(),
        "hangscope".to_owned(),
        "script hangscope_lldb.BINARY = '/bin/true'".to_owned(),
        "hangscope".to_owned(),
        "quit".to_owned(),
    ];
    // by its input: with -o an error would be the end
    let typed = at("typed");
    std::fs::write(&typed, commands.join("\n") + "\n").expect("written");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" --no-lldbinit <\"$1\"", lldb, &typed]);
    let said = run(command, Duration::from_secs(120)).expect("lldb ends");
    let all = format!("{}\n{}", said.out, said.err);
    assert!(!all.contains("Traceback"), "{all}");
    let text = |name: &str| std::fs::read_to_string(at(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{all}"));
    let (before, after) = (text("before"), text("after"));
    assert!(before.contains("frame #4") && before.contains("tick"), "{before}");
    let changed: Vec<_> = before.lines().zip(after.lines()).filter(|(b, a)| b != a).collect();
    assert!(changed.is_empty() && before.len() == after.len(), "{changed:#?}");
    is_told(&PathBuf::from(at("json")));
    for part in [
        "hangscope: unrecognized subcommand 'bogus'; `help hangscope`",
        "hangscope: No closing quotation",
        "hangscope: '/bin/true' died, or is no hangscope of this version",
        "hangscope: the debugger has no process",
        "takes(",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
}

#[test]
fn goto_walks_round_the_cycle() {
    if !has("gdb") {
        return;
    }
    let program = Program::start("stuck");
    let thread = "printf \"thread %d\\n\", $_thread";
    let holds = "hangscope goto holds";
    let commands = ["hangscope goto waits", thread, holds, thread, holds, thread, "p $hangscope_verdict", "detach"];
    let said = gdb(&["-p", &program.pid()], &commands);
    let threads: Vec<&str> = said.out.lines().filter(|l| l.starts_with("thread ")).collect();
    assert!(threads.len() == 3 && threads[0] == threads[2] && threads[0] != threads[1], "{threads:?}\n{}", said.out);
    assert!(said.out.contains("\"deadlock\""), "{}", said.out);
}

#[test]
fn a_stripped_program_and_one_behind_gdbserver() {
    if !has("gdb") || !has("gdbserver") {
        return;
    }
    let program = Program::start("stripped");
    let report = directory().join("stripped.json");
    let json = format!("hangscope json {}", report.display());
    gdb(&["-p", &program.pid()], &[&json, "detach"]);
    is_told(&report);
    std::fs::remove_file(&report).expect("it was there");
    let remote = format!("target remote | gdbserver --attach - {}", program.pid());
    let said = gdb(&[], &[&remote, &json, "detach", "quit $hangscope_exit_code"]);
    assert!(report.exists(), "{}\n{}", said.out, said.err);
    is_told(&report);
    assert_eq!(said.code(), 1, "{}", said.err);
}

/// gdb's own look at files ends at the mount namespace: what it opens is this machine's libc.
#[test]
fn a_program_in_another_root_behind_gdbserver() {
    if !has("gdb") || !has("gdbserver") {
        return;
    }
    let Some(root) = roots().into_iter().find(|r| r.suite == "trixie") else {
        assert!(!in_ci(), "needs the trixie root");
        println!("skipped: needs the trixie root");
        return;
    };
    let alone = Scratch::new("debuggers-root");
    std::fs::copy(directory().join("stripped"), alone.path().join("stripped")).expect("a copy");
    let installed = Installed::new(&root).expect("a directory in the root");
    let there = installed.add("debuggers", alone.path()).expect("a copy in the root");
    let program = Program::run(Command::new("chroot").arg(&root.path).arg(there.join("stripped")));
    let report = directory().join("root.json");
    let remote = format!("target remote | gdbserver --attach - {}", program.pid());
    let json = format!("hangscope json {}", report.display());
    let said = gdb(&[], &[&remote, &json, "detach"]);
    assert!(report.exists(), "{}\n{}", said.out, said.err);
    is_told(&report);
    let text = std::fs::read_to_string(&report).expect("a report");
    assert!(text.contains("glibc 2.41"), "the root's own libc is read: {text}");
}

#[test]
fn what_keeps_it_from_looking_is_one_line() {
    if !has("gdb") {
        return;
    }
    let program = Program::start("stuck");
    let attach = ["-p", &program.pid()];
    let mut errors = Vec::new();
    for (words, commands, part) in [
        (&[][..], &["hangscope"][..], "hangscope: the debugger has no process"),
        (&attach[..], &["set hangscope-binary /nowhere/hangscope", "hangscope"][..], "set hangscope-binary PATH"),
        (
            &attach[..],
            &["set hangscope-binary /bin/true", "hangscope"][..],
            "died, or is no hangscope of this version: ",
        ),
        (&attach[..], &["set hangscope-binary /bin/sh", "hangscope"][..], "version: /bin/sh: 0:"),
        (
            &attach[..],
            &["set hangscope-binary /usr/bin/yes", "hangscope"][..],
            "died, or is no hangscope of this version: ",
        ),
        (&attach[..], &["hangscope bogus"][..], "hangscope: unrecognized subcommand 'bogus'; `help hangscope`"),
        (&attach[..], &["hangscope goto"][..], "not provided: <PLACE>; `help hangscope`"),
        (&attach[..], &["hangscope goto up"][..], "[possible values: waits, holds]; `help hangscope`"),
        (&attach[..], &["hangscope --help"][..], "hangscope: `help hangscope` lists"),
        (&attach[..], &["shell kill -9 PID", "shell sleep 0.3", "hangscope"][..], "hangscope: the process has ended"),
        (&attach[..], &["continue &", "hangscope"][..], "hangscope: the program is running"),
        (&attach[..], &["hangscope goto waits 1"][..], "hangscope: there is no thread 1"),
        (&attach[..], &["kill", "hangscope"][..], "hangscope: the debugger has no process"),
    ] {
        let program = Program::start("stuck");
        let pid = program.pid();
        let words: Vec<&str> = words.iter().map(|w| if *w == attach[1] { pid.as_str() } else { w }).collect();
        let commands: Vec<String> = commands.iter().map(|c| c.replace("PID", &pid)).collect();
        let said = gdb(&words, &commands.iter().map(String::as_str).collect::<Vec<_>>());
        let lines: Vec<&str> = said.err.lines().filter(|l| l.contains("hangscope")).collect();
        if lines.len() != 1 || !lines[0].contains(part) {
            errors.push(format!("{commands:?}: {}", said.err));
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}
