//! The control plane: liveness, link set-up, abort and agreement, in a thread of its own.
//!
//! [`Control::start`] brings the job together and starts the thread, which sleeps unless something
//! is to be done. It serves link set-up while the application computes, notices the death of a
//! rank, spreads aborts and carries agreements. Everything goes over TCP connections between
//! neighbours on a circulant graph: at most 2 ceil(log2 N) per rank.
//!
//! In which order to call: [`start`](Control::start) first; then whatever is needed from any
//! thread; [`shutdown`](Control::shutdown) on every rank last.

mod agreement;
mod calls;
mod cause;
mod connect;
mod error;
mod frame;
mod overlay;
mod relay;
mod setup;
mod shared;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use agreement::{Agreed, Vote};
pub use cause::{AbortCause, AbortKind, AbortScope};
pub use error::ControlError;

use nix::sys::eventfd::{EfdFlags, EventFd};

use agreement::Purpose;
use shared::{Ballot, Shared, Stop, lock};
use thread::Beginning;

use crate::bootstrap::client::{Registered, Registration};
use crate::bootstrap::{BootstrapError, RankSet, RendezvousServer, Secret};
use crate::config::{Config, SIZE_MAX};
use crate::error::Error;
use crate::link::{Bell, Connector, PeerInfo};
use crate::wire::{Rank, Signature};

/// The time that connecting with the neighbours has at least, once all ranks have met.
const CONNECT_LEAST: Duration = Duration::from_secs(10);

/// The control plane of one rank; a cheap handle. When the last handle goes without
/// [`shutdown`](Control::shutdown), the job is aborted: the others would wait for ever.
#[derive(Clone)]
pub struct Control {
    owner: Arc<Owner>,
}

/// Ends the thread when the last handle goes.
struct Owner {
    shared: Arc<Shared>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
    size: u32,
    /// Shut down, or never more than one rank.
    left: std::sync::atomic::AtomicBool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("rank", &self.rank()).field("size", &self.size()).finish()
    }
}

impl Control {
    /// Brings the job together (rendezvous, address book, connections with the neighbours) and
    /// starts the control thread. Returns when every rank is there and connected. A job of one rank
    /// needs no sockets and no thread.
    ///
    /// `bell` is rung at every abort and when a link is up or has failed; `connector` makes the
    /// links, in the control thread.
    ///
    /// # Errors
    /// [`Error::Config`] if rendezvous or secret are missing, [`Error::Bootstrap`] if the ranks do
    /// not come together before `config.connect_deadline`, [`Error::Aborted`] if one fails while
    /// they do.
    pub fn start(
        config: &Config,
        bell: Arc<dyn Bell>,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, Error> {
        if config.size == 1 && config.rank == 0 {
            return Ok(Self::alone(bell));
        }
        let (rendezvous, secret) = meeting(config)?;
        let started = Instant::now();
        let deadline = started + config.connect_deadline;
        let hosting = Hosting::try_start(config, rendezvous, secret)?;
        let registration = Registration {
            rank: config.rank,
            size: config.size,
            address: rendezvous,
            secret,
            started,
            deadline,
        };
        let registered = registration.register().inspect_err(|_| {
            // The others are to learn of it as well.
            hosting.iter().for_each(|hosting| hosting.wait(deadline));
        })?;
        Self::connect(config, secret, registered, deadline, bell, connector)
    }

    fn connect(
        config: &Config,
        secret: &Secret,
        registered: Registered,
        deadline: Instant,
        bell: Arc<dyn Bell>,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, Error> {
        let Registered { job, peers, listener } = registered;
        let rank = config.rank;
        let failed = |what| move |source: std::io::Error| Error::System { rank, what, source };
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wake = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| failed("making an event")(errno.into()))?;
        let shared = Arc::new(Shared::new(rank, peers, bell, Some(wake)));
        let (reply, answer) = sync_channel(1);
        // The last rank may have come just before the deadline.
        let until = deadline.max(Instant::now() + config.connect_deadline.min(CONNECT_LEAST));
        let thread = thread::spawn(Beginning {
            shared: shared.clone(),
            connector,
            listener,
            key: secret.derive("control", &job),
            until,
            ballot: Ballot { purpose: Purpose::Start, vote: Vote::default(), reply },
        })
        .map_err(failed("starting the control thread"))?;
        let control = Self::own(shared, Some(thread));
        match answer.recv() {
            Ok(Ok(_)) => Ok(control),
            Ok(Err(error)) => {
                // What is known already need not be said again.
                control.owner.left.store(true, std::sync::atomic::Ordering::Release);
                control.owner.stop(Stop::Abrupt);
                Err(error)
            }
            Err(_) => Err(match control.owner.shared.job_abort() {
                Some(cause) => Error::Aborted(cause),
                None => ControlError::Left { rank }.into(),
            }),
        }
    }

    fn alone(bell: Arc<dyn Bell>) -> Self {
        let peers = vec![crate::bootstrap::identity::describe(0, Vec::new())];
        let shared = Arc::new(Shared::new(0, peers, bell, None));
        Self::own(shared, None)
    }

    fn own(shared: Arc<Shared>, thread: Option<JoinHandle<()>>) -> Self {
        let size = shared.peers.len() as u32;
        let left = thread.is_none().into();
        Self { owner: Arc::new(Owner { shared, thread: thread.into(), size, left }) }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.owner.shared.rank
    }

    /// Ranks of the job.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.owner.size
    }

    /// What every rank told of itself, by rank.
    #[must_use]
    pub fn peers(&self) -> &[PeerInfo] {
        &self.owner.shared.peers
    }

    /// Asks for a link to `peer`; asking again changes nothing. What comes of it shows up through
    /// the connector, and the bell rings.
    ///
    /// # Panics
    /// If `peer` is this rank or not in the job.
    pub fn want_link(&self, peer: Rank) {
        assert!(peer < self.size() && peer != self.rank(), "no link to rank {peer}");
        self.owner.shared.want_link(peer);
    }

    /// The link to `peer` broke or failed, and this rank has dropped its end: the next
    /// [`want_link`](Control::want_link) of either side sets up a new one.
    ///
    /// # Panics
    /// If `peer` is this rank or not in the job.
    pub fn forget_link(&self, peer: Rank) {
        assert!(peer < self.size() && peer != self.rank(), "no link to rank {peer}");
        self.owner.shared.forget_link(peer);
    }

    /// Aborts what `cause.scope` names, on every rank; the first cause of a scope is kept. Returns
    /// when the abort is on its way (after at most a second).
    pub fn abort(&self, cause: AbortCause) {
        self.owner.shared.abort(cause);
    }

    /// Whether there was any abort at all; one load.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.owner.shared.is_aborted()
    }

    /// Why this communicator, or the whole job, was aborted, if it was.
    #[must_use]
    pub fn abort_cause(&self, communicator: u64) -> Option<AbortCause> {
        self.owner.shared.abort_cause(communicator)
    }

    /// Notes that this rank made a call, and compares it with those that others have published: if
    /// they differ, the communicator is aborted.
    pub fn record_call(&self, signature: &Signature) {
        self.owner.shared.record_call(signature);
    }

    /// This rank's own call under this number, if it was among the last ones that were
    /// [recorded](Control::record_call).
    #[must_use]
    pub fn recorded_call(&self, communicator: u64, number: u64) -> Option<Signature> {
        self.owner.shared.recorded_call(communicator, number)
    }

    /// Publishes a call that was [recorded](Control::record_call) and waits: every rank compares
    /// it with its own.
    pub fn publish_call(&self, signature: &Signature) {
        self.owner.shared.publish_call(signature);
    }

    /// Waits until every rank has voted, and returns what all agree on. Every rank has to call it
    /// equally often; calls of several threads follow each other.
    ///
    /// A rank whose deadline passes has voted all the same; the others may still agree.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the job is, [`ControlError::AgreeDeadline`] if `deadline` passes.
    pub fn agree(&self, vote: Vote, deadline: Option<Instant>) -> Result<Agreed, Error> {
        self.owner.agree(Purpose::Agree, vote, deadline)
    }

    /// Leaves the job together with all other ranks, and ends the control thread. Later calls do
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the job is, [`ControlError::AgreeDeadline`] if not every rank has
    /// called it before `deadline` has passed; the job is aborted then.
    pub fn shutdown(&self, deadline: Duration) -> Result<(), Error> {
        self.owner.shutdown(deadline)
    }
}

/// The rendezvous address and the secret, which a job of several ranks needs.
fn meeting(config: &Config) -> Result<(&str, &Secret), Error> {
    let (rank, size) = (config.rank, config.size);
    let missing = |what: &str| {
        Error::Config(format!(
            "rank {rank} of {size} has no {what}: set it for every rank, or start the job with \
             `verbcast launch`"
        ))
    };
    if size == 0 || size > SIZE_MAX {
        return Err(Error::Config(format!("a job has 1 to {SIZE_MAX} ranks, not {size}")));
    }
    // With a rendezvous, that tells every rank of it; without one nobody else would hear.
    if rank >= size && config.rendezvous.is_none() {
        return Err(Error::Config(format!(
            "rank {rank} is outside the job of {size} rank(s), which are numbered 0 to {}: correct \
             VERBCAST_RANK or VERBCAST_SIZE",
            size - 1
        )));
    }
    let rendezvous = config
        .rendezvous
        .as_deref()
        .ok_or_else(|| missing("rendezvous address (VERBCAST_RENDEZVOUS=host:port)"))?;
    let secret = config.secret.as_ref().ok_or_else(|| {
        missing("job secret (VERBCAST_JOB_SECRET, or VERBCAST_JOB_SECRET_FILE with mode 600)")
    })?;
    Ok((rendezvous, secret))
}

/// A rendezvous that rank 0 runs itself, for want of a launcher.
struct Hosting {
    ended: std::sync::mpsc::Receiver<()>,
}

impl Hosting {
    /// Listens at the rendezvous address, if this is rank 0 and nobody else does: a launcher on
    /// this host has the address already, and that of another host cannot be listened at.
    fn try_start(
        config: &Config,
        address: &str,
        secret: &Secret,
    ) -> Result<Option<Self>, BootstrapError> {
        if config.rank != 0 {
            return Ok(None);
        }
        let bound = RendezvousServer::bind(address, config.size, secret, config.connect_deadline);
        let server = match bound {
            Ok(server) => server,
            Err(error @ BootstrapError::Listen { .. }) => {
                tracing::debug!(address, %error, "rank 0 does not run the rendezvous");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let (end, ended) = sync_channel(1);
        std::thread::Builder::new()
            .name("verbcast-rendezvous".into())
            .spawn(move || {
                // Every rank, this one among them, is told how it ended.
                let _ = server.serve();
                let _ = end.send(());
            })
            .map_err(|source| BootstrapError::System { what: "starting a thread", source })?;
        Ok(Some(Self { ended }))
    }

    /// Waits until all ranks were told, but not longer than until `deadline`.
    fn wait(&self, deadline: Instant) {
        let _ = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl Owner {
    fn agree(
        &self,
        purpose: Purpose,
        vote: Vote,
        deadline: Option<Instant>,
    ) -> Result<Agreed, Error> {
        let shared = &self.shared;
        if let Some(cause) = shared.job_abort() {
            return Err(Error::Aborted(cause));
        }
        if self.size == 1 {
            return Ok(vote.alone(shared.rank));
        }
        let started = Instant::now();
        let (reply, answer) = sync_channel(1);
        shared.command(|commands| commands.ballots.push(Ballot { purpose, vote, reply }));
        let received = match deadline {
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                answer.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
        };
        match received {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(ControlError::AgreeDeadline {
                rank: shared.rank,
                after_ms: started.elapsed().as_millis() as u64,
                missing: RankSet::from_iter(shared.awaited()).to_string(),
            }
            .into()),
            Err(RecvTimeoutError::Disconnected) => Err(match shared.job_abort() {
                Some(cause) => Error::Aborted(cause),
                None => ControlError::Left { rank: shared.rank }.into(),
            }),
        }
    }

    fn shutdown(&self, deadline: Duration) -> Result<(), Error> {
        if self.left.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return self.shared.job_abort().map_or(Ok(()), |cause| Err(Error::Aborted(cause)));
        }
        let until = Instant::now() + deadline;
        let agreed = self.agree(Purpose::Leave, Vote::default(), Some(until));
        if let Err(error) = &agreed {
            self.abort_job(format!("could not leave the job: {error}"));
            self.stop(Stop::Abrupt);
        } else {
            self.stop(Stop::Goodbye { until });
        }
        agreed?;
        self.shared.job_abort().map_or(Ok(()), |cause| Err(Error::Aborted(cause)))
    }

    fn abort_job(&self, reason: String) {
        let kind = AbortKind::Application { reason };
        self.shared.abort(AbortCause { scope: AbortScope::Job, origin: self.shared.rank, kind });
    }

    fn stop(&self, stop: Stop) {
        self.shared.command(|commands| commands.stop = Some(stop));
        let thread = lock(&self.thread).take();
        let own = std::thread::current().id();
        // The last handle may be one that a connector holds, which goes with the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
impl Control {
    /// Drops all connections as the kernel would if the process were killed.
    fn vanish(&self) {
        self.owner.left.store(true, std::sync::atomic::Ordering::Release);
        self.owner.stop(Stop::Vanish);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !*self.left.get_mut() {
            let panicking = if std::thread::panicking() { " while panicking" } else { "" };
            self.abort_job(format!("left the job without finalizing it{panicking}"));
            self.stop(Stop::Abrupt);
        }
    }
}
