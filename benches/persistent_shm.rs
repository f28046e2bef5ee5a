//! A start of a persistent broadcast beside the plain call, between two ranks over shared memory.
//!
//! `cargo bench --bench persistent_shm` (`--no-default-features` where cmake or libclang are missing)
//! measures 8 B and 64 KiB (sizes as arguments replace them). A sample is a run of broadcasts whose roots
//! take turns, so that each waits for the one before; samples of both ways alternate. A line has the
//! median time of one broadcast each way, with quartiles, and the median of the ratios of neighbouring
//! samples.

use std::error::Error;
use std::process::Command;
use std::time::Instant;

use verbcast::World;

const SIZES: [usize; 2] = [8, 64 << 10];
const SAMPLES: usize = 41;
const BROADCASTS: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let sizes: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    if std::env::var_os("VERBCAST_RANK").is_some() {
        return rank(&sizes);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbcast"));
    command.args(["launch", "-n", "2", "--fabric", "shm", "--"]);
    command.arg(std::env::current_exe()?).args(sizes.iter().map(ToString::to_string));
    match command.status()?.success() {
        true => Ok(()),
        false => Err("a rank failed".into()),
    }
}

fn rank(sizes: &[usize]) -> Result<(), Box<dyn Error>> {
    let world = World::from_env()?;
    let communicator = world.communicator();
    for &bytes in sizes {
        let mut plain = world.region(bytes)?;
        let mut prepared = [0, 1].map(|root| {
            let region = world.region(bytes);
            region.map(|region| communicator.prepare_broadcast(region, root))
        });
        let mut samples = Vec::new();
        // The first is not counted.
        for number in 0..=SAMPLES {
            communicator.barrier()?;
            let began = Instant::now();
            for turn in 0..BROADCASTS {
                communicator.broadcast(&mut plain, turn as u32 % 2)?;
            }
            let plain_us = began.elapsed().as_secs_f64() * 1e6 / BROADCASTS as f64;
            communicator.barrier()?;
            let began = Instant::now();
            for turn in 0..BROADCASTS {
                let [one, other] = &mut prepared;
                let of_root = if turn % 2 == 0 { one } else { other };
                let Ok(Ok(of_root)) = of_root else { return Err("not prepared".into()) };
                of_root.start()?;
                of_root.wait()?;
            }
            let persistent_us = began.elapsed().as_secs_f64() * 1e6 / BROADCASTS as f64;
            if number > 0 {
                samples.push([plain_us, persistent_us, persistent_us / plain_us]);
            }
        }
        if world.rank() == 0 {
            let [plain, persistent, ratio] = [0, 1, 2].map(|column| {
                let mut sorted: Vec<f64> = samples.iter().map(|sample| sample[column]).collect();
                sorted.sort_by(f64::total_cmp);
                [sorted[SAMPLES / 4], sorted[SAMPLES / 2], sorted[SAMPLES * 3 / 4]]
            });
            println!(
                "{bytes} B: call {:.2} us ({:.2} to {:.2}), start {:.2} us ({:.2} to {:.2}), {:.3} times",
                plain[1], plain[0], plain[2], persistent[1], persistent[0], persistent[2], ratio[1]
            );
        }
    }
    drop(communicator);
    world.finalize()?;
    Ok(())
}
