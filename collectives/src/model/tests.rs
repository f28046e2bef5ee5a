//! The closed forms against the simulator and brute force, and the choices against what a choice must
//! never do.

use super::*;
use crate::schedule::{self, Operation, Shape, ceil_log2};
use crate::simulate::{Blocks, Loggp, Model, Simulation};
use crate::test_seed;

mod choices;
mod files;
mod forms;
mod on_simulator;
mod rounds;

/// The profiles of the grid.
const PROFILES: [FabricProfile; 5] = [
    FabricProfile::VERBS_100G,
    FabricProfile::VERBS_400G,
    FabricProfile::SHM,
    FabricProfile::SHM_COPIED,
    FabricProfile::ROCE_25G,
];

/// The numbers of ranks of the grid.
const RANKS: [u32; 9] = [2, 3, 4, 7, 8, 16, 33, 64, 512];

fn is_full() -> bool {
    std::env::var_os("VERBCAST_FULL").is_some()
}

/// The most transfers that are simulated for one point; beyond, the time of more blocks is
/// extrapolated.
fn most_transfers() -> u64 {
    if is_full() { 1 << 19 } else { 1 << 15 }
}

/// The simulated time in ps, without rounds, of buffers that are granted already.
///
/// In the steady state each further block takes the same time: what would take too long is computed
/// from two smaller numbers of blocks.
fn simulated_ps(
    path: Path,
    algorithm: Algorithm,
    shape: Shape,
    bytes: u64,
    block_bytes: u64,
) -> u64 {
    let run = |k: u32, bytes: u64| {
        let shape = with_blocks(shape, k);
        let model = Loggp { ports: shape.ports(), ..Loggp::new(path) };
        let blocks = Blocks::new(bytes, block_bytes.min(bytes.max(1))).unwrap();
        assert_eq!(blocks.count(), k);
        let outcome = Simulation::new(Model::Loggp(model)).run(algorithm, shape, blocks).unwrap();
        assert!(outcome.is_complete(), "{algorithm} {shape:?}");
        outcome.time_ps
    };
    let k = shape.blocks();
    // The runs of this one are whole blocks, and it comes to its steady state only when they take
    // longer than the way around the ring.
    let is_ring = algorithm == Algorithm::ScatterAllgather;
    let (runs, more) = if is_ring && is_full() { (shape.ranks(), 8) } else { (1, 1) };
    let per_block = u64::from(shape.ranks()) * u64::from(shape.total_blocks() / k);
    let most = (more * most_transfers() / per_block).max(512) as u32;
    let most = most.next_multiple_of(2 * runs);
    if k <= most {
        return run(k, bytes);
    }
    let (half, all) = (most / 2, most);
    let times = [half, all].map(|k| run(k, u64::from(k) * block_bytes));
    let slope = (times[1] - times[0]) as f64 / f64::from(all - half);
    times[1] + (slope * f64::from(k - all)) as u64
}

fn with_blocks(shape: Shape, blocks: u32) -> Shape {
    let plain = Shape::new(shape.ranks(), shape.root(), blocks).unwrap();
    let plain = plain.with_operation(shape.operation()).unwrap();
    plain.with_ports(shape.ports()).unwrap().with_radix(shape.radix()).unwrap()
}

fn broadcast(ranks: u32, bytes: u64) -> Task {
    Task { operation: Operation::Broadcast, ranks, bytes, ports: 1 }
}
