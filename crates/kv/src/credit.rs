// SPDX-License-Identifier: Apache-2.0

//! Tier credit by weights: how many blocks of one request one worker need not recompute.
//!
//! # Idea
//!
//! A KV block can be reused only if every block before it is reused too. The cached part of a prompt
//! is therefore one run of blocks from position 0, and the tiers hold it one after the other: first
//! the device part, then its extension in host memory, then the extension on disk, then whatever part
//! of the shared store starts exactly where the local prefix ends. The credit is the length of each
//! part times the weight of its tier. Every part is cut at the end of the prompt before it is
//! weighed, so the credit lies between zero and the length of the prompt, and it stays fractional to
//! the end. [`CacheView::prefix`] finds the parts; the [`Ladder`](crate::Ladder) values the same parts by
//! time.
//!
//! A block held both locally and in the shared store counts once, as the local copy. With a disk
//! weight below the shared weight, as in the defaults, a longer disk prefix can thus lower the credit.
//!
//! # Defaults
//!
//! Device 1.0 is a block that costs nothing to use. Host 0.75, disk 0.25 and shared 0.5 are Dynamo's
//! own default weights, so that a switch of the policy does not change what a cached block is worth.
//!
//! # Source
//!
//! Dynamo reports host and disk overlap as extensions past the tier above, not as running totals, and
//! does not cut them or its accounting estimate at the prompt. Field reports BR-05 (double counting,
//! clamping, rounding) and BR-06 (blocks behind a gap).

use std::ops::Range;

use regime_core::{Blocks, Tokens};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ladder::Tier;

/// Share of its prefill that one cached block saves, by tier. Each lies in `0..=1`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TierWeights {
    /// Blocks in device memory (G1).
    pub device: f64,
    /// Blocks in pinned host memory (G2).
    pub host: f64,
    /// Blocks on local disk (G3).
    pub disk: f64,
    /// Blocks in a shared or network store (G4).
    pub shared: f64,
}

impl Default for TierWeights {
    fn default() -> Self {
        Self {
            device: 1.0,
            host: 0.75,
            disk: 0.25,
            shared: 0.5,
        }
    }
}

/// A tier weight outside `0..=1`.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("tier weight `{key}` is {value}; allowed is a number from 0 to 1")]
pub struct WeightError {
    /// Name of the tier.
    pub key: &'static str,
    /// The value that was refused.
    pub value: f64,
}

impl TierWeights {
    /// Check that every weight is a number from 0 to 1.
    ///
    /// # Errors
    ///
    /// Names the first weight that is not.
    pub fn validate(&self) -> Result<(), WeightError> {
        let weights = [
            ("device", self.device),
            ("host", self.host),
            ("disk", self.disk),
            ("shared", self.shared),
        ];
        match weights
            .iter()
            .find(|(_, value)| !(0.0..=1.0).contains(value))
        {
            Some(&(key, value)) => Err(WeightError { key, value }),
            None => Ok(()),
        }
    }

    /// Credit of one worker for a prompt of `request_blocks` blocks.
    ///
    /// `shared` are the half-open ranges of block positions that the shared store holds, in any order.
    /// Sorted ranges, which Dynamo supplies, are read twice.
    #[must_use]
    pub fn credit(
        &self,
        request_blocks: u64,
        view: CacheView,
        shared: impl IntoIterator<Item = Range<u64>> + Clone,
    ) -> TierCredit {
        let prefix = view.prefix(request_blocks, shared);
        // An estimate is weighed already.
        let device_weight = match view {
            CacheView::Tiers(_) => self.device,
            CacheView::Estimate(_) => 1.0,
        };
        let weighted = prefix.device * device_weight
            + prefix.host * self.host
            + prefix.disk * self.disk
            + prefix.shared * self.shared;
        TierCredit {
            weighted: weighted.min(Blocks::new(request_blocks as f64)),
            prefix,
        }
    }
}

/// Blocks of one prompt that a worker holds, by tier. Host and disk are extensions past the tier
/// above, not running totals.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Overlap {
    /// Leading blocks in device memory.
    pub device: Blocks,
    /// Blocks in host memory that follow the device part.
    pub host: Blocks,
    /// Blocks on disk that follow the host part.
    pub disk: Blocks,
}

/// What the host knows about one worker's cache: tiers or an estimate, never both.
///
/// The estimate already contains the tiers, so adding it to them would count blocks twice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheView {
    /// Matches by tier.
    Tiers(Overlap),
    /// The host's accounting estimate, weighed by the host.
    Estimate(Blocks),
}

impl Default for CacheView {
    /// Nothing.
    fn default() -> Self {
        Self::Tiers(Overlap::default())
    }
}

impl CacheView {
    /// Choose the view. `has_tier_matches` is a fact of the whole request: with it, a worker without a
    /// match holds nothing, whatever its estimate says.
    #[must_use]
    pub const fn new(has_tier_matches: bool, overlap: Overlap, estimate: Blocks) -> Self {
        if has_tier_matches {
            Self::Tiers(overlap)
        } else {
            Self::Estimate(estimate)
        }
    }

    /// The view if at least the first `blocks` are there, and lie in `tier` as far as nobody told of them.
    /// Any tier but the disk counts as host memory.
    #[must_use]
    pub fn at_least(self, blocks: Blocks, tier: Tier) -> Self {
        let mut overlap = self.overlap();
        let untold = beyond(blocks, overlap.device + overlap.host + overlap.disk);
        if untold == Blocks::ZERO {
            return self;
        }
        let part = match tier {
            Tier::Disk => &mut overlap.disk,
            _ => &mut overlap.host,
        };
        *part = *part + untold;
        Self::Tiers(overlap)
    }

    /// An estimate stands for a device prefix, as in Dynamo's own scorer.
    fn overlap(self) -> Overlap {
        match self {
            Self::Tiers(overlap) => overlap,
            Self::Estimate(device) => Overlap {
                device,
                ..Overlap::default()
            },
        }
    }

    /// The reusable prefix of a prompt of `request_blocks` blocks, cut at its end. `shared` are the
    /// ranges of block positions that the shared store holds, in any order.
    #[must_use]
    pub fn prefix(
        self,
        request_blocks: u64,
        shared: impl IntoIterator<Item = Range<u64>> + Clone,
    ) -> Prefix {
        let prompt = Blocks::new(request_blocks as f64);
        let overlap = self.overlap();
        let device = overlap.device.min(prompt);
        let host = overlap.host.min(beyond(prompt, device));
        let disk = overlap.disk.min(beyond(prompt, device + host));
        let local = device + host + disk;
        let shared = beyond(run_end(local, shared).min(prompt), local);
        Prefix {
            device,
            host,
            disk,
            shared,
        }
    }
}

/// The reusable prefix of one prompt on one worker. The parts follow one another from the start of the
/// prompt and end within it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Prefix {
    /// Part in device memory, or the estimate.
    pub device: Blocks,
    /// Part in host memory.
    pub host: Blocks,
    /// Part on disk.
    pub disk: Blocks,
    /// Part in the shared store.
    pub shared: Blocks,
}

impl Prefix {
    /// Length of the prefix, unweighted.
    #[must_use]
    pub fn covered(&self) -> Blocks {
        self.device + self.host + self.disk + self.shared
    }
}

/// Credit of one worker for one request, by weights.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TierCredit {
    /// Sum of the parts, each times its weight; at most the prompt.
    pub weighted: Blocks,
    /// What the worker can reuse.
    pub prefix: Prefix,
}

/// Tokens left to prefill once `credit` blocks of `block_size` tokens are saved: from 0 to
/// `prompt`, fractional because tiers weigh. The last block of a prompt may be partly filled, so a
/// credit for it is cut at the prompt.
#[must_use]
pub fn uncached_tokens(prompt: Tokens, block_size: u32, credit: Blocks) -> f64 {
    let cached = credit.get() * f64::from(block_size);
    (prompt.as_f64() - cached).max(0.0)
}

/// `whole − part`, never below zero.
fn beyond(whole: Blocks, part: Blocks) -> Blocks {
    Blocks::new(whole.get() - part.get())
}

/// End of the contiguous run of `ranges` that contains position `start`; `start` itself when none does.
fn run_end(start: Blocks, ranges: impl IntoIterator<Item = Range<u64>> + Clone) -> Blocks {
    let mut end = start;
    loop {
        let reached = ranges.clone().into_iter().fold(end, |end, range| {
            let (from, to) = (range.start as f64, range.end as f64);
            if from <= end.get() && to > end.get() {
                Blocks::new(to)
            } else {
                end
            }
        });
        if reached == end {
            return end;
        }
        end = reached;
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;
    use proptest::prelude::*;

    const NOTHING: [Range<u64>; 0] = [];

    fn tiers(device: f64, host: f64, disk: f64) -> CacheView {
        CacheView::Tiers(Overlap {
            device: Blocks::new(device),
            host: Blocks::new(host),
            disk: Blocks::new(disk),
        })
    }

    fn credit(request_blocks: u64, view: CacheView) -> f64 {
        TierWeights::default()
            .credit(request_blocks, view, NOTHING)
            .weighted
            .get()
    }

    #[test]
    fn extensions_are_weighed_once_and_cut_at_the_prompt() {
        // Field report BR-05, workers W1 to W5 in order.
        assert_eq!(credit(10, tiers(10.0, 0.0, 0.0)), 10.0);
        assert_eq!(credit(10, tiers(6.0, 4.0, 0.0)), 9.0);
        assert_eq!(credit(10, tiers(0.0, 10.0, 0.0)), 7.5);
        assert_eq!(credit(10, tiers(6.0, 4.0, 5.0)), 9.0);
        assert_eq!(credit(10, tiers(0.0, 1.0, 0.0)), 0.75);
    }

    #[test]
    fn a_prompt_without_blocks_earns_no_credit() {
        let held = TierWeights::default().credit(0, tiers(3.0, 2.0, 1.0), once(0..8));
        assert_eq!(held, TierCredit::default());
    }

    #[test]
    fn shared_blocks_count_only_from_the_end_of_the_local_prefix() {
        // Field report BR-06, workers W1 to W4 in order.
        let shared = || [2..4, 6..10];
        let cases = [
            (tiers(2.0, 0.0, 0.0), 2.0, 3.0),
            (tiers(4.0, 0.0, 0.0), 0.0, 4.0),
            (tiers(6.0, 0.0, 0.0), 4.0, 8.0),
            (tiers(1.0, 1.0, 0.0), 2.0, 1.0 + 0.75 + 1.0),
        ];
        for (view, usable, weighted) in cases {
            let credit = TierWeights::default().credit(10, view, shared());
            assert_eq!(credit.prefix.shared, Blocks::new(usable));
            assert_eq!(credit.weighted, Blocks::new(weighted));
        }
    }

    #[test]
    fn the_covered_prefix_is_the_unweighted_sum_of_the_parts() {
        let credit = TierWeights::default().credit(20, tiers(2.0, 3.0, 4.0), once(9..11));
        assert_eq!(credit.prefix.covered(), Blocks::new(11.0));
        assert_eq!(credit.weighted, Blocks::new(2.0 + 2.25 + 1.0 + 1.0));
    }

    #[test]
    fn shared_ranges_in_any_order_join_into_one_run() {
        let ends = [[0..3, 3..5, 5..9], [5..9, 3..5, 0..3], [2..6, 0..4, 6..9]].map(|ranges| {
            TierWeights::default()
                .credit(8, tiers(1.0, 0.0, 0.0), ranges)
                .prefix
                .shared
        });
        assert_eq!(ends, [Blocks::new(7.0); 3]);
    }

    #[test]
    fn a_local_copy_hides_the_shared_one() {
        let credit = TierWeights::default().credit(10, tiers(2.0, 0.0, 4.0), once(2..10));
        assert_eq!(
            (credit.prefix.disk.get(), credit.prefix.shared.get()),
            (4.0, 4.0)
        );
        assert_eq!(credit.weighted, Blocks::new(2.0 + 1.0 + 2.0));
    }

    #[test]
    fn an_estimate_is_not_weighed_again_and_is_cut_at_the_prompt() {
        assert_eq!(credit(10, CacheView::Estimate(Blocks::new(2.5))), 2.5);
        assert_eq!(credit(10, CacheView::Estimate(Blocks::new(40.0))), 10.0);
    }

    #[test]
    fn tier_matches_anywhere_in_the_request_silence_the_estimate() {
        let estimate = Blocks::new(5.0);
        assert_eq!(
            credit(10, CacheView::new(true, Overlap::default(), estimate)),
            0.0
        );
        assert_eq!(
            credit(10, CacheView::new(false, Overlap::default(), estimate)),
            5.0
        );
    }

    #[test]
    fn a_prefix_that_nobody_told_of_follows_the_known_one_in_its_tier() {
        // 3 known of 8: five more, of which the host's weigh 0.75 and the disk's 0.25.
        let known = tiers(2.0, 1.0, 0.0);
        let eight = Blocks::new(8.0);
        assert_eq!(credit(10, known.at_least(eight, Tier::Host)), 2.0 + 4.5);
        assert_eq!(
            credit(10, known.at_least(eight, Tier::Disk)),
            2.0 + 0.75 + 1.25
        );
        assert_eq!(credit(4, known.at_least(eight, Tier::Host)), 2.0 + 1.5);
        assert_eq!(known.at_least(Blocks::new(3.0), Tier::Host), known);
        let estimate = CacheView::Estimate(Blocks::new(2.0));
        assert_eq!(credit(10, estimate.at_least(eight, Tier::Host)), 2.0 + 4.5);
    }

    #[test]
    fn inputs_that_are_no_count_are_zero_blocks() {
        for bad in [f64::NAN, -4.0, f64::NEG_INFINITY] {
            assert_eq!(credit(10, tiers(bad, 4.0, bad)), 3.0);
        }
        assert_eq!(credit(10, tiers(f64::INFINITY, 4.0, 0.0)), 10.0);
    }

    #[test]
    fn uncached_tokens_stay_between_zero_and_the_prompt() {
        let prompt = Tokens(40);
        assert_eq!(uncached_tokens(prompt, 16, Blocks::ZERO), 40.0);
        assert_eq!(uncached_tokens(prompt, 16, Blocks::new(0.75)), 28.0);
        // Two and a half blocks of prompt: the credit for the third block is cut.
        assert_eq!(uncached_tokens(prompt, 16, Blocks::new(3.0)), 0.0);
        assert_eq!(uncached_tokens(prompt, 0, Blocks::new(3.0)), 40.0);
    }

    #[test]
    fn missing_weights_take_their_defaults() {
        let weights: TierWeights = serde_json::from_str(r#"{"disk": 0.1}"#).unwrap();
        let expected = TierWeights {
            disk: 0.1,
            ..TierWeights::default()
        };
        assert_eq!(weights, expected);
    }

    #[test]
    fn a_misspelt_tier_is_refused() {
        let error = serde_json::from_str::<TierWeights>(r#"{"dsik": 0.1}"#).unwrap_err();
        assert!(error.to_string().contains("dsik"));
    }

    #[test]
    fn a_weight_outside_zero_to_one_is_refused_by_name() {
        let weights = TierWeights {
            host: 1.5,
            ..TierWeights::default()
        };
        assert_eq!(
            weights.validate().unwrap_err().to_string(),
            "tier weight `host` is 1.5; allowed is a number from 0 to 1"
        );
        let weights = TierWeights {
            shared: f64::NAN,
            ..TierWeights::default()
        };
        assert_eq!(weights.validate().unwrap_err().key, "shared");
        assert_eq!(TierWeights::default().validate(), Ok(()));
    }

    fn any_weights() -> impl Strategy<Value = TierWeights> {
        [0.0..=1.0, 0.0..=1.0, 0.0..=1.0, 0.0..=1.0].prop_map(|[device, host, disk, shared]| {
            TierWeights {
                device,
                host,
                disk,
                shared,
            }
        })
    }

    /// Weights that never rise from a nearer tier to a farther one.
    fn falling_weights() -> impl Strategy<Value = TierWeights> {
        any_weights().prop_map(|any| {
            let mut weights = [any.device, any.host, any.disk, any.shared];
            weights.sort_by(|a, b| b.total_cmp(a));
            let [device, host, disk, shared] = weights;
            TierWeights {
                device,
                host,
                disk,
                shared,
            }
        })
    }

    fn any_ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        let range = (0u64..40, 0u64..10).prop_map(|(start, len)| start..start + len);
        proptest::collection::vec(range, 0..6)
    }

    proptest! {
        #[test]
        fn credit_lies_between_zero_and_the_prompt(
            request_blocks in 0u64..40,
            [device, host, disk] in [-2.0..40.0, -2.0..40.0, -2.0..40.0],
            weights in any_weights(),
            shared in any_ranges(),
        ) {
            let prompt = request_blocks as f64;
            let by_tier = weights.credit(request_blocks, tiers(device, host, disk), shared.clone());
            let estimate = CacheView::Estimate(Blocks::new(device));
            for credit in [by_tier, weights.credit(request_blocks, estimate, shared)] {
                prop_assert!((0.0..=prompt).contains(&credit.weighted.get()));
                prop_assert!(credit.prefix.covered().get() <= prompt + 1e-9);
            }
        }

        #[test]
        fn one_more_block_in_a_tier_never_lowers_the_credit(
            request_blocks in 0u64..40,
            held in [0u32..20, 0u32..20, 0u32..20],
            tier in 0usize..3,
            weights in falling_weights(),
            shared in any_ranges(),
        ) {
            let credit = |held: [u32; 3]| {
                let [device, host, disk] = held.map(f64::from);
                weights
                    .credit(request_blocks, tiers(device, host, disk), shared.clone())
                    .weighted
                    .get()
            };
            let mut more = held;
            more[tier] += 1;
            prop_assert!(credit(more) >= credit(held) - 1e-9);
        }

        #[test]
        fn uncached_tokens_never_leave_the_prompt(
            prompt in 0u64..10_000,
            size in 0u32..64,
            blocks in 0.0..500.0,
        ) {
            let left = uncached_tokens(Tokens(prompt), size, Blocks::new(blocks));
            prop_assert!((0.0..=prompt as f64).contains(&left));
        }
    }
}
