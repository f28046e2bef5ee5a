//! Why the choice is what it is, in words.

use std::fmt::Write as _;

use verbcast::Algorithm;
use verbcast::model::Limit;
use verbcast::schedule::ceil_log2;

use super::compare::{Comparison, Row, at_blocks};
use super::question::{PlanError, PortModel, Question};
use super::sweep::Sweep;
use crate::files::bytes::display;
use crate::time::display_ns;

/// One sentence: the reason for the choice.
pub(crate) fn why(question: &Question, comparison: &Comparison) -> String {
    let chosen = comparison.chosen();
    let name = chosen.name();
    if question.ranks == 1 {
        return "one rank has everything already".into();
    }
    if question.algorithm.is_some() {
        return format!("{name} was asked for");
    }
    let other = comparison.rows.iter().find(|row| !row.chosen);
    let than = other.map_or_else(String::new, |other| {
        if other.time_ns < chosen.time_ns {
            let times = other.time_ns / chosen.time_ns;
            return format!("; {}, {times:.3} times as long, gains too little", other.name());
        }
        if other.time_ns == chosen.time_ns {
            return format!("; {} takes as long", other.name());
        }
        let times = other.time_ns / chosen.time_ns.max(f64::MIN_POSITIVE);
        format!("; the next, {}, takes {times:.2} times as long", other.name())
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
    if let Some(limit) = comparison.limit.filter(|_| question.algorithm.is_none()) {
        line(&mut text, &format!("limit        {}", limit_of(limit)));
    }
    if question.ranks > 1 {
        line(&mut text, &format!("blocks       {}", blocks(question, chosen)?));
        for (index, switch) in switch_points(question)?.into_iter().enumerate() {
            let head = if index == 0 { "sizes" } else { "" };
            line(&mut text, &format!("{head:<11}  {switch}"));
        }
        line(&mut text, &format!("rounds       {}", symbols(question)));
        for row in &comparison.rows {
            let formula = formula(question, row.algorithm);
            line(
                &mut text,
                &format!("{:<11}  {:<18}  {:>8}  {formula}", "", row.name(), row.rounds),
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
        (PortModel::Telephone, Some(_)) if !question.operation.has_parts() => {
            "the fewest rounds of k blocks, each alpha + M / (k beta)"
        }
        (PortModel::Telephone, _) => {
            "the larger of the fewest rounds, each alpha, and the bytes of one port / beta"
        }
        (PortModel::Loggp, _) => {
            "the larger of L + the bytes of one port / beta and the best tree's time without bytes"
        }
    };
    format!("{}: {what}", display_ns(comparison.bound_ns))
}

fn limit_of(limit: Limit) -> &'static str {
    match limit {
        Limit::Alone => "there is only one rank",
        Limit::Latency => "the hops one after another (L) take most of the time",
        Limit::Gap => "the start of each block (g, o) takes most of the time",
        Limit::Bandwidth => "the bytes (beta) take most of the time",
        Limit::Links => "making links takes most of the time",
    }
}

/// The chosen number of blocks beside half of it and twice as many.
fn blocks(question: &Question, chosen: &Row) -> Result<String, PlanError> {
    let Row { algorithm, blocks, block_bytes, .. } = *chosen;
    let mut text = format!("{blocks} of {}", display(block_bytes));
    let most = question.part_bytes().clamp(1, verbcast::schedule::MAX_BLOCKS.into());
    let others = [blocks / 2, blocks.saturating_mul(2)];
    let others = others.into_iter().filter(|other| (1..=most).contains(&u64::from(*other)));
    for (index, other) in others.enumerate() {
        let time = at_blocks(question, algorithm, other, chosen.radix)?.time_ns;
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
    let ports = match question.ports {
        1 => String::new(),
        ports => format!(", d = {ports} ports"),
    };
    format!("N = {n} ranks, q = ceil(log2 N) = {}, k blocks{ports}", ceil_log2(n))
}

/// The rounds in symbols, with d ports; the algorithm's file in `schedule` derives them.
fn formula(question: &Question, algorithm: Algorithm) -> String {
    let parts = question.operation.has_parts();
    let (one_port, striped) = match algorithm {
        Algorithm::Flat if parts => ("ceil((N - 1) / d)", false),
        Algorithm::Flat => ("ceil((N - 1) / d) k", false),
        Algorithm::Binomial if parts => ("q", true),
        Algorithm::Knomial if parts => {
            ("a turn for d of r - 1 children in each of m levels", false)
        }
        Algorithm::Knomial => ("k for d of r - 1 children in each of m levels", false),
        Algorithm::BidirectionalRing if question.ports == 1 => ("about N / 2 + 2 (k - 1)", false),
        Algorithm::BidirectionalRing => ("ceil((N - 1) / 2) + ceil(k / floor(d / 2)) - 1", false),
        Algorithm::Chain => ("(N - 1) k", true),
        Algorithm::PipelinedChain => ("N + k - 2", true),
        Algorithm::Binomial | Algorithm::PipelinedBinomial => ("q k", true),
        Algorithm::PipelinedBinary => ("2 (k - 1) + W, W the depth in rounds", true),
        Algorithm::TwoTree => ("k + W, W <= 2 q", true),
        Algorithm::PipelinedTree | Algorithm::Circulant => ("q + k - 1", true),
        Algorithm::ScatterAllgather => ("q + N - 1", true),
        Algorithm::Ring => ("N - 1", true),
        Algorithm::RecursiveDoubling | Algorithm::Bruck => ("q", true),
        _ => ("counted", false),
    };
    match (striped, question.ports) {
        (true, 2..) => one_port.replace('k', "ceil(k / d)"),
        (_, 1) => {
            one_port.replace("ceil((N - 1) / d)", "(N - 1)").replace("for d of", "for each of")
        }
        _ => one_port.into(),
    }
}
