//! Local variables of Python frames as short texts. Read only where they are asked for: they may hold what is nobody's business.
//!
//! No code of the target runs, so an object is shown by what its own bytes say: numbers, strings, and of others the type.

use super::objects::Objects;
use super::place::Framed;
use crate::facts::Local;
use crate::memory::MemoryExt;
use crate::units::Addr;

/// Variables of one frame shown at most.
const MAX_LOCALS: usize = 64;
/// Frames of one thread whose variables are shown, newest first.
pub(super) const MAX_FRAMES: usize = 128;
/// Characters of a string shown.
const MAX_TEXT: usize = 80;
/// Bytes of a `bytes` object shown.
const MAX_BYTES: usize = 40;
/// Digits of 30 bits of an `int` shown as a number.
const MAX_DIGITS: u64 = 4;

impl Objects<'_> {
    /// The variables of a frame that have a value, in the order of their slots.
    pub(super) fn told_locals(&self, framed: &Framed) -> Vec<Local> {
        let Some(code) = &framed.code else { return Vec::new() };
        let locals = self.locals(&framed.frame, code);
        locals.into_iter().take(MAX_LOCALS).map(|(name, value)| Local { name, value: self.told(value) }).collect()
    }

    /// An object in a few words.
    fn told(&self, object: Addr) -> String {
        let Some(kind) = self.type_of(object) else { return format!("? at {object}") };
        let short = kind.name.rsplit('.').next().unwrap_or(&kind.name);
        let said = match kind.name.as_str() {
            "NoneType" => Some("None".to_owned()),
            "bool" => self.int(object).ok().map(|n| if n == 0 { "False" } else { "True" }.to_owned()),
            "int" => self.told_int(object),
            // its number stands right behind the header, as the size of sized objects does
            "float" => self.word(object, self.o.ob_size).ok().map(|w| format!("{:?}", f64::from_bits(w))),
            "str" => self.string(object).ok().map(|text| quoted(&text)),
            "bytes" => self.told_bytes(object),
            "function" => self.function_name(object).map(|name| format!("function {name}")),
            "tuple" | "list" | "collections.deque" => self.size(object).map(|n| format!("{short} of {n} at {object}")),
            _ => None,
        };
        said.unwrap_or_else(|| format!("{short} at {object}"))
    }

    fn told_int(&self, object: Addr) -> Option<String> {
        let (digits, negative) = match self.o.int_tag {
            Some(at) => {
                let tag = self.word(object, at).ok()?;
                (tag >> 3, tag & 3 == 2)
            }
            None => {
                let size = self.word(object, self.o.ob_size).ok()?.cast_signed();
                (size.unsigned_abs(), size < 0)
            }
        };
        if digits > MAX_DIGITS {
            return Some(format!("int of {digits} digits of 30 bits"));
        }
        let at = object.offset(self.o.int_digits.cast_signed());
        let bytes = self.memory.read_vec(at, usize::try_from(digits * 4).ok()?).ok()?;
        let mut value: i128 = 0;
        for (i, digit) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let digit = u32::from_le_bytes(*digit);
            value |= i128::from(digit & 0x3fff_ffff) << (30 * i);
        }
        // a small zero keeps a digit of which nobody asks (since 3.12 its tag says zero)
        let zero = self.o.int_tag.is_some_and(|at| self.word(object, at).is_ok_and(|tag| tag & 3 == 1));
        Some(if zero { 0 } else { if negative { -value } else { value } }.to_string())
    }

    fn told_bytes(&self, object: Addr) -> Option<String> {
        let (at, len) = self.bytes_extent(object).ok()?;
        let bytes = self.memory.read_vec(at, len.min(MAX_BYTES)).ok()?;
        let cut = if len > MAX_BYTES { "…" } else { "" };
        Some(format!("b\"{}\"{cut}", bytes.escape_ascii()))
    }
}

/// A string in quotes, on one line, cut.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars().take(MAX_TEXT) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c => out.push(crate::units::harmless(c)),
        }
    }
    out.push('"');
    if text.chars().nth(MAX_TEXT).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::offsets::Offsets;
    use super::*;
    use crate::memory::Fake;

    /// A type named `name` at 0x100 and an object of it at 0x1000 with these words behind its header.
    fn told(minor: u32, name: &str, words: &[u64]) -> String {
        let o = Offsets::choose((minor, None), false, None).unwrap();
        let mut m = Fake::new();
        m.put(Addr(0x100), &[0; 1024]).put(Addr(0x800), &[0; 64]).put(Addr(0x800), name.as_bytes());
        m.put_u64(Addr(0x100 + 24), 0x800);
        m.put(Addr(0x1000), &[0; 256]).put_u64(Addr(0x1008), 0x100);
        for (i, word) in words.iter().enumerate() {
            m.put_u64(Addr(0x1010 + i as u64 * 8), *word);
        }
        Objects::new(&m, &o).told(Addr(0x1000))
    }

    #[test]
    fn numbers_of_either_sign_and_layout() {
        assert_eq!(told(11, "int", &[1, 42]), "42");
        assert_eq!(told(11, "int", &[(-2i64).cast_unsigned(), 1 | 1 << 32]), "-1073741825");
        assert_eq!(told(11, "int", &[0]), "0");
        assert_eq!(told(12, "int", &[1 << 3, 42]), "42");
        assert_eq!(told(12, "int", &[1 << 3 | 2, 42]), "-42");
        assert_eq!(told(12, "int", &[1 << 3 | 1, 0]), "0");
        assert_eq!(told(11, "int", &[1 << 40]), "int of 1099511627776 digits of 30 bits");
        assert_eq!(told(11, "bool", &[1, 1]), "True");
        assert_eq!(told(11, "float", &[(-0.5f64).to_bits()]), "-0.5");
        assert_eq!(told(11, "NoneType", &[]), "None");
    }

    #[test]
    fn others_are_told_by_their_type() {
        assert_eq!(told(11, "session.Session", &[7]), "Session at 0x1000");
        assert_eq!(told(11, "list", &[3, 0x2000]), "list of 3 at 0x1000");
        assert_eq!(told(11, "str", &[u64::MAX; 8]), "str at 0x1000", "nonsense is no string");
    }

    #[test]
    fn strings_stay_on_their_line() {
        assert_eq!(quoted("a\"\n\u{1b}[31m"), "\"a\\\"\\n?[31m\"");
        assert_eq!(quoted(&"x".repeat(100)).chars().count(), MAX_TEXT + 3);
    }
}
