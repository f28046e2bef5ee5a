//! Every algorithm's cost for one question, and which one is chosen.

use serde::Serialize;
use verbcast::Algorithm;
use verbcast::model::{self, Demand, Telephone};
use verbcast::schedule::{self, Operation};

use super::bound;
use super::question::{self, PlanError, PortModel, Question};

/// What one algorithm costs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(serialize_with = "name")]
    pub(crate) algorithm: Algorithm,
    /// The rounds of a paced run.
    pub(crate) rounds: u64,
    pub(crate) blocks: u32,
    pub(crate) block_bytes: u64,
    pub(crate) time_ns: f64,
    /// The time as a multiple of the lower bound.
    pub(crate) ratio: f64,
    pub(crate) chosen: bool,
}

fn name<S: serde::Serializer>(algorithm: &Algorithm, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(algorithm.name())
}

/// All algorithms, the fastest first.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) rows: Vec<Row>,
    /// No schedule of any algorithm takes less, in ns.
    pub(crate) bound_ns: f64,
}

impl Comparison {
    /// Compares them.
    ///
    /// # Errors
    /// Numbers outside their limits.
    pub(crate) fn of(question: &Question) -> Result<Self, PlanError> {
        let bound_ns = bound::lower_bound_ns(question);
        let mut rows = Vec::new();
        for &algorithm in Algorithm::of(question.operation) {
            if question::applies(algorithm, question.shape(1)?).is_ok() {
                rows.push(row(question, algorithm, bound_ns)?);
            }
        }
        let chosen = match question.algorithm {
            Some(algorithm) => algorithm,
            None => choice(question, &rows)?,
        };
        rows.sort_by(|a, b| a.time_ns.total_cmp(&b.time_ns));
        for row in &mut rows {
            row.chosen = row.algorithm == chosen;
        }
        Ok(Self { rows, bound_ns })
    }

    /// The one that is chosen, or asked for.
    pub(crate) fn chosen(&self) -> &Row {
        self.rows.iter().find(|row| row.chosen).unwrap_or(&self.rows[0])
    }
}

/// What the algorithm costs with another number of blocks.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn at_blocks(
    question: &Question,
    algorithm: Algorithm,
    blocks: u32,
) -> Result<Row, PlanError> {
    let question = Question { blocks: Some(blocks), ..question.clone() };
    row(&question, algorithm, bound::lower_bound_ns(&question))
}

fn row(question: &Question, algorithm: Algorithm, bound_ns: f64) -> Result<Row, PlanError> {
    let (blocks, block_bytes, time_ns) = cost(question, algorithm)?;
    Ok(Row {
        algorithm,
        rounds: schedule::rounds(algorithm, question.shape(blocks)?),
        blocks,
        block_bytes,
        time_ns,
        ratio: if bound_ns > 0.0 { time_ns / bound_ns } else { 1.0 },
        chosen: false,
    })
}

/// Blocks, bytes of a block and time in ns.
fn cost(question: &Question, algorithm: Algorithm) -> Result<(u32, u64, f64), PlanError> {
    let Question { operation, bytes, ports, .. } = *question;
    if operation != Operation::Broadcast {
        return Err(PlanError::NoTimes { what: format!("{operation} operations") });
    }
    if question.model == PortModel::Loggp && ports > 1 {
        let what = format!("a broadcast with {ports} ports in the loggp model");
        return Err(PlanError::NoTimes { what });
    }
    match question.model {
        PortModel::Telephone => {
            let telephone = telephone(question);
            let blocks = question
                .blocks
                .unwrap_or_else(|| telephone.best_blocks(algorithm, question.ranks, bytes));
            let time_ps = telephone.time_ps(algorithm, question.shape(blocks)?, bytes);
            Ok((blocks, bytes.div_ceil(blocks.into()), time_ps as f64 / 1e3))
        }
        PortModel::Loggp => {
            let block_bytes = question.blocks.map(|blocks| bytes.div_ceil(blocks.into()).max(1));
            let demand = Demand { algorithm: Some(algorithm), block_bytes };
            let choice = model::select(question.ranks, bytes, &question.profile, demand)?;
            let blocks = question.blocks.unwrap_or(choice.blocks);
            Ok((blocks, choice.block_bytes.min(bytes), choice.predicted_ns as f64))
        }
    }
}

/// The telephone model of the profile: a round cannot be shorter than a latency.
pub(crate) fn telephone(question: &Question) -> Telephone {
    Telephone {
        alpha_ns: question.profile.latency_ns,
        bytes_per_second: question.profile.bytes_per_second,
    }
}

fn choice(question: &Question, rows: &[Row]) -> Result<Algorithm, PlanError> {
    if question.model == PortModel::Loggp && question.blocks.is_none() {
        let demand = Demand::default();
        let choice = model::select(question.ranks, question.bytes, &question.profile, demand)?;
        return Ok(choice.algorithm);
    }
    let least = rows.iter().min_by(|a, b| a.time_ns.total_cmp(&b.time_ns));
    Ok(least.map_or(Algorithm::PipelinedTree, |row| row.algorithm))
}
