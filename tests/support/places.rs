//! Where samples run: this machine, its Pythons, and the Debian roots that `tests/roots` makes.

use super::{has_command, remove_dead, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A root made by `tests/roots`.
#[derive(Clone)]
pub struct Root {
    /// The suite's name.
    pub suite: String,
    pub path: PathBuf,
}

/// The suites, oldest glibc first.
pub const SUITES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];

/// The roots that are there. None for an ordinary user, who may not change root.
pub fn roots() -> Vec<Root> {
    if !nix::unistd::geteuid().is_root() || !has_command("unshare") {
        return Vec::new();
    }
    let all =
        std::env::var_os("HANGSCOPE_ROOTS").map_or_else(|| PathBuf::from("/var/tmp/hangscope-roots"), PathBuf::from);
    let found = SUITES.iter().map(|suite| Root { suite: (*suite).to_string(), path: all.join(suite) });
    found.filter(|r| r.path.join("usr/bin").is_dir()).collect()
}

/// A libc, and maybe an interpreter, to run samples with.
#[derive(Clone)]
pub struct Place {
    /// What the table calls it: `host`, `sid`, `trixie-3.13`, `trixie-3.13t`, `pyenv-3.8.18`.
    pub name: String,
    /// The root it is in; none: this machine.
    pub root: Option<Root>,
    /// The interpreter, as named inside the root, and its version.
    pub python: Option<(PathBuf, String)>,
    /// In a PID namespace of its own, where the program calls itself 1.
    pub own_pids: bool,
    /// Whether an interpreter that is built without the GIL has it switched on.
    pub with_gil: bool,
}

/// `11` of `3.11`, `13` of `3.13t`.
fn number_of(minor: &str) -> Option<u32> {
    minor.trim_end_matches('t').strip_prefix("3.")?.parse().ok()
}

impl Place {
    /// This machine, for programs without an interpreter.
    pub fn host() -> Place {
        Place { name: "host".into(), root: None, python: None, own_pids: false, with_gil: false }
    }

    /// Has its root a library whose file name begins so? This machine's own are not counted on.
    pub fn has_library(&self, name: &str) -> bool {
        let dir = self.root.as_ref().map(|r| r.path.join("usr/lib/x86_64-linux-gnu"));
        let files = dir.and_then(|d| std::fs::read_dir(d).ok()).into_iter().flatten().flatten();
        files.into_iter().any(|f| f.file_name().to_string_lossy().starts_with(name))
    }

    /// The minor version, as `3.11`; `3.13t` where it is built without the GIL.
    pub fn minor(&self) -> Option<String> {
        let (_, version) = self.python.as_ref()?;
        Some(minor_of(version))
    }

    /// Is its interpreter at least that minor version?
    pub fn is_since(&self, minor: &str) -> bool {
        self.minor().and_then(|m| number_of(&m)) >= number_of(minor)
    }

    /// Is its interpreter at most that minor version?
    pub fn is_until(&self, minor: &str) -> bool {
        self.minor().and_then(|m| number_of(&m)) <= number_of(minor)
    }

    /// The same with the GIL switched on where it is built without.
    pub fn with_gil(&self) -> Place {
        match self.minor() {
            Some(minor) if minor.ends_with('t') => {
                Place { name: format!("{}+gil", self.name), with_gil: true, ..self.clone() }
            }
            _ => self.clone(),
        }
    }
}

/// Every place for programs without an interpreter.
pub fn native_places(roots: &[Root]) -> Vec<Place> {
    let mut places = vec![Place::host()];
    if nix::unistd::geteuid().is_root() && has_command("unshare") {
        places.push(Place { name: "own-pids".into(), own_pids: true, ..Place::host() });
    }
    places.extend(roots.iter().map(|r| Place { name: r.suite.clone(), root: Some(r.clone()), ..Place::host() }));
    places
}

/// Every place with a CPython that hangscope claims to understand: the machine's, pyenv's, the roots'.
pub fn python_places(roots: &[Root]) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    let mut add = |name: &str, root: Option<&Root>, path: PathBuf| {
        let Some(version) = version_of(root, &path) else { return };
        let real = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let path = if root.is_some() { path } else { real };
        if root.is_none() && places.iter().any(|p| p.python.as_ref().is_some_and(|(known, _)| *known == path)) {
            return;
        }
        let shown = if root.is_some() { minor_of(&version) } else { version.clone() };
        let name = format!("{name}-{shown}");
        places.push(Place { name, root: root.cloned(), python: Some((path, version)), ..Place::host() });
    };
    for path in ["/usr/bin/python3", "/usr/local/bin/python3"] {
        add("host", None, PathBuf::from(path));
    }
    for path in pyenv_pythons() {
        add("pyenv", None, path);
    }
    for root in roots {
        for path in pythons_in(&root.path.join("usr/bin")) {
            add(&root.suite, Some(root), Path::new("/usr/bin").join(path.file_name().unwrap_or_default()));
        }
        for (path, stripped) in free_threaded_in(root) {
            let name = if stripped { root.suite.clone() } else { format!("{}-symbols", root.suite) };
            add(&name, Some(root), path);
        }
    }
    places
}

fn pyenv_pythons() -> Vec<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(|| {
        let mut ask = Command::new("pyenv");
        ask.arg("root");
        let said = run(ask, Duration::from_secs(10)).ok();
        said.map(|s| PathBuf::from(s.out.trim())).filter(|p| p.is_dir())
    });
    let root = root.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let mut found: Vec<PathBuf> = std::fs::read_dir(root.unwrap_or_default().join("versions"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path().join("bin/python3"))
        .filter(|p| p.is_file())
        .collect();
    found.sort();
    found
}

/// `python3.N` in a directory; not its config scripts.
fn pythons_in(dir: &Path) -> Vec<PathBuf> {
    let is_python = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("python3.").is_some_and(|minor| minor.parse::<u32>().is_ok())
    };
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).filter(is_python).collect();
    found.sort();
    found
}

/// The interpreters that `tests/roots` built without the GIL, as the root names them, and whether each is stripped: first the
/// one that is.
fn free_threaded_in(root: &Root) -> Vec<(PathBuf, bool)> {
    let mut found = Vec::new();
    for minor in 13..=15 {
        for (dir, stripped) in [("bin", true), ("with-symbols", false)] {
            let path = format!("opt/python3.{minor}t/{dir}/python3.{minor}t");
            if root.path.join(&path).is_file() {
                found.push((Path::new("/").join(path), stripped));
            }
        }
    }
    found
}

/// `3.13t` of `3.13.5t`.
fn minor_of(version: &str) -> String {
    let minor = version.split('.').take(2).collect::<Vec<_>>().join(".");
    if version.ends_with('t') { minor + "t" } else { minor }
}

/// `3.N.P`, where N is one that hangscope claims to understand, and a `t` where it is built without the GIL.
fn version_of(root: Option<&Root>, python: &Path) -> Option<String> {
    let mut ask = match root {
        Some(root) => {
            let mut chroot = Command::new("chroot");
            chroot.arg(&root.path).arg(python);
            chroot
        }
        None => Command::new(python),
    };
    ask.args(["-I", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3] + 't' * ('t' in sys.abiflags))"]);
    let said = run(ask, Duration::from_secs(20)).ok().filter(|s| s.status.success())?;
    let version = said.out.trim().to_string();
    let minor: u32 = version.strip_prefix("3.")?.split('.').next()?.parse().ok()?;
    (8..=15).contains(&minor).then_some(version)
}

/// The samples of this test process inside a root, as `/opt/hangscope-samples/PID`; removed when dropped.
pub struct Installed(PathBuf);

impl Installed {
    /// An empty directory in that root; those of processes that are gone are removed.
    pub fn new(root: &Root) -> std::io::Result<Installed> {
        let all = root.path.join("opt/hangscope-samples");
        remove_dead(&all);
        let dir = all.join(std::process::id().to_string());
        std::fs::create_dir_all(&dir)?;
        Ok(Installed(dir))
    }

    /// Copies a built sample's files into it; where they are, as the root names it.
    pub fn add(&self, name: &str, built: &Path) -> std::io::Result<PathBuf> {
        let into = self.0.join(name);
        std::fs::create_dir_all(&into)?;
        for entry in std::fs::read_dir(built)?.flatten() {
            std::fs::copy(entry.path(), into.join(entry.file_name()))?;
        }
        Ok(Path::new("/opt/hangscope-samples").join(std::process::id().to_string()).join(name))
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
