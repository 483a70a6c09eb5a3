// SPDX-License-Identifier: Apache-2.0

//! Which loads are light, knee and saturated for a workload on a fleet.
//!
//! A constant rate that is light for one fleet drowns another, so the loads are measured, always with
//! Dynamo's default policy and seed 0, hence the same for every policy and every set of seeds. The
//! measure is the mean slowdown: mean TTFT over the mean TTFT near idle. It grows with waiting, and with
//! cache hits lost because requests had to go elsewhere. Then
//!
//! - light is where the slowdown is 1.25;
//! - knee is where it is 3: most of the TTFT is delay, and it grows fast;
//! - saturated is half as much again as the knee, and in an open loop at least 1.2 times what the fleet
//!   completes when everything arrives at once: more than it can serve.
//!
//! An open loop is tried at fixed shares of the completion rate of that burst, and a closed loop at
//! fixed numbers of sessions a worker. Between two tries the slowdown is taken to be a power of the
//! load. If even the highest try stays below a threshold, the fleet holds all requests of the workload
//! without waiting, and the highest try counts. The mean and not the P99 is used, because a P99 of some
//! hundred requests is noise.
//!
//! Source: the four loads in the search for the routing rule had mean slowdowns of about 1.2, 1.5, 1.5 to
//! 10, and 7 to 100. The thresholds are ours.

use super::trial::{Runner, Trial, TrialError};
use crate::engines::Engine;
use crate::policies::{Policy, PolicyError};
use crate::results::RunEntry;
use crate::run::{Load, LoadLevel, Settings};
use crate::topology::Topology;
use crate::workloads::{OfferedLoad, Scale, WorkloadSource};

/// Mean slowdown of a light load.
const LIGHT: f64 = 1.25;
/// Mean slowdown at the knee.
const KNEE: f64 = 3.0;
/// Saturated over knee.
const BEYOND_KNEE: f64 = 1.5;
/// Saturated over what a burst is served at.
const BEYOND_CAPACITY: f64 = 1.2;
/// Rates tried, over what a burst is served at; the first is near idle.
const SHARES: [f64; 9] = [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1, 1.3];
/// Sessions a worker tried in a closed loop; the first is near idle.
const SESSIONS: [usize; 9] = [1, 2, 4, 8, 16, 32, 48, 64, 96];

/// A workload on a fleet.
#[derive(Clone)]
pub struct Cell {
    /// Where the workload comes from.
    pub source: WorkloadSource,
    /// What each worker runs.
    pub engine: Engine,
    /// How many workers.
    pub topology: Topology,
    /// Requests of each try: as many as the runs at the loads found will have.
    pub requests: usize,
    /// The rest.
    pub settings: Settings,
}

/// The loads of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Levels {
    /// Hardly any waiting.
    pub light: OfferedLoad,
    /// Where waiting takes off.
    pub knee: OfferedLoad,
    /// More than the fleet can serve.
    pub saturated: OfferedLoad,
}

/// A search that found nothing.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The reference policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A try that could not be run.
    #[error("load search of {workload} on {topology}")]
    Trial {
        /// The workload.
        workload: String,
        /// The topology.
        topology: Topology,
        /// Why.
        source: TrialError,
    },
    /// Nothing to measure.
    #[error("load search of {workload} on {topology}: no request got a token at {load:?}")]
    Nothing {
        /// The workload.
        workload: String,
        /// The topology.
        topology: Topology,
        /// The try.
        load: OfferedLoad,
    },
}

impl Levels {
    /// The load of `level`.
    #[must_use]
    pub const fn at(&self, level: LoadLevel) -> OfferedLoad {
        match level {
            LoadLevel::Light => self.light,
            LoadLevel::Knee => self.knee,
            LoadLevel::Saturated => self.saturated,
        }
    }
}

impl Cell {
    /// A trial of the cell.
    #[must_use]
    pub fn trial(&self, policy: Policy, offered: OfferedLoad, load: Load, seed: u64) -> Trial {
        let default = self.source.default_scale();
        Trial {
            policy,
            condition: None,
            source: self.source.clone(),
            scale: Scale {
                requests: self.requests,
                load: offered,
                block_size: match self.source {
                    WorkloadSource::Generated(_) => self.engine.block_size() as u32,
                    WorkloadSource::Recorded(_) => default.block_size,
                },
                seed,
            },
            load,
            engine: self.engine.clone(),
            topology: self.topology,
            settings: self.settings.clone(),
        }
    }

    fn closed(&self) -> bool {
        matches!(
            self.source.default_scale().load,
            OfferedLoad::Concurrency(_)
        )
    }

    /// The loads to try; of an open loop, shares of `capacity`, requests per s.
    fn tries(&self, capacity: f64) -> Vec<OfferedLoad> {
        if !self.closed() {
            return SHARES
                .map(|share| OfferedLoad::Rate(share * capacity))
                .to_vec();
        }
        let mut sessions = SESSIONS
            .map(|sessions| (sessions * self.topology.workers()).clamp(1, self.requests.max(1)));
        sessions.sort_unstable();
        let mut tries = sessions.to_vec();
        tries.dedup();
        tries.into_iter().map(OfferedLoad::Concurrency).collect()
    }

    fn failed(&self, source: TrialError) -> SearchError {
        SearchError::Trial {
            workload: self.source.name(),
            topology: self.topology,
            source,
        }
    }
}

/// The loads of one cell.
///
/// # Errors
/// When a try cannot be run or measures nothing.
pub fn search(cell: &Cell, runner: &Runner<'_>) -> Result<Levels, SearchError> {
    let mut found = searches(std::slice::from_ref(cell), runner)?;
    found.pop().unwrap_or_else(|| {
        Err(SearchError::Nothing {
            workload: cell.source.name(),
            topology: cell.topology,
            load: cell.source.default_scale().load,
        })
    })
}

/// Runs that the search of so many cells takes at most.
#[must_use]
pub const fn runs_of_searches(cells: usize) -> usize {
    cells * (1 + SHARES.len())
}

/// The loads of many cells, all tries in parallel.
///
/// # Errors
/// When the reference policy cannot be built. A cell that cannot be measured has its own error.
pub fn searches(
    cells: &[Cell],
    runner: &Runner<'_>,
) -> Result<Vec<Result<Levels, SearchError>>, SearchError> {
    let policy = Policy::named("default", runner.catalog)?;
    let trial = |cell: &Cell, load: OfferedLoad| {
        cell.trial(policy.clone(), load, Load::Number(load.number()), 0)
    };
    let bursts: Vec<Trial> = cells
        .iter()
        .map(|cell| trial(cell, OfferedLoad::Concurrency(cell.requests.max(1))))
        .collect();
    let capacities: Vec<Result<f64, SearchError>> = cells
        .iter()
        .zip(runner.run(&bursts))
        .map(|(cell, burst)| {
            let burst = burst.map_err(|error| cell.failed(error))?;
            burst
                .metrics
                .requests_per_s
                .filter(|rate| *rate > 0.0)
                .ok_or_else(|| SearchError::Nothing {
                    workload: cell.source.name(),
                    topology: cell.topology,
                    load: OfferedLoad::Concurrency(cell.requests),
                })
        })
        .collect();
    let tries: Vec<Vec<OfferedLoad>> = cells
        .iter()
        .zip(&capacities)
        .map(|(cell, capacity)| {
            capacity
                .as_ref()
                .map_or_else(|_| Vec::new(), |it| cell.tries(*it))
        })
        .collect();
    let trials: Vec<Trial> = cells
        .iter()
        .zip(&tries)
        .flat_map(|(cell, tries)| tries.iter().map(|load| trial(cell, *load)))
        .collect();
    let mut runs = runner.run(&trials).into_iter();
    let found = cells
        .iter()
        .zip(capacities)
        .zip(tries)
        .map(|((cell, capacity), tries)| {
            // The runs of the cell are taken from the list in any case.
            let runs: Result<Vec<RunEntry>, TrialError> = runs.by_ref().take(tries.len()).collect();
            let (capacity, runs) = (capacity?, runs.map_err(|error| cell.failed(error))?);
            let mut curve = Vec::with_capacity(tries.len());
            for (load, run) in tries.iter().zip(runs) {
                let ttft = run.metrics.ttft_ms.ok_or_else(|| SearchError::Nothing {
                    workload: cell.source.name(),
                    topology: cell.topology,
                    load: *load,
                })?;
                curve.push((load.number(), ttft.mean));
            }
            Ok(levels(&curve, capacity, cell.closed()))
        });
    Ok(found.collect())
}

/// The loads from a curve of load against mean TTFT.
fn levels(curve: &[(f64, f64)], capacity: f64, closed: bool) -> Levels {
    let light = crossing(curve, LIGHT);
    let knee = crossing(curve, KNEE);
    let saturated = BEYOND_KNEE * knee;
    if closed {
        let light = (light.floor() as usize).max(1);
        // Small fleets may cross both thresholds within one session.
        let knee = (knee.round() as usize).max(light + 1);
        return Levels {
            light: OfferedLoad::Concurrency(light),
            knee: OfferedLoad::Concurrency(knee),
            saturated: OfferedLoad::Concurrency((saturated.ceil() as usize).max(knee + 1)),
        };
    }
    Levels {
        light: OfferedLoad::Rate(light),
        knee: OfferedLoad::Rate(knee),
        saturated: OfferedLoad::Rate(saturated.max(BEYOND_CAPACITY * capacity)),
    }
}

/// The least load at which the mean TTFT is `slowdown` times that of the first point, which is near
/// idle; between two points a power of the load, beyond the last one the last.
fn crossing(curve: &[(f64, f64)], slowdown: f64) -> f64 {
    let threshold = curve.first().map_or(0.0, |(_, idle)| idle * slowdown);
    for pair in curve.windows(2) {
        let [(low, before), (high, after)] = *pair else {
            continue;
        };
        if after >= threshold {
            let share = (threshold / before).ln() / (after / before).ln();
            return low * (high / low).powf(share.clamp(0.0, 1.0));
        }
    }
    curve.last().map_or(1.0, |(load, _)| *load)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Catalog;
    use crate::workloads::Generator;

    #[test]
    fn a_crossing_lies_between_its_tries_on_a_power_of_the_load() {
        // From 1 to 4 times the TTFT while the load grows 16-fold: double at 4 times the load.
        let curve = [(1.0, 10.0), (16.0, 40.0)];
        assert!((crossing(&curve, 2.0) - 4.0).abs() < 1e-9);
        assert_eq!(crossing(&curve, 4.0), 16.0);
        assert_eq!(crossing(&curve, 9.0), 16.0);
        assert_eq!(crossing(&[(3.0, 10.0)], 2.0), 3.0);
    }

    #[test]
    fn a_saturated_load_is_beyond_knee_and_capacity() {
        let curve = [(1.0, 10.0), (10.0, 1_000.0)];
        // 100 times the TTFT over 10 times the load: 3 times at the root of 3.
        let low = levels(&curve, 1.0, false);
        assert!((low.knee.number() - 3.0_f64.sqrt()).abs() < 1e-9);
        assert!((low.saturated.number() - 1.5 * 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(
            levels(&curve, 100.0, false).saturated,
            OfferedLoad::Rate(120.0)
        );
    }

    #[test]
    fn closed_loops_get_whole_sessions_that_increase() {
        let levels = levels(&[(1.0, 10.0), (2.0, 1_000.0)], 1.0, true);
        assert_eq!(
            [levels.light, levels.knee, levels.saturated],
            [1, 2, 3].map(OfferedLoad::Concurrency)
        );
    }

    #[test]
    fn the_loads_found_are_ordered_and_the_same_for_any_number_of_threads() {
        let cells: Vec<Cell> = [Generator::ColdBurst, Generator::Paper]
            .map(|generator| Cell {
                source: WorkloadSource::Generated(generator),
                engine: Engine::load("fixed").unwrap(),
                topology: "2".parse().unwrap(),
                requests: 40,
                settings: Settings::default(),
            })
            .to_vec();
        let catalog = Catalog::default();
        let found = |threads| {
            let runner = Runner {
                catalog: &catalog,
                threads,
                journal: None,
                finished: &|| {},
            };
            let found: Vec<Levels> = searches(&cells, &runner)
                .unwrap()
                .into_iter()
                .map(Result::unwrap)
                .collect();
            found
        };
        let levels = found(1);
        assert_eq!(levels, found(4));
        for levels in levels {
            let loads = [levels.light, levels.knee, levels.saturated].map(OfferedLoad::number);
            assert!(loads[0] <= loads[1] && loads[1] < loads[2], "{loads:?}");
        }
    }
}
