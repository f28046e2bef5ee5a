//! The telephone model: paced by rounds, a port busy alpha + m / beta for a message of m bytes.
//!
//! A message is what one rank sends to another in one round on one port; it pays alpha once, however
//! many blocks it has. A round takes the time of its largest message, so a run takes R alpha +
//! B m / beta: R rounds, and B the blocks of the largest messages of all rounds, m bytes each. That
//! is exact for equal blocks (k divides M), as [`crate::simulate`] confirms in integers.
//!
//! | algorithm, one port | R | B | best k |
//! |---|---|---|---|
//! | broadcasts with one block per message | [`schedule::rounds`] | R | see below |
//! | `scatter-allgather` | q + N - 1, less empty rounds | the largest runs: about 2 (N-1) k / N | N, or 1 |
//! | scatter, gather `flat` | N - 1 | (N-1) k | 1 |
//! | scatter, gather `binomial`, `knomial` | [`schedule::rounds`] | k times the largest subtree of each turn | 1 |
//! | allgathers | [`schedule::rounds`] | (N-1) k | 1 |
//!
//! A broadcast in c + p k rounds (`pipelined-chain` c = N - 2, `pipelined-tree` c = q - 1, p = 1; the
//! binary tree p = 2) takes (c + p k)(alpha + M / (k beta)): at the best k, sqrt(c M / (p alpha beta)),
//! that is (sqrt(c alpha) + sqrt(p M / beta))^2. Of two neighbouring integers k and k + 1 the smaller
//! is at least as good if and only if c M <= k (k + 1) p alpha beta, which is exact in integers: the
//! best is the smallest such k. That is the comparison of floor and ceiling of the root above. With
//! d ports k counts the blocks of a port, and M / d takes the place of M.
//!
//! Source: for the pipelines any textbook on collective communication, by setting the derivative
//! of the time in k to zero; for the circulant one also J. L. Träff, arXiv 2312.11236.

use super::{MAX_MESSAGE_BYTES, PS_PER_NS, PS_PER_S};
use crate::schedule::circulant::Skips;
use crate::schedule::{self, Algorithm, MAX_BLOCKS, Operation, Shape, ceil_log2};

const NS_PER_S: u128 = 1_000_000_000;

/// The parameters of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Telephone {
    /// alpha: the time to start a message, in ns.
    pub alpha_ns: u64,
    /// beta: the bytes per second of a port; 0 counts as 1.
    pub bytes_per_second: u64,
}

/// What a run in rounds is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rounds {
    /// R: the rounds in which something is sent.
    pub count: u64,
    /// B: the blocks of the largest messages of these rounds.
    pub blocks: u64,
}

impl Telephone {
    /// The time of the shape's operation, in ps; `bytes` are those of the message, or in a scatter,
    /// gather or allgather of one rank's part.
    ///
    /// Blocks are taken as equal, of ceil(`bytes` / k) bytes. The largest `u64` stands for all
    /// times above it (213 days).
    pub fn time_ps(&self, algorithm: Algorithm, shape: Shape, bytes: u64) -> u64 {
        let Rounds { count, blocks } = rounds(algorithm, shape);
        let block_bytes = bytes.div_ceil(u64::from(shape.blocks()));
        let transfer_ps = u128::from(block_bytes) * u128::from(PS_PER_S);
        let transfer_ps = transfer_ps.div_ceil(u128::from(self.bytes_per_second.max(1)));
        let alpha_ps = u128::from(self.alpha_ns) * u128::from(PS_PER_NS);
        let starts_ps = alpha_ps.saturating_mul(count.into());
        let total_ps = transfer_ps.saturating_mul(blocks.into()).saturating_add(starts_ps);
        u64::try_from(total_ps).unwrap_or(u64::MAX)
    }

    /// The number of blocks, 1 to [`MAX_BLOCKS`] and not above `bytes`, that takes the least time
    /// for a broadcast with one port if the message divides evenly; the smallest such number.
    pub fn best_blocks(&self, algorithm: Algorithm, ranks: u32, bytes: u64) -> u32 {
        match Shape::new(ranks, 0, 1) {
            Ok(shape) => self.best_blocks_of(algorithm, shape, bytes),
            Err(_) => 1,
        }
    }

    /// The same for any operation, ports and radix; the blocks of the shape do not matter.
    ///
    /// With d ports the number is a multiple of d where blocks are dealt to ports.
    pub fn best_blocks_of(&self, algorithm: Algorithm, shape: Shape, bytes: u64) -> u32 {
        let most = u64::from(MAX_BLOCKS).min(bytes).max(1) as u32;
        let dealt = match algorithm {
            Algorithm::Flat | Algorithm::Knomial => 1,
            Algorithm::BidirectionalRing => (u32::from(shape.ports()) / 2).max(1),
            _ => shape.ports().into(),
        };
        if algorithm == Algorithm::ScatterAllgather {
            return self.best_runs(shape, bytes, dealt, most);
        }
        if shape.operation().has_parts() {
            return dealt.min(most);
        }
        // Rounds are c + p j for j blocks on each port; with one there may be fewer.
        let at = |j: u32| match with_blocks(shape, j * dealt) {
            Some(shape) => schedule::rounds(algorithm, shape),
            None => 0,
        };
        let period = u128::from(at(3).saturating_sub(at(2)));
        let extra = u128::from(at(2)).saturating_sub(2 * period);
        let unit = u128::from(self.alpha_ns) * u128::from(self.bytes_per_second.max(1));
        let unit = unit.saturating_mul(period * u128::from(dealt));
        let work = (extra * u128::from(bytes)).saturating_mul(NS_PER_S);
        let is_enough = |j: u32| {
            let pairs = u128::from(j) * u128::from(j + 1);
            pairs.checked_mul(unit).is_none_or(|product| product >= work)
        };
        let (mut low, mut high) = (1, (most / dealt).max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if is_enough(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let blocks = (low * dealt).min(most);
        let of = |blocks: u32, rounds: u64| {
            self.fraction(Rounds { count: rounds, blocks: rounds }, blocks, bytes)
        };
        let ((one, one_k), (best, best_k)) = (of(dealt, at(1)), of(blocks, at(low)));
        let is_one = one.saturating_mul(best_k) <= best.saturating_mul(one_k);
        if is_one { dealt.min(most) } else { blocks }
    }

    /// Runs of one block each, so that all are equal; or no scatter at all.
    fn best_runs(&self, shape: Shape, bytes: u64, dealt: u32, most: u32) -> u32 {
        let candidates = [dealt.min(most), shape.ranks().saturating_mul(dealt).min(most)];
        let time = |blocks: u32| match with_blocks(shape, blocks) {
            Some(shape) => self.time_ps(Algorithm::ScatterAllgather, shape, bytes),
            None => u64::MAX,
        };
        candidates.into_iter().min_by_key(|&blocks| time(blocks)).unwrap_or(1)
    }

    /// What no schedule of the operation can be faster than, in ps: `bytes` as in
    /// [`Telephone::time_ps`], whatever the number of blocks.
    ///
    /// The larger of ceil(log_{d+1} N) alpha, since what has left a rank over d ports is d times as
    /// much as it, and of the bytes that pass one rank over d beta.
    pub fn lower_bound_ps(&self, shape: Shape, bytes: u64) -> u64 {
        let n = shape.ranks();
        if n == 1 {
            return 0;
        }
        let depth = u128::from(ceil_log(n, u32::from(shape.ports()) + 1));
        let alpha_ps = u128::from(self.alpha_ns) * u128::from(PS_PER_NS);
        let bytes = match shape.operation() {
            Operation::Broadcast => bytes.into(),
            _ => u128::from(n - 1) * u128::from(bytes),
        };
        let rate = u128::from(self.bytes_per_second.max(1)) * u128::from(shape.ports());
        let transfer_ps = bytes.saturating_mul(PS_PER_S.into()) / rate;
        let bound = alpha_ps.saturating_mul(depth).max(transfer_ps);
        u64::try_from(bound).unwrap_or(u64::MAX)
    }

    /// The smallest message, in bytes, from which on a broadcast by `to` takes less time than one by
    /// `from`, each in its best number of blocks; `None` if there is none up to
    /// [`MAX_MESSAGE_BYTES`].
    ///
    /// Times are compared as fractions, without rounding. With some pairs of algorithms the advantage
    /// changes more than once; this is one of the places where it does, found by bisection.
    pub fn switch_bytes(&self, from: Algorithm, to: Algorithm, shape: Shape) -> Option<u64> {
        let is_faster = |bytes: u64| {
            let time = |algorithm| {
                let blocks = self.best_blocks_of(algorithm, shape, bytes);
                let shape = with_blocks(shape, blocks).unwrap_or(shape);
                self.fraction(rounds(algorithm, shape), blocks, bytes)
            };
            let ((to_num, to_den), (from_num, from_den)) = (time(to), time(from));
            to_num.saturating_mul(from_den) < from_num.saturating_mul(to_den)
        };
        let (mut low, mut high) = (0, MAX_MESSAGE_BYTES);
        if !is_faster(high) {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if is_faster(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(low)
    }

    /// The time times beta and 10^9, as a fraction: (R k alpha beta + B M) / k.
    fn fraction(&self, rounds: Rounds, blocks: u32, bytes: u64) -> (u128, u128) {
        let k = u128::from(blocks);
        let unit = u128::from(self.alpha_ns) * u128::from(self.bytes_per_second.max(1));
        let starts = unit.saturating_mul(u128::from(rounds.count)).saturating_mul(k);
        let moved = (u128::from(rounds.blocks) * u128::from(bytes)).saturating_mul(NS_PER_S);
        (starts.saturating_add(moved), k)
    }
}

/// The rounds that no schedule of a broadcast of k blocks over d ports can do without:
/// ceil(k / d) - 1 + ceil(log_{d+1} N), q + k - 1 with one port.
pub fn least_rounds(shape: Shape) -> u64 {
    let ports = u32::from(shape.ports());
    match shape.ranks() {
        1 => 0,
        n => u64::from(shape.blocks().div_ceil(ports)) - 1 + u64::from(ceil_log(n, ports + 1)),
    }
}

/// R and B of the algorithm.
pub fn rounds(algorithm: Algorithm, shape: Shape) -> Rounds {
    let (n, k) = (u64::from(shape.ranks()), u64::from(shape.blocks()));
    let count = schedule::rounds(algorithm, shape);
    if n == 1 {
        return Rounds { count: 0, blocks: 0 };
    }
    let stripe = k.div_ceil(shape.ports().into());
    match (shape.operation(), algorithm) {
        (Operation::Broadcast, Algorithm::ScatterAllgather) => {
            let stripes = stripes(shape).map(|k| move |round| run_in_round(n, k, round));
            largest(count, &stripes)
        }
        (Operation::Broadcast, _) => Rounds { count, blocks: count },
        (Operation::Scatter | Operation::Gather, Algorithm::Flat) => {
            Rounds { count, blocks: count * k }
        }
        (Operation::Scatter | Operation::Gather, Algorithm::Knomial) => {
            let ranks = subtrees(n, shape.radix().into(), shape.ports().into());
            Rounds { count, blocks: ranks * k }
        }
        (Operation::Scatter | Operation::Gather, _) => {
            Rounds { count, blocks: subtrees(n, 2, 1) * stripe }
        }
        (Operation::Allgather, Algorithm::Circulant) if k % u64::from(shape.ports()) != 0 => {
            let parts = PartsInRound::new(shape.ranks());
            let stripes = stripes(shape).map(|k| {
                let parts = &parts;
                move |round| parts.at(k, round)
            });
            largest(count, &stripes)
        }
        (Operation::Allgather, Algorithm::Ring) => Rounds { count, blocks: count * stripe },
        (Operation::Allgather, _) => Rounds { count, blocks: (n - 1) * stripe },
    }
}

/// The numbers of blocks that ports have: that of the first, and that of the last if it has any.
fn stripes(shape: Shape) -> [u64; 2] {
    let (k, ports) = (u64::from(shape.blocks()), u64::from(shape.ports()));
    [k.div_ceil(ports), k / ports]
}

/// Adds up the largest messages, in blocks, of the rounds.
fn largest(rounds: u64, messages: &[impl Fn(u64) -> u64; 2]) -> Rounds {
    let mut sum = Rounds { count: 0, blocks: 0 };
    for round in 0..rounds {
        let most = messages[0](round).max(messages[1](round));
        sum.count += u64::from(most > 0);
        sum.blocks += most;
    }
    sum
}

/// The largest message of a round of `scatter-allgather` with k blocks on one port.
///
/// In the ring, run u goes from rank (u + t) mod N in turn t; not if the receiver is the root, or has
/// got the run in the scatter: u - w, with w = N - 1 - t, is then the root or above u - 2^z, z its
/// trailing zeros.
fn run_in_round(n: u64, k: u64, round: u64) -> u64 {
    let start = |run: u64| (run * k).div_ceil(n);
    let q = u64::from(ceil_log2(n as u32));
    if round < q {
        let distance = 1 << (q - 1 - round);
        // No rank sends more than the root, whose runs are whole.
        let sizes = (0..n).step_by(2 * distance as usize).map(|rank| {
            let child = (rank + distance).min(n);
            start((child + distance).min(n)) - start(child)
        });
        return sizes.max().unwrap_or(0);
    }
    let wait = n - 1 - (round - q);
    let mut most = 0;
    for run in 0..n {
        let is_sent = run < wait || {
            let receiver = run - wait;
            receiver > 0 && (1 << receiver.trailing_zeros()) <= wait
        };
        if is_sent {
            most = most.max(start(run + 1) - start(run));
            if most == k.div_ceil(n) {
                break;
            }
        }
    }
    most
}

/// The ranks in the largest subtrees of all turns of a k-nomial tree.
fn subtrees(n: u64, radix: u64, ports: u64) -> u64 {
    let mut distance = 1;
    while distance * radix < n {
        distance *= radix;
    }
    let (mut end, mut ranks) = (n, 0);
    while distance > 0 {
        // The first child of a turn has the largest subtree.
        let mut child = 1;
        while child < radix && child * distance < end {
            ranks += distance.min(end - child * distance);
            child += ports;
        }
        (end, distance) = (distance, distance / radix);
    }
    ranks
}

/// How many parts an edge of the circulant allgather carries in a round.
#[derive(Debug)]
struct PartsInRound {
    q: usize,
    /// For each j, the relative ranks but the root whose entry of the receive row is v, at v + q.
    entries: Vec<Vec<u64>>,
}

impl PartsInRound {
    fn new(ranks: u32) -> Self {
        let skips = Skips::new(ranks);
        let q = skips.q();
        let mut entries = vec![vec![0; 2 * q + 1]; q];
        for rank in 1..ranks {
            let row = skips.recv_row(rank);
            for j in 0..q {
                entries[j][(row[j] + q as i32) as usize] += 1;
            }
        }
        Self { q, entries }
    }

    fn at(&self, k: u64, round: u64) -> u64 {
        let q = self.q as u64;
        if k == 0 || round >= q + k - 1 {
            return 0;
        }
        let x = (q - (k - 1) % q) % q;
        let (j, phase) = ((round + x) % q, (round + x) / q);
        // Entries from x - phase q on are blocks.
        let least = (q + x).saturating_sub(phase * q) as usize;
        self.entries[j as usize].iter().skip(least).sum()
    }
}

fn with_blocks(shape: Shape, blocks: u32) -> Option<Shape> {
    let plain = Shape::new(shape.ranks(), shape.root(), blocks).ok()?;
    let plain = plain.with_operation(shape.operation()).ok()?;
    plain.with_ports(shape.ports()).ok()?.with_radix(shape.radix()).ok()
}

/// ceil(log_base n), for a base of at least 2.
fn ceil_log(n: u32, base: u32) -> u32 {
    let (mut power, mut log) = (1_u64, 0);
    while power < u64::from(n) {
        power *= u64::from(base);
        log += 1;
    }
    log
}
