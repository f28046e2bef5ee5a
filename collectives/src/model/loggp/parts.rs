//! Operations in which blocks belong to ranks: scatter, gather, allgather.

use super::{Costs, circulant, stripe};
use crate::schedule::{Algorithm, Shape};

/// What leaves the root in one list per port, the farthest level first, arrives after its hops: no
/// rank has more to pass on than it receives, so nothing waits on the way.
pub(super) fn scatter(costs: &Costs, algorithm: Algorithm, shape: Shape) -> u128 {
    let Costs { busy: b, hop: h, transfer: t, .. } = *costs;
    let ports = u64::from(shape.ports());
    let Some(tree) = Tree::of(algorithm, shape) else {
        let k = u128::from(shape.blocks());
        return (flat_blocks(shape) - k) * b + (k - 1) * b.max(t) + h;
    };
    let mut latest = 0;
    let mut load = vec![0; tree.ports as usize];
    tree.children(|level, child, size| {
        let place = ((child - 1) % ports) as usize % load.len();
        let mut at = |ranks: u64| {
            // The child's in-port takes one after another, also of what it pulls.
            let blocks = u128::from(ranks) * tree.k;
            let hops = 1 + u128::from(tree.digits(ranks - 1));
            latest = latest.max(load[place] * b + (blocks - 1) * b.max(t) + hops * h);
        };
        // Of the child's ranks the last, or one before it that has more hops.
        at(size);
        let mut unit = 1;
        for _ in 0..level {
            unit *= tree.radix;
            if size / unit > 0 {
                at(size / unit * unit);
            }
        }
        load[place] += u128::from(size) * tree.k;
    });
    latest
}

/// Everybody begins with its own blocks. Those of the ranks x hops below come x hops later; then a
/// port passes them on without a pause. What counts is the slowest subtree, with the hops above it, or
/// the root's in-port.
pub(super) fn gather(costs: &Costs, algorithm: Algorithm, shape: Shape) -> u128 {
    let Costs { busy: b, hop: h, transfer: t, latency, .. } = *costs;
    let Some(tree) = Tree::of(algorithm, shape) else {
        let (blocks, k) = (flat_blocks(shape), u128::from(shape.blocks()));
        return latency + (blocks * t).max((k - 1) * b + blocks / k * t);
    };
    // The busiest in-port of the root, as a share of all blocks.
    let mut load = vec![0_u128; tree.ports as usize];
    let mut place = 0;
    tree.children(|_, child, size| {
        place = ((child - 1) % tree.ports) as usize;
        load[place] += u128::from(size);
    });
    let all = load.iter().sum::<u128>().max(1);
    let most = load.into_iter().max().unwrap_or(0);
    let by_depth = tree.by_digits(shape.ranks().into());
    let at_port = staged(&by_depth[1..], tree.k * t, h) * most.max(1) / all;
    let subtrees = tree.slowest_subtree(shape.ranks().into(), tree.distance, 1, (tree.k * b, h));
    (latency + at_port).max(latency + most * tree.k * t).max(subtrees - b.min(subtrees))
}

pub(super) fn allgather(costs: &Costs, algorithm: Algorithm, shape: Shape) -> u128 {
    let Costs { busy: b, hop: h, .. } = *costs;
    let (n, k) = (shape.ranks(), stripe(shape));
    let (by_hops, more) = match algorithm {
        // Every turn passes on the part that came in the turn before.
        Algorithm::Ring => return u128::from(n - 2) * (k * b).max(h) + (k - 1) * b + h,
        // With several blocks a part's blocks go one hop more, as in a broadcast.
        Algorithm::Circulant if k > 1 && n > 2 => {
            let hops = circulant::Ways::new(n).hops();
            return u128::from(n - 1) * k * b + hops * h;
        }
        Algorithm::Circulant => (circulant::ranks_by_hops(n), 0),
        // The part of the rank at distance x comes over as many hops as x has binary ones.
        _ => (Tree::binary().by_digits(n.into()), 0),
    };
    let hops = by_hops.iter().rposition(|&count| count > 0).unwrap_or(0) as u128;
    let stages = staged(&by_hops[1..], k * b, h) - b + h;
    stages.max(hops * h + more + (k - 1) * b)
}

/// The blocks that pass the busiest port of a flat root.
fn flat_blocks(shape: Shape) -> u128 {
    let others = u128::from(shape.ranks() - 1);
    others.div_ceil(shape.ports().into()) * u128::from(shape.blocks())
}

/// Work that comes in stages, stage i from i `hop` on, done without a pause once the last has come.
fn staged(counts: &[u128], each: u128, hop: u128) -> u128 {
    let mut left: u128 = counts.iter().sum();
    let mut latest = 0;
    for (stage, count) in (0_u128..).zip(counts) {
        if left > 0 {
            latest = latest.max(stage * hop + left * each);
        }
        left -= count;
    }
    latest
}

/// A k-nomial tree with k blocks of each rank.
#[derive(Clone, Copy, Debug)]
struct Tree {
    ranks: u64,
    radix: u64,
    ports: u64,
    k: u128,
    /// R^(m-1).
    distance: u64,
    /// m - 1.
    level: u32,
}

impl Tree {
    /// `None` for the flat tree.
    fn of(algorithm: Algorithm, shape: Shape) -> Option<Self> {
        let (radix, ports, k) = match algorithm {
            Algorithm::Flat => return None,
            Algorithm::Knomial => (shape.radix(), shape.ports(), shape.blocks().into()),
            _ => (2, 1, stripe(shape)),
        };
        let (radix, ranks) = (u64::from(radix), u64::from(shape.ranks()));
        let (mut distance, mut level) = (1, 0);
        while distance * radix < ranks {
            distance *= radix;
            level += 1;
        }
        Some(Self { ranks, radix, ports: ports.into(), k, distance, level })
    }

    fn binary() -> Self {
        Self { ranks: 1, radix: 2, ports: 1, k: 1, distance: 1, level: 0 }
    }

    /// Visits the root's children in the order in which it serves them: level, number on the level from
    /// 1, ranks of the subtree.
    fn children(&self, mut visit: impl FnMut(u32, u64, u64)) {
        let (mut level, mut distance, mut end) = (self.level, self.distance, self.ranks);
        loop {
            let mut child = 1;
            while child < self.radix && child * distance < end {
                visit(level, child, distance.min(end - child * distance));
                child += 1;
            }
            if level == 0 {
                return;
            }
            (level, distance, end) = (level - 1, distance / self.radix, distance);
        }
    }

    /// The digits of a number that are not 0: the hops from the root.
    fn digits(&self, mut number: u64) -> u32 {
        let mut digits = 0;
        while number > 0 {
            digits += u32::from(!number.is_multiple_of(self.radix));
            number /= self.radix;
        }
        digits
    }

    /// How many of the numbers below `end` have 0, 1, 2, ... digits that are not 0.
    fn by_digits(&self, end: u64) -> Vec<u128> {
        let mut power = 1;
        let mut places = 0;
        while power * self.radix <= end {
            power *= self.radix;
            places += 1;
        }
        let mut counts = vec![0; places + 2];
        let (mut rest, mut before) = (end, 0);
        for place in (0..=places).rev() {
            let digit = rest / power;
            rest %= power;
            power = (power / self.radix).max(1);
            if digit == 0 {
                continue;
            }
            // A lower digit here leaves the `place` digits after it free: C(place, x) (R - 1)^x.
            let mut free = 1;
            for x in 0..=place {
                counts[before + x] += free;
                if digit > 1 {
                    counts[before + x + 1] += free * u128::from(digit - 1);
                }
                free = free * ((place - x) as u128) * u128::from(self.radix - 1) / (x as u128 + 1);
            }
            before += 1;
        }
        counts
    }

    /// The latest time at which a subtree of n ranks below its own root is passed on, the hops from
    /// there to the top included; `depth` is that of the children.
    fn slowest_subtree(
        &self,
        n: u64,
        distance: u64,
        depth: u128,
        (each, hop): (u128, u128),
    ) -> u128 {
        if n <= 1 {
            return 0;
        }
        let below = (distance / self.radix).max(1);
        let children = n.div_ceil(distance) - 1;
        if children == 0 {
            return self.slowest_subtree(n, below, depth, (each, hop));
        }
        let of = |ranks, depth| staged(&self.by_digits(ranks), each, hop) + depth * hop;
        // A child with a full subtree, and the first of each level below it.
        let mut full = if children > 1 { distance } else { distance / self.radix };
        let (mut latest, mut at) = (0, depth);
        while full > 0 {
            latest = latest.max(of(full, at));
            (full, at) = (full / self.radix, at + 1);
        }
        let rest = n - children * distance;
        let last = of(rest, depth).max(self.slowest_subtree(rest, below, depth + 1, (each, hop)));
        latest.max(last)
    }
}
