//! Scatter, gather and allgather over verbs on the strict fake, each rank a thread with a host of its
//! own; contents compared byte for byte, and no rule of the fake broken.

mod support;

use support::{on_fake, operations, seed};
use verbcast_transport::verbs::fake::{FakeNetwork, FakeSettings};

#[test]
fn equal_parts() {
    let seed = seed();
    for (ranks, lanes) in [(2, 1), (3, 4), (5, 2)] {
        let settings = FakeSettings { seed, ..FakeSettings::default() };
        let network = FakeNetwork::roce(ranks as usize, 1, settings);
        on_fake(&network, ranks, lanes).run(operations::even);
        assert_eq!(network.violations(), [], "{ranks} ranks, {lanes} lanes");
    }
}

#[test]
fn parts_of_different_lengths_over_two_rails_and_partial_posts() {
    let seed = seed();
    let settings = FakeSettings { seed, partial_post_percent: 30, ..FakeSettings::default() };
    for ranks in [2, 4] {
        let network = FakeNetwork::roce(ranks as usize, 2, settings);
        on_fake(&network, ranks, 4).run(|world| operations::uneven(world, seed, 60));
        assert_eq!(network.violations(), [], "{ranks} ranks");
    }
}

#[test]
fn different_counts_are_an_error_that_names_both() {
    let settings = FakeSettings { seed: seed(), ..FakeSettings::default() };
    operations::different_counts(&on_fake(&FakeNetwork::roce(3, 1, settings), 3, 2));
}
