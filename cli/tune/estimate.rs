//! A number from many measurements, with the bounds between which it lies.

use serde::Serialize;

/// A median with its bounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Estimate {
    /// The median of the measurements.
    pub(crate) value: f64,
    /// The median of whatever is measured is not below this, with 95 % confidence.
    pub(crate) low: f64,
    /// Nor above this.
    pub(crate) high: f64,
    /// How many measurements there were.
    pub(crate) samples: usize,
}

/// The two-sided 95 % point of the normal distribution.
const Z: f64 = 1.96;

impl Estimate {
    /// Of these measurements; of none it is 0.
    ///
    /// The bounds are order statistics, so they hold for any distribution: the number of
    /// measurements below the true median is binomial with mean n / 2 and deviation sqrt(n) / 2
    /// (W. J. Conover, "Practical Nonparametric Statistics", 3rd edition, section 3.2). With fewer than
    /// six measurements no two of them have that confidence: the bounds are then the extremes.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        samples.retain(|sample| sample.is_finite());
        samples.sort_by(f64::total_cmp);
        let count = samples.len();
        let Some(last) = count.checked_sub(1) else {
            return Self { value: 0.0, low: 0.0, high: 0.0, samples: 0 };
        };
        let half = count as f64 / 2.0;
        let spread = Z * (count as f64).sqrt() / 2.0;
        let low = (half - spread).floor().max(0.0) as usize;
        let high = ((half + spread).ceil() as usize).min(last);
        Self {
            value: f64::midpoint(samples[last / 2], samples[count / 2]),
            low: samples[low.min(last)],
            high: samples[high],
            samples: count,
        }
    }

    /// The estimate of a rising function of it.
    pub(crate) fn map(self, function: impl Fn(f64) -> f64) -> Self {
        let Self { value, low, high, samples } = self;
        let (low, high) = (function(low), function(high));
        // A falling function turns the bounds round.
        Self { value: function(value), low: low.min(high), high: low.max(high), samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_hold_the_median_nineteen_times_of_twenty() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        // Skewed, as times are: the median of the square of a uniform number is a quarter.
        let runs = 2000;
        let inside = (0..runs)
            .filter(|_| {
                let samples = (0..50).map(|_| rng.f64().powi(2)).collect();
                let Estimate { low, high, .. } = Estimate::of(samples);
                (low..=high).contains(&0.25)
            })
            .count();
        // At least 95 % of the time in theory; 5 standard deviations less fail.
        assert!(inside as f64 > 0.925 * f64::from(runs), "{inside} of {runs}");
    }

    #[test]
    fn few_and_odd_measurements_do_no_harm() {
        assert_eq!(Estimate::of(Vec::new()).samples, 0);
        let one = Estimate::of(vec![3.0, f64::NAN]);
        assert_eq!((one.low, one.value, one.high, one.samples), (3.0, 3.0, 3.0, 1));
        let inverse = Estimate::of(vec![1.0, 2.0, 4.0]).map(|value| 1.0 / value);
        assert_eq!((inverse.low, inverse.value, inverse.high), (0.25, 0.5, 1.0));
    }
}
