//! Names as the source writes them.

use std::fmt::Write;

/// Bytes of a mangled name looked at, and of a demangled one given, at most. Substitutions let a name grow without bound.
const MANGLED: usize = 8 << 10;
const DEMANGLED: usize = 4 << 10;
const RECURSION: u32 = 128;

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        if self.0.len().saturating_add(s.len()) > DEMANGLED {
            return Err(std::fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

/// A C++ or Rust name as the source writes it, without parameters, return type and hash; any other name as it is.
#[must_use]
pub fn demangle(name: &str) -> String {
    if name.len() > MANGLED {
        return name.to_owned();
    }
    let rust = || {
        let parsed = rustc_demangle::try_demangle(name).ok()?;
        let mut out = Bounded(String::new());
        write!(out, "{parsed:#}").ok().map(|()| out.0)
    };
    let cxx = || {
        let options = cpp_demangle::ParseOptions::default().recursion_limit(RECURSION);
        let parsed = cpp_demangle::Symbol::new_with_options(name, &options).ok()?;
        let mut out = Bounded(String::new());
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type().recursion_limit(RECURSION);
        parsed.structured_demangle(&mut out, &options).ok().map(|()| out.0)
    };
    let mangled = name.starts_with("_Z") || name.starts_with("_R") || name.starts_with("__Z");
    let demangled = if mangled { rust().or_else(cxx) } else { None };
    demangled.filter(|n| !n.is_empty()).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cxx_and_rust_names_read_as_written() {
        assert_eq!(
            demangle("_ZN9__gnu_cxx5__ops14_Iter_less_valC1Ev"),
            "__gnu_cxx::__ops::_Iter_less_val::_Iter_less_val"
        );
        assert_eq!(
            demangle("_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"),
            "std::thread::_M_start_thread"
        );
        assert_eq!(demangle("_ZN3std2io4Read11read_to_end17hb85a0f6802e14499E"), "std::io::Read::read_to_end");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("pthread_mutex_lock"), "pthread_mutex_lock");
        assert_eq!(demangle("_Zzz"), "_Zzz");
    }

    #[test]
    fn a_name_that_grows_without_bound_is_left_as_it_is() {
        // each S_ stands for all before it
        let mut name = String::from("_Z1fI1a");
        for i in 0..30 {
            name += &format!(
                "1bIS{}_S{}_E",
                if i == 0 { String::new() } else { to36(i - 1) },
                if i == 0 { String::new() } else { to36(i - 1) }
            );
        }
        name += "EvT_";
        let out = demangle(&name);
        assert!(out.len() <= DEMANGLED.max(name.len()));
        assert_eq!(demangle(&"_ZN".repeat(10_000)).len(), 30_000);
    }

    fn to36(n: u32) -> String {
        char::from_digit(n % 36, 36).map(|c| c.to_ascii_uppercase().to_string()).unwrap_or_default()
    }
}
