//! The whole of an attach to a hung Python program with many deep stacks: time, peak memory and pause, beside other tools that
//! print stacks, each in turn on the same process. A tool that is not installed is passed over.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Threads, and Python frames of each beyond the three that start a thread.
const SHAPES: [(u32, u32); 5] = [(2, 20), (64, 20), (1000, 1), (1000, 20), (1000, 60)];
const RUNS: usize = 5;
/// One run of a tool that takes longer than this is enough, in milliseconds.
const SLOW: f64 = 3000.0;

/// Name and arguments; `PID` stands for the process.
const OTHERS: [(&str, &[&str]); 4] = [
    ("py-spy", &["dump", "--native", "--pid", "PID"]),
    ("pystack", &["remote", "--native-all", "PID"]),
    ("gdb", &["-nx", "-q", "-batch", "-iex", "set debuginfod enabled off", "-p", "PID", "-ex", "thread apply all bt"]),
    ("eu-stack", &["-p", "PID"]),
];

fn main() {
    let there = |tool: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|d| d.join(tool).is_file())
    };
    if !there("python3") {
        println!("skipped: needs python3");
        return;
    }
    let (others, absent): (Vec<_>, Vec<_>) = OTHERS.into_iter().partition(|(tool, _)| there(tool));
    for (tool, _) in absent {
        println!("skipped: needs {tool}");
    }
    println!("threads  frames  tool        whole ms   CPU ms  peak MiB  pause ms  times hangscope's");
    for (threads, frames) in SHAPES {
        let mut target = start(threads, frames);
        let pid = target.id().to_string();
        let hangscope = env!("CARGO_BIN_EXE_hangscope");
        let own = measure(hangscope, &["attach", "--samples", "1", "PID"], &pid);
        let pause = pause_of(hangscope, &pid);
        let row = |tool: &str, cost: &Cost, pause: &str| {
            let ratio = cost.whole / own.whole;
            let Cost { whole, cpu, peak } = cost;
            println!("{threads:7}  {frames:6}  {tool:9}  {whole:9.1}  {cpu:7.1}  {peak:8.1}  {pause:>8}  {ratio:17.1}");
        };
        row("hangscope", &own, &pause);
        for (tool, arguments) in &others {
            row(tool, &measure(tool, arguments, &pid), "");
        }
        let _ = target.kill();
        let _ = target.wait();
    }
}

fn start(threads: u32, frames: u32) -> Child {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/stacks.py");
    let mut command = Command::new("python3");
    command.arg(program).args([threads.to_string(), frames.to_string()]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("it gets ready");
    assert_eq!(line, "ready\n");
    child
}

/// What a run took, in milliseconds and MiB.
#[derive(Clone, Copy)]
struct Cost {
    whole: f64,
    cpu: f64,
    peak: f64,
}

/// The medians of several runs.
fn measure(tool: &str, arguments: &[&str], pid: &str) -> Cost {
    let mut costs: Vec<Cost> = Vec::new();
    while costs.len() < RUNS && costs.last().is_none_or(|c| c.whole < SLOW) {
        costs.push(run(tool, arguments, pid));
    }
    let middle = |of: fn(&Cost) -> f64| {
        let mut all: Vec<f64> = costs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Cost { whole: middle(|c| c.whole), cpu: middle(|c| c.cpu), peak: middle(|c| c.peak) }
}

#[allow(unsafe_code, clippy::zombie_processes)] // reaped by wait4: nothing safe tells what one child used
fn run(tool: &str, arguments: &[&str], pid: &str) -> Cost {
    let mut command = Command::new(tool);
    command.args(arguments.iter().map(|a| a.replace("PID", pid)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let child = command.spawn().expect("it starts");
    // SAFETY: rusage is plain data for which all zeros is a value; both places live through the call and are ours to write.
    let used = unsafe {
        let mut used: nix::libc::rusage = std::mem::zeroed();
        let mut status = 0;
        nix::libc::wait4(child.id().cast_signed(), &raw mut status, 0, &raw mut used);
        used
    };
    let ms = |t: nix::libc::timeval| t.tv_sec as f64 * 1e3 + t.tv_usec as f64 / 1e3;
    let whole = began.elapsed().as_secs_f64() * 1e3;
    Cost { whole, cpu: ms(used.ru_utime) + ms(used.ru_stime), peak: used.ru_maxrss as f64 / 1024.0 }
}

/// The median of the pauses it reports, in milliseconds. The report is read line by line: a child's peak is never told as less
/// than what its parent had when it began.
fn pause_of(hangscope: &str, pid: &str) -> String {
    let mut pauses: Vec<u64> = Vec::new();
    for _ in 0..RUNS {
        let mut command = Command::new(hangscope);
        command.args(["attach", "--samples", "1", "--json", pid]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut deadlock = false;
        for line in BufReader::new(child.stdout.take().expect("its output")).lines() {
            let line = line.expect("a report");
            let pause =
                line.trim().strip_prefix("\"pause_us\": ").and_then(|us| us.trim_end_matches(',').parse::<u64>().ok());
            pauses.extend(pause);
            deadlock |= line.trim().starts_with("\"kind\": \"deadlock\"");
        }
        let _ = child.wait();
        assert!(deadlock);
    }
    pauses.sort_unstable();
    pauses.get(pauses.len() / 2).map_or_else(|| "-".to_owned(), |us| format!("{:.2}", *us as f64 / 1e3))
}
