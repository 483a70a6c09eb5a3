// SPDX-License-Identifier: Apache-2.0

//! LMetric: one product instead of a weighted sum.
//!
//! Score (P + u)·(n + 1): prefill tokens that would be pending on the worker if the request went there,
//! times the batch it would join. A product needs no weight, since any factor on either indicator
//! scales all scores alike. Least score wins, ties at random.
//!
//! Source: Zhang et al., *LMetric: Simple is Better*, arXiv 2603.15202. The paper leaves open what
//! to do when P + u is zero; an exact cache hit still computes its last token, so u is at least 1.

use rand_pcg::Pcg64Mcg;

use super::{Baseline, BaselineRequest, BaselineRow, argmin};

#[derive(Debug)]
pub(super) struct Lmetric;

impl Baseline for Lmetric {
    fn choose(
        &mut self,
        request: &BaselineRequest<'_>,
        rows: &[BaselineRow],
        rng: &mut Pcg64Mcg,
    ) -> usize {
        argmin(
            rows,
            |row| {
                let prefill = row.active_prefill_tokens + row.uncached_tokens(request).max(1);
                prefill as u128 * (row.active_requests + 1) as u128
            },
            rng,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, rng, rows};
    use super::*;

    #[test]
    fn the_least_product_wins() {
        // 64 tokens: worker 0 holds 2 of 4 blocks, (100 + 32)·4 = 528; worker 1, (0 + 64)·8 = 512.
        let mut rows = rows(&[3, 7]);
        rows[0].active_prefill_tokens = 100;
        rows[0].device_overlap_blocks = 2;
        let hashes = [1, 2, 3, 4];
        assert_eq!(Lmetric.choose(&request(&hashes), &rows, &mut rng()), 1);
        // One block more on worker 0: (100 + 16)·4 = 464.
        rows[0].device_overlap_blocks = 3;
        assert_eq!(Lmetric.choose(&request(&hashes), &rows, &mut rng()), 0);
    }

    #[test]
    fn exact_hits_still_prefer_the_emptier_worker() {
        let mut rows = rows(&[2, 1]);
        for row in &mut rows {
            row.device_overlap_blocks = 1;
        }
        assert_eq!(Lmetric.choose(&request(&[1]), &rows, &mut rng()), 1);
    }
}
