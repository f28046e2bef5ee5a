//! The steps of a schedule as JSON lines, one rank after the other.

use std::io::{self, Write};

use verbcast::Algorithm;
use verbcast::schedule::{Direction, RankSchedule, ScheduleError, Shape, Step};

use super::question::PlanError;

/// Prints the steps of every rank, in order of ranks, each rank's in its own order.
///
/// Only one rank's steps are in memory at a time.
///
/// # Errors
/// The writer's, a closed pipe among them.
pub(crate) fn print(
    to: &mut impl Write,
    algorithm: Algorithm,
    shape: Shape,
    with_ports: bool,
) -> Result<(), PlanError> {
    let mut schedule = RankSchedule::default();
    for rank in 0..shape.ranks() {
        schedule.fill(algorithm, shape, rank)?;
        for step in schedule.steps() {
            line(to, rank, step, with_ports)?;
        }
    }
    Ok(())
}

fn line(to: &mut impl Write, rank: u32, step: &Step, with_ports: bool) -> io::Result<()> {
    let Step { round, direction, peer, block, port } = step;
    let op = match direction {
        Direction::Send => "send",
        Direction::Recv => "recv",
    };
    // By hand: numbers and these words need no escaping, and there may be millions of lines.
    write!(
        to,
        "{{\"rank\":{rank},\"round\":{round},\"op\":\"{op}\",\"peer\":{peer},\"block\":{block}"
    )?;
    if with_ports {
        write!(to, ",\"port\":{port}")?;
    }
    to.write_all(b"}\n")
}

/// The steps of the first `ranks` ranks, up to `most` of them; `None` if there are more.
///
/// # Errors
/// None if the shape is within its limits.
pub(crate) fn first_steps(
    algorithm: Algorithm,
    shape: Shape,
    ranks: u32,
    most: usize,
) -> Result<Option<Vec<(u32, Step)>>, ScheduleError> {
    let mut steps = Vec::new();
    let mut schedule = RankSchedule::default();
    for rank in 0..ranks.min(shape.ranks()) {
        schedule.fill(algorithm, shape, rank)?;
        if steps.len() + schedule.steps().len() > most {
            return Ok(None);
        }
        steps.extend(schedule.steps().iter().map(|step| (rank, *step)));
    }
    Ok(Some(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json_with_absolute_ranks() {
        let shape = Shape::new(3, 1, 1).unwrap();
        let mut text = Vec::new();
        print(&mut text, Algorithm::PipelinedChain, shape, false).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\"rank\":0,\"round\":1,\"op\":\"recv\",\"peer\":2,\"block\":0}\n\
             {\"rank\":1,\"round\":0,\"op\":\"send\",\"peer\":2,\"block\":0}\n\
             {\"rank\":2,\"round\":0,\"op\":\"recv\",\"peer\":1,\"block\":0}\n\
             {\"rank\":2,\"round\":1,\"op\":\"send\",\"peer\":0,\"block\":0}\n"
        );
        let mut text = Vec::new();
        print(&mut text, Algorithm::PipelinedChain, shape, true).unwrap();
        for line in String::from_utf8(text).unwrap().lines() {
            let step: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(step["port"], 0);
        }
    }
}
