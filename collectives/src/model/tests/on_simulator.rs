//! The choices, run on the simulator, at sizes that no form was fitted to.

use super::*;

/// What a choice takes: the simulated time, L + o more for the grants where there are any, in ps.
fn time_of(profile: &FabricProfile, task: &Task, choice: &Choice) -> f64 {
    let path = profile.path();
    let shape = choice.shape(task, 0).unwrap();
    let costs = if choice.is_eager {
        path.costs().eager(task.bytes, profile.copy_bytes_per_second())
    } else {
        path.costs()
    };
    let simulated =
        simulated_ps(costs, choice.algorithm, shape, task.bytes, choice.block_bytes) as f64;
    let grant_ps = if choice.is_eager { 0 } else { costs.latency_ps + costs.overhead_ps };
    simulated + grant_ps as f64
}

/// The best simulated time over all algorithms, each in its best number of blocks and in half and
/// twice as many.
fn best_of_all(profile: &FabricProfile, task: &Task) -> (f64, Choice) {
    let mut all = Vec::new();
    for choice in compare(profile, *task, Demand::default()).unwrap() {
        all.push(choice);
        let sizes = [choice.block_bytes / 2, choice.block_bytes * 2, task.bytes];
        for block_bytes in sizes.into_iter().filter(|&size| size >= 4096 && size <= task.bytes) {
            let demand = Demand {
                algorithm: Some(choice.algorithm),
                block_bytes: Some(block_bytes),
                ..Demand::default()
            };
            all.extend(select_for(profile, *task, demand));
        }
    }
    let times = all.into_iter().map(|choice| (time_of(profile, task, &choice), choice));
    times.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn the_chosen_takes_at_most_a_tenth_more_than_the_best() {
    let mut rng = test_seed::rng("the_chosen_takes_at_most_a_tenth_more_than_the_best");
    let (mut points, mut worst) = (0, 1.0);
    for profile in PROFILES {
        for ranks in RANKS {
            for bits in 3..=28 {
                let is_sampled = ranks <= 64 && rng.u32(0..40) == 0;
                if !is_full() && !is_sampled {
                    continue;
                }
                let bytes = (1 << bits) + rng.u64(0..1 << bits);
                let task = broadcast(ranks, bytes.min(256 << 20));
                let chosen = select_for(&profile, task, Demand::default()).unwrap();
                let time = time_of(&profile, &task, &chosen);
                let (best, by) = best_of_all(&profile, &task);
                let ratio = time / best;
                points += 1;
                worst = f64::max(worst, ratio);
                assert!(ratio <= 1.10, "{ratio}: {task:?}: {chosen:?} but {by:?}, {profile:?}");
            }
        }
    }
    println!("{points} points, the worst {worst:.4}");
}

#[test]
fn doubling_the_size_never_takes_much_more_than_twice() {
    let mut rng = test_seed::rng("doubling_the_size_never_takes_much_more_than_twice");
    let mut worst = 0.0;
    for profile in PROFILES {
        for ranks in RANKS {
            let fraction = rng.f64();
            let mut before = None;
            for bits in 3..=28 {
                if !is_full() && rng.u32(0..if ranks > 64 { 12 } else { 5 }) > 0 {
                    before = None;
                    continue;
                }
                let time = |bits: u32| {
                    let bytes = ((1_u64 << bits) as f64 * (1.0 + fraction)) as u64;
                    let task = broadcast(ranks, bytes);
                    let chosen = select_for(&profile, task, Demand::default()).unwrap();
                    time_of(&profile, &task, &chosen)
                };
                let less = before.unwrap_or_else(|| time(bits - 1));
                let now = time(bits);
                worst = f64::max(worst, now / less);
                assert!(now <= 2.3 * less, "N = {ranks}, 2^{bits} (1 + {fraction}): {now} {less}");
                before = Some(now);
            }
        }
    }
    println!("the worst {worst:.4}");
}

/// Where the choice changes to the circulant tree with several blocks for good, in bytes.
fn switch_to_blocks(ranks: u32, path: PathProfile) -> f64 {
    let profile = FabricProfile { network: Some(path), ..FabricProfile::default() };
    let has_blocks = |bytes: u64| {
        let choice = select(ranks, bytes, &profile, Demand::default()).unwrap();
        choice.algorithm == Algorithm::PipelinedTree && choice.blocks > 1
    };
    // Sizes a hundredth apart, from the largest down.
    let mut bytes = (1_u64 << 40) as f64;
    while bytes > 8.0 && has_blocks(bytes as u64) {
        bytes *= 0.99;
    }
    bytes
}

#[test]
fn ten_times_alpha_moves_switch_points_about_ten_times() {
    for ranks in [7, 8, 16, 33, 64] {
        // alpha is L and g together here, both times ten: the same curve, ten times as far along in
        // bytes and in time, but for the least block.
        let path = PathProfile {
            eager_limit_bytes: 0,
            ..PathProfile::adapter(150_000, 20_000, 12_500_000_000)
        };
        let slow = PathProfile { latency_ns: 1_500_000, gap_ns: 200_000, ..path };
        println!("{} {}", switch_to_blocks(ranks, slow), switch_to_blocks(ranks, path));
        let ratio = switch_to_blocks(ranks, slow) / switch_to_blocks(ranks, path);
        assert!((8.0..12.5).contains(&ratio), "N = {ranks}: {ratio}");
    }
}
