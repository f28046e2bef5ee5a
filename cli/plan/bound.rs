//! Lower bounds: what no schedule, of whatever algorithm, can be faster than.

use verbcast::Algorithm;
use verbcast::model::least_rounds;
use verbcast::schedule::{Operation, Shape, ceil_log2};

use super::compare;
use super::question::{PlanError, PortModel, Question};

const NS_PER_S: f64 = 1e9;

/// The bound in the question's model, in ns. B is what some port must carry: M / d of a broadcast, else
/// (N - 1) / N of that.
///
/// - telephone: [`Telephone::lower_bound_ps`](verbcast::model::Telephone::lower_bound_ps), or, for a
///   broadcast of k blocks, [`least_rounds`] of alpha + M / (k beta);
/// - loggp: max(P, L + o + B / beta), P being the time in which a message without length reaches N ranks
///   in the postal model ([`postal_ns`]). Where all ranks send, nobody hears of all others sooner.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn lower_bound_ns(question: &Question) -> Result<f64, PlanError> {
    let Question { operation, ranks, ports, .. } = *question;
    let bytes = question.part_bytes();
    if ranks <= 1 {
        return Ok(0.0);
    }
    let path = question.path();
    if question.model == PortModel::Telephone {
        let telephone = compare::telephone(question);
        let bound_ps = match question.blocks {
            Some(blocks) if operation == Operation::Broadcast => {
                let shape = question.shape(blocks)?;
                let one_round = Shape::new(2, 0, 1)?;
                let block_bytes = bytes.div_ceil(blocks.into());
                let round_ps = telephone.time_ps(Algorithm::Flat, one_round, block_bytes);
                least_rounds(shape) as f64 * round_ps as f64
            }
            _ => telephone.lower_bound_ps(question.shape(1)?, bytes) as f64,
        };
        return Ok(bound_ps / 1e3);
    }
    // What is pulled from a root does not pass one port.
    let is_spread = path.pulled && operation == Operation::Scatter;
    let is_of_one = !operation.has_parts() || is_spread;
    let parts = if is_of_one { 1.0 } else { f64::from(ranks - 1) };
    let rate = path.bytes_per_second.max(1) as f64 * f64::from(ports.max(1));
    let transfer = bytes as f64 * parts * NS_PER_S / rate;
    let latency = path.latency_ns.saturating_add(path.overhead_ns);
    let gap = if path.pulled { path.gap_ns } else { path.gap_ns.max(path.overhead_ns) };
    let postal = postal_ns(ranks, ports, latency, gap);
    Ok((postal as f64).max(latency as f64 + transfer))
}

/// The least t at which `ranks` ranks can know a message without length, if each knowing rank may tell
/// `ports` further ones every `gap_ns`, who know it `latency_ns` later.
///
/// Source: A. Bar-Noy, S. Kipnis, "Designing broadcasting algorithms in the postal model for
/// message-passing systems", Mathematical Systems Theory 27, 1994, DOI 10.1007/BF01184933. A rank that
/// the message reaches over i hops, the sum of whose turns is j, knows it at i L + j g. There are
/// d^i C(i + j - 1, j) such ranks; so up to t there are 1 + sum over i of d^i C(i + J, i), with
/// J = floor((t - i L) / g).
fn postal_ns(ranks: u32, ports: u16, latency_ns: u64, gap_ns: u64) -> u64 {
    let mut least = 0;
    // After q latencies every rank of a binomial tree knows it, if g <= L; otherwise gaps count.
    let mut most = u64::from(ceil_log2(ranks)).saturating_mul(latency_ns.max(gap_ns).max(1));
    while least < most {
        let middle = least + (most - least) / 2;
        if reached(middle, ports, latency_ns, gap_ns) >= u128::from(ranks) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    least
}

/// How many ranks can know it at `time_ns`, or a number above 2^32.
fn reached(time_ns: u64, ports: u16, latency_ns: u64, gap_ns: u64) -> u128 {
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
        let ways = u128::from(ports).saturating_pow(hops as u32);
        sum = sum.saturating_add(count.saturating_mul(ways));
        if sum >= ENOUGH {
            return ENOUGH;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F(t) = F(t - g) + d F(t - L), the recurrence that the closed form solves, with F = 1 before L.
    fn recurrence(ranks: u64, ports: u64, latency: u64, gap: u64) -> u64 {
        let mut reached: Vec<u64> = Vec::new();
        for t in 0_u64.. {
            let before = |by: u64| t.checked_sub(by).map(|t| reached[t as usize]);
            let now = match before(latency) {
                None => 1,
                Some(told) => before(gap).unwrap_or(1).max(1) + ports * told,
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
            for (ranks, ports) in (2..200).flat_map(|ranks| [(ranks, 1), (ranks, 2), (ranks, 4)]) {
                assert_eq!(
                    postal_ns(ranks, ports, latency, gap),
                    recurrence(ranks.into(), ports.into(), latency, gap),
                    "L {latency}, g {gap}, {ranks} ranks, {ports} ports"
                );
            }
        }
        assert_eq!(postal_ns(1 << 30, 1, 1500, 0), 1500);
        assert_eq!(postal_ns(1 << 30, 1, 0, 0), 0);
        assert_eq!(postal_ns(2, 1, u64::MAX, u64::MAX), u64::MAX);
    }
}
