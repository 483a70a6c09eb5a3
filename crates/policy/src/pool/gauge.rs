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
    /// The stage does not prefill, and nothing else in it is forecast in time.
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
    summary: Option<Summary>,
}

#[derive(Debug)]
struct Measured {
    at: Timestamp,
    decisions: usize,
    joined: usize,
    estimate: Result<Estimate, NoEstimate>,
}

/// Why no figure can ever come of a pool of this role.
pub(crate) const fn excluded(role: WorkerType) -> Option<&'static str> {
    match role {
        WorkerType::Aggregated => None,
        WorkerType::Prefill => Some(reason::NO_OUTCOMES),
        WorkerType::Decode | WorkerType::Encode => Some(reason::NO_FORECAST),
    }
}

impl Gauge {
    /// Measure windows, and sum up those that count at `now`.
    pub(crate) fn measure(&mut self, windows: &[Measurable], horizon: Horizon, now: Timestamp) {
        for window in windows {
            let track = match window.latency {
                Latency::Ttft => &mut self.ttft,
                Latency::E2e => &mut self.e2e,
            };
            track.windows.push_back(Measured {
                at: window.at,
                decisions: window.decisions,
                joined: window.joined,
                estimate: estimate(window),
            });
        }
        for track in [&mut self.ttft, &mut self.e2e] {
            track.summarise(horizon, now);
        }
    }

    /// What is known at `now`; `unavailable` where nothing can be.
    pub(crate) fn report(
        &self,
        unavailable: Option<&'static str>,
        sampling_rate: Option<f64>,
        horizon: Horizon,
        now: Timestamp,
    ) -> AnarchyReport {
        let report = |track: &Track| match unavailable {
            Some(reason) => GapReport::unavailable(reason),
            None => track.report(horizon, now),
        };
        AnarchyReport {
            sampling_rate: sampling_rate.filter(|_| unavailable.is_none()),
            ttft: report(&self.ttft),
            e2e: report(&self.e2e),
        }
    }
}

fn estimate(window: &Measurable) -> Result<Estimate, NoEstimate> {
    let estimate = Estimator::default().estimate(&window.choices)?;
    match window.latency {
        Latency::Ttft => Ok(estimate),
        Latency::E2e => estimate.end_to_end(estimate.sums.actual, window.residence),
    }
}

impl Track {
    fn summarise(&mut self, horizon: Horizon, now: Timestamp) {
        // Windows that waited for a slow request come late, with an older time than those before them.
        self.windows
            .retain(|window| now.since(window.at) <= horizon.max_age);
        while self.windows.len() > horizon.windows {
            self.windows.pop_front();
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
