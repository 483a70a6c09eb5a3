// SPDX-License-Identifier: Apache-2.0

//! Exponentially weighted averages that know whether they have seen anything.
//!
//! [`Ewma`] is for samples that come at irregular times: the weight of a sample is 1 − exp(−Δt/τ) for
//! the time Δt since the one before, so that the average forgets by the clock and not by the number of
//! samples. [`StepEwma`] gives every sample the same weight, for quantities that should move per event
//! however often events come.
//!
//! An average without samples is absent, never zero: a zero makes a new worker look infinitely fast
//! and floods it (field report BR-07). A [`StepEwma`] starts at a prior instead, and says how many
//! samples stand behind it. A sample that is not finite is ignored, so no average is ever NaN.

use std::time::Duration;

use crate::Timestamp;

/// Average over irregular samples with a time constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Ewma {
    time_constant: Duration,
    last: Option<(Timestamp, f64)>,
    samples: u64,
}

impl Ewma {
    /// An average that forgets with `time_constant`; zero makes it follow the latest sample.
    #[must_use]
    pub const fn new(time_constant: Duration) -> Self {
        Self {
            time_constant,
            last: None,
            samples: 0,
        }
    }

    /// Take in `value`, seen at `at`. The first sample sets the average. A sample that is late, or
    /// simultaneous with the newest one, has no time to stand for: it counts, but moves neither the
    /// average nor the time.
    pub fn update(&mut self, at: Timestamp, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.samples = self.samples.saturating_add(1);
        self.last = Some(match self.last {
            None => (at, value),
            Some((newest, average)) => (
                newest.max(at),
                blend(average, value, self.weight(at.since(newest))),
            ),
        });
    }

    /// The average; absent before the first sample.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        self.last.map(|(_, average)| average)
    }

    /// Number of finite samples so far.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Time of the newest sample; absent before the first.
    #[must_use]
    pub fn last_update(&self) -> Option<Timestamp> {
        self.last.map(|(newest, _)| newest)
    }

    fn weight(&self, elapsed: Duration) -> f64 {
        if self.time_constant.is_zero() {
            return 1.0;
        }
        -(-elapsed.as_secs_f64() / self.time_constant.as_secs_f64()).exp_m1()
    }
}

/// Average with a fixed weight per sample, starting from a prior.
#[derive(Debug, Clone, PartialEq)]
pub struct StepEwma {
    weight: f64,
    value: f64,
    samples: u64,
}

impl StepEwma {
    /// An average that starts at `initial` and moves by `weight` of the distance to each sample. The
    /// weight is clamped to 0..=1; a NaN weight, or an initial value that is not finite, becomes 0.
    #[must_use]
    pub const fn new(initial: f64, weight: f64) -> Self {
        Self {
            weight: weight.max(0.0).min(1.0),
            value: if initial.is_finite() { initial } else { 0.0 },
            samples: 0,
        }
    }

    /// Take in `value`; ignored unless finite.
    pub fn update(&mut self, value: f64) {
        if value.is_finite() {
            self.value = blend(self.value, value, self.weight);
            self.samples = self.samples.saturating_add(1);
        }
    }

    /// The average; the initial value before the first sample.
    #[must_use]
    pub const fn value(&self) -> f64 {
        self.value
    }

    /// Number of finite samples so far.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }
}

/// A convex combination: unlike `average + weight·(value − average)` it cannot overflow.
fn blend(average: f64, value: f64, weight: f64) -> f64 {
    average * (1.0 - weight) + value * weight
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_new_average_is_absent_and_not_zero() {
        let new = Ewma::new(SECOND);
        assert_eq!(
            (new.value(), new.samples(), new.last_update()),
            (None, 0, None)
        );
    }

    #[test]
    fn the_first_sample_sets_the_average() {
        let mut ewma = Ewma::new(SECOND);
        ewma.update(Timestamp::from_secs(7), 400.0);
        assert_eq!(ewma.value(), Some(400.0));
        assert_eq!(ewma.last_update(), Some(Timestamp::from_secs(7)));
    }

    #[test]
    fn half_of_the_old_value_is_left_after_ln_2_time_constants() {
        let mut ewma = Ewma::new(SECOND);
        ewma.update(Timestamp::ORIGIN, 100.0);
        ewma.update(Timestamp::from_micros(693_147), 200.0);
        assert!((ewma.value().unwrap() - 150.0).abs() < 1e-3);
    }

    #[test]
    fn a_long_silence_forgets_the_past() {
        let mut ewma = Ewma::new(SECOND);
        ewma.update(Timestamp::ORIGIN, 3_000.0);
        ewma.update(Timestamp::from_secs(100), 50.0);
        assert!((ewma.value().unwrap() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_late_sample_does_not_move_time_back() {
        let mut ewma = Ewma::new(SECOND);
        ewma.update(Timestamp::from_secs(5), 100.0);
        ewma.update(Timestamp::from_secs(2), 900.0);
        assert_eq!(ewma.value(), Some(100.0));
        assert_eq!(ewma.last_update(), Some(Timestamp::from_secs(5)));
        assert_eq!(ewma.samples(), 2);
    }

    #[test]
    fn a_zero_time_constant_follows_the_latest_sample() {
        let mut ewma = Ewma::new(Duration::ZERO);
        ewma.update(Timestamp::ORIGIN, 1.0);
        ewma.update(Timestamp::ORIGIN, 2.0);
        assert_eq!(ewma.value(), Some(2.0));
    }

    #[test]
    fn a_step_average_moves_by_its_weight() {
        let mut ewma = StepEwma::new(100.0, 0.05);
        assert_eq!((ewma.value(), ewma.samples()), (100.0, 0));
        ewma.update(200.0);
        assert_eq!((ewma.value(), ewma.samples()), (105.0, 1));
    }

    #[test]
    fn a_sample_that_is_not_finite_is_ignored() {
        let mut by_time = Ewma::new(SECOND);
        by_time.update(Timestamp::ORIGIN, f64::NAN);
        assert_eq!((by_time.value(), by_time.samples()), (None, 0));
        let mut by_step = StepEwma::new(3.0, 0.5);
        by_step.update(f64::INFINITY);
        assert_eq!((by_step.value(), by_step.samples()), (3.0, 0));
    }

    proptest! {
        #[test]
        fn an_average_stays_finite_whatever_it_is_fed(
            samples in proptest::collection::vec((any::<u64>(), proptest::num::f64::ANY), 0..20),
            constant_us: u64,
            weight in proptest::num::f64::ANY,
            initial in proptest::num::f64::ANY,
        ) {
            let mut by_time = Ewma::new(Duration::from_micros(constant_us));
            let mut by_step = StepEwma::new(initial, weight);
            for (at, value) in samples {
                by_time.update(Timestamp::from_micros(at), value);
                by_step.update(value);
                prop_assert!(by_time.value().is_none_or(f64::is_finite));
                prop_assert!(by_step.value().is_finite());
            }
        }
    }
}
