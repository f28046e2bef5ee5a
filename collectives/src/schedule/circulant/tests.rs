//! The five conditions of the circulant schedule, each a test by its name.

use super::*;
use crate::schedule::{Algorithm, RankSchedule, broadcast};
use crate::test_seed;

mod faults;

/// The structure is verified for every number of ranks up to this one.
const STRUCTURE_RANKS: u32 = 2048;

/// The rows of all ranks.
struct Table {
    skips: Skips,
    recv: Vec<Row>,
    send: Vec<Row>,
}

impl Table {
    fn of(ranks: u32) -> Self {
        let skips = Skips::new(ranks);
        Self {
            skips,
            recv: (0..ranks).map(|r| skips.recv_row(r)).collect(),
            send: (0..ranks).map(|r| skips.send_row(r)).collect(),
        }
    }

    fn receive_rows_only(ranks: u32) -> Self {
        let skips = Skips::new(ranks);
        Self { skips, recv: (0..ranks).map(|r| skips.recv_row(r)).collect(), send: Vec::new() }
    }

    fn ranks(&self) -> usize {
        self.recv.len()
    }

    fn condition_1(&self) -> Result<(), String> {
        let n = self.ranks();
        for r in 0..n {
            for j in 0..self.skips.q() {
                let receiver = (r + self.skips.as_slice()[j] as usize) % n;
                if self.send[r][j] != self.recv[receiver][j] {
                    return Err(format!("N = {n}: S_{r}[{j}] is not R_{receiver}[{j}]"));
                }
            }
        }
        Ok(())
    }

    fn condition_2(&self) -> Result<(), String> {
        let q = self.skips.q() as i32;
        for r in 0..self.ranks() {
            let b = self.skips.baseblock(r as u32) as i32;
            let mut expected: Vec<i32> =
                (-q..0).filter(|&entry| r == 0 || entry != b - q).collect();
            expected.extend((r != 0).then_some(b));
            let mut entries = self.recv[r][..q as usize].to_vec();
            entries.sort_unstable();
            if entries != expected {
                return Err(format!("N = {}: R_{r} = {entries:?} sorted", self.ranks()));
            }
        }
        Ok(())
    }

    fn condition_3(&self) -> Result<(), String> {
        let q = self.skips.q();
        for r in 1..self.ranks() {
            let b = self.skips.baseblock(r as u32) as i32;
            for j in 0..q {
                let entry = self.send[r][j];
                if entry != b - q as i32 && !self.recv[r][..j].contains(&entry) {
                    return Err(format!("N = {}: S_{r}[{j}] = {entry}, not held", self.ranks()));
                }
            }
        }
        Ok(())
    }

    fn condition_4(&self) -> Result<(), String> {
        for j in 0..self.skips.q() {
            if self.send[0][j] != j as i32 {
                return Err(format!("N = {}: S_0[{j}] = {}", self.ranks(), self.send[0][j]));
            }
        }
        Ok(())
    }

    fn all_conditions(&self) -> Result<(), String> {
        self.condition_1()?;
        self.condition_2()?;
        self.condition_3()?;
        self.condition_4()
    }
}

#[test]
fn condition_1_send_row_is_the_receivers_entry() {
    for ranks in 1..=STRUCTURE_RANKS {
        Table::of(ranks).condition_1().unwrap();
    }
}

#[test]
fn condition_2_receive_row_has_each_block_once() {
    for ranks in 1..=STRUCTURE_RANKS {
        Table::receive_rows_only(ranks).condition_2().unwrap();
    }
}

#[test]
fn condition_3_sends_what_was_received_before() {
    for ranks in 1..=STRUCTURE_RANKS {
        Table::of(ranks).condition_3().unwrap();
    }
}

#[test]
fn condition_4_root_sends_block_j_in_round_j() {
    for ranks in 1..=STRUCTURE_RANKS {
        let skips = Skips::new(ranks);
        Table { skips, recv: vec![], send: vec![skips.send_row(0)] }.condition_4().unwrap();
    }
}

/// Runs the steps of all ranks in rounds on real contents.
fn run_in_rounds(ranks: &[RankSchedule], root: u32, blocks: u32, rounds: u32) {
    let content = |block: u32| 0x9e37_79b9_u32.wrapping_mul(block + 1);
    let mut held = vec![vec![None; blocks as usize]; ranks.len()];
    held[root as usize] = (0..blocks).map(content).map(Some).collect();
    let mut missing = (ranks.len() - 1) * blocks as usize;
    let mut next = vec![0; ranks.len()];
    for round in 0..rounds {
        assert!(missing > 0, "complete before round {round} of {rounds}");
        let mut on_the_wire = Vec::new();
        let mut expected = Vec::new();
        for (rank, schedule) in ranks.iter().enumerate() {
            let rest = &schedule.steps()[next[rank]..];
            let now = rest.iter().take_while(|step| step.round == round);
            for step in now {
                next[rank] += 1;
                let peer = step.peer as usize;
                match step.direction {
                    Direction::Send => {
                        let content = held[rank][step.block as usize];
                        let content = content.unwrap_or_else(|| panic!("{rank} lacks {step}"));
                        on_the_wire.push((peer, rank, step.block, content));
                    }
                    Direction::Recv => expected.push((rank, peer, step.block)),
                }
            }
        }
        on_the_wire.sort_unstable();
        expected.sort_unstable();
        assert!(
            on_the_wire.iter().map(|&(to, from, block, _)| (to, from, block)).eq(expected),
            "round {round}: sends and receives differ"
        );
        for (to, from, block, content) in on_the_wire {
            let place = &mut held[to][block as usize];
            assert_eq!(*place, None, "round {round}: {to} gets block {block} again, from {from}");
            *place = Some(content);
            missing -= 1;
        }
    }
    for (rank, blocks) in held.iter().enumerate() {
        for (block, &held) in (0..).zip(blocks) {
            assert_eq!(held, Some(content(block)), "rank {rank} of {}", ranks.len());
        }
    }
    for (rank, schedule) in ranks.iter().enumerate() {
        assert_eq!(next[rank], schedule.steps().len(), "rank {rank} has steps after the end");
    }
}

#[test]
fn condition_5_simulated_contents() {
    let mut rng = test_seed::rng("condition_5_simulated_contents");
    for ranks in 2..=200 {
        let q = ceil_log2(ranks);
        let root = rng.u32(0..ranks);
        for blocks in 1..=20 {
            let shape = Shape::new(ranks, root, blocks).unwrap();
            let of_rank = |rank| broadcast(Algorithm::PipelinedTree, shape, rank).unwrap();
            let schedules: Vec<_> = (0..ranks).map(of_rank).collect();
            run_in_rounds(&schedules, root, blocks, q + blocks - 1);
        }
    }
}

#[test]
fn conditions_hold_for_random_numbers_of_ranks() {
    let mut rng = test_seed::rng("conditions_hold_for_random_numbers_of_ranks");
    for _ in 0..4 {
        Table::of(rng.u32(STRUCTURE_RANKS..=100_000)).all_conditions().unwrap();
    }
}

#[test]
fn conditions_hold_for_some_ranks_of_large_communicators() {
    let mut rng = test_seed::rng("conditions_hold_for_some_ranks_of_large_communicators");
    for _ in 0..200 {
        let skips = Skips::new(rng.u32(1 << 20..=MAX_RANKS));
        let q = skips.q() as i32;
        for _ in 0..50 {
            let r = rng.u32(1..skips.ranks());
            let (recv, send) = (skips.recv_row(r), skips.send_row(r));
            let b = skips.baseblock(r) as i32;
            let mut entries = recv[..q as usize].to_vec();
            entries.sort_unstable();
            let expected = (-q..0).filter(|&entry| entry != b - q).chain([b]);
            assert!(entries.into_iter().eq(expected), "N = {}, r = {r}", skips.ranks());
            for j in 0..q as usize {
                let is_held = send[j] == b - q || recv[..j].contains(&send[j]);
                assert!(is_held, "N = {}, S_{r}[{j}] = {}", skips.ranks(), send[j]);
            }
        }
    }
}

#[test]
fn nine_ranks_have_the_printed_rows() {
    let table = Table::of(9);
    assert_eq!(table.skips.as_slice(), [1, 2, 3, 5, 9]);
    let baseblocks: Vec<_> = (0..9).map(|r| table.skips.baseblock(r)).collect();
    assert_eq!(baseblocks, [4, 0, 1, 2, 0, 3, 0, 1, 2]);
    let recv = [
        [-2, 0, -4, -3, -2, -4, -1, -4, -3],
        [-3, -2, 1, -4, -3, -2, -2, -1, -4],
        [-1, -3, -2, 2, 0, -3, -3, -2, -1],
        [-4, -1, -1, -1, -1, 3, 0, 1, 2],
    ];
    let send = [
        [0, -4, -3, -2, -4, -1, -4, -3, -2],
        [1, -4, -3, -2, -2, -1, -4, -3, -2],
        [2, 0, -3, -3, -2, -1, -1, -3, -2],
        [3, 0, 1, 2, -4, -1, -1, -1, -1],
    ];
    for j in 0..4 {
        assert!(table.recv.iter().map(|row| row[j]).eq(recv[j]), "R[{j}]");
        assert!(table.send.iter().map(|row| row[j]).eq(send[j]), "S[{j}]");
    }
}

#[test]
fn new_block_comes_no_earlier_than_its_round() {
    // The file's proof that the rounds left out before the start lose no block rests on this.
    for ranks in 2..=STRUCTURE_RANKS {
        let skips = Skips::new(ranks);
        for r in 1..ranks {
            let (row, b) = (skips.recv_row(r), skips.baseblock(r));
            let j = row[..skips.q()].iter().position(|&entry| entry == b as i32);
            assert!(j.is_some_and(|j| j >= b), "N = {ranks}, r = {r}, b = {b}, j = {j:?}");
        }
    }
}
