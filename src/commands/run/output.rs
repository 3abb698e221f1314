//! What `run` writes, written by a thread: a pipe nobody reads, or a file on a server that is gone, must not keep us from
//! ending the tree.

use crate::commands::write_text;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

enum Piece {
    /// For stderr.
    Text(String),
    /// The report for the file of `-o`; `quiet` says nothing of success.
    File { path: PathBuf, report: String, quiet: bool },
}

/// To stderr and the file of `-o`, in order.
pub struct Output {
    pieces: Option<Sender<Piece>>,
    done: Receiver<()>,
    pending: usize,
}

impl Output {
    /// Ready to write.
    pub fn new() -> Output {
        let (pieces, incoming) = channel();
        let (finished, done) = channel();
        let write = move || {
            for piece in incoming {
                put(piece);
                let _ = finished.send(());
            }
        };
        let thread = thread::Builder::new().spawn(write);
        Output { pieces: thread.is_ok().then_some(pieces), done, pending: 0 }
    }

    /// Text for stderr: in portions, so that a slow reader's progress is seen.
    pub fn say(&mut self, text: &str) {
        for line in text.split_inclusive('\n') {
            self.give(Piece::Text(line.to_owned()));
        }
    }

    /// A report for a file.
    pub fn file(&mut self, path: &Path, report: String, quiet: bool) {
        self.give(Piece::File { path: path.to_owned(), report, quiet });
    }

    fn give(&mut self, piece: Piece) {
        match &self.pieces {
            Some(pieces) => self.pending += usize::from(pieces.send(piece).is_ok()),
            // no thread can be had
            None => put(piece),
        }
    }

    /// Waits until all is written, `limit` has passed without any progress, or `give_up` says so.
    pub fn finish(&mut self, limit: Duration, give_up: &mut dyn FnMut() -> bool) {
        let mut until = Instant::now() + limit;
        while self.pending > 0 && Instant::now() < until && !give_up() {
            match self.done.recv_timeout(Duration::from_millis(50)) {
                Ok(()) => {
                    self.pending -= 1;
                    until = Instant::now() + limit;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Writes one piece. What goes wrong with a file is told; a broken stderr cannot be told of.
fn put(piece: Piece) {
    let say = |text: &str| drop(io::stderr().write_all(text.as_bytes()));
    match piece {
        Piece::Text(text) => say(&text),
        Piece::File { path, report, quiet } => match write_text(&path, &report) {
            Ok(()) if quiet => {}
            Ok(()) => say(&format!("hangscope: the report is in {}\n", path.display())),
            Err(e) => say(&format!("hangscope: cannot write the report to {}: {e}\n{report}", path.display())),
        },
    }
}
