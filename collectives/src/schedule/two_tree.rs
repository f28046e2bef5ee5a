//! `two-tree`: two binary trees over the same ranks, each of which carries half of the blocks.
//!
//! Reference: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
//! reduction and scan", Parallel Computing 35(12), 2009, DOI 10.1016/j.parco.2009.09.001. The idea is
//! theirs: each rank is an inner node of at most one tree, so that it sends each block at most once on
//! average, and each edge has one of two colours, so that a rank uses one edge in and one edge out per
//! round. The trees and colours here are ours: they need no search and no table.
//!
//! Symbols: N ranks, numbered relative to the root 0; n = floor((N - 1) / 2); k blocks; positions of a
//! tree counted as in a binary heap: the children of position m are 2 m + 1, its left one, and 2 m + 2.
//!
//! # The trees
//!
//! Tree A has the ranks 1 .. n at its positions 0 .. n - 1, in order; tree B has the ranks n + 1 .. 2 n
//! there. These are the inner nodes. The i-th inner node of one tree (i from 0) is a leaf of the other
//! one, at position i + n + (n mod 2): the least shift to behind the inner nodes that keeps i odd or
//! even. If N is even the last rank, 2 n + 1, is a leaf of both, at the position that is left: n if n is
//! odd, else 2 n. The root sends to position 0 of both trees.
//!
//! # The colours
//!
//! In tree A the edge into a left child has colour 0, into a right child 1, and into position 0 also 1;
//! in tree B it is the other way round. A left child has an odd position, a right one an even one. So
//! 1. the edges from one rank to its two children have both colours, and the root's two edges as well;
//! 2. the edges into one rank have both colours, since its positions in A and B are both odd or both
//!    even.
//!
//! Edges of colour x are used in rounds of which the remainder by 2 is that of x + 1, so B's position 0
//! has even rounds: by 1 and 2 a rank sends once and receives once in a round at most. A block leaves a
//! rank in the first round of the right colour after it came: one later over an edge of the other
//! colour than it came by, two later over one of the same colour.
//!
//! # Example: N = 5, n = 2, k = 4: A over ranks 1 2 (leaves 3 4), B over ranks 3 4 (leaves 1 2)
//!
//! | round | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
//! |---|---|---|---|---|---|---|---|
//! | B, blocks 0 2 | 0 > 3: 0 | 3 > 4: 0 | 0 > 3: 2, 3 > 1: 0 | 3 > 4: 2, 4 > 2: 0 | 3 > 1: 2 | 4 > 2: 2 | |
//! | A, blocks 1 3 | | 0 > 1: 1 | 1 > 2: 1 | 0 > 1: 3, 1 > 3: 1 | 1 > 2: 3, 2 > 4: 1 | 1 > 3: 3 | 2 > 4: 3 |
//!
//! # Cost
//!
//! The block that enters a tree first comes to position m after w(m) further rounds: 2 for each level,
//! less 1 for each change between left and right on the way, position 0 counting as right. The way is
//! written in the binary digits of m + 1, the first of which is 1 as well, so w(m) = 2 D - (changes
//! between neighbouring digits), D = floor(log2 (m + 1)). B starts in round 0 and carries blocks 0, 2,
//! ...; A starts in round 1 and carries 1, 3, ...: both then take k + W rounds at most, and one of them
//! does, with W the largest w. Let x be the largest position in use, plus 1: 2 n + 1, or 2 n if n is
//! even and N odd; D = floor(log2 x). Then W = 2 D if x = 2^(D+1) - 1, else 2 D - 1 (a way first right,
//! then left). k + W is at most 2 q + k, q = ceil(log2 N). At N = 2 there are no inner nodes: k rounds.
//! At N = 3 with one block nothing would go in round 1, so the block goes on a round earlier: 2 rounds.
//! On the wire (N - 1) M bytes.
//!
//! # Conditions
//!
//! 1. `a_rank_is_an_inner_node_of_one_tree`: of A or B, but never of both.
//! 2. `two_tree_is_within_2q_of_k`: k + W <= 2 q + k.
//! 3. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step, ceil_log2};

/// k + W; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    let early = u64::from(has_idle_round(shape));
    u64::from(shape.blocks()) + u64::from(longest_way(shape.ranks())) - early
}

/// Whether nothing would go in round 1.
fn has_idle_round(shape: Shape) -> bool {
    shape.ranks() == 3 && shape.blocks() == 1
}

/// W.
fn longest_way(ranks: u32) -> u32 {
    if ranks == 2 {
        return 0;
    }
    let n = (ranks - 1) / 2;
    let last = if n.is_multiple_of(2) && !ranks.is_multiple_of(2) { 2 * n } else { 2 * n + 1 };
    let depth = last.ilog2();
    if (last + 1).is_power_of_two() { 2 * depth } else { 2 * depth - 1 }
}

/// w(m).
fn way(position: u32) -> u32 {
    let digits = position + 1;
    let changes = (digits ^ (digits >> 1)).count_ones() - 1;
    2 * digits.ilog2() - changes
}

/// One of the two trees over N >= 3 ranks.
#[derive(Clone, Copy, Debug)]
struct Tree {
    ranks: u32,
    /// 0 for B, which starts in round 0; 1 for A.
    start: u32,
}

impl Tree {
    /// n.
    fn inner(self) -> u32 {
        (self.ranks - 1) / 2
    }

    /// The rank before the inner nodes of this tree, and of the other one.
    fn before(self) -> (u32, u32) {
        if self.start == 1 { (0, self.inner()) } else { (self.inner(), 0) }
    }

    /// The position of the rank that is a leaf of both trees.
    fn spare(self) -> u32 {
        let n = self.inner();
        if n % 2 == 1 { n } else { 2 * n }
    }

    /// The position of rank r > 0.
    fn position(self, r: u32) -> u32 {
        let n = self.inner();
        let (own, other) = self.before();
        if r == 2 * n + 1 {
            self.spare()
        } else if (own + 1..=own + n).contains(&r) {
            r - own - 1
        } else {
            r - other - 1 + n + n % 2
        }
    }

    /// The rank at a position, if there is one.
    fn rank(self, position: u32) -> Option<u32> {
        let n = self.inner();
        let (own, other) = self.before();
        if position < n {
            return Some(own + 1 + position);
        }
        let leaf = position.checked_sub(n + n % 2).filter(|&leaf| leaf < n);
        let spare = (self.ranks.is_multiple_of(2) && position == self.spare()).then_some(2 * n + 1);
        leaf.map(|leaf| other + 1 + leaf).or(spare)
    }
}

/// An edge of a rank: used every second round from `first` on, for every second block.
#[derive(Clone, Copy, Debug)]
struct Edge {
    first: u32,
    side: Direction,
    peer: u32,
    tree: Tree,
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let (n, k, r) = (shape.ranks(), shape.blocks(), shape.relative(rank));
    if n == 2 {
        let side = if r == 0 { Direction::Send } else { Direction::Recv };
        let peer = shape.absolute(1 - r);
        steps.extend((0..k).map(|block| Step::new(block, side, peer, block, 0)));
        return;
    }
    let early = u32::from(has_idle_round(shape));
    let mut edges = [None; 4];
    let mut count = 0;
    let mut add = |edge: Edge| {
        edges[count] = Some(edge);
        count += 1;
    };
    for tree in [0, 1].map(|start| Tree { ranks: n, start }) {
        let edge = |position: u32, side, peer| {
            let first = tree.start + way(position);
            Edge { first: first - early.min(first), side, peer, tree }
        };
        if r == 0 {
            tree.rank(0).into_iter().for_each(|peer| add(edge(0, Direction::Send, peer)));
            continue;
        }
        let position = tree.position(r);
        let parent = if position == 0 { Some(0) } else { tree.rank((position - 1) / 2) };
        parent.into_iter().for_each(|peer| add(edge(position, Direction::Recv, peer)));
        for child in [2 * position + 1, 2 * position + 2] {
            tree.rank(child).into_iter().for_each(|peer| add(edge(child, Direction::Send, peer)));
        }
    }
    steps.reserve(count * k.div_ceil(2) as usize);
    // Every edge is used within the rounds of the whole.
    let rounds = k + 2 * ceil_log2(n);
    for round in 0..rounds {
        for Edge { first, side, peer, tree } in edges.into_iter().flatten() {
            let since = round.wrapping_sub(first);
            let block = since.wrapping_add(tree.start);
            if round >= first && since % 2 == 0 && block < k {
                steps.push(Step::new(round, side, shape.absolute(peer), block, 0));
            }
        }
    }
}
