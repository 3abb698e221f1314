//! `hangscope run`: CMD's output, exit status and signals are its own; its whole tree is diagnosed, then ended.

mod support;

use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::running::settled;

const HANGSCOPE: &str = env!("CARGO_BIN_EXE_hangscope");

fn run(arguments: &[&str]) -> Output {
    Command::new(HANGSCOPE).arg("run").args(arguments).stdin(Stdio::null()).output().expect("hangscope starts")
}

/// Whoever started the tests may ignore keys (a shell's background job does), and no shell can trap what it was given
/// ignored.
const WITH_KEYS: [&str; 2] = ["env", "--default-signal=INT,QUIT"];

fn start(arguments: &[&str]) -> Child {
    let [env, keys] = WITH_KEYS;
    Command::new(env)
        .args([keys, HANGSCOPE, "run"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hangscope starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The first line CMD writes: it is ready then.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("a piped stdout");
    // one byte at a time: what follows is left in the pipe
    let mut byte = [0];
    let ready = |out: &std::process::ChildStdout| {
        let mut fds = [PollFd::new(out.as_fd(), PollFlags::POLLIN)];
        assert_ne!(poll(&mut fds, 30_000u16), Ok(0), "the command says nothing");
        true
    };
    while ready(out) && out.read(&mut byte).is_ok_and(|n| n == 1) && byte != *b"\n" {
        line.push(char::from(byte[0]));
    }
    line
}

/// Waits, but not for ever: a hang in here is a failure, not a stuck test run.
fn finish(mut child: Child) -> Output {
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("it can be waited for").is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            panic!("hangscope run did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

fn send(child: &Child, signal: Signal) {
    signal::kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it can be signalled");
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').and_then(|at| stat.get(at + 2..at + 3)).is_some_and(|s| s != "Z" && s != "X")
}

#[test]
fn output_and_exit_code_are_the_commands_own() {
    let out = run(&["--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((text(&out.stdout).as_str(), text(&out.stderr).as_str()), ("out\n", "err\n"));
    assert_eq!(out.status.code(), Some(7));
    let out = run(&["--timeout", "60s", "--", "true"]);
    assert_eq!((out.status.code(), out.stdout.len(), out.stderr.len()), (Some(0), 0, 0));
}

#[test]
fn the_command_may_stand_without_dashes_and_keeps_its_options() {
    let out = run(&["--timeout", "60s", "sh", "-c", "echo \"$@\"", "sh", "--json", "-o", "x", "-q"]);
    assert_eq!(text(&out.stdout), "--json -o x -q\n");
}

#[test]
fn standard_input_is_the_commands() {
    let mut child = Command::new(HANGSCOPE)
        .args(["run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    assert_eq!(text(&finish(child).stdout), "through\n");
}

#[test]
fn death_by_a_signal_is_passed_on_as_such() {
    for (name, signal) in [("TERM", Signal::SIGTERM), ("KILL", Signal::SIGKILL), ("SEGV", Signal::SIGSEGV)] {
        let out = run(&["--", "sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(out.status.signal(), Some(signal as i32), "{out:?}");
        assert!(!out.status.core_dumped(), "one core is enough");
    }
    let real_time = run(&["--", "sh", "-c", "kill -40 $$"]);
    assert_eq!(real_time.status.signal(), Some(40));
    // what a shell makes of it
    let shell =
        Command::new("sh").args(["-c", "\"$0\" run -- sh -c 'kill -TERM $$'; echo $?", HANGSCOPE]).output().unwrap();
    assert!(text(&shell.stdout).ends_with("143\n"), "{shell:?}");
}

#[test]
fn a_command_that_cannot_be_run_is_told_as_a_shell_tells_it() {
    let missing = run(&["--", "/nonexistent/command"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).starts_with("hangscope: cannot run /nonexistent/command: "), "{missing:?}");
    let no_program = run(&["--", "/etc/passwd"]);
    assert!(text(&missing.stderr).contains("there is no such file; check the path"), "{missing:?}");
    assert_eq!(no_program.status.code(), Some(126));
    assert_eq!(run(&["--timeout", "soon", "--", "true"]).status.code(), Some(2));
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn signals_are_passed_on_to_the_command() {
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = start(&["--", "sh", "-c", &script]);
        assert_eq!(first_line(&mut child), "ready");
        send(&child, signal);
        let out = finish(child);
        assert_eq!((text(&out.stdout).as_str(), out.status.code()), (format!("got {name}\n").as_str(), Some(5)));
    }
}

#[test]
fn the_command_has_the_signals_we_were_given() {
    let started_by: [&[&str]; 3] = [
        &["--default-signal"],
        &["--default-signal", "--ignore-signal=PIPE,CHLD,HUP,INT"],
        &["--default-signal", "--block-signal=USR1,TERM,CHLD,40"],
    ];
    for env in started_by {
        let say = |command: &[&str]| {
            let mut said = Command::new("env");
            said.args(env).args(command).args(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
            text(&said.output().unwrap().stdout)
        };
        assert_eq!(say(&[HANGSCOPE, "run", "--"]), say(&[]), "{env:?}");
    }
    // a parent that ignores SIGCHLD must not cost us the exit code
    let ignored = ["--ignore-signal=CHLD", HANGSCOPE, "run", "--", "sh", "-c", "exit 7"];
    assert_eq!(Command::new("env").args(ignored).status().unwrap().code(), Some(7));
}

#[test]
fn the_command_has_the_descriptors_we_were_given() {
    for closed in ["", "<&-", ">&-", "<&- >&- 2>&-", "3</dev/null"] {
        let say = |run: &str| {
            let list = tempfile::NamedTempFile::new().unwrap();
            let look =
                "for fd in 0 1 2 3 4 5 6 7 8 9 10 11 12; do [ -e /proc/$$/fd/$fd ] && printf '%s ' $fd >> \"$0\"; done";
            let status = Command::new("sh")
                .args([
                    "-c",
                    &format!("{run} sh -c \"$0\" \"$1\" {closed}"),
                    look,
                    list.path().to_str().unwrap(),
                    HANGSCOPE,
                ])
                .status();
            assert!(status.is_ok());
            fs::read_to_string(list.path()).unwrap()
        };
        assert_eq!(say("\"$2\" run --"), say(""), "{closed}");
    }
}

#[test]
fn a_hung_command_is_named_and_ended_at_the_deadline() {
    let began = Instant::now();
    let mut child = start(&["--timeout", "700ms", "--", HANGSCOPE, "demo-child", "abba-mutex"]);
    let pid = first_line(&mut child).strip_prefix("started ").expect("the demo starts").to_string();
    let out = finish(child);
    let report = text(&out.stderr);
    assert_eq!(out.status.code(), Some(124), "{report}");
    assert!(began.elapsed() >= Duration::from_millis(700));
    assert!(report.lines().next().is_some_and(|l| l.contains("still running after 700ms")), "{report}");
    assert!(report.contains("DEADLOCK") && report.contains("accounts_mutex"), "{report}");
    assert!(out.stdout.is_empty(), "the report must not mix with the command's output: {out:?}");
    assert!(!is_running(&pid));
}

#[test]
fn a_hung_command_is_named_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let file_name = file.to_str().unwrap();
    let mut child = start(&["--json", "-o", file_name, "--", HANGSCOPE, "demo-child", "self-relock"]);
    let pid = first_line(&mut child).strip_prefix("started ").expect("the demo starts").to_string();
    settled(pid.parse().expect("a pid")).unwrap();
    send(&child, Signal::SIGQUIT);
    let out = finish(child);
    assert_eq!(out.status.code(), Some(124), "{out:?}");
    assert!(!is_running(&pid));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).expect("JSON alone");
    assert_eq!(report["schema"], "hangscope/1");
    assert_eq!(report["verdict"]["kind"], "self-deadlock", "{report:#}");
    assert!(text(&out.stderr).contains(file_name), "{out:?}");
}

/// Grandchildren too, those in sessions of their own, those whose parents have gone, and those that ignore SIGTERM.
#[test]
fn the_whole_tree_is_diagnosed_as_one_and_ended() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("pids");
    let script = "sleep 100 & echo $! >> \"$LIST\"
         (sh -c 'setsid sleep 100 & echo $! >> \"$LIST\"')
         sh -c 'trap \"\" TERM; sleep 100 & echo $! >> \"$LIST\"; echo $$ >> \"$LIST\"; wait' &
         \"$0\" demo-child abba-mutex &
         wait";
    let list_is = format!("LIST={}", list.display());
    let mut child = start(&["--timeout", "1500ms", "--", "env", &list_is, "sh", "-c", script, HANGSCOPE]);
    let hung = first_line(&mut child).strip_prefix("started ").expect("the demo starts").to_string();
    let out = finish(child);
    let report = text(&out.stderr);
    assert_eq!(out.status.code(), Some(124), "{report}");
    let pids = fs::read_to_string(&list).unwrap();
    assert_eq!(pids.lines().count(), 4, "{pids}");
    for pid in pids.lines().chain([hung.as_str()]) {
        assert!(!is_running(pid), "process {pid} was left behind\n{report}");
        assert!(report.contains(&format!("\nprocess {pid} ")), "process {pid} was not looked at\n{report}");
    }
    let headlines = report.lines().filter(|l| l.starts_with("DEADLOCK")).count();
    assert!(headlines == 1 && report.contains(&format!("of process {hung}")), "one verdict on all:\n{report}");
}

#[test]
fn a_report_that_cannot_be_written_is_not_lost() {
    let out = run(&["--timeout", "300ms", "-o", "/nonexistent/report", "--", "sleep", "100"]);
    let report = text(&out.stderr);
    assert_eq!(out.status.code(), Some(124));
    assert!(report.contains("cannot write the report to /nonexistent/report"), "{report}");
    assert!(report.lines().count() > 2, "the report itself: {report}");
}

#[test]
fn what_the_command_leaves_running_is_left_alone_when_it_ends() {
    let out = run(&["--timeout", "60s", "--", "sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!"]);
    let pid = text(&out.stdout).trim().to_string();
    assert_eq!(out.status.code(), Some(0));
    assert!(is_running(&pid));
    signal::kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
}

/// The process that `hangscope run` starts to look at the command.
fn observer(run: &Child) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let list = fs::read_to_string(children).unwrap_or_default();
    let pid = list.trim();
    // named so once it has said that the command runs
    until("it is ready", || fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"observer\n"));
    Pid::from_raw(pid.parse().expect("one child, the observer"))
}

fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

const SLEEPS: [&str; 4] = ["--", "sh", "-c", "echo $$; exec sleep 100"];

#[test]
fn any_signal_to_us_is_the_commands() {
    for number in [libc::SIGSEGV, libc::SIGBUS, libc::SIGALRM, libc::SIGABRT, libc::SIGPROF, 40, 64] {
        let mut child = start(&SLEEPS);
        let pid = first_line(&mut child);
        // nix knows no real-time signals
        assert!(
            Command::new("kill").args([&format!("-{number}"), &child.id().to_string()]).status().unwrap().success()
        );
        let out = finish(child);
        assert_eq!(out.status.signal(), Some(number), "{out:?}");
        assert!(!is_running(&pid));
    }
}

#[test]
fn the_commands_end_is_not_missed_while_a_signal_is_passed_on() {
    // we are the parent of the command's parent
    let script = "read -r _ _ _ run _ < /proc/$PPID/stat; trap '' USR1; kill -USR1 $run; exit 3";
    for _ in 0..30 {
        let out = finish(start(&["--", "sh", "-c", script]));
        assert_eq!(out.status.code(), Some(3), "{out:?}");
    }
}

#[test]
fn a_signal_to_our_group_reaches_the_command_once() {
    let script = "trap 'echo got USR1' USR1; trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = in_a_group_of_its_own(&["--", "sh", "-c", script]);
    assert_eq!(first_line(&mut child), "ready");
    let group = Pid::from_raw(child.id().cast_signed());
    for _ in 0..3 {
        // to the group, then to us alone: the command gets each once
        signal::killpg(group, Signal::SIGUSR1).unwrap();
        assert_eq!(first_line(&mut child), "got USR1");
        // two that wait for the same process are one
        until("it is taken", || !is_pending(group, Signal::SIGUSR1));
        send(&child, Signal::SIGUSR1);
        assert_eq!(first_line(&mut child), "got USR1");
    }
    send(&child, Signal::SIGTERM);
    let out = finish(child);
    assert_eq!((text(&out.stdout).as_str(), out.status.code()), ("", Some(5)));
}

fn is_pending(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or_default();
    u64::from_str_radix(pending.trim(), 16).unwrap_or(0) & 1 << (signal as i32 - 1) != 0
}

fn in_a_group_of_its_own(arguments: &[&str]) -> Child {
    let [env, keys] = WITH_KEYS;
    let mut command = Command::new(env);
    command.args([keys, HANGSCOPE, "run"]).args(arguments);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hangscope starts")
}

#[test]
fn nothing_that_stops_us_or_the_command_stops_the_deadline() {
    let itself = ["--timeout", "300ms", "--", "sh", "-c", "echo $$; kill -STOP $$; sleep 100"];
    let sleeps = ["--timeout", "300ms", "--", "sh", "-c", "echo $$; exec sleep 100"];
    for (arguments, stop) in [
        (itself, None),
        (sleeps, Some(Signal::SIGTSTP)),
        (sleeps, Some(Signal::SIGSTOP)),
        (sleeps, Some(Signal::SIGTTIN)),
    ] {
        let mut child = start(&arguments);
        let pid = first_line(&mut child);
        if let Some(stop) = stop {
            send(&child, stop);
        }
        let out = finish(child);
        assert_eq!(out.status.code(), Some(124), "{out:?}");
        assert!(!is_running(&pid), "{out:?}");
    }
}

#[test]
fn who_kills_us_ends_the_command_too() {
    let mut child = start(&["--", "sh", "-c", "trap '' HUP; sleep 100 & echo $!; wait"]);
    let pid = first_line(&mut child);
    send(&child, Signal::SIGKILL);
    assert_eq!(finish(child).status.signal(), Some(Signal::SIGKILL as i32));
    until("the command has ended", || !is_running(&pid));
}

#[test]
fn a_diagnosis_that_fails_is_told_and_the_tree_is_ended_all_the_same() {
    // killed before it was asked, and hung
    for (killed_by, within, why) in [
        (Some(Signal::SIGKILL), "1m", "the process that makes it is gone: it was killed by SIGKILL"),
        (None, "1ms", "it took longer than 1ms"),
    ] {
        let mut child = start(&[
            "--timeout",
            "500ms",
            "--report-within",
            within,
            "--",
            "sh",
            "-c",
            "trap '' TERM; echo $$; sleep 100; :",
        ]);
        let pid = first_line(&mut child);
        if let Some(signal) = killed_by {
            signal::kill(observer(&child), signal).unwrap();
        }
        let out = finish(child);
        assert_eq!(out.status.code(), Some(124));
        assert!(text(&out.stderr).contains(&format!("the diagnosis failed: {why}\n")), "{out:?}");
        assert!(!is_running(&pid));
    }
}

/// The observer's threads: more than one while it makes a diagnosis.
fn diagnoses(observer: Pid) -> bool {
    fs::read_dir(format!("/proc/{observer}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

#[test]
fn the_diagnosis_may_die_or_be_interrupted() {
    for (to_observer, signal, why) in [
        (true, Signal::SIGKILL, "the process that made it is gone: it was killed by SIGKILL"),
        (false, Signal::SIGINT, "interrupted by SIGINT"),
    ] {
        let mut child = start(&["--", "sh", "-c", "trap '' INT; echo $$; sleep 100; :"]);
        let pid = first_line(&mut child);
        let observer = observer(&child);
        send(&child, Signal::SIGQUIT);
        until("the diagnosis has begun", || diagnoses(observer));
        let to = if to_observer { observer } else { Pid::from_raw(child.id().cast_signed()) };
        signal::kill(to, signal).unwrap();
        let out = finish(child);
        assert_eq!(out.status.code(), Some(124));
        assert!(text(&out.stderr).contains(why), "{out:?}");
        assert!(!is_running(&pid));
    }
}

#[test]
fn who_asks_twice_does_not_wait() {
    let mut child = start(&["--", "sh", "-c", "trap '' INT TERM; echo $$; while :; do sleep 0.1; done"]);
    let pid = first_line(&mut child);
    let observer = observer(&child);
    let began = Instant::now();
    send(&child, Signal::SIGQUIT);
    until("the diagnosis has begun", || diagnoses(observer));
    send(&child, Signal::SIGINT);
    until("the diagnosis has been given up", || !Path::new(&format!("/proc/{observer}")).exists());
    assert!(is_running(&pid), "the command has its time to end");
    send(&child, Signal::SIGINT);
    assert_eq!(finish(child).status.code(), Some(124));
    assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
    assert!(!is_running(&pid));
}

#[test]
fn thread_names_may_be_any_bytes() {
    let script = "trap '' TERM; printf '\\377)\\n x' > /proc/$$/comm; echo $$; while :; do sleep 0.1; done";
    let mut child = start(&["--timeout", "200ms", "--", "sh", "-c", script]);
    let pid = first_line(&mut child);
    assert_eq!(finish(child).status.code(), Some(124));
    assert!(!is_running(&pid));
}

/// No `/proc`, and one that shows another namespace: nobody is signalled who is not proven ours, all who are ours are ended.
#[test]
fn without_a_proc_of_our_own_the_tree_is_ended_and_nobody_else() {
    if !nix::unistd::geteuid().is_root()
        || Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).status().is_ok_and(|s| !s.success())
    {
        eprintln!("skipped: needs root and unshare");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let mut bystander = Command::new("sleep").arg("100").spawn().unwrap();
    let script = "\"$1\" run --timeout 200ms -- sh -c 'trap \"\" TERM
            (setsid sh -c \"trap : TERM; echo \\$\\$ > \\\"\\$LIST.2\\\"; sleep 100; :\" &)
            echo $$ > \"$LIST\"; sleep 100; :'
         echo code $?; for pid in $(cat \"$LIST\" \"$LIST.2\"); do kill -0 $pid 2>/dev/null && echo alive $pid; done";
    let no_proc = format!("umount -l /proc; {script}");
    for (unshare, script) in [(["--mount", "--mount"], no_proc.as_str()), (["--pid", "--fork"], script)] {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["sh", "-c", script, "", HANGSCOPE]).env("LIST", &pids);
        let said = command.output().unwrap();
        assert_eq!(text(&said.stdout), "code 124\n", "{said:?}");
        assert!(text(&said.stderr).contains("/proc is not mounted here, or shows another PID namespace"), "{said:?}");
        assert_eq!(fs::read_to_string(&pids).unwrap().lines().count(), 1);
    }
    assert!(bystander.try_wait().unwrap().is_none(), "a process that is not ours was ended");
    let _ = bystander.kill();
    let _ = bystander.wait();
}

#[test]
fn chains_of_forks_are_ended() {
    const CHAIN: &str = "
        #include <signal.h>
        #include <stdio.h>
        #include <time.h>
        #include <unistd.h>
        int main(void) {
            signal(SIGTERM, SIG_IGN);
            time_t began = time(0);
            for (int i = 0; i < 4; i++) {
                if (fork() == 0) {
                    setsid();
                    /* each goes on in its child; the last of all closes stdout */
                    while (time(0) - began < 40) { if (fork() > 0) _exit(0); }
                    _exit(0);
                }
            }
            puts(\"ready\");
            fflush(stdout);
            for (;;) pause();
        }";
    let scratch = support::Scratch::new("chain");
    let (source, program) = (scratch.path().join("chain.c"), scratch.path().join("chain"));
    fs::write(&source, CHAIN).unwrap();
    support::build::compile_on_host(&source, &program, &[]).unwrap();
    let began = Instant::now();
    let mut child = start(&["--timeout", "200ms", "--", program.to_str().unwrap()]);
    assert_eq!(first_line(&mut child), "ready");
    // stdout is read to its end: nobody who had it is left
    let out = finish(child);
    assert_eq!(out.status.code(), Some(124), "{out:?}");
    assert!(!text(&out.stderr).contains("stays behind"), "{out:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn who_we_had_before_is_left_alone() {
    let script = "sleep 100 >/dev/null 2>&1 & echo $!; exec \"$0\" run --timeout 200ms -- sleep 100";
    let out = Command::new("sh").args(["-c", script, HANGSCOPE]).output().unwrap();
    let pid = text(&out.stdout).trim().to_owned();
    assert_eq!(out.status.code(), Some(124));
    assert!(is_running(&pid), "{out:?}");
    signal::kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
}

#[test]
fn nobody_has_to_read_the_report() {
    // stderr is full, and its reader does nothing
    let script = "trap '' PIPE; head -c 1000000 /dev/zero >&2 & sleep 0.01; echo $$; exec sleep 100";
    let mut child = start(&["--timeout", "200ms", "--", "sh", "-c", script]);
    let pid = first_line(&mut child);
    until("the command was ended", || !is_running(&pid));
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(124));
}

#[test]
fn a_report_of_a_late_command_says_so() {
    let out = run(&["--timeout", "200ms", "-q", "--", "sleep", "100"]);
    let report = text(&out.stderr);
    assert!(
        report.starts_with("hangscope: no deadlock was found, but the command had not ended: it was waiting\n"),
        "{report}"
    );
    assert!(report.contains("(sleep): its main thread sleeps\n"), "{report}");
}

/// Types `keys` at a terminal where `hangscope run` is, once CMD has said "ready"; all that the terminal showed.
///
/// `script` gives the command to `$SHELL -c`. That shell must not stay beside hangscope in the terminal's foreground
/// group: dash would, and would die of the same keys. So it is always `/bin/sh`, and it `exec`s.
fn at_a_terminal(command: &str, keys: &[u8]) -> Option<String> {
    if !Path::new("/usr/bin/script").exists() {
        eprintln!("skipped: needs script (bsdutils)");
        return None;
    }
    let mut script = Command::new("/usr/bin/script")
        .args(["-qec", &format!("exec {} {command}", WITH_KEYS.join(" ")), "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script starts");
    let mut out = BufReader::new(script.stdout.take().expect("piped"));
    let mut shown = String::new();
    while !shown.contains("ready") && out.read_line(&mut shown).is_ok_and(|n| n > 0) {}
    let mut keyboard = script.stdin.take().expect("piped");
    keyboard.write_all(keys).expect("keys can be typed");
    let _ = keyboard.flush();
    let mut rest = Vec::new();
    let _ = out.read_to_end(&mut rest);
    drop(keyboard);
    let status = script.wait().expect("script ends");
    Some(format!("{shown}{}[{}]", text(&rest), status.code().unwrap_or(-1)))
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let count = "trap 'echo got INT' INT; trap 'exit 6' USR1; echo ready; sleep 0.4; sleep 0.4; kill -USR1 $$";
    let Some(shown) = at_a_terminal(&format!("{HANGSCOPE} run -- sh -c \"{}\"", count.replace('$', "\\$")), b"\x03")
    else {
        return;
    };
    assert_eq!(shown.matches("got INT").count(), 1, "{shown}");
    assert!(shown.ends_with("[6]"), "{shown}");
}

#[test]
fn ctrl_backslash_asks_for_the_report() {
    let Some(shown) = at_a_terminal(&format!("{HANGSCOPE} run -- sh -c 'echo ready; exec sleep 100'"), b"\x1c") else {
        return;
    };
    assert!(shown.contains("asked to report"), "{shown}");
    assert!(shown.ends_with("[124]"), "{shown}");
}

#[test]
fn the_terminal_of_a_killed_command_is_put_in_order() {
    for end in ["kill -9 $$", "exec sleep 100"] {
        let script = format!("stty raw -echo; echo ready; {end}").replace('$', "\\$");
        let command = format!("sh -c \"{HANGSCOPE} run --timeout 300ms -- sh -c '{script}'; stty -a\"");
        let Some(shown) = at_a_terminal(&command, b"") else { return };
        assert!(shown.contains(" echo ") && shown.contains(" icanon "), "{shown}");
    }
}
