//! Frames: the one layout of everything that follows a handshake.
//!
//! `total: u32 | head bytes: u32 | head (JSON) | tail (opaque bytes)`, little-endian; `total` counts
//! everything after itself. Lengths are checked before anything is allocated.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest `total` of a frame, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 10;

/// Why bytes are no frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {bytes} bytes where at most {limit} are allowed")]
    Length { bytes: usize, limit: usize },
    #[error("a frame of {total} bytes cannot hold a head of {head} bytes")]
    Head { total: usize, head: usize },
    #[error("the head of a frame is malformed: {0}")]
    Json(#[from] serde_json::Error),
}

/// A frame as bytes.
///
/// # Errors
/// [`FrameError::Length`] if it is longer than [`FRAME_BYTES_MAX`].
pub(crate) fn encode<T: Serialize>(head: &T, tail: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 8];
    serde_json::to_writer(&mut frame, head)?;
    let head_bytes = frame.len() - 8;
    frame.extend_from_slice(tail);
    let total = frame.len() - 4;
    if total > FRAME_BYTES_MAX {
        return Err(FrameError::Length { bytes: total, limit: FRAME_BYTES_MAX });
    }
    frame[..4].copy_from_slice(&(total as u32).to_le_bytes());
    frame[4..8].copy_from_slice(&(head_bytes as u32).to_le_bytes());
    Ok(frame)
}

/// Bytes that have arrived and were not taken yet. Holds at most one incomplete frame and what was
/// read with it, as long as its owner takes what is complete after each read.
#[derive(Default)]
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    taken: usize,
}

impl FrameBuffer {
    /// Adds what was read.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes `N` bytes as they are, once they are there.
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.rest().first_chunk::<N>()?;
        self.taken += N;
        Some(bytes)
    }

    /// Whether what is there, however short, can be the beginning of something that starts with
    /// `prefix`.
    pub(crate) fn begins_like(&self, prefix: &[u8]) -> bool {
        self.rest().iter().zip(prefix).all(|(is, expected)| is == expected)
    }

    /// Takes the next frame, once it is there: its head and tail. `limit` bounds its `total`.
    ///
    /// # Errors
    /// If what is there cannot be (the beginning of) a frame; the connection is of no use then.
    pub(crate) fn next<T: DeserializeOwned>(
        &mut self,
        limit: usize,
    ) -> Result<Option<(T, Vec<u8>)>, FrameError> {
        let rest = self.rest();
        let Some(total) = word(rest, 0) else { return Ok(None) };
        if total > limit || total < 4 {
            return Err(FrameError::Length { bytes: total, limit });
        }
        let Some(head_bytes) = word(rest, 4) else { return Ok(None) };
        if head_bytes > total - 4 {
            return Err(FrameError::Head { total, head: head_bytes });
        }
        let Some(body) = rest.get(8..4 + total) else { return Ok(None) };
        let (head, tail) = body.split_at(head_bytes);
        let frame = (serde_json::from_slice(head)?, tail.to_vec());
        self.taken += 4 + total;
        Ok(Some(frame))
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_segmentation() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let frames: Vec<(String, Vec<u8>)> = (0..50)
            .map(|i| {
                let tail = (0..random.usize(..3000)).map(|_| random.u8(..)).collect();
                (format!("head {i}"), tail)
            })
            .collect();
        let wire: Vec<u8> =
            frames.iter().flat_map(|(head, tail)| encode(head, tail).unwrap()).collect();
        let (mut buffer, mut received, mut at) = (FrameBuffer::default(), Vec::new(), 0);
        while at < wire.len() {
            let end = (at + random.usize(1..2000)).min(wire.len());
            buffer.extend(&wire[at..end]);
            at = end;
            while let Some(frame) = buffer.next::<String>(FRAME_BYTES_MAX).unwrap() {
                received.push(frame);
            }
        }
        assert_eq!(received, frames);
    }

    #[test]
    fn lengths_are_checked_at_their_limits() {
        let overhead = encode(&(), &[]).unwrap().len() - 4;
        let largest = encode(&(), &vec![7; FRAME_BYTES_MAX - overhead]).unwrap();
        assert!(encode(&(), &vec![7; FRAME_BYTES_MAX - overhead + 1]).is_err());
        let mut buffer = FrameBuffer::default();
        buffer.extend(&largest);
        assert!(buffer.next::<()>(FRAME_BYTES_MAX).unwrap().is_some());
        buffer.extend(&largest);
        assert!(buffer.next::<()>(FRAME_BYTES_MAX - 1).is_err());

        let refused = |bytes: &[u8]| {
            let mut buffer = FrameBuffer::default();
            buffer.extend(bytes);
            buffer.next::<serde_json::Value>(FRAME_BYTES_MAX).unwrap_err().to_string()
        };
        assert!(refused(&u32::MAX.to_le_bytes()).contains("4294967295"));
        assert!(refused(&3_u32.to_le_bytes()).contains("of 3 bytes"));
        assert!(refused(&[8, 0, 0, 0, 5, 0, 0, 0]).contains("head of 5"));
        assert!(refused(&[5, 0, 0, 0, 1, 0, 0, 0, b'{']).contains("malformed"));
    }

    #[test]
    fn random_bytes_neither_panic_nor_allocate_beyond_the_limit() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut frames = 0;
        for round in 0..2000 {
            let mut buffer = FrameBuffer::default();
            for _ in 0..20 {
                let mut chunk = vec![0; random.usize(..16 << 10)];
                random.fill(&mut chunk);
                // Every second round starts with a plausible frame, so that later checks are met.
                if round % 2 == 0 && chunk.len() > 12 {
                    let (total, head) = (random.u32(4..70_000), random.u32(..80));
                    chunk[..4].copy_from_slice(&total.to_le_bytes());
                    chunk[4..8].copy_from_slice(&head.to_le_bytes());
                    chunk[8..12].copy_from_slice(b"[1] ");
                }
                buffer.extend(&chunk);
                match buffer.next::<serde_json::Value>(FRAME_BYTES_MAX) {
                    Ok(Some(_)) => frames += 1,
                    Ok(None) => {}
                    Err(_) => break,
                }
                assert!(buffer.capacity() <= 2 * (FRAME_BYTES_MAX + (20 << 10)), "seed {seed}");
            }
        }
        println!("{frames} frames were valid by chance");
    }
}
