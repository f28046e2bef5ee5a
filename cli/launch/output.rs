//! Passing on the ranks' output: whole lines, each with its rank in front.
//!
//! One thread serves all ranks' standard output and one their standard error. Each rank has one
//! bounded buffer; a line longer than it is cut into several, of which all but the last end in `…`.
//! A line that ends in a carriage return alone is a status that the next one replaces: on a
//! terminal it stays on the last row ([`Screen`]), elsewhere it is a line like others.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::screen::Screen;

/// The longest piece of a line that is passed on whole, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Bytes taken from one rank before the next one has its turn.
const READ_BYTES: usize = 64 << 10;

/// Bytes of one rank's output on their way to whole lines.
#[derive(Debug)]
pub(crate) struct Lines {
    prefix: Vec<u8>,
    /// An unfinished line, at most [`LINE_BYTES_MAX`] bytes.
    pending: Vec<u8>,
    /// The line so far ended in a carriage return: a line feed next belongs to it.
    returned: bool,
    /// There is a row where a status can stay.
    status_row: bool,
}

/// Whole lines, ready to be written, and the status after them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Prefixed lines, each with its line feed.
    pub(crate) lines: Vec<u8>,
    /// The last status that nothing has replaced, prefixed; empty to take it off the screen.
    pub(crate) status: Option<Vec<u8>>,
}

impl Lines {
    /// For the output of this rank, on its way to a screen with or without a row for a status.
    pub(crate) fn new(rank: u32, status_row: bool) -> Self {
        let prefix = format!("[{rank}] ").into_bytes();
        Self { prefix, pending: Vec::new(), returned: false, status_row }
    }

    /// Takes `bytes` and gives what is whole.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Batch {
        let mut batch = Batch::default();
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.returned) {
                if first == b'\n' {
                    self.line(&mut batch, b"\n");
                    bytes = &bytes[1..];
                    continue;
                }
                self.status(&mut batch);
                self.pending.clear();
            }
            let room = LINE_BYTES_MAX - self.pending.len();
            let window = &bytes[..bytes.len().min(room)];
            match window.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
                Some(end) => {
                    self.pending.extend_from_slice(&window[..end]);
                    if window[end] == b'\n' {
                        self.line(&mut batch, b"\n");
                    } else {
                        self.returned = true;
                    }
                    bytes = &bytes[end + 1..];
                }
                None => {
                    self.pending.extend_from_slice(window);
                    bytes = &bytes[window.len()..];
                    if self.pending.len() == LINE_BYTES_MAX {
                        self.line(&mut batch, "…\n".as_bytes());
                    }
                }
            }
        }
        if self.returned && self.status_row {
            self.status(&mut batch);
        }
        batch
    }

    /// Gives what is left when the output has ended.
    pub(crate) fn finish(&mut self) -> Batch {
        let mut batch = Batch::default();
        let status = std::mem::take(&mut self.returned) && self.status_row;
        if !status && !self.pending.is_empty() {
            self.line(&mut batch, b"\n");
        }
        self.pending = Vec::new();
        batch
    }

    fn status(&mut self, batch: &mut Batch) {
        match (self.status_row, self.pending.is_empty()) {
            (true, true) => batch.status = Some(Vec::new()),
            (true, false) => batch.status = Some([&self.prefix[..], &self.pending].concat()),
            (false, true) => {}
            (false, false) => self.line(batch, b"\n"),
        }
    }

    fn line(&mut self, batch: &mut Batch, end: &[u8]) {
        for part in [&self.prefix, &self.pending, end] {
            batch.lines.extend_from_slice(part);
        }
        self.pending.clear();
        batch.status = None;
    }
}

/// One rank's stream, for as long as it is open.
#[derive(Debug)]
struct Source {
    pipe: std::fs::File,
    lines: Lines,
}

/// Passes the `pipes` of the ranks (by number) on to `screen` until all have ended, or, once `stop`
/// is closed, until nothing more is in them.
///
/// # Errors
/// If there can be no thread.
pub(crate) fn forward(
    name: &str,
    pipes: Vec<OwnedFd>,
    stop: OwnedFd,
    mut screen: Screen,
) -> io::Result<JoinHandle<()>> {
    let mut sources = Vec::with_capacity(pipes.len());
    for (rank, pipe) in pipes.into_iter().enumerate() {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        sources.push(Source {
            pipe: pipe.into(),
            lines: Lines::new(rank as u32, screen.has_status_row()),
        });
    }
    std::thread::Builder::new().name(name.into()).spawn(move || {
        if let Err(error) = forward_all(sources, &stop, &mut screen) {
            // Whoever reads this stream is gone. The pipes close with the sources: the ranks learn
            // of it when they write, as they would without a launcher.
            tracing::debug!(%error, "output cannot be passed on");
        }
    })
}

fn forward_all(mut sources: Vec<Source>, stop: &OwnedFd, screen: &mut Screen) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    while !sources.is_empty() {
        let mut fds: Vec<PollFd> = sources
            .iter()
            .map(|source| PollFd::new(source.pipe.as_fd(), PollFlags::POLLIN))
            .collect();
        fds.push(PollFd::new(stop.as_fd(), PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let (stopped, ready) =
            ready.split_last().map_or((true, &[][..]), |(last, rest)| (*last, rest));
        let mut ready = ready.iter();
        let mut failure = Ok(());
        sources.retain_mut(|source| {
            if !ready.next().is_some_and(|ready| *ready) {
                return true;
            }
            let (batch, open) = source.read(&mut buffer);
            if failure.is_ok() {
                failure = screen.write(&batch);
            }
            open
        });
        failure?;
        if stopped {
            // All ranks' processes are gone; what they wrote is in the pipes already.
            return sources.iter_mut().try_for_each(|source| source.drain(&mut buffer, screen));
        }
    }
    Ok(())
}

impl Source {
    /// What is there now, and whether more may come.
    fn read(&mut self, buffer: &mut [u8]) -> (Batch, bool) {
        match self.pipe.read(buffer) {
            Ok(0) => (self.lines.finish(), false),
            Ok(bytes) => (self.lines.feed(&buffer[..bytes]), true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                (Batch::default(), true)
            }
            Err(_) => (self.lines.finish(), false),
        }
    }

    /// Passes on what is in the pipe (at most what a pipe can hold, should somebody still write).
    fn drain(&mut self, buffer: &mut [u8], screen: &mut Screen) -> io::Result<()> {
        const PIPE_BYTES_MAX: usize = 1 << 20;
        for _ in 0..PIPE_BYTES_MAX / READ_BYTES {
            match self.pipe.read(buffer) {
                Ok(bytes) if bytes > 0 => screen.write(&self.lines.feed(&buffer[..bytes]))?,
                _ => break,
            }
        }
        screen.write(&self.lines.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(status_row: bool, pieces: &[&[u8]]) -> (String, Option<String>, String) {
        let mut lines = Lines::new(3, status_row);
        let mut all = Vec::new();
        let mut status = None;
        for piece in pieces {
            let batch = lines.feed(piece);
            all.extend(batch.lines);
            status = batch.status;
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(all), status.map(text), text(lines.finish().lines))
    }

    #[test]
    fn lines_come_out_whole_however_they_came_in() {
        let expected = "[3] one\n[3] \n[3] three\n[3] four\n";
        let input = b"one\n\nthree\r\nfour\nfi";
        for cut in 0..input.len() {
            for row in [false, true] {
                let (lines, status, rest) = fed(row, &[&input[..cut], &input[cut..]]);
                assert_eq!((lines.as_str(), status, rest.as_str()), (expected, None, "[3] fi\n"));
            }
        }
    }

    #[test]
    fn a_carriage_return_alone_makes_a_status_that_the_next_replaces() {
        for pieces in [&[&b"10%\r20%\r"[..]][..], &[b"10%\r", b"20%\r"], &[b"10", b"%\r20%", b"\r"]]
        {
            assert_eq!(fed(true, pieces), (String::new(), Some("[3] 20%".into()), String::new()));
        }
        assert_eq!(fed(true, &[b"10%\r\r"]), (String::new(), Some(String::new()), String::new()));
        assert_eq!(fed(true, &[b"10%\rdone\n"]), ("[3] done\n".into(), None, String::new()));
        assert_eq!(
            fed(true, &[b"10%\rmore"]),
            (String::new(), Some("[3] 10%".into()), "[3] more\n".into())
        );
    }

    #[test]
    fn without_a_row_for_it_a_status_is_a_line() {
        for pieces in
            [&[&b"10%\r20%\r"[..]][..], &[b"10%\r", b"20%\r"], &[b"\r10", b"%\r20%", b"\r"]]
        {
            assert_eq!(fed(false, pieces), ("[3] 10%\n".into(), None, "[3] 20%\n".into()));
        }
    }

    #[test]
    fn a_line_without_end_is_cut_and_never_more_than_the_bound_is_kept() {
        let mut lines = Lines::new(0, false);
        let mut total = 0;
        for _ in 0..10 {
            let batch = lines.feed(&[b'x'; LINE_BYTES_MAX / 2 + 1]);
            assert!(lines.pending.len() < LINE_BYTES_MAX);
            assert!(batch.lines.is_empty() || batch.lines.ends_with("…\n".as_bytes()));
            total += batch.lines.iter().filter(|byte| **byte == b'x').count();
        }
        total += lines.finish().lines.iter().filter(|byte| **byte == b'x').count();
        assert_eq!(total, 10 * (LINE_BYTES_MAX / 2 + 1));
    }
}
