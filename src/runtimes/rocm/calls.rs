//! The calls of device libraries a thread is in: which frames are theirs, and what each call is named.

use super::call_site::{by_interface, function_called, function_held};
use super::dispatch::Dispatch;
use crate::layout::{FrameSignature, Layouts};
use crate::runtimes::View;
use crate::snapshot::Module;
use crate::units::Vaddr;
use crate::unwind::{Frame, Trust};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

/// The domain of a module file (`hip`, `hsa`, `cuda`, `nccl`, `level-zero`), if it is a device's library.
pub(super) fn domain_of(module: &str) -> Option<&'static str> {
    let module = without_hash(module);
    let of = |frame: &'static FrameSignature| frame.in_module(&module).then(|| frame.means.word("domain"))?;
    Layouts::gpu_frames().frames.iter().find_map(of)
}

/// Whether a module file is HIP's runtime.
pub(super) fn is_hip_runtime(module: &str) -> bool {
    without_hash(module).starts_with("libamdhip64.so")
}

/// Whether a module file is HSA's runtime.
pub(super) fn is_hsa_runtime(module: &str) -> bool {
    without_hash(module).starts_with("libhsa-runtime64.so")
}

/// A library's name without the hash that whoever bundles libraries in a Python wheel puts into it:
/// `libamdhip64-1a2b3c4d.so.6.4.43484` is `libamdhip64.so.6.4.43484`.
fn without_hash(module: &str) -> Cow<'_, str> {
    let hashed = || {
        let (stem, rest) = module.split_once(".so")?;
        let (name, hash) = stem.rsplit_once('-')?;
        let is_hash = hash.len() >= HASH && hash.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash.then(|| Cow::Owned(format!("{name}.so{rest}")))
    };
    hashed().unwrap_or(Cow::Borrowed(module))
}

/// Hexadecimal digits that such a hash has at least.
const HASH: usize = 8;

/// Frames of one library in a row, called from outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Call {
    /// The library's domain.
    pub domain: &'static str,
    /// Its frames, innermost first.
    pub frames: Range<usize>,
    /// The exported function, where its symbol or the call that reached it tells.
    pub function: Option<String>,
    /// Whether the outermost frame has no symbol, or another than the function called.
    pub hidden: bool,
}

impl Call {
    /// What the function called means.
    pub fn signature(&self) -> Option<&'static FrameSignature> {
        let function = self.function.as_deref()?;
        let of = |f: &&FrameSignature| f.means.word("domain") == Some(self.domain);
        Layouts::gpu_frames().frames.iter().filter(of).find(|f| f.functions().iter().any(|name| name == function))
    }

    /// The kind of thing it may wait for.
    pub fn waits(&self) -> Option<&'static str> {
        self.signature()?.means.word("waits")
    }
}

/// Looks threads' frames through; each module once.
pub(super) struct Calls<'a> {
    view: &'a View<'a>,
    dispatch: &'a Dispatch,
    domains: RefCell<HashMap<u32, Option<&'static str>>>,
}

impl<'a> Calls<'a> {
    pub fn new(view: &'a View<'a>, dispatch: &'a Dispatch) -> Calls<'a> {
        Calls { view, dispatch, domains: RefCell::default() }
    }

    /// The domain of the module a frame lies in.
    pub fn domain(&self, frame: &Frame) -> Option<&'static str> {
        let ix = frame.module?;
        let look = || self.view.snapshot.module(ix).and_then(|m| domain_of(m.name()));
        *self.domains.borrow_mut().entry(ix.0).or_insert_with(look)
    }

    pub fn frames(&self, thread: usize) -> &'a [Frame] {
        self.view.stacks.get(thread).map_or(&[], |s| s.frames.as_slice())
    }

    /// The calls of the thread at `index`, innermost first.
    pub fn of(&self, index: usize) -> Vec<Call> {
        let frames = self.frames(index);
        let mut calls = Vec::new();
        let mut at = 0;
        while let Some(frame) = frames.get(at) {
            let Some(domain) = self.domain(frame).filter(|_| frame.trust > Trust::Scan) else {
                at += 1;
                continue;
            };
            let same = |f: &Frame| f.module == frame.module && f.trust > Trust::Scan;
            let len = frames.iter().skip(at).take_while(|f| same(f)).count();
            calls.push(self.call(domain, frames, at..at + len));
            at += len;
        }
        calls
    }

    fn call(&self, domain: &'static str, frames: &[Frame], range: Range<usize>) -> Call {
        let view = self.view;
        let outermost = range.end.checked_sub(1).and_then(|i| frames.get(i));
        let symbol = outermost.and_then(|f| view.snapshot.function_at(f.pc)).map(|(s, _)| s.name.to_string());
        let module = outermost.and_then(|f| f.module).and_then(|ix| view.snapshot.module(ix));
        let exported = |name: &String| module.is_some_and(|m| exports(m, name));
        let caller = frames.get(range.end);
        let named = caller.filter(|f| f.trust > Trust::Scan && !f.pc.exact);
        let called = named.and_then(|f| function_called(view, f.pc.addr)).filter(exported);
        // by its own symbol, else by the function it stands behind, else by the pointer it was called by
        let own = || symbol.clone().filter(exported);
        let behind = || {
            let image = module?.image().ok()?;
            let range = image.elf.frame_description_at(image.bias.to_vaddr(outermost?.pc.lookup()))?;
            let start = image.bias.to_addr(Vaddr(range.start));
            self.dispatch.name_of(view.memory, start).map(str::to_owned)
        };
        let held = || {
            let module = module.filter(|_| by_interface(view, frames, range.end))?;
            function_held(view, frames, range.end, module).filter(exported)
        };
        let called = called.or_else(own).or_else(behind).or_else(held);
        let hidden = called.is_some() && symbol.as_deref() != called.as_deref();
        Call { domain, frames: range, function: called.or(symbol), hidden }
    }
}

/// Whether the module exports a function of this name: a call of `memcpy` that ended up elsewhere names nothing of it.
fn exports(module: &Module, name: &str) -> bool {
    module.image().is_ok_and(|image| image.elf.exports(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_under_their_names_and_with_a_hash_in_them() {
        for (module, domain) in [
            ("libamdhip64.so", Some("hip")),
            ("libamdhip64.so.7.2.53211", Some("hip")),
            ("libamdhip64-1a2b3c4d.so.6.4.43484", Some("hip")),
            ("libhsa-runtime64-fc1e5519.so.1.15.0", Some("hsa")),
            ("librccl-0123456789ab.so", Some("nccl")),
            ("libamdhip64-debug.so", None),
            ("libamdhip64_wrapper.so", None),
            ("libc.so.6", None),
            ("-.so", None),
            ("", None),
        ] {
            assert_eq!(domain_of(module), domain, "{module}");
        }
        assert!(is_hip_runtime("libamdhip64-1a2b3c4d.so.6") && !is_hip_runtime("libhsa-runtime64.so.1"));
        assert!(is_hsa_runtime("libhsa-runtime64-1a2b3c4d.so") && !is_hsa_runtime("libhsakmt.so.1"));
    }
}
