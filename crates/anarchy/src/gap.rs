// SPDX-License-Identifier: Apache-2.0

//! The slowdown of a window, split into the router's fault, bad timing, and overload.
//!
//! # Idea
//!
//! Requests are slower than they would be alone for three reasons, and only the first is the router's.
//! The choice was not the best one for the state that the router saw (policy gap). The state changed
//! after the choice, or the forecast was wrong (temporal gap). Even the best assignment has to queue
//! (overload). Each is a ratio of two sums over the same requests, and neighbouring sums cancel:
//!
//! ```text
//!   actual     chosen     actual     optimum
//!   ──────  =  ───────  ·  ──────  ·  ───────
//!   alone      optimum    chosen     alone
//! ```
//!
//! # Defaults
//!
//! Sums, not means of ratios: one tiny request that waited must not outweigh a hundred long ones. A
//! ratio needs two positive sums. With a zero there is no estimate, rather than a perfect 1 or an
//! infinity: a window in which nothing costs anything says nothing about the router.
//!
//! # Source
//!
//! The Price of Anarchy of the paper compares realised latency with the optimum of a frozen matrix,
//! which is policy gap × temporal gap. Field reports BR-14 and BR-19.

use regime_core::Millis;
use serde::Serialize;

use crate::NoEstimate;

/// Sums over the requests of one window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WindowSums {
    /// What the requests really took.
    pub actual: Millis,
    /// What the chosen assignment was predicted to take.
    pub chosen: Millis,
    /// What the best assignment was predicted to take, in the same matrix.
    pub optimum: Millis,
    /// What the requests were predicted to take each alone on its best worker, idle.
    pub alone: Millis,
}

/// `slowdown = policy × temporal × overload`, each a positive ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GapSplit {
    /// Actual over alone.
    pub slowdown: f64,
    /// Chosen over optimum, at least 1: what a better choice would have saved.
    pub policy: f64,
    /// Actual over chosen: what happened after the choice. Below 1 when the forecast was too high.
    pub temporal: f64,
    /// Optimum over alone, at least 1: what no router can fix.
    pub overload: f64,
}

impl GapSplit {
    /// Split the slowdown of one window.
    ///
    /// # Errors
    ///
    /// [`NoEstimate::SumTooLarge`] names the first sum at [`Millis::LIMIT`], where sums stop growing;
    /// [`NoEstimate::NotPositive`] names the first sum that is zero or negative;
    /// [`NoEstimate::OutOfOrder`] when the sums do not satisfy alone ≤ optimum ≤ chosen.
    pub fn new(sums: WindowSums) -> Result<Self, NoEstimate> {
        let WindowSums {
            actual,
            chosen,
            optimum,
            alone,
        } = sums;
        let named = [
            (actual, "actual"),
            (chosen, "chosen"),
            (optimum, "optimum"),
            (alone, "alone"),
        ];
        if let Some((_, sum)) = named
            .into_iter()
            .find(|(sum, _)| sum.get() >= Millis::LIMIT)
        {
            return Err(NoEstimate::SumTooLarge { sum });
        }
        if actual <= Millis::ZERO {
            return Err(NoEstimate::NotPositive { sum: "actual" });
        }
        let over = |sum: Millis, base: Millis, name| {
            sum.ratio(base).ok_or(NoEstimate::NotPositive { sum: name })
        };
        let split = Self {
            temporal: over(actual, chosen, "chosen")?,
            policy: over(chosen, optimum, "optimum")?,
            overload: over(optimum, alone, "alone")?,
            slowdown: over(actual, alone, "alone")?,
        };
        if chosen < optimum || optimum < alone {
            return Err(NoEstimate::OutOfOrder);
        }
        Ok(split)
    }

    /// The paper's Price of Anarchy over the window: actual over optimum. Below 1 only when the
    /// requests were faster than the forecast.
    #[must_use]
    pub fn poa_hat(&self) -> f64 {
        self.policy * self.temporal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sums(actual: f64, chosen: f64, optimum: f64, alone: f64) -> WindowSums {
        WindowSums {
            actual: Millis::new(actual),
            chosen: Millis::new(chosen),
            optimum: Millis::new(optimum),
            alone: Millis::new(alone),
        }
    }

    fn not_positive(sum: &'static str) -> Result<GapSplit, NoEstimate> {
        Err(NoEstimate::NotPositive { sum })
    }

    #[test]
    fn the_slowdown_splits_into_three_ratios() {
        let split = GapSplit::new(sums(140.0, 70.0, 56.0, 28.0)).unwrap();
        let expected = GapSplit {
            slowdown: 5.0,
            policy: 1.25,
            temporal: 2.0,
            overload: 2.0,
        };
        assert_eq!(split, expected);
        assert_eq!(split.poa_hat(), 2.5);
    }

    #[test]
    fn a_window_without_contention_has_a_price_of_exactly_one() {
        let split = GapSplit::new(sums(40.0, 40.0, 40.0, 40.0)).unwrap();
        assert_eq!((split.poa_hat(), split.slowdown), (1.0, 1.0));
    }

    #[test]
    fn a_window_in_which_nothing_costs_anything_has_no_estimate() {
        assert_eq!(
            GapSplit::new(sums(0.0, 0.0, 0.0, 0.0)),
            not_positive("actual")
        );
    }

    #[test]
    fn a_zero_sum_is_named_instead_of_divided_by() {
        assert_eq!(
            GapSplit::new(sums(6.0, 6.0, 0.0, 0.0)),
            not_positive("optimum")
        );
        assert_eq!(
            GapSplit::new(sums(6.0, 0.0, 0.0, 0.0)),
            not_positive("chosen")
        );
        assert_eq!(
            GapSplit::new(sums(6.0, 6.0, 6.0, 0.0)),
            not_positive("alone")
        );
    }

    #[test]
    fn sums_of_different_matrices_are_refused() {
        let below_optimum = sums(60.0, 50.0, 56.0, 28.0);
        let above_optimum = sums(60.0, 70.0, 56.0, 57.0);
        for sums in [below_optimum, above_optimum] {
            assert_eq!(GapSplit::new(sums), Err(NoEstimate::OutOfOrder));
        }
    }

    #[test]
    fn a_sum_that_stopped_growing_has_no_ratio() {
        let split = GapSplit::new(sums(1.0, Millis::LIMIT, Millis::LIMIT, 1.0));
        assert_eq!(split, Err(NoEstimate::SumTooLarge { sum: "chosen" }));
    }

    #[test]
    fn a_pessimistic_forecast_shows_as_a_temporal_gap_below_one() {
        let split = GapSplit::new(sums(35.0, 70.0, 56.0, 28.0)).unwrap();
        assert_eq!((split.temporal, split.policy), (0.5, 1.25));
    }

    proptest! {
        #[test]
        fn the_three_gaps_multiply_to_the_slowdown(
            alone in 0.001..1e6,
            actual in 0.001..1e6,
            (waiting, missed) in (0.0..1e6, 0.0..1e6),
        ) {
            let split = GapSplit::new(sums(actual, alone + waiting + missed, alone + waiting, alone));
            let GapSplit { slowdown, policy, temporal, overload } = split.unwrap();
            prop_assert!(policy >= 1.0 && overload >= 1.0);
            let product = policy * temporal * overload;
            prop_assert!((product - slowdown).abs() <= 1e-12 * slowdown);
        }
    }
}
