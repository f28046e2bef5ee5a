//! Seeds of the randomised tests: fresh in each run, printed, and replayable.

/// The variable that replays a seed which a failed test has printed.
const VARIABLE: &str = "VERBCAST_TEST_SEED";

/// A generator whose seed is printed; the output of a failed test shows it.
pub(crate) fn rng(test: &str) -> fastrand::Rng {
    let seed = match std::env::var(VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VARIABLE}={text} is not a number")),
        Err(_) => fastrand::u64(..),
    };
    println!("{test}: replay with {VARIABLE}={seed}");
    fastrand::Rng::with_seed(seed)
}
