//! Chains of Python frames, newest first, of all threads at once.

use super::objects::{Objects, byte_in, int_in, word_in};
use super::offsets::FrameLayout;
use crate::memory::WalkEnd;
use crate::units::Addr;
use std::collections::HashSet;

/// Frames of one thread read at most.
const MAX_FRAMES: usize = 4096;
/// Frames of all threads read at most.
const ALL_FRAMES: usize = 1 << 20;

/// One Python frame as the interpreter keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PyFrame {
    /// The `PyFrameObject` or `_PyInterpreterFrame`.
    pub addr: Addr,
    /// Its code object; for a shim whatever stands there.
    pub code: Addr,
    /// What tells the position: an address in the code since 3.11, before that `f_lasti` in 2-byte units.
    pub position: Position,
    /// Since 3.11 (3.11 only): the outermost frame its evaluation loop runs.
    pub entry: bool,
    /// No Python frame but the mark of an evaluation loop's beginning (since 3.12).
    pub shim: bool,
    /// Which copy of the code it runs (free-threaded since 3.14).
    pub tlbc_index: i32,
}

/// Where in its code a frame stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// 2-byte units from the start of the code; −1 before the first instruction.
    Unit(i64),
    /// An address inside the code object.
    At(Addr),
}

/// A thread's frames and how the walk ended.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub frames: Vec<PyFrame>,
    pub end: WalkEnd,
}

/// Reads one frame, and the address of the one that called it.
pub(super) fn read_frame(objects: &Objects<'_>, at: Addr) -> Result<(PyFrame, Addr), crate::memory::ReadError> {
    let o = objects.o;
    match &o.frame {
        FrameLayout::Object(f) => {
            // back and code lie together; lasti a little further on
            let back = objects.addr(at, f.back)?;
            let code = objects.addr(at, f.code)?;
            let lasti = i64::from(objects.int32(at, f.lasti)?);
            let unit = if lasti < 0 { -1 } else { lasti * f.lasti_unit.cast_signed() / 2 };
            let frame =
                PyFrame { addr: at, code, position: Position::Unit(unit), entry: false, shim: false, tlbc_index: 0 };
            Ok((frame, back))
        }
        FrameLayout::Inline(f) => {
            let mut buffer = [0u8; 128];
            let blob = buffer.get_mut(..f.size.min(128)).unwrap_or_default();
            objects.memory.read(at, blob)?;
            // an interpreter's own account may place a field beyond what the table says is the frame's size
            let word = |offset| word_in(blob, offset).map_or_else(|| objects.word(at, offset), Ok);
            let byte = |offset| byte_in(blob, offset).map_or_else(|| objects.byte(at, offset), Ok);
            let int = |offset| int_in(blob, offset).map_or_else(|| objects.int32(at, offset), Ok);
            let owner = byte(f.owner)?;
            let frame = PyFrame {
                addr: at,
                code: Addr(word(f.executable)? & !o.stack_mask),
                position: Position::At(Addr(word(f.instruction)?)),
                entry: f.is_entry.map(byte).transpose()?.is_some_and(|e| e != 0),
                shim: o.first_shim_owner.is_some_and(|first| owner >= first),
                tlbc_index: f.tlbc_index.map(int).transpose()?.unwrap_or(0),
            };
            Ok((frame, Addr(word(f.previous)?)))
        }
    }
}

/// Bytes of a frame that are looked at.
pub(super) fn frame_size(objects: &Objects<'_>) -> usize {
    match &objects.o.frame {
        FrameLayout::Object(f) => usize::try_from(f.localsplus).unwrap_or(384),
        FrameLayout::Inline(f) => f.size,
    }
}

/// Reads the chains that begin at `newest`, level by level, so that one request serves all threads.
pub(super) fn read_chains(objects: &Objects<'_>, newest: &[Addr]) -> Vec<Chain> {
    let mut chains: Vec<Chain> = newest.iter().map(|_| Chain { frames: Vec::new(), end: WalkEnd::Complete }).collect();
    let mut here: Vec<Walk> = Vec::new();
    here.extend(newest.iter().enumerate().filter(|(_, a)| !a.is_null()).map(|(i, at)| Walk {
        chain: i,
        at: *at,
        mark: *at,
    }));
    let size = frame_size(objects);
    let mut left = ALL_FRAMES;
    for level in 1..=MAX_FRAMES {
        let ranges: Vec<_> = here.iter().map(|w| (w.at, size)).collect();
        objects.memory.expect(&ranges);
        let mut next = Vec::with_capacity(here.len());
        for mut walk in here {
            let Some(chain) = chains.get_mut(walk.chain) else { continue };
            if left == 0 {
                chain.end = WalkEnd::Bound;
                continue;
            }
            match read_frame(objects, walk.at) {
                Ok((frame, back)) => {
                    chain.frames.push(frame);
                    left -= 1;
                    if back == walk.mark {
                        close(chain, back);
                    } else if !back.is_null() {
                        walk.at = back;
                        // of Brent: what comes twice comes back to the mark
                        walk.mark = if level.is_power_of_two() { back } else { walk.mark };
                        next.push(walk);
                    }
                }
                Err(e) => chain.end = WalkEnd::Unreadable(e),
            }
        }
        here = next;
        if here.is_empty() {
            return chains;
        }
    }
    for walk in here {
        chains.get_mut(walk.chain).into_iter().for_each(|chain| chain.end = WalkEnd::Bound);
    }
    chains
}

/// Where the walk along one chain stands.
struct Walk {
    chain: usize,
    at: Addr,
    /// A frame it has passed.
    mark: Addr,
}

/// Ends a chain that leads back to its frame at `back`: each frame is in it once.
fn close(chain: &mut Chain, back: Addr) {
    let mut seen = HashSet::new();
    let twice = chain.frames.iter().position(|f| !seen.insert(f.addr));
    chain.end = WalkEnd::Circle(twice.and_then(|i| chain.frames.get(i)).map_or(back, |f| f.addr));
    chain.frames.truncate(twice.unwrap_or(chain.frames.len()));
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    fn frame_3_13(m: &mut Fake, at: u64, code: u64, previous: u64, owner: u8) {
        m.put(Addr(at), &[0; 96]);
        m.put_u64(Addr(at), code).put_u64(Addr(at + 8), previous).put_u64(Addr(at + 56), code + 210);
        m.put(Addr(at + 70), &[owner]);
    }

    #[test]
    fn chains_of_two_threads_and_a_shim() {
        let o = Offsets::choose((13, Some(0)), false, None).unwrap();
        let mut m = Fake::new();
        frame_3_13(&mut m, 0x1000, 0x5000, 0x1100, 0);
        frame_3_13(&mut m, 0x1100, 0, 0, 3);
        frame_3_13(&mut m, 0x2000, 0x6000, 0x3000, 0);
        let objects = Objects::new(&m, &o);
        let chains = read_chains(&objects, &[Addr(0x1000), Addr(0), Addr(0x2000)]);
        assert_eq!(
            chains[0].frames.iter().map(|f| (f.code.0, f.shim)).collect::<Vec<_>>(),
            [(0x5000, false), (0, true)]
        );
        assert_eq!(chains[0].end, WalkEnd::Complete);
        assert!(chains[1].frames.is_empty());
        assert_eq!(chains[2].frames.len(), 1, "what was found before the error is kept");
        assert!(matches!(chains[2].end, WalkEnd::Unreadable(_)));
    }

    #[test]
    fn a_circle_of_frames_ends() {
        let o = Offsets::choose((13, Some(0)), false, None).unwrap();
        let mut m = Fake::new();
        frame_3_13(&mut m, 0x1000, 0x5000, 0x1100, 0);
        frame_3_13(&mut m, 0x1100, 0x5000, 0x1000, 0);
        let objects = Objects::new(&m, &o);
        let chain = read_chains(&objects, &[Addr(0x1000)]).remove(0);
        assert_eq!((chain.frames.len(), chain.end), (2, WalkEnd::Circle(Addr(0x1000))));
    }

    #[test]
    fn a_circle_behind_other_frames_ends_soon_and_tells_each_frame_once() {
        let o = Offsets::choose((13, Some(0)), false, None).unwrap();
        let mut m = Fake::new();
        let at = |i: u64| 0x1000 + i * 0x100;
        for i in 0..12 {
            frame_3_13(&mut m, at(i), 0x5000, at(if i == 11 { 5 } else { i + 1 }), 0);
        }
        let objects = Objects::new(&m, &o);
        let chain = read_chains(&objects, &[Addr(at(0))]).remove(0);
        assert_eq!(chain.frames.iter().map(|f| f.addr.0).collect::<Vec<_>>(), (0..12).map(at).collect::<Vec<_>>());
        assert!(matches!(chain.end, WalkEnd::Circle(_)));
    }

    #[test]
    fn a_chain_without_end_is_cut_and_says_so() {
        let o = Offsets::choose((13, Some(0)), false, None).unwrap();
        let mut m = Fake::new();
        for i in 0..=MAX_FRAMES as u64 {
            frame_3_13(&mut m, 0x10_0000 + i * 96, 0x5000, 0x10_0000 + (i + 1) * 96, 0);
        }
        let objects = Objects::new(&m, &o);
        let chain = read_chains(&objects, &[Addr(0x10_0000)]).remove(0);
        assert_eq!((chain.frames.len(), chain.end), (MAX_FRAMES, WalkEnd::Bound));
    }

    #[test]
    fn a_field_an_account_places_beyond_the_frame_is_read_all_the_same() {
        let mut o = Offsets::choose((13, Some(0)), false, None).unwrap();
        let FrameLayout::Inline(f) = &mut o.frame else { panic!("3.13 has inline frames") };
        f.previous = 400;
        let mut m = Fake::new();
        frame_3_13(&mut m, 0x1000, 0x5000, 0, 0);
        let read = |m: &Fake| read_frame(&Objects::new(m, &o), Addr(0x1000)).map(|(_, back)| back);
        assert!(read(&m).is_err(), "not the end of the chain");
        m.put_u64(Addr(0x1000 + 400), 0x2000);
        assert_eq!(read(&m), Ok(Addr(0x2000)));
    }

    #[test]
    fn an_old_frame_counts_bytes() {
        let o = Offsets::choose((8, None), false, None).unwrap();
        let mut m = Fake::new();
        m.put(Addr(0x1000), &[0; 400]);
        m.put_u64(Addr(0x1000 + 32), 0x7000).put_u32(Addr(0x1000 + 104), 24);
        let objects = Objects::new(&m, &o);
        let (frame, back) = read_frame(&objects, Addr(0x1000)).unwrap();
        assert_eq!((frame.position, frame.code, back), (Position::Unit(12), Addr(0x7000), Addr(0)));
        m.put_u32(Addr(0x1000 + 104), u32::MAX);
        let objects = Objects::new(&m, &o);
        assert_eq!(read_frame(&objects, Addr(0x1000)).unwrap().0.position, Position::Unit(-1));
    }
}
