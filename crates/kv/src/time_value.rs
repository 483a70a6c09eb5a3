// SPDX-License-Identifier: Apache-2.0

//! Tier credit by time: what a cached prefix saves after it has been brought into device memory.
//!
//! # Idea
//!
//! A block in device memory saves its recomputation. A block below saves its recomputation less the
//! time to bring it: the latency of its tier, once, its bytes at the tier's bandwidth, and the wait
//! behind transfers that are under way there. A prefix is used from its start, so a part can only be
//! brought together with all before it, and the question is where to stop. Within a tier each block adds
//! the same, so the best end is the end of a part: device, host, disk or shared. The ladder tries all
//! four and keeps the best, which saves at least what the device part saves. A slow part is worth nothing
//! then, unless what lies behind it pays for both.
//!
//! Parts are brought one after the other, not side by side: a disk's blocks pass through host memory.
//!
//! # Why no weight
//!
//! With 0.4 ms to recompute a block of 2.6 MB, the host brings it in 0.04 ms and saves nine tenths, a
//! disk at 7.9 GB/s needs 0.33 ms and saves a sixth; at 0.1 ms to recompute the host saves half and the
//! disk nothing. One weight cannot be right for both.
//!
//! # Source
//!
//! The placement game Γ_KV of the paper: the cost of a block is the access latency of its tier.

use regime_core::{Blocks, Millis, Tokens};

use crate::{Ladder, Prefix, Tier};

/// What a request brings up from the lower tiers of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fetch {
    /// Time until the last block is there, waiting included.
    pub time: Millis,
    /// Bytes moved, by tier in the order of [`Tier::LOWER`].
    pub bytes: [f64; Tier::LOWER.len()],
}

/// Credit of one worker for one request, by time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TimedCredit {
    /// Blocks that are not recomputed: the device part and what pays to bring.
    pub blocks: Blocks,
    /// The price of those that are not in device memory.
    pub fetch: Fetch,
}

impl Ladder {
    /// Credit for a `prompt` in blocks of `block_tokens` tokens, where recomputing one token costs
    /// `token`, and a transfer on each lower tier first waits for `queued`.
    ///
    /// `token` is what the token costs everybody, so a pool in which recomputing delays others brings up
    /// more. The last block of a prompt may be partly filled; it saves only the tokens it has.
    #[must_use]
    pub fn credit(
        &self,
        prompt: Tokens,
        block_tokens: u32,
        prefix: &Prefix,
        token: Millis,
        queued: [Millis; Tier::LOWER.len()],
    ) -> TimedCredit {
        let block_bytes = self.block_bytes(block_tokens);
        let saved = |end: Blocks| {
            let tokens = (end.get() * f64::from(block_tokens)).min(prompt.as_f64());
            token * tokens
        };
        let mut end = prefix.device;
        let mut fetch = Fetch::default();
        let mut best = TimedCredit { blocks: end, fetch };
        let mut most = saved(end);
        let parts = [prefix.host, prefix.disk, prefix.shared];
        for (index, (tier, part)) in Tier::LOWER.into_iter().zip(parts).enumerate() {
            if part == Blocks::ZERO {
                continue;
            }
            let bytes = part.get() * block_bytes;
            let Some(time) = self.fetch_time(tier, bytes) else {
                break;
            };
            fetch.bytes[index] = bytes;
            fetch.time = fetch.time + queued[index] + time;
            end = end + part;
            let net = saved(end) - fetch.time;
            if net > most {
                most = net;
                best = TimedCredit { blocks: end, fetch };
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LadderConfig, TierSpeed};
    use proptest::prelude::*;

    const BLOCK: u32 = 16;
    const IDLE: [Millis; 3] = [Millis::ZERO; 3];

    /// 1 MB a block. Host 0.5 ms + 0.1 ms a block, disk 1 + 1, shared 4 + 2.
    fn ladder() -> Ladder {
        Ladder::new(LadderConfig {
            kv_bytes_per_token: 62_500.0,
            host: Some(TierSpeed::new(0.5, 10.0)),
            disk: Some(TierSpeed::new(1.0, 1.0)),
            shared: Some(TierSpeed::new(4.0, 0.5)),
            ..LadderConfig::default()
        })
        .unwrap()
    }

    fn prefix(parts: [f64; 4]) -> Prefix {
        let [device, host, disk, shared] = parts.map(Blocks::new);
        Prefix {
            device,
            host,
            disk,
            shared,
        }
    }

    /// Credit for a prompt of 20 blocks with `block_ms` to recompute each.
    fn credit(parts: [f64; 4], block_ms: f64) -> TimedCredit {
        let token = Millis::new(block_ms / f64::from(BLOCK));
        ladder().credit(Tokens(320), BLOCK, &prefix(parts), token, IDLE)
    }

    #[test]
    fn device_blocks_are_free() {
        let credit = credit([7.0, 0.0, 0.0, 0.0], 1.6);
        assert_eq!(credit.blocks, Blocks::new(7.0));
        assert_eq!(credit.fetch, Fetch::default());
    }

    #[test]
    fn latency_is_paid_once_and_bytes_each() {
        // 5 blocks: 0.5 + 5 × 0.1 ms.
        let credit = credit([2.0, 5.0, 0.0, 0.0], 1.6);
        assert_eq!(credit.blocks, Blocks::new(7.0));
        assert!((credit.fetch.time.get() - 1.0).abs() < 1e-9);
        assert_eq!(credit.fetch.bytes, [5e6, 0.0, 0.0]);
    }

    #[test]
    fn a_slow_tier_behind_a_fast_device_is_worth_nothing() {
        // A disk block takes 1 ms and saves 0.8.
        let credit = credit([3.0, 0.0, 10.0, 0.0], 0.8);
        assert_eq!(credit.blocks, Blocks::new(3.0));
        assert_eq!(credit.fetch, Fetch::default());
    }

    #[test]
    fn a_run_too_short_for_the_latency_is_left_where_it_is() {
        // 0.16 ms a block saved, 0.1 brought: 9 blocks save 0.54 net of a latency of 0.5, 8 save 0.48.
        assert_eq!(credit([0.0, 8.0, 0.0, 0.0], 0.16).blocks, Blocks::ZERO);
        assert_eq!(credit([0.0, 9.0, 0.0, 0.0], 0.16).blocks, Blocks::new(9.0));
    }

    #[test]
    fn the_prefix_is_cut_where_the_next_part_costs_more_than_it_saves() {
        // 1.9 ms a block: one disk block nets 1.9 − 2, nine shared ones 17.1 − 22. Nothing is brought.
        assert_eq!(credit([0.0, 0.0, 1.0, 9.0], 1.9).blocks, Blocks::ZERO);
        // 3 ms a block: the disk block nets 1; one shared block −3, nine of them 5.
        assert_eq!(credit([0.0, 0.0, 1.0, 1.0], 3.0).blocks, Blocks::new(1.0));
        assert_eq!(credit([0.0, 0.0, 1.0, 9.0], 3.0).blocks, Blocks::new(10.0));
    }

    #[test]
    fn a_part_that_loses_is_brought_if_the_part_behind_it_pays_for_both() {
        let ladder = Ladder::new(LadderConfig {
            kv_bytes_per_token: 62_500.0,
            host: None,
            disk: Some(TierSpeed::new(1.0, 1.0)),
            shared: Some(TierSpeed::new(1.0, 10.0)),
            ..LadderConfig::default()
        })
        .unwrap();
        // 0.9 ms a block: two disk blocks net 1.8 − 3, ten shared ones 9 − 2.
        let parts = prefix([0.0, 0.0, 2.0, 10.0]);
        let token = Millis::new(0.9 / 16.0);
        let credit = ladder.credit(Tokens(320), BLOCK, &parts, token, IDLE);
        assert_eq!(credit.blocks, Blocks::new(12.0));
        assert!((credit.fetch.time.get() - 5.0).abs() < 1e-9);
    }

    #[test]
    fn transfers_under_way_lengthen_the_load_until_it_no_longer_pays() {
        let token = Millis::new(0.1);
        let queued = |ms| {
            let queued = [Millis::new(ms), Millis::ZERO, Millis::ZERO];
            ladder().credit(
                Tokens(320),
                BLOCK,
                &prefix([0.0, 5.0, 0.0, 0.0]),
                token,
                queued,
            )
        };
        // 8 ms of work saved, 1 ms to bring.
        assert!((queued(3.0).fetch.time.get() - 4.0).abs() < 1e-9);
        assert_eq!(queued(7.5), TimedCredit::default());
    }

    #[test]
    fn a_tier_that_the_ladder_lacks_ends_the_prefix() {
        let ladder = Ladder::new(LadderConfig {
            disk: None,
            ..LadderConfig::default()
        })
        .unwrap();
        let parts = prefix([1.0, 2.0, 3.0, 4.0]);
        let credit = ladder.credit(Tokens(320), BLOCK, &parts, Millis::new(1.0), IDLE);
        assert_eq!(credit.blocks, Blocks::new(3.0));
    }

    #[test]
    fn a_partly_filled_last_block_saves_only_its_tokens() {
        // 17 tokens are two blocks; the second saves 1 token of 1 ms and takes 0.6 ms to bring.
        let parts = prefix([1.0, 1.0, 0.0, 0.0]);
        let credit = |token| ladder().credit(Tokens(17), BLOCK, &parts, Millis::new(token), IDLE);
        assert_eq!(credit(1.0).blocks, Blocks::new(2.0));
        assert_eq!(credit(0.5).blocks, Blocks::new(1.0));
    }

    /// What the credit saves against recomputing everything, ms.
    fn saving(credit: &TimedCredit, prompt: f64, token: f64) -> f64 {
        (credit.blocks.get() * f64::from(BLOCK)).min(prompt) * token - credit.fetch.time.get()
    }

    proptest! {
        #[test]
        fn the_best_cut_is_found_and_never_costs_more_than_it_saves(
            parts in [0u8..10, 0u8..10, 0u8..10, 0u8..10],
            prompt in 0u64..700,
            token in 0.0..0.5f64,
            queued in [0.0..5.0f64, 0.0..5.0f64, 0.0..5.0f64],
        ) {
            let ladder = ladder();
            let parts = parts.map(f64::from);
            let waits = queued.map(Millis::new);
            let credit = ladder.credit(
                Tokens(prompt), BLOCK, &prefix(parts), Millis::new(token), waits);
            let got = saving(&credit, prompt as f64, token);
            // Every cut, block by block.
            let mut best = f64::NEG_INFINITY;
            let covered = parts.iter().sum::<f64>() as u32;
            for cut in 0..=covered {
                let mut left = f64::from(cut);
                let mut time = 0.0;
                for (tier, part) in Tier::ALL.into_iter().zip(parts) {
                    let taken = left.min(part);
                    left -= taken;
                    if let Some(speed) = ladder.speed(tier) && taken > 0.0 {
                        time += queued[tier as usize - 1] + speed.latency_ms
                            + taken * 1e6 / (speed.bandwidth_gb_s * 1e6);
                    }
                }
                let tokens = (f64::from(cut) * f64::from(BLOCK)).min(prompt as f64);
                best = best.max(tokens * token - time);
            }
            // A cut inside the prompt's last block can beat the end of a part that reaches past it; such
            // parts do not reach the ladder.
            if covered as u64 * u64::from(BLOCK) <= prompt {
                prop_assert!((got - best).abs() < 1e-6, "{got} {best}");
            }
            prop_assert!(got >= (parts[0] * 16.0).min(prompt as f64) * token - 1e-9);
        }

        #[test]
        fn a_dearer_token_never_brings_less(
            parts in [0u8..10, 0u8..10, 0u8..10, 0u8..10],
            token in 0.0..0.5f64,
            more in 0.0..0.5f64,
        ) {
            let parts = prefix(parts.map(f64::from));
            let blocks = |token| {
                ladder().credit(Tokens(1_000), BLOCK, &parts, Millis::new(token), IDLE).blocks
            };
            prop_assert!(blocks(token + more) >= blocks(token));
        }
    }
}
