//! Two LazyLocks whose initialisers need each other; stripped, so that no name tells of them.
use std::ffi::{CString, c_char, c_int};
use std::sync::LazyLock;
use std::thread;

unsafe extern "C" {
    fn ready_begin(threads: c_int);
    fn ready_name(name: *const c_char);
    fn ready_gate_open(gate: c_int);
    fn ready_gate_pass(gate: c_int);
    fn ready_beyond_gates();
}

static USERS: LazyLock<u32> = LazyLock::new(|| {
    meet(0, 1);
    *GROUPS + 1
});
static GROUPS: LazyLock<u32> = LazyLock::new(|| {
    meet(1, 0);
    *USERS + 1
});

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

fn main() {
    unsafe { ready_begin(3) };
    let users = thread::spawn(|| {
        start("loads-users");
        *USERS
    });
    let groups = thread::spawn(|| {
        start("loads-groups");
        *GROUPS
    });
    unsafe { ready_beyond_gates() };
    println!("{} {}", users.join().unwrap(), groups.join().unwrap());
}
