//! A training loop in outline: the parameters go from rank 0 to all others in every step, from memory
//! that is registered once, and a rank that cannot go on tells all others why.
//!
//! ```sh
//! cargo build --release --example parameters
//! verbcast launch -n 4 -- target/release/examples/parameters 64
//! ```

use std::time::{Duration, Instant};

use verbcast::{Error, World};

const STEPS: u8 = 10;

/// A step that takes longer is given up, on every rank.
const STEP_DEADLINE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    // Every rank checks its own arguments, and all go on or none.
    let mebibytes = std::env::args().nth(1).map_or(Ok(16), |text| text.parse::<usize>());
    let failure = mebibytes.as_ref().err().map(|error| format!("MEBIBYTES: {error}"));
    world.agree_all(failure)?;
    let bytes = mebibytes.unwrap_or_default() << 20;

    let everyone = world.communicator();
    let mut parameters = world.region(bytes)?;
    let mut longest = Duration::ZERO;
    for step in 0..STEPS {
        if world.rank() == 0 {
            parameters.fill(step);
        }
        let started = Instant::now();
        everyone.broadcast_call(0).deadline(STEP_DEADLINE).run(&mut parameters)?;
        longest = longest.max(started.elapsed());
        if !parameters.iter().all(|byte| *byte == step) {
            world.abort("the parameters are wrong");
        }
    }
    if world.rank() == 0 {
        let choice = everyone.broadcast_call(0).choice(bytes as u64)?;
        println!(
            "{STEPS} steps of {bytes} bytes over {}, {} in blocks of {} bytes; the longest took \
             {longest:?}",
            world.fabric_description(),
            choice.algorithm,
            choice.block_bytes
        );
    }
    world.finalize()
}
