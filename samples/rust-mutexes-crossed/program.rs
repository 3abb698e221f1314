//! Two threads take a Mutex and a RwLock of Rust's in opposite order. Neither records who holds it.
use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, RwLock};
use std::thread;

unsafe extern "C" {
    fn ready_begin(threads: c_int);
    fn ready_name(name: *const c_char);
    fn ready_gate_open(gate: c_int);
    fn ready_gate_pass(gate: c_int);
    fn ready_beyond_gates();
}

static ACCOUNTS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static JOURNAL: RwLock<Vec<u32>> = RwLock::new(Vec::new());

fn start(name: &str) {
    let name = CString::new(name).unwrap();
    unsafe { ready_name(name.as_ptr()) }
}

fn meet(mine: c_int, theirs: c_int) {
    unsafe {
        ready_gate_open(mine);
        ready_gate_pass(theirs);
        ready_beyond_gates();
    }
}

fn transfer() {
    start("transfer");
    let mut accounts = ACCOUNTS.lock().unwrap();
    meet(0, 1);
    JOURNAL.write().unwrap().push(1);
    accounts.push(1);
}

fn audit() -> usize {
    start("audit");
    let journal = JOURNAL.read().unwrap();
    meet(1, 0);
    journal.len() + ACCOUNTS.lock().unwrap().len()
}

fn main() {
    unsafe { ready_begin(3) };
    let (transfer, audit) = (thread::spawn(transfer), thread::spawn(audit));
    unsafe { ready_beyond_gates() };
    transfer.join().unwrap();
    println!("{}", audit.join().unwrap());
}
