//! `verbcast selftest --stop-root`: the root is stopped in the middle of a broadcast, the others give
//! up by their deadline, it goes on: their buffers must not change any more.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use verbcast::{Error, World};

use super::Args;

/// Bytes that have to arrive, as a part of all, before the root is stopped.
const ARRIVED_PART: usize = 8;

/// How long a buffer is watched after its rank gave up.
const WATCHED: Duration = Duration::from_secs(3);

/// Runs this rank's part; whether all is as it should be.
///
/// # Errors
/// If the ranks cannot get as far as the broadcast.
pub(super) fn test(world: &World, args: &Args) -> Result<bool, Error> {
    let mut pid = std::process::id().to_le_bytes();
    world.communicator().broadcast(&mut pid, 0)?;
    let root = Pid::from_raw(u32::from_le_bytes(pid).cast_signed());
    let bytes = args.sizes.iter().copied().max().unwrap_or(0);
    // Fresh memory: that pages of it appear tells that bytes arrive.
    let mut buffer = vec![0; bytes];
    if world.rank() == 0 {
        buffer.fill(1);
    }
    println!("pid {}", std::process::id());
    world.agree_all(None)?;
    if world.rank() == 1 {
        std::thread::spawn(move || stop_when_arriving(root, bytes));
    }
    let call = world.communicator();
    let call = call.broadcast_call(0).block_bytes(args.block_bytes.unwrap_or(64 << 10));
    let outcome = match world.rank() {
        // Whether it still gets its bytes away does not matter.
        0 => call.run(&mut buffer),
        _ => call.deadline(Duration::from_secs(args.deadline)).run(&mut buffer),
    };
    if world.rank() == 0 {
        println!("continued: {outcome:?}");
        return Ok(true);
    }
    let Err(error) = outcome else {
        println!("the broadcast was over before the root could be stopped");
        return Ok(false);
    };
    let before = buffer.clone();
    let arrived = before.iter().filter(|byte| **byte == 1).count();
    println!("gave up with {arrived} of {bytes} bytes: {error}");
    let watched = Instant::now();
    while watched.elapsed() < WATCHED {
        if buffer != before {
            println!("the buffer changed after it was handed back");
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("unchanged");
    Ok(true)
}

/// Stops `root` when a part of `bytes` has come into this process's memory.
fn stop_when_arriving(root: Pid, bytes: usize) {
    let start = resident_bytes();
    while resident_bytes() < start + bytes / ARRIVED_PART {
        std::hint::spin_loop();
    }
    let stopped = kill(root, Signal::SIGSTOP);
    println!("stopped the root: {stopped:?}");
}

fn resident_bytes() -> usize {
    const PAGE_BYTES: usize = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}
