//! Lower bounds: what no schedule, of whatever algorithm, can be faster than.

use verbcast::schedule::ceil_log2;

use super::question::{PortModel, Question};

const NS_PER_S: f64 = 1e9;

/// The bound in the question's model, in ns.
///
/// - telephone, k blocks: (q + k - 1)(alpha + M / (k beta)); blocks free: max(q alpha, M / beta).
/// - loggp: max(P, L + M / beta), P being the time in which a message without length reaches N ranks
///   in the postal model ([`postal_ns`]), and the other the time in which one port takes M bytes.
pub(crate) fn lower_bound_ns(question: &Question) -> f64 {
    let Question { ranks, bytes, ref profile, .. } = *question;
    if ranks <= 1 {
        return 0.0;
    }
    let q = f64::from(ceil_log2(ranks));
    let rate = profile.bytes_per_second.max(1) as f64;
    let latency = profile.latency_ns as f64;
    let transfer = bytes as f64 * NS_PER_S / rate;
    match (question.model, question.blocks) {
        (PortModel::Telephone, Some(blocks)) => {
            let blocks = f64::from(blocks);
            (q + blocks - 1.0) * (latency + transfer / blocks)
        }
        (PortModel::Telephone, None) => (q * latency).max(transfer),
        (PortModel::Loggp, _) => {
            let postal = postal_ns(ranks, profile.latency_ns, profile.gap_ns);
            (postal as f64).max(latency + transfer)
        }
    }
}

/// The least t at which `ranks` ranks can know a message without length, if each knowing rank may tell
/// a further one every `gap_ns`, who knows it `latency_ns` later.
///
/// Source: A. Bar-Noy, S. Kipnis, "Designing broadcasting algorithms in the postal model for
/// message-passing systems", Mathematical Systems Theory 27, 1994, DOI 10.1007/BF01184933. A rank that
/// the message reaches over i hops, the sum of whose turns is j, knows it at i L + j g. There are
/// C(i + j - 1, j) such ranks; so up to t there are 1 + sum over i of C(i + J, i), with
/// J = floor((t - i L) / g).
fn postal_ns(ranks: u32, latency_ns: u64, gap_ns: u64) -> u64 {
    let mut least = 0;
    // After q latencies every rank of a binomial tree knows it, if g <= L; otherwise gaps count.
    let mut most = u64::from(ceil_log2(ranks)).saturating_mul(latency_ns.max(gap_ns).max(1));
    while least < most {
        let middle = least + (most - least) / 2;
        if reached(middle, latency_ns, gap_ns) >= u128::from(ranks) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    least
}

/// How many ranks can know it at `time_ns`, or a number above 2^32.
fn reached(time_ns: u64, latency_ns: u64, gap_ns: u64) -> u128 {
    const ENOUGH: u128 = 1 << 32;
    let mut sum = 1_u128;
    for hops in 1..=32_u64 {
        let Some(left) = time_ns.checked_sub(hops.saturating_mul(latency_ns)) else { break };
        let Some(turns) = left.checked_div(gap_ns) else { return ENOUGH };
        let mut count = 1_u128;
        for factor in 1..=u128::from(hops) {
            // Exact: after each step it is C(turns + factor, factor).
            count = count * (u128::from(turns) + factor) / factor;
            if count >= ENOUGH {
                return ENOUGH;
            }
        }
        sum += count;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F(t) = F(t - g) + F(t - L), the recurrence that the closed form solves, with F = 1 before L.
    fn recurrence(ranks: u64, latency: u64, gap: u64) -> u64 {
        let mut reached: Vec<u64> = Vec::new();
        for t in 0_u64.. {
            let before = |by: u64| t.checked_sub(by).map(|t| reached[t as usize]);
            let now = match before(latency) {
                None => 1,
                Some(told) => before(gap).unwrap_or(1).max(1) + told,
            };
            if now >= ranks {
                return t;
            }
            reached.push(now);
        }
        unreachable!("the number grows")
    }

    #[test]
    fn the_postal_time_solves_the_recurrence() {
        for (latency, gap) in [(15, 2), (5, 5), (7, 3), (3, 1), (1, 1)] {
            for ranks in 2..200 {
                assert_eq!(
                    postal_ns(ranks, latency, gap),
                    recurrence(ranks.into(), latency, gap),
                    "L {latency}, g {gap}, {ranks} ranks"
                );
            }
        }
        assert_eq!(postal_ns(1 << 30, 1500, 0), 1500);
        assert_eq!(postal_ns(1 << 30, 0, 0), 0);
        assert_eq!(postal_ns(2, u64::MAX, u64::MAX), u64::MAX);
    }
}
