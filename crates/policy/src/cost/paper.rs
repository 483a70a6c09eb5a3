// SPDX-License-Identifier: Apache-2.0

//! The paper's cost of a worker: C = f(n) − ω·o, in KV blocks.
//!
//! n is the load the worker would carry, o the overlap weighted by tier, ω from the paper's table by
//! regime. The paper leaves the unit of n and the shape of f open. Ours: n counts prompt blocks to
//! prefill (queued and own, before any credit) plus decode blocks, and f(n) = n by default, which at
//! ω = 1 is the formula of Dynamo's default policy.
//!
//! Source: "The Price of Anarchy in Disaggregated Inference" (arXiv 2606.17081), the routing game.

use regime_core::LatencyCurve;

use super::{Candidate, Cost, RequestFacts};

/// Price every row of `rows` into the slot of the same index.
pub(crate) fn paper(
    request: &RequestFacts,
    curve: &LatencyCurve,
    omega: f64,
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
            uncached_tokens: if request.prefills {
                row.uncached_tokens(request)
            } else {
                0.0
            },
            ..Cost::default()
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::fixtures::{cached, loaded, prompt_of};
    use crate::parameters::Paper;

    fn totals(omega: f64, request: &RequestFacts, rows: &[Candidate]) -> Vec<f64> {
        let curve = LatencyCurve::new(Paper::default().curve).unwrap();
        let mut costs = Vec::new();
        paper(request, &curve, omega, rows, &mut costs);
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
    fn a_preference_multiplies_the_cost() {
        let mut row = loaded(1, 0.0, 0.0, 6.0);
        row.taint = 0.5;
        assert_eq!(totals(1.0, &prompt_of(10), &[row]), [8.0]);
    }
}
