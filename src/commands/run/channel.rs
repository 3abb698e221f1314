//! What `run` and its observer tell each other: JSON, a line each, over a pair of sockets.

use super::sys::How;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// From `run` to its observer.
#[derive(Serialize, Deserialize)]
pub enum Order {
    /// Say which signals came.
    Signals,
    /// Diagnose the tree.
    Diagnose,
    /// End the tree.
    End,
    /// `run` has seen that the command goes on.
    Awake,
}

/// From the observer to `run`.
#[derive(Serialize, Deserialize)]
pub enum Word {
    /// CMD runs, as this process.
    Started(i32),
    /// CMD could not be started: the error's number.
    Failed(i32),
    /// What became of CMD.
    Command(How),
    /// How often each signal came since this was last asked.
    Signals(BTreeMap<i32, u32>),
    /// The diagnosis is over.
    Report(Outcome),
    /// The tree was ended; these stay behind.
    Ended(Vec<i32>),
}

/// What became of the diagnosis. A report lies in the file made for it.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// Why there is no report.
    pub failed: Option<String>,
    /// Processes looked at.
    pub processes: usize,
    /// How many more there were.
    pub left_out: usize,
    /// Where nothing is stuck: what the command did meanwhile, in lines.
    pub meanwhile: Vec<String>,
}

/// One end.
pub struct Channel {
    socket: UnixStream,
    unread: Vec<u8>,
    /// Whether the other end is gone.
    pub closed: bool,
}

impl Channel {
    /// Over this socket.
    ///
    /// # Errors
    /// When it cannot be read without waiting.
    pub fn new(socket: UnixStream) -> io::Result<Channel> {
        socket.set_nonblocking(true)?;
        Ok(Channel { socket, unread: Vec::new(), closed: false })
    }

    /// A second one, for sending.
    ///
    /// # Errors
    /// When there can be no further descriptor.
    pub fn another(&self) -> io::Result<Channel> {
        Ok(Channel { socket: self.socket.try_clone()?, unread: Vec::new(), closed: self.closed })
    }

    /// Tells it. What the other end does not take is lost: it has gone then, or does nothing any more.
    pub fn send(&mut self, message: &impl Serialize) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        self.closed |= self.socket.write_all(&line).is_err();
    }

    /// The next message, if there is one.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                if let Ok(message) = serde_json::from_slice(&line) {
                    return Some(message);
                }
                continue;
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(n) if n > 0 => self.unread.extend(bytes.iter().take(n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                _ => {
                    self.closed = true;
                    return None;
                }
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
