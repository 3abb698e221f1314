//! `signal-handler-relock`: a signal came while the thread held the lock, and the handler takes it again.

use super::{Pattern, Scene, Story, place};
use crate::facts::Entered;

pub(super) const PATTERN: Pattern = Pattern { word: "signal-handler-relock", tell };

/// Where CPython calls Python signal handlers. Source: Modules/signalmodule.c, Python/ceval_gil.c.
const PYTHON_HANDLERS: &[&str] =
    &["_PyErr_CheckSignalsTstate", "_PyErr_CheckSignals", "PyErr_CheckSignals", "handle_signals"];

fn tell(scene: &Scene<'_>) -> Option<Story> {
    let [step] = scene.steps() else { return None };
    let (_, native) = scene.between(step);
    let stack = scene.voice.stack(step.thread)?;
    let by_kernel = native.iter().any(|f| stack.frames.get(f.0 as usize).is_some_and(|f| f.signal));
    let by_python = || {
        let mut names = native.iter().filter_map(|f| scene.voice.symbol(step.thread, *f));
        names.any(|n| PYTHON_HANDLERS.contains(&n.as_str()))
    };
    let handler = match scene.entered(step) {
        Some((Entered::Signal(n), frame)) => format!("The handler of {}, {},", signal_name(n), place(frame)),
        _ if by_kernel || by_python() => "A signal handler".to_owned(),
        _ => return None,
    };
    let advice = if by_kernel {
        "In a signal handler only set a flag or write to a pipe, and do the rest in the main loop: nothing that locks, so no \
         malloc, stdio or localtime; or block the signal while the lock is held."
    } else {
        "In a Python signal handler only set a flag, put into a queue.SimpleQueue or write to a socket pair \
         (signal.set_wakeup_fd), and do the rest in the main loop: take no lock that the main thread may hold, logging's \
         and print's included."
    };
    Some(Story {
        explanation: format!(
            "{} {handler} runs between the two: it interrupted the thread inside the critical section, and the \
             thread cannot leave that before the handler returns.",
            scene.twice(step)
        ),
        advice: advice.to_owned(),
        culprit: Some(step.thread),
    })
}

/// Linux x86-64 and aarch64, `include/uapi/asm-generic/signal.h`.
fn signal_name(n: u32) -> String {
    let name = match n {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        6 => "SIGABRT",
        10 => "SIGUSR1",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        17 => "SIGCHLD",
        18 => "SIGCONT",
        20 => "SIGTSTP",
        23 => "SIGURG",
        26 => "SIGVTALRM",
        27 => "SIGPROF",
        28 => "SIGWINCH",
        29 => "SIGIO",
        _ => return format!("signal {n}"),
    };
    name.to_owned()
}
