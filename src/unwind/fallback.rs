//! The caller's frame where call frame information is missing: a saved frame pointer, or a word that looks like a return
//! address. What these find is marked by its [`Trust`](super::Trust).

use super::window::Window;
use crate::arch::{RegisterFile, x86_64};
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::units::Addr;

/// Words of the stack looked at for a return address at most.
const SCAN_WORDS: u64 = 512;

/// Bytes of code looked at before a return address: the longest indirect call (`call *disp32(base,index,scale)`, with
/// a REX prefix) has 8.
const CALL_BYTES: usize = 8;

/// Where code and stacks lie.
pub(super) struct Ground<'a> {
    pub snapshot: &'a Snapshot,
    pub memory: &'a dyn Memory,
}

/// What stands just before an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Before {
    /// A call instruction.
    Call,
    /// Something else, or no code at all.
    Other,
    /// Code whose bytes cannot be had (generated code, of a target that runs again).
    Unknown,
}

impl Ground<'_> {
    /// Whether code may run at `at`.
    pub(super) fn is_executable(&self, at: u64) -> bool {
        self.snapshot.mapping_at(Addr(at)).is_some_and(|m| m.permissions.execute)
    }

    /// One past the last byte of the mapping `at` lies in.
    fn end_of_mapping(&self, at: u64) -> Option<u64> {
        self.snapshot.mapping_at(Addr(at)).map(|m| m.end.0)
    }

    /// What stands before the return address `at`.
    pub(super) fn before(&self, at: u64) -> Before {
        if !self.is_executable(at.wrapping_sub(1)) {
            return Before::Other;
        }
        let mut code = [0; CALL_BYTES];
        let Some(from) = at.checked_sub(CALL_BYTES as u64) else { return Before::Other };
        match self.memory.read(Addr(from), &mut code) {
            Ok(()) if ends_in_call(&code) => Before::Call,
            Ok(()) => Before::Other,
            Err(_) => Before::Unknown,
        }
    }
}

/// Whether these bytes may end in a call instruction: `E8 rel32`, or `FF /2` in any of its lengths.
fn ends_in_call(code: &[u8; CALL_BYTES]) -> bool {
    let back = |n: usize| code.get(CALL_BYTES.wrapping_sub(n)).copied();
    if back(5) == Some(0xe8) {
        return true;
    }
    (2..=7).any(|len| {
        back(len) == Some(0xff) && back(len - 1).and_then(|m| indirect_length(m, back(len - 2))) == Some(len)
    })
}

/// Bytes of `FF /2` with this ModRM byte (and the byte after it), or `None` when it is no near call.
fn indirect_length(modrm: u8, sib: Option<u8>) -> Option<usize> {
    if modrm >> 3 & 7 != 2 {
        return None;
    }
    let (mode, base) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(2);
    }
    let with_sib = base == 4;
    let displacement = match mode {
        0 if base == 5 => 4,
        0 if with_sib && sib? & 7 == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(2 + usize::from(with_sib) + displacement)
}

/// The caller of a frame whose pc is no code: a call went through a null or wild pointer, and the return address is still
/// on top of the stack. Callee-saved registers are untouched.
pub(super) fn through_wild_pointer(
    ground: &Ground<'_>,
    registers: &RegisterFile,
    stack: &mut Window<'_>,
) -> Option<RegisterFile> {
    let sp = registers.read(x86_64::RSP)?;
    let pc = stack.word(sp)?;
    if !ground.is_executable(pc) || ground.before(pc) == Before::Other {
        return None;
    }
    let mut caller = RegisterFile::default();
    for reg in x86_64::CALLEE_SAVED {
        if let Some(value) = registers.read(reg) {
            caller.write(reg, value);
        }
    }
    caller.write(x86_64::RSP, sp.checked_add(8)?);
    caller.write(x86_64::RIP, pc);
    Some(caller)
}

/// The caller by the frame pointer: `rbp` points at the saved `rbp`, the return address lies above it.
pub(super) fn by_frame_pointer(
    ground: &Ground<'_>,
    registers: &RegisterFile,
    stack: &mut Window<'_>,
) -> Option<RegisterFile> {
    let sp = registers.read(x86_64::RSP)?;
    let fp = registers.read(x86_64::RBP)?;
    // within the same stack, above all that is live
    let end = ground.end_of_mapping(sp)?;
    if fp % 8 != 0 || fp < sp || fp.checked_add(16)? > end {
        return None;
    }
    let saved = stack.word(fp)?;
    let pc = stack.word(fp + 8)?;
    if !ground.is_executable(pc) || ground.before(pc) == Before::Other {
        return None;
    }
    // the outer frame lies higher; 0 marks the outermost (System V ABI, 3.4.1). Anything else is no frame pointer
    // of the caller, which may use rbp for other things: then only the return address had to be right
    let mut caller = RegisterFile::default();
    caller.write(x86_64::RBP, saved);
    caller.write(x86_64::RSP, fp + 16);
    caller.write(x86_64::RIP, pc);
    Some(caller)
}

/// The caller by the first word, from the stack pointer up, that lies just behind a call.
pub(super) fn by_scan(ground: &Ground<'_>, registers: &RegisterFile, stack: &mut Window<'_>) -> Option<RegisterFile> {
    let sp = registers.read(x86_64::RSP)?.checked_next_multiple_of(8)?;
    let end = ground.end_of_mapping(sp)?.min(sp.saturating_add(SCAN_WORDS * 8));
    for at in (sp..end).step_by(8) {
        let pc = stack.word(at)?;
        if ground.is_executable(pc) && ground.before(pc) == Before::Call {
            let mut caller = RegisterFile::default();
            caller.write(x86_64::RSP, at.checked_add(8)?);
            caller.write(x86_64::RIP, pc);
            return Some(caller);
        }
    }
    None
}

/// `mov $15, %rax; syscall`: `rt_sigreturn`, as every C library's signal trampoline writes it.
pub(super) const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// `struct ucontext`: where `uc_mcontext` begins (Linux `include/uapi/asm-generic/ucontext.h`), bytes.
const MCONTEXT: u64 = 40;

/// The order of `struct sigcontext` (Linux `arch/x86/include/uapi/asm/sigcontext.h`).
const SIGCONTEXT: [crate::arch::Reg; 17] = [
    x86_64::R8,
    x86_64::R9,
    x86_64::R10,
    x86_64::R11,
    x86_64::R12,
    x86_64::R13,
    x86_64::R14,
    x86_64::R15,
    x86_64::RDI,
    x86_64::RSI,
    x86_64::RBP,
    x86_64::RBX,
    x86_64::RDX,
    x86_64::RAX,
    x86_64::RCX,
    x86_64::RSP,
    x86_64::RIP,
];

/// Where the kernel saved the interrupted stack pointer, by the stack pointer in the signal trampoline's frame.
pub(super) fn interrupted_sp_slot(sp: u64) -> Option<u64> {
    let i = SIGCONTEXT.iter().position(|r| *r == x86_64::RSP)?;
    sp.checked_add(MCONTEXT + 8 * i as u64)
}

/// The interrupted frame, where `registers` stand at a signal trampoline that has no call frame information (musl, Go,
/// hand-written ones): its code is known, and the kernel put a `ucontext` on top of the stack.
pub(super) fn by_signal_frame(
    ground: &Ground<'_>,
    registers: &RegisterFile,
    stack: &mut Window<'_>,
) -> Option<RegisterFile> {
    let pc = registers.read(x86_64::RIP)?;
    let mut code = [0; SIGRETURN.len()];
    ground.memory.read(Addr(pc), &mut code).ok()?;
    if code != SIGRETURN {
        return None;
    }
    let sp = registers.read(x86_64::RSP)?;
    let mut interrupted = RegisterFile::default();
    for (i, reg) in (0u64..).zip(SIGCONTEXT) {
        let at = sp.checked_add(MCONTEXT + i * 8)?;
        interrupted.write(reg, stack.word(at)?);
    }
    Some(interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(bytes: &[u8]) -> bool {
        let mut code = [0x90; CALL_BYTES];
        code[CALL_BYTES - bytes.len()..].copy_from_slice(bytes);
        ends_in_call(&code)
    }

    #[test]
    fn calls_of_every_length_are_known() {
        assert!(call(&[0xe8, 1, 2, 3, 4]));
        assert!(call(&[0xff, 0xd0])); // call *%rax
        assert!(call(&[0x41, 0xff, 0xd4])); // call *%r12
        assert!(call(&[0xff, 0x14, 0x24])); // call *(%rsp)
        assert!(call(&[0xff, 0x50, 0x18])); // call *0x18(%rax)
        assert!(call(&[0xff, 0x15, 1, 2, 3, 4])); // call *x(%rip)
        assert!(call(&[0xff, 0x93, 1, 2, 3, 4])); // call *x(%rbx)
        assert!(call(&[0xff, 0x14, 0xc5, 1, 2, 3, 4])); // call *x(,%rax,8)
        assert!(call(&[0x42, 0xff, 0x94, 0xc0, 1, 2, 3, 4])); // call *x(%rax,%r8,8)
    }

    #[test]
    fn jumps_and_other_things_are_none() {
        assert!(!call(&[0xff, 0xe0])); // jmp *%rax
        assert!(!call(&[0xe9, 1, 2, 3, 4]));
        assert!(!call(&[0xff, 0x50])); // cut short
        assert!(!call(&[0xc3]));
    }
}
