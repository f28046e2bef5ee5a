//! The run in rounds: the telephone model.
//!
//! All ranks make the sends of one round, and the next begins when the busiest port is free again.
//! In a schedule that keeps to its ports that is alpha + m / beta of the largest message; one that
//! uses a port twice in a round takes the time of both messages.

use super::faults::ByRank;
use super::outcome::incomplete;
use super::{
    Blocks, Load, MAX_PORTS, MAX_SPANS, Outcome, SimulateError, Simulation, Span, SpanKind,
    Telephone,
};
use crate::executor::{Arrival, Executor, Pacing, Send};
use crate::schedule::{Direction, Rank, RankSchedule, Shape};

pub(super) fn run(
    simulation: &Simulation,
    model: Telephone,
    shape: Shape,
    blocks: Blocks,
    mut schedules: impl FnMut(Rank, &mut Load<'_>) -> Result<(), SimulateError>,
) -> Result<Outcome, SimulateError> {
    let faults = &simulation.faults;
    let not_here = [
        ("loss", faults.loss_ppm > 0),
        ("jitter", faults.jitter_ps > 0),
        ("lateness", !faults.late.is_empty()),
        ("grants", simulation.grants),
    ];
    if let Some(&(what, _)) = not_here.iter().find(|(_, is_wanted)| *is_wanted) {
        return Err(SimulateError::NotInRounds { what });
    }
    let mut run = Run::new(simulation, model, shape, blocks);
    for rank in 0..shape.ranks() {
        schedules(rank, &mut |schedule| run.load(schedule))?;
    }
    run.run()
}

struct Run<'a> {
    simulation: &'a Simulation,
    model: Telephone,
    blocks: Blocks,
    slow: ByRank<u32>,
    dead: ByRank<u64>,
    executors: Vec<Executor>,
    rounds: u32,
    /// The most ports that a schedule uses.
    ports: u16,
    /// The ranks that hold something and have more to send, ascending.
    active: Vec<Rank>,
    is_active: Vec<bool>,
    /// For each in-port how long it is busy in this round, and which are.
    in_busy_ps: Vec<u64>,
    in_use: Vec<usize>,
    /// The sends of this round.
    sends: Vec<(Rank, Send)>,
    now_ps: u64,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(simulation: &'a Simulation, model: Telephone, shape: Shape, blocks: Blocks) -> Self {
        let ranks = shape.ranks() as usize;
        Self {
            simulation,
            model,
            blocks,
            slow: ByRank::new(100, &simulation.faults.slow),
            dead: ByRank::new(u64::MAX, &simulation.faults.dead),
            executors: Vec::with_capacity(ranks),
            rounds: 0,
            ports: 1,
            active: Vec::new(),
            is_active: vec![false; ranks],
            in_busy_ps: Vec::new(),
            in_use: Vec::new(),
            sends: Vec::new(),
            now_ps: 0,
            outcome: Outcome::of(ranks),
        }
    }

    fn load(&mut self, schedule: &RankSchedule) -> Result<(), SimulateError> {
        let rank = schedule.rank();
        for step in schedule.steps() {
            if step.port >= MAX_PORTS {
                let (port, ports) = (step.port, MAX_PORTS);
                return Err(SimulateError::PortOutside { rank, port, ports });
            }
            self.ports = self.ports.max(step.port + 1);
        }
        let mut executor = Executor::new();
        executor.start(schedule, Pacing::Rounds)?;
        for &to in schedule.send_peers() {
            executor.granted(to)?;
        }
        if executor.blocks_missing() == 0 {
            self.outcome.finish_ps[rank as usize] = Some(0);
        }
        // Whoever has a send in a round before its first receive holds something at the start.
        if schedule.steps().first().is_some_and(|step| step.direction == Direction::Send) {
            self.activate(rank);
        }
        self.rounds = self.rounds.max(schedule.rounds());
        self.executors.push(executor);
        Ok(())
    }

    fn activate(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.is_active[rank as usize], true) {
            self.active.push(rank);
        }
    }

    fn run(mut self) -> Result<Outcome, SimulateError> {
        self.in_busy_ps.resize(self.executors.len() * usize::from(self.ports), 0);
        for round in 0..self.rounds {
            let round_ps = self.take_sends(round);
            if self.sends.is_empty() {
                continue;
            }
            self.outcome.rounds = u64::from(round) + 1;
            self.now_ps = self.now_ps.saturating_add(round_ps);
            if self.now_ps == u64::MAX {
                return Err(SimulateError::TimeOverflow);
            }
            self.deliver()?;
            let (executors, is_active) = (&self.executors, &mut self.is_active);
            self.active.retain(|&rank| {
                let goes_on = executors[rank as usize].sends_incomplete() > 0;
                is_active[rank as usize] = goes_on;
                goes_on
            });
        }
        let ranks = 0..self.executors.len() as u32;
        self.outcome.dead = ranks.filter(|&rank| self.dead.of(rank) <= self.now_ps).collect();
        self.outcome.incomplete = incomplete(&self.executors, &self.outcome.dead);
        self.outcome.spans.sort_by_key(|span| (span.start_ps, span.rank));
        Ok(self.outcome)
    }

    /// Takes the sends of the round from all ranks, and gives the time of the busiest port.
    fn take_sends(&mut self, round: u32) -> u64 {
        self.sends.clear();
        let mut most_ps = 0;
        let mut out_busy_ps = [0_u64; MAX_PORTS as usize];
        for place in 0..self.active.len() {
            let rank = self.active[place];
            if self.dead.of(rank) <= self.now_ps {
                continue;
            }
            let first = self.sends.len();
            let executor = &mut self.executors[rank as usize];
            executor.limit_round(round);
            while let Some(send) = executor.next_send(|_| true) {
                self.sends.push((rank, send));
            }
            out_busy_ps.fill(0);
            let mut next = first;
            while next < self.sends.len() {
                let (peer, port) = (self.sends[next].1.peer, self.sends[next].1.port);
                let message = self.sends[next..].iter();
                let is_same = |(_, send): &&(Rank, Send)| send.peer == peer && send.port == port;
                let end = next + message.take_while(is_same).count();
                let busy_ps = self.message_ps(rank, peer, next..end);
                let out = &mut out_busy_ps[usize::from(port)];
                let index = peer as usize * usize::from(self.ports) + usize::from(port);
                self.note(rank, next..end, (*out, self.in_busy_ps[index]), busy_ps);
                *out = out.saturating_add(busy_ps);
                if self.in_busy_ps[index] == 0 {
                    self.in_use.push(index);
                }
                let inward = &mut self.in_busy_ps[index];
                *inward = inward.saturating_add(busy_ps);
                most_ps = most_ps.max(*out).max(*inward);
                next = end;
            }
        }
        for index in self.in_use.drain(..) {
            self.in_busy_ps[index] = 0;
        }
        most_ps
    }

    /// alpha + m / beta of a message, the range of the sends; a slow rank at either end counts.
    fn message_ps(&self, rank: Rank, peer: Rank, sends: std::ops::Range<usize>) -> u64 {
        let sends = self.sends[sends].iter();
        let usual_ps =
            self.model.message_ps(sends.map(|(_, send)| self.blocks.bytes_of(send.block)));
        let per_cent = self.slow.of(rank).max(self.slow.of(peer));
        super::faults::scale(usual_ps, per_cent)
    }

    fn deliver(&mut self) -> Result<(), SimulateError> {
        for place in 0..self.sends.len() {
            let (rank, Send { peer, block, .. }) = self.sends[place];
            self.outcome.bytes_sent += u128::from(self.blocks.bytes_of(block));
            if self.dead.of(peer) <= self.now_ps {
                continue;
            }
            self.executors[rank as usize].sent(peer, block)?;
            let executor = &mut self.executors[peer as usize];
            if executor.arrived(rank, block)? == Arrival::New {
                self.outcome.transfers += 1;
                self.outcome.time_ps = self.now_ps;
            }
            if executor.blocks_missing() == 0 {
                self.outcome.finish_ps[peer as usize].get_or_insert(self.now_ps);
            }
            if executor.sends_incomplete() > 0 {
                self.activate(peer);
            }
        }
        Ok(())
    }

    fn note(
        &mut self,
        rank: Rank,
        sends: std::ops::Range<usize>,
        (out_ps, in_ps): (u64, u64),
        busy_ps: u64,
    ) {
        if !self.simulation.trace {
            return;
        }
        for place in sends {
            let Send { peer, block, port, .. } = self.sends[place].1;
            let arrives = self.dead.of(peer) > self.now_ps.saturating_add(busy_ps);
            let kind = if arrives { SpanKind::Send } else { SpanKind::Lost };
            let mut push = |rank, peer, begin_ps, kind| {
                let start_ps = self.now_ps.saturating_add(begin_ps);
                let end_ps = start_ps.saturating_add(busy_ps);
                if self.outcome.spans.len() < MAX_SPANS {
                    let span = Span { rank, peer, block, port, start_ps, end_ps, kind };
                    self.outcome.spans.push(span);
                }
            };
            push(rank, peer, out_ps, kind);
            if arrives {
                push(peer, rank, in_ps, SpanKind::Recv);
            }
        }
    }
}
