//! Deep recursion told once: frames that repeat, one function or a few in turn, are folded, and what is left of a stack that
//! is still too deep is cut in its middle. Marked frames stay.

use std::collections::HashMap;
use std::hash::Hash;

/// Frames of one cycle at most: a Python call may be several native frames.
const PERIOD: usize = 16;
/// Fewer frames are not worth leaving out.
const WORTH: usize = 24;

/// Frames left out behind the one that carries this, counted from 0 in the whole stack, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    pub first: usize,
    pub last: usize,
    /// How many frames, up to the gap, are what repeats in it; 0 where nothing does: the stack was too deep.
    pub period: usize,
}

/// What is kept of a stack: indices, ascending, and the gap that follows each, if one does.
pub(super) type Kept = Vec<(usize, Option<Gap>)>;

/// Folds a stack of frames that are alike where `key` is. `marked` ones are kept. At most about `most` are.
pub(super) fn fold<K: Hash + Eq>(keys: impl Iterator<Item = K>, marked: impl Fn(usize) -> bool, most: usize) -> Kept {
    let mut known: HashMap<K, u32> = HashMap::new();
    let ids: Vec<u32> = keys
        .map(|key| {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            *known.entry(key).or_insert(next)
        })
        .collect();
    let mut kept: Kept = Vec::new();
    let mut at = 0;
    while at < ids.len() {
        let (period, end) = cycle(&ids, at);
        // shown before the gap twice, a long cycle once; behind it once more
        let shown = if period > 4 { period } else { 2 * period };
        let (from, to) = (at + shown, end.saturating_sub(period));
        if to.saturating_sub(from) < WORTH {
            kept.push((at, None));
            at += 1;
            continue;
        }
        kept.extend((at..from).map(|i| (i, None)));
        leave_out(&mut kept, from, to, period, &marked);
        kept.extend((to..end).map(|i| (i, None)));
        at = end;
    }
    if kept.len() > most {
        let (head, tail) = (most - most / 4, kept.len() - most / 4);
        let rest = kept.split_off(head);
        let middle = rest.len().saturating_sub(kept.len().saturating_add(rest.len()) - tail);
        let (middle, outer) = rest.split_at(middle);
        if let (Some((first, _)), Some((last, gap))) = (middle.first(), middle.last()) {
            let end = gap.map_or(last + 1, |g| g.last + 1);
            leave_out(&mut kept, *first, end, 0, &marked);
        }
        kept.extend(outer);
    }
    kept
}

/// The cycle that begins at `at` and covers most: its length, and where its repeats end (whole ones only).
fn cycle(ids: &[u32], at: usize) -> (usize, usize) {
    let mut best = (1, at + 1);
    for period in 1..=PERIOD {
        let pairs = ids.get(at..).unwrap_or_default().iter().zip(ids.get(at + period..).unwrap_or_default());
        let same = pairs.take_while(|(a, b)| a == b).count();
        let end = at + period * (same / period + 1);
        // a cycle of four is also one of eight
        if same >= period && end > best.1 + period {
            best = (period, end);
        }
    }
    best
}

/// Leaves out `from..to`, the marked ones aside.
fn leave_out(kept: &mut Kept, from: usize, to: usize, period: usize, marked: &impl Fn(usize) -> bool) {
    let mut begun = from;
    for i in from..=to {
        if i < to && !marked(i) {
            continue;
        }
        if begun < i
            && let Some((_, gap)) = kept.last_mut()
        {
            *gap = Some(Gap { first: begun, last: i - 1, period });
        }
        if i < to {
            kept.push((i, None));
        }
        begun = i + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(stack: &str, marked: &[usize], most: usize) -> Kept {
        fold(stack.chars(), |i| marked.contains(&i), most)
    }

    fn shape(kept: &Kept) -> Vec<(usize, usize, usize, usize)> {
        kept.iter().filter_map(|(i, gap)| gap.map(|g| (*i, g.first, g.last, g.period))).collect()
    }

    #[test]
    fn what_does_not_repeat_is_kept() {
        let stack: String = (0..90u8).map(|i| char::from(b'!' + i)).collect();
        assert_eq!(folded(&stack, &[], 1000).len(), 90);
        assert_eq!(folded(&"f".repeat(20), &[], 1000).len(), 20, "a few levels are");
        assert_eq!(folded("", &[], 1000), []);
    }

    #[test]
    fn recursion_is_folded() {
        let kept = folded(&format!("ab{}z", "f".repeat(100_000)), &[], 1000);
        assert_eq!(shape(&kept), [(3, 4, 100_000, 1)]);
        assert_eq!(kept.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1, 2, 3, 100_001, 100_002]);
    }

    #[test]
    fn mutual_recursion_is_folded() {
        let kept = folded(&format!("x{}fgy", "fgh".repeat(1000)), &[], 1000);
        assert_eq!(shape(&kept), [(6, 7, 2997, 3)]);
        assert_eq!(kept.len(), 1 + 6 + 3 + 3);
    }

    #[test]
    fn marked_frames_stay() {
        let kept = folded(&"f".repeat(1000), &[500, 501, 999], 1000);
        assert_eq!(shape(&kept), [(1, 2, 499, 1), (501, 502, 998, 1)]);
        assert!(kept.iter().any(|(i, _)| *i == 500));
    }

    #[test]
    fn what_is_too_deep_is_cut_in_its_middle() {
        let mut state = 1u32;
        let noise: String = (0..10_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if state >> 31 == 0 { 'f' } else { 'g' }
            })
            .collect();
        let kept = folded(&noise, &[5000], 400);
        assert!(kept.len() < 410, "{}", kept.len());
        assert!(kept.iter().any(|(i, _)| *i == 5000) && kept.first().unwrap().0 == 0 && kept.last().unwrap().0 == 9999);
        let mut next = 0;
        for (i, gap) in kept {
            assert_eq!(i, next, "nothing is lost");
            next = gap.map_or(i, |g| g.last) + 1;
            assert!(gap.is_none_or(|g| g.first == i + 1));
        }
        assert_eq!(next, 10_000);
    }
}
