//! The control thread: one poll loop over the listener, the neighbours and the wake-up event.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::agreement::{Agreed, Agreement, Purpose};
use super::cause::{AbortCause, AbortKind, AbortScope};
use super::connect::{Dialling, Peer};
use super::frame::Frame;
use super::overlay::Overlay;
use super::setup::LinkSetup;
use super::shared::{Ballot, Commands, Shared, Stop};
use crate::bootstrap::channel::{Channel, Received, wait};
use crate::bootstrap::handshake::{Claim, Purpose as Connection, RENDEZVOUS_RANK};
use crate::bootstrap::lobby::Lobby;
use crate::bootstrap::secret::Key;
use crate::error::Error;
use crate::link::Connector;

/// How long an abrupt end may take to write what is queued.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Reads of one neighbour before the others have their turn.
const READS_PER_TURN: usize = 4;

/// What the thread starts with.
pub(crate) struct Beginning {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) listener: TcpListener,
    pub(crate) key: Key,
    /// All neighbours have to be connected by then.
    pub(crate) until: Instant,
    /// Answered when all ranks are connected.
    pub(crate) ballot: Ballot,
}

/// Everything that the thread works with.
pub(crate) struct Plane {
    pub(super) shared: Arc<Shared>,
    pub(super) overlay: Overlay,
    pub(super) key: Key,
    pub(super) peers: Vec<Peer>,
    pub(super) dialling: Vec<Dialling>,
    pub(super) lobby: Lobby,
    pub(super) agreement: Agreement,
    /// Where the result of the active agreement goes.
    pub(super) reply: Option<SyncSender<Result<Agreed, Error>>>,
    pub(super) ballots: VecDeque<Ballot>,
    /// The agreement to leave has begun.
    pub(super) leaving: bool,
    pub(super) setup: LinkSetup,
    pub(super) phase: Phase,
    listener: TcpListener,
}

pub(crate) enum Phase {
    /// The neighbours are not all connected, or not all ranks are.
    Connecting {
        started: Instant,
        until: Instant,
        ballot: Option<Ballot>,
    },
    Running,
    /// Goodbye is said; the neighbours' is awaited.
    Leaving {
        until: Instant,
    },
    /// What is queued is written, then it is over.
    Closing {
        until: Instant,
    },
    #[cfg(test)]
    Vanished,
}

/// Starts the thread.
pub(crate) fn spawn(beginning: Beginning) -> std::io::Result<JoinHandle<()>> {
    let name = format!("verbcast-control-{}", beginning.shared.rank);
    std::thread::Builder::new().name(name).spawn(move || {
        let shared = beginning.shared.clone();
        shared.enter_thread();
        let mut plane = Plane::new(beginning);
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| plane.run()));
        let failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it panicked".into()),
        };
        if let Some(failure) = failure {
            // The sockets close now: to the others this rank is dead.
            let reason = format!("the control thread failed: {failure}");
            let kind = AbortKind::Application { reason };
            shared.record_abort(&AbortCause { scope: AbortScope::Job, origin: shared.rank, kind });
        }
        shared.end_thread();
    })
}

/// Who is waited for, in the order of the descriptors.
struct Ready {
    wake: bool,
    listener: bool,
    peers: Vec<(usize, PollFlags)>,
    dialling: Vec<PollFlags>,
    lobby: Vec<PollFlags>,
}

impl Plane {
    fn new(beginning: Beginning) -> Self {
        let Beginning { shared, connector, listener, key, until, ballot } = beginning;
        let (rank, size) = (shared.rank, shared.peers.len() as u32);
        let overlay = Overlay::new(rank, size);
        let now = Instant::now();
        // The acceptor does not know who dials until it has read the hello.
        let claim = Claim { purpose: Connection::Overlay, rank, size, target: RENDEZVOUS_RANK };
        Self {
            peers: overlay.neighbours().into_iter().map(|n| Peer::new(n, now)).collect(),
            dialling: Vec::new(),
            lobby: Lobby::new("control plane", key.clone(), claim),
            agreement: Agreement::new(overlay.clone()),
            reply: None,
            ballots: VecDeque::new(),
            leaving: false,
            setup: LinkSetup::new(shared.clone(), connector),
            phase: Phase::Connecting { started: now, until, ballot: Some(ballot) },
            listener,
            overlay,
            key,
            shared,
        }
    }

    fn run(&mut self) -> std::io::Result<()> {
        loop {
            let commands = self.shared.take_commands();
            let floods = commands.floods.len();
            self.obey(commands);
            let now = Instant::now();
            self.go_on_connecting(now);
            self.flush();
            self.shared.floods_written(floods);
            if self.is_over(now) {
                self.close();
                return Ok(());
            }
            let ready = self.wait(now)?;
            if ready.wake
                && let Some(event) = self.shared.wake_event()
            {
                let _ = event.read();
            }
            for (index, flags) in ready.peers {
                if !flags.is_empty() {
                    self.read(index);
                }
            }
            self.go_on_dialling(&ready.dialling);
            for proved in self.lobby.advance(&ready.lobby) {
                self.welcome(proved);
            }
            if ready.listener {
                self.lobby.accept(&self.listener);
            }
        }
    }

    fn wait(&mut self, now: Instant) -> std::io::Result<Ready> {
        let listening =
            if self.lobby.has_room(now) { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut interests = vec![(self.listener.as_fd(), listening)];
        let connected: Vec<(usize, &Channel)> =
            self.peers.iter().enumerate().filter_map(|(i, p)| Some((i, p.channel()?))).collect();
        interests.extend(connected.iter().map(|(_, c)| (c.as_fd(), c.interest())));
        interests.extend(self.dialling.iter().map(|d| (d.channel.as_fd(), d.interest())));
        interests.extend(self.lobby.channels().map(|c| (c.as_fd(), c.interest())));
        // Last, so that its absence would not shift the others; it is always there in a job of
        // more than one rank.
        interests.extend(self.shared.wake_event().map(|e| (e.as_fd(), PollFlags::POLLIN)));
        let flags = wait(&interests, self.next_time(now))?;

        let (listener, rest) = (flags[0], &flags[1..]);
        let (peers, rest) = rest.split_at(connected.len());
        let (dialling, rest) = rest.split_at(self.dialling.len());
        let (lobby, wake) = rest.split_at(self.lobby.channels().count());
        Ok(Ready {
            wake: wake.iter().any(|flags| !flags.is_empty()),
            listener: !listener.is_empty(),
            peers: connected.iter().zip(peers).map(|((i, _), flags)| (*i, *flags)).collect(),
            dialling: dialling.to_vec(),
            lobby: lobby.to_vec(),
        })
    }

    /// When something is to be done although nothing has come.
    fn next_time(&self, now: Instant) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Connecting { until, .. } => Some(*until),
            Phase::Leaving { until } | Phase::Closing { until } => Some(*until),
            Phase::Running => None,
            #[cfg(test)]
            Phase::Vanished => None,
        };
        let handshakes = self.dialling.iter().map(Dialling::gives_up_at);
        let redials = self.peers.iter().filter_map(|peer| peer.dials_at(now));
        phase.into_iter().chain(handshakes).chain(redials).chain(self.lobby.next_time()).min()
    }

    fn obey(&mut self, commands: Commands) {
        let Commands { floods, links, publications, ballots, stop } = commands;
        for cause in floods {
            self.flood(&Frame::Abort(cause), None);
        }
        for request in links {
            self.setup.request(request);
        }
        self.send_link_steps();
        let origin = self.shared.rank;
        for call in publications {
            self.flood(&Frame::Call { origin, call }, None);
        }
        self.ballots.extend(ballots);
        self.go_on_agreeing();
        if self.shared.job_abort().is_some() {
            self.fail_ballots();
        }
        match stop {
            None => {}
            Some(Stop::Goodbye { until }) => {
                self.flood(&Frame::Bye, None);
                self.phase = Phase::Leaving { until };
            }
            Some(Stop::Abrupt) => {
                self.phase = Phase::Closing { until: Instant::now() + CLOSE_LIMIT };
            }
            #[cfg(test)]
            Some(Stop::Vanish) => self.phase = Phase::Vanished,
        }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let written = self.peers.iter().all(|peer| peer.unwritten() == 0);
        match self.phase {
            Phase::Connecting { .. } | Phase::Running => false,
            Phase::Leaving { until } => {
                let heard = self.peers.iter().all(|peer| peer.said_bye || peer.is_gone());
                if self.shared.job_abort().is_some() {
                    self.phase = Phase::Closing { until: now + CLOSE_LIMIT };
                    return written;
                }
                heard && written || now >= until
            }
            Phase::Closing { until } => written || now >= until,
            #[cfg(test)]
            Phase::Vanished => true,
        }
    }

    /// Ends the connections so that what was written arrives: a socket that is closed with unread
    /// bytes is reset, and a reset may overtake what was sent before it (RFC 2525, 2.17).
    fn close(&mut self) {
        #[cfg(test)]
        if matches!(self.phase, Phase::Vanished) {
            return;
        }
        for peer in &mut self.peers {
            let Some(channel) = peer.channel_mut() else { continue };
            channel.end_writing();
            for _ in 0..READS_PER_TURN {
                if !matches!(channel.receive(), Ok(Received::Bytes)) {
                    break;
                }
                channel.input = Default::default();
            }
        }
    }

    fn flush(&mut self) {
        for index in 0..self.peers.len() {
            let Some(channel) = self.peers[index].channel_mut() else { continue };
            if channel.flush().is_err() {
                // What was not written is lost; what the other end still said is read first.
                channel.discard_output();
            }
        }
    }

    /// Reads what a neighbour has sent.
    fn read(&mut self, index: usize) {
        for _ in 0..READS_PER_TURN {
            let Some(channel) = self.peers[index].channel_mut() else { return };
            match channel.receive() {
                Ok(Received::Bytes) => self.take_frames(index),
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => return self.lost(index, "it closed the connection"),
                Err(error) => return self.lost(index, &error.to_string()),
            }
        }
    }

    /// The connection with a neighbour has ended.
    fn lost(&mut self, index: usize, how: &str) {
        let peer = &mut self.peers[index];
        peer.go();
        let (rank, said_bye) = (peer.rank, peer.said_bye);
        let closing = matches!(self.phase, Phase::Closing { .. });
        tracing::debug!(rank = self.shared.rank, peer = rank, how, said_bye, "connection ended");
        if !said_bye && !closing {
            // After an abort of the job this is no news, and is not recorded.
            let host = self.shared.peers[rank as usize].host.clone();
            self.abort(AbortKind::RankDied { rank, host });
        }
    }

    /// Aborts the job from this thread.
    pub(super) fn abort(&mut self, kind: AbortKind) {
        let origin = self.shared.rank;
        self.spread_abort(AbortCause { scope: AbortScope::Job, origin, kind }, None);
    }

    /// Records an abort and passes it on, if it is new.
    pub(super) fn spread_abort(&mut self, cause: AbortCause, from: Option<usize>) {
        let cause = cause.bounded();
        // On its way before the data path knows: a process that ends then has told the others.
        if self.shared.is_new_abort(&cause) {
            self.flood(&Frame::Abort(cause.clone()), from);
            self.flush();
            self.shared.record_abort(&cause);
        }
        if self.shared.job_abort().is_some() {
            self.fail_ballots();
        }
    }

    /// Every agreement that waits fails: the job is aborted.
    fn fail_ballots(&mut self) {
        let Some(cause) = self.shared.job_abort() else { return };
        let connecting = match &mut self.phase {
            Phase::Connecting { ballot, .. } => ballot.take(),
            _ => None,
        };
        let ballots = std::mem::take(&mut self.ballots).into_iter().chain(connecting);
        let replies = self.reply.take().into_iter().chain(ballots.map(|ballot| ballot.reply));
        for reply in replies {
            // Whoever asked may have left at its deadline.
            let _ = reply.send(Err(Error::Aborted(cause.clone())));
        }
    }

    /// Starts the next agreement, if none is active, and goes on with the active one.
    pub(super) fn go_on_agreeing(&mut self) {
        loop {
            if !self.agreement.is_active()
                && let Some(Ballot { purpose, vote, reply }) = self.ballots.pop_front()
            {
                self.leaving |= purpose == Purpose::Leave;
                self.agreement.start(self.shared.rank, purpose, vote);
                self.reply = Some(reply);
            }
            if !self.step_agreement() || self.ballots.is_empty() {
                break;
            }
        }
        self.shared.set_awaited(self.agreement.awaited());
    }
}
