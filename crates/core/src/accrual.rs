// SPDX-License-Identifier: Apache-2.0

//! Failure accrual: hold a worker back after consecutive failures, for longer each time.
//!
//! A worker that fails fast looks fast. Its failures add no latency sample, so something else must
//! keep the router from preferring it (field report BR-08). After a run of failures the worker is
//! held; a failure after the hold doubles the next one; one success ends the hold and forgets the run,
//! because a worker that answers has proved itself. Failures during a hold belong to requests that were
//! on their way when it began, so a burst of them is one incident and lengthens nothing. A hold always ends by itself: a held worker gets no
//! traffic, so nothing else could ever clear it (field report BR-11).
//!
//! The hold of 1 s to 60 s is linkerd's: a worker that came back is tried again within a minute. Three
//! failures start it, against linkerd's seven: inference requests are few and long, and each failure
//! costs a user seconds.
//!
//! Source: the consecutive-failures policy of linkerd's failure accrual.

use std::time::Duration;

use thiserror::Error;

use crate::Timestamp;

/// When and for how long failures hold a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccrualConfig {
    /// Failures in a row that start a hold. At least 1; default 3.
    pub consecutive: u32,
    /// Length of the first hold. Above zero; default 1 s.
    pub min_hold: Duration,
    /// Longest hold that doubling leads to. At least `min_hold`; default 60 s.
    pub max_hold: Duration,
}

impl Default for AccrualConfig {
    fn default() -> Self {
        Self {
            consecutive: 3,
            min_hold: Duration::from_secs(1),
            max_hold: Duration::from_secs(60),
        }
    }
}

impl AccrualConfig {
    /// Check every setting.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn validate(&self) -> Result<(), AccrualError> {
        if self.consecutive == 0 {
            return Err(AccrualError::Consecutive(self.consecutive));
        }
        if self.min_hold.is_zero() {
            return Err(AccrualError::MinHold(self.min_hold));
        }
        if self.max_hold < self.min_hold {
            return Err(AccrualError::MaxHold {
                value: self.max_hold,
                min_hold: self.min_hold,
            });
        }
        Ok(())
    }

    /// Length of the hold after `run` failures in a row; absent while the run is too short.
    fn hold(&self, run: u32) -> Option<Duration> {
        let doublings = run.checked_sub(self.consecutive)?;
        let factor = 2_u32.saturating_pow(doublings);
        Some(self.min_hold.saturating_mul(factor).min(self.max_hold))
    }
}

/// A setting of [`AccrualConfig`] outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AccrualError {
    /// A run of no failures would hold every worker.
    #[error("consecutive is {0}; allowed: at least 1")]
    Consecutive(u32),
    /// A hold needs a length that can be doubled.
    #[error("min_hold is {0:?}; allowed: above 0")]
    MinHold(Duration),
    /// The longest hold is shorter than the first one.
    #[error("max_hold is {value:?}; allowed: at least min_hold, {min_hold:?}")]
    MaxHold {
        /// What `max_hold` was set to.
        value: Duration,
        /// What `min_hold` was set to.
        min_hold: Duration,
    },
}

/// A deadline that only moves later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HoldDown {
    until: Timestamp,
}

impl HoldDown {
    /// Hold at least until `until`; an earlier deadline than the present one changes nothing.
    pub fn extend(&mut self, until: Timestamp) {
        self.until = self.until.max(until);
    }

    /// End the hold.
    pub fn release(&mut self) {
        *self = Self::default();
    }

    /// Whether the deadline is still to come.
    #[must_use]
    pub fn is_held(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

/// The run of failures of one worker and the hold that follows from it.
#[derive(Debug, Clone)]
pub struct FailureAccrual {
    config: AccrualConfig,
    run: u32,
    failures: u64,
    hold: HoldDown,
}

impl FailureAccrual {
    /// A worker without failures.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn new(config: AccrualConfig) -> Result<Self, AccrualError> {
        config.validate()?;
        Ok(Self {
            config,
            run: 0,
            failures: 0,
            hold: HoldDown::default(),
        })
    }

    /// The worker failed a request at `at`.
    pub fn record_failure(&mut self, at: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        if self.hold.is_held(at) {
            return;
        }
        self.run = self.run.saturating_add(1);
        if let Some(hold) = self.config.hold(self.run) {
            self.hold.extend(at + hold);
        }
    }

    /// The worker answered: the run, its doubling and the hold are over.
    pub fn record_success(&mut self) {
        self.run = 0;
        self.hold.release();
    }

    /// Whether to keep new requests away from the worker.
    #[must_use]
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.hold.is_held(now)
    }

    /// Failures since the start, successes in between or not.
    #[must_use]
    pub const fn failures(&self) -> u64 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn accrual() -> FailureAccrual {
        FailureAccrual::new(AccrualConfig::default()).unwrap()
    }

    fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn the_third_failure_in_a_row_holds_for_one_second() {
        let mut worker = accrual();
        worker.record_failure(ms(0));
        worker.record_failure(ms(10));
        assert!(!worker.is_held(ms(10)));
        worker.record_failure(ms(20));
        assert!(worker.is_held(ms(1_019)));
        assert!(!worker.is_held(ms(1_020)));
        assert_eq!(worker.failures(), 3);
    }

    #[test]
    fn a_success_in_between_starts_the_run_again() {
        let mut worker = accrual();
        for _ in 0..10 {
            worker.record_failure(ms(0));
            worker.record_failure(ms(0));
            worker.record_success();
        }
        assert!(!worker.is_held(ms(0)));
        assert_eq!(worker.failures(), 20);
    }

    #[test]
    fn each_further_failure_doubles_the_hold_up_to_a_minute() {
        let mut worker = accrual();
        worker.record_failure(ms(0));
        worker.record_failure(ms(0));
        for hold_secs in [1, 2, 4, 8, 16, 32, 60, 60] {
            // Later than every hold before, so that only the new one counts.
            let at = Timestamp::from_secs(1_000 * hold_secs);
            worker.record_failure(at);
            assert!(worker.is_held(at + Duration::from_secs(hold_secs) - Duration::from_micros(1)));
            assert!(!worker.is_held(at + Duration::from_secs(hold_secs)));
        }
    }

    #[test]
    fn a_success_ends_the_hold_and_the_doubling() {
        let mut worker = accrual();
        for _ in 0..5 {
            worker.record_failure(ms(0));
        }
        worker.record_success();
        assert!(!worker.is_held(ms(1)));
        for _ in 0..3 {
            worker.record_failure(ms(100));
        }
        assert!(worker.is_held(ms(1_099)));
        assert!(!worker.is_held(ms(1_100)));
    }

    #[test]
    fn a_burst_of_failures_is_one_incident() {
        let mut worker = accrual();
        for _ in 0..40 {
            worker.record_failure(ms(0));
        }
        assert!(worker.is_held(ms(999)));
        assert!(!worker.is_held(ms(1_000)));
        assert_eq!(worker.failures(), 40);
    }

    // Field report BR-11 c.
    #[test]
    fn a_longer_penalty_replaces_a_shorter_one_and_not_the_other_way() {
        let mut hold = HoldDown::default();
        hold.extend(ms(1_000));
        hold.extend(ms(500 + 60_000));
        hold.extend(ms(2_000));
        assert!(hold.is_held(Timestamp::from_secs(30)));
        assert!(hold.is_held(ms(60_499)));
        assert!(!hold.is_held(ms(60_500)));
    }

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_range() {
        let refusal = |config| FailureAccrual::new(config).unwrap_err().to_string();
        let good = AccrualConfig::default();
        assert_eq!(
            refusal(AccrualConfig {
                consecutive: 0,
                ..good
            }),
            "consecutive is 0; allowed: at least 1"
        );
        assert_eq!(
            refusal(AccrualConfig {
                min_hold: Duration::ZERO,
                ..good
            }),
            "min_hold is 0ns; allowed: above 0"
        );
        assert_eq!(
            refusal(AccrualConfig {
                max_hold: Duration::from_millis(500),
                ..good
            }),
            "max_hold is 500ms; allowed: at least min_hold, 1s"
        );
    }

    proptest! {
        #[test]
        fn a_hold_ends_within_a_minute_of_the_last_failure(
            failures in proptest::collection::vec(0_u64..1_000_000, 1..200),
        ) {
            let mut worker = accrual();
            for &at in &failures {
                worker.record_failure(ms(at));
            }
            let newest = failures.iter().copied().max().unwrap();
            prop_assert!(!worker.is_held(ms(newest) + Duration::from_secs(60)));
        }
    }
}
