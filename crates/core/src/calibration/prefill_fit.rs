// SPDX-License-Identifier: Apache-2.0

//! The pool's prefill model: a pass over u uncached tokens takes a + b·u.
//!
//! Weighted least squares in closed form, one step per sample, which is a pass or a few in a row. Errors
//! count relative to the prediction, and old samples fade. Three things keep it sound:
//!
//! - Damping. Each step also pays for leaving the present a and b, as much as one pass weighs. When
//!   all prompts are equally long, only a + b·u is known; the split then stays where it was.
//!   Where the tokens of a sample are not exact, only a common factor of both is learned.
//! - Outliers. Passes are never too short, but often too long: they wait for decode steps, seats or
//!   memory. A long one weighs little, and a very long one nothing.
//! - Misfit. If *most* passes are off, the model is wrong and not they. Only clean passes vote, on
//!   workers at no more than half of their largest concurrency, because a pool that is short of seats
//!   or memory stretches every pass. When their median is off, a and b are scaled by it and
//!   learned anew from them. This unlearns any prior and follows a fleet that changes speed, where the
//!   outlier rule alone would shut the truth out for good.

use super::{CalibrationConfig, lower_median};

/// Bounds of a, ms.
const PASS_RANGE: (f64, f64) = (0.1, 1e6);
/// Bounds of b, ms per token.
const TOKEN_RANGE: (f64, f64) = (1e-5, 1e3);
/// Passes' worth of damping in one step.
const DAMPING: f64 = 1.0;
/// A part of the prediction smaller than this share is damped as if it had this share, so that a
/// coefficient can grow back from almost nothing.
const LEAST_SHARE: f64 = 0.05;

/// Estimate of a and b.
#[derive(Debug, Clone)]
pub(super) struct PrefillFit {
    pass: f64,
    token: f64,
    sums: Sums,
    /// The latest clean passes, oldest overwritten first.
    clean: Vec<Sample>,
    next_clean: usize,
    /// Scratch space.
    ratios: Vec<f64>,
}

/// Passes without a pause, as they would have been on a worker of slowness 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// ms, above zero.
    pub(super) duration: f64,
    /// Passes, at least 1.
    pub(super) passes: f64,
    /// Uncached tokens.
    pub(super) tokens: f64,
    /// Whether seats and memory were plentiful.
    pub(super) clean: bool,
    /// Whether passes and tokens are exact, so that they tell a and b apart. Otherwise the sample moves
    /// both by one factor: errors in the tokens would pass work of b on to a.
    pub(super) exact: bool,
}

/// Weighted sums over samples of p passes, u tokens and duration d: Σwp², Σwpu, Σwu², Σwpd, Σwud.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    pp: f64,
    pu: f64,
    uu: f64,
    pd: f64,
    ud: f64,
}

impl PrefillFit {
    pub(super) fn new(config: &CalibrationConfig) -> Self {
        Self {
            pass: config.prior_pass_ms,
            token: config.prior_token_ms,
            sums: Sums::default(),
            clean: Vec::new(),
            next_clean: 0,
            ratios: Vec::new(),
        }
    }

    /// a, ms.
    pub(super) const fn pass_ms(&self) -> f64 {
        self.pass
    }

    /// b, ms per token.
    pub(super) const fn token_ms(&self) -> f64 {
        self.token
    }

    /// a·p + b·u, ms.
    pub(super) fn predict(&self, passes: f64, tokens: f64) -> f64 {
        self.pass * passes + self.token * tokens
    }

    /// Learn from a sample. Returns the factor by which predictions were scaled if the model proved
    /// wrong.
    pub(super) fn observe(&mut self, sample: Sample, config: &CalibrationConfig) -> Option<f64> {
        if sample.clean {
            self.remember(sample, config);
            if let Some(scale) = self.misfit(config) {
                self.restart(scale, config);
                return Some(scale);
            }
        }
        self.learn(sample, config);
        None
    }

    fn remember(&mut self, sample: Sample, config: &CalibrationConfig) {
        let capacity = config.misfit_groups as usize;
        if self.clean.len() < capacity {
            self.clean.push(sample);
        } else {
            self.clean[self.next_clean] = sample;
            self.next_clean = (self.next_clean + 1) % capacity;
        }
    }

    /// Median of measured / predicted over the clean passes, when it is off.
    fn misfit(&mut self, config: &CalibrationConfig) -> Option<f64> {
        if self.clean.len() < config.misfit_groups as usize {
            return None;
        }
        let (pass, token) = (self.pass, self.token);
        self.ratios.clear();
        self.ratios.extend(
            self.clean
                .iter()
                .map(|s| s.duration / (pass * s.passes + token * s.tokens)),
        );
        let typical = lower_median(&mut self.ratios)?;
        (typical.max(typical.recip()) > config.misfit_ratio).then_some(typical)
    }

    fn restart(&mut self, scale: f64, config: &CalibrationConfig) {
        self.set(self.pass * scale, self.token * scale);
        self.sums = Sums::default();
        self.next_clean = 0;
        // Taken out for the loop and put back empty, to keep its memory.
        let mut clean = std::mem::take(&mut self.clean);
        for sample in clean.drain(..) {
            self.learn(sample, config);
        }
        self.clean = clean;
    }

    fn learn(&mut self, sample: Sample, config: &CalibrationConfig) {
        let predicted = self.predict(sample.passes, sample.tokens);
        if sample.duration > config.drop_ratio * predicted + config.drop_slack_ms {
            return;
        }
        // Errors count relative to the prediction. Those of a suspect pass count relative to the
        // prediction that would have cleared it: if the model is far too low, its first passes would
        // otherwise outweigh all later ones.
        let weight = if sample.duration > config.outlier_ratio * predicted {
            config.outlier_weight * (config.outlier_ratio / sample.duration).powi(2)
        } else {
            predicted.powi(-2)
        };
        self.sums.fade(config.forgetting);
        self.sums.add(weight, sample);
        if sample.exact {
            self.solve(predicted, sample);
        } else {
            self.rescale();
        }
    }

    /// One damped least-squares step. Works on changes x, y in units of the damping scales, where the
    /// normal equations are [xx + D, xy; xy, yy + D]·[x; y] = [gx; gy].
    fn solve(&mut self, predicted: f64, sample: Sample) {
        let s = &self.sums;
        let scale_a = self.pass.max(LEAST_SHARE * predicted / sample.passes);
        let scale_b = if sample.tokens > 0.0 {
            self.token.max(LEAST_SHARE * predicted / sample.tokens)
        } else {
            self.token
        };
        let xx = s.pp * scale_a * scale_a + DAMPING;
        let xy = s.pu * scale_a * scale_b;
        let yy = s.uu * scale_b * scale_b + DAMPING;
        let gx = scale_a * (s.pd - self.pass * s.pp - self.token * s.pu);
        let gy = scale_b * (s.ud - self.pass * s.pu - self.token * s.uu);
        let determinant = xx * yy - xy * xy;
        let mut x = (gx * yy - gy * xy) / determinant;
        let mut y = (gy * xx - gx * xy) / determinant;
        // At a bound, the other coefficient takes what is left.
        let (least_x, least_y) = (
            (PASS_RANGE.0 - self.pass) / scale_a,
            (TOKEN_RANGE.0 - self.token) / scale_b,
        );
        if x < least_x {
            x = least_x;
            y = (gy - xy * x) / yy;
        } else if y < least_y {
            y = least_y;
            x = (gx - xy * y) / xx;
        }
        let (pass, token) = (self.pass + scale_a * x, self.token + scale_b * y);
        if pass.is_finite() && token.is_finite() {
            self.set(pass, token);
        } else {
            self.sums = Sums::default();
        }
    }

    /// One damped least-squares step for a common factor of a and b.
    fn rescale(&mut self) {
        let (a, b, s) = (self.pass, self.token, &self.sums);
        let predicted = a * a * s.pp + 2.0 * a * b * s.pu + b * b * s.uu;
        let change = (a * s.pd + b * s.ud - predicted) / (predicted + DAMPING);
        if change.is_finite() {
            self.set(a * (1.0 + change), b * (1.0 + change));
        } else {
            self.sums = Sums::default();
        }
    }

    const fn set(&mut self, pass: f64, token: f64) {
        self.pass = pass.clamp(PASS_RANGE.0, PASS_RANGE.1);
        self.token = token.clamp(TOKEN_RANGE.0, TOKEN_RANGE.1);
    }
}

impl Sums {
    fn fade(&mut self, kept: f64) {
        for sum in [
            &mut self.pp,
            &mut self.pu,
            &mut self.uu,
            &mut self.pd,
            &mut self.ud,
        ] {
            *sum *= kept;
        }
    }

    fn add(&mut self, weight: f64, sample: Sample) {
        let Sample {
            duration,
            passes,
            tokens,
            ..
        } = sample;
        self.pp += weight * passes * passes;
        self.pu += weight * passes * tokens;
        self.uu += weight * tokens * tokens;
        self.pd += weight * passes * duration;
        self.ud += weight * tokens * duration;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> CalibrationConfig {
        CalibrationConfig::default()
    }

    /// A pass that took exactly a + b·u.
    fn exact(pass: f64, token: f64, tokens: f64) -> Sample {
        Sample {
            duration: pass + token * tokens,
            passes: 1.0,
            tokens,
            clean: true,
            exact: true,
        }
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!(
            (actual / expected - 1.0).abs() < 0.02,
            "{actual} against {expected}"
        );
    }

    #[test]
    fn two_lengths_of_prompt_tell_pass_and_token_apart() {
        let mut fit = PrefillFit::new(&config());
        for n in 0..100 {
            fit.observe(exact(20.0, 0.025, [200.0, 2_000.0][n % 2]), &config());
        }
        assert_close(fit.pass_ms(), 20.0);
        assert_close(fit.token_ms(), 0.025);
    }

    #[test]
    fn one_length_of_prompt_fixes_the_sum_and_keeps_the_split_in_between() {
        let mut fit = PrefillFit::new(&config());
        for _ in 0..2_000 {
            fit.observe(exact(15.0, 0.0375, 1_000.0), &config());
        }
        // The prior says 12 + 30.
        assert_close(fit.predict(1.0, 1_000.0), 52.5);
        assert!((12.0..20.0).contains(&fit.pass_ms()), "{}", fit.pass_ms());
    }

    #[test]
    fn a_split_learned_before_survives_prompts_of_one_length() {
        let mut fit = PrefillFit::new(&config());
        for n in 0..100 {
            fit.observe(exact(20.0, 0.025, [200.0, 2_000.0][n % 2]), &config());
        }
        for _ in 0..3_000 {
            fit.observe(exact(20.0, 0.025, 500.0), &config());
        }
        assert_close(fit.pass_ms(), 20.0);
        assert_close(fit.token_ms(), 0.025);
    }

    #[test]
    fn a_pass_without_fixed_cost_stops_at_the_floor() {
        let mut fit = PrefillFit::new(&config());
        for n in 0..500 {
            fit.observe(exact(0.0, 0.05, [200.0, 2_000.0][n % 2]), &config());
        }
        assert!(fit.pass_ms() < 0.5, "{}", fit.pass_ms());
        assert_close(fit.token_ms(), 0.05);
    }

    #[test]
    fn a_coefficient_grows_back_from_the_floor() {
        let mut fit = PrefillFit::new(&config());
        for n in 0..500 {
            fit.observe(exact(0.0, 0.05, [200.0, 2_000.0][n % 2]), &config());
        }
        for n in 0..4_000 {
            fit.observe(exact(20.0, 0.05, [200.0, 2_000.0][n % 2]), &config());
        }
        assert_close(fit.pass_ms(), 20.0);
        assert_close(fit.token_ms(), 0.05);
    }

    #[test]
    fn passes_that_were_only_timed_together_tell_pass_and_token_apart() {
        let mut fit = PrefillFit::new(&config());
        for n in 0..100 {
            let (passes, tokens) = [(1.0, 2_000.0), (3.0, 1_200.0)][n % 2];
            let together = Sample {
                duration: 20.0 * passes + 0.025 * tokens,
                passes,
                tokens,
                clean: true,
                exact: true,
            };
            fit.observe(together, &config());
        }
        assert_close(fit.pass_ms(), 20.0);
        assert_close(fit.token_ms(), 0.025);
    }

    #[test]
    fn samples_of_inexact_tokens_move_both_by_one_factor() {
        let mut fit = PrefillFit::new(&config());
        for n in 0..100 {
            // Twice the prediction of 12 + 0.03·u on average, with a fifth of the tokens misattributed.
            let tokens = [800.0, 1_200.0][n % 2];
            let inexact = Sample {
                exact: false,
                tokens,
                ..exact(24.0 + 60.0, 0.0, 0.0)
            };
            fit.observe(inexact, &config());
        }
        assert!((fit.token_ms() / fit.pass_ms() - 0.03 / 12.0).abs() < 1e-12);
        assert!((fit.predict(1.0, 1_000.0) / 84.0 - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_very_long_pass_teaches_nothing() {
        let mut fit = PrefillFit::new(&config());
        // Predicted 42 ms; the limit is 5 · 42 + 50 = 260.
        let late = Sample {
            duration: 261.0,
            passes: 1.0,
            tokens: 1_000.0,
            clean: false,
            exact: true,
        };
        fit.observe(late, &config());
        assert_eq!((fit.pass_ms(), fit.token_ms()), (12.0, 0.03));
        fit.observe(
            Sample {
                duration: 259.0,
                ..late
            },
            &config(),
        );
        assert!(fit.predict(1.0, 1_000.0) > 42.0);
    }

    #[test]
    fn a_suspect_pass_moves_the_model_less_than_a_plausible_one() {
        let moved = |duration: f64| {
            let mut fit = PrefillFit::new(&config());
            fit.observe(
                Sample {
                    duration,
                    passes: 1.0,
                    tokens: 1_000.0,
                    clean: false,
                    exact: true,
                },
                &config(),
            );
            fit.predict(1.0, 1_000.0) - 42.0
        };
        // 1.5 times 42 is 63. The suspect one is off by three times as much, at 0.15 of the weight.
        assert!(moved(105.0) < moved(62.0));
    }

    #[test]
    fn twenty_clean_passes_that_agree_overrule_the_model() {
        let mut fit = PrefillFit::new(&config());
        let scales: Vec<_> = (0..20)
            .filter_map(|n| fit.observe(exact(240.0, 0.6, [200.0, 2_000.0][n % 2]), &config()))
            .collect();
        assert_eq!(scales.len(), 1);
        assert!(
            (fit.predict(1.0, 1_000.0) / 840.0 - 1.0).abs() < 0.05,
            "{}",
            fit.predict(1.0, 1_000.0)
        );
    }

    #[test]
    fn passes_of_a_crowded_worker_cannot_overrule_the_model() {
        let mut fit = PrefillFit::new(&config());
        for _ in 0..1_000 {
            let crowded = Sample {
                clean: false,
                ..exact(240.0, 0.6, 1_000.0)
            };
            assert_eq!(fit.observe(crowded, &config()), None);
        }
        assert_eq!(fit.predict(1.0, 1_000.0), 42.0);
    }

    proptest! {
        #[test]
        fn the_model_stays_in_its_bounds(
            samples in prop::collection::vec(
                (
                    1e-3..1e12f64,
                    prop_oneof![Just(1.0), 1.0..1e9f64],
                    prop_oneof![Just(0.0), 0.0..1e5f64, 0.0..2e19f64],
                    any::<bool>(),
                    any::<bool>(),
                ),
                0..200,
            ),
        ) {
            let mut fit = PrefillFit::new(&config());
            for (duration, passes, tokens, clean, exact) in samples {
                fit.observe(Sample { duration, passes, tokens, clean, exact }, &config());
                prop_assert!((PASS_RANGE.0..=PASS_RANGE.1).contains(&fit.pass_ms()));
                prop_assert!((TOKEN_RANGE.0..=TOKEN_RANGE.1).contains(&fit.token_ms()));
            }
        }
    }
}
