//! `bidirectional-ring`: two chains from the root, one in each direction of a ring.
//!
//! Reference: Z. Cai et al., "Synthesizing optimal collective algorithms" (SCCL), PPoPP 2021, DOI
//! 10.1145/3437801.3441620, whose broadcast in a ring of four takes 2 rounds; pipelined here.
//!
//! Symbols: N ranks, numbered relative to the root; d ports; k blocks; a = ceil((N - 1) / 2) and
//! b = floor((N - 1) / 2), the lengths of the two chains.
//!
//! Up, the chain 0 > 1 > ... > a; down, the chain 0 > N - 1 > ... > N - b. With two ports the root sends a
//! block both ways at once, up on port 0 and down on port 1, and each rank passes it on in the round
//! after. With one port the root sends it up and in the next round down, so a block enters every two
//! rounds (with two ranks there is no way down, and one enters in every round). With more ports, blocks
//! are dealt in turn to g = floor(d / 2) pairs of ports; an odd one is left.
//!
//! # Example: N = 4, k = 2, d = 2
//!
//! | round | 0 | 1 | 2 |
//! |---|---|---|---|
//! | up | 0 > 1: 0 | 0 > 1: 1, 1 > 2: 0 | 1 > 2: 1 |
//! | down | 0 > 3: 0 | 0 > 3: 1 | |
//!
//! # Cost
//!
//! a + ceil(k / g) - 1 rounds with d >= 2 ports: 2 at N = 4, k = 1. With one port 2 (k - 1) + max(a, b + 1),
//! and k at N = 2. On the wire (N - 1) M bytes, of which the root sends 2 M.
//!
//! # Conditions
//!
//! 1. `bidirectional_ring_of_four_takes_two_rounds`.
//! 2. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step};

/// g.
fn pairs(shape: Shape) -> u32 {
    (u32::from(shape.ports()) / 2).max(1)
}

/// The rounds between two blocks of a pair of ports.
fn period(shape: Shape) -> u32 {
    if shape.ports() == 1 && shape.ranks() > 2 { 2 } else { 1 }
}

/// a + ceil(k / g) - 1, or for one port 2 (k - 1) + max(a, b + 1); the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    let (up, down) = (shape.ranks() / 2, (shape.ranks() - 1) / 2);
    let blocks = u64::from(shape.blocks().div_ceil(pairs(shape)));
    let last = if period(shape) == 2 { up.max(down + 1) } else { up };
    u64::from(period(shape)) * (blocks - 1) + u64::from(last)
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let (n, r) = (shape.ranks(), shape.relative(rank));
    let (up, down) = (n / 2, (n - 1) / 2);
    // Up: the place in the chain is r. Down: it is N - r, and with one port a round later.
    let late = u32::from(shape.ports() == 1);
    if r <= up {
        let next = (r < up).then(|| shape.absolute(r + 1));
        let previous = (r > 0).then(|| shape.absolute(r - 1));
        push_chain(shape, (r, 0, 0), previous, next, steps);
    }
    if r == 0 || r > up {
        let place = if r == 0 { 0 } else { n - r };
        let next = (place < down).then(|| shape.absolute(n - place - 1));
        let previous = (place > 0).then(|| shape.absolute((r + 1) % n));
        push_chain(shape, (place, late, 1 - late), previous, next, steps);
    }
    steps.sort_unstable_by_key(|step| (step.round, step.direction, step.port, step.block));
}

/// The steps of the rank at a place of one chain, which starts `late` rounds later, on the port `side`
/// of each pair.
fn push_chain(
    shape: Shape,
    (place, late, side): (u32, u32, u32),
    previous: Option<Rank>,
    next: Option<Rank>,
    steps: &mut Vec<Step>,
) {
    for block in 0..shape.blocks() {
        let (pair, turn) = (block % pairs(shape), block / pairs(shape));
        let round = place + late + period(shape) * turn;
        let port = 2 * pair + side;
        if let Some(peer) = previous {
            steps.push(Step::new(round - 1, Direction::Recv, peer, block, port));
        }
        if let Some(peer) = next {
            steps.push(Step::new(round, Direction::Send, peer, block, port));
        }
    }
}
