//! Connections that have arrived and not proved yet that they belong to the job.
//!
//! Anybody can open one, so their number, their time and what they may send are bounded; each that
//! is dropped leaves one warning in the log.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::HandshakeError;
use super::channel::{Channel, Received};
use super::handshake::{Acceptor, Claim, HELLO_BYTES, MAGIC, Rejection, nonce};
use super::secret::Key;

/// How long a handshake may take, and a registration after it.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Connections that may wait; when as many are there, the oldest makes room for the next, unless
/// it is younger than [`PENDING_PROTECTED`].
pub(crate) const PENDING_MAX: usize = 64;

/// A rank needs far less than this for its handshake, also among a thousand that come at once.
const PENDING_PROTECTED: Duration = Duration::from_millis(500);

/// Where connections wait until they have proved themselves.
pub(crate) struct Lobby {
    /// Whose it is, for the log.
    what: &'static str,
    key: Key,
    claim: Claim,
    /// In the order of their arrival.
    waiting: Vec<Incoming>,
}

struct Incoming {
    channel: Channel,
    from: SocketAddr,
    since: Instant,
    stage: Stage,
}

enum Stage {
    Hello,
    Finish(Box<Acceptor>),
    Proved(Claim),
}

/// A connection that has proved itself.
pub(crate) struct Proved {
    pub(crate) channel: Channel,
    pub(crate) from: SocketAddr,
    pub(crate) claim: Claim,
}

impl Lobby {
    /// An empty one; `claim` is what this end says of itself.
    pub(crate) fn new(what: &'static str, key: Key, claim: Claim) -> Self {
        Self { what, key, claim, waiting: Vec::new() }
    }

    /// Whether another connection can be taken. Drops those whose time is over, and the oldest if
    /// room is needed.
    pub(crate) fn has_room(&mut self, now: Instant) -> bool {
        let what = self.what;
        self.waiting.retain(|incoming| {
            let in_time = now < incoming.since + HANDSHAKE_LIMIT;
            if !in_time {
                log_dropped(what, incoming.from, "it did not prove itself in time");
            }
            in_time
        });
        if self.waiting.len() < PENDING_MAX {
            return true;
        }
        if now < self.waiting[0].since + PENDING_PROTECTED {
            return false;
        }
        let oldest = self.waiting.remove(0);
        log_dropped(what, oldest.from, "too many connections are waiting");
        true
    }

    /// When [`Lobby::has_room`] is to be asked again at the latest.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let full = self.waiting.len() >= PENDING_MAX;
        let limit = if full { PENDING_PROTECTED } else { HANDSHAKE_LIMIT };
        self.waiting.first().map(|oldest| oldest.since + limit)
    }

    /// What waits, in the order that [`Lobby::advance`] expects.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.waiting.iter().map(|incoming| &incoming.channel)
    }

    /// Takes a connection, if there is one.
    pub(crate) fn accept(&mut self, listener: &TcpListener) {
        match listener.accept() {
            Ok((stream, from)) => match Incoming::new(stream, from) {
                Ok(incoming) => self.waiting.push(incoming),
                Err(error) => log_dropped(self.what, from, &error.to_string()),
            },
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(what = self.what, %error, "cannot accept a connection");
                // Out of descriptors, say: without a pause the caller would spin.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Goes on with the connections that are ready; those that have proved themselves leave.
    pub(crate) fn advance(&mut self, ready: &[PollFlags]) -> Vec<Proved> {
        let mut proved = Vec::new();
        let waiting = std::mem::take(&mut self.waiting);
        for (index, mut incoming) in waiting.into_iter().enumerate() {
            if ready.get(index).is_some_and(|flags| !flags.is_empty())
                && let Err(reason) = incoming.advance(&self.key, self.claim)
            {
                log_dropped(self.what, incoming.from, &reason);
                continue;
            }
            match incoming.stage {
                Stage::Proved(claim) => {
                    proved.push(Proved { channel: incoming.channel, from: incoming.from, claim })
                }
                Stage::Hello | Stage::Finish(_) => self.waiting.push(incoming),
            }
        }
        proved
    }
}

/// The one line that a dropped connection leaves.
pub(crate) fn log_dropped(what: &str, from: SocketAddr, reason: &str) {
    tracing::warn!(what, %from, reason, "connection dropped");
}

impl Incoming {
    fn new(stream: TcpStream, from: SocketAddr) -> std::io::Result<Self> {
        let channel = Channel::new(stream)?;
        Ok(Self { channel, from, since: Instant::now(), stage: Stage::Hello })
    }

    fn advance(&mut self, key: &Key, claim: Claim) -> Result<(), String> {
        self.channel.flush().map_err(|error| error.to_string())?;
        match self.channel.receive() {
            Ok(Received::Bytes) => self.step(key, claim),
            Ok(Received::Nothing) => Ok(()),
            Ok(Received::Closed) => Err("it closed the connection".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn step(&mut self, key: &Key, claim: Claim) -> Result<(), String> {
        if matches!(self.stage, Stage::Hello) {
            let Some(hello) = self.channel.input.take() else {
                // Garbage is known by its first bytes, before it has the length of a hello.
                return if self.channel.input.begins_like(&MAGIC) {
                    Ok(())
                } else {
                    Err(HandshakeError::Magic.to_string())
                };
            };
            self.answer(key, claim, &hello)?;
        }
        if let Stage::Finish(_) = &self.stage
            && let Some(finish) = self.channel.input.take()
            && let Stage::Finish(acceptor) = std::mem::replace(&mut self.stage, Stage::Hello)
        {
            let dialler = acceptor.accept(&finish).map_err(|error| error.to_string())?;
            self.stage = Stage::Proved(dialler);
        }
        Ok(())
    }

    fn answer(&mut self, key: &Key, claim: Claim, hello: &[u8; HELLO_BYTES]) -> Result<(), String> {
        let nonce = nonce().map_err(|error| error.to_string())?;
        match Acceptor::answer(key.clone(), claim, nonce, hello) {
            Ok((acceptor, answer)) => {
                self.channel.queue(&answer);
                self.stage = Stage::Finish(Box::new(acceptor));
                self.channel.flush().map_err(|error| error.to_string())
            }
            Err(Rejection { error, answer }) => {
                if let Some(answer) = answer {
                    self.channel.queue(&answer);
                    // Best effort: it is dropped in any case.
                    let _ = self.channel.flush();
                }
                Err(error.to_string())
            }
        }
    }
}
