// SPDX-License-Identifier: Apache-2.0

//! Whether a measured figure reproduces a published one.
//!
//! A factor is reproduced where it may be claimed at all, as everywhere in the lab (the 95 % interval over the
//! repeats leaves out 1, and it is half a percent away from it), where it goes the same way, and where its logarithm is between half and twice the
//! published one: 3.1 is reproduced by 1.8 to 9.5. A knee is reproduced where both loads around it lie within the
//! published ones. What these runs cannot measure is not comparable.

use serde::{Deserialize, Serialize};

use crate::experiments::comparison::MATTERS;
use crate::experiments::load_search::Knee;
use crate::experiments::statistics::Ratio;

/// What became of a published figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Seen here, too.
    Reproduced,
    /// Measured, and not seen.
    NotReproduced,
    /// Not measured here, or not the same thing.
    NotComparable,
}

impl Outcome {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::NotComparable => "not comparable",
        }
    }
}

/// An outcome and its reason.
pub(super) type Verdict = (Outcome, String);

/// Least share of the published effect, on a logarithmic scale.
const LEAST_SHARE: f64 = 0.5;
/// Most, likewise.
const MOST_SHARE: f64 = 2.0;

/// Of a factor; `alike` when both rules gave the same runs.
pub(super) fn factor(published: f64, measured: Option<&Ratio>, alike: bool) -> Verdict {
    let Some(measured) = measured else {
        let why = "no run of both rules at the loads of the saturated phase";
        return (Outcome::NotComparable, why.into());
    };
    if alike {
        let why = "both rules gave the same runs: nothing depended on the choice";
        return (Outcome::NotReproduced, why.into());
    }
    if measured.pairs < 2 {
        return (Outcome::NotComparable, "one repeat claims nothing".into());
    }
    let nothing = measured.ratio.max(1.0 / measured.ratio) < MATTERS;
    if nothing || !measured.differs() {
        let why = "the two rules cannot be told apart";
        return (Outcome::NotReproduced, why.into());
    }
    let share = measured.ratio.ln() / published.ln();
    if share < 0.0 {
        (
            Outcome::NotReproduced,
            "the effect goes the other way".into(),
        )
    } else if share < LEAST_SHARE {
        (Outcome::NotReproduced, "the effect is far smaller".into())
    } else if share > MOST_SHARE {
        (Outcome::NotReproduced, "the effect is far larger".into())
    } else {
        (Outcome::Reproduced, "the same way and of that order".into())
    }
}

/// Of a knee in `(above, up_to]`; `most` is the largest load measured and its slowdown.
pub(super) fn knee(
    above: f64,
    up_to: f64,
    measured: Option<Knee>,
    most: Option<(f64, f64)>,
) -> Verdict {
    let Some(knee) = measured else {
        return match most {
            Some((load, slowdown)) if load >= up_to => (
                Outcome::NotReproduced,
                format!("{load} sessions slow the mean TTFT {slowdown:.1} times, which is no knee"),
            ),
            _ => (
                Outcome::NotComparable,
                "no load beyond the published knee was run".into(),
            ),
        };
    };
    if knee.above >= above && knee.up_to <= up_to {
        (Outcome::Reproduced, "between the same loads".into())
    } else if knee.above >= up_to || knee.up_to <= above {
        let side = if knee.above >= up_to {
            "later"
        } else {
            "earlier"
        };
        (Outcome::NotReproduced, format!("it comes {side}"))
    } else {
        let why = "the loads that were run are too far apart to tell";
        (Outcome::NotComparable, why.into())
    }
}

/// Of values that should all be between `least` and `most`.
pub(super) fn range(least: f64, most: f64, measured: &[f64]) -> Verdict {
    let outside = measured
        .iter()
        .filter(|value| !(least..=most).contains(*value))
        .count();
    match (measured.len(), outside) {
        (0, _) => (
            Outcome::NotComparable,
            "no load before the knee was run".into(),
        ),
        (_, 0) => (Outcome::Reproduced, "at every load before the knee".into()),
        (all, outside) => (
            Outcome::NotReproduced,
            format!("outside of it at {outside} of {all} loads before the knee"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{NotComparable, NotReproduced, Reproduced};

    fn ratio(ratio: f64, low: f64, high: f64) -> Ratio {
        Ratio {
            ratio,
            low: Some(low),
            high: Some(high),
            pairs: 3,
        }
    }

    #[test]
    fn a_factor_counts_from_half_to_twice_the_published_effect() {
        // ln 4 is twice ln 2 and half of ln 16.
        for (measured, low, high, outcome, word) in [
            (2.0, 1.9, 2.1, Reproduced, "that order"),
            (4.0, 3.0, 5.0, Reproduced, "that order"),
            (16.0, 9.0, 20.0, Reproduced, "that order"),
            (17.0, 9.0, 20.0, NotReproduced, "larger"),
            (1.9, 1.8, 2.0, NotReproduced, "smaller"),
            (0.5, 0.4, 0.6, NotReproduced, "other way"),
            (4.0, 0.9, 20.0, NotReproduced, "told apart"),
            (0.998, 0.997, 0.999, NotReproduced, "told apart"),
        ] {
            let (got, why) = factor(4.0, Some(&ratio(measured, low, high)), false);
            assert_eq!(got, outcome, "{measured}");
            assert!(why.contains(word), "{measured}: {why}");
        }
    }

    #[test]
    fn a_cost_is_a_factor_below_one() {
        assert_eq!(
            factor(0.87, Some(&ratio(0.9, 0.88, 0.92)), false).0,
            Reproduced
        );
        assert_eq!(
            factor(0.87, Some(&ratio(1.1, 1.05, 1.2)), false).0,
            NotReproduced
        );
    }

    #[test]
    fn the_same_runs_are_no_reproduction_and_one_repeat_or_none_is_no_comparison() {
        let one = Ratio::of(&[(4.0, 1.0)]).unwrap();
        assert_eq!(factor(4.0, Some(&one), false).0, NotComparable);
        assert_eq!(
            factor(4.0, Some(&ratio(1.0, 1.0, 1.0)), true).0,
            NotReproduced
        );
        assert_eq!(factor(4.0, None, false).0, NotComparable);
    }

    #[test]
    fn a_knee_is_reproduced_between_the_published_loads() {
        let at = |above, up_to| {
            let at = f64::midpoint(above, up_to);
            Some(Knee { above, up_to, at })
        };
        let verdict = |measured| knee(96.0, 128.0, measured, Some((256.0, 2.5)));
        assert_eq!(verdict(at(96.0, 128.0)).0, Reproduced);
        assert_eq!(
            verdict(at(128.0, 192.0)),
            (NotReproduced, "it comes later".into())
        );
        assert_eq!(
            verdict(at(64.0, 96.0)),
            (NotReproduced, "it comes earlier".into())
        );
        assert_eq!(verdict(at(64.0, 128.0)).0, NotComparable);
        assert_eq!(
            verdict(None),
            (
                NotReproduced,
                "256 sessions slow the mean TTFT 2.5 times, which is no knee".into()
            )
        );
        assert_eq!(knee(96.0, 128.0, None, Some((64.0, 1.0))).0, NotComparable);
    }

    #[test]
    fn a_plateau_holds_at_every_load_or_not() {
        assert_eq!(range(7.0, 19.0, &[7.0, 19.0]).0, Reproduced);
        let (outcome, why) = range(7.0, 19.0, &[6.0, 8.0]);
        assert_eq!(outcome, NotReproduced);
        assert!(why.contains("1 of 2"), "{why}");
        assert_eq!(range(7.0, 19.0, &[]).0, NotComparable);
    }
}
