//! Link set-up between two ranks of one host, in the control thread.
//!
//! The initiator makes a segment and tells where its memfd is; the acceptor opens it, compares the
//! cookie (the proof that both are on one host, under one kernel), tries whether it may read the
//! initiator's memory, and tells where its own bell is; the initiator does the same in turn.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::bell::{PeerBell, Published, ShmBell};
use super::error::{SetupError, chain};
use super::files::Foreign;
use super::host::HostIdentity;
use super::pull::{Identity, Source};
use super::segment::{LAYOUT_VERSION, Layout, Segment, Sizes, Transfer};
use crate::error::Error;
use crate::link::{Arrivals, Bell, Connector, PeerInfo};
use crate::wire::Rank;

/// One end of a link on its way to the data path.
#[derive(Debug)]
pub(super) struct End {
    pub(super) peer: Rank,
    pub(super) segment: Segment,
    pub(super) bell: PeerBell,
    /// Where to pull from, where that is permitted.
    pub(super) source: Option<Source>,
    /// Whether the peer's end is complete, so that this one may send.
    pub(super) confirmed: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        self.segment.close();
        self.bell.ring(&Published::now());
    }
}

/// What the control thread tells the data path.
#[derive(Debug)]
pub(super) enum Arrival {
    End(Box<End>),
    Confirmed { peer: Rank, cookie: [u64; 2] },
    Failed { peer: Rank, reason: String },
}

impl Arrival {
    const fn peer(&self) -> Rank {
        match self {
            Self::End(end) => end.peer,
            Self::Confirmed { peer, .. } | Self::Failed { peer, .. } => *peer,
        }
    }
}

/// What the connector and the fabric of a rank share.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) rank: Rank,
    layout: Layout,
    cma: bool,
    host: HostIdentity,
    /// Read by peers in this process's memory: see [`Identity`].
    identity: Box<[u64; 2]>,
    bell: Arc<ShmBell>,
    arrivals: Arrivals<Arrival>,
    arrived: AtomicBool,
}

impl Local {
    pub(super) fn new(
        rank: Rank,
        layout: Layout,
        cma: bool,
        bell: Arc<ShmBell>,
    ) -> Result<Self, SetupError> {
        let host = HostIdentity::from(&crate::bootstrap::identity::describe(rank, Vec::new()));
        let (arrivals, arrived) = (Arrivals::default(), AtomicBool::new(false));
        let identity = Box::new(random_cookie()?);
        Ok(Self { rank, layout, cma, host, identity, bell, arrivals, arrived })
    }

    /// What has arrived since the last call; empty and cheap if nothing has.
    pub(super) fn take_arrivals(&self) -> Vec<Arrival> {
        if !self.arrived.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.arrived.store(false, Ordering::SeqCst);
        std::mem::take(&mut *lock(&self.arrivals))
    }

    /// Hands something to the data path, in place of what it makes obsolete: there are never more
    /// than two arrivals per peer.
    fn push(&self, arrival: Arrival) {
        let mut arrivals = lock(&self.arrivals);
        let peer = arrival.peer();
        let replaces = |old: &Arrival| match arrival {
            Arrival::End(_) | Arrival::Failed { .. } => old.peer() == peer,
            Arrival::Confirmed { .. } => {
                old.peer() == peer && matches!(old, Arrival::Confirmed { .. })
            }
        };
        arrivals.retain(|old| !replaces(old));
        arrivals.push(arrival);
        drop(arrivals);
        self.arrived.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    fn description(&self) -> Description {
        let (bell_fd, pipe_fd) = self.bell.files();
        let address = self.identity.as_ptr().expose_provenance() as u64;
        let identity = self.cma.then_some(Identity { address, cookie: *self.identity });
        let version = LAYOUT_VERSION;
        Description { version, host: self.host.clone(), bell_fd, pipe_fd, identity }
    }

    /// Whether and where to pull from, found out by trying.
    fn source(&self, description: &Description) -> Option<Source> {
        let identity = description.identity.filter(|_| self.cma)?;
        let pid = description.host.pid;
        Source::probe(pid, identity)
            .inspect_err(|error| {
                let reason = chain(error);
                tracing::debug!(self.rank, pid, reason, "no pull: blocks go through the segment");
            })
            .ok()
    }
}

/// How a process can be reached; part of both set-up messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Description {
    version: u32,
    host: HostIdentity,
    bell_fd: i32,
    pipe_fd: i32,
    /// Absent where this process does not want to be read.
    identity: Option<Identity>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offer {
    from: Description,
    segment_fd: i32,
    cookie: [u64; 2],
    sizes: Sizes,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    from: Description,
    cookie: [u64; 2],
}

/// A link that is being set up.
#[derive(Debug)]
enum Pending {
    /// The file stays open for the peer to find.
    Offered {
        segment: Box<Segment>,
        _file: OwnedFd,
    },
    Accepted {
        cookie: [u64; 2],
    },
}

/// Sets up shared-memory links of one rank.
#[derive(Debug)]
pub struct ShmConnector {
    local: Arc<Local>,
    pending: Mutex<HashMap<Rank, Pending>>,
}

impl ShmConnector {
    pub(super) fn new(local: Arc<Local>) -> Self {
        Self { local, pending: Mutex::default() }
    }

    fn make_offer(&self, peer: &PeerInfo, attempt: u32) -> Result<Vec<u8>, SetupError> {
        if attempt > 0 {
            return Err(SetupError::NothingElse);
        }
        self.local.host.compare(&peer.into())?;
        let (layout, cookie) = (self.local.layout, random_cookie()?);
        let (segment, file) = Segment::create(layout, cookie)?;
        let segment_fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let from = self.local.description();
        let offer = Offer { from, segment_fd, cookie, sizes: layout.sizes };
        let bytes = serde_json::to_vec(&offer).map_err(SetupError::Malformed)?;
        let pending = Pending::Offered { segment: Box::new(segment), _file: file };
        lock(&self.pending).insert(peer.rank, pending);
        Ok(bytes)
    }

    fn take_offer(&self, peer: &PeerInfo, offer: &[u8]) -> Result<Vec<u8>, SetupError> {
        self.local.host.compare(&peer.into())?;
        let offer: Offer = serde_json::from_slice(offer).map_err(SetupError::Malformed)?;
        self.check(peer, &offer.from)?;
        let layout = Layout::new(offer.sizes)?;
        let pid = offer.from.host.pid;
        let foreign = Foreign { what: "the segment", pid, fd: offer.segment_fd };
        let segment = Segment::attach(foreign, layout, offer.cookie)?;
        self.hand_over(peer, segment, &offer.from, false)?;
        let answer = Answer { from: self.local.description(), cookie: offer.cookie };
        lock(&self.pending).insert(peer.rank, Pending::Accepted { cookie: offer.cookie });
        serde_json::to_vec(&answer).map_err(SetupError::Malformed)
    }

    fn take_answer(&self, peer: &PeerInfo, answer: &[u8]) -> Result<(), SetupError> {
        let pending = lock(&self.pending).remove(&peer.rank);
        let Some(Pending::Offered { segment, .. }) = pending else {
            return Err(SetupError::NotPending);
        };
        let answer: Answer = serde_json::from_slice(answer).map_err(SetupError::Malformed)?;
        self.check(peer, &answer.from)?;
        if answer.cookie != segment.cookie {
            return Err(SetupError::NotPending);
        }
        self.hand_over(peer, *segment, &answer.from, true)
    }

    fn take_confirmation(&self, peer: &PeerInfo) -> Result<(), SetupError> {
        match lock(&self.pending).remove(&peer.rank) {
            Some(Pending::Accepted { cookie }) => {
                self.local.push(Arrival::Confirmed { peer: peer.rank, cookie });
                Ok(())
            }
            _ => Err(SetupError::NotPending),
        }
    }

    /// Whether a description is of the process that the address book names.
    fn check(&self, peer: &PeerInfo, from: &Description) -> Result<(), SetupError> {
        if from.version != LAYOUT_VERSION {
            return Err(SetupError::Version { ours: LAYOUT_VERSION, theirs: from.version });
        }
        self.local.host.compare(&from.host)?;
        if from.host.pid != peer.pid {
            return Err(SetupError::WrongPid { told: from.host.pid, known: peer.pid });
        }
        Ok(())
    }

    fn hand_over(
        &self,
        peer: &PeerInfo,
        segment: Segment,
        from: &Description,
        confirmed: bool,
    ) -> Result<(), SetupError> {
        let bell = PeerBell::open(from.host.pid, from.bell_fd, from.pipe_fd)?;
        let source = self.local.source(from);
        let transfer = if source.is_some() { Transfer::Pull } else { Transfer::Bounce };
        segment.set_transfer(transfer);
        let (rank, peer) = (self.local.rank, peer.rank);
        tracing::debug!(rank, peer, ?transfer, "shared-memory link attached");
        let end = Box::new(End { peer, segment, bell, source, confirmed });
        self.local.push(Arrival::End(end));
        Ok(())
    }

    fn at(&self, peer: &PeerInfo) -> impl FnOnce(SetupError) -> Error {
        let (rank, peer) = (self.local.rank, peer.rank);
        move |error| error.at(rank, peer)
    }
}

impl Connector for ShmConnector {
    fn offer(&self, peer: &PeerInfo, attempt: u32) -> Result<Vec<u8>, Error> {
        self.make_offer(peer, attempt).map_err(self.at(peer))
    }

    fn accept(&self, peer: &PeerInfo, offer: &[u8]) -> Result<Vec<u8>, Error> {
        self.take_offer(peer, offer).map_err(self.at(peer))
    }

    fn complete(&self, peer: &PeerInfo, answer: &[u8]) -> Result<(), Error> {
        self.take_answer(peer, answer).map_err(self.at(peer))
    }

    fn confirm(&self, peer: &PeerInfo) -> Result<(), Error> {
        self.take_confirmation(peer).map_err(self.at(peer))
    }

    fn failed(&self, peer: &PeerInfo, reason: &str) {
        lock(&self.pending).remove(&peer.rank);
        self.local.push(Arrival::Failed { peer: peer.rank, reason: reason.to_owned() });
    }
}

fn random_cookie() -> Result<[u64; 2], SetupError> {
    let random = || {
        getrandom::u64().map_err(|error| SetupError::System {
            what: "getting random bytes",
            source: std::io::Error::other(error),
        })
    };
    Ok([random()?, random()?])
}

/// What these locks guard is whole after every statement, so poison means nothing here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
