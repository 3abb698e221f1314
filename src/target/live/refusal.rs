//! Why ptrace is refused, and the smallest mend: one cause, found by looking, not by guessing.

use super::proc::{Status, parse_status, read_short};
use crate::units::Pid;
use nix::errno::Errno;
use std::path::Path;

/// `CAP_SYS_PTRACE`, as a bit of a capability set.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// What the system tells about a refusal.
#[derive(Clone, Debug, Default)]
struct Scene {
    /// The target's `status`.
    target: Status,
    /// Our own.
    own: Status,
    /// The program that traces the target, as `NAME (PID)`.
    tracer: Option<String>,
    /// `kernel.yama.ptrace_scope`; absent where Yama is not there.
    yama: Option<u32>,
    /// Who owns the files in the target's `/proc` directory: not its user but root where it is not dumpable.
    files_owner: Option<u32>,
    /// Whether both live in the same user namespace; unknown where it cannot be seen.
    same_user_namespace: Option<bool>,
    /// Whether we live in a user namespace that is not the machine's first: our capabilities end at its border.
    own_namespace_is_inner: bool,
    /// The system's security module label of the target, where one is set (`unconfined` counts as none).
    label: Option<String>,
    /// Whether the system call itself is cut off from us.
    ptrace_cut_off: bool,
    /// Whether the target is ourselves.
    own_process: bool,
}

/// Why tracing `pid` would be refused: the one cause found and the smallest mend, each a phrase. `None` when nothing
/// stands against it. Nothing is stopped or traced to find out.
#[must_use]
pub fn ptrace_refusal(pid: Pid) -> Option<(String, String)> {
    let scene = read_scene(pid);
    let traced = scene.tracer.is_some();
    // opening this file asks the same question as attaching does (PTRACE_MODE_ATTACH), and does nothing
    let refused = std::fs::File::open(format!("/proc/{pid}/mem"))
        .is_err_and(|e| matches!(e.raw_os_error().map(Errno::from_raw), Some(Errno::EACCES | Errno::EPERM)));
    (traced || refused || scene.ptrace_cut_off || scene.own_process).then(|| explain(&scene))
}

/// The cause of a refusal that has happened, and the mend.
pub(super) fn cause_of_refusal(pid: Pid) -> (String, String) {
    explain(&read_scene(pid))
}

/// `NAME (PID)` of a tracer. `TracerPid` names the thread that traces; its process is what a person knows.
pub(super) fn read_tracer(tid: i32) -> String {
    let read = |what: &str| read_short(Path::new(&format!("/proc/{what}"))).ok();
    let process = read(&format!("{tid}/status")).and_then(|b| parse_status(&b).process).unwrap_or(tid);
    match read(&format!("{process}/comm")) {
        Some(name) => format!("{} ({process})", String::from_utf8_lossy(&name).trim_end()),
        None => format!("another process ({process})"),
    }
}

/// Whether the kernel answers ptrace calls at all: asks about a process that cannot exist.
fn is_ptrace_cut_off() -> bool {
    matches!(nix::sys::ptrace::detach(nix::unistd::Pid::from_raw(i32::MAX), None), Err(e) if e != Errno::ESRCH)
}

fn read_scene(pid: Pid) -> Scene {
    use std::os::unix::fs::MetadataExt;
    let status = |path: &str| read_short(Path::new(path)).map(|b| parse_status(&b)).unwrap_or_default();
    let target = status(&format!("/proc/{pid}/status"));
    let own = status("/proc/self/status");
    let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    let read = |path: String| read_short(Path::new(&path)).ok().map(|b| String::from_utf8_lossy(&b).trim().to_string());
    Scene {
        tracer: target.tracer.filter(|t| *t != 0).map(read_tracer),
        yama: read("/proc/sys/kernel/yama/ptrace_scope".into()).and_then(|t| t.parse().ok()),
        files_owner: std::fs::metadata(format!("/proc/{pid}/status")).ok().map(|m| m.uid()),
        // the first one has a fixed number (Linux include/linux/proc_ns.h, PROC_USER_INIT_INO)
        own_namespace_is_inner: namespace("self").is_some_and(|n| n.as_os_str() != "user:[4026531837]"),
        same_user_namespace: namespace("self").zip(namespace(&pid.to_string())).map(|(a, b)| a == b),
        label: read(format!("/proc/{pid}/attr/current"))
            .map(|l| l.trim_matches('\0').to_string())
            .filter(|l| !l.is_empty() && l != "unconfined"),
        ptrace_cut_off: is_ptrace_cut_off(),
        own_process: target.process.is_some() && target.process == own.process,
        target,
        own,
    }
}

/// Names the one cause, most certain first.
fn explain(s: &Scene) -> (String, String) {
    let say = |cause: &str, remedy: &str| (cause.to_string(), remedy.to_string());
    if s.own_process {
        return say("a process cannot trace itself", "give the number of another process");
    }
    if let Some(tracer) = &s.tracer {
        let name = tracer.split([' ', '-']).next().unwrap_or_default();
        let inside = match name {
            "gdb" | "rocgdb" => "ask inside it (`hangscope plugin gdb`), ",
            "lldb" => "ask inside it (`hangscope plugin lldb`), ",
            _ => "",
        };
        return (
            format!("{tracer} traces it already"),
            format!("{inside}detach or end that one, or use --no-stop, which needs no tracing"),
        );
    }
    if s.ptrace_cut_off {
        return match s.own.seccomp {
            Some(2) => say(
                "a seccomp filter forbids the ptrace system call here",
                "start the container with --cap-add SYS_PTRACE, or run hangscope on the host",
            ),
            _ => say("the ptrace system call is not available here", "run hangscope on the host"),
        };
    }
    let capable = s.own.capabilities.is_some_and(|c| c & CAP_SYS_PTRACE != 0);
    let sudo = "run hangscope as root (sudo)";
    if s.yama == Some(3) {
        return say(
            "ptrace_scope is 3: tracing is off until the next boot",
            "set kernel.yama.ptrace_scope below 3 and reboot",
        );
    }
    if !capable {
        if let (Some(theirs), Some(ours)) = (s.target.users, s.own.users) {
            // all three of the target's ids must be the caller's (Linux kernel/ptrace.c, __ptrace_may_access)
            let [real, effective, saved, _] = theirs;
            let [us, ..] = ours;
            if real == us && effective != us {
                return (
                    format!("it is set-uid and runs as user {effective}, and we are without CAP_SYS_PTRACE"),
                    sudo.to_string(),
                );
            }
            if [real, effective, saved].iter().any(|u| *u != us) {
                return (
                    format!("it belongs to user {real} and we are user {us} without CAP_SYS_PTRACE"),
                    format!("run hangscope as user {real} or as root (sudo)"),
                );
            }
            if s.files_owner.is_some_and(|o| o == 0 && effective != 0) {
                return say("it is not dumpable (it was set-uid, or its program file is not readable)", sudo);
            }
        }
        if let (Some([real, effective, saved, _]), Some([us, ..])) = (s.target.groups, s.own.groups)
            && [real, effective, saved].iter().any(|g| *g != us)
        {
            return (
                format!("it runs with group {real} and we with group {us}, without CAP_SYS_PTRACE"),
                sudo.to_string(),
            );
        }
        match s.yama {
            Some(1) => {
                return say(
                    "ptrace_scope is 1: only a parent or an owner of CAP_SYS_PTRACE may trace",
                    "run hangscope as root (sudo), or start the program with `hangscope run --`",
                );
            }
            Some(2) => return say("ptrace_scope is 2: only an owner of CAP_SYS_PTRACE may trace", sudo),
            _ => {}
        }
    }
    if s.same_user_namespace == Some(false) {
        return say(
            "it lives in another user namespace, where we have no CAP_SYS_PTRACE",
            "run hangscope as root of the host",
        );
    }
    if s.own_namespace_is_inner && s.same_user_namespace.is_none() {
        return say(
            "we are inside a user namespace (a rootless container), and our rights end there",
            "run hangscope outside of it, or inside the target's own container",
        );
    }
    if let Some(label) = &s.label {
        return (
            format!("the system's security policy forbids it (its label is {label})"),
            "allow ptrace for that label, or run hangscope unconfined".to_string(),
        );
    }
    if !capable {
        return say("the system refused it, and we have no CAP_SYS_PTRACE", sudo);
    }
    say("the system refused it although we have CAP_SYS_PTRACE", "look for a security module's message in `dmesg`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Scene {
        Scene {
            target: Status { users: Some([1000; 4]), groups: Some([1000; 4]), tracer: Some(0), ..Status::default() },
            own: Status { users: Some([1000; 4]), groups: Some([1000; 4]), capabilities: Some(0), ..Status::default() },
            ..Scene::default()
        }
    }

    #[test]
    fn each_cause_is_told_apart() {
        let cause = |change: &dyn Fn(&mut Scene)| {
            let mut s = scene();
            change(&mut s);
            explain(&s).0
        };
        assert!(cause(&|s| s.yama = Some(1)).contains("ptrace_scope is 1"));
        assert!(cause(&|s| s.yama = Some(2)).contains("ptrace_scope is 2"));
        assert!(
            cause(&|s| (s.yama, s.own.capabilities) = (Some(3), Some(u64::MAX))).contains("ptrace_scope is 3"),
            "3 binds root too"
        );
        assert!(cause(&|s| s.target.users = Some([0; 4])).contains("user 0 and we are user 1000"));
        assert!(cause(&|s| s.target.users = Some([1000, 0, 0, 0])).contains("set-uid and runs as user 0"));
        assert!(cause(&|s| s.files_owner = Some(0)).contains("not dumpable"));
        assert!(cause(&|s| s.tracer = Some("gdb (77)".into())).contains("gdb (77) traces it already"));
        assert!(cause(&|s| (s.ptrace_cut_off, s.own.seccomp) = (true, Some(2))).contains("seccomp"));
        assert!(cause(&|s| s.same_user_namespace = Some(false)).contains("user namespace"));
        assert!(
            cause(&|s| (s.own_namespace_is_inner, s.own.capabilities) = (true, Some(u64::MAX))).contains("rights end")
        );
        assert!(cause(&|s| s.label = Some("snap.x (enforce)".into())).contains("snap.x"));
        assert!(cause(&|s| s.own_process = true).contains("itself"));
    }

    #[test]
    fn capability_lifts_user_and_yama() {
        let mut s = scene();
        s.own.capabilities = Some(CAP_SYS_PTRACE);
        s.yama = Some(1);
        s.target.users = Some([0; 4]);
        assert!(explain(&s).0.contains("although"));
    }

    #[test]
    fn the_kernel_is_asked_and_ourselves_refused() {
        let (cause, _) = ptrace_refusal(Pid(std::process::id().cast_signed())).unwrap();
        assert!(cause.contains("itself"), "{cause}");
    }
}
