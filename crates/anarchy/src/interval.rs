// SPDX-License-Identifier: Apache-2.0

//! A range of values, and the range of each gap.

use serde::{Deserialize, Serialize};

use crate::GapSplit;

/// A closed interval; `low ≤ high`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
}

/// One interval for each ratio of a [`GapSplit`], and for PoA-hat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GapIntervals {
    /// Of [`GapSplit::slowdown`].
    pub slowdown: Interval,
    /// Of [`GapSplit::policy`].
    #[serde(rename = "policy_gap")]
    pub policy: Interval,
    /// Of [`GapSplit::temporal`].
    #[serde(rename = "temporal_gap")]
    pub temporal: Interval,
    /// Of [`GapSplit::overload`].
    pub overload: Interval,
    /// Of [`GapSplit::poa_hat`].
    pub poa_hat: Interval,
}

impl GapIntervals {
    /// The same rule for each ratio: `interval` gets the ratio and says what it spans.
    pub(crate) fn of(interval: impl Fn(fn(&GapSplit) -> f64) -> Interval) -> Self {
        Self {
            slowdown: interval(|gap| gap.slowdown),
            policy: interval(|gap| gap.policy),
            temporal: interval(|gap| gap.temporal),
            overload: interval(|gap| gap.overload),
            poa_hat: interval(GapSplit::poa_hat),
        }
    }
}
