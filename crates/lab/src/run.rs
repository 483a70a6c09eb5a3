// SPDX-License-Identifier: Apache-2.0

//! One run: a policy, a workload, an engine, a topology and a seed.
//!
//! A run is a pure function of its experiment. The seed covers everything random in it: the policy's
//! draws, Dynamo's ties, the baselines. It does not cover the workload, which brings its own, so that
//! policies can be compared on the same arrivals.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use regime_policy::{Report, SystemClock};
use serde::{Deserialize, Serialize};

use crate::adapter::{KvEvents, Listing, RunRecord, SimulationSettings, simulate};
use crate::anarchy::Anarchy;
use crate::engines::Engine;
use crate::metrics::{Metrics, Slo};
use crate::policies::{Catalog, Policy, PolicyError};
use crate::topology::Topology;
use crate::workload::{LONGEST_MS, Workload, WorkloadError};
use crate::workloads::OfferedLoad;

/// What to run.
#[derive(Clone)]
pub struct Experiment {
    /// Who chooses.
    pub policy: Policy,
    /// What arrives.
    pub workload: Arc<Workload>,
    /// What each worker runs.
    pub engine: Engine,
    /// How many workers.
    pub topology: Topology,
    /// Seed of everything random but the workload.
    pub seed: u64,
    /// How heavy the workload is, for the record.
    pub load: Option<Load>,
    /// The rate or the sessions that this is, for the record.
    pub offered: Option<OfferedLoad>,
    /// The rest.
    pub settings: Settings,
}

/// How heavy a workload is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Load {
    /// Found by a load search.
    Level(LoadLevel),
    /// Requests a second in an open loop, sessions at once in a closed one.
    Number(f64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level(level) => level.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// A load in words: `load knee (4.5 requests/s)`, `4 requests/s`, or nothing.
#[must_use]
pub(crate) fn load_words(load: Option<Load>, offered: Option<OfferedLoad>) -> String {
    match (load, offered) {
        (Some(Load::Level(level)), Some(offered)) => format!("load {level} ({offered})"),
        (_, Some(offered)) => offered.to_string(),
        (Some(load), None) => format!("load {load}"),
        (None, None) => String::new(),
    }
}

/// A level of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadLevel {
    /// Hardly any waiting.
    Light,
    /// Where waiting begins to grow faster than the load.
    Knee,
    /// More than the fleet can serve.
    Saturated,
}

impl fmt::Display for LoadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Light => "light",
            Self::Knee => "knee",
            Self::Saturated => "saturated",
        })
    }
}

/// Settings of a run that have defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How late the routers learn of KV events, ms.
    pub kv_event_lag_ms: f64,
    /// Whether engines tell the routers of blocks in device memory alone, as many do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub device_events_only: bool,
    /// Dynamo's `router_queue_threshold`: requests wait at the router while every worker has more than
    /// this share of its token budget to prefill. Absent: no queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_threshold: Option<f64>,
    /// How many times as long each worker takes, prefill workers first; workers beyond the list take 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slowdowns: Vec<f64>,
    /// Virtual time at which the run is cut, ms. Absent: run to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time_ms: Option<f64>,
    /// Requests at the start whose TTFT, time to the last token and Price of Anarchy are not measured. In a closed loop all
    /// sessions begin at once, and that burst would be the P99.
    #[serde(skip_serializing_if = "is_zero")]
    pub warm_up: usize,
    /// What counts as served well.
    pub slo: Slo,
    /// Order in which workers are listed to the routers.
    #[serde(skip)]
    pub listing: Listing,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kv_event_lag_ms: 0.0,
            device_events_only: false,
            queue_threshold: None,
            slowdowns: Vec::new(),
            max_time_ms: None,
            warm_up: 0,
            slo: Slo::default(),
            listing: Listing::Forward,
        }
    }
}

const fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A run that could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A setting out of range.
    #[error("{key} is {value}; allowed: {allowed}")]
    Setting {
        /// Its name.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Policy or engine failed in the middle of a run.
    #[error("policy {policy:?} on workload {workload:?}, topology {topology}, seed {seed}")]
    Simulation {
        /// The policy.
        policy: String,
        /// The workload.
        workload: String,
        /// The topology.
        topology: Topology,
        /// The seed.
        seed: u64,
        /// What happened.
        source: anyhow::Error,
    },
}

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// Measurements.
    pub metrics: Metrics,
    /// Wall-clock cost of the policy. Differs from run to run.
    pub selection: SelectionCost,
    /// Every request, decision and token gap.
    pub record: RunRecord,
    /// What the regime-aware policy believed at the end, when it was the policy.
    pub report: Option<Report>,
    /// Price of Anarchy, or in a word why there is none.
    pub anarchy: Result<Anarchy, &'static str>,
}

/// Wall-clock cost of the policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SelectionCost {
    /// Times it was asked.
    pub selections: u64,
    /// Mean time of a selection, µs; absent when it was never asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
}

impl Experiment {
    /// An experiment with default settings.
    #[must_use]
    pub fn new(
        policy: Policy,
        workload: Arc<Workload>,
        engine: Engine,
        topology: Topology,
        seed: u64,
    ) -> Self {
        Self {
            policy,
            workload,
            engine,
            topology,
            seed,
            load: None,
            offered: None,
            settings: Settings::default(),
        }
    }

    /// Run it.
    ///
    /// # Errors
    /// When something is not allowed, or when policy or engine fail on the way; a panic is such a failure.
    pub fn run(&self, catalog: &Catalog) -> Result<Run, RunError> {
        self.workload.check()?;
        self.settings
            .check(self.topology, self.workload.requests())?;
        let settings = SimulationSettings {
            seed: self.seed,
            events: KvEvents {
                lag_ms: self.settings.kv_event_lag_ms,
                device_only: self.settings.device_events_only,
            },
            queue_threshold: self.settings.queue_threshold,
            slowdowns: &self.settings.slowdowns,
            max_time_ms: self.settings.max_time_ms,
            listing: self.settings.listing,
            stopwatch: Arc::new(SystemClock::default()),
        };
        // A policy under test may panic; the other runs of a plan go on.
        let simulated = catch_unwind(AssertUnwindSafe(|| {
            simulate(
                &self.policy,
                catalog,
                &self.workload,
                &self.engine,
                self.topology,
                &settings,
            )
        }))
        .unwrap_or_else(|panic| Err(anyhow::anyhow!("panic: {}", words(&*panic))))
        .map_err(|source| match source.downcast::<PolicyError>() {
            Ok(policy) => RunError::Policy(policy),
            Err(source) => RunError::Simulation {
                policy: self.policy.label().to_owned(),
                workload: self.workload.name.clone(),
                topology: self.topology,
                seed: self.seed,
                source,
            },
        })?;
        let selections = simulated.selection.selections;
        let watched = simulated.watched.ok_or("not_watched");
        let warm_up = self.settings.warm_up;
        let anarchy = watched.and_then(|watched| Anarchy::of(&simulated.record, watched, warm_up));
        Ok(Run {
            metrics: Metrics::of(&simulated.record, self.settings.slo, warm_up),
            selection: SelectionCost {
                selections,
                mean_us: crate::metrics::ratio(
                    simulated.selection.total.as_secs_f64() * 1e6,
                    selections as f64,
                ),
            },
            record: simulated.record,
            report: simulated.report,
            anarchy,
        })
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words")
}

impl Settings {
    pub(crate) fn check(&self, topology: Topology, requests: usize) -> Result<(), RunError> {
        let within = |key, value: f64, most: f64, allowed| {
            if (0.0..=most).contains(&value) {
                return Ok(());
            }
            Err(RunError::Setting {
                key,
                value: value.to_string(),
                allowed,
            })
        };
        let not_negative = |key, value| within(key, value, f64::MAX, "a number from 0");
        let (lag_ms, ten_years) = (self.kv_event_lag_ms, "0 to 315360000000 ms, ten years");
        within("kv_event_lag_ms", lag_ms, LONGEST_MS, ten_years)?;
        not_negative("queue_threshold", self.queue_threshold.unwrap_or(0.0))?;
        not_negative("max_time_ms", self.max_time_ms.unwrap_or(0.0))?;
        not_negative("slo.ttft_ms", self.slo.ttft_ms)?;
        not_negative("slo.mean_itl_ms", self.slo.mean_itl_ms)?;
        if self.warm_up > 0 && self.warm_up >= requests {
            return Err(RunError::Setting {
                key: "warm_up",
                value: self.warm_up.to_string(),
                allowed: "fewer than the requests of the run",
            });
        }
        let slow = |slowdown: &&f64| !(slowdown.is_finite() && (0.01..=100.0).contains(*slowdown));
        if let Some(value) = self.slowdowns.iter().find(slow) {
            return Err(RunError::Setting {
                key: "slowdowns",
                value: value.to_string(),
                allowed: "numbers from 0.01 to 100",
            });
        }
        if self.slowdowns.len() > topology.workers() {
            return Err(RunError::Setting {
                key: "slowdowns",
                value: format!("a list of {}", self.slowdowns.len()),
                allowed: "at most one number for each worker",
            });
        }
        Ok(())
    }
}

/// Run experiments on `threads` threads and keep what `keep` makes of each, in the order of the
/// experiments. What a run gives does not depend on the others.
pub fn run_all<T: Send>(
    experiments: &[Experiment],
    catalog: &Catalog,
    threads: usize,
    keep: impl Fn(usize, Result<Run, RunError>) -> T + Sync,
) -> Vec<T> {
    in_parallel(experiments.len(), threads, |index| {
        keep(index, experiments[index].run(catalog))
    })
}

/// `task` of every index below `count`, on `threads` threads, in the order of the indices.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    threads: usize,
    task: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut kept = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return kept;
            }
            kept.push((index, task(index)));
        }
    };
    let mut kept: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .flat_map(|thread| match thread.join() {
                Ok(kept) => kept,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    });
    kept.sort_unstable_by_key(|(index, _)| *index);
    kept.into_iter().map(|(_, kept)| kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let refuse = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings
                .check(Topology::Aggregated { workers: 2 }, 10)
                .unwrap_err()
                .to_string()
        };
        assert!(refuse(|s| s.kv_event_lag_ms = -1.0).starts_with("kv_event_lag_ms is -1"));
        assert!(refuse(|s| s.kv_event_lag_ms = 1e300).ends_with("ten years"));
        assert!(
            refuse(|s| s.queue_threshold = Some(f64::NAN)).starts_with("queue_threshold is NaN")
        );
        assert!(refuse(|s| s.slowdowns = vec![0.0]).starts_with("slowdowns is 0"));
        assert!(refuse(|s| s.slowdowns = vec![1.0; 3]).contains("a list of 3"));
        assert!(refuse(|s| s.warm_up = 10).starts_with("warm_up is 10"));
        assert!(
            Settings::default()
                .check(Topology::Aggregated { workers: 2 }, 10)
                .is_ok()
        );
    }

    #[test]
    fn a_load_is_a_word_or_a_number() {
        for (load, json) in [
            (Load::Level(LoadLevel::Knee), "\"knee\""),
            (Load::Number(2.5), "2.5"),
        ] {
            assert_eq!(serde_json::to_string(&load).unwrap(), json);
            assert_eq!(serde_json::from_str::<Load>(json).unwrap(), load);
        }
    }
}
