//! Which call a thread waits in: by the names of its innermost frames, or, of a stripped Rust library, by the shape of its
//! system call.

use super::Scene;
use crate::arch::code::{argument_is, exchanges};
use crate::arch::x86_64::RCX;
use crate::layout::{FrameSignature, Layouts};
use crate::memory::MemoryExt;
use crate::runtimes::futex::{FutexWait, Op};
use crate::units::Addr;
use crate::unwind::{Frame, Trust};
use std::borrow::Cow;

/// Functions between the system call and the first function that is known.
const MAX_INNER: usize = 24;
/// Functions of one call.
const MAX_CALL: usize = 24;
/// Frames further out that are looked at for what a call is made under.
const MAX_OUTER: usize = 24;

/// A call that waits.
#[derive(Clone)]
pub(super) struct Call {
    /// What it means.
    pub signature: &'static FrameSignature,
    /// The outermost frame that is the library's own: one that only has the library's code inlined is the program's.
    pub last: usize,
    /// The name of its function, or how it was known without one.
    pub said: String,
    /// Whether one of the functions it queues work under is further out.
    pub queued: bool,
}

/// A name as tables write it: without type arguments, parameters and inline namespaces.
pub(super) fn plain(name: &str) -> Cow<'_, str> {
    // names of C that carry the inline namespace behind them
    if let Some((bare, _)) =
        name.split_once('_').filter(|(bare, rest)| bare.starts_with("AbslInternal") && is_inline_namespace(rest))
    {
        return Cow::Borrowed(bare);
    }
    if !name.contains(['<', '(', '[']) && !name.contains("::__") && !name.starts_with("absl::") {
        return Cow::Borrowed(name);
    }
    // `<Type>::method` and `<Type as Trait>::method` are methods of Type
    let name = match name.strip_prefix('<').and_then(|rest| Some((rest, close(rest)?))) {
        Some((rest, end)) => {
            let inner = rest.get(..end).unwrap_or("");
            let inner = inner.split(" as ").next().unwrap_or(inner);
            format!("{}{}", inner, rest.get(end + 1..).unwrap_or(""))
        }
        None => name.to_owned(),
    };
    let mut out = String::with_capacity(name.len());
    let mut depth = 0usize;
    for c in name.chars() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    let parts = out.trim_end_matches(" const").split("::").filter(|p| !p.is_empty() && !is_inline_namespace(p));
    Cow::Owned(parts.collect::<Vec<_>>().join("::"))
}

/// Where the bracket that `rest` begins within is closed.
fn close(rest: &str) -> Option<usize> {
    let mut depth = 1usize;
    for (at, c) in rest.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Source: libc++ `_LIBCPP_ABI_NAMESPACE`, libstdc++ `_GLIBCXX_BEGIN_INLINE_ABI_NAMESPACE`, absl/base/options.h and Debian's.
fn is_inline_namespace(part: &str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    matches!(part, "__1" | "__ndk1" | "_V2" | "__cxx11")
        || part.strip_prefix("lts_").is_some_and(digits)
        || part.strip_prefix("debian").is_some_and(digits)
}

/// What a function of this module is known to wait for.
fn meaning(module: &str, function: &str) -> Option<&'static FrameSignature> {
    Layouts::waiting_frames().find(|s| s.matches(module, function))
}

impl Call {
    /// Whether it is only the means of a call further out that is not known.
    pub(super) fn is_inner(&self) -> bool {
        is_primitive(self.signature) && self.signature.means.word("inner").is_some()
    }
}

/// Whether a wait of this kind may be only the means of a call further out.
fn is_primitive(signature: &FrameSignature) -> bool {
    matches!(signature.means.word("waits"), Some("condvar" | "semaphore" | "futex"))
}

impl Scene<'_> {
    /// The call the thread at `index` waits in.
    pub(super) fn call(&self, index: usize, futex: Option<&FutexWait>) -> Option<Call> {
        let frames = self.frames(index);
        let mut found: Option<Call> = None;
        let functions = frames.iter().enumerate().take_while(|(_, f)| !f.signal).flat_map(|(i, frame)| {
            let module = frame.module.and_then(|ix| self.view.snapshot.module(ix)).map_or("", |m| m.name());
            let last = move |inlined| if inlined { i.saturating_sub(1) } else { i };
            self.names(frame).into_iter().map(move |(name, inlined)| (last(inlined), module, name))
        });
        for (n, (i, module, name)) in functions.take(MAX_INNER + MAX_CALL).enumerate() {
            let name = plain(&name);
            let Some(signature) = meaning(module, &name) else {
                if found.is_some() || n >= MAX_INNER {
                    break;
                }
                continue;
            };
            let other = found.as_ref().filter(|inner| !std::ptr::eq(inner.signature, signature));
            if other.is_some_and(|inner| !is_primitive(inner.signature)) {
                break;
            }
            found = Some(Call { signature, last: i, said: name.into_owned(), queued: false });
        }
        let mut call = found.or_else(|| self.by_shape(frames, futex?))?;
        let under = call.signature.means.words("queued");
        call.queued = !under.is_empty()
            && frames
                .iter()
                .skip(call.last + 1)
                .take(MAX_OUTER)
                .any(|f| self.names(f).iter().any(|(name, _)| under.iter().any(|u| u == &*plain(name))));
        Some(call)
    }

    /// Whether a frame, or with `inlined` one of the functions inlined into it, waits on a condition; nothing where the frame's
    /// function has no name.
    pub(super) fn waits_on_condition(&self, frame: &Frame, inlined: bool) -> Option<bool> {
        let names = self.names(frame);
        let module = frame.module.and_then(|ix| self.view.snapshot.module(ix)).map_or("", |m| m.name());
        let waits =
            |name: &str| meaning(module, &plain(name)).is_some_and(|s| s.means.word("waits") == Some("condvar"));
        let found = names.iter().any(|(name, within)| (*within || !inlined) && waits(name));
        (!names.is_empty()).then_some(found)
    }

    /// The functions of a frame, innermost first: those inlined into it, where the file's own debug information tells, and its
    /// own; each with whether it is inlined.
    fn names(&self, frame: &Frame) -> Vec<(String, bool)> {
        let known = self.named.borrow().get(&frame.pc.addr).cloned();
        if let Some(known) = known {
            return known;
        }
        let names = self.find_names(frame);
        self.named.borrow_mut().insert(frame.pc.addr, names.clone());
        names
    }

    fn find_names(&self, frame: &Frame) -> Vec<(String, bool)> {
        let module = frame.module.and_then(|ix| self.view.snapshot.module(ix));
        let tells = module.and_then(|m| m.image().ok()).is_some_and(|image| image.elf.has_debug_information());
        let inlined = if tells { self.view.snapshot.lines(frame.pc) } else { Vec::new() };
        let inlined = inlined.into_iter().filter(|l| l.inlined).filter_map(|l| l.function);
        let own = self.view.snapshot.function_at(frame.pc).map(|(f, _)| crate::elf::demangle(&f.name));
        inlined.map(|name| (name, true)).chain(own.map(|name| (name, false))).collect()
    }

    /// Rust's standard library without symbols, by the one way it sleeps: `syscall(SYS_futex, word, FUTEX_WAIT_BITSET |
    /// FUTEX_PRIVATE_FLAG, value, limit, null, !0)`, of which the value tells the type. Source: rust
    /// library/std/src/sys/pal/unix/futex.rs; since 1.62.
    fn by_shape(&self, frames: &[Frame], futex: &FutexWait) -> Option<Call> {
        if futex.op != Op::WaitBitset || !futex.private {
            return None;
        }
        let [inner, caller, ..] = frames else { return None };
        let is_syscall = self.view.snapshot.function_at(inner.pc).is_some_and(|(f, _)| &*f.name == "syscall");
        if !is_syscall || caller.trust < Trust::Cfi || !self.is_rust(caller) {
            return None;
        }
        let value = futex.sleeps_on_value()?;
        let rust = |function| Layouts::waiting_frames().find(|s| s.matches("", function));
        let set_to = |value: u32| self.argument_is(caller, RCX, u64::from(value));
        let (function, said) = match value {
            CONTENDED if set_to(CONTENDED) => ("std::sys::sync::mutex::futex::Mutex::lock_contended", "Mutex::lock"),
            PARKED if set_to(PARKED) => ("std::sys::sync::thread_parking::futex::Parker::park", "thread::park"),
            // RUNNING | QUEUED, or QUEUED as it was before 1.84: only where a thread shows that it is a Once
            5 | 3 if self.runs_once(caller, futex.at).is_some() => {
                ("std::sys::sync::once::futex::Once::call", "Once::call")
            }
            // it gives a mutex back before it sleeps
            _ if self.code_before(caller).is_some_and(|(code, start)| exchanges(&code, start.0)) => {
                ("std::sys::sync::condvar::futex::Condvar::wait", "Condvar::wait")
            }
            _ => return None,
        };
        let said = format!("a stripped function of Rust's library that sleeps as {said} does");
        Some(Call { signature: rust(function)?, last: 1, said, queued: false })
    }

    /// Whether the code before the call of `frame` sets the argument `reg` to this number.
    fn argument_is(&self, frame: &Frame, reg: crate::arch::Reg, number: u64) -> bool {
        let Some((code, start)) = self.code_before(frame) else { return false };
        argument_is(self, &code, start.0, frame.pc.addr.0, reg, number)
    }

    /// The code of the frame's function up to its call.
    pub(super) fn code_before(&self, frame: &Frame) -> Option<(Vec<u8>, Addr)> {
        let start = self.function(frame)?;
        let len = usize::try_from(frame.pc.addr.0.checked_sub(start.0)?).ok().filter(|len| *len <= MAX_CODE)?;
        Some((self.view.memory.read_vec(start, len).ok()?, start))
    }

    /// Whether a frame's module was made by rustc: its `.comment` or its panic messages say so.
    fn is_rust(&self, frame: &Frame) -> bool {
        let Some(ix) = frame.module else { return false };
        if let Some(known) = self.rust.borrow().get(&ix) {
            return *known;
        }
        let says = self.view.snapshot.module(ix).and_then(|m| m.image().ok()).is_some_and(|image| {
            let segments = image.elf.segments().iter().filter(|s| !s.writable && !s.executable);
            segments.filter_map(|s| image.elf.read_only_bytes(s.vaddr, usize::try_from(s.file_size).ok()?)).any(|b| {
                let b = b.get(..MAX_SEARCHED).unwrap_or(b);
                b.windows(RUSTC.len()).any(|w| w == RUSTC)
            })
        });
        self.rust.borrow_mut().insert(ix, says);
        says
    }
}

/// Paths of the standard library in its panic messages.
const RUSTC: &[u8] = b"/rustc/";
/// Bytes of a segment searched for them.
const MAX_SEARCHED: usize = 32 << 20;
/// Bytes of a function looked through.
const MAX_CODE: usize = 64 << 10;
/// Values of words (rust library/std/src/sys/sync/mutex/futex.rs, thread_parking/futex.rs).
const CONTENDED: u32 = 2;
const PARKED: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_what_varies() {
        for (name, wanted) in [
            (
                "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
                "std::sys::sync::mutex::futex::Mutex::lock_contended",
            ),
            ("absl::debian3::Mutex::Lock", "absl::Mutex::Lock"),
            ("absl::lts_20230802::Mutex::Lock", "absl::Mutex::Lock"),
            ("std::counting_semaphore<9223372036854775807l>::acquire", "std::counting_semaphore::acquire"),
            ("std::__1::__call_once", "std::__call_once"),
            ("doActivate<false>", "doActivate"),
            ("std::latch::wait() const", "std::latch::wait"),
            (
                "<parking_lot::raw_mutex::RawMutex as lock_api::mutex::RawMutex>::lock",
                "parking_lot::raw_mutex::RawMutex::lock",
            ),
            ("std::thread::local::LocalKey<T>::with", "std::thread::local::LocalKey::with"),
            (
                "std::sync::mpmc::list::Channel<T>::recv::{{closure}}",
                "std::sync::mpmc::list::Channel::recv::{{closure}}",
            ),
            (
                "std::__atomic_futex_unsigned<(unsigned int)2147483648>::_M_load_and_test",
                "std::__atomic_futex_unsigned::_M_load_and_test",
            ),
            ("AbslInternalPerThreadSemWait_debian3", "AbslInternalPerThreadSemWait"),
            ("AbslInternalPerThreadSemWait_lts_20230802", "AbslInternalPerThreadSemWait"),
            ("main", "main"),
            ("<", ""),
        ] {
            assert_eq!(plain(name), wanted);
        }
    }

    #[test]
    fn every_meaning_is_reached_by_its_own_names() {
        for signature in Layouts::waiting_frames() {
            for function in signature.functions() {
                assert_eq!(plain(function), function.as_str(), "a table writes names without what varies");
            }
            assert!(super::super::kind_of(signature).is_some(), "{:?}", signature.functions());
        }
    }
}
