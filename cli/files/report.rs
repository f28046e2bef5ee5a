//! What rank 0 says at the end.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use verbcast::Algorithm;
use verbcast::schedule::Operation;

use super::bytes::{display, display_rate};
use super::error::Error;
use super::job::Job;
use super::parts::Parts;
use super::plan::Plan;
use super::stream::Busy;

/// A transfer that came to its end.
#[derive(Debug)]
pub(crate) struct Report {
    /// Which.
    pub(crate) operation: Operation,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Who had it, or has it now.
    pub(crate) root: u32,
    /// From the start to the moment when everything was on disk.
    pub(crate) elapsed: Duration,
    /// The longest of any rank for each part of the way.
    pub(crate) busy: Busy,
    /// The same for writing back to disk at the end.
    pub(crate) syncing: Duration,
    /// What moved it.
    pub(crate) fabric: String,
    /// How.
    pub(crate) algorithm: Algorithm,
    /// In which pieces.
    pub(crate) block_bytes: u64,
    /// How many ranks took part.
    pub(crate) ranks: u32,
    /// What each of them has, or had.
    pub(crate) contents: Contents,
}

/// What the ranks have of a file.
#[derive(Debug)]
pub(crate) enum Contents {
    /// All of it, with this checksum.
    Whole(blake3::Hash),
    /// A part each, by rank.
    Parts(Vec<Part>),
}

/// What one rank has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where it begins.
    pub(crate) offset: u64,
    /// How many bytes it has.
    pub(crate) bytes: u64,
    /// Its checksum.
    pub(crate) digest: blake3::Hash,
}

impl Part {
    /// Of each of these parts, with its digest.
    pub(crate) fn all(parts: &Parts, digests: &[blake3::Hash]) -> Vec<Self> {
        let part = |(part, digest): (Range<u64>, &blake3::Hash)| Self {
            offset: part.start,
            bytes: part.end - part.start,
            digest: *digest,
        };
        parts.all().zip(digests).map(part).collect()
    }
}

/// [`Part`], as a program reads it.
#[derive(Serialize)]
struct PartLine {
    rank: usize,
    offset: u64,
    bytes: u64,
    blake3: String,
}

/// [`Report`] without its parts, as a program reads it.
#[derive(Serialize)]
struct Line<'a> {
    op: &'static str,
    bytes: u64,
    root: u32,
    ranks: u32,
    seconds: f64,
    bytes_per_second: f64,
    fabric: &'a str,
    algorithm: &'static str,
    block_bytes: u64,
    reading_seconds: f64,
    moving_seconds: f64,
    writing_seconds: f64,
    syncing_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    blake3: Option<String>,
}

impl Report {
    /// Prints it to standard output.
    ///
    /// # Errors
    /// If nobody takes it.
    pub(crate) fn print(&self, json: bool) -> Result<(), Error> {
        let text = if json { self.json() } else { Ok(self.to_string()) };
        text.and_then(|text| writeln!(io::stdout(), "{text}")).map_err(|source| Error::System {
            what: "the files are in place, but the report cannot be printed",
            source,
        })
    }

    fn parts(&self) -> &[Part] {
        match &self.contents {
            Contents::Whole(_) => &[],
            Contents::Parts(parts) => parts,
        }
    }

    /// One line for the whole, then one for each part.
    fn json(&self) -> io::Result<String> {
        let Self { operation, busy, .. } = self;
        let line = Line {
            op: operation.name(),
            bytes: self.bytes,
            root: self.root,
            ranks: self.ranks,
            seconds: self.elapsed.as_secs_f64(),
            bytes_per_second: self.rate(),
            fabric: &self.fabric,
            algorithm: self.algorithm.name(),
            block_bytes: self.block_bytes,
            reading_seconds: busy.reading.as_secs_f64(),
            moving_seconds: busy.moving.as_secs_f64(),
            writing_seconds: busy.writing.as_secs_f64(),
            syncing_seconds: self.syncing.as_secs_f64(),
            blake3: match self.contents {
                Contents::Whole(digest) => Some(digest.to_string()),
                Contents::Parts(_) => None,
            },
        };
        let mut lines = serde_json::to_string(&line)?;
        for (rank, part) in self.parts().iter().enumerate() {
            let Part { offset, bytes, digest } = *part;
            let line = PartLine { rank, offset, bytes, blake3: digest.to_string() };
            lines += "\n";
            lines += &serde_json::to_string(&line)?;
        }
        Ok(lines)
    }

    /// Bytes of the file per second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn phases(&self) -> [(&'static str, Duration); 4] {
        let Busy { reading, moving, writing } = self.busy;
        let [read, moved, written, synced] = match self.operation {
            Operation::Scatter => ["reading FILE", "scattering", "writing DEST", "syncing DEST"],
            Operation::Gather => ["reading SRC", "gathering", "writing FILE", "syncing FILE"],
            _ => ["reading FILE", "broadcasting", "writing DEST", "syncing DEST"],
        };
        [(read, reading), (moved, moving), (written, writing), (synced, self.syncing)]
    }

    fn headline(&self) -> String {
        let Self { operation, bytes, root, ranks, elapsed, .. } = self;
        let ranks = match ranks {
            1 => "1 rank".to_owned(),
            ranks => format!("{ranks} ranks"),
        };
        let (way, per_rank) = match operation {
            Operation::Gather => (format!("from {ranks} to rank {root}"), ""),
            Operation::Scatter => (format!("from rank {root} to {ranks}"), ""),
            _ => (format!("from rank {root} to {ranks}"), " per rank"),
        };
        let (size, seconds) = (display(*bytes), elapsed.as_secs_f64());
        let rate = display_rate(self.rate());
        format!("{size} ({bytes} bytes) {way} in {seconds:.3} s: {rate}{per_rank}")
    }

    /// The parts' sizes in words.
    fn sizes(parts: &[Part]) -> String {
        let bytes = || parts.iter().map(|part| part.bytes);
        let least = bytes().filter(|bytes| *bytes > 0).min().unwrap_or(0);
        let most = bytes().max().unwrap_or(0);
        let empty = bytes().filter(|bytes| *bytes == 0).count();
        let sizes = if least == most {
            format!("{most} bytes")
        } else if (most - least) < most / 100 {
            // Rounded they would look alike.
            format!("{least} to {most} bytes")
        } else {
            format!("{} to {}", display(least), display(most))
        };
        match empty {
            _ if most == 0 => "all parts are empty".to_owned(),
            0 => format!("parts of {sizes}"),
            1 => format!("parts of {sizes}, and 1 empty one"),
            _ => format!("parts of {sizes}, and {empty} empty ones"),
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { bytes, ranks, fabric, algorithm, block_bytes, .. } = self;
        writeln!(f, "{}", self.headline())?;
        if *ranks > 1 && *bytes > 0 {
            writeln!(f, "over {fabric}, {algorithm}, blocks of {}", display(*block_bytes))?;
        }
        let phases = self.phases();
        let times = phases.map(|(name, time)| format!("{name} {:.3} s", time.as_secs_f64()));
        let most = phases.into_iter().max_by_key(|(_, time)| *time);
        let limit = most.map_or("nothing", |(name, _)| name);
        writeln!(f, "{} on the slowest rank: {limit} is the limit", times.join(", "))?;
        match &self.contents {
            Contents::Whole(digest) => write!(f, "blake3 {digest}"),
            Contents::Parts(parts) => {
                write!(f, "{}; --json has the blake3 of each", Self::sizes(parts))
            }
        }
    }
}

/// What was moved in parts, and how long this rank took.
pub(crate) struct Moved<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) plan: Plan,
    /// Of each part.
    pub(crate) digests: &'a [blake3::Hash],
    pub(crate) elapsed: Duration,
    pub(crate) syncing: Duration,
    pub(crate) busy: Busy,
}

impl Job<'_> {
    /// The report of a scatter or gather; all ranks ask for it together.
    ///
    /// # Errors
    /// The end of the job.
    pub(crate) fn report(
        &self,
        operation: Operation,
        root: u32,
        moved: Moved<'_>,
    ) -> Result<Report, Error> {
        let Moved { parts, plan, digests, elapsed, syncing, busy } = moved;
        Ok(Report {
            operation,
            bytes: parts.bytes(),
            root,
            ranks: parts.count(),
            elapsed,
            busy: self.slowest_of(busy)?,
            syncing: self.slowest(syncing)?,
            fabric: self.world.fabric_description(),
            // The only one for parts of different lengths; nobody passes a block on.
            algorithm: Algorithm::Flat,
            block_bytes: self.options.block_size.unwrap_or(u64::MAX).min(plan.piece_bytes),
            contents: Contents::Parts(Part::all(parts, digests)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(operation: Operation, ranks: u32, contents: Contents) -> Report {
        let seconds = Duration::from_secs;
        Report {
            operation,
            bytes: 3 << 30,
            root: 1,
            elapsed: seconds(3),
            busy: Busy { reading: seconds(1), moving: seconds(2), writing: seconds(1) },
            syncing: Duration::ZERO,
            fabric: "shared memory".into(),
            algorithm: Algorithm::PipelinedTree,
            block_bytes: 65536,
            ranks,
            contents,
        }
    }

    #[test]
    fn the_slowest_part_is_the_limit() {
        let mut report = report(Operation::Broadcast, 4, Contents::Whole(blake3::hash(b"")));
        let text = report.to_string();
        assert!(text.starts_with(
            "3 GiB (3221225472 bytes) from rank 1 to 4 ranks in 3.000 s: 1.07 GB/s per rank"
        ));
        assert!(text.contains("shared memory, pipelined-tree, blocks of 64 KiB"), "{text}");
        assert!(text.contains("broadcasting is the limit"), "{text}");
        report.syncing = Duration::from_secs(5);
        assert!(report.to_string().contains("syncing DEST is the limit"));
    }

    #[test]
    fn parts_are_told_in_words_and_each_by_number() {
        let report_of = |sizes: &[u64]| {
            let part = |bytes: &u64| Part { offset: 0, bytes: *bytes, digest: blake3::hash(b"") };
            let parts = sizes.iter().map(part).collect();
            report(Operation::Gather, sizes.len() as u32, Contents::Parts(parts))
        };
        let said = |sizes: &[u64], text: &str| {
            let report = report_of(sizes).to_string();
            assert!(report.contains(text), "{report}");
        };
        said(&[10, 10], "parts of 10 bytes;");
        said(&[11, 10], "parts of 10 B to 11 B;");
        said(&[(5 << 20) + 1, 5 << 20], "parts of 5242880 to 5242881 bytes;");
        said(&[0, 1 << 20, 3 << 20, 0], "parts of 1 MiB to 3 MiB, and 2 empty ones;");
        said(&[0, 7], "parts of 7 bytes, and 1 empty one;");
        said(&[0, 0], "all parts are empty;");
        said(&[0, 7], "from 2 ranks to rank 1 in 3.000 s: 1.07 GB/s\n");
        let lines = report_of(&[0, 7]).json().unwrap();
        let lines: Vec<serde_json::Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["op"], &lines[0]["ranks"]), (&"gather".into(), &2.into()));
        assert_eq!((&lines[2]["rank"], &lines[2]["bytes"]), (&1.into(), &7.into()));
    }
}
