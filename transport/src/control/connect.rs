//! How the control thread gets its neighbours: some it dials, the others dial it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::cause::AbortKind;
use super::overlay::Neighbour;
use super::thread::{Phase, Plane};
use crate::bootstrap::BootstrapError;
use crate::bootstrap::channel::{Channel, Received};
use crate::bootstrap::handshake::{
    ANSWER_BYTES, Claim, Dialler, HELLO_BYTES, Purpose as Connection, nonce,
};
use crate::bootstrap::lobby::{HANDSHAKE_LIMIT, Proved, log_dropped};
use crate::wire::Rank;

/// The pause before the second dial; it doubles with each.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A rank listens before it registers, so one whose host refuses connections again and again is
/// gone. (Other failures, of routing say, may pass.)
const REFUSALS_MAX: u32 = 6;

/// A neighbour and its connection.
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    pub(crate) said_bye: bool,
    /// Published calls sent, and not known to be read.
    pub(crate) calls_unread: u32,
    /// Published calls read, and not yet reported.
    pub(crate) calls_read: u32,
    link: Link,
}

enum Link {
    /// It dials.
    Expected,
    /// To be dialled at that time.
    Due {
        at: Instant,
        tries: u32,
        refusals: u32,
        last: String,
    },
    /// A dial is on its way.
    Dialling {
        tries: u32,
        refusals: u32,
    },
    Up(Box<Channel>),
    Gone,
}

/// A connection that this rank opens.
pub(crate) struct Dialling {
    pub(crate) channel: Channel,
    index: usize,
    address: SocketAddr,
    since: Instant,
    stage: Stage,
}

enum Stage {
    Connecting,
    Answer(Box<Dialler>),
}

/// What became of a dial so far.
enum Dialled {
    Waiting,
    Connected,
    Failed { refused: bool, reason: String },
}

impl Peer {
    pub(crate) fn new(neighbour: Neighbour, now: Instant) -> Self {
        let due = Link::Due { at: now, tries: 0, refusals: 0, last: String::new() };
        let link = if neighbour.dial { due } else { Link::Expected };
        Self { rank: neighbour.rank, said_bye: false, calls_unread: 0, calls_read: 0, link }
    }

    pub(crate) fn channel(&self) -> Option<&Channel> {
        if let Link::Up(channel) = &self.link { Some(channel) } else { None }
    }

    pub(crate) fn channel_mut(&mut self) -> Option<&mut Channel> {
        if let Link::Up(channel) = &mut self.link { Some(channel) } else { None }
    }

    pub(crate) fn unwritten(&self) -> usize {
        self.channel().map_or(0, Channel::unwritten)
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.link, Link::Gone)
    }

    /// Drops the connection.
    pub(crate) fn go(&mut self) {
        self.link = Link::Gone;
    }

    /// When it is to be dialled next.
    pub(crate) fn dials_at(&self, now: Instant) -> Option<Instant> {
        if let Link::Due { at, .. } = &self.link { Some((*at).max(now)) } else { None }
    }

    /// Why it is not connected.
    fn missing(&self) -> String {
        match &self.link {
            Link::Due { last, .. } if !last.is_empty() => last.clone(),
            Link::Due { .. } | Link::Dialling { .. } => "it did not answer".into(),
            _ => "it did not connect".into(),
        }
    }
}

impl Dialling {
    pub(crate) fn interest(&self) -> PollFlags {
        match self.stage {
            Stage::Connecting => PollFlags::POLLOUT,
            Stage::Answer(_) => self.channel.interest(),
        }
    }

    pub(crate) fn gives_up_at(&self) -> Instant {
        self.since + HANDSHAKE_LIMIT
    }
}

impl Plane {
    /// Dials who is due, and checks the time.
    pub(super) fn go_on_connecting(&mut self, now: Instant) {
        let Phase::Connecting { started, until, .. } = self.phase else { return };
        if self.shared.job_abort().is_some() {
            return;
        }
        self.expire_dials(now);
        for index in 0..self.peers.len() {
            if self.peers[index].dials_at(now).is_some_and(|at| at <= now) {
                self.dial(index, now);
            }
        }
        if self.peers.iter().all(|peer| peer.channel().is_some()) {
            self.all_connected();
        }
        if now >= until && matches!(self.phase, Phase::Connecting { .. }) {
            self.too_late(started, now);
        }
    }

    fn all_connected(&mut self) {
        if let Phase::Connecting { ballot, .. } = &mut self.phase
            && let Some(ballot) = ballot.take()
        {
            tracing::debug!(rank = self.shared.rank, "all neighbours are connected");
            self.ballots.push_front(ballot);
            self.go_on_agreeing();
        }
    }

    fn too_late(&mut self, started: Instant, now: Instant) {
        let Phase::Connecting { ballot, until, .. } = &mut self.phase else { return };
        let ballot = ballot.take();
        // Not again: this rank waits to be stopped.
        *until = now + Duration::from_secs(3600);
        let Some(peer) = self.peers.iter().find(|peer| peer.channel().is_none()) else {
            let missing = crate::bootstrap::RankSet::from_iter(self.agreement.awaited());
            let reason = format!(
                "not all ranks were connected in time: nothing was heard from rank(s) {missing}"
            );
            return self.abort(AbortKind::Application { reason });
        };
        let (rank, reason) = (peer.rank, peer.missing());
        let info = &self.shared.peers[rank as usize];
        let error = BootstrapError::Peer {
            rank: self.shared.rank,
            peer: rank,
            host: info.host.clone(),
            address: info.addresses.join(", "),
            after_ms: (now - started).as_millis() as u64,
            reason,
        };
        self.abort(AbortKind::Link { peer: rank, reason: error.to_string() });
        if let Some(ballot) = ballot {
            // It waits for this answer.
            let _ = ballot.reply.send(Err(error.into()));
        }
    }

    // ---- this rank dials ----

    fn dial(&mut self, index: usize, now: Instant) {
        let peer = &mut self.peers[index];
        let Link::Due { tries, refusals, .. } = peer.link else { return };
        peer.link = Link::Dialling { tries: tries + 1, refusals };
        let addresses = &self.shared.peers[peer.rank as usize].addresses;
        let Some(text) = addresses.get(tries as usize % addresses.len().max(1)) else {
            return self.dial_failed(index, false, "it has no address".into(), now);
        };
        let dialled = text
            .parse::<SocketAddr>()
            .map_err(std::io::Error::other)
            .and_then(|address| Ok((address, Channel::dial(address)?)));
        match dialled {
            Ok((address, channel)) => {
                let stage = Stage::Connecting;
                self.dialling.push(Dialling { channel, index, address, since: now, stage });
            }
            Err(error) => {
                let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
                self.dial_failed(index, refused, error.to_string(), now);
            }
        }
    }

    fn dial_failed(&mut self, index: usize, refused: bool, reason: String, now: Instant) {
        let peer = &mut self.peers[index];
        let Link::Dialling { tries, refusals } = peer.link else { return };
        let rank = peer.rank;
        tracing::debug!(rank = self.shared.rank, peer = rank, reason, "dial failed");
        let refusals = if refused { refusals + 1 } else { 0 };
        let pause = PAUSE_MIN.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX);
        peer.link = Link::Due { at: now + pause, tries, refusals, last: reason };
        if refusals >= REFUSALS_MAX {
            let host = self.shared.peers[rank as usize].host.clone();
            self.abort(AbortKind::RankDied { rank, host });
        }
    }

    fn expire_dials(&mut self, now: Instant) {
        let dialling = std::mem::take(&mut self.dialling);
        let (late, in_time): (Vec<_>, Vec<_>) =
            dialling.into_iter().partition(|dialling| now >= dialling.gives_up_at());
        self.dialling = in_time;
        for dialling in late {
            self.dial_failed(dialling.index, false, "it did not answer".into(), now);
        }
    }

    /// Goes on with the dials that are ready.
    pub(super) fn go_on_dialling(&mut self, ready: &[PollFlags]) {
        let dialling = std::mem::take(&mut self.dialling);
        for (position, mut dialling) in dialling.into_iter().enumerate() {
            if ready.get(position).is_none_or(|flags| flags.is_empty()) {
                self.dialling.push(dialling);
                continue;
            }
            let dialled = self.go_on_with(&mut dialling).unwrap_or_else(|error| Dialled::Failed {
                refused: error.kind() == std::io::ErrorKind::ConnectionRefused,
                reason: error.to_string(),
            });
            match dialled {
                Dialled::Waiting => self.dialling.push(dialling),
                Dialled::Connected => self.connected(dialling.index, dialling.channel),
                Dialled::Failed { refused, reason } => {
                    self.dial_failed(dialling.index, refused, reason, Instant::now());
                }
            }
        }
    }

    fn go_on_with(&self, dialling: &mut Dialling) -> std::io::Result<Dialled> {
        let channel = &mut dialling.channel;
        let peer = self.peers[dialling.index].rank;
        let (rank, size) = (self.shared.rank, self.shared.peers.len() as u32);
        if let Stage::Connecting = dialling.stage {
            if let Some(error) = channel.connect_error() {
                return Err(error);
            }
            if channel.local_address()? == dialling.address {
                // It met itself: nobody listens there.
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let claim = Claim { purpose: Connection::Overlay, rank, size, target: peer };
            let nonce = nonce().map_err(std::io::Error::other)?;
            let (dialler, hello): (_, [u8; HELLO_BYTES]) =
                Dialler::new(self.key.clone(), claim, nonce);
            channel.queue(&hello);
            dialling.stage = Stage::Answer(Box::new(dialler));
        }
        channel.flush()?;
        match channel.receive()? {
            Received::Bytes | Received::Nothing => {}
            Received::Closed => {
                let reason = "it closed the connection".into();
                return Ok(Dialled::Failed { refused: false, reason });
            }
        }
        let Some(answer) = channel.input.take::<ANSWER_BYTES>() else {
            return Ok(Dialled::Waiting);
        };
        let Stage::Answer(dialler) = std::mem::replace(&mut dialling.stage, Stage::Connecting)
        else {
            return Ok(Dialled::Waiting);
        };
        let failed = |reason: String| Ok(Dialled::Failed { refused: false, reason });
        match dialler.finish(&answer) {
            Ok((claim, finish)) if (claim.rank, claim.size) == (peer, size) => {
                channel.queue(&finish);
                Ok(Dialled::Connected)
            }
            Ok((claim, _)) => failed(format!("rank {} answered at its address", claim.rank)),
            Err(error) => failed(error.to_string()),
        }
    }

    // ---- others dial ----

    /// A connection has proved that it belongs to the job.
    pub(super) fn welcome(&mut self, proved: Proved) {
        let Proved { channel, from, claim } = proved;
        let size = self.shared.peers.len() as u32;
        let expected = self
            .peers
            .iter()
            .position(|peer| peer.rank == claim.rank && matches!(peer.link, Link::Expected));
        match expected {
            Some(index) if (claim.target, claim.size) == (self.shared.rank, size) => {
                self.connected(index, channel);
            }
            _ => log_dropped("control plane", from, "no such connection is expected"),
        }
    }

    fn connected(&mut self, index: usize, channel: Channel) {
        let peer = &mut self.peers[index];
        tracing::debug!(rank = self.shared.rank, peer = peer.rank, "neighbour connected");
        if let Err(error) = channel.watch_host() {
            tracing::warn!(peer = peer.rank, %error, "a vanished host will be noticed late");
        }
        peer.link = Link::Up(Box::new(channel));
        // Its first frames may have come with the handshake.
        self.take_frames(index);
    }
}
