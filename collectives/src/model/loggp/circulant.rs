//! The circulant broadcast.
//!
//! One block goes to rank r by the skips of which r is the greedy sum, so over H hops to the rank with
//! the most of them, and waits for the other rounds of the first phase: H h + (q - H) b. A block among
//! others goes one hop more than that, since the skip of its round comes first: (H + 1) h +
//! (q - H - 1) b. The longest wait of one hop, h + (q - 1) b, counts where h is below b.
//!
//! Without rounds a port may take the wrong block first, and ranks drift apart until it no longer
//! matters. The drift was read off simulations of N = 3 .. 512, k = 1 .. 512, L / b = 0.1 .. 100 and t / b
//! from near 0 to 1. It begins after q blocks, and approaches q^2 / 4 blocks, times (t / b)^2, since a
//! block in a wrong place does harm only where the in-port is busy; with y = (k - q) / tau it has
//! reached 1 - 1 / (1 + y + y^2 / 2) of it, close to 1 - exp(-y). tau = 0.43 q^2 + 0.4 q L / b, and
//! longer where L is below b.

use super::Costs;
use crate::schedule::ceil_log2;
use crate::schedule::circulant::{MAX_Q, Skips};

/// The ways of the first block to N ranks.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Ways {
    /// H.
    hops: u32,
    /// For each number of hops the most waits, in blocks, on a way to some rank; -1 if there is none.
    waits: [i32; MAX_Q + 1],
}

/// The broadcast of k blocks to n >= 2 ranks.
pub(super) fn broadcast(costs: &Costs, n: u32, k: u128, ways: &Ways) -> u128 {
    let Costs { busy: b, hop: h, .. } = *costs;
    let q = u128::from(ceil_log2(n));
    if n == 2 {
        return (k - 1) * b + h;
    }
    let hops = u128::from(ways.hops);
    if k == 1 {
        return ways.longest(b, h);
    }
    let direct = h + (q - 1) * b;
    let way = ((hops + 1) * h + q * b).saturating_sub((hops + 1) * b).max(direct);
    if n == 3 {
        // The second hop does not wait for a round that its sender has not got. Of many blocks some
        // do, unless L is a multiple of b.
        let less = b.min(h.saturating_sub(b));
        let per_cent = match k {
            ..=4 => 100,
            5 | 6 => 80,
            _ => 55,
        };
        return (k - 1) * b + way - less * per_cent / 100;
    }
    (k - 1) * b + way - saved(costs, q, k, ways).min(way)
        + lost(costs, q, k, hops)
        + drift(costs, q, k)
}

/// Two or three blocks profit from what the first does not have to wait, unless L is so short that
/// ports, not ways, decide.
fn saved(costs: &Costs, q: u128, k: u128, ways: &Ways) -> u128 {
    let Costs { busy: b, hop: h, latency, .. } = *costs;
    let hops = ways.hops();
    // In halves of what the first block does not wait.
    let share = match k {
        2 if 2 * latency >= b => 2,
        3 if 5 * latency >= 4 * b => 2,
        3 if 2 * latency > b => 1,
        _ => 0,
    };
    let usual = hops * h + (q - hops) * b;
    usual.saturating_sub(ways.longest(b, h)) * share / 2
}

/// With L below b and ways of few hops, ports decide: a block more than the hops and waits, less the
/// longer L is. Read off simulations of N = 17 .. 257.
fn lost(costs: &Costs, q: u128, k: u128, hops: u128) -> u128 {
    let Costs { busy: b, latency, .. } = *costs;
    let applies = q >= 5 && hops + 1 < q && k >= 4 && latency < b;
    if applies { b - 7 * latency / 10 } else { 0 }
}

fn drift(costs: &Costs, q: u128, k: u128) -> u128 {
    let Costs { busy: b, transfer: t, latency, .. } = *costs;
    if b == 0 || k <= q {
        return 0;
    }
    // In hundredths: L / b, and tau, both bounded.
    let hops = (100 * latency / b).clamp(12, 1 << 30);
    let tau = (43 * q * q + 40 * q * hops / 100) * 100 / hops.min(100);
    let y = 100 * (k - q);
    let numerator = 2 * y * tau + y * y;
    let denominator = 2 * tau * tau + numerator;
    let share = 1000 * t / b;
    let most = q * q * b / 4 * share / 1000 * share / 1000;
    most * numerator / denominator
}

impl Ways {
    /// The ways to `n` ranks; in more than 2^12 the waits are those of the formula above.
    pub(in crate::model) fn new(n: u32) -> Self {
        let counts = ranks_by_hops(n);
        let hops = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let q = ceil_log2(n) as usize;
        let waits = std::array::from_fn(|x| match x {
            0 => -1,
            x if x <= hops => (q - x) as i32,
            _ => -1,
        });
        let mut ways = Self { hops: hops as u32, waits };
        if (1..=12).contains(&q) {
            ways.count_waits(&Skips::new(n));
        }
        ways
    }

    /// H.
    pub(super) fn hops(&self) -> u128 {
        self.hops.into()
    }

    fn longest(&self, b: u128, h: u128) -> u128 {
        let times = (0..).zip(&self.waits).filter(|(_, waits)| **waits >= 0);
        times.map(|(hops, &waits)| hops * h + waits as u128 * b).max().unwrap_or(0)
    }

    /// A rank that got the block by skip j sends it by each skip i > j; but the last rank before
    /// s\[j+1\] not by skip j + 1 if s\[j+2\] is odd, since the root sends to there. So what counts is
    /// skip, number of ranks before s\[j+1\], hops: for each the most waits.
    fn count_waits(&mut self, skips: &Skips) {
        let (s, q) = (skips.as_slice(), skips.q());
        let odd = |j: usize| 2 * s[j] - s[j + 1];
        let far = q as u32 + 1;
        // From the root, which is before s[0], by the skips 0 to q - 1.
        let mut most = vec![vec![[-1_i32; MAX_Q + 1]; far as usize + 1]; q];
        self.waits = [-1; MAX_Q + 1];
        for i in 0..q {
            let before = (s[i] - s[0] - odd(i).min(s[i] - s[0])).min(far);
            most[i][before as usize][1] = most[i][before as usize][1].max(i as i32);
        }
        for j in 0..q {
            for before in 0..=far {
                let from = most[j][before as usize];
                let is_missing = before == 0 && j + 1 < q && odd(j + 1) == 1;
                for (hops, &waits) in from.iter().enumerate().filter(|(_, waits)| **waits >= 0) {
                    self.waits[hops] = self.waits[hops].max(waits);
                    for i in j + 1 + usize::from(is_missing)..q {
                        let waits = waits + (i - j - 1) as i32 - i32::from(is_missing);
                        let more = before + s[i] - s[j + 1];
                        let to = &mut most[i][more.saturating_sub(odd(i)).min(far) as usize];
                        to[hops + 1] = to[hops + 1].max(waits);
                    }
                }
            }
        }
    }
}

/// The number of ranks below N by the number of skips in their greedy sum, from 0.
///
/// The ranks below s\[j+1\] - e are those below s\[j\], and s\[j\] plus those below s\[j\] - e', where e' is e or
/// e + 1; so the counts of all e up to q + 1 for one j give those for the next.
pub(super) fn ranks_by_hops(n: u32) -> Vec<u128> {
    let skips = Skips::new(n);
    let (s, q) = (skips.as_slice(), skips.q());
    let most = q + 1;
    // Below s[0] = 1 there is rank 0, below 0 nobody.
    let mut below = vec![vec![0; q + 1]; most + 1];
    below[0][0] = 1;
    for j in 0..q {
        let next = |e: usize| {
            let end = s[j + 1].saturating_sub(e as u32);
            if end <= s[j] {
                return below[(s[j] - end) as usize].clone();
            }
            let mut counts = below[0].clone();
            let rest = (2 * s[j] - s[j + 1]) as usize + e;
            for (hops, &count) in below[rest.min(most)].iter().enumerate().take(q) {
                counts[hops + 1] += count;
            }
            counts
        };
        below = (0..=most).map(next).collect();
    }
    below.swap_remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_by_hops_equal_the_greedy_sums() {
        for n in (1..300).chain([511, 512, 513, 1000, 4097]) {
            let skips = Skips::new(n);
            let mut counts = vec![0; skips.q() + 1];
            for rank in 0..n {
                let (mut rest, mut hops) = (rank, 0);
                for &skip in skips.as_slice()[..skips.q()].iter().rev() {
                    if skip <= rest && rest > 0 {
                        rest -= skip;
                        hops += 1;
                    }
                }
                counts[hops] += 1;
            }
            assert_eq!(ranks_by_hops(n), counts, "N = {n}");
        }
    }
}
