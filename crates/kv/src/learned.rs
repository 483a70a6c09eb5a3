// SPDX-License-Identifier: Apache-2.0

//! The ladder with one factor a tier, learned from what requests took.
//!
//! # Idea
//!
//! A request whose blocks come from one lower tier takes its prefill and the transfer. Where the prefill
//! is known, what is left over measures the transfer of known bytes: left over / by the ladder is the
//! factor by which the tier is slower than the ladder says. The factor that is used is the median of the
//! last measurements, so that outliers do not matter, and 1 before there are enough of them.
//!
//! What is left over is what the blocks cost the request, whatever the engine does. One that overlaps
//! transfers with computing makes the tier look faster, which is what it is worth. One that computes what
//! it could have brought makes it look as fast as computing.
//!
//! # Limits
//!
//! - An engine brings up whatever it finds, so measurements go by what was found, not by what would pay.
//! - Where a request finds blocks in several lower tiers, no share of its time can be told apart.
//! - A transfer that the ladder takes for shorter than the noise of a pass teaches nothing.
//! - In silence a factor returns to 1: a tier that was given up gets tried again.

use std::collections::VecDeque;
use std::time::Duration;

use regime_core::{Blocks, Millis, Timestamp, Tokens};
use serde::Serialize;

use crate::{Ladder, Prefix, Tier, uncached_tokens};

/// Measurements of a tier that are kept.
const MEMORY: usize = 15;
/// Measurements that a factor needs.
const MIN_SAMPLES: usize = 3;
/// Age at which a measurement no longer counts.
const MAX_AGE: Duration = Duration::from_secs(600);
/// Bounds of a factor.
const BOUNDS: (f64, f64) = (1.0 / 16.0, 16.0);
/// Shortest transfer, by the ladder, that is no noise: a few ms pass until a busy engine looks for it.
const LEAST_TIME: Millis = Millis::new(2.0);
/// The same as a share of the prefill, which is known to about a tenth.
const LEAST_SHARE: f64 = 0.1;

/// What an engine that brings up whatever it finds moves for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Brought {
    /// Nothing: all that is cached is in device memory.
    #[default]
    Nothing,
    /// Blocks of one lower tier.
    From(Haul),
    /// Blocks of which cannot be told what they take.
    Untold,
}

/// Blocks of one lower tier that are brought up for one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Haul {
    /// Where they lie.
    pub tier: Tier,
    /// Their size.
    pub bytes: f64,
    /// The prefix before them, in device memory.
    pub device: Blocks,
    /// What is computed after them.
    pub uncached: Tokens,
}

impl Brought {
    /// The same where at least the first `blocks` are known to be in device memory, whatever events say.
    #[must_use]
    pub fn besides(self, blocks: Blocks) -> Self {
        match self {
            Self::From(haul) if blocks > haul.device => Self::Untold,
            other => other,
        }
    }
}

impl Ladder {
    /// What a worker that holds `prefix` brings up for a `prompt` in blocks of `block_tokens` tokens. Behind
    /// transfers for other workers that are `queued` in the store, in the order of [`Tier::LOWER`], a
    /// transfer takes longer by an unknown time.
    #[must_use]
    pub fn brought(
        &self,
        prompt: Tokens,
        block_tokens: u32,
        prefix: &Prefix,
        [.., store]: [Millis; Tier::LOWER.len()],
    ) -> Brought {
        let parts = [prefix.host, prefix.disk, prefix.shared];
        let mut found = Tier::LOWER
            .into_iter()
            .zip(parts)
            .filter(|(_, part)| *part > Blocks::ZERO);
        match (found.next(), found.next()) {
            (None, _) => Brought::Nothing,
            (Some((Tier::Shared, _)), _) if store > Millis::ZERO => Brought::Untold,
            (Some((tier, blocks)), None) => {
                let uncached = uncached_tokens(prompt, block_tokens, prefix.covered());
                Brought::From(Haul {
                    tier,
                    bytes: blocks.get() * self.block_bytes(block_tokens),
                    device: prefix.device,
                    uncached: Tokens(uncached.round() as u64),
                })
            }
            _ => Brought::Untold,
        }
    }
}

/// What has been learned about one tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TierFactor {
    /// Time that the tier takes over what the ladder says, from 1/16 to 16; 1 before it is known.
    pub factor: f64,
    /// Measurements behind it, or as many as there are if they are too few.
    pub samples: usize,
}

/// A ladder that learns. See the module for how.
#[derive(Debug, Clone)]
pub struct LearnedLadder {
    ladder: Ladder,
    /// By tier in the order of [`Tier::LOWER`], oldest first.
    measured: [VecDeque<Measured>; Tier::LOWER.len()],
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    at: Timestamp,
    /// Time beyond the prefill over that of the ladder. Below zero where noise outweighed it.
    ratio: f64,
}

impl LearnedLadder {
    /// Learn factors on `ladder`, unless it says not to.
    #[must_use]
    pub fn new(ladder: Ladder) -> Self {
        Self {
            ladder,
            measured: Default::default(),
        }
    }

    /// Whether anything is ever learned.
    #[must_use]
    pub const fn learns(&self) -> bool {
        self.ladder.config().learn
    }

    /// A request that brought up `haul` and was answered at `at` took `over` beyond its `prefill`.
    pub fn observe(&mut self, haul: &Haul, over: Millis, prefill: Millis, at: Timestamp) {
        let time = self.ladder.fetch_time(haul.tier, haul.bytes);
        let least = LEAST_TIME.max(prefill * LEAST_SHARE);
        let Some(time) = time.filter(|time| self.learns() && *time >= least) else {
            return;
        };
        let position = Tier::LOWER.iter().position(|tier| *tier == haul.tier);
        let Some(measured) = position.and_then(|index| self.measured.get_mut(index)) else {
            return;
        };
        if measured.len() == MEMORY {
            measured.pop_front();
        }
        let ratio = over.ratio(time).unwrap_or(1.0);
        measured.push_back(Measured { at, ratio });
    }

    /// The ladder as it stands at `now`: every tier with its factor.
    #[must_use]
    pub fn ladder(&self, now: Timestamp) -> Ladder {
        self.ladder.slowed(self.factors(now).map(|it| it.factor))
    }

    /// What has been learned at `now`, by tier in the order of [`Tier::LOWER`].
    #[must_use]
    pub fn factors(&self, now: Timestamp) -> [TierFactor; Tier::LOWER.len()] {
        self.measured
            .each_ref()
            .map(|measured| factor(measured, now))
    }
}

fn factor(measured: &VecDeque<Measured>, now: Timestamp) -> TierFactor {
    let fresh = measured.iter().filter(|it| now.since(it.at) <= MAX_AGE);
    let mut ratios: Vec<f64> = fresh.map(|it| it.ratio).collect();
    let samples = ratios.len();
    let factor = if samples < MIN_SAMPLES {
        1.0
    } else {
        let (_, median, _) = ratios.select_nth_unstable_by(samples / 2, f64::total_cmp);
        median.clamp(BOUNDS.0, BOUNDS.1)
    };
    TierFactor { factor, samples }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LadderConfig, TierSpeed};
    use proptest::prelude::*;

    const PREFILL: Millis = Millis::new(40.0);

    /// 0.5 ms and 0.1 ms a MB from the host, 1 and 1 from the disk.
    fn ladder() -> LearnedLadder {
        let config = LadderConfig {
            kv_bytes_per_token: 62_500.0,
            host: Some(TierSpeed::new(0.5, 10.0)),
            disk: Some(TierSpeed::new(1.0, 1.0)),
            shared: None,
            ..LadderConfig::default()
        };
        LearnedLadder::new(Ladder::new(config).unwrap())
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn haul(tier: Tier, bytes: f64) -> Haul {
        Haul {
            tier,
            bytes,
            device: Blocks::ZERO,
            uncached: Tokens(0),
        }
    }

    /// 95 MB from the host, 10 ms by the ladder, took `over_ms`.
    fn observe(ladder: &mut LearnedLadder, secs: u64, over_ms: f64) {
        let over = Millis::new(over_ms);
        ladder.observe(&haul(Tier::Host, 95e6), over, PREFILL, at(secs));
    }

    fn host(ladder: &LearnedLadder, secs: u64) -> (f64, usize) {
        let [host, ..] = ladder.factors(at(secs));
        (host.factor, host.samples)
    }

    #[test]
    fn a_tier_that_takes_twice_as_long_gets_a_factor_of_two() {
        let mut ladder = ladder();
        for secs in 0..10 {
            observe(&mut ladder, secs, 20.0);
        }
        assert_eq!(host(&ladder, 10), (2.0, 10));
        let learned = ladder.ladder(at(10));
        assert_eq!(learned.speed(Tier::Host), Some(&TierSpeed::new(1.0, 5.0)));
        assert_eq!(learned.speed(Tier::Disk), Some(&TierSpeed::new(1.0, 1.0)));
        assert_eq!(learned.speed(Tier::Shared), None);
    }

    #[test]
    fn the_ladder_holds_until_there_are_three_measurements() {
        let mut ladder = ladder();
        observe(&mut ladder, 0, 30.0);
        observe(&mut ladder, 1, 30.0);
        assert_eq!(host(&ladder, 1), (1.0, 2));
        observe(&mut ladder, 2, 30.0);
        assert_eq!(host(&ladder, 2), (3.0, 3));
    }

    #[test]
    fn outliers_do_not_move_the_factor() {
        let mut ladder = ladder();
        for (secs, over_ms) in [20.0, 5_000.0, 20.0, -300.0, 20.0].into_iter().enumerate() {
            observe(&mut ladder, secs as u64, over_ms);
        }
        assert_eq!(host(&ladder, 5), (2.0, 5));
    }

    #[test]
    fn the_last_fifteen_measurements_decide() {
        let mut ladder = ladder();
        for secs in 0..100 {
            observe(&mut ladder, secs, 20.0);
        }
        for secs in 100..107 {
            observe(&mut ladder, secs, 40.0);
        }
        assert_eq!(host(&ladder, 107), (2.0, 15));
        observe(&mut ladder, 107, 40.0);
        assert_eq!(host(&ladder, 107), (4.0, 15));
    }

    #[test]
    fn ten_minutes_of_silence_bring_back_the_ladder() {
        let mut ladder = ladder();
        for secs in 0..5 {
            observe(&mut ladder, secs, 20.0);
        }
        assert_eq!(host(&ladder, 600), (2.0, 5));
        // Two of five are left.
        assert_eq!(host(&ladder, 603), (1.0, 2));
        assert_eq!(host(&ladder, 605), (1.0, 0));
    }

    #[test]
    fn a_transfer_within_the_noise_teaches_nothing() {
        let mut ladder = ladder();
        let mut samples = |bytes, prefill| {
            let (over, prefill) = (Millis::new(9.0), Millis::new(prefill));
            ladder.observe(&haul(Tier::Host, bytes), over, prefill, at(0));
            host(&ladder, 0).1
        };
        // 1.9 ms; 3 ms, less than a tenth of 31; 3 ms and 30.
        assert_eq!(samples(14e6, 1.0), 0);
        assert_eq!(samples(25e6, 31.0), 0);
        assert_eq!(samples(25e6, 30.0), 1);
    }

    #[test]
    fn a_ladder_that_is_told_not_to_learn_stays_as_it_is() {
        let fixed = LadderConfig {
            learn: false,
            ..LadderConfig::default()
        };
        let mut ladder = LearnedLadder::new(Ladder::new(fixed).unwrap());
        for secs in 0..10 {
            ladder.observe(
                &haul(Tier::Host, 1e9),
                Millis::new(300.0),
                PREFILL,
                at(secs),
            );
        }
        assert_eq!(host(&ladder, 10), (1.0, 0));
        assert!(!ladder.learns());
    }

    /// What a worker brings up for 100 blocks of 16 tokens, of which it holds these.
    fn brought(parts: [f64; 4], store_ms: f64) -> Brought {
        let [device, host, disk, shared] = parts.map(Blocks::new);
        let prefix = Prefix {
            device,
            host,
            disk,
            shared,
        };
        let ladder = ladder().ladder(Timestamp::ORIGIN);
        let queued = [Millis::ZERO, Millis::ZERO, Millis::new(store_ms)];
        ladder.brought(Tokens(1_600), 16, &prefix, queued)
    }

    #[test]
    fn blocks_of_one_lower_tier_are_told_apart() {
        assert_eq!(brought([7.0, 0.0, 0.0, 0.0], 0.0), Brought::Nothing);
        // 5 MB, and 88 blocks are computed.
        let from = |tier| {
            Brought::From(Haul {
                tier,
                bytes: 5e6,
                device: Blocks::new(7.0),
                uncached: Tokens(1_408),
            })
        };
        assert_eq!(brought([7.0, 5.0, 0.0, 0.0], 9.0), from(Tier::Host));
        assert_eq!(brought([7.0, 0.0, 5.0, 0.0], 9.0), from(Tier::Disk));
        assert_eq!(brought([7.0, 0.0, 0.0, 5.0], 0.0), from(Tier::Shared));
    }

    #[test]
    fn blocks_of_several_tiers_or_of_a_busy_store_are_not() {
        assert_eq!(brought([7.0, 5.0, 1.0, 0.0], 0.0), Brought::Untold);
        assert_eq!(brought([7.0, 0.0, 0.0, 5.0], 9.0), Brought::Untold);
    }

    #[test]
    fn blocks_that_are_in_use_on_the_device_are_not_known_to_be_brought() {
        let found = brought([7.0, 5.0, 0.0, 0.0], 0.0);
        assert_eq!(found.besides(Blocks::new(7.0)), found);
        assert_eq!(found.besides(Blocks::new(7.1)), Brought::Untold);
        assert_eq!(Brought::Nothing.besides(Blocks::new(7.1)), Brought::Nothing);
    }

    proptest! {
        #[test]
        fn any_measurements_leave_a_ladder_with_times_within_a_factor_of_16(
            measured in prop::collection::vec((0.0..1e15f64, any::<f64>(), 0u64..1_000), 0..60),
        ) {
            let mut ladder = ladder();
            for (bytes, over, secs) in measured {
                ladder.observe(&haul(Tier::Host, bytes), Millis::new(over), PREFILL, at(secs));
            }
            let (factor, _) = host(&ladder, 1_000);
            prop_assert!((BOUNDS.0..=BOUNDS.1).contains(&factor));
            let time = |ladder: &Ladder| ladder.fetch_time(Tier::Host, 1e6).unwrap().get();
            let ratio = time(&ladder.ladder(at(1_000))) / time(&ladder.ladder);
            prop_assert!((ratio / factor - 1.0).abs() < 1e-9);
        }

        #[test]
        fn the_factor_lies_among_the_measurements(
            ratios in prop::collection::vec(0.1..10.0f64, 3..15),
        ) {
            let mut ladder = ladder();
            for ratio in &ratios {
                observe(&mut ladder, 0, 10.0 * ratio);
            }
            let (factor, _) = host(&ladder, 0);
            let below = ratios.iter().filter(|ratio| **ratio < factor - 1e-9).count();
            let above = ratios.iter().filter(|ratio| **ratio > factor + 1e-9).count();
            prop_assert!(below <= ratios.len() / 2 && above <= ratios.len() / 2);
        }
    }
}
