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
