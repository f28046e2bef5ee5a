//! Broadcast trees and chains.

use super::Costs;
use crate::schedule::Shape;

/// From when the root begins the first block to when it is at the rank that gets it last, in a
/// k-nomial tree of a radix R with d ports.
///
/// A rank serves its children on one port in turn, `turn` each, and a child has the block `hop` after
/// its turn began. Of the children on one level the last turn counts, on port 0, which has the most.
pub(super) fn longest_way(n: u32, (radix, ports): (u32, u16), (turn, hop): (u128, u128)) -> u128 {
    let tree = Tree { radix: radix.into(), ports: ports.into(), turn, hop };
    let (mut level, mut distance) = (0, 1_u64);
    while distance * tree.radix < u64::from(n) {
        distance *= tree.radix;
        level += 1;
    }
    tree.longest(n.into(), level, distance)
}

#[derive(Clone, Copy, Debug)]
struct Tree {
    radix: u64,
    ports: u128,
    turn: u128,
    hop: u128,
}

impl Tree {
    /// The longest way below a rank that has all its children on `levels` levels.
    ///
    /// A way of x hops that ends on the last level leaves out the last turn of x levels. It is linear
    /// in x, so 1 or all levels are the longest.
    fn full(&self, levels: u128) -> u128 {
        let turns = levels * u128::from(self.radix - 1).div_ceil(self.ports) * self.turn;
        let way = |hops: u128| turns - hops * self.turn + hops * self.hop;
        if levels == 0 { 0 } else { way(1).max(way(levels)) }
    }

    /// The longest way below a rank with n - 1 others below it, from this level on, whose children are
    /// `distance` = R^level apart.
    fn longest(&self, n: u64, level: u128, distance: u64) -> u128 {
        if n <= 1 {
            return 0;
        }
        let below = (level.saturating_sub(1), distance / self.radix);
        if n <= distance {
            return self.longest(n, below.0, below.1);
        }
        // All children but the last have full subtrees.
        let children = n.div_ceil(distance) - 1;
        let turn_of = |child: u64| u128::from(child - 1) / self.ports * self.turn;
        let rest = self.longest(n - children * distance, below.0, below.1);
        let last = turn_of(children) + self.hop + rest;
        let before = match children {
            1 => 0,
            _ => turn_of(children - 1) + self.hop + self.full(level),
        };
        let own = u128::from(children).div_ceil(self.ports) * self.turn + self.full(level);
        last.max(before).max(if level == 0 { 0 } else { own })
    }
}

/// D levels. A step to the left is h, one to the right b + h. The level above the last is full; on the
/// last the way with the most steps to the right counts.
pub(super) fn binary(costs: &Costs, n: u32, k: u128) -> u128 {
    let Costs { busy: b, hop: h, .. } = *costs;
    if n == 2 {
        return (k - 1) * b + h;
    }
    let depth = n.ilog2();
    let last = n - (1 << depth);
    let ones = u128::from(last.count_ones().max((last + 1).ilog2()));
    let depth = u128::from(depth);
    2 * (k - 1) * b + ((depth - 1) * (h + b)).max(depth * h + ones * b)
}

/// A block goes from the root to a tree's first position and down D levels, at W - D of which it is
/// the second that its sender sends; a last level of one position has no second. With three ranks
/// each is the only child of the other.
///
/// A rank's two parents do not take turns as the rounds would have it. The drift was read off
/// simulations of N = 4 .. 512, as that of the circulant broadcast: with four blocks and more it
/// approaches D (1 - 1.2 L / b), and not less than D / 5, blocks, times (t / b)^2.
pub(super) fn two_tree(costs: &Costs, n: u32, k: u128) -> u128 {
    let Costs { busy: b, hop: h, transfer: t, latency, .. } = *costs;
    if n <= 3 {
        return (k - 1) * b + u128::from(n - 1) * h;
    }
    let inner = (n - 1) / 2;
    let last = if inner.is_multiple_of(2) && n % 2 == 1 { 2 * inner } else { 2 * inner + 1 };
    let depth = u128::from(last.ilog2());
    let seconds = match last {
        last if (last + 1).is_power_of_two() => depth,
        last if last.is_power_of_two() => depth - 2,
        _ => depth - 1,
    };
    let way = (depth + 1) * h + seconds * b;
    if k < 4 || b == 0 {
        return (k - 1) * b + way;
    }
    // In hundredths.
    let hops = (100 * latency / b).clamp(1, 1 << 30);
    let most = depth * b * 100_u128.saturating_sub(120 * hops / 100).max(20) / 100;
    let share = 1000 * t / b;
    let drift = most * share / 1000 * share / 1000 * k * hops / (k * hops + 200);
    (k - 1) * b + way + drift
}

pub(super) fn bidirectional_ring(costs: &Costs, shape: Shape) -> u128 {
    let Costs { busy: b, hop: h, .. } = *costs;
    let (n, k) = (shape.ranks(), u128::from(shape.blocks()));
    let (up, down) = (u128::from(n / 2), u128::from((n - 1) / 2));
    match (shape.ports(), n) {
        (1, 2) => (k - 1) * b + h,
        (1, _) => 2 * (k - 1) * b + (up * h).max(down * h + b),
        (ports, _) => (k.div_ceil((ports / 2).into()) - 1) * b + up * h,
    }
}
