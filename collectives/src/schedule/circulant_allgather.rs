//! `circulant`: an allgather that is the circulant broadcasts of all ranks at once.
//!
//! Reference: J. L. Träff, "Optimal broadcast schedules in logarithmic time with applications to
//! broadcast, all-broadcast, reduction and all-reduction", arXiv 2407.18004; see [`super::circulant`].
//!
//! Symbols: N ranks; q = ceil(log2 N); s the skips and R the receive rows of [`super::circulant`]; k
//! blocks of each rank's part.
//!
//! The broadcast from each rank uses in round i the same edges, from every rank r to r + s\[i mod q\]: the
//! blocks of all of them are one message. For the part of rank u, rank r is the relative rank
//! (r - u) mod N. A part that ends at its own rank is left out.
//!
//! # Example: N = 3, k = 1, s = 1 2 3
//!
//! | round | 0 | 1 |
//! |---|---|---|
//! | edges | 0 > 1: 0, 1 > 2: 1, 2 > 0: 2 | 0 > 2: 0, 1 > 0: 1, 2 > 1: 2 |
//!
//! # Cost
//!
//! q + k - 1 rounds, of messages of up to N - 1 blocks; N (N - 1) c bytes on the wire for parts of c
//! bytes. Meant for parts of unequal sizes: whatever they are, each edge carries all of them. A rank
//! computes all N receive rows: O(N q) operations and memory beside its steps.
//!
//! # Conditions
//!
//! 1. The checker passes, with the rounds above.

use super::circulant::{Row, Skips};
use super::{Direction, Rank, Shape, Step, ceil_log2};

/// q + k - 1.
pub(super) fn rounds(shape: Shape) -> u64 {
    u64::from(ceil_log2(shape.ranks())) + u64::from(shape.blocks()) - 1
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let (n, k) = (shape.ranks(), shape.blocks());
    let skips = Skips::new(n);
    let q = skips.q() as u32;
    let rows: Vec<Row> = (0..n).map(|r| skips.recv_row(r)).collect();
    let last = k as i32 - 1;
    let x = (q - (k - 1) % q) % q;
    for round in 0..q + k - 1 {
        let (j, phase) = (((round + x) % q) as usize, (round + x) / q);
        let offset = (phase * q) as i32 - x as i32;
        let skip = skips.as_slice()[j];
        let (to, from) = ((rank + skip) % n, (rank + n - skip) % n);
        for (side, peer, receiver) in [(Direction::Send, to, to), (Direction::Recv, from, rank)] {
            for part in (0..n).filter(|&part| part != receiver) {
                let relative = (receiver + n - part) % n;
                let block = (rows[relative as usize][j] + offset).min(last);
                if let Ok(block) = u32::try_from(block) {
                    steps.push(Step::new(round, side, peer, part * k + block, 0));
                }
            }
        }
    }
}
