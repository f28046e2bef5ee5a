//! The way of a file through bounded memory: read, moved, written, all at once.
//!
//! The memory is cut into windows. A reader fills them; the calling thread moves one after the other
//! between the ranks; a writer empties them and gives them back. All three work at the same time,
//! on different windows. The window that was given back last is taken first: it is still in the
//! caches, and memory that only a stalled disk would need stays untouched.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::error::Error;

/// Windows that are read ahead.
const READ_AHEAD: usize = 2;

/// What a rank does with each window beside moving it; the first argument of each is the step.
pub(crate) struct Ends<'a> {
    /// Fills a window, on a rank that reads.
    pub(crate) fill: Option<&'a mut Fill<'a>>,
    /// Empties a window, on a rank that writes.
    pub(crate) drain: Option<&'a mut Drain<'a>>,
    /// Called at once with the first error of the two, while the calling thread may be waiting for
    /// other ranks: it has to end that wait.
    pub(crate) failed: &'a (dyn Fn(&Error) + Sync),
}

type Fill<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), Error> + Send + 'a;
type Drain<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Error> + Send + 'a;

/// How long each part of the way was at work, waits for the others not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    /// Reading and hashing.
    pub(crate) reading: Duration,
    /// Moving between ranks.
    pub(crate) moving: Duration,
    /// Hashing (where it was not read) and writing.
    pub(crate) writing: Duration,
}

/// A part of the memory on its way.
type Window<'a> = &'a mut [u8];

/// Takes `steps` windows of `window_bytes` bytes through `memory`; `transfer` moves one between the
/// ranks.
///
/// # Errors
/// The first one of the reader or the writer, else that of `transfer`.
pub(crate) fn stream(
    memory: &mut [u8],
    window_bytes: u64,
    steps: u64,
    ends: Ends<'_>,
    transfer: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
) -> Result<Busy, Error> {
    let windows: Vec<_> = memory.chunks_exact_mut(window_bytes as usize).collect();
    let (moved, arrived) = sync_channel(windows.len());
    let pool = Pool::new(windows);
    let Ends { fill, drain, failed } = ends;
    thread::scope(|scope| {
        let pool = &pool;
        let writer = scope.spawn(move || {
            let _closing = Closing(pool);
            write_all(drain, failed, &arrived, pool)
        });
        let (reader, filled) = match fill {
            Some(fill) => {
                let (full, filled) = sync_channel(READ_AHEAD);
                let reader = scope.spawn(move || read_all(steps, fill, failed, pool, &full));
                (Some(reader), Some(filled))
            }
            None => (None, None),
        };
        let next = || match &filled {
            Some(filled) => filled.recv().ok(),
            None => pool.take(),
        };
        let moving = move_all(steps, next, &moved, transfer);
        // Both threads end: the writer when no more can come, the reader when nobody takes more.
        drop((filled, moved));
        let read = reader.map(join).transpose();
        let written = join(writer);
        let (reading, writing) = (read?.unwrap_or_default(), written?);
        Ok(Busy { reading, moving: moving?, writing })
    })
}

/// The windows that are free.
#[derive(Debug)]
struct Pool<'m> {
    state: Mutex<Free<'m>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Free<'m> {
    windows: Vec<Window<'m>>,
    /// None will be given back any more.
    closed: bool,
}

impl<'m> Pool<'m> {
    fn new(windows: Vec<Window<'m>>) -> Self {
        Self { state: Mutex::new(Free { windows, closed: false }), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, Free<'m>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a free window and takes it; `None` if there will be none.
    fn take(&self) -> Option<Window<'m>> {
        let none = |free: &mut Free<'m>| free.windows.is_empty() && !free.closed;
        let mut free =
            self.changed.wait_while(self.state(), none).unwrap_or_else(PoisonError::into_inner);
        free.windows.pop()
    }

    fn give_back(&self, window: Window<'m>) {
        self.state().windows.push(window);
        self.changed.notify_one();
    }
}

/// Closes the pool when whoever gives windows back has ended, by a panic too.
struct Closing<'p, 'm>(&'p Pool<'m>);

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_all();
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The calling thread's part.
fn move_all<'m>(
    steps: u64,
    mut next: impl FnMut() -> Option<Window<'m>>,
    moved: &SyncSender<Window<'m>>,
    mut transfer: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
) -> Result<Duration, Error> {
    let mut busy = Duration::ZERO;
    for step in 0..steps {
        // The other end hung up only if its thread failed, and that error is the one that counts.
        let Some(window) = next() else { break };
        let started = Instant::now();
        transfer(step, window)?;
        busy += started.elapsed();
        if moved.send(window).is_err() {
            break;
        }
    }
    Ok(busy)
}

fn read_all<'m>(
    steps: u64,
    fill: &mut Fill<'_>,
    failed: &(dyn Fn(&Error) + Sync),
    pool: &Pool<'m>,
    full: &SyncSender<Window<'m>>,
) -> Result<Duration, Error> {
    let mut busy = Duration::ZERO;
    for step in 0..steps {
        let Some(window) = pool.take() else { break };
        let started = Instant::now();
        fill(step, window).inspect_err(failed)?;
        busy += started.elapsed();
        if full.send(window).is_err() {
            break;
        }
    }
    Ok(busy)
}

/// Gives the windows back, emptied where this rank writes.
fn write_all<'m>(
    mut drain: Option<&mut Drain<'_>>,
    failed: &(dyn Fn(&Error) + Sync),
    arrived: &Receiver<Window<'m>>,
    pool: &Pool<'m>,
) -> Result<Duration, Error> {
    let mut busy = Duration::ZERO;
    for (step, window) in (0..).zip(arrived) {
        if let Some(drain) = &mut drain {
            let started = Instant::now();
            drain(step, window).inspect_err(failed)?;
            busy += started.elapsed();
        }
        pool.give_back(window);
    }
    Ok(busy)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const WINDOW: usize = 1000;

    /// What a reader, a mover and a writer saw of the steps.
    #[derive(Default)]
    struct Seen {
        moved: Vec<u64>,
        written: Vec<(u64, u8)>,
        failures: usize,
    }

    /// Streams with a part that fails at its step, if there is one.
    fn streamed(
        steps: u64,
        reads: bool,
        writes: bool,
        fails: Option<(&'static str, u64)>,
    ) -> (Seen, Result<Busy, Error>) {
        let check = |part: &'static str, step: u64| match fails {
            Some((failing, at)) if (failing, at) == (part, step) => Err(Error::Arguments(part)),
            _ => Ok(()),
        };
        let mut seen = Seen::default();
        let mut fill = |step: u64, window: &mut [u8]| {
            window.fill(step as u8);
            check("read", step)
        };
        let written = &mut seen.written;
        let mut drain = |step: u64, window: &[u8]| {
            assert!(window.len() == WINDOW && window.iter().all(|byte| *byte == window[0]));
            written.push((step, window[0]));
            check("write", step)
        };
        let failures = AtomicUsize::new(0);
        let ends = Ends {
            fill: if reads { Some(&mut fill) } else { None },
            drain: if writes { Some(&mut drain) } else { None },
            failed: &|_| _ = failures.fetch_add(1, Ordering::Relaxed),
        };
        let moved = &mut seen.moved;
        let result = stream(&mut [0; 3 * WINDOW], WINDOW as u64, steps, ends, |step, window| {
            moved.push(step);
            if !reads {
                window.fill(!step as u8);
            }
            check("move", step)
        });
        seen.failures = failures.into_inner();
        (seen, result)
    }

    #[test]
    fn every_window_passes_through_once_and_in_order() {
        for steps in [0, 1, 2, 50] {
            for (reads, writes) in [(true, true), (true, false), (false, true)] {
                let (seen, result) = streamed(steps, reads, writes, None);
                result.unwrap();
                assert_eq!(seen.failures, 0);
                assert_eq!(seen.moved, (0..steps).collect::<Vec<_>>());
                let value = |step: u64| if reads { step as u8 } else { !step as u8 };
                let all = (0..steps).map(|step| (step, value(step))).collect::<Vec<_>>();
                assert_eq!(seen.written, if writes { all } else { Vec::new() });
            }
        }
    }

    #[test]
    fn whoever_fails_ends_all_and_is_reported_while_others_may_be_waiting() {
        for (part, failures) in [("read", 1), ("move", 0), ("write", 1)] {
            let (seen, result) = streamed(50, true, true, Some((part, 20)));
            assert!(matches!(result, Err(Error::Arguments(by)) if by == part), "{part}");
            assert_eq!(seen.failures, failures, "{part}");
            assert!(seen.moved.len() < 30, "{part}: {} moved", seen.moved.len());
        }
    }
}
