//! Random operations one after another, the same on every rank by a seed: operation, root, sizes,
//! algorithm, block size, in place or not. What each rank gets is compared byte for byte.

use std::time::Duration;

use verbcast::schedule::Operation;
use verbcast::{Algorithm, Communicator, Counts, Error, World};

use super::{Args, COMMAND, word};

/// Sizes of a part are drawn below one of these: eager, around the eager limit, several blocks.
const MOST: [usize; 4] = [9, 300, 4200, 70_000];

/// The turns after which the memory counts as grown to what is needed.
const SETTLED: u64 = 10;

/// What a rank has seen.
#[derive(serde::Serialize)]
struct Summary {
    rank: u32,
    operations: u64,
    bytes: u64,
    /// Resident kilobytes after a tenth of the operations and at the end.
    resident_kb: [u64; 2],
}

/// Buffers that are used again and again.
#[derive(Default)]
struct Buffers {
    send: Vec<u8>,
    recv: Vec<u8>,
    expected: Vec<u8>,
}

pub(super) fn test(world: World, args: &Args, turns: u64) -> Result<bool, Error> {
    let communicator = world.communicator();
    let seed = args.seed.unwrap_or(1);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffers = Buffers::default();
    let mut summary = Summary { rank: world.rank(), operations: 0, bytes: 0, resident_kb: [0; 2] };
    let deadline = Duration::from_secs(args.deadline);
    for number in 0..turns {
        let turn = Turn::draw(&mut random, world.size(), number, deadline);
        if !turn.run(&communicator, &mut buffers)? {
            eprintln!(
                "{COMMAND}: rank {}: wrong bytes in operation {number} of seed {seed}: {turn:?}",
                world.rank()
            );
            world.abort("an operation brought wrong bytes");
            return Ok(false);
        }
        summary.operations += 1;
        summary.bytes += buffers.recv.len() as u64;
        if number == turns / SETTLED {
            summary.resident_kb[0] = resident_kb();
        }
    }
    summary.resident_kb[1] = resident_kb();
    println!("{}", serde_json::to_string(&summary).unwrap_or_default());
    world.finalize()?;
    Ok(true)
}

/// One operation.
#[derive(Debug)]
struct Turn {
    kind: Kind,
    root: u32,
    /// Bytes of the message, or of each rank's part.
    counts: Vec<usize>,
    algorithm: Option<Algorithm>,
    block_bytes: Option<u64>,
    in_place: bool,
    number: u64,
    deadline: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Even(Operation),
    Uneven(Operation),
    Barrier,
}

/// A call with this turn's options.
macro_rules! with_options {
    ($turn:expr, $call:expr) => {{
        let mut call = $call.deadline($turn.deadline);
        if let Some(algorithm) = $turn.algorithm {
            call = call.algorithm(algorithm);
        }
        if let Some(block_bytes) = $turn.block_bytes {
            call = call.block_bytes(block_bytes);
        }
        call
    }};
}

impl Turn {
    fn draw(random: &mut fastrand::Rng, size: u32, number: u64, deadline: Duration) -> Self {
        use Operation::{Allgather, Broadcast, Gather, Scatter};
        let kind = match random.u8(0..20) {
            0..=4 => Kind::Even(Broadcast),
            5..=8 => Kind::Even(Scatter),
            9..=12 => Kind::Even(Gather),
            13..=15 => Kind::Even(Allgather),
            16 => Kind::Uneven(Scatter),
            17 => Kind::Uneven(Gather),
            18 => Kind::Uneven(Allgather),
            _ => Kind::Barrier,
        };
        let most = MOST[random.usize(0..MOST.len())];
        let even = random.usize(0..most);
        let counts = (0..size).map(|_| match kind {
            Kind::Uneven(_) => random.usize(0..most),
            _ => even,
        });
        let counts = counts.collect();
        let algorithm = match kind {
            Kind::Even(operation) | Kind::Uneven(operation @ Allgather) if random.bool() => {
                let all = Algorithm::of(operation);
                let drawn = all[random.usize(0..all.len())];
                let fits = drawn != Algorithm::RecursiveDoubling || size.is_power_of_two();
                fits.then_some(drawn)
            }
            _ => None,
        };
        let block_bytes = (random.u8(0..4) == 0).then(|| random.u64(512..16_384));
        // Too small blocks are an error, and a barrier has none.
        let block_bytes = block_bytes.filter(|_| kind != Kind::Barrier);
        let (root, in_place) = (random.u32(0..size), random.bool());
        Self { kind, root, counts, algorithm, block_bytes, in_place, number, deadline }
    }

    /// Makes the call; false if it brought wrong bytes.
    fn run(&self, communicator: &Communicator, buffers: &mut Buffers) -> Result<bool, Error> {
        let (rank, root) = (communicator.rank(), self.root);
        let (own, is_root) = (self.counts[rank as usize], rank == root);
        let Buffers { send, recv, expected } = buffers;
        let all: usize = self.counts.iter().sum();
        let before: usize = self.counts[..rank as usize].iter().sum();
        let counts = Counts::new(&self.counts);
        match self.kind {
            Kind::Barrier => {
                recv.clear();
                communicator.barrier_call().deadline(self.deadline).run()?;
                return Ok(true);
            }
            Kind::Even(Operation::Broadcast) => {
                self.fill(expected, root);
                recv.clear();
                recv.extend_from_slice(expected);
                if !is_root {
                    recv.fill(0xa5);
                }
                with_options!(self, communicator.broadcast_call(root)).run(recv)?;
                return Ok(recv == expected);
            }
            _ => {}
        }
        self.fill(send, rank);
        self.fill_all(expected);
        match self.kind {
            Kind::Even(Operation::Scatter) if is_root && self.in_place => {
                recv.clear();
                with_options!(self, communicator.scatter_call(root)).run_in_place(expected)?;
                return Ok(true);
            }
            Kind::Even(Operation::Scatter) | Kind::Uneven(Operation::Scatter) => {
                recv.clear();
                recv.resize(own, 0xa5);
                if let Kind::Even(_) = self.kind {
                    let call = with_options!(self, communicator.scatter_call(root));
                    call.run(is_root.then_some(&expected[..]), recv)?;
                } else {
                    let call = with_options!(self, communicator.scatterv_call(root));
                    call.run(is_root.then_some((&expected[..], counts)), recv)?;
                }
                return Ok(recv == send);
            }
            _ => {}
        }
        let gets = is_root
            || !matches!(
                self.kind,
                Kind::Even(Operation::Gather) | Kind::Uneven(Operation::Gather)
            );
        recv.clear();
        recv.resize(if gets { all } else { 0 }, 0xa5);
        if self.in_place && gets {
            recv[before..before + own].copy_from_slice(send);
        }
        match self.kind {
            Kind::Even(Operation::Gather) => {
                let call = with_options!(self, communicator.gather_call(root));
                match is_root && self.in_place {
                    true => call.run_in_place(recv)?,
                    false => call.run(send, is_root.then_some(&mut recv[..]))?,
                }
            }
            Kind::Uneven(Operation::Gather) => {
                let call = with_options!(self, communicator.gatherv_call(root));
                call.run(send, is_root.then_some((&mut recv[..], counts)))?;
            }
            Kind::Uneven(_) => {
                with_options!(self, communicator.allgatherv_call()).run(send, recv, counts)?;
            }
            _ => {
                let call = with_options!(self, communicator.allgather_call());
                match self.in_place {
                    true => call.run_in_place(recv)?,
                    false => call.run(send, recv)?,
                }
            }
        }
        Ok(!gets || recv == expected)
    }

    /// What a rank gives.
    fn fill(&self, buffer: &mut Vec<u8>, rank: u32) {
        buffer.clear();
        self.append(buffer, rank);
    }

    /// What all ranks give, one after another.
    fn fill_all(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        (0..self.counts.len() as u32).for_each(|rank| self.append(buffer, rank));
    }

    fn append(&self, buffer: &mut Vec<u8>, rank: u32) {
        let bytes = self.counts[rank as usize];
        let seed = self.number << 10 | u64::from(rank);
        let words = (0..bytes.div_ceil(8)).flat_map(|index| word(seed, index));
        buffer.extend(words.take(bytes));
    }
}

/// Kilobytes of this process that are in memory; 0 where the system does not tell.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
