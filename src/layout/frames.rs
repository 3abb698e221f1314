//! Frame signatures: this function, in this module, means that.

use super::{Applies, LayoutError};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a frame means: words by key (`waits` → `mutex`, `address` → `futex`, `argument 0`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Means(BTreeMap<String, Vec<String>>);

impl Means {
    /// The one word of `key`, or the first of its list.
    #[must_use]
    pub fn word(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.first().map(String::as_str)
    }

    /// The words of `key`, in the file's order; none where it is not named.
    #[must_use]
    pub fn words(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// One signature.
#[derive(Clone, Debug)]
pub struct FrameSignature {
    /// When it applies.
    pub applies: Applies,
    /// What the frame means.
    pub means: Means,
    /// Upstream file the meaning was taken from.
    pub source: String,
    modules: Vec<String>,
    functions: Vec<String>,
}

impl FrameSignature {
    /// Whether a frame of `function` in the module file `module` has this meaning. Function names match exactly; in a
    /// module name one `*` stands for any characters (`libc-2.*.so`).
    #[must_use]
    pub fn matches(&self, module: &str, function: &str) -> bool {
        self.functions.iter().any(|f| f == function) && self.in_module(module)
    }

    /// Whether the signature speaks of the module file `module`.
    #[must_use]
    pub fn in_module(&self, module: &str) -> bool {
        self.modules.iter().any(|m| module_matches(m, module))
    }

    /// The functions it names.
    #[must_use]
    pub fn functions(&self) -> &[String] {
        &self.functions
    }
}

/// Whether the file name `module` is what `pattern` names.
fn module_matches(pattern: &str, module: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == module,
        Some((head, tail)) => {
            module.len() >= head.len() + tail.len() && module.starts_with(head) && module.ends_with(tail)
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Vec<String> {
    fn from(raw: OneOrMore) -> Vec<String> {
        match raw {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(more) => more,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFrame {
    module: OneOrMore,
    function: OneOrMore,
    #[serde(default)]
    applies: BTreeMap<String, String>,
    means: BTreeMap<String, OneOrMore>,
    source: String,
}

impl RawFrame {
    pub(super) fn check(self) -> Result<FrameSignature, LayoutError> {
        let functions: Vec<String> = self.function.into();
        if self.source.trim().is_empty() {
            return Err(LayoutError::NoSource(functions.join(", ")));
        }
        Ok(FrameSignature {
            applies: Applies::parse(self.applies)?,
            means: Means(self.means.into_iter().map(|(k, v)| (k, v.into())).collect()),
            source: self.source,
            modules: self.module.into(),
            functions,
        })
    }
}
