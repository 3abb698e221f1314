//! Which exported function a hidden one stands behind. The libraries' exported functions fetch a table of pointers and jump
//! to one of its entries: what runs has no symbol, and where the caller called by a pointer, nothing else names it.

use super::calls::{is_hip_runtime, is_hsa_runtime};
use crate::memory::{Memory, MemoryExt, i32_at};
use crate::snapshot::{Image, Module, Snapshot};
use crate::units::{Addr, Vaddr};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of an exported function looked at (those that hand on are shorter), and of the function that fetches the table.
const MAX_STUB: u64 = 96;
const MAX_FETCH: usize = 64;
/// The furthest entry of a table (HIP 6.4 has some 480).
const MAX_TABLE: u64 = 16 << 10;
/// Bytes of a pointer, and of what is read along between two of them.
const WORD: usize = 8;
const NEAR: usize = 256;
/// Functions of one library looked at.
const MAX_FUNCTIONS: usize = 8192;

/// One of them.
struct Entry {
    name: String,
    /// The code that hands on: where it lies.
    code: Vec<(Addr, usize)>,
}

/// The hidden functions of a process's libraries, by their address.
#[derive(Default)]
pub(super) struct Dispatch {
    names: BTreeMap<Addr, Option<Entry>>,
    /// What was read to find them.
    words: BTreeSet<Addr>,
}

impl Dispatch {
    /// Looks through the libraries called `hip` and `hsa`.
    pub fn find(snapshot: &Snapshot, memory: &dyn Memory) -> Dispatch {
        let mut dispatch = Dispatch::default();
        for module in &snapshot.modules {
            if is_hip_runtime(module.name()) || is_hsa_runtime(module.name()) {
                dispatch.look(module, memory);
            }
        }
        dispatch
    }

    /// The exported function that hands on to the one at `start`, if only one does. Reads its code in `memory` again, so
    /// that a minicore has it.
    pub fn name_of(&self, memory: &dyn Memory, start: Addr) -> Option<&str> {
        let entry = self.names.get(&start)?.as_ref()?;
        for (at, len) in &entry.code {
            let _ = memory.read_vec(*at, *len);
        }
        Some(&entry.name)
    }

    /// What to read while the target is held, so that it can be found again in what was kept: few ranges, where words lie
    /// near one another.
    pub fn ranges(&self) -> Vec<(Addr, usize)> {
        let mut joined: Vec<(Addr, usize)> = Vec::new();
        for word in &self.words {
            let near = joined.last().and_then(|(from, len)| {
                let skipped = usize::try_from(word.0.checked_sub(from.0)?).ok()?;
                (skipped <= len + NEAR).then_some(skipped + WORD)
            });
            match (near, joined.last_mut()) {
                (Some(len), Some(last)) => last.1 = len,
                _ => joined.push((*word, WORD)),
            }
        }
        joined
    }

    fn look(&mut self, module: &Module, memory: &dyn Memory) {
        let Ok(image) = module.image() else { return };
        let mut tables: BTreeMap<Addr, Option<Addr>> = BTreeMap::new();
        for symbol in image.elf.exported_functions().take(MAX_FUNCTIONS) {
            if symbol.size == 0 || symbol.size > MAX_STUB {
                continue;
            }
            let Some(found) = parse(image, memory, symbol.vaddr, symbol.size) else { continue };
            let table = *tables.entry(found.slot).or_insert_with(|| {
                self.words.insert(found.slot);
                memory.read_addr(found.slot).ok().filter(|t| !t.is_null())
            });
            let Some(at) = table.and_then(|t| t.checked_add(found.entry)) else { continue };
            let Ok(target) = memory.read_addr(at) else { continue };
            if target < module.start || module.end <= target {
                continue; // a profiler's
            }
            self.words.insert(at);
            let name = symbol.name.to_string();
            // two exported names of one function: which was called is not known
            self.names
                .entry(target)
                .and_modify(|n| *n = n.take().filter(|known| known.name == name))
                .or_insert(Some(Entry { name, code: found.code }));
        }
    }
}

/// What an exported function does.
struct HandsOn {
    /// Where it finds its table.
    slot: Addr,
    /// Which entry it goes to, in bytes.
    entry: u64,
    /// The code that says so.
    code: Vec<(Addr, usize)>,
}

fn parse(image: &Image, memory: &dyn Memory, at: Vaddr, size: u64) -> Option<HandsOn> {
    // from the file; where there is none, a minicore may have the code
    let bytes = |at: Vaddr, len: usize| match image.elf.read_only_bytes(at, len) {
        Some(bytes) => Some(bytes.to_vec()),
        None => memory.read_vec(image.bias.to_addr(at), len).ok(),
    };
    let len = usize::try_from(size).ok()?;
    let code = bytes(at, len)?;
    let entry = entry_of(&code)?;
    let here = |code: &[u8], at: Vaddr| Some(image.bias.to_addr(Vaddr(at.0.wrapping_add_signed(slot_of(code)?))));
    let mut read = vec![(image.bias.to_addr(at), len)];
    if let Some(slot) = here(&code, at) {
        return Some(HandsOn { slot, entry, code: read });
    }
    let fetch = Vaddr(at.0.wrapping_add_signed(callee_of(&code)?));
    let code = bytes(fetch, MAX_FETCH)?;
    read.push((image.bias.to_addr(fetch), MAX_FETCH));
    Some(HandsOn { slot: here(&code, fetch)?, entry, code: read })
}

fn disp32(bytes: &[u8]) -> Option<i64> {
    i32_at(bytes, 0).map(i64::from)
}

/// The entry by `jmp [rax + disp]`, or `mov rax, [rax + disp]` with a `jmp rax` or `call rax` after it.
fn entry_of(code: &[u8]) -> Option<u64> {
    let positive = |d: i64| u64::try_from(d).ok().filter(|d| *d < MAX_TABLE && d.is_multiple_of(8));
    let small = |b: &u8| positive(i64::from(i8::from_le_bytes([*b])));
    let windows = (0..code.len()).filter_map(|i| code.get(i..));
    windows.clone().find_map(|w| match w {
        [0xff, 0xa0, rest @ ..] => disp32(rest).and_then(positive),
        [0xff, 0x60, d, ..] => small(d),
        [0x48, 0x8b, 0x80, rest @ ..] if goes(rest) => disp32(rest).and_then(positive),
        [0x48, 0x8b, 0x40, d, rest @ ..] if goes(rest) => small(d),
        _ => None,
    })
}

/// Whether `jmp rax` or `call rax` follows.
fn goes(code: &[u8]) -> bool {
    code.windows(2).any(|w| matches!(w, [0xff, 0xe0 | 0xd0]))
}

/// How far from the start of `code` the word lies that its `mov rax, [rip + disp32]` loads.
fn slot_of(code: &[u8]) -> Option<i64> {
    let at = code.windows(3).position(|w| w == [0x48, 0x8b, 0x05])?;
    disp32(code.get(at + 3..)?)?.checked_add(i64::try_from(at).ok()?)?.checked_add(7)
}

/// How far from the start of `code` the function lies that it calls.
fn callee_of(code: &[u8]) -> Option<i64> {
    let at = code.iter().position(|b| *b == 0xe8)?;
    disp32(code.get(at + 1..)?)?.checked_add(i64::try_from(at).ok()?)?.checked_add(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_hands_on() {
        // HSA 5.2: mov rax, [rip + 0x1db9c9]; jmp [rax + 0x170]
        let hsa = [0x48, 0x8b, 0x05, 0xc9, 0xb9, 0x1d, 0, 0xff, 0xa0, 0x70, 1, 0, 0];
        assert_eq!((slot_of(&hsa), entry_of(&hsa)), (Some(0x1d_b9c9 + 7), Some(0x170)));
        // with a short displacement
        assert_eq!(entry_of(&[0x48, 0x8b, 0x05, 0, 0, 0, 0, 0xff, 0x60, 0x58]), Some(0x58));
        // HIP 6.4: sub rsp, 0x18; call …; mov rax, [rax + 0xad8]; add rsp, 0x18; jmp rax
        let hip = [
            0x48, 0x83, 0xec, 0x18, 0xe8, 0x6e, 0x91, 0xff, 0xff, 0x48, 0x8b, 0x80, 0xd8, 0x0a, 0, 0, 0x48, 0x83, 0xc4,
            0x18, 0xff, 0xe0,
        ];
        assert_eq!((slot_of(&hip), callee_of(&hip), entry_of(&hip)), (None, Some(-0x6e92 + 9), Some(0xad8)));
        // loads that lead nowhere, and code cut off
        assert_eq!(entry_of(&[0x48, 0x8b, 0x80, 0xd8, 0x0a, 0, 0, 0xc3]), None);
        for len in 0..hip.len() {
            let _ = (slot_of(&hip[..len]), callee_of(&hip[..len]), entry_of(&hip[..len]));
        }
    }
}
