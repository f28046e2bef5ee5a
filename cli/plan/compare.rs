//! Every algorithm's cost for one question, and which one is chosen.

use serde::Serialize;
use verbcast::Algorithm;
use verbcast::model::{self, Choice, Demand, Limit, Links, Task, Telephone};
use verbcast::schedule::{self, Shape};

use super::bound;
use super::question::{self, PlanError, PortModel, Question};

/// The radices that are tried for `knomial` where none was asked for, as in [`model::select_for`].
const RADICES: [u32; 8] = [3, 4, 5, 6, 8, 12, 16, 32];

/// What one algorithm costs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(serialize_with = "name")]
    pub(crate) algorithm: Algorithm,
    /// The radix of `knomial`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) radix: Option<u32>,
    /// The rounds of a paced run.
    pub(crate) rounds: u64,
    /// Blocks of the message, or of each rank's part.
    pub(crate) blocks: u32,
    pub(crate) block_bytes: u64,
    /// The receivers have to grant their buffers first.
    pub(crate) grants: bool,
    pub(crate) time_ns: f64,
    /// The time as a multiple of the lower bound.
    pub(crate) ratio: f64,
    pub(crate) chosen: bool,
}

fn name<S: serde::Serializer>(algorithm: &Algorithm, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(algorithm.name())
}

impl Row {
    /// The algorithm for people, `knomial` with its radix.
    pub(crate) fn name(&self) -> String {
        match self.radix {
            Some(radix) => format!("{} {radix}", self.algorithm),
            None => self.algorithm.to_string(),
        }
    }

    /// The shape of its schedule.
    ///
    /// # Errors
    /// None for a row that a comparison has made.
    pub(crate) fn shape(&self, question: &Question, blocks: u32) -> Result<Shape, PlanError> {
        let shape = question.shape(blocks)?;
        Ok(match self.radix {
            Some(radix) => shape.with_radix(radix)?,
            None => shape,
        })
    }
}

/// All algorithms, the fastest first.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) rows: Vec<Row>,
    /// No schedule of any algorithm takes less, in ns.
    pub(crate) bound_ns: f64,
    /// What takes most of the time of the chosen one, where the model says so.
    pub(crate) limit: Option<Limit>,
    /// Algorithms that cannot be, most for want of links, with the links that a rank would need.
    pub(crate) left_out: Vec<(Algorithm, u64)>,
}

impl Comparison {
    /// Compares them.
    ///
    /// # Errors
    /// Numbers outside their limits.
    pub(crate) fn of(question: &Question) -> Result<Self, PlanError> {
        let bound_ns = bound::lower_bound_ns(question)?;
        let (mut rows, limit) = match (question.model, question.blocks) {
            (PortModel::Loggp, None) => selected(question)?,
            _ => (evaluated(question)?, None),
        };
        rows.sort_by(|a, b| a.time_ns.total_cmp(&b.time_ns));
        let chosen = match (question.algorithm, question.model, question.blocks) {
            (Some(algorithm), ..) => Some(algorithm),
            // What a job would take, which of nearly equal times need not be the least.
            (None, PortModel::Loggp, None) => {
                let demand = Demand { links: links(question), ..Demand::default() };
                Some(model::select_for(&question.profile, task(question), demand)?.algorithm)
            }
            (None, ..) => rows.first().map(|row| row.algorithm),
        };
        let chosen = rows.iter().position(|row| Some(row.algorithm) == chosen);
        let chosen = chosen.and_then(|place| rows.get_mut(place)).ok_or(PlanError::Nothing)?;
        chosen.chosen = true;
        for row in &mut rows {
            row.ratio = if bound_ns > 0.0 { row.time_ns / bound_ns } else { 1.0 };
        }
        let left_out = left_out(question, &rows)?;
        Ok(Self { rows, bound_ns, limit, left_out })
    }

    /// The one that is chosen, or asked for.
    pub(crate) fn chosen(&self) -> &Row {
        self.rows.iter().find(|row| row.chosen).unwrap_or(&self.rows[0])
    }
}

fn links(question: &Question) -> Links {
    if question.new_links { Links::None } else { Links::All }
}

/// What [`model::compare`] says, in its order of preference, and what limits its first.
fn selected(question: &Question) -> Result<(Vec<Row>, Option<Limit>), PlanError> {
    let task = task(question);
    let demand = Demand { algorithm: None, block_bytes: None, links: links(question) };
    let mut choices = model::compare(&question.profile, task, demand)?;
    if let Some(asked) = question.algorithm
        && choices.iter().all(|choice| choice.algorithm != asked)
    {
        // It would not be chosen, but whoever asks for it gets it.
        let demand = Demand { algorithm: Some(asked), ..demand };
        choices.extend(model::compare(&question.profile, task, demand)?);
    }
    let limit = choices.first().map(|choice| choice.why.limit);
    let row = |choice: &Choice| -> Result<Row, PlanError> {
        let Choice { algorithm, block_bytes, blocks, is_eager, predicted_ns, .. } = *choice;
        let radix = (algorithm == Algorithm::Knomial).then_some(choice.radix);
        if let (Some(_), Some(radix)) = (radix, question.radix) {
            // The model chooses the radix; with another one only the time changes.
            return at_blocks(question, algorithm, blocks, Some(radix));
        }
        let row = Row {
            algorithm,
            radix,
            rounds: 0,
            blocks,
            block_bytes: block_bytes.min(task.bytes),
            grants: !is_eager && question.ranks > 1,
            time_ns: predicted_ns as f64,
            ratio: 1.0,
            chosen: false,
        };
        let rounds = schedule::rounds(algorithm, row.shape(question, blocks)?);
        Ok(Row { rounds, ..row })
    };
    Ok((choices.iter().map(row).collect::<Result<_, _>>()?, limit))
}

fn left_out(question: &Question, rows: &[Row]) -> Result<Vec<(Algorithm, u64)>, PlanError> {
    let shape = question.shape(1)?;
    let is_missing = |algorithm: &Algorithm| {
        question::applies(*algorithm, shape).is_ok()
            && rows.iter().all(|row| row.algorithm != *algorithm)
    };
    let missing = Algorithm::of(question.operation).iter().copied().filter(is_missing);
    Ok(missing.map(|algorithm| (algorithm, model::links(algorithm, shape))).collect())
}

/// Each algorithm with the number of blocks that was asked for, or its best in the telephone model.
fn evaluated(question: &Question) -> Result<Vec<Row>, PlanError> {
    let mut rows = Vec::new();
    for &algorithm in Algorithm::of(question.operation) {
        if question::applies(algorithm, question.shape(1)?).is_err() {
            continue;
        }
        let radices = match (algorithm, question.radix) {
            (Algorithm::Knomial, None) => RADICES.map(Some).to_vec(),
            (Algorithm::Knomial, radix) => vec![radix],
            _ => vec![None],
        };
        let mut best: Option<Row> = None;
        for radix in radices {
            let blocks = match question.blocks {
                Some(blocks) => blocks,
                None => best_blocks(question, algorithm, radix)?,
            };
            let row = at_blocks(question, algorithm, blocks, radix)?;
            if best.as_ref().is_none_or(|best| row.time_ns < best.time_ns) {
                best = Some(row);
            }
        }
        rows.extend(best);
    }
    Ok(rows)
}

fn best_blocks(
    question: &Question,
    algorithm: Algorithm,
    radix: Option<u32>,
) -> Result<u32, PlanError> {
    let mut shape = question.shape(1)?;
    if let Some(radix) = radix {
        shape = shape.with_radix(radix)?;
    }
    Ok(telephone(question).best_blocks_of(algorithm, shape, question.part_bytes()))
}

/// What the algorithm costs with this number of blocks.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn at_blocks(
    question: &Question,
    algorithm: Algorithm,
    blocks: u32,
    radix: Option<u32>,
) -> Result<Row, PlanError> {
    let bytes = question.part_bytes();
    let block_bytes = bytes.div_ceil(blocks.into());
    let path = question.path();
    let mut row = Row {
        algorithm,
        radix,
        rounds: 0,
        blocks,
        block_bytes,
        grants: false,
        time_ns: 0.0,
        ratio: 1.0,
        chosen: false,
    };
    let shape = row.shape(question, blocks)?;
    row.rounds = schedule::rounds(algorithm, shape);
    let call = question.profile.call_time(algorithm, shape, bytes, block_bytes);
    row.grants = question.ranks > 1 && call.is_none_or(|call| !call.is_eager);
    row.time_ns = match question.model {
        PortModel::Telephone => telephone(question).time_ps(algorithm, shape, bytes) as f64 / 1e3,
        PortModel::Loggp => {
            let links = if question.new_links { model::links(algorithm, shape) } else { 0 };
            call.map_or(f64::INFINITY, |call| call.ns) + links as f64 * path.link_setup_ns as f64
        }
    };
    Ok(row)
}

fn task(question: &Question) -> Task {
    let Question { operation, ranks, ports, .. } = *question;
    Task { operation, ranks, bytes: question.part_bytes(), ports }
}

/// The telephone model of the profile: a round cannot be shorter than a latency.
pub(crate) fn telephone(question: &Question) -> Telephone {
    let path = question.path();
    Telephone { alpha_ns: path.latency_ns, bytes_per_second: path.bytes_per_second }
}
