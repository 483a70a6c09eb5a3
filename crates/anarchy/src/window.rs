// SPDX-License-Identifier: Apache-2.0

//! Price of Anarchy of one window: what the router chose against the best it could have chosen.
//!
//! # Idea
//!
//! A window is a handful of consecutive decisions. Windows are short on purpose: requests that were
//! placed within a quarter of a second compete for the same moment of the same workers, so one static
//! game is a fair picture of them. Over minutes it is not, since early requests are long gone when
//! late ones come. At light load most windows hold one or two requests, which hardly compete; the
//! policy gap is then the regret against an independent yardstick, the shortest predicted latency.
//!
//! The game: a worker makes every request wait for what it already holds, and then serves the requests
//! of the window one after the other. A request in the k-th place from the last delays k − 1 others and
//! itself, so it costs `wait_j + k · own_ij`, and the costs of a worker add up to the sum of the
//! completion times there. Choosing workers and places for the least sum (R||ΣC_j) is an assignment
//! problem, with an exact solution. Waits are frozen at the first row of the window in which the worker
//! appears: later rows count requests of the window itself, which the places count already. Of rows
//! decided at the same microsecond the lowest wait is taken, so that the order of the records does not
//! matter. A worker that is not a candidate of some request cannot take it, in no assignment.
//!
//! The choice of the router is priced in the same game, each worker's requests in their best order,
//! which is the shortest first. So the policy gap is never below 1. A request alone costs its cheapest
//! `own`, which no seat undercuts, so neither is the overload.
//!
//! # Large windows
//!
//! The solver takes time ∝ requests² · seats. Up to [`Estimator::exact_work`] it runs and the estimate
//! is exact. Beyond, the optimum is bounded from both sides:
//!
//! - *Low, by batches.* Cut the window into batches of consecutive decisions and sum up the batches' own
//!   optima, all with the waits of the window. Proof: take the optimal assignment of the window and keep
//!   one batch of it, in the same order. No request has more requests behind it than it had, so no
//!   cost rises. What is kept is one way to place the batch, so the batch's own optimum is
//!   at most its share of the window's, and the shares add up.
//! - *Low, by places.* J workers have J seats at each k. Give the requests, longest cheapest `own` first,
//!   to the seats, lowest k first, each at the lowest wait of all and its cheapest `own`. Proof: every real
//!   assignment uses at most J seats of each k and pays no less at each, and the rearrangement inequality
//!   says that of all pairings of lengths with places this one has the least sum. This bound knows that
//!   a long window queues, which a batch does not.
//! - *High.* Any assignment of all requests is feasible, so its price is at least the optimum. Tried are
//!   the union of the batches' assignments, the longest request first to its cheapest free place, and
//!   the router's own choice; the cheapest of them counts.
//!
//! The larger low bound and the high bound are reported. The point estimate uses the high one: that
//! assignment exists, so the router is charged only with what it provably could have saved, and
//! alone ≤ optimum ≤ chosen still holds, with the split multiplying to the slowdown.
//!
//! # Defaults
//!
//! Everything is rounded to whole microseconds first, so that sums are exact and do not depend on the
//! order of the records, except that the batches of a large window take decisions of the same
//! microsecond as they come. `exact_work` is 2 million, about 5 ms in a release build on one core:
//! that is 16 requests on up to 488 workers, 50 on 16, or 79 on 4. A window of 10,000 requests takes
//! about 0.5 s there on 4 workers and 1 s on 64. Its bounds of the optimum then differ by a few per
//! cent, and by up to a tenth when the services of one request differ widely between workers; on 256
//! workers, each of which gets only 40 requests, by up to a quarter.
//!
//! # Source
//!
//! Γ_R and PoA-hat of the paper. R||ΣC_j as an assignment problem: Bruno, Coffman and Sethi 1974.

mod bounds;
mod collector;
#[cfg(test)]
pub(crate) mod fixtures;
mod game;

use regime_core::{Millis, Timestamp, WorkerKey};

pub use collector::{CollectorConfig, CollectorError, MAX_OPEN, NotCollected, WindowCollector};
pub use game::MAX_FORECAST;

use crate::assignment::as_millis;
use crate::{Estimate, Method, NoEstimate, WindowSums};
use game::{Game, MAX_SOLVED};

/// One candidate as the router saw it at the decision. [`Millis`] turns NaN into zero: where a forecast
/// can be NaN, look before making it one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The worker.
    pub worker: WorkerKey,
    /// Predicted wait on it before service begins; from zero to [`MAX_FORECAST`].
    pub wait: Millis,
    /// Predicted service of this request on it when idle; above zero, up to [`MAX_FORECAST`]. A zero is
    /// how a missing forecast looks, and is refused.
    pub own: Millis,
}

/// One decision, with what came of it. A request that failed has no latency and is left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// When the router chose.
    pub decided_at: Timestamp,
    /// The worker it chose.
    pub chosen: WorkerKey,
    /// The frozen row: every candidate once, the chosen one among them.
    pub candidates: Vec<Candidate>,
    /// What the request took from the decision to its first token. For the latency to its last token see
    /// [`Estimate::end_to_end`], for that from its arrival [`Estimate::from_arrival`].
    pub actual: Millis,
}

/// Estimates windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimator {
    /// Largest window that is solved exactly, as requests² · seats, where each worker offers as many
    /// seats as there are requests. Any value; one request is always solved, and more than 250 never are.
    /// Default 2 million.
    pub exact_work: usize,
}

impl Default for Estimator {
    fn default() -> Self {
        Self {
            exact_work: 2_000_000,
        }
    }
}

impl Estimator {
    /// The Price of Anarchy of one window, the choices in any order.
    ///
    /// # Errors
    ///
    /// Why there is none. Requests in it are positions in `window`.
    pub fn estimate(&self, window: &[Choice]) -> Result<Estimate, NoEstimate> {
        let game = Game::freeze(window)?;
        let chosen = game.chosen();
        let batch = self.exact_requests(game.workers());
        let (method, optimum) = if window.len() <= batch {
            let best = game.optimum(0..window.len())?;
            (Method::Exact, game.price((0..).zip(best)))
        } else {
            let bounds = bounds::optimum(&game, batch)?;
            let method = Method::Bounded {
                optimum_low: as_millis(bounds.low),
                optimum_high: as_millis(bounds.high),
            };
            (method, bounds.high)
        };
        let sums = WindowSums {
            actual: as_millis(game.actual()),
            chosen: as_millis(chosen),
            optimum: as_millis(optimum),
            alone: as_millis(game.alone()),
        };
        Estimate::new(window.len(), sums, method)
    }

    /// Most requests that are solved exactly on so many workers: requests³ · workers is the work.
    fn exact_requests(&self, workers: usize) -> usize {
        let affordable = |requests: &usize| {
            requests.saturating_pow(3).saturating_mul(workers) <= self.exact_work
        };
        (2..=MAX_SOLVED).take_while(affordable).last().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::fixtures::{cheapest, choice, windows};
    use super::*;
    use crate::{Forecast, GapSplit, Interval};
    use proptest::prelude::*;

    const A: u64 = 0;
    const B: u64 = 1;

    fn estimate(window: &[Choice]) -> Result<Estimate, NoEstimate> {
        Estimator::default().estimate(window)
    }

    /// So small that no two requests are solved together.
    const ONE_BY_ONE: Estimator = Estimator { exact_work: 0 };

    fn sums(actual: f64, chosen: f64, optimum: f64, alone: f64) -> WindowSums {
        WindowSums {
            actual: Millis::new(actual),
            chosen: Millis::new(chosen),
            optimum: Millis::new(optimum),
            alone: Millis::new(alone),
        }
    }

    #[test]
    fn two_requests_that_crowd_one_worker_pay_for_it() {
        let row = [Some((0, 10)), Some((0, 15))];
        let window = [choice(0, A, &row, 15), choice(1, A, &row, 30)];
        let estimate = estimate(&window).unwrap();
        // Together on A: 10 and 20. Best apart: 10 and 15. Alone: 10 each.
        assert_eq!(estimate.sums, sums(45.0, 30.0, 25.0, 20.0));
        let GapSplit {
            slowdown,
            policy,
            temporal,
            overload,
        } = estimate.gap;
        assert_eq!(
            (policy, temporal, overload, slowdown),
            (1.2, 1.5, 1.25, 2.25)
        );
        assert_eq!(estimate.poa_hat, 1.2 * 1.5);
        assert_eq!((estimate.requests, estimate.method), (2, Method::Exact));
    }

    #[test]
    fn the_shorter_request_is_served_first() {
        let long = choice(0, A, &[Some((5, 30))], 35);
        let short = choice(1, A, &[Some((5, 10))], 45);
        // The short one ends at 5 + 10, the long one at 5 + 10 + 30.
        let sums = estimate(&[long, short]).unwrap().sums;
        assert_eq!(
            (sums.chosen, sums.optimum),
            (Millis::new(60.0), Millis::new(60.0))
        );
    }

    #[test]
    fn waits_are_those_of_the_first_row_of_each_worker() {
        let window = [
            choice(0, A, &[Some((7, 10)), None], 17),
            choice(1, B, &[Some((17, 10)), Some((3, 10))], 13),
            choice(2, B, &[Some((17, 10)), Some((13, 10))], 23),
        ];
        // A waits 7 and B waits 3: 7 + 10 on A, 3 + 10 and 3 + 20 on B.
        assert_eq!(estimate(&window).unwrap().sums.chosen, Millis::new(53.0));
    }

    #[test]
    fn of_two_first_rows_at_the_same_time_the_lower_wait_counts() {
        let window = [
            choice(0, A, &[Some((17, 10))], 20),
            choice(0, A, &[Some((7, 10))], 20),
        ];
        // 7 + 10 and 7 + 20.
        assert_eq!(estimate(&window).unwrap().sums.chosen, Millis::new(44.0));
    }

    #[test]
    fn a_window_of_one_request_shows_the_regret() {
        let window = [choice(0, B, &[Some((20, 10)), Some((35, 10))], 45)];
        let estimate = estimate(&window).unwrap();
        // 45 was predicted and came; 30 was there to have; 10 alone.
        assert_eq!(estimate.sums, sums(45.0, 45.0, 30.0, 10.0));
        assert_eq!((estimate.gap.policy, estimate.gap.temporal), (1.5, 1.0));
    }

    #[test]
    fn a_worker_that_vanished_takes_no_request_that_does_not_list_it() {
        let window = [
            choice(0, A, &[Some((0, 1)), Some((0, 50))], 1),
            choice(1, B, &[None, Some((0, 50))], 50),
        ];
        // The second request would cost 2 on A, but must go to B.
        let estimate = estimate(&window).unwrap();
        assert_eq!(estimate.sums, sums(51.0, 51.0, 51.0, 51.0));
    }

    #[test]
    fn a_choice_outside_its_own_row_is_named() {
        let window = [
            choice(0, A, &[Some((0, 1)), Some((0, 1))], 1),
            choice(1, A, &[None, Some((0, 1))], 1),
        ];
        let worker = WorkerKey::new(0, 0);
        let expected = NoEstimate::ChosenNoCandidate { request: 1, worker };
        assert_eq!(estimate(&window), Err(expected));
        let no_row = NoEstimate::ChosenNoCandidate { request: 0, worker };
        assert_eq!(estimate(&[choice(0, A, &[], 1)]), Err(no_row));
    }

    #[test]
    fn a_worker_listed_twice_is_named() {
        let mut twice = choice(0, A, &[Some((0, 1))], 1);
        twice.candidates.push(twice.candidates[0]);
        let worker = WorkerKey::new(0, 0);
        let expected = NoEstimate::CandidateTwice { request: 0, worker };
        assert_eq!(estimate(&[twice]), Err(expected));
    }

    #[test]
    fn a_forecast_that_is_not_usable_is_named_with_its_value() {
        let mut window = [
            choice(0, A, &[Some((0, 1))], 1),
            choice(1, A, &[Some((0, 1))], 1),
        ];
        let row = &mut window[1].candidates[0];
        // Infinite, negative, and a zero as NaN leaves it.
        row.wait = Millis::new(f64::INFINITY);
        let error = estimate(&window).unwrap_err();
        assert_eq!(
            error,
            NoEstimate::UnusableForecast {
                request: 1,
                worker: WorkerKey::new(0, 0),
                forecast: Forecast::Wait,
                value: Millis::new(Millis::LIMIT),
            }
        );
        let row = &mut window[1].candidates[0];
        row.wait = Millis::new(-1.0);
        assert_eq!(
            estimate(&window).unwrap_err().to_string(),
            "wait of request 1 on worker 0/0 is -1 ms; allowed: 0 to 3600000 ms"
        );
        let row = &mut window[1].candidates[0];
        (row.wait, row.own) = (Millis::ZERO, Millis::new(f64::NAN));
        assert_eq!(
            estimate(&window).unwrap_err().to_string(),
            "own of request 1 on worker 0/0 is 0 ms; allowed: 0.001 to 3600000 ms"
        );
    }

    #[test]
    fn a_wait_that_rounding_left_below_zero_is_zero() {
        let mut window = [choice(0, A, &[Some((0, 10))], 10)];
        window[0].candidates[0].wait = Millis::new(-1e-9);
        assert_eq!(estimate(&window).unwrap().sums.chosen, Millis::new(10.0));
    }

    #[test]
    fn an_actual_latency_that_is_not_usable_is_named() {
        let window = [
            choice(0, A, &[Some((0, 1))], 1),
            choice(1, A, &[Some((0, 1))], -1),
        ];
        let value = Millis::new(-1.0);
        let expected = NoEstimate::UnusableActual { request: 1, value };
        assert_eq!(estimate(&window), Err(expected));
    }

    #[test]
    fn an_empty_window_has_no_estimate() {
        assert_eq!(estimate(&[]), Err(NoEstimate::NoRequests));
    }

    #[test]
    fn requests_that_took_no_time_have_no_estimate() {
        let window = [choice(0, A, &[Some((0, 1))], 0)];
        assert_eq!(
            estimate(&window),
            Err(NoEstimate::NotPositive { sum: "actual" })
        );
    }

    #[test]
    fn the_largest_forecasts_fit_into_the_largest_solved_window() {
        let hour = MAX_FORECAST.get() as u32;
        let window = vec![choice(0, A, &[Some((hour, hour))], 1); MAX_SOLVED];
        let exact_work = usize::MAX;
        let estimate = Estimator { exact_work }.estimate(&window).unwrap();
        // 250 hours of waiting, and 1 + 2 + … + 250 of service.
        let hours = MAX_FORECAST * f64::from(250 + 250 * 251 / 2);
        assert_eq!(
            (estimate.sums.optimum, estimate.method),
            (hours, Method::Exact)
        );
    }

    #[test]
    fn a_window_of_ten_thousand_requests_has_bounds_within_a_tenth() {
        let window: Vec<Choice> = (0..10_000_u32)
            .map(|i| {
                let own = |worker: u32| 20 + (i * 7919 + worker * 104_729) % 300;
                let row = [0, 1].map(|worker| Some((worker * 50, own(worker))));
                choice(u64::from(i), u64::from(i % 2), &row, 100)
            })
            .collect();
        // Batches of 16 keep an unoptimised build fast.
        let exact_work = 16 * 16 * 16 * 2;
        let estimate = Estimator { exact_work }.estimate(&window).unwrap();
        let Method::Bounded {
            optimum_low,
            optimum_high,
        } = estimate.method
        else {
            panic!("10,000 requests are too many to solve");
        };
        assert_eq!(optimum_high, estimate.sums.optimum);
        assert!(optimum_low >= optimum_high * 0.9, "{:?}", estimate.method);
    }

    #[test]
    fn the_point_estimate_of_bounds_charges_the_router_with_the_least() {
        let row = [Some((0, 10)), Some((0, 12))];
        let window = [choice(0, A, &row, 15), choice(1, A, &row, 21)];
        let estimate = ONE_BY_ONE.estimate(&window).unwrap();
        // One by one both cost 10; by places, two seats at k = 1, 10 each. High: 10 and 12 apart.
        assert_eq!(estimate.optimum_low(), Millis::new(20.0));
        assert_eq!(estimate.sums.optimum, Millis::new(22.0));
        let Interval { low, high } = estimate.bounds().policy;
        assert_eq!((low, high), (30.0 / 22.0, 30.0 / 20.0));
        assert_eq!(estimate.gap.policy, low);
        assert_eq!(
            estimate.bounds().slowdown,
            Interval {
                low: 1.8,
                high: 1.8
            }
        );
    }

    #[test]
    fn json_names_the_method() {
        let row = [Some((0, 10)), Some((0, 12))];
        let window = [choice(0, A, &row, 15), choice(1, A, &row, 21)];
        let json = |estimate: Result<Estimate, NoEstimate>| {
            serde_json::to_value(estimate.unwrap()).unwrap()
        };
        let exact = json(estimate(&window));
        assert_eq!(exact["method"], "exact");
        assert_eq!(exact["sums"]["optimum"], 22.0);
        let bounded = json(ONE_BY_ONE.estimate(&window));
        assert_eq!(bounded["method"], "bounded");
        assert_eq!(bounded["optimum_low"], 20.0);
        assert_eq!(bounded["optimum_high"], 22.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn the_optimum_is_the_cheapest_of_all_placements_in_all_orders(
            window in windows(5, 3),
        ) {
            let optimum = estimate(&window).unwrap().sums.optimum;
            prop_assert_eq!(optimum, Millis::new(cheapest(&window)));
        }

        #[test]
        fn bounds_bracket_the_optimum(window in windows(8, 3), exact_work in 0_usize..200) {
            let exact = estimate(&window).unwrap();
            let bounded = Estimator { exact_work }.estimate(&window).unwrap();
            prop_assert!(bounded.optimum_low() <= exact.sums.optimum);
            prop_assert!(bounded.sums.optimum >= exact.sums.optimum);
            prop_assert_eq!(bounded.sums.chosen, exact.sums.chosen);
            let bounds = bounded.bounds();
            for (ratio, interval) in [
                (exact.gap.policy, bounds.policy),
                (exact.gap.overload, bounds.overload),
                (exact.poa_hat, bounds.poa_hat),
            ] {
                prop_assert!(interval.low <= ratio && ratio <= interval.high);
            }
        }
    }

    proptest! {
        #[test]
        fn choosing_the_optimum_has_a_price_of_exactly_one(mut window in windows(8, 3)) {
            // One time for all, so that the game numbers the requests as the window does.
            for choice in &mut window {
                (choice.decided_at, choice.actual) = (Timestamp::ORIGIN, Millis::ZERO);
            }
            let game = Game::freeze(&window).unwrap();
            let best = game.optimum(0..window.len()).unwrap();
            window[0].actual = as_millis(game.price((0..).zip(best.iter().copied())));
            let rows = window.iter().flat_map(|choice| &choice.candidates);
            let workers: BTreeSet<WorkerKey> = rows.map(|row| row.worker).collect();
            let workers: Vec<WorkerKey> = workers.into_iter().collect();
            for (choice, worker) in window.iter_mut().zip(best) {
                choice.chosen = workers[worker];
            }
            let estimate = estimate(&window).unwrap();
            prop_assert_eq!((estimate.gap.policy, estimate.poa_hat), (1.0, 1.0));
        }

        #[test]
        fn with_one_worker_the_policy_gap_is_exactly_one(window in windows(8, 1)) {
            prop_assert_eq!(estimate(&window).unwrap().gap.policy, 1.0);
            prop_assert_eq!(ONE_BY_ONE.estimate(&window).unwrap().gap.policy, 1.0);
        }

        #[test]
        fn ratios_do_not_depend_on_the_unit_of_time(window in windows(8, 3)) {
            let mut doubled = window.clone();
            for choice in &mut doubled {
                choice.actual = choice.actual * 2.0;
                for candidate in &mut choice.candidates {
                    candidate.wait = candidate.wait * 2.0;
                    candidate.own = candidate.own * 2.0;
                }
            }
            prop_assert_eq!(estimate(&window).unwrap().gap, estimate(&doubled).unwrap().gap);
        }

        #[test]
        fn the_order_of_the_records_changes_nothing(
            (window, shuffled) in windows(8, 3).prop_flat_map(|window| {
                (Just(window.clone()), Just(window).prop_shuffle())
            }),
        ) {
            prop_assert_eq!(estimate(&window), estimate(&shuffled));
        }

        #[test]
        fn alone_optimum_and_chosen_rise_and_the_gaps_multiply_to_the_slowdown(
            window in windows(12, 4),
            exact_work in 0_usize..5_000,
        ) {
            let Estimate { sums, gap, poa_hat, .. } = Estimator { exact_work }.estimate(&window).unwrap();
            prop_assert!(sums.alone <= sums.optimum && sums.optimum <= sums.chosen);
            let product = gap.policy * gap.temporal * gap.overload;
            prop_assert!((product - gap.slowdown).abs() <= 1e-12 * gap.slowdown);
            prop_assert!((poa_hat - sums.actual.get() / sums.optimum.get()).abs() <= 1e-12 * poa_hat);
        }
    }
}
