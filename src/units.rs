//! The units things are measured in. Knows nothing of where the numbers came from.

use std::fmt;

/// The character, or `?` where a terminal would obey it instead of showing it: control characters, the unseen and those that
/// turn the direction of writing (Unicode's categories Cc, Cf, Zl and Zp). Names are bytes of someone else's memory.
#[must_use]
pub fn harmless(c: char) -> char {
    if matches!(c, ' '..='~') {
        return c;
    }
    let unseen = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    if c.is_control() || unseen { '?' } else { c }
}

/// Text made harmless, cut after `most` characters.
#[must_use]
pub fn harmless_text(text: &str, most: usize) -> String {
    // nearly all names are plain, and there are very many
    if text.len() <= most && text.bytes().all(|b| matches!(b, b' '..=b'~')) {
        return text.to_owned();
    }
    text.chars().take(most).map(harmless).collect()
}

/// Hashes what is made of one or two machine words, addresses above all: the standard hasher costs more than the look-up. The
/// seed is another in each run, since the addresses are a stranger's.
#[derive(Clone, Debug)]
pub struct ByAddr(u64);

impl Default for ByAddr {
    fn default() -> ByAddr {
        use std::hash::{BuildHasher, RandomState};
        static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        ByAddr(*SEED.get_or_init(|| RandomState::new().hash_one(0u8)))
    }
}

impl std::hash::BuildHasher for ByAddr {
    type Hasher = AddrHasher;

    fn build_hasher(&self) -> AddrHasher {
        AddrHasher(self.0)
    }
}

/// The hasher of [`ByAddr`].
#[derive(Debug)]
pub struct AddrHasher(u64);

impl std::hash::Hasher for AddrHasher {
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(piece).for_each(|(w, b)| *w = *b);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // both halves of the product: every bit of the word reaches every part of the hash
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_i64(&mut self, word: i64) {
        self.write_u64(word.cast_unsigned());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// An address in the target's address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Addr(pub u64);

impl Addr {
    /// The null address.
    pub const NULL: Addr = Addr(0);

    /// This address moved by `by` bytes, wrapping as the CPU does.
    #[must_use]
    pub fn offset(self, by: i64) -> Addr {
        Addr(self.0.wrapping_add_signed(by))
    }

    /// This address moved up by `by` bytes, or `None` past the end of the address space.
    #[must_use]
    pub fn checked_add(self, by: u64) -> Option<Addr> {
        self.0.checked_add(by).map(Addr)
    }

    /// The start of the page this address lies in.
    #[must_use]
    pub fn page(self) -> Addr {
        Addr(self.0 & !(PAGE - 1))
    }

    /// Whether this is the null address.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// Bytes in a page of the target. Both CPUs we read use 4 KiB pages as the smallest unit.
pub const PAGE: u64 = 4096;

/// An address as written in an ELF file; only [`LoadBias`] turns it into an [`Addr`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Vaddr(pub u64);

impl fmt::Debug for Vaddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vaddr {:#x}", self.0)
    }
}

/// What the loader added to every address written in a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct LoadBias(pub u64);

impl LoadBias {
    /// Where `at`, written in the file, lies in the target.
    #[must_use]
    pub fn to_addr(self, at: Vaddr) -> Addr {
        Addr(at.0.wrapping_add(self.0))
    }

    /// How the file writes the target's address `at`.
    #[must_use]
    pub fn to_vaddr(self, at: Addr) -> Vaddr {
        Vaddr(at.0.wrapping_sub(self.0))
    }
}

/// A process as our own PID namespace names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pid(pub i32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A thread as the target's own PID namespace names it, and so as `__owner` fields name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tid(pub i32);

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A thread as our own PID namespace names it: what ptrace and `/proc` take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostTid(pub i32);

impl fmt::Display for HostTid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A `pthread_t` value. With glibc it is the address of `struct pthread`; on x86-64 it equals the thread's `fs_base`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PthreadT(pub u64);

impl PthreadT {
    /// Where glibc's `struct pthread` keeps its own address (`header.self`), in bytes, x86-64.
    /// Source: glibc `nptl/descr.h`, `sysdeps/x86_64/nptl/tls.h`; the same in 2.17 to 2.43.
    pub const SELF: u64 = 0x10;
    /// Where it keeps the thread's id (`tid`), which the kernel sets to 0 when the thread ends; likewise.
    pub const TID: u64 = 0x2d0;
}

impl fmt::Display for PthreadT {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Which process of the run, counted from 0 in the order given on the command line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProcessIx(pub u32);

/// One thread of one process of the run: indices into the snapshots and their thread lists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ThreadRef {
    /// The process.
    pub process: ProcessIx,
    /// Index into that snapshot's `threads`.
    pub thread: u32,
}

/// A frame of a native stack, counted from 0, innermost first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameIx(pub u32);

/// A module of a snapshot: an index into its `modules`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleIx(pub u32);
