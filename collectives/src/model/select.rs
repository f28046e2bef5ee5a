//! The choice of algorithm, block size and radix.

use std::fmt;

use verbcast_transport::wire::{BLOCK_BYTES_MAX, MESSAGE_PAYLOAD_MAX};

use super::loggp::{Costs, Ways, is_made_for};
use super::{FabricProfile, MAX_MESSAGE_BYTES, ModelError, PS_PER_NS, Path, PathProfile};
use crate::schedule::{Algorithm, MAX_BLOCKS, MAX_PORTS, MAX_RANKS, Operation, Shape, ceil_log2};

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Task {
    /// The operation.
    pub operation: Operation,
    /// N.
    pub ranks: u32,
    /// The bytes of the message in a broadcast, else of one rank's part.
    pub bytes: u64,
    /// d: the ports of each rank.
    pub ports: u16,
}

/// What the caller has fixed of the choice; what is `None` is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Demand {
    /// The algorithm to use.
    pub algorithm: Option<Algorithm>,
    /// The bytes of a block, 1 to [`BLOCK_BYTES_MAX`].
    pub block_bytes: Option<u64>,
    /// The links that are there already.
    pub links: Links,
}

/// Which links are there already; those that are not cost their set-up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Links {
    /// All that any algorithm uses.
    #[default]
    All,
    /// None.
    None,
    /// Those of one algorithm, from the root of this call.
    Of(Algorithm),
}

/// How an operation is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The bytes of every block but the last, which has the rest; at least 1.
    pub block_bytes: u64,
    /// The number of blocks, at least 1: a message of 0 bytes has one, which is empty.
    pub blocks: u32,
    /// The radix of a `knomial` tree; 2 with other algorithms.
    pub radix: u32,
    /// d.
    pub ports: u16,
    /// Whether the message goes without a grant, into slots that the receiver keeps ready.
    pub is_eager: bool,
    /// The time that the model expects, in ns, rounded up; it may count a few more blocks than
    /// there are, where blocks were rounded up to whole cache lines.
    pub predicted_ns: u64,
    /// Why.
    pub why: Why,
}

/// Why a choice was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Why {
    /// The caller has fixed the algorithm.
    pub demanded: bool,
    /// The best of the other algorithms and its time in ns, if there was another one.
    pub runner_up: Option<(Algorithm, u64)>,
    /// What takes most of the time.
    pub limit: Limit,
}

/// What takes most of the time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Limit {
    /// A rank alone has nothing to wait for.
    Alone,
    /// L: the hops one after another.
    Latency,
    /// g or o: the number of blocks.
    Gap,
    /// beta: the bytes.
    Bandwidth,
    /// Links that have to be made.
    Links,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = match self.limit {
            Limit::Alone => "there is only one rank",
            Limit::Latency => "the hops one after another (L) take most of the time",
            Limit::Gap => "the start of each block (g, o) takes most of the time",
            Limit::Bandwidth => "the bytes (beta) take most of the time",
            Limit::Links => "making links takes most of the time",
        };
        match (self.demanded, self.runner_up) {
            (true, _) => write!(f, "it was asked for; {limit}"),
            (false, None) => f.write_str(limit),
            (false, Some((other, ns))) => write!(f, "next is {other} with {ns} ns; {limit}"),
        }
    }
}

impl Choice {
    /// The shape of the operation, from the root given.
    ///
    /// # Errors
    /// A root that is not one of the ranks.
    pub fn shape(&self, task: &Task, root: u32) -> Result<Shape, crate::schedule::ScheduleError> {
        shape(task, root, self.blocks, self.radix)
    }
}

fn shape(
    task: &Task,
    root: u32,
    blocks: u32,
    radix: u32,
) -> Result<Shape, crate::schedule::ScheduleError> {
    let shape = Shape::new(task.ranks, root, blocks)?.with_operation(task.operation)?;
    shape.with_ports(task.ports)?.with_radix(radix)
}

/// Chooses algorithm and block size of a broadcast of `bytes` bytes to `ranks` ranks with one port.
///
/// The same arguments give the same choice on every rank.
///
/// # Errors
///
/// Numbers outside their limits.
pub fn select(
    ranks: u32,
    bytes: u64,
    profile: &FabricProfile,
    demand: Demand,
) -> Result<Choice, ModelError> {
    select_for(profile, Task { operation: Operation::Broadcast, ranks, bytes, ports: 1 }, demand)
}

/// Chooses for any operation: what the [loggp form](Path::time_ps) expects to take the least time,
/// L + o more where receivers have to grant their buffers, and the set-up of links included.
///
/// The same arguments give the same choice on every rank.
///
/// # Errors
///
/// Numbers outside their limits, or an algorithm that is none of the operation or number of ranks.
///
/// # Examples
///
/// ```
/// use verbcast_collectives::model::{Demand, FabricProfile, Task, select_for};
/// use verbcast_collectives::schedule::{Algorithm, Operation};
///
/// let task = Task { operation: Operation::Scatter, ranks: 64, bytes: 1 << 20, ports: 1 };
/// let choice = select_for(&FabricProfile::VERBS_400G, task, Demand::default())?;
/// assert_eq!(choice.algorithm, Algorithm::Flat);
/// println!("{} in {} ns: {}", choice.algorithm, choice.predicted_ns, choice.why);
/// # Ok::<(), verbcast_collectives::model::ModelError>(())
/// ```
pub fn select_for(
    profile: &FabricProfile,
    task: Task,
    demand: Demand,
) -> Result<Choice, ModelError> {
    let choices = Chooser::new(profile, task, demand)?.candidates();
    let mut choices = choices.into_iter();
    let mut best = choices.next().ok_or(match demand.algorithm {
        Some(algorithm) => ModelError::NotFor { algorithm, task },
        None => ModelError::Nothing { task },
    })?;
    let mut second: Option<Choice> = None;
    for choice in choices {
        let gain = best.predicted_ns.saturating_sub(choice.predicted_ns);
        if gain > best.predicted_ns / LEAST_GAIN {
            second = Some(best);
            best = choice;
        } else if second.is_none_or(|second| choice.predicted_ns < second.predicted_ns) {
            second = Some(choice);
        }
    }
    best.why.runner_up = second.map(|second| (second.algorithm, second.predicted_ns));
    Ok(best)
}

/// The best way to do it with each algorithm, the fastest first.
///
/// # Errors
///
/// As for [`select_for`].
pub fn compare(
    profile: &FabricProfile,
    task: Task,
    demand: Demand,
) -> Result<Vec<Choice>, ModelError> {
    let mut choices = Chooser::new(profile, task, demand)?.candidates();
    choices.sort_by_key(|choice| choice.predicted_ns);
    Ok(choices)
}

/// The most links that one rank uses, whatever its place.
pub fn links(algorithm: Algorithm, shape: Shape) -> u64 {
    let others = u64::from(shape.ranks()) - 1;
    let q = u64::from(ceil_log2(shape.ranks()));
    let most = match algorithm {
        Algorithm::Flat => others,
        Algorithm::Chain | Algorithm::PipelinedChain | Algorithm::Ring => 2,
        Algorithm::BidirectionalRing => 2,
        Algorithm::Binomial | Algorithm::PipelinedBinomial | Algorithm::RecursiveDoubling => q,
        Algorithm::Knomial => {
            let (radix, mut children, mut distance) = (u64::from(shape.radix()), 0, 1);
            while distance * radix <= others {
                distance *= radix;
                children += radix - 1;
            }
            children + others / distance
        }
        Algorithm::PipelinedBinary => 3,
        Algorithm::TwoTree => 4,
        Algorithm::ScatterAllgather => q + 2,
        Algorithm::PipelinedTree | Algorithm::Bruck | Algorithm::Circulant => 2 * q,
    };
    most.min(others)
}

/// An algorithm is preferred to one before it in the order if it gains more than one part of this
/// many: the forms are not exacter than that.
const LEAST_GAIN: u64 = 64;

/// Broadcast algorithms in the order in which one is preferred at nearly equal times.
///
/// With one block the binomial tree has the rounds of the circulant one and fewer neighbours.
const PREFERENCE: [Algorithm; 11] = [
    Algorithm::Binomial,
    Algorithm::PipelinedTree,
    Algorithm::PipelinedChain,
    Algorithm::Flat,
    Algorithm::Knomial,
    Algorithm::PipelinedBinary,
    Algorithm::TwoTree,
    Algorithm::ScatterAllgather,
    Algorithm::BidirectionalRing,
    Algorithm::Chain,
    Algorithm::PipelinedBinomial,
];

/// The same where receivers pull: the root serves all of them at once, and what nobody passes on need not
/// be cut into blocks.
const PREFERENCE_PULLED: [Algorithm; 11] = {
    let mut order = PREFERENCE;
    let mut place = 0;
    while !matches!(order[place], Algorithm::Flat) {
        place += 1;
    }
    while place > 0 {
        order[place] = order[place - 1];
        place -= 1;
    }
    order[0] = Algorithm::Flat;
    order
};

/// The radices compared for `knomial`: from 2, which is `binomial`, towards `flat`.
const RADICES: [u32; 8] = [3, 4, 5, 6, 8, 12, 16, 32];

/// Where a message has several blocks they are no smaller than this, in bytes: half the largest MTU, so
/// that a message just above one packet may be two.
const LEAST_BLOCK_BYTES: u64 = 2048;

/// Where a message has several blocks they are multiples of this, in bytes: a cache line, so that
/// in an aligned buffer no line belongs to two blocks.
const BLOCK_UNIT_BYTES: u64 = 64;

/// Numbers of blocks 1 to 16, then eight from each power of two to the next, to [`MAX_BLOCKS`].
const COUNTS: usize = 16 + 8 * 16;

/// The numbers of blocks compared, ascending.
///
/// Near the best number the time is flat: one wrong by a sixteenth costs less than a per cent. For
/// a fixed number of blocks the time rises with the message; so does therefore the least over this
/// list. (The exact best number for each message, rounded to whole units, would not promise that.)
const BLOCK_COUNTS: [u32; COUNTS] = block_counts();

const fn block_counts() -> [u32; COUNTS] {
    let mut counts = [0; COUNTS];
    let (mut index, mut count, mut step) = (0, 1, 1);
    while index < COUNTS {
        counts[index] = count;
        if count == 16 * step {
            step *= 2;
        }
        count += step;
        index += 1;
    }
    assert!(counts[COUNTS - 1] == MAX_BLOCKS);
    counts
}

/// What a call takes, links aside.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CallTime {
    /// The time, in ns.
    pub ns: f64,
    /// Whether the message goes without a grant.
    pub is_eager: bool,
}

impl FabricProfile {
    /// The [loggp form](Path::time_ps), and L + o more where the receivers have to grant their buffers.
    ///
    /// `None` as there.
    pub fn call_time(
        &self,
        algorithm: Algorithm,
        shape: Shape,
        bytes: u64,
        block_bytes: u64,
    ) -> Option<CallTime> {
        if !is_made_for(algorithm, shape) {
            return None;
        }
        let path = self.path_of(shape.ranks());
        let copy = self.copy_bytes_per_second();
        let calling = Calling { path: &path, costs: &path.costs(), copy };
        let ways = Ways::new(shape.ranks());
        let (fixed_ns, is_eager, run_ps) =
            calling.time(algorithm, shape, (bytes, block_bytes), &ways);
        let run_ps = u64::try_from(run_ps).unwrap_or(u64::MAX);
        let ns = run_ps as f64 / PS_PER_NS as f64 + fixed_ns as f64;
        Some(CallTime { ns, is_eager })
    }
}

/// Over what a call is made.
struct Calling<'a> {
    path: &'a PathProfile,
    costs: &'a Path,
    /// The bytes per second that one rank copies by itself.
    copy: u64,
}

impl Calling<'_> {
    /// What granting takes in ns, whether the message goes without, and what the algorithm takes in ps.
    fn time(
        &self,
        algorithm: Algorithm,
        shape: Shape,
        (bytes, block_bytes): (u64, u64),
        ways: &Ways,
    ) -> (u64, bool, u128) {
        let most = block_bytes.min(bytes);
        let time = |costs: &Path| Costs::new(costs, most).time(algorithm, shape, ways);
        let granted_ps = time(self.costs);
        if shape.ranks() == 1 {
            return (0, bytes <= self.eager_most(), granted_ps);
        }
        // A grant is a message of a few bytes.
        let grant_ns = self.path.latency_ns.saturating_add(self.path.overhead_ns);
        if shape.blocks() == 1 && bytes <= self.eager_most() {
            let eager_ps = time(&self.costs.eager(most, self.copy));
            if eager_ps <= granted_ps + u128::from(grant_ns) * u128::from(PS_PER_NS) {
                return (0, true, eager_ps);
            }
        }
        (grant_ns, false, granted_ps)
    }

    fn eager_most(&self) -> u64 {
        self.path.eager_limit_bytes.min(MESSAGE_PAYLOAD_MAX as u64)
    }
}

/// One task whose numbers are within their limits.
struct Chooser {
    task: Task,
    demand: Demand,
    path: PathProfile,
    costs: Path,
    /// What one rank copies by itself.
    copy_bytes_per_second: u64,
}

impl Chooser {
    fn new(profile: &FabricProfile, task: Task, demand: Demand) -> Result<Self, ModelError> {
        let Task { operation, ranks, bytes, ports } = task;
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(ModelError::RankCount { ranks });
        }
        if !(1..=MAX_PORTS).contains(&ports) {
            return Err(ModelError::PortCount { ports });
        }
        if bytes > MAX_MESSAGE_BYTES {
            return Err(ModelError::MessageBytes { bytes });
        }
        // Blocks of all parts together have numbers on the wire.
        let parts = if operation.has_parts() { ranks } else { 1 };
        let most = u64::from((MAX_BLOCKS / parts).max(1));
        let least = bytes.div_ceil(most).max(1);
        if let Some(block_bytes) = demand.block_bytes
            && !(least..=BLOCK_BYTES_MAX).contains(&block_bytes)
        {
            return Err(ModelError::BlockBytes { block_bytes, bytes, least });
        }
        let path = profile.path_of(ranks);
        let copy_bytes_per_second = profile.copy_bytes_per_second();
        Ok(Self { task, demand, path, costs: path.costs(), copy_bytes_per_second })
    }

    /// The best of each algorithm that can be used, in order of preference.
    fn candidates(&self) -> Vec<Choice> {
        let (demanded, ways) = (self.demand.algorithm, Ways::new(self.task.ranks));
        let order: &[Algorithm] = match self.task.operation {
            Operation::Broadcast if self.path.pulled => &PREFERENCE_PULLED,
            Operation::Broadcast => &PREFERENCE,
            operation => Algorithm::of(operation),
        };
        let wanted = order.iter().filter(|&&one| demanded.is_none_or(|wanted| wanted == one));
        let all: Vec<Choice> =
            wanted.filter_map(|&algorithm| self.best(algorithm, &ways)).collect();
        let within: Vec<Choice> = all.iter().copied().filter(|one| self.has_links(one)).collect();
        // If no algorithm can do with the links that there may be, the fewest have to be tried.
        if within.is_empty() { all } else { within }
    }

    fn has_links(&self, choice: &Choice) -> bool {
        let shape = shape(&self.task, 0, choice.blocks, choice.radix);
        shape.is_ok_and(|shape| links(choice.algorithm, shape) <= self.path.links_max.into())
    }

    fn best(&self, algorithm: Algorithm, ways: &Ways) -> Option<Choice> {
        let is_none =
            algorithm == Algorithm::RecursiveDoubling && !self.task.ranks.is_power_of_two();
        if is_none {
            return None;
        }
        let mut best: Option<Choice> = None;
        let mut take = |choice: Option<Choice>| {
            let Some(choice) = choice else { return };
            if best.is_none_or(|best| choice.predicted_ns < best.predicted_ns) {
                best = Some(choice);
            }
        };
        if algorithm == Algorithm::Knomial {
            for radix in RADICES.into_iter().filter(|&radix| radix <= self.task.ranks.max(3)) {
                take(self.best_blocks(algorithm, radix, ways));
            }
        } else {
            take(self.best_blocks(algorithm, 2, ways));
        }
        best
    }

    fn best_blocks(&self, algorithm: Algorithm, radix: u32, ways: &Ways) -> Option<Choice> {
        let bytes = self.task.bytes;
        if let Some(block_bytes) = self.demand.block_bytes {
            let blocks = bytes.div_ceil(block_bytes).max(1) as u32;
            return self.choice(algorithm, (blocks, block_bytes), radix, ways);
        }
        let fewest = bytes.div_ceil(BLOCK_BYTES_MAX).max(1);
        // Equal blocks, none of them much smaller than the others.
        let most = (bytes / LEAST_BLOCK_BYTES).max(fewest);
        let mut best: Option<Choice> = None;
        for count in BLOCK_COUNTS.into_iter().filter(|&count| u64::from(count) >= fewest) {
            if best.is_some_and(|best| best.predicted_ns <= self.least_ns(count)) {
                break;
            }
            if best.is_some() && u64::from(count) > most {
                break;
            }
            let even = self.even_runs(algorithm, count);
            let count = if u64::from(even) >= fewest { even } else { count };
            let share = bytes.div_ceil(count.into());
            let block_bytes = match count {
                1 => share.max(1),
                _ => share.next_multiple_of(BLOCK_UNIT_BYTES),
            };
            let choice = self.choice(algorithm, (count, block_bytes), radix, ways);
            let Some(choice) = choice else { break };
            if best.is_none_or(|best| choice.predicted_ns < best.predicted_ns) {
                best = Some(choice);
            }
            if algorithm == Algorithm::Circulant {
                // It gains nothing by blocks.
                break;
            }
        }
        best
    }

    /// The nearest number of blocks below that gives each rank as many, where blocks are dealt to ranks
    /// and there are enough of them.
    fn even_runs(&self, algorithm: Algorithm, count: u32) -> u32 {
        let dealt = self.task.ranks.saturating_mul(self.task.ports.into());
        match algorithm {
            Algorithm::ScatterAllgather if count > dealt => count / dealt * dealt,
            _ => count,
        }
    }

    /// The cost of a number of blocks, or of as many as the message fills; `None` if there is no
    /// schedule with so many.
    fn choice(
        &self,
        algorithm: Algorithm,
        (blocks, block_bytes): (u32, u64),
        radix: u32,
        ways: &Ways,
    ) -> Option<Choice> {
        let Self { task, path, .. } = self;
        let shape = shape(task, 0, blocks, radix).ok()?;
        let is_alone = task.ranks == 1;
        let (fixed_ns, is_eager, run_ps) = {
            let calling = Calling { path, costs: &self.costs, copy: self.copy_bytes_per_second };
            calling.time(algorithm, shape, (task.bytes, block_bytes), ways)
        };
        let links_ns = match self.demand.links {
            Links::All => 0,
            Links::Of(up) if up == algorithm => 0,
            _ => u128::from(links(algorithm, shape)) * u128::from(path.link_setup_ns),
        };
        let run_ns = run_ps.div_ceil(PS_PER_NS.into()) + u128::from(fixed_ns);
        let predicted_ns = u64::try_from(run_ns + links_ns).unwrap_or(u64::MAX);
        let limit = match () {
            () if is_alone => Limit::Alone,
            () if links_ns > run_ns => Limit::Links,
            () => self.limit(run_ns, blocks),
        };
        Some(Choice {
            algorithm,
            block_bytes,
            blocks: task.bytes.div_ceil(block_bytes).max(1) as u32,
            radix,
            ports: task.ports,
            is_eager,
            predicted_ns,
            why: Why { demanded: self.demand.algorithm.is_some(), runner_up: None, limit },
        })
    }

    /// What takes more than half of the time, the bytes or the starts of blocks that the busiest rank
    /// must send or receive; else it is the hops.
    fn limit(&self, run_ns: u128, blocks: u32) -> Limit {
        let Self { task, path, costs, .. } = self;
        let parts = if task.operation.has_parts() { task.ranks - 1 } else { 1 };
        let (parts, ports) = (u128::from(parts), u128::from(task.ports));
        let bytes_ps =
            u128::from(costs.transfer_ps(task.bytes) - costs.overhead_ps) * parts / ports;
        let starts_ns = u128::from(path.gap_ns.max(path.overhead_ns)) * u128::from(blocks) * parts;
        if 2 * bytes_ps > run_ns * u128::from(PS_PER_NS) {
            Limit::Bandwidth
        } else if 2 * starts_ns / ports > run_ns {
            Limit::Gap
        } else {
            Limit::Latency
        }
    }

    /// What any algorithm takes at least with this many blocks or more: the root of a broadcast or
    /// scatter sends each, that of a gather and everybody in an allgather receives each of the others.
    fn least_ns(&self, blocks: u32) -> u64 {
        let Self { task, costs, .. } = self;
        if task.ranks == 1 {
            return 0;
        }
        let (blocks, ports) = (u128::from(blocks), u128::from(task.ports));
        // A root from which the others pull has no port that all parts pass.
        let pulled_scatter = self.path.pulled && task.operation == Operation::Scatter;
        let is_of_one = !task.operation.has_parts() || pulled_scatter;
        let parts = if is_of_one { 1 } else { u128::from(task.ranks - 1) };
        let overhead_ps = u128::from(costs.overhead_ps);
        let bytes_ps = u128::from(costs.transfer_ps(task.bytes)) - overhead_ps;
        let starts_ps = (blocks - 1) / ports * u128::from(costs.gap_ps);
        let bytes_ps = bytes_ps / ports + (blocks / ports) * overhead_ps;
        let least_ps = match task.operation {
            Operation::Gather => bytes_ps * parts,
            _ => (bytes_ps * parts).max(starts_ps),
        };
        u64::try_from(least_ps / u128::from(PS_PER_NS)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
pub(super) mod tests_access {
    use super::*;

    pub(in crate::model) const COUNTS_COMPARED: &[u32] = &BLOCK_COUNTS;
    pub(in crate::model) const LEAST: u64 = LEAST_BLOCK_BYTES;

    pub(in crate::model) fn least_ns(profile: &FabricProfile, task: Task, blocks: u32) -> u64 {
        Chooser::new(profile, task, Demand::default()).map_or(0, |chooser| chooser.least_ns(blocks))
    }
}
