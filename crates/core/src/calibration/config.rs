// SPDX-License-Identifier: Apache-2.0

//! Constants of the calibration, with the range of each.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Millis, Timestamp};

/// Constants of a [`PoolCalibration`](super::PoolCalibration). The starting values are those of a
/// 70B model on four B200s as seen from a router; they need not fit, since a wrong one is unlearned.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationConfig {
    /// Fixed part of a prefill pass before anything is learned, ms. Default 12: rather too low than
    /// too high, because a router that overrates passes stops spreading load.
    pub prior_pass_ms: f64,
    /// Prefill time per uncached token before anything is learned, ms. Default 0.03.
    pub prior_token_ms: f64,
    /// Time from first token to completion before anything is learned, ms. Default 1500, a chat answer
    /// of 150 tokens.
    pub prior_residence_ms: f64,
    /// Time per generated token before anything is learned, ms. Default 10.
    pub prior_decode_step_ms: f64,
    /// Share of the evidence behind a and b that survives one more pass. Default 0.998, a memory of
    /// 500 passes: prefill speed hardly changes, and the split between a and b needs many of them.
    pub forgetting: f64,
    /// A pass longer than this many times its prediction is suspect: it may have waited for decode
    /// steps or memory. It has less weight for a and b, and counts as no longer than this for the
    /// slowness of its worker. Default 1.5.
    pub outlier_ratio: f64,
    /// Weight of a suspect pass for a and b. Default 0.15.
    pub outlier_weight: f64,
    /// A pass longer than this many times the prediction, plus `drop_slack_ms`, did not measure
    /// prefill and teaches nothing about a and b. Default 5.
    pub drop_ratio: f64,
    /// See `drop_ratio`, ms. Default 50, so that hiccups of short passes are not dropped.
    pub drop_slack_ms: f64,
    /// When the median of this many clean passes is off by `misfit_ratio`, the model is wrong and not
    /// the passes: a and b start again from them. Default 20, one memory of a worker's speed.
    pub misfit_groups: u32,
    /// See `misfit_groups`. Default 1.5: four standard errors of a median of 20 if single passes
    /// scatter by 45 %.
    pub misfit_ratio: f64,
    /// First tokens of one worker within this time of each other come from one prefill pass, ms.
    /// Default 10: those of one pass reach a live frontend several ms apart, and a pass cut in two teaches
    /// a rate of nothing; in simulation, where they come at once, 0.5 to 15 do the same.
    pub group_gap_ms: f64,
    /// Passes after which a worker's speed is mostly forgotten. Default 20.
    pub speed_memory_groups: f64,
    /// A worker within this share of the typical one counts as typical. Default 0.3: three standard
    /// errors of a ratio over 20 passes. Without a dead band, noise alone diverts traffic.
    pub dead_band: f64,
    /// A worker whose passes differ by less than this from a typical one's counts as typical, ms.
    /// Default 5: about the jitter of event delivery in a busy process.
    pub dead_band_ms: f64,
    /// Time constant in which silence is forgiven, ms: without passes, a worker's slowness returns to
    /// 1; without arrivals, the queue is taken to drain. Default 60,000.
    pub idle_decay_ms: f64,
    /// With at least this many running requests, a worker close to the largest concurrency it ever
    /// had is limited by seats and not by prefill. Default 16: below, a peak says nothing.
    pub seat_limit_running: u32,
    /// Weight of one arrival in the mean queue of the median worker. Default 0.05.
    pub waiting_weight: f64,
    /// Weight of one pass in the prefill efficiency. Default 0.02.
    pub efficiency_weight: f64,
    /// Weight of one request in the mean residence time. Default 0.02.
    pub residence_weight: f64,
    /// Weight of one request in the mean decode step. Default 0.02.
    pub decode_weight: f64,
}

impl CalibrationConfig {
    /// The defaults.
    pub(super) const DEFAULT: Self = Self {
        prior_pass_ms: 12.0,
        prior_token_ms: 0.03,
        prior_residence_ms: 1_500.0,
        prior_decode_step_ms: 10.0,
        forgetting: 0.998,
        outlier_ratio: 1.5,
        outlier_weight: 0.15,
        drop_ratio: 5.0,
        drop_slack_ms: 50.0,
        misfit_groups: 20,
        misfit_ratio: 1.5,
        group_gap_ms: 10.0,
        speed_memory_groups: 20.0,
        dead_band: 0.3,
        dead_band_ms: 5.0,
        idle_decay_ms: 60_000.0,
        seat_limit_running: 16,
        waiting_weight: 0.05,
        efficiency_weight: 0.02,
        residence_weight: 0.02,
        decode_weight: 0.02,
    };
}

impl Default for CalibrationConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A setting of [`CalibrationConfig`] outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("{key} is {value}; allowed: {allowed}")]
pub struct CalibrationError {
    /// Name of the field in [`CalibrationConfig`].
    pub key: &'static str,
    /// What it was set to.
    pub value: f64,
    /// What it may be set to.
    pub allowed: &'static str,
}

impl CalibrationConfig {
    /// Share of what was known at `last` that is left at `now`, after the silence between them.
    pub(super) fn kept(&self, last: Timestamp, now: Timestamp) -> f64 {
        (-Millis::from(now.since(last)).get() / self.idle_decay_ms).exp()
    }

    /// Check every setting.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn validate(&self) -> Result<(), CalibrationError> {
        let duration = |value: f64| (0.1..=1e6).contains(&value);
        let weight = |value: f64| value > 0.0 && value <= 1.0;
        let ratio = |value: f64| (1.1..=1e3).contains(&value);
        let checks: [(_, _, &dyn Fn(f64) -> bool, _); 21] = [
            ("prior_pass_ms", self.prior_pass_ms, &duration, "0.1 to 1e6"),
            (
                "prior_token_ms",
                self.prior_token_ms,
                &|value| (1e-5..=1e3).contains(&value),
                "1e-5 to 1e3",
            ),
            (
                "prior_residence_ms",
                self.prior_residence_ms,
                &duration,
                "0.1 to 1e6",
            ),
            (
                "prior_decode_step_ms",
                self.prior_decode_step_ms,
                &duration,
                "0.1 to 1e6",
            ),
            (
                "forgetting",
                self.forgetting,
                &|value| (0.5..=1.0).contains(&value),
                "0.5 to 1",
            ),
            ("outlier_ratio", self.outlier_ratio, &ratio, "1.1 to 1e3"),
            (
                "outlier_weight",
                self.outlier_weight,
                &weight,
                "above 0, at most 1",
            ),
            ("drop_ratio", self.drop_ratio, &ratio, "1.1 to 1e3"),
            (
                "drop_slack_ms",
                self.drop_slack_ms,
                &|value| (0.0..=1e6).contains(&value),
                "0 to 1e6",
            ),
            (
                "misfit_groups",
                f64::from(self.misfit_groups),
                &|value| (5.0..=1e3).contains(&value),
                "5 to 1000",
            ),
            ("misfit_ratio", self.misfit_ratio, &ratio, "1.1 to 1e3"),
            (
                "group_gap_ms",
                self.group_gap_ms,
                &|value| (0.0..=1e3).contains(&value),
                "0 to 1e3",
            ),
            (
                "speed_memory_groups",
                self.speed_memory_groups,
                &|value| (2.0..=1e4).contains(&value),
                "2 to 1e4",
            ),
            (
                "dead_band",
                self.dead_band,
                &|value| (0.0..=10.0).contains(&value),
                "0 to 10",
            ),
            (
                "dead_band_ms",
                self.dead_band_ms,
                &|value| (0.0..=1e3).contains(&value),
                "0 to 1e3",
            ),
            (
                "idle_decay_ms",
                self.idle_decay_ms,
                &|value| (1.0..=1e9).contains(&value),
                "1 to 1e9",
            ),
            (
                "seat_limit_running",
                f64::from(self.seat_limit_running),
                &|value| value >= 1.0,
                "at least 1",
            ),
            (
                "waiting_weight",
                self.waiting_weight,
                &weight,
                "above 0, at most 1",
            ),
            (
                "efficiency_weight",
                self.efficiency_weight,
                &weight,
                "above 0, at most 1",
            ),
            (
                "residence_weight",
                self.residence_weight,
                &weight,
                "above 0, at most 1",
            ),
            (
                "decode_weight",
                self.decode_weight,
                &weight,
                "above 0, at most 1",
            ),
        ];
        checks
            .into_iter()
            .try_for_each(|(key, value, holds, allowed)| {
                if holds(value) {
                    Ok(())
                } else {
                    Err(CalibrationError {
                        key,
                        value,
                        allowed,
                    })
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_allowed() {
        assert_eq!(CalibrationConfig::default().validate(), Ok(()));
    }

    #[test]
    fn every_setting_has_a_range() {
        let defaults = serde_json::to_value(CalibrationConfig::default()).unwrap();
        for key in defaults.as_object().unwrap().keys() {
            let refused = [-1.0, 0.0, 1e15].iter().any(|value| {
                let mut changed = defaults.clone();
                changed[key] = if defaults[key].is_u64() {
                    serde_json::json!(0)
                } else {
                    serde_json::json!(value)
                };
                let config: CalibrationConfig = serde_json::from_value(changed).unwrap();
                config.validate().is_err_and(|error| error.key == key)
            });
            assert!(refused, "{key} takes anything");
        }
    }

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_range() {
        let config = CalibrationConfig {
            dead_band: f64::NAN,
            ..CalibrationConfig::default()
        };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "dead_band is NaN; allowed: 0 to 10"
        );
    }

    #[test]
    fn an_absent_key_has_its_default_and_an_unknown_one_is_refused() {
        let config: CalibrationConfig = serde_json::from_str(r#"{"prior_pass_ms": 40}"#).unwrap();
        assert_eq!(
            config,
            CalibrationConfig {
                prior_pass_ms: 40.0,
                ..Default::default()
            }
        );
        let error =
            serde_json::from_str::<CalibrationConfig>(r#"{"prior_pas_ms": 4}"#).unwrap_err();
        assert!(error.to_string().contains("prior_pas_ms"));
    }
}
