//! x86-64: DWARF register numbers (System V ABI, figure 3.36), `user_regs_struct`, system call registers.

use super::{Arch, Reg, RegisterFile, Syscall, ThreadRegisters};

/// `rax`, the result of a call.
pub const RAX: Reg = Reg(0);
/// `rdx`.
pub const RDX: Reg = Reg(1);
/// `rcx`.
pub const RCX: Reg = Reg(2);
/// `rbx`, callee-saved.
pub const RBX: Reg = Reg(3);
/// `rsi`.
pub const RSI: Reg = Reg(4);
/// `rdi`, the first argument.
pub const RDI: Reg = Reg(5);
/// `rbp`, callee-saved, the frame pointer where there is one.
pub const RBP: Reg = Reg(6);
/// The stack pointer.
pub const RSP: Reg = Reg(7);
/// `r8`.
pub const R8: Reg = Reg(8);
/// `r9`.
pub const R9: Reg = Reg(9);
/// `r10`.
pub const R10: Reg = Reg(10);
/// `r11`.
pub const R11: Reg = Reg(11);
/// `r12`, callee-saved.
pub const R12: Reg = Reg(12);
/// `r13`, callee-saved.
pub const R13: Reg = Reg(13);
/// `r14`, callee-saved.
pub const R14: Reg = Reg(14);
/// `r15`, callee-saved.
pub const R15: Reg = Reg(15);
/// The return address column, which holds the program counter.
pub const RIP: Reg = Reg(16);

/// The registers a called function must keep.
pub const CALLEE_SAVED: [Reg; 6] = [RBX, RBP, R12, R13, R14, R15];

/// Bytes of `user_regs_struct` (Linux `arch/x86/include/asm/user_64.h`): 27 words.
pub const USER_REGS: usize = 27 * 8;

/// Bytes of `elf_prstatus` before its register set (Linux `include/linux/elfcore.h`).
pub const PRSTATUS_HEADER: usize = 112;

/// The order of `user_regs_struct`, as DWARF registers where they have a number.
const ORDER: [Option<Reg>; 27] = [
    Some(R15),
    Some(R14),
    Some(R13),
    Some(R12),
    Some(RBP),
    Some(RBX),
    Some(R11),
    Some(R10),
    Some(R9),
    Some(R8),
    Some(RAX),
    Some(RCX),
    Some(RDX),
    Some(RSI),
    Some(RDI),
    None, // orig_rax
    Some(RIP),
    None, // cs
    None, // eflags
    Some(RSP),
    None, // ss
    None, // fs_base
    None, // gs_base
    None,
    None,
    None,
    None,
];
const ORIG_RAX: usize = 15;
const FS_BASE: usize = 21;

/// What debuggers call the words of `user_regs_struct`, in its order.
pub const WORD_NAMES: [&str; 27] = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
];

/// Registers from words a debugger told, in the order of `user_regs_struct`; what it did not tell is unknown.
///
/// `None` without a program counter or a stack pointer: such a thread cannot be unwound.
#[must_use]
pub fn from_words(words: &[Option<u64>; 27]) -> Option<ThreadRegisters> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.unwrap_or(0).to_le_bytes()).collect();
    let mut registers = parse_user_regs(&bytes)?;
    for (reg, word) in ORDER.iter().zip(words) {
        if let (Some(reg), None) = (reg, word) {
            registers.file.forget(*reg);
        }
    }
    registers.tls_base = words.get(FS_BASE).copied().flatten();
    registers.syscall_register = words.get(ORIG_RAX).copied().flatten().map(u64::cast_signed);
    (registers.pc().is_some() && registers.sp().is_some()).then_some(registers)
}

/// Reads the bytes `PTRACE_GETREGSET` gives, which a core's `NT_PRSTATUS` holds after its header.
///
/// `None` when there are fewer than [`USER_REGS`] bytes (a 32-bit thread gives 68).
#[must_use]
pub fn parse_user_regs(bytes: &[u8]) -> Option<ThreadRegisters> {
    let bytes = bytes.get(..USER_REGS)?;
    let mut file = RegisterFile::default();
    let mut orig = None;
    let mut fs = None;
    for (i, word) in bytes.chunks_exact(8).enumerate() {
        let value = u64::from_le_bytes(word.try_into().ok()?);
        match (i, ORDER.get(i).copied().flatten()) {
            (_, Some(reg)) => file.write(reg, value),
            (ORIG_RAX, None) => orig = Some(i64::from_le_bytes(word.try_into().ok()?)),
            (FS_BASE, None) => fs = Some(value),
            _ => {}
        }
    }
    Some(ThreadRegisters { arch: Arch::X86_64, file, tls_base: fs, syscall_register: orig, raw: bytes.to_vec() })
}

/// `restart_syscall`, as which interrupted timed waits are entered again.
pub const RESTART_SYSCALL: u64 = 219;

/// `futex`.
pub const SYS_FUTEX: u64 = 202;

/// `write`, and `sendto`, which takes its buffer and length in the same arguments.
const SYS_WRITE: u64 = 1;
const SYS_SENDTO: u64 = 44;

/// The system call a stopped thread sleeps in, or `None` when it was not in one.
///
/// A sleeping thread shows `orig_rax` ≥ 0 and in `rax` one of the kernel's restart codes, or −4 (`EINTR`) for the calls
/// that are not restarted. After an earlier interruption the number reads `restart_syscall`: `number` is then `None`
/// (the arguments still stand) until someone who can read the code before `rip` finds the original.
/// Source: Linux `arch/x86/kernel/signal.c`, `include/linux/errno.h`; seen on 6.18 for 48 blocking calls.
#[must_use]
pub fn sleeping_syscall(registers: &ThreadRegisters) -> Option<Syscall> {
    let rax = registers.file.read(RAX)?;
    let number = match u64::try_from(registers.syscall_register?) {
        Ok(number) if matches!(rax as i64, -512 | -513 | -514 | -516 | -4) => number,
        _ if on_its_way_back(registers) => rax,
        _ => return None,
    };
    Some(Syscall { number: (number != RESTART_SYSCALL).then_some(number), args: arguments(registers)? })
}

/// The write that a stop ended: a thread asleep for want of room in a pipe or socket comes back with what it had written by
/// then, less than it was to write. The arguments are those of the rest.
///
/// A descriptor that does not block gives the same: the caller knows whether the thread slept.
#[must_use]
pub fn interrupted_write(registers: &ThreadRegisters) -> Option<Syscall> {
    let number = u64::try_from(registers.syscall_register?).ok()?;
    let mut args = arguments(registers)?;
    let [_, at, left, ..] = &mut args;
    let written = registers.file.read(RAX).filter(|n| (1..*left).contains(n))?;
    (*at, *left) = (at.wrapping_add(written), *left - written);
    [SYS_WRITE, SYS_SENDTO].contains(&number).then_some(Syscall { number: Some(number), args })
}

/// The same where nobody tells the number: in `rax` stands a restart code, and `code`, the two bytes before the program
/// counter, is a `syscall` instruction.
#[must_use]
pub fn sleeping_unnumbered(registers: &ThreadRegisters, code: [u8; 2]) -> Option<Syscall> {
    let restarts = matches!(registers.file.read(RAX)? as i64, -512 | -513 | -514 | -516 | -4);
    Some(Syscall { number: None, args: arguments(registers)? }).filter(|_| restarts && code == [0x0f, 0x05])
}

fn arguments(registers: &ThreadRegisters) -> Option<[u64; 6]> {
    let mut args = [0; 6];
    for (slot, reg) in args.iter_mut().zip([RDI, RSI, RDX, R10, R8, R9]) {
        *slot = registers.file.read(reg)?;
    }
    Some(args)
}

/// How many bytes before a `syscall` instruction [`number_before`] wants to see.
pub const BYTES_BEFORE_SYSCALL: usize = 24;

/// The system call number a wrapper loads just before its `syscall` instruction: `mov eax, imm32` or `xor eax, eax`.
///
/// `code` ends with the two bytes of `syscall`. The nearest load wins. Of the `syscall` instructions of glibc 2.36, 491 of
/// 529 have one within [`BYTES_BEFORE_SYSCALL`] bytes.
#[must_use]
pub fn number_before(code: &[u8]) -> Option<u64> {
    let before = code.strip_suffix(&[0x0f, 0x05])?;
    (0..before.len()).rev().find_map(|at| match before.get(at..)? {
        [0xb8, a, b, 0, 0, ..] => Some(u64::from(u16::from_le_bytes([*a, *b]))).filter(|n| *n < 1024),
        [0x31, 0xc0, ..] => Some(0),
        _ => None,
    })
}

/// Calls the kernel enters again by itself after a stop: the number it puts back into `rax`.
const ENTERED_AGAIN: [u64; 14] = [0, 1, 7, 34, 35, 45, 47, 61, 202, RESTART_SYSCALL, 230, 247, 270, 271];

/// Whether the thread was stopped, let go, and stopped again before it could enter its call anew: the kernel has set `rip`
/// back onto the `syscall` instruction, while `rcx` still holds where that instruction returned to.
/// Source: Linux `arch/x86/kernel/signal.c`, `arch_do_signal_or_restart`; met when two looks follow one another closely.
fn on_its_way_back(registers: &ThreadRegisters) -> bool {
    let read = |reg| registers.file.read(reg);
    let rewound = read(RIP).zip(read(RCX)).is_some_and(|(rip, rcx)| rip.wrapping_add(2) == rcx);
    rewound && read(RAX).is_some_and(|rax| ENTERED_AGAIN.contains(&rax))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs(set: &[(usize, u64)]) -> ThreadRegisters {
        let mut bytes = vec![0u8; USER_REGS];
        for (i, v) in set {
            bytes[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
        }
        parse_user_regs(&bytes).unwrap()
    }

    #[test]
    fn words_land_in_their_registers() {
        let r = regs(&[(14, 0x1000), (16, 0x401000), (19, 0x7ffe0), (21, 0x7f00), (15, 202)]);
        assert_eq!(r.file.read(RDI), Some(0x1000));
        assert_eq!(r.pc(), Some(0x401000));
        assert_eq!(r.sp(), Some(0x7ffe0));
        assert_eq!(r.tls_base, Some(0x7f00));
        assert_eq!(r.syscall_register, Some(202));
    }

    #[test]
    fn a_short_register_set_is_refused() {
        assert!(parse_user_regs(&[0; 68]).is_none());
    }

    #[test]
    fn only_restart_codes_mean_asleep() {
        let asleep = regs(&[(15, 202), (10, (-512i64) as u64), (14, 0xabc)]);
        let call = sleeping_syscall(&asleep).unwrap();
        assert_eq!((call.number, call.args[0]), (Some(202), 0xabc));
        assert!(sleeping_syscall(&regs(&[(15, 202), (10, 0)])).is_none());
        assert!(sleeping_syscall(&regs(&[(15, u64::MAX), (10, (-512i64) as u64)])).is_none());
    }

    #[test]
    fn a_write_that_was_cut_short_goes_on_with_the_rest() {
        // 4096 of 10,000 bytes at 0x5000 to fd 4
        let cut = regs(&[(15, 1), (10, 4096), (14, 4), (13, 0x5000), (12, 10_000)]);
        assert!(sleeping_syscall(&cut).is_none());
        let call = interrupted_write(&cut).unwrap();
        assert_eq!((call.number, &call.args[..3]), (Some(1), &[4, 0x6000, 5904][..]));
        let done = [(15, 1), (10, 10_000), (14, 4), (13, 0x5000), (12, 10_000)];
        assert!(interrupted_write(&regs(&done)).is_none());
        assert!(interrupted_write(&regs(&[(15, 0), (10, 4096), (14, 4), (12, 10_000)])).is_none(), "a read");
        assert!(interrupted_write(&regs(&[(15, 1), (10, -32i64 as u64), (14, 4), (12, 10_000)])).is_none());
    }

    #[test]
    fn a_restarted_call_has_no_number() {
        let again = regs(&[(15, 219), (10, (-516i64) as u64), (14, 7)]);
        let call = sleeping_syscall(&again).unwrap();
        assert_eq!((call.number, call.args[0]), (None, 7));
    }
    #[test]
    fn a_wrapper_tells_its_number() {
        let poll = [0x48, 0x83, 0xec, 0x18, 0xb8, 0x07, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(number_before(&poll), Some(7));
        assert_eq!(number_before(&[0x31, 0xc0, 0x0f, 0x05]), Some(0));
        assert_eq!(number_before(&[0xb8, 0x07, 0, 0, 0, 0xc3]), None, "no syscall instruction");
        assert_eq!(number_before(&[0x89, 0xc8, 0x0f, 0x05]), None, "syscall(2) moves it from a register");
    }

    #[test]
    fn a_thread_on_its_way_back_into_its_call_is_still_in_it() {
        // rip 0x401000 stands on the instruction, rcx behind it, orig_rax is an interrupt's
        let back = regs(&[(15, (-1i64) as u64), (10, 202), (16, 0x40_1000), (11, 0x40_1002), (14, 0xabc)]);
        let call = sleeping_syscall(&back).unwrap();
        assert_eq!((call.number, call.args[0]), (Some(202), 0xabc));
        let running = regs(&[(15, (-1i64) as u64), (10, 202), (16, 0x40_1000), (11, 0x1234)]);
        assert!(sleeping_syscall(&running).is_none());
        let yielding = regs(&[(15, (-1i64) as u64), (10, 24), (16, 0x40_1000), (11, 0x40_1002)]);
        assert!(sleeping_syscall(&yielding).is_none(), "a loop around a call that does not sleep");
    }
}
