// SPDX-License-Identifier: Apache-2.0

//! Many windows together: totals, and how far they can be trusted.
//!
//! # Idea
//!
//! The sums of all windows are added up and the gaps are ratios of these totals, so they still multiply
//! to the slowdown, and a window with little work weighs little. How much the ratios owe to the windows
//! that happened to be seen is asked by the bootstrap: draw as many windows with replacement, add them
//! up, form the ratios, a thousand times; the middle 95 % are the interval.
//!
//! # Defaults
//!
//! A thousand draws place the ends of a 95 % interval to about a tenth of its width. It needs two
//! windows: one window drawn from itself never varies, which would look like certainty. Of more than
//! [`UNITS`] windows, neighbours are drawn together, which keeps a long run as cheap as a short one.
//! Neighbouring windows share a load and resemble each other, so the interval is rather too narrow than
//! too wide.
//! It speaks of sampling alone, not of the bounds of large windows: those are in [`Estimate::bounds`].
//!
//! # Source
//!
//! The percentile bootstrap, Efron 1979, with windows as units; with several in one, Künsch 1989.

use std::collections::BTreeMap;

use rand::Rng;
use regime_core::Millis;
use serde::Serialize;

use crate::{Estimate, GapIntervals, GapSplit, Interval, Method, NoEstimate, WindowSums};

/// Draws of the bootstrap.
const RESAMPLES: usize = 1_000;
/// Most units that are drawn from.
const UNITS: usize = 256;
/// Share of the draws outside the interval, on each side.
const TAIL: f64 = 0.025;

/// What many windows say together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Windows with an estimate.
    pub windows: usize,
    /// Those of them whose optimum is exact.
    pub exact: usize,
    /// The sums of these windows and their ratios; absent without such a window, or when a sum reaches
    /// [`Millis::LIMIT`].
    pub total: Option<Estimate>,
    /// 95 % intervals of the ratios; absent with fewer than two windows.
    pub interval: Option<GapIntervals>,
    /// Windows without an estimate, by [`NoEstimate::name`].
    pub without_estimate: BTreeMap<&'static str, usize>,
}

/// Add up windows. The same `rng` state gives the same intervals.
pub fn summarise<'a>(
    windows: impl IntoIterator<Item = &'a Result<Estimate, NoEstimate>>,
    rng: &mut impl Rng,
) -> Summary {
    let mut estimates = Vec::new();
    let mut without_estimate = BTreeMap::new();
    for window in windows {
        match window {
            Ok(estimate) => estimates.push(estimate),
            Err(reason) => *without_estimate.entry(reason.name()).or_insert(0) += 1,
        }
    }
    let exact = |estimate: &&&Estimate| estimate.method == Method::Exact;
    Summary {
        windows: estimates.len(),
        exact: estimates.iter().filter(exact).count(),
        total: total(estimates.iter().copied()),
        interval: bootstrap(&estimates, rng),
        without_estimate,
    }
}

/// Windows as one: sums of sums, and their ratios. Absent without a window, or when a sum reaches
/// [`Millis::LIMIT`].
pub fn total<'a>(estimates: impl IntoIterator<Item = &'a Estimate>) -> Option<Estimate> {
    let estimates: Vec<_> = estimates.into_iter().collect();
    let sums = added(estimates.iter().map(|estimate| estimate.sums));
    let method = if estimates
        .iter()
        .all(|estimate| estimate.method == Method::Exact)
    {
        Method::Exact
    } else {
        Method::Bounded {
            optimum_low: estimates
                .iter()
                .map(|estimate| estimate.optimum_low())
                .sum(),
            optimum_high: sums.optimum,
        }
    };
    let requests = estimates.iter().map(|estimate| estimate.requests).sum();
    Estimate::new(requests, sums, method).ok()
}

fn bootstrap(estimates: &[&Estimate], rng: &mut impl Rng) -> Option<GapIntervals> {
    if estimates.len() < 2 {
        return None;
    }
    let together = estimates.len().div_ceil(UNITS);
    let units = estimates.chunks(together);
    let units: Vec<_> = units
        .map(|unit| added(unit.iter().map(|estimate| estimate.sums)))
        .collect();
    let mut draw = || {
        let picks = (0..units.len()).map(|_| rng.random_range(0..units.len()));
        GapSplit::new(added(picks.map(|pick| units[pick]))).ok()
    };
    let draws: Option<Vec<GapSplit>> = (0..RESAMPLES).map(|_| draw()).collect();
    let draws = draws?;
    Some(GapIntervals::of(|ratio| {
        middle(draws.iter().map(ratio).collect())
    }))
}

/// The values without a [`TAIL`] of them on each side; `values` is not empty.
fn middle(mut values: Vec<f64>) -> Interval {
    values.sort_by(f64::total_cmp);
    let cut = (values.len() as f64 * TAIL) as usize;
    Interval {
        low: values[cut],
        high: values[values.len() - 1 - cut],
    }
}

fn added(sums: impl Iterator<Item = WindowSums>) -> WindowSums {
    let zero = WindowSums {
        actual: Millis::ZERO,
        chosen: Millis::ZERO,
        optimum: Millis::ZERO,
        alone: Millis::ZERO,
    };
    sums.fold(zero, |total, sums| WindowSums {
        actual: total.actual + sums.actual,
        chosen: total.chosen + sums.chosen,
        optimum: total.optimum + sums.optimum,
        alone: total.alone + sums.alone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    type Window = Result<Estimate, NoEstimate>;

    fn window(actual: u32, chosen: u32, optimum: u32, alone: u32) -> Window {
        bounded(actual, chosen, (optimum, optimum), alone, true)
    }

    fn bounded(
        actual: u32,
        chosen: u32,
        (low, high): (u32, u32),
        alone: u32,
        exact: bool,
    ) -> Window {
        let millis = |value| Millis::new(f64::from(value));
        let sums = WindowSums {
            actual: millis(actual),
            chosen: millis(chosen),
            optimum: millis(high),
            alone: millis(alone),
        };
        let method = if exact {
            Method::Exact
        } else {
            Method::Bounded {
                optimum_low: millis(low),
                optimum_high: millis(high),
            }
        };
        Estimate::new(3, sums, method)
    }

    fn summary(windows: &[Window]) -> Summary {
        summarise(windows, &mut Pcg64Mcg::seed_from_u64(7))
    }

    #[test]
    fn totals_are_ratios_of_sums() {
        let summary = summary(&[window(60, 30, 20, 10), window(40, 30, 30, 30)]);
        let total = summary.total.unwrap();
        assert_eq!((total.requests, total.method), (6, Method::Exact));
        // 100 / 60, 60 / 50, 50 / 40, 100 / 40, 100 / 50.
        assert_eq!(total.gap.temporal, 100.0 / 60.0);
        assert_eq!((total.gap.policy, total.gap.overload), (1.2, 1.25));
        assert_eq!((total.gap.slowdown, total.poa_hat), (2.5, 2.0));
    }

    #[test]
    fn windows_that_are_all_alike_leave_no_doubt() {
        let interval = summary(&[window(60, 30, 20, 10), window(60, 30, 20, 10)]).interval;
        let point = |value| Interval {
            low: value,
            high: value,
        };
        let expected = GapIntervals {
            slowdown: point(6.0),
            policy: point(1.5),
            temporal: point(2.0),
            overload: point(2.0),
            poa_hat: point(3.0),
        };
        assert_eq!(interval, Some(expected));
    }

    #[test]
    fn two_windows_that_differ_span_the_interval() {
        // A draw is both times the first, a mixture, or both times the second: 1 : 2 : 1.
        let interval = summary(&[window(20, 20, 20, 20), window(80, 40, 20, 10)]).interval;
        let Interval { low, high } = interval.unwrap().policy;
        assert_eq!((low, high), (1.0, 2.0));
        let Interval { low, high } = interval.unwrap().poa_hat;
        assert_eq!((low, high), (1.0, 4.0));
    }

    #[test]
    fn of_many_windows_neighbours_are_drawn_together() {
        // In pairs all are alike.
        let pair = [window(20, 20, 20, 20), window(80, 40, 20, 10)];
        let windows: Vec<Window> = pair.iter().cycle().take(2 * UNITS).cloned().collect();
        let Interval { low, high } = summary(&windows).interval.unwrap().policy;
        assert_eq!((low, high), (1.5, 1.5));
    }

    #[test]
    fn an_interval_needs_two_windows() {
        assert_eq!(summary(&[window(60, 30, 20, 10)]).interval, None);
    }

    #[test]
    fn no_window_has_no_total() {
        let summary = summary(&[]);
        assert_eq!((summary.windows, summary.total), (0, None));
    }

    #[test]
    fn windows_without_estimate_are_counted_by_reason_and_weigh_nothing() {
        let zero = || window(0, 0, 0, 0);
        let good = window(60, 30, 20, 10);
        let summary = summary(&[zero(), good, Err(NoEstimate::NoRequests), zero()]);
        let expected = [("no_requests", 1), ("not_positive", 2)];
        assert_eq!(summary.without_estimate, BTreeMap::from(expected));
        assert_eq!((summary.windows, summary.exact), (1, 1));
        assert_eq!(summary.total.unwrap().gap.policy, 1.5);
    }

    #[test]
    fn bounds_of_large_windows_add_up_with_exact_ones() {
        let large = bounded(60, 30, (15, 20), 10, false);
        let summary = summary(&[large, window(60, 30, 20, 10)]);
        let total = summary.total.unwrap();
        let expected = Method::Bounded {
            optimum_low: Millis::new(35.0),
            optimum_high: Millis::new(40.0),
        };
        assert_eq!((total.method, summary.exact), (expected, 1));
        let Interval { low, high } = total.bounds().policy;
        assert_eq!((low, high), (60.0 / 40.0, 60.0 / 35.0));
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let windows: Vec<Window> = (1..20)
            .map(|i| window(90 + i, 40 + i, 20 + i, 10))
            .collect();
        assert_eq!(summary(&windows), summary(&windows));
    }

    proptest! {
        #[test]
        fn the_gaps_of_totals_multiply_to_the_slowdown_and_never_fall_below_one(
            parts in proptest::collection::vec((1_u32..500, 0_u32..500, 0_u32..500, 1_u32..2_000), 1..20),
        ) {
            let windows: Vec<Window> = parts
                .into_iter()
                .map(|(alone, queued, missed, actual)| {
                    window(actual, alone + queued + missed, alone + queued, alone)
                })
                .collect();
            let gap = summary(&windows).total.unwrap().gap;
            prop_assert!(gap.policy >= 1.0 && gap.overload >= 1.0);
            let product = gap.policy * gap.temporal * gap.overload;
            prop_assert!((product - gap.slowdown).abs() <= 1e-12 * gap.slowdown);
        }
    }
}
