//! Scatter, gather and allgather over verbs on the strict fake, each rank a thread with a host of its
//! own; contents compared byte for byte, and no rule of the fake broken.

mod support;

use std::sync::Arc;

use support::{MakeDriver, Setup, operations};
use verbcast_transport::verbs::fake::{FakeNetwork, FakeSettings};

fn setup(network: &FakeNetwork, ranks: u32, lanes: u32) -> Setup {
    let network = network.clone();
    let driver: MakeDriver = Arc::new(move |rank| network.driver(rank as usize));
    Setup { lanes: Some(lanes), driver: Some(driver), ..Setup::shm(ranks) }
}

fn seed() -> u64 {
    let given = std::env::var("VERBCAST_TEST_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("replay with VERBCAST_TEST_SEED={seed}");
    seed
}

#[test]
fn equal_parts() {
    let seed = seed();
    for (ranks, lanes) in [(2, 1), (3, 4), (5, 2)] {
        let settings = FakeSettings { seed, ..FakeSettings::default() };
        let network = FakeNetwork::roce(ranks as usize, 1, settings);
        setup(&network, ranks, lanes).run(operations::even);
        assert_eq!(network.violations(), [], "{ranks} ranks, {lanes} lanes");
    }
}

#[test]
fn parts_of_different_lengths_over_two_rails_and_partial_posts() {
    let seed = seed();
    let settings = FakeSettings { seed, partial_post_percent: 30, ..FakeSettings::default() };
    for ranks in [2, 4] {
        let network = FakeNetwork::roce(ranks as usize, 2, settings);
        setup(&network, ranks, 4).run(|world| operations::uneven(world, seed, 60));
        assert_eq!(network.violations(), [], "{ranks} ranks");
    }
}
