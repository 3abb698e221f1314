//! Little-endian words of bytes that were read already: `None` where they end before.

/// A 16-bit word at `at`.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A 32-bit word at `at`.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A signed 32-bit word at `at`.
#[must_use]
pub fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(u32::cast_signed)
}

/// A 64-bit word at `at`.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_whole_is_none() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 0x88, 0xff, 0xff, 0xff, 0xff];
        assert_eq!((u16_at(&bytes, 1), u32_at(&bytes, 0)), (Some(0x0302), Some(0x0403_0201)));
        assert_eq!((u64_at(&bytes, 0), i32_at(&bytes, 8)), (Some(0x8807_0605_0403_0201), Some(-1)));
        assert_eq!((u64_at(&bytes, 5), u32_at(&bytes, 9), u16_at(&bytes, 11)), (None, None, None));
        assert_eq!((u16_at(&bytes, 12), u16_at(&bytes, usize::MAX)), (None, None));
    }
}
