//! The tables of `symbols/`: choose a struct layout or a frame signature, and say where it came from.
//!
//! Knows nothing of processes or runtimes: a runtime says what it met (`version`, `arch`, `build`…) and asks for a struct
//! by name and for its fields by name. A field that a layout has not is `None`; nobody compares versions to find out.

mod cpython;
mod frames;
mod version;

pub use frames::{FrameSignature, Means};
pub use version::{Version, VersionRange};

use crate::memory::{Memory, MemoryExt, ReadError};
use crate::units::Addr;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Why a table of `symbols/` could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// It is not the TOML of the schema.
    #[error("not a table of layouts: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A field's type is none of the schema's.
    #[error("{structure}.{field}: unknown type `{kind}`")]
    Kind {
        /// The struct.
        structure: String,
        /// The field.
        field: String,
        /// What stands there.
        kind: String,
    },
    /// A field reaches past the end of its struct.
    #[error("{structure}.{field} ends at {end}, past the struct's {size} bytes")]
    Outside {
        /// The struct.
        structure: String,
        /// The field.
        field: String,
        /// One past its last byte.
        end: u64,
        /// The struct's size.
        size: u64,
    },
    /// A version or a range of versions that cannot be read.
    #[error("`{0}` is no range of versions such as `>=2.36, <2.41`")]
    Version(String),
    /// An entry that cites nothing.
    #[error("{0} cites no source")]
    NoSource(String),
}

/// Where a field lies in its struct and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Bytes from the start of the struct.
    pub offset: u64,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub width: u64,
    /// Whether it is a signed number.
    pub signed: bool,
    /// Elements: 1 unless it is an array; 0 for what only begins here (an inline tail, a struct with a table of its own).
    pub count: u64,
    /// First bit and number of bits, for a bit field; `width` is then that of the word read.
    pub bits: Option<(u32, u32)>,
}

impl Field {
    /// Where the field of the struct at `base` lies.
    #[must_use]
    pub fn at(&self, base: Addr) -> Addr {
        Addr(base.0.wrapping_add(self.offset))
    }

    /// The field's (first) value in the struct at `base`: sign-extended when the field is signed.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn read(&self, memory: &(impl Memory + ?Sized), base: Addr) -> Result<i64, ReadError> {
        self.read_word(memory, base).map(|word| self.extend(word))
    }

    /// The field's (first) value as bits, zero-extended: for pointers, masks and unsigned numbers.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn read_word(&self, memory: &(impl Memory + ?Sized), base: Addr) -> Result<u64, ReadError> {
        let at = self.at(base);
        let word = match self.width {
            1 => u64::from(memory.read_u8(at)?),
            2 => u64::from(memory.read_u16(at)?),
            4 => u64::from(memory.read_u32(at)?),
            _ => memory.read_u64(at)?,
        };
        Ok(match self.bits {
            Some((first, n)) => word.checked_shr(first).unwrap_or(0) & !u64::MAX.checked_shl(n).unwrap_or(0),
            None => word,
        })
    }

    /// The field's (first) value as bits, in the bytes of the whole struct; `None` where they end too early.
    #[must_use]
    pub fn word_of(&self, bytes: &[u8]) -> Option<u64> {
        let from = usize::try_from(self.offset).ok()?;
        let width = usize::try_from(self.width).ok()?;
        let field = bytes.get(from..from.checked_add(width)?)?;
        Some(field.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)))
    }

    /// The same, sign-extended when the field is signed.
    #[must_use]
    pub fn value_of(&self, bytes: &[u8]) -> Option<i64> {
        self.word_of(bytes).map(|word| self.extend(word))
    }

    fn extend(&self, word: u64) -> i64 {
        let shift = match self.width {
            1 => 56,
            2 => 48,
            4 => 32,
            _ => 0,
        };
        let word = i64::from_le_bytes(word.to_le_bytes());
        if self.signed { (word << shift) >> shift } else { word }
    }

    /// The field's value as an address.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn read_addr(&self, memory: &(impl Memory + ?Sized), base: Addr) -> Result<Addr, ReadError> {
        self.read_word(memory, base).map(Addr)
    }

    fn parse(offset: u64, kind: &str) -> Option<Field> {
        if let Some(bits) = kind.strip_prefix("bits ") {
            let (first, n) = bits.split_once(' ')?;
            let bits = (first.parse().ok()?, n.parse().ok()?);
            return Some(Field { offset, width: 1, signed: false, count: 1, bits: Some(bits) });
        }
        let (kind, count) = match kind.split_once('[') {
            Some((kind, n)) => (kind, n.strip_suffix(']')?.parse().ok()?),
            None => (kind, 1),
        };
        let (width, signed) = match kind {
            "i8" => (1, true),
            "u8" | "bool" | "char" => (1, false),
            "i16" => (2, true),
            "u16" => (2, false),
            "i32" => (4, true),
            "u32" => (4, false),
            "i64" => (8, true),
            "u64" | "ptr" => (8, false),
            _ => return None,
        };
        Some(Field { offset, width, signed, count, bits: None })
    }

    /// One past the last byte, from the start of the struct.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.width.saturating_mul(self.count))
    }
}

/// What was met in a target, to choose tables by: `version` and any other word the tables' `applies` may name.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The version of the thing the tables describe; absent when unknown (then no entry that asks for one applies).
    pub version: Option<Version>,
    /// Other words: `arch` → `x86_64`, `build` → `gil`, `build_id` → hex.
    pub words: Vec<(&'static str, String)>,
}

impl Subject {
    /// Something of this version.
    #[must_use]
    pub fn version(version: Option<Version>) -> Subject {
        Subject { version, words: Vec::new() }
    }

    /// With one more word.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Subject {
        self.words.push((key, value.into()));
        self
    }
}

/// When an entry of a table applies: every condition must hold. No condition: always.
#[derive(Clone, Debug, Default)]
pub struct Applies {
    version: Option<VersionRange>,
    words: BTreeMap<String, String>,
}

impl Applies {
    /// Whether it applies to `subject`. A word the subject does not tell is taken as met when the subject has no such key
    /// at all, so that a table may name what is fixed by its file (`libc = "glibc"`).
    #[must_use]
    pub fn to(&self, subject: &Subject) -> bool {
        let version = match (&self.version, &subject.version) {
            (None, _) => true,
            (Some(range), Some(version)) => range.contains(version),
            (Some(_), None) => false,
        };
        version
            && self.words.iter().all(|(key, value)| {
                let mut told = subject.words.iter().filter(|(k, _)| k == key).peekable();
                told.peek().is_none() || told.any(|(_, v)| v == value)
            })
    }

    fn parse(raw: BTreeMap<String, String>) -> Result<Applies, LayoutError> {
        let mut words = raw;
        let version = words
            .remove("version")
            .map(|text| VersionRange::parse(&text).ok_or(LayoutError::Version(text)))
            .transpose()?;
        Ok(Applies { version, words })
    }

    /// The condition as words, for evidence: `version >=2.36, arch x86_64`.
    #[must_use]
    pub fn describe(&self) -> String {
        let version = self.version.as_ref().map(|v| format!("version {v}"));
        let words = self.words.iter().map(|(k, v)| format!("{k} {v}"));
        version.into_iter().chain(words).collect::<Vec<_>>().join(", ")
    }
}

/// The layout of one struct.
#[derive(Clone, Debug)]
pub struct StructLayout {
    /// Its name upstream: `pthread_mutex_t`, `PyThreadState`.
    pub name: String,
    /// When it applies.
    pub applies: Applies,
    /// Its size in bytes, where known.
    pub size: Option<u64>,
    /// Upstream file and how the offsets were found.
    pub source: String,
    fields: BTreeMap<String, Field>,
}

impl StructLayout {
    /// A layout that did not come from a table: from the target's own account (`_Py_DebugOffsets`) or from DWARF. `source`
    /// says which.
    #[must_use]
    pub fn made(name: &str, size: Option<u64>, source: &str, fields: &[(&str, Field)]) -> StructLayout {
        StructLayout {
            name: name.to_owned(),
            applies: Applies::default(),
            size,
            source: source.to_owned(),
            fields: fields.iter().map(|(n, f)| ((*n).to_owned(), *f)).collect(),
        }
    }

    /// A field by its upstream name (a path for nested ones: `interp.gil`), or `None` where this layout has no such field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.get(name).copied()
    }

    /// A field's offset in bytes.
    #[must_use]
    pub fn offset(&self, name: &str) -> Option<u64> {
        self.field(name).map(|f| f.offset)
    }

    /// The whole struct at `base`, read at once. `None` where the layout tells no size, or one above 64 KiB.
    pub fn read(&self, memory: &(impl Memory + ?Sized), base: Addr) -> Option<StructImage<'_>> {
        let len = usize::try_from(self.size?).ok().filter(|len| *len <= 1 << 16)?;
        let bytes = memory.read_vec(base, len).ok()?;
        Some(StructImage { layout: self, base, bytes })
    }

    /// All fields, by name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, Field)> {
        self.fields.iter().map(|(n, f)| (n.as_str(), *f))
    }

    /// Where the layout came from, for evidence.
    #[must_use]
    pub fn origin(&self) -> String {
        let when = self.applies.describe();
        if when.is_empty() { format!("{} ({})", self.name, self.source) } else { format!("{} for {when}", self.name) }
    }
}

/// The bytes of one struct and how to read them.
#[derive(Clone, Debug)]
pub struct StructImage<'a> {
    /// Its layout.
    pub layout: &'a StructLayout,
    /// Where it lies.
    pub base: Addr,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl StructImage<'_> {
    /// A field as bits, zero-extended; `None` where the layout has no such field.
    #[must_use]
    pub fn word(&self, field: &str) -> Option<u64> {
        self.layout.field(field)?.word_of(&self.bytes)
    }

    /// A field as a number, sign-extended when it is signed.
    #[must_use]
    pub fn value(&self, field: &str) -> Option<i64> {
        self.layout.field(field)?.value_of(&self.bytes)
    }

    /// A field as a 32-bit number of either sign.
    #[must_use]
    pub fn int(&self, field: &str) -> Option<i32> {
        i32::try_from(self.value(field)?).ok()
    }
}

/// A parsed table file.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Struct layouts in file order.
    pub structs: Vec<StructLayout>,
    /// Frame signatures in file order.
    pub frames: Vec<FrameSignature>,
    /// Numbers and words that are no offsets: opcodes, enum values.
    pub constants: BTreeMap<String, Constant>,
}

/// A number or word of a table that is no offset.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Constant {
    /// One number.
    Number(u64),
    /// Several.
    Numbers(Vec<u64>),
    /// A word.
    Word(String),
}

impl Table {
    /// Parses a file of `symbols/`; every field is checked to lie inside its struct, every entry to cite its source.
    ///
    /// # Errors
    /// [`LayoutError`], naming the entry.
    pub fn parse(text: &str) -> Result<Table, LayoutError> {
        let raw: RawTable = toml::from_str(text)?;
        let structs = raw.structs.into_iter().map(RawStruct::check).collect::<Result<_, _>>()?;
        let frames = raw.frames.into_iter().map(frames::RawFrame::check).collect::<Result<_, _>>()?;
        Ok(Table { structs, frames, constants: raw.constants })
    }

    /// The number `name`, where the table has one.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.constants.get(name)? {
            Constant::Number(n) => Some(*n),
            _ => None,
        }
    }

    /// The numbers `name`; none where the table has none.
    #[must_use]
    pub fn numbers(&self, name: &str) -> &[u64] {
        match self.constants.get(name) {
            Some(Constant::Numbers(n)) => n,
            _ => &[],
        }
    }

    /// The word `name`, where the table has one.
    #[must_use]
    pub fn word(&self, name: &str) -> Option<&str> {
        match self.constants.get(name)? {
            Constant::Word(w) => Some(w),
            _ => None,
        }
    }

    /// The layout of the struct `name` that applies to `subject`; of several the first in the file.
    #[must_use]
    pub fn layout(&self, name: &str, subject: &Subject) -> Option<&StructLayout> {
        self.structs.iter().find(|s| s.name == name && s.applies.to(subject))
    }

    /// Every layout of the struct `name` that applies to `subject`, in file order.
    pub fn layouts<'a>(&'a self, name: &'a str, subject: &'a Subject) -> impl Iterator<Item = &'a StructLayout> {
        self.structs.iter().filter(move |s| s.name == name && s.applies.to(subject))
    }

    /// The signatures of `function` in the module file `module` (`libc.so.6`).
    pub fn signatures<'a>(&'a self, module: &'a str, function: &'a str) -> impl Iterator<Item = &'a FrameSignature> {
        self.frames.iter().filter(move |f| f.matches(module, function))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTable {
    #[serde(default, rename = "struct")]
    structs: Vec<RawStruct>,
    #[serde(default, rename = "frame")]
    frames: Vec<frames::RawFrame>,
    #[serde(default)]
    constants: BTreeMap<String, Constant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStruct {
    name: String,
    #[serde(default)]
    applies: BTreeMap<String, String>,
    size: Option<u64>,
    fields: BTreeMap<String, (u64, String)>,
    source: String,
}

impl RawStruct {
    fn check(self) -> Result<StructLayout, LayoutError> {
        if self.source.trim().is_empty() {
            return Err(LayoutError::NoSource(self.name));
        }
        let mut fields = BTreeMap::new();
        for (name, (offset, kind)) in self.fields {
            let field = Field::parse(offset, &kind).ok_or_else(|| LayoutError::Kind {
                structure: self.name.clone(),
                field: name.clone(),
                kind,
            })?;
            if let Some(size) = self.size.filter(|size| field.end() > *size) {
                return Err(LayoutError::Outside { structure: self.name, field: name, end: field.end(), size });
            }
            fields.insert(name, field);
        }
        Ok(StructLayout {
            name: self.name,
            applies: Applies::parse(self.applies)?,
            size: self.size,
            source: self.source,
            fields,
        })
    }
}

/// The tables embedded in the binary.
pub struct Layouts;

impl Layouts {
    /// Struct layouts of glibc on x86-64.
    #[must_use]
    pub fn glibc() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| embedded(include_str!("../../symbols/layouts/glibc/x86_64.toml")))
    }

    /// What frames in glibc's libraries mean.
    #[must_use]
    pub fn glibc_frames() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| embedded(include_str!("../../symbols/frames/glibc.toml")))
    }

    /// What calls of language and thread libraries wait for: Rust, C++, Abseil, Qt.
    pub fn waiting_frames() -> impl Iterator<Item = &'static FrameSignature> {
        static TABLES: OnceLock<[Table; 4]> = OnceLock::new();
        let tables = TABLES.get_or_init(|| {
            [
                embedded(include_str!("../../symbols/frames/rust.toml")),
                embedded(include_str!("../../symbols/frames/cxx.toml")),
                embedded(include_str!("../../symbols/frames/abseil.toml")),
                embedded(include_str!("../../symbols/frames/qt.toml")),
            ]
        });
        tables.iter().flat_map(|t| &t.frames)
    }

    /// What ROCm keeps in host memory, on x86-64.
    #[must_use]
    pub fn rocm() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| embedded(include_str!("../../symbols/layouts/rocm/x86_64.toml")))
    }

    /// What calls of device libraries mean: HIP, HSA, CUDA, NCCL, Level Zero.
    #[must_use]
    pub fn gpu_frames() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| embedded(include_str!("../../symbols/frames/gpu.toml")))
    }
}

/// Parses an embedded file. `tests/tables.rs` proves that all parse; should one not, it is as if it were empty.
#[must_use]
pub fn embedded(text: &str) -> Table {
    Table::parse(text).unwrap_or_default()
}

#[cfg(test)]
mod tests;
