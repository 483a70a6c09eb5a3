// SPDX-License-Identifier: Apache-2.0

//! Conditions under which the standard suite does not look: what a fleet does to a router.
//!
//! In the standard suite everything is as a policy would like it: the router learns of KV events at once,
//! workers are equally fast, and the policy's first idea of them is about right. Each condition takes one
//! of that away. Baselines run under it, too, so that a policy is compared with what another one would
//! make of the same trouble.
//!
//! - Late events: a router that learns of cached blocks a second late sends the requests of that second
//!   elsewhere. The loads are those found without the delay, since an operator's traffic does not change
//!   with it.
//! - Priors: a start value six times wrong is that of a model ten times larger or smaller, or of another
//!   generation of GPUs. Only the policy that has such values is changed.
//! - A slow worker: 2.5 times is a GPU that throttles, or one shared with another job. The loads are
//!   searched with it, since it is part of the fleet.
//! - Large pools: what is cheap or rare among eight workers may be neither among 128.
//!
//! All run at the knee, where a policy has most to win and lose.

use std::fmt;
use std::str::FromStr;

use regime_core::CalibrationConfig;
use regime_policy::POLICY_TYPE;
use serde_json::{Map, json};

use super::suite::Part;
use crate::policies::{Policy, PolicyError};
use crate::run::{LoadLevel, Settings};
use crate::topology::Topology;
use crate::workloads::{Generator, WorkloadSource};

/// How late KV events are, ms.
const EVENT_LAG_MS: f64 = 1_000.0;
/// How wrong start values are.
const PRIOR_FACTOR: f64 = 6.0;
/// How many times as long the slow worker takes.
const SLOWDOWN: f64 = 2.5;

/// Something unusual about a fleet or a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The router learns of KV events a second late.
    LateEvents,
    /// The policy takes prefill to be six times as slow as its defaults say.
    PriorsHigh,
    /// The policy takes prefill to be six times as fast as its defaults say.
    PriorsLow,
    /// One of four workers takes 2.5 times as long.
    SlowWorker,
    /// Pools of 32 and 128 workers.
    LargePools,
}

/// A condition that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("condition {given:?} is unknown; allowed are {}", Condition::ALL.map(Condition::name).join(", "))]
pub struct ConditionError {
    given: String,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 5] = [
        Self::LateEvents,
        Self::PriorsHigh,
        Self::PriorsLow,
        Self::SlowWorker,
        Self::LargePools,
    ];

    /// The name used in options and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LateEvents => "late-events",
            Self::PriorsHigh => "priors-high",
            Self::PriorsLow => "priors-low",
            Self::SlowWorker => "slow-worker",
            Self::LargePools => "large-pools",
        }
    }

    /// The part of a suite that runs these policies under the condition; `settings` are those of a fleet
    /// without it.
    ///
    /// # Errors
    /// When a policy cannot be given the parameters of the condition.
    pub fn part(self, policies: &[Policy], settings: &Settings) -> Result<Part, PolicyError> {
        let changed = |change: fn(&mut Settings)| {
            let mut settings = settings.clone();
            change(&mut settings);
            settings
        };
        let slow = || changed(|it| it.slowdowns = vec![SLOWDOWN]);
        let (searched, settings) = match self {
            Self::LateEvents => (
                settings.clone(),
                changed(|it| it.kv_event_lag_ms = EVENT_LAG_MS),
            ),
            Self::SlowWorker => (slow(), slow()),
            Self::PriorsHigh | Self::PriorsLow | Self::LargePools => {
                (settings.clone(), settings.clone())
            }
        };
        Ok(Part {
            condition: Some(self.name()),
            tiers: None,
            policies: policies
                .iter()
                .map(|policy| self.policy(policy))
                .collect::<Result<_, _>>()?,
            sources: self
                .generators()
                .iter()
                .map(|it| WorkloadSource::Generated(*it))
                .collect(),
            topologies: self
                .pools()
                .iter()
                .map(|workers| Topology::Aggregated { workers: *workers })
                .collect(),
            loads: vec![LoadLevel::Knee],
            searched,
            settings,
        })
    }

    /// Whether the policy is another one under the condition.
    #[must_use]
    pub fn changes_policies(self) -> bool {
        self.prior_factor().is_some()
    }

    const fn generators(self) -> &'static [Generator] {
        match self {
            Self::LateEvents => &[
                Generator::Chat,
                Generator::HotspotShift,
                Generator::ColdBurst,
                Generator::WorkingSet,
                Generator::Paper,
                Generator::MixedLengths,
            ],
            Self::PriorsHigh | Self::PriorsLow | Self::SlowWorker => &[
                Generator::Chat,
                Generator::MixedLengths,
                Generator::WorkingSet,
                Generator::HotspotShift,
                Generator::DecodeHeavy,
            ],
            Self::LargePools => &[
                Generator::Chat,
                Generator::WorkingSet,
                Generator::HotspotShift,
                Generator::MixedLengths,
            ],
        }
    }

    const fn pools(self) -> &'static [usize] {
        match self {
            Self::LateEvents => &[4, 8],
            Self::PriorsHigh | Self::PriorsLow | Self::SlowWorker => &[4],
            Self::LargePools => &[32, 128],
        }
    }

    /// The policy under the condition, with the same label.
    fn policy(self, policy: &Policy) -> Result<Policy, PolicyError> {
        let Some(factor) = self
            .prior_factor()
            .filter(|_| policy.label() == POLICY_TYPE)
        else {
            return Ok(policy.clone());
        };
        let usual = CalibrationConfig::default();
        let calibration = json!({
            "prior_pass_ms": usual.prior_pass_ms * factor,
            "prior_token_ms": usual.prior_token_ms * factor,
        });
        let parameters = Map::from_iter([("calibration".to_owned(), calibration)]);
        policy.clone().with_parameters(parameters, policy.label())
    }

    fn prior_factor(self) -> Option<f64> {
        match self {
            Self::PriorsHigh => Some(PRIOR_FACTOR),
            Self::PriorsLow => Some(1.0 / PRIOR_FACTOR),
            Self::LateEvents | Self::SlowWorker | Self::LargePools => None,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(given: &str) -> Result<Self, ConditionError> {
        Self::ALL
            .into_iter()
            .find(|condition| condition.name() == given)
            .ok_or_else(|| ConditionError {
                given: given.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Catalog;

    fn part(condition: Condition) -> Part {
        let catalog = Catalog::default();
        let policies =
            ["default", "regime-aware"].map(|name| Policy::named(name, &catalog).unwrap());
        condition.part(&policies, &Settings::default()).unwrap()
    }

    #[test]
    fn a_condition_is_read_by_its_name_and_a_wrong_one_gets_the_right_ones() {
        for condition in Condition::ALL {
            assert_eq!(condition.name().parse(), Ok(condition));
        }
        assert_eq!(
            "late".parse::<Condition>().unwrap_err().to_string(),
            "condition \"late\" is unknown; allowed are late-events, priors-high, priors-low, slow-worker, \
             large-pools"
        );
    }

    #[test]
    fn late_events_do_not_change_the_loads_and_a_slow_worker_does() {
        let late = part(Condition::LateEvents);
        assert_eq!(
            (late.searched.kv_event_lag_ms, late.settings.kv_event_lag_ms),
            (0.0, 1_000.0)
        );
        let slow = part(Condition::SlowWorker);
        assert_eq!(slow.searched.slowdowns, [2.5]);
        assert_eq!(slow.searched, slow.settings);
        let large = part(Condition::LargePools);
        assert_eq!(
            (&large.searched, &large.settings),
            (&Settings::default(), &Settings::default())
        );
    }

    #[test]
    fn wrong_priors_are_those_of_the_regime_aware_policy_alone_under_its_own_name() {
        let catalog = Catalog::default();
        let usual = part(Condition::SlowWorker).policies;
        for (condition, prior_pass_ms, prior_token_ms) in [
            (Condition::PriorsHigh, 72.0, 0.03 * 6.0),
            (Condition::PriorsLow, 2.0, 0.03 * (1.0 / 6.0)),
        ] {
            let calibration = json!({
                "prior_pass_ms": prior_pass_ms,
                "prior_token_ms": prior_token_ms,
            });
            let parameters = Map::from_iter([("calibration".to_owned(), calibration)]);
            let changed = usual[1]
                .clone()
                .with_parameters(parameters, "regime-aware")
                .unwrap();
            changed.check(&catalog).unwrap();
            assert_eq!(part(condition).policies, [usual[0].clone(), changed]);
        }
    }
}
