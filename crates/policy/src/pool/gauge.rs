// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of a pool, from the windows measured last.
//!
//! A figure speaks of the newest windows, up to a number and an age, so it follows the load, and without new
//! windows it goes: the last value of a quiet night is not the state of the morning. What is not known has a
//! reason in place of a figure (field reports BR-13, BR-14 and BR-19).

use std::collections::{BTreeMap, VecDeque};

use dynamo_kv_router::WorkerType;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use regime_anarchy::{Estimate, Estimator, NoEstimate, Summary, summarise};
use regime_core::Timestamp;

use super::meter::{Latency, Measurable};
use crate::parameters::Horizon;
use crate::report::{AnarchyReport, GapReport};

/// Why a pool has no figures, besides the names of [`NoEstimate`].
pub(crate) mod reason {
    /// Nothing in the stage but prefill is forecast in time.
    pub(crate) const NO_FORECAST: &str = "no_forecast";
    /// No event tells what became of the requests of this pool.
    pub(crate) const NO_OUTCOMES: &str = "no_outcomes";
    /// `anarchy.core_share` is 0.
    pub(crate) const SWITCHED_OFF: &str = "switched_off";
    /// No window has been measured yet.
    pub(crate) const NOT_MEASURED: &str = "not_measured";
    /// The last window is too old.
    pub(crate) const STALE: &str = "stale";
}

/// Figures by both latencies.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    ttft: Track,
    e2e: Track,
}

/// Windows measured by one latency, oldest first.
#[derive(Debug, Default)]
struct Track {
    windows: VecDeque<Measured>,
    /// Whether windows came or went since the summary.
    changed: bool,
    /// Of these windows, or of the last ones if there are none; absent before the first.
    summary: Option<Summary>,
}

/// What came of one window.
#[derive(Debug)]
pub(crate) struct Measured {
    latency: Latency,
    at: Timestamp,
    decisions: usize,
    joined: usize,
    estimate: Result<Estimate, NoEstimate>,
}

/// Why no figure by `latency` can ever come of a pool of this role.
pub(crate) const fn excluded(role: WorkerType, latency: Latency) -> Option<&'static str> {
    match (role, latency) {
        (WorkerType::Aggregated, _) | (WorkerType::Prefill, Latency::Ttft) => None,
        _ => Some(reason::NO_FORECAST),
    }
}

impl Measured {
    /// Solve one window. Takes its time.
    pub(crate) fn new(window: &Measurable) -> Self {
        Self {
            latency: window.latency,
            at: window.at,
            decisions: window.decisions,
            joined: window.joined,
            estimate: estimate(window),
        }
    }
}

impl Gauge {
    /// Take measured windows, and sum up those that count at `now`.
    pub(crate) fn add(&mut self, windows: Vec<Measured>, horizon: Horizon, now: Timestamp) {
        for window in windows {
            let track = match window.latency {
                Latency::Ttft => &mut self.ttft,
                Latency::E2e => &mut self.e2e,
            };
            track.windows.push_back(window);
            track.changed = true;
        }
        for track in [&mut self.ttft, &mut self.e2e] {
            track.summarise(horizon, now);
        }
    }

    /// What is known at `now`; `unavailable` says where nothing can be.
    pub(crate) fn report(
        &self,
        unavailable: impl Fn(Latency) -> Option<&'static str>,
        sampling_rate: Option<f64>,
        horizon: Horizon,
        now: Timestamp,
    ) -> AnarchyReport {
        let report = |latency, track: &Track| match unavailable(latency) {
            Some(reason) => GapReport::unavailable(reason),
            None => track.report(horizon, now),
        };
        AnarchyReport {
            sampling_rate: sampling_rate.filter(|_| unavailable(Latency::Ttft).is_none()),
            ttft: report(Latency::Ttft, &self.ttft),
            e2e: report(Latency::E2e, &self.e2e),
        }
    }
}

fn estimate(window: &Measurable) -> Result<Estimate, NoEstimate> {
    let estimate = Estimator::default().estimate(&window.choices)?;
    estimate
        .end_to_end(estimate.sums.actual, window.residence)?
        .from_arrival(window.held)?
        .behind_seats(window.seat_wait)
}

impl Track {
    fn summarise(&mut self, horizon: Horizon, now: Timestamp) {
        // Windows that waited for a slow request come late, with an older time than those before them.
        self.windows.retain(|window| {
            let counts = now.since(window.at) <= horizon.max_age;
            self.changed |= !counts;
            counts
        });
        while self.windows.len() > horizon.windows {
            self.windows.pop_front();
        }
        if self.windows.is_empty() || !std::mem::take(&mut self.changed) {
            return;
        }
        let mut rng = Pcg64Mcg::seed_from_u64(horizon.seed);
        let estimates = self.windows.iter().map(|window| &window.estimate);
        self.summary = Some(summarise(estimates, &mut rng));
    }

    fn report(&self, horizon: Horizon, now: Timestamp) -> GapReport {
        let Some(summary) = &self.summary else {
            return GapReport::unavailable(reason::NOT_MEASURED);
        };
        let newest = self.windows.iter().map(|window| window.at).max();
        let Some(newest) = newest.filter(|&at| now.since(at) <= horizon.max_age) else {
            return GapReport::unavailable(reason::STALE);
        };
        let sum = |of: fn(&Measured) -> usize| self.windows.iter().map(of).sum::<usize>() as f64;
        let (joined, decisions) = (sum(|it| it.joined), sum(|it| it.decisions));
        let figures = summary.figures();
        let unavailable = figures.err();
        GapReport {
            figures: figures.ok(),
            age_ms: Some(u64::try_from(now.since(newest).as_millis()).unwrap_or(u64::MAX)),
            joined_share: (decisions > 0.0).then(|| joined / decisions),
            unavailable: unavailable.map(|why| {
                if joined == 0.0 {
                    reason::NO_OUTCOMES
                } else {
                    why
                }
            }),
            without_estimate: summary.without_estimate.clone(),
        }
    }
}

impl GapReport {
    fn unavailable(reason: &'static str) -> Self {
        Self {
            figures: None,
            age_ms: None,
            joined_share: None,
            unavailable: Some(reason),
            without_estimate: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use regime_anarchy::{Candidate, Choice};
    use regime_core::{Millis, WorkerKey};

    const HORIZON: Horizon = Horizon {
        windows: 3,
        max_age: Duration::from_secs(60),
        seed: 0,
    };

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// One request on worker 0, whose forecasts are `wait` and 10 ms, where worker 1 was idle.
    fn window(at_s: u64, latency: Latency, wait: f64, actual: f64) -> Measurable {
        let candidate = |id, wait| Candidate {
            worker: WorkerKey::new(id, 0),
            wait: Millis::new(wait),
            own: Millis::new(10.0),
        };
        Measurable {
            latency,
            at: at(at_s),
            decisions: 2,
            joined: 1,
            choices: vec![Choice {
                decided_at: at(at_s),
                chosen: WorkerKey::new(0, 0),
                candidates: vec![candidate(0, wait), candidate(1, 0.0)],
                actual: Millis::new(actual),
            }],
            held: Millis::ZERO,
            seat_wait: Millis::ZERO,
            residence: Millis::new(if latency == Latency::E2e { 90.0 } else { 0.0 }),
        }
    }

    fn gauge(windows: &[Measurable], now: Timestamp) -> Gauge {
        let mut gauge = Gauge::default();
        gauge.add(windows.iter().map(Measured::new).collect(), HORIZON, now);
        gauge
    }

    fn report(gauge: &Gauge, now: Timestamp) -> AnarchyReport {
        gauge.report(|_| None, Some(0.25), HORIZON, now)
    }

    #[test]
    fn both_latencies_have_figures_of_their_own() {
        let windows = [Latency::Ttft, Latency::E2e].map(|latency| {
            window(
                1,
                latency,
                5.0,
                if latency == Latency::E2e { 210.0 } else { 30.0 },
            )
        });
        let report = report(&gauge(&windows, at(2)), at(3));
        let figures = report.ttft.figures.unwrap();
        assert_eq!(
            (figures.policy_gap, figures.temporal_gap, figures.slowdown),
            (1.5, 2.0, 3.0)
        );
        // 105 predicted, 100 to be had and alone.
        let figures = report.e2e.figures.unwrap();
        assert_eq!(
            (figures.policy_gap, figures.temporal_gap, figures.overload),
            (1.05, 2.0, 1.0)
        );
        assert_eq!(
            (report.ttft.age_ms, report.ttft.joined_share),
            (Some(2_000), Some(0.5))
        );
        assert_eq!(report.sampling_rate, Some(0.25));
    }

    #[test]
    fn an_expected_wait_for_a_seat_is_overload_and_no_gap() {
        let mut behind = window(1, Latency::Ttft, 5.0, 60.0);
        behind.seat_wait = Millis::new(25.0);
        let figures = report(&gauge(&[behind], at(2)), at(3))
            .ttft
            .figures
            .unwrap();
        // 15 + 25 ms chosen, 10 + 25 to be had, 10 alone.
        assert_eq!(
            (figures.policy_gap, figures.temporal_gap, figures.overload),
            (40.0 / 35.0, 1.5, 3.5)
        );
    }

    #[test]
    fn figures_are_of_the_newest_windows() {
        let windows = [5.0, 0.0, 0.0, 0.0].map(|wait| window(1, Latency::Ttft, wait, 10.0));
        let figures = report(&gauge(&windows, at(1)), at(1)).ttft.figures.unwrap();
        assert_eq!((figures.windows, figures.policy_gap), (3, 1.0));
    }

    #[test]
    fn figures_go_with_their_age() {
        let gauge = gauge(&[window(1, Latency::Ttft, 0.0, 10.0)], at(2));
        assert!(report(&gauge, at(61)).ttft.figures.is_some());
        let stale = report(&gauge, at(62)).ttft;
        assert_eq!(
            (stale.figures, stale.unavailable),
            (None, Some(reason::STALE))
        );
    }

    #[test]
    fn what_was_never_measured_says_so() {
        let report = report(&Gauge::default(), at(1));
        assert_eq!(report.ttft.unavailable, Some(reason::NOT_MEASURED));
    }

    #[test]
    fn unusable_forecasts_give_a_reason_and_no_number() {
        // Field report BR-13: Millis keeps infinities finite and makes a zero of NaN; neither is a forecast.
        let mut windows = [(); 2].map(|()| window(1, Latency::Ttft, 0.0, 10.0));
        windows[0].choices[0].candidates[0].wait = Millis::new(f64::INFINITY);
        windows[1].choices[0].candidates[1].own = Millis::new(f64::NAN);
        let report = report(&gauge(&windows, at(1)), at(1)).ttft;
        assert_eq!(
            (report.figures, report.unavailable),
            (None, Some("unusable_forecast"))
        );
        assert_eq!(report.without_estimate["unusable_forecast"], 2);
    }

    #[test]
    fn decisions_that_never_meet_a_request_mean_that_no_outcome_is_told() {
        let mut lost = window(1, Latency::Ttft, 0.0, 10.0);
        (lost.joined, lost.choices) = (0, Vec::new());
        let report = report(&gauge(&[lost], at(1)), at(1)).ttft;
        assert_eq!(report.unavailable, Some(reason::NO_OUTCOMES));
        assert_eq!(report.joined_share, Some(0.0));
    }

    #[test]
    fn a_pool_that_cannot_be_measured_says_why_in_both_latencies() {
        let gauge = gauge(&[window(1, Latency::Ttft, 0.0, 10.0)], at(1));
        let decode = |latency| excluded(WorkerType::Decode, latency);
        let report = gauge.report(decode, Some(1.0), HORIZON, at(1));
        assert_eq!(report.ttft.unavailable, Some(reason::NO_FORECAST));
        assert_eq!(report.e2e.unavailable, Some(reason::NO_FORECAST));
        assert_eq!(report.sampling_rate, None);
    }
}
