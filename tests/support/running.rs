//! A sample that runs, until it is dropped.

use super::places::Place;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running sample. Killed when dropped, whatever happened.
pub struct Running {
    child: Child,
    /// As this machine names it.
    pub pid: i32,
    /// As it names itself.
    pub own_pid: i64,
    /// Its working directory, as this machine names it: a kernel core lands here.
    pub cwd: PathBuf,
}

/// Starts a sample built in `dir` (as the place names it) and waits until it says that it is ready.
///
/// `cwd` is its working directory as the place names it. It may write a core of any size.
pub fn start(place: &Place, dir: &Path, args: &[String], cwd: &Path) -> Result<Running, String> {
    // Semaphores between processes need a file system of their own (glibc before 2.34 looks whether there is one).
    const IN_ROOT: &str = "mount -t proc proc \"$0/proc\" && mkdir -p \"$0/dev/shm\" && mount -t tmpfs shm \"$0/dev/shm\" \
        && exec chroot \"$0\" \"$@\"";
    // sh sets the limit and goes where it is told, then becomes the sample: the PID stays.
    const GO: &str = "ulimit -c unlimited 2>/dev/null; cd \"$1\" && shift && exec \"$@\"";
    let mut command;
    let mut words = vec!["sh".to_string(), "-c".into(), GO.into(), "sh".into(), cwd.display().to_string()];
    match &place.root {
        // A mount namespace of its own: /proc in the root vanishes with the process.
        Some(root) => {
            command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", IN_ROOT]).arg(&root.path);
        }
        None if place.own_pids => {
            command = Command::new("unshare");
            // Not as the first process of the namespace, which takes no SIGABRT and no SIGALRM.
            command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", "\"$@\" & wait", "sh"]);
        }
        None => {
            command = Command::new(words.remove(0));
        }
    }
    command.args(&words);
    match &place.python {
        Some((python, _)) => command.arg(python).arg(dir.join("program.py")),
        None => command.arg(dir.join("program")),
    };
    command.env("HANGSCOPE_SAMPLE_SECONDS", "900"); // a slow machine; it is killed long before
    if place.with_gil {
        command.env("PYTHON_GIL", "1");
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let child = command.spawn().map_err(|e| format!("cannot start {command:?}: {e}"))?;
    let pid = i32::try_from(child.id()).map_err(|e| e.to_string())?;
    let cwd = match &place.root {
        Some(root) => root.path.join(cwd.strip_prefix("/").unwrap_or(cwd)),
        None => cwd.to_path_buf(),
    };
    let mut running = Running { child, pid, own_pid: 0, cwd };
    let mut line = String::new();
    let out = running.child.stdout.take().ok_or("no stdout")?;
    // A sample that never gets ready ends itself within half a minute, and so ends this read.
    BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
    let said = line.strip_prefix("ready ").and_then(|pid| pid.trim().parse::<i32>().ok());
    let said = said.ok_or_else(|| format!("it did not get ready: {line:?}"))?;
    running.own_pid = i64::from(said);
    if place.own_pids {
        running.pid = only_child(pid).and_then(only_child).ok_or("the namespace has no second process")?;
    } else if said != pid {
        // of several processes the one to look at says so
        let parent = |of: i32| -> Option<i32> {
            let status = std::fs::read_to_string(format!("/proc/{of}/status")).ok()?;
            status.lines().find_map(|l| l.strip_prefix("PPid:"))?.trim().parse().ok()
        };
        let mut above = std::iter::successors(Some(said), |p| parent(*p)).take(8);
        if !above.any(|p| p == pid) {
            return Err(format!("it says it is {said}, which is not below {pid}, the one started"));
        }
        running.pid = said;
    }
    running.wait_until("its observer has gone", |r| !r.thread_names().values().any(|n| n == "observer"))?;
    Ok(running)
}

/// Waits until all threads of the process sleep where they stay, and a sample's observer has gone. Whoever starts a hanging
/// program without [`start`] calls it after the program's `ready`: that line is written by a thread that still runs.
pub fn settled(pid: u32) -> Result<(), String> {
    const LOOKS: usize = 5;
    let began = Instant::now();
    let (mut before, mut looks) = (None, 0);
    while looks < LOOKS {
        if began.elapsed() > Duration::from_secs(20) {
            return Err(format!("waited in vain until process {pid} hangs: {before:?}"));
        }
        std::thread::sleep(Duration::from_millis(2));
        let now = asleep(pid);
        looks = if now.is_some() && now == before { looks + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

/// Where each thread sleeps, as the kernel says it; `None` when one runs, ends, or is an observer.
fn asleep(pid: u32) -> Option<Vec<String>> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let text = |path: PathBuf| std::fs::read_to_string(path).ok();
    let where_it_is = threads.map(|thread| {
        let thread = thread.ok()?.path();
        let observes = text(thread.join("comm"))?.trim_end() == "observer";
        text(thread.join("syscall")).filter(|call| !observes && !call.starts_with("running"))
    });
    where_it_is.collect()
}

fn only_child(pid: i32) -> Option<i32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.split_whitespace().next()?.parse().ok()
}

impl Running {
    fn wait_until(&self, what: &str, done: impl Fn(&Running) -> bool) -> Result<(), String> {
        let began = Instant::now();
        while !done(self) {
            if began.elapsed() > Duration::from_secs(20) {
                return Err(format!("waited in vain until {what}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The kernel's names of its threads, by the thread id that the program itself sees.
    pub fn thread_names(&self) -> BTreeMap<i64, String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let named = tasks.filter_map(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let ids = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            Some((ids.split_whitespace().last()?.parse().ok()?, name.trim_end().to_string()))
        });
        named.collect()
    }

    /// Its program, as this machine names it.
    pub fn exe(&self) -> Result<PathBuf, String> {
        let exe = std::fs::read_link(format!("/proc/{}/exe", self.pid)).map_err(|e| e.to_string())?;
        // another test may have built it anew meanwhile
        Ok(PathBuf::from(exe.to_string_lossy().trim_end_matches(" (deleted)")))
    }

    /// A field of `/proc/PID/status`.
    pub fn status(&self, field: &str) -> Option<String> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':').map(|v| v.trim().to_string()))
    }

    /// Was it left as it was found: alive, traced by nobody, no thread stopped?
    pub fn is_unharmed(&self) -> Result<(), String> {
        if self.status("TracerPid").as_deref() != Some("0") {
            return Err(format!("left traced or dead: TracerPid {:?}", self.status("TracerPid")));
        }
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid)).map_err(|e| e.to_string())?.flatten() {
            // a thread may end meanwhile
            let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
            if !matches!(state, Some('R' | 'S' | 'D' | 'I')) {
                return Err(format!("thread {} was left in state {state:?}", task.file_name().to_string_lossy()));
            }
        }
        Ok(())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        kill(Pid::from_raw(self.pid), signal).map_err(|e| e.to_string())
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<(), String> {
        let began = Instant::now();
        while self.child.try_wait().map_err(|e| e.to_string())?.is_none() {
            if began.elapsed() > Duration::from_secs(60) {
                return Err("it does not end".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Aborts it; the core the kernel writes.
    pub fn abort_for_core(&mut self) -> Result<PathBuf, String> {
        self.signal(Signal::SIGABRT)?;
        self.wait()?;
        let mut found = std::fs::read_dir(&self.cwd).map_err(|e| e.to_string())?.flatten();
        let core = found.find(|e| e.file_name().to_string_lossy().starts_with("core"));
        core.map(|e| e.path()).ok_or_else(|| format!("the kernel wrote no core into {}", self.cwd.display()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = self.signal(Signal::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Why the kernel would not write a core into the working directory.
pub fn kernel_core_obstacle() -> Option<String> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let pattern = pattern.trim();
    let plain = !pattern.is_empty() && pattern.starts_with("core") && !pattern.contains(['/', '|']);
    (!plain).then(|| format!("core_pattern is {pattern:?}: set it to core"))
}
