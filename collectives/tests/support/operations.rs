//! Every operation with every algorithm, root and size; contents compared byte for byte.

use std::time::Duration;

use verbcast_collectives::schedule::{Algorithm, Operation};
use verbcast_collectives::{Communicator, Counts, Error, World};

use super::{Setup, message};

/// Sizes of a part around those where something changes.
const PART_BYTES: [usize; 6] = [0, 1, 13, 4096, 4097, 70_001];

const DEADLINE: Duration = Duration::from_secs(60);

/// What rank `rank` gives in operation `number`.
fn part(rank: u32, number: u64, bytes: usize) -> Vec<u8> {
    message(rank, number, bytes)
}

/// What all ranks give, one after another.
fn all_parts(size: u32, number: u64, bytes: usize) -> Vec<u8> {
    (0..size).flat_map(|rank| part(rank, number, bytes)).collect()
}

/// Scatter, gather and allgather of equal parts; `block_bytes` as the model chooses and small.
pub(crate) fn even(world: World) {
    let communicator = world.communicator();
    let size = world.size();
    let mut number = 0;
    for operation in [Operation::Scatter, Operation::Gather, Operation::Allgather] {
        for &algorithm in Algorithm::of(operation) {
            if algorithm == Algorithm::RecursiveDoubling && !size.is_power_of_two() {
                continue;
            }
            // An allgather has no root.
            let roots = if operation == Operation::Allgather { 1 } else { size };
            for root in 0..roots {
                for bytes in PART_BYTES {
                    for block_bytes in [None, Some(9_000)] {
                        for in_place in [false, true] {
                            let case = Case { operation, algorithm, root, block_bytes, in_place };
                            case.run(&communicator, number, bytes);
                            number += 1;
                        }
                    }
                }
            }
        }
    }
    communicator.barrier().expect("a barrier");
    world.finalize().expect("all ranks come to the end");
}

#[derive(Debug, Clone, Copy)]
struct Case {
    operation: Operation,
    algorithm: Algorithm,
    root: u32,
    block_bytes: Option<u64>,
    in_place: bool,
}

macro_rules! with_options {
    ($call:expr, $case:expr) => {{
        let call = $call.algorithm($case.algorithm).deadline(DEADLINE);
        match $case.block_bytes {
            Some(block_bytes) => call.block_bytes(block_bytes),
            None => call,
        }
    }};
}

impl Case {
    fn run(self, communicator: &Communicator, number: u64, bytes: usize) {
        let (rank, size) = (communicator.rank(), communicator.size());
        let is_root = rank == self.root;
        let all = all_parts(size, number, bytes);
        let own = part(rank, number, bytes);
        let failed = |error| panic!("{self:?}, {bytes} bytes, rank {rank}: {error}");
        match self.operation {
            Operation::Scatter if is_root && self.in_place => {
                let call = with_options!(communicator.scatter_call(self.root), self);
                call.run_in_place(&all).unwrap_or_else(failed);
            }
            Operation::Scatter => {
                let mut recv = vec![0xa5; bytes];
                let call = with_options!(communicator.scatter_call(self.root), self);
                call.run(is_root.then_some(&all[..]), &mut recv).unwrap_or_else(failed);
                assert!(recv == own, "{self:?}, {bytes} bytes, rank {rank}: contents");
            }
            Operation::Gather if is_root && self.in_place => {
                let mut recv = vec![0xa5; all.len()];
                recv[rank as usize * bytes..][..bytes].copy_from_slice(&own);
                let call = with_options!(communicator.gather_call(self.root), self);
                call.run_in_place(&mut recv).unwrap_or_else(failed);
                assert!(recv == all, "{self:?}, {bytes} bytes, rank {rank}: contents");
            }
            Operation::Gather => {
                let mut recv = vec![0xa5; if is_root { all.len() } else { 0 }];
                let call = with_options!(communicator.gather_call(self.root), self);
                call.run(&own, is_root.then_some(&mut recv[..])).unwrap_or_else(failed);
                assert!(!is_root || recv == all, "{self:?}, {bytes} bytes, rank {rank}: contents");
            }
            _ => {
                let mut recv = vec![0xa5; all.len()];
                let call = with_options!(communicator.allgather_call(), self);
                if self.in_place {
                    recv[rank as usize * bytes..][..bytes].copy_from_slice(&own);
                    call.run_in_place(&mut recv).unwrap_or_else(failed);
                } else {
                    call.run(&own, &mut recv).unwrap_or_else(failed);
                }
                assert!(recv == all, "{self:?}, {bytes} bytes, rank {rank}: contents");
            }
        }
    }
}

/// Parts of random lengths, side by side and elsewhere, in elements of four bytes.
pub(crate) fn uneven(world: World, seed: u64, turns: u64) {
    let communicator = world.communicator();
    let (rank, size) = (world.rank(), world.size());
    // The same on every rank.
    let mut rng = fastrand::Rng::with_seed(seed);
    for number in 0..turns {
        let most = [3, 1500, 40_000][rng.usize(0..3)];
        let counts: Vec<usize> =
            (0..size).map(|_| if rng.u8(0..4) == 0 { 0 } else { rng.usize(0..most) }).collect();
        let root = rng.u32(0..size);
        let block_bytes = rng.bool().then(|| rng.u64(500..60_000));
        let is_side_by_side = rng.bool();
        let (displacements, elements) = spread(&counts, is_side_by_side, &mut rng);
        let in_order = match is_side_by_side {
            true => Counts::new(&counts),
            false => Counts::with_displacements(&counts, &displacements),
        };
        let element = |rank: usize, index: usize| {
            (rank as u32 + 1) << 24 ^ (number as u32) << 17 ^ index as u32
        };
        let own: Vec<u32> = (0..counts[rank as usize]).map(|i| element(rank as usize, i)).collect();
        let mut all = vec![7; elements];
        for (from, (&count, &begin)) in counts.iter().zip(&displacements).enumerate() {
            (0..count).for_each(|index| all[begin + index] = element(from, index));
        }
        let is_root = rank == root;
        let case =
            format!("turn {number}, seed {seed}: {counts:?} at {displacements:?}, root {root}");
        let failed = |error| panic!("{case}, rank {rank}: {error}");
        match rng.u8(0..3) {
            0 => {
                let mut recv = vec![0; own.len()];
                let mut call = communicator.scatterv_call(root).deadline(DEADLINE);
                if let Some(block_bytes) = block_bytes {
                    call = call.block_bytes(block_bytes);
                }
                call.run(is_root.then_some((&all[..], in_order)), &mut recv).unwrap_or_else(failed);
                assert!(recv == own, "scatterv, {case}, rank {rank}: contents");
            }
            1 => {
                let mut recv = vec![7; if is_root { elements } else { 0 }];
                let mut call = communicator.gatherv_call(root).deadline(DEADLINE);
                if let Some(block_bytes) = block_bytes {
                    call = call.block_bytes(block_bytes);
                }
                let to = is_root.then_some((&mut recv[..], in_order));
                call.run(&own, to).unwrap_or_else(failed);
                assert!(!is_root || recv == all, "gatherv, {case}, rank {rank}: contents");
            }
            _ => {
                let mut recv = vec![7; elements];
                let mut call = communicator.allgatherv_call().deadline(DEADLINE);
                if let Some(block_bytes) = block_bytes {
                    call = call.block_bytes(block_bytes);
                }
                let algorithms = Algorithm::of(Operation::Allgather);
                let algorithm = algorithms[rng.usize(0..algorithms.len())];
                if algorithm != Algorithm::RecursiveDoubling || size.is_power_of_two() {
                    call = call.algorithm(algorithm);
                }
                call.run(&own, &mut recv, in_order).unwrap_or_else(failed);
                assert!(recv == all, "allgatherv by {algorithm}, {case}, rank {rank}: contents");
            }
        }
    }
    world.finalize().expect("all ranks come to the end");
}

/// Where the parts begin, in a random order and with gaps if not side by side, and the elements needed.
fn spread(counts: &[usize], side_by_side: bool, rng: &mut fastrand::Rng) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    if !side_by_side {
        rng.shuffle(&mut order);
    }
    let mut displacements = vec![0; counts.len()];
    let mut next = 0;
    for rank in order {
        next += if side_by_side { 0 } else { rng.usize(0..3) };
        displacements[rank] = next;
        next += counts[rank];
    }
    (displacements, next)
}

/// What every rank is told when they make different calls, after a while at the latest.
pub(crate) fn errors(
    setup: &Setup,
    call: impl Fn(&World) -> Result<(), Error> + Sync,
) -> Vec<String> {
    let errors = setup.run(|world| {
        // A rank that could leave before is told at a later call.
        let first = call(&world).err();
        let error = first.or_else(|| {
            (0..200).find_map(|_| {
                std::thread::sleep(Duration::from_millis(10));
                world.communicator().barrier().err()
            })
        });
        // Nobody leaves the job before all have been told.
        (world, error)
    });
    let told = |(_, error): &(World, Option<Error>)| match error {
        Some(error) => error.to_string(),
        None => "no error".to_owned(),
    };
    errors.iter().map(told).collect()
}

/// A rank whose count in a v form is another than the root's: all ranks are told both, also where one
/// of the two waits for a message and the other for a grant.
pub(crate) fn different_counts(setup: &Setup) {
    for (own, of_root) in [(3, 4), (4, 3), (0, 2), (2, 0), (5000, 6000), (3, 6000), (6000, 3)] {
        let scattered = errors(setup, |world| {
            let (all, counts) = (vec![1_u32; 3 * 6000], [of_root; 3]);
            let mut recv = vec![0; if world.rank() == 1 { own } else { of_root }];
            let send = (world.rank() == 0).then_some((&all[..], Counts::new(&counts)));
            world.communicator().scatterv(send, &mut recv, 0)
        });
        let gathered = errors(setup, |world| {
            let (mut all, counts) = (vec![1_u32; 3 * 6000], [of_root; 3]);
            let send = vec![0; if world.rank() == 1 { own } else { of_root }];
            let recv = (world.rank() == 0).then_some((&mut all[..], Counts::new(&counts)));
            world.communicator().gatherv(&send, recv, 0)
        });
        for text in scattered.iter().chain(&gathered) {
            for words in [format!("{} bytes", 4 * own), format!("{} bytes", 4 * of_root)] {
                assert!(text.contains(&words), "{own} and {of_root}: {text}");
            }
            assert!(text.contains("rank 0") && text.contains("rank 1"), "{text}");
        }
    }
}
