//! Threads that use one part of Rust's library, for ever: `program KIND LEDGER`.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, Once, OnceLock, RwLock};
use std::thread;
use std::time::Duration;

static BEATS: AtomicU64 = AtomicU64::new(0);
static MUTEXES: [Mutex<u64>; 3] = [Mutex::new(0), Mutex::new(0), Mutex::new(0)];
static SHARED: RwLock<u64> = RwLock::new(0);
static COND: Condvar = Condvar::new();
static SLOTS: [OnceLock<u64>; 4096] = [const { OnceLock::new() }; 4096];
static ONCES: [Once; 4096] = [const { Once::new() }; 4096];
static AT: AtomicUsize = AtomicUsize::new(0);
static LAZY: LazyLock<String> = LazyLock::new(|| "made once".repeat(100));

thread_local! { static OWN: Cell<u64> = const { Cell::new(0) }; }

fn work(n: u64) {
    for i in 0..n {
        OWN.with(|o| o.set(o.get().wrapping_add(std::hint::black_box(i))));
    }
}

fn mutex(n: u64) {
    let a = (n % 3) as usize;
    let mut first = MUTEXES[a].lock().unwrap();
    *first += 1;
    work(n % 50);
    if n % 4 == 0 && a < 2 {
        *MUTEXES[a + 1].lock().unwrap() += 1;
    }
    if n % 128 == 0 {
        thread::sleep(Duration::from_micros(50));
    }
}

fn rwlock(n: u64) {
    if n % 5 == 0 {
        *SHARED.write().unwrap() += 1;
    } else {
        work(*SHARED.read().unwrap() % 30);
    }
}

fn condvar(n: u64, id: u64) {
    let mut count = MUTEXES[0].lock().unwrap();
    if id % 2 == 1 {
        count = if n % 3 == 0 {
            COND.wait_timeout(count, Duration::from_micros(300)).unwrap().0
        } else {
            COND.wait_while(count, |c| *c == 0).unwrap()
        };
        *count = count.saturating_sub(1);
    } else {
        *count = (*count + 1).min(1000);
        if n % 2 == 0 {
            COND.notify_one();
        }
    }
    drop(count);
    COND.notify_all();
}

fn once(n: u64, meeting: &Barrier) {
    let at = AT.load(Ordering::Relaxed);
    if at < 4096 {
        ONCES[at].call_once(|| work(500));
        work(*SLOTS[at].get_or_init(|| LAZY.len() as u64));
    } else {
        work(n % 100);
    }
    if meeting.wait().is_leader() {
        AT.store(at + 1, Ordering::Relaxed);
    }
    meeting.wait();
}

fn channels() {
    let (to, from) = channel::<u64>();
    let (answer, answers) = sync_channel::<u64>(1);
    let echo = thread::spawn(move || from.iter().for_each(|n| answer.send(n).unwrap_or_default()));
    for n in 0..200 {
        to.send(n).unwrap();
        if n % 7 != 0 {
            answers.recv().unwrap();
        } else {
            while answers.recv_timeout(Duration::from_micros(100)).is_err() {}
        }
    }
    drop(to);
    echo.join().unwrap();
}

fn park(n: u64) {
    let ready = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&ready);
    let parked = thread::spawn(move || {
        while told.load(Ordering::Acquire) == 0 {
            thread::park();
        }
    });
    work(n % 300);
    ready.store(1, Ordering::Release);
    parked.thread().unpark();
    parked.join().unwrap();
}

fn scope(n: u64) {
    let sum = Mutex::new(0);
    thread::scope(|s| {
        for i in 0..3 {
            let sum = &sum;
            s.spawn(move || {
                work(n % 100);
                *sum.lock().unwrap() += i;
            });
        }
    });
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let kind: &'static str = Box::leak(words[1].clone().into_boxed_str());
    let ledger: File = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&words[2]).unwrap();
    ledger.set_len(65536).unwrap();
    let meeting: &'static Barrier = Box::leak(Box::new(Barrier::new(4)));
    for id in 0..4u64 {
        thread::spawn(move || {
            for n in id.. {
                match kind {
                    "mutex" => mutex(n),
                    "rwlock" => rwlock(n),
                    "condvar" => condvar(n, id),
                    "once" => once(n, meeting),
                    "channels" => channels(),
                    "park" => park(n),
                    "scope" => scope(n),
                    _ => std::process::exit(64),
                }
                BEATS.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    println!("ready {}", std::process::id());
    for _ in 0..180_000 {
        thread::sleep(Duration::from_millis(5));
        ledger.write_at(&BEATS.load(Ordering::Relaxed).to_le_bytes(), 0).unwrap();
    }
}
