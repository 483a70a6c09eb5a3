// SPDX-License-Identifier: Apache-2.0

//! The placement rule: promote, keep, demote or drop, one block at a time.
//!
//! # Idea
//!
//! A block in tier t saves each of its next n accesses the time v(t) by which t is faster than doing
//! without the block. For that it takes up a slot, worth p(t), and it must be moved there first:
//!
//! ```text
//! net(t) = n·v(t) − p(t) − move(t)        v(t) = max(0, without − access(t))
//! n      = accesses · 2^(−idle / half-life)
//! ```
//!
//! The best t wins; none, at net 0, is to drop the block; where it lies it need not be moved, and it
//! stays there on a tie. Three things follow. The more often a block is used, the higher it lies, since
//! n multiplies v(t) alone. A move happens only if it saves more than it costs. No block goes to a tier
//! that is slower than doing without it, since v is 0 there and moving is not free.
//!
//! Doing without a block means to recompute it, or to read it from another worker if one has it. While
//! requests queue for prefill, recomputing delays others too, so the regime of the pool sets a price on
//! it, as in the routing rule; at saturation blocks are demoted that would be dropped on an idle pool.
//!
//! # Defaults
//!
//! Prices 2 in Transition and 16 in Saturated are those of the routing rule, 2·L, at the cuts of L where
//! these regimes begin, 1 and 8 waiting requests. 0.025 ms a token is Llama 3.1 70B in FP8 on four B200
//! (223 ms for 8,192 tokens in NVIDIA's performance tables). A half-life of ten minutes is a guess at the
//! pause between two turns of a conversation.
//!
//! # Source
//!
//! Slot prices are the multipliers of the capacities in the placement problem; [`plan`](super::plan)
//! computes them.

use regime_core::{Millis, Regime};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Ladder, Tier};

/// What to do with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Move it up to this tier.
    Promote(Tier),
    /// Leave it where it is.
    Keep,
    /// Move it down to this tier.
    Demote(Tier),
    /// Give it up.
    Drop,
}

/// What is known of a block, or of a run of blocks that are used together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockUse {
    /// Where it lies.
    pub tier: Tier,
    /// Accesses counted so far; a count that ages already comes with `idle` zero. Below zero or not a
    /// number counts as none.
    pub accesses: f64,
    /// Time since the last access.
    pub idle: Millis,
    /// Tokens that are brought together; latency is paid once for all of them.
    pub tokens: u32,
    /// Time to read it from another worker, where one has it.
    pub elsewhere: Option<Millis>,
}

/// Worth of a slot for one token, ms, by tier in the order of [`Tier::ALL`]: what would lie there
/// otherwise. Zero where there is room.
pub type SlotPrices = [Millis; Tier::ALL.len()];

/// Constants of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuleConfig {
    /// Time to recompute one token on an idle worker, ms. Above 0.
    pub token_ms: f64,
    /// Idle time that halves the accesses to be expected, ms. Above 0.
    pub half_life_ms: f64,
    /// Price on recomputing in the regime Transition: 1 + this times the time. From 0.
    pub transition_price: f64,
    /// The same in the regime Saturated. At least `transition_price`.
    pub saturated_price: f64,
}

impl Default for RuleConfig {
    fn default() -> Self {
        Self {
            token_ms: 0.025,
            half_life_ms: 600_000.0,
            transition_price: 2.0,
            saturated_price: 16.0,
        }
    }
}

/// A constant out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("{key} is {value}; allowed: {allowed}")]
pub struct RuleError {
    /// Name of the field in [`RuleConfig`].
    pub key: &'static str,
    /// The refused value.
    pub value: f64,
    /// What would have been accepted.
    pub allowed: &'static str,
}

/// The rule over one ladder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    ladder: Ladder,
    config: RuleConfig,
}

impl Rule {
    /// A rule with these constants.
    ///
    /// # Errors
    /// Names the first constant out of range.
    pub fn new(ladder: Ladder, config: RuleConfig) -> Result<Self, RuleError> {
        let check = |key, value: f64, low: f64, allowed| {
            if (low..=1e12).contains(&value) {
                Ok(())
            } else {
                Err(RuleError {
                    key,
                    value,
                    allowed,
                })
            }
        };
        let positive = "above 0 (from 1e-9), at most 1e12";
        check("token_ms", config.token_ms, 1e-9, positive)?;
        check("half_life_ms", config.half_life_ms, 1e-9, positive)?;
        check(
            "transition_price",
            config.transition_price,
            0.0,
            "0 to 1e12",
        )?;
        check(
            "saturated_price",
            config.saturated_price,
            config.transition_price,
            "at least `transition_price`, at most 1e12",
        )?;
        Ok(Self { ladder, config })
    }

    /// The best place for `block`.
    #[must_use]
    pub fn advise(&self, block: &BlockUse, slots: &SlotPrices, regime: Regime) -> Advice {
        let stay = self.gain(block, block.tier, slots, regime);
        let mut best = (stay, Some(block.tier));
        // Nearest first: of equals, the faster tier.
        for tier in Tier::ALL {
            let net = self.gain(block, tier, slots, regime);
            if net > best.0 {
                best = (net, Some(tier));
            }
        }
        if best.0 < Millis::ZERO {
            best.1 = None;
        }
        match best.1 {
            None => Advice::Drop,
            Some(tier) if tier < block.tier => Advice::Promote(tier),
            Some(tier) if tier > block.tier => Advice::Demote(tier),
            Some(_) => Advice::Keep,
        }
    }

    /// What having `block` in `tier` saves over not having it at all, its slot and the move there paid.
    /// Positive for a copy that is worth making.
    #[must_use]
    pub fn gain(&self, block: &BlockUse, tier: Tier, slots: &SlotPrices, regime: Regime) -> Millis {
        let tokens = f64::from(block.tokens);
        let moved = if tier == block.tier {
            Some(Millis::ZERO)
        } else {
            // A move takes as long as its slower end.
            self.access(tier.max(block.tier), block.tokens)
        };
        let Some((access, moved)) = self.access(tier, block.tokens).zip(moved) else {
            return Millis::new(f64::MIN);
        };
        let saved = (self.without(block, regime) - access).max(Millis::ZERO);
        saved * self.expected(block) - slots[tier as usize] * tokens - moved
    }

    /// Accesses to be expected.
    fn expected(&self, block: &BlockUse) -> f64 {
        let idle = block.idle.max(Millis::ZERO).get();
        // `Millis` makes a NaN zero and keeps the product finite.
        Millis::new(block.accesses).max(Millis::ZERO).get()
            * (-idle / self.config.half_life_ms).exp2()
    }

    /// Time that an access takes without the block.
    fn without(&self, block: &BlockUse, regime: Regime) -> Millis {
        let price = match regime {
            Regime::Unknown | Regime::Below => 0.0,
            Regime::Transition => self.config.transition_price,
            Regime::Saturated => self.config.saturated_price,
        };
        let recompute = Millis::new(self.config.token_ms * (1.0 + price)) * f64::from(block.tokens);
        block
            .elsewhere
            .map_or(recompute, |elsewhere| recompute.min(elsewhere))
    }

    /// Time to bring `tokens` from `tier` into device memory; absent for a tier that the ladder lacks.
    fn access(&self, tier: Tier, tokens: u32) -> Option<Millis> {
        if tier == Tier::Device {
            return Some(Millis::ZERO);
        }
        self.ladder.speed(tier).map(|speed| {
            Millis::new(speed.latency_ms) + speed.transfer(self.ladder.block_bytes(tokens))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LadderConfig, TierSpeed};
    use proptest::prelude::*;

    const FREE: SlotPrices = [Millis::ZERO; 4];

    /// 1 ms to recompute a token of 1 MB. Ten tokens: host 0.5 + 1 ms, disk 2 + 5, shared 12 + 10.
    fn rule() -> Rule {
        let ladder = Ladder::new(LadderConfig {
            kv_bytes_per_token: 1e6,
            host: Some(TierSpeed::new(0.5, 10.0)),
            disk: Some(TierSpeed::new(2.0, 2.0)),
            shared: Some(TierSpeed::new(12.0, 1.0)),
            ..LadderConfig::default()
        })
        .unwrap();
        let config = RuleConfig {
            token_ms: 1.0,
            half_life_ms: 1_000.0,
            ..RuleConfig::default()
        };
        Rule::new(ladder, config).unwrap()
    }

    fn block(tier: Tier, accesses: f64) -> BlockUse {
        BlockUse {
            tier,
            accesses,
            idle: Millis::ZERO,
            tokens: 10,
            elsewhere: None,
        }
    }

    fn advice(block: &BlockUse) -> Advice {
        rule().advise(block, &FREE, Regime::Below)
    }

    /// Slots down to `tier` cost so much that nothing stays there.
    fn full_to(tier: Tier) -> SlotPrices {
        Tier::ALL.map(|each| Millis::new(if each <= tier { 1e9 } else { 0.0 }))
    }

    #[test]
    fn the_gain_is_the_time_saved_less_slot_and_move() {
        // Two accesses save 10 − 1.5 ms each in host memory; ten slots of 0.2 ms, 1.5 ms to move.
        let mut slots = FREE;
        slots[Tier::Host as usize] = Millis::new(0.2);
        let gain = rule().gain(&block(Tier::Device, 2.0), Tier::Host, &slots, Regime::Below);
        assert!((gain.get() - (17.0 - 2.0 - 1.5)).abs() < 1e-9);
    }

    #[test]
    fn a_block_is_promoted_once_its_accesses_pay_for_the_move() {
        // From disk: each access saves 7 ms in the device, where the move takes 7.
        assert_eq!(advice(&block(Tier::Disk, 0.9)), Advice::Keep);
        assert_eq!(
            advice(&block(Tier::Disk, 1.1)),
            Advice::Promote(Tier::Device)
        );
        // With the device full, host memory: 5.5 ms saved each, a move of 7.
        let to_host = |accesses| {
            rule().advise(
                &block(Tier::Disk, accesses),
                &full_to(Tier::Device),
                Regime::Below,
            )
        };
        assert_eq!(to_host(1.2), Advice::Keep);
        assert_eq!(to_host(1.3), Advice::Promote(Tier::Host));
    }

    #[test]
    fn a_block_that_must_go_is_demoted_if_it_will_be_missed_and_else_dropped() {
        // Host memory saves 8.5 ms an access and takes 1.5 to move.
        let pressed = |accesses| {
            rule().advise(
                &block(Tier::Device, accesses),
                &full_to(Tier::Device),
                Regime::Below,
            )
        };
        assert_eq!(pressed(0.2), Advice::Demote(Tier::Host));
        assert_eq!(pressed(0.1), Advice::Drop);
    }

    #[test]
    fn no_block_is_demoted_to_a_tier_slower_than_recomputing() {
        // The store takes 22 ms, recomputing 10, however often the block is used.
        let slots = full_to(Tier::Disk);
        let cornered = |regime| rule().advise(&block(Tier::Disk, 100.0), &slots, regime);
        assert_eq!(cornered(Regime::Below), Advice::Drop);
        // At saturation recomputing costs 170 ms.
        assert_eq!(cornered(Regime::Saturated), Advice::Demote(Tier::Shared));
    }

    #[test]
    fn idle_time_halves_what_is_expected() {
        let idle = |ms| BlockUse {
            idle: Millis::new(ms),
            ..block(Tier::Disk, 2.0)
        };
        // Two accesses are one after a half-life, and one does not quite pay: it saves what it costs.
        assert_eq!(advice(&idle(900.0)), Advice::Promote(Tier::Device));
        assert_eq!(advice(&idle(1_100.0)), Advice::Keep);
    }

    #[test]
    fn a_longer_run_shares_the_latency() {
        // On disk, one token takes 2.5 ms and is recomputed in 1; ten take 7 against 10.
        let one = BlockUse {
            tokens: 1,
            ..block(Tier::Host, 50.0)
        };
        let slots = full_to(Tier::Host);
        assert_eq!(rule().advise(&one, &slots, Regime::Below), Advice::Drop);
        let ten = block(Tier::Host, 50.0);
        assert_eq!(
            rule().advise(&ten, &slots, Regime::Below),
            Advice::Demote(Tier::Disk)
        );
    }

    #[test]
    fn a_block_that_another_worker_has_is_missed_less() {
        let shared = BlockUse {
            elsewhere: Some(Millis::new(1.0)),
            ..block(Tier::Device, 0.9)
        };
        // Reading it there takes 1 ms, less than host memory.
        let slots = full_to(Tier::Device);
        assert_eq!(rule().advise(&shared, &slots, Regime::Below), Advice::Drop);
    }

    #[test]
    fn the_presets_give_the_figures_of_the_guide() {
        // `docs/kvbm.md`: least accesses at which a run of 512 tokens is worth a copy, of 15 at most.
        let ladder = Ladder::new(LadderConfig {
            shared: Some(TierSpeed::OBJECT_STORE_100G),
            ..LadderConfig::default()
        })
        .unwrap();
        let rule = Rule::new(ladder, RuleConfig::default()).unwrap();
        let least = |from, to, regime| {
            (1..=15).find(|accesses| {
                let block = BlockUse {
                    tokens: 512,
                    ..block(from, f64::from(*accesses))
                };
                rule.gain(&block, to, &FREE, regime) > Millis::ZERO
            })
        };
        assert_eq!(least(Tier::Device, Tier::Host, Regime::Below), Some(1));
        assert_eq!(least(Tier::Host, Tier::Disk, Regime::Below), Some(6));
        assert_eq!(least(Tier::Host, Tier::Disk, Regime::Saturated), Some(1));
        assert_eq!(least(Tier::Host, Tier::Shared, Regime::Transition), None);
        assert_eq!(least(Tier::Host, Tier::Shared, Regime::Saturated), Some(3));
    }

    #[test]
    fn counts_that_are_no_number_are_none() {
        for accesses in [f64::NAN, -3.0] {
            let slots = full_to(Tier::Device);
            let advice = rule().advise(&block(Tier::Device, accesses), &slots, Regime::Below);
            assert_eq!(advice, Advice::Drop);
        }
    }

    #[test]
    fn a_constant_out_of_range_is_named() {
        let ladder = Ladder::new(LadderConfig::default()).unwrap();
        let refusal = |config| Rule::new(ladder, config).unwrap_err().to_string();
        assert_eq!(
            refusal(RuleConfig {
                token_ms: 0.0,
                ..RuleConfig::default()
            }),
            "token_ms is 0; allowed: above 0 (from 1e-9), at most 1e12"
        );
        assert_eq!(
            refusal(RuleConfig {
                saturated_price: 1.0,
                ..RuleConfig::default()
            }),
            "saturated_price is 1; allowed: at least `transition_price`, at most 1e12"
        );
        let nan = RuleConfig {
            half_life_ms: f64::NAN,
            ..RuleConfig::default()
        };
        assert!(refusal(nan).starts_with("half_life_ms is NaN"));
    }

    /// Where the block lies afterwards; one past the last tier when dropped.
    fn depth(block: &BlockUse, advice: Advice) -> usize {
        match advice {
            Advice::Promote(tier) | Advice::Demote(tier) => tier as usize,
            Advice::Keep => block.tier as usize,
            Advice::Drop => Tier::ALL.len(),
        }
    }

    fn any_tier() -> impl Strategy<Value = Tier> {
        (0..Tier::ALL.len()).prop_map(|index| Tier::ALL[index])
    }

    fn any_regime() -> impl Strategy<Value = Regime> {
        prop_oneof![
            Just(Regime::Below),
            Just(Regime::Transition),
            Just(Regime::Saturated)
        ]
    }

    proptest! {
        #[test]
        fn what_is_used_more_or_later_never_lies_lower(
            tier in any_tier(),
            accesses in 0.0..20.0f64,
            more in 0.0..20.0f64,
            idle in 0.0..3_000.0f64,
            earlier in 0.0..3_000.0f64,
            tokens in 1u32..100,
            slots in [0.0..2.0f64, 0.0..2.0f64, 0.0..2.0f64, 0.0..2.0f64],
            regime in any_regime(),
        ) {
            let slots = slots.map(Millis::new);
            let seldom = BlockUse { tokens, idle: Millis::new(idle + earlier), ..block(tier, accesses) };
            let often = BlockUse { accesses: accesses + more, idle: Millis::new(idle), ..seldom };
            let place = |block: &BlockUse| depth(block, rule().advise(block, &slots, regime));
            prop_assert!(place(&often) <= place(&seldom));
        }

        #[test]
        fn no_advice_costs_more_than_it_saves(
            tier in any_tier(),
            accesses in 0.0..20.0f64,
            tokens in 1u32..100,
            slots in [0.0..2.0f64, 0.0..2.0f64, 0.0..2.0f64, 0.0..2.0f64],
            regime in any_regime(),
        ) {
            let slots = slots.map(Millis::new);
            let block = BlockUse { tokens, ..block(tier, accesses) };
            let gain = |tier| rule().gain(&block, tier, &slots, regime);
            match rule().advise(&block, &slots, regime) {
                Advice::Promote(to) | Advice::Demote(to) => {
                    prop_assert!(gain(to) > gain(tier) && gain(to) >= Millis::ZERO);
                }
                Advice::Keep => prop_assert!(gain(tier) >= Millis::ZERO),
                Advice::Drop => {
                    for to in Tier::ALL {
                        prop_assert!(gain(to) < Millis::ZERO);
                    }
                }
            }
        }

        #[test]
        fn a_slower_than_recompute_tier_is_never_moved_to(
            tier in any_tier(),
            accesses in 0.0..1e6f64,
            tokens in 1u32..30,
            slots in [0.0..9.0f64, 0.0..9.0f64, 0.0..9.0f64, 0.0..9.0f64],
        ) {
            let block = BlockUse { tokens, ..block(tier, accesses) };
            if let Advice::Promote(to) | Advice::Demote(to) =
                rule().advise(&block, &slots.map(Millis::new), Regime::Below)
            {
                let access = rule().access(to, tokens).unwrap();
                prop_assert!(access.get() < f64::from(tokens));
            }
        }
    }
}
