// SPDX-License-Identifier: Apache-2.0

//! The paper's cost of a worker: C = f(n) − ω·o, in KV blocks.
//!
//! n is the load the worker would carry, o the overlap weighted by tier, ω from the paper's table by
//! regime. The paper leaves the unit of n and the shape of f open. Ours: n counts prompt blocks to
//! prefill (queued and own, before any credit) plus decode blocks, and f(n) = n by default, which at
//! ω = 1 is the formula of Dynamo's default policy. The rows' forecasts are those of the calibrated model: what
//! a choice costs in time does not depend on the rule that made it.
//!
//! Source: "The Price of Anarchy in Disaggregated Inference" (arXiv 2606.17081), the routing game.

use regime_core::LatencyCurve;

use super::calibrated::forecast;
use super::{Candidate, Cost, Prices, RequestFacts};

/// Price every row of `rows` into the slot of the same index.
pub(crate) fn paper(
    request: &RequestFacts,
    curve: &LatencyCurve,
    omega: f64,
    prices: &Prices,
    rows: &[Candidate],
    costs: &mut Vec<Cost>,
) {
    let block_size = f64::from(request.block_size);
    costs.clear();
    costs.extend(rows.iter().map(|row| {
        let (prefill_blocks, overlap) = if request.prefills {
            let tokens = row.load.prefill_tokens + request.prompt.as_f64();
            (tokens / block_size, row.credit.get())
        } else {
            (0.0, 0.0)
        };
        let congestion = curve.delay(prefill_blocks + row.load.decode_blocks).get();
        // A preference multiplies the cost, which must not be negative for that to mean anything.
        let cost = (congestion - omega * overlap).max(0.0);
        Cost {
            total: cost * row.taint + row.penalty.get(),
            ..forecast(request, prices, row)
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::fixtures::{PRICES, cached, loaded, prompt_of};
    use crate::parameters::Paper;
    use regime_core::Blocks;

    fn costs(omega: f64, request: &RequestFacts, rows: &[Candidate]) -> Vec<Cost> {
        let curve = LatencyCurve::new(Paper::default().curve).unwrap();
        let mut costs = Vec::new();
        paper(request, &curve, omega, &PRICES, rows, &mut costs);
        costs
    }

    fn totals(omega: f64, request: &RequestFacts, rows: &[Candidate]) -> Vec<f64> {
        let costs = costs(omega, request, rows);
        costs.iter().map(|cost| cost.total).collect()
    }

    #[test]
    fn at_omega_one_the_cost_is_uncached_plus_decode_blocks() {
        // (32 queued + 160 own tokens) / 16 − 4 cached + 7 decode blocks.
        let rows = [cached(loaded(1, 1.0, 32.0, 7.0), 4.0)];
        assert_eq!(totals(1.0, &prompt_of(10), &rows), [15.0]);
        assert_eq!(totals(0.1, &prompt_of(10), &rows), [18.6]);
    }

    #[test]
    fn a_stage_without_prefill_sees_decode_blocks_alone() {
        let request = RequestFacts {
            prefills: false,
            ..prompt_of(10)
        };
        let rows = [cached(loaded(1, 1.0, 32.0, 7.0), 4.0)];
        assert_eq!(totals(1.0, &request, &rows), [7.0]);
    }

    #[test]
    fn the_forecast_is_that_of_the_calibrated_model_with_all_that_is_known_of_the_cache() {
        // 160 tokens, 4 blocks cached; 6 in use.
        let row = Candidate {
            in_use: Blocks::new(6.0),
            ..cached(loaded(1, 1.0, 32.0, 7.0), 4.0)
        };
        let [cost] = costs(1.0, &prompt_of(10), &[row])[..] else {
            panic!("one row");
        };
        let mut calibrated = Vec::new();
        crate::cost::calibrated(&prompt_of(10), &PRICES, &[row], &mut calibrated);
        assert_eq!(cost.uncached_tokens, 64.0);
        assert_eq!(
            (cost.predicted, cost.alone),
            (calibrated[0].predicted, calibrated[0].alone)
        );
        // The price stays the paper's.
        assert_eq!(cost.total, 15.0);
    }

    #[test]
    fn a_preference_multiplies_the_cost() {
        let mut row = loaded(1, 0.0, 0.0, 6.0);
        row.taint = 0.5;
        assert_eq!(totals(1.0, &prompt_of(10), &[row]), [8.0]);
    }
}
