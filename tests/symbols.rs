//! Names and lines of stripped programs: from separate debug files found in each way there is, and from `.gnu_debugdata`.

mod support;

use hangscope::elf::{DebugFiles, ElfFile, Location};
use hangscope::memory::FileBytes;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use support::Scratch;

const SOURCE: &str = r#"
#include <vector>
__attribute__((noinline)) static int hidden_function(int n) { volatile int m = n; return m * 3; }
static inline __attribute__((always_inline)) int inlined_function(int n)
{
    return hidden_function(n) + 1;
}
namespace place { struct Thing { __attribute__((noinline)) int method(std::vector<int> v) { return inlined_function((int)v.size()); } }; }
int hidden_object[40] = {1};
int main(int argc, char **) { return place::Thing().method(std::vector<int>(argc)) + hidden_object[argc]; }
"#;

/// Opens files by their path, and looks for debug files in one directory.
struct Beside(PathBuf);

impl DebugFiles for Beside {
    fn open(&self, path: &Path) -> Option<FileBytes> {
        FileBytes::of_file(File::open(path).ok()?).ok()
    }

    fn directories(&self) -> Vec<PathBuf> {
        vec![self.0.clone()]
    }
}

fn open(path: &Path, debug_dir: &Path) -> ElfFile {
    let elf = ElfFile::parse(FileBytes::of_file(File::open(path).unwrap()).unwrap()).unwrap();
    elf.with_debug_files(path.to_path_buf(), Arc::new(Beside(debug_dir.to_path_buf())))
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status();
    assert!(status.is_ok_and(|s| s.success()), "{program} {args:?}");
}

fn tools(needed: &[&str]) -> bool {
    let missing = needed.iter().find(|t| !support::has_command(t));
    if let Some(tool) = missing {
        println!("skipped: needs {tool}");
    }
    missing.is_none()
}

/// A program with debug information, stripped twice: `program` and `program.debug`.
struct Split {
    scratch: Scratch,
    whole: PathBuf,
    program: PathBuf,
    debug: PathBuf,
}

fn split(name: &str, flags: &[&str]) -> Split {
    let scratch = Scratch::new(name);
    let at = |n: &str| scratch.path().join(n);
    let (source, whole, program, debug) = (at("source.cpp"), at("whole"), at("program"), at("program.debug"));
    std::fs::write(&source, SOURCE).unwrap();
    let text = |p: &Path| p.display().to_string();
    let mut args = vec!["-O1", "-g"];
    args.extend(flags);
    let (s, w, p, d) = (text(&source), text(&whole), text(&program), text(&debug));
    args.extend(["-o", &w, &s]);
    run("c++", &args);
    run("objcopy", &["--only-keep-debug", &w, &d]);
    run("objcopy", &["--strip-all", &w, &p]);
    Split { scratch, whole, program, debug }
}

impl Split {
    /// Moves the debug file to where its build-id says, below `debug/`.
    fn to_build_id_directory(&self) -> PathBuf {
        let whole = open(&self.whole, Path::new("/nowhere"));
        let hex: String = whole.build_id().unwrap().iter().map(|b| format!("{b:02x}")).collect();
        let root = self.scratch.path().join("debug");
        let dir = root.join(".build-id").join(&hex[..2]);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::rename(&self.debug, dir.join(format!("{}.debug", &hex[2..]))).unwrap();
        root
    }

    /// Asserts that `program` names what `whole` does. `separate`: by a file beside it, without which it does not, and
    /// which tells lines too.
    fn assert_found(&self, debug_dir: &Path, separate: bool) {
        let whole = open(&self.whole, Path::new("/nowhere"));
        let alone = ElfFile::parse(FileBytes::of_file(File::open(&self.program).unwrap()).unwrap()).unwrap();
        let found = open(&self.program, debug_dir);
        let name = "_ZL15hidden_functioni";
        let function = whole.find_symbol(name).unwrap();
        assert_eq!(alone.find_symbol(name).is_none(), separate);
        assert_eq!(found.find_symbol(name).as_ref(), Some(&function));
        assert_eq!(found.symbol_at(function.vaddr).as_ref(), Some(&function));
        let object = whole.find_symbol("hidden_object").unwrap();
        assert_eq!(found.object_at(object.vaddr), Some(object));
        if separate {
            let method = whole.find_symbol("_ZN5place5Thing6methodESt6vectorIiSaIiEE").unwrap();
            let inlined = (0..method.size)
                .map(|i| found.locate(hangscope::units::Vaddr(method.vaddr.0 + i)))
                .find(|l| l.len() > 1 && l[0].function.as_deref() == Some("inlined_function"))
                .expect("an address of the inlined function");
            assert_lines(&inlined);
            assert!(alone.locate(method.vaddr).is_empty());
        }
    }
}

fn assert_lines(found: &[Location]) {
    let [inner, outer] = found else { panic!("{found:?}") };
    assert_eq!((inner.function.as_deref(), inner.line, inner.inlined), (Some("inlined_function"), Some(6), true));
    assert_eq!((outer.function.as_deref(), outer.line, outer.inlined), (Some("place::Thing::method"), Some(8), false));
    assert!(inner.file.as_deref().is_some_and(|f| f.ends_with("source.cpp")));
}

#[test]
fn by_build_id() {
    if tools(&["c++", "objcopy"]) {
        for flags in [&["-gdwarf-5"][..], &["-gdwarf-4"], &["-gz=zlib"]] {
            let split = split("by_build_id", flags);
            let root = split.to_build_id_directory();
            split.assert_found(&root, true);
        }
        let split = split("by_build_id", &["-g"]);
        let debug = split.debug.display().to_string();
        let packed = Command::new("objcopy").args(["--compress-debug-sections=zstd", &debug]).status();
        if packed.is_ok_and(|s| s.success()) {
            split.assert_found(&split.to_build_id_directory(), true);
        } else {
            println!("skipped: needs an objcopy that knows zstd (binutils 2.40)");
        }
    }
}

#[test]
fn by_debug_link_and_its_crc() {
    if !tools(&["c++", "objcopy"]) {
        return;
    }
    let split = split("by_debug_link", &["-Wl,--build-id=none"]);
    let (program, debug) = (split.program.display().to_string(), split.debug.display().to_string());
    run("objcopy", &[&format!("--add-gnu-debuglink={debug}"), &program]);
    let nowhere = split.scratch.path().join("none");
    split.assert_found(&nowhere, true);
    // below .debug/
    let hidden = split.scratch.path().join(".debug");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::rename(&split.debug, hidden.join("program.debug")).unwrap();
    split.assert_found(&nowhere, true);
    // below the debug directory, by the program's own directory
    let below = nowhere.join(split.scratch.path().strip_prefix("/").unwrap());
    std::fs::create_dir_all(&below).unwrap();
    std::fs::rename(hidden.join("program.debug"), below.join("program.debug")).unwrap();
    split.assert_found(&nowhere, true);
    // one that is not the program's
    let mut bytes = std::fs::read(below.join("program.debug")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(below.join("program.debug"), bytes).unwrap();
    assert!(open(&split.program, &nowhere).find_symbol("_ZL15hidden_functioni").is_none());
}

#[test]
fn a_debug_file_of_another_build_is_not_used() {
    if !tools(&["c++", "objcopy"]) {
        return;
    }
    let (ours, theirs) = (split("one_build", &[]), split("other_build", &["-O2"]));
    let root = ours.to_build_id_directory();
    let find = || {
        let mut dirs = std::fs::read_dir(root.join(".build-id")).unwrap();
        let dir = dirs.next().unwrap().unwrap().path();
        std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path()
    };
    std::fs::copy(&theirs.debug, find()).unwrap();
    assert!(open(&ours.program, &root).find_symbol("_ZL15hidden_functioni").is_none());
}

#[test]
fn by_embedded_symbols() {
    if !tools(&["c++", "objcopy", "xz"]) {
        return;
    }
    let split = split("by_embedded_symbols", &[]);
    let text = |n: &str| split.scratch.path().join(n).display().to_string();
    run(
        "objcopy",
        &[
            "-S",
            "--keep-symbol=_ZL15hidden_functioni",
            "--keep-symbol=hidden_object",
            &text("program.debug"),
            &text("mini"),
        ],
    );
    run("xz", &[&text("mini")]);
    run("objcopy", &["--add-section", &format!(".gnu_debugdata={}", text("mini.xz")), &text("program")]);
    split.assert_found(Path::new("/nowhere"), false);
}

#[test]
fn with_a_dwz_supplement() {
    if !tools(&["c++", "objcopy", "dwz"]) {
        return;
    }
    let first = split("with_a_dwz_supplement", &["-gdwarf-4"]);
    let second = split("with_a_dwz_supplement_too", &["-gdwarf-4", "-DOTHER"]);
    let (a, b) = (first.debug.display().to_string(), second.debug.display().to_string());
    let common = first.scratch.path().join("common.debug").display().to_string();
    run("dwz", &["-m", &common, "-M", "common.debug", &a, &b]);
    let root = first.to_build_id_directory();
    // the name in the link is relative to the debug file's directory; put it where only its build-id leads to it
    let supplement = open(Path::new(&common), Path::new("/nowhere"));
    let hex: String = supplement.build_id().unwrap().iter().map(|b| format!("{b:02x}")).collect();
    let dir = root.join(".build-id").join(&hex[..2]);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::rename(&common, dir.join(format!("{}.debug", &hex[2..]))).unwrap();
    first.assert_found(&root, true);
}
