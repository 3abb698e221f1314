//! What glibc's frames tell: where libc ends and the program begins, which internal lock a function belongs to, which
//! frame took a lock.

use crate::arch::Reg;
use crate::arch::x86_64::{CALLEE_SAVED, R12, R13, R14, R15, RBP, RBX};
use crate::layout::{FrameSignature, Layouts};
use crate::memory::MemoryExt;
use crate::runtimes::View;
use crate::units::{Addr, FrameIx};
use crate::unwind::{Frame, Trust};
use std::collections::BTreeSet;

/// Whether a module file is one of glibc's that threads sleep in or pass through.
pub(super) fn is_glibc(name: &str) -> bool {
    is_libc(name) || is_loader(name) || ["libpthread", "libdl", "librt"].iter().any(|lib| is_library(name, lib))
}

/// `libc.so.6`, or `libc-2.31.so` where a distribution's link is resolved.
pub(super) fn is_libc(name: &str) -> bool {
    is_library(name, "libc")
}

/// `ld-linux-x86-64.so.2`, or `ld-2.31.so`.
pub(super) fn is_loader(name: &str) -> bool {
    name == "ld-linux-x86-64.so.2" || is_library(name, "ld")
}

fn is_library(name: &str, stem: &str) -> bool {
    let Some(rest) = name.strip_prefix(stem) else { return false };
    rest.strip_prefix(".so.").is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()))
        || rest.starts_with("-2.") && rest.ends_with(".so")
}

/// One thread's frames seen through libc's eyes.
pub(super) struct Frames<'a> {
    view: &'a View<'a>,
    frames: &'a [Frame],
    /// How many of the innermost frames lie in glibc's libraries without a break.
    inside: usize,
}

/// Whose code the innermost frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Innermost {
    /// libc's own, sleeping for itself.
    Libc,
    /// The program's, or libc's `syscall` on the program's behalf: the futex is none of libc's objects.
    Program,
    /// There are no frames, or nothing tells (a static program).
    Unknown,
}

/// Frames looked through for a name or a mention.
const MAX_LOOKED_AT: usize = 512;
/// Bytes of one frame searched for a mention.
const MAX_FRAME: u64 = 64 * 1024;

impl<'a> Frames<'a> {
    /// The frames of the thread at `index`.
    pub fn of(view: &'a View<'a>, index: usize) -> Frames<'a> {
        let frames = view.stacks.get(index).map_or(&[][..], |s| s.frames.as_slice());
        let frames = frames.get(..MAX_LOOKED_AT).unwrap_or(frames);
        let mut this = Frames { view, frames, inside: 0 };
        this.inside = frames.iter().take_while(|f| this.in_glibc(f)).count();
        this
    }

    fn module_name(&self, frame: &Frame) -> Option<&'a str> {
        let module = match frame.module {
            Some(ix) => self.view.snapshot.module(ix),
            None => self.view.snapshot.module_at(frame.pc.lookup()).map(|(_, m)| m),
        };
        module.map(|m| m.name())
    }

    fn in_glibc(&self, frame: &Frame) -> bool {
        self.module_name(frame).is_some_and(is_glibc)
    }

    fn function(&self, frame: &Frame) -> Option<std::sync::Arc<str>> {
        self.view.snapshot.function_at(frame.pc).map(|(symbol, _)| symbol.name)
    }

    /// Whose code the innermost frame is.
    pub fn innermost(&self, dynamic: bool) -> Innermost {
        let Some(first) = self.frames.first() else { return Innermost::Unknown };
        if self.function(first).as_deref() == Some("syscall") {
            return Innermost::Program;
        }
        match (self.in_glibc(first), dynamic) {
            (true, _) => Innermost::Libc,
            (false, true) if first.module.is_some() => Innermost::Program,
            (false, _) => Innermost::Unknown,
        }
    }

    /// The outermost of the innermost frames that lie in glibc: a wait's witness.
    pub fn edge(&self) -> FrameIx {
        FrameIx(u32::try_from(self.inside.saturating_sub(1)).unwrap_or(0))
    }

    /// Whether `at` lies in the part of the stack that the innermost frames of glibc use: a variable of glibc's own.
    pub fn is_glibcs_own(&self, at: Addr) -> bool {
        let top = self.inside.checked_sub(1).and_then(|last| self.frames.get(last)?.cfa);
        let sp = self.frames.first().and_then(|f| f.registers.read(crate::arch::x86_64::RSP));
        matches!((sp, top), (Some(sp), Some(top)) if sp <= at.0 && at < top)
    }

    /// What the innermost frames of glibc have put into callee-saved registers, as opposed to what their caller had there.
    pub fn glibcs_own_values(&self) -> BTreeSet<u64> {
        let Some(caller) = self.frames.get(self.inside) else { return BTreeSet::new() };
        let own = self.frames.get(..self.inside).unwrap_or(&[]).iter();
        let registers = own.flat_map(|f| CALLEE_SAVED.iter().map(|reg| (*reg, f.registers.read(*reg))));
        registers.filter(|(reg, value)| caller.registers.read(*reg) != *value).filter_map(|(_, value)| value).collect()
    }

    /// The first argument of the call by which the program entered glibc, where the instruction before the call says what it is.
    pub fn first_argument(&self) -> Option<Addr> {
        const CALL: i64 = 5;
        const BEFORE: i64 = 7;
        let caller = self.frames.get(self.inside).filter(|f| !f.signal && f.trust != Trust::Scan)?;
        let call = caller.pc.addr.offset(-CALL);
        let code = self.view.memory.read_vec(call.offset(-BEFORE), usize::try_from(BEFORE + CALL).ok()?).ok()?;
        let (before, call_code) = code.split_at_checked(usize::try_from(BEFORE).ok()?)?;
        if call_code.first() != Some(&0xe8) {
            return None;
        }
        first_argument_set_by(before, call, &|reg| caller.registers.read(reg))
    }

    /// What the frames within glibc mean, innermost first: (frame, signature).
    pub fn meanings(&self) -> impl Iterator<Item = (FrameIx, &'static FrameSignature)> + '_ {
        self.signatures(0..self.inside)
    }

    /// What all frames mean, innermost first.
    pub fn all_meanings(&self) -> impl Iterator<Item = (FrameIx, &'static FrameSignature)> + '_ {
        self.signatures(0..self.frames.len())
    }

    /// What the frames outside the innermost signal handler mean: what the thread was at when the signal came.
    pub fn interrupted_meanings(&self) -> impl Iterator<Item = (FrameIx, &'static FrameSignature)> + '_ {
        self.signatures(self.interrupted_from()..self.frames.len())
    }

    /// The first frame outside the innermost signal handler; the number of frames where there is none.
    pub fn interrupted_from(&self) -> usize {
        self.frames.iter().position(|f| f.signal).map_or(self.frames.len(), |i| i + 1)
    }

    /// How many of the innermost frames lie in glibc's libraries without a break.
    pub fn inside(&self) -> usize {
        self.inside
    }

    fn signatures(
        &self,
        range: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (FrameIx, &'static FrameSignature)> + '_ {
        let first = range.start;
        self.frames.get(range).unwrap_or(&[]).iter().enumerate().flat_map(move |(i, frame)| {
            let ix = FrameIx(u32::try_from(first + i).unwrap_or(u32::MAX));
            let module = self.module_name(frame).filter(|m| is_glibc(m));
            let function = module.and_then(|_| self.function(frame));
            let table = Layouts::glibc_frames();
            table.frames.iter().filter_map(move |signature| {
                let hit = signature.matches(module?, function.as_deref()?);
                hit.then_some((ix, signature))
            })
        })
    }

    /// The outermost frame that means taking the loader's lock `name`.
    pub fn took_loader_lock(&self, name: &str) -> Option<(FrameIx, String)> {
        let hits = self.all_meanings().filter(|(_, s)| s.means.words("takes").iter().any(|w| w == name));
        let (ix, _) = hits.last()?;
        let frame = self.frames.get(usize::try_from(ix.0).ok()?)?;
        Some((ix, self.function(frame)?.to_string()))
    }

    /// The outermost frame of the program that still has `object` in a callee-saved register or in its part of the stack:
    /// a guard keeps a pointer to what it guards. A frame whose own variable the object is counts only if no other does.
    pub fn mentions(&self, object: Addr) -> Option<FrameIx> {
        let mut found = None;
        let mut home = None;
        for (i, frame) in self.frames.iter().enumerate() {
            if frame.trust == Trust::Scan || frame.signal || self.in_glibc(frame) {
                continue;
            }
            let ix = FrameIx(u32::try_from(i).ok()?);
            let in_register = CALLEE_SAVED.iter().any(|reg| frame.registers.read(*reg) == Some(object.0));
            let extent = self.extent(i);
            if extent.is_some_and(|(sp, cfa)| sp <= object && object < cfa) {
                home = Some(ix);
            } else if in_register || extent.is_some_and(|(sp, cfa)| self.on_stack(sp, cfa, object)) {
                found = Some(ix);
            }
        }
        found.or(home)
    }

    fn on_stack(&self, sp: Addr, cfa: Addr, object: Addr) -> bool {
        let Ok(len) = usize::try_from(cfa.0 - sp.0) else { return false };
        let Ok(bytes) = self.view.memory.read_vec(sp, len) else { return false };
        let wanted = object.0.to_le_bytes();
        bytes.chunks_exact(8).any(|word| word == wanted)
    }

    /// The outermost frame whose code, from the function's start up to its call, computes the address of the global
    /// `object` (`lea reg, [rip + …]`): how a program names a lock it keeps in a variable.
    pub fn names_in_code(&self, object: Addr) -> Option<FrameIx> {
        let hit = |frame: &Frame| {
            if frame.trust == Trust::Scan || frame.signal || self.in_glibc(frame) {
                return false;
            }
            let Some(start) = self.function_start(frame) else { return false };
            let len = usize::try_from(frame.pc.addr.0.wrapping_sub(start.0)).ok();
            let Some(len) = len.filter(|len| (7..=MAX_CODE).contains(len)) else { return false };
            let Ok(code) = self.view.memory.read_vec(start, len) else { return false };
            computes_address(&code, start, object)
        };
        let last = self.frames.iter().rposition(hit)?;
        Some(FrameIx(u32::try_from(last).ok()?))
    }

    /// The innermost frame of glibc with the program's own code further in that still carries `value`, in a callee-saved
    /// register or on its stack: libc called the program back and will go on with it.
    pub fn carried_by_libc(&self, value: Addr) -> Option<FrameIx> {
        let at = self.frames.iter().enumerate().skip(self.inside).position(|(i, frame)| {
            if frame.trust == Trust::Scan || !self.in_glibc(frame) {
                return false;
            }
            let in_register = CALLEE_SAVED.iter().any(|reg| frame.registers.read(*reg) == Some(value.0));
            in_register || self.extent(i).is_some_and(|(sp, cfa)| self.on_stack(sp, cfa, value))
        })?;
        Some(FrameIx(u32::try_from(self.inside + at).ok()?))
    }

    /// A frame's part of the stack, from its stack pointer up to its canonical frame address.
    fn extent(&self, index: usize) -> Option<(Addr, Addr)> {
        let frame = self.frames.get(index)?;
        let inner = index.checked_sub(1).and_then(|i| self.frames.get(i));
        let sp = frame.registers.read(crate::arch::x86_64::RSP).map(Addr).or(inner.and_then(|f| f.cfa))?;
        let cfa = frame.cfa?;
        (sp < cfa && cfa.0 - sp.0 <= MAX_FRAME).then_some((sp, cfa))
    }

    /// Where the function of a frame begins: by its symbol, else (stripped) by its unwind entry.
    fn function_start(&self, frame: &Frame) -> Option<Addr> {
        if let Some((_, into)) = self.view.snapshot.function_at(frame.pc) {
            return Some(Addr(frame.pc.addr.0.wrapping_sub(into)));
        }
        let image = self.view.snapshot.module_at(frame.pc.lookup())?.1.image().ok()?;
        let range = image.elf.frame_description_at(image.bias.to_vaddr(frame.pc.lookup()))?;
        Some(image.bias.to_addr(crate::units::Vaddr(range.start)))
    }

    /// The name of the function of a frame.
    pub fn name(&self, ix: FrameIx) -> Option<String> {
        let frame = self.frames.get(usize::try_from(ix.0).ok()?)?;
        self.function(frame).map(|n| n.to_string())
    }
}

/// The value that the instruction at the end of `code`, which ends at `end`, puts into `rdi`: `mov rdi, REG` of a
/// callee-saved register, or `lea rdi, [rip + disp32]`.
fn first_argument_set_by(code: &[u8], end: Addr, read: &dyn Fn(Reg) -> Option<u64>) -> Option<Addr> {
    if let [.., 0x48, 0x8d, 0x3d, a, b, c, d] = code {
        return Some(end.offset(i64::from(i32::from_le_bytes([*a, *b, *c, *d]))));
    }
    let reg = match code {
        [.., 0x48, 0x89, 0xdf] => RBX,
        [.., 0x48, 0x89, 0xef] => RBP,
        [.., 0x4c, 0x89, 0xe7] => R12,
        [.., 0x4c, 0x89, 0xef] => R13,
        [.., 0x4c, 0x89, 0xf7] => R14,
        [.., 0x4c, 0x89, 0xff] => R15,
        _ => return None,
    };
    read(reg).map(Addr)
}

/// Bytes of a function looked through.
const MAX_CODE: usize = 16 * 1024;

/// Whether `code` at `start` has a `lea r64, [rip + disp32]` (REX.W 8d, mod 0, rm 5) or a `mov r32, imm32` (b8+r, in a
/// program linked low) that gives `object`.
fn computes_address(code: &[u8], start: Addr, object: Addr) -> bool {
    code.windows(7).enumerate().any(|(i, w)| match w {
        [0x48 | 0x4c, 0x8d, modrm, d @ ..] if modrm & 0xc7 == 0x05 => {
            let Ok(disp) = <[u8; 4]>::try_from(d) else { return false };
            let next = start.0.wrapping_add(i as u64).wrapping_add(7);
            next.wrapping_add_signed(i64::from(i32::from_le_bytes(disp))) == object.0
        }
        [0xb8..=0xbf, a, b, c, d, ..] => u64::from(u32::from_le_bytes([*a, *b, *c, *d])) == object.0,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_s_files_are_known_by_name() {
        for name in
            ["libc.so.6", "libc-2.31.so", "ld-linux-x86-64.so.2", "ld-2.31.so", "libpthread.so.0", "libdl-2.31.so"]
        {
            assert!(is_glibc(name), "{name}");
        }
        for name in
            ["libcrypt.so.1", "libcap.so.2", "ld-musl-x86_64.so.1", "libc++.so.1", "libdlfaker.so", "ld.so.conf"]
        {
            assert!(!is_glibc(name), "{name}");
        }
    }

    #[test]
    fn the_instruction_before_a_call_says_what_the_argument_is() {
        let registers = |reg| (reg == R12).then_some(0x5000);
        let end = Addr(0x40_1000);
        assert_eq!(first_argument_set_by(&[0x90, 0x4c, 0x89, 0xe7], end, &registers), Some(Addr(0x5000)));
        assert_eq!(first_argument_set_by(&[0x48, 0x8d, 0x3d, 0x10, 0, 0, 0], end, &registers), Some(Addr(0x40_1010)));
        assert_eq!(first_argument_set_by(&[0x48, 0x89, 0xdf], end, &registers), None, "rbx is not known");
        assert_eq!(first_argument_set_by(&[0x4c, 0x89, 0xe6], end, &registers), None, "that is rsi");
    }

    #[test]
    fn a_global_s_address_is_read_from_code() {
        let start = Addr(0x40_1000);
        // lea rdi, [rip + 0x2000]; call …
        let mut code = vec![0x90, 0x48, 0x8d, 0x3d, 0, 0x20, 0, 0, 0xe8, 0, 0, 0, 0];
        assert!(computes_address(&code, start, Addr(0x40_1000 + 8 + 0x2000)));
        assert!(!computes_address(&code, start, Addr(0x40_1000 + 0x2000)));
        // mov edi, 0x404080
        code = vec![0xbf, 0x80, 0x40, 0x40, 0, 0xe8, 0, 0, 0, 0];
        assert!(computes_address(&code, start, Addr(0x40_4080)));
    }
}
