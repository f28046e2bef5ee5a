//! The steps of a gather that all ranks take together, each with an agreement at its end.

use std::time::{Duration, Instant};

use verbcast::Region;
use verbcast::schedule::Operation;

use super::Args;
use crate::exit;
use crate::files::destination::Destination;
use crate::files::error::{Error, Named};
use crate::files::job::Job;
use crate::files::location::Location;
use crate::files::parts::{Parts, Piece, Shares, Windows};
use crate::files::plan::Plan;
use crate::files::progress::Progress;
use crate::files::report::{Moved, Report};
use crate::files::source::Source;
use crate::files::stream::{Busy, Ends, stream};

/// Gathers the files that `args` name.
///
/// # Errors
/// The same on every rank if the ranks agreed on it ([`Error::is_agreed`]); any other one is this
/// rank's own or the job's end.
pub(crate) fn run(job: &Job<'_>, args: &Args) -> Result<Report, Error> {
    Transfer { job, args, rank: job.world.rank() }.run()
}

struct Transfer<'a> {
    job: &'a Job<'a>,
    args: &'a Args,
    rank: u32,
}

/// What every rank knows of all SRC.
struct Outline {
    parts: Parts,
    locations: Vec<Location>,
}

/// Where the bytes go.
struct Ready {
    plan: Plan,
    /// At the root.
    destination: Option<Destination>,
    memory: Option<Region>,
}

/// What became of the bytes.
struct Streamed {
    /// Of this rank's part as it was read.
    own: blake3::Hash,
    /// At the root of each part as it arrived.
    arrived: Vec<blake3::Hash>,
    busy: Busy,
}

impl Transfer<'_> {
    fn run(&self) -> Result<Report, Error> {
        let (source, location) = self.open_source()?;
        let started = Instant::now();
        let outline = self.share_outline(&source, location)?;
        let mut ready = self.prepare(&source, &outline)?;
        let parts = &outline.parts;
        let progress = Progress::new(parts.bytes(), self.job.speaks());
        let streamed = self.stream(&source, parts, &mut ready, &progress)?;
        let Ready { plan, destination, memory } = ready;
        drop(memory);
        let (digests, syncing) = self.verify(&source, destination.as_ref(), &streamed)?;
        let elapsed = started.elapsed();
        drop(progress);
        self.job.agree(destination.map_or(Ok(()), Destination::put_in_place))?;
        let busy = streamed.busy;
        let moved = Moved { parts, plan, digests: &digests, elapsed, syncing, busy };
        self.job.report(Operation::Gather, self.args.root, moved)
    }

    fn windows<'p>(&self, parts: &'p Parts, plan: Plan) -> Windows<'p> {
        Windows::new(parts, plan, self.rank, self.args.root)
    }

    fn is_root(&self) -> bool {
        self.rank == self.args.root
    }

    /// First step: the ranks were told the same, each can read its SRC.
    fn open_source(&self) -> Result<(Source, Location), Error> {
        let Args { root, source, .. } = self.args;
        let step = || {
            self.job.check(*root, "SRC", source)?;
            let source = Source::open(self.job.name("SRC", source)?)?;
            let location = source.location()?;
            Ok((source, location))
        };
        let told = format!("gather {root}");
        let what = "--root, --memory, --block-size or commands";
        self.job.agree_first(&told, what, step())
    }

    /// Second step: everybody learns how long each SRC is, and where.
    fn share_outline(&self, source: &Source, location: Location) -> Result<Outline, Error> {
        let sizes = self.job.allgather(source.bytes().to_le_bytes())?;
        let locations = self.job.allgather(location.0)?.into_iter().map(Location).collect();
        let parts = Parts::of_sizes(sizes.into_iter().map(u64::from_le_bytes));
        let parts = self.job.agree(parts.ok_or(Error::TooLong))?;
        Ok(Outline { parts, locations })
    }

    /// Third step: each SRC is another one, FILE can be written, and the memory is there.
    fn prepare(&self, source: &Source, outline: &Outline) -> Result<Ready, Error> {
        let Outline { parts, locations } = outline;
        let step = || {
            self.job.check_alone(source.name(), locations)?;
            let plan = Plan::new(parts.longest(), parts.count(), self.job.options.memory)?;
            let destination = || self.create(parts.bytes(), source.mode(), locations);
            let destination = self.is_root().then(destination).transpose()?;
            let memory = self.job.memory(self.windows(parts, plan).memory_bytes())?;
            Ok(Ready { plan, destination, memory })
        };
        self.job.agree(step())
    }

    fn create(&self, bytes: u64, mode: u32, sources: &[Location]) -> Result<Destination, Error> {
        let name = Named { role: "FILE", path: self.args.file.clone() };
        let destination = Destination::create(name, bytes, mode, None, self.job.names)?;
        let own = destination.location()?;
        match sources.iter().position(|source| *source == own) {
            Some(rank) => {
                let file = destination.name().clone();
                Err(Error::Same { file, other: format!("SRC of rank {rank}") })
            }
            None => Ok(destination),
        }
    }

    /// Fourth step: the bytes flow.
    fn stream(
        &self,
        source: &Source,
        parts: &Parts,
        ready: &mut Ready,
        progress: &Progress,
    ) -> Result<Streamed, Error> {
        let Ready { plan, destination, memory } = ready;
        let windows = self.windows(parts, *plan);
        let mut read = blake3::Hasher::new();
        let mut fill = |step, window: &mut [u8]| {
            let Piece { offset, place, .. } = windows.own(step);
            source.read(&mut window[place.clone()], offset)?;
            read.update(&window[place]);
            Ok(())
        };
        let mut hashers = vec![blake3::Hasher::new(); parts.count() as usize];
        let mut drain = destination.as_ref().map(|destination| {
            |step, window: &[u8]| {
                for (Piece { rank, offset, place }, hasher) in
                    windows.pieces(step).zip(&mut hashers)
                {
                    let piece = &window[place];
                    if rank != self.rank {
                        hasher.update(piece);
                    }
                    destination.write(piece, offset)?;
                }
                Ok(())
            }
        });
        let ends = Ends {
            fill: Some(&mut fill),
            drain: drain.as_mut().map(|drain| drain as _),
            failed: &|error| self.job.world.abort(&exit::chain(error)),
        };
        let memory = memory.as_deref_mut().unwrap_or_default();
        let communicator = self.job.communicator();
        let mut shares = Shares::default();
        let busy = stream(memory, windows.bytes(), plan.steps, ends, |step, window| {
            let mut call = communicator.gatherv_call(self.args.root);
            if let Some(block_bytes) = self.job.options.block_size {
                call = call.block_bytes(block_bytes);
            }
            match destination {
                Some(_) => call.run(&[], Some((window, shares.of(&windows, step)))),
                None => call.run(&window[windows.own(step).place], None),
            }?;
            progress.advance(windows.step_bytes(step) as u64);
            Ok(())
        })?;
        let arrived = hashers.iter().map(blake3::Hasher::finalize).collect();
        Ok(Streamed { own: read.finalize(), arrived, busy })
    }

    /// Fifth step: the root has what each rank read, on disk. Gives the ranks' digests.
    fn verify(
        &self,
        source: &Source,
        destination: Option<&Destination>,
        streamed: &Streamed,
    ) -> Result<(Vec<blake3::Hash>, Duration), Error> {
        let digests = self.job.allgather(*streamed.own.as_bytes())?;
        let digests: Vec<_> = digests.into_iter().map(blake3::Hash::from_bytes).collect();
        let started = Instant::now();
        let step = || {
            source.check_unchanged()?;
            let Some(destination) = destination else { return Ok(Duration::ZERO) };
            for ((from, &expected), &found) in (0..).zip(&digests).zip(&streamed.arrived) {
                if from != self.rank && found != expected {
                    return Err(Error::Checksum { from, expected, found });
                }
            }
            destination.sync()?;
            Ok(started.elapsed())
        };
        let syncing = self.job.agree(step())?;
        Ok((digests, syncing))
    }
}
