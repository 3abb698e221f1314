//! The native demos: this program, run again, deadlocks by its own pthread mutexes. No compiler is needed.
#![allow(unsafe_code)]

use anyhow::{Context, bail};
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use std::cell::UnsafeCell;
use std::io::Write;
use std::sync::Barrier;
use std::thread;

/// Seconds after which a demo ends by itself.
const LIFETIME: u32 = 120;

/// A pthread mutex, as C programs have them.
#[repr(transparent)]
pub struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a pthread mutex is there to be used from several threads; it is only ever touched by `lock`
unsafe impl Sync for Mutex {}

impl Mutex {
    const fn new() -> Mutex {
        Mutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    fn lock(&self) {
        // SAFETY: an initialised mutex that is never moved nor destroyed, for it is a static
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }
}

// SAFETY of both names: nothing else of this program or its libraries is called so
/// Held by "transfer", wanted by "audit".
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static accounts_mutex: Mutex = Mutex::new();
/// Held by "audit", wanted by "transfer".
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static journal_mutex: Mutex = Mutex::new();

/// Hangs as `name` says.
pub fn hang(name: &str) -> anyhow::Result<u8> {
    nix::unistd::alarm::set(LIFETIME);
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot tie the demo to its parent")?;
    let threads = match name {
        "abba-mutex" => vec![start("transfer", transfer)?, start("audit", audit)?],
        "self-relock" => vec![start("flush", flush)?],
        // for `doctor`, which needs a process to try on
        "idle" => vec![start("idle", thread::park)?],
        _ => bail!("there is no native demo '{name}'"),
    };
    println!("started {}", std::process::id());
    std::io::stdout().flush()?;
    for thread in threads {
        let _ = thread.join();
    }
    bail!("the demo did not hang")
}

fn start(name: &str, body: fn()) -> anyhow::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(body).context("cannot start a thread")
}

/// Both threads hold their first mutex before either wants its second.
static BOTH: std::sync::LazyLock<Barrier> = std::sync::LazyLock::new(|| Barrier::new(2));

#[inline(never)]
fn transfer() {
    accounts_mutex.lock();
    BOTH.wait();
    write_journal();
}

#[inline(never)]
fn write_journal() {
    journal_mutex.lock();
}

#[inline(never)]
fn audit() {
    journal_mutex.lock();
    BOTH.wait();
    read_accounts();
}

#[inline(never)]
fn read_accounts() {
    accounts_mutex.lock();
}

#[inline(never)]
fn flush() {
    journal_mutex.lock();
    on_full();
}

#[inline(never)]
fn on_full() {
    journal_mutex.lock();
}
