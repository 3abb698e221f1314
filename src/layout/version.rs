//! Versions and ranges of versions, as tables write them.

use std::cmp::Ordering;
use std::fmt;

/// A dotted version: `2.36`, `3.11.2`. Missing parts count as 0 when compared.
#[derive(Clone, Debug)]
pub struct Version(Vec<u32>);

impl Version {
    /// The version at the start of `text`: digits and dots, up to anything else (`2.36-9+deb12u4` is 2.36).
    #[must_use]
    pub fn parse(text: &str) -> Option<Version> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let parts: Vec<u32> = text.get(..end)?.split('.').take(4).map_while(|p| p.parse().ok()).collect();
        (!parts.is_empty()).then_some(Version(parts))
    }

    /// From its parts.
    #[must_use]
    pub fn of(parts: &[u32]) -> Version {
        Version(parts.to_vec())
    }

    /// Its part `index` (0: major), 0 where it has none.
    #[must_use]
    pub fn part(&self, index: usize) -> u32 {
        self.0.get(index).copied().unwrap_or(0)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Version) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Version) -> Ordering {
        let longest = self.0.len().max(other.0.len());
        (0..longest).map(|i| self.part(i).cmp(&other.part(i))).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

/// Versions between bounds: `>=2.36, <2.41`; a bare version means exactly that one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionRange {
    text: String,
    bounds: Vec<(Bound, Version)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bound {
    AtLeast,
    AtMost,
    Above,
    Below,
    Exactly,
}

impl VersionRange {
    /// Parses bounds separated by commas.
    #[must_use]
    pub fn parse(text: &str) -> Option<VersionRange> {
        let mut bounds = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (bound, rest) = [
                (">=", Bound::AtLeast),
                ("<=", Bound::AtMost),
                (">", Bound::Above),
                ("<", Bound::Below),
                ("=", Bound::Exactly),
                ("", Bound::Exactly),
            ]
            .iter()
            .find_map(|(mark, bound)| Some((*bound, part.strip_prefix(mark)?)))?;
            let rest = rest.trim();
            let version = Version::parse(rest)?;
            if version.to_string() != rest {
                return None;
            }
            bounds.push((bound, version));
        }
        Some(VersionRange { text: text.to_owned(), bounds })
    }

    /// Whether `version` lies within all bounds.
    #[must_use]
    pub fn contains(&self, version: &Version) -> bool {
        self.bounds.iter().all(|(bound, edge)| {
            let order = version.cmp(edge);
            match bound {
                Bound::AtLeast => order.is_ge(),
                Bound::AtMost => order.is_le(),
                Bound::Above => order.is_gt(),
                Bound::Below => order.is_lt(),
                Bound::Exactly => order.is_eq(),
            }
        })
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
