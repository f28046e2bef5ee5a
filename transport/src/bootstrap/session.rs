//! One rank's connection at the rendezvous, from its proof to its end.

use std::net::SocketAddr;
use std::time::Instant;

use super::channel::{Channel, Received};
use super::frame::encode;
use super::lobby::{Proved, log_dropped};
use super::message::{REGISTER_BYTES_MAX, Register, Reply};
use crate::wire::Rank;

pub(crate) struct Session {
    pub(crate) channel: Channel,
    pub(crate) since: Instant,
    /// The rank that it has registered as.
    pub(crate) registered: Option<Rank>,
    /// To be dropped.
    pub(crate) over: bool,
    from: SocketAddr,
    /// The rank that it has proved to be.
    rank: Rank,
}

/// What a connection came to.
pub(crate) enum Progress {
    /// Nothing yet.
    Waiting,
    /// It registers.
    Registers(Register),
    /// It has ended.
    Over,
}

impl Session {
    pub(crate) fn new(proved: Proved) -> Self {
        let Proved { channel, from, claim } = proved;
        let since = Instant::now();
        Self { channel, since, registered: None, over: false, from, rank: claim.rank }
    }

    /// Reads, writes, and takes the next step.
    pub(crate) fn advance(&mut self) -> Progress {
        self.flush();
        match self.channel.receive() {
            // Also without new bytes: the registration may have come with the proof.
            Ok(Received::Bytes | Received::Nothing) => match self.next_registration() {
                Ok(Some(register)) => return Progress::Registers(register),
                Ok(None) => {}
                Err(reason) => self.end(&reason),
            },
            Ok(Received::Closed) if self.registered.is_some() => self.over = true,
            Ok(Received::Closed) => self.end("it closed the connection before it had registered"),
            Err(error) => self.end(&error.to_string()),
        }
        if self.over { Progress::Over } else { Progress::Waiting }
    }

    pub(crate) fn send(&mut self, reply: &Reply) {
        let bytes = encode(reply, &[]).expect("replies are bounded");
        self.send_bytes(&bytes);
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.channel.queue(bytes);
        self.flush();
    }

    /// Ends the connection with one line in the log.
    pub(crate) fn end(&mut self, reason: &str) {
        if !self.over {
            self.over = true;
            log_dropped("rendezvous", self.from, reason);
        }
    }

    fn flush(&mut self) {
        if self.channel.flush().is_err() {
            // What was not written is lost; that the other end has gone shows when it is read.
            self.channel.discard_output();
        }
    }

    fn next_registration(&mut self) -> Result<Option<Register>, String> {
        let next = self.channel.input.next::<Register>(REGISTER_BYTES_MAX);
        match next.map_err(|error| error.to_string())? {
            None => Ok(None),
            Some(_) if self.registered.is_some() => Err("it registers twice".into()),
            Some((register, _)) if register.peer.rank == self.rank => Ok(Some(register)),
            Some(_) => Err("it registers as another rank".into()),
        }
    }
}
