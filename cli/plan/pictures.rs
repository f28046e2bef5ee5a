//! The picture of a plan: the timeline of its schedule in rounds, and the curve of time against size.

use verbcast::Algorithm;
use verbcast::schedule;

use super::compare::{Comparison, Row};
use super::question::{PlanError, Question};
use super::schedule::first_steps;
use super::sweep::Sweep;
use crate::broadcast::bytes::display;
use crate::picture::curve::Curve;
use crate::picture::timeline::{Axis, BOXES_MAX, RANKS_MAX, Span, Timeline};
use crate::picture::{self};

/// Blocks of the timeline where their number was not asked for: more are hard to follow.
const BLOCKS_SHOWN: u32 = 16;

/// The document.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn document(
    question: &Question,
    comparison: &Comparison,
    profile: &str,
) -> Result<String, PlanError> {
    let title = format!("verbcast plan: broadcast to {} ranks", question.ranks);
    let timeline = timeline(question, comparison.chosen())?;
    let curve = curve(question, profile, "")?;
    Ok(picture::document(&title, timeline.as_ref(), Some(&curve)))
}

/// `None` if it would have too many boxes.
fn timeline(question: &Question, chosen: &Row) -> Result<Option<Timeline>, PlanError> {
    let Row { algorithm, .. } = *chosen;
    let blocks = question.blocks.unwrap_or(chosen.blocks.min(BLOCKS_SHOWN));
    let shape = question.shape(blocks)?;
    let Some(steps) = first_steps(algorithm, shape, RANKS_MAX, BOXES_MAX)? else {
        return Ok(None);
    };
    let rounds = schedule::rounds(algorithm, shape);
    let boxes = steps.into_iter().map(|(rank, step)| Span {
        rank,
        peer: step.peer,
        block: step.block,
        direction: step.direction,
        start: f64::from(step.round),
        end: f64::from(step.round) + 1.0,
        port: step.port,
        lost: false,
    });
    Ok(Some(Timeline {
        title: format!(
            "{algorithm}: {} from rank {} to {} ranks in {rounds} rounds",
            counted(blocks, "block"),
            question.root,
            question.ranks
        ),
        subtitle: subtitle(question, algorithm, chosen, blocks),
        ranks: question.ranks.min(RANKS_MAX),
        root: Some(question.root),
        blocks,
        end: rounds as f64,
        axis: Axis::Rounds,
        boxes: boxes.collect(),
        dead: Vec::new(),
    }))
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

/// `1 block`, `2 blocks`.
pub(crate) fn counted(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The curve of time against size; `more` is said below its title.
///
/// # Errors
/// Numbers outside their limits.
pub(crate) fn curve(question: &Question, profile: &str, more: &str) -> Result<Curve, PlanError> {
    let sweep = Sweep::of(question)?;
    Ok(Curve {
        title: format!("Time against size: broadcast to {} ranks", question.ranks),
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
