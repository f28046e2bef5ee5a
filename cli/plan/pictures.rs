//! The picture of a plan: the timeline of its schedule in rounds, and the curve of time against size.

use verbcast::Algorithm;
use verbcast::schedule::{self, Operation, Step};

use super::compare::{Comparison, Row};
use super::question::{PlanError, Question, counted};
use super::schedule::first_steps;
use super::sweep::Sweep;
use crate::files::bytes::display;
use crate::picture::curve::Curve;
use crate::picture::timeline::{Axis, BOXES_MAX, RANKS_MAX, Span, Timeline};
use crate::picture::{self};

/// Blocks of the timeline where their number was not asked for: more are hard to follow.
const BLOCKS_SHOWN: u32 = 16;

/// No schedule is generated for a timeline where a rank might have more steps than this.
const STEPS_MOST: u64 = 1 << 22;

/// The document.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn document(
    question: &Question,
    comparison: &Comparison,
    profile: &str,
) -> Result<String, PlanError> {
    let title = format!("verbcast plan: {}", question.what());
    let timeline = timeline(question, comparison.chosen())?;
    if timeline.is_none() {
        eprintln!("verbcast plan: the timeline would have too many boxes: only the curve is drawn");
    }
    let curve = curve(question, profile, "")?;
    Ok(picture::document(&title, timeline.as_ref(), Some(&curve)))
}

/// The blocks of a timeline at most, where nobody asked for a number of them.
pub(crate) fn blocks_shown(question: &Question) -> u32 {
    if question.operation.has_parts() {
        (BLOCKS_SHOWN / question.ranks).max(1)
    } else {
        BLOCKS_SHOWN
    }
}

/// `None` if it would have too many boxes.
fn timeline(question: &Question, chosen: &Row) -> Result<Option<Timeline>, PlanError> {
    let Row { algorithm, .. } = *chosen;
    let blocks = question.blocks.unwrap_or(chosen.blocks.min(blocks_shown(question)));
    let shape = chosen.shape(question, blocks)?;
    // One rank alone, such as the root of a flat tree, may have this many steps.
    if u64::from(question.ranks) * u64::from(blocks) > STEPS_MOST {
        return Ok(None);
    }
    let Some(steps) = first_steps(algorithm, shape, RANKS_MAX, BOXES_MAX)? else {
        return Ok(None);
    };
    let rounds = schedule::rounds(algorithm, shape);
    let boxes = steps.chunk_by(same_message).flat_map(message_boxes).collect();
    Ok(Some(Timeline {
        title: format!(
            "{algorithm}: {}, {} in {rounds} rounds",
            question.what(),
            blocks_of(question, blocks)
        ),
        subtitle: subtitle(question, algorithm, chosen, blocks),
        ranks: question.ranks.min(RANKS_MAX),
        root: (question.operation != Operation::Allgather).then_some(question.root),
        blocks: shape.total_blocks(),
        end: rounds as f64,
        axis: Axis::Rounds,
        boxes,
        dead: Vec::new(),
    }))
}

/// Whether two adjacent steps are of one message: blocks that travel together.
fn same_message(a: &(u32, Step), b: &(u32, Step)) -> bool {
    let key =
        |(rank, step): &(u32, Step)| (*rank, step.round, step.direction, step.peer, step.port);
    key(a) == key(b)
}

/// Boxes side by side within one round, a box for each block of the message.
fn message_boxes(message: &[(u32, Step)]) -> impl Iterator<Item = Span> {
    let width = 1.0 / message.len() as f64;
    message.iter().enumerate().map(move |(index, &(rank, step))| {
        let start = f64::from(step.round) + index as f64 * width;
        Span {
            rank,
            peer: step.peer,
            block: step.block,
            direction: step.direction,
            start,
            end: start + width,
            port: step.port,
            lost: false,
        }
    })
}

fn blocks_of(question: &Question, blocks: u32) -> String {
    let each = if question.operation.has_parts() { " of each rank" } else { "" };
    format!("{}{each}", counted(blocks, "block"))
}

fn subtitle(question: &Question, algorithm: Algorithm, chosen: &Row, blocks: u32) -> String {
    let mut text = String::from("A box is one block in one round, with the other rank's number.");
    if blocks != chosen.blocks {
        text += &format!(
            " Drawn with {}; for {} {algorithm} is best with {} of {}.",
            counted(blocks, "block"),
            display(question.bytes),
            counted(chosen.blocks, "block"),
            display(chosen.block_bytes)
        );
    }
    if question.ranks > RANKS_MAX {
        text += &format!(" Ranks 0 to {} of {}.", RANKS_MAX - 1, question.ranks);
    }
    text
}

/// The curve of time against size; `more` is said below its title.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn curve(question: &Question, profile: &str, more: &str) -> Result<Curve, PlanError> {
    let sweep = Sweep::of(question)?;
    Ok(Curve {
        title: format!("Time against size: {}", question.what()),
        subtitle: format!(
            "{profile}. Each algorithm with its best number of blocks; the band names the one that \
             is chosen.{more}"
        ),
        bound: sweep.comparisons.iter().map(|at| at.bound_ns).collect(),
        lines: sweep.lines(),
        chosen: sweep.switches(),
        sizes: sweep.sizes,
        asked: question.bytes,
        dots: Vec::new(),
    })
}
