// SPDX-License-Identifier: Apache-2.0

//! Random draws of the generators, each from a seeded stream.
//!
//! Arrivals and contents have streams of their own: a change to one leaves the other as it was.

use std::ops::RangeInclusive;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// The streams of one workload.
pub(crate) struct Streams {
    /// When sessions start.
    pub(crate) arrivals: Pcg64,
    /// What they hold.
    pub(crate) contents: Pcg64,
}

impl Streams {
    pub(crate) fn new(seed: u64) -> Self {
        let mut root = Pcg64::seed_from_u64(seed);
        Self {
            arrivals: Pcg64::from_rng(&mut root),
            contents: Pcg64::from_rng(&mut root),
        }
    }
}

/// Every length of the range is as likely.
pub(crate) fn uniform(rng: &mut Pcg64, range: RangeInclusive<u32>) -> u32 {
    rng.random_range(range)
}

/// Every doubling is as likely: the range starts at 1 or above.
pub(crate) fn log_uniform(rng: &mut Pcg64, range: RangeInclusive<u32>) -> u32 {
    let (low, high) = (f64::from(*range.start()).ln(), f64::from(*range.end()).ln());
    let drawn = (low + (high - low) * rng.random::<f64>()).exp().round() as u32;
    drawn.clamp(*range.start(), *range.end())
}

/// Exponential with this mean: the gaps of a Poisson process.
pub(crate) fn exponential(rng: &mut Pcg64, mean: f64) -> f64 {
    // 1 - u is in (0, 1], so the logarithm is finite.
    -mean * (1.0 - rng.random::<f64>()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_doubling_of_a_log_uniform_range_gets_its_share() {
        let mut rng = Streams::new(1).contents;
        let drawn: Vec<u32> = (0..8_000)
            .map(|_| log_uniform(&mut rng, 64..=1024))
            .collect();
        assert!(drawn.iter().all(|length| (64..=1024).contains(length)));
        // Of the four doublings from 64 to 1024 one is 64..128: a quarter, within four standard errors.
        let first = drawn.iter().filter(|length| **length < 128).count() as f64 / 8_000.0;
        assert!((first - 0.25).abs() < 0.02, "{first}");
    }

    #[test]
    fn exponential_gaps_have_their_mean_and_are_never_negative() {
        let mut rng = Streams::new(1).arrivals;
        let drawn: Vec<f64> = (0..10_000).map(|_| exponential(&mut rng, 50.0)).collect();
        assert!(drawn.iter().all(|gap| *gap >= 0.0 && gap.is_finite()));
        // The standard error of the mean is 50 / 100.
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 50.0).abs() < 2.0, "{mean}");
    }
}
