//! The steps of a broadcast that all ranks take together, each with an agreement at its end.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use verbcast::{Agreed, BroadcastCall, Communicator, Vote, World};

use super::Args;
use super::destination::Destination;
use super::error::Error;
use super::progress::Progress;
use super::report::Report;
use super::source::Source;
use super::stream::{Busy, Ends, Plan, Streamed, stream};
use super::template::{Place, expand, tells_local_ranks_apart};
use super::temporary::Names;
use crate::exit;

/// Broadcasts the file that `args` name; `names` are for whoever ends this process meanwhile.
///
/// # Errors
/// The same on every rank if the ranks agreed on it ([`Error::is_agreed`]); any other one is this
/// rank's own or the job's end.
pub(crate) fn run(
    world: &World,
    args: &Args,
    local_rank: u32,
    names: &Names,
) -> Result<Report, Error> {
    let (done, finished) = channel::<()>();
    std::thread::scope(|scope| {
        if let Some(deadline) = args.deadline {
            scope.spawn(move || {
                if finished.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                    world.abort(&format!("not done within the deadline of {deadline:?}"));
                }
            });
        }
        let outcome = Transfer { world, args, local_rank, names }.run();
        drop(done);
        outcome
    })
}

struct Transfer<'a> {
    world: &'a World,
    args: &'a Args,
    local_rank: u32,
    names: &'a Names,
}

/// What the root knows of FILE and the others have to.
#[derive(Clone, Copy, Debug)]
struct Outline {
    bytes: u64,
    mode: u32,
}

impl Transfer<'_> {
    fn run(&self) -> Result<Report, Error> {
        let source = self.open_source()?;
        let started = Instant::now();
        let outline = self.share_outline(source.as_ref())?;
        let plan = Plan::new(outline.bytes, self.args.memory);
        let (destination, mut memory) = self.prepare(source.as_ref(), outline, &plan)?;
        let progress = Progress::new(plan.bytes, self.speaks());
        let streamed = self.stream(source.as_ref(), &destination, &progress, &mut memory, &plan)?;
        drop(memory);
        let syncing = self.verify(source.as_ref(), &destination, &streamed)?;
        let elapsed = started.elapsed();
        drop(progress);
        self.put_in_place(destination)?;
        self.report(&plan, streamed, syncing, elapsed)
    }

    /// Whether this rank is the one that people look at.
    fn speaks(&self) -> bool {
        self.world.rank() == 0 && !self.args.quiet
    }

    fn communicator(&self) -> Communicator {
        self.world.communicator()
    }

    /// A broadcast as the arguments want it.
    fn call<'c>(&self, communicator: &'c Communicator) -> BroadcastCall<'c> {
        let mut call = communicator.broadcast_call(self.args.root);
        if let Some(algorithm) = self.args.algorithm {
            call = call.algorithm(algorithm);
        }
        if let Some(block_bytes) = self.args.block_size {
            call = call.block_bytes(block_bytes);
        }
        call
    }

    /// Gives every rank the same result: the step's, or that some rank failed in it.
    fn agree<T>(&self, step: Result<T, Error>) -> Result<T, Error> {
        let failure = step.as_ref().err().map(|error| exit::chain(error));
        self.world.agree_all(failure)?;
        step
    }

    /// First step: the ranks were told the same, the root can read FILE.
    fn open_source(&self) -> Result<Option<Source>, Error> {
        let step = self.check_arguments().and_then(|()| {
            let is_root = self.world.rank() == self.args.root;
            is_root.then(|| Source::open(&self.args.file)).transpose()
        });
        let Args { root, memory, algorithm, block_size, .. } = self.args;
        let arguments =
            blake3::hash(format!("{root} {memory} {algorithm:?} {block_size:?}").as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *arguments.as_bytes();
        let told = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let failure = step.as_ref().err().map(|error| exit::chain(error));
        let agreed = self.world.agree(Vote { failure, low: told, high: told })?;
        // Ranks that were told different things may name different roots: that comes first.
        if agreed.minimum != agreed.maximum {
            return Err(Error::Arguments);
        }
        if let Some((rank, reason)) = agreed.failed {
            return Err(verbcast::Error::RankFailed { rank, reason }.into());
        }
        step
    }

    fn check_arguments(&self) -> Result<(), Error> {
        let Args { root, destination, .. } = self.args;
        let ranks = self.world.size();
        if *root >= ranks {
            return Err(Error::Root { root: *root, ranks });
        }
        if self.local_rank > 0 && !tells_local_ranks_apart(destination) {
            return Err(Error::Collision(destination.into()));
        }
        Ok(())
    }

    /// Second step: everybody learns how long the file is, and its mode.
    fn share_outline(&self, source: Option<&Source>) -> Result<Outline, Error> {
        let mut message = [0; 12];
        if let Some(source) = source {
            message[..8].copy_from_slice(&source.bytes().to_le_bytes());
            message[8..].copy_from_slice(&source.mode().to_le_bytes());
        }
        self.communicator().broadcast(&mut message, self.args.root)?;
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
    ) -> Result<(Destination, Option<verbcast::Region>), Error> {
        let step = || {
            let host = nix::unistd::gethostname()
                .map_err(|error| Error::System { what: "no host name", source: error.into() })?;
            let place = Place { rank: self.world.rank(), local_rank: self.local_rank, host };
            let path = expand(&self.args.destination, &place);
            let identity = source.map(Source::identity);
            let destination =
                Destination::create(&path, outline.bytes, outline.mode, identity, self.names)?;
            let bytes = plan.memory_bytes() as usize;
            let memory = (bytes > 0).then(|| self.world.region(bytes)).transpose()?;
            Ok((destination, memory))
        };
        self.agree(step())
    }

    /// Fourth step: the bytes flow.
    fn stream(
        &self,
        source: Option<&Source>,
        destination: &Destination,
        progress: &Progress,
        memory: &mut Option<verbcast::Region>,
        plan: &Plan,
    ) -> Result<Streamed, Error> {
        let failed = |error: &Error| self.world.abort(&exit::chain(error));
        let ends = Ends { source, destination, progress, failed: &failed };
        let communicator = self.communicator();
        let memory = memory.as_deref_mut().unwrap_or_default();
        stream(memory, plan, &ends, |window| Ok(self.call(&communicator).run(window)?))
    }

    /// Fifth step: every rank has what the root read, on disk.
    fn verify(
        &self,
        source: Option<&Source>,
        destination: &Destination,
        streamed: &Streamed,
    ) -> Result<Duration, Error> {
        let mut expected = *streamed.digest.as_bytes();
        self.communicator().broadcast(&mut expected, self.args.root)?;
        let expected = blake3::Hash::from_bytes(expected);
        let started = Instant::now();
        let step = || {
            if streamed.digest != expected {
                let [expected, found] = [expected, streamed.digest].map(|hash| hash.to_string());
                return Err(Error::Checksum { expected, found });
            }
            source.map_or(Ok(()), Source::check_unchanged)?;
            destination.sync()?;
            Ok(started.elapsed())
        };
        self.agree(step())
    }

    /// Last step: every rank's file gets its name.
    fn put_in_place(&self, destination: Destination) -> Result<(), Error> {
        let step = destination.put_in_place();
        self.agree(step.map_err(|error| Error::Torn(Box::new(error))))
    }

    fn report(
        &self,
        plan: &Plan,
        streamed: Streamed,
        syncing: Duration,
        elapsed: Duration,
    ) -> Result<Report, Error> {
        let slowest = |time: Duration| -> Result<Duration, Error> {
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let Agreed { maximum, .. } =
                self.world.agree(Vote { failure: None, low: ns, high: ns })?;
            Ok(Duration::from_nanos(maximum))
        };
        let Streamed { digest, busy } = streamed;
        let communicator = self.communicator();
        let choice = self.call(&communicator).choice(plan.window_bytes.min(plan.bytes))?;
        Ok(Report {
            shown: self.speaks(),
            bytes: plan.bytes,
            root: self.args.root,
            ranks: self.world.size(),
            elapsed,
            busy: Busy {
                reading: slowest(busy.reading)?,
                moving: slowest(busy.moving)?,
                writing: slowest(busy.writing)?,
            },
            syncing: slowest(syncing)?,
            fabric: self.world.fabric_description(),
            algorithm: choice.algorithm,
            block_bytes: choice.block_bytes,
            digest,
        })
    }
}
