// SPDX-License-Identifier: Apache-2.0

//! What one worker costs one request: pure arithmetic over plain rows, no Dynamo types.
//!
//! Both models see the same [`Candidate`] rows. [`calibrated`] prices in milliseconds with learned
//! rates; [`paper`] prices in KV blocks with the paper's table. A worker whose load the host does not
//! know gets the load of a worker drawn from the others before either model runs
//! ([`impute_missing_loads`]).

mod calibrated;
mod paper;

pub(crate) use calibrated::{Prices, calibrated};
pub(crate) use paper::paper;

use rand::Rng;
use regime_core::{Blocks, Millis, Tokens, WorkerKey};
use regime_kv::{Brought, Fetch};

/// What the request asks of every candidate alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestFacts {
    /// Prompt length.
    pub(crate) prompt: Tokens,
    /// Tokens in one KV block, at least 1.
    pub(crate) block_size: u32,
    /// Whether this stage prefills the prompt. Plain decode and encode stages do not.
    pub(crate) prefills: bool,
}

/// Load of one worker before the request is placed, except that `decode_blocks` includes it: the
/// host projects the footprint after admission.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) prefill_tokens: f64,
    pub(crate) decode_blocks: f64,
    pub(crate) active_requests: f64,
}

/// One row of a selection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) worker: WorkerKey,
    /// As observed, or imputed; see `load_known`.
    pub(crate) load: Load,
    /// Whether the host observed the load.
    pub(crate) load_known: bool,
    /// Time until its prefill work should have ended, as far as it was placed here.
    pub(crate) remaining: Option<Millis>,
    /// Cached prefix that need not be computed: weighted by tier, or whole where time is the measure.
    pub(crate) credit: Blocks,
    /// Prefix in use there though no KV event has told of it; forecasts believe in the larger of the two.
    pub(crate) in_use: Blocks,
    /// What it takes to bring the part of it that is not in device memory. Nothing where tiers are
    /// weighted.
    pub(crate) fetch: Fetch,
    /// What its engine brings up, whether that pays or not. Nothing where tiers are weighted.
    pub(crate) brought: Brought,
    /// Relative slowness s_j; 1 is the pool's typical worker.
    pub(crate) slowness: f64,
    /// Added because the worker keeps failing.
    pub(crate) penalty: Millis,
    /// Preferred-taint multiplier, 1 without a preference.
    pub(crate) taint: f64,
}

/// Price of one row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// What the choice minimises. Milliseconds in the calibrated model, blocks in the paper's.
    pub(crate) total: f64,
    /// Predicted TTFT, wait plus own prefill, by calibrated rates whatever the model. Zero where the stage
    /// does not prefill.
    pub(crate) predicted: Millis,
    /// TTFT on this worker if it were idle.
    pub(crate) alone: Millis,
    /// Tokens to prefill here.
    pub(crate) uncached_tokens: f64,
}

impl Candidate {
    fn uncached_tokens(&self, request: &RequestFacts) -> f64 {
        let credit = self.credit.max(self.in_use);
        regime_kv::uncached_tokens(request.prompt, request.block_size, credit)
    }

    /// Believe that the worker holds at least the first `blocks` in device memory, where a block saves
    /// `block_value`.
    pub(crate) fn believe(&mut self, blocks: Blocks, block_value: Millis) {
        let price = self.fetch.time.ratio(block_value).unwrap_or(0.0);
        if blocks.get() > self.credit.get() - price {
            self.credit = blocks;
            self.fetch = Fetch::default();
        }
    }
}

/// Give every row without a known load the load of a row that has one, drawn at random.
///
/// A constant in place of a missing value is an opinion: zero floods the worker and the largest
/// starves it (field report BR-03). A drawn load is neutral: it lies among the observed ones, has
/// their mean, and lets the unknown worker win its share of ties. With no load known at all, all rows
/// count as equally loaded.
///
/// `order` is scratch space for rows sorted by worker, so that the draw does not depend on row order.
pub(crate) fn impute_missing_loads(
    rows: &mut [Candidate],
    order: &mut Vec<usize>,
    rng: &mut impl Rng,
) {
    if rows.iter().all(|row| row.load_known) {
        return;
    }
    let sorted = |order: &mut Vec<usize>, rows: &[Candidate], known: bool| {
        order.clear();
        order.extend((0..rows.len()).filter(|&row| rows[row].load_known == known));
        order.sort_unstable_by_key(|&row| rows[row].worker);
    };
    sorted(order, rows, true);
    let donors = order.len();
    if donors == 0 {
        for row in rows {
            row.load = Load::default();
        }
        return;
    }
    // Unknown rows draw in worker order too: sort them behind the donors in the same scratch space.
    order.extend((0..rows.len()).filter(|&row| !rows[row].load_known));
    order[donors..].sort_unstable_by_key(|&row| rows[row].worker);
    for index in donors..order.len() {
        let donor = order[rng.random_range(0..donors)];
        rows[order[index]].load = rows[donor].load;
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    pub(crate) const PRICES: Prices = Prices {
        pass: Millis::new(20.0),
        token: Millis::new(0.1),
        prefill: 2.0,
        omega_scale: 1.0,
        seat: Millis::new(5.0),
        // Two blocks.
        seat_tokens: 32.0,
        least_remaining: 0.5,
    };

    pub(crate) fn candidate(id: u64) -> Candidate {
        Candidate {
            worker: WorkerKey::new(id, 0),
            load: Load::default(),
            load_known: true,
            remaining: None,
            credit: Blocks::ZERO,
            in_use: Blocks::ZERO,
            fetch: Fetch::default(),
            brought: Brought::default(),
            slowness: 1.0,
            penalty: Millis::ZERO,
            taint: 1.0,
        }
    }

    pub(crate) fn loaded(id: u64, active: f64, prefill_tokens: f64, blocks: f64) -> Candidate {
        Candidate {
            load: Load {
                prefill_tokens,
                decode_blocks: blocks,
                active_requests: active,
            },
            ..candidate(id)
        }
    }

    pub(crate) fn cached(mut candidate: Candidate, blocks: f64) -> Candidate {
        candidate.credit = Blocks::new(blocks);
        candidate
    }

    /// A prompt of `blocks` blocks of 16 tokens.
    pub(crate) fn prompt_of(blocks: u64) -> RequestFacts {
        RequestFacts {
            prompt: Tokens(blocks * 16),
            block_size: 16,
            prefills: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{candidate, loaded};
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    fn unknown(id: u64) -> Candidate {
        Candidate {
            load_known: false,
            ..candidate(id)
        }
    }

    fn impute(rows: &mut [Candidate], seed: u64) {
        impute_missing_loads(rows, &mut Vec::new(), &mut Pcg64Mcg::seed_from_u64(seed));
    }

    #[test]
    fn an_unknown_load_is_one_of_the_known_ones() {
        for seed in 0..50 {
            let mut rows = [
                loaded(1, 6.0, 2048.0, 900.0),
                loaded(2, 5.0, 1024.0, 850.0),
                unknown(3),
            ];
            impute(&mut rows, seed);
            assert!(rows[2].load == rows[0].load || rows[2].load == rows[1].load);
            assert!(!rows[2].load_known);
        }
    }

    #[test]
    fn the_draw_does_not_depend_on_row_order() {
        let rows = [
            unknown(4),
            loaded(1, 6.0, 1.0, 1.0),
            loaded(2, 5.0, 1.0, 1.0),
            unknown(3),
        ];
        for seed in 0..20 {
            let (mut forward, mut backward) = (rows, rows);
            backward.reverse();
            impute(&mut forward, seed);
            impute(&mut backward, seed);
            backward.reverse();
            for (a, b) in forward.iter().zip(&backward) {
                assert_eq!((a.worker, a.load), (b.worker, b.load));
            }
        }
    }

    #[test]
    fn a_believed_prefix_replaces_a_credit_that_is_worth_less() {
        // Ten blocks less 6 ms at 2 ms a block are worth seven.
        let row = Candidate {
            credit: Blocks::new(10.0),
            fetch: Fetch {
                time: Millis::new(6.0),
                ..Fetch::default()
            },
            ..candidate(1)
        };
        for (blocks, credit, fetch) in [(6.9, 10.0, 6.0), (7.1, 7.1, 0.0), (12.0, 12.0, 0.0)] {
            let mut row = row;
            row.believe(Blocks::new(blocks), Millis::new(2.0));
            assert_eq!((row.credit.get(), row.fetch.time.get()), (credit, fetch));
        }
    }

    #[test]
    fn with_no_load_known_all_count_alike() {
        let mut rows = [unknown(1), unknown(2)];
        rows[0].load.active_requests = 7.0;
        impute(&mut rows, 1);
        assert_eq!(rows[0].load, rows[1].load);
    }
}
