//! Latency and bandwidth of one shared-memory link, between two processes or threads of this host.
//!
//! Both sides call the same methods in the same order; rank 0 sends first.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::bell::{Mode, ShmBell};
use super::{ShmConnector, ShmFabric, ShmSettings, open};
use crate::error::Error;
use crate::link::{
    BlockSend, Connector, Event, Events, Fabric, PeerInfo, Posting, ReceiveTable, Slot, Span,
};
use crate::wire::{Grant, GrantBody, MessageHeader, MessageKind, Operation, Rank, Signature};

/// Neither side waits longer for the other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Set-up bytes of a link are shorter.
const SETUP_BYTES_MAX: u32 = 64 << 10;

/// How a side waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Polls all the time.
    Spin,
    /// Sleeps at once when there is nothing.
    Sleep,
}

/// One side of a measured link.
pub struct Measurement {
    rank: Rank,
    peer: Rank,
    waiting: Waiting,
    fabric: ShmFabric,
    bell: Arc<ShmBell>,
    receives: ReceiveTable,
    events: Events,
}

impl Measurement {
    /// Sets the link up over `stream`, whose other end does the same with the other of the ranks 0
    /// and 1.
    ///
    /// # Errors
    /// If the stream ends or no link can be made.
    pub fn join<S: Read + Write>(
        settings: ShmSettings,
        waiting: Waiting,
        stream: &mut S,
    ) -> Result<Self, Error> {
        let rank = settings.rank;
        let (fabric, connector, bell) = open(settings)?;
        let peer = connect(rank, &connector, stream).map_err(|source| Error::System {
            rank,
            what: "setting the link up",
            source,
        })??;
        let (receives, events) = (ReceiveTable::default(), Events::with_capacity(64));
        let mut new = Self { rank, peer, waiting, fabric, bell, receives, events };
        if new.fabric.is_up(peer) { Ok(new) } else { Err(new.broken("it did not come up")) }
    }

    /// Sends an 8-byte message to and fro `rounds` times; the mean of half a round trip.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn ping_pong(&mut self, rounds: u32) -> Result<Duration, Error> {
        let begun = Instant::now();
        for round in 0..u64::from(rounds) {
            if self.rank == 0 {
                self.send(round, &round.to_le_bytes())?;
            }
            if !self.receive(round, |payload| payload == round.to_le_bytes())? {
                return Err(self.broken("a message arrived with other contents"));
            }
            if self.rank != 0 {
                self.send(round, &round.to_le_bytes())?;
            }
        }
        Ok(begun.elapsed() / (2 * rounds.max(1)))
    }

    /// Moves `buffer` of rank 0 into `buffer` of rank 1 in blocks of `block_bytes`; the time until
    /// rank 0 knows that all of it is there. Both buffers have the same length.
    ///
    /// # Errors
    /// If the link breaks, or `block_bytes` is 0.
    pub fn stream(&mut self, buffer: &mut [u8], block_bytes: u64) -> Result<Duration, Error> {
        if block_bytes == 0 {
            return Err(Error::Invalid("blocks of 0 bytes".into()));
        }
        let blocks = u32::try_from((buffer.len() as u64).div_ceil(block_bytes))
            .map_err(|_| Error::Invalid("too many blocks".into()))?;
        let address = buffer.as_mut_ptr().expose_provenance();
        let bytes = buffer.len() as u64;
        // Both sides are here before the clock starts.
        self.ping_pong(1)?;
        let result = if self.rank == 0 {
            let span = Span { address, bytes, writable: false, keys: Vec::new() };
            self.send_blocks(&span, blocks, block_bytes)
        } else {
            self.receive_blocks(address, bytes, blocks, block_bytes)
        };
        if result.is_err() {
            // The buffer goes back to the caller: nothing may use it any more.
            self.fabric.quiesce(self.peer);
        }
        result
    }

    fn send_blocks(
        &mut self,
        span: &Span,
        blocks: u32,
        block_bytes: u64,
    ) -> Result<Duration, Error> {
        let grant =
            self.receive(0, Grant::read)?.map_err(|_| self.broken("the grant is malformed"))?;
        if grant.bytes != span.bytes {
            return Err(self.broken("the two buffers have different lengths"));
        }
        let begun = Instant::now();
        let (mut posted, mut sent, mut arrived) = (0, 0, false);
        while sent < blocks || !arrived {
            while posted < blocks {
                let offset = u64::from(posted) * block_bytes;
                let range = offset..(offset + block_bytes).min(span.bytes);
                let (peer, block, token) = (self.peer, posted, u64::from(posted));
                let send = BlockSend { peer, grant: &grant, span, range, offset, block, token };
                if self.fabric.send_block(&send)? == Posting::Full {
                    break;
                }
                posted += 1;
            }
            match self.wait()? {
                Event::Sent { .. } => sent += 1,
                // The message that all is there may be seen before the last blocks' `Sent`.
                Event::Message { slot } => {
                    self.read(slot, 1, |_| ())?;
                    arrived = true;
                }
                _ => return Err(self.broken("something else arrived")),
            }
        }
        Ok(begun.elapsed())
    }

    fn receive_blocks(
        &mut self,
        address: usize,
        bytes: u64,
        blocks: u32,
        block_bytes: u64,
    ) -> Result<Duration, Error> {
        let begun = Instant::now();
        let (handle, epoch) = self
            .receives
            .open(address, crate::layout::Layout::new(1, bytes, block_bytes).expect("a layout"))
            .ok_or_else(|| self.broken("no handle is free"))?;
        let grant = Grant::of_memory(handle, epoch, address, bytes);
        let outcome = self.take_blocks(&grant, blocks);
        self.receives.close(handle);
        outcome?;
        self.send(1, &[])?;
        Ok(begun.elapsed())
    }

    fn take_blocks(&mut self, grant: &Grant, blocks: u32) -> Result<(), Error> {
        self.send(0, GrantBody::from(grant).as_bytes())?;
        for _ in 0..blocks {
            let Event::Block { .. } = self.wait()? else {
                return Err(self.broken("something else arrived"));
            };
        }
        Ok(())
    }

    fn send(&mut self, number: u64, payload: &[u8]) -> Result<(), Error> {
        let header = MessageHeader::new(
            MessageKind::Eager,
            &Signature {
                communicator: 0,
                number,
                operation: Operation::Barrier.code(),
                algorithm: 0,
                element: 0,
                radix: 0,
                root: 0,
                bytes: payload.len() as u64,
                block_bytes: 0,
            },
            0,
            payload.len(),
        );
        match self.fabric.send_message(self.peer, &header, payload)? {
            Posting::Posted => self.fabric.flush(),
            Posting::Full => Err(self.broken("no slot is free")),
        }
    }

    /// Waits for a message and reads it.
    fn receive<T>(&mut self, number: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        match self.wait()? {
            Event::Message { slot } => self.read(slot, number, read),
            _ => Err(self.broken("something else arrived")),
        }
    }

    /// Reads a message that has arrived, which must have this number.
    fn read<T>(
        &mut self,
        slot: Slot,
        number: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Error> {
        let (header, payload) = self.fabric.message(slot)?;
        let result = (header.signature().number == number).then(|| read(payload));
        self.fabric.release(slot);
        result.ok_or_else(|| self.broken("the two sides do not measure the same"))
    }

    fn wait(&mut self) -> Result<Event, Error> {
        let deadline = Instant::now() + PATIENCE;
        self.fabric.flush()?;
        loop {
            for _ in 0..1000 {
                if let Some(event) = self.events.pop() {
                    return match event {
                        Event::Broken { .. } => Err(self.broken("it broke")),
                        event => Ok(event),
                    };
                }
                if !self.fabric.poll(&self.receives, &mut self.events)? {
                    if self.waiting == Waiting::Sleep {
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
            if self.waiting == Waiting::Sleep && self.events.is_empty() {
                self.bell.arm(Mode::Futex);
                if !self.fabric.poll(&self.receives, &mut self.events)? {
                    self.bell.sleep(Some(deadline));
                }
                self.bell.disarm();
            }
            if Instant::now() > deadline {
                return Err(self.broken("the other side is silent"));
            }
        }
    }

    fn broken(&self, reason: &str) -> Error {
        let reason = self.fabric.break_reason(self.peer).unwrap_or_else(|| reason.to_owned());
        Error::Link { rank: self.rank, peer: self.peer, reason }
    }
}

/// Exchanges set-up bytes; the outer error is the stream's, the inner one the link's.
fn connect<S: Read + Write>(
    rank: Rank,
    connector: &ShmConnector,
    stream: &mut S,
) -> std::io::Result<Result<Rank, Error>> {
    let own = crate::bootstrap::identity::describe(rank, Vec::new());
    write_frame(stream, &serde_json::to_vec(&own)?)?;
    let peer: PeerInfo = serde_json::from_slice(&read_frame(stream)?)?;
    if rank == peer.rank {
        return Ok(Err(Error::Invalid(format!("both sides are rank {rank}"))));
    }
    if rank < peer.rank {
        let offer = match connector.offer(&peer, 0) {
            Ok(offer) => offer,
            Err(error) => return Ok(Err(error)),
        };
        write_frame(stream, &offer)?;
        let answer = read_frame(stream)?;
        if let Err(error) = connector.complete(&peer, &answer) {
            return Ok(Err(error));
        }
        write_frame(stream, &[])?;
    } else {
        let answer = match connector.accept(&peer, &read_frame(stream)?) {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        write_frame(stream, &answer)?;
        read_frame(stream)?;
        if let Err(error) = connector.confirm(&peer) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(peer.rank))
}

fn write_frame(stream: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&(bytes.len() as u32).to_le_bytes())?;
    stream.write_all(bytes)
}

fn read_frame(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > SETUP_BYTES_MAX {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_sides_measure_and_the_bytes_arrive() {
        for (cma, waiting) in [(true, Waiting::Sleep), (false, Waiting::Spin)] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            let run = move |rank, stream: &mut UnixStream| {
                let settings = ShmSettings { cma, ..ShmSettings::new(rank) };
                let mut side = Measurement::join(settings, waiting, stream).unwrap();
                side.ping_pong(10).unwrap();
                let mut buffer = vec![if rank == 0 { 7_u8 } else { 0 }; 1_000_003];
                side.stream(&mut buffer, 4096).unwrap();
                side.ping_pong(1).unwrap();
                buffer
            };
            let other = std::thread::spawn(move || run(1, &mut theirs));
            run(0, &mut ours);
            assert!(other.join().unwrap().iter().all(|byte| *byte == 7));
        }
    }
}
