//! How long one rank takes to make its circulant schedule.
//!
//! `cargo bench -p verbcast-collectives --bench circulant [-- RANKS [SAMPLES]]`
//!
//! For each of many random ranks of a communicator of 1,048,576 the rows and the steps of a
//! broadcast of [`BLOCKS`] blocks are made, on a schedule whose memory is there already. Printed
//! are the median and the spread over the ranks, beside the goal of 50 us.

use std::hint::black_box;
use std::time::{Duration, Instant};

use verbcast_collectives::schedule::{Algorithm, RankSchedule, Shape};

/// The communicator that the goal speaks of; q = 20.
const RANKS: u32 = 1 << 20;
const SAMPLES: usize = 2_000;
/// Runs per rank, of which the median counts.
const REPEATS: usize = 5;
/// As many blocks as a phase has rounds: each entry of both rows is used.
const BLOCKS: u32 = 20;
const GOAL: Duration = Duration::from_micros(50);

fn main() {
    // cargo passes --bench; whatever is a number is ours.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u32>().ok());
    let ranks = numbers.next().unwrap_or(RANKS);
    let samples = numbers.next().map_or(SAMPLES, |samples| samples.max(1) as usize);
    let shape = match Shape::new(ranks, 0, BLOCKS) {
        Ok(shape) => shape,
        Err(error) => {
            eprintln!("circulant: {error}");
            std::process::exit(2);
        }
    };
    let mut rng = fastrand::Rng::with_seed(1);
    let mut schedule = RankSchedule::default();
    let mut times: Vec<Duration> =
        (0..samples).map(|_| time_of_rank(&mut schedule, shape, rng.u32(0..ranks))).collect();
    times.sort_unstable();
    let at =
        |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1e3;
    println!(
        "circulant construction, one rank of {ranks}, {BLOCKS} blocks: median {:.2} us, \
         5-95 % {:.2}-{:.2} us, most {:.2} us over {samples} ranks; goal {} us",
        at(0.5),
        at(0.05),
        at(0.95),
        at(1.0),
        GOAL.as_micros()
    );
}

fn time_of_rank(schedule: &mut RankSchedule, shape: Shape, rank: u32) -> Duration {
    let mut times = [Duration::ZERO; REPEATS];
    for time in &mut times {
        let start = Instant::now();
        schedule
            .fill(Algorithm::PipelinedTree, shape, black_box(rank))
            .expect("the rank is below the number of ranks");
        *time = start.elapsed();
        black_box(&*schedule);
    }
    times.sort_unstable();
    times[REPEATS / 2]
}
