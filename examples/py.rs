use hangscope::memory::Memory;
use hangscope::runtimes::{Held, Runtime, View};
use hangscope::snapshot::{Snapshot, WithImages};
use hangscope::target::{Target, live::*};
use hangscope::units::*;
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let quiet = args.iter().any(|a| a == "-q");
    let pid = Pid(args[1].parse().unwrap());
    let t0 = Instant::now();
    let live = Live::open(pid).unwrap();
    let mut snap = Snapshot::prepare(&live).unwrap();
    let t1 = Instant::now();
    let runtimes = hangscope::runtimes::all();
    let decoders: Vec<_> = runtimes.iter().filter_map(|r| r.find(&snap, &live).map(|d| (r.name(), d))).collect();
    let t2 = Instant::now();
    let stopped = live.stop(&StopLimits::default()).unwrap();
    stopped.read_stacks();
    let t3 = Instant::now();
    for (_, d) in &decoders {
        d.gather(&Held { threads: stopped.thread_states(), snapshot: &snap, memory: stopped.memory() });
    }
    let t4 = Instant::now();
    let released = stopped.release();
    let t5 = Instant::now();
    let n = released.threads.len();
    snap.freeze(released.threads, released.mappings);
    let memory = WithImages::new(&released.kept, &snap);
    let stacks = hangscope::unwind::unwind_all(&snap, &memory);
    let t6 = Instant::now();
    let view = View { process: ProcessIx(0), snapshot: &snap, stacks: &stacks, memory: &memory };
    for (name, d) in &decoders {
        let t = Instant::now();
        let f = d.decode(&view);
        if *name == "glibc" && quiet {
            continue;
        }
        println!("== {name} {:?} decode {:?}", f.runtime, t.elapsed());
        for g in &f.gaps {
            println!("GAP {}", g.0);
        }
        for r in &f.resources {
            println!("RES {:?} {:?} {:?}", r.id, r.kind, r.name);
        }
        for h in &f.holds {
            println!("HOLD {:?} of {:?} {:?} py{:?} {:?}", h.holder, h.of, h.certainty, h.taken_at_managed, h.evidence);
        }
        for w in f.waits.iter().take(if quiet { 5 } else { 10000 }) {
            println!(
                "WAIT {:?} on {:?} frame {:?} py{:?} {:?} {:?}",
                w.thread.thread, w.on, w.frame, w.managed_frame, w.timeout, w.evidence
            );
        }
        println!("{} waits {} managed", f.waits.len(), f.managed.len());
        if quiet {
            continue;
        }
        for (t, m) in &f.managed {
            let st = &snap.threads[t.thread as usize];
            println!(
                "-- {} {:?} gil {:?} ({} native frames)",
                st.tid,
                m.name,
                m.gil,
                stacks[t.thread as usize].frames.len()
            );
            for fr in &m.frames {
                println!("   {:?} {} {}:{:?}", fr.native.map(|n| n.0), fr.function, fr.file, fr.line);
            }
        }
    }
    if args.iter().any(|a| a == "-n") {
        for (i, s) in stacks.iter().enumerate() {
            println!("++ {} {:?} {:x?}", snap.threads[i].tid, s.end, snap.threads[i].syscall);
            for (k, f) in s.frames.iter().enumerate() {
                let name = snap.function_at(f.pc).map(|(s, o)| format!("{}+{o}", s.name));
                println!("  #{k} {:x} {} {:?}", f.pc.addr.0, name.unwrap_or("??".into()), f.trust);
            }
        }
    }
    println!(
        "{n} threads: prepare {:?} find {:?} stop+stacks {:?} gather {:?} release {:?} unwind {:?} | pause {:?} syscalls in pause {} kept {}",
        t1 - t0,
        t2 - t1,
        t3 - t2,
        t4 - t3,
        t5 - t4,
        t6 - t5,
        released.pause,
        released.syscalls_in_pause,
        released.kept.len()
    );
    let _ = memory.read(Addr(0), &mut [0]);
}
