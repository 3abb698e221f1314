//! A thread stopped between two of its periodic waits for the GIL has the mutex around the GIL's fields in its hand, and the
//! GIL's holder may sleep for just that: no deadlock. A debugger makes the state, which else lasts microseconds.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::places::python_places;
use support::{Scratch, hangscope, has_command, home, in_ci, run};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program, and writes the core of the state to `core`.
fn stop_between_waits(python: &Path, core: &Path) {
    let dir = home().join("tests/between_waits");
    let program = Command::new(python).arg(dir.join("program.py")).stdout(Stdio::piped()).spawn();
    let mut program = Running(program.expect("it starts"));
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("text");
    assert!(line.starts_with("ready"), "{line}");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-batch", "-p", &program.0.id().to_string(), "-x"]).arg(dir.join("stop.py"));
    gdb.env("CORE", core).env("WAKER", python);
    let said = run(gdb, Duration::from_secs(120)).expect("gdb ends");
    assert!(core.is_file(), "{}: {}{}", python.display(), said.out, said.err);
}

#[test]
fn between_two_waits_for_the_gil_its_mutex_is_not_held_for_long() {
    if !has_command("gdb") {
        assert!(!in_ci(), "needs gdb");
        println!("skipped: needs gdb");
        return;
    }
    let scratch = Scratch::new("between-waits");
    // an interpreter without symbols, of which nothing tells that the thread is taking the GIL, is seen to run
    let mut told = 0;
    let pythons = python_places(&[]).into_iter().filter_map(|p| p.python.filter(|_| p.root.is_none()));
    for (python, version) in pythons {
        let core = scratch.path().join(format!("core.{version}"));
        stop_between_waits(&python, &core);
        let mut look = hangscope();
        look.arg("core").arg(&core);
        let said = run(look, Duration::from_secs(60)).expect("it ends");
        assert_eq!(said.code(), 0, "{version}: {}{}", said.out, said.err);
        assert!(said.out.contains("BUSY"), "{version}: {}", said.out);
        assert!(said.out.contains("waits for the mutex"), "{version}: the holder sleeps: {}", said.out);
        told += u32::from(said.out.contains("waits for the GIL"));
        std::fs::remove_file(&core).expect("it was there");
    }
    assert!(told > 0 || !in_ci(), "no interpreter shows the state");
}
