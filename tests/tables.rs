//! The tables of `symbols/`: they parse, they cite, fields fit, they are embedded, and every name the code asks for
//! exists in one of them.

#[path = "support/source.rs"]
mod source;

use source::{source_files, tokens, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every table, by its path below `symbols/`.
fn tables() -> BTreeMap<String, toml::Table> {
    let mut directories: Vec<PathBuf> = vec![root().join("symbols")];
    let mut found = BTreeMap::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a readable directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "toml") {
                let text = fs::read_to_string(&path).expect("a readable table");
                let name = path.strip_prefix(root().join("symbols")).expect("below").to_string_lossy().into_owned();
                let table = toml::from_str(&text).unwrap_or_else(|e| panic!("{name} does not parse: {e}"));
                found.insert(name, table);
            }
        }
    }
    assert!(found.len() >= 10, "the tables were not found: {:?}", found.keys());
    found
}

fn entries<'a>(table: &'a toml::Table, kind: &str) -> Vec<&'a toml::Table> {
    let list = table.get(kind).and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|e| e.as_table().unwrap_or_else(|| panic!("a {kind} that is no table"))).collect()
}

fn text_of<'a>(entry: &'a toml::Table, key: &str) -> &'a str {
    entry.get(key).and_then(toml::Value::as_str).unwrap_or_default()
}

/// The fields of a struct entry: name, offset, type.
fn fields(entry: &toml::Table) -> Vec<(&str, u64, &str)> {
    let of = text_of(entry, "name");
    let table = entry.get("fields").and_then(toml::Value::as_table).unwrap_or_else(|| panic!("{of} has no fields"));
    table
        .iter()
        .map(|(name, value)| match value.as_array().map(Vec::as_slice) {
            Some([toml::Value::Integer(offset), toml::Value::String(kind)]) if *offset >= 0 => {
                (name.as_str(), offset.cast_unsigned(), kind.as_str())
            }
            _ => panic!("{of}.{name} is not [offset, \"type\"]"),
        })
        .collect()
}

/// Bytes of a type of the schema (`symbols/README.md`); `None` for a type that is none.
fn size_of(kind: &str) -> Option<u64> {
    let scalar = |k: &str| match k {
        "i8" | "u8" | "bool" | "char" => Some(1),
        "i16" | "u16" => Some(2),
        "i32" | "u32" => Some(4),
        "i64" | "u64" | "ptr" => Some(8),
        _ => None,
    };
    if let Some(bits) = kind.strip_prefix("bits ") {
        let mut numbers = bits.split(' ').map(|n| n.parse::<u64>().ok());
        let (first, count) = (numbers.next()??, numbers.next()??);
        return (count > 0 && numbers.next().is_none()).then(|| (first + count).div_ceil(8));
    }
    match kind.strip_suffix(']').and_then(|k| k.split_once('[')) {
        Some((of, count)) => Some(scalar(of)? * count.parse::<u64>().ok()?),
        None => scalar(kind),
    }
}

#[test]
fn every_entry_cites_and_every_field_fits() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (file, table) in &tables() {
        for key in table.keys().filter(|k| !matches!(k.as_str(), "struct" | "frame" | "constants")) {
            wrong.push(format!("{file}: `{key}` is not of the schema"));
        }
        for entry in entries(table, "struct") {
            let name = text_of(entry, "name");
            count += 1;
            if name.is_empty() || text_of(entry, "source").trim().is_empty() {
                wrong.push(format!("{file}: struct `{name}` has no name or cites nothing"));
            }
            let size = entry.get("size").map(|s| s.as_integer().filter(|n| *n > 0).map(i64::cast_unsigned));
            if size == Some(None) {
                wrong.push(format!("{file}: the size of {name} is no number of bytes"));
            }
            for (field, offset, kind) in fields(entry) {
                match (size_of(kind), size.flatten()) {
                    (None, _) => wrong.push(format!("{file}: {name}.{field} has the unknown type {kind}")),
                    (Some(bytes), Some(size)) if offset + bytes > size => {
                        wrong.push(format!("{file}: {name}.{field} ends at {}, the struct at {size}", offset + bytes));
                    }
                    _ => {}
                }
            }
        }
        for entry in entries(table, "frame") {
            count += 1;
            for key in ["module", "function", "means", "source"] {
                let filled = match entry.get(key) {
                    Some(toml::Value::String(s)) => !s.trim().is_empty(),
                    Some(toml::Value::Array(a)) => !a.is_empty(),
                    Some(toml::Value::Table(t)) => !t.is_empty(),
                    _ => false,
                };
                if !filled {
                    wrong.push(format!("{file}: the frame {:?} has no `{key}`", entry.get("function")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} entries");
}

#[test]
fn every_table_is_embedded_and_chosen_by_the_layout_room() {
    let sources: String = source_files(&root().join("src/layout"))
        .iter()
        .map(|f| fs::read_to_string(f).expect("a readable source file"))
        .collect();
    for file in tables().keys() {
        assert!(sources.contains(&format!("symbols/{file}")), "symbols/{file} is not embedded by src/layout");
    }
}

/// All names the tables have.
struct Names {
    /// Struct → its fields, of all versions.
    structs: BTreeMap<String, BTreeSet<String>>,
    /// Constants and keys of `means`.
    words: BTreeSet<String>,
}

impl Names {
    fn of(tables: &BTreeMap<String, toml::Table>) -> Names {
        let mut names = Names { structs: BTreeMap::new(), words: BTreeSet::new() };
        for table in tables.values() {
            for entry in entries(table, "struct") {
                let known = names.structs.entry(text_of(entry, "name").to_string()).or_default();
                known.extend(fields(entry).into_iter().map(|(name, ..)| name.to_string()));
            }
            for entry in entries(table, "frame") {
                let means = entry.get("means").and_then(toml::Value::as_table);
                names.words.extend(means.into_iter().flatten().map(|(key, _)| key.clone()));
            }
            let constants = table.get("constants").and_then(toml::Value::as_table);
            names.words.extend(constants.into_iter().flatten().map(|(name, _)| name.clone()));
        }
        names
    }

    fn is_field(&self, of: &str, field: &str) -> bool {
        self.structs.get(of).is_some_and(|s| s.contains(field))
    }

    fn knows(&self, name: &str) -> bool {
        self.words.contains(name) || self.structs.values().any(|s| s.contains(name))
    }
}

/// Calls that look a single name up, and those whose name is a struct's.
const FIELD_CALLS: &[&str] = &["field", "offset", "word", "words", "value", "int", "number", "numbers"];
const STRUCT_CALLS: &[&str] = &["layout", "layouts", "size", "size_usize"];

/// Names that `text` asks for and no table has: `line: sentence` each. Also how many were asked for.
fn unknown_names(text: &str, names: &Names) -> (usize, Vec<String>) {
    let all = without_tests(tokens(text));
    let word = |i: usize| all.get(i).map_or("", |t| t.text.as_str());
    let literal = |i: usize| word(i).strip_prefix('"');
    let (mut asked, mut wrong) = (0, Vec::new());
    for (i, token) in all.iter().enumerate() {
        let Some(name) = literal(i) else { continue };
        let mut tell = |ok: bool, what: String| {
            asked += 1;
            if !ok {
                wrong.push(format!("{}: no table has {what}", token.line));
            }
        };
        // `"PyThreadState", "next"` and `"PyThreadState", &["frame", "current_frame"]`: a struct and fields of it
        if names.structs.contains_key(name) && word(i + 1) == "," {
            let list = word(i + 2) == "&" && word(i + 3) == "[";
            let mut at = if list { i + 4 } else { i + 2 };
            while let Some(field) = literal(at) {
                tell(names.is_field(name, field), format!("{name}.{field}"));
                at += if list && word(at + 1) == "," { 2 } else { usize::MAX / 2 };
            }
        }
        let method = i >= 3 && word(i - 1) == "(" && word(i - 3) == ".";
        if method && STRUCT_CALLS.contains(&word(i - 2)) {
            tell(names.structs.contains_key(name), format!("the struct {name}"));
        }
        if method && FIELD_CALLS.contains(&word(i - 2)) && word(i + 1) == ")" {
            tell(names.knows(name), format!("the field or word {name}"));
        }
    }
    (asked, wrong)
}

#[test]
fn every_name_the_code_asks_for_exists_in_a_table() {
    let names = Names::of(&tables());
    let (mut asked, mut wrong) = (0, Vec::new());
    for file in source_files(&root().join("src/runtimes")) {
        if file.file_stem().is_some_and(|n| n == "tests") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a readable source file");
        let (count, unknown) = unknown_names(&text, &names);
        asked += count;
        let path = file.strip_prefix(root()).expect("below the root").display().to_string();
        wrong.extend(unknown.into_iter().map(|w| format!("{path}:{w}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(asked >= LOOK_UPS, "only {asked} look-ups were recognised in src/runtimes: the scan is blind");
}

/// Fewer look-ups than this in all of `src/runtimes` mean that the scan does not see them any more.
const LOOK_UPS: usize = 20;

#[test]
fn a_name_that_no_table_has_is_found() {
    let names = Names::of(&tables());
    let text = r#"
        fn f(m: &StructImage) { m.word("__owner"); m.word("__ownre"); t.layout("pthread_mutex_t", &s); t.layout("mutex", &s); }
        const A: &[(&str, &str)] = &[("pthread_mutex_t", "__lock"), ("pthread_mutex_t", "__luck")];
        fn g(c: &C) { c.any("pthread_mutex_t", &["__kind", "__kynd"]); text.starts_with("unrelated"); }
        #[cfg(test)]
        mod tests { fn h() { m.word("made_up"); } }
    "#;
    let (asked, wrong) = unknown_names(text, &names);
    assert_eq!(asked, 8, "{wrong:?}");
    assert_eq!(wrong.len(), 4, "{wrong:?}");
    for (found, expected) in wrong.iter().zip([
        "2: no table has the field or word __ownre",
        "2: no table has the struct mutex",
        "3: no table has pthread_mutex_t.__luck",
        "4: no table has pthread_mutex_t.__kynd",
    ]) {
        assert_eq!(found, expected);
    }
}

#[test]
fn types_have_the_sizes_of_the_schema() {
    for (kind, size) in [("u8", 1), ("i16", 2), ("u32", 4), ("ptr", 8), ("u32[2]", 8), ("u8[0]", 0), ("bits 6 4", 2)] {
        assert_eq!(size_of(kind), Some(size), "{kind}");
    }
    for kind in ["u7", "u8[", "u8[x]", "bits", "bits 1", "bits 1 0", "bits 1 2 3", ""] {
        assert_eq!(size_of(kind), None, "{kind}");
    }
}
