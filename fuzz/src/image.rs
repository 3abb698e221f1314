//! A small ELF library with the symbols asked for.

/// Bytes of the read-only, executable segment, which holds the whole file.
pub const TEXT: u64 = 0x8000;
/// Bytes of the writable segment behind it, all zeros in the file.
pub const DATA: u64 = 0x4_0000;

/// A symbol: its name, where it lies from the start of the file's first byte in memory, its size, whether it is a function.
pub type Name = (&'static str, u64, u64, bool);

/// Writes the file. `frames` is its `.eh_frame`, `text` what stands at each address.
pub fn library(names: &[Name], frames: &[u8], text: &[(u64, &[u8])]) -> Vec<u8> {
    let mut file = vec![0u8; TEXT as usize];
    let mut strings = vec![0u8];
    let mut symbols = vec![0u8; 24];
    for (name, at, size, function) in names {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x10 | if *function { 2 } else { 1 }, 0, 1, 0]);
        symbols.extend(at.to_le_bytes());
        symbols.extend(size.to_le_bytes());
        strings.extend(name.bytes().chain([0]));
    }
    let section_names = b"\0.dynsym\0.dynstr\0.eh_frame\0.shstrtab\0";
    let mut end = 0x400usize;
    let mut place = |file: &mut Vec<u8>, bytes: &[u8]| {
        let at = end;
        let room = file.len().saturating_sub(at).min(bytes.len());
        file[at..at + room].copy_from_slice(&bytes[..room]);
        end = (at + room).next_multiple_of(8);
        (at as u64, room as u64)
    };
    let parts = [
        place(&mut file, &symbols),
        place(&mut file, &strings),
        place(&mut file, frames.get(..0x1000).unwrap_or(frames)),
        place(&mut file, section_names),
    ];
    for (at, bytes) in text {
        let at = *at as usize;
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
    // name, type, flags, link, info, entry size
    let kinds: [(u32, u32, u64, u32, u32, u64); 4] =
        [(1, 11, 2, 2, 1, 24), (9, 3, 2, 0, 0, 0), (17, 1, 2, 0, 0, 0), (27, 3, 0, 0, 0, 0)];
    let headers = file.len() as u64;
    file.extend([0u8; 64]);
    for ((name, kind, flags, link, info, entry), (at, len)) in kinds.into_iter().zip(parts) {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for word in [flags, at, at, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(link.to_le_bytes());
        file.extend(info.to_le_bytes());
        file.extend(8u64.to_le_bytes());
        file.extend(entry.to_le_bytes());
    }
    let mut head = Vec::new();
    head.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    head.extend(3u16.to_le_bytes());
    head.extend(62u16.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    for word in [0, 64, headers] {
        head.extend(word.to_le_bytes());
    }
    head.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 2, 64, 5, 4] {
        head.extend(half.to_le_bytes());
    }
    // flags, offset, address, bytes in the file, bytes in memory
    for (flags, at, in_file, in_memory) in [(5u32, 0u64, TEXT, TEXT), (6, TEXT, 0, DATA)] {
        head.extend(1u32.to_le_bytes());
        head.extend(flags.to_le_bytes());
        for word in [at, at, at, in_file, in_memory, 0x1000] {
            head.extend(word.to_le_bytes());
        }
    }
    file[..head.len()].copy_from_slice(&head);
    file
}
