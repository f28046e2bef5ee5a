//! The one definition of everything that crosses a link: message headers, grants and immediates.
//!
//! All integers are little-endian. A message is a [`MessageHeader`] of 48 bytes followed by at most
//! [`MESSAGE_PAYLOAD_MAX`] bytes of payload; an 8-byte eager broadcast with its header is 56 bytes
//! and fits into the 64 bytes that Soft-RoCE can send inline.

mod withdrawal;

use serde::{Deserialize, Serialize};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use withdrawal::{WithdrawalBody, WithdrawalKind, WithdrawnGrant};

/// Version of these layouts and of the control plane; both sides of a handshake compare it.
pub const PROTOCOL_VERSION: u8 = 5;

/// A rank's number in the job, from 0.
pub type Rank = u32;

/// Slots for messages at the receiver, per link.
pub const MESSAGE_SLOTS: u32 = 16;

/// Messages of one communicator that may be on their way to a peer, or there and not used yet; the
/// receiver returns them at half of it.
pub const MESSAGE_WINDOW: u32 = 16;

// A header has a byte for them.
const _: () = assert!(MESSAGE_WINDOW <= u8::MAX as u32);

/// Bytes of one message slot: header and payload.
pub const MESSAGE_SLOT_BYTES: usize = 4096 + MESSAGE_HEADER_BYTES;

/// Bytes of a message header.
pub const MESSAGE_HEADER_BYTES: usize = size_of::<MessageHeader>();

/// The longest payload of a message, in bytes; longer data travels as granted blocks.
pub const MESSAGE_PAYLOAD_MAX: usize = MESSAGE_SLOT_BYTES - MESSAGE_HEADER_BYTES;

/// Rails that a grant can describe.
pub const RAILS_MAX: usize = 8;

/// Lanes (queue pairs) that a link can have.
pub const LANES_MAX: usize = 64;

/// Bits of an operation handle in an immediate; the receiver chooses handles and reuses them only
/// after the operation has closed, or after every link that could still name it was rebuilt.
pub const HANDLE_BITS: u32 = 10;

/// Bits of a block number in an immediate.
pub const BLOCK_BITS: u32 = 20;

/// The most blocks that one operation may have; larger messages use larger blocks.
pub const BLOCKS_MAX: u32 = 1 << BLOCK_BITS;

/// The largest block, in bytes (Soft-RoCE's `max_msg_sz`; adapters allow more).
pub const BLOCK_BYTES_MAX: u64 = 8 << 20;

/// A block is striped over the lanes of a link when each lane gets at least this many bytes.
pub const STRIPE_MIN_BYTES: u64 = 32 << 10;

/// What a rank called: two ranks that meet under one communicator and operation number must have
/// the same signature, or the communicator is aborted and both calls are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature {
    /// Communicator: 0 is the one of all ranks; the others have the number of the rank that made
    /// them in the lower 32 bits, and which one of its communicators they are in the upper.
    pub communicator: u64,
    /// Number of the operation on that communicator, from 0.
    pub number: u64,
    /// Operation code ([`Operation::code`]).
    pub operation: u8,
    /// Algorithm code, as the collectives define it.
    pub algorithm: u8,
    /// Element type code; 0 is bytes.
    pub element: u8,
    /// Radix of the algorithm where it has one, else 0.
    pub radix: u8,
    /// Root rank.
    pub root: Rank,
    /// Bytes of the whole message.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// The operations that a signature can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Every rank gets the root's bytes.
    Broadcast,
    /// Rank i gets the i-th part of the root's bytes.
    Scatter,
    /// The root gets every rank's bytes.
    Gather,
    /// Every rank gets every rank's bytes.
    AllGather,
    /// No rank goes on before all have come.
    Barrier,
    /// A scatter of parts of different lengths.
    ScatterV,
    /// A gather of parts of different lengths.
    GatherV,
    /// An allgather of parts of different lengths.
    AllGatherV,
}

impl Operation {
    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Broadcast => 1,
            Self::Scatter => 2,
            Self::Gather => 3,
            Self::AllGather => 4,
            Self::Barrier => 5,
            Self::ScatterV => 6,
            Self::GatherV => 7,
            Self::AllGatherV => 8,
        }
    }

    /// The operation with this code, if there is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Broadcast),
            2 => Some(Self::Scatter),
            3 => Some(Self::Gather),
            4 => Some(Self::AllGather),
            5 => Some(Self::Barrier),
            6 => Some(Self::ScatterV),
            7 => Some(Self::GatherV),
            8 => Some(Self::AllGatherV),
            _ => None,
        }
    }

    /// The operation's name in messages to people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::AllGather => "allgather",
            Self::Barrier => "barrier",
            Self::ScatterV => "scatterv",
            Self::GatherV => "gatherv",
            Self::AllGatherV => "allgatherv",
        }
    }
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name =
            Operation::from_code(self.operation).map_or("unknown operation", Operation::name);
        let (nth, maker) = (self.communicator >> 32, self.communicator as u32);
        let communicator = match nth {
            0 => maker.to_string(),
            _ => format!("{maker}.{nth}"),
        };
        write!(
            f,
            "{name} number {} on communicator {} (root {}, {} bytes, algorithm code {}, element \
             type {}, blocks of {} bytes)",
            self.number,
            communicator,
            self.root,
            self.bytes,
            self.algorithm,
            self.element,
            self.block_bytes
        )
    }
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// The payload is the operation's data.
    Eager,
    /// The payload is a [`GrantBody`].
    Grant,
    /// The payload is a [`ReadyBody`]: a granted buffer may be written once more.
    Ready,
    /// No payload: only [returns](MessageHeader::returned) messages of the communicator, where no
    /// other message does. The endpoint takes it; no operation sees it.
    Credit,
    /// The payload is a [`CountBody`]: what the sender takes for the length of a part.
    Count,
}

impl MessageKind {
    const fn code(self) -> u8 {
        match self {
            Self::Eager => 1,
            Self::Grant => 2,
            Self::Ready => 3,
            Self::Credit => 4,
            Self::Count => 5,
        }
    }
}

/// The header of every message, 48 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MessageHeader {
    kind: u8,
    operation: u8,
    algorithm: u8,
    element: u8,
    communicator: U64,
    number: U64,
    root: U32,
    radix: u8,
    /// Messages of this communicator that the sender has used, and returns with this one.
    returned: u8,
    payload_bytes: U16,
    bytes: U64,
    block_bytes: U64,
    /// Which part of the operation an eager payload is (the block number).
    block: U32,
}

const _: () = assert!(size_of::<MessageHeader>() == 48);

/// Why bytes in a slot are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedMessage {
    /// The kind is none of this protocol version.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// The payload length is larger than a slot can hold.
    #[error("payload of {0} bytes does not fit a message slot")]
    PayloadLength(u16),
    /// A count's body has another length.
    #[error("count body is malformed")]
    Count,
    /// A grant's body is short or describes more rails than there can be.
    #[error("grant body is malformed")]
    Grant,
    /// A credit's body is short or names no handle.
    #[error("body of a credit for a granted buffer is malformed")]
    Ready,
    /// A withdrawal's body is short or names no handle.
    #[error("body of a withdrawal is malformed")]
    Withdrawal,
}

impl MessageHeader {
    /// A header for a message of `kind` with this signature, block and payload length.
    ///
    /// # Panics
    /// If `payload_bytes` is larger than [`MESSAGE_PAYLOAD_MAX`]: the caller chose the wrong path.
    #[must_use]
    pub fn new(kind: MessageKind, signature: &Signature, block: u32, payload_bytes: usize) -> Self {
        assert!(payload_bytes <= MESSAGE_PAYLOAD_MAX, "payload does not fit a message slot");
        Self {
            kind: kind.code(),
            operation: signature.operation,
            algorithm: signature.algorithm,
            element: signature.element,
            communicator: signature.communicator.into(),
            number: signature.number.into(),
            root: signature.root.into(),
            radix: signature.radix,
            returned: 0,
            payload_bytes: U16::new(payload_bytes as u16),
            bytes: signature.bytes.into(),
            block_bytes: signature.block_bytes.into(),
            block: block.into(),
        }
    }

    /// A header that returns messages of `communicator`, once it is told
    /// [how many](MessageHeader::returning).
    #[must_use]
    pub fn credit(communicator: u64) -> Self {
        Self {
            kind: MessageKind::Credit.code(),
            communicator: communicator.into(),
            ..Self::new_zeroed()
        }
    }

    /// The same, returning `messages` messages of its communicator to the peer that sent them; at
    /// most [`MESSAGE_WINDOW`].
    #[must_use]
    pub fn returning(self, messages: u32) -> Self {
        Self { returned: messages.min(MESSAGE_WINDOW) as u8, ..self }
    }

    /// How many messages of its communicator come back with it.
    #[must_use]
    pub fn returned(&self) -> u32 {
        self.returned.into()
    }

    /// The message's kind.
    ///
    /// # Errors
    /// [`MalformedMessage::Kind`] if it is none that this version knows.
    pub fn kind(&self) -> Result<MessageKind, MalformedMessage> {
        match self.kind {
            1 => Ok(MessageKind::Eager),
            2 => Ok(MessageKind::Grant),
            3 => Ok(MessageKind::Ready),
            4 => Ok(MessageKind::Credit),
            5 => Ok(MessageKind::Count),
            other => Err(MalformedMessage::Kind(other)),
        }
    }

    /// Bytes of payload behind the header.
    ///
    /// # Errors
    /// [`MalformedMessage::PayloadLength`] if that is more than a slot holds.
    pub fn payload_bytes(&self) -> Result<usize, MalformedMessage> {
        let bytes = self.payload_bytes.get();
        if usize::from(bytes) > MESSAGE_PAYLOAD_MAX {
            return Err(MalformedMessage::PayloadLength(bytes));
        }
        Ok(usize::from(bytes))
    }

    /// The block number of an eager payload.
    #[must_use]
    pub fn block(&self) -> u32 {
        self.block.get()
    }

    /// The sender's call.
    #[must_use]
    pub fn signature(&self) -> Signature {
        Signature {
            communicator: self.communicator.get(),
            number: self.number.get(),
            operation: self.operation,
            algorithm: self.algorithm,
            element: self.element,
            radix: self.radix,
            root: self.root.get(),
            bytes: self.bytes.get(),
            block_bytes: self.block_bytes.get(),
        }
    }
}

/// The payload of a grant: where the receiver's buffer is and what opens it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GrantBody {
    handle: U16,
    rails: U16,
    /// The receiver's epoch of the operation; shared-memory descriptors carry it back.
    epoch: U32,
    address: U64,
    bytes: U64,
    /// The parts of the operation that the buffer is for.
    first_part: U32,
    parts: U32,
    rkeys: [U32; RAILS_MAX],
}

/// A peer's buffer, as its grant described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Operation handle at the receiver.
    pub handle: u16,
    /// Epoch of the operation at the receiver.
    pub epoch: u32,
    /// Address of the buffer in the receiver's registered memory.
    pub address: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// The first part of the operation that the buffer is for, one for each rank; 0 in a broadcast.
    pub first_part: u32,
    /// How many parts it is for.
    pub parts: u32,
    /// Remote keys, one per rail of the receiver; unused ones are 0.
    pub rkeys: [u32; RAILS_MAX],
    /// How many rails the receiver has (0 over shared memory).
    pub rails: u16,
}

impl From<&Grant> for GrantBody {
    fn from(grant: &Grant) -> Self {
        Self {
            handle: grant.handle.into(),
            rails: grant.rails.into(),
            epoch: grant.epoch.into(),
            address: grant.address.into(),
            bytes: grant.bytes.into(),
            first_part: grant.first_part.into(),
            parts: grant.parts.into(),
            rkeys: grant.rkeys.map(U32::new),
        }
    }
}

impl Grant {
    /// A grant of the first part alone, without keys.
    pub(crate) fn of_memory(handle: u16, epoch: u32, address: usize, bytes: u64) -> Self {
        let address = address as u64;
        let rkeys = [0; RAILS_MAX];
        Self { handle, epoch, address, bytes, first_part: 0, parts: 1, rkeys, rails: 0 }
    }

    /// The grant in a message's payload.
    ///
    /// # Errors
    /// [`MalformedMessage::Grant`] if the bytes are no grant.
    pub fn read(payload: &[u8]) -> Result<Self, MalformedMessage> {
        let body = GrantBody::ref_from_bytes(payload).map_err(|_| MalformedMessage::Grant)?;
        let grant = Self {
            handle: body.handle.get(),
            epoch: body.epoch.get(),
            address: body.address.get(),
            bytes: body.bytes.get(),
            first_part: body.first_part.get(),
            parts: body.parts.get(),
            rkeys: body.rkeys.map(U32::get),
            rails: body.rails.get(),
        };
        let fits = usize::from(grant.rails) <= RAILS_MAX
            && grant.handle < 1 << HANDLE_BITS
            && grant.address.checked_add(grant.bytes).is_some()
            && grant.parts > 0
            && grant.first_part.checked_add(grant.parts).is_some();
        if fits { Ok(grant) } else { Err(MalformedMessage::Grant) }
    }
}

/// The payload of a credit for a persistent operation, 16 bytes: with its header it is sent inline.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadyBody {
    handle: U16,
    reserved: U16,
    epoch: U32,
    start: U64,
}

const _: () = assert!(size_of::<ReadyBody>() == 16);

/// A receiver's word that the buffer it has granted may be written once more, for this start of a
/// persistent operation. All blocks of earlier starts had arrived before it was sent, so that
/// none can come late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Operation handle, as in the [`Grant`].
    pub handle: u16,
    /// Epoch of the operation, as in the [`Grant`].
    pub epoch: u32,
    /// Number of the start, from 1: the grant itself stands for start 0.
    pub start: u64,
}

impl From<&Ready> for ReadyBody {
    fn from(ready: &Ready) -> Self {
        Self {
            handle: ready.handle.into(),
            reserved: 0.into(),
            epoch: ready.epoch.into(),
            start: ready.start.into(),
        }
    }
}

impl Ready {
    /// The credit in a message's payload.
    ///
    /// # Errors
    /// [`MalformedMessage::Ready`] if the bytes are none.
    pub fn read(payload: &[u8]) -> Result<Self, MalformedMessage> {
        let body = ReadyBody::ref_from_bytes(payload).map_err(|_| MalformedMessage::Ready)?;
        let handle = body.handle.get();
        if handle >= 1 << HANDLE_BITS {
            return Err(MalformedMessage::Ready);
        }
        Ok(Self { handle, epoch: body.epoch.get(), start: body.start.get() })
    }

    /// Whether it is for the buffer of this grant.
    #[must_use]
    pub fn is_for(&self, grant: &Grant) -> bool {
        (self.handle, self.epoch) == (grant.handle, grant.epoch)
    }
}

/// The payload of a count: ranks whose lengths for a part differ may otherwise wait for each other, one
/// for a message, one for a grant.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CountBody {
    part: U32,
    reserved: U32,
    bytes: U64,
}

impl CountBody {
    /// That a part has so many bytes.
    #[must_use]
    pub fn new(part: u32, bytes: u64) -> Self {
        Self { part: part.into(), reserved: U32::ZERO, bytes: bytes.into() }
    }

    /// Part and bytes in a message's payload.
    ///
    /// # Errors
    /// [`MalformedMessage::Count`] if the bytes are no count.
    pub fn read(payload: &[u8]) -> Result<(u32, u64), MalformedMessage> {
        let body = Self::ref_from_bytes(payload).map_err(|_| MalformedMessage::Count)?;
        Ok((body.part.get(), body.bytes.get()))
    }
}

/// The 32 bits that arrive with an RDMA write: `kind:2 handle:10 block:20` for a block,
/// `kind:2 slots:14 receives:16` for a credit, `kind:2 slot:30` for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// A block (or this lane's part of it) is in the granted buffer.
    Block {
        /// Operation handle, chosen by the receiver.
        handle: u16,
        /// Block number.
        block: u32,
    },
    /// A message is in the ring of message slots.
    Message {
        /// Slot number; the receiver checks it against the one it expects next.
        slot: u32,
    },
    /// Credits come back.
    Credit {
        /// Receives that were posted anew on this lane.
        receives: u16,
        /// Message slots that are free again.
        slots: u16,
    },
}

const KIND_BLOCK: u32 = 1;
const KIND_MESSAGE: u32 = 2;
const KIND_CREDIT: u32 = 3;

impl Immediate {
    /// The 32 bits.
    ///
    /// # Panics
    /// If a field is wider than its bits: whoever made it broke a bound that was checked before.
    #[must_use]
    pub fn encode(self) -> u32 {
        match self {
            Self::Block { handle, block } => {
                assert!(u32::from(handle) < 1 << HANDLE_BITS && block < BLOCKS_MAX);
                KIND_BLOCK << 30 | u32::from(handle) << BLOCK_BITS | block
            }
            Self::Message { slot } => {
                assert!(slot < 1 << 30);
                KIND_MESSAGE << 30 | slot
            }
            Self::Credit { receives, slots } => {
                assert!(slots < 1 << 14);
                KIND_CREDIT << 30 | u32::from(slots) << 16 | u32::from(receives)
            }
        }
    }

    /// What the 32 bits mean, or `None` if they mean nothing in this version.
    #[must_use]
    pub fn decode(bits: u32) -> Option<Self> {
        match bits >> 30 {
            KIND_BLOCK => Some(Self::Block {
                handle: (bits >> BLOCK_BITS & ((1 << HANDLE_BITS) - 1)) as u16,
                block: bits & (BLOCKS_MAX - 1),
            }),
            KIND_MESSAGE => Some(Self::Message { slot: bits & ((1 << 30) - 1) }),
            KIND_CREDIT => Some(Self::Credit {
                receives: (bits & 0xffff) as u16,
                slots: (bits >> 16 & 0x3fff) as u16,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_survive_the_wire_at_their_limits() {
        for imm in [
            Immediate::Block { handle: 0, block: 0 },
            Immediate::Block { handle: (1 << HANDLE_BITS) - 1, block: BLOCKS_MAX - 1 },
            Immediate::Message { slot: 0 },
            Immediate::Message { slot: (1 << 30) - 1 },
            Immediate::Credit { receives: u16::MAX, slots: (1 << 14) - 1 },
            Immediate::Credit { receives: 0, slots: 0 },
        ] {
            assert_eq!(Immediate::decode(imm.encode()), Some(imm));
        }
        assert_eq!(Immediate::decode(0), None);
    }

    #[test]
    fn a_header_gives_back_its_signature() {
        let signature = Signature {
            communicator: 3,
            number: u64::MAX - 1,
            operation: Operation::Broadcast.code(),
            algorithm: 9,
            element: 2,
            radix: 4,
            root: 7,
            bytes: 1 << 40,
            block_bytes: 65536,
        };
        let header = MessageHeader::new(MessageKind::Eager, &signature, 5, 8);
        let bytes: [u8; MESSAGE_HEADER_BYTES] = zerocopy::transmute!(header);
        let back = MessageHeader::ref_from_bytes(&bytes).unwrap();
        assert_eq!(back.signature(), signature);
        assert_eq!((back.kind(), back.block()), (Ok(MessageKind::Eager), 5));
        assert_eq!(back.payload_bytes(), Ok(8));
    }

    #[test]
    fn hostile_headers_and_grants_are_errors() {
        let header = MessageHeader::ref_from_bytes(&[0xff; MESSAGE_HEADER_BYTES]).unwrap();
        assert_eq!(header.kind(), Err(MalformedMessage::Kind(255)));
        assert_eq!(header.payload_bytes(), Err(MalformedMessage::PayloadLength(65535)));
        assert_eq!(Grant::read(&[0xff; size_of::<GrantBody>()]), Err(MalformedMessage::Grant));
        assert_eq!(Grant::read(&[0; 7]), Err(MalformedMessage::Grant));
        assert_eq!(Ready::read(&[0xff; 16]), Err(MalformedMessage::Ready));
        assert_eq!(Ready::read(&[0; 17]), Err(MalformedMessage::Ready));
        let ready = Ready { handle: 1023, epoch: 7, start: u64::MAX };
        assert_eq!(Ready::read(ReadyBody::from(&ready).as_bytes()), Ok(ready));
    }
}
