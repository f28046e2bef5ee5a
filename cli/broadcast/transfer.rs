//! The steps of a broadcast that all ranks take together, each with an agreement at its end.

use std::time::{Duration, Instant};

use verbcast::schedule::Operation;
use verbcast::{BroadcastCall, Communicator, Region};

use super::Args;
use crate::exit;
use crate::files::destination::Destination;
use crate::files::error::{Error, Named};
use crate::files::job::Job;
use crate::files::plan::Plan;
use crate::files::progress::Progress;
use crate::files::report::{Contents, Report};
use crate::files::source::Source;
use crate::files::stream::{Busy, Ends, stream};

/// Broadcasts the file that `args` name.
///
/// # Errors
/// The same on every rank if the ranks agreed on it ([`Error::is_agreed`]); any other one is this
/// rank's own or the job's end.
pub(crate) fn run(job: &Job<'_>, args: &Args) -> Result<Report, Error> {
    Transfer { job, args }.run()
}

struct Transfer<'a> {
    job: &'a Job<'a>,
    args: &'a Args,
}

/// What the root knows of FILE and the others have to.
#[derive(Clone, Copy, Debug)]
struct Outline {
    bytes: u64,
    mode: u32,
}

/// What became of the bytes.
#[derive(Debug)]
struct Streamed {
    /// Of the bytes as the root read them, or as they arrived elsewhere.
    digest: blake3::Hash,
    busy: Busy,
}

impl Transfer<'_> {
    fn run(&self) -> Result<Report, Error> {
        let source = self.open_source()?;
        let started = Instant::now();
        let outline = self.share_outline(source.as_ref())?;
        let plan = Plan::new(outline.bytes, 1, self.job.options.memory)?;
        let (destination, mut memory) = self.prepare(source.as_ref(), outline, &plan)?;
        let progress = Progress::new(outline.bytes, self.job.speaks());
        let memory_bytes = memory.as_deref_mut().unwrap_or_default();
        let streamed =
            self.stream(source.as_ref(), &destination, &progress, memory_bytes, outline, &plan)?;
        drop(memory);
        let syncing = self.verify(source.as_ref(), &destination, &streamed)?;
        let elapsed = started.elapsed();
        drop(progress);
        self.put_in_place(destination)?;
        self.report(outline.bytes, &plan, &streamed, syncing, elapsed)
    }

    /// A broadcast as the arguments want it.
    fn call<'c>(&self, communicator: &'c Communicator) -> BroadcastCall<'c> {
        let mut call = communicator.broadcast_call(self.args.root);
        if let Some(algorithm) = self.args.algorithm {
            call = call.algorithm(algorithm);
        }
        if let Some(block_bytes) = self.job.options.block_size {
            call = call.block_bytes(block_bytes);
        }
        call
    }

    /// First step: the ranks were told the same, the root can read FILE.
    fn open_source(&self) -> Result<Option<Source>, Error> {
        let Args { root, destination, algorithm, file, .. } = self.args;
        let step = self.job.check(*root, "DEST", destination).and_then(|()| {
            let is_root = self.job.world.rank() == *root;
            let name = || Named { role: "FILE", path: file.clone() };
            is_root.then(|| Source::open(name())).transpose()
        });
        let told = format!("broadcast {root} {algorithm:?}");
        let what = "--root, --memory, --algorithm, --block-size or commands";
        self.job.agree_first(&told, what, step)
    }

    /// Second step: everybody learns how long the file is, and its mode.
    fn share_outline(&self, source: Option<&Source>) -> Result<Outline, Error> {
        let mut message = [0; 12];
        if let Some(source) = source {
            message[..8].copy_from_slice(&source.bytes().to_le_bytes());
            message[8..].copy_from_slice(&source.mode().to_le_bytes());
        }
        self.job.communicator().broadcast(&mut message, self.args.root)?;
        let [a, b, c, d, e, f, g, h, mode @ ..] = message;
        Ok(Outline {
            bytes: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            mode: u32::from_le_bytes(mode),
        })
    }

    /// Third step: DEST can be written on every rank, and the memory is there.
    fn prepare(
        &self,
        source: Option<&Source>,
        outline: Outline,
        plan: &Plan,
    ) -> Result<(Destination, Option<Region>), Error> {
        let step = || {
            let Outline { bytes, mode } = outline;
            let name = self.job.name("DEST", &self.args.destination)?;
            let identity = source.map(Source::identity);
            let destination = Destination::create(name, bytes, mode, identity, self.job.names)?;
            Ok((destination, self.job.memory(plan.memory_bytes(plan.window_bytes()))?))
        };
        self.job.agree(step())
    }

    /// Fourth step: the bytes flow.
    fn stream(
        &self,
        source: Option<&Source>,
        destination: &Destination,
        progress: &Progress,
        memory: &mut [u8],
        outline: Outline,
        plan: &Plan,
    ) -> Result<Streamed, Error> {
        let length = |step| {
            let piece = plan.piece(&(0..outline.bytes), step);
            (piece.start, (piece.end - piece.start) as usize)
        };
        let [mut read, mut written] = [(); 2].map(|()| blake3::Hasher::new());
        let mut fill = source.map(|source| {
            |step, window: &mut [u8]| {
                let (offset, bytes) = length(step);
                source.read(&mut window[..bytes], offset)?;
                read.update(&window[..bytes]);
                Ok(())
            }
        });
        let mut drain = |step, window: &[u8]| {
            let (offset, bytes) = length(step);
            if source.is_none() {
                written.update(&window[..bytes]);
            }
            destination.write(&window[..bytes], offset)?;
            progress.advance(bytes as u64);
            Ok(())
        };
        let ends = Ends {
            fill: fill.as_mut().map(|fill| fill as _),
            drain: Some(&mut drain),
            failed: &|error| self.job.world.abort(&exit::chain(error)),
        };
        let communicator = self.job.communicator();
        let busy = stream(memory, plan.window_bytes(), plan.steps, ends, |step, window| {
            Ok(self.call(&communicator).run(&mut window[..length(step).1])?)
        })?;
        let hasher = if source.is_some() { read } else { written };
        Ok(Streamed { digest: hasher.finalize(), busy })
    }

    /// Fifth step: every rank has what the root read, on disk.
    fn verify(
        &self,
        source: Option<&Source>,
        destination: &Destination,
        streamed: &Streamed,
    ) -> Result<Duration, Error> {
        let from = self.args.root;
        let mut expected = *streamed.digest.as_bytes();
        self.job.communicator().broadcast(&mut expected, from)?;
        let (expected, found) = (blake3::Hash::from_bytes(expected), streamed.digest);
        let started = Instant::now();
        let step = || {
            if found != expected {
                return Err(Error::Checksum { from, expected, found });
            }
            source.map_or(Ok(()), Source::check_unchanged)?;
            destination.sync()?;
            Ok(started.elapsed())
        };
        self.job.agree(step())
    }

    /// Last step: every rank's file gets its name.
    fn put_in_place(&self, destination: Destination) -> Result<(), Error> {
        let step = destination.put_in_place();
        self.job.agree(step.map_err(|error| Error::Torn(Box::new(error))))
    }

    fn report(
        &self,
        bytes: u64,
        plan: &Plan,
        streamed: &Streamed,
        syncing: Duration,
        elapsed: Duration,
    ) -> Result<Report, Error> {
        let communicator = self.job.communicator();
        let choice = self.call(&communicator).choice(plan.window_bytes().min(bytes))?;
        Ok(Report {
            operation: Operation::Broadcast,
            bytes,
            root: self.args.root,
            ranks: self.job.world.size(),
            elapsed,
            busy: self.job.slowest_of(streamed.busy)?,
            syncing: self.job.slowest(syncing)?,
            fabric: self.job.world.fabric_description(),
            algorithm: choice.algorithm,
            block_bytes: choice.block_bytes,
            contents: Contents::Whole(streamed.digest),
        })
    }
}
