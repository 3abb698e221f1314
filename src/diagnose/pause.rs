//! The pause: all processes are held at one instant, read one after the other, and each is let go as soon as it may be.

use super::{Captured, DiagnoseError, Options, Prepared, Taken};
use crate::runtimes::{Held, kernel};
use crate::target::live::{self, Live, LockLine, Released, StopLimits, Stopped, Undisturbed};
use crate::target::{AtInstant, Mapping, Target, TargetError, minicore};
use crate::unwind;
use std::collections::BTreeMap;

/// Holds all processes at once, reads each, lets all go. Where a decoder wants them, gives the locks of files as well, as the
/// kernel listed them while all were held.
pub(super) fn pause(
    prepared: Vec<Prepared>,
    options: &Options,
    captured: &mut Captured,
    warnings: &mut Vec<String>,
    failure: &mut Option<DiagnoseError>,
) -> (Vec<Taken>, Option<Vec<LockLine>>) {
    let limits = StopLimits { max_pause: options.max_pause, ..StopLimits::default() };
    let mappings: Vec<&[Mapping]> = prepared.iter().map(|p| p.snapshot.mappings.as_slice()).collect();
    let last_readers = last_readers(&mappings);
    let undisturbed = Undisturbed::begin();
    let mut held = hold(&prepared, &limits, options, captured, warnings, failure);
    let wanted = prepared.iter().flat_map(|p| &p.decoders).any(|d| d.wants_file_locks());
    // of processes that run on they would be those of another instant
    let all_held = !options.no_stop && !captured.partial;
    let file_locks = (wanted && all_held).then(live::read_file_locks);
    // while all stand: what one did last is what another was seen waiting for
    let instants: Vec<AtInstant> = prepared.iter().zip(&held).map(|(p, stopped)| ask(p, stopped.as_ref())).collect();
    for (now, p) in prepared.iter().enumerate() {
        if let Some(stopped) = held.get(now).and_then(Option::as_ref) {
            read(p, stopped, options);
        }
        let read_by_all = last_readers.iter().zip(&mut held).filter(|(last, _)| **last <= now);
        read_by_all.filter_map(|(_, stopped)| stopped.as_mut()).for_each(Stopped::let_go);
    }
    // what takes longer comes when nobody is held any more
    let released: Vec<Option<Released>> = held.into_iter().map(|s| s.map(Stopped::release)).collect();
    drop(undisturbed);
    let mut taken = Vec::new();
    for ((mut p, released), at_instant) in prepared.into_iter().zip(released).zip(instants) {
        let Some(r) = released else { continue };
        p.snapshot.process.at_instant = at_instant;
        warnings.extend(r.warnings);
        if !options.no_stop && !r.pause.is_zero() {
            captured.pause = captured.pause.max(Some(r.pause));
        }
        captured.syscalls_in_pause += r.syscalls_in_pause;
        captured.partial |= r.cut_short || r.unlisted;
        p.snapshot.unlisted = r.unlisted;
        p.snapshot.freeze(r.threads, r.mappings);
        taken.push(Taken { snapshot: p.snapshot, decoders: p.decoders, kept: r.kept });
    }
    (taken, file_locks)
}

/// Holds all of them, or looks at them without: where that was asked for, and where tracing is refused.
fn hold<'a>(
    prepared: &'a [Prepared],
    limits: &StopLimits,
    options: &Options,
    captured: &mut Captured,
    warnings: &mut Vec<String>,
    failure: &mut Option<DiagnoseError>,
) -> Vec<Option<Stopped<'a>>> {
    let lives: Vec<&Live> = prepared.iter().map(|p| &p.live).collect();
    let stopped = if options.no_stop {
        lives.iter().map(|l| l.observe(limits)).collect()
    } else {
        live::stop_all(&lives, limits)
    };
    let mut held = Vec::new();
    for (live, stopped) in lives.into_iter().zip(stopped) {
        let pid = live.process().pid;
        let stopped = stopped.or_else(|refused| match refused {
            TargetError::Refused { .. } if !options.no_stop => {
                warnings.push(format!("{refused}; going by what /proc gives without stopping"));
                captured.partial = true;
                live.observe(limits).map_err(|_| refused)
            }
            other => Err(other),
        });
        held.push(match stopped {
            Ok(s) => Some(s),
            Err(e) => {
                let e = DiagnoseError::from(e);
                if !options.is_no_gap(pid, &e) {
                    warnings.push(e.to_string());
                    failure.get_or_insert(e);
                }
                None
            }
        });
    }
    held
}

/// Asks the kernel what has come of what the threads of a process wait for.
fn ask(p: &Prepared, stopped: Option<&Stopped<'_>>) -> AtInstant {
    let Some(stopped) = stopped else { return AtInstant::default() };
    let (threads, memory) = (stopped.thread_states(), stopped.memory());
    stopped.ask(&kernel::inquire(&Held { threads, snapshot: &p.snapshot, memory, locals: false }))
}

/// Reads what is wanted of one process. Once it is let go, reads fail at once.
fn read(p: &Prepared, stopped: &Stopped<'_>, options: &Options) {
    stopped.read_stacks();
    let more = unwind::find_interrupted_stacks(&p.snapshot, stopped.thread_states(), stopped.memory());
    stopped.memory().expect(&more);
    let view = Held {
        threads: stopped.thread_states(),
        snapshot: &p.snapshot,
        memory: stopped.memory(),
        locals: options.locals,
    };
    for decoder in &p.decoders {
        decoder.gather(&view);
    }
    if options.save_core.is_some() && !stopped.is_over() {
        minicore::gather(stopped.memory(), &p.snapshot.process, &p.snapshot.mappings, view.threads);
    }
}

/// For each process the last one, in the order they are read, that has writable memory in common with it: only when that
/// one was read may it run on, or the two would be seen at different instants.
fn last_readers(mappings: &[&[Mapping]]) -> Vec<usize> {
    let shared = |m: &&Mapping| m.permissions.shared && m.inode != 0;
    let mut last_of: BTreeMap<((u32, u32), u64), usize> = BTreeMap::new();
    for (i, maps) in mappings.iter().enumerate() {
        // a mapping that is only read here may be written elsewhere
        last_of.extend(maps.iter().filter(shared).map(|m| ((m.device, m.inode), i)));
    }
    let last = |(i, maps): (usize, &&[Mapping])| {
        let others = maps.iter().filter(shared).filter_map(|m| last_of.get(&(m.device, m.inode)));
        others.copied().max().unwrap_or(i).max(i)
    };
    mappings.iter().enumerate().map(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Permissions;
    use crate::units::Addr;

    #[test]
    fn who_shares_memory_with_a_later_one_is_held_until_that_one_is_read() {
        let of = |inode: u64, shared: bool| Mapping {
            start: Addr(0x1000),
            end: Addr(0x2000),
            offset: 0,
            permissions: Permissions { read: true, write: true, execute: false, shared },
            device: (0, 1),
            inode,
            path: None,
            deleted: false,
        };
        let (a, b, c, d) = ([of(7, true)], [of(7, false), of(8, true)], [of(7, true), of(0, true)], [of(8, true)]);
        assert_eq!(last_readers(&[&a, &b, &c, &d]), [2, 3, 2, 3]);
        assert!(last_readers(&[]).is_empty());
    }
}
