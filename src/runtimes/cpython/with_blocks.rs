//! Which `with` blocks a frame is inside of: the proof of who holds a lock that records no owner.
//!
//! A `with` statement keeps its manager's exit method on the value stack until the block ends. Up to 3.10 the block stack
//! says where; since 3.11 the exception table does, and only a position covered by a handler that calls the exit method is
//! inside: while the lock is still being waited for, the method stands there already but no handler covers the position.

use super::code::Code;
use super::frames::PyFrame;
use super::lines::handler_of;
use super::objects::Objects;
use super::offsets::{FrameLayout, LineTable};
use crate::memory::MemoryExt;
use crate::units::{Addr, ByAddr};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Handlers around one position followed at most.
const MAX_NESTING: usize = 64;
/// `CO_MAXBLOCKS`, up to 3.10.
const MAX_BLOCKS: u64 = 20;

/// Opcodes and slots the technique needs.
#[derive(Clone, Debug, Default)]
pub(super) struct WithOffsets {
    /// `WITH_EXCEPT_START`, since 3.11 of use here.
    pub except_start: Option<u8>,
    /// `JUMP_BACKWARD` in all its forms.
    pub jumps: Vec<u8>,
    /// Inline cache units after it.
    pub jump_cache: u32,
    pub extended_arg: Option<u8>,
    /// Since 3.14 the unbound exit function and the manager stand in two slots.
    pub pair: bool,
    /// `SETUP_FINALLY`, up to 3.10: the type of the blocks that count.
    pub block_type: Option<i32>,
    /// `SETUP_WITH`, up to 3.10.
    pub setup_with: Option<u8>,
    /// `BEFORE_WITH`, 3.11 to 3.13.
    pub before_with: Option<u8>,
    /// `LOAD_SPECIAL`, since 3.14.
    pub load_special: Option<u8>,
}

/// A `with` block a frame is inside of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    /// The context manager.
    pub manager: Addr,
    /// Its bound exit method, where that and not the manager itself stands on the value stack.
    pub method: Option<Addr>,
    /// The line of the `with` statement, where it can be told.
    pub line: Option<u32>,
}

/// Where exit methods stand, for positions already worked out.
#[derive(Default)]
pub(super) struct WithBlocks {
    depths: RefCell<HashMap<(Addr, i64), Depths, ByAddr>>,
}

/// Stack depth and handler of each with-handler around a position, innermost first.
type Depths = Rc<Vec<(u32, u32)>>;

impl WithBlocks {
    /// The `with` blocks `frame` is inside of, innermost first. Suspended frames are read like running ones.
    pub(super) fn of(&self, objects: &Objects<'_>, frame: &PyFrame, code: &Code) -> Vec<Block> {
        match &objects.o.frame {
            FrameLayout::Object(_) => by_block_stack(objects, frame, code),
            FrameLayout::Inline(_) => {
                let Some(unit) = code.unit_of(objects, frame).filter(|u| *u >= 0) else { return Vec::new() };
                if code.exceptions.is_empty() {
                    return Vec::new();
                }
                let known = self.depths.borrow().get(&(code.addr, unit)).cloned();
                let depths = known.unwrap_or_else(|| {
                    let found = Rc::new(depths_at(objects, code, unit));
                    self.depths.borrow_mut().insert((code.addr, unit), Rc::clone(&found));
                    found
                });
                let block = |(depth, handler): &(u32, u32)| {
                    let (method, manager) = manager_at(objects, frame, code, *depth)?;
                    // the handler's instructions bear the line of the statement
                    Some(Block { manager, method, line: code.line_at(objects, i64::from(*handler)) })
                };
                depths.iter().filter_map(block).collect()
            }
        }
    }
}

/// Up to 3.10: the slot beneath each block that a `with` or `try` set up.
fn by_block_stack(objects: &Objects<'_>, frame: &PyFrame, code: &Code) -> Vec<Block> {
    let FrameLayout::Object(f) = &objects.o.frame else { return Vec::new() };
    let Some(wanted) = objects.o.with.block_type else { return Vec::new() };
    let blocks = objects.int32(frame.addr, f.iblock).ok().and_then(|n| u64::try_from(n).ok());
    let Some(blocks) = blocks.filter(|n| *n <= MAX_BLOCKS) else { return Vec::new() };
    let Ok(stack) = objects.addr(frame.addr, f.valuestack) else { return Vec::new() };
    let mut seen = Vec::new();
    let mut out = Vec::new();
    for i in (0..blocks).rev() {
        let at = f.blockstack + i * f.block_size;
        let Ok(kind) = objects.int32(frame.addr, at + f.block_type) else { continue };
        let Ok(level) = objects.int32(frame.addr, at + f.block_level) else { continue };
        let slot = i64::from(level) - 1;
        if kind != wanted || !(0..=1 << 16).contains(&slot) || seen.contains(&slot) {
            continue;
        }
        seen.push(slot);
        let object = objects.memory.read_addr(stack.offset(slot * 8)).ok();
        if let Some((method, manager)) = object.and_then(|o| Some((o, bound_exit(objects, o)?))) {
            let handler = objects.int32(frame.addr, at + f.block_handler).ok();
            let line = handler.and_then(|h| with_line(objects, code, i64::from(h) * f.lasti_unit.cast_signed() / 2));
            out.push(Block { manager, method: Some(method), line });
        }
    }
    out
}

/// Up to 3.10: the line of the `SETUP_WITH` whose handler begins at `handler` (in 2-byte units).
fn with_line(objects: &Objects<'_>, code: &Code, handler: i64) -> Option<u32> {
    let setup = objects.o.with.setup_with?;
    let n = usize::try_from(code.units).ok().filter(|n| *n <= 1 << 20)?;
    let bytes = objects.memory.read_vec(code.start, n * 2).ok()?;
    let unit_of_argument = if objects.o.line_table == LineTable::Lnotab { 2 } else { 1 };
    let mut argument = 0u32;
    for (i, [op, arg]) in bytes.as_chunks::<2>().0.iter().enumerate() {
        argument = (argument << 8) | u32::from(*arg);
        if Some(*op) == objects.o.with.extended_arg {
            continue;
        }
        // relative to the next instruction; in bytes up to 3.9, in units in 3.10
        let target = i64::try_from(i).ok()? + 1 + i64::from(argument) / unit_of_argument;
        if *op == setup && target == handler {
            return code.line_at(objects, i64::try_from(i).ok()?);
        }
        argument = 0;
    }
    None
}

/// Since 3.11: stack depth and handler of the with-handlers around a position, innermost first.
fn depths_at(objects: &Objects<'_>, code: &Code, unit: i64) -> Vec<(u32, u32)> {
    let mut depths = Vec::new();
    let Ok(mut here) = u32::try_from(unit) else { return depths };
    if handler_of(&code.exceptions, here).is_none() {
        // compilers of 3.12 to 3.14 leave some backward jumps inside a `with` out of the table: their targets are in it
        match jump_target(objects, code, here) {
            Some(target) => here = target,
            None => return depths,
        }
    }
    let mut seen = Vec::new();
    while let Some(handler) = handler_of(&code.exceptions, here) {
        if seen.contains(&handler.target) || seen.len() >= MAX_NESTING {
            break;
        }
        seen.push(handler.target);
        // only the second instruction: tracing puts another opcode in the place of the first
        let second = objects.byte(code.start, (u64::from(handler.target) + 1) * 2).ok();
        if second.is_some() && second == objects.o.with.except_start {
            depths.push((handler.depth, handler.target));
        }
        here = handler.target;
    }
    depths
}

/// The target of the backward jump at `unit`, if one stands there.
fn jump_target(objects: &Objects<'_>, code: &Code, unit: u32) -> Option<u32> {
    let w = &objects.o.with;
    let instruction = |u: u32| -> Option<(u8, u8)> {
        let [op, arg] = objects.memory.read_u16(code.start.checked_add(u64::from(u) * 2)?).ok()?.to_le_bytes();
        Some((op, arg))
    };
    let (op, arg) = instruction(unit)?;
    if !w.jumps.contains(&op) {
        return None;
    }
    let mut distance = u32::from(arg);
    for i in 1..=3u32 {
        let Some((op, arg)) = unit.checked_sub(i).and_then(instruction) else { break };
        if Some(op) != w.extended_arg {
            break;
        }
        distance |= u32::from(arg) << (8 * i);
    }
    unit.checked_add(1)?.checked_add(w.jump_cache)?.checked_sub(distance)
}

/// The manager whose exit method stands at `depth`, and that method where it is a bound one.
fn manager_at(objects: &Objects<'_>, frame: &PyFrame, code: &Code, depth: u32) -> Option<(Option<Addr>, Addr)> {
    let below = objects.stack_slot(frame, code, depth.checked_sub(1)?)?;
    if !objects.o.with.pair {
        return bound_exit(objects, below).map(|manager| (Some(below), manager));
    }
    let function = objects.stack_slot(frame, code, depth.checked_sub(2)?)?;
    is_exit_function(objects, function).then_some((None, below))
}

/// Whether a frame stands in a `with` statement that has yet to enter its block: it waits there for the manager's enter method.
pub(super) fn is_entering(objects: &Objects<'_>, frame: &PyFrame, code: &Code) -> bool {
    let w = &objects.o.with;
    let Some(unit) = code.unit_of(objects, frame) else { return false };
    let op = |unit: i64| {
        let at = u64::try_from(unit).ok().filter(|u| *u < code.units)?;
        objects.byte(code.start, at * 2).ok()
    };
    // since 3.14 the enter method is looked up by one instruction and called by the next
    let enters = |o: Option<u8>| o.is_some() && (o == w.setup_with || o == w.before_with);
    enters(op(unit)) || (w.load_special.is_some() && op(unit - 1) == w.load_special)
}

/// The manager of a bound exit method.
pub(super) fn bound_exit(objects: &Objects<'_>, object: Addr) -> Option<Addr> {
    let o = objects.o;
    let kind = objects.type_of(object)?;
    match kind.name.as_str() {
        "builtin_function_or_method" => {
            let definition = objects.addr(object, o.cfunction_ml).ok()?;
            is_exit_name(objects, definition).then(|| objects.addr(object, o.cfunction_self).ok()).flatten()
        }
        "method" => {
            let function = objects.addr(object, o.method_func).ok()?;
            is_exit_function(objects, function).then(|| objects.addr(object, o.method_self).ok()).flatten()
        }
        _ => None,
    }
}

/// Whether a function object is somebody's `__exit__`.
fn is_exit_function(objects: &Objects<'_>, object: Addr) -> bool {
    let Some(kind) = objects.type_of(object) else { return false };
    match kind.name.as_str() {
        "method_descriptor" => {
            objects.addr(object, objects.o.methoddescr_method).is_ok_and(|d| is_exit_name(objects, d))
        }
        "function" => objects.addr(object, objects.o.function_name).is_ok_and(|n| is_exit_text(objects, n)),
        "builtin_function_or_method" => {
            objects.addr(object, objects.o.cfunction_ml).is_ok_and(|d| is_exit_name(objects, d))
        }
        _ => false,
    }
}

/// Synchronous and asynchronous exit methods.
const EXITS: [&str; 2] = ["__exit__", "__aexit__"];

fn is_exit_text(objects: &Objects<'_>, name: Addr) -> bool {
    EXITS.iter().any(|e| objects.string_is(name, e))
}

/// Whether a `PyMethodDef` is named so.
fn is_exit_name(objects: &Objects<'_>, definition: Addr) -> bool {
    let name = objects.addr(definition, objects.o.methoddef_name).ok();
    let name = name.and_then(|n| objects.memory.read_c_string(n, 16).ok());
    name.is_some_and(|n| EXITS.iter().any(|e| e.as_bytes() == n))
}
