//! `knomial`: a tree of any radix, in which a rank serves as many children at once as it has ports.
//!
//! Reference: k-nomial trees are folklore, the binomial tree being radix 2; for several ports see A.
//! Bar-Noy and S. Kipnis, "Designing broadcasting algorithms in the postal model for message-passing
//! systems", Mathematical Systems Theory 27, 1994, DOI 10.1007/BF01184933.
//!
//! Symbols: N ranks, numbered relative to the root; radix R >= 2; d ports; m the least number with
//! R^m >= N, the digits of a rank in base R; k blocks, of the message in a broadcast, of each rank's
//! part in a scatter.
//!
//! Level j goes from m - 1 down to 0, with the distance D = R^j: every rank r that is a multiple of
//! R D serves the ranks r + c D, for c = 1 .. R - 1, where there are such ranks; child c in turn
//! (c - 1) div d on port (c - 1) mod d. So rank r > 0 is served on the level of its lowest digit
//! that is not 0, c being that digit. In a broadcast a turn takes k rounds, one block each; in a
//! scatter it takes one, and the message holds the parts of the child's whole subtree, the ranks
//! r + c D .. r + (c + 1) D - 1 below N. A gather is the scatter with every arrow and the order of
//! rounds reversed. `binomial` scatter and gather are radix 2.
//!
//! # Example: N = 9, R = 3, d = 1, k = 1
//!
//! | round | 0 | 1 | 2 | 3 |
//! |---|---|---|---|---|
//! | broadcast | 0 > 3 | 0 > 6 | 0 > 1, 3 > 4, 6 > 7 | 0 > 2, 3 > 5, 6 > 8 |
//! | parts in a scatter | 3 4 5 | 6 7 8 | 1, 4, 7 | 2, 5, 8 |
//!
//! # Cost
//!
//! Only the top level can lack children: the root has t = ceil(N / R^(m-1)) - 1 of them there, and
//! R - 1 on every other level, since R^(j+1) <= N for j < m - 1. No rank has more turns than the root.
//! So ceil(t / d) + (m - 1) ceil((R - 1) / d) turns, each k rounds in a broadcast: m (R - 1) k at
//! N = R^m with one port, ceil(log_{d+1} N) at R = d + 1 and k = 1, the least for d ports. On the
//! wire (N - 1) M bytes for a broadcast; in a scatter each part travels as many times as its rank
//! has digits that are not 0.
//!
//! # Conditions
//!
//! 1. `knomial_of_radix_2_is_binomial`: the same steps, broadcast with one port.
//! 2. `knomial_is_served_on_its_lowest_digit`: one source, r without its lowest digit.
//! 3. The checker passes, with the rounds above.

use super::{Direction, Operation, Rank, Shape, Step};

/// ceil(t / d) + (m - 1) ceil((R - 1) / d), times k for a broadcast; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape, radix: u32) -> u64 {
    let (ports, top) = (u64::from(shape.ports()), Level::top(shape.ranks(), radix));
    let below = u64::from(top.number) * u64::from(radix - 1).div_ceil(ports);
    (u64::from(top.children).div_ceil(ports) + below) * rounds_of_turn(shape)
}

fn rounds_of_turn(shape: Shape) -> u64 {
    match shape.operation() {
        Operation::Broadcast => shape.blocks().into(),
        _ => 1,
    }
}

/// A level of the tree.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// j.
    number: u32,
    /// R^j.
    distance: u32,
    /// The children that the root has here.
    children: u32,
}

impl Level {
    fn top(ranks: u32, radix: u32) -> Self {
        let (mut number, mut distance) = (0, 1_u32);
        // The next power is compared before it is taken: it may exceed 32 bits.
        while u64::from(distance) * u64::from(radix) < u64::from(ranks) {
            distance *= radix;
            number += 1;
        }
        Self { number, distance, children: ranks.div_ceil(distance) - 1 }
    }

    fn below(self, radix: u32) -> Option<Self> {
        let number = self.number.checked_sub(1)?;
        Some(Self { number, distance: self.distance / radix, children: radix - 1 })
    }
}

/// Appends the steps of `rank` in a broadcast or a scatter.
pub(super) fn push_steps(shape: Shape, radix: u32, rank: Rank, steps: &mut Vec<Step>) {
    let (n, d, r) = (shape.ranks(), u32::from(shape.ports()), shape.relative(rank));
    let per_turn = rounds_of_turn(shape) as u32;
    let mut level = Some(Level::top(n, radix));
    let mut first = 0;
    while let Some(here) = level {
        let distance = here.distance;
        let digit = r / distance % radix;
        let is_above = u64::from(r) % (u64::from(distance) * u64::from(radix)) == 0;
        if is_above {
            let children = (u64::from(n - 1 - r) / u64::from(distance)) as u32;
            push_turns(shape, (first, r, distance), children.min(radix - 1), steps);
        } else if r % distance == 0 {
            let parent = shape.absolute(r - digit * distance);
            let (turn, port) = ((digit - 1) / d, (digit - 1) % d);
            let payload = Payload::new(shape, r, distance);
            payload.push(first + turn * per_turn, Direction::Recv, parent, port, steps);
        }
        first += here.children.div_ceil(d) * per_turn;
        level = here.below(radix);
    }
}

/// What rank r sends to its children on a level that begins in round `first`.
fn push_turns(
    shape: Shape,
    (first, r, distance): (u32, u32, u32),
    children: u32,
    steps: &mut Vec<Step>,
) {
    let (d, per_turn) = (u32::from(shape.ports()), rounds_of_turn(shape) as u32);
    let mut served = 0;
    while served < children {
        let together = d.min(children - served);
        let round = first + served / d * per_turn;
        for part_round in 0..per_turn {
            for port in 0..together {
                let child = r + (served + port + 1) * distance;
                let peer = shape.absolute(child);
                match Payload::new(shape, child, distance) {
                    Payload::Message(_) => {
                        let round = round + part_round;
                        steps.push(Step::new(round, Direction::Send, peer, part_round, port));
                    }
                    payload => payload.push(round, Direction::Send, peer, port, steps),
                }
            }
        }
        served += together;
    }
}

/// What a child is served.
enum Payload {
    /// The blocks of a broadcast, a round each.
    Message(u32),
    /// The parts of the relative ranks from the first to before the second, in one round.
    Parts(Shape, u32, u32),
}

impl Payload {
    fn new(shape: Shape, child: u32, distance: u32) -> Self {
        match shape.operation() {
            Operation::Broadcast => Self::Message(shape.blocks()),
            _ => Self::Parts(shape, child, shape.ranks().min(child + distance)),
        }
    }

    fn push(self, round: u32, side: Direction, peer: Rank, port: u32, steps: &mut Vec<Step>) {
        match self {
            Self::Message(blocks) => {
                let step = |block| Step::new(round + block, side, peer, block, port);
                steps.extend((0..blocks).map(step));
            }
            Self::Parts(shape, first, end) => {
                let parts = (first..end).flat_map(|rank| shape.part(shape.absolute(rank)));
                steps.extend(parts.map(|block| Step::new(round, side, peer, block, port)));
            }
        }
    }
}
