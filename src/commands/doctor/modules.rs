//! The files mapped into a process: where names of functions come from, and whether they can be unwound.

use object::read::{Object, ObjectSection};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the names of a file's functions come from, best first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Symbols {
    /// Its own `.symtab`.
    Symtab,
    /// A separate debug file.
    Separate(PathBuf),
    /// The compressed table Fedora puts into its files.
    MiniDebug,
    /// Exported names only.
    Exported,
    /// It could not be read.
    Unreadable(String),
}

impl Symbols {
    pub fn kind(&self) -> &'static str {
        match self {
            Symbols::Symtab => ".symtab",
            Symbols::Separate(_) => "debug file",
            Symbols::MiniDebug => ".gnu_debugdata",
            Symbols::Exported => ".dynsym only",
            Symbols::Unreadable(_) => "unreadable",
        }
    }
}

/// One mapped program or library.
#[derive(Clone, Debug)]
pub struct Module {
    pub path: String,
    pub symbols: Symbols,
    pub unwind: &'static str,
}

impl Module {
    /// The last part of its path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Every file of the process that has code, in the order of its addresses.
pub fn of(pid: i32) -> Vec<Module> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut modules: Vec<Module> = Vec::new();
    for line in maps.lines() {
        let executable = line.split(' ').nth(1).is_some_and(|p| p.contains('x'));
        let Some(path) = line.find('/').and_then(|at| line.get(at..)).filter(|_| executable) else { continue };
        if modules.iter().all(|m| m.path != path) {
            let range = line.split(' ').next().unwrap_or_default();
            modules.push(look_at(pid, path, range));
        }
    }
    modules
}

fn look_at(pid: i32, path: &str, range: &str) -> Module {
    let as_seen = path.strip_suffix(" (deleted)");
    let root = format!("/proc/{pid}/root");
    // a deleted file is still to be had by the mapping itself
    let bytes = match as_seen {
        None => fs::read(format!("{root}{path}")),
        Some(_) => fs::read(format!("/proc/{pid}/map_files/{range}")),
    };
    let unreadable = |why: String| Module { path: path.into(), symbols: Symbols::Unreadable(why), unwind: "?" };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(e) => return unreadable(format!("cannot be opened: {e}")),
    };
    let Ok(file) = object::File::parse(bytes.as_slice()) else { return unreadable("no ELF file".into()) };
    let has = |name: &str| file.section_by_name(name).is_some_and(|s| s.size() > 0);
    let symbols = if has(".symtab") {
        Symbols::Symtab
    } else if let Some(found) = separate(&file, &root, path) {
        Symbols::Separate(found)
    } else if has(".gnu_debugdata") {
        Symbols::MiniDebug
    } else {
        Symbols::Exported
    };
    let unwind = match (has(".eh_frame"), has(".debug_frame")) {
        (true, _) => ".eh_frame",
        (false, true) => ".debug_frame",
        _ => "frame pointers",
    };
    Module { path: path.into(), symbols, unwind }
}

/// The separate debug file, by build-id and by debug link, where gdb would look for it.
fn separate(file: &object::File<'_>, root: &str, path: &str) -> Option<PathBuf> {
    let exists = |p: PathBuf| Path::new(&format!("{root}{}", p.display())).is_file().then_some(p);
    let by_id = file.build_id().ok().flatten().filter(|id| id.len() > 1).and_then(|id| {
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        let (first, rest) = hex.split_at(2);
        exists(PathBuf::from(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug")))
    });
    by_id.or_else(|| {
        let (name, _) = file.gnu_debuglink().ok().flatten()?;
        let name = std::str::from_utf8(name).ok()?;
        let directory = Path::new(path).parent()?;
        let below = directory.strip_prefix("/").unwrap_or(directory);
        [directory.join(name), directory.join(".debug").join(name), Path::new("/usr/lib/debug").join(below).join(name)]
            .into_iter()
            .filter(|p| p.as_os_str() != path)
            .find_map(exists)
    })
}

/// What would give names to files that have only exported ones. Locks are proven without.
pub fn mends(modules: &[Module]) -> Vec<String> {
    let poor: Vec<&str> = modules.iter().filter(|m| m.symbols == Symbols::Exported).map(|m| m.path.as_str()).collect();
    let name = |p: &str| Path::new(p).file_name().and_then(|n| n.to_str()).unwrap_or("").to_string();
    let mut out = Vec::new();
    if poor.iter().any(|p| name(p).starts_with("libc.so") || name(p).starts_with("libc-2.")) {
        out.push(
            "`sudo apt-get install libc6-dbg` (Debian, Ubuntu) for the libc; its locks are known without".to_string(),
        );
    }
    let others = poor.iter().filter(|p| !name(p).starts_with("libc.so") && !name(p).starts_with("ld-linux")).count();
    if others > 0 {
        out.push(format!(
            "{others} files have exported names only; `debuginfod-find debuginfo FILE` fetches a debug file, \
             `--debug-dir DIR` says where it is"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_files_are_found_and_unwind() {
        let all = of(std::process::id().cast_signed());
        assert!(all.iter().any(|m| m.symbols == Symbols::Symtab && m.unwind == ".eh_frame"), "{all:?}");
        assert!(all.iter().all(|m| !matches!(m.symbols, Symbols::Unreadable(_))), "{all:?}");
    }

    #[test]
    fn a_stripped_libc_is_mended_by_its_package() {
        let libc = Module { path: "/lib/libc.so.6".into(), symbols: Symbols::Exported, unwind: ".eh_frame" };
        assert!(mends(&[libc]).iter().any(|m| m.contains("libc6-dbg")));
        assert!(mends(&[]).is_empty());
    }
}
