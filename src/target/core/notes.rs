//! A core's notes: registers, names, the auxiliary vector, the files that were mapped.

use super::own::Own;
use super::segments::Headers;
use crate::arch::ThreadRegisters;
use crate::arch::x86_64::{PRSTATUS_HEADER, parse_user_regs};
use crate::memory::{u32_at, u64_at};
use crate::target::PF_FORKNOEXEC;
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::note::{NT_FILE, NT_PRPSINFO, NT_PRSTATUS, NoteDataIterator};
use std::collections::HashSet;

const NT_AUXV: u32 = 6;

/// Threads taken from one core at most.
const MAX_THREADS: usize = 1 << 18;
/// File mappings taken from one core at most.
const MAX_FILES: usize = 1 << 20;
/// Entries of the auxiliary vector taken at most; the kernel writes about 20.
const MAX_AUXV: usize = 256;

/// One `NT_PRSTATUS`. Source: Linux `include/linux/elfcore.h`, `struct elf_prstatus`.
pub(super) struct Prstatus {
    pub pid: i32,
    pub registers: Option<ThreadRegisters>,
}

/// One entry of `NT_FILE`.
#[derive(Clone, Debug)]
pub(super) struct FileRange {
    pub start: u64,
    pub end: u64,
    /// Bytes.
    pub offset: u64,
    /// As the note writes it, ` (deleted)` and all.
    pub path: String,
}

/// What the notes told.
#[derive(Default)]
pub(super) struct Notes {
    pub threads: Vec<Prstatus>,
    /// Whether there may be more of them: notes that are damaged or cut off.
    pub lacks_threads: bool,
    pub pid: Option<i32>,
    /// `pr_fname`: the first 15 bytes of the main thread's name.
    pub name: Option<String>,
    /// `pr_psargs`: the first 79 bytes of the command line, blanks between the words.
    pub arguments: Option<String>,
    pub auxv: Vec<(u64, u64)>,
    /// `PF_FORKNOEXEC` of the process, where the core tells its flags.
    pub forked: Option<bool>,
    /// Ascending, disjoint.
    pub files: Vec<FileRange>,
    pub own: Own,
}

/// Reads all note segments. A damaged note ends its segment: what stood before it is kept.
pub(super) fn parse(headers: &Headers, warnings: &mut Vec<String>) -> Notes {
    let mut notes = Notes::default();
    let mut seen = HashSet::new();
    for (data, align) in headers.notes() {
        let ctx = (align, Ctx::new(Container::Big, Endian::Little));
        for note in (NoteDataIterator { data, size: data.len(), offset: 0, ctx }) {
            let Ok(note) = note else {
                notes.lacks_threads = true;
                if !headers.truncated {
                    warnings.push(
                        "the core is damaged: one of its notes does not parse; the notes behind it are missing".into(),
                    );
                }
                break;
            };
            match (note.name, note.n_type) {
                ("CORE", NT_PRSTATUS) => match u32_at(note.desc, 32).and_then(|p| i32::try_from(p).ok()) {
                    Some(pid) if notes.threads.len() < MAX_THREADS => {
                        if seen.insert(pid) {
                            let registers = note.desc.get(PRSTATUS_HEADER..).and_then(parse_user_regs);
                            notes.threads.push(Prstatus { pid, registers });
                        }
                    }
                    _ => notes.lacks_threads = true,
                },
                ("CORE", NT_PRPSINFO) => {
                    // struct elf_prpsinfo: pr_flag at 8, pr_pid at 24, pr_fname[16] at 40, pr_psargs[80] at 56
                    notes.pid = u32_at(note.desc, 24).and_then(|p| i32::try_from(p).ok());
                    // a writer that leaves the flags out leaves them 0
                    let flags = u64_at(note.desc, 8).filter(|f| *f != 0);
                    notes.forked = flags.map(|f| f & PF_FORKNOEXEC != 0);
                    notes.name = note.desc.get(40..56).and_then(text);
                    notes.arguments = note.desc.get(56..136).and_then(text);
                }
                ("CORE", NT_AUXV) => notes.auxv = auxv(note.desc),
                ("CORE", NT_FILE) => match files(note.desc) {
                    Some(files) => notes.files = files,
                    None => warnings.push(
                        "the core is damaged: its list of mapped files (NT_FILE) does not parse; modules are unknown"
                            .into(),
                    ),
                },
                (super::own::NAME, kind) => notes.own.take(kind, note.desc),
                _ => {}
            }
        }
    }
    notes
}

/// The text before the first NUL, or `None` when there is none.
fn text(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.split(|b| *b == 0).next()?;
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned())
}

fn auxv(desc: &[u8]) -> Vec<(u64, u64)> {
    desc.chunks_exact(16)
        .map_while(|pair| Some((u64_at(pair, 0)?, u64_at(pair, 8)?)))
        .take_while(|(kind, _)| *kind != 0)
        .take(MAX_AUXV)
        .collect()
}

/// `NT_FILE`: count, page size, count × (start, end, offset in pages), then as many NUL-ended paths.
/// Source: Linux `fs/binfmt_elf.c`, `fill_files_note`.
fn files(desc: &[u8]) -> Option<Vec<FileRange>> {
    let count = usize::try_from(u64_at(desc, 0)?).ok()?;
    let page = u64_at(desc, 8)?;
    let table = desc.get(16..)?;
    if count > (table.len() / 24).min(MAX_FILES) || page == 0 {
        return None;
    }
    let mut paths = table.get(count.checked_mul(24)?..)?.split(|b| *b == 0);
    let mut files = Vec::with_capacity(count);
    for entry in table.chunks_exact(24).take(count) {
        let (start, end, offset) = (u64_at(entry, 0)?, u64_at(entry, 8)?, u64_at(entry, 16)?);
        let Some(path) = paths.next() else { break };
        if start < end {
            let path = String::from_utf8_lossy(path).into_owned();
            files.push(FileRange { start, end, offset: offset.saturating_mul(page), path });
        }
    }
    files.sort_by_key(|f| (f.start, f.end));
    let mut last_end = 0;
    files.retain(|f| {
        let fits = f.start >= last_end;
        last_end = last_end.max(f.end);
        fits
    });
    Some(files)
}
