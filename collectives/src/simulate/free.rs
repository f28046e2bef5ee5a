//! The run without rounds: loggp.
//!
//! A transfer is two or three events: the out-port is free again, the last byte arrives, and, where
//! the block has to wait for the in-port, the block is taken in.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::faults::{ByRank, scale};
use super::outcome::incomplete;
use super::queue::{Class, Queue};
use super::{
    Blocks, Load, Loggp, MAX_SPANS, Outcome, Path, SimulateError, Simulation, Span, SpanKind,
};
use crate::executor::{Arrival, Executor, Pacing, Send};
use crate::schedule::{Rank, RankSchedule, Shape};

/// One block on its way; the lower step goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Transfer {
    step: u32,
    from: Rank,
    to: Rank,
    block: u32,
    port: u16,
    /// How often the block was sent before.
    retries: u8,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The rank makes the call, or has got a grant.
    Wake { rank: Rank },
    /// The rank `to` may write to `from`.
    Grant { from: Rank, to: Rank },
    /// The out-port is free, and whether the block will arrive.
    Sent { transfer: Transfer, arrives: bool },
    /// The last byte is at the in-port.
    Arrive { transfer: Transfer },
    /// The in-port has taken the block in.
    Deliver { transfer: Transfer },
    /// The sender has found the block lost.
    Lost { transfer: Transfer },
}

pub(super) fn run(
    simulation: &Simulation,
    model: &Loggp,
    shape: Shape,
    blocks: Blocks,
    mut schedules: impl FnMut(Rank, &mut Load<'_>) -> Result<(), SimulateError>,
) -> Result<Outcome, SimulateError> {
    let mut run = Run::new(simulation, model, shape, blocks);
    for rank in 0..shape.ranks() {
        schedules(rank, &mut |schedule| run.load(schedule))?;
    }
    run.start();
    while let Some((now_ps, event)) = run.queue.pop() {
        if now_ps == u64::MAX {
            return Err(SimulateError::TimeOverflow);
        }
        run.now_ps = now_ps;
        run.take(event)?;
    }
    Ok(run.outcome())
}

struct Run<'a> {
    simulation: &'a Simulation,
    model: &'a Loggp,
    blocks: Blocks,
    slow: ByRank<u32>,
    late: ByRank<u64>,
    dead: ByRank<u64>,
    random: fastrand::Rng,
    executors: Vec<Executor>,
    ports: Ports,
    /// For each out-port whether it is busy.
    out_busy: Vec<bool>,
    /// For each in-port when it is free.
    in_free_ps: Vec<u64>,
    /// By rank and port, blocks that are ready to be sent. With one port there are only those that
    /// were lost; with several, all that are ready, since the executor knows no ports.
    waiting: HashMap<(Rank, usize), BinaryHeap<Reverse<Transfer>>>,
    queue: Queue<Event>,
    now_ps: u64,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(simulation: &'a Simulation, model: &'a Loggp, shape: Shape, blocks: Blocks) -> Self {
        let ranks = shape.ranks() as usize;
        let ports = Ports::of(model, shape);
        let faults = &simulation.faults;
        Self {
            simulation,
            model,
            blocks,
            slow: ByRank::new(100, &faults.slow),
            late: ByRank::new(0, &faults.late),
            dead: ByRank::new(u64::MAX, &faults.dead),
            random: fastrand::Rng::with_seed(simulation.seed),
            executors: Vec::with_capacity(ranks),
            ports,
            out_busy: vec![false; ports.count(shape.ranks())],
            in_free_ps: vec![0; ports.count(shape.ranks())],
            waiting: HashMap::new(),
            queue: Queue::new(),
            now_ps: 0,
            outcome: Outcome::of(ranks),
        }
    }

    fn load(&mut self, schedule: &RankSchedule) -> Result<(), SimulateError> {
        let (rank, ports) = (schedule.rank(), self.model.ports);
        if let Some(step) = schedule.steps().iter().find(|step| step.port >= ports) {
            return Err(SimulateError::PortOutside { rank, port: step.port, ports });
        }
        let mut executor = Executor::new();
        executor.start(schedule, Pacing::Free)?;
        if self.simulation.grants {
            for &to in schedule.recv_peers() {
                let latency_ps = self.path(rank, to).latency_ps;
                let at_ps = self.late.of(rank).saturating_add(latency_ps);
                if self.late.of(rank) < self.dead.of(rank) {
                    self.queue.push(at_ps, Class::In, Event::Grant { from: rank, to });
                }
            }
        } else {
            for &to in schedule.send_peers() {
                executor.granted(to)?;
            }
        }
        self.executors.push(executor);
        Ok(())
    }

    fn start(&mut self) {
        for rank in 0..self.executors.len() as u32 {
            if self.executors[rank as usize].blocks_missing() == 0 {
                self.outcome.finish_ps[rank as usize] = Some(0);
            }
            self.queue.push(self.late.of(rank), Class::Out, Event::Wake { rank });
        }
    }

    fn take(&mut self, event: Event) -> Result<(), SimulateError> {
        match event {
            Event::Wake { rank } => self.send(rank),
            Event::Grant { from, to } => {
                self.executors[to as usize].granted(from)?;
                // After all grants of this moment, so that order of steps decides, not of grants.
                self.queue.push(self.now_ps, Class::Out, Event::Wake { rank: to });
            }
            Event::Sent { transfer, arrives } => {
                let rank = transfer.from;
                let port = self.ports.index(rank, transfer.to, transfer.port);
                self.out_busy[port] = false;
                if arrives && !self.is_dead(rank) {
                    self.executors[rank as usize].sent(transfer.to, transfer.block)?;
                }
                self.offer_port(rank);
            }
            Event::Arrive { transfer } => self.arrive(transfer)?,
            Event::Deliver { transfer } => self.deliver(transfer)?,
            Event::Lost { transfer } => self.send_again(transfer),
        }
        Ok(())
    }

    /// Lets the ranks behind the port that has become free send in turn, beginning after the last.
    fn offer_port(&mut self, last: Rank) {
        let per_host = self.model.ranks_per_host;
        let first = last - last % per_host;
        let end = first.saturating_add(per_host).min(self.executors.len() as u32);
        for rank in (last + 1..end).chain(first..=last) {
            self.send(rank);
        }
    }

    /// Starts what the rank can send now.
    fn send(&mut self, rank: Rank) {
        if !self.has_free_port(rank) {
            return;
        }
        if self.now_ps < self.late.of(rank) || self.is_dead(rank) {
            return;
        }
        while let Some(transfer) = self.next_transfer(rank) {
            self.transmit(transfer);
        }
    }

    /// Most arrivals find the port busy: then there is nothing to look for.
    fn has_free_port(&self, rank: Rank) -> bool {
        self.ports.of_rank(rank).any(|index| !self.out_busy[index])
    }

    fn next_transfer(&mut self, rank: Rank) -> Option<Transfer> {
        if self.ports.per_host == 1 {
            return self.next_waiting(rank).or_else(|| self.next_ready(rank, false));
        }
        while let Some(transfer) = self.next_ready(rank, true) {
            self.wait_for_port(transfer);
        }
        self.next_waiting(rank)
    }

    fn next_ready(&mut self, rank: Rank, port_may_be_busy: bool) -> Option<Transfer> {
        let (ports, out_busy) = (self.ports, &self.out_busy);
        let may_send = |peer| port_may_be_busy || !out_busy[ports.index(rank, peer, 0)];
        let Send { peer, block, port, step, .. } =
            self.executors[rank as usize].next_send(may_send)?;
        Some(Transfer { step, from: rank, to: peer, block, port, retries: 0 })
    }

    fn wait_for_port(&mut self, transfer: Transfer) {
        let port = self.ports.index(transfer.from, transfer.to, transfer.port);
        self.waiting.entry((transfer.from, port)).or_default().push(Reverse(transfer));
    }

    /// The first of what waits for a port that is free.
    fn next_waiting(&mut self, rank: Rank) -> Option<Transfer> {
        if self.waiting.is_empty() {
            return None;
        }
        for port in self.ports.of_rank(rank).filter(|&port| !self.out_busy[port]) {
            if let Some(waiting) = self.waiting.get_mut(&(rank, port))
                && let Some(Reverse(transfer)) = waiting.pop()
            {
                if waiting.is_empty() {
                    self.waiting.remove(&(rank, port));
                }
                return Some(transfer);
            }
        }
        None
    }

    fn transmit(&mut self, transfer: Transfer) {
        let Transfer { from, to, block, port, .. } = transfer;
        let path = self.path(from, to);
        let transfer_ps = self.transfer_ps(from, &transfer);
        let gap_ps = scale(path.gap_ps, self.slow.of(from));
        // What is pulled is not the out-port's to move.
        let (busy_ps, transfer_ps) =
            if path.pulled { (gap_ps, 0) } else { (gap_ps.max(transfer_ps), transfer_ps) };
        let faults = &self.simulation.faults;
        let jitter_ps = match faults.jitter_ps {
            0 => 0,
            most => self.random.u64(0..=most),
        };
        let is_lost = faults.loss_ppm > 0 && self.random.u32(0..1_000_000) < faults.loss_ppm;
        let left_ps = self.now_ps.saturating_add(transfer_ps);
        let arrives_ps = left_ps.saturating_add(path.latency_ps).saturating_add(jitter_ps);
        let arrives = !is_lost && arrives_ps < self.dead.of(to);
        let index = self.ports.index(from, to, port);
        self.out_busy[index] = true;
        self.outcome.bytes_sent += u128::from(self.blocks.bytes_of(block));
        let free_ps = self.now_ps.saturating_add(busy_ps);
        let kind = if arrives { SpanKind::Send } else { SpanKind::Lost };
        self.note(from, to, &transfer, (self.now_ps, free_ps), kind);
        self.queue.push(free_ps, Class::Out, Event::Sent { transfer, arrives });
        if arrives {
            self.queue.push(arrives_ps, Class::In, Event::Arrive { transfer });
        } else {
            let found_ps = left_ps.saturating_add(self.simulation.faults.timeout_ps);
            self.queue.push(found_ps.max(free_ps), Class::Out, Event::Lost { transfer });
        }
    }

    fn send_again(&mut self, transfer: Transfer) {
        let rank = transfer.from;
        if u32::from(transfer.retries) >= self.simulation.faults.retries || self.is_dead(rank) {
            return;
        }
        self.outcome.retransmissions += 1;
        self.wait_for_port(Transfer { retries: transfer.retries + 1, ..transfer });
        self.send(rank);
    }

    fn arrive(&mut self, transfer: Transfer) -> Result<(), SimulateError> {
        let Transfer { from, to, port, .. } = transfer;
        let index = self.ports.index(to, from, port);
        let at_port_ps = self.transfer_ps(to, &transfer);
        // The first byte came when the sender's port began; a slow port takes longer from there. What
        // is pulled begins to come now.
        let sent_ps =
            if self.path(from, to).pulled { 0 } else { self.transfer_ps(from, &transfer) };
        let first_ps = self.now_ps.saturating_sub(sent_ps);
        let begin_ps = first_ps.max(self.in_free_ps[index]);
        let done_ps = begin_ps.saturating_add(at_port_ps).max(self.now_ps);
        self.in_free_ps[index] = done_ps;
        self.note(
            to,
            from,
            &transfer,
            (done_ps - at_port_ps.min(done_ps), done_ps),
            SpanKind::Recv,
        );
        if done_ps > self.now_ps {
            self.queue.push(done_ps, Class::In, Event::Deliver { transfer });
            return Ok(());
        }
        self.deliver(transfer)
    }

    fn deliver(&mut self, transfer: Transfer) -> Result<(), SimulateError> {
        let Transfer { from, to, block, .. } = transfer;
        if self.is_dead(to) {
            return Ok(());
        }
        let executor = &mut self.executors[to as usize];
        if executor.arrived(from, block)? == Arrival::New {
            self.outcome.transfers += 1;
            self.outcome.time_ps = self.now_ps;
        }
        if executor.blocks_missing() == 0 {
            self.outcome.finish_ps[to as usize].get_or_insert(self.now_ps);
        }
        self.send(to);
        Ok(())
    }

    fn note(
        &mut self,
        rank: Rank,
        peer: Rank,
        transfer: &Transfer,
        (start_ps, end_ps): (u64, u64),
        kind: SpanKind,
    ) {
        if self.simulation.trace && self.outcome.spans.len() < MAX_SPANS {
            let (block, port) = (transfer.block, transfer.port);
            self.outcome.spans.push(Span { rank, peer, block, port, start_ps, end_ps, kind });
        }
    }

    fn outcome(mut self) -> Outcome {
        let ranks = 0..self.executors.len() as u32;
        self.outcome.dead = ranks.filter(|&rank| self.is_dead(rank)).collect();
        self.outcome.incomplete = incomplete(&self.executors, &self.outcome.dead);
        self.outcome.spans.sort_by_key(|span| (span.start_ps, span.rank));
        self.outcome
    }

    /// The time that the rank's port takes for the block.
    fn transfer_ps(&self, rank: Rank, transfer: &Transfer) -> u64 {
        let path = self.path(transfer.from, transfer.to);
        scale(path.transfer_ps(self.blocks.bytes_of(transfer.block)), self.slow.of(rank))
    }

    fn path(&self, from: Rank, to: Rank) -> Path {
        if !self.model.links.is_empty()
            && let Some(&link) = self.model.links.get(&(from, to))
        {
            return link;
        }
        match self.model.local {
            Some(local) if self.ports.is_local(from, to) => local,
            _ => self.model.path,
        }
    }

    fn is_dead(&self, rank: Rank) -> bool {
        self.now_ps >= self.dead.of(rank)
    }
}

/// Where each rank's ports are in a list of all: those of hosts, then each rank's within its host.
#[derive(Clone, Copy, Debug)]
struct Ports {
    per_host: u16,
    ranks_per_host: u32,
    hosts: u32,
    has_local: bool,
}

impl Ports {
    fn of(model: &Loggp, shape: Shape) -> Self {
        Self {
            per_host: model.ports,
            ranks_per_host: model.ranks_per_host,
            hosts: shape.ranks().div_ceil(model.ranks_per_host),
            has_local: model.local.is_some(),
        }
    }

    fn count(self, ranks: u32) -> usize {
        let local = if self.has_local { ranks as usize } else { 0 };
        self.hosts as usize * usize::from(self.per_host) + local
    }

    fn index(self, rank: Rank, peer: Rank, port: u16) -> usize {
        let per_host = usize::from(self.per_host);
        if self.is_local(rank, peer) {
            return self.hosts as usize * per_host + rank as usize;
        }
        (rank / self.ranks_per_host) as usize * per_host + usize::from(port)
    }

    /// The rank's ports to everybody.
    fn of_rank(self, rank: Rank) -> impl Iterator<Item = usize> {
        let per_host = usize::from(self.per_host);
        let first = (rank / self.ranks_per_host) as usize * per_host;
        let local = self.hosts as usize * per_host + rank as usize;
        (first..first + per_host).chain(self.has_local.then_some(local))
    }

    fn is_local(self, a: Rank, b: Rank) -> bool {
        self.has_local && a / self.ranks_per_host == b / self.ranks_per_host
    }
}
