//! Which exported function a call names: read from the call instruction before a return address. An exported function that
//! only jumps on through a table leaves no frame; the call that reached it still says its name.

use crate::arch::x86_64::CALLEE_SAVED;
use crate::memory::MemoryExt;
use crate::runtimes::View;
use crate::snapshot::Module;
use crate::units::Addr;
use crate::unwind::{Frame, Trust};
use std::collections::BTreeSet;

/// Bytes of the longest call that names its function: `ff 15` and a displacement.
const LONGEST: usize = 6;
/// Frames of a foreign function interface looked through, and bytes of the stack of each.
const INTERFACE_FRAMES: usize = 6;
const MAX_FRAME: u64 = 4096;

/// The function called by the instruction before `ret`: `call rel32` to an entry of the procedure linkage table, or
/// `call [rip + disp32]` through the global offset table.
pub(super) fn function_called(view: &View<'_>, ret: Addr) -> Option<String> {
    let (_, module) = view.snapshot.module_at(ret.offset(-1))?;
    let mut code = [0u8; LONGEST];
    view.memory.read(ret.offset(-(LONGEST as i64)), &mut code).ok()?;
    let [op, modrm, disp @ ..] = code;
    let disp = i64::from(i32::from_le_bytes(disp));
    let slot = match (op, modrm) {
        (0xff, 0x15) => ret.offset(disp),
        (_, 0xe8) => slot_of_stub(view, ret.offset(disp))?,
        _ => return None,
    };
    let image = module.image().ok()?;
    image.elf.import_at(image.bias.to_vaddr(slot)).map(|name| name.to_string())
}

/// The slot an entry of the procedure linkage table jumps through: `jmp [rip + disp32]`, with or without `endbr64` and `bnd`
/// before it.
fn slot_of_stub(view: &View<'_>, stub: Addr) -> Option<Addr> {
    let code = view.memory.read_vec(stub, 11).ok()?;
    let mut skipped = 0i64;
    let mut rest = code.as_slice();
    for prefix in [&[0xf3, 0x0f, 0x1e, 0xfa][..], &[0xf2]] {
        if let Some(after) = rest.strip_prefix(prefix) {
            rest = after;
            skipped += prefix.len() as i64;
        }
    }
    let disp = rest.strip_prefix(&[0xff, 0x25])?.get(..4)?;
    let disp = i64::from(i32::from_le_bytes(disp.try_into().ok()?));
    Some(stub.offset(skipped + 6).offset(disp))
}

/// The function of `callee` that the frames from `caller` on, those of a foreign function interface (libffi calls through a
/// register), hold a pointer to: the only one, in a register kept across calls or in their part of the stack.
pub(super) fn function_held(view: &View<'_>, frames: &[Frame], caller: usize, callee: &Module) -> Option<String> {
    let image = callee.image().ok()?;
    let exported = |word: u64| {
        let inside = callee.start.0 <= word && word < callee.end.0;
        let vaddr = inside.then(|| image.bias.to_vaddr(Addr(word)))?;
        image.elf.symbol_at(vaddr).filter(|s| s.vaddr == vaddr).map(|s| s.name.to_string())
    };
    let mut names = BTreeSet::new();
    for (i, frame) in frames.iter().enumerate().skip(caller).take(INTERFACE_FRAMES) {
        if frame.trust < Trust::Cfi || !is_interface(view, frame) {
            break;
        }
        names.extend(CALLEE_SAVED.iter().filter_map(|reg| exported(frame.registers.read(*reg)?)));
        let inner = i.checked_sub(1).and_then(|i| frames.get(i)).and_then(|f| f.cfa);
        let (Some(from), Some(to)) = (inner, frame.cfa) else { break };
        let len = to.0.saturating_sub(from.0).min(MAX_FRAME);
        let Some(bytes) = usize::try_from(len).ok().and_then(|len| view.memory.read_vec(from, len).ok()) else { break };
        let words = bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?)));
        names.extend(words.filter_map(exported));
    }
    let mut names = names.into_iter();
    names.next().filter(|_| names.next().is_none())
}

/// Whether a frame belongs to libffi, ctypes or cffi.
fn is_interface(view: &View<'_>, frame: &Frame) -> bool {
    let module = frame.module.and_then(|ix| view.snapshot.module(ix)).map_or("", Module::name);
    ["libffi", "_ctypes.", "_cffi_backend."].iter().any(|p| module.starts_with(p))
}

/// Whether the frame at `index` calls through a foreign function interface.
pub(super) fn by_interface(view: &View<'_>, frames: &[Frame], index: usize) -> bool {
    frames.get(index).is_some_and(|f| is_interface(view, f))
}
