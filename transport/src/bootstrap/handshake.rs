//! The handshake of every control connection: both ends prove that they know the job's key.
//!
//! Sans IO: [`Dialler`] and [`Acceptor`] turn messages into messages. All have a fixed length:
//!
//! | message | from | bytes | content |
//! |---|---|---|---|
//! | hello | dialler | 52 | `VBCT`, version, role, purpose, 0, rank, size, target, nonce of 32 bytes |
//! | answer | acceptor | 52 + 32 | the same of the acceptor; tag over hello and answer |
//! | finish | dialler | 32 | tag over hello, answer and the acceptor's tag |
//!
//! Tags are HMAC-SHA256 under a key that the job secret and the purpose give. Each role tags under
//! a label of its own, so no tag can be reflected; each end's nonce is in every tag, so none can be
//! replayed; every bit that was sent is tagged, so none can be changed. The acceptor proves itself
//! first: a rank with the wrong secret learns that it has the wrong one.
//!
//! What follows on the connection is neither encrypted nor tagged: whoever can rewrite packets
//! between the hosts is outside of what this protects from.

use crate::bootstrap::secret::{Key, TAG_BYTES};
use crate::wire::{PROTOCOL_VERSION, Rank};

/// Bytes of a hello.
pub(crate) const HELLO_BYTES: usize = 52;

/// Bytes of an answer.
pub(crate) const ANSWER_BYTES: usize = HELLO_BYTES + TAG_BYTES;

/// Bytes of a finish.
pub(crate) const FINISH_BYTES: usize = TAG_BYTES;

/// Stands for the rendezvous where a rank is expected.
pub(crate) const RENDEZVOUS_RANK: Rank = Rank::MAX;

/// What every hello and answer begins with.
pub(crate) const MAGIC: [u8; 4] = *b"VBCT";
const ROLE_DIALLER: u8 = 1;
const ROLE_ACCEPTOR: u8 = 2;
const ACCEPTOR_LABEL: &[u8] = b"verbcast handshake acceptor";
const DIALLER_LABEL: &[u8] = b"verbcast handshake dialler";

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The other end does not speak this protocol at all.
    #[error("it does not speak the Verbcast protocol")]
    Magic,
    /// The other end speaks another version.
    #[error(
        "it speaks version {theirs} of the protocol, this is version {ours}: use one release of Verbcast for the whole job"
    )]
    Version {
        /// Our version.
        ours: u8,
        /// The other end's.
        theirs: u8,
    },
    /// The other end is in the wrong role, or wants something else from this port.
    #[error("it is in the wrong role or wants something else")]
    Role,
    /// The other end does not know the job's secret.
    #[error(
        "it does not know this job's secret: give every process the same VERBCAST_JOB_SECRET (or VERBCAST_JOB_SECRET_FILE)"
    )]
    Secret,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A rank registers.
    Rendezvous,
    /// Two ranks talk.
    Overlay,
}

impl Purpose {
    const fn code(self) -> u8 {
        match self {
            Self::Rendezvous => 1,
            Self::Overlay => 2,
        }
    }
}

/// One end's view of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// What the connection is for.
    pub(crate) purpose: Purpose,
    /// Who speaks.
    pub(crate) rank: Rank,
    /// Ranks of the job, as this end was told.
    pub(crate) size: u32,
    /// To whom it speaks.
    pub(crate) target: Rank,
}

/// A fresh nonce.
pub(crate) fn nonce() -> Result<[u8; 32], getrandom::Error> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}

/// The end that opened the connection.
pub(crate) struct Dialler {
    key: Key,
    claim: Claim,
    hello: [u8; HELLO_BYTES],
}

impl Dialler {
    /// Starts; the hello is to be sent.
    pub(crate) fn new(key: Key, claim: Claim, nonce: [u8; 32]) -> (Self, [u8; HELLO_BYTES]) {
        let hello = encode(ROLE_DIALLER, claim, nonce);
        (Self { key, claim, hello }, hello)
    }

    /// Takes the answer; gives the acceptor's claim and the finish, which is to be sent. The
    /// acceptor is proved from here on.
    pub(crate) fn finish(
        self,
        answer: &[u8; ANSWER_BYTES],
    ) -> Result<(Claim, [u8; FINISH_BYTES]), HandshakeError> {
        let (head, their_tag) = split(answer);
        let (role, claim) = decode(&head, self.claim.purpose)?;
        if role != ROLE_ACCEPTOR {
            return Err(HandshakeError::Role);
        }
        if !self.key.verify(&[ACCEPTOR_LABEL, &self.hello, &head], &their_tag) {
            return Err(HandshakeError::Secret);
        }
        Ok((claim, self.key.tag(&[DIALLER_LABEL, &self.hello, answer])))
    }
}

/// A hello that was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) error: HandshakeError,
    /// What to tell the other end all the same.
    pub(crate) answer: Option<[u8; ANSWER_BYTES]>,
}

/// The end that took the connection.
pub(crate) struct Acceptor {
    key: Key,
    dialler: Claim,
    hello: [u8; HELLO_BYTES],
    answer: [u8; ANSWER_BYTES],
}

impl Acceptor {
    /// Takes a hello; the answer, which goes to whom the hello came from, is to be sent. On another
    /// version the rejection comes with an answer too, which tells the other end of ours.
    pub(crate) fn answer(
        key: Key,
        claim: Claim,
        nonce: [u8; 32],
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(Self, [u8; ANSWER_BYTES]), Rejection> {
        let head = encode(ROLE_ACCEPTOR, claim, nonce);
        let mut answer = [0; ANSWER_BYTES];
        answer[..HELLO_BYTES].copy_from_slice(&head);
        let (role, dialler) = decode(hello, claim.purpose).map_err(|error| {
            let tell = matches!(error, HandshakeError::Version { .. });
            Rejection { error, answer: tell.then_some(answer) }
        })?;
        if role != ROLE_DIALLER {
            return Err(Rejection { error: HandshakeError::Role, answer: None });
        }
        let head = encode(ROLE_ACCEPTOR, Claim { target: dialler.rank, ..claim }, nonce);
        answer[..HELLO_BYTES].copy_from_slice(&head);
        answer[HELLO_BYTES..].copy_from_slice(&key.tag(&[ACCEPTOR_LABEL, hello, &head]));
        Ok((Self { key, dialler, hello: *hello, answer }, answer))
    }

    /// Takes the finish; gives the dialler's claim, which is proved from here on.
    pub(crate) fn accept(self, finish: &[u8; FINISH_BYTES]) -> Result<Claim, HandshakeError> {
        if self.key.verify(&[DIALLER_LABEL, &self.hello, &self.answer], finish) {
            Ok(self.dialler)
        } else {
            Err(HandshakeError::Secret)
        }
    }
}

fn encode(role: u8, claim: Claim, nonce: [u8; 32]) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = PROTOCOL_VERSION;
    bytes[5] = role;
    bytes[6] = claim.purpose.code();
    bytes[8..12].copy_from_slice(&claim.rank.to_le_bytes());
    bytes[12..16].copy_from_slice(&claim.size.to_le_bytes());
    bytes[16..20].copy_from_slice(&claim.target.to_le_bytes());
    bytes[20..].copy_from_slice(&nonce);
    bytes
}

/// The role and claim in a hello. The first five bytes are the same in every version.
fn decode(bytes: &[u8; HELLO_BYTES], purpose: Purpose) -> Result<(u8, Claim), HandshakeError> {
    if bytes[..4] != MAGIC {
        return Err(HandshakeError::Magic);
    }
    if bytes[4] != PROTOCOL_VERSION {
        return Err(HandshakeError::Version { ours: PROTOCOL_VERSION, theirs: bytes[4] });
    }
    if bytes[6] != purpose.code() {
        return Err(HandshakeError::Role);
    }
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok((bytes[5], Claim { purpose, rank: word(8), size: word(12), target: word(16) }))
}

fn split(answer: &[u8; ANSWER_BYTES]) -> ([u8; HELLO_BYTES], [u8; TAG_BYTES]) {
    let mut head = [0; HELLO_BYTES];
    let mut tag = [0; TAG_BYTES];
    head.copy_from_slice(&answer[..HELLO_BYTES]);
    tag.copy_from_slice(&answer[HELLO_BYTES..]);
    (head, tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Secret;

    fn key(text: &str) -> Key {
        Secret::from_text(text).unwrap().derive("test", b"")
    }

    fn dialler_claim() -> Claim {
        Claim { purpose: Purpose::Overlay, rank: 3, size: 8, target: 5 }
    }

    fn acceptor_claim() -> Claim {
        Claim { purpose: Purpose::Overlay, rank: 5, size: 8, target: 3 }
    }

    /// Both ends with all three messages passed through `wire`; the claims each end believed.
    fn run(
        dialler_key: &Key,
        acceptor_key: &Key,
        mut wire: impl FnMut(usize, &mut [u8]),
    ) -> Result<(Claim, Claim), HandshakeError> {
        let (dialler, mut hello) =
            Dialler::new(dialler_key.clone(), dialler_claim(), nonce().unwrap());
        wire(0, &mut hello);
        let (acceptor, mut answer) =
            Acceptor::answer(acceptor_key.clone(), acceptor_claim(), nonce().unwrap(), &hello)
                .map_err(|rejection| rejection.error)?;
        wire(1, &mut answer);
        let (at_dialler, mut finish) = dialler.finish(&answer)?;
        wire(2, &mut finish);
        Ok((acceptor.accept(&finish)?, at_dialler))
    }

    #[test]
    fn ends_with_one_key_learn_of_each_other() {
        let key = key("sixteen bytes ok");
        assert_eq!(run(&key, &key, |_, _| {}), Ok((dialler_claim(), acceptor_claim())));
    }

    #[test]
    fn another_secret_is_named_as_such() {
        let (ours, theirs) = (key("sixteen bytes ok"), key("sixteen bytes no"));
        assert_eq!(run(&ours, &theirs, |_, _| {}), Err(HandshakeError::Secret));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let key = key("sixteen bytes ok");
        for (message, bytes) in [(0, HELLO_BYTES), (1, ANSWER_BYTES), (2, FINISH_BYTES)] {
            for bit in 0..bytes * 8 {
                let outcome = run(&key, &key, |at, message_bytes| {
                    if at == message {
                        message_bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                });
                assert!(outcome.is_err(), "bit {bit} of message {message} went unnoticed");
            }
        }
    }

    #[test]
    fn a_reflected_hello_or_tag_is_refused() {
        let key = key("sixteen bytes ok");
        let (dialler, hello) = Dialler::new(key.clone(), dialler_claim(), nonce().unwrap());
        // The dialler's own hello comes back as the head of an answer.
        let mut reflected = [0; ANSWER_BYTES];
        reflected[..HELLO_BYTES].copy_from_slice(&hello);
        assert_eq!(dialler.finish(&reflected).unwrap_err(), HandshakeError::Role);
        // An acceptor's tag comes back as the finish.
        let (_, hello) = Dialler::new(key.clone(), dialler_claim(), nonce().unwrap());
        let (acceptor, answer) =
            Acceptor::answer(key.clone(), acceptor_claim(), nonce().unwrap(), &hello).ok().unwrap();
        let (_, tag) = split(&answer);
        assert_eq!(acceptor.accept(&tag), Err(HandshakeError::Secret));
        // An acceptor's answer comes to another acceptor as a hello.
        let (head, _) = split(&answer);
        let refused = Acceptor::answer(key, acceptor_claim(), nonce().unwrap(), &head);
        assert_eq!(refused.err().unwrap().error, HandshakeError::Role);
    }

    #[test]
    fn a_replay_is_refused_on_both_sides() {
        let key = key("sixteen bytes ok");
        let mut recorded: Vec<Vec<u8>> = Vec::new();
        run(&key, &key, |_, bytes| recorded.push(bytes.to_vec())).unwrap();
        // The recorded hello and finish against a fresh acceptor.
        let hello = recorded[0].clone().try_into().unwrap();
        let (acceptor, _) =
            Acceptor::answer(key.clone(), acceptor_claim(), nonce().unwrap(), &hello).ok().unwrap();
        let finish = recorded[2].clone().try_into().unwrap();
        assert_eq!(acceptor.accept(&finish), Err(HandshakeError::Secret));
        // The recorded answer against a fresh dialler.
        let (dialler, _) = Dialler::new(key, dialler_claim(), nonce().unwrap());
        let answer = recorded[1].clone().try_into().unwrap();
        assert_eq!(dialler.finish(&answer).unwrap_err(), HandshakeError::Secret);
    }

    #[test]
    fn purposes_do_not_mix_and_versions_are_told() {
        let key = key("sixteen bytes ok");
        let rendezvous = Claim { purpose: Purpose::Rendezvous, ..dialler_claim() };
        let (_, hello) = Dialler::new(key.clone(), rendezvous, nonce().unwrap());
        let refused = Acceptor::answer(key.clone(), acceptor_claim(), nonce().unwrap(), &hello);
        let expected = Rejection { error: HandshakeError::Role, answer: None };
        assert_eq!(refused.err().unwrap(), expected);

        let (dialler, mut hello) = Dialler::new(key.clone(), dialler_claim(), nonce().unwrap());
        hello[4] = 77;
        let refused = Acceptor::answer(key, acceptor_claim(), nonce().unwrap(), &hello);
        let Rejection { error, answer } = refused.err().unwrap();
        assert_eq!(error, HandshakeError::Version { ours: PROTOCOL_VERSION, theirs: 77 });
        let mut answer = answer.unwrap();
        assert_eq!(answer[HELLO_BYTES..], [0; TAG_BYTES], "no tag for a stranger");
        answer[4] = 78;
        let error = dialler.finish(&answer).unwrap_err();
        assert_eq!(error, HandshakeError::Version { ours: PROTOCOL_VERSION, theirs: 78 });
    }

    #[test]
    fn random_messages_are_refused() {
        let key = key("sixteen bytes ok");
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let mut bytes = [0; ANSWER_BYTES];
            random.fill(&mut bytes);
            if random.bool() {
                bytes[..7].copy_from_slice(b"VBCT\x01\x02\x02");
            }
            let (dialler, hello) = Dialler::new(key.clone(), dialler_claim(), nonce().unwrap());
            assert!(dialler.finish(&bytes).is_err());
            let (head, tag) = split(&bytes);
            assert!(Acceptor::answer(key.clone(), acceptor_claim(), [7; 32], &head).is_err());
            let (acceptor, _) =
                Acceptor::answer(key.clone(), acceptor_claim(), [7; 32], &hello).ok().unwrap();
            assert_eq!(acceptor.accept(&tag), Err(HandshakeError::Secret));
        }
    }
}
