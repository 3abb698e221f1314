//! A debugger that answers what it likes: the right shape with any numbers, that with a few bytes changed, or noise.

use super::dice::{Dice, mix};
use hangscope::target::bridge::wire::{Broken, Peer};
use std::time::Duration;

/// The peer. Answers end after a while, so that every conversation does.
pub struct Noise {
    state: u64,
    left: u32,
}

impl Noise {
    pub fn new(dice: &mut Dice<'_>) -> Noise {
        Noise { state: dice.word(), left: 400 }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.state = mix(self.state);
        self.state % n.max(1)
    }

    /// A number of a size that occurs: small, an address of one of a few pages, or any.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(64),
            1 => u64::MAX - self.below(4096),
            2 => self.state,
            _ => 0x1000 * (1 + self.below(24)) + self.below(0x1000),
        }
    }

    fn words(&mut self, request: &str) -> Vec<String> {
        let asked: Vec<&str> = request.split(' ').collect();
        let many = self.below(12);
        match asked[0] {
            "hello" => vec!["1".into(), "gdb".into(), "13.1".into()],
            "process" => {
                let kind = ["live", "remote", "core", "core"][usize::try_from(self.below(4)).unwrap_or(0)];
                let pid = self.below(1 << 23);
                [kind, "x86_64", &pid.to_string(), "-", "-", "-", "7"].map(str::to_owned).to_vec()
            }
            "threads" => (0..=many)
                .map(|i| {
                    let values: Vec<String> = asked.iter().skip(1).map(|_| format!("{:x}", self.number())).collect();
                    format!("{}:61:{}", 7 + i, values.join(","))
                })
                .collect(),
            "maps" => (0..=many * 2)
                .map(|_| {
                    let (start, len) = (0x1000 * (1 + self.below(24)), 0x1000 * self.below(8));
                    let rights = ["r-xp", "rw-p", "-", "r--s"][usize::try_from(self.below(4)).unwrap_or(0)];
                    let file = ["-", "2f61", "2f6c6962632e736f2e36", "5b7664736f5d"]
                        [usize::try_from(self.below(4)).unwrap_or(0)];
                    format!("{start:x}-{:x}:{rights}:{:x}:{file}", start + len, self.number())
                })
                .collect(),
            "auxv" => (0..many).map(|i| format!("{i:x}={:x}", self.number())).collect(),
            "read" => asked[1..]
                .chunks(2)
                .map(|range| {
                    let len = u64::from_str_radix(range.get(1).copied().unwrap_or("0"), 16).unwrap_or(0);
                    match self.below(8) {
                        0 => "-".to_owned(),
                        // words that point into the same few pages
                        _ => (0..len / 8).map(|_| format!("{:016x}", self.number().swap_bytes())).collect(),
                    }
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

impl Peer for Noise {
    fn ask(&mut self, request: &str, most: usize, _patience: Duration) -> Result<Vec<u8>, Broken> {
        let Some(left) = self.left.checked_sub(1) else { return Err(Broken::Gone("more".into())) };
        self.left = left;
        let mut line = format!("ok {}", self.words(request).join(" ")).into_bytes();
        match self.below(24) {
            0 => line = b"no 6e6f".to_vec(),
            1 => line.truncate(usize::try_from(self.below(line.len() as u64)).unwrap_or(0)),
            2 => {
                for _ in 0..4 {
                    let at = usize::try_from(self.below(line.len() as u64)).unwrap_or(0);
                    let byte = b" -:,.=0fz\xff"[usize::try_from(self.below(10)).unwrap_or(0)];
                    if let Some(slot) = line.get_mut(at) {
                        *slot = byte;
                    }
                }
            }
            3 => line.extend_from_within(..),
            _ => {}
        }
        line.truncate(most);
        Ok(line)
    }
}
