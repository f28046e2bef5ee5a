//! 64 MiB to 4 ranks over shared memory, beside three plain copies of 64 MiB in the same run.
//!
//! `cargo bench --bench broadcast_shm` (`--no-default-features` where cmake or libclang are
//! missing). The slowest rank of each round counts; medians and spread are printed, and the ratio:
//! 1.0 would be what one core does that only copies.

use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

const BYTES: usize = 64 << 20;
const ROUNDS: usize = 9;
const RANKS: &str = "4";

fn main() -> Result<(), Box<dyn Error>> {
    let copies = three_copies();
    print_row("3 x memcpy of 64 MiB", &copies, copies[ROUNDS / 2]);
    let program = env!("CARGO_BIN_EXE_verbcast");
    let mut command = Command::new(program);
    command.args(["launch", "-n", RANKS, "--fabric", "shm", "--", program, "selftest", "--region"]);
    command.args(["--roots", "0", "--warm-up", "2"]);
    command.args(["--sizes", &BYTES.to_string(), "--rounds", &ROUNDS.to_string()]);
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let mut ranks = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let json = line.split_once("] ").map_or(line, |(_, json)| json);
        let summary: serde_json::Value = serde_json::from_str(json)?;
        let times: Vec<(String, Vec<f64>)> = serde_json::from_value(summary["times_us"].clone())?;
        ranks.push(times);
    }
    for (index, (algorithm, _)) in ranks[0].iter().enumerate() {
        let slowest = |round| ranks.iter().map(|rank| rank[index].1[round]).fold(0.0, f64::max);
        let mut times: Vec<f64> = (0..ROUNDS).map(slowest).collect();
        times.sort_by(f64::total_cmp);
        print_row(algorithm, &times, copies[ROUNDS / 2]);
    }
    Ok(())
}

/// Microseconds, sorted.
fn three_copies() -> Vec<f64> {
    let source = vec![1_u8; BYTES];
    let mut targets = vec![vec![2_u8; BYTES]; 3];
    let mut once = || {
        let began = Instant::now();
        for target in &mut targets {
            target.copy_from_slice(black_box(&source));
            black_box(&target);
        }
        began.elapsed().as_secs_f64() * 1e6
    };
    once();
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| once()).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn print_row(name: &str, sorted_us: &[f64], base_us: f64) {
    let (least, median, most) =
        (sorted_us[0], sorted_us[ROUNDS / 2], sorted_us[sorted_us.len() - 1]);
    println!(
        "{name:22} {median:9.0} us ({least:.0} to {most:.0}), {:5.2} of the copies",
        median / base_us
    );
}
