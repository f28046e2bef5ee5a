//! The loggp model: what an algorithm takes without rounds, in closed form.
//!
//! Symbols: N ranks, q = ceil(log2 N), d ports, k blocks of m bytes. The out-port is busy b = max(g, t)
//! for a block, with t = o + m / beta; the last byte arrives L after the out-port has sent it, so a
//! block is at the next rank h = L + t after its port began; the in-port takes t for a block.
//! The overhead o is 0 for an adapter; where a processor starts a block and moves it, it is what a
//! block costs beside its bytes.
//!
//! Where the receiver *pulls* the bytes, as through shared memory, the out-port is busy b = g only, and
//! one sender serves many receivers at once. The forms of one block hold as they are. Of more blocks
//! the `flat` broadcast takes (ceil((N-1) / d) - 1) k g + h + (k-1) max(g, t), and chains what they
//! take otherwise, exactly. The others are only estimated: whole-message trees by their form with b =
//! max(g, t), the rest by the time of the first block and (k-1) max(g, t), or by their form with b = g
//! if that is more. What is pulled gains little by blocks, so these are chosen for hundreds of ranks on
//! one host at most. In gather and allgather, where each rank receives as much as it sends or more, b is
//! max(g, t) as before.
//!
//! Each form is the time of [`crate::simulate`] without rounds and without faults: exactly, where
//! the table says so, else within 5 % at the block sizes that [`select`](fn@super::select) chooses.
//! The tests `forms_*` compare them. Algorithms that are striped over d ports take the time of the
//! first port, which has ceil(k / d) blocks; k stands for that number below.
//!
//! | operation, algorithm | time | |
//! |---|---|---|
//! | broadcast `flat` | (ceil((N-1) / d) k - 1) b + h | exact |
//! | `chain`, `pipelined-chain` | (N-1) h + (k-1) b | exact |
//! | `binomial`, `knomial` | (k-1) b + the longest way in the tree, a turn being k b | exact |
//! | `pipelined-binomial` | (k-1) q b + the longest way, a turn being b | exact |
//! | `pipelined-binary` | 2 (k-1) b + max((D-1)(h + b), D h + ones b) | exact |
//! | `two-tree` | (k-1) b + (D+1) h + (W-D) b + drift | |
//! | `pipelined-tree` | (k-1) b + (H+1) h + (q-H-1) b + drift | |
//! | `scatter-allgather` | max((k-1) b + (N-1) h, (2 k - ceil(2 k / N) - 1) b + h) | |
//! | `bidirectional-ring` | 2 (k-1) b + the longer chain; (k'-1) b + ceil((N-1)/2) h for d >= 2 | exact |
//! | scatter `flat` | (ceil((N-1) / d) k - 1) b + h | exact |
//! | scatter `binomial`, `knomial` | max over ranks: place in the root's list b + hops h | exact |
//! | gather, allgather | stages, see `loggp/parts.rs` | |
//!
//! W and D are those of [`two_tree`](crate::schedule::two_tree) and
//! [`binary`](crate::schedule::binary). H, the most skips in a sum that is a rank, and the drift
//! are explained in `loggp/circulant.rs`.

mod circulant;
mod parts;
mod trees;

pub(super) use circulant::Ways;

use super::{PS_PER_NS, PS_PER_S};
use crate::schedule::{Algorithm, Operation, Shape, ceil_log2};

/// What a port does, and the way from it to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Path {
    /// L: from when the last byte has left a port to when it arrives at another, in ps.
    pub latency_ps: u64,
    /// g: the time between the starts of two blocks at the out-port at least, in ps.
    pub gap_ps: u64,
    /// o: what a port takes for a block beside its bytes, in ps; 0 for an adapter.
    pub overhead_ps: u64,
    /// beta: bytes per second; 0 counts as 1.
    pub bytes_per_second: u64,
    /// The receiver fetches the bytes: its in-port takes o + m / beta from L after the out-port began,
    /// which takes g, whatever the bytes.
    pub pulled: bool,
}

impl Path {
    /// A path given in ns, without overhead.
    pub const fn from_ns(latency_ns: u64, gap_ns: u64, bytes_per_second: u64) -> Self {
        Self {
            latency_ps: latency_ns.saturating_mul(PS_PER_NS),
            gap_ps: gap_ns.saturating_mul(PS_PER_NS),
            overhead_ps: 0,
            bytes_per_second,
            pulled: false,
        }
    }

    /// o + m / beta of m bytes, in ps, rounded up; the largest `u64` if it is more than that.
    pub fn transfer_ps(&self, bytes: u64) -> u64 {
        let rate = self.bytes_per_second.max(1);
        // A division of 64 bits where that is enough is much faster.
        let transfer_ps = match bytes.checked_mul(PS_PER_S) {
            Some(product) => product.div_ceil(rate),
            None => {
                let product = u128::from(bytes) * u128::from(PS_PER_S);
                u64::try_from(product.div_ceil(rate.into())).unwrap_or(u64::MAX)
            }
        };
        transfer_ps.saturating_add(self.overhead_ps)
    }

    /// The costs of messages of `bytes` bytes that go into slots which the receiver keeps ready: there
    /// the sender copies them, this many bytes per second, also where blocks are pulled.
    pub fn eager(self, bytes: u64, copy_bytes_per_second: u64) -> Self {
        if !self.pulled {
            return self;
        }
        let copy = Self { bytes_per_second: copy_bytes_per_second, overhead_ps: 0, ..self };
        Self { gap_ps: self.gap_ps.saturating_add(copy.transfer_ps(bytes)), ..self }
    }

    /// The time of the algorithm with blocks of `block_bytes` bytes each, in ps, from when all ranks
    /// have made the call and granted their buffers.
    ///
    /// `None` if the algorithm is none of the shape's operation, or not made for its number of ranks.
    /// The largest `u64` stands for all times above it (213 days).
    ///
    /// # Examples
    ///
    /// ```
    /// use verbcast_collectives::model::Path;
    /// use verbcast_collectives::schedule::{Algorithm, Shape};
    ///
    /// // L = 1.5 us, g = 0.2 us, 50 GB/s; blocks of 16 KiB take 327.68 ns.
    /// let path = Path::from_ns(1_500, 200, 50_000_000_000);
    /// let shape = Shape::new(64, 0, 1024)?;
    /// let chain_ps = path.time_ps(Algorithm::PipelinedChain, shape, 16 << 10);
    /// assert_eq!(chain_ps, Some(63 * (1_500_000 + 327_680) + 1023 * 327_680));
    /// # Ok::<(), verbcast_collectives::schedule::ScheduleError>(())
    /// ```
    pub fn time_ps(&self, algorithm: Algorithm, shape: Shape, block_bytes: u64) -> Option<u64> {
        if !is_made_for(algorithm, shape) {
            return None;
        }
        let costs = Costs::new(self, block_bytes);
        let time_ps = costs.time(algorithm, shape, &Ways::new(shape.ranks()));
        Some(u64::try_from(time_ps).unwrap_or(u64::MAX))
    }
}

/// Whether the algorithm is one of the shape's operation, and made for its number of ranks.
pub(super) fn is_made_for(algorithm: Algorithm, shape: Shape) -> bool {
    let is_of_operation = Algorithm::of(shape.operation()).contains(&algorithm);
    let needs_power = algorithm == Algorithm::RecursiveDoubling;
    is_of_operation && (!needs_power || shape.ranks().is_power_of_two())
}

/// The times of one block, in ps; 128 bits hold them times any number of blocks and ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// L.
    latency: u128,
    /// t = o + m / beta.
    transfer: u128,
    /// b = max(g, t).
    busy: u128,
    /// h = L + t.
    hop: u128,
    pulled: bool,
}

impl Costs {
    pub(super) fn new(path: &Path, block_bytes: u64) -> Self {
        let latency = u128::from(path.latency_ps);
        let transfer = u128::from(path.transfer_ps(block_bytes));
        let gap = u128::from(path.gap_ps);
        let busy = if path.pulled { gap } else { transfer.max(gap) };
        Self { latency, transfer, busy, hop: latency + transfer, pulled: path.pulled }
    }

    /// The form of an algorithm that is one of the shape's operation.
    pub(super) fn time(&self, algorithm: Algorithm, shape: Shape, ways: &Ways) -> u128 {
        let n = shape.ranks();
        if n == 1 {
            return 0;
        }
        // Out-ports and in-ports have as much to do.
        let both = Self { busy: self.busy.max(self.transfer), ..*self };
        match shape.operation() {
            Operation::Broadcast if self.pulled => self.pulled_broadcast(algorithm, shape, ways),
            Operation::Broadcast => self.broadcast(algorithm, shape, ways),
            Operation::Scatter => parts::scatter(self, algorithm, shape),
            Operation::Gather => parts::gather(&both, algorithm, shape),
            Operation::Allgather => parts::allgather(&both, algorithm, shape),
        }
    }

    fn pulled_broadcast(&self, algorithm: Algorithm, shape: Shape, ways: &Ways) -> u128 {
        match algorithm {
            Algorithm::Flat => return self.pulled_flat(shape),
            // A rank below the root gets the blocks that it is to send no faster than its in-port does.
            Algorithm::Binomial | Algorithm::Knomial if shape.blocks() > 1 => {
                let both = Self { busy: self.busy.max(self.transfer), ..*self };
                return both.broadcast(algorithm, shape, ways);
            }
            _ => {}
        }
        let all = self.broadcast(algorithm, shape, ways);
        let blocks = match algorithm {
            Algorithm::BidirectionalRing => shape.blocks().into(),
            _ => stripe(shape),
        };
        let one = self.broadcast(algorithm, shape.with_one_block(), ways);
        all.max(one + (blocks - 1) * self.busy.max(self.transfer))
    }

    /// The last child's blocks come after those of the others before it, and one by one.
    fn pulled_flat(&self, shape: Shape) -> u128 {
        let groups = u128::from(shape.ranks() - 1).div_ceil(shape.ports().into());
        let k = u128::from(shape.blocks());
        (groups - 1) * k * self.busy + self.hop + (k - 1) * self.busy.max(self.transfer)
    }

    fn broadcast(&self, algorithm: Algorithm, shape: Shape, ways: &Ways) -> u128 {
        let (b, h) = (self.busy, self.hop);
        let n = shape.ranks();
        let (others, ports) = (u128::from(n - 1), u128::from(shape.ports()));
        let (blocks, k) = (u128::from(shape.blocks()), stripe(shape));
        let q = u128::from(ceil_log2(n));
        match algorithm {
            Algorithm::Flat => (others.div_ceil(ports) * blocks - 1) * b + h,
            Algorithm::Chain | Algorithm::PipelinedChain => others * h + (k - 1) * b,
            Algorithm::Binomial => trees::longest_way(n, (2, 1), (k * b, h)) + (k - 1) * b,
            Algorithm::Knomial => {
                let tree = (shape.radix(), shape.ports());
                trees::longest_way(n, tree, (blocks * b, h)) + (blocks - 1) * b
            }
            Algorithm::PipelinedBinomial => trees::longest_way(n, (2, 1), (b, h)) + (k - 1) * q * b,
            Algorithm::PipelinedBinary => trees::binary(self, n, k),
            Algorithm::TwoTree => trees::two_tree(self, n, k),
            Algorithm::BidirectionalRing => trees::bidirectional_ring(self, shape),
            Algorithm::ScatterAllgather => scatter_allgather(self, n, k),
            // No other algorithm broadcasts.
            _ => circulant::broadcast(self, n, k, ways),
        }
    }
}

/// The blocks of the first port, where blocks are dealt to the ports in turn.
fn stripe(shape: Shape) -> u128 {
    u128::from(shape.blocks().div_ceil(shape.ports().into()))
}

/// The root sends what others scatter, and then all but its neighbour's run once more into the ring:
/// the last of that goes one hop. Its own run goes around the whole ring.
fn scatter_allgather(costs: &Costs, n: u32, k: u128) -> u128 {
    let Costs { busy: b, hop: h, .. } = *costs;
    let around = (k - 1) * b + u128::from(n - 1) * h;
    // The runs of the root and of rank 1 leave it once.
    let once = (2 * k).div_ceil(n.into());
    let last = (2 * k - once).saturating_sub(1) * b + h;
    around.max(last)
}
