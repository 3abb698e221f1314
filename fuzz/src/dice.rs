//! Choices from the input's bytes; when they run out, from a generator seeded by them.

/// Gives numbers.
pub struct Dice<'a> {
    bytes: &'a [u8],
    state: u64,
}

impl<'a> Dice<'a> {
    /// Dice that first show `bytes`.
    pub fn new(bytes: &'a [u8]) -> Dice<'a> {
        let state = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| mix(h ^ u64::from(*b)));
        Dice { bytes, state }
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        if let Some((first, rest)) = self.bytes.split_first_chunk::<8>() {
            self.bytes = rest;
            return u64::from_le_bytes(*first);
        }
        self.bytes = &[];
        self.state = mix(self.state);
        self.state
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n.max(1)
    }

    /// Whether one in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let i = usize::try_from(self.below(of.len() as u64)).unwrap_or(0);
        of[i]
    }
}

/// One step of SplitMix64: every bit of the result depends on every bit of `x`.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
