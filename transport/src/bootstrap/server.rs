//! The rendezvous: where the ranks of a job register and get the address book.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::channel::wait;
use super::error::{BootstrapError, Process, Refusal};
use super::frame::{FRAME_BYTES_MAX, encode};
use super::handshake::{Claim, Purpose, RENDEZVOUS_RANK};
use super::lobby::{HANDSHAKE_LIMIT, Lobby, Proved};
use super::message::{Register, Reply};
use super::secret::{Key, Secret};
use super::session::{Progress, Session};
use crate::link::PeerInfo;
use crate::wire::Rank;

/// How long a failed rendezvous stays open to tell late ranks why it failed.
const LINGER: Duration = Duration::from_secs(5);

/// How long the last bytes to the ranks may take.
const TELL_LIMIT: Duration = Duration::from_secs(10);

/// The label of the key for connections with the rendezvous.
pub(crate) const KEY_LABEL: &str = "rendezvous";

/// A rendezvous that listens. [`serve`](RendezvousServer::serve) runs it, usually in a thread of
/// the launcher.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use verbcast_transport::bootstrap::{RendezvousServer, Secret};
///
/// let secret = Secret::generate()?;
/// let server = RendezvousServer::bind("127.0.0.1:0", 1, &secret, Duration::from_secs(60))?;
/// let (address, stop) = (server.address(), server.stop_handle());
/// let thread = std::thread::spawn(move || server.serve());
/// // ... start ranks with VERBCAST_RENDEZVOUS = address; here none come:
/// assert_ne!(address.port(), 0);
/// stop.stop("this is only an example");
/// let error = thread.join().unwrap().unwrap_err();
/// assert!(error.to_string().contains("only an example"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RendezvousServer {
    listener: TcpListener,
    address: SocketAddr,
    key: Key,
    job: [u8; 16],
    size: u32,
    deadline: Duration,
    stop: Arc<StopRequest>,
}

#[derive(Debug)]
struct StopRequest {
    wake: EventFd,
    reason: Mutex<Option<String>>,
}

/// Ends a [`RendezvousServer`] from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<StopRequest>);

impl StopHandle {
    /// Ends the rendezvous; every rank that waits there is told `reason`. Without effect once all
    /// ranks have come.
    pub fn stop(&self, reason: &str) {
        let mut slot = self.0.reason.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| reason.chars().take(1000).collect());
        drop(slot);
        // It can only fail when the counter is at its limit, and then the server is awake.
        let _ = self.0.wake.write(1);
    }
}

impl RendezvousServer {
    /// Listens at `address` (port 0: any free one) for a job of `size` ranks, which have `deadline`
    /// from the start of [`serve`](RendezvousServer::serve) on to come.
    ///
    /// # Errors
    /// [`BootstrapError::Listen`] if the address cannot be listened at.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn bind(
        address: impl ToSocketAddrs + std::fmt::Debug,
        size: u32,
        secret: &Secret,
        deadline: Duration,
    ) -> Result<Self, BootstrapError> {
        assert!(size > 0, "a job has at least one rank");
        let listen = |source| BootstrapError::Listen { address: format!("{address:?}"), source };
        let listener = TcpListener::bind(&address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let local = listener.local_addr().map_err(listen)?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wake = EventFd::from_value_and_flags(0, flags)
            .map_err(|e| BootstrapError::System { what: "eventfd", source: e.into() })?;
        let mut job = [0; 16];
        getrandom::fill(&mut job).map_err(super::SecretError::from)?;
        let key = secret.derive(KEY_LABEL, b"");
        let stop = Arc::new(StopRequest { wake, reason: Mutex::new(None) });
        Ok(Self { listener, address: local, key, job, size, deadline, stop })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends it from another thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.stop.clone())
    }

    /// Serves until every rank has the address book, or the job cannot come together. Strangers
    /// are dropped, each with one warning in the log.
    ///
    /// # Errors
    /// [`BootstrapError::Refused`] if the job cannot come together; every rank that is there, or
    /// comes within a few seconds, is told the same. [`BootstrapError::System`] if the system fails.
    pub fn serve(self) -> Result<(), BootstrapError> {
        let now = Instant::now();
        let outcome = Service {
            deadline: now + self.deadline,
            opened: now,
            lobby: self.lobby(),
            server: self,
            sessions: Vec::new(),
            registered: BTreeMap::new(),
            phase: Phase::Gathering,
            told: 0,
        }
        .run();
        outcome.map_err(|source| BootstrapError::System { what: "serving ranks", source })?
    }

    fn lobby(&self) -> Lobby {
        let claim = Claim {
            purpose: Purpose::Rendezvous,
            rank: RENDEZVOUS_RANK,
            size: self.size,
            target: RENDEZVOUS_RANK,
        };
        Lobby::new("rendezvous", self.key.clone(), claim)
    }
}

/// A server at work.
struct Service {
    server: RendezvousServer,
    opened: Instant,
    /// When missing ranks end the job: the earliest that a registered rank gives up.
    deadline: Instant,
    lobby: Lobby,
    sessions: Vec<Session>,
    registered: BTreeMap<Rank, PeerInfo>,
    phase: Phase,
    /// Ranks that were told of a failure.
    told: u32,
}

enum Phase {
    Gathering,
    /// All were sent the book.
    Complete {
        until: Instant,
    },
    Failed {
        refusal: Refusal,
        until: Instant,
    },
}

impl Service {
    fn run(mut self) -> std::io::Result<Result<(), BootstrapError>> {
        loop {
            self.check_stop();
            self.expire(Instant::now());
            if let Some(result) = self.result() {
                return Ok(result);
            }
            let accepting = self.lobby.has_room(Instant::now());
            let listening = if accepting { PollFlags::POLLIN } else { PollFlags::empty() };
            let mut interests = vec![
                (self.server.stop.wake.as_fd(), PollFlags::POLLIN),
                (self.server.listener.as_fd(), listening),
            ];
            let sessions = self.sessions.iter().map(|session| &session.channel);
            let channels = sessions.chain(self.lobby.channels());
            interests.extend(channels.map(|channel| (channel.as_fd(), channel.interest())));
            let ready = wait(&interests, Some(self.next_time()))?;
            if !ready[0].is_empty() {
                let _ = self.server.stop.wake.read();
            }
            let (sessions, lobby) = ready[2..].split_at(self.sessions.len());
            for (index, flags) in sessions.iter().enumerate() {
                if !flags.is_empty() {
                    self.serve_session(index);
                }
            }
            for proved in self.lobby.advance(lobby) {
                self.welcome(proved);
            }
            self.sessions.retain(|session| !session.over);
            if !ready[1].is_empty() {
                self.lobby.accept(&self.server.listener);
            }
        }
    }

    /// The result, once everybody was told.
    fn result(&self) -> Option<Result<(), BootstrapError>> {
        let all_written = self.sessions.iter().all(|session| session.channel.unwritten() == 0);
        let now = Instant::now();
        match &self.phase {
            Phase::Gathering => None,
            Phase::Complete { until } => (all_written || now >= *until).then_some(Ok(())),
            Phase::Failed { refusal, until } => {
                let everybody = self.told >= self.server.size && all_written;
                (everybody || now >= *until).then(|| Err(BootstrapError::Refused(refusal.clone())))
            }
        }
    }

    fn check_stop(&mut self) {
        let mut slot = self.server.stop.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reason) = slot.take() else { return };
        drop(slot);
        match &mut self.phase {
            Phase::Gathering => self.fail(Refusal::Stopped { reason }),
            Phase::Complete { .. } => {}
            // Whoever stops it does not want to wait for late ranks.
            Phase::Failed { until, .. } => *until = Instant::now(),
        }
    }

    fn expire(&mut self, now: Instant) {
        for session in &mut self.sessions {
            if session.registered.is_none() && now >= session.since + HANDSHAKE_LIMIT {
                session.end("it did not register in time");
            }
        }
        self.sessions.retain(|session| !session.over);
        if matches!(self.phase, Phase::Gathering) && now >= self.deadline {
            let missing = (0..self.server.size).filter(|rank| !self.registered.contains_key(rank));
            self.fail(Refusal::Missing {
                ranks: missing.collect(),
                size: self.server.size,
                after_ms: (now - self.opened).as_millis() as u64,
            });
        }
    }

    fn next_time(&self) -> Instant {
        let phase = match &self.phase {
            Phase::Gathering => self.deadline,
            Phase::Complete { until } | Phase::Failed { until, .. } => *until,
        };
        let unregistered = self.sessions.iter().filter(|session| session.registered.is_none());
        unregistered
            .map(|session| session.since + HANDSHAKE_LIMIT)
            .chain(self.lobby.next_time())
            .fold(phase, Instant::min)
    }

    fn welcome(&mut self, proved: Proved) {
        self.sessions.push(Session::new(proved));
        self.serve_session(self.sessions.len() - 1);
    }

    fn serve_session(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        match session.advance() {
            Progress::Waiting => {}
            Progress::Registers(register) => self.register(index, register),
            Progress::Over => {
                let Some(rank) = session.registered else { return };
                if matches!(self.phase, Phase::Gathering)
                    && let Some(peer) = self.registered.get(&rank)
                {
                    let process = process(peer);
                    self.fail(Refusal::WentAway { rank, process });
                }
            }
        }
    }

    fn register(&mut self, index: usize, register: Register) {
        let Register { peer, size, patience_ms } = register;
        let rank = peer.rank;
        self.sessions[index].registered = Some(rank);
        if let Phase::Failed { refusal, .. } = &self.phase {
            let refusal = refusal.clone();
            self.tell(index, &Reply::Refused(refusal));
            return;
        }
        let expected = self.server.size;
        let refusal = if size != expected {
            Some(Refusal::SizeDiffers { rank, given: size, expected, process: process(&peer) })
        } else if rank >= expected {
            Some(Refusal::RankOutside { rank, size: expected, process: process(&peer) })
        } else {
            self.registered.get(&rank).map(|first| Refusal::DuplicateRank {
                rank,
                first: process(first),
                second: process(&peer),
            })
        };
        if let Some(refusal) = refusal {
            self.fail(refusal);
            return;
        }
        tracing::debug!(rank, host = %peer.host, pid = peer.pid, "registered");
        self.registered.insert(rank, peer);
        self.sessions[index].send(&Reply::Registered);
        self.deadline = self.deadline.min(Instant::now() + shortened(patience_ms));
        if self.registered.len() as u32 == expected {
            self.complete();
        }
    }

    fn complete(&mut self) {
        let peers: Vec<PeerInfo> = std::mem::take(&mut self.registered).into_values().collect();
        let book = pages(self.server.job, peers);
        for session in self.sessions.iter_mut().filter(|session| session.registered.is_some()) {
            session.send_bytes(&book);
        }
        self.phase = Phase::Complete { until: Instant::now() + TELL_LIMIT };
    }

    fn fail(&mut self, refusal: Refusal) {
        tracing::debug!(%refusal, "the job does not come together");
        self.phase = Phase::Failed { refusal: refusal.clone(), until: Instant::now() + LINGER };
        let reply = Reply::Refused(refusal);
        for index in 0..self.sessions.len() {
            if self.sessions[index].registered.is_some() && !self.sessions[index].over {
                self.tell(index, &reply);
            }
        }
    }

    fn tell(&mut self, index: usize, reply: &Reply) {
        self.sessions[index].send(reply);
        self.told += 1;
    }
}

/// What of a rank's patience the rendezvous uses: a little less, so that its answer still comes
/// within the rank's own deadline.
fn shortened(patience_ms: u64) -> Duration {
    let patience = Duration::from_millis(patience_ms.min(u64::from(u32::MAX)));
    patience - (patience / 8).min(Duration::from_secs(1))
}

fn process(peer: &PeerInfo) -> Process {
    Process { host: peer.host.clone(), pid: peer.pid }
}

/// The address book as frames.
fn pages(job: [u8; 16], peers: Vec<PeerInfo>) -> Vec<u8> {
    // A peer's registration was at most REGISTER_BYTES_MAX long, so that many fit into a frame.
    let per_page = (FRAME_BYTES_MAX / super::message::REGISTER_BYTES_MAX) - 1;
    let mut bytes = Vec::new();
    for page in peers.chunks(per_page) {
        let page = Reply::Book { job, peers: page.to_vec() };
        bytes.extend(encode(&page, &[]).expect("a page fits into a frame by its bound"));
    }
    bytes
}
