//! Symbol tables: by exact name, and by address through an index sorted once.

use super::Symbol;
use crate::memory::{FileBytes, u16_at, u32_at, u64_at};
use crate::units::Vaddr;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of an ELF64 symbol.
pub(super) const SYM: usize = 24;

const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STT_COMMON: u8 = 5;
const STT_TLS: u8 = 6;
const STT_GNU_IFUNC: u8 = 10;
const SHN_UNDEF: u16 = 0;
const SHN_ABS: u16 = 0xfff1;

/// One symbol table with its strings, in whichever file it stands.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub bytes: FileBytes,
    pub symbols: Range<usize>,
    pub strings: Range<usize>,
    /// `.gnu.version`, of dynamic tables.
    pub versions: Option<Range<usize>>,
    /// `.gnu.hash`, of dynamic tables.
    pub hash: Option<Range<usize>>,
    /// The end address of each executable section, by its number.
    pub code_ends: Arc<[Option<u64>]>,
}

/// A raw symbol.
#[derive(Clone, Copy, Debug)]
struct Raw {
    name: u32,
    info: u8,
    section: u16,
    value: u64,
    size: u64,
}

impl Raw {
    fn parse(bytes: &[u8]) -> Option<Raw> {
        Some(Raw {
            name: u32_at(bytes, 0)?,
            info: *bytes.get(4)?,
            section: u16_at(bytes, 6)?,
            value: u64_at(bytes, 8)?,
            size: u64_at(bytes, 16)?,
        })
    }

    fn kind(self) -> u8 {
        self.info & 0xf
    }

    fn binding(self) -> u8 {
        self.info >> 4
    }

    /// Whether it stands for a place in this file.
    fn is_defined(self) -> bool {
        self.section != SHN_UNDEF && self.section != SHN_ABS
    }
}

/// A name without its version suffix (`@GLIBC_2.34`, `@@GLIBC_2.34`), which some linkers leave in `.symtab`.
fn without_version(name: &[u8]) -> &[u8] {
    match name.iter().position(|b| *b == b'@') {
        Some(at) if at > 0 => name.get(..at).unwrap_or(name),
        _ => name,
    }
}

/// The hash of `.gnu.hash` (Bernstein's, times 33).
fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(*b)))
}

impl Table {
    fn raw(&self, index: usize) -> Option<Raw> {
        let at = self.symbols.start.checked_add(index.checked_mul(SYM)?)?;
        let end = at.checked_add(SYM).filter(|end| *end <= self.symbols.end)?;
        Raw::parse(self.bytes.get(at..end)?)
    }

    fn raws(&self) -> impl Iterator<Item = (usize, Raw)> + '_ {
        let symbols = self.bytes.get(self.symbols.clone()).unwrap_or(&[]);
        symbols.chunks_exact(SYM).enumerate().filter_map(|(i, b)| Some((i, Raw::parse(b)?)))
    }

    fn name(&self, raw: Raw) -> Option<&[u8]> {
        let from = self.strings.start.checked_add(usize::try_from(raw.name).ok()?)?;
        Some(without_version(self.bytes.string(from..self.strings.end)?))
    }

    /// The functions it defines.
    pub(super) fn functions(&self) -> impl Iterator<Item = Symbol> + '_ {
        let defined = self.raws().filter(|(_, raw)| raw.is_defined() && raw.kind() == STT_FUNC);
        defined.filter_map(|(_, raw)| self.symbol(raw))
    }

    /// The name of the symbol at `index`, defined here or not.
    pub(super) fn name_at(&self, index: usize) -> Option<Arc<str>> {
        let name = self.name(self.raw(index)?).filter(|n| !n.is_empty())?;
        Some(Arc::from(&*String::from_utf8_lossy(name)))
    }

    /// Whether `raw`'s name is `name`, whatever its version.
    fn is_named(&self, raw: Raw, name: &[u8]) -> bool {
        let at = usize::try_from(raw.name).ok().and_then(|at| self.strings.start.checked_add(at));
        let Some(end) = at.and_then(|at| at.checked_add(name.len())?.checked_add(1)) else { return false };
        let there = at.filter(|_| end <= self.strings.end).and_then(|at| self.bytes.get(at..end));
        there.is_some_and(|s| s.starts_with(name) && matches!(s.last(), Some(0 | b'@')))
    }

    /// Whether a program that names no version gets another symbol of this name (`name@VERSION`, not `name@@VERSION`).
    fn is_old_version(&self, index: usize) -> bool {
        let versions = self.versions.clone().and_then(|r| self.bytes.get(r));
        let word = versions.zip(index.checked_mul(2)).and_then(|(v, at)| u16_at(v, at));
        word.is_some_and(|w| w & 0x8000 != 0)
    }

    fn symbol(&self, raw: Raw) -> Option<Symbol> {
        let name = String::from_utf8_lossy(self.name(raw)?);
        Some(Symbol { name: Arc::from(&*name), vaddr: Vaddr(raw.value), size: raw.size })
    }

    /// The defined symbol of exactly this name that `accept`s: the default version where there are several.
    fn find_where(&self, name: &[u8], accept: impl Fn(Raw) -> bool) -> Option<Symbol> {
        if name.is_empty() {
            return None;
        }
        let mut old = None;
        let mut look = |index: usize, raw: Raw| -> Option<Symbol> {
            if !raw.is_defined() || !accept(raw) || !self.is_named(raw, name) {
                return None;
            }
            if self.is_old_version(index) {
                old = old.or(Some(raw));
                return None;
            }
            self.symbol(raw)
        };
        let found = match self.hash.clone().and_then(|r| self.bytes.get(r)).and_then(HashTable::parse) {
            Some(hash) => hash.chain(gnu_hash(name)).find_map(|i| look(i, self.raw(i)?)),
            None => self.raws().find_map(|(i, raw)| look(i, raw)),
        };
        found.or_else(|| self.symbol(old?))
    }

    /// The function or object of exactly this name.
    pub(super) fn find(&self, name: &str) -> Option<Symbol> {
        self.find_where(name.as_bytes(), |r| {
            matches!(r.kind(), STT_NOTYPE | STT_OBJECT | STT_FUNC | STT_COMMON | STT_GNU_IFUNC)
        })
    }

    /// The thread-local variable of exactly this name; its `vaddr` is its offset in the TLS image.
    pub(super) fn find_tls(&self, name: &str) -> Option<Symbol> {
        self.find_where(name.as_bytes(), |r| r.kind() == STT_TLS)
    }
}

/// A parsed `.gnu.hash`.
struct HashTable<'a> {
    buckets: &'a [u8],
    chains: &'a [u8],
    first: u32,
}

impl<'a> HashTable<'a> {
    fn parse(bytes: &'a [u8]) -> Option<HashTable<'a>> {
        let count = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let first = u32_at(bytes, 4)?;
        let bloom = usize::try_from(u32_at(bytes, 8)?).ok()?;
        let from = bloom.checked_mul(8)?.checked_add(16)?;
        let to = count.checked_mul(4)?.checked_add(from)?;
        if count == 0 {
            return None;
        }
        Some(HashTable { buckets: bytes.get(from..to)?, chains: bytes.get(to..)?, first })
    }

    /// Indices of the symbols whose hash is `hash`, in the table's order.
    fn chain(&self, hash: u32) -> impl Iterator<Item = usize> + '_ {
        let count = self.buckets.len() / 4;
        let bucket = usize::try_from(hash).ok().and_then(|h| u32_at(self.buckets, (h % count) * 4)).unwrap_or(0);
        let mut next = bucket.checked_sub(self.first).filter(|_| bucket != 0);
        std::iter::from_fn(move || {
            loop {
                let here = next?;
                let value = u32_at(self.chains, usize::try_from(here).ok()?.checked_mul(4)?)?;
                next = if value & 1 == 1 { None } else { here.checked_add(1) };
                if value | 1 == hash | 1 {
                    return usize::try_from(here.checked_add(self.first)?).ok();
                }
            }
        })
    }

    /// How many symbols the table's dynamic symbol table has: one more than the last chain's last index.
    fn symbol_count(&self) -> Option<usize> {
        let last = (0..self.buckets.len() / 4).filter_map(|i| u32_at(self.buckets, i * 4)).max()?;
        let Some(mut at) = last.checked_sub(self.first) else { return usize::try_from(self.first).ok() };
        loop {
            let value = u32_at(self.chains, usize::try_from(at).ok()?.checked_mul(4)?)?;
            at = at.checked_add(1)?;
            if value & 1 == 1 {
                return usize::try_from(at.checked_add(self.first)?).ok();
            }
        }
    }
}

/// The number of dynamic symbols a `.gnu.hash` implies.
pub(super) fn count_by_gnu_hash(bytes: &[u8]) -> Option<usize> {
    HashTable::parse(bytes)?.symbol_count()
}

/// What kind of symbols an [`Index`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Functions, with those of size 0 that assembly left.
    Functions,
    /// Data.
    Objects,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    /// One past its last byte; for one of size 0 the start of the next symbol or the end of its section.
    end: u64,
    table: u32,
    index: u32,
    sized: bool,
    rank: (u8, u8, u8),
}

/// Symbols by address.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: Vec<Entry>,
    /// The highest `end` of all entries up to and including this one.
    reach: Vec<u64>,
}

/// A symbol found by address.
pub(super) struct Found {
    pub symbol: Symbol,
    /// False for a symbol of size 0, whose end is a guess.
    pub sized: bool,
}

impl Index {
    /// Sorts the symbols of `tables`.
    pub(super) fn build(tables: &[Table], wanted: Wanted) -> Index {
        let mut entries = Vec::new();
        for (t, table) in tables.iter().enumerate() {
            let Ok(t) = u32::try_from(t) else { break };
            for (i, raw) in table.raws() {
                let Ok(i) = u32::try_from(i) else { break };
                if raw.is_defined()
                    && let Some((end, rank)) = extent(table, raw, wanted)
                {
                    let sized = raw.size != 0;
                    entries.push(Entry { start: raw.value, end, table: t, index: i, sized, rank });
                }
            }
        }
        let name = |e: &Entry| {
            let table = tables.get(usize::try_from(e.table).ok()?)?;
            table.name(table.raw(usize::try_from(e.index).ok()?)?)
        };
        entries.sort_by(|a, b| {
            (a.start, !a.sized, a.rank)
                .cmp(&(b.start, !b.sized, b.rank))
                .then_with(|| name(a).map(|n| (n.len(), n)).cmp(&name(b).map(|n| (n.len(), n))))
        });
        entries.dedup_by_key(|e| e.start);
        for i in 0..entries.len().saturating_sub(1) {
            let next = entries.get(i + 1).map_or(u64::MAX, |e| e.start);
            if let Some(e) = entries.get_mut(i).filter(|e| !e.sized) {
                e.end = e.end.min(next);
            }
        }
        let mut highest = 0;
        let reach = entries
            .iter()
            .map(|e| {
                highest = highest.max(e.end);
                highest
            })
            .collect();
        Index { entries, reach }
    }

    /// The innermost symbol whose extent holds `at`.
    pub(super) fn find(&self, tables: &[Table], at: u64) -> Option<Found> {
        let mut i = self.entries.partition_point(|e| e.start <= at);
        let entry = loop {
            i = i.checked_sub(1)?;
            if *self.reach.get(i)? <= at {
                return None;
            }
            let entry = self.entries.get(i)?;
            if at < entry.end {
                break entry;
            }
        };
        let table = tables.get(usize::try_from(entry.table).ok()?)?;
        let symbol = table.symbol(table.raw(usize::try_from(entry.index).ok()?)?)?;
        Some(Found { symbol, sized: entry.sized })
    }
}

/// The end of a symbol and its rank among those of the same address (lower is better): local ones last, then by leading
/// underscores (`pthread_mutex_lock` before `__pthread_mutex_lock`), then global before weak.
fn extent(table: &Table, raw: Raw, wanted: Wanted) -> Option<(u64, (u8, u8, u8))> {
    let kind = raw.kind();
    let fits = match wanted {
        Wanted::Functions => matches!(kind, STT_FUNC | STT_GNU_IFUNC) || (kind == STT_NOTYPE && raw.value != 0),
        Wanted::Objects => matches!(kind, STT_OBJECT | STT_COMMON) && raw.size != 0,
    };
    if !fits {
        return None;
    }
    let name = table.name(raw)?;
    if name.is_empty() {
        return None;
    }
    let end = if raw.size == 0 || (wanted == Wanted::Functions && kind == STT_NOTYPE) {
        // assembly: only in code, and no label of the compiler's or mapping symbol
        if matches!(name.first(), Some(b'.' | b'$')) {
            return None;
        }
        let end = table.code_ends.get(usize::from(raw.section)).copied().flatten().filter(|e| *e > raw.value)?;
        if raw.size == 0 { end } else { raw.value.checked_add(raw.size)? }
    } else {
        raw.value.checked_add(raw.size)?
    };
    let local = u8::from(raw.binding() == 0);
    let underscores = name.iter().take_while(|b| **b == b'_').count();
    // `_Z…` and `_R…` are mangled names, not private ones
    let mangled = underscores == 1 && matches!(name.get(1), Some(b'Z' | b'R'));
    let underscores = if mangled { 0 } else { u8::try_from(underscores).unwrap_or(u8::MAX) };
    Some((end, (local, underscores, raw.binding())))
}
