// SPDX-License-Identifier: Apache-2.0

//! Newtypes for the three quantities the router adds up: milliseconds, tokens and KV blocks.
//!
//! Dynamo fails a whole selection when one cost is not finite, so a stray NaN is an outage for every
//! request. [`Millis`] is therefore finite by construction: every operation clamps into
//! ±[`Millis::LIMIT`], and a NaN becomes zero.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};
use std::time::Duration;

use serde::Serialize;

/// A span of time or a cost, in milliseconds. Always finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Millis(f64);

impl Millis {
    /// No time at all.
    pub const ZERO: Self = Self(0.0);
    /// Largest magnitude a value can take: about 31 years, far above any latency and small enough
    /// that a sum over a million workers stays finite.
    pub const LIMIT: f64 = 1e12;

    /// Clamp `value` into the finite range; NaN becomes zero.
    #[must_use]
    pub const fn new(value: f64) -> Self {
        if value.is_nan() {
            Self(0.0)
        } else {
            Self(value.clamp(-Self::LIMIT, Self::LIMIT))
        }
    }

    /// The number of milliseconds.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// The larger of two spans.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// The smaller of two spans.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// Ratio of two spans, absent when the denominator is not positive.
    #[must_use]
    pub fn ratio(self, denominator: Self) -> Option<f64> {
        (denominator.0 > 0.0).then(|| Self::new(self.0 / denominator.0).0)
    }
}

impl From<Duration> for Millis {
    fn from(span: Duration) -> Self {
        Self::new(span.as_secs_f64() * 1e3)
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.0 + other.0)
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Millis {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::new(self.0 - other.0)
    }
}

impl Mul<f64> for Millis {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self::new(self.0 * factor)
    }
}

impl Div<f64> for Millis {
    type Output = Self;
    fn div(self, divisor: f64) -> Self {
        Self::new(self.0 / divisor)
    }
}

impl Neg for Millis {
    type Output = Self;
    fn neg(self) -> Self {
        Self(-self.0)
    }
}

impl Sum for Millis {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

/// A number of prompt or generated tokens.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Tokens(pub u64);

impl Tokens {
    /// As a real number; exact up to 2^53.
    #[must_use]
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// `self − other`, never below zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// A number of KV blocks. Fractional, because tiers weigh; never negative, never NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Blocks(f64);

impl Blocks {
    /// No block.
    pub const ZERO: Self = Self(0.0);

    /// Clamp `value` to a finite, non-negative count; NaN becomes zero.
    #[must_use]
    pub const fn new(value: f64) -> Self {
        if value.is_nan() {
            Self(0.0)
        } else {
            Self(value.clamp(0.0, Millis::LIMIT))
        }
    }

    /// The number of blocks.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// The smaller of two counts.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The larger of two counts.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl Add for Blocks {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.0 + other.0)
    }
}

impl Mul<f64> for Blocks {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self::new(self.0 * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_nan_becomes_zero_milliseconds() {
        assert_eq!(Millis::new(f64::NAN), Millis::ZERO);
        assert_eq!(Millis::new(1.0) / 0.0, Millis::new(Millis::LIMIT));
        assert_eq!(Millis::ZERO / 0.0, Millis::ZERO);
    }

    #[test]
    fn a_ratio_needs_a_positive_denominator() {
        assert_eq!(Millis::new(6.0).ratio(Millis::new(4.0)), Some(1.5));
        assert_eq!(Millis::new(6.0).ratio(Millis::ZERO), None);
    }

    #[test]
    fn blocks_are_never_negative() {
        assert_eq!(Blocks::new(-3.0), Blocks::ZERO);
        assert_eq!(Blocks::new(f64::NAN), Blocks::ZERO);
    }

    proptest! {
        #[test]
        fn arithmetic_on_any_floats_stays_finite(a: f64, b: f64, k: f64) {
            let (a, b) = (Millis::new(a), Millis::new(b));
            for value in [a + b, a - b, a * k, a / k, -a, a.max(b), a.min(b)] {
                prop_assert!(value.get().is_finite());
            }
        }
    }
}
