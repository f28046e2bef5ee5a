//! One connection at the rendezvous, from its arrival to its end.

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::channel::{Channel, Received};
use super::frame::encode;
use super::handshake::{Acceptor, Claim, HELLO_BYTES, MAGIC, Purpose, RENDEZVOUS_RANK, nonce};
use super::message::{REGISTER_BYTES_MAX, Register, Reply};
use super::secret::Key;
use crate::wire::Rank;

pub(crate) struct Session {
    pub(crate) channel: Channel,
    pub(crate) since: Instant,
    /// It has proved that it knows the secret.
    pub(crate) proved: bool,
    /// The rank that it has registered as.
    pub(crate) registered: Option<Rank>,
    /// To be dropped.
    pub(crate) over: bool,
    peer: SocketAddr,
    stage: Stage,
}

enum Stage {
    Hello,
    Finish(Acceptor),
    Register(Claim),
    Registered,
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
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr) -> std::io::Result<Self> {
        Ok(Self {
            channel: Channel::new(stream)?,
            since: Instant::now(),
            proved: false,
            registered: None,
            over: false,
            peer,
            stage: Stage::Hello,
        })
    }

    /// Reads, writes, and takes the next step.
    pub(crate) fn advance(&mut self, key: &Key, size: u32) -> Progress {
        self.flush();
        let received = self.channel.receive();
        if matches!(received, Ok(Received::Bytes)) {
            match self.step(key, size) {
                Ok(Some(register)) => return Progress::Registers(register),
                Ok(None) => {}
                Err(reason) => self.drop_stranger(&reason),
            }
        } else if !matches!(received, Ok(Received::Nothing)) {
            if self.registered.is_some() {
                self.over = true;
            } else {
                self.drop_stranger("it closed the connection before it had registered");
            }
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
    pub(crate) fn drop_stranger(&mut self, reason: &str) {
        if !self.over {
            self.over = true;
            tracing::warn!(peer = %self.peer, reason, "rendezvous: connection dropped");
        }
    }

    fn flush(&mut self) {
        if self.channel.flush().is_err() {
            // What was not written is lost; that the other end has gone shows when it is read.
            self.channel.discard_output();
        }
    }

    fn step(&mut self, key: &Key, size: u32) -> Result<Option<Register>, String> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Registered) {
                Stage::Hello => {
                    let Some(hello) = self.channel.input.take() else {
                        self.stage = Stage::Hello;
                        return self.keep_waiting_for_hello();
                    };
                    self.answer(key, size, &hello)?;
                }
                Stage::Finish(acceptor) => {
                    let Some(finish) = self.channel.input.take() else {
                        self.stage = Stage::Finish(acceptor);
                        return Ok(None);
                    };
                    let claim = acceptor.accept(&finish).map_err(|error| error.to_string())?;
                    self.proved = true;
                    self.stage = Stage::Register(claim);
                }
                Stage::Register(claim) => {
                    let next = self.channel.input.next::<Register>(REGISTER_BYTES_MAX);
                    match next.map_err(|error| error.to_string())? {
                        Some((register, _)) if register.peer.rank == claim.rank => {
                            return Ok(Some(register));
                        }
                        Some(_) => return Err("it registers as another rank".into()),
                        None => self.stage = Stage::Register(claim),
                    }
                    return Ok(None);
                }
                Stage::Registered => return Err("it speaks after it has registered".into()),
            }
        }
    }

    /// Garbage is known by its first bytes: it need not wait for the length of a hello.
    fn keep_waiting_for_hello(&self) -> Result<Option<Register>, String> {
        if self.channel.input.begins_like(&MAGIC) {
            Ok(None)
        } else {
            Err(super::HandshakeError::Magic.to_string())
        }
    }

    fn answer(&mut self, key: &Key, size: u32, hello: &[u8; HELLO_BYTES]) -> Result<(), String> {
        let claim = Claim {
            purpose: Purpose::Rendezvous,
            rank: RENDEZVOUS_RANK,
            size,
            target: RENDEZVOUS_RANK,
        };
        let nonce = nonce().map_err(|error| error.to_string())?;
        match Acceptor::answer(key.clone(), claim, nonce, hello) {
            Ok((acceptor, answer)) => {
                self.send_bytes(&answer);
                self.stage = Stage::Finish(acceptor);
                Ok(())
            }
            Err((error, answer)) => {
                if let Some(answer) = answer {
                    self.send_bytes(&answer);
                }
                Err(error.to_string())
            }
        }
    }
}
