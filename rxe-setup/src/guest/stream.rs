//! The command's output on its way from the guest: copied until an end mark.
//!
//! A port of the guest has no end of file, and its bytes and the command's status come by different
//! ports in no order. So the guest closes each stream with a mark made for this run.

use std::fs::File;
use std::io::{self, Read, Write};

/// A mark that no output contains by accident: random, and new for each run.
pub(crate) fn end_mark() -> Vec<u8> {
    let mut random = [0_u8; 16];
    // Without randomness the mark still differs from run to run by the process number.
    let filled = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
    let word = if filled.is_ok() { u128::from_le_bytes(random) } else { std::process::id().into() };
    format!("\0verbcast-end-{word:032x}\n").into_bytes()
}

/// How a copy ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The mark came.
    Complete,
    /// The source ended without it.
    CutShort,
    /// The sink took no more.
    SinkClosed(io::Error),
}

/// Copies `from` to `to` up to `mark`, which is not copied.
pub(crate) fn copy_until(mut from: impl Read, to: &mut dyn Write, mark: &[u8]) -> Ended {
    let mut pending: Vec<u8> = Vec::with_capacity(2 * BUFFER_BYTES);
    let mut buffer = vec![0_u8; BUFFER_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        pending.extend_from_slice(&buffer[..read]);
        let (ready, ended) = match find(&pending, mark) {
            Some(at) => (at, true),
            None => (pending.len() - partial_mark(&pending, mark), false),
        };
        if let Err(error) = to.write_all(&pending[..ready]).and_then(|()| to.flush()) {
            return Ended::SinkClosed(error);
        }
        if ended {
            return Ended::Complete;
        }
        pending.drain(..ready);
    }
    match to.write_all(&pending).and_then(|()| to.flush()) {
        Ok(()) => Ended::CutShort,
        Err(error) => Ended::SinkClosed(error),
    }
}

const BUFFER_BYTES: usize = 64 * 1024;

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    let first = *mark.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(mark) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// The length of the longest start of `mark` that `bytes` end with.
fn partial_mark(bytes: &[u8], mark: &[u8]) -> usize {
    (1..mark.len().min(bytes.len() + 1))
        .rev()
        .find(|length| bytes.ends_with(&mark[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes in pieces of a fixed size.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    const MARK: &[u8] = b"\0mark\0mark2\n";

    #[test]
    fn everything_before_the_mark_is_copied_however_it_is_cut() {
        let output = b"a\0b\0mar\0mark\0markkk\0mark\0mark\n\0";
        let mut stream = output.to_vec();
        stream.extend_from_slice(MARK);
        stream.extend_from_slice(b"after");
        for piece in 1..=stream.len() {
            let mut copied = Vec::new();
            let ended = copy_until(Pieces(&stream, piece), &mut copied, MARK);
            assert!(matches!(ended, Ended::Complete), "pieces of {piece}: {ended:?}");
            assert_eq!(copied, output, "pieces of {piece}");
        }
    }

    #[test]
    fn a_stream_without_a_mark_is_cut_short_but_not_lost() {
        for piece in 1..8 {
            let mut copied = Vec::new();
            let ended = copy_until(Pieces(b"text\0mark", piece), &mut copied, MARK);
            assert!(matches!(ended, Ended::CutShort));
            assert_eq!(copied, b"text\0mark");
        }
    }

    #[test]
    fn a_closed_sink_ends_the_copy() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let ended = copy_until(Pieces(b"text", 4), &mut Closed, MARK);
        assert!(
            matches!(ended, Ended::SinkClosed(error) if error.kind() == io::ErrorKind::BrokenPipe)
        );
    }

    #[test]
    fn marks_differ() {
        assert_ne!(end_mark(), end_mark());
    }
}
