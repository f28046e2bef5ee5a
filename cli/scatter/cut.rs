//! Where a file is cut into parts.

use crate::files::error::Error;

/// Bytes that are looked at together for the end of a line.
const SCAN_BYTES: usize = 64 << 10;

/// How a file is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Anywhere.
    Bytes,
    /// Between records of so many bytes.
    Records {
        /// At least 1.
        record_bytes: u64,
        /// Whether the file's last record may be shorter.
        short: bool,
    },
    /// After the ends of lines (`\n`).
    Lines,
}

impl Cut {
    /// Cuts a file of `bytes` bytes into `parts` parts and gives the `parts` + 1 offsets where they
    /// begin and end, from 0 to `bytes`; `read` fills its buffer with the file's bytes from an offset
    /// on, all of which are in the file.
    ///
    /// # Errors
    /// If a record would be short and must not be, or reading fails.
    pub(crate) fn offsets(
        self,
        bytes: u64,
        parts: u32,
        read: impl FnMut(&mut [u8], u64) -> Result<(), Error>,
    ) -> Result<Vec<u64>, Error> {
        match self {
            Self::Bytes => Ok(equal(bytes, parts).collect()),
            Self::Records { record_bytes, short } => {
                if !short && !bytes.is_multiple_of(record_bytes) {
                    return Err(Error::ShortRecord { bytes, record_bytes });
                }
                let records = bytes.div_ceil(record_bytes);
                // Only the last record can end beyond the file.
                let at = |record: u64| record.saturating_mul(record_bytes).min(bytes);
                Ok(equal(records, parts).map(at).collect())
            }
            Self::Lines => between_lines(bytes, parts, read),
        }
    }
}

/// Cuts `count` things into parts of count / parts, the first count mod parts of them one longer.
fn equal(count: u64, parts: u32) -> impl Iterator<Item = u64> {
    let parts = u64::from(parts);
    let (each, longer) = (count / parts, count % parts);
    (0..=parts).map(move |part| part * each + part.min(longer))
}

/// Moves each cut to the end of the line that it is in.
fn between_lines(
    bytes: u64,
    parts: u32,
    mut read: impl FnMut(&mut [u8], u64) -> Result<(), Error>,
) -> Result<Vec<u64>, Error> {
    let mut offsets = Vec::with_capacity(parts as usize + 1);
    let mut buffer = vec![0; SCAN_BYTES];
    let mut last = 0;
    for wanted in equal(bytes, parts) {
        // The line that moved the last cut may end beyond this one too.
        if wanted > last {
            last = line_end(wanted, bytes, &mut buffer, &mut read)?;
        }
        offsets.push(last);
    }
    Ok(offsets)
}

/// The first offset from `wanted` > 0 on at which no line is split: after a line's end, or the
/// file's.
fn line_end(
    wanted: u64,
    bytes: u64,
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> Result<(), Error>,
) -> Result<u64, Error> {
    // The byte before may end a line.
    let mut at = wanted - 1;
    while at < bytes {
        let length = buffer.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..length];
        read(buffer, at)?;
        if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            return Ok(at + end as u64 + 1);
        }
        at += length as u64;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: usize = 3000;

    fn seed() -> u64 {
        let given = std::env::var("VERBCAST_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        println!("VERBCAST_TEST_SEED={seed}");
        seed
    }

    fn cut(how: Cut, content: &[u8], parts: u32) -> Result<Vec<u64>, Error> {
        how.offsets(content.len() as u64, parts, |buffer, offset| {
            let offset = offset as usize;
            // Out of bounds if more is read than is there.
            buffer.copy_from_slice(&content[offset..offset + buffer.len()]);
            Ok(())
        })
    }

    fn sizes(offsets: &[u64]) -> Vec<u64> {
        offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// Deals things out one by one: the sizes of the parts.
    fn dealt(count: u64, parts: u32) -> Vec<u64> {
        let mut sizes = vec![0; parts as usize];
        (0..count).for_each(|thing| sizes[(thing % u64::from(parts)) as usize] += 1);
        sizes
    }

    #[test]
    fn equal_parts_differ_by_one_byte_and_the_first_are_longer() {
        for parts in 1..20 {
            for bytes in 0..100 {
                let offsets = cut(Cut::Bytes, &vec![0; bytes], parts).unwrap();
                assert_eq!(sizes(&offsets), dealt(bytes as u64, parts), "{bytes} / {parts}");
            }
        }
        let offsets = Cut::Bytes.offsets(u64::MAX, 7, |_, _| Ok(())).unwrap();
        assert_eq!((offsets.len(), offsets[0], offsets[7]), (8, 0, u64::MAX));
        assert!(sizes(&offsets).iter().all(|size| size.abs_diff(u64::MAX / 7) <= 1));
    }

    #[test]
    fn records_stay_whole() {
        let records = |record_bytes, short| Cut::Records { record_bytes, short };
        for parts in 1..9 {
            for record_bytes in 1..12 {
                for bytes in 0..60_u64 {
                    let content = vec![0; bytes as usize];
                    let whole = bytes / record_bytes;
                    let rest = bytes % record_bytes;
                    let strict = cut(records(record_bytes, false), &content, parts);
                    assert_eq!(strict.is_err(), rest > 0, "{bytes} by {record_bytes}");
                    let offsets = cut(records(record_bytes, true), &content, parts).unwrap();
                    let dealt = dealt(whole + u64::from(rest > 0), parts);
                    let mut expected: Vec<u64> =
                        dealt.iter().map(|records| records * record_bytes).collect();
                    // The short record is the last one of the last part that has any.
                    if rest > 0 {
                        let last = dealt.iter().rposition(|records| *records > 0).unwrap();
                        expected[last] -= record_bytes - rest;
                    }
                    assert_eq!(sizes(&offsets), expected, "{bytes} by {record_bytes}");
                }
            }
        }
        let huge = records(u64::MAX, true).offsets(100, 3, |_, _| Ok(())).unwrap();
        assert_eq!(sizes(&huge), [100, 0, 0]);
    }

    /// Takes whole lines until the share is reached or passed.
    fn lines_by_hand(content: &[u8], parts: u32) -> Vec<u64> {
        let ends: Vec<u64> = content
            .split_inclusive(|byte| *byte == b'\n')
            .scan(0, |end, line| {
                *end += line.len() as u64;
                Some(*end)
            })
            .collect();
        let share_end =
            |part: usize| dealt(content.len() as u64, parts)[..part].iter().sum::<u64>();
        let first_from =
            |wanted: u64| ends.iter().copied().find(|end| *end >= wanted).unwrap_or_default();
        (0..=parts as usize)
            .map(|part| match share_end(part) {
                0 => 0,
                wanted => first_from(wanted),
            })
            .collect()
    }

    #[test]
    fn no_line_is_split_and_every_cut_is_at_the_next_end() {
        let mut random = fastrand::Rng::with_seed(seed());
        for _ in 0..ROUNDS {
            let bytes = random.usize(..60);
            let ends_every = random.u8(1..30);
            let mut byte =
                || if random.u8(..ends_every) == 0 { b'\n' } else { random.u8(b'a'..=b'z') };
            let content: Vec<u8> = (0..bytes).map(|_| byte()).collect();
            let parts = random.u32(1..10);
            let offsets = cut(Cut::Lines, &content, parts).unwrap();
            assert_eq!(offsets, lines_by_hand(&content, parts), "{content:?} in {parts}");
            for offset in &offsets[1..parts as usize] {
                let at = *offset as usize;
                assert!(at == 0 || at == bytes || content[at - 1] == b'\n');
            }
        }
    }

    #[test]
    fn lines_longer_than_the_buffer_are_followed() {
        for length in [SCAN_BYTES - 1, SCAN_BYTES, SCAN_BYTES + 1, 3 * SCAN_BYTES] {
            let mut content = vec![b'x'; length];
            content.push(b'\n');
            content.extend(b"ab\ncd");
            let offsets = cut(Cut::Lines, &content, 4).unwrap();
            assert_eq!(offsets, lines_by_hand(&content, 4));
            assert_eq!(sizes(&offsets)[0], length as u64 + 1);
        }
    }

    #[test]
    fn only_what_is_around_the_cuts_is_read() {
        let line = 80_u64;
        let bytes = 1_u64 << 40;
        let mut read = 0;
        let offsets = Cut::Lines
            .offsets(bytes, 16, |buffer, offset| {
                read += buffer.len();
                for (at, byte) in (offset..).zip(buffer) {
                    *byte = if at % line == line - 1 { b'\n' } else { b'.' };
                }
                Ok(())
            })
            .unwrap();
        assert!(read <= 16 * SCAN_BYTES, "{read} bytes read");
        assert!(offsets[..16].iter().all(|offset| offset % line == 0));
        let share = bytes / 16;
        assert!(sizes(&offsets).iter().all(|size| size.abs_diff(share) <= line));
    }
}
