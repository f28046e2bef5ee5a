//! `pipelined-tree`: the circulant schedule, which broadcasts k blocks in q + k - 1 rounds.
//!
//! Reference: J. L. Träff, round-optimal broadcast of k blocks on circulant graphs: DOI
//! 10.1145/3735139, arXiv 2205.10072 and 2312.11236.
//!
//! Symbols: N ranks, r a rank relative to the root; q = ceil(log2 N); k blocks; s\[0..=q\] the
//! skips; b the baseblock of a rank; R the receive row and S the send row of a rank, of q entries.
//!
//! # The graph
//!
//! s\[q\] = N and s\[j\] = ceil(s\[j+1\] / 2), so s\[0\] = 1. With j = i mod q, rank r sends in round i to
//! r + s\[j\] and receives from r - s\[j\], both mod N: one send and one receive per round, to q
//! different ranks in turn. Rounds come in phases of q. R\[j\] is the block received in round j of a
//! phase, relative to the phase: a negative number is a block of an earlier phase that is passed
//! on, and the one number that is not negative, b, is the block that is new to the rank.
//!
//! # Worked example: N = 9, s = 1 2 3 5 9, baseblocks of ranks 0..8 = 4 0 1 2 0 3 0 1 2
//!
//! ```text
//! R[0] -2  0 -4 -3 -2 -4 -1 -4 -3   from r-1        S[0]  0 -4 -3 -2 -4 -1 -4 -3 -2   to r+1
//! R[1] -3 -2  1 -4 -3 -2 -2 -1 -4   from r-2        S[1]  1 -4 -3 -2 -2 -1 -4 -3 -2   to r+2
//! R[2] -1 -3 -2  2  0 -3 -3 -2 -1   from r-3        S[2]  2  0 -3 -3 -2 -1 -1 -3 -2   to r+3
//! R[3] -4 -1 -1 -1 -1  3  0  1  2   from r-5        S[3]  3  0  1  2 -4 -1 -1 -1 -1   to r+5
//! ```
//!
//! # From rows to blocks, and why no block comes twice
//!
//! Rounds are counted i = x .. x + q + k - 2, where x = (q - (k-1) mod q) mod q makes the last round
//! the last of a phase. Phase p adds o = p q - x to the entries of both rows. A sum below 0 is no
//! block: nothing is sent. In the last phase o = k - 1, so exactly the entries that are not
//! negative reach k or more, or are k - 1 itself: they become min(sum, k - 1) = k - 1. Nobody
//! receives twice through that: by condition 2 a rank has one such entry, b, and the entries
//! -1 .. -q of the last phase give blocks below k - 1 only. In general the phases give the blocks
//! o + b and o - 1 .. o - q without o + b - q, and that one is the o + b of the phase before: every
//! block exactly once. No earlier phase is cut: there o + b <= k - 1 - q + b < k - 1. Nor do the x
//! rounds that are left out before the start lose a block: an entry b stands in a round j >= b, so
//! in a left-out round b - x < 0.
//!
//! # Cost
//!
//! q + k - 1 rounds for N >= 2, the least possible for k blocks; none for N = 1. Every rank but
//! the root receives M bytes: (N - 1) M bytes on the wire. A row R takes O(q) operations, a row S
//! O(q^2) (q of the first), q <= 20 for a million ranks; no table of all ranks is made.
//!
//! # Conditions
//!
//! 1. `condition_1_send_row_is_the_receivers_entry`: S_r\[j\] = R_{r+s\[j\]}\[j\].
//! 2. `condition_2_receive_row_has_each_block_once`: the entries of R_r are -1 .. -q without b - q,
//!    and b; the root, whose b is q, has exactly -1 .. -q.
//! 3. `condition_3_sends_what_was_received_before`: S_r\[j\] = b - q or S_r\[j\] is among
//!    R_r\[0..j-1\], for every rank but the root.
//! 4. `condition_4_root_sends_block_j_in_round_j`: S_0\[j\] = j.
//! 5. `condition_5_simulated_contents`: run in rounds, after exactly q + k - 1 of them every rank
//!    has every block, nobody sends what it has not got, nobody receives a block twice.

use super::{Direction, MAX_RANKS, Rank, Shape, Step, ceil_log2};

/// The largest q: ceil(log2 [`MAX_RANKS`]).
pub const MAX_Q: usize = MAX_RANKS.trailing_zeros() as usize;

/// A receive or send row: entry j belongs to round j of a phase; entries from q on are 0.
pub type Row = [i32; MAX_Q];

/// The skips s\[0..=q\] of N ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skips {
    q: usize,
    s: [u32; MAX_Q + 1],
}

impl Skips {
    /// The skips of `ranks` ranks: s\[q\] = N, s\[j\] = ceil(s\[j+1\] / 2).
    ///
    /// # Panics
    ///
    /// `ranks` is 0 or above [`MAX_RANKS`].
    pub fn new(ranks: u32) -> Self {
        assert!((1..=MAX_RANKS).contains(&ranks), "{ranks} ranks are outside 1..={MAX_RANKS}");
        let q = ceil_log2(ranks) as usize;
        let mut s = [0; MAX_Q + 1];
        s[q] = ranks;
        for j in (0..q).rev() {
            s[j] = s[j + 1].div_ceil(2);
        }
        Self { q, s }
    }

    /// q = ceil(log2 N), the number of neighbours on each side.
    pub fn q(&self) -> usize {
        self.q
    }

    /// s\[0\] to s\[q\].
    pub fn as_slice(&self) -> &[u32] {
        &self.s[..=self.q]
    }

    fn ranks(&self) -> u32 {
        self.s[self.q]
    }

    /// (r + s\[j\]) mod N, for r < N and j < q.
    fn forward(&self, r: u32, j: usize) -> u32 {
        let sum = r + self.s[j];
        if sum >= self.ranks() { sum - self.ranks() } else { sum }
    }

    /// (r - s\[j\]) mod N, for r < N and j < q.
    fn backward(&self, r: u32, j: usize) -> u32 {
        if r >= self.s[j] { r - self.s[j] } else { r + self.ranks() - self.s[j] }
    }

    /// The baseblock of relative rank r: the smallest index in the greedy sum of skips that is r;
    /// q for the root.
    ///
    /// # Panics
    ///
    /// `r` is not below N.
    pub fn baseblock(&self, r: u32) -> usize {
        assert!(r < self.ranks(), "relative rank {r} is not below {}", self.ranks());
        let mut rest = r;
        for e in (0..self.q).rev() {
            if rest == 0 {
                break;
            }
            if self.s[e] <= rest {
                rest -= self.s[e];
                if rest == 0 {
                    return e;
                }
            }
        }
        self.q
    }

    /// The receive row R of relative rank r, in O(q).
    ///
    /// # Panics
    ///
    /// `r` is not below N.
    pub fn recv_row(&self, r: u32) -> Row {
        self.recv_row_prefix(r, self.q)
    }

    /// The send row S of relative rank r, in O(q^2): entry j is the receiver's entry j.
    ///
    /// # Panics
    ///
    /// `r` is not below N.
    pub fn send_row(&self, r: u32) -> Row {
        assert!(r < self.ranks(), "relative rank {r} is not below {}", self.ranks());
        let mut row = [0; MAX_Q];
        for (j, entry) in row[..self.q].iter_mut().enumerate() {
            *entry =
                if r == 0 { j as i32 } else { self.recv_row_prefix(self.forward(r, j), j + 1)[j] };
        }
        row
    }

    /// The first `len` entries of R; the search yields them in order, so it can stop early.
    fn recv_row_prefix(&self, r: u32, len: usize) -> Row {
        let b = self.baseblock(r);
        let mut search = Search::new(self, r, b, len);
        if len > 0 {
            search.descend(0, 2 * u64::from(self.ranks()), search.first);
        }
        debug_assert_eq!(search.found, len, "ranks {} r {r}", self.ranks());
        let q = self.q as i32;
        for entry in &mut search.row[..len] {
            *entry = if *entry == q { b as i32 } else { *entry - q };
        }
        search.row
    }
}

/// Ends the list of skip indices.
const END: u8 = u8::MAX;

/// The greedy depth-first search for the skip sums that a block takes from the root to rank r.
///
/// Entry j of the row is the first skip index e, largest first, for which some sum of skips x,
/// followed by s\[e\], lies close enough below r + N to reach it by s\[j\], and below the sum that the
/// entry before it took. An index is used once: it leaves the list.
struct Search<'a> {
    s: &'a [u32; MAX_Q + 1],
    /// r + N.
    target: u64,
    /// Entries found, called j in the paper.
    found: usize,
    /// Entries wanted.
    wanted: usize,
    row: Row,
    /// Doubly linked list of the indices left, descending: q, q - 1, ..., 0 without b.
    next: [u8; MAX_Q + 1],
    previous: [u8; MAX_Q + 1],
    first: u8,
}

impl<'a> Search<'a> {
    fn new(skips: &'a Skips, r: u32, b: usize, wanted: usize) -> Self {
        let mut search = Self {
            s: &skips.s,
            target: u64::from(r) + u64::from(skips.ranks()),
            found: 0,
            wanted,
            row: [0; MAX_Q],
            next: [END; MAX_Q + 1],
            previous: [END; MAX_Q + 1],
            first: skips.q as u8,
        };
        for e in 1..=skips.q {
            search.next[e] = e as u8 - 1;
            search.previous[e - 1] = e as u8;
        }
        search.remove(b as u8);
        search
    }

    fn remove(&mut self, e: u8) {
        let (before, after) = (self.previous[usize::from(e)], self.next[usize::from(e)]);
        match before {
            END => self.first = after,
            before => self.next[usize::from(before)] = after,
        }
        if after != END {
            self.previous[usize::from(after)] = before;
        }
    }

    /// Whether the sum `y` leaves room for skip j before the target: y <= r + N - s\[j\].
    fn leaves_room(&self, y: u64, j: usize) -> bool {
        y + u64::from(self.s[j]) <= self.target
    }

    /// Extends the sum `x` by the indices from `e` on, and stops when all wanted entries are found.
    ///
    /// Each level adds a skip and sums stay below 2 N; `depth_of_the_search_is_bounded` measures
    /// that no more than q + 1 levels are entered.
    fn descend(&mut self, x: u64, mut bound: u64, mut e: u8) {
        while e != END {
            let y = x + u64::from(self.s[usize::from(e)]);
            if self.leaves_room(y, self.found) && y < bound {
                if self.leaves_room(y, self.found + 1) {
                    self.descend(y, bound, e);
                    if self.found == self.wanted {
                        return;
                    }
                }
                if !self.leaves_room(x, self.found + 1) {
                    return;
                }
                bound = y;
                self.row[self.found] = i32::from(e);
                self.found += 1;
                self.remove(e);
                if self.found == self.wanted {
                    return;
                }
            }
            e = self.next[usize::from(e)];
        }
    }
}

/// q + k - 1; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    u64::from(ceil_log2(shape.ranks())) + u64::from(shape.blocks()) - 1
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let skips = Skips::new(shape.ranks());
    let q = skips.q();
    if q == 0 {
        return;
    }
    let r = shape.relative(rank);
    let (send_row, recv_row) = (skips.send_row(r), skips.recv_row(r));
    let (mut send_peers, mut recv_peers) = ([None; MAX_Q], [None; MAX_Q]);
    for j in 0..q {
        // Nobody sends to the root, and the root receives nothing.
        let to = skips.forward(r, j);
        send_peers[j] = (to != 0).then(|| shape.absolute(to));
        recv_peers[j] = (r != 0).then(|| shape.absolute(skips.backward(r, j)));
    }
    let last = shape.blocks() as i32 - 1;
    let rounds = q as u32 + shape.blocks() - 1;
    steps.reserve(if r == 0 { 1 } else { 2 } * rounds as usize);
    let x = (q - last as usize % q) % q;
    let (mut j, mut offset) = (x, -(x as i32));
    for round in 0..rounds {
        let sides = [
            (Direction::Send, send_peers[j], send_row[j] + offset),
            (Direction::Recv, recv_peers[j], recv_row[j] + offset),
        ];
        for (direction, peer, block) in sides {
            if let (Some(peer), Ok(block)) = (peer, u32::try_from(block.min(last))) {
                steps.push(Step { round, direction, peer, block, port: 0 });
            }
        }
        j += 1;
        if j == q {
            (j, offset) = (0, offset + q as i32);
        }
    }
}

#[cfg(test)]
mod tests;
