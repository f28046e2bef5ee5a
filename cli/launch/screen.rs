//! The launcher's own standard output and standard error.
//!
//! On a terminal both end up on one screen, whose last row may hold a status (a progress bar of
//! some rank): it is wiped before anything else is written there and drawn again after it.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::output::Batch;

/// Back to the first column and wipe the row.
const WIPE: &[u8] = b"\r\x1b[K";

/// One of the two streams.
#[derive(Debug)]
pub(crate) struct Screen {
    stream: File,
    /// Shared by the streams that are the terminal; `None` for a stream that is not.
    terminal: Option<Arc<Mutex<Terminal>>>,
}

/// The terminal on standard error.
#[derive(Debug)]
struct Terminal {
    file: File,
    columns: usize,
    /// What stands on the last row.
    status: Option<Vec<u8>>,
}

/// Standard output and standard error, and the width of the terminal that standard error is (if it
/// is one).
///
/// # Errors
/// If they are closed.
pub(crate) fn open() -> io::Result<(Screen, Screen, Option<u16>)> {
    let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let columns = stderr.is_terminal().then(|| console::Term::stderr().size().1);
    let terminal = match columns {
        Some(columns) => {
            let file = duplicate(stderr.as_fd())?;
            Some(Arc::new(Mutex::new(Terminal { file, columns: columns.into(), status: None })))
        }
        None => None,
    };
    let stdout_terminal = terminal.clone().filter(|_| stdout.is_terminal());
    let out = Screen { stream: duplicate(stdout.as_fd())?, terminal: stdout_terminal };
    let err = Screen { stream: duplicate(stderr.as_fd())?, terminal };
    Ok((out, err, columns))
}

impl Screen {
    /// Whether a status can stay on the last row.
    pub(crate) fn has_status_row(&self) -> bool {
        self.terminal.is_some()
    }

    /// The same stream once more.
    ///
    /// # Errors
    /// If there can be no more descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()?, terminal: self.terminal.clone() })
    }

    /// Writes the lines of `batch` and shows its status.
    ///
    /// # Errors
    /// If nobody reads the stream any more.
    pub(crate) fn write(&mut self, batch: &Batch) -> io::Result<()> {
        let Batch { lines, status } = batch;
        let Some(terminal) = &self.terminal else {
            return write_whole(&mut self.stream, lines);
        };
        if lines.is_empty() && status.is_none() {
            return Ok(());
        }
        let mut terminal = terminal.lock().unwrap_or_else(PoisonError::into_inner);
        let terminal = &mut *terminal;
        if terminal.status.is_some() {
            write_whole(&mut terminal.file, WIPE)?;
        }
        write_whole(&mut self.stream, lines)?;
        if let Some(status) = status {
            let shown = String::from_utf8_lossy(status);
            let room = terminal.columns.saturating_sub(1);
            let fitting = console::truncate_str(&shown, room, "…").into_owned().into_bytes();
            terminal.status = Some(fitting).filter(|text| !text.is_empty());
        }
        match &terminal.status {
            Some(text) => write_whole(&mut terminal.file, text),
            None => Ok(()),
        }
    }

    /// Takes the status off the screen, for good.
    pub(crate) fn clear_status(&mut self) {
        if let Some(terminal) = &self.terminal {
            let mut terminal = terminal.lock().unwrap_or_else(PoisonError::into_inner);
            if terminal.status.take().is_some() {
                // A terminal that is gone needs no wiping.
                let _gone = write_whole(&mut terminal.file, WIPE);
            }
        }
    }

    /// Writes a line of the launcher's own.
    pub(crate) fn say(&mut self, text: &str) {
        let lines = format!("verbcast launch: {text}\n").into_bytes();
        // Whoever closed standard error does not want to know.
        let _closed = self.write(&Batch { lines, status: None });
    }
}

/// Writes all of `bytes`, also to a descriptor that somebody else made nonblocking.
fn write_whole(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
                poll(&mut fds, PollTimeout::NONE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
