// SPDX-License-Identifier: Apache-2.0

//! Which loads are light, knee and saturated for a workload on a fleet.
//!
//! A constant rate that is light for one fleet drowns another, so the loads are measured, always with
//! Dynamo's default policy and seeds of their own, hence the same for every policy and every set of seeds. The
//! measure is the mean slowdown: mean TTFT over the mean TTFT near idle. It grows with waiting, and with
//! cache hits lost because requests had to go elsewhere. Then
//!
//! - light is where the slowdown is 1.25, and in an open loop at most half of what the fleet completes when
//!   everything arrives at once: where only KV space is scarce, nothing waits until it is gone;
//! - knee is where it is 3: most of the TTFT is delay, and it grows fast;
//! - saturated is where it is 5, at least half as much again as the knee, and in an open loop at least 1.2
//!   times the completion rate of that burst: more than the fleet can serve.
//!
//! An open loop is tried at fixed shares of the completion rate of that burst, and a closed loop at
//! fixed numbers of sessions a worker, then at half as much again, again and again, until the slowdown is
//! 5. Between two tries the slowdown is taken to be a power of the load. Chance makes a curve go up and
//! down, so a load is found where the curve gets over its threshold for the last time. If even the highest try stays below, the fleet holds all requests of the workload
//! without waiting; then the highest try counts, and the results say so. The mean and not the P99 is used,
//! because a P99 of some hundred requests is noise. A closed loop keeps step for a while, and one seed in
//! a few sends a whole wave to one worker: there each try is the median of three seeds.
//!
//! Source: the four loads in the search for the routing rule had mean slowdowns of about 1.2, 1.5, 1.5 to
//! 10, and 7 to 100. The thresholds are ours.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
pub(crate) const KNEE: f64 = 3.0;
/// Mean slowdown of a saturated load.
const SATURATED: f64 = 5.0;
/// Light over what a burst is served at, at most.
const LIGHT_OF_CAPACITY: f64 = 0.5;
/// Saturated over knee.
const BEYOND_KNEE: f64 = 1.5;
/// Saturated over what a burst is served at.
const BEYOND_CAPACITY: f64 = 1.2;
/// Rates tried, over what a burst is served at; the first is near idle.
const SHARES: [f64; 9] = [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1, 1.3];
/// Sessions a worker tried in a closed loop; the first is near idle.
const SESSIONS: [usize; 9] = [1, 2, 4, 8, 16, 32, 48, 64, 96];
/// A further try over the one before, as long as the fleet is not saturated.
const FURTHER: f64 = 1.5;
/// Further tries at most: the last is 75 times what a burst is served at, and hardly differs from a burst.
const MOST_FURTHER: usize = 10;
/// Seeds of an open loop: the first; of a closed one, all.
const SEEDS: [u64; 3] = [0, 1 << 32, 2 << 32];

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
    pub light: Found,
    /// Where waiting takes off.
    pub knee: Found,
    /// More than the fleet can serve.
    pub saturated: Found,
}

/// A load that was searched for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// The load.
    pub offered: OfferedLoad,
    /// Whether its slowdown was reached; if not, this is the highest load tried.
    pub reached: bool,
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

impl Found {
    /// A load that nobody searched for.
    #[must_use]
    pub const fn given(offered: OfferedLoad) -> Self {
        Self {
            offered,
            reached: true,
        }
    }
}

impl Levels {
    /// The load of `level`.
    #[must_use]
    pub const fn at(&self, level: LoadLevel) -> Found {
        match level {
            LoadLevel::Light => self.light,
            LoadLevel::Knee => self.knee,
            LoadLevel::Saturated => self.saturated,
        }
    }
}

impl Cell {
    /// Refuses what could not be run at this load, before anything is.
    ///
    /// # Errors
    /// With the first number that is outside its range.
    pub fn check(&self, offered: OfferedLoad) -> Result<(), TrialError> {
        self.settings
            .check(self.topology, self.requests)
            .map_err(Arc::new)?;
        self.source
            .check(&self.scale(offered, 0))
            .map_err(Arc::new)?;
        Ok(())
    }

    fn scale(&self, load: OfferedLoad, seed: u64) -> Scale {
        Scale {
            requests: self.requests,
            load,
            block_size: match &self.source {
                WorkloadSource::Generated(_) => self.engine.block_size() as u32,
                WorkloadSource::Recorded(trace) => trace.workload.block_size,
            },
            seed,
        }
    }

    /// A trial of the cell.
    #[must_use]
    pub fn trial(&self, policy: Policy, found: Found, load: Load, seed: u64) -> Trial {
        Trial {
            policy,
            condition: None,
            tier_point: None,
            source: self.source.clone(),
            scale: self.scale(found.offered, seed),
            load,
            load_reached: found.reached,
            engine: self.engine.clone(),
            topology: self.topology,
            settings: self.settings.clone(),
        }
    }

    fn seeds(&self) -> &'static [u64] {
        if self.closed() { &SEEDS } else { &SEEDS[..1] }
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

    /// The load to try after `last`, unless that was everything at once.
    fn further(&self, last: OfferedLoad) -> Option<OfferedLoad> {
        match last {
            OfferedLoad::Rate(rate) => Some(OfferedLoad::Rate(FURTHER * rate)),
            OfferedLoad::Concurrency(sessions) => (sessions < self.requests).then(|| {
                let further = (FURTHER * sessions as f64).ceil() as usize;
                OfferedLoad::Concurrency(further.min(self.requests))
            }),
        }
    }

    fn nothing(&self, load: OfferedLoad) -> SearchError {
        SearchError::Nothing {
            workload: self.source.name(),
            topology: self.topology,
            load,
        }
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
    found
        .pop()
        .unwrap_or_else(|| Err(cell.nothing(cell.source.default_scale().load)))
}

/// Runs that the search of these cells takes at most.
#[must_use]
pub fn runs_of_searches(cells: &[Cell]) -> usize {
    let runs = |cell: &Cell| 1 + (SHARES.len() + MOST_FURTHER) * cell.seeds().len();
    cells.iter().map(runs).sum()
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
    let trial = |cell: &Cell, load: OfferedLoad, seed: u64| {
        let number = Load::Number(load.number());
        cell.trial(policy.clone(), Found::given(load), number, seed)
    };
    let bursts: Vec<Trial> = cells
        .iter()
        .map(|cell| {
            trial(
                cell,
                OfferedLoad::Concurrency(cell.requests.max(1)),
                SEEDS[0],
            )
        })
        .collect();
    let mut curves: Vec<Result<Curve, SearchError>> = cells
        .iter()
        .zip(runner.run(&bursts))
        .map(|(cell, burst)| {
            let burst = burst.map_err(|error| cell.failed(error))?;
            let served = burst.metrics.requests_per_s.filter(|rate| *rate > 0.0);
            let capacity =
                served.ok_or_else(|| cell.nothing(OfferedLoad::Concurrency(cell.requests)))?;
            Ok(Curve {
                capacity,
                tries: cell.tries(capacity),
                ttfts_ms: Vec::new(),
            })
        })
        .collect();
    for round in 0..=MOST_FURTHER {
        if round > 0 {
            for (cell, curve) in cells.iter().zip(&mut curves) {
                if let Ok(curve) = curve {
                    curve.tries.extend(curve.further(cell));
                }
            }
        }
        let trials: Vec<Trial> = cells
            .iter()
            .zip(&curves)
            .flat_map(|(cell, curve)| {
                let tries = curve.as_ref().map_or(&[][..], Curve::to_run).iter();
                let seeds = |load| cell.seeds().iter().map(move |seed| (load, *seed));
                tries
                    .flat_map(seeds)
                    .map(|(load, seed)| trial(cell, *load, seed))
            })
            .collect();
        let mut runs = runner.run(&trials).into_iter();
        for (cell, found) in cells.iter().zip(&mut curves) {
            let Ok(curve) = found else {
                continue;
            };
            // The runs of the cell are taken from the list in any case.
            let count = curve.to_run().len() * cell.seeds().len();
            let runs: Result<Vec<_>, _> = runs.by_ref().take(count).collect();
            let runs = runs.map_err(|error| cell.failed(error));
            if let Err(error) = runs.and_then(|runs| curve.add(cell, &runs)) {
                *found = Err(error);
            }
        }
    }
    let found = cells.iter().zip(curves);
    Ok(found
        .map(|(cell, curve)| Ok(curve?.levels(cell.closed())))
        .collect())
}

/// What was tried in a cell.
struct Curve {
    /// Rate at which a burst of everything is served, requests per s.
    capacity: f64,
    /// Ascending.
    tries: Vec<OfferedLoad>,
    /// Mean TTFT of the first of them, the median over the seeds.
    ttfts_ms: Vec<f64>,
}

impl Curve {
    fn to_run(&self) -> &[OfferedLoad] {
        &self.tries[self.ttfts_ms.len()..]
    }

    /// The next try, where the last one has not saturated the fleet.
    fn further(&self, cell: &Cell) -> Option<OfferedLoad> {
        let (idle, last) = (self.ttfts_ms.first()?, self.ttfts_ms.last()?);
        let calm = *last < SATURATED * idle;
        self.tries
            .last()
            .filter(|_| calm)
            .and_then(|load| cell.further(*load))
    }

    fn add(&mut self, cell: &Cell, runs: &[RunEntry]) -> Result<(), SearchError> {
        for runs in runs.chunks(cell.seeds().len()) {
            let means = runs.iter().map(|run| Some(run.metrics.ttft_ms?.mean));
            let load = self.tries[self.ttfts_ms.len()];
            let means: Option<Vec<f64>> = means.collect();
            let mut means = means.ok_or_else(|| cell.nothing(load))?;
            means.sort_unstable_by(f64::total_cmp);
            self.ttfts_ms.extend(means.get(means.len() / 2));
        }
        Ok(())
    }

    fn levels(&self, closed: bool) -> Levels {
        let loads = self.tries.iter().map(|load| load.number());
        let points: Vec<(f64, f64)> = loads.zip(self.ttfts_ms.iter().copied()).collect();
        levels(&points, self.capacity, closed)
    }
}

/// The loads from a curve of load against mean TTFT.
fn levels(curve: &[(f64, f64)], capacity: f64, closed: bool) -> Levels {
    let [light, knee, saturated] = [LIGHT, KNEE, SATURATED].map(|it| crossing(curve, it));
    let found = |offered, crossing: Crossing| Found {
        offered,
        reached: crossing.reached,
    };
    let beyond = saturated.load.max(BEYOND_KNEE * knee.load);
    if closed {
        let fewest = (light.load.floor() as usize).max(1);
        // Small fleets may cross the thresholds within one session.
        let more = (knee.load.round() as usize).max(fewest + 1);
        let most = (beyond.ceil() as usize).max(more + 1);
        return Levels {
            light: found(OfferedLoad::Concurrency(fewest), light),
            knee: found(OfferedLoad::Concurrency(more), knee),
            saturated: found(OfferedLoad::Concurrency(most), saturated),
        };
    }
    let slow = light.load.min(LIGHT_OF_CAPACITY * capacity);
    Levels {
        light: found(OfferedLoad::Rate(slow), light),
        knee: found(OfferedLoad::Rate(knee.load), knee),
        saturated: found(
            OfferedLoad::Rate(beyond.max(BEYOND_CAPACITY * capacity)),
            saturated,
        ),
    }
}

/// Where a curve gets over a threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Crossing {
    load: f64,
    /// Whether it does.
    reached: bool,
}

/// Where a curve of load against mean TTFT passes [`KNEE`] times its first point, which is near idle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// Last load measured below.
    pub above: f64,
    /// First load from which the mean TTFT stays above.
    pub up_to: f64,
    /// Where it passes on a power of the load between the two.
    pub at: f64,
}

/// The knee of a curve whose loads ascend; absent where none of them is slow enough.
#[must_use]
pub fn knee(curve: &[(f64, f64)]) -> Option<Knee> {
    let (below, after) = around(curve, threshold(curve, KNEE))?;
    Some(Knee {
        above: below.0,
        up_to: after.0,
        at: crossing(curve, KNEE).load,
    })
}

/// `slowdown` times the first point.
fn threshold(curve: &[(f64, f64)], slowdown: f64) -> f64 {
    curve.first().map_or(0.0, |(_, idle)| idle * slowdown)
}

/// The last point below a threshold and the one after it.
fn around(curve: &[(f64, f64)], threshold: f64) -> Option<((f64, f64), (f64, f64))> {
    let below = curve.iter().rposition(|(_, ttft)| *ttft < threshold)?;
    Some((*curve.get(below)?, *curve.get(below + 1)?))
}

/// The load beyond which the mean TTFT stays above `slowdown` times that of the first point, which is near
/// idle; between two points a power of the load, and the last one where that is still below.
fn crossing(curve: &[(f64, f64)], slowdown: f64) -> Crossing {
    let threshold = threshold(curve, slowdown);
    let Some(((low, before), (high, after))) = around(curve, threshold) else {
        return Crossing {
            load: curve.last().map_or(1.0, |(load, _)| *load),
            reached: false,
        };
    };
    let share = (threshold / before).ln() / (after / before).ln();
    Crossing {
        load: low * (high / low).powf(share.clamp(0.0, 1.0)),
        reached: true,
    }
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
        assert!((crossing(&curve, 2.0).load - 4.0).abs() < 1e-9);
        let at = |load, reached| Crossing { load, reached };
        assert_eq!(crossing(&curve, 4.0), at(16.0, true));
        assert_eq!(crossing(&curve, 9.0), at(16.0, false));
        assert_eq!(crossing(&[(3.0, 10.0)], 2.0), at(3.0, false));
    }

    #[test]
    fn the_knee_lies_between_the_loads_around_three_times_the_first_ttft() {
        // 27 times the TTFT over 8 times the load: 3 times at double the load.
        let knee = knee(&[(1.0, 10.0), (8.0, 270.0), (9.0, 300.0)]).unwrap();
        assert_eq!((knee.above, knee.up_to), (1.0, 8.0));
        assert!((knee.at - 2.0).abs() < 1e-9);
        assert_eq!(super::knee(&[(1.0, 10.0), (8.0, 29.0)]), None);
        assert_eq!(super::knee(&[]), None);
    }

    #[test]
    fn of_several_crossings_the_last_one_counts() {
        // Twice the TTFT by chance at 2, and for good between 4 and 16.
        let curve = [(1.0, 10.0), (2.0, 20.0), (4.0, 10.0), (16.0, 40.0)];
        assert!((crossing(&curve, 2.0).load - 8.0).abs() < 1e-9);
    }

    #[test]
    fn a_saturated_load_is_beyond_its_slowdown_the_knee_and_the_capacity() {
        let curve = [(1.0, 10.0), (10.0, 1_000.0)];
        let saturated = |curve: &[(f64, f64)], capacity| {
            let found = levels(curve, capacity, false).saturated;
            assert!(found.reached);
            found.offered.number()
        };
        // 100 times the TTFT over 10 times the load: 3 times at the root of 3, and 5 times at less than 1.5
        // times that.
        let knee = levels(&curve, 1.0, false).knee.offered.number();
        assert!((knee - 3.0_f64.sqrt()).abs() < 1e-9);
        assert!((saturated(&curve, 1.0) - 1.5 * 3.0_f64.sqrt()).abs() < 1e-9);
        assert!((saturated(&curve, 100.0) - 120.0).abs() < 1e-9);
        // As many times the TTFT as the load.
        let line = [(1.0, 10.0), (10.0, 100.0)];
        assert!((saturated(&line, 1.0) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn a_light_load_is_at_most_half_of_what_a_burst_is_served_at() {
        let line = [(1.0, 10.0), (10.0, 100.0)];
        let light = |capacity| levels(&line, capacity, false).light.offered.number();
        assert!((light(100.0) - 1.25).abs() < 1e-9);
        assert_eq!(light(2.0), 1.0);
    }

    #[test]
    fn closed_loops_get_whole_sessions_that_increase() {
        let levels = levels(&[(1.0, 10.0), (2.0, 1_000.0)], 1.0, true);
        assert_eq!(
            [levels.light, levels.knee, levels.saturated].map(|it| it.offered),
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
            let found = [levels.light, levels.knee, levels.saturated];
            let loads = found.map(|it| it.offered.number());
            assert!(loads[0] <= loads[1] && loads[1] < loads[2], "{loads:?}");
        }
    }
}
