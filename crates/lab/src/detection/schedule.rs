// SPDX-License-Identifier: Apache-2.0

//! Workloads whose offered load changes in known steps.
//!
//! A generator draws arrivals at a mean rate of one request a second. Their times are then warped: the clock
//! of the generator counts requests, and a phase of a certain rate and length takes up rate × length of them.
//! So the pattern, Poisson or bursts, is the generator's at every rate. Pauses inside a session stay as
//! they are, as they do when a load search moves the rate; hence the later turns of a session may fall into
//! the next phase, as people would.

use serde::{Deserialize, Serialize};

use crate::run::LoadLevel;
use crate::workload::Workload;

/// A constant load for some time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// How much is offered.
    pub level: LoadLevel,
    /// For how long, s. Above 0.
    pub seconds: f64,
}

/// Phases that follow each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Name in results.
    pub name: String,
    /// At least one.
    pub phases: Vec<Phase>,
}

impl Schedule {
    /// The four schedules that detectors are judged by, with all times multiplied by `size`: into saturation
    /// in one step and by way of the knee, each with a last phase that is long enough for the backlog to go
    /// and for calm after it, and a constant light and a constant knee load.
    #[must_use]
    pub fn standard(size: f64) -> Vec<Self> {
        use LoadLevel::{Knee, Light, Saturated};
        let schedule = |name: &str, phases: &[(LoadLevel, f64)]| Self {
            name: name.into(),
            phases: phases
                .iter()
                .map(|&(level, seconds)| Phase {
                    level,
                    seconds: seconds * size,
                })
                .collect(),
        };
        vec![
            schedule("step", &[(Light, 30.0), (Saturated, 20.0), (Light, 80.0)]),
            schedule(
                "ladder",
                &[
                    (Light, 30.0),
                    (Knee, 30.0),
                    (Saturated, 20.0),
                    (Light, 80.0),
                ],
            ),
            schedule("light", &[(Light, 120.0)]),
            schedule("knee", &[(Knee, 60.0)]),
        ]
    }

    /// How long it takes, ms.
    #[must_use]
    pub fn length_ms(&self) -> f64 {
        self.starts_ms().last().copied().unwrap_or(0.0)
    }

    /// When each phase begins, and when the last one ends, ms.
    pub(super) fn starts_ms(&self) -> Vec<f64> {
        let mut starts = vec![0.0];
        for phase in &self.phases {
            let before = starts.last().copied().unwrap_or(0.0);
            starts.push(before + phase.seconds * 1e3);
        }
        starts
    }

    /// Requests offered in all, with `rate` requests a second at each level.
    pub(super) fn requests(&self, rate: impl Fn(LoadLevel) -> f64) -> f64 {
        let offered = self
            .phases
            .iter()
            .map(|phase| rate(phase.level) * phase.seconds);
        offered.sum()
    }

    /// The sessions of `even`, which offers one request a second, at the rates of the phases. Sessions that
    /// would start after the last phase are left out.
    pub(super) fn warp(&self, even: &Workload, rate: impl Fn(LoadLevel) -> f64) -> Workload {
        let mut warped = even.clone();
        warped.sessions.retain_mut(|session| {
            let time_ms = self.time_ms(session.start_ms / 1e3, &rate);
            session.start_ms = time_ms.unwrap_or_default();
            time_ms.is_some()
        });
        warped
    }

    /// When so many requests have been offered, ms; absent when they never are.
    fn time_ms(&self, requests: f64, rate: impl Fn(LoadLevel) -> f64) -> Option<f64> {
        let mut left = requests;
        for (phase, start_ms) in self.phases.iter().zip(self.starts_ms()) {
            let offered = rate(phase.level) * phase.seconds;
            if left < offered {
                return Some(start_ms + left / offered * phase.seconds * 1e3);
            }
            left -= offered;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{Generator, OfferedLoad, Scale};

    fn rate(level: LoadLevel) -> f64 {
        match level {
            LoadLevel::Light => 2.0,
            LoadLevel::Knee => 5.0,
            LoadLevel::Saturated => 10.0,
        }
    }

    fn schedule() -> Schedule {
        let phase = |level, seconds| Phase { level, seconds };
        Schedule {
            name: "s".into(),
            phases: vec![
                phase(LoadLevel::Light, 10.0),
                phase(LoadLevel::Saturated, 4.0),
            ],
        }
    }

    #[test]
    fn requests_come_at_the_rate_of_their_phase() {
        // 20 requests in the first 10 s, 40 in the next 4 s, and no more.
        let times = [0.0, 10.0, 20.0, 40.0, 59.0, 60.0].map(|it| schedule().time_ms(it, rate));
        assert_eq!(
            times,
            [
                Some(0.0),
                Some(5_000.0),
                Some(10_000.0),
                Some(12_000.0),
                Some(13_900.0),
                None
            ]
        );
        assert_eq!(schedule().requests(rate), 60.0);
        assert_eq!(schedule().length_ms(), 14_000.0);
    }

    #[test]
    fn a_warped_workload_keeps_its_order_and_loses_what_comes_too_late() {
        let even = Generator::MixedLengths
            .generate(&Scale {
                requests: 300,
                load: OfferedLoad::Rate(1.0),
                block_size: 16,
                seed: 1,
            })
            .unwrap();
        let warped = schedule().warp(&even, rate);
        assert_eq!(warped.check(), Ok(()));
        // 60 arrivals in the mean; four standard deviations are 31.
        assert!((29..=91).contains(&warped.sessions.len()));
        let starts: Vec<f64> = warped.sessions.iter().map(|it| it.start_ms).collect();
        assert!(starts.is_sorted() && starts.iter().all(|it| *it < 14_000.0));
    }
}
