//! A progress bar on the terminal of whoever watches, drawn by rank 0.
//!
//! Under `verbcast launch` standard error is a pipe; the launcher says by
//! [`TERMINAL_WIDTH`] that a terminal is behind it, and keeps a line that ends in a carriage return on
//! its last row.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use crate::launch::TERMINAL_WIDTH;

/// Draws of the bar in a second, at most.
const DRAWS_PER_SECOND: u8 = 8;

/// Columns that the launcher puts in front of rank 0's lines.
const PREFIX_COLUMNS: u16 = 4;

/// How far the file has come on this rank, for those who watch.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Of `bytes`; seen only where `shown` and a terminal is there.
    pub(crate) fn new(bytes: u64, shown: bool) -> Self {
        let style = "{bar:20} {percent:>3}% {bytes} of {total_bytes} {bytes_per_sec} {eta} left";
        Self::with_style(bytes, shown, style)
    }

    /// Of `steps` steps; seen as [`Progress::new`] is.
    pub(crate) fn steps(steps: u64, shown: bool) -> Self {
        Self::with_style(steps, shown, "{bar:20} step {pos} of {len}, {elapsed}")
    }

    fn with_style(length: u64, shown: bool, style: &str) -> Self {
        let width = std::env::var(TERMINAL_WIDTH).ok().and_then(|width| width.parse().ok());
        let target = match width {
            _ if !shown => ProgressDrawTarget::hidden(),
            _ if io::stderr().is_terminal() => ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND),
            Some(width) => {
                let term = LauncherRow { width, text: Mutex::default() };
                ProgressDrawTarget::term_like_with_hz(Box::new(term), DRAWS_PER_SECOND)
            }
            None => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        bar.set_style(
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.enable_steady_tick(Duration::from_secs(1) / u32::from(DRAWS_PER_SECOND));
        Self(bar)
    }

    /// So many more bytes, or steps, are there.
    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The last row of the launcher's terminal.
#[derive(Debug)]
struct LauncherRow {
    width: u16,
    text: Mutex<String>,
}

impl LauncherRow {
    fn change(&self, change: impl FnOnce(&mut String)) -> io::Result<()> {
        let mut text = self.text.lock().map_err(|_| io::Error::other("a draw panicked"))?;
        change(&mut text);
        Ok(())
    }
}

impl TermLike for LauncherRow {
    fn width(&self) -> u16 {
        self.width.saturating_sub(PREFIX_COLUMNS)
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.write_str(s)
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.change(|text| text.push_str(s))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.change(String::clear)
    }

    fn flush(&self) -> io::Result<()> {
        self.change(|text| {
            let row = format!("{}\r", text.trim_end());
            text.clear();
            // A bar that nobody can see is no failure.
            let _unseen = io::stderr().write_all(row.as_bytes());
        })
    }
}
