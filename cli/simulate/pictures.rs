//! The picture of a simulated run: what every port does when.

use verbcast::schedule::{Direction, Operation};
use verbcast::simulate::{Blocks, SpanKind};

use super::result::{Run, Runs, run};
use super::{Args, Error};
use crate::files::bytes::display;
use crate::picture;
use crate::picture::curve::Curve;
use crate::picture::timeline::{Axis, BOXES_MAX, RANKS_MAX, Span, Timeline};
use crate::plan;
use crate::plan::compare::Comparison;
use crate::plan::pictures::blocks_shown;
use crate::plan::question::{Question, counted};

/// A dot at every so many powers of two.
const SIZES_STEP: usize = 3;

/// Blocks over all ranks and all dots, which bounds the time to seconds: dots beyond are left out.
const TRANSFERS_MOST: u64 = 4 << 20;

/// The document, for the first of the runs.
///
/// # Errors
/// Those of a simulation.
pub(super) fn document(question: &Question, runs: &Runs, args: &Args) -> Result<String, Error> {
    let Some(Run { row, .. }) = runs.all.first() else {
        return Ok(picture::document("nothing was simulated", None, None));
    };
    let count = question.blocks.unwrap_or(row.blocks.min(blocks_shown(question)));
    let blocks = Blocks::equal(question.part_bytes(), count)?;
    let outcome = run(question, args, row, blocks, true)?;
    let shown = question.ranks.min(RANKS_MAX);
    let in_picture = outcome.spans.iter().filter(|span| span.rank < shown);
    let spans = in_picture.take(BOXES_MAX).map(|span| Span {
        rank: span.rank,
        peer: span.peer,
        block: span.block,
        direction: match span.kind {
            SpanKind::Recv => Direction::Recv,
            _ => Direction::Send,
        },
        start: span.start_ps as f64 / 1e3,
        end: span.end_ps as f64 / 1e3,
        port: span.port,
        lost: span.kind == SpanKind::Lost,
    });
    let boxes: Vec<Span> = spans.collect();
    let end = boxes.iter().map(|span| span.end).fold(outcome.time_ps as f64 / 1e3, f64::max);
    let cut = if boxes.len() == BOXES_MAX { " Only the first part is drawn." } else { "" };
    let timeline = Timeline {
        title: format!(
            "{}: {}, {} in {}, simulated",
            row.algorithm,
            question.what(),
            display(question.bytes),
            counted(count, "block")
        ),
        subtitle: format!("{}; seed {}.{cut}", question.profile_line(), args.seed),
        ranks: shown,
        root: (question.operation != Operation::Allgather).then_some(question.root),
        blocks: row.shape(question, count)?.total_blocks(),
        end,
        axis: Axis::Time,
        boxes,
        dead: args.dead.iter().map(|&(rank, since_ps)| (rank, since_ps as f64 / 1e3)).collect(),
    };
    let title = format!("verbcast simulate: {}", question.what());
    Ok(picture::document(&title, Some(&timeline), Some(&curve(question, args)?)))
}

/// The model's curves, and dots for runs of this simulation at some of the sizes.
fn curve(question: &Question, args: &Args) -> Result<Curve, Error> {
    let profile = question.profile_line();
    let mut curve = plan::pictures::curve(question, &profile, " Dots: simulated.")?;
    let mut left = TRANSFERS_MOST;
    for &bytes in curve.sizes.iter().filter(|bytes| bytes.is_power_of_two()).step_by(SIZES_STEP) {
        let question = question.with_bytes(bytes);
        for row in Comparison::of(&question)?.rows {
            let transfers = u64::from(question.ranks) * u64::from(row.blocks);
            let line = curve.lines.iter().position(|(name, _)| *name == row.algorithm.name());
            let (Some(line), Some(rest)) = (line, left.checked_sub(transfers)) else { continue };
            left = rest;
            let blocks = Blocks::equal(question.part_bytes(), row.blocks)?;
            let outcome = run(&question, args, &row, blocks, false)?;
            if outcome.is_complete() {
                curve.dots.push((line, bytes, outcome.time_ps as f64 / 1e3));
            }
        }
    }
    Ok(curve)
}
