// SPDX-License-Identifier: Apache-2.0

//! How well found regimes fit the true ones.
//!
//! Time is cut into stretches of one true regime; a true change is the border of two. The found regime counts
//! as Below where it is Unknown. Then
//!
//! - the delay of a change is the time from it until the found regime is the new one, 0 if it already is. It
//!   must be so before the next true change, else the change is missed and has no delay;
//! - a false alarm is a move upwards in a stretch of Below, into Transition or Saturated;
//! - a flap is a level left and come back to within one stretch: the levels moved, less those between the
//!   found regimes at its two ends, halved. So Below, Transition, Saturated on the way up is no flap, nor is
//!   leaving Saturated early while a backlog drains; Below, Saturated, Below are two;
//! - time right is the share of all time in which found and true regime agree.

use regime_core::Regime;
use serde::{Deserialize, Serialize};

use crate::adapter::RegimeSince;
use crate::metrics::{Distribution, ratio};

const MS_PER_HOUR: f64 = 3.6e6;

/// What was counted in one run or several.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counts {
    delays_up_s: Vec<f64>,
    delays_down_s: Vec<f64>,
    changes: u64,
    false_alarms: u64,
    flaps: u64,
    below_ms: f64,
    right_ms: f64,
    all_ms: f64,
}

/// The score of a detector. What there was no occasion for is left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// True changes.
    pub changes: u64,
    /// Delay of true changes upwards that were found, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_up_s: Option<Distribution>,
    /// Delay of true changes downwards that were found, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_down_s: Option<Distribution>,
    /// Share of true changes that were not found before the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<f64>,
    /// False alarms in an hour of Below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub false_alarms_per_h: Option<f64>,
    /// Levels left and come back to, in an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaps_per_h: Option<f64>,
    /// Share of time in which the regime was right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_right: Option<f64>,
    /// Virtual time judged, h.
    pub hours: f64,
}

impl Counts {
    /// Of one run, from 0 to `end_ms`. Both lists are in order and begin at 0.
    pub(super) fn of(truth: &[RegimeSince], found: &[RegimeSince], end_ms: f64) -> Self {
        let mut counts = Self {
            changes: truth.len().saturating_sub(1) as u64,
            all_ms: end_ms,
            ..Self::default()
        };
        for (at, since) in truth.iter().enumerate() {
            let to_ms = truth.get(at + 1).map_or(end_ms, |next| next.from_ms);
            let pieces = pieces(found, since.from_ms, to_ms);
            let right = || pieces.iter().filter(|piece| piece.regime == since.regime);
            counts.right_ms += right()
                .map(|piece| piece.to_ms - piece.from_ms)
                .sum::<f64>();
            if let Some(before) = at.checked_sub(1).and_then(|before| truth.get(before)) {
                let delays_s = match since.regime > before.regime {
                    true => &mut counts.delays_up_s,
                    false => &mut counts.delays_down_s,
                };
                let first = right().next();
                delays_s.extend(first.map(|piece| (piece.from_ms - since.from_ms) / 1e3));
            }
            let moves = || {
                pieces
                    .windows(2)
                    .map(|pair| level(pair[1].regime) - level(pair[0].regime))
            };
            let net = match (pieces.first(), pieces.last()) {
                (Some(first), Some(last)) => level(last.regime) - level(first.regime),
                _ => 0,
            };
            let moved: i64 = moves().map(i64::abs).sum();
            counts.flaps += ((moved - net.abs()) / 2).unsigned_abs();
            if since.regime == Regime::Below {
                counts.below_ms += to_ms - since.from_ms;
                counts.false_alarms += moves().filter(|by| *by > 0).count() as u64;
            }
        }
        counts
    }

    /// Both together.
    pub(super) fn add(&mut self, other: &Self) {
        self.delays_up_s.extend(&other.delays_up_s);
        self.delays_down_s.extend(&other.delays_down_s);
        self.changes += other.changes;
        self.false_alarms += other.false_alarms;
        self.flaps += other.flaps;
        self.below_ms += other.below_ms;
        self.right_ms += other.right_ms;
        self.all_ms += other.all_ms;
    }

    pub(super) fn score(self) -> Score {
        let found = self.delays_up_s.len() + self.delays_down_s.len();
        let missed = self.changes as f64 - found as f64;
        let per_hour = |count: u64, ms: f64| ratio(count as f64, ms / MS_PER_HOUR);
        Score {
            changes: self.changes,
            missed: ratio(missed, self.changes as f64),
            false_alarms_per_h: per_hour(self.false_alarms, self.below_ms),
            flaps_per_h: per_hour(self.flaps, self.all_ms),
            time_right: ratio(self.right_ms, self.all_ms),
            hours: self.all_ms / MS_PER_HOUR,
            delay_up_s: Distribution::of(self.delays_up_s),
            delay_down_s: Distribution::of(self.delays_down_s),
        }
    }
}

impl Score {
    /// Its columns in a table, with their headings.
    pub(crate) fn columns(&self) -> [(&'static str, String); 8] {
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
        let (up, down) = (self.delay_up_s, self.delay_down_s);
        [
            ("up P50, s", number(up.map(|it| it.p50))),
            ("up P90, s", number(up.map(|it| it.p90))),
            ("down P50, s", number(down.map(|it| it.p50))),
            ("down P90, s", number(down.map(|it| it.p90))),
            ("missed", percent(self.missed)),
            ("false alarms/h", number(self.false_alarms_per_h)),
            ("flaps/h", number(self.flaps_per_h)),
            ("time right", self.right()),
        ]
    }

    /// Time right, in words.
    pub(crate) fn right(&self) -> String {
        percent(self.time_right)
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share))
}

/// A stretch of one found regime.
struct Piece {
    from_ms: f64,
    to_ms: f64,
    regime: Regime,
}

/// The found regimes within a span, those that do not last left out and equal neighbours kept apart.
fn pieces(found: &[RegimeSince], from_ms: f64, to_ms: f64) -> Vec<Piece> {
    let ends = found.iter().skip(1).map(|next| next.from_ms);
    let clamped = found
        .iter()
        .zip(ends.chain([f64::INFINITY]))
        .map(|(since, end_ms)| Piece {
            from_ms: since.from_ms.max(from_ms),
            to_ms: end_ms.min(to_ms),
            regime: since.regime.effective(),
        });
    clamped
        .filter(|piece| piece.from_ms < piece.to_ms)
        .collect()
}

const fn level(regime: Regime) -> i64 {
    match regime.effective() {
        Regime::Unknown | Regime::Below => 0,
        Regime::Transition => 1,
        Regime::Saturated => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Regime::{Below, Saturated, Transition, Unknown};

    fn since(list: &[(f64, Regime)]) -> Vec<RegimeSince> {
        let all = list.iter().map(|&(from_s, regime)| RegimeSince {
            from_ms: 1e3 * from_s,
            regime,
        });
        all.collect()
    }

    /// Saturated from 10 s to 20 s, of 40 s.
    fn counted(found: &[(f64, Regime)]) -> Counts {
        let truth = since(&[(0.0, Below), (10.0, Saturated), (20.0, Below)]);
        Counts::of(&truth, &since(found), 40_000.0)
    }

    #[test]
    fn a_delay_runs_from_the_true_change_to_the_regime_that_is_true() {
        let counts = counted(&[
            (0.0, Unknown),
            (1.0, Below),
            (12.0, Transition),
            (13.0, Saturated),
            (23.0, Transition),
            (26.0, Below),
        ]);
        assert_eq!(
            (&counts.delays_up_s[..], &counts.delays_down_s[..]),
            (&[3.0][..], &[6.0][..])
        );
        // Right but for 3 s and 6 s.
        assert_eq!((counts.right_ms, counts.all_ms), (31_000.0, 40_000.0));
        assert_eq!((counts.flaps, counts.false_alarms), (0, 0));
        let score = counts.score();
        assert_eq!((score.changes, score.missed), (2, Some(0.0)));
        assert_eq!(score.time_right, Some(31.0 / 40.0));
    }

    #[test]
    fn a_change_that_is_found_too_late_or_never_is_missed() {
        // Still Below at the step down, which is thereby found at once.
        let late = counted(&[(0.0, Below), (21.0, Saturated)]);
        assert_eq!(late.delays_down_s, [0.0]);
        let score = late.score();
        assert_eq!((score.missed, score.delay_up_s), (Some(0.5), None));
        assert_eq!(counted(&[(0.0, Below)]).score().missed, Some(0.5));
        let stuck = counted(&[(0.0, Below), (9.0, Transition)]);
        assert_eq!(stuck.score().missed, Some(1.0));
    }

    #[test]
    fn a_regime_that_is_there_already_has_no_delay() {
        assert_eq!(
            counted(&[(0.0, Below), (8.0, Saturated)]).delays_up_s,
            [0.0]
        );
    }

    #[test]
    fn moves_upwards_while_below_are_false_alarms() {
        // Two in the first stretch, one after the step down; none for being late.
        let counts = counted(&[
            (0.0, Below),
            (2.0, Transition),
            (3.0, Saturated),
            (4.0, Below),
            (11.0, Saturated),
            (25.0, Below),
            (30.0, Transition),
            (31.0, Below),
        ]);
        assert_eq!((counts.false_alarms, counts.below_ms), (3, 30_000.0));
        // Three alarms in 30 s are 360 in an hour.
        assert_eq!(counts.score().false_alarms_per_h, Some(360.0));
    }

    #[test]
    fn a_flap_is_a_level_left_and_come_back_to() {
        let flaps = |found: &[(f64, Regime)]| counted(found).flaps;
        // Up and down by two levels, in one stretch.
        assert_eq!(flaps(&[(0.0, Below), (2.0, Saturated), (3.0, Below)]), 2);
        // Saturated, Transition, Saturated.
        assert_eq!(
            flaps(&[
                (0.0, Below),
                (10.0, Saturated),
                (12.0, Transition),
                (13.0, Saturated)
            ]),
            1
        );
        // Up before the change, down before the next, all in one direction each.
        assert_eq!(flaps(&[(0.0, Below), (9.0, Saturated), (19.0, Below)]), 0);
        // Unknown behaves like Below.
        assert_eq!(flaps(&[(0.0, Below), (2.0, Unknown), (3.0, Below)]), 0);
    }

    #[test]
    fn counts_of_two_runs_add_up() {
        let mut sum = counted(&[(0.0, Below), (12.0, Saturated), (24.0, Below)]);
        sum.add(&counted(&[(0.0, Below)]));
        let score = sum.score();
        assert_eq!((score.changes, score.missed), (4, Some(0.25)));
        // 34 s and 30 s of 80 s.
        assert_eq!(score.time_right, Some(0.8));
        assert_eq!(
            score.delay_up_s.map(|it| (it.samples, it.p50)),
            Some((1, 2.0))
        );
    }
}
