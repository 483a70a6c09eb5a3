// SPDX-License-Identifier: Apache-2.0

//! How a block manager asks for advice, and how the router's side tells what the advice depends on.
//!
//! The two sides meet in one object that both hold: the block manager asks, once per block and from any
//! thread; whoever watches the pool says in which regime it is and what slots are worth. Neither waits for
//! the other, and asking allocates nothing.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use regime_core::{Millis, Regime};

use super::{Advice, BlockUse, Rule, SlotPrices};
use crate::Tier;

/// What a block manager asks.
pub trait PlacementAdvisor: Send + Sync {
    /// What to do with a block.
    fn advise(&self, block: &BlockUse) -> Advice;

    /// Whether a copy of the block in `to` is worth making, so that it is not lost when the block is
    /// evicted from where it lies.
    fn worth_copying(&self, block: &BlockUse, to: Tier) -> bool;
}

/// The rule, with the regime and the slot prices of now.
#[derive(Debug)]
pub struct Advisor {
    rule: Rule,
    regime: AtomicU8,
    /// Bits of the prices, ms a token.
    slots: [AtomicU64; Tier::ALL.len()],
}

/// In the order of their codes.
const REGIMES: [Regime; 4] = [
    Regime::Unknown,
    Regime::Below,
    Regime::Transition,
    Regime::Saturated,
];

impl Advisor {
    /// An advisor for a pool of unknown regime, with room in every tier.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            regime: AtomicU8::new(0),
            slots: Default::default(),
        }
    }

    /// The pool is in `regime`.
    pub fn set_regime(&self, regime: Regime) {
        let code = REGIMES.iter().position(|each| *each == regime);
        self.regime
            .store(code.unwrap_or_default() as u8, Ordering::Relaxed);
    }

    /// A slot for one token in `tier` is worth `price`; below zero counts as zero.
    pub fn set_slot_price(&self, tier: Tier, price: Millis) {
        let bits = price.max(Millis::ZERO).get().to_bits();
        self.slots[tier as usize].store(bits, Ordering::Relaxed);
    }

    fn regime(&self) -> Regime {
        let code = usize::from(self.regime.load(Ordering::Relaxed));
        REGIMES.get(code).copied().unwrap_or(Regime::Unknown)
    }

    fn slots(&self) -> SlotPrices {
        std::array::from_fn(|index| {
            Millis::new(f64::from_bits(self.slots[index].load(Ordering::Relaxed)))
        })
    }
}

impl PlacementAdvisor for Advisor {
    fn advise(&self, block: &BlockUse) -> Advice {
        self.rule.advise(block, &self.slots(), self.regime())
    }

    fn worth_copying(&self, block: &BlockUse, to: Tier) -> bool {
        self.rule.gain(block, to, &self.slots(), self.regime()) > Millis::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ladder, LadderConfig, RuleConfig, TierSpeed};

    /// 1 ms to recompute a token of 1 MB, 12 + 1 ms a token from the store.
    fn advisor() -> Advisor {
        let ladder = Ladder::new(LadderConfig {
            kv_bytes_per_token: 1e6,
            shared: Some(TierSpeed::new(12.0, 1.0)),
            ..LadderConfig::default()
        })
        .unwrap();
        let config = RuleConfig {
            token_ms: 1.0,
            ..RuleConfig::default()
        };
        Advisor::new(Rule::new(ladder, config).unwrap())
    }

    fn block() -> BlockUse {
        BlockUse {
            tier: Tier::Host,
            accesses: 2.0,
            idle: Millis::ZERO,
            tokens: 10,
            elsewhere: None,
        }
    }

    #[test]
    fn the_regime_changes_what_is_worth_copying() {
        let advisor = advisor();
        // The store takes 22 ms; recomputing 10, or 30 while requests queue: 2 × 8 less than the move.
        for (regime, worth) in [
            (Regime::Unknown, false),
            (Regime::Transition, false),
            (Regime::Saturated, true),
            (Regime::Below, false),
        ] {
            advisor.set_regime(regime);
            assert_eq!(
                advisor.worth_copying(&block(), Tier::Shared),
                worth,
                "{regime:?}"
            );
        }
    }

    #[test]
    fn a_slot_price_drives_blocks_out() {
        let advisor = advisor();
        advisor.set_slot_price(Tier::Device, Millis::new(1e6));
        assert_eq!(advisor.advise(&block()), Advice::Keep);
        advisor.set_slot_price(Tier::Host, Millis::new(1e6));
        assert_eq!(advisor.advise(&block()), Advice::Demote(Tier::Disk));
        advisor.set_slot_price(Tier::Host, Millis::new(-1.0));
        assert_eq!(advisor.advise(&block()), Advice::Keep);
    }
}
