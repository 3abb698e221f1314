//! Calls that may never return, made in a thread of their own and given up after a limit.
//!
//! Reading another process's memory sleeps in the kernel until the page is there. Where a userfaultfd handler or a FUSE
//! server has to bring it, that may be never, and only a fatal signal wakes the sleeper (Linux `fs/userfaultfd.c`,
//! `handle_userfault`; `mm/filemap.c`, `__folio_lock_killable`). A thread that sleeps so is left behind: the end of our
//! process ends it. It never holds anything of ours, nor traces.

use super::Undisturbed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that wait for work. One that was left behind never comes back here.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// How long to look for an answer before sleeping: most reads take a few microseconds, waking a thread takes more.
const SPIN: Duration = Duration::from_micros(30);

/// The result of `f`; `None` where there is none within `limit`, or no thread could be made. `f` then goes on, or sleeps on,
/// by itself.
pub(super) fn run<R: Send + 'static>(limit: Duration, f: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let worker = idle.or_else(start)?;
    let (to, from) = channel();
    let job = move || {
        let _ = to.send(f());
    };
    worker.send(Box::new(job)).ok()?;
    let got = receive(&from, limit).ok()?;
    IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
    Some(got)
}

/// Starts a thread that does jobs until nobody can send it any.
fn start() -> Option<Sender<Job>> {
    let (to, from) = channel::<Job>();
    let work = move || {
        // a signal that stops us must not find a thread that takes it while a process is held
        let _undisturbed = Undisturbed::begin();
        while let Ok(job) = receive(&from, Duration::MAX) {
            job();
        }
    };
    std::thread::Builder::new().name("hangscope".to_string()).spawn(work).ok().map(|_| to)
}

/// Receives as `recv_timeout` does, but looks for a while before it sleeps.
fn receive<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    static SPINS: OnceLock<bool> = OnceLock::new();
    if *SPINS.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1)) {
        let until = Instant::now() + SPIN;
        while Instant::now() < until {
            match from.try_recv() {
                Ok(got) => return Ok(got),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
            }
        }
    }
    if limit == Duration::MAX {
        return from.recv().map_err(|_| RecvTimeoutError::Disconnected);
    }
    from.recv_timeout(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_comes_is_given_up_and_the_next_call_is_answered() {
        let (stay, stays) = channel::<()>();
        let began = Instant::now();
        assert_eq!(run(Duration::from_millis(20), move || stays.recv().is_ok()), None);
        assert!(began.elapsed() >= Duration::from_millis(20) && began.elapsed() < Duration::from_secs(10));
        assert_eq!(run(Duration::from_secs(10), || 7), Some(7));
        drop(stay);
    }

    #[test]
    fn a_panic_is_no_answer() {
        assert_eq!(run(Duration::from_secs(10), || std::panic::resume_unwind(Box::new(()))), None::<()>);
        assert_eq!(run(Duration::from_secs(10), || 8), Some(8));
    }
}
