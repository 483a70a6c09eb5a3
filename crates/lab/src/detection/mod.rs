// SPDX-License-Identifier: Apache-2.0

//! How well the regime detector knows the regime, on runs whose truth is known.
//!
//! Each workload on each pool gets its light, knee and saturated load from the load search, and then runs
//! whose offered load follows a [`Schedule`] of these. The truth follows from the schedule and from
//! the requests that wait. One run under the regime-aware policy gives the series of every signal; the
//! policy's state machine is replayed on each signal alone and on combinations, and scored.
//!
//! The signals are those of the run: the policy's answer to a regime has an effect on them, the same for every
//! detector.

mod detector;
mod schedule;
mod score;
mod series;
mod truth;

use std::collections::BTreeMap;
use std::sync::Arc;

use dynamo_kv_router::WorkerType;
use regime_core::{Cuts, RegimeError, Timestamp};
use serde::{Deserialize, Serialize};

pub use schedule::{Phase, Schedule};
pub use score::Score;

use crate::adapter::RegimeSince;
use crate::experiments::{Cell, Levels};
use crate::policies::{Catalog, Policy, PolicyError};
use crate::run::{Experiment, LoadLevel, RunError, in_parallel};
use crate::topology::Topology;
use crate::workloads::{OfferedLoad, Scale, SourceError};
use detector::{Detector, SIGNALS};
use score::Counts;
use series::Tick;

/// Requests drawn beyond those that a schedule takes up in the mean, as a share.
const SPARE: f64 = 1.2;
const SPARE_REQUESTS: f64 = 100.0;

/// Scores of all detectors, as in `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    /// Schedules of offered load.
    pub schedules: Vec<Schedule>,
    /// Seeds of each schedule.
    pub seeds: Vec<u64>,
    /// The loads of each workload on each pool.
    pub loads: Vec<CellLoads>,
    /// Scores by the kind of pool that is watched.
    pub pools: Vec<PoolScores>,
}

/// Scores in pools of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolScores {
    /// `aggregated` or `prefill`.
    pub role: String,
    /// Detectors, the default one among them.
    pub detectors: Vec<DetectorScore>,
}

/// Loads of a workload on a pool, requests a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellLoads {
    /// Name of the workload.
    pub workload: String,
    /// `4`, `2P3D`.
    pub topology: String,
    /// Truly Below.
    pub light: f64,
    /// Truly in Transition.
    pub knee: f64,
    /// Truly Saturated.
    pub saturated: f64,
}

/// One detector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DetectorScore {
    /// Its signals.
    pub detector: String,
    /// Whether it is the policy's default in such a pool.
    pub default: bool,
    /// Levels of its signals.
    pub cuts: BTreeMap<String, Cuts>,
    /// Over everything.
    pub overall: Score,
    /// By workload.
    pub workloads: BTreeMap<String, Score>,
}

impl DetectorScore {
    /// Its name, and whether it is the default.
    pub(crate) fn title(&self) -> String {
        let mark = if self.default { " (default)" } else { "" };
        format!("{}{mark}", self.detector)
    }
}

/// One run over time, to be drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// Name of the workload.
    pub workload: String,
    /// `4`, `2P3D`.
    pub topology: String,
    /// Name of the schedule.
    pub schedule: String,
    /// Seed of workload and run.
    pub seed: u64,
    /// Name of the detector that is the policy's default.
    pub default: String,
    /// Regimes by what found them; the truth first.
    pub regimes: Vec<(String, Vec<RegimeSince>)>,
    /// Signals by name, with their values at times in ms.
    pub signals: Vec<(&'static str, Vec<(f64, f64)>)>,
    /// End of the schedule, ms.
    pub end_ms: f64,
}

/// A detection that could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum DetectionError {
    /// The regime-aware policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The workload.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A detector.
    #[error(transparent)]
    Regime(#[from] RegimeError),
}

/// A run of a detection.
struct Job<'a> {
    cell: &'a Cell,
    levels: &'a Levels,
    schedule: &'a Schedule,
    seed: u64,
}

/// What was counted of one detector in pools of one kind.
#[derive(Clone, Default)]
struct Tally {
    overall: Counts,
    workloads: BTreeMap<String, Counts>,
}

/// What is kept of a run.
struct Judged {
    /// By detector.
    counts: Vec<Counts>,
    timeline: Timeline,
}

/// What to run.
pub struct Plan {
    /// Workloads on pools, with their loads.
    pub cells: Vec<(Cell, Levels)>,
    /// How the load changes.
    pub schedules: Vec<Schedule>,
    /// Seeds of workload and run.
    pub seeds: Vec<u64>,
}

impl Plan {
    /// Runs in all.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.cells.len() * self.schedules.len() * self.seeds.len()
    }

    /// Run it on `threads` threads, on which nothing depends; `finished` is called after each run. Returns
    /// the scores, and a timeline of each workload: of its first pool and of the first seed and schedule with the
    /// most true regimes.
    ///
    /// # Errors
    /// With the first run that fails.
    pub fn run(
        &self,
        catalog: &Catalog,
        threads: usize,
        finished: &(dyn Fn() + Sync),
    ) -> Result<(Detection, Vec<Timeline>), DetectionError> {
        let detectors = Detector::all();
        let jobs = self.jobs();
        let judged = in_parallel(jobs.len(), threads, |index| {
            let judged = jobs[index].judge(&detectors, catalog);
            finished();
            judged
        });
        let mut pools: Vec<(WorkerType, Vec<Tally>)> = Vec::new();
        let mut timelines: Vec<Timeline> = Vec::new();
        for (job, judged) in jobs.iter().zip(judged) {
            let Judged { counts, timeline } = judged?;
            let role = job.role();
            let at = pools.iter().position(|(known, _)| *known == role);
            let at = at.unwrap_or_else(|| {
                pools.push((role, vec![Tally::default(); detectors.len()]));
                pools.len() - 1
            });
            for (tally, counts) in pools[at].1.iter_mut().zip(&counts) {
                tally.overall.add(counts);
                let workload = tally.workloads.entry(timeline.workload.clone());
                workload.or_default().add(counts);
            }
            match timelines
                .iter_mut()
                .find(|it| it.workload == timeline.workload)
            {
                None => timelines.push(timeline),
                Some(shown) if timeline.shows_more_than(shown) => *shown = timeline,
                Some(_) => {}
            }
        }
        let scores = |(role, tallies): (WorkerType, Vec<Tally>)| PoolScores {
            role: role.as_str().to_owned(),
            detectors: detectors
                .iter()
                .zip(tallies)
                .map(|(detector, tally)| tally.score(detector, role))
                .collect(),
        };
        let cells = self.cells.iter();
        let detection = Detection {
            schedules: self.schedules.clone(),
            seeds: self.seeds.clone(),
            loads: cells.map(|(cell, levels)| loads(cell, levels)).collect(),
            pools: pools.into_iter().map(scores).collect(),
        };
        Ok((detection, timelines))
    }

    fn jobs(&self) -> Vec<Job<'_>> {
        let cells = self.cells.iter();
        cells
            .flat_map(|(cell, levels)| {
                self.schedules.iter().flat_map(move |schedule| {
                    self.seeds.iter().map(move |&seed| Job {
                        cell,
                        levels,
                        schedule,
                        seed,
                    })
                })
            })
            .collect()
    }
}

impl Timeline {
    /// Whether it shows more than `other`: more true regimes of the same pool.
    fn shows_more_than(&self, other: &Self) -> bool {
        let regimes = |timeline: &Self| timeline.regimes.first().map_or(0, |(_, list)| list.len());
        self.topology == other.topology && regimes(self) > regimes(other)
    }
}

impl Tally {
    fn score(self, detector: &Detector, role: WorkerType) -> DetectorScore {
        let workloads = self.workloads.into_iter();
        DetectorScore {
            detector: detector.name(),
            default: detector.is_default(role),
            cuts: detector.cuts(),
            overall: self.overall.score(),
            workloads: workloads
                .map(|(name, counts)| (name, counts.score()))
                .collect(),
        }
    }
}

impl Job<'_> {
    /// Of the pool that computes prompts.
    const fn role(&self) -> WorkerType {
        match self.cell.topology {
            Topology::Aggregated { .. } => WorkerType::Aggregated,
            Topology::Disaggregated { .. } => WorkerType::Prefill,
        }
    }

    fn judge(&self, detectors: &[Detector], catalog: &Catalog) -> Result<Judged, DetectionError> {
        let rate = |level| self.levels.at(level).offered.number();
        let wanted = self.schedule.requests(rate) * SPARE + SPARE_REQUESTS;
        let even = self.cell.source.build(&Scale {
            requests: wanted.ceil() as usize,
            load: OfferedLoad::Rate(1.0),
            block_size: self.cell.engine.block_size() as u32,
            seed: self.seed,
        })?;
        let experiment = Experiment {
            settings: self.cell.settings.clone(),
            ..Experiment::new(
                Policy::named(regime_policy::POLICY_TYPE, catalog)?,
                Arc::new(self.schedule.warp(&even, rate)),
                self.cell.engine.clone(),
                self.cell.topology,
                self.seed,
            )
        };
        let ticks = series::Ticks::default();
        let run = experiment.run(&series::recording(catalog, &ticks))?;
        let mut ticks = std::mem::take(&mut *ticks.lock());
        series::add_load_signals(&mut ticks, &run.record);
        let workers = match self.cell.topology {
            Topology::Aggregated { workers } => workers,
            Topology::Disaggregated { prefill, .. } => prefill,
        };
        let truth = truth::truth(self.schedule, &run.record.requests, workers);
        let end_ms = self.schedule.length_ms();
        let end = Timestamp::from_micros((end_ms * 1e3) as u64);
        let mut regimes = vec![("truth".to_owned(), truth)];
        for detector in detectors {
            regimes.push((detector.name(), detector.replay(&ticks, end)?));
        }
        let truth = &regimes[0].1;
        let counts = regimes
            .iter()
            .skip(1)
            .map(|(_, found)| Counts::of(truth, found, end_ms));
        Ok(Judged {
            counts: counts.collect(),
            timeline: Timeline {
                workload: self.cell.source.name(),
                topology: self.cell.topology.to_string(),
                schedule: self.schedule.name.clone(),
                seed: self.seed,
                default: detectors
                    .iter()
                    .find(|it| it.is_default(self.role()))
                    .map(Detector::name)
                    .unwrap_or_default(),
                signals: signals(&ticks, end),
                regimes,
                end_ms,
            },
        })
    }
}

/// Values of each signal over time, ms.
fn signals(ticks: &[Tick], end: Timestamp) -> Vec<(&'static str, Vec<(f64, f64)>)> {
    let shown = || ticks.iter().take_while(move |tick| tick.at <= end);
    SIGNALS
        .iter()
        .map(|&signal| {
            let values = shown().filter_map(|tick| {
                let reading = tick.readings[signal as usize]?;
                Some((tick.at.as_micros() as f64 / 1e3, reading.value))
            });
            (signal.name(), values.collect())
        })
        .collect()
}

fn loads(cell: &Cell, levels: &Levels) -> CellLoads {
    let rate = |level| levels.at(level).offered.number();
    CellLoads {
        workload: cell.source.name(),
        topology: cell.topology.to_string(),
        light: rate(LoadLevel::Light),
        knee: rate(LoadLevel::Knee),
        saturated: rate(LoadLevel::Saturated),
    }
}
