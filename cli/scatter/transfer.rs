//! The steps of a scatter that all ranks take together, each with an agreement at its end.

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

/// Scatters the file that `args` name.
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

/// FILE, at the root.
struct Opened {
    source: Source,
    location: Location,
    parts: Parts,
}

/// What every rank knows of FILE.
struct Outline {
    mode: u32,
    location: Location,
    parts: Parts,
}

/// Where this rank's part goes.
struct Ready {
    plan: Plan,
    destination: Destination,
    memory: Option<Region>,
}

/// What became of the bytes.
struct Streamed {
    /// Of each part as the root read it; elsewhere of this rank's only, as it arrived.
    digests: Vec<blake3::Hash>,
    busy: Busy,
}

/// Bytes of the outline before the offsets.
const OUTLINE_HEAD: usize = 8 + 32;

impl Transfer<'_> {
    fn run(&self) -> Result<Report, Error> {
        let opened = self.open()?;
        let started = Instant::now();
        let outline = self.share_outline(opened.as_ref())?;
        let source = opened.map(|opened| opened.source);
        let mut ready = self.prepare(&outline)?;
        let parts = &outline.parts;
        let progress = Progress::new(parts.bytes(), self.job.speaks());
        let streamed = self.stream(source.as_ref(), parts, &mut ready, &progress)?;
        let Ready { plan, destination, memory } = ready;
        drop(memory);
        let (digests, syncing) = self.verify(source.as_ref(), &destination, &streamed)?;
        let elapsed = started.elapsed();
        drop(progress);
        self.put_in_place(destination)?;
        let busy = streamed.busy;
        let moved = Moved { parts, plan, digests: &digests, elapsed, syncing, busy };
        self.job.report(Operation::Scatter, self.args.root, moved)
    }

    fn windows<'p>(&self, parts: &'p Parts, plan: Plan) -> Windows<'p> {
        Windows::new(parts, plan, self.rank, self.args.root)
    }

    fn is_root(&self) -> bool {
        self.rank == self.args.root
    }

    /// First step: the ranks were told the same, the root can read FILE and cut it.
    fn open(&self) -> Result<Option<Opened>, Error> {
        let Args { root, destination, file, .. } = self.args;
        let cut = self.args.cut();
        let open = || {
            let source = Source::open(Named { role: "FILE", path: file.clone() })?;
            let read = |buffer: &mut [u8], offset| source.read(buffer, offset);
            let offsets = cut.offsets(source.bytes(), self.job.world.size(), read)?;
            let location = source.location()?;
            Ok(Opened { source, location, parts: Parts::new(offsets) })
        };
        let step = self.job.check(*root, "DEST", destination);
        let step = step.and_then(|()| self.is_root().then(open).transpose());
        let told = format!("scatter {root} {cut:?}");
        let what = "--root, --memory, --block-size, ways of cutting or commands";
        self.job.agree_first(&told, what, step)
    }

    /// Second step: everybody learns how FILE is cut.
    fn share_outline(&self, opened: Option<&Opened>) -> Result<Outline, Error> {
        let offsets = self.job.world.size() as usize + 1;
        let mut message = vec![0; OUTLINE_HEAD + 8 * offsets];
        let (head, body) = message.split_at_mut(OUTLINE_HEAD);
        if let Some(Opened { source, location, parts }) = opened {
            head[..8].copy_from_slice(&u64::from(source.mode()).to_le_bytes());
            head[8..].copy_from_slice(&location.0);
            for (field, offset) in body.chunks_exact_mut(8).zip(parts.offsets()) {
                field.copy_from_slice(&offset.to_le_bytes());
            }
        }
        self.job.communicator().broadcast(&mut message, self.args.root)?;
        let (head, body) = message.split_at(OUTLINE_HEAD);
        let (mode, location) = head.split_at(8);
        let number = |bytes: &[u8]| {
            bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let mut of = [0; 32];
        of.copy_from_slice(location);
        Ok(Outline {
            mode: number(mode) as u32,
            location: Location(of),
            parts: Parts::new(body.chunks_exact(8).map(number).collect()),
        })
    }

    /// Third step: every rank can write its DEST, which is nobody else's, and the memory is there.
    fn prepare(&self, outline: &Outline) -> Result<Ready, Error> {
        let Outline { mode, location, parts } = outline;
        let step = || {
            let plan = Plan::new(parts.longest(), parts.count(), self.job.options.memory)?;
            let name = self.job.name("DEST", &self.args.destination)?;
            let own = parts.part(self.rank);
            let bytes = own.end - own.start;
            let destination = Destination::create(name, bytes, *mode, None, self.job.names)?;
            let own = destination.location()?;
            if own == *location {
                let file = destination.name().clone();
                return Err(Error::Same { file, other: "FILE".into() });
            }
            let memory = self.job.memory(self.windows(parts, plan).memory_bytes())?;
            Ok((Ready { plan, destination, memory }, own))
        };
        let (ready, own) = self.job.agree(step())?;
        let all: Vec<_> = self.job.allgather(own.0)?.into_iter().map(Location).collect();
        let alone = self.job.check_alone(ready.destination.name(), &all);
        self.job.agree(alone.map(|()| ready))
    }

    /// Fourth step: the bytes flow.
    fn stream(
        &self,
        source: Option<&Source>,
        parts: &Parts,
        ready: &mut Ready,
        progress: &Progress,
    ) -> Result<Streamed, Error> {
        let Ready { plan, destination, memory } = ready;
        let windows = self.windows(parts, *plan);
        let mut hashers = vec![blake3::Hasher::new(); parts.count() as usize];
        let mut written = blake3::Hasher::new();
        let mut fill = source.map(|source| {
            |step, window: &mut [u8]| {
                for (Piece { offset, place, .. }, hasher) in windows.pieces(step).zip(&mut hashers)
                {
                    source.read(&mut window[place.clone()], offset)?;
                    hasher.update(&window[place]);
                }
                Ok(())
            }
        });
        let mut drain = |step, window: &[u8]| {
            let Piece { offset, place, .. } = windows.own(step);
            let piece = &window[place];
            if source.is_none() {
                written.update(piece);
            }
            destination.write(piece, offset)?;
            progress.advance(windows.step_bytes(step) as u64);
            Ok(())
        };
        let ends = Ends {
            fill: fill.as_mut().map(|fill| fill as _),
            drain: Some(&mut drain),
            failed: &|error| self.job.world.abort(&exit::chain(error)),
        };
        let memory = memory.as_deref_mut().unwrap_or_default();
        let communicator = self.job.communicator();
        let mut shares = Shares::default();
        let busy = stream(memory, windows.bytes(), plan.steps, ends, |step, window| {
            let mut call = communicator.scatterv_call(self.args.root);
            if let Some(block_bytes) = self.job.options.block_size {
                call = call.block_bytes(block_bytes);
            }
            Ok(match source {
                Some(_) => call.run(Some((window, shares.of(&windows, step))), &mut []),
                None => call.run(None, &mut window[windows.own(step).place]),
            }?)
        })?;
        let digests = match source {
            Some(_) => hashers.iter().map(blake3::Hasher::finalize).collect(),
            None => vec![written.finalize()],
        };
        Ok(Streamed { digests, busy })
    }

    /// Fifth step: every rank has what the root read for it, on disk. Gives the root's digests.
    fn verify(
        &self,
        source: Option<&Source>,
        destination: &Destination,
        streamed: &Streamed,
    ) -> Result<(Vec<blake3::Hash>, Duration), Error> {
        let from = self.args.root;
        let mut message = vec![0; 32 * self.job.world.size() as usize];
        if source.is_some() {
            for (field, digest) in message.chunks_exact_mut(32).zip(&streamed.digests) {
                field.copy_from_slice(digest.as_bytes());
            }
        }
        self.job.communicator().broadcast(&mut message, from)?;
        let digests: Vec<_> = message
            .chunks_exact(32)
            .filter_map(|field| blake3::Hash::from_slice(field).ok())
            .collect();
        let started = Instant::now();
        let step = || {
            if source.is_none() {
                let (found, expected) = (streamed.digests[0], digests[self.rank as usize]);
                if found != expected {
                    return Err(Error::Checksum { from, expected, found });
                }
            }
            source.map_or(Ok(()), Source::check_unchanged)?;
            destination.sync()?;
            Ok(started.elapsed())
        };
        let syncing = self.job.agree(step())?;
        Ok((digests, syncing))
    }

    /// Last step: every rank's file gets its name.
    fn put_in_place(&self, destination: Destination) -> Result<(), Error> {
        let step = destination.put_in_place();
        self.job.agree(step.map_err(|error| Error::Torn(Box::new(error))))
    }
}
