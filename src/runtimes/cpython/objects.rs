//! Readers of Python objects: types, strings, bytes, tuples, lists, ints, dicts, attributes.
//!
//! Everything is bounded: the target's lengths are never believed beyond a limit given here.

use super::offsets::{Attributes, Offsets};
use crate::memory::{Memory, MemoryExt, ReadError, i32_at, u64_at};
use crate::units::{Addr, ByAddr};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Why an object could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum ObjectError {
    /// Its bytes cannot be had.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// Its bytes are no such object.
    #[error("{1} is no {0}")]
    Not(&'static str, Addr),
}

/// Characters of a string read at most.
const MAX_STRING: u64 = 4096;
/// Bytes of a `bytes` object read at most (line tables).
const MAX_BYTES: u64 = 1 << 20;
/// Items of a tuple or list read at most.
const MAX_ITEMS: u64 = 65_536;
/// Entries of a dict read at most.
const MAX_ENTRIES: u64 = 262_144;
/// Bytes of a type's name.
const MAX_TYPE_NAME: usize = 200;

/// What is known of a type.
#[derive(Debug)]
pub(super) struct Type {
    pub addr: Addr,
    /// `tp_name`: `_thread.lock` for C types, the bare class name for Python ones.
    pub name: String,
    pub basicsize: u64,
    pub flags: u64,
    pub dictoffset: i64,
}

/// `Py_TPFLAGS_INLINE_VALUES`, since 3.13.
const INLINE_VALUES: u64 = 1 << 2;
/// `Py_TPFLAGS_MANAGED_DICT`, since 3.11.
const MANAGED_DICT: u64 = 1 << 4;
/// `Py_TPFLAGS_HEAPTYPE`.
const HEAP_TYPE: u64 = 1 << 9;

/// Reads objects of one interpreter.
pub(super) struct Objects<'a> {
    pub memory: &'a dyn Memory,
    pub o: &'a Offsets,
    types: RefCell<HashMap<Addr, Option<Rc<Type>>, ByAddr>>,
    /// The names of code objects' local slots.
    pub local_names: RefCell<HashMap<Addr, Rc<Vec<String>>, ByAddr>>,
}

impl<'a> Objects<'a> {
    pub(super) fn new(memory: &'a dyn Memory, o: &'a Offsets) -> Objects<'a> {
        Objects { memory, o, types: RefCell::default(), local_names: RefCell::default() }
    }

    pub(super) fn word(&self, base: Addr, offset: u64) -> Result<u64, ReadError> {
        self.memory.read_u64(base.checked_add(offset).ok_or(ReadError::Unmapped(base))?)
    }

    pub(super) fn addr(&self, base: Addr, offset: u64) -> Result<Addr, ReadError> {
        self.word(base, offset).map(Addr)
    }

    pub(super) fn int32(&self, base: Addr, offset: u64) -> Result<i32, ReadError> {
        self.memory.read_i32(base.checked_add(offset).ok_or(ReadError::Unmapped(base))?)
    }

    pub(super) fn byte(&self, base: Addr, offset: u64) -> Result<u8, ReadError> {
        self.memory.read_u8(base.checked_add(offset).ok_or(ReadError::Unmapped(base))?)
    }

    /// The address of an object's type.
    pub(super) fn type_addr(&self, object: Addr) -> Result<Addr, ReadError> {
        self.addr(object, self.o.ob_type)
    }

    /// An object's type; `None` where it is none.
    pub(super) fn type_of(&self, object: Addr) -> Option<Rc<Type>> {
        if object.is_null() || !object.0.is_multiple_of(8) {
            return None;
        }
        let at = self.type_addr(object).ok()?;
        if let Some(known) = self.types.borrow().get(&at) {
            return known.clone();
        }
        let found = self.read_type(at).ok().map(Rc::new);
        self.types.borrow_mut().insert(at, found.clone());
        found
    }

    pub(super) fn read_type(&self, at: Addr) -> Result<Type, ObjectError> {
        let name = self.memory.read_c_string(self.addr(at, self.o.type_name)?, MAX_TYPE_NAME)?;
        let good = !name.is_empty() && name.iter().all(|b| (0x20..0x7f).contains(b) || *b >= 0x80);
        if !good {
            return Err(ObjectError::Not("type", at));
        }
        Ok(Type {
            addr: at,
            name: String::from_utf8_lossy(&name).into_owned(),
            basicsize: self.word(at, self.o.type_basicsize)?,
            flags: self.word(at, self.o.type_flags)?,
            dictoffset: self.word(at, self.o.type_dictoffset)?.cast_signed(),
        })
    }

    /// Whether one reference to an object is all there is: whoever has it is the only one who can reach it. Borrowed ones and
    /// those whose counting is put off make it false, or are none that outlive the other.
    pub(super) fn is_unshared(&self, object: Addr) -> bool {
        let c = &self.o.counts;
        let count = match (c.split, c.whole) {
            // the shared half has two bits of state beneath its count (CPython `Include/refcount.h`)
            (Some((local, shared)), _) => self
                .int32(object, local)
                .ok()
                .zip(self.word(object, shared).ok())
                .map(|(local, shared)| i64::from(local.cast_unsigned()).saturating_add(shared.cast_signed() >> 2)),
            (None, Some(whole)) => self.int32(object, whole).ok().map(i64::from),
            (None, None) => None,
        };
        count == Some(1)
    }

    /// Whether the object's type has this `tp_name`.
    pub(super) fn is(&self, object: Addr, type_name: &str) -> bool {
        self.type_of(object).is_some_and(|t| t.name == type_name)
    }

    fn bits(&self, field: crate::layout::Field, object: Addr) -> Result<u64, ReadError> {
        field.read_word(self.memory, object)
    }

    /// A `str`, cut at a limit. Text that is no text is replaced, not refused.
    pub(super) fn string(&self, object: Addr) -> Result<String, ObjectError> {
        if object.is_null() {
            return Err(ObjectError::Not("str", object));
        }
        let o = self.o;
        let length = self.word(object, o.str_length)?;
        let kind = self.bits(o.str_kind, object)?;
        let compact = self.bits(o.str_compact, object)? == 1;
        let ascii = self.bits(o.str_ascii, object)? == 1;
        let width: u64 = match kind {
            1 | 2 | 4 => kind,
            _ => return Err(ObjectError::Not("str", object)),
        };
        if length >= 1 << 40 || (ascii && width != 1) {
            return Err(ObjectError::Not("str", object));
        }
        let data = match (compact, ascii) {
            (true, true) => object.offset(o.str_size.cast_signed()),
            (true, false) => object.offset(o.str_compact_size.cast_signed()),
            (false, _) => self.addr(object, o.str_data)?,
        };
        let n = usize::try_from(length.min(MAX_STRING) * width).map_err(|_| ObjectError::Not("str", object))?;
        let bytes = self.memory.read_vec(data, n)?;
        let text = match width {
            1 if ascii => String::from_utf8_lossy(&bytes).into_owned(),
            1 => bytes.iter().map(|b| char::from(*b)).collect(),
            2 => {
                let (units, _) = bytes.as_chunks::<2>();
                units.iter().map(|c| char_of(u16::from_le_bytes(*c).into())).collect()
            }
            _ => {
                let (units, _) = bytes.as_chunks::<4>();
                units.iter().map(|c| char_of(u32::from_le_bytes(*c))).collect()
            }
        };
        Ok(text)
    }

    /// The bytes of a `bytes` object.
    pub(super) fn bytes(&self, object: Addr) -> Result<Vec<u8>, ObjectError> {
        let (at, len) = self.bytes_extent(object)?;
        Ok(self.memory.read_vec(at, len)?)
    }

    /// Where the bytes of a `bytes` object lie, and how many.
    pub(super) fn bytes_extent(&self, object: Addr) -> Result<(Addr, usize), ObjectError> {
        let size = self.word(object, self.o.ob_size)?;
        if object.is_null() || size > MAX_BYTES {
            return Err(ObjectError::Not("bytes", object));
        }
        let size = usize::try_from(size).map_err(|_| ObjectError::Not("bytes", object))?;
        Ok((object.offset(self.o.bytes_data.cast_signed()), size))
    }

    /// The items of a `tuple`.
    pub(super) fn tuple(&self, object: Addr) -> Result<Vec<Addr>, ObjectError> {
        let size = self.word(object, self.o.ob_size)?;
        self.words(object.offset(self.o.tuple_items.cast_signed()), size, "tuple", object)
    }

    /// The items of a `list`.
    pub(super) fn list(&self, object: Addr) -> Result<Vec<Addr>, ObjectError> {
        let size = self.word(object, self.o.ob_size)?;
        let items = self.addr(object, self.o.list_items)?;
        self.words(items, size, "list", object)
    }

    /// The items of a `_queue.SimpleQueue`, the next one to be had first.
    pub(super) fn simple_queue(&self, object: Addr) -> Result<Vec<Addr>, ObjectError> {
        let not = ObjectError::Not("SimpleQueue", object);
        match (self.o.queue_ring, self.o.queue_list) {
            // since 3.13 a ring: put index, get index, items, capacity, number (CPython `Modules/_queuemodule.c`, RingBuf)
            (Some(ring), _) => {
                let field = |i: u64| self.word(object, ring + 8 * i);
                let (get, items, capacity, number) = (field(1)?, Addr(field(2)?), field(3)?, field(4)?);
                if number > capacity || capacity == 0 || get >= capacity {
                    return if number == 0 { Ok(Vec::new()) } else { Err(not) };
                }
                let all = self.words(items, capacity, "SimpleQueue", object)?;
                let from = usize::try_from(get).map_err(|_| not)?;
                let number = usize::try_from(number).map_err(|_| not)?;
                Ok(all.iter().cycle().skip(from).take(number).copied().collect())
            }
            // before, a list and the position of its first item still there
            (None, Some(list)) => {
                let position = usize::try_from(self.word(object, list + 8)?).map_err(|_| not)?;
                let items = self.list(self.addr(object, list)?)?;
                Ok(items.get(position..).ok_or(not)?.to_vec())
            }
            (None, None) => Err(not),
        }
    }

    fn words(&self, at: Addr, n: u64, what: &'static str, object: Addr) -> Result<Vec<Addr>, ObjectError> {
        if n > MAX_ITEMS {
            return Err(ObjectError::Not(what, object));
        }
        let bytes = self.memory.read_vec(at, usize::try_from(n * 8).unwrap_or(0))?;
        Ok(words_of(&bytes).map(Addr).collect())
    }

    /// A non-negative `int` that fits 64 bits.
    pub(super) fn int(&self, object: Addr) -> Result<u64, ObjectError> {
        let not = ObjectError::Not("int", object);
        let digits = match self.o.int_tag {
            Some(at) => {
                let tag = self.word(object, at)?;
                match tag & 3 {
                    0 => tag >> 3,
                    1 => 0,
                    _ => return Err(not),
                }
            }
            None => self.word(object, self.o.ob_size)?,
        };
        if digits > 3 {
            return Err(not);
        }
        let bytes = self
            .memory
            .read_vec(object.offset(self.o.int_digits.cast_signed()), usize::try_from(digits * 4).unwrap_or(0))?;
        let mut value: u128 = 0;
        for (i, d) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let digit = u128::from(u32::from_le_bytes(*d));
            if digit >= 1 << 30 {
                return Err(not);
            }
            value |= digit << (30 * i);
        }
        u64::try_from(value).map_err(|_| not)
    }

    /// The entries of a `dict`: key and value, in insertion order.
    pub(super) fn dict(&self, object: Addr) -> Result<Vec<(Addr, Addr)>, ObjectError> {
        if object.is_null() {
            return Err(ObjectError::Not("dict", object));
        }
        let keys = self.addr(object, self.o.dict_keys)?;
        let values = self.addr(object, self.o.dict_values)?;
        let values = (!values.is_null()).then(|| values.offset(self.o.values_header.cast_signed()));
        self.entries(keys, values)
    }

    /// The entries of a table of keys; values from `values` where given (a split table), else from the table.
    fn entries(&self, keys: Addr, values: Option<Addr>) -> Result<Vec<(Addr, Addr)>, ObjectError> {
        let not = ObjectError::Not("dict", keys);
        if keys.is_null() {
            return Err(not);
        }
        let k = &self.o.keys;
        let n = self.word(keys, k.nentries)?;
        if n > MAX_ENTRIES {
            return Err(not);
        }
        let (index_bytes, with_hash) = match (k.log2_index_bytes, k.kind, k.dk_size) {
            (Some(log2), Some(kind), _) => {
                let log2 = self.byte(keys, log2)?;
                (
                    1u64.checked_shl(u32::from(log2)).filter(|b| *b <= MAX_ENTRIES * 16).ok_or(not)?,
                    self.byte(keys, kind)? == 0,
                )
            }
            (_, _, Some(size)) => {
                let size = self.word(keys, size)?;
                let each: u64 = match size {
                    0..=0xff => 1,
                    0x100..=0xffff => 2,
                    _ => 4,
                };
                (size.checked_mul(each).filter(|b| *b <= MAX_ENTRIES * 16).ok_or(not)?, true)
            }
            _ => return Err(not),
        };
        let first = keys.checked_add(k.indices + index_bytes).ok_or(not)?;
        let each = if with_hash { 24 } else { 16 };
        let bytes = self.memory.read_vec(first, usize::try_from(n * each).map_err(|_| not)?)?;
        let own = match values {
            Some(at) => Some(self.memory.read_vec(at, usize::try_from(n * 8).map_err(|_| not)?)?),
            None => None,
        };
        let mut own = own.as_deref().map(words_of);
        let mut out = Vec::with_capacity(usize::try_from(n).unwrap_or(0));
        for entry in bytes.chunks_exact(if with_hash { 24 } else { 16 }) {
            let mut words = words_of(entry);
            if with_hash {
                words.next();
            }
            let (Some(key), Some(mut value)) = (words.next(), words.next()) else { continue };
            if let Some(own) = &mut own {
                value = own.next().unwrap_or(0);
            }
            if key != 0 && value != 0 {
                out.push((Addr(key), Addr(value)));
            }
        }
        Ok(out)
    }

    /// Whether the object is this (ASCII) string; cheap where it is not.
    pub(super) fn string_is(&self, object: Addr, text: &str) -> bool {
        self.word(object, self.o.str_length).is_ok_and(|n| n == text.len() as u64)
            && self.string(object).is_ok_and(|s| s == text)
    }

    /// The attributes an instance keeps itself: name and value.
    pub(super) fn attributes(&self, object: Addr) -> Result<Vec<(Addr, Addr)>, ObjectError> {
        let kind = self.type_of(object).ok_or(ObjectError::Not("object", object))?;
        let cached_keys = || self.addr(kind.addr, self.o.type_cached_keys);
        let dict_at = |at: i64| -> Result<Vec<(Addr, Addr)>, ObjectError> {
            let dict = self.memory.read_addr(object.offset(at))?;
            if dict.is_null() { Ok(Vec::new()) } else { self.dict(dict) }
        };
        let managed = kind.flags & MANAGED_DICT != 0 && kind.flags & HEAP_TYPE != 0;
        match self.o.attributes {
            Attributes::ValuesPointer if managed => {
                let values = self.memory.read_addr(object.offset(-32))?;
                if values.is_null() { dict_at(-24) } else { self.entries(cached_keys()?, Some(values)) }
            }
            Attributes::TaggedWord if managed => {
                let word = self.memory.read_u64(object.offset(-24))?;
                match (word, word & 1) {
                    (0, _) => Ok(Vec::new()),
                    (_, 1) => self.entries(cached_keys()?, Some(Addr(word.wrapping_add(1)))),
                    _ => self.dict(Addr(word)),
                }
            }
            Attributes::Inline(dict) if managed => {
                let values = object.offset(kind.basicsize.cast_signed());
                let valid = match self.o.values_valid {
                    Some(at) if kind.flags & INLINE_VALUES != 0 => self.byte(values, at)? == 1,
                    _ => false,
                };
                if valid {
                    self.entries(cached_keys()?, Some(values.offset(self.o.values_header.cast_signed())))
                } else {
                    dict_at(dict)
                }
            }
            _ if kind.dictoffset > 0 && kind.dictoffset < 1 << 16 => dict_at(kind.dictoffset),
            _ => Ok(Vec::new()),
        }
    }

    /// One attribute an instance keeps itself.
    pub(super) fn attribute(&self, object: Addr, name: &str) -> Option<Addr> {
        let entries = self.attributes(object).ok()?;
        entries.into_iter().find(|(k, _)| self.string_is(*k, name)).map(|(_, v)| v)
    }
}

/// A character by its number; what is none is shown as such.
fn char_of(number: u32) -> char {
    char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The little-endian words of `bytes`.
pub(super) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w))
}

/// A word of a struct read as bytes.
pub(super) fn word_in(bytes: &[u8], offset: u64) -> Option<u64> {
    u64_at(bytes, usize::try_from(offset).ok()?)
}

/// A 32-bit number of a struct read as bytes.
pub(super) fn int_in(bytes: &[u8], offset: u64) -> Option<i32> {
    i32_at(bytes, usize::try_from(offset).ok()?)
}

/// A byte of a struct read as bytes.
pub(super) fn byte_in(bytes: &[u8], offset: u64) -> Option<u8> {
    bytes.get(usize::try_from(offset).ok()?).copied()
}
