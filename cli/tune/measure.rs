//! Measurements between the ranks of a job.
//!
//! Clocks of different ranks are never compared. Broadcasts over the chain go around: the last rank of
//! one is the root of the next, so that n of them, n ranks, take n times the time of one from its root
//! to its last rank, and rank 0 measures that with its own clock:
//!
//! - an eager message of a few bytes: (n - 1) L;
//! - k blocks of m bytes into granted buffers: (n - 1)(L + b(m)) + (k - 1) b(m) + G, where b(m) is what
//!   one more block costs and G what granting costs. The difference of two k, everything else alike,
//!   is (k2 - k1) b(m). b of a tiny block is g, and m / b(m) of a large one is beta;
//! - an eager message of a few bytes from the root to each rank itself, the next root being the one that
//!   is served last, or first: the difference is N - 2 turns of the root;
//! - a block of m = g beta bytes tells whether g and m / beta go on at once (an adapter: b(m) is about g)
//!   or one after the other (a processor: about 2 g): o = b(m) - m / beta, from 0 to g.

use std::time::{Duration, Instant};

use verbcast::{Algorithm, Error, Vote, World};

use super::estimate::Estimate;

/// What was measured; times in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// L: from one rank to the next.
    pub(crate) latency_ns: Estimate,
    /// g: one more tiny block.
    pub(crate) gap_ns: Estimate,
    /// What a root takes to serve one more rank with a tiny message; of none if there are only two ranks.
    pub(crate) turn_ns: Estimate,
    /// o: the part of a block's cost that is spent beside its bytes, not at the same time.
    pub(crate) overhead_ns: Estimate,
    /// beta: bytes per second of one rank's port, receiving and sending at once.
    pub(crate) bytes_per_second: Estimate,
    /// What the first message over a link takes more than later ones.
    pub(crate) link_setup_ns: Estimate,
    /// What a message to a rank that sleeps takes more.
    pub(crate) wake_ns: Estimate,
    /// Bytes per second that one rank copies while the others of the job are idle.
    pub(crate) copy_one: Estimate,
    /// Bytes per second that all ranks together copy.
    pub(crate) copy_all: Estimate,
    /// The largest message that is faster without a grant.
    pub(crate) eager_limit_bytes: u64,
}

/// Bytes of a message whose transfer takes no time worth counting.
const TINY: usize = 8;
/// Bytes of a block that is all gap.
const TINY_BLOCK: u64 = 64;
/// The least bytes of a block that is half gap, half transfer.
const MEDIUM_BLOCK_LEAST: u64 = 1024;
/// Bytes of a block that is all transfer.
const LARGE_BLOCK: u64 = 1 << 20;
/// The two numbers of blocks whose difference is measured.
const FEW: u64 = 4;
const MANY: u64 = 12;
/// Sizes at which eager and granted messages are compared.
const EAGER_SIZES: [usize; 5] = [256, 512, 1024, 2048, 4032];
/// How long a root waits until the others have gone to sleep.
const ASLEEP_AFTER: Duration = Duration::from_millis(3);

/// Bytes of a copy within memory: more than most caches hold.
const COPY_BYTES: usize = 24 << 20;
const _: () = assert!(LARGE_BLOCK as usize * MANY as usize <= 2 * COPY_BYTES);

/// The parts that the time is shared out in: beta has four, copies one, everything else one each.
const PARTS: u32 = 11;

/// Measurements between two looks at the clock, at most, and how many such batches there should be.
const BATCH_MOST: u64 = 8;
const BATCHES_LEAST: u64 = 4;
/// Fewer measurements have no bounds of 95 %, more are a waste.
const SAMPLES_LEAST: usize = 6;
const SAMPLES_MOST: usize = 800;

/// The steps, for a progress bar.
pub(crate) const STEPS: u64 = 8;

/// The ranks with what they need; every rank makes the same calls in the same order.
struct Ring<'a> {
    world: &'a World,
    buffer: Vec<u8>,
    /// How long each measurement may take.
    budget: Duration,
}

/// Measures everything within about `limit`; `step` is called after each of [`STEPS`] steps.
///
/// # Errors
/// The job's: a rank that died, a fabric that broke.
pub(crate) fn measure(
    world: &World,
    limit: Duration,
    mut step: impl FnMut(),
) -> Result<Measured, Error> {
    let part = limit / PARTS;
    let mut ring = Ring { world, buffer: vec![0; 2 * COPY_BYTES], budget: part };
    let link_setup_ns = ring.link_setup()?;
    step();
    let latency_ns = ring.latency()?;
    step();
    let turn_ns = ring.turn()?;
    step();
    let gap_ns = ring.block(TINY_BLOCK)?;
    step();
    // Each of these takes long, and most depends on it.
    ring.budget = 4 * part;
    let bytes_per_second = ring.block(LARGE_BLOCK)?.map(|ns| rate(LARGE_BLOCK, ns));
    ring.budget = part;
    step();
    let overhead_ns = ring.overhead(gap_ns.value, bytes_per_second.value)?;
    step();
    let wake_ns = ring.wake(latency_ns.value)?;
    let eager_limit_bytes = ring.eager_limit()?;
    step();
    ring.budget = part / 2;
    let (copy_one, copy_all) = ring.copies()?;
    step();
    Ok(Measured {
        latency_ns,
        gap_ns,
        turn_ns,
        overhead_ns,
        bytes_per_second,
        link_setup_ns,
        wake_ns,
        copy_one,
        copy_all,
        eager_limit_bytes,
    })
}

/// Bytes per second.
fn rate(bytes: u64, ns: f64) -> f64 {
    bytes as f64 * 1e9 / ns.max(1.0)
}

impl Ring<'_> {
    /// Broadcasts over the chain, once from every rank, each from the one that the one before came to
    /// last; gives the time of one of them.
    fn around(&mut self, bytes: usize, block_bytes: Option<u64>) -> Result<f64, Error> {
        let began = Instant::now();
        let ranks = self.world.size();
        for turn in 0..ranks {
            let root = (ranks - turn) % ranks;
            self.broadcast(root, bytes, block_bytes)?;
        }
        // The last of these broadcasts comes from rank 1 and ends at rank 0.
        Ok(began.elapsed().as_nanos() as f64 / f64::from(ranks))
    }

    fn broadcast(&mut self, root: u32, bytes: usize, block: Option<u64>) -> Result<(), Error> {
        let communicator = self.world.communicator();
        let mut call = communicator.broadcast_call(root).algorithm(Algorithm::PipelinedChain);
        if let Some(block_bytes) = block {
            call = call.block_bytes(block_bytes);
        }
        call.run(&mut self.buffer[..bytes])
    }

    /// Hops of a chain.
    fn hops(&self) -> f64 {
        f64::from(self.world.size() - 1)
    }

    /// Repeats a measurement until its budget is used up, in batches whose length all ranks agree on;
    /// the numbers of rank 0 count.
    fn repeat(
        &mut self,
        mut once: impl FnMut(&mut Self) -> Result<f64, Error>,
    ) -> Result<Vec<f64>, Error> {
        // The first is not counted: memory is touched, and links are made.
        let began = Instant::now();
        once(self)?;
        let fits = self.budget.as_nanos() / began.elapsed().as_nanos().max(1);
        let fits = (fits as u64 / BATCHES_LEAST).clamp(1, BATCH_MOST);
        let batch = self.of_first(fits)?;
        let began = Instant::now();
        let mut samples = Vec::new();
        while samples.len() < SAMPLES_MOST {
            for _ in 0..batch {
                samples.push(once(self)?);
            }
            let is_over = samples.len() >= SAMPLES_LEAST && began.elapsed() > self.budget;
            if self.of_first(is_over.into())? > 0 {
                break;
            }
        }
        Ok(samples)
    }

    /// The number that rank 0 has, on every rank.
    fn of_first(&self, number: u64) -> Result<u64, Error> {
        let high = if self.world.rank() == 0 { number } else { 0 };
        Ok(self.world.agree(Vote { failure: None, low: 0, high })?.maximum)
    }

    /// The first messages around the ring, when there are no links yet, less later ones.
    ///
    /// All ranks make their links at once: one each with two ranks, else two.
    fn link_setup(&mut self) -> Result<Estimate, Error> {
        const LATER: usize = 5;
        let ranks = self.world.size();
        self.world.agree_all(None)?;
        let first = self.around(TINY, None)?;
        let later = (0..LATER).map(|_| self.around(TINY, None)).collect::<Result<Vec<_>, _>>()?;
        let links = f64::from((ranks - 1).min(2));
        let more = (first - Estimate::of(later).value) * f64::from(ranks) / links;
        Ok(Estimate::of(vec![more.max(0.0)]))
    }

    fn latency(&mut self) -> Result<Estimate, Error> {
        let hops = self.hops();
        let samples = self.repeat(|ring| ring.around(TINY, None))?;
        Ok(Estimate::of(samples).map(|ns| ns / hops))
    }

    /// What one more rank costs a root that serves all itself.
    fn turn(&mut self) -> Result<Estimate, Error> {
        let ranks = self.world.size();
        if ranks < 3 {
            return Ok(Estimate::of(Vec::new()));
        }
        let samples = self.repeat(|ring| {
            let last = ring.flat_around(ranks - 1)?;
            let first = ring.flat_around(1)?;
            Ok((last - first) / f64::from(ranks - 2))
        })?;
        Ok(Estimate::of(samples).map(|ns| ns.max(0.0)))
    }

    /// Tiny broadcasts from every rank to each other rank itself, the root `step` ranks on each time; gives
    /// the time of one of them.
    fn flat_around(&mut self, step: u32) -> Result<f64, Error> {
        let communicator = self.world.communicator();
        let ranks = self.world.size();
        let began = Instant::now();
        for turn in 0..ranks {
            let root = (u64::from(turn) * u64::from(step) % u64::from(ranks)) as u32;
            communicator
                .broadcast_call(root)
                .algorithm(Algorithm::Flat)
                .run(&mut self.buffer[..TINY])?;
        }
        Ok(began.elapsed().as_nanos() as f64 / f64::from(ranks))
    }

    /// b(m), in ns.
    fn block(&mut self, block_bytes: u64) -> Result<Estimate, Error> {
        let samples = self.repeat(|ring| {
            let few = ring.around((FEW * block_bytes) as usize, Some(block_bytes))?;
            let many = ring.around((MANY * block_bytes) as usize, Some(block_bytes))?;
            Ok((many - few) / (MANY - FEW) as f64)
        })?;
        Ok(Estimate::of(samples).map(|ns| ns.max(0.0)))
    }

    /// o, from blocks whose bytes take as long as the gap; all ranks use the numbers of rank 0.
    fn overhead(&mut self, gap_ns: f64, rate: f64) -> Result<Estimate, Error> {
        let wanted = (gap_ns * rate / 1e9) as u64;
        let block_bytes = self.of_first(wanted)?.clamp(MEDIUM_BLOCK_LEAST, LARGE_BLOCK);
        let transfer_ns = block_bytes as f64 * 1e9 / rate.max(1.0);
        let busy = self.block(block_bytes)?;
        Ok(busy.map(|ns| (ns - transfer_ns).clamp(0.0, gap_ns.max(0.0))))
    }

    /// From rank 0 along the chain and back to it, after the others have fallen asleep.
    fn wake(&mut self, latency_ns: f64) -> Result<Estimate, Error> {
        let (hops, ranks) = (self.hops(), self.world.size());
        let samples = self.repeat(|ring| {
            if ring.world.rank() == 0 {
                std::thread::sleep(ASLEEP_AFTER);
            }
            let began = Instant::now();
            ring.broadcast(0, TINY, None)?;
            ring.broadcast(ranks - 1, TINY, None)?;
            let took = began.elapsed().as_nanos() as f64;
            // The others fall asleep from here on, rank 0 included, as one of the chain's middle.
            Ok(took - (hops + 1.0) * latency_ns)
        })?;
        Ok(Estimate::of(samples).map(|ns| (ns / hops).max(0.0)))
    }

    /// The largest size up to which an eager message is faster than a granted one.
    fn eager_limit(&mut self) -> Result<u64, Error> {
        let budget = self.budget;
        self.budget = budget / (2 * EAGER_SIZES.len() as u32);
        let mut limit = 0;
        let mut is_open = true;
        for bytes in EAGER_SIZES {
            let eager = Estimate::of(self.repeat(|ring| ring.around(bytes, None))?);
            let granted = Estimate::of(self.repeat(|ring| ring.around(bytes, Some(bytes as u64)))?);
            // Not before it is surely slower.
            is_open &= eager.low <= granted.high;
            if is_open {
                limit = bytes as u64;
            }
        }
        self.budget = budget;
        Ok(limit)
    }

    /// Copies within memory: rank 0 alone, then all ranks at once.
    fn copies(&mut self) -> Result<(Estimate, Estimate), Error> {
        let copy = |ring: &mut Self, works: bool| -> Result<f64, Error> {
            ring.world.agree_all(None)?;
            let began = Instant::now();
            if works {
                let (from, to) = ring.buffer.split_at_mut(COPY_BYTES);
                to.copy_from_slice(from);
                std::hint::black_box(&to);
            }
            let ns = began.elapsed().as_nanos() as u64;
            // The slowest rank counts.
            let slowest = ring.world.agree(Vote { failure: None, low: 0, high: ns })?.maximum;
            Ok(slowest as f64)
        };
        let is_first = self.world.rank() == 0;
        let ranks = f64::from(self.world.size());
        let bytes = COPY_BYTES as u64;
        let one = Estimate::of(self.repeat(|ring| copy(ring, is_first))?);
        let all = Estimate::of(self.repeat(|ring| copy(ring, true))?);
        Ok((one.map(|ns| rate(bytes, ns)), all.map(|ns| ranks * rate(bytes, ns))))
    }
}
