//! What the model chooses on shared memory, beside every other algorithm: at most 1.15 times the best is
//! the goal.
//!
//! `cargo bench --bench selection_shm` (`--no-default-features` where cmake or libclang are missing)
//! measures, for 2, 3, 4 and 8 ranks, a profile with `verbcast tune`, and then, at sizes that `tune`
//! does not use, every broadcast algorithm in the blocks that the model gives it.
//!
//! A sample is a run of broadcasts without a pause, each from another root, in an order that is random
//! but the same for all algorithms: a root cannot begin before it has got the broadcast before. From
//! when the first rank begins to when the last one ends, divided by their number. The samples of all
//! algorithms alternate. A line has the median time of the chosen, with quartiles, and the largest
//! median of its ratios to another algorithm's samples of the same turn. Sizes as arguments replace the
//! usual ones; `--all` prints the medians of all algorithms.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use nix::time::{ClockId, clock_gettime};
use verbcast::{Algorithm, World};

const RANKS: [u32; 4] = [2, 3, 4, 8];
const SIZES: [usize; 10] =
    [24, 700, 3000, 12_000, 50_000, 200_000, 800_000, 3_000_000, 12_000_000, 48_000_000];
const SAMPLES: usize = 25;

/// Bytes that a sample moves to each rank, at least; and the most broadcasts in one.
const BYTES_LEAST: usize = 8 << 20;
const BROADCASTS_MOST: usize = 60;

/// How much slower than the best the chosen may be.
const GOAL: f64 = 1.15;

fn main() -> Result<(), Box<dyn Error>> {
    let sizes: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    if std::env::var_os("VERBCAST_RANK").is_some() {
        return rank(&sizes);
    }
    let folder = std::env::temp_dir().join(format!("verbcast-selection-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let worst = RANKS.into_iter().map(|ranks| compare(ranks, &sizes, &folder)).collect::<Vec<_>>();
    std::fs::remove_dir_all(&folder)?;
    for worst in worst {
        let (ranks, ratio) = worst?;
        let word = if ratio <= GOAL { "within" } else { "NOT within" };
        println!("N = {ranks}: the chosen takes {ratio:.3} times the best at worst, {word} {GOAL}");
    }
    Ok(())
}

/// Prints a line for each size; gives the ranks and the worst ratio.
fn compare(ranks: u32, sizes: &[usize], folder: &Path) -> Result<(u32, f64), Box<dyn Error>> {
    let profile = folder.join(format!("{ranks}.toml"));
    let tune = ["tune", "--output"].map(Into::into).into_iter().chain([profile.clone().into()]);
    let program = env!("CARGO_BIN_EXE_verbcast");
    launch(ranks, program.as_ref(), tune, None)?;
    let own = std::env::current_exe()?;
    let arguments = sizes.iter().map(|size| size.to_string().into());
    let output = launch(ranks, &own, arguments, Some(&profile))?;
    let mut all: Vec<Sample> = Vec::new();
    for line in output.lines() {
        all.push(serde_json::from_str(line.split_once("] ").map_or(line, |(_, json)| json))?);
    }
    let mut worst = 0.0;
    for &bytes in sizes {
        let of_size: Vec<&Sample> = all.iter().filter(|sample| sample.bytes == bytes).collect();
        let mut times: Vec<Times> = Algorithm::BROADCAST
            .iter()
            .map(|algorithm| Times::of(algorithm.to_string(), &of_size))
            .collect();
        let chosen = of_size.iter().find(|sample| sample.chosen).ok_or("nothing was chosen")?;
        let chosen = times.iter().find(|times| times.algorithm == chosen.algorithm);
        let chosen = chosen.ok_or("the chosen was not measured")?.clone();
        let all = times.iter().map(|other| (chosen.over(other), &other.algorithm));
        let most = all.max_by(|one, other| one.0.total_cmp(&other.0));
        let (ratio, best) = most.ok_or("there are no algorithms")?;
        worst = f64::max(worst, ratio);
        let us = chosen.sorted();
        println!(
            "N = {ranks}, {bytes:9} B: {:15} {:9.1} us ({:.1} to {:.1}), {ratio:.3} times {best}",
            chosen.algorithm,
            us[SAMPLES / 2],
            us[SAMPLES / 4],
            us[SAMPLES * 3 / 4],
        );
        if std::env::args().any(|argument| argument == "--all") {
            times.sort_by(|one, other| {
                one.sorted()[SAMPLES / 2].total_cmp(&other.sorted()[SAMPLES / 2])
            });
            let all = times
                .iter()
                .map(|one| format!("{} {:.1}", one.algorithm, one.sorted()[SAMPLES / 2]));
            println!("    {}", all.collect::<Vec<_>>().join(", "));
        }
    }
    Ok((ranks, worst))
}

/// The samples of one algorithm, in microseconds of a broadcast, in the order in which they were taken.
#[derive(Clone)]
struct Times {
    algorithm: String,
    us: Vec<f64>,
}

impl Times {
    fn of(algorithm: String, of_size: &[&Sample]) -> Self {
        let span = |number| {
            let mut of_all =
                of_size.iter().filter(|one| one.algorithm == algorithm && one.number == number);
            let begin = of_all.clone().map(|one| one.began_us).fold(f64::INFINITY, f64::min);
            let end = of_all.clone().map(|one| one.ended_us).fold(0.0, f64::max);
            (end - begin) / of_all.next().map_or(1.0, |one| one.broadcasts as f64)
        };
        let us = (0..SAMPLES).map(span).collect();
        Self { algorithm, us }
    }

    fn sorted(&self) -> Vec<f64> {
        let mut us = self.us.clone();
        us.sort_by(f64::total_cmp);
        us
    }

    /// The median of the ratios of samples that were taken side by side: what disturbs the machine for a
    /// while disturbs both.
    fn over(&self, other: &Self) -> f64 {
        let mut ratios: Vec<f64> =
            self.us.iter().zip(&other.us).map(|(own, us)| own / us).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[SAMPLES / 2]
    }
}

fn launch(
    ranks: u32,
    program: &Path,
    arguments: impl Iterator<Item = std::ffi::OsString>,
    profile: Option<&Path>,
) -> Result<String, Box<dyn Error>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbcast"));
    command.args(["launch", "-n", &ranks.to_string(), "--fabric", "shm", "--"]);
    command.arg(program).args(arguments);
    if let Some(profile) = profile {
        command.env("VERBCAST_PROFILE", profile);
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What one rank saw of one sample.
#[derive(serde::Serialize, serde::Deserialize)]
struct Sample {
    bytes: usize,
    algorithm: String,
    chosen: bool,
    number: usize,
    broadcasts: usize,
    began_us: f64,
    ended_us: f64,
}

fn rank(sizes: &[usize]) -> Result<(), Box<dyn Error>> {
    let world = World::from_env()?;
    let communicator = world.communicator();
    let mut region = world.region(sizes.iter().copied().max().unwrap_or(0))?;
    let mut lines = String::new();
    for &bytes in sizes {
        let choice = communicator.broadcast_call(0).choice(bytes as u64)?;
        let broadcasts = (BYTES_LEAST / bytes).clamp(4, BROADCASTS_MOST);
        // The first is not counted.
        for number in 0..=SAMPLES {
            for algorithm in Algorithm::BROADCAST {
                // The same on every rank.
                let mut random = fastrand::Rng::with_seed(number as u64);
                meet(&world)?;
                let began_us = clock_us()?;
                for _ in 0..broadcasts {
                    let root = random.u32(0..world.size());
                    let call = communicator.broadcast_call(root).algorithm(algorithm);
                    call.run(&mut region[..bytes])?;
                }
                let sample = Sample {
                    bytes,
                    algorithm: algorithm.to_string(),
                    chosen: choice.algorithm == algorithm,
                    number: number.wrapping_sub(1),
                    broadcasts,
                    began_us,
                    ended_us: clock_us()?,
                };
                if number > 0 {
                    lines.push_str(&serde_json::to_string(&sample)?);
                    lines.push('\n');
                }
            }
        }
    }
    print!("{lines}");
    world.finalize()?;
    Ok(())
}

/// Returns when all ranks have come: each has heard of each.
fn meet(world: &World) -> Result<(), verbcast::Error> {
    let communicator = world.communicator();
    (0..world.size()).try_for_each(|root| {
        communicator.broadcast_call(root).algorithm(Algorithm::Flat).run(&mut [0])
    })
}

/// Microseconds of the host's clock, which all ranks share.
fn clock_us() -> Result<f64, nix::Error> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(std::time::Duration::from(now).as_secs_f64() * 1e6)
}
