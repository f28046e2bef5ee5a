//! Shared-memory link between two processes: 8-byte ping-pong and a 64 MiB stream beside memcpy.
//!
//! `cargo bench -p verbcast-transport --no-default-features --bench shm`. All ratios come from one
//! run; the best of several repetitions counts, as other load only ever makes things slower.

use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use verbcast_transport::Error;
use verbcast_transport::shm::ShmSettings;
use verbcast_transport::shm::measure::{Measurement, Waiting};

const BYTES: usize = 64 << 20;
const BLOCK_BYTES: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 8 << 20];
const REPETITIONS: u32 = 9;
/// Set for the process that plays rank 1.
const CASE: &str = "VERBCAST_BENCH_SHM_CASE";

/// A row of the result: name, transfer, way to wait.
const CASES: [(&str, bool, Waiting); 4] = [
    ("pulled, spinning", true, Waiting::Spin),
    ("pulled, sleeping", true, Waiting::Sleep),
    ("through the segment, spinning", false, Waiting::Spin),
    ("through the segment, sleeping", false, Waiting::Sleep),
];

struct Results {
    ping_pong: Duration,
    streams: Vec<Duration>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Ok(case) = std::env::var(CASE) {
        let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        run(case.parse()?, 1, &mut stream)?;
        return Ok(());
    }
    let copy = best_copy();
    println!("memcpy of 64 MiB: {copy:.2?} ({:.2} GB/s)", gigabytes_per_second(copy));
    for (case, (name, ..)) in CASES.into_iter().enumerate() {
        let (mut stream, theirs) = UnixStream::pair()?;
        let mut other = start(case, theirs)?;
        let results = run(case, 0, &mut stream);
        let status = other.wait()?;
        let results = results?;
        if !status.success() {
            return Err(format!("the other side failed: {status}").into());
        }
        println!("\n{name}: half a round trip of 8 bytes {:.2?}", results.ping_pong);
        for (block_bytes, time) in BLOCK_BYTES.into_iter().zip(results.streams) {
            let ratio = time.as_secs_f64() / copy.as_secs_f64();
            println!(
                "  64 MiB in blocks of {:5} KiB: {time:8.2?} ({:.2} GB/s), {ratio:.2} of memcpy's time",
                block_bytes >> 10,
                gigabytes_per_second(time),
            );
        }
    }
    Ok(())
}

fn start(case: usize, stream: UnixStream) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .env(CASE, case.to_string())
        .stdin(Stdio::from(OwnedFd::from(stream)))
        .spawn()
}

fn run(case: usize, rank: u32, stream: &mut UnixStream) -> Result<Results, Error> {
    let (_, cma, waiting) = CASES[case];
    let settings = ShmSettings { cma, ..ShmSettings::new(rank) };
    let mut side = Measurement::join(settings, waiting, stream)?;
    let rounds = if waiting == Waiting::Spin { 20_000 } else { 4_000 };
    let mut ping_pong = Duration::MAX;
    for _ in 0..REPETITIONS {
        ping_pong = ping_pong.min(side.ping_pong(rounds)?);
    }
    let mut buffer = vec![rank as u8 + 1; BYTES];
    let mut streams = Vec::new();
    for block_bytes in BLOCK_BYTES {
        let mut best = Duration::MAX;
        for _ in 0..REPETITIONS {
            best = best.min(side.stream(&mut buffer, block_bytes)?);
        }
        streams.push(best);
    }
    assert!(buffer.iter().all(|byte| *byte == 1), "rank {rank} holds rank 0's bytes");
    Ok(Results { ping_pong, streams })
}

fn best_copy() -> Duration {
    let from = vec![1_u8; BYTES];
    let mut to = vec![2_u8; BYTES];
    let mut best = Duration::MAX;
    for _ in 0..REPETITIONS {
        let begun = Instant::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        best = best.min(begun.elapsed());
    }
    best
}

fn gigabytes_per_second(time: Duration) -> f64 {
    BYTES as f64 / time.as_secs_f64() / 1e9
}
