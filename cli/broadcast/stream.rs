//! The way of a file through bounded memory: read, broadcast, hash, write, all at once.
//!
//! The memory is cut into windows. At the root a reader fills and hashes them; on every rank the
//! calling thread broadcasts one after the other; a writer hashes and writes them and gives them
//! back. All three work at the same time, on different windows. The window that was given back last
//! is taken first: it is still in the caches, and memory that only a stalled disk would need stays
//! untouched.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::destination::Destination;
use super::error::Error;
use super::progress::Progress;
use super::source::Source;

/// The least memory that a rank can do with, in bytes.
pub(crate) const MEMORY_MIN: u64 = 64 << 10;

/// Windows that the memory is cut into at least, so that reading, moving and writing overlap.
const WINDOWS_MIN: u64 = 4;

/// Windows that the memory is cut into at most. The slowest of the three parts sets the pace however
/// far the others run ahead, and fresh memory costs more than what is still in the caches.
const WINDOWS_MAX: u64 = 8;

/// Windows that a file is cut into if it has enough bytes, for the same reason.
const WINDOWS_OF_FILE: u64 = 8;

/// The smallest window that a file is cut into on purpose, in bytes.
const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// The largest window in bytes: many blocks, of which the start and the end of a broadcast take few,
/// and still small beside the caches.
const WINDOW_BYTES_MAX: u64 = 4 << 20;

/// Windows that the root reads ahead.
const READ_AHEAD: usize = 2;

const PAGE_BYTES: u64 = 4096;

/// How a file goes through the memory; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Bytes of every window but the file's last.
    pub(crate) window_bytes: u64,
    /// Windows in memory.
    pub(crate) windows: u64,
}

impl Plan {
    /// For a file of `bytes` through at most `memory` bytes, which is at least [`MEMORY_MIN`].
    pub(crate) fn new(bytes: u64, memory: u64) -> Self {
        let wanted = (bytes / WINDOWS_OF_FILE).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
        let window_bytes = wanted.min(memory / WINDOWS_MIN) / PAGE_BYTES * PAGE_BYTES;
        let windows = bytes.div_ceil(window_bytes).min(memory / window_bytes).min(WINDOWS_MAX);
        Self { bytes, window_bytes, windows }
    }

    /// Bytes of memory that it takes, 0 for an empty file.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.windows * self.window_bytes
    }

    /// Offset and length of each piece of the file, in order.
    fn pieces(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let Self { bytes, window_bytes, .. } = *self;
        (0..bytes.div_ceil(window_bytes)).map(move |piece| {
            let offset = piece * window_bytes;
            (offset, window_bytes.min(bytes - offset) as usize)
        })
    }
}

/// Where this rank's bytes come from and go to.
pub(crate) struct Ends<'a> {
    /// FILE, at the root.
    pub(crate) source: Option<&'a Source>,
    /// DEST.
    pub(crate) destination: &'a Destination,
    /// Who watches.
    pub(crate) progress: &'a Progress,
    /// Called at once with the first error of the reader or the writer, while the calling thread
    /// may be waiting for other ranks: it has to end that wait.
    pub(crate) failed: &'a (dyn Fn(&Error) + Sync),
}

/// What became of the bytes.
#[derive(Debug)]
pub(crate) struct Streamed {
    /// Of the bytes as the root read them, or as they arrived elsewhere.
    pub(crate) digest: blake3::Hash,
    /// How long each part was at work.
    pub(crate) busy: Busy,
}

/// How long each part of the way was at work, waits for the others not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    /// Reading and hashing, at the root.
    pub(crate) reading: Duration,
    /// Broadcasting.
    pub(crate) moving: Duration,
    /// Hashing (elsewhere) and writing.
    pub(crate) writing: Duration,
}

/// A part of the memory on its way.
type Window<'a> = &'a mut [u8];

/// Takes the file from its source through `memory` to its destination; `broadcast` moves one
/// window from the root to the others.
///
/// # Errors
/// The first one of the reader or the writer, else that of `broadcast`.
pub(crate) fn stream(
    memory: &mut [u8],
    plan: &Plan,
    ends: &Ends<'_>,
    broadcast: impl FnMut(&mut [u8]) -> Result<(), Error>,
) -> Result<Streamed, Error> {
    let pool = Pool::new(memory.chunks_exact_mut(plan.window_bytes as usize).collect());
    let (moved, arrived) = sync_channel(plan.windows as usize);
    thread::scope(|scope| {
        let pool = &pool;
        let writer = scope.spawn(move || {
            let _closing = Closing(pool);
            write_all(plan, ends, &arrived, pool)
        });
        let (reader, filled) = match ends.source {
            Some(source) => {
                let (fill, filled) = sync_channel(READ_AHEAD);
                let reader = scope.spawn(move || read_all(plan, source, ends, pool, &fill));
                (Some(reader), Some(filled))
            }
            None => (None, None),
        };
        let next = || match &filled {
            Some(filled) => filled.recv().ok(),
            None => pool.take(),
        };
        let moving = move_all(plan, next, &moved, broadcast);
        // Both threads end: the writer when no more can come, the reader when nobody takes more.
        drop((filled, moved));
        let read = reader.map(join).transpose();
        let written = join(writer);
        let (read, (written_digest, writing)) = (read?, written?);
        let moving = moving?;
        let (digest, reading) = read.unwrap_or((written_digest, Duration::ZERO));
        Ok(Streamed { digest, busy: Busy { reading, moving, writing } })
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
    plan: &Plan,
    mut next: impl FnMut() -> Option<Window<'m>>,
    moved: &SyncSender<Window<'m>>,
    mut broadcast: impl FnMut(&mut [u8]) -> Result<(), Error>,
) -> Result<Duration, Error> {
    let mut busy = Duration::ZERO;
    for (_, bytes) in plan.pieces() {
        // The other end hung up only if its thread failed, and that error is the one that counts.
        let Some(window) = next() else { break };
        let started = Instant::now();
        broadcast(&mut window[..bytes])?;
        busy += started.elapsed();
        if moved.send(window).is_err() {
            break;
        }
    }
    Ok(busy)
}

/// The root's reader.
fn read_all<'m>(
    plan: &Plan,
    source: &Source,
    ends: &Ends<'_>,
    pool: &Pool<'m>,
    fill: &SyncSender<Window<'m>>,
) -> Result<(blake3::Hash, Duration), Error> {
    let mut hasher = blake3::Hasher::new();
    let mut busy = Duration::ZERO;
    for (offset, bytes) in plan.pieces() {
        let Some(window) = pool.take() else { break };
        let started = Instant::now();
        source.read(&mut window[..bytes], offset).inspect_err(ends.failed)?;
        hasher.update(&window[..bytes]);
        busy += started.elapsed();
        if fill.send(window).is_err() {
            break;
        }
    }
    Ok((hasher.finalize(), busy))
}

/// Every rank's writer.
fn write_all<'m>(
    plan: &Plan,
    ends: &Ends<'_>,
    arrived: &Receiver<Window<'m>>,
    pool: &Pool<'m>,
) -> Result<(blake3::Hash, Duration), Error> {
    let mut hasher = blake3::Hasher::new();
    let mut busy = Duration::ZERO;
    for (offset, bytes) in plan.pieces() {
        let Ok(window) = arrived.recv() else { break };
        let started = Instant::now();
        if ends.source.is_none() {
            hasher.update(&window[..bytes]);
        }
        ends.destination.write(&window[..bytes], offset).inspect_err(ends.failed)?;
        busy += started.elapsed();
        ends.progress.advance(bytes as u64);
        pool.give_back(window);
    }
    Ok((hasher.finalize(), busy))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::scratch::Scratch;
    use super::super::temporary::Names;
    use super::*;

    #[test]
    fn plans_keep_to_the_memory_and_cover_the_file() {
        let sizes = [0, 1, 4095, 65536, 65537, 1 << 20, (24 << 20) + 1, 5 << 30];
        for memory in [MEMORY_MIN, MEMORY_MIN + 1, 1 << 20, (16 << 20) + 5, 256 << 20] {
            for bytes in sizes {
                let plan = Plan::new(bytes, memory);
                assert!(plan.memory_bytes() <= memory, "{plan:?}");
                assert_eq!(plan.window_bytes % PAGE_BYTES, 0);
                assert!(plan.windows >= WINDOWS_MIN || plan.memory_bytes() >= bytes, "{plan:?}");
                if bytes <= 1 << 24 {
                    let mut end = 0;
                    for (offset, length) in plan.pieces() {
                        assert!(offset == end && length > 0);
                        end += length as u64;
                    }
                    assert_eq!(end, bytes);
                }
            }
        }
    }

    /// Streams a file of `bytes` through the least memory, with `broadcast` called per window.
    fn streamed(
        name: &str,
        bytes: usize,
        mut broadcast: impl FnMut(&Scratch, &mut [u8]) -> Result<(), Error>,
    ) -> (Scratch, Vec<u8>, Result<Streamed, Error>, usize) {
        let scratch = Scratch::new(name);
        let content: Vec<u8> = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
        std::fs::write(scratch.path("file"), &content).unwrap();
        let source = Source::open(&scratch.path("file")).unwrap();
        let plan = Plan::new(bytes as u64, MEMORY_MIN);
        let (dest, names) = (scratch.path("dest"), Names::default());
        let destination =
            Destination::create(dest.as_os_str(), plan.bytes, 0o600, None, &names).unwrap();
        let failures = AtomicUsize::new(0);
        let mut memory = vec![0; plan.memory_bytes() as usize];
        let result = stream(
            &mut memory,
            &plan,
            &Ends {
                source: Some(&source),
                destination: &destination,
                progress: &Progress::new(0, false),
                failed: &|_| _ = failures.fetch_add(1, Ordering::Relaxed),
            },
            |window| broadcast(&scratch, window),
        );
        if result.is_ok() {
            destination.put_in_place().unwrap();
        }
        (scratch, content, result, failures.into_inner())
    }

    #[test]
    fn every_byte_passes_through_once_and_in_order() {
        for bytes in [0, 1, 16383, 16384, 16385, 1_000_003] {
            let mut seen = Vec::new();
            let (scratch, content, result, failures) =
                streamed(&format!("stream-{bytes}"), bytes, |_, window| {
                    seen.extend_from_slice(window);
                    Ok(())
                });
            assert_eq!(result.unwrap().digest, blake3::hash(&content));
            assert_eq!(failures, 0);
            assert!(seen == content && std::fs::read(scratch.path("dest")).unwrap() == content);
        }
    }

    #[test]
    fn a_broadcast_that_fails_ends_all_threads() {
        let mut calls = 0;
        let (_scratch, _, result, failures) = streamed("stream-fails", 1_000_003, |_, _| {
            calls += 1;
            if calls == 20 { Err(Error::Arguments) } else { Ok(()) }
        });
        assert!(matches!(result, Err(Error::Arguments)));
        assert_eq!((calls, failures), (20, 0));
    }

    #[test]
    fn a_source_that_shrinks_is_reported_while_others_may_be_waiting() {
        let (_scratch, _, result, failures) =
            streamed("stream-shrinks", 10_000_000, |scratch, _| {
                let file = std::fs::File::options().write(true).open(scratch.path("file")).unwrap();
                file.set_len(100).unwrap();
                Ok(())
            });
        assert!(matches!(result, Err(Error::Changed { before: 10_000_000, now: 100, .. })));
        assert_eq!(failures, 1);
    }
}
