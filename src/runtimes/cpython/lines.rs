//! Line tables and exception tables: from a position in a code object to its line, and to the handlers around it.
//!
//! Touches only bytes. Positions are in 2-byte code units except where said.

use super::offsets::LineTable;

/// The line of the instruction at `unit`, or `None` where it has none or the table ends before.
///
/// `unit` counts 2-byte units, for [`LineTable::Lnotab`] too; −1 (not started) gives the first line.
pub(super) fn line_of(kind: LineTable, table: &[u8], first_line: i32, unit: i64) -> Option<u32> {
    let line = match (kind, u64::try_from(unit)) {
        (_, Err(_)) => Some(i64::from(first_line)),
        (LineTable::Lnotab, Ok(unit)) => Some(lnotab(table, first_line, unit * 2)),
        (LineTable::Ranges, Ok(unit)) => ranges(table, first_line, unit * 2),
        (LineTable::Locations, Ok(unit)) => locations(table, first_line, unit),
    }?;
    u32::try_from(line).ok().filter(|l| *l > 0)
}

/// `co_lnotab` (up to 3.9): pairs (unsigned address step, signed line step). CPython `Objects/lnotab_notes.txt`.
fn lnotab(table: &[u8], first_line: i32, wanted: u64) -> i64 {
    let mut line = i64::from(first_line);
    let mut at = 0u64;
    for [step, lines] in table.as_chunks::<2>().0 {
        at += u64::from(*step);
        if at > wanted {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

/// `co_linetable` of 3.10: pairs (unsigned byte length, signed line step), −128 for no line.
fn ranges(table: &[u8], first_line: i32, wanted: u64) -> Option<i64> {
    let mut line = i64::from(first_line);
    let mut end = 0u64;
    for [length, step] in table.as_chunks::<2>().0 {
        end += u64::from(*length);
        let step = step.cast_signed();
        if step != -128 {
            line += i64::from(step);
        }
        if wanted < end {
            return (step != -128).then_some(line);
        }
    }
    None
}

/// `co_linetable` since 3.11: entries of a head byte and varints. CPython `InternalDocs/code_objects.md`.
fn locations(table: &[u8], first_line: i32, wanted: u64) -> Option<i64> {
    let mut bytes = table.iter().copied();
    let mut line = i64::from(first_line);
    let mut end = 0u64;
    while let Some(head) = bytes.next() {
        let code = (head >> 3) & 15;
        end += u64::from(head & 7) + 1;
        let mut none = false;
        match code {
            0..=9 => {
                bytes.next()?;
            }
            10..=12 => {
                line = line.checked_add(i64::from(code) - 10)?;
                bytes.next()?;
                bytes.next()?;
            }
            13 => line = line.checked_add(signed(varint(&mut bytes)?))?,
            14 => {
                line = line.checked_add(signed(varint(&mut bytes)?))?;
                for _ in 0..3 {
                    varint(&mut bytes)?;
                }
            }
            _ => none = true,
        }
        if wanted < end {
            return (!none).then_some(line);
        }
    }
    None
}

/// Least significant group first: 6 bits a byte, bit 6 says that more follow.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..36).step_by(6) {
        let b = bytes.next()?;
        value |= u32::from(b & 63).checked_shl(shift)?;
        if b & 64 == 0 {
            return Some(value);
        }
    }
    None
}

fn signed(value: u32) -> i64 {
    let magnitude = i64::from(value >> 1);
    if value & 1 == 1 { -magnitude } else { magnitude }
}

/// One entry of an exception table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Handler {
    /// First unit covered.
    pub start: u32,
    /// One past the last unit covered.
    pub end: u32,
    /// Where the handler begins.
    pub target: u32,
    /// Values on the stack when the handler begins.
    pub depth: u32,
}

/// The entry of an exception table (since 3.11) that covers the instruction at `unit`.
/// CPython `InternalDocs/exception_handling.md`.
pub(super) fn handler_of(table: &[u8], unit: u32) -> Option<Handler> {
    handlers(table).find(|h| h.start <= unit && unit < h.end)
}

/// All entries, until the table ends or makes no sense.
fn handlers(table: &[u8]) -> impl Iterator<Item = Handler> + '_ {
    let mut bytes = table.iter().copied();
    std::iter::from_fn(move || {
        let start = big_varint(&mut bytes)?;
        let length = big_varint(&mut bytes)?;
        let target = big_varint(&mut bytes)?;
        let depth = big_varint(&mut bytes)? >> 1;
        Some(Handler { start, end: start.checked_add(length)?, target, depth })
    })
}

/// Most significant group first; bit 7 marks the first byte of an entry.
fn big_varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u32> {
    let mut value = 0u32;
    for _ in 0..6 {
        let b = bytes.next()?;
        value = value.checked_mul(64)?.checked_add(u32::from(b & 63))?;
        if b & 64 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // def f(lock):          # line 1
    //     x = 1             # 2
    //     with lock:        # 3
    //         g(x,          # 4
    //           2)          # 5
    //     return x          # 6
    // compiled by each version; the expected lines are what `dis.findlinestarts` says there
    #[test]
    fn lnotab_of_3_8() {
        let table = [0, 1, 4, 1, 6, 1, 4, 1, 2, 255, 14, 2];
        let line = |byte: i64| line_of(LineTable::Lnotab, &table, 1, byte / 2);
        assert_eq!(line(0), Some(2));
        assert_eq!(line(4), Some(3));
        assert_eq!(line(8), Some(3));
        assert_eq!(line(10), Some(4));
        assert_eq!(line(14), Some(5));
        assert_eq!(line(16), Some(4));
        assert_eq!(line(30), Some(6));
        assert_eq!(line(-2), Some(1), "not started");
    }

    #[test]
    fn ranges_of_3_10() {
        let table = [4, 1, 6, 1, 4, 1, 2, 1, 6, 255, 10, 255, 4, 3, 16, 253, 4, 3];
        let line = |unit| line_of(LineTable::Ranges, &table, 1, unit);
        let lines: Vec<_> = [0, 2, 5, 7, 8, 11, 16, 18, 26].map(line).into_iter().flatten().collect();
        assert_eq!(lines, [2, 3, 4, 5, 4, 3, 6, 3, 6]);
        assert_eq!(line(28), None, "past the end");
        assert_eq!(line_of(LineTable::Ranges, &[4, 128, 4, 1], 1, 0), None, "a range without a line");
    }

    #[test]
    fn locations_and_exceptions_of_3_11() {
        let table = [
            128, 0, 216, 8, 9, 128, 65, 216, 9, 13, 240, 0, 2, 5, 13, 240, 0, 2, 5, 13, 221, 8, 9, 136, 33, 216, 10,
            11, 241, 3, 1, 9, 13, 244, 0, 1, 9, 13, 240, 0, 1, 9, 13, 240, 3, 2, 5, 13, 240, 0, 2, 5, 13, 240, 0, 2, 5,
            13, 241, 0, 2, 5, 13, 244, 0, 2, 5, 13, 240, 0, 2, 5, 13, 240, 0, 2, 5, 13, 240, 0, 2, 5, 13, 240, 0, 2, 5,
            13, 240, 0, 2, 5, 13, 240, 0, 2, 5, 13, 248, 248, 248, 240, 0, 2, 5, 13, 240, 0, 2, 5, 13, 240, 0, 2, 5,
            13, 240, 0, 2, 5, 13, 240, 6, 0, 12, 13, 128, 72,
        ];
        let line = |unit| line_of(LineTable::Locations, &table, 1, unit);
        let lines: Vec<_> = [0, 1, 3, 6, 13, 14, 22, 37, 45].map(line).into_iter().flatten().collect();
        assert_eq!(lines, [1, 2, 3, 4, 5, 4, 3, 3, 6]);
        assert_eq!(line(39), None, "a range without a line");
        assert_eq!(line(47), None, "past the end");

        let exceptions = [133, 17, 34, 3, 162, 4, 38, 7, 169, 1, 38, 7];
        assert_eq!(handler_of(&exceptions, 4), None);
        assert_eq!(handler_of(&exceptions, 5), Some(Handler { start: 5, end: 22, target: 34, depth: 1 }));
        assert_eq!(handler_of(&exceptions, 22), None);
        assert_eq!(handler_of(&exceptions, 34), Some(Handler { start: 34, end: 38, target: 38, depth: 3 }));
    }

    #[test]
    fn a_cut_or_wild_table_gives_no_line() {
        for kind in [LineTable::Lnotab, LineTable::Ranges, LineTable::Locations] {
            for n in 0..64u8 {
                let table = vec![0xff; usize::from(n)];
                let _ = line_of(kind, &table, i32::MAX, i64::MAX / 4);
            }
        }
        assert_eq!(line_of(LineTable::Locations, &[0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], 1, 0), None);
    }

    #[test]
    fn long_numbers_of_an_exception_table() {
        // start 5, length 10, target 70 (two bytes), depth 2 with the lasti bit
        let table = [0x85, 10, 0x41, 6, (2 << 1) | 1];
        assert_eq!(handler_of(&table, 14), Some(Handler { start: 5, end: 15, target: 70, depth: 2 }));
        assert_eq!(handler_of(&[0xff; 30], 3), None);
        assert_eq!(handler_of(&table[..4], 14), None, "cut");
    }
}
