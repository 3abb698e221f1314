//! Which instructions matter: what changes memory that other threads look at, and what asks the kernel.

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::io::IoSliceMut;

/// What an instruction is, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// With a `lock` prefix, or an `xchg` with memory.
    Atomic,
    /// `syscall`.
    Syscall,
    /// Any other.
    Plain,
}

/// The instructions met so far.
#[derive(Default)]
pub struct Code(HashMap<(i32, u64), Class>);

impl Code {
    /// The class of the instruction at `at`, which is executed next.
    pub fn class(&mut self, pid: i32, at: u64) -> Class {
        *self.0.entry((pid, at)).or_insert_with(|| {
            let mut bytes = [0; 16];
            // an instruction near the end of a mapping is shorter
            let whole = read(pid, at, &mut bytes);
            if !whole {
                let inside = usize::try_from(4096 - at % 4096).unwrap_or(16).min(16);
                read(pid, at, &mut bytes[..inside]);
            }
            classify(&bytes)
        })
    }

    /// Code was loaded or unloaded.
    pub fn forget(&mut self, pid: i32) {
        self.0.retain(|(p, _), _| *p != pid);
    }
}

/// Reads memory of a process: all of it, or false.
pub fn read(pid: i32, at: u64, bytes: &mut [u8]) -> bool {
    let len = bytes.len();
    let base = usize::try_from(at).unwrap_or(0);
    let got = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(bytes)], &[RemoteIoVec { base, len }]);
    got == Ok(len)
}

/// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapters 2 and 3.
fn classify(bytes: &[u8; 16]) -> Class {
    let mut rest = bytes.as_slice();
    while let [prefix, after @ ..] = rest {
        match prefix {
            0xf0 => return Class::Atomic,
            0x66 | 0x67 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x40..=0x4f => rest = after,
            _ => break,
        }
    }
    match rest {
        [0x0f, 0x05, ..] => Class::Syscall,
        // with a register as the other operand it is a plain exchange
        [0x86 | 0x87, modrm, ..] if *modrm < 0xc0 => Class::Atomic,
        _ => Class::Plain,
    }
}

#[test]
fn instructions_are_told_apart() {
    let class = |code: &[u8]| {
        let mut bytes = [0x90; 16];
        bytes[..code.len()].copy_from_slice(code);
        classify(&bytes)
    };
    assert_eq!(class(&[0xf0, 0x0f, 0xb1, 0x17]), Class::Atomic); // lock cmpxchg %edx,(%rdi)
    assert_eq!(class(&[0x64, 0xf0, 0xff, 0x0f]), Class::Atomic);
    assert_eq!(class(&[0x87, 0x07]), Class::Atomic); // xchg %eax,(%rdi)
    assert_eq!(class(&[0x48, 0x87, 0xc3]), Class::Plain); // xchg %rax,%rbx
    assert_eq!(class(&[0x0f, 0x05]), Class::Syscall);
    assert_eq!(class(&[0x48, 0x89, 0xf0]), Class::Plain);
}
