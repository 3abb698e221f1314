//! The pause and the whole of an attach, for 1, 100 and 1,000 threads of a native program: medians of several runs.

use hangscope::diagnose::{self, Options};
use hangscope::units::Pid;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RUNS: usize = 15;

fn main() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-threads");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/threads.c");
    let built = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(built.is_ok_and(|s| s.success()), "needs cc");
    println!("threads  pause ms  calls a thread  whole ms");
    for threads in [1u32, 100, 1000] {
        let mut child =
            Command::new(&program).arg(threads.to_string()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("it gets ready");
        let pid = Pid(i32::try_from(child.id()).expect("a pid"));
        let (mut pauses, mut wholes, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let options = Options { samples: Some(1), ..Options::default() };
        for _ in 0..RUNS {
            let began = Instant::now();
            let diagnosis = diagnose::live(&[pid], &options).expect("it can be attached to");
            wholes.push(began.elapsed());
            pauses.push(diagnosis.captured.pause.unwrap_or_default());
            calls.push(diagnosis.captured.syscalls_in_pause);
        }
        let _ = child.kill();
        let _ = child.wait();
        calls.sort_unstable();
        let each = calls[RUNS / 2] as f64 / f64::from(threads);
        println!("{threads:7}  {:8.2}  {each:14.1}  {:8.1}", median(pauses), median(wholes));
    }
}

/// In milliseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}
