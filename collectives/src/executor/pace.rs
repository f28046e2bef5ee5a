//! Pacing by rounds: which steps of a rank may start.

use crate::schedule::{Direction, RankSchedule};

/// What is complete of the rank's own rounds; empty, and permitting all, in a run without pacing.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// For each step its round's place among the rounds in which the rank has steps.
    place: Vec<u32>,
    /// For each of those rounds the steps that are not complete.
    incomplete: Vec<u32>,
    /// For each block the step that receives it.
    receive: Vec<u32>,
    /// The first place with a step that is not complete.
    current: usize,
    /// The last round in which a send may start.
    limit: Option<u32>,
}

impl Pace {
    pub(super) fn clear(&mut self) {
        self.place.clear();
        self.incomplete.clear();
        self.receive.clear();
        self.current = 0;
        self.limit = None;
    }

    /// Loads the steps, which are in order of rounds, after [`Pace::clear`].
    pub(super) fn load(&mut self, schedule: &RankSchedule) {
        self.receive.resize(schedule.shape().total_blocks() as usize, u32::MAX);
        let mut round = None;
        for (index, step) in schedule.steps().iter().enumerate() {
            if round != Some(step.round) {
                round = Some(step.round);
                self.incomplete.push(0);
            }
            let place = self.incomplete.len() - 1;
            self.incomplete[place] += 1;
            self.place.push(place as u32);
            if step.direction == Direction::Recv {
                self.receive[step.block as usize] = index as u32;
            }
        }
    }

    pub(super) fn limit_round(&mut self, round: u32) {
        self.limit = Some(round);
    }

    /// Whether a step, which is of the round given, may start.
    pub(super) fn permits(&self, step: u32, round: u32) -> bool {
        self.place.get(step as usize).is_none_or(|&place| {
            place as usize <= self.current && self.limit.is_none_or(|limit| round <= limit)
        })
    }

    /// Notes that the step which receives the block is complete.
    pub(super) fn received(&mut self, block: u32) {
        if let Some(&step) = self.receive.get(block as usize) {
            self.completed(step);
        }
    }

    /// Notes that the step is complete.
    pub(super) fn completed(&mut self, step: u32) {
        let Some(&place) = self.place.get(step as usize) else { return };
        self.incomplete[place as usize] -= 1;
        while self.incomplete.get(self.current) == Some(&0) {
            self.current += 1;
        }
    }
}
