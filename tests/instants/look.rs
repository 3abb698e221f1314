//! One look at a process that the controller holds: through the bridge, with the controller as the debugger.

use super::code;
use super::control::Traced;
use clap::Parser;
use hangscope::arch::x86_64::WORD_NAMES;
use hangscope::cli::Cli;
use hangscope::diagnose::{self, Diagnosis};
use hangscope::memory::Kept;
use hangscope::target::bridge::wire::{Broken, Peer, hex};
use hangscope::target::bridge::{Bridge, BridgeOptions};
use hangscope::target::minicore::{self, Minicore};
use nix::libc::user_regs_struct;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Bytes of one mapping, and of all, that a saved core holds at most.
const MAX_SAVED: (usize, usize) = (64 << 20, 512 << 20);

/// A debugger that holds the process and answers from what it read of the threads.
struct Held {
    pid: i32,
    threads: Vec<(i32, user_regs_struct)>,
}

impl Held {
    fn answer(&self, request: &str) -> String {
        let mut words = request.split(' ');
        match words.next().unwrap_or_default() {
            "hello" => "ok 1 instants 1".to_owned(),
            "process" => format!("ok live x86_64 {0} - - - {0}", self.pid),
            "threads" => {
                let wanted: Vec<usize> = words.filter_map(|w| WORD_NAMES.iter().position(|n| *n == w)).collect();
                let mut out = "ok".to_owned();
                for (tid, registers) in &self.threads {
                    let all = in_order(registers);
                    let values: Vec<String> = wanted.iter().map(|i| format!("{:x}", all[*i])).collect();
                    out += &format!(" {tid}:-:{}", values.join(","));
                }
                out
            }
            "read" => {
                let numbers: Vec<u64> = words.filter_map(|w| u64::from_str_radix(w, 16).ok()).collect();
                let mut out = "ok".to_owned();
                for range in numbers.chunks_exact(2) {
                    let mut bytes = vec![0; usize::try_from(range[1]).unwrap_or(0)];
                    let whole = code::read(self.pid, range[0], &mut bytes);
                    out += &format!(" {}", if whole { hex(&bytes) } else { "-".to_owned() });
                }
                out
            }
            "end" | "set" | "print" => "ok".to_owned(),
            _ => "no -".to_owned(),
        }
    }
}

impl Peer for Held {
    fn ask(&mut self, request: &str, _: usize, _: Duration) -> Result<Vec<u8>, Broken> {
        Ok(self.answer(request).into_bytes())
    }
}

/// `user_regs_struct` as words, in its order.
fn in_order(r: &user_regs_struct) -> [u64; 27] {
    [
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi, r.rdi,
        r.orig_rax, r.rip, r.cs, r.eflags, r.rsp, r.ss, r.fs_base, r.gs_base, r.ds, r.es, r.fs, r.gs,
    ]
}

/// Looks at a process whose threads all stand; its files are those an earlier look opened.
pub fn look(traced: &Traced, pid: i32, earlier: Option<&Diagnosis>) -> Result<Diagnosis, String> {
    let threads = traced.threads(pid).into_iter().filter_map(|tid| Some((tid, traced.registers(tid)?))).collect();
    let options = BridgeOptions { sysroot: None, debug_dirs: Vec::new(), patience: Duration::from_secs(10) };
    let bridge = Bridge::connect(Box::new(Held { pid, threads }), &options).map_err(|e| e.to_string())?;
    let earlier = earlier.and_then(|e| e.snapshots.first());
    diagnose::bridge_again(&bridge, earlier).map_err(|e| e.to_string())
}

/// The text report, every thread's stack with it.
pub fn report(diagnosis: &Diagnosis) -> String {
    let cli = Cli::parse_from(["hangscope", "attach", "1", "--threads", "all", "-v"]);
    hangscope::commands::render(diagnosis, &cli.common, false)
}

/// Writes a core of a process that stands: whatever it may write to, and of files what tells their functions.
pub fn save_core(diagnosis: &Diagnosis, pid: i32, path: &Path) -> std::io::Result<()> {
    let Some(snapshot) = diagnosis.snapshots.first() else { return Ok(()) };
    let mut kept = Kept::new();
    let mut saved = 0;
    for m in snapshot.mappings.iter().filter(|m| m.permissions.write && m.permissions.read) {
        let len = usize::try_from(m.end.0 - m.start.0).unwrap_or(usize::MAX);
        if len > MAX_SAVED.0 || saved + len > MAX_SAVED.1 {
            continue;
        }
        let mut bytes = vec![0; len];
        if code::read(pid, m.start.0, &mut bytes) {
            kept.keep(m.start, &bytes);
            saved += len;
        }
    }
    let files: Vec<_> =
        snapshot.modules.iter().flat_map(|m| [m.identity_bytes(), m.analysis_bytes()]).flatten().collect();
    let core = Minicore {
        process: &snapshot.process,
        threads: &snapshot.threads,
        unlisted: snapshot.unlisted,
        mappings: &snapshot.mappings,
        kept: &kept,
        files: &files,
    };
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    minicore::write(&core, &mut out)?;
    out.flush()
}
