// SPDX-License-Identifier: Apache-2.0

//! The calibrated cost of a worker, in milliseconds.
//!
//! For request i with u uncached tokens on worker j:
//!
//! ```text
//! own  = s·(a + b·u) + l             its own prefill, and l ms to bring cached blocks from lower tiers
//! wait = s·(b·P + a/2 where P > 0)   P prefill tokens queued there; half a pass is left on average. Less
//!                                    where the work is known to be under way, down to half
//! N    = max(n, d/c)                 seats in use: n active requests, or d KV blocks at c a seat
//! cost = wait + own + π·s·b·u + κ·N
//! ```
//!
//! so an overlapped token is worth ω = s·b·(1 + π) ms. Two prices connect the request to the others:
//! one ms of prefill work delays everybody queued behind it (π, grows with the queue), and one more
//! seat in use slows each decode step and makes others wait for theirs (κ). Where nothing is prefilled,
//! κ·N remains.
//!
//! A worker runs out of sequences or of KV memory, whichever comes first, so the larger of the two
//! counts. Their sum, or memory rescaled to the pool's typical request, sent long prompts to workers
//! without room for them: mean TTFT 1.15 of Dynamo's default against 0.99 on Mooncake's conversation
//! trace (simulated).
//!
//! ω rises with load. At saturation a recomputed block costs everybody in the queue, so a cached one
//! is worth more, not less; letting ω fall there was 18 to 290 times worse on working sets larger than
//! one cache (simulated).
//!
//! The constants and their reasons are in [`crate::Parameters`].

use regime_core::{Millis, PoolEstimate};

use super::{Candidate, Cost, RequestFacts};
use crate::parameters::Calibrated;

/// What the pool has learned, as prices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prices {
    /// Fixed part of a prefill pass, a.
    pub(crate) pass: Millis,
    /// One uncached token, b.
    pub(crate) token: Millis,
    /// Price π of one ms of prefill work, without unit.
    pub(crate) prefill: f64,
    /// Factor on the value of a cached token; 1 but in experiments.
    pub(crate) omega_scale: f64,
    /// Price κ of one seat in use.
    pub(crate) seat: Millis,
    /// KV tokens that take up one seat.
    pub(crate) seat_tokens: f64,
    /// Share of the counted prefill work that remains at least.
    pub(crate) least_remaining: f64,
}

impl Prices {
    /// Prices for a pool with `waiting` requests on its median worker.
    pub(crate) fn new(constants: &Calibrated, estimate: &PoolEstimate, waiting: f64) -> Self {
        let efficiency = estimate.efficiency.clamp(0.0, 1.0);
        let prefill = constants.price_per_waiting * waiting * efficiency;
        let seat = constants.seat_price_per_waiting * waiting * (1.0 - efficiency);
        Self {
            pass: Millis::new(estimate.pass_ms),
            token: Millis::new(estimate.token_ms),
            prefill: prefill.min(constants.price_cap),
            omega_scale: constants.omega_scale,
            seat: Millis::new(estimate.residence_ms)
                * constants.seat_share
                * (1.0 + seat.min(constants.price_cap)),
            seat_tokens: constants.seat_tokens,
            least_remaining: constants.least_remaining,
        }
    }

    /// Value ω of one cached token on a worker of slowness 1.
    pub(crate) fn omega_per_token(&self) -> Millis {
        self.token * (1.0 + self.prefill) * self.omega_scale
    }
}

/// Price every row of `rows` into the slot of the same index.
pub(crate) fn calibrated(
    request: &RequestFacts,
    prices: &Prices,
    rows: &[Candidate],
    costs: &mut Vec<Cost>,
) {
    let seats_per_block = f64::from(request.block_size) / prices.seat_tokens;
    costs.clear();
    costs.extend(rows.iter().map(|row| {
        let memory = row.load.decode_blocks * seats_per_block;
        let occupancy = prices.seat * row.load.active_requests.max(memory);
        let mut cost = forecast(request, prices, row);
        let prefill = if request.prefills {
            cost.predicted + priced(request, prices, row, cost.uncached_tokens)
        } else {
            Millis::ZERO
        };
        cost.total = ((prefill + occupancy) * row.taint + row.penalty).get();
        cost
    }));
}

/// What the work of the request costs besides its own time.
fn priced(request: &RequestFacts, prices: &Prices, row: &Candidate, uncached: f64) -> Millis {
    // At another scale k, a cached token saves k times as much, and the cost must not fall below zero for
    // it: prompt·max(k, 1) − k·cached tokens are priced in place of prompt − cached.
    let scale = prices.omega_scale;
    let rescaled = request.prompt.as_f64() * (1.0 - scale).max(0.0) + uncached * (scale - 1.0);
    let token = prices.token * row.slowness;
    token * uncached * prices.prefill + token * (1.0 + prices.prefill) * rescaled
}

/// What the request is predicted to take, without any price. Zero where nothing is prefilled.
pub(super) fn forecast(request: &RequestFacts, prices: &Prices, row: &Candidate) -> Cost {
    if !request.prefills {
        return Cost::default();
    }
    let uncached_tokens = row.uncached_tokens(request);
    let alone =
        prices.pass * row.slowness + prices.token * uncached_tokens * row.slowness + row.fetch.time;
    let residual = if row.load.prefill_tokens > 0.0 {
        prices.pass * 0.5
    } else {
        Millis::ZERO
    };
    let counted = (prices.token * row.load.prefill_tokens + residual) * row.slowness;
    let wait = row.remaining.map_or(counted, |remaining| {
        remaining.max(counted * prices.least_remaining).min(counted)
    });
    Cost {
        total: 0.0,
        predicted: wait + alone,
        alone,
        uncached_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::fixtures::{PRICES, cached, candidate, loaded, prompt_of};
    use proptest::prelude::*;
    use regime_core::Blocks;
    use regime_kv::Fetch;

    fn totals(request: &RequestFacts, prices: &Prices, rows: &[Candidate]) -> Vec<f64> {
        let mut costs = Vec::new();
        calibrated(request, prices, rows, &mut costs);
        costs.iter().map(|cost| cost.total).collect()
    }

    fn cheapest(request: &RequestFacts, prices: &Prices, rows: &[Candidate]) -> u64 {
        let costs = totals(request, prices, rows);
        let row = (0..rows.len())
            .min_by(|&a, &b| costs[a].total_cmp(&costs[b]))
            .unwrap();
        rows[row].worker.id
    }

    #[test]
    fn the_cost_is_wait_plus_own_plus_price_plus_seats() {
        // 10 blocks, 4 cached: u = 96 tokens, work 9.6 ms, own 29.6 ms. 200 tokens queued: wait 20 + 10.
        // Price 2 × 9.6. Seats: 8 blocks are 4, more than the 3 requests, × 5 ms.
        let rows = [cached(loaded(1, 3.0, 200.0, 8.0), 4.0)];
        let mut costs = Vec::new();
        calibrated(&prompt_of(10), &PRICES, &rows, &mut costs);
        assert!((costs[0].total - (30.0 + 29.6 + 19.2 + 20.0)).abs() < 1e-9);
        assert!((costs[0].predicted.get() - 59.6).abs() < 1e-9);
        assert!((costs[0].alone.get() - 29.6).abs() < 1e-9);
        assert_eq!(costs[0].uncached_tokens, 96.0);
    }

    #[test]
    fn one_more_cached_token_is_worth_omega() {
        let rows = [cached(candidate(1), 1.0), cached(candidate(2), 2.0)];
        let costs = totals(&prompt_of(10), &PRICES, &rows);
        // One block of 16 tokens at ω = 0.1 × (1 + 2) ms per token.
        assert!((costs[0] - costs[1] - 16.0 * 0.3).abs() < 1e-9);
        assert!((PRICES.omega_per_token().get() - 0.3).abs() < 1e-12);
    }

    #[test]
    fn blocks_from_a_lower_tier_cost_the_time_to_bring_them_and_no_price() {
        let fetch = Fetch {
            time: Millis::new(7.0),
            ..Fetch::default()
        };
        let near = cached(candidate(1), 10.0);
        let rows = [near, Candidate { fetch, ..near }];
        let mut costs = Vec::new();
        calibrated(&prompt_of(10), &PRICES, &rows, &mut costs);
        assert!((costs[1].total - costs[0].total - 7.0).abs() < 1e-9);
        assert!(((costs[1].alone - costs[0].alone).get() - 7.0).abs() < 1e-9);
    }

    #[test]
    fn a_scaled_omega_changes_what_overlap_is_worth_and_not_the_prediction() {
        let rows = [cached(candidate(1), 0.0), cached(candidate(2), 4.0)];
        let mut costs = Vec::new();
        for scale in [0.0, 0.1, 1.0, 4.0] {
            let prices = Prices {
                omega_scale: scale,
                ..PRICES
            };
            calibrated(&prompt_of(10), &prices, &rows, &mut costs);
            // 64 tokens at 0.3 ms.
            assert!((costs[0].total - costs[1].total - scale * 19.2).abs() < 1e-9);
            assert!((costs[1].predicted.get() - 29.6).abs() < 1e-9);
            assert!(costs[1].total >= costs[1].predicted.get());
        }
    }

    #[test]
    fn the_wait_is_what_remains_but_at_least_half_and_at_most_all_of_the_count() {
        // 200 tokens queued count as 20 + 10 ms.
        let wait = |remaining: Option<f64>| {
            let row = Candidate {
                remaining: remaining.map(Millis::new),
                ..loaded(1, 1.0, 200.0, 0.0)
            };
            let mut costs = Vec::new();
            calibrated(&prompt_of(10), &PRICES, &[row], &mut costs);
            (costs[0].predicted - costs[0].alone).get()
        };
        let waits = [None, Some(22.0), Some(4.0), Some(90.0)].map(wait);
        for (wait, expected) in waits.into_iter().zip([30.0, 22.0, 15.0, 30.0]) {
            assert!((wait - expected).abs() < 1e-9, "{wait}");
        }
    }

    #[test]
    fn a_slow_worker_pays_for_its_slowness() {
        let slow = Candidate {
            slowness: 2.5,
            ..candidate(1)
        };
        let costs = totals(&prompt_of(10), &PRICES, &[slow, candidate(2)]);
        // Only own work and its price scale: 2.5 × (20 + 16 + 2·16) against 20 + 16 + 2·16.
        assert!((costs[0] - 170.0).abs() < 1e-9 && (costs[1] - 68.0).abs() < 1e-9);
    }

    #[test]
    fn a_stage_without_prefill_is_priced_by_seats_alone() {
        let request = RequestFacts {
            prefills: false,
            ..prompt_of(10)
        };
        let rows = [
            loaded(1, 2.0, 900.0, 6.0),
            cached(loaded(2, 4.0, 0.0, 4.0), 9.0),
        ];
        // Six blocks are 3 seats, more than 2 requests; four are 2, less than 4 requests. × 5 ms.
        let costs = totals(&request, &PRICES, &rows);
        assert!((costs[0] - 15.0).abs() < 1e-9 && (costs[1] - 20.0).abs() < 1e-9);
    }

    #[test]
    fn saturation_raises_the_value_of_a_cached_block() {
        let estimate = |waiting| {
            Prices::new(
                &Calibrated::default(),
                &PoolEstimate {
                    efficiency: 1.0,
                    ..fixture_estimate()
                },
                waiting,
            )
        };
        let (idle, busy, swamped) = (estimate(0.0), estimate(4.0), estimate(1e6));
        assert_eq!(
            (idle.prefill, busy.prefill, swamped.prefill),
            (0.0, 8.0, 20.0)
        );
        assert!(busy.omega_per_token() > idle.omega_per_token());
    }

    #[test]
    fn scarce_seats_raise_the_seat_price_and_not_the_prefill_price() {
        let prices = Prices::new(
            &Calibrated::default(),
            &PoolEstimate {
                efficiency: 0.0,
                ..fixture_estimate()
            },
            4.0,
        );
        // 1 % of 1500 ms × (1 + 0.5 · 4).
        assert_eq!(prices.prefill, 0.0);
        assert!((prices.seat.get() - 45.0).abs() < 1e-9);
    }

    #[test]
    fn one_hot_worker_does_not_turn_affinity_off() {
        // Field report BR-01, cases a to c, at light load.
        let prices = Prices::new(&Calibrated::default(), &fixture_estimate(), 0.0);
        let rows = |active: [f64; 3], blocks: [f64; 3]| {
            [0, 1, 2].map(|row| {
                let active_requests = active[row];
                let busy = loaded(
                    row as u64 + 1,
                    active_requests,
                    active_requests * 160.0,
                    active_requests * 100.0,
                );
                cached(busy, blocks[row])
            })
        };
        let request = prompt_of(100);
        let a = rows([70.0, 4.0, 2.0], [0.0, 90.0, 0.0]);
        assert_eq!(cheapest(&request, &prices, &a), 2);
        let b = rows([70.0, 4.0, 2.0], [90.0, 0.0, 0.0]);
        assert_eq!(cheapest(&request, &prices, &b), 3);
        let c = rows([70.0, 69.0, 68.0], [90.0, 0.0, 0.0]);
        assert_eq!(cheapest(&request, &prices, &c), 1);
    }

    #[test]
    fn cache_that_holds_nothing_of_the_prompt_is_no_reason() {
        // Field report SP-1: the host reports overlap with this prompt only, so W2's large cache
        // shows up as load 0 and credit 0.
        let prices = Prices::new(&Calibrated::default(), &fixture_estimate(), 0.0);
        let rows = [loaded(1, 40.0, 0.0, 400.0), loaded(2, 0.0, 0.0, 40.0)];
        assert_eq!(cheapest(&prompt_of(40), &prices, &rows), 2);
    }

    fn fixture_estimate() -> PoolEstimate {
        PoolEstimate {
            pass_ms: 12.0,
            token_ms: 0.03,
            efficiency: 1.0,
            residence_ms: 1_500.0,
            ..PoolEstimate::default()
        }
    }

    proptest! {
        #[test]
        fn every_cost_is_finite_and_not_negative(
            loads in prop::collection::vec(
                (0.0..1e9f64, 0.0..1e9f64, 0.0..1e6f64, -1e9..1e9f64, 0.1..10.0f64), 1..20),
            prompt in 0u64..1_000_000,
            waiting in 0.0..1e9f64,
        ) {
            let rows: Vec<_> = loads
                .iter()
                .enumerate()
                .map(|(id, &(prefill, blocks, active, credit, slowness))| Candidate {
                    credit: Blocks::new(credit),
                    slowness,
                    ..loaded(id as u64, active, prefill, blocks)
                })
                .collect();
            let prices = Prices::new(&Calibrated::default(), &fixture_estimate(), waiting);
            let request = RequestFacts {
                prompt: regime_core::Tokens(prompt),
                ..prompt_of(0)
            };
            for total in totals(&request, &prices, &rows) {
                prop_assert!(total.is_finite() && total >= 0.0);
            }
        }

        #[test]
        fn more_overlap_never_costs_more(credit in 0.0..100.0f64, more in 0.0..100.0f64) {
            let rows = [cached(candidate(1), credit), cached(candidate(2), credit + more)];
            let costs = totals(&prompt_of(100), &PRICES, &rows);
            prop_assert!(costs[1] <= costs[0] + 1e-9);
        }
    }
}
