//! HIP's initialisation, which up to 5.2 is guarded by a flag that the second thread polls: nothing records who set it.

use super::calls::{Call, Calls};
use crate::facts::{
    Certainty, DeviceWait, Evidence, Facts, Hold, Holder, Mode, Reentrancy, Resource, ResourceId, ResourceKind,
    Timeout, Wait, Wakers,
};
use crate::runtimes::View;
use crate::units::{Addr, FrameIx, Vaddr};
use crate::unwind::Frame;

/// `sched_yield`.
const YIELD: u64 = 24;

/// Adds a wait for each thread that polls, inside HIP, in the very function in which one other thread has gone on to
/// `hsa_init`: amd::Runtime::init, whose second caller yields until the first has left it (ROCclr platform/runtime.cpp).
pub(super) fn decode(view: &View<'_>, calls: &Calls<'_>, facts: &mut Facts) {
    let initialising: Vec<(usize, Vec<Call>)> = (0..view.snapshot.threads.len())
        .map(|index| (index, calls.of(index)))
        .filter(|(_, calls)| calls.iter().any(|c| c.function.as_deref() == Some("hsa_init")))
        .collect();
    let [(holder, of_holder)] = initialising.as_slice() else { return };
    for index in (0..view.snapshot.threads.len()).filter(|i| i != holder) {
        let thread = view.thread(index);
        let of_thread = calls.of(index);
        let Some(call) = of_thread.first().filter(|c| c.domain == "hip" && !facts.devices.contains_key(&thread)) else {
            continue;
        };
        let polls = view.syscall(index).is_none_or(|c| c.number == Some(YIELD)) && yields(view, calls, index, call);
        let frames = calls.frames(index);
        let Some(function) = frames.get(call.frames.start).filter(|_| polls).and_then(|f| start_of(view, f)) else {
            continue;
        };
        let mut theirs = of_holder.iter().filter(|c| c.domain == "hip").flat_map(|c| c.frames.clone());
        let frames = calls.frames(*holder);
        let same = |i: &usize| frames.get(*i).and_then(|f| start_of(view, f)) == Some(function);
        let Some(inside) = theirs.rfind(same) else {
            continue;
        };
        let id = ResourceId::At(view.process, function);
        let tid = view.snapshot.threads.get(*holder).map_or(0, |t| t.tid.0);
        facts.resources.push(Resource {
            id,
            kind: ResourceKind::Spinlock,
            name: Some("the spinlock of HIP's initialisation".to_owned()),
            address: None,
            reentrancy: Reentrancy::Unknown,
            wakers: Wakers::Holders,
            idle: false,
        });
        facts.waits.push(Wait {
            thread,
            on: id,
            mode: Mode::Exclusive,
            timeout: Timeout::None,
            frame: at(call.frames.end.saturating_sub(1)),
            managed_frame: None,
            evidence: vec![Evidence::new(format!(
                "it polls in HIP's function at {function}: it runs and does not get on"
            ))],
        });
        facts.holds.push(Hold {
            holder: Holder::Thread(view.thread(*holder)),
            of: id,
            mode: Mode::Exclusive,
            certainty: Certainty::Inferred,
            taken_at: Some(at(inside)),
            taken_at_managed: None,
            evidence: vec![Evidence::new(format!(
                "thread {tid} is inside the same function, in hsa_init, and no other thread is"
            ))],
        });
        let pulse = vec![function.0, u64::from(tid.unsigned_abs())];
        facts.devices.insert(thread, DeviceWait { polls: true, pulse, ..DeviceWait::default() });
    }
}

fn at(index: usize) -> FrameIx {
    FrameIx(u32::try_from(index).unwrap_or(0))
}

/// Whether the frames further in than the call are `sched_yield`'s, or there are none.
fn yields(view: &View<'_>, calls: &Calls<'_>, index: usize, call: &Call) -> bool {
    let inside = calls.frames(index).get(..call.frames.start).unwrap_or(&[]);
    inside.iter().all(|f| {
        view.snapshot.function_at(f.pc).is_some_and(|(s, _)| matches!(&*s.name, "sched_yield" | "__sched_yield"))
    })
}

/// Where the function of a frame begins, by its frame description.
fn start_of(view: &View<'_>, frame: &Frame) -> Option<Addr> {
    let image = view.snapshot.module_at(frame.pc.lookup())?.1.image().ok()?;
    let range = image.elf.frame_description_at(image.bias.to_vaddr(frame.pc.lookup()))?;
    Some(image.bias.to_addr(Vaddr(range.start)))
}
