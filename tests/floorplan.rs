//! The floor plan: which room of `src/` may import which, and which crates are at home where.
//!
//! Reads the source text of every room: `crate::…` and `super::…` paths, in `use` lines and in expressions, and the names
//! of our dependencies. Comments, strings and test modules are not looked at.

#[path = "support/source.rs"]
mod source;

use source::{Token, source_files, tokens, without_tests};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// One row of the table.
struct Room {
    name: &'static str,
    /// Rooms whose every item it may name.
    imports: &'static [&'static str],
    /// Single items of other rooms, each with the reason.
    items: &'static [Item],
    /// Crates at home here.
    crates: &'static [&'static str],
}

/// An item that may be named although its room may not.
struct Item {
    room: &'static str,
    names: &'static [&'static str],
    reason: &'static str,
}

/// `target`'s plain data: what a snapshot is made of. The doors and the `Target` trait are not in it.
const TARGET_DATA: &[&str] = &["ThreadState", "Mapping", "Permissions", "Process", "Progress", "Descriptor", "Inquiry"];

const PLAN: &[Room] = &[
    Room { name: "units", imports: &[], items: &[], crates: &[] },
    Room { name: "arch", imports: &["units"], items: &[], crates: &["iced_x86"] },
    Room { name: "memory", imports: &["units"], items: &[], crates: &["memmap2"] },
    Room {
        name: "elf",
        imports: &["units", "arch", "memory"],
        items: &[],
        crates: &["gimli", "addr2line", "lzma_rust2", "flate2", "ruzstd", "cpp_demangle", "rustc_demangle"],
    },
    Room { name: "layout", imports: &["units", "memory", "elf"], items: &[], crates: &["serde", "toml"] },
    Room {
        name: "target",
        imports: &["units", "arch", "memory"],
        items: &[],
        crates: &["nix", "goblin", "flate2", "lz4_flex", "lzma_rust2", "ruzstd", "tempfile"],
    },
    Room { name: "snapshot", imports: &["units", "arch", "memory", "elf", "target"], items: &[], crates: &[] },
    Room {
        name: "unwind",
        imports: &["units", "arch", "memory", "elf", "snapshot"],
        items: &[Item {
            room: "target",
            names: TARGET_DATA,
            reason: "a snapshot is made of them, and a stack begins at a thread's registers",
        }],
        crates: &["gimli"],
    },
    Room { name: "facts", imports: &["units"], items: &[], crates: &[] },
    Room {
        name: "runtimes",
        imports: &["units", "arch", "memory", "elf", "layout", "snapshot", "unwind", "facts"],
        items: &[Item {
            room: "target",
            names: TARGET_DATA,
            reason: "`Held` and `View` lend the threads of the instant; the doors themselves stay out of reach",
        }],
        crates: &[],
    },
    Room { name: "graph", imports: &["units", "facts"], items: &[], crates: &[] },
    Room {
        name: "verdict",
        imports: &["units", "snapshot", "unwind", "facts", "graph"],
        items: &[Item {
            room: "target",
            names: TARGET_DATA,
            reason: "a snapshot's threads tell state and progress: busy or idle rests on them",
        }],
        crates: &[],
    },
    Room {
        name: "report",
        imports: &["units", "snapshot", "unwind", "facts", "graph", "verdict"],
        items: &[Item { room: "target", names: TARGET_DATA, reason: "a report prints what a snapshot is made of" }],
        crates: &["serde", "serde_json"],
    },
    Room {
        name: "diagnose",
        imports: &[
            "units", "arch", "memory", "elf", "layout", "target", "snapshot", "unwind", "facts", "runtimes", "graph",
            "verdict",
        ],
        items: &[],
        crates: &[],
    },
];

/// Rooms where people meet the program: anything may be imported.
const OPEN: &[&str] = &["commands", "cli", "main", "lib"];

/// Crates welcome in every room.
const WELCOME: &[&str] = &["thiserror"];

/// Crates for the open rooms only.
const OPEN_CRATES: &[&str] = &["clap", "anyhow", "comfy_table", "object"];

/// A module of such a name has a room of its own or no reason.
const NO_SUCH_ROOM: &[&str] = &["utils", "util", "common", "shared", "helpers", "misc"];

#[test]
fn every_room_keeps_to_the_floor_plan() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dependencies = dependencies(root);
    let texts: Vec<(String, String)> = source_files(&root.join("src"))
        .iter()
        .map(|file| {
            let path = file.strip_prefix(root).expect("under the root").to_string_lossy().into_owned();
            (path, fs::read_to_string(file).expect("a readable source file"))
        })
        .collect();
    assert!(texts.len() > 15, "the sources were not found: {texts:?}");
    let tests: Vec<String> = texts.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let mut violations = Vec::new();
    for (path, text) in &texts {
        if !tests.iter().any(|t| *path == format!("{t}.rs") || path.starts_with(&format!("{t}/"))) {
            violations.extend(check(path, text, &dependencies));
        }
    }
    assert!(violations.is_empty(), "the floor plan is broken:\n{}", violations.join("\n"));
}

#[test]
fn every_dependency_has_a_home() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in dependencies(root) {
        let home = PLAN.iter().any(|r| r.crates.contains(&name.as_str()))
            || WELCOME.contains(&name.as_str())
            || OPEN_CRATES.contains(&name.as_str());
        assert!(home, "Cargo.toml depends on {name}, but no room of the floor plan names it");
    }
}

#[test]
fn every_dependency_is_used_where_it_is_at_home() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dependencies = dependencies(root);
    let mut used: BTreeSet<(String, String)> = BTreeSet::new();
    for file in source_files(&root.join("src")) {
        let path = file.strip_prefix(root.join("src")).expect("under src").to_string_lossy().into_owned();
        let room = path.split(['/', '.']).next().unwrap_or_default().to_owned();
        let all = without_tests(tokens(&fs::read_to_string(&file).expect("a readable source file")));
        let named = crate_names(&all, &dependencies).into_iter().map(|(_, name)| name);
        used.extend(named.map(|name| (room.clone(), name)));
    }
    for name in &dependencies {
        assert!(used.iter().any(|(_, krate)| krate == name), "Cargo.toml depends on {name}, and no room uses it");
    }
    for room in PLAN {
        for krate in room.crates {
            let is_used = used.contains(&(room.name.to_owned(), (*krate).to_owned()));
            assert!(is_used, "the floor plan has {krate} at home in {}, which does not use it", room.name);
        }
    }
}

#[test]
fn the_plan_is_one_direction_and_gives_reasons() {
    for (i, room) in PLAN.iter().enumerate() {
        for import in room.imports {
            let at = PLAN.iter().position(|r| r.name == *import).expect("a room of the plan");
            assert!(at < i, "{} imports {import}, which stands after it", room.name);
        }
        for item in room.items {
            assert!(!item.reason.is_empty() && !item.names.is_empty());
            assert!(PLAN.iter().take(i).any(|r| r.name == item.room), "{} names {}", room.name, item.room);
        }
    }
}

/// Names of the dependencies as code spells them.
fn dependencies(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml");
    let manifest: toml::Table = toml::from_str(&text).expect("Cargo.toml parses");
    let table = manifest.get("dependencies").and_then(toml::Value::as_table).expect("dependencies");
    table.keys().map(|k| k.replace('-', "_")).collect()
}

/// What is wrong with one file: `path:line: sentence` each. `path` is relative to the root: `src/graph.rs`.
fn check(path: &str, text: &str, dependencies: &[String]) -> Vec<String> {
    let parts: Vec<&str> = path.trim_start_matches("src/").trim_end_matches(".rs").split('/').collect();
    let name = parts[0];
    if let Some(bad) = parts.iter().find(|p| NO_SUCH_ROOM.contains(p)) {
        return vec![format!("{path}:1: there is no `{bad}`: such a thing has a room or no reason")];
    }
    if OPEN.contains(&name) {
        return Vec::new();
    }
    let Some(room) = PLAN.iter().find(|r| r.name == name) else {
        return vec![format!("{path}:1: `{name}` is no room of the floor plan (tests/floorplan.rs)")];
    };
    let tokens = without_tests(tokens(text));
    let depth = parts.iter().filter(|p| **p != "mod").count();
    let mut wrong = Vec::new();
    for (line, import) in crate_paths(&tokens, depth) {
        wrong.extend(judge_import(room, &import).map(|why| format!("{path}:{line}: {why}")));
    }
    for (line, krate) in crate_names(&tokens, dependencies) {
        if !room.crates.contains(&krate.as_str()) && !WELCOME.contains(&krate.as_str()) {
            let at_home: Vec<&str> =
                PLAN.iter().filter(|r| r.crates.contains(&krate.as_str())).map(|r| r.name).collect();
            wrong.push(format!(
                "{path}:{line}: the crate `{krate}` is not at home in `{}`, but in {at_home:?}",
                room.name
            ));
        }
    }
    wrong
}

/// The modules in files of their own that `path` declares for its tests alone: `src/verdict/made_up`, without `.rs`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let all = tokens(text);
    let word = |i: usize| all.get(i).map_or("", |t| t.text.as_str());
    let stem = path.trim_end_matches(".rs");
    let directory = stem.strip_suffix("/mod").or(stem.strip_suffix("/lib")).unwrap_or(stem);
    (0..all.len())
        .filter(|i| ["#", "[", "cfg", "(", "test", ")", "]"].iter().enumerate().all(|(n, w)| word(i + n) == *w))
        .filter_map(|i| (i + 7..i + 12).find(|m| word(*m) == "mod").filter(|m| word(m + 2) == ";"))
        .map(|m| format!("{directory}/{}", word(m + 1)))
        .collect()
}

/// Why `import` (a path below the crate's root) may not stand in `room`, if so.
fn judge_import(room: &Room, import: &[String]) -> Option<String> {
    let to = import.first().map_or("*", String::as_str);
    if to == room.name || room.imports.contains(&to) {
        return None;
    }
    let path = import.join("::");
    let Some(item) = room.items.iter().find(|i| i.room == to) else {
        return Some(format!("`{}` may not import `{path}`; it may import {:?}", room.name, room.imports));
    };
    let named = import.get(1).map_or("*", String::as_str);
    (!item.names.contains(&named)).then(|| {
        format!("`{}` may not import `{path}`; of `{to}` only {:?}, because {}", room.name, item.names, item.reason)
    })
}

/// Every path that starts at the crate's root, by `crate::` or by enough `super::`, without that start. `depth` is how
/// many modules the file lies below the root.
fn crate_paths(tokens: &[Token], depth: usize) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut braces: Vec<bool> = Vec::new(); // whether each open brace belongs to an inline module
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let mut i = 0;
    while i < tokens.len() {
        let begins = i == 0 || text(i - 1) != "::" || text(i.wrapping_sub(2)) == "self";
        match text(i) {
            "{" => braces.push(i >= 2 && text(i - 2) == "mod"),
            "}" => drop(braces.pop()),
            // `pub(crate)` and `in crate` name no path
            "crate" if text(i + 1) == "::" => tree(tokens, i + 2, &[], &mut found),
            "crate" if text(i + 1) == "as" => found.push((tokens[i].line, vec!["*".into()])),
            "super" if begins => {
                let mut ups = 1;
                while text(i + 1) == "::" && text(i + 2) == "super" {
                    (ups, i) = (ups + 1, i + 2);
                }
                let inline = braces.iter().filter(|b| **b).count();
                if ups >= depth + inline && text(i + 1) == "::" {
                    tree(tokens, i + 2, &[], &mut found);
                }
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// The paths of a `use` tree or expression path that goes on at `i`, each with its line.
fn tree(tokens: &[Token], i: usize, before: &[String], found: &mut Vec<(usize, Vec<String>)>) {
    let Some(token) = tokens.get(i) else { return };
    let mut path = before.to_vec();
    match token.text.as_str() {
        "{" => {
            let (mut depth, mut j, mut starts) = (1, i + 1, true);
            while let Some(t) = tokens.get(j).filter(|_| depth > 0) {
                match t.text.as_str() {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    _ => {}
                }
                if depth == 1 && starts && t.text != "," {
                    tree(tokens, j, before, found);
                }
                starts = t.text == ",";
                j += 1;
            }
        }
        name => {
            path.push(name.to_string());
            let goes_on =
                tokens.get(i + 1).is_some_and(|t| t.text == "::") && tokens.get(i + 2).is_some_and(|t| t.text != "<");
            if goes_on { tree(tokens, i + 2, &path, found) } else { found.push((token.line, path)) }
        }
    }
}

/// Every mention of a dependency by name: `name::…`, `use name;`, `use name as …`. A module of the same name, declared
/// or imported in the file, is not the crate.
fn crate_names(tokens: &[Token], dependencies: &[String]) -> Vec<(usize, String)> {
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let local = |name: &str| {
        (0..tokens.len()).any(|i| {
            text(i) == name
                && i > 0
                && (text(i - 1) == "mod" || text(i - 1) == "::" && matches!(text(i + 1), ";" | "," | "}"))
        })
    };
    (0..tokens.len())
        .filter(|i| dependencies.iter().any(|d| d == text(*i)))
        .filter(|i| {
            let inside = *i > 0 && matches!(text(i - 1), "::" | ".");
            let absolute = *i > 1 && text(i - 1) == "::" && !is_word(text(i - 2)) && text(i - 2) != ">";
            let used = *i > 0 && text(i - 1) == "use" && matches!(text(i + 1), ";" | "as");
            (text(i + 1) == "::" || used) && (!inside || absolute)
        })
        .filter(|i| !local(text(*i)))
        .map(|i| (tokens[i].line, text(i).to_string()))
        .collect()
}

fn is_word(text: &str) -> bool {
    text.chars().next().is_some_and(|c| c.is_alphanumeric() || c == '_') && text != "use"
}

/// Violations in made-up text of a made-up file.
fn violations(path: &str, text: &str) -> Vec<String> {
    check(path, text, &["nix".into(), "gimli".into(), "object".into(), "toml".into(), "thiserror".into()])
}

#[test]
fn a_forbidden_import_is_found_with_its_line() {
    let found = violations("src/graph.rs", "use crate::units::Pid;\n\nuse crate::target::Target;\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("src/graph.rs:3: `graph` may not import `target::Target`"), "{found:?}");
}

#[test]
fn groups_expressions_macros_and_supers_are_seen() {
    let grouped = violations("src/facts/kinds.rs", "use crate::{units::Addr, graph::{Graph, Node}, memory};");
    assert_eq!(grouped.len(), 3, "{grouped:?}");
    assert_eq!(violations("src/units.rs", "fn f() { crate::memory::read(1) }").len(), 1);
    assert_eq!(violations("src/units.rs", "macro_rules! m { () => { $crate::report::x } }").len(), 1);
    assert_eq!(violations("src/arch/x86_64.rs", "use super::super::target::Target;").len(), 1);
    assert_eq!(violations("src/arch/x86_64.rs", "use super::Arch; use super::super::units::Addr;").len(), 0);
    assert_eq!(violations("src/arch/mod.rs", "use super::target::Target;").len(), 1);
    assert_eq!(violations("src/arch/mod.rs", "mod inner { use super::target; }").len(), 0);
    assert_eq!(violations("src/arch/mod.rs", "mod inner { use super::super::target; }").len(), 1);
    assert_eq!(violations("src/units.rs", "use crate as everything;").len(), 1);
    assert_eq!(violations("src/units.rs", "use crate::*;").len(), 1);
}

#[test]
fn single_items_of_a_closed_room_are_told_from_the_rest() {
    assert_eq!(violations("src/runtimes/mod.rs", "use crate::target::ThreadState;").len(), 0);
    let found = violations("src/runtimes/mod.rs", "use crate::target::{Mapping, live::Stopped};");
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("because `Held` and `View`"), "{found:?}");
    assert_eq!(violations("src/runtimes/mod.rs", "use crate::target;").len(), 1);
}

#[test]
fn comments_strings_and_tests_are_not_looked_at() {
    let text = r####"
        //! [`crate::report`] and nix::unistd
        /* crate::report /* nested nix:: */ crate::target */
        const A: &str = "crate::report::x";
        const B: &str = r#"nix::"quoted" crate::report"#;
        const C: char = '"';
        fn f<'a>(x: &'a str) -> &'a str { x }
        #[cfg(test)]
        use crate::report::{text};
        #[cfg(test)]
        mod tests { use crate::report::text; fn g() { nix::unistd::getpid(); } }
    "####;
    assert_eq!(violations("src/graph.rs", text), Vec::<String>::new());
    let after = format!("{text}\nuse crate::report::text;");
    assert_eq!(violations("src/graph.rs", &after).len(), 1, "what follows a test module is looked at again");
}

#[test]
fn modules_for_tests_alone_are_known_by_their_declaration() {
    let text = "#[cfg(test)]\npub(crate) mod made_up;\n#[cfg(test)] mod tests { mod inner; }\nmod real;";
    assert_eq!(test_modules("src/verdict/mod.rs", text), ["src/verdict/made_up"]);
    assert_eq!(test_modules("src/lib.rs", "#[cfg(test)] mod tests;"), ["src/tests"]);
    assert_eq!(test_modules("src/graph.rs", "#[cfg(test)] mod tests;"), ["src/graph/tests"]);
}

#[test]
fn crates_stay_at_home() {
    assert_eq!(violations("src/target/live.rs", "use nix::sys::ptrace;").len(), 0);
    let found = violations("src/runtimes/kernel/mod.rs", "fn f() {\n  nix::unistd::getpid();\n}");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("src/runtimes/kernel/mod.rs:2: the crate `nix` is not at home"), "{found:?}");
    assert_eq!(violations("src/graph.rs", "use ::gimli::Reader;").len(), 1);
    assert_eq!(violations("src/graph.rs", "use object;").len(), 1);
    assert_eq!(violations("src/graph.rs", "#[derive(thiserror::Error)] enum E {}").len(), 0);
    assert_eq!(violations("src/runtimes/cpython/mod.rs", "mod object; fn f() { object::read() }").len(), 0);
    assert_eq!(violations("src/runtimes/cpython/a.rs", "use super::object; fn f() { object::read() }").len(), 0);
    assert_eq!(violations("src/graph.rs", "fn f(object: u8) -> u8 { object }").len(), 0);
}

#[test]
fn unknown_rooms_are_refused() {
    assert_eq!(violations("src/utils.rs", "").len(), 1);
    assert_eq!(violations("src/verdict/helpers.rs", "").len(), 1);
    assert_eq!(violations("src/newroom.rs", "").len(), 1);
    assert_eq!(violations("src/commands/run.rs", "use crate::target::live; use nix::unistd;").len(), 0);
}
