//! What endpoints tell each other, beside all operations, about grants that are taken back.
//!
//! A receiver that gives up names its grant (*withdraw*). The sender writes nothing more under it,
//! and answers (*withdrawn*) with how many writes it has given each lane of the link so far: when
//! as many have come over each of them, nothing under that grant is on its way any more. Lanes have
//! no order among each other, so that the answer alone, or a completion at the sender, would not
//! say so.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Grant, HANDLE_BITS, LANES_MAX, MESSAGE_PAYLOAD_MAX, MalformedMessage, MessageHeader};

/// Which of the two messages. They are none of the [`MessageKind`](super::MessageKind)s, which are
/// an operation's: no operation sees them, and they need no room in its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithdrawalKind {
    /// The receiver takes a grant back.
    Withdraw,
    /// The sender writes nothing more under it.
    Withdrawn,
}

impl WithdrawalKind {
    const fn code(self) -> u8 {
        match self {
            Self::Withdraw => 6,
            Self::Withdrawn => 7,
        }
    }
}

impl MessageHeader {
    /// A header for a withdrawal with this many bytes of payload.
    pub(crate) fn withdrawal(kind: WithdrawalKind, body: &[u8]) -> Self {
        let payload_bytes = U16::new(body.len() as u16);
        Self { kind: kind.code(), payload_bytes, ..Self::new_zeroed() }
    }

    /// Which withdrawal the message is, if it is one.
    #[must_use]
    pub fn withdrawal_kind(&self) -> Option<WithdrawalKind> {
        let kinds = [WithdrawalKind::Withdraw, WithdrawalKind::Withdrawn];
        kinds.into_iter().find(|kind| kind.code() == self.kind)
    }
}

/// The payload of a withdrawal: only as many counts as it has lanes are sent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct WithdrawalBody {
    handle: U16,
    lanes: U16,
    epoch: U32,
    writes: [U64; LANES_MAX],
}

/// Bytes of a body without counts.
const FIXED_BYTES: usize = size_of::<WithdrawalBody>() - LANES_MAX * size_of::<U64>();

const _: () = assert!(size_of::<WithdrawalBody>() <= MESSAGE_PAYLOAD_MAX);

impl WithdrawalBody {
    /// That of a grant, with the writes that each lane was given.
    pub(crate) fn new(grant: WithdrawnGrant, writes: impl Iterator<Item = u64>) -> Self {
        let mut body = Self::new_zeroed();
        body.handle = grant.handle.into();
        body.epoch = grant.epoch.into();
        for (place, count) in body.writes.iter_mut().zip(writes) {
            *place = count.into();
            body.lanes += 1;
        }
        body
    }

    /// What is sent of it.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.as_bytes()[..FIXED_BYTES + usize::from(self.lanes.get()) * size_of::<U64>()]
    }

    /// The grant and the counts in a message's payload.
    ///
    /// # Errors
    /// [`MalformedMessage::Withdrawal`] if the bytes are none.
    pub fn read(payload: &[u8]) -> Result<Self, MalformedMessage> {
        let malformed = MalformedMessage::Withdrawal;
        let mut body = Self::new_zeroed();
        let bytes = body.as_mut_bytes().get_mut(..payload.len()).ok_or(malformed)?;
        bytes.copy_from_slice(payload);
        let lanes = usize::from(body.lanes.get());
        let is_whole =
            payload.len() >= FIXED_BYTES && payload.len() - FIXED_BYTES == lanes * size_of::<U64>();
        if is_whole && body.handle.get() < 1 << HANDLE_BITS { Ok(body) } else { Err(malformed) }
    }

    /// The grant.
    #[must_use]
    pub fn grant(&self) -> WithdrawnGrant {
        WithdrawnGrant { handle: self.handle.get(), epoch: self.epoch.get() }
    }

    /// The writes that each lane was given.
    pub fn writes(&self) -> impl ExactSizeIterator<Item = u64> {
        let lanes = usize::from(self.lanes.get()).min(LANES_MAX);
        self.writes[..lanes].iter().map(|count| count.get())
    }
}

/// What names a grant of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithdrawnGrant {
    /// Operation handle, as in the [`Grant`].
    pub handle: u16,
    /// Epoch of the operation, as in the [`Grant`].
    pub epoch: u32,
}

impl From<&Grant> for WithdrawnGrant {
    fn from(grant: &Grant) -> Self {
        Self { handle: grant.handle, epoch: grant.epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawal_comes_back_whole_or_is_an_error() {
        let grant = WithdrawnGrant { handle: 1023, epoch: 7 };
        for lanes in [0, 1, 3, LANES_MAX as u64] {
            let body = WithdrawalBody::new(grant, (0..lanes).map(|lane| u64::MAX - lane));
            let payload = body.payload();
            let header = MessageHeader::withdrawal(WithdrawalKind::Withdrawn, payload);
            assert_eq!(header.withdrawal_kind(), Some(WithdrawalKind::Withdrawn));
            assert_eq!(header.kind(), Err(MalformedMessage::Kind(7)), "no operation's");
            assert_eq!(header.payload_bytes(), Ok(payload.len()));
            let back = WithdrawalBody::read(payload).unwrap();
            assert_eq!(back.grant(), grant);
            assert!(back.writes().eq((0..lanes).map(|lane| u64::MAX - lane)));
            let short = WithdrawalBody::read(&payload[..payload.len() - 1]);
            assert_eq!(short.err(), Some(MalformedMessage::Withdrawal));
        }
        for hostile in [&[][..], &[0xff; 8], &[0xff; 520], &[0; 9], &[0; 4096]] {
            assert_eq!(WithdrawalBody::read(hostile).err(), Some(MalformedMessage::Withdrawal));
        }
        let kind = MessageHeader::credit(0).withdrawal_kind();
        assert_eq!(kind, None);
    }
}
