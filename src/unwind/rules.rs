//! Applies a row of call frame information to a register file.

use super::window::Window;
use crate::arch::{REGISTERS, Reg, RegisterFile, x86_64};
use crate::elf::{CfaRule, Rule, UnwindRow};
use gimli::{EndianSlice, EvaluationResult, Expression, LittleEndian, Value};

/// Operations of one DWARF expression at most; the longest seen (glibc's `__restore_rt`) has 3.
const OPERATIONS: u32 = 1000;

/// The caller's frame, as a row gives it.
pub(super) struct Caller {
    /// The canonical frame address of the frame the row is for.
    pub cfa: u64,
    /// The caller's registers. `None`: the row says there is no caller.
    pub registers: Option<RegisterFile>,
}

/// Applies `row` to the registers of its frame. `None` where the CFA or the return address cannot be had.
pub(super) fn apply(row: &UnwindRow, registers: &RegisterFile, bias: u64, stack: &mut Window<'_>) -> Option<Caller> {
    let mut frame = Evaluator { registers, bias, stack };
    let cfa = match &row.cfa {
        CfaRule::Register(reg, offset) => registers.read(*reg)?.wrapping_add_signed(*offset),
        CfaRule::Expression(e) => frame.evaluate(e, None)?,
    };
    let return_rule = row.rules.get(usize::from(row.return_address.0))?;
    if *return_rule == Rule::Undefined {
        return Some(Caller { cfa, registers: None });
    }
    let mut caller = RegisterFile::default();
    for (n, rule) in row.rules.iter().enumerate().take(REGISTERS) {
        let reg = Reg(u16::try_from(n).ok()?);
        if reg == x86_64::RIP {
            continue;
        }
        let value = match rule {
            // the stack pointer before the call is the CFA by definition
            Rule::Unspecified if reg == x86_64::RSP => Some(cfa),
            Rule::Unspecified if x86_64::CALLEE_SAVED.contains(&reg) => registers.read(reg),
            Rule::Unspecified => None,
            rule => frame.value(rule, reg, cfa),
        };
        if let Some(value) = value {
            caller.write(reg, value);
        }
    }
    let pc = match return_rule {
        Rule::Unspecified => return None,
        rule => frame.value(rule, row.return_address, cfa)?,
    };
    caller.write(x86_64::RIP, pc);
    Some(Caller { cfa, registers: Some(caller) })
}

struct Evaluator<'a, 'b, 'm> {
    registers: &'a RegisterFile,
    bias: u64,
    stack: &'b mut Window<'m>,
}

impl Evaluator<'_, '_, '_> {
    fn value(&mut self, rule: &Rule, reg: Reg, cfa: u64) -> Option<u64> {
        match rule {
            Rule::Unspecified | Rule::Undefined => None,
            Rule::Same => self.registers.read(reg),
            Rule::Offset(n) => self.stack.word(cfa.wrapping_add_signed(*n)),
            Rule::ValOffset(n) => Some(cfa.wrapping_add_signed(*n)),
            Rule::Register(other) => self.registers.read(*other),
            Rule::Expression(e) => {
                let at = self.evaluate(e, Some(cfa))?;
                self.stack.word(at)
            }
            Rule::ValExpression(e) => self.evaluate(e, Some(cfa)),
            Rule::Constant(n) => Some(*n),
        }
    }

    /// Evaluates a DWARF expression to a number; `initial` is on the stack to begin with.
    fn evaluate(&mut self, expression: &[u8], initial: Option<u64>) -> Option<u64> {
        let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 5 };
        let mut evaluation = Expression(EndianSlice::new(expression, LittleEndian)).evaluation(encoding);
        evaluation.set_max_iterations(OPERATIONS);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mut state = evaluation.evaluate().ok()?;
        // each round stands for at least one operation, so the bound on those bounds this
        for _ in 0..OPERATIONS {
            state = match state {
                EvaluationResult::Complete => return generic(evaluation.value_result()?),
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.registers.read(Reg(register.0))?;
                    evaluation.resume_with_register(Value::Generic(value)).ok()?
                }
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let mut bytes = [0; 8];
                    self.stack.read(address, bytes.get_mut(..usize::from(size))?)?;
                    evaluation.resume_with_memory(Value::Generic(u64::from_le_bytes(bytes))).ok()?
                }
                EvaluationResult::RequiresRelocatedAddress(at) => {
                    evaluation.resume_with_relocated_address(at.wrapping_add(self.bias)).ok()?
                }
                // CFI may not use the others (DWARF 5, 6.4.2)
                _ => return None,
            };
        }
        None
    }
}

fn generic(value: Value) -> Option<u64> {
    value.to_u64(u64::MAX).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::{R8, R12, R13, R14, R15, RAX, RBP, RBX, RDI, RIP, RSP};
    use crate::memory::Fake;
    use crate::units::Addr;
    use std::sync::Arc;

    fn row(cfa: CfaRule, rules: &[(Reg, Rule)]) -> UnwindRow {
        let mut row =
            UnwindRow { cfa, rules: Default::default(), return_address: RIP, signal: false, covers: 0x1000..0x2000 };
        row.rules[16] = Rule::Offset(-8);
        for (reg, rule) in rules {
            row.rules[usize::from(reg.0)] = rule.clone();
        }
        row
    }

    fn registers(set: &[(Reg, u64)]) -> RegisterFile {
        let mut file = RegisterFile::default();
        for (reg, value) in set {
            file.write(*reg, *value);
        }
        file
    }

    fn applied(row: &UnwindRow, registers: &RegisterFile, memory: &Fake) -> Option<RegisterFile> {
        apply(row, registers, 0x10000, &mut Window::new(memory))?.registers
    }

    fn stack(words: &[(u64, u64)]) -> Fake {
        let mut memory = Fake::new();
        for (at, word) in words {
            memory.put_u64(Addr(*at), *word);
        }
        memory
    }

    #[test]
    fn what_cfi_does_not_mention_is_kept_if_callee_saved_and_unknown_if_not() {
        let here = registers(&[(RSP, 0x7000), (RBX, 1), (RBP, 2), (R12, 3), (RDI, 4), (RAX, 5), (R8, 6)]);
        let caller = applied(&row(CfaRule::Register(RSP, 16), &[]), &here, &stack(&[(0x7008, 0x4444)])).unwrap();
        let expected = registers(&[(RSP, 0x7010), (RBX, 1), (RBP, 2), (R12, 3), (RIP, 0x4444)]);
        assert_eq!(caller, expected);
    }

    #[test]
    fn each_rule_gives_its_value() {
        let rules = [
            (RBX, Rule::Offset(-16)),
            (RBP, Rule::ValOffset(-32)),
            (R12, Rule::Register(R13)),
            (R13, Rule::Undefined),
            (R14, Rule::Constant(77)),
            (R15, Rule::Offset(-400)), // not readable: unknown
            (RDI, Rule::Same),
            (RAX, Rule::Expression(Arc::from([0x23u8, 24].as_slice()))), // DW_OP_plus_uconst 24
            (R8, Rule::ValExpression(Arc::from([0x38u8, 0x1c].as_slice()))), // DW_OP_lit8, DW_OP_minus
        ];
        let here = registers(&[(RSP, 0x7000), (R13, 9), (R15, 1), (RDI, 4)]);
        let memory = stack(&[(0x7008, 0x4444), (0x7000, 0xbb), (0x7028, 0xaa)]);
        let caller = applied(&row(CfaRule::Register(RSP, 16), &rules), &here, &memory).unwrap();
        let expected =
            [(RSP, 0x7010), (RBX, 0xbb), (RBP, 0x6ff0), (R12, 9), (R14, 77), (RDI, 4), (RAX, 0xaa), (R8, 0x7008)];
        let mut expected = registers(&expected);
        expected.write(RIP, 0x4444);
        assert_eq!(caller, expected);
    }

    #[test]
    fn the_cfa_may_be_an_expression() {
        // the linker's, for .plt: rsp + 8 + ((rip & 15) >= 11) * 8
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        let row = row(CfaRule::Expression(Arc::from(plt.as_slice())), &[]);
        let memory = stack(&[(0x7000, 0x4444), (0x7008, 0x5555)]);
        let at = |pc| applied(&row, &registers(&[(RSP, 0x7000), (RIP, pc)]), &memory).unwrap().read(RIP);
        assert_eq!((at(0x1026), at(0x102b)), (Some(0x4444), Some(0x5555)));
    }

    #[test]
    fn an_undefined_return_address_is_the_end_and_an_unknown_base_is_no_answer() {
        let here = registers(&[(RSP, 0x7000)]);
        let outermost = row(CfaRule::Register(RSP, 8), &[(RIP, Rule::Undefined)]);
        assert!(apply(&outermost, &here, 0, &mut Window::new(&Fake::new())).unwrap().registers.is_none());
        let by_rbp = row(CfaRule::Register(RBP, 16), &[]);
        assert!(apply(&by_rbp, &here, 0, &mut Window::new(&Fake::new())).is_none());
        let unreadable = row(CfaRule::Register(RSP, 8), &[]);
        assert!(apply(&unreadable, &here, 0, &mut Window::new(&Fake::new())).is_none());
    }

    #[test]
    fn an_expression_that_does_not_end_gives_nothing() {
        let here = registers(&[(RSP, 0x7000)]);
        // DW_OP_lit0; DW_OP_skip −4 … and one that asks memory at each round
        for bytes in [&[0x30u8, 0x2f, 0xfc, 0xff][..], &[0x77, 0, 0x06, 0x2f, 0xfa, 0xff], &[0x1c], &[0x96; 5000]] {
            let row = row(CfaRule::Expression(Arc::from(bytes)), &[]);
            assert!(applied(&row, &here, &stack(&[(0x7000, 1), (0x7008, 2)])).is_none());
        }
    }
}
