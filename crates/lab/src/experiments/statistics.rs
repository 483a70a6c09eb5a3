// SPDX-License-Identifier: Apache-2.0

//! Ratios of paired runs, with the interval that the seeds leave open.
//!
//! Two policies run on the same arrivals give a pair of numbers for each seed. The logarithm of their
//! ratio is averaged over the seeds: seeds differ far more from each other than policies do, and pairing
//! takes that out. The interval is Student's, since a handful of seeds is common and a bootstrap of few
//! values is too narrow. One pair has no interval, so nothing can be claimed from it.
//!
//! Source: field report BR-19 and experience: the order of two P99s in a single seed is often reversed
//! by twenty.

use serde::{Deserialize, Serialize};

/// A ratio and its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Geometric mean of the ratios.
    pub ratio: f64,
    /// Lower end; absent with one pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end; absent with one pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Pairs.
    pub pairs: u64,
}

impl Ratio {
    /// Of pairs `(value, base)`; pairs that are not both above 0 have no ratio and do not count. `None`
    /// when none is left.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let logs: Vec<f64> = pairs
            .iter()
            .filter(|(value, base)| *value > 0.0 && *base > 0.0)
            .map(|(value, base)| (value / base).ln())
            .filter(|log| log.is_finite())
            .collect();
        let n = logs.len();
        if n == 0 {
            return None;
        }
        let mean = logs.iter().sum::<f64>() / n as f64;
        let half = (n > 1).then(|| {
            let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
            student_t(n - 1) * (squares / (n - 1) as f64 / n as f64).sqrt()
        });
        Some(Self {
            ratio: mean.exp(),
            low: half.map(|half| (mean - half).exp()),
            high: half.map(|half| (mean + half).exp()),
            pairs: n as u64,
        })
    }

    /// Base over value.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self {
            ratio: 1.0 / self.ratio,
            low: self.high.map(|high| 1.0 / high),
            high: self.low.map(|low| 1.0 / low),
            pairs: self.pairs,
        }
    }

    /// Whether the interval leaves out 1; never with one pair.
    #[must_use]
    pub fn differs(&self) -> bool {
        match (self.low, self.high) {
            (Some(low), Some(high)) => low > 1.0 || high < 1.0,
            _ => false,
        }
    }
}

/// Geometric mean of numbers above 0; `None` of none.
pub(super) fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (logs, count) = values.fold((0.0, 0_u64), |(logs, count), value| {
        (logs + value.ln(), count + 1)
    });
    (count > 0).then(|| (logs / count as f64).exp())
}

/// The middle value, or the middle of the two in the middle; `None` of none that is finite.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get(values.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// 97.5 % quantile of Student's t for up to ten degrees of freedom, from any table.
const STUDENT_T: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// 97.5 % quantile of Student's t: the table, then Cornish and Fisher's expansion (exact to 0.001).
fn student_t(degrees: usize) -> f64 {
    const Z: f64 = 1.959_964;
    if let Some(known) = degrees.checked_sub(1).and_then(|row| STUDENT_T.get(row)) {
        return *known;
    }
    let v = degrees as f64;
    let first = (Z.powi(3) + Z) / (4.0 * v);
    let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * v * v);
    let third =
        (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / (384.0 * v.powi(3));
    Z + first + second + third
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_ratios_have_a_point_for_an_interval() {
        let ratio = Ratio::of(&[(2.0, 1.0), (20.0, 10.0)]).unwrap();
        assert!((ratio.ratio - 2.0).abs() < 1e-12 && ratio.pairs == 2);
        assert!((ratio.low.unwrap() - 2.0).abs() < 1e-9 && ratio.differs());
        assert!((ratio.inverse().high.unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn opposite_ratios_cancel_and_cannot_be_told_from_one() {
        // ln 2 and −ln 2: mean 0, deviation √2·ln 2, so half the interval is 12.706·ln 2.
        let ratio = Ratio::of(&[(2.0, 1.0), (1.0, 2.0)]).unwrap();
        assert!((ratio.ratio - 1.0).abs() < 1e-12 && !ratio.differs());
        let half = ratio.high.unwrap().ln();
        assert!(
            (half - 12.706 * std::f64::consts::LN_2).abs() < 1e-9,
            "{half}"
        );
    }

    #[test]
    fn one_pair_has_no_interval_and_claims_nothing() {
        let ratio = Ratio::of(&[(1.0, 4.0)]).unwrap();
        assert_eq!((ratio.ratio, ratio.low, ratio.high), (0.25, None, None));
        assert!(!ratio.differs());
    }

    #[test]
    fn a_zero_has_no_ratio() {
        assert_eq!(Ratio::of(&[(0.0, 1.0), (1.0, 0.0)]), None);
    }

    #[test]
    fn a_geometric_mean_multiplies() {
        let mean = geometric_mean([2.0, 8.0].into_iter()).unwrap();
        assert!((mean - 4.0).abs() < 1e-12);
        assert_eq!(geometric_mean(std::iter::empty()), None);
    }

    #[test]
    fn a_median_is_the_middle_or_between_the_two_middles() {
        assert_eq!(median(vec![3.0, 1.0, 100.0]), Some(3.0));
        assert_eq!(median(vec![1.0, 2.0, 4.0, 100.0]), Some(3.0));
        assert_eq!(median(vec![f64::NAN]), None);
    }

    #[test]
    fn the_quantile_is_that_of_printed_tables() {
        for (degrees, t) in [
            (1, 12.706),
            (10, 2.228),
            (11, 2.201),
            (19, 2.093),
            (30, 2.042),
            (120, 1.980),
        ] {
            assert!((student_t(degrees) - t).abs() < 1e-3, "{degrees}");
        }
    }

    proptest! {
        #[test]
        fn the_ratio_lies_in_its_interval(pairs in prop::collection::vec((0.1..1e6f64, 0.1..1e6f64), 2..30)) {
            let ratio = Ratio::of(&pairs).unwrap();
            prop_assert!(ratio.low.unwrap() <= ratio.ratio * (1.0 + 1e-9));
            prop_assert!(ratio.ratio <= ratio.high.unwrap() * (1.0 + 1e-9));
        }
    }
}
