//! Attaches that are killed at random instants, by every signal a person or a system sends: afterwards no thread of the target is
//! stopped or traced, and each goes on counting. `cargo bench --bench kill -- 10000` makes that many; 100 without.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const THREADS: usize = 20;
const SIGNALS: [Signal; 4] = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
/// How long the target has to be seen running again.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() {
    let rounds: u64 = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(100);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = directory.join("bench-kill");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/kill.c");
    let built = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(built.is_ok_and(|s| s.success()), "needs cc");
    let words = directory.join(format!("bench-kill-{}", std::process::id()));
    std::fs::write(&words, vec![0; THREADS * 8]).expect("a file to count in");
    let mut command = Command::new(&program);
    command.arg(&words).arg(THREADS.to_string()).stdout(Stdio::piped());
    let mut target = command.spawn().expect("the program starts");
    let mut line = String::new();
    BufReader::new(target.stdout.take().expect("its output")).read_line(&mut line).expect("it gets ready");
    let counts = std::fs::File::open(&words).expect("the counts");
    let whole = duration_of_an_attach(&target);
    println!("an attach takes {:.1} ms; {rounds} are killed within {:.1} ms", ms(whole), ms(whole * 6 / 5));

    let (mut seed, mut ended_before, mut held) = (0x9E37_79B9_7F4A_7C15u64, 0u64, 0u64);
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        // xorshift: the instants are to be spread, no more
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let wait = Duration::from_nanos(seed % u64::try_from((whole * 6 / 5).as_nanos()).expect("a short time"));
        let mut attach = start(&target);
        std::thread::sleep(wait);
        held += u64::from(is_held(&target));
        let signal = SIGNALS[usize::try_from(round).expect("a round") % SIGNALS.len()];
        let ended = kill(Pid::from_raw(attach.id().cast_signed()), signal).is_err()
            || attach.wait().expect("it ends").code().is_some();
        ended_before += u64::from(ended);
        let began = Instant::now();
        runs_on(&target, &counts, round, signal);
        slowest = slowest.max(began.elapsed());
    }
    let _ = target.kill();
    let _ = target.wait();
    let _ = std::fs::remove_file(words);
    println!("{rounds} rounds, all threads ran on after each, within {:.1} ms", ms(slowest));
    println!("{held} were killed with threads held, {ended_before} had ended by themselves");
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn start(target: &Child) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hangscope"));
    command.args(["attach", "--samples", "1", &target.id().to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// The median of five.
fn duration_of_an_attach(target: &Child) -> Duration {
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let began = Instant::now();
            start(target).wait().expect("it ends");
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[2]
}

/// State letter and tracer of each thread.
fn states(target: &Child) -> Vec<(char, bool)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.id())).expect("it lives");
    let state = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        Some((field("State:")?.chars().next()?, field("TracerPid:")? != "0"))
    };
    tasks.flatten().filter_map(state).collect()
}

fn is_held(target: &Child) -> bool {
    states(target).iter().any(|(state, _)| *state == 't')
}

/// Waits until nothing is stopped or traced and every thread has counted on.
fn runs_on(target: &Child, counts: &std::fs::File, round: u64, signal: Signal) {
    let until = Instant::now() + PATIENCE;
    let read = || {
        let mut bytes = [0; THREADS * 8];
        counts.read_exact_at(&mut bytes, 0).expect("the counts");
        bytes
    };
    let words =
        |bytes: &[u8; THREADS * 8]| bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect::<Vec<_>>();
    let before = words(&read());
    loop {
        let now = states(target);
        let free = now.len() == THREADS && now.iter().all(|(state, traced)| !traced && !matches!(state, 't' | 'T'));
        let after = words(&read());
        if free && before.iter().zip(&after).all(|(b, a)| a > b) {
            return;
        }
        assert!(Instant::now() < until, "round {round}, {signal}: {now:?}, counted {before:?} and {after:?}");
        std::thread::sleep(Duration::from_micros(500));
    }
}
