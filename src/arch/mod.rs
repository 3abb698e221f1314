//! CPUs: register files, DWARF register numbers, register-set bytes, system call arguments. One file per CPU.
//!
//! Knows nothing of processes, memory or files. Only x86-64 is read today; [`Arch::Aarch64`] and others are named so
//! that a refusal can say what it met.

pub mod code;
pub mod x86_64;

/// A CPU a process may run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Arch {
    /// AMD64 / Intel 64, 64-bit processes.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Arch {
    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }
}

/// A register by its DWARF number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reg(pub u16);

/// How many registers a [`RegisterFile`] has room for: DWARF numbers `0..REGISTERS`.
pub const REGISTERS: usize = 17;

/// The general registers of one frame. A register the unwinder could not recover is *unknown*, never zero.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct RegisterFile {
    values: [u64; REGISTERS],
    known: u32,
}

impl RegisterFile {
    /// The value of `reg`, or `None` where it is unknown.
    #[must_use]
    pub fn read(&self, reg: Reg) -> Option<u64> {
        let i = usize::from(reg.0);
        let value = *self.values.get(i)?;
        (self.known & (1 << i) != 0).then_some(value)
    }

    /// Sets `reg`; numbers beyond the file are ignored.
    pub fn write(&mut self, reg: Reg, value: u64) {
        let i = usize::from(reg.0);
        if let Some(slot) = self.values.get_mut(i) {
            *slot = value;
            self.known |= 1 << i;
        }
    }

    /// Makes `reg` unknown.
    pub fn forget(&mut self, reg: Reg) {
        let i = usize::from(reg.0);
        if let Some(slot) = self.values.get_mut(i) {
            *slot = 0;
            self.known &= !(1 << i);
        }
    }

    /// Every known register with its value, in the order of the DWARF numbers.
    pub fn known(&self) -> impl Iterator<Item = (Reg, u64)> + '_ {
        self.values
            .iter()
            .enumerate()
            .filter(|(i, _)| self.known & (1 << i) != 0)
            .filter_map(|(i, v)| Some((Reg(u16::try_from(i).ok()?), *v)))
    }
}

impl std::fmt::Debug for RegisterFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        for (reg, value) in self.known() {
            map.entry(&reg.0, &format_args!("{value:#x}"));
        }
        map.finish()
    }
}

/// One thread's registers at the instant of the stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadRegisters {
    /// The CPU.
    pub arch: Arch,
    /// General registers, the program counter among them.
    pub file: RegisterFile,
    /// Base of thread-local storage (`fs_base` on x86-64), which with glibc is the `pthread_t`.
    pub tls_base: Option<u64>,
    /// The system call register set, where the kernel gives it: `orig_rax` on x86-64 (−1 outside a system call).
    pub syscall_register: Option<i64>,
    /// The very bytes the kernel gave (`user_regs_struct`), as `PTRACE_GETREGSET` and `NT_PRSTATUS` hold them.
    pub raw: Vec<u8>,
}

impl ThreadRegisters {
    /// No register known.
    #[must_use]
    pub fn unknown() -> ThreadRegisters {
        let (file, raw) = (RegisterFile::default(), Vec::new());
        ThreadRegisters { arch: Arch::X86_64, file, tls_base: None, syscall_register: None, raw }
    }

    /// The program counter.
    #[must_use]
    pub fn pc(&self) -> Option<u64> {
        self.file.read(x86_64::RIP)
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> Option<u64> {
        self.file.read(x86_64::RSP)
    }
}

/// The system call a thread sleeps in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Syscall {
    /// The number in this CPU's table. `None` where only a restart is known (`restart_syscall`, and the original
    /// number could not be recovered).
    pub number: Option<u64>,
    /// The six arguments, in the order of the call.
    pub args: [u64; 6],
}
