//! glibc's locks on real threads blocked on each, without debug symbols: on this machine's glibc and on those of the roots.

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::places::{Place, native_places, roots};
use support::{build, hangscope, home, run, running};

/// Who must be named as the holder.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Held {
    /// The thread named `holder`, by a field in memory.
    Recorded,
    /// The thread named `holder`, by its stack.
    Witnessed,
    /// A tid no thread has, by a field in memory.
    Gone,
    /// Nobody: the object does not tell.
    Untold,
    /// The one thread of the child, which is told by the kernel.
    Child,
    /// Each thread of the process alike: any of them could end the wait.
    AnyThread,
    /// Whatever the frames allow; but if anybody then `holder`, inferred.
    Guessed,
}
use Held::{AnyThread, Child, Gone, Guessed, Recorded, Untold, Witnessed};

/// Mode of the program, kind of what its waiter waits for, how its name begins, who holds it.
const CASES: &[(&str, &str, &str, Held)] = &[
    ("mutex-normal", "mutex", "the_mutex (program)", Recorded),
    ("mutex-recursive", "mutex", "the_mutex (program)", Recorded),
    ("mutex-errorcheck", "mutex", "the_mutex (program)", Recorded),
    ("mutex-adaptive", "mutex", "the_mutex (program)", Recorded),
    ("mutex-robust", "mutex", "the_mutex (program)", Recorded),
    ("mutex-pi", "mutex", "the_mutex (program)", Recorded),
    ("mutex-robust-pi", "mutex", "the_mutex (program)", Recorded),
    ("mutex-shared", "mutex", "", Recorded),
    ("mutex-timed", "mutex", "the_mutex (program)", Recorded),
    ("dead-owner", "mutex", "the_mutex (program)", Gone),
    ("dead-owner-pi", "mutex", "the_mutex (program)", Gone),
    ("fork", "mutex", "the_mutex (program)", Gone),
    ("rwlock-read", "rwlock", "the_rwlock (program)", Recorded),
    ("rwlock-write", "rwlock", "the_rwlock (program)", Untold),
    ("rwlock-write-write", "rwlock", "the_rwlock (program)", Recorded),
    ("condition", "condvar", "the_condition (program)", Untold),
    ("condition-timed", "condvar", "the_condition (program)", Untold),
    ("condition-relock", "mutex", "the_mutex (program)", Recorded),
    ("semaphore", "semaphore", "the_semaphore (program)", Untold),
    ("semaphore-timed", "semaphore", "the_semaphore (program)", Untold),
    ("barrier", "barrier", "the_barrier (program)", Untold),
    ("join", "thread-exit", "", Recorded),
    ("once", "once", "the_once (program)", Witnessed),
    ("stdio", "stdio-lock", "the FILE of fd ", Recorded),
    ("stdio-stdout", "stdio-lock", "stdout", Recorded),
    ("loader-iterate", "loader-write-lock", "_dl_load_write_lock", Recorded),
    ("loader-open", "loader-write-lock", "_dl_load_write_lock", Recorded),
    ("malloc", "allocator-lock", "malloc's main arena", Guessed),
    ("setenv", "libc-lock", "", Guessed),
    ("program-futex", "futex", "", Untold),
    ("poll", "poll", "poll on fd ", Untold),
    ("select", "poll", "", Untold),
    ("epoll", "epoll", "epoll on fd ", Untold),
    ("read", "pipe", "read from fd ", AnyThread),
    ("sleep", "timer", "sleep", Untold),
    ("child", "process-exit", "child ", Child),
    ("signal", "signal", "a signal", Untold),
    ("accept", "socket", "accept on fd ", Untold),
    ("file-lock", "file-lock", "the lock of blocked-", Untold),
];

/// The threads named `waiter` of a report with the resources they wait for.
fn waiters(report: &Value) -> Vec<(&Value, &Value)> {
    let list = |key: &str| report[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let resource = |id: &Value| list("resources").iter().find(|r| r["id"] == *id).unwrap_or(&Value::Null);
    let named = list("threads").iter().filter(|t| t["name"] == "waiter");
    named.map(|t| (t, resource(&t["wait"]["resource"]))).collect()
}

fn check(report: &Value, kind: &str, name: &str, held: Held) -> Result<(), String> {
    let waiters = waiters(report);
    if waiters.is_empty() {
        return Err(format!("no waiter in {report}"));
    }
    for (thread, resource) in waiters {
        let said = format!("{} waits for {resource}", thread["wait"]);
        if resource["kind"] != kind {
            return Err(format!("not a {kind}: {said}"));
        }
        if !resource["name"].as_str().unwrap_or_default().starts_with(name) {
            return Err(format!("not named {name}: {said}"));
        }
        let threads = report["threads"].as_array().ok_or("no threads")?;
        let thread_name = |id: &Value| threads.iter().find(|t| t["id"] == *id).map(|t| t["name"].clone());
        let holders: Vec<(Option<Value>, &str)> = resource["holders"]
            .as_array()
            .ok_or("no holders")?
            .iter()
            .map(|h| (thread_name(&h["thread"]), h["certainty"].as_str().unwrap_or_default()))
            .collect();
        let by = |certainty: &'static str| vec![(Some(Value::from("holder")), certainty)];
        let right = match held {
            Recorded => holders == by("recorded"),
            Witnessed => holders == by("witnessed"),
            Gone => holders == [(None, "recorded")],
            Untold => holders.is_empty(),
            Child => matches!(holders.as_slice(), [(Some(_), "recorded")]),
            // who waits for data in a pipe does not write to it
            AnyThread => {
                let any = resource["holders"].as_array().is_some_and(|all| all.iter().all(|h| h["mode"] == "any"));
                let waiter = |id: &Value| resource["waiters"].as_array().is_some_and(|w| w.contains(id));
                any && holders.len() == threads.iter().filter(|t| !waiter(&t["id"])).count()
                    && holders.iter().all(|(who, how)| who.is_some() && *how == "inferred")
            }
            Guessed => holders.is_empty() || holders == by("inferred"),
        };
        if !right {
            return Err(format!("not held as it should be ({held:?}): {said}"));
        }
    }
    Ok(())
}

fn attach(pid: i32) -> Result<Value, String> {
    let mut command = hangscope();
    command.args(["attach", "--tree", &pid.to_string(), "--json", "--samples", "1"]);
    let said = run(command, Duration::from_secs(60))?;
    serde_json::from_str(&said.out).map_err(|e| format!("{e}: {}{}", said.out, said.err))
}

/// Where the program lies, as the place names it; built with the oldest root's compiler for the roots.
fn built(place: &Place, all: &[support::places::Root]) -> Result<PathBuf, String> {
    // two tests want the same program: the second must not take the first's half-made one
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let source = home().join("tests/glibc/blocked.c");
    let flags = ["-Wl,--no-as-needed".to_owned(), "-ldl".to_owned()];
    let Some(root) = &place.root else {
        let dir = home().join("target/glibc/host");
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        build::compile_on_host(&source, &dir.join("program"), &flags)?;
        return Ok(dir);
    };
    let oldest = all.iter().find(|r| r.suite == "bullseye").ok_or("needs the bullseye root")?;
    let dir = Path::new("/opt/hangscope-glibc");
    let inside = root.path.join("opt/hangscope-glibc");
    std::fs::create_dir_all(&inside).map_err(|e| e.to_string())?;
    build::compile_in_root(oldest, &source, &inside.join("program"), &flags)?;
    Ok(dir.to_path_buf())
}

#[test]
fn every_lock_is_named_on_every_glibc() {
    let all = roots();
    if all.is_empty() {
        println!("skipped on other glibcs than this machine's: needs root and tests/roots");
    }
    let places = native_places(&all);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let built: Vec<_> = places.iter().map(|place| (place, built(place, &all))).collect();
        let running: Vec<_> = built.into_iter().map(|(place, dir)| scope.spawn(|| wrong_at(place, dir))).collect();
        running.into_iter().flat_map(|r| r.join().unwrap_or_else(|_| vec!["a place's test panicked".into()])).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The owner of a lock in shared memory may be a thread of any process: that there is none left takes a second look.
#[test]
fn a_shared_lock_whose_owner_ended_is_orphaned() {
    let places = native_places(&[]);
    let place = places.iter().find(|p| p.root.is_none()).expect("this machine is a place");
    let dir = built(place, &[]).unwrap();
    let program = running::start(place, &dir, &["dead-owner-shared".to_owned()], Path::new("/tmp")).unwrap();
    let mut command = hangscope();
    command.args(["attach", &program.pid.to_string(), "--json"]);
    let said = run(command, Duration::from_secs(60)).unwrap();
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(report["verdict"]["kind"], "orphaned-lock", "{report}");
    check(&report, "mutex", "", Gone).unwrap();
}

/// What is not as it should be at one place.
fn wrong_at(place: &Place, built: Result<PathBuf, String>) -> Vec<String> {
    let dir = match built {
        Ok(dir) => dir,
        Err(why) => return vec![format!("{}: {why}", place.name)],
    };
    let try_one = |mode: &str, kind: &str, name: &str, held: Held| {
        let program = running::start(place, &dir, &[mode.to_owned()], Path::new("/tmp"))?;
        check(&attach(program.pid)?, kind, name, held)?;
        // a second look: timed calls are entered again under another number
        check(&attach(program.pid)?, kind, name, held).map_err(|e| format!("second look: {e}"))
    };
    let cases = CASES.iter().map(|(mode, kind, name, held)| (mode, try_one(mode, kind, name, *held)));
    cases.filter_map(|(mode, tried)| Some(format!("{} {mode}: {}", place.name, tried.err()?))).collect()
}
