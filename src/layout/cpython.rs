//! The tables of CPython: one file for each minor version and build kind. Only the file asked for is parsed.

use super::{LayoutError, Layouts, Table};

/// Minor version, whether free-threaded, text.
const TABLES: &[(u32, bool, &str)] = &[
    (8, false, include_str!("../../symbols/layouts/cpython/3.8.toml")),
    (9, false, include_str!("../../symbols/layouts/cpython/3.9.toml")),
    (10, false, include_str!("../../symbols/layouts/cpython/3.10.toml")),
    (11, false, include_str!("../../symbols/layouts/cpython/3.11.toml")),
    (12, false, include_str!("../../symbols/layouts/cpython/3.12.toml")),
    (13, false, include_str!("../../symbols/layouts/cpython/3.13.toml")),
    (14, false, include_str!("../../symbols/layouts/cpython/3.14.toml")),
    (15, false, include_str!("../../symbols/layouts/cpython/3.15.toml")),
    (13, true, include_str!("../../symbols/layouts/cpython/3.13t.toml")),
    (14, true, include_str!("../../symbols/layouts/cpython/3.14t.toml")),
    (15, true, include_str!("../../symbols/layouts/cpython/3.15t.toml")),
];

impl Layouts {
    /// Struct layouts of CPython `3.minor`, or `None` where we know no such version.
    ///
    /// # Errors
    /// [`LayoutError`], which the tests of the tables exclude.
    pub fn cpython(minor: u32, free_threaded: bool) -> Option<Result<Table, LayoutError>> {
        let (_, _, text) = TABLES.iter().find(|(m, f, _)| *m == minor && *f == free_threaded)?;
        Some(Table::parse(text))
    }

    /// The CPython versions known: the 3.N and whether free-threaded.
    pub fn cpython_versions() -> impl Iterator<Item = (u32, bool)> {
        TABLES.iter().map(|(minor, free, _)| (*minor, *free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Subject, Version};

    #[test]
    fn every_table_parses() {
        for (minor, free) in Layouts::cpython_versions() {
            let table = Layouts::cpython(minor, free).unwrap().unwrap_or_else(|e| panic!("3.{minor}: {e}"));
            assert!(table.word("line_table").is_some(), "3.{minor}");
        }
    }

    #[test]
    fn an_unknown_minor_version_has_no_table() {
        assert!(Layouts::cpython(99, false).is_none());
        assert!(Layouts::cpython(8, true).is_none());
    }

    #[test]
    fn both_lock_layouts_of_3_13_are_there() {
        let table = Layouts::cpython(13, false).unwrap().unwrap();
        let sizes = table.structs.iter().filter(|s| s.name == "lockobject").map(|s| s.size);
        assert_eq!(sizes.collect::<Vec<_>>(), [Some(40), Some(24)]);
        let subject = Subject::version(Version::parse("3.13.0"));
        let string = table.layout("PyASCIIObject", &subject).unwrap();
        assert_eq!(string.field("state.kind").unwrap().bits, Some((2, 3)));
        assert_eq!(table.numbers("jump_backward_all_forms"), [77, 249]);
    }
}
