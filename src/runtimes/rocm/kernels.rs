//! The names of kernels: from the code objects the HSA runtime says it loaded onto the device.

use super::calls::is_hsa_runtime;
use crate::elf::{ElfFile, demangle};
use crate::layout::{Layouts, Subject};
use crate::memory::{FileBytes, Memory, MemoryExt, walk};
use crate::snapshot::Snapshot;
use crate::units::{Addr, Vaddr};
use std::path::Path;

/// Code objects looked at, the largest, and all together, in bytes.
const MAX_OBJECTS: usize = 512;
const MAX_OBJECT: u64 = 64 << 20;
const MAX_TOGETHER: u64 = 256 << 20;
/// Bytes of a code object's name.
const MAX_NAME: usize = 4096;
/// Bytes of code objects that are read again while the target is held, so that a minicore has them.
const MAX_KEPT: usize = 512 << 10;

/// Where bytes lie, and how many.
type Place = (Addr, usize);

/// A code object on the device.
struct CodeObject {
    /// What was added to its addresses.
    base: u64,
    elf: ElfFile,
    /// Its bytes in memory, where it came from there.
    image: Option<Place>,
}

/// The code objects.
#[derive(Default)]
pub(super) struct Kernels {
    objects: Vec<CodeObject>,
    /// What was read to find them.
    links: Vec<Place>,
}

impl Kernels {
    /// What `_amdgpu_r_debug`, exported by libhsa-runtime64, lists: a chain shaped as the loader's own.
    pub fn find(snapshot: &Snapshot, memory: &dyn Memory) -> Kernels {
        let mut kernels = Kernels::default();
        let hsa = snapshot.modules.iter().filter(|m| is_hsa_runtime(m.name()));
        for head in hsa.filter_map(|m| m.find_symbol("_amdgpu_r_debug")).map(|(at, _)| at) {
            kernels.follow(snapshot, memory, head);
        }
        kernels
    }

    fn follow(&mut self, snapshot: &Snapshot, memory: &dyn Memory, head: Addr) -> Option<()> {
        let table = Layouts::rocm();
        let debug = table.layout("r_debug", &Subject::default())?;
        let link = table.layout("link_map", &Subject::default())?;
        let (next, name, base) = (link.field("l_next")?, link.field("l_name")?, link.field("l_addr")?);
        let first = debug.field("r_map")?.read_addr(memory, head).ok()?;
        self.links.push((head, usize::try_from(debug.size?).ok()?));
        let (nodes, _) = walk(first, MAX_OBJECTS, |at| next.read_addr(memory, at).map(Some));
        let mut together = 0u64;
        for node in nodes {
            self.links.push((node, usize::try_from(link.size?).ok()?));
            let (Ok(name), Ok(base)) = (name.read_addr(memory, node), base.read_word(memory, node)) else { continue };
            let Ok(text) = memory.read_c_string(name, MAX_NAME) else { continue };
            self.links.push((name, text.len() + 1));
            let Some(uri) = std::str::from_utf8(&text).ok().and_then(Uri::parse) else { continue };
            together = together.saturating_add(uri.size);
            if uri.size > MAX_OBJECT || together > MAX_TOGETHER {
                continue;
            }
            let Some((bytes, image)) = uri.read(snapshot, memory) else { continue };
            if let Ok(elf) = ElfFile::parse(FileBytes::owned(bytes)) {
                self.objects.push(CodeObject { base, elf, image });
            }
        }
        Some(())
    }

    /// The kernel whose descriptor is at `object` on the device: `vector_add`.
    pub fn name_of(&self, object: u64) -> Option<String> {
        self.objects.iter().find_map(|o| {
            let at = Vaddr(object.checked_sub(o.base)?);
            let symbol = o.elf.object_at(at).filter(|s| s.vaddr == at)?;
            Some(demangle(symbol.name.strip_suffix(".kd")?))
        })
    }

    /// What to read while the target is held, so that the names can be found again in what was kept.
    pub fn ranges(&self) -> Vec<Place> {
        let mut room = MAX_KEPT;
        let images = self.objects.iter().filter_map(|o| o.image).filter(|(_, len)| {
            let fits = *len <= room;
            room -= if fits { *len } else { 0 };
            fits
        });
        self.links.iter().copied().chain(images).collect()
    }
}

/// Where a code object came from: `memory://PID#offset=0xADDR&size=N`, `file://PATH#offset=N&size=N`.
/// Source: ROCR-Runtime, src/loader/executable.cpp and the amd-dbgapi's description of code object URIs.
#[derive(PartialEq, Eq, Debug)]
struct Uri<'a> {
    file: Option<&'a str>,
    offset: u64,
    size: u64,
}

impl<'a> Uri<'a> {
    fn parse(text: &'a str) -> Option<Uri<'a>> {
        let (place, rest) = text.split_once('#').or_else(|| text.split_once('?'))?;
        let number = |key: &str| {
            let value = rest.split('&').find_map(|part| part.strip_prefix(key))?;
            match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => value.parse().ok(),
            }
        };
        let file = match place.strip_prefix("memory://") {
            Some(_) => None,
            None => Some(place.strip_prefix("file://")?),
        };
        Some(Uri { file, offset: number("offset=")?, size: number("size=").filter(|n| *n > 0)? })
    }

    fn in_file(&self, snapshot: &Snapshot, path: &str, len: usize) -> Option<Vec<u8>> {
        let file = snapshot.files.open_path(Path::new(path)).ok()?;
        let from = usize::try_from(self.offset).ok()?;
        Some(file.get(from..from.checked_add(len)?)?.to_vec())
    }

    /// Where the bytes lie in memory: the runtime turned their address into an offset by the segment that holds them, even
    /// where that is `.bss` and no part of the file (ROCR-Runtime src/loader/executable.cpp).
    fn in_segment(&self, snapshot: &Snapshot, path: &str) -> Option<Addr> {
        let name = path.rsplit('/').next()?;
        snapshot.modules.iter().filter(|m| m.name() == name).find_map(|m| {
            let image = m.image().ok()?;
            let into = |s: &crate::elf::Segment| self.offset.checked_sub(s.offset).filter(|i| *i < s.memory_size);
            let segment = image.elf.segments().iter().rev().find(|s| into(s).is_some())?;
            Some(image.bias.to_addr(Vaddr(segment.vaddr.0.checked_add(into(segment)?)?)))
        })
    }

    fn read(&self, snapshot: &Snapshot, memory: &dyn Memory) -> Option<(Vec<u8>, Option<Place>)> {
        let len = usize::try_from(self.size).ok()?;
        match self.file {
            None => Some((memory.read_vec(Addr(self.offset), len).ok()?, Some((Addr(self.offset), len)))),
            Some(path) => self.in_file(snapshot, path, len).map(|bytes| (bytes, None)).or_else(|| {
                let at = self.in_segment(snapshot, path)?;
                Some((memory.read_vec(at, len).ok()?, Some((at, len))))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_code_objects_come_from() {
        let uri = |file, offset, size| Some(Uri { file, offset, size });
        assert_eq!(Uri::parse("memory://411#offset=0x7f00&size=512"), uri(None, 0x7f00, 512));
        assert_eq!(Uri::parse("file:///tmp/a.so#offset=64&size=0x20"), uri(Some("/tmp/a.so"), 64, 32));
        for bad in ["", "memory://1", "memory://1#offset=zz&size=1", "file:///a#offset=1", "memory://1#offset=1&size=0"]
        {
            assert_eq!(Uri::parse(bad), None, "{bad}");
        }
    }
}
