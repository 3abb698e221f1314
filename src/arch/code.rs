//! What a piece of x86-64 code does: a few instructions are followed with the register values of a frame, along every path, as
//! far as they are known. Made for landing pads and for the instructions before a call; no more of the CPU is imitated than
//! they need.

use super::x86_64::{CALLEE_SAVED, R8, R9, R10, R11, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
use super::{Reg, RegisterFile};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeMap;
use std::ops::Range;

/// Reads the target for [`follow`]: code and data.
pub trait Bytes {
    /// Code bytes from `at` on: 15 where they can be had, fewer at an end.
    fn code(&self, at: u64) -> Vec<u8>;
    /// The 8 bytes at `at`.
    fn word(&self, at: u64) -> Option<u64>;
}

/// Something code does that matters here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Act {
    /// It calls, or jumps to another function.
    Call {
        /// The called address; or where the pointer to it lies, for an indirect call.
        to: Callee,
        /// The first argument.
        first: Option<u64>,
    },
    /// It takes something away from a word in one step that other CPUs see whole: `xchg` with 0, `cmpxchg` to 0, or `dec`,
    /// `sub`, `and`, `xadd` with the `lock` prefix. So locks are given back.
    Releases {
        /// Where.
        at: u64,
    },
    /// It changes a word in one such step in any other way: so locks are taken.
    Takes {
        /// Where.
        at: u64,
    },
}

/// Whom a call reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Callee {
    /// The function at this address.
    At(u64),
    /// The one whose address lies here.
    Through(u64),
    /// Nobody knows.
    Unknown,
}

/// What a landing pad, or any other piece of code, does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Doing {
    /// The acts of each path, in their order.
    pub paths: Vec<Vec<Act>>,
    /// Whether every path was followed to its end.
    pub whole: bool,
}

/// With what [`follow`] begins.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// It is a landing pad: `rax` is the exception.
    Exception,
    /// It is a function that was called with this first argument.
    Called(u64),
}

/// A value of the little that is imitated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Known(u64),
    /// The exception that is passing: whoever is called with it does not come back here.
    Exception,
}

/// Instructions followed in all, and paths.
const MAX_STEPS: usize = 600;
const MAX_PATHS: usize = 32;

#[derive(Clone)]
struct State {
    registers: [Option<Value>; 16],
    /// What was stored, by address: it stands before memory.
    stored: BTreeMap<u64, Option<Value>>,
    /// Whether the last comparison found equality, where known.
    equal: Option<bool>,
    done: Vec<Act>,
}

/// Follows the code from `from` until it leaves `within`, returns, or hands the exception on. `registers`: the frame's.
#[must_use]
pub fn follow(bytes: &dyn Bytes, from: u64, within: &Range<u64>, registers: &RegisterFile, entry: Entry) -> Doing {
    let mut state = State { registers: [None; 16], stored: BTreeMap::new(), equal: None, done: Vec::new() };
    for reg in CALLEE_SAVED.into_iter().chain([RSP]) {
        state.write(reg, registers.read(reg).map(Value::Known));
    }
    match entry {
        Entry::Exception => state.write(RAX, Some(Value::Exception)),
        Entry::Called(first) => {
            // beneath everything the caller has
            state.write(RSP, registers.read(RSP).map(|sp| Value::Known(sp.wrapping_sub(8))));
            state.write(RDI, Some(Value::Known(first)));
        }
    }
    let mut open = vec![(from, state)];
    let mut doing = Doing::default();
    let mut steps = 0;
    while let Some((at, state)) = open.pop() {
        if doing.paths.len() >= MAX_PATHS {
            return doing;
        }
        let exception = matches!(entry, Entry::Exception);
        path(bytes, at, within, exception, state, &mut steps, &mut open, &mut doing.paths);
    }
    doing.whole = steps < MAX_STEPS;
    doing
}

/// Follows one path to its end; branches that may go either way are put into `open`.
#[allow(clippy::too_many_arguments)] // where the path is, and what all paths share
fn path(
    bytes: &dyn Bytes,
    mut at: u64,
    within: &Range<u64>,
    exception: bool,
    mut state: State,
    steps: &mut usize,
    open: &mut Vec<(u64, State)>,
    paths: &mut Vec<Vec<Act>>,
) {
    loop {
        *steps += 1;
        let code = bytes.code(at);
        if *steps >= MAX_STEPS || !(exception || within.contains(&at)) || code.is_empty() {
            break;
        }
        let instruction = Decoder::with_ip(64, &code, at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            break;
        }
        let next = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next => {
                state.step(bytes, &instruction);
                at = next;
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                let first = state.read(RDI);
                state.call(bytes, &instruction);
                // the unwinder, or the start of a handler
                if first == Some(Value::Exception) {
                    break;
                }
                at = next;
            }
            FlowControl::UnconditionalBranch => {
                let to = instruction.near_branch_target();
                // compilers put what is seldom run, landing pads above all, far from the rest of a function
                let part = exception && state.read(RDI) != Some(Value::Exception);
                if !within.contains(&to) && !part {
                    state.call(bytes, &instruction);
                    break;
                }
                at = to;
            }
            FlowControl::ConditionalBranch => {
                let to = instruction.near_branch_target();
                match (instruction.mnemonic(), state.equal) {
                    (Mnemonic::Je, Some(true)) | (Mnemonic::Jne, Some(false)) => at = to,
                    (Mnemonic::Je | Mnemonic::Jne, Some(_)) => at = next,
                    _ => {
                        if open.len() < MAX_PATHS {
                            open.push((to, state.clone()));
                        }
                        at = next;
                    }
                }
            }
            FlowControl::IndirectBranch => {
                state.call(bytes, &instruction);
                break;
            }
            FlowControl::Return | FlowControl::Interrupt | FlowControl::XbeginXabortXend | FlowControl::Exception => {
                break;
            }
        }
    }
    paths.push(state.done);
}

/// The number DWARF has for a general register, and whether all of it is meant (32 bits clear the rest).
fn number(register: Register) -> Option<(Reg, bool)> {
    let full = register.full_register();
    let reg = match full {
        Register::RAX => RAX,
        Register::RDX => RDX,
        Register::RCX => RCX,
        Register::RBX => RBX,
        Register::RSI => RSI,
        Register::RDI => RDI,
        Register::RBP => RBP,
        Register::RSP => RSP,
        Register::R8 => R8,
        Register::R9 => R9,
        Register::R10 => R10,
        Register::R11 => R11,
        Register::R12 => Reg(12),
        Register::R13 => Reg(13),
        Register::R14 => Reg(14),
        Register::R15 => Reg(15),
        _ => return None,
    };
    Some((reg, register == full))
}

/// Whether a register is the second byte of another.
fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

impl State {
    fn read(&self, reg: Reg) -> Option<Value> {
        *self.registers.get(usize::from(reg.0))?
    }

    fn known(&self, reg: Reg) -> Option<u64> {
        match self.read(reg)? {
            Value::Known(value) => Some(value),
            Value::Exception => None,
        }
    }

    fn write(&mut self, reg: Reg, value: Option<Value>) {
        if let Some(slot) = self.registers.get_mut(usize::from(reg.0)) {
            *slot = value;
        }
    }

    fn address(&self, i: &Instruction) -> Option<u64> {
        if !matches!(i.segment_prefix(), Register::None | Register::DS | Register::SS | Register::ES | Register::CS) {
            return None;
        }
        if i.is_ip_rel_memory_operand() {
            return Some(i.ip_rel_memory_address());
        }
        let part = |register: Register| match register {
            Register::None => Some(0),
            _ => self.known(number(register).filter(|(_, whole)| *whole)?.0),
        };
        let index = part(i.memory_index())?.wrapping_mul(u64::from(i.memory_index_scale()));
        Some(part(i.memory_base())?.wrapping_add(index).wrapping_add(i.memory_displacement64()))
    }

    fn load(&self, bytes: &dyn Bytes, at: u64) -> Option<Value> {
        match self.stored.get(&at) {
            Some(value) => *value,
            None => bytes.word(at).map(Value::Known),
        }
    }

    /// The value of operand `n`, zero-extended; `None` where unknown or of no general kind.
    fn operand(&self, bytes: &dyn Bytes, i: &Instruction, n: u32) -> Option<Value> {
        match i.op_kind(n) {
            OpKind::Register => {
                let (reg, whole) = number(i.op_register(n))?;
                match (self.read(reg)?, i.op_register(n).size()) {
                    (value, _) if whole => Some(value),
                    (Value::Known(value), 4) => Some(Value::Known(value & 0xffff_ffff)),
                    (Value::Known(value), 1) if !is_high(i.op_register(n)) => Some(Value::Known(value & 0xff)),
                    _ => None,
                }
            }
            OpKind::Memory => {
                let value = self.load(bytes, self.address(i)?)?;
                match (value, i.memory_size().size()) {
                    (value, 8) => Some(value),
                    (Value::Known(value), 4) => Some(Value::Known(value & 0xffff_ffff)),
                    (Value::Known(value), 1) => Some(Value::Known(value & 0xff)),
                    _ => None,
                }
            }
            OpKind::Immediate8
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => Some(Value::Known(i.immediate(n))),
            _ => None,
        }
    }

    fn number(&self, bytes: &dyn Bytes, i: &Instruction, n: u32) -> Option<u64> {
        match self.operand(bytes, i, n)? {
            Value::Known(value) => Some(value),
            Value::Exception => None,
        }
    }

    /// Puts `value` where operand 0 says.
    fn set(&mut self, i: &Instruction, value: Option<Value>) {
        match i.op_kind(0) {
            OpKind::Register => {
                let register = i.op_register(0);
                let Some((reg, whole)) = number(register) else { return };
                let value = match value {
                    _ if whole => value,
                    Some(Value::Known(v)) if register.size() == 4 => Some(Value::Known(v & 0xffff_ffff)),
                    _ => None,
                };
                self.write(reg, value);
            }
            OpKind::Memory => {
                let Some(at) = self.address(i) else {
                    // it may be anywhere: nothing stored is believed any more, nor what lies beneath
                    self.stored.values_mut().for_each(|v| *v = None);
                    return;
                };
                self.stored.insert(at, value.filter(|_| i.memory_size().size() == 8));
            }
            _ => {}
        }
    }

    fn step(&mut self, bytes: &dyn Bytes, i: &Instruction) {
        let arithmetic = |this: &State, f: fn(u64, u64) -> u64| {
            let (a, b) = (this.number(bytes, i, 0)?, this.number(bytes, i, 1)?);
            Some(Value::Known(f(a, b)))
        };
        match i.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Test => {
                let values = self.number(bytes, i, 0).zip(self.number(bytes, i, 1));
                self.equal = values.map(|(a, b)| {
                    let mask = match i.op0_register().size().max(i.memory_size().size()) {
                        1 => 0xff,
                        4 => 0xffff_ffff,
                        _ => u64::MAX,
                    };
                    if i.mnemonic() == Mnemonic::Cmp { a & mask == b & mask } else { a & b & mask == 0 }
                });
                return;
            }
            Mnemonic::Push => {
                let value = self.operand(bytes, i, 0);
                let Some(sp) = self.known(RSP).map(|sp| sp.wrapping_sub(8)) else { return };
                self.write(RSP, Some(Value::Known(sp)));
                self.stored.insert(sp, value);
                return;
            }
            Mnemonic::Pop => {
                let sp = self.known(RSP);
                let value = sp.and_then(|sp| self.load(bytes, sp));
                self.write(RSP, sp.map(|sp| Value::Known(sp.wrapping_add(8))));
                self.set(i, value);
                return;
            }
            Mnemonic::Mov | Mnemonic::Movzx => {
                let value = self.operand(bytes, i, 1);
                self.set(i, value);
                return;
            }
            Mnemonic::Lea => {
                let value = self.address(i).map(Value::Known);
                self.set(i, value);
                return;
            }
            Mnemonic::Nop | Mnemonic::Endbr64 => return,
            _ => {}
        }
        let value = match i.mnemonic() {
            Mnemonic::Add => arithmetic(self, u64::wrapping_add),
            Mnemonic::Sub => arithmetic(self, u64::wrapping_sub),
            Mnemonic::And => arithmetic(self, |a, b| a & b),
            Mnemonic::Xor if i.op0_kind() == OpKind::Register && i.op0_register() == i.op1_register() => {
                Some(Value::Known(0))
            }
            _ => None,
        };
        self.equal = None;
        self.note_lock(bytes, i);
        if i.op_count() > 0 {
            self.set(i, value);
        }
        match i.mnemonic() {
            // the second operand changes as well
            Mnemonic::Xchg | Mnemonic::Xadd if i.op1_kind() == OpKind::Register => {
                if let Some((reg, _)) = number(i.op1_register()) {
                    self.write(reg, None);
                }
            }
            Mnemonic::Cmpxchg | Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Div | Mnemonic::Idiv => {
                self.write(RAX, None);
                self.write(RDX, None);
            }
            _ => {}
        }
    }

    /// Notes a step on a word that other CPUs see whole.
    fn note_lock(&mut self, bytes: &dyn Bytes, i: &Instruction) {
        let whole = i.has_lock_prefix() || i.mnemonic() == Mnemonic::Xchg;
        let Some(at) = Some(i).filter(|i| whole && i.op0_kind() == OpKind::Memory).and_then(|i| self.address(i)) else {
            return;
        };
        let zero = || self.number(bytes, i, 1) == Some(0);
        let releases = match i.mnemonic() {
            Mnemonic::Dec | Mnemonic::Sub | Mnemonic::And | Mnemonic::Xadd | Mnemonic::Btr => true,
            Mnemonic::Xchg | Mnemonic::Cmpxchg => zero(),
            _ => false,
        };
        self.done.push(if releases { Act::Releases { at } } else { Act::Takes { at } });
    }

    fn call(&mut self, bytes: &dyn Bytes, i: &Instruction) {
        let to = match i.op_kind(0) {
            OpKind::NearBranch64 => Callee::At(i.near_branch_target()),
            OpKind::Memory => self.address(i).map_or(Callee::Unknown, Callee::Through),
            OpKind::Register => self.number(bytes, i, 0).map_or(Callee::Unknown, Callee::At),
            _ => Callee::Unknown,
        };
        self.done.push(Act::Call { to, first: self.known(RDI) });
        for reg in [RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11] {
            self.write(reg, None);
        }
        self.equal = None;
    }
}

/// How a register got the value it has at a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// A number the code has in itself, or one that its frame's registers and stack still give.
    Is(u64),
    /// The code computes it.
    Computed,
}

/// What the argument register `reg` holds at the call that returns to `ret`, by the last instruction before it that sets
/// `reg`. `code` begins at `start`, where an instruction begins. `registers`: those of the frame that calls.
#[must_use]
pub fn argument(bytes: &dyn Bytes, code: &[u8], start: u64, ret: u64, reg: Reg, registers: &RegisterFile) -> Argument {
    let mut state = State { registers: [None; 16], stored: BTreeMap::new(), equal: None, done: Vec::new() };
    for kept in CALLEE_SAVED.into_iter().chain([RSP]) {
        state.write(kept, registers.read(kept).map(Value::Known));
    }
    let mut last = Argument::Computed;
    for i in &mut Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
        if i.is_invalid() || i.next_ip() >= ret {
            break;
        }
        let sets = i.op_count() > 0
            && i.op0_kind() == OpKind::Register
            && number(i.op0_register()).is_some_and(|(r, _)| r == reg)
            && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
        if sets {
            let by = State { done: Vec::new(), ..state.clone() };
            let value = match i.mnemonic() {
                Mnemonic::Mov => by.number(bytes, &i, 1),
                Mnemonic::Lea => by.address(&i),
                Mnemonic::Xor if i.op0_register() == i.op1_register() => Some(0),
                _ => None,
            };
            last = value.map_or(Argument::Computed, Argument::Is);
        } else if matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            last = Argument::Computed;
        }
    }
    last
}

/// Whether the code, from where an instruction begins, has `mov reg, number` of exactly this register and number, set by nothing
/// else before the call that returns to `ret`.
#[must_use]
pub fn argument_is(bytes: &dyn Bytes, code: &[u8], start: u64, ret: u64, reg: Reg, number: u64) -> bool {
    // of a frame without registers only what the code has in itself is known
    argument(bytes, code, start, ret, reg, &RegisterFile::default()) == Argument::Is(number)
}

/// Whether the code, which begins at `start`, exchanges a register with a word of memory.
#[must_use]
pub fn exchanges(code: &[u8], start: u64) -> bool {
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    decoder.into_iter().any(|i| i.mnemonic() == Mnemonic::Xchg && i.op0_kind() == OpKind::Memory)
}

/// Whether an instruction of the code, which begins at `start`, has the address `object` in itself: relative to itself, or as a
/// number.
#[must_use]
pub fn computes(code: &[u8], start: u64, object: u64) -> bool {
    Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter().any(|i| {
        let immediate = i.op_count() == 2 && matches!(i.op1_kind(), OpKind::Immediate32 | OpKind::Immediate64);
        (i.is_ip_rel_memory_operand() && i.ip_rel_memory_address() == object) || (immediate && i.immediate(1) == object)
    })
}

/// Where the entry of a procedure linkage table at `at` has the pointer it jumps through: `jmp [rip + disp]`, with or without
/// `endbr64` before it.
#[must_use]
pub fn jumps_through(bytes: &dyn Bytes, at: u64) -> Option<u64> {
    let mut at = at;
    for _ in 0..2 {
        let code = bytes.code(at);
        let i = Decoder::with_ip(64, &code, at, DecoderOptions::NONE).decode();
        match i.code() {
            Code::Endbr64 => at = i.next_ip(),
            Code::Jmp_rm64 if i.is_ip_rel_memory_operand() => return Some(i.ip_rel_memory_address()),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code at 0x1000 and words.
    struct Made(Vec<u8>, BTreeMap<u64, u64>);

    impl Bytes for Made {
        fn code(&self, at: u64) -> Vec<u8> {
            self.0.iter().skip((at - 0x1000) as usize).take(15).copied().collect()
        }

        fn word(&self, at: u64) -> Option<u64> {
            self.1.get(&at).copied()
        }
    }

    fn registers() -> RegisterFile {
        let mut registers = RegisterFile::default();
        registers.write(RSP, 0x7000);
        registers.write(RBX, 0x5000);
        registers
    }

    #[test]
    fn a_landing_pad_is_followed_until_it_hands_the_exception_on() {
        // mov rbx, rax; lea rdi, [rip + 0x2e0d] (0x3e17); call 0x900; mov rdi, rbx; call 0x940; lock dec [rip] (never reached)
        let code = [
            &[0x48, 0x89, 0xc3][..],
            &[0x48, 0x8d, 0x3d, 0x0d, 0x2e, 0, 0],
            &[0xe8, 0xf1, 0xf8, 0xff, 0xff],
            &[0x48, 0x89, 0xdf, 0xe8, 0x29, 0xf9, 0xff, 0xff],
            &[0xf0, 0xff, 0x0d, 0, 0, 0, 0],
        ]
        .concat();
        let made = Made(code, BTreeMap::new());
        let doing = follow(&made, 0x1000, &(0x1000..0x1100), &registers(), Entry::Exception);
        let to = |at| Callee::At(at);
        let acts = vec![Act::Call { to: to(0x900), first: Some(0x3e17) }, Act::Call { to: to(0x940), first: None }];
        assert_eq!(doing, Doing { paths: vec![acts], whole: true });
    }

    #[test]
    fn what_a_known_flag_forbids_is_not_done() {
        // cmp byte [rsp+8], 0; je +6; lock dec dword [rbx]; ret; then a ret to land on
        let code = vec![0x80, 0x7c, 0x24, 8, 0, 0x74, 3, 0xf0, 0xff, 0x0b, 0xc3];
        let acts = |flag: Option<u64>| {
            let made = Made(code.clone(), flag.map(|f| (0x7008, f)).into_iter().collect());
            follow(&made, 0x1000, &(0x1000..0x1100), &registers(), Entry::Exception).paths
        };
        let gives = vec![Act::Releases { at: 0x5000 }];
        assert_eq!(acts(Some(0)), [vec![]]);
        assert_eq!(acts(Some(1)), std::slice::from_ref(&gives));
        assert_eq!(acts(None), [gives, vec![]], "two paths");
    }

    #[test]
    fn giving_back_is_told_from_taking() {
        let acts = |code: &[u8]| {
            let made = Made([code, &[0xc3]].concat(), BTreeMap::new());
            follow(&made, 0x1000, &(0x1000..0x1100), &registers(), Entry::Called(0x6000)).paths.concat()
        };
        let (gives, takes) = ([Act::Releases { at: 0x6000 }], [Act::Takes { at: 0x6000 }]);
        // xor eax, eax; xchg [rdi], eax; and with 1, and with what nobody knows
        assert_eq!(acts(&[0x31, 0xc0, 0x87, 0x07]), gives);
        assert_eq!(acts(&[0xb8, 1, 0, 0, 0, 0x87, 0x07]), takes);
        assert_eq!(acts(&[0x87, 0x07]), takes);
        // mov ecx, 1; lock cmpxchg [rdi], ecx; and to 0
        assert_eq!(acts(&[0xb9, 1, 0, 0, 0, 0xf0, 0x0f, 0xb1, 0x0f]), takes);
        assert_eq!(acts(&[0x31, 0xc9, 0xf0, 0x0f, 0xb1, 0x0f]), gives);
        // lock xadd [rdi], eax; lock inc dword [rdi]
        assert_eq!(acts(&[0xf0, 0x0f, 0xc1, 0x07]), gives);
        assert_eq!(acts(&[0xf0, 0xff, 0x07]), takes);
    }

    #[test]
    fn an_argument_is_what_the_last_instruction_made_it() {
        // mov ecx, 2; mov rdi, rbx; lea rsi, [rsp+0x10]; call
        let code = vec![0xb9, 2, 0, 0, 0, 0x48, 0x89, 0xdf, 0x48, 0x8d, 0x74, 0x24, 0x10, 0xe8, 0, 0, 0, 0];
        let made = Made(code.clone(), BTreeMap::new());
        let of = |reg| argument(&made, &code, 0x1000, 0x1012, reg, &registers());
        assert_eq!((of(RCX), of(RDI)), (Argument::Is(2), Argument::Is(0x5000)));
        assert_eq!((of(RSI), of(RDX)), (Argument::Is(0x7010), Argument::Computed));
        assert!(argument_is(&made, &code, 0x1000, 0x1012, RCX, 2));
        assert!(!argument_is(&made, &code, 0x1000, 0x1012, RDI, 0x5000), "the code alone does not say");
    }

    #[test]
    fn a_circle_ends() {
        let ends = |code: &[u8]| {
            let made = Made(code.to_vec(), BTreeMap::new());
            let doing = follow(&made, 0x1000, &(0x1000..0x1100), &registers(), Entry::Exception);
            assert!(!doing.whole && doing.paths.concat().is_empty());
        };
        ends(&[0xeb, 0xfe]);
        // jne to itself forks without end
        ends(&[0x75, 0xfe, 0xeb, 0xfc]);
    }
}
