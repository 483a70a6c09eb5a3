// SPDX-License-Identifier: Apache-2.0

//! The state machine that moves between regimes. The parent module has the rules and their reasons.

use std::collections::VecDeque;

use serde::Serialize;

use super::{Cuts, Regime, RegimeConfig, RegimeError};
use crate::Timestamp;

/// What one signal reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The signal, higher is worse; ignored unless finite.
    pub value: f64,
    /// Samples behind it.
    pub samples: u64,
    /// Time of the newest of them.
    pub at: Timestamp,
}

/// A move from one regime to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RegimeChange {
    /// The regime left.
    pub from: Regime,
    /// The regime entered.
    pub to: Regime,
    /// When it was entered; for Unknown, when the data became too old.
    pub at: Timestamp,
}

/// The regime of one worker or pool. It knows neither: the owner keeps one machine for each.
#[derive(Debug, Clone)]
pub struct RegimeMachine {
    config: RegimeConfig,
    cuts: Vec<Cuts>,
    regime: Regime,
    entered: Timestamp,
    /// Time of the newest sample that counted.
    newest: Timestamp,
    /// The latest proposals, at most k of them, oldest first.
    proposals: VecDeque<Regime>,
}

impl RegimeMachine {
    /// A machine in Unknown since the origin of the clock, with one [`Cuts`] for each signal.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn new(config: RegimeConfig, cuts: Vec<Cuts>) -> Result<Self, RegimeError> {
        config.validate()?;
        cuts.iter().try_for_each(Cuts::validate)?;
        Ok(Self {
            config,
            cuts,
            regime: Regime::Unknown,
            entered: Timestamp::ORIGIN,
            newest: Timestamp::ORIGIN,
            proposals: VecDeque::with_capacity(config.windows as usize),
        })
    }

    /// Evaluate one reading for each signal, in the order of the cuts; absent where a signal is silent.
    /// Going stale comes first: an evaluation that finds the regime stale reports the change to Unknown,
    /// and its own proposal is the first towards the next regime.
    pub fn observe(
        &mut self,
        now: Timestamp,
        readings: &[Option<Reading>],
    ) -> Option<RegimeChange> {
        let change = self.expire(now);
        self.take_in(now, readings);
        change.or_else(|| self.next(now).map(|to| self.enter(to, now)))
    }

    /// The regime at `now`.
    #[must_use]
    pub fn regime(&self, now: Timestamp) -> Regime {
        if self.is_stale(now) {
            Regime::Unknown
        } else {
            self.regime
        }
    }

    /// When the regime at `now` was entered, or when its data became too old.
    #[must_use]
    pub fn since(&self, now: Timestamp) -> Timestamp {
        if self.regime != Regime::Unknown && self.is_stale(now) {
            self.newest + self.config.max_age
        } else {
            self.entered
        }
    }

    /// Fall to Unknown, and forget old proposals, once the data is too old.
    fn expire(&mut self, now: Timestamp) -> Option<RegimeChange> {
        if !self.is_stale(now) {
            return None;
        }
        self.proposals.clear();
        (self.regime != Regime::Unknown)
            .then(|| self.enter(Regime::Unknown, self.newest + self.config.max_age))
    }

    fn is_stale(&self, now: Timestamp) -> bool {
        now.since(self.newest) > self.config.max_age
    }

    /// Keep the worst proposal among the counting readings, if any counts.
    fn take_in(&mut self, now: Timestamp, readings: &[Option<Reading>]) {
        let counting = self
            .cuts
            .iter()
            .zip(readings)
            .filter_map(|(cuts, reading)| {
                reading
                    .filter(|reading| reading.value.is_finite())
                    .filter(|reading| reading.samples >= self.config.min_samples)
                    .filter(|reading| now.since(reading.at) <= self.config.max_age)
                    // A sample from the future is as good as one from now, not better.
                    .map(|reading| (cuts.level(reading.value, self.regime), reading.at.min(now)))
            });
        let Some((proposal, at)) = counting.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))) else {
            return;
        };
        self.newest = self.newest.max(at);
        if self.proposals.len() == self.config.windows as usize {
            self.proposals.pop_front();
        }
        self.proposals.push_back(proposal);
    }

    /// The regime to move to, as far as the latest k proposals all agree.
    fn next(&self, now: Timestamp) -> Option<Regime> {
        if self.proposals.len() < self.config.windows as usize {
            return None;
        }
        let least = *self.proposals.iter().min()?;
        let most = *self.proposals.iter().max()?;
        if least > self.regime {
            Some(least)
        } else {
            let may_leave = now.since(self.entered) >= self.config.dwell;
            (most < self.regime && may_leave).then_some(most)
        }
    }

    fn enter(&mut self, to: Regime, at: Timestamp) -> RegimeChange {
        let from = std::mem::replace(&mut self.regime, to);
        self.entered = at;
        RegimeChange { from, to, at }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::Regime::{Below, Saturated, Transition, Unknown};
    use super::*;
    use crate::{LatencyWindow, Millis, WindowConfig};

    /// Of a slowdown: Transition above 2 until below 1.5, Saturated above 4 until below 3.
    const SLOWDOWN: Cuts = Cuts {
        transition_enter: 2.0,
        transition_leave: 1.5,
        saturated_enter: 4.0,
        saturated_leave: 3.0,
    };

    /// Moves at once, up and down; goes stale after 10 s.
    const PROMPT: RegimeConfig = RegimeConfig {
        windows: 1,
        dwell: Duration::ZERO,
        max_age: Duration::from_secs(10),
        min_samples: 20,
    };

    fn machine(config: RegimeConfig) -> RegimeMachine {
        RegimeMachine::new(config, vec![SLOWDOWN]).unwrap()
    }

    fn secs(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn fresh(value: f64, at: Timestamp) -> Option<Reading> {
        Some(Reading {
            value,
            samples: 20,
            at,
        })
    }

    /// The regime after each of `values`, one second apart from `start`.
    fn run(machine: &mut RegimeMachine, start: u64, values: &[f64]) -> Vec<Regime> {
        (start..)
            .map(secs)
            .zip(values)
            .map(|(now, &value)| {
                machine.observe(now, &[fresh(value, now)]);
                machine.regime(now)
            })
            .collect()
    }

    #[test]
    fn a_machine_without_readings_is_unknown_since_the_origin() {
        let mut machine = machine(PROMPT);
        assert_eq!(machine.observe(secs(100), &[None]), None);
        assert_eq!(
            (machine.regime(secs(100)), machine.since(secs(100))),
            (Unknown, secs(0))
        );
    }

    #[test]
    fn the_first_three_windows_leave_unknown() {
        let mut machine = machine(RegimeConfig::default());
        assert_eq!(machine.observe(secs(0), &[fresh(5.0, secs(0))]), None);
        assert_eq!(machine.observe(secs(1), &[fresh(5.0, secs(1))]), None);
        assert_eq!(
            machine.observe(secs(2), &[fresh(5.0, secs(2))]),
            Some(RegimeChange {
                from: Unknown,
                to: Saturated,
                at: secs(2)
            })
        );
        assert_eq!(machine.since(secs(3)), secs(2));
    }

    #[test]
    fn a_window_that_disagrees_starts_the_count_again() {
        let mut machine = machine(RegimeConfig::default());
        run(&mut machine, 0, &[1.0, 1.0, 1.0]);
        assert_eq!(
            run(&mut machine, 3, &[5.0, 5.0, 1.0, 5.0, 5.0, 5.0]),
            [Below, Below, Below, Below, Below, Saturated]
        );
    }

    #[test]
    fn the_regime_moves_as_far_as_all_windows_agree() {
        let mut machine = machine(RegimeConfig::default());
        run(&mut machine, 0, &[1.0, 1.0, 1.0]);
        assert_eq!(
            run(&mut machine, 3, &[3.0, 5.0, 5.0, 5.0]),
            [Below, Below, Transition, Saturated]
        );
    }

    #[test]
    fn leaving_takes_a_lower_level_than_entering() {
        let mut machine = machine(PROMPT);
        assert_eq!(
            run(&mut machine, 0, &[4.1, 3.0, 2.9, 4.0, 1.5, 1.4, 2.0, 2.1]),
            [
                Saturated, Saturated, Transition, Transition, Transition, Below, Below, Transition
            ]
        );
    }

    #[test]
    fn leaving_downwards_takes_the_dwell_and_entering_does_not() {
        let mut machine = machine(RegimeConfig {
            dwell: Duration::from_secs(3),
            ..PROMPT
        });
        assert_eq!(
            run(&mut machine, 0, &[3.5, 5.0, 1.0, 1.0, 1.0, 1.0]),
            [Transition, Saturated, Saturated, Saturated, Below, Below]
        );
    }

    #[test]
    fn a_reading_of_few_samples_or_no_number_does_not_count() {
        let mut machine = machine(PROMPT);
        let few = Reading {
            value: 5.0,
            samples: 19,
            at: secs(1),
        };
        assert_eq!(machine.observe(secs(1), &[Some(few)]), None);
        assert_eq!(machine.observe(secs(1), &[fresh(f64::NAN, secs(1))]), None);
        assert_eq!(machine.regime(secs(1)), Unknown);
    }

    #[test]
    fn windows_without_a_reading_are_skipped() {
        let mut machine = machine(RegimeConfig {
            windows: 3,
            ..PROMPT
        });
        run(&mut machine, 0, &[5.0, 5.0, 5.0]);
        for now in [3, 5, 7].map(secs) {
            assert_eq!(machine.regime(now), Saturated);
            machine.observe(now, &[fresh(1.0, now)]);
            machine.observe(now + Duration::from_secs(1), &[None]);
        }
        assert_eq!(machine.regime(secs(8)), Below);
    }

    #[test]
    fn silence_alone_makes_the_regime_unknown() {
        let mut machine = machine(PROMPT);
        run(&mut machine, 5, &[5.0]);
        assert_eq!(machine.regime(secs(15)), Saturated);
        let later = secs(15) + Duration::from_micros(1);
        assert_eq!(
            (machine.regime(later), machine.since(later)),
            (Unknown, secs(15))
        );
    }

    #[test]
    fn an_evaluation_after_silence_reports_unknown_before_the_next_regime() {
        let mut machine = machine(PROMPT);
        run(&mut machine, 0, &[5.0]);
        assert_eq!(
            machine.observe(secs(60), &[fresh(5.0, secs(60))]),
            Some(RegimeChange {
                from: Saturated,
                to: Unknown,
                at: secs(10)
            })
        );
        assert_eq!(
            (machine.regime(secs(60)), machine.since(secs(60))),
            (Unknown, secs(10))
        );
        assert_eq!(
            machine.observe(secs(61), &[fresh(5.0, secs(61))]),
            Some(RegimeChange {
                from: Unknown,
                to: Saturated,
                at: secs(61)
            })
        );
    }

    #[test]
    fn windows_before_a_silence_do_not_count_after_it() {
        let mut machine = machine(RegimeConfig {
            windows: 3,
            ..PROMPT
        });
        run(&mut machine, 0, &[5.0, 5.0]);
        assert_eq!(
            run(&mut machine, 30, &[5.0, 5.0, 5.0]),
            [Unknown, Unknown, Saturated]
        );
    }

    #[test]
    fn a_reading_from_the_future_ages_from_now() {
        let mut machine = machine(PROMPT);
        machine.observe(secs(0), &[fresh(5.0, secs(1_000))]);
        assert_eq!(
            (machine.regime(secs(10)), machine.regime(secs(11))),
            (Saturated, Unknown)
        );
    }

    #[test]
    fn the_worst_of_the_reporting_signals_decides() {
        let mut machine = RegimeMachine::new(PROMPT, vec![SLOWDOWN, SLOWDOWN]).unwrap();
        let mut after = |second, values: [Option<f64>; 2]| {
            let now = secs(second);
            machine.observe(now, &values.map(|value| fresh(value?, now)));
            machine.regime(now)
        };
        assert_eq!(after(0, [Some(1.0), Some(5.0)]), Saturated);
        assert_eq!(after(1, [Some(2.5), Some(1.0)]), Transition);
        assert_eq!(after(2, [Some(1.0), Some(5.0)]), Saturated);
        assert_eq!(after(3, [Some(1.0), None]), Below);
    }

    /// Field report BR-11: TTFT P99 in ms, and prompt tokens waiting.
    fn saturated_at_the_origin() -> (RegimeMachine, LatencyWindow) {
        let p99 = Cuts {
            transition_enter: 1_000.0,
            transition_leave: 800.0,
            saturated_enter: 2_000.0,
            saturated_leave: 1_600.0,
        };
        let waiting = Cuts {
            transition_enter: 20_000.0,
            transition_leave: 16_000.0,
            saturated_enter: 40_000.0,
            saturated_leave: 32_000.0,
        };
        let config = RegimeConfig {
            windows: 3,
            dwell: Duration::from_secs(10),
            max_age: Duration::from_secs(10),
            min_samples: 50,
        };
        let mut machine = RegimeMachine::new(config, vec![p99, waiting]).unwrap();
        let mut window = LatencyWindow::new(WindowConfig {
            span: Duration::from_secs(60),
            slices: 12,
            min_samples: 50,
        })
        .unwrap();
        window.record_n(secs(0), Millis::new(3_200.0), 50);
        for tick in 0..3 {
            let now = Timestamp::from_millis(250 * tick);
            let waiting = Reading {
                value: 90_000.0,
                samples: 50,
                at: now,
            };
            machine.observe(now, &[p99_of(&window, now), Some(waiting)]);
        }
        assert_eq!(machine.regime(secs(1)), Saturated);
        (machine, window)
    }

    fn p99_of(window: &LatencyWindow, now: Timestamp) -> Option<Reading> {
        let summary = window.summary(now);
        Some(Reading {
            value: summary.p99?.get(),
            samples: summary.samples,
            at: summary.last_sample?,
        })
    }

    // Field report BR-11 a: the slow samples leave the window at t = 60, when 55 fast ones are in it.
    #[test]
    fn a_signal_that_stopped_reporting_cannot_hold_the_regime() {
        let (mut machine, mut window) = saturated_at_the_origin();
        for now in (5..75).map(secs) {
            if now < secs(65) {
                window.record(now, Millis::new(300.0));
            }
            machine.observe(now, &[p99_of(&window, now), None]);
        }
        assert_eq!(machine.regime(secs(74)), Below);
        assert_eq!(machine.since(secs(74)), secs(62));
    }

    // Field report BR-11 b: the newest sample is of t = 0.5, and counts for 10 s.
    #[test]
    fn without_traffic_saturation_ends_whether_or_not_anybody_evaluates() {
        let (untouched, _) = saturated_at_the_origin();
        assert_eq!(untouched.regime(secs(120)), Unknown);
        let (mut evaluated, window) = saturated_at_the_origin();
        let changes: Vec<_> = (1..120)
            .map(secs)
            .filter_map(|now| evaluated.observe(now, &[p99_of(&window, now), None]))
            .collect();
        let expiry = Timestamp::from_millis(10_500);
        assert_eq!(
            changes,
            [RegimeChange {
                from: Saturated,
                to: Unknown,
                at: expiry
            }]
        );
    }

    fn configs() -> impl Strategy<Value = RegimeConfig> {
        (1_u32..6, 0_u64..5).prop_map(|(windows, dwell_secs)| RegimeConfig {
            windows,
            dwell: Duration::from_secs(dwell_secs),
            ..PROMPT
        })
    }

    fn readings() -> impl Strategy<Value = Option<Reading>> {
        proptest::option::of(
            (proptest::num::f64::ANY, any::<u64>(), any::<u64>()).prop_map(
                |(value, samples, at)| Reading {
                    value,
                    samples,
                    at: Timestamp::from_micros(at),
                },
            ),
        )
    }

    proptest! {
        #[test]
        fn changes_form_a_chain_whatever_is_read(
            config in configs(),
            steps in proptest::collection::vec(
                (any::<u64>(), proptest::collection::vec(readings(), 0..4)),
                0..30,
            ),
        ) {
            let mut machine = RegimeMachine::new(config, vec![SLOWDOWN; 2]).unwrap();
            let mut last = Unknown;
            for (now, readings) in steps {
                let now = Timestamp::from_micros(now);
                if let Some(change) = machine.observe(now, &readings) {
                    prop_assert_eq!(change.from, last);
                    prop_assert_ne!(change.from, change.to);
                    last = change.to;
                }
            }
        }

        #[test]
        fn a_constant_signal_settles_within_k_windows_after_the_dwell(
            config in configs(),
            past in proptest::collection::vec(0.0..6.0, 0..20),
            value in 0.0..6.0,
        ) {
            let mut machine = machine(config);
            run(&mut machine, 0, &past);
            // Five seconds apart: longer than any dwell, shorter than the greatest age.
            let windows = config.windows as usize;
            let regimes: Vec<Regime> = (1..=3 * windows as u64)
                .map(|step| secs(past.len() as u64 + 5 * step))
                .map(|now| {
                    machine.observe(now, &[fresh(value, now)]);
                    machine.regime(now)
                })
                .collect();
            let settled = regimes[windows - 1];
            prop_assert_ne!(settled, Unknown);
            prop_assert!(regimes[windows..].iter().all(|&regime| regime == settled));
        }

        #[test]
        fn a_signal_between_the_levels_never_flaps(
            config in configs(),
            saturated_first: bool,
            between in proptest::collection::vec(0.0..=1.0, 1..40),
        ) {
            let mut machine = machine(config);
            let windows = config.windows as usize;
            // From Saturated between 3 and 4; from Below between 1.5 and 2.
            let (first, low, high, held) =
                if saturated_first { (5.0, 3.0, 4.0, Saturated) } else { (1.0, 1.5, 2.0, Below) };
            run(&mut machine, 0, &vec![first; windows]);
            let values: Vec<f64> = between.iter().map(|share| low + share * (high - low)).collect();
            let regimes = run(&mut machine, windows as u64, &values);
            prop_assert!(regimes.iter().all(|&regime| regime == held));
        }
    }
}
