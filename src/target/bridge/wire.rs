//! The lines of the bridge: one request, one answer, each within its bounds of length and time.
//!
//! `plugins/PROTOCOL.md` is the grammar. Nothing an answer says is believed before it is checked.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Whoever answers: a debugger's plugin, or a test that plays one.
pub trait Peer: Send {
    /// Sends one request and returns the one line that answers it, without its newline.
    ///
    /// # Errors
    /// [`Broken`] when no whole line of at most `most` bytes came in time.
    fn ask(&mut self, request: &str, most: usize, patience: Duration) -> Result<Vec<u8>, Broken>;
}

/// Why the conversation ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// The other end is closed.
    #[error("the debugger went away while it was asked for {0}; load the program again and repeat the command")]
    Gone(String),
    /// Nothing came, or no end of line.
    #[error("the debugger did not answer within {1:?} when asked for {0}; if it is only slow, give --answer-within")]
    Late(String, Duration),
    /// A line longer than anything that was asked for.
    #[error("the debugger's answer for {0} is too long; print the plugin anew with `hangscope plugin`")]
    TooLong(String),
    /// A line that is no answer to the request.
    #[error("the debugger's answer for {0} is not understood ({1}); print the plugin anew with `hangscope plugin`")]
    Garbage(String, String),
    /// The system failed us.
    #[error("talking to the debugger failed at {0}: {1}")]
    System(String, String),
}

/// A refusal, as the plugin words it, or the end of the conversation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unanswered {
    /// The debugger cannot do that.
    #[error("{0}")]
    Refused(String),
    /// There is no conversation any more.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Bytes of a refusal's reason shown at most.
const REASON: usize = 400;

/// An answer behind its `ok`.
pub(super) struct Answer(Vec<u8>);

impl Answer {
    /// Its words, as they came.
    pub fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == b' ').filter(|w| !w.is_empty()).skip(1)
    }
}

/// Asks and takes the answer apart: what stands behind `ok`, or the reason behind `no`.
///
/// # Errors
/// [`Unanswered::Refused`] with the plugin's reason; [`Unanswered::Broken`] when the conversation is over.
pub(super) fn ask(peer: &mut dyn Peer, request: &str, most: usize, patience: Duration) -> Result<Answer, Unanswered> {
    let what = subject(request);
    let line = peer.ask(request, most, patience)?;
    let garbage = |why: String| Broken::Garbage(what.to_owned(), why);
    if !line.is_ascii() {
        return Err(garbage("bytes that are no text".into()).into());
    }
    let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
    match words.next() {
        Some(b"ok") => Ok(Answer(line)),
        Some(b"no") => {
            let reason = words.next().and_then(unhex).unwrap_or_default();
            let reason: String = String::from_utf8_lossy(&reason).chars().take(REASON).collect();
            Err(Unanswered::Refused(if reason.is_empty() { "the debugger cannot do that".into() } else { reason }))
        }
        Some(other) => Err(garbage(format!("it begins with '{}'", shown(&String::from_utf8_lossy(other)))).into()),
        None => Err(garbage("an empty line".into()).into()),
    }
}

/// What a request asks for: its first word.
pub(super) fn subject(request: &str) -> &str {
    request.split(' ').next().unwrap_or_default()
}

/// A word of an answer, fit for a message.
pub(super) fn shown(word: &str) -> String {
    word.chars().take(24).map(crate::units::harmless).collect()
}

/// What each byte stands for as a hexadecimal digit; 16 and more for no digit.
#[allow(clippy::indexing_slicing)] // worked out when this is compiled
const DIGITS: [u8; 256] = {
    let mut table = [0x80; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value as usize] as usize] = value;
        table[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    table
};

/// The bytes two digits each stand for; `-` for none.
pub(super) fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    if text == b"-" {
        return Some(Vec::new());
    }
    let digit = |b: u8| DIGITS.get(usize::from(b)).copied().unwrap_or(0x80);
    let mut out = Vec::with_capacity(text.len() / 2);
    let mut seen = 0;
    let pairs = text.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    for pair in pairs {
        let [high, low] = *pair else { return None };
        let (high, low) = (digit(high), digit(low));
        seen |= high | low;
        out.push(high << 4 | low);
    }
    (seen < 16).then_some(out)
}

/// Two digits for each byte; `-` for none.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    if bytes.is_empty() {
        return "-".to_owned();
    }
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        let _ = write!(out, "{b:02x}");
    }
    out
}

/// Bytes written at once: a pipe that can be written to takes as many without blocking (`PIPE_BUF`).
const PIECE: usize = 4096;

/// A peer at the other end of two pipes.
pub struct Pipes<I, O> {
    from: I,
    to: O,
    /// What came and was not taken yet.
    rest: Vec<u8>,
}

impl<I: AsFd + Send, O: AsFd + Send> Pipes<I, O> {
    /// Answers come `from`, requests go `to`.
    pub fn new(from: I, to: O) -> Pipes<I, O> {
        // fewer turns between the two: memory comes by the megabyte
        let _ = fcntl(&from, FcntlArg::F_SETPIPE_SZ(1 << 20));
        Pipes { from, to, rest: Vec::new() }
    }

    fn send(&self, request: &str, until: Instant, patience: Duration) -> Result<(), Broken> {
        let what = || subject(request).to_owned();
        let mut bytes = [request.as_bytes(), b"\n"].concat();
        while !bytes.is_empty() {
            if !wait(&self.to, PollFlags::POLLOUT, until).map_err(|e| system(request, e))? {
                return Err(Broken::Late(what(), patience));
            }
            let piece = bytes.get(..bytes.len().min(PIECE)).unwrap_or(&[]);
            match nix::unistd::write(&self.to, piece) {
                Ok(n) => drop(bytes.drain(..n.min(bytes.len()))),
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(Errno::EPIPE) => return Err(Broken::Gone(what())),
                Err(e) => return Err(system(request, e)),
            }
        }
        Ok(())
    }
}

impl<I: AsFd + Send, O: AsFd + Send> Peer for Pipes<I, O> {
    fn ask(&mut self, request: &str, most: usize, patience: Duration) -> Result<Vec<u8>, Broken> {
        let what = || subject(request).to_owned();
        let until = Instant::now() + patience;
        if !self.rest.is_empty() {
            // nothing was asked: the two are out of step
            return Err(Broken::Garbage(what(), "a line too many came before".into()));
        }
        self.send(request, until, patience)?;
        let mut piece = vec![0u8; 1 << 18];
        let mut line = Vec::new();
        loop {
            if !wait(&self.from, PollFlags::POLLIN, until).map_err(|e| system(request, e))? {
                return Err(Broken::Late(what(), patience));
            }
            let n = match nix::unistd::read(&self.from, &mut piece) {
                Ok(0) => return Err(Broken::Gone(what())),
                Ok(n) => n,
                Err(Errno::EINTR | Errno::EAGAIN) => continue,
                Err(e) => return Err(system(request, e)),
            };
            let new = piece.get(..n).unwrap_or(&[]);
            if let Some(end) = new.iter().position(|b| *b == b'\n') {
                line.extend(new.iter().take(end));
                self.rest.extend(new.iter().skip(end + 1));
                return if line.len() > most { Err(Broken::TooLong(what())) } else { Ok(line) };
            }
            line.extend_from_slice(new);
            if line.len() > most {
                return Err(Broken::TooLong(what()));
            }
        }
    }
}

fn system(request: &str, e: Errno) -> Broken {
    Broken::System(subject(request).to_owned(), e.to_string())
}

/// Waits until `fd` is ready: false when the time is over.
fn wait(fd: &impl AsFd, flags: PollFlags, until: Instant) -> Result<bool, Errno> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut fds = [PollFd::new(fd.as_fd(), flags)];
        // no longer than a minute at a time: the type counts in 32 bits
        let millis = u16::try_from(left.as_millis()).unwrap_or(60_000).clamp(1, 60_000);
        match poll(&mut fds, PollTimeout::from(millis)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_there_and_back() {
        assert_eq!(hex(&[0, 0xaf, 9]), "00af09");
        assert_eq!(unhex(b"00aF09"), Some(vec![0, 0xaf, 9]));
        assert_eq!((hex(&[]), unhex(b"-")), ("-".to_owned(), Some(Vec::new())));
        for bad in ["0", "0g", "+1", "  ", "00a", "é"] {
            assert_eq!(unhex(bad.as_bytes()), None, "{bad}");
        }
    }
}
