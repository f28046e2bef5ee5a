//! What rank 0 says at the end.

use std::time::Duration;

use verbcast::Algorithm;

use super::bytes::{display, display_rate};
use super::stream::Busy;

/// A broadcast that came to its end.
#[derive(Debug)]
pub(crate) struct Report {
    /// Whether this rank is the one that says it.
    pub(crate) shown: bool,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Who read it.
    pub(crate) root: u32,
    /// Ranks that have it now.
    pub(crate) ranks: u32,
    /// From the start to the moment when all ranks had it on disk.
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
    /// Its checksum.
    pub(crate) digest: blake3::Hash,
}

impl Report {
    /// Prints it to standard output, where it is shown.
    pub(crate) fn print(&self) {
        if self.shown {
            println!("{self}");
        }
    }

    fn parts(&self) -> [(&'static str, Duration); 4] {
        let Busy { reading, moving, writing } = self.busy;
        [
            ("reading FILE", reading),
            ("broadcasting", moving),
            ("writing DEST", writing),
            ("syncing DEST", self.syncing),
        ]
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bytes, root, ranks, elapsed, fabric, algorithm, block_bytes, digest, .. } = self;
        let rate = *bytes as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        writeln!(
            f,
            "{} ({bytes} bytes) from rank {root} to {ranks} {} in {:.3} s: {} per rank",
            display(*bytes),
            if *ranks == 1 { "rank" } else { "ranks" },
            elapsed.as_secs_f64(),
            display_rate(rate),
        )?;
        if *ranks > 1 && *bytes > 0 {
            writeln!(f, "over {fabric}, {algorithm}, blocks of {}", display(*block_bytes))?;
        }
        let parts = self.parts();
        let times = parts.map(|(name, time)| format!("{name} {:.3} s", time.as_secs_f64()));
        let most = parts.into_iter().max_by_key(|(_, time)| *time);
        let limit = most.map_or("nothing", |(name, _)| name);
        writeln!(f, "{} on the slowest rank: {limit} is the limit", times.join(", "))?;
        write!(f, "blake3 {digest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_part_is_the_limit() {
        let seconds = Duration::from_secs;
        let mut report = Report {
            shown: true,
            bytes: 3 << 30,
            root: 1,
            ranks: 4,
            elapsed: seconds(3),
            busy: Busy { reading: seconds(1), moving: seconds(2), writing: seconds(1) },
            syncing: Duration::ZERO,
            fabric: "shared memory".into(),
            algorithm: Algorithm::PipelinedTree,
            block_bytes: 65536,
            digest: blake3::hash(b""),
        };
        let text = report.to_string();
        assert!(
            text.starts_with(
                "3 GiB (3221225472 bytes) from rank 1 to 4 ranks in 3.000 s: 1.07 GB/s"
            )
        );
        assert!(text.contains("shared memory, pipelined-tree, blocks of 64 KiB"), "{text}");
        assert!(text.contains("broadcasting is the limit"), "{text}");
        report.syncing = seconds(5);
        assert!(report.to_string().contains("syncing DEST is the limit"));
    }
}
