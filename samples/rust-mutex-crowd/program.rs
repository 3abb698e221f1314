//! Healthy: one thread computes under a Mutex of Rust's that three others wait for; two wait on a Condvar, with its Mutex given
//! back.
use std::ffi::{CString, c_char, c_int};
use std::hint::black_box;
use std::sync::{Condvar, Mutex};
use std::thread;

unsafe extern "C" {
    fn ready_begin(threads: c_int);
    fn ready_name(name: *const c_char);
    fn ready_gate_open(gate: c_int);
    fn ready_gate_pass(gate: c_int);
    fn ready_beyond_gates();
}

static TABLE: Mutex<u64> = Mutex::new(0);
static JOBS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();

fn start(name: &str) {
    let name = CString::new(name).unwrap();
    unsafe { ready_name(name.as_ptr()) }
}

fn compute() {
    start("computes");
    let mut rows = TABLE.lock().unwrap();
    unsafe { ready_gate_open(0) };
    loop {
        *rows = black_box(rows.wrapping_mul(31).wrapping_add(7));
    }
}

fn want() {
    start("wants");
    unsafe {
        ready_gate_pass(0);
        ready_beyond_gates();
    }
    *TABLE.lock().unwrap() += 1;
}

fn work() {
    start("works");
    unsafe { ready_beyond_gates() };
    let mut jobs = JOBS.lock().unwrap();
    while jobs.is_empty() {
        jobs = MORE.wait(jobs).unwrap();
    }
    jobs.pop();
}

fn main() {
    unsafe { ready_begin(6) };
    let mut threads = vec![thread::spawn(compute)];
    threads.extend((0..3).map(|_| thread::spawn(want)));
    threads.extend((0..2).map(|_| thread::spawn(work)));
    unsafe { ready_beyond_gates() };
    for thread in threads {
        thread.join().unwrap();
    }
}
