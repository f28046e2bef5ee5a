//! A rank's way to the rendezvous and back with the address book.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::channel::{Channel, Received, wait};
use super::error::BootstrapError;
use super::frame::{FRAME_BYTES_MAX, encode};
use super::handshake::{ANSWER_BYTES, Claim, Dialler, Purpose, RENDEZVOUS_RANK, nonce};
use super::identity;
use super::lobby::HANDSHAKE_LIMIT;
use super::message::{Register, Reply};
use super::secret::{Key, Secret};
use super::server::KEY_LABEL;
use crate::link::PeerInfo;
use crate::wire::Rank;

/// The pause before the second try to connect; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What a rank needs to know to register.
pub(crate) struct Registration<'a> {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) address: &'a str,
    pub(crate) secret: &'a Secret,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
}

/// What a rank comes back with.
pub(crate) struct Registered {
    /// Tells the job from others with the same secret.
    pub(crate) job: [u8; 16],
    /// All ranks, by number.
    pub(crate) peers: Vec<PeerInfo>,
    /// Where the others will connect.
    pub(crate) listener: TcpListener,
}

/// How a try ended that did not succeed.
enum Failure {
    /// Another try may go better.
    Again(String),
    Final(BootstrapError),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Again(error.to_string())
    }
}

impl Registration<'_> {
    /// Registers and waits for the address book.
    pub(crate) fn register(&self) -> Result<Registered, BootstrapError> {
        let key = self.secret.derive(KEY_LABEL, b"");
        let mut pause = PAUSE_MIN;
        loop {
            let last = match self.try_once(&key) {
                Ok(registered) => return Ok(registered),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(last)) => last,
            };
            tracing::debug!(rank = self.rank, address = self.address, last, "rendezvous: retrying");
            if Instant::now() + pause >= self.deadline {
                return Err(BootstrapError::Unreachable {
                    rank: self.rank,
                    address: self.address.into(),
                    after_ms: self.elapsed_ms(),
                    last,
                });
            }
            // Spread, so that a thousand ranks do not come in step.
            std::thread::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0));
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    fn try_once(&self, key: &Key) -> Result<Registered, Failure> {
        let mut channel = self.connect()?;
        self.shake_hands(key, &mut channel)?;
        // The others reach this rank where the rendezvous is reached from.
        let ip = channel.local_address()?.ip();
        let listener = listen(ip).map_err(Failure::Final)?;
        let listening = listener.local_addr()?;
        let register = Register {
            peer: identity::describe(self.rank, vec![listening.to_string()]),
            size: self.size,
            patience_ms: self.left().as_millis() as u64,
        };
        let bytes = encode(&register, &[]).map_err(|e| self.broken_off(&e.to_string()))?;
        channel.queue(&bytes);
        let (job, peers) = self.read_book(&mut channel)?;
        Ok(Registered { job, peers, listener })
    }

    fn connect(&self) -> Result<Channel, Failure> {
        let resolved = self.address.to_socket_addrs();
        let addresses = match resolved {
            Ok(addresses) => addresses,
            // The text is no host:port; a name that cannot be resolved may be one later.
            Err(source) if source.kind() == std::io::ErrorKind::InvalidInput => {
                let address = self.address.into();
                return Err(Failure::Final(BootstrapError::Address {
                    rank: self.rank,
                    address,
                    source,
                }));
            }
            Err(error) => return Err(Failure::Again(error.to_string())),
        };
        let mut last = Failure::Again("the name has no address".into());
        for address in addresses {
            let limit = self.left().min(HANDSHAKE_LIMIT).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, limit).and_then(Channel::new) {
                // Where nobody listens on a loopback port of the ephemeral range, TCP may connect
                // a socket with itself (RFC 9293, simultaneous open).
                Ok(channel) if channel.local_address()? == address => {
                    last = Failure::Again("nobody listens there".into());
                }
                Ok(channel) => return Ok(channel),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    fn shake_hands(&self, key: &Key, channel: &mut Channel) -> Result<(), Failure> {
        let claim = Claim {
            purpose: Purpose::Rendezvous,
            rank: self.rank,
            size: self.size,
            target: RENDEZVOUS_RANK,
        };
        let nonce = nonce().map_err(|e| Failure::Final(super::SecretError::from(e).into()))?;
        let (dialler, hello) = Dialler::new(key.clone(), claim, nonce);
        channel.queue(&hello);
        let until = self.deadline.min(Instant::now() + HANDSHAKE_LIMIT);
        loop {
            if let Some(answer) = channel.input.take::<ANSWER_BYTES>() {
                let (_, finish) = dialler.finish(&answer).map_err(|e| self.stranger(e))?;
                channel.queue(&finish);
                return Ok(());
            }
            if !channel.input.begins_like(&super::handshake::MAGIC) {
                return Err(self.stranger(super::HandshakeError::Magic));
            }
            match exchange(channel, until)? {
                Some(Received::Bytes) => {}
                Some(_) => return Err(Failure::Again("it closed the connection".into())),
                None => {
                    let silent = "it took the connection but did not answer";
                    return Err(Failure::Again(silent.into()));
                }
            }
        }
    }

    /// Reads pages until the book is complete.
    fn read_book(&self, channel: &mut Channel) -> Result<([u8; 16], Vec<PeerInfo>), Failure> {
        let mut peers: Vec<PeerInfo> = Vec::new();
        let mut registered = false;
        loop {
            let next = channel.input.next::<Reply>(FRAME_BYTES_MAX);
            match next.map_err(|error| self.broken_off(&error.to_string()))? {
                Some((Reply::Registered, _)) => registered = true,
                Some((Reply::Refused(refusal), _)) => {
                    return Err(Failure::Final(BootstrapError::Refused(refusal)));
                }
                Some((Reply::Book { job, peers: page }, _)) => {
                    peers.extend(page);
                    self.check_book(&peers)?;
                    if peers.len() == self.size as usize {
                        return Ok((job, peers));
                    }
                }
                None => match exchange(channel, self.deadline) {
                    Ok(Some(Received::Bytes)) => {}
                    Ok(None) => {
                        return Err(Failure::Final(BootstrapError::Incomplete {
                            rank: self.rank,
                            address: self.address.into(),
                            size: self.size,
                            after_ms: self.elapsed_ms(),
                        }));
                    }
                    // Before it was registered it may just have had to make room for others.
                    _ if !registered => {
                        return Err(Failure::Again("it closed the connection".into()));
                    }
                    Ok(Some(_)) => return Err(self.broken_off("it closed the connection")),
                    Err(error) => return Err(self.broken_off(&error.to_string())),
                },
            }
        }
    }

    fn check_book(&self, peers: &[PeerInfo]) -> Result<(), Failure> {
        let in_order = peers.iter().enumerate().all(|(i, peer)| peer.rank as usize == i);
        if in_order && peers.len() <= self.size as usize {
            Ok(())
        } else {
            Err(self.broken_off("its address book is not in order"))
        }
    }

    fn stranger(&self, source: super::HandshakeError) -> Failure {
        let address = self.address.into();
        Failure::Final(BootstrapError::Stranger { rank: self.rank, address, source })
    }

    fn broken_off(&self, what: &str) -> Failure {
        let address = self.address.into();
        Failure::Final(BootstrapError::BrokenOff { rank: self.rank, address, what: what.into() })
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn elapsed_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// Writes what is queued and waits for something to read; `None` if `until` has come.
fn exchange(channel: &mut Channel, until: Instant) -> std::io::Result<Option<Received>> {
    loop {
        channel.flush()?;
        match channel.receive()? {
            Received::Nothing => {}
            received => return Ok(Some(received)),
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        wait(&[(channel.as_fd(), channel.interest())], Some(until))?;
    }
}

fn listen(ip: IpAddr) -> Result<TcpListener, BootstrapError> {
    let address = SocketAddr::new(ip, 0);
    let failed = |source| BootstrapError::Listen { address: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
