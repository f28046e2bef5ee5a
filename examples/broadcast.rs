//! A table from rank 0 to every rank, twice: plainly, and with every option.
//!
//! ```sh
//! cargo build --release --example broadcast
//! target/release/verbcast launch -n 4 -- target/release/examples/broadcast
//! ```

use std::time::Duration;

use verbcast::{Algorithm, World};

fn main() -> Result<(), verbcast::Error> {
    let world = World::from_env()?;
    let everyone = world.communicator();

    // Any memory will do; it is registered for the length of the call where verbs are in use.
    let mut table = vec![0_u8; 1 << 20];
    if world.rank() == 0 {
        table.fill(7);
    }
    everyone.broadcast(&mut table, 0)?;
    assert!(table.iter().all(|byte| *byte == 7));

    // A region is registered once, for any number of broadcasts.
    let mut region = world.region(8 << 20)?;
    let root = world.size() - 1;
    for round in 1..=3 {
        if world.rank() == root {
            region.fill(round);
        }
        everyone
            .broadcast_call(root)
            .algorithm(Algorithm::PipelinedTree)
            .block_bytes(256 << 10)
            .deadline(Duration::from_secs(30))
            .run(&mut region)?;
        assert!(region.iter().all(|byte| *byte == round));
    }
    println!(
        "rank {} of {} has it, over {}",
        world.rank(),
        world.size(),
        world.fabric_description()
    );
    world.finalize()
}
