//! A real core with some of its words spoilt: bits flipped, lists made circular, sizes huge, pointers wild.

use super::dice::{Dice, mix};
use hangscope::arch::x86_64::{parse_user_regs, sleeping_syscall};
use hangscope::memory::{Memory, MemoryExt, ReadError};
use hangscope::target::core::CoreFile;
use hangscope::target::{Files, Mapping, Process, Target, TargetError, ThreadState};
use hangscope::units::Addr;
use std::sync::Arc;

/// The core and how it is spoilt: always the same way at the same address.
pub struct Spoilt<'a> {
    core: &'a CoreFile,
    threads: Vec<ThreadState>,
    mappings: Vec<Mapping>,
    seed: u64,
    /// One word in this many.
    rate: u64,
}

impl<'a> Spoilt<'a> {
    pub fn new(core: &'a CoreFile, dice: &mut Dice<'_>) -> Spoilt<'a> {
        let rate = dice.pick(&[8, 32, 128, 512, 2048, 8192]);
        let seed = dice.word();
        let mut threads = core.threads().unwrap_or_default();
        for t in &mut threads {
            if !dice.once_in(8) {
                continue;
            }
            let Some(r) = &t.registers else { continue };
            let mut raw = r.raw.clone();
            for word in raw.as_chunks_mut::<8>().0 {
                if dice.once_in(8) {
                    *word = spoil(u64::from_le_bytes(*word), 0, dice.word()).to_le_bytes();
                }
            }
            t.registers = parse_user_regs(&raw);
            t.syscall = t.registers.as_ref().and_then(sleeping_syscall);
        }
        let mappings = core.mappings().unwrap_or_default();
        Spoilt { core, threads, mappings, seed, rate }
    }

    fn is_writable(&self, at: Addr) -> bool {
        let i = self.mappings.partition_point(|m| m.end <= at);
        self.mappings.get(i).is_some_and(|m| m.contains(at) && m.permissions.write)
    }
}

/// A spoilt word: `at` is where it stands.
fn spoil(word: u64, at: u64, noise: u64) -> u64 {
    let more = noise >> 8;
    match noise & 15 {
        0..=4 => word ^ 1 << (more % 64),
        5 => 0,
        6 => 1,
        7 => u64::MAX,
        8 => at,
        9 => at & !0xfff,
        10 => word.wrapping_add(8),
        11 => word.wrapping_sub(8),
        12 => word.rotate_left(32),
        13 => 1 << (more % 64),
        14 => word & 0xffff_ffff,
        _ => noise,
    }
}

impl Memory for Spoilt<'_> {
    fn read(&self, at: Addr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.core.read(at, buf)?;
        let end = at.0.saturating_add(buf.len() as u64);
        let mut word = at.0 & !7;
        while word < end {
            let noise = mix(self.seed ^ word);
            if (noise >> 32).is_multiple_of(self.rate) && self.is_writable(Addr(word)) {
                let whole = self.core.read_u64(Addr(word)).unwrap_or(0);
                let bytes = spoil(whole, word, mix(noise)).to_le_bytes();
                for (i, b) in bytes.iter().enumerate() {
                    let here = word + i as u64;
                    if let Some(slot) = here.checked_sub(at.0).and_then(|i| buf.get_mut(usize::try_from(i).ok()?)) {
                        *slot = *b;
                    }
                }
            }
            word += 8;
        }
        Ok(())
    }
}

impl Target for Spoilt<'_> {
    fn process(&self) -> &Process {
        self.core.process()
    }

    fn threads(&self) -> Result<Vec<ThreadState>, TargetError> {
        Ok(self.threads.clone())
    }

    fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(self.mappings.clone())
    }

    fn files(&self) -> Arc<dyn Files> {
        self.core.files()
    }
}
