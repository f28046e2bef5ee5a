//! `verbcast selftest`: broadcasts known bytes every way there is and compares them, as a rank of
//! a job. The product's own tests run it over shared memory and, in guests, over verbs.

mod mixed;
mod stopped;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use verbcast::{Algorithm, Error, Trace, TraceKind, World};

use crate::exit;

const COMMAND: &str = "verbcast selftest";

/// Broadcasts known bytes with every algorithm, root and size, compares them on every rank, and
/// prints one JSON object per rank.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Algorithms, by name; every one if none is given
    #[arg(long, value_delimiter = ',')]
    algorithms: Vec<Algorithm>,
    /// Message sizes in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 7, 4096, 65537, (1 << 20) + 3])]
    sizes: Vec<usize>,
    /// Roots; every rank if none is given
    #[arg(long, value_delimiter = ',')]
    roots: Vec<u32>,
    /// Bytes of a block; the model's choice if not given
    #[arg(long)]
    block_bytes: Option<u64>,
    /// How often everything is done
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Rounds before those that are timed
    #[arg(long, default_value_t = 0)]
    warm_up: u32,
    /// Keep each rank exactly to the order of its schedule
    #[arg(long)]
    paced: bool,
    /// Print what happened in the last broadcast as well
    #[arg(long)]
    trace: bool,
    /// Seconds for one broadcast
    #[arg(long, default_value_t = 120)]
    deadline: u64,
    /// Use the buffers of a registered region instead of plain memory
    #[arg(long)]
    region: bool,
    /// Milliseconds that the root sleeps before each broadcast
    #[arg(long, default_value_t = 0)]
    late_root_ms: u64,
    /// Do something else: stop the root in the middle of a broadcast and see what the others do
    #[arg(long)]
    stop_root: bool,
    /// Do something else: so many random operations of all kinds
    #[arg(long)]
    mixed: Option<u64>,
    /// What they are drawn by
    #[arg(long)]
    seed: Option<u64>,
}

/// What one rank prints.
#[derive(Serialize)]
struct Summary {
    rank: u32,
    fabric: String,
    broadcasts: u64,
    bytes: u64,
    /// Microseconds of each timed broadcast on this rank, by algorithm.
    times_us: Vec<(String, Vec<f64>)>,
    lanes: Vec<Lane>,
    /// Kind, peer, block.
    trace: Vec<(&'static str, u32, u32)>,
    /// By peer: how many blocks were outstanding whenever a further one was posted.
    outstanding: Vec<(u32, Vec<u32>)>,
}

#[derive(Serialize)]
struct Lane {
    peer: u32,
    lane: usize,
    whole_blocks: u64,
    parts: u64,
    bytes: u64,
    messages: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let test = |world: World| match args.mixed {
        Some(turns) => mixed::test(world, args, turns),
        None if args.stop_root => stopped::test(&world, args),
        None => test(world, args),
    };
    match World::from_env().and_then(test) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(exit::FAILED),
        Err(error) => exit::failed(COMMAND, &error),
    }
}

fn test(world: World, args: &Args) -> Result<bool, Error> {
    let algorithms = if args.algorithms.is_empty() {
        Algorithm::BROADCAST.to_vec()
    } else {
        args.algorithms.clone()
    };
    let roots =
        if args.roots.is_empty() { (0..world.size()).collect() } else { args.roots.clone() };
    let mut summary = Summary {
        rank: world.rank(),
        fabric: world.fabric_description(),
        broadcasts: 0,
        bytes: 0,
        times_us: algorithms.iter().map(|name| (name.to_string(), Vec::new())).collect(),
        lanes: Vec::new(),
        trace: Vec::new(),
        outstanding: Vec::new(),
    };
    let mut trace = Trace::with_capacity(if args.trace { 1 << 16 } else { 0 });
    let most = args.sizes.iter().copied().max().unwrap_or(0);
    let mut region = world.region(if args.region { most } else { 0 })?;
    let mut plain = vec![0; if args.region { 0 } else { most }];
    for round in 0..args.rounds + args.warm_up {
        for &bytes in &args.sizes {
            for &root in &roots {
                // Alternated, so that what disturbs the machine disturbs all of them alike.
                for (index, &algorithm) in algorithms.iter().enumerate() {
                    let memory: &mut [u8] = if args.region { &mut region } else { &mut plain };
                    let buffer = &mut memory[..bytes];
                    let seed = summary.broadcasts;
                    fill(buffer, if world.rank() == root { seed } else { !seed });
                    let trace = args.trace.then_some(&mut trace);
                    let took = broadcast(&world, args, algorithm, root, buffer, trace)?;
                    if round >= args.warm_up {
                        summary.times_us[index].1.push(took.as_secs_f64() * 1e6);
                    }
                    if let Some(at) = difference(buffer, seed) {
                        eprintln!(
                            "{COMMAND}: rank {}: {algorithm} from root {root}, {bytes} bytes: byte \
                             {at} is wrong",
                            world.rank()
                        );
                        world.abort("a broadcast brought wrong bytes");
                        return Ok(false);
                    }
                    summary.broadcasts += 1;
                    summary.bytes += bytes as u64;
                }
            }
        }
    }
    describe(&world, &mut summary, &trace);
    println!("{}", serde_json::to_string(&summary).unwrap_or_default());
    world.finalize()?;
    Ok(true)
}

fn broadcast(
    world: &World,
    args: &Args,
    algorithm: Algorithm,
    root: u32,
    buffer: &mut [u8],
    trace: Option<&mut Trace>,
) -> Result<Duration, Error> {
    let communicator = world.communicator();
    let mut call = communicator
        .broadcast_call(root)
        .algorithm(algorithm)
        .paced(args.paced)
        .deadline(Duration::from_secs(args.deadline));
    if let Some(block_bytes) = args.block_bytes {
        call = call.block_bytes(block_bytes);
    }
    if let Some(trace) = trace {
        call = call.trace(trace);
    }
    if args.warm_up > 0 {
        world.agree_all(None)?;
    }
    if args.late_root_ms > 0 && world.rank() == root {
        std::thread::sleep(Duration::from_millis(args.late_root_ms));
    }
    let began = Instant::now();
    call.run(buffer)?;
    Ok(began.elapsed())
}

fn describe(world: &World, summary: &mut Summary, trace: &Trace) {
    for peer in (0..world.size()).filter(|peer| *peer != world.rank()) {
        for (lane, carried) in world.lane_statistics(peer).into_iter().enumerate() {
            summary.lanes.push(Lane {
                peer,
                lane,
                whole_blocks: carried.whole_blocks,
                parts: carried.parts,
                bytes: carried.block_bytes,
                messages: carried.messages,
            });
        }
        let outstanding = trace.outstanding(peer);
        if !outstanding.is_empty() {
            summary.outstanding.push((peer, outstanding));
        }
    }
    for event in trace.events() {
        let kind = match event.kind {
            TraceKind::SendPosted => "send",
            TraceKind::Arrived => "recv",
            _ => continue,
        };
        summary.trace.push((kind, event.peer, event.block));
    }
}

/// The eight bytes at `index * 8` of the message with this seed.
fn word(seed: u64, index: usize) -> [u8; 8] {
    let mut mixed = (index as u64).wrapping_add(seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
}

fn fill(buffer: &mut [u8], seed: u64) {
    for (index, chunk) in buffer.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, index)[..chunk.len()]);
    }
}

/// Where `buffer` differs from the message with this seed.
fn difference(buffer: &[u8], seed: u64) -> Option<usize> {
    buffer.chunks(8).enumerate().find_map(|(index, chunk)| {
        let expected = word(seed, index);
        let at = chunk.iter().zip(expected).position(|(one, other)| *one != other)?;
        Some(index * 8 + at)
    })
}
