//! What all ranks of a job do around a transfer: join, agree on each step, leave.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use verbcast::{Agreed, Communicator, Config, Region, Vote, World};

use super::error::{Error, Named};
use super::interrupt;
use super::location::Location;
use super::options::Options;
use super::report::Report;
use super::stream::Busy;
use super::template::{Place, expand, tells_local_ranks_apart};
use super::temporary::Names;
use crate::exit;

/// A transfer that this rank takes part in.
pub(crate) struct Job<'a> {
    /// All ranks.
    pub(crate) world: &'a World,
    /// How to move.
    pub(crate) options: &'a Options,
    /// Temporary names, for whoever ends this process.
    pub(crate) names: &'a Names,
    local_rank: u32,
}

/// Joins the job, runs `transfer` and prints what it reports; `command` is for messages.
pub(crate) fn run(
    command: &str,
    options: &Options,
    transfer: impl FnOnce(&Job<'_>) -> Result<Report, Error>,
) -> ExitCode {
    let names = Names::with_heirs();
    let done = interrupt::watch(names.clone())
        .and_then(|()| join_and_transfer(options, &names, transfer))
        .and_then(|report| report.map_or(Ok(()), |report| report.print(options.json)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::failed(command, &error),
    }
}

/// The report where this rank is the one that shows it.
fn join_and_transfer(
    options: &Options,
    names: &Names,
    transfer: impl FnOnce(&Job<'_>) -> Result<Report, Error>,
) -> Result<Option<Report>, Error> {
    let mut config = Config::from_env().map_err(verbcast::Error::from)?;
    config.lanes = options.lanes.or(config.lanes);
    let local_rank = config.local_rank.unwrap_or(0);
    let world = World::connect(config)?;
    let job = Job { world: &world, options, names, local_rank };
    match job.within_deadline(transfer) {
        Ok(report) => {
            let shown = job.speaks();
            world.finalize()?;
            Ok(shown.then_some(report))
        }
        Err(error) if error.is_agreed() => {
            // Every rank has the same error. That one of them is gone before it said goodbye does
            // not make it worse.
            let _gone = world.finalize();
            Err(error)
        }
        Err(error) => {
            // The first cause is what all ranks report; if there is none yet, this is it.
            world.abort(&exit::chain(&error));
            Err(match world.abort_cause() {
                Some(cause) => Error::Aborted(cause),
                None => error,
            })
        }
    }
}

impl Job<'_> {
    fn within_deadline<T>(&self, transfer: impl FnOnce(&Self) -> T) -> T {
        let (done, finished) = channel::<()>();
        std::thread::scope(|scope| {
            if let Some(deadline) = self.options.deadline {
                scope.spawn(move || {
                    if finished.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                        self.world.abort(&format!("not done within the deadline of {deadline:?}"));
                    }
                });
            }
            let outcome = transfer(self);
            drop(done);
            outcome
        })
    }

    /// Whether this rank is the one that people look at.
    pub(crate) fn speaks(&self) -> bool {
        self.world.rank() == 0 && !self.options.quiet
    }

    /// All ranks.
    pub(crate) fn communicator(&self) -> Communicator {
        self.world.communicator()
    }

    /// Gives every rank the same result: the step's, or that some rank failed in it.
    ///
    /// # Errors
    /// The lowest rank that failed, with its reason.
    pub(crate) fn agree<T>(&self, step: Result<T, Error>) -> Result<T, Error> {
        let failure = step.as_ref().err().map(|error| exit::chain(error));
        self.world.agree_all(failure)?;
        step
    }

    /// First step: the ranks were all `told` the same (`what`, for people), and each could do what
    /// `step` is the result of.
    ///
    /// # Errors
    /// As for [`Job::agree`], and if they were told different things.
    pub(crate) fn agree_first<T>(
        &self,
        told: &str,
        what: &'static str,
        step: Result<T, Error>,
    ) -> Result<T, Error> {
        let Options { memory, block_size, .. } = self.options;
        let arguments = blake3::hash(format!("{told} {memory} {block_size:?}").as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *arguments.as_bytes();
        let told = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let failure = step.as_ref().err().map(|error| exit::chain(error));
        let agreed = self.world.agree(Vote { failure, low: told, high: told })?;
        // Ranks that were told different things may name different roots: that comes first.
        if agreed.minimum != agreed.maximum {
            return Err(Error::Arguments(what));
        }
        if let Some((rank, reason)) = agreed.failed {
            return Err(verbcast::Error::RankFailed { rank, reason }.into());
        }
        step
    }

    /// That there is such a root, and that no two ranks of a host use one file by this template.
    ///
    /// # Errors
    /// If it is not so, as far as this rank can tell.
    pub(crate) fn check(
        &self,
        root: u32,
        role: &'static str,
        template: &OsStr,
    ) -> Result<(), Error> {
        let ranks = self.world.size();
        if root >= ranks {
            return Err(Error::Root { root, ranks });
        }
        if self.local_rank > 0 && !tells_local_ranks_apart(template) {
            return Err(Error::Collision(Named { role, path: template.into() }));
        }
        Ok(())
    }

    /// This rank's file by a template.
    ///
    /// # Errors
    /// If the host has no name.
    pub(crate) fn name(&self, role: &'static str, template: &OsStr) -> Result<Named, Error> {
        let host = nix::unistd::gethostname()
            .map_err(|error| Error::System { what: "no host name", source: error.into() })?;
        let place = Place { rank: self.world.rank(), local_rank: self.local_rank, host };
        Ok(Named { role, path: expand(template, &place).into() })
    }

    /// What every rank has of these bytes, by rank.
    ///
    /// # Errors
    /// If the job was aborted meanwhile.
    pub(crate) fn allgather<const BYTES: usize>(
        &self,
        own: [u8; BYTES],
    ) -> Result<Vec<[u8; BYTES]>, Error> {
        let mut all = vec![0; BYTES * self.world.size() as usize];
        self.communicator().allgather(&own, &mut all)?;
        let (all, _) = all.as_chunks();
        Ok(all.to_vec())
    }

    /// That no lower rank's file has the name that this rank's has.
    ///
    /// # Errors
    /// If one has.
    pub(crate) fn check_alone(&self, name: &Named, locations: &[Location]) -> Result<(), Error> {
        let (lower, own) = locations.split_at(self.world.rank() as usize);
        match lower.iter().position(|location| Some(location) == own.first()) {
            Some(rank) => {
                let other = format!("{} of rank {rank}", name.role);
                Err(Error::Same { file: name.clone(), other })
            }
            None => Ok(()),
        }
    }

    /// Memory that the fabric knows; none for 0 bytes.
    ///
    /// # Errors
    /// If there is not so much.
    pub(crate) fn memory(&self, bytes: u64) -> Result<Option<Region>, Error> {
        let region = (bytes > 0).then(|| self.world.region(bytes as usize));
        Ok(region.transpose()?)
    }

    /// The longest of any rank for each part of the way.
    ///
    /// # Errors
    /// If the job was aborted meanwhile.
    pub(crate) fn slowest_of(&self, busy: Busy) -> Result<Busy, Error> {
        Ok(Busy {
            reading: self.slowest(busy.reading)?,
            moving: self.slowest(busy.moving)?,
            writing: self.slowest(busy.writing)?,
        })
    }

    /// The longest time of any rank.
    ///
    /// # Errors
    /// If the job was aborted meanwhile.
    pub(crate) fn slowest(&self, time: Duration) -> Result<Duration, Error> {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Agreed { maximum, .. } = self.world.agree(Vote { failure: None, low: ns, high: ns })?;
        Ok(Duration::from_nanos(maximum))
    }
}
