//! A thread stopped between two of its periodic waits for the GIL has the mutex around the GIL's fields in its hand, and the
//! GIL's holder may sleep for just that: no deadlock. A debugger makes the state, which else lasts microseconds.

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::places::{Place, python_places};
use support::{Scratch, hangscope, has_command, home, in_ci, run, running};

/// Starts the program there, and writes the core of the state to `core`.
fn stop_between_waits(place: &Place, python: &Path, core: &Path, cwd: &Path) {
    let dir = home().join("tests/between_waits");
    let program = running::start(place, &dir, &[], cwd).expect("it starts");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-batch", "-p", &program.pid.to_string(), "-x"]).arg(dir.join("stop.py"));
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
    for place in python_places(&[]) {
        let Some((python, version)) = &place.python else { continue };
        let core = scratch.path().join(format!("core.{version}"));
        stop_between_waits(&place, python, &core, scratch.path());
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
