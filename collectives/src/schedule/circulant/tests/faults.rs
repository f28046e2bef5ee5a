//! The conditions reject the two faults that are known to pass every test of fewer than 33 ranks.

use super::*;

/// The search as the paper's listing has it, written out plainly; `is_bounded` false leaves out
/// the bound on the sums, the first of the two known faults.
struct Listing {
    s: Vec<u64>,
    target: u64,
    left: Vec<usize>,
    row: Vec<i32>,
    is_bounded: bool,
    deepest: usize,
}

impl Listing {
    fn run(ranks: u32, r: u32, is_bounded: bool) -> Self {
        let skips = Skips::new(ranks);
        let (q, b) = (skips.q(), skips.baseblock(r));
        let mut listing = Self {
            s: skips.as_slice().iter().map(|&s| u64::from(s)).collect(),
            target: u64::from(r) + u64::from(ranks),
            left: (0..=q).rev().filter(|&e| e != b).collect(),
            row: Vec::new(),
            is_bounded,
            deepest: 0,
        };
        if q > 0 {
            listing.search(0, 2 * u64::from(ranks), listing.left[0], 1);
        }
        let replace = |e: i32| if e == q as i32 { b as i32 } else { e - q as i32 };
        listing.row = listing.row.iter().copied().map(replace).collect();
        listing
    }

    fn q(&self) -> usize {
        self.s.len() - 1
    }

    fn reaches(&self, sum: u64, j: usize) -> bool {
        sum + self.s[j] <= self.target
    }

    fn search(&mut self, x: u64, mut bound: u64, start: usize, depth: usize) {
        self.deepest = self.deepest.max(depth);
        let mut e = Some(start);
        while let Some(index) = e {
            let y = x + self.s[index];
            let j = self.row.len();
            if self.reaches(y, j) && (y < bound || !self.is_bounded) {
                if self.reaches(y, j + 1) {
                    self.search(y, bound, index, depth + 1);
                }
                if self.row.len() == self.q() || !self.reaches(x, self.row.len() + 1) {
                    return;
                }
                bound = y;
                self.row.push(index as i32);
                self.left.retain(|&other| other != index);
                if self.row.len() == self.q() {
                    return;
                }
            }
            e = self.left.iter().copied().find(|&other| other < index);
        }
    }
}

#[test]
fn receive_rows_equal_the_plain_listing() {
    for ranks in 1..=STRUCTURE_RANKS / 2 {
        let skips = Skips::new(ranks);
        for r in 0..ranks {
            let row = Listing::run(ranks, r, true).row;
            assert_eq!(skips.recv_row(r)[..skips.q()], row, "N = {ranks}, r = {r}");
        }
    }
}

#[test]
fn depth_of_the_search_is_bounded() {
    let mut rng = test_seed::rng("depth_of_the_search_is_bounded");
    let small = (2..=512).flat_map(|ranks| (0..ranks).map(move |r| (ranks, r)));
    let large = std::iter::repeat_with(|| {
        let ranks = rng.u32(2..=MAX_RANKS);
        (ranks, rng.u32(0..ranks))
    });
    for (ranks, r) in small.chain(large.take(20_000)) {
        let listing = Listing::run(ranks, r, true);
        assert!(listing.deepest <= listing.q() + 1, "N = {ranks}, r = {r}: {}", listing.deepest);
    }
}

/// The rows of all ranks without the bound; the send rows are the receivers' entries.
fn table_without_bound(ranks: u32) -> Table {
    let skips = Skips::new(ranks);
    let recv: Vec<Row> = (0..ranks)
        .map(|r| {
            let found = Listing::run(ranks, r, false).row;
            let mut row = [0; MAX_Q];
            row[..found.len()].copy_from_slice(&found);
            row
        })
        .collect();
    let send_row = |r: u32| {
        let mut row = [0; MAX_Q];
        for (j, entry) in row[..skips.q()].iter_mut().enumerate() {
            *entry = if r == 0 { j as i32 } else { recv[skips.forward(r, j) as usize][j] };
        }
        row
    };
    let send = (0..ranks).map(send_row).collect();
    Table { skips, recv, send }
}

/// Some fault shows for some number of ranks, and for none below 33.
fn assert_first_rejected_is_33(name: &str, is_rejected: impl Fn(u32) -> bool) {
    let rejected: Vec<u32> = (1..=400).filter(|&ranks| is_rejected(ranks)).collect();
    println!("{name}: {} of 400 numbers of ranks are rejected: {rejected:?}", rejected.len());
    assert_eq!(rejected.first(), Some(&33), "{name}");
}

#[test]
fn search_without_bound_is_rejected() {
    let is_rejected = |ranks| table_without_bound(ranks).all_conditions().is_err();
    assert_first_rejected_is_33("no bound", is_rejected);
}

/// How the rule for send rows treats the range of ranks that still holds the rank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Range {
    /// As it must.
    Tracked,
    /// One rank too wide where a lower half is compared with the next skip.
    OneTooWide,
    /// Never narrowed.
    Untracked,
}

/// The paper's rule for a send row (arXiv 2312.11236), which costs O(1) for most entries, instead
/// of a search per entry: the halving that leads to the rank names the block. Where the rule is
/// not certain it falls back to the receiver's entry.
fn send_row_by_rule(skips: &Skips, r: u32, range: Range) -> Row {
    let (s, q) = (skips.as_slice(), skips.q());
    let mut row = [0; MAX_Q];
    if r == 0 {
        return skips.send_row(0);
    }
    let b = skips.baseblock(r) as i32;
    let (mut rest, mut end, mut block) = (r, skips.ranks(), b);
    for k in (1..q).rev() {
        let is_lower = rest < s[k];
        let is_certain = if is_lower {
            let is_near_end = match range {
                Range::OneTooWide => end <= s[k - 1],
                Range::Tracked | Range::Untracked => end < s[k - 1],
            };
            rest + s[k] < end || is_near_end || (k == 1 && b > 0)
        } else {
            block = k as i32 - q as i32;
            k == 1 || rest > s[k] || end - s[k] < s[k - 1]
        };
        let receiver = skips.forward(r, k);
        row[k] = if is_certain { block } else { skips.recv_row(receiver)[k] };
        if !is_lower {
            rest -= s[k];
        }
        end = match range {
            Range::Untracked => end,
            _ if is_lower => end.min(s[k]),
            _ => end - s[k],
        };
    }
    row[0] = b - q as i32;
    row
}

fn table_by_rule(ranks: u32, range: Range) -> Table {
    let skips = Skips::new(ranks);
    let recv = (0..ranks).map(|r| skips.recv_row(r)).collect();
    let send = (0..ranks).map(|r| send_row_by_rule(&skips, r, range)).collect();
    Table { skips, recv, send }
}

#[test]
fn send_rule_agrees_with_the_search() {
    for ranks in 2..=STRUCTURE_RANKS / 2 {
        let skips = Skips::new(ranks);
        for r in 0..ranks {
            let by_rule = send_row_by_rule(&skips, r, Range::Tracked);
            assert_eq!(by_rule, skips.send_row(r), "N = {ranks}, r = {r}");
        }
    }
}

#[test]
fn send_rule_with_a_wrong_range_is_rejected() {
    let is_rejected = |range| move |ranks| table_by_rule(ranks, range).all_conditions().is_err();
    assert!((1..=400).all(|ranks| !is_rejected(Range::Tracked)(ranks)));
    assert_first_rejected_is_33("range one too wide", is_rejected(Range::OneTooWide));
    assert!((1..33).any(is_rejected(Range::Untracked)));
}
