// SPDX-License-Identifier: Apache-2.0

//! The regime of a worker or a pool, found from optional, ageing signals.
//!
//! Each signal is a number with an age and a sample count; higher is worse. A signal counts only while
//! it is fresh and rests on enough samples. Every counting signal proposes a level by its own cuts: it
//! is entered above one level and left below a lower one. The proposal of an evaluation is the worst
//! among the counting signals, for entry and for exit alike, so a signal that stopped reporting cannot
//! hold the regime (field report BR-11 a). The regime moves when k evaluations in a row agree that it
//! is too low, or that it is too high, and then only as far as all k agree. Moving down also takes a
//! minimum dwell. Evaluations without a counting signal say nothing and are skipped.
//!
//! When the newest counting sample is older than the maximum age, the regime is Unknown, whoever asks
//! and whether or not anybody evaluated: a worker that is shut out gives no samples that could clear
//! it, so nothing may rest on data of unlimited age (field report BR-11 b). Unknown behaves like Below.
//!
//! Defaults: 3 windows of a quarter second outlast one slow request; 2 s of dwell is longer than one
//! prefill of an ordinary prompt, so the relief that saturation brings about does not end it at once;
//! 10 s without a sample is silence on a worker that serves; below 20 samples a window says little.
//!
//! Source: the regime detector of the paper, with hysteresis and ageing added.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

mod machine;

pub use machine::{Reading, RegimeChange, RegimeMachine};

/// Greatest level that a cut may have; far above any signal.
const GREATEST_LEVEL: f64 = 1e12;

/// How close to saturation; ordered from the least to the worst.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// No fresh data. Behaves like [`Regime::Below`], and says so.
    #[default]
    Unknown,
    /// Delay grows in proportion to load.
    Below,
    /// Delay starts to grow faster than load.
    Transition,
    /// More load than the worker or the pool can serve.
    Saturated,
}

impl Regime {
    /// Every regime, in order.
    pub const ALL: [Self; 4] = [
        Self::Unknown,
        Self::Below,
        Self::Transition,
        Self::Saturated,
    ];

    /// The name in metrics and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Below => "below",
            Self::Transition => "transition",
            Self::Saturated => "saturated",
        }
    }

    /// The regime to act on: [`Regime::Below`] for [`Regime::Unknown`], itself otherwise.
    #[must_use]
    pub const fn effective(self) -> Self {
        match self {
            Self::Unknown => Self::Below,
            known => known,
        }
    }
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Levels at which one signal proposes a regime, in the unit of the signal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cuts {
    /// Above it the signal proposes Transition. 0 to `saturated_enter`.
    pub transition_enter: f64,
    /// Below it the signal lets go of Transition. 0 to `transition_enter`.
    pub transition_leave: f64,
    /// Above it the signal proposes Saturated. 0 to 1e12.
    pub saturated_enter: f64,
    /// Below it the signal lets go of Saturated. `transition_leave` to `saturated_enter`.
    pub saturated_leave: f64,
}

impl Cuts {
    /// Check the order of the levels.
    ///
    /// # Errors
    /// Names the first level outside its range.
    pub fn validate(&self) -> Result<(), RegimeError> {
        let ranges = [
            ("saturated_enter", self.saturated_enter, 0.0, GREATEST_LEVEL),
            (
                "transition_enter",
                self.transition_enter,
                0.0,
                self.saturated_enter,
            ),
            (
                "transition_leave",
                self.transition_leave,
                0.0,
                self.transition_enter,
            ),
            (
                "saturated_leave",
                self.saturated_leave,
                self.transition_leave,
                self.saturated_enter,
            ),
        ];
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(RegimeError::Cut {
                    key,
                    value,
                    least,
                    most,
                });
            }
        }
        Ok(())
    }

    /// The level that `value` proposes while the regime is `current`.
    fn level(&self, value: f64, current: Regime) -> Regime {
        let stays = |level, leave| current >= level && value >= leave;
        if value > self.saturated_enter || stays(Regime::Saturated, self.saturated_leave) {
            Regime::Saturated
        } else if value > self.transition_enter || stays(Regime::Transition, self.transition_leave)
        {
            Regime::Transition
        } else {
            Regime::Below
        }
    }
}

/// When the regime may move, and on what data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegimeConfig {
    /// k, the evaluations in a row that must agree. 1 to 1000; default 3.
    pub windows: u32,
    /// Least time in a regime before it is left downwards; default 2 s.
    pub dwell: Duration,
    /// Age from which a reading no longer counts. Above zero; default 10 s.
    pub max_age: Duration,
    /// Samples below which a reading does not count. At least 1; default 20.
    pub min_samples: u64,
}

impl Default for RegimeConfig {
    fn default() -> Self {
        Self {
            windows: 3,
            dwell: Duration::from_secs(2),
            max_age: Duration::from_secs(10),
            min_samples: 20,
        }
    }
}

impl RegimeConfig {
    /// Check every setting.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn validate(&self) -> Result<(), RegimeError> {
        if !(1..=1000).contains(&self.windows) {
            return Err(RegimeError::Windows(self.windows));
        }
        if self.max_age.is_zero() {
            return Err(RegimeError::MaxAge(self.max_age));
        }
        if self.min_samples == 0 {
            return Err(RegimeError::MinSamples(self.min_samples));
        }
        Ok(())
    }
}

/// A setting of [`Cuts`] or [`RegimeConfig`] outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum RegimeError {
    /// A level of [`Cuts`] is out of order.
    #[error("{key} is {value}; allowed: {least} to {most}")]
    Cut {
        /// Name of the level.
        key: &'static str,
        /// What it was set to.
        value: f64,
        /// Least value allowed.
        least: f64,
        /// Greatest value allowed.
        most: f64,
    },
    /// The regime needs at least one evaluation to move, and must be able to.
    #[error("windows is {0}; allowed: 1 to 1000")]
    Windows(u32),
    /// Every reading would be too old.
    #[error("max_age is {0:?}; allowed: above 0")]
    MaxAge(Duration),
    /// A reading of no samples does not exist.
    #[error("min_samples is {0}; allowed: at least 1")]
    MinSamples(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUTS: Cuts = Cuts {
        transition_enter: 2.0,
        transition_leave: 1.5,
        saturated_enter: 4.0,
        saturated_leave: 3.0,
    };

    #[test]
    fn regimes_are_ordered_and_named_alike_in_text_and_json() {
        assert!(Regime::ALL.is_sorted());
        for regime in Regime::ALL {
            assert_eq!(
                serde_json::to_string(&regime).unwrap(),
                format!("\"{regime}\"")
            );
        }
    }

    #[test]
    fn unknown_behaves_like_below() {
        let effective = Regime::ALL.map(Regime::effective);
        let expected = [
            Regime::Below,
            Regime::Below,
            Regime::Transition,
            Regime::Saturated,
        ];
        assert_eq!(effective, expected);
    }

    #[test]
    fn a_level_is_entered_above_its_cut_and_left_below_a_lower_one() {
        let levels =
            |current| [1.4, 1.5, 2.0, 2.1, 2.9, 3.0, 4.0, 4.1].map(|v| CUTS.level(v, current));
        let (below, transition, saturated) = (Regime::Below, Regime::Transition, Regime::Saturated);
        let from_below = [
            below, below, below, transition, transition, transition, transition, saturated,
        ];
        assert_eq!(levels(Regime::Unknown), from_below);
        assert_eq!(levels(below), from_below);
        assert_eq!(
            levels(transition),
            [
                below, transition, transition, transition, transition, transition, transition,
                saturated
            ]
        );
        assert_eq!(
            levels(saturated),
            [
                below, transition, transition, transition, transition, saturated, saturated,
                saturated
            ]
        );
    }

    #[test]
    fn a_cut_out_of_order_is_named_with_its_value_and_range() {
        let refusal = |cuts: Cuts| cuts.validate().unwrap_err().to_string();
        assert_eq!(CUTS.validate(), Ok(()));
        assert_eq!(
            refusal(Cuts {
                transition_leave: 2.5,
                ..CUTS
            }),
            "transition_leave is 2.5; allowed: 0 to 2"
        );
        assert_eq!(
            refusal(Cuts {
                transition_enter: 5.0,
                ..CUTS
            }),
            "transition_enter is 5; allowed: 0 to 4"
        );
        assert_eq!(
            refusal(Cuts {
                saturated_leave: 1.0,
                ..CUTS
            }),
            "saturated_leave is 1; allowed: 1.5 to 4"
        );
        assert_eq!(
            refusal(Cuts {
                saturated_enter: f64::NAN,
                ..CUTS
            }),
            "saturated_enter is NaN; allowed: 0 to 1000000000000"
        );
    }

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_range() {
        let refusal = |config: RegimeConfig| config.validate().unwrap_err().to_string();
        let good = RegimeConfig::default();
        assert_eq!(good.validate(), Ok(()));
        assert_eq!(
            refusal(RegimeConfig { windows: 0, ..good }),
            "windows is 0; allowed: 1 to 1000"
        );
        assert_eq!(
            refusal(RegimeConfig {
                max_age: Duration::ZERO,
                ..good
            }),
            "max_age is 0ns; allowed: above 0"
        );
        assert_eq!(
            refusal(RegimeConfig {
                min_samples: 0,
                ..good
            }),
            "min_samples is 0; allowed: at least 1"
        );
    }

    #[test]
    fn an_unknown_key_among_the_cuts_is_refused() {
        let text = r#"{"transition_enter":2,"transition_leave":1.5,"saturated_enter":4,"saturated_laeve":3}"#;
        assert!(
            serde_json::from_str::<Cuts>(text)
                .unwrap_err()
                .to_string()
                .contains("saturated_laeve")
        );
    }
}
