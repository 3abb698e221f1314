//! Which native evaluation loop runs which Python frames.

use super::frames::PyFrame;
use crate::units::FrameIx;

/// How an interpreter groups its frames under native evaluation loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grouping {
    /// One Python frame for each loop: up to 3.10.
    One,
    /// Up to and including the frame marked as entry: 3.11.
    Entry,
    /// Up to the next shim: since 3.12.
    Shim,
}

/// How many native evaluation loops a chain needs at least.
pub(super) fn count_loops(grouping: Grouping, frames: &[PyFrame]) -> usize {
    match grouping {
        Grouping::One => frames.len(),
        Grouping::Entry => frames.iter().filter(|f| f.entry).count(),
        // since 3.15 the last shim of a chain has none
        Grouping::Shim => {
            let inner = frames.split_last().map_or(&[][..], |(_, inner)| inner);
            let base_is_empty = inner.last().is_some_and(|f| f.shim);
            frames.iter().filter(|f| f.shim).count() - usize::from(base_is_empty)
        }
    }
}

/// Python frames (shims left out, newest first), each with the native frame that runs it. The second value says whether
/// both stacks told the same number of loops; where they did not, no frame is given a native one.
pub(super) fn merge(
    grouping: Grouping,
    frames: &[PyFrame],
    loops: &[FrameIx],
) -> (Vec<(PyFrame, Option<FrameIx>)>, bool) {
    let mut groups: Vec<Vec<PyFrame>> = Vec::new();
    let mut open: Vec<PyFrame> = Vec::new();
    for frame in frames {
        match grouping {
            Grouping::One => groups.push(vec![*frame]),
            Grouping::Entry => {
                open.push(*frame);
                if frame.entry {
                    groups.push(std::mem::take(&mut open));
                }
            }
            Grouping::Shim if frame.shim => groups.push(std::mem::take(&mut open)),
            Grouping::Shim => open.push(*frame),
        }
    }
    if !open.is_empty() {
        groups.push(open);
    }
    // since 3.15 a base frame without a native one ends every chain, also that of a thread without Python code
    if groups.len() == loops.len() + 1 && groups.last().is_some_and(Vec::is_empty) {
        groups.pop();
    }
    let matched = groups.len() == loops.len();
    let mut out = Vec::with_capacity(frames.len());
    for (i, group) in groups.into_iter().enumerate() {
        let native = if matched { loops.get(i).copied() } else { None };
        out.extend(group.into_iter().map(|f| (f, native)));
    }
    (out, matched)
}

#[cfg(test)]
mod tests {
    use super::super::frames::Position;
    use super::*;
    use crate::units::Addr;

    fn frame(code: u64, entry: bool, shim: bool) -> PyFrame {
        PyFrame { addr: Addr(code), code: Addr(code), position: Position::Unit(0), entry, shim, tlbc_index: 0 }
    }

    fn natives(merged: &[(PyFrame, Option<FrameIx>)]) -> Vec<(u64, Option<u32>)> {
        merged.iter().map(|(f, n)| (f.code.0, n.map(|n| n.0))).collect()
    }

    #[test]
    fn one_frame_for_each_loop() {
        let frames = [frame(1, false, false), frame(2, false, false)];
        let (m, ok) = merge(Grouping::One, &frames, &[FrameIx(4), FrameIx(9)]);
        assert!(ok);
        assert_eq!(natives(&m), [(1, Some(4)), (2, Some(9))]);
        let (m, ok) = merge(Grouping::One, &frames, &[FrameIx(4)]);
        assert!(!ok);
        assert_eq!(natives(&m), [(1, None), (2, None)], "a mismatch drops no frame");
    }

    #[test]
    fn entry_frames_end_a_loop() {
        let frames = [frame(1, false, false), frame(2, true, false), frame(3, true, false)];
        let (m, ok) = merge(Grouping::Entry, &frames, &[FrameIx(4), FrameIx(9)]);
        assert!(ok);
        assert_eq!(natives(&m), [(1, Some(4)), (2, Some(4)), (3, Some(9))]);
    }

    #[test]
    fn shims_end_a_loop_and_are_not_shown() {
        let frames = [
            frame(1, false, false),
            frame(2, false, false),
            frame(0, false, true),
            frame(3, false, false),
            frame(0, false, true),
        ];
        let (m, ok) = merge(Grouping::Shim, &frames, &[FrameIx(4), FrameIx(9)]);
        assert!(ok);
        assert_eq!(natives(&m), [(1, Some(4)), (2, Some(4)), (3, Some(9))]);
        // 3.15: one shim more, at the bottom
        let mut with_base = frames.to_vec();
        with_base.push(frame(0, false, true));
        let (m, ok) = merge(Grouping::Shim, &with_base, &[FrameIx(4), FrameIx(9)]);
        assert!(ok);
        assert_eq!(natives(&m), [(1, Some(4)), (2, Some(4)), (3, Some(9))]);
        let (m, ok) = merge(Grouping::Shim, &[frame(0, false, true)], &[]);
        assert!(ok && m.is_empty());
    }
}
