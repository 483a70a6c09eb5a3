// SPDX-License-Identifier: Apache-2.0

//! How slow one worker is, relative to what the pool's a and b predict.
//!
//! Slowness is Σ measured / Σ predicted over the worker's passes, with a memory counted in passes and
//! in time, plus one pass that says "typical". That pass never fades. So a worker that just joined is
//! typical, one strange pass moves it half-way at most, and one that falls silent becomes typical
//! again and gets tried again. A full memory outweighs it 20 to 1.
//!
//! A pass much longer than expected is an outlier, and counts as no longer than the limit. With every
//! further one in a row the limit rises by the same factor: one is a hiccup, three are a slow worker.
//!
//! A worker counts as typical within a dead band, because noise alone would otherwise divert traffic, and
//! a worker without traffic cannot clear itself. The band is relative (three standard errors, so wider
//! while passes are few) and absolute (the jitter of event delivery, which dwarfs passes of a few ms and
//! does not matter to anybody's latency).
//!
//! Passes and tokens are summed, and not predictions: Σ predicted = a·passes + b·tokens then always
//! speaks of the present a and b, and what is known about a worker survives a change of the model.

use super::prefill_fit::PrefillFit;
use super::{CalibrationConfig, Stretch};
use crate::Timestamp;

/// Passes' worth of evidence that a worker is typical.
const PRIOR_PASSES: f64 = 1.0;
/// Where the limit for outliers stops rising. 1.5⁸ is 26, beyond any slowness.
const MOST_LONG_IN_A_ROW: i32 = 8;
/// Bounds of measured over predicted time. Far outside any real ratio: they bound arithmetic.
pub(super) const RATIO_RANGE: (f64, f64) = (1e-3, 1e3);
/// Bounds of the slowness that is handed out.
const SLOWNESS_RANGE: (f64, f64) = (0.1, 10.0);

/// What the passes of a worker are compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yardstick<'a> {
    /// a, ms.
    pass_ms: f64,
    /// b, ms per token.
    token_ms: f64,
    /// Measured over predicted time on the pool's typical worker.
    typical: f64,
    config: &'a CalibrationConfig,
}

/// Evidence on the speed of one worker.
#[derive(Debug, Clone, Default)]
pub(super) struct Speed {
    /// Sums over passes, with the memory of the configuration.
    measured_ms: f64,
    passes: f64,
    tokens: f64,
    /// Suspiciously long samples up to now without another in between.
    long_in_a_row: i32,
    groups: u64,
    last_sample: Option<Timestamp>,
}

impl Speed {
    /// Passes seen.
    pub(super) const fn groups(&self) -> u64 {
        self.groups
    }

    /// End of the last pass.
    pub(super) const fn last_sample(&self) -> Option<Timestamp> {
        self.last_sample
    }

    /// Slowness at `now` relative to the typical worker; 1 within the dead band.
    pub(super) fn slowness(&self, now: Timestamp, yardstick: Yardstick<'_>) -> f64 {
        let config = yardstick.config;
        let slowness = self.ratio(now, yardstick) / yardstick.typical;
        let passes = self.passes * self.kept(now, config);
        // The standard error falls with the root of the passes, down to that of a full memory.
        let fewer = (config.speed_memory_groups / passes.max(1.0)).max(1.0);
        let band = 1.0 + config.dead_band * fewer.sqrt();
        let typical_ms =
            yardstick.typical * yardstick.predict(self.passes, self.tokens) / self.passes.max(1.0);
        let off_ms = (slowness - 1.0).abs() * typical_ms;
        if slowness.max(slowness.recip()) <= band || off_ms <= config.dead_band_ms {
            1.0
        } else {
            slowness.clamp(SLOWNESS_RANGE.0, SLOWNESS_RANGE.1)
        }
    }

    /// Measured over predicted time at `now`, with one typical pass as prior.
    pub(super) fn ratio(&self, now: Timestamp, yardstick: Yardstick<'_>) -> f64 {
        let predicted = yardstick.predict(self.passes, self.tokens);
        if predicted <= 0.0 {
            return yardstick.typical;
        }
        let ratio = (self.measured_ms / predicted).clamp(RATIO_RANGE.0, RATIO_RANGE.1);
        let passes = self.passes * self.kept(now, yardstick.config);
        (passes * ratio + PRIOR_PASSES * yardstick.typical) / (passes + PRIOR_PASSES)
    }

    /// A stretch of prefill ended.
    pub(super) fn observe(&mut self, stretch: &Stretch, yardstick: Yardstick<'_>) {
        let config = yardstick.config;
        let (at, passes, tokens) = (stretch.at, f64::from(stretch.passes), stretch.tokens);
        let duration = stretch.duration.get();
        let expected = yardstick.predict(passes, tokens) * self.ratio(at, yardstick);
        let limit = config.outlier_ratio * expected;
        let credible = limit * config.outlier_ratio.powi((self.long_in_a_row - 1).max(0));
        self.long_in_a_row = if duration > limit {
            (self.long_in_a_row + 1).min(MOST_LONG_IN_A_ROW)
        } else {
            0
        };
        let kept = self.kept(at, config) * (1.0 - 1.0 / config.speed_memory_groups).powf(passes);
        self.measured_ms = self.measured_ms * kept + duration.min(credible);
        self.passes = self.passes * kept + passes;
        self.tokens = self.tokens * kept + tokens;
        self.groups = self.groups.saturating_add(u64::from(stretch.passes));
        self.last_sample = self.last_sample.max(Some(at));
    }

    /// Share of the evidence that is left at `now`.
    fn kept(&self, now: Timestamp, config: &CalibrationConfig) -> f64 {
        self.last_sample.map_or(0.0, |last| config.kept(last, now))
    }
}

impl<'a> Yardstick<'a> {
    pub(super) const fn new(fit: &PrefillFit, typical: f64, config: &'a CalibrationConfig) -> Self {
        Self {
            pass_ms: fit.pass_ms(),
            token_ms: fit.token_ms(),
            typical,
            config,
        }
    }

    fn predict(&self, passes: f64, tokens: f64) -> f64 {
        self.pass_ms * passes + self.token_ms * tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Millis;

    const CONFIG: &CalibrationConfig = &CalibrationConfig::DEFAULT;

    /// 20 ms a pass and 0.1 ms a token; the tests use passes of 800 tokens, so 100 ms.
    const YARDSTICK: Yardstick<'_> = Yardstick {
        pass_ms: 20.0,
        token_ms: 0.1,
        typical: 1.0,
        config: CONFIG,
    };

    /// `passes` in a row over 800 tokens each that took `duration` each and ended at `at`.
    fn stretch(at: Timestamp, passes: u32, duration: f64) -> Stretch {
        Stretch {
            at,
            duration: Millis::new(f64::from(passes) * duration),
            passes,
            tokens: f64::from(passes) * 800.0,
            running: 0,
        }
    }

    /// `passes` of 100 ms predicted, `duration` each, ending at `at`.
    fn observe(speed: &mut Speed, at: Timestamp, passes: u32, duration: f64) {
        for _ in 0..passes {
            speed.observe(&stretch(at, 1, duration), YARDSTICK);
        }
    }

    /// After 40 passes of 100 ms predicted and `duration` each.
    fn known(duration: f64) -> Speed {
        let mut speed = Speed::default();
        observe(&mut speed, Timestamp::ORIGIN, 40, duration);
        speed
    }

    #[test]
    fn a_worker_without_passes_is_typical() {
        let yardstick = Yardstick {
            typical: 1.7,
            ..YARDSTICK
        };
        assert_eq!(Speed::default().ratio(Timestamp::ORIGIN, yardstick), 1.7);
        assert_eq!(Speed::default().slowness(Timestamp::ORIGIN, yardstick), 1.0);
    }

    #[test]
    fn one_pass_moves_a_new_worker_half_of_the_clipped_way() {
        let mut speed = Speed::default();
        observe(&mut speed, Timestamp::ORIGIN, 1, 700.0);
        // Counts as 150 ms: (1.5 + 1) / (1 + 1).
        assert_eq!(speed.ratio(Timestamp::ORIGIN, YARDSTICK), 1.25);
    }

    #[test]
    fn passes_that_were_only_timed_together_count_each() {
        let mut together = Speed::default();
        for _ in 0..10 {
            together.observe(&stretch(Timestamp::ORIGIN, 4, 140.0), YARDSTICK);
        }
        let ratio = |speed: &Speed| speed.ratio(Timestamp::ORIGIN, YARDSTICK);
        let apart = known(140.0);
        assert_eq!(together.groups(), apart.groups());
        assert!((ratio(&together) - ratio(&apart)).abs() < 0.01);
    }

    #[test]
    fn a_slow_worker_is_recognised_within_its_memory() {
        let ratio = known(250.0).ratio(Timestamp::ORIGIN, YARDSTICK);
        assert!((2.25..2.5).contains(&ratio), "{ratio}");
    }

    #[test]
    fn within_the_dead_band_a_worker_is_typical() {
        let slowness = |duration| known(duration).slowness(Timestamp::ORIGIN, YARDSTICK);
        assert_eq!((slowness(128.0), slowness(79.0)), (1.0, 1.0));
        assert!(slowness(140.0) > 1.3 && slowness(70.0) < 0.77);
    }

    #[test]
    fn a_few_noisy_passes_do_not_leave_the_dead_band() {
        let after = |passes, duration| {
            let mut speed = Speed::default();
            observe(&mut speed, Timestamp::ORIGIN, passes, duration);
            speed.slowness(Timestamp::ORIGIN, YARDSTICK)
        };
        // Two passes allow for 0.3 × √(20 / 2) = 95 %, which clipping at 1.5 keeps them within.
        assert_eq!(after(2, 1_000.0), 1.0);
        assert!(
            after(5, 250.0) > 1.3,
            "a worker slowed 2.5 times is found in five passes"
        );
    }

    #[test]
    fn jitter_of_a_few_ms_is_no_slowness() {
        // Passes of 2 ms that seem to take 6: three times as long, and 4 ms.
        let short = Yardstick {
            pass_ms: 2.0,
            token_ms: 0.0,
            ..YARDSTICK
        };
        let mut speed = Speed::default();
        for _ in 0..40 {
            speed.observe(&stretch(Timestamp::ORIGIN, 1, 6.0), short);
        }
        assert_eq!(speed.slowness(Timestamp::ORIGIN, short), 1.0);
    }

    #[test]
    fn silence_makes_a_worker_typical_again() {
        let speed = known(250.0);
        let at = |secs| speed.ratio(Timestamp::from_secs(secs), YARDSTICK);
        assert!(at(0) > at(60) && at(60) > at(300));
        assert!((at(600) - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_pass_after_a_long_silence_outweighs_what_was_known_before() {
        let mut speed = known(250.0);
        observe(&mut speed, Timestamp::from_secs(600), 1, 100.0);
        let ratio = speed.ratio(Timestamp::from_secs(600), YARDSTICK);
        assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn a_changed_model_changes_the_ratio_and_not_the_slowness() {
        let speed = known(200.0);
        let before = speed.slowness(Timestamp::ORIGIN, YARDSTICK);
        let halved = Yardstick {
            pass_ms: 10.0,
            token_ms: 0.05,
            typical: 2.0,
            ..YARDSTICK
        };
        let after = speed.slowness(Timestamp::ORIGIN, halved);
        assert!((before / after - 1.0).abs() < 1e-9, "{before} {after}");
    }
}
