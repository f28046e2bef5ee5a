//! Why the choice is what it is, in words.

use std::fmt::Write as _;

use verbcast::Algorithm;
use verbcast::schedule::ceil_log2;

use super::compare::{Comparison, Row, at_blocks};
use super::question::{PlanError, PortModel, Question};
use super::sweep::Sweep;
use crate::broadcast::bytes::display;
use crate::time::display_ns;

/// One sentence: the reason for the choice.
pub(crate) fn why(question: &Question, comparison: &Comparison) -> String {
    let chosen = comparison.chosen();
    let name = chosen.algorithm;
    if question.ranks == 1 {
        return "one rank has everything already".into();
    }
    if question.algorithm.is_some() {
        return format!("{name} was asked for");
    }
    let other = comparison.rows.iter().find(|row| !row.chosen);
    let than = other.map_or_else(String::new, |other| {
        if other.time_ns <= chosen.time_ns {
            return format!("; {} takes as long and needs more links", other.algorithm);
        }
        let times = other.time_ns / chosen.time_ns.max(f64::MIN_POSITIVE);
        format!("; the next, {}, takes {times:.2} times as long", other.algorithm)
    });
    format!(
        "{name} takes {}, {:.2} times the lower bound{than}",
        display_ns(chosen.time_ns),
        chosen.ratio
    )
}

/// The whole explanation: bound, blocks, switch points, and each algorithm's rounds.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn explain(question: &Question, comparison: &Comparison) -> Result<String, PlanError> {
    let chosen = comparison.chosen();
    let mut text = String::new();
    line(&mut text, &format!("* choice     {}", why(question, comparison)));
    line(&mut text, &format!("lower bound  {}", bound(question, comparison)));
    if question.ranks > 1 {
        line(&mut text, &format!("blocks       {}", blocks(question, chosen)?));
        for (index, switch) in switch_points(question)?.into_iter().enumerate() {
            let head = if index == 0 { "sizes" } else { "" };
            line(&mut text, &format!("{head:<11}  {switch}"));
        }
        line(&mut text, &format!("rounds       {}", symbols(question)));
        for row in &comparison.rows {
            let formula = formula(row.algorithm);
            line(
                &mut text,
                &format!("{:<11}  {:<18}  {formula} = {}", "", row.algorithm, row.rounds),
            );
        }
    }
    Ok(text)
}

fn line(text: &mut String, content: &str) {
    // Writing to a string cannot fail.
    let _written = writeln!(text, "{content}");
}

fn bound(question: &Question, comparison: &Comparison) -> String {
    let what = match (question.model, question.blocks) {
        (PortModel::Telephone, Some(_)) => "(q + k - 1) rounds of alpha + M / (k beta)",
        (PortModel::Telephone, None) => "the larger of q alpha and M / beta",
        (PortModel::Loggp, _) => {
            "the larger of L + M / beta and the time of the best tree for an empty message"
        }
    };
    format!("{}: {what}", display_ns(comparison.bound_ns))
}

/// The chosen number of blocks beside half of it and twice as many.
fn blocks(question: &Question, chosen: &Row) -> Result<String, PlanError> {
    let Row { algorithm, blocks, block_bytes, .. } = *chosen;
    let mut text = format!("{blocks} of {}", display(block_bytes));
    let most = question.bytes.clamp(1, verbcast::schedule::MAX_BLOCKS.into());
    let others = [blocks / 2, blocks.saturating_mul(2)];
    let others = others.into_iter().filter(|other| (1..=most).contains(&u64::from(*other)));
    for (index, other) in others.enumerate() {
        let time = at_blocks(question, algorithm, other)?.time_ns;
        let head = if index == 0 { ": " } else { ", " };
        let _written = write!(text, "{head}with {other} it would take {}", display_ns(time));
    }
    Ok(text)
}

fn switch_points(question: &Question) -> Result<Vec<String>, PlanError> {
    if question.algorithm.is_some() {
        return Ok(Vec::new());
    }
    let changes = Sweep::of(question)?.changes;
    let text = changes.iter().enumerate().map(|(index, change)| match index {
        0 => format!("up to {:<10}  {}", until(&changes, 0), change.algorithm),
        _ => format!("from {:<11}  {}", display(change.bytes), change.algorithm),
    });
    Ok(text.collect())
}

fn until(changes: &[super::sweep::Change], index: usize) -> String {
    changes.get(index + 1).map_or_else(|| "any size".into(), |next| display(next.bytes - 1))
}

fn symbols(question: &Question) -> String {
    let n = question.ranks;
    format!("N = {n} ranks, q = ceil(log2 N) = {}, k blocks", ceil_log2(n))
}

fn formula(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Flat | Algorithm::Chain => "(N - 1) k",
        Algorithm::Binomial | Algorithm::PipelinedBinomial => "q k",
        Algorithm::Knomial => "k turns of the root",
        Algorithm::PipelinedChain => "N + k - 2",
        Algorithm::PipelinedBinary => "2 (k - 1) + longest way",
        Algorithm::TwoTree => "k + longest way",
        Algorithm::PipelinedTree | Algorithm::Circulant => "q + k - 1",
        Algorithm::ScatterAllgather => "q + N - 1",
        Algorithm::BidirectionalRing => "2 (k - 1) + ceil(N / 2)",
        Algorithm::Ring => "N - 1",
        Algorithm::RecursiveDoubling | Algorithm::Bruck => "q",
        _ => "counted",
    }
}
