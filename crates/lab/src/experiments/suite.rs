// SPDX-License-Identifier: Apache-2.0

//! Suites: every workload at several loads on several pools, under every policy.
//!
//! First the loads of each workload on each pool are [searched](super::search), then every policy runs
//! at each of them with the same seeds. A suite has parts, of which each has cells of its own: the standard
//! suite has one, and a suite of [conditions](Condition) one for each of them. What several parts have in
//! common is searched once.
//!
//! A trace is cut to as many requests, each seed another part of it, and sped up to the same loads.

use super::load_search::{Cell, Levels, SearchError, runs_of_searches, searches};
use super::tiers::TierPart;
use super::trial::{Runner, Trial, same_source};
use crate::engines::Engine;
use crate::policies::{Catalog, Policy, PolicyError};
use crate::run::{Load, LoadLevel, Settings};
use crate::topology::Topology;
use crate::workloads::{Generator, WorkloadSource};

/// A suite to run.
pub struct Suite {
    /// What is run, in this order.
    pub parts: Vec<Part>,
    /// What each worker runs.
    pub engine: Engine,
    /// Seeds of workload and run.
    pub seeds: Vec<u64>,
    /// Share of [`standard_requests`].
    pub size: f64,
}

/// Every workload on every pool at every load under every policy.
pub struct Part {
    /// What is unusual; absent in the standard suite.
    pub condition: Option<&'static str>,
    /// Its own engines; absent: the suite's.
    pub tiers: Option<TierPart>,
    /// Policies; each gets the same trials.
    pub policies: Vec<Policy>,
    /// Workloads.
    pub sources: Vec<WorkloadSource>,
    /// Pools.
    pub topologies: Vec<Topology>,
    /// Loads.
    pub loads: Vec<LoadLevel>,
    /// The rest, while loads are searched.
    pub searched: Settings,
    /// The rest, in the runs at the loads found.
    pub settings: Settings,
}

/// Requests of one run of `source` on a pool of `workers`, at full size: enough on four workers for a
/// saturated load to build up its queue, and growing with the pool. The power 3/4 of its size keeps a run of
/// 128 workers affordable and lets it last: with the root, all requests of such a pool had come before the
/// first were answered, and its knee was a burst of half a second.
#[must_use]
pub fn standard_requests(source: &WorkloadSource, workers: usize) -> usize {
    let on_four: f64 = match source {
        WorkloadSource::Generated(generator) => match generator {
            // Sessions must be many enough to take all seats of 32 workers.
            Generator::Chat | Generator::ChatPauses => 2_000.0,
            Generator::Paper | Generator::PaperMixed | Generator::PaperPrompts => 1_300.0,
            Generator::Agentic => 1_300.0,
            Generator::HotspotShift
            | Generator::ColdBurst
            | Generator::WorkingSet
            | Generator::DecodeHeavy => 800.0,
            Generator::MixedLengths => 600.0,
        },
        WorkloadSource::Recorded(_) => 500.0,
    };
    (on_four * (workers as f64 / 4.0).powf(0.75)).ceil() as usize
}

/// Every policy that can be named, but `dynamo-default-cost-fn`, which decides as `default` does.
///
/// # Errors
/// When two linked crates claim one name.
pub fn standard_policies(catalog: &Catalog) -> Result<Vec<String>, PolicyError> {
    let mut names = catalog.names()?;
    names.retain(|name| name != "dynamo-default-cost-fn");
    Ok(names)
}

impl Suite {
    /// The cells whose loads are searched, each once.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for (part, source, topology) in self.places() {
            let known = |cell: &Cell| self.is_cell(cell, part, source, topology);
            if !cells.iter().any(known) {
                cells.push(Cell {
                    source: source.clone(),
                    engine: self.searched_engine(part).clone(),
                    topology,
                    requests: self.requests(source, topology),
                    settings: part.searched.clone(),
                });
            }
        }
        cells
    }

    /// Runs in all, those of the load search included; no more than that are needed.
    #[must_use]
    pub fn runs(&self) -> usize {
        let in_cells = self
            .places()
            .map(|(part, ..)| part.loads.len() * self.seeds.len() * part.policies.len());
        runs_of_searches(&self.cells()) + in_cells.sum::<usize>()
    }

    /// The loads of [every cell](Self::cells).
    ///
    /// # Errors
    /// When the reference policy cannot be built. A cell that cannot be measured has its own error.
    pub fn search(
        &self,
        runner: &Runner<'_>,
    ) -> Result<Vec<Result<Levels, SearchError>>, SearchError> {
        searches(&self.cells(), runner)
    }

    /// The trials at the loads found, policies innermost, so that they share their workload.
    #[must_use]
    pub fn trials(&self, levels: &[Option<Levels>]) -> Vec<Trial> {
        let found: Vec<(Cell, &Option<Levels>)> = self.cells().into_iter().zip(levels).collect();
        let mut trials = Vec::new();
        for (part, source, topology) in self.places() {
            let here = |(cell, _): &&(Cell, _)| self.is_cell(cell, part, source, topology);
            let Some((cell, Some(levels))) = found.iter().find(here) else {
                continue;
            };
            let cell = Cell {
                settings: part.settings.clone(),
                engine: part
                    .tiers
                    .as_ref()
                    .map_or(&self.engine, |it| &it.engine)
                    .clone(),
                ..cell.clone()
            };
            for level in &part.loads {
                for seed in &self.seeds {
                    for policy in &part.policies {
                        let (policy, load) = (policy.clone(), Load::Level(*level));
                        trials.push(Trial {
                            condition: part.condition,
                            tier_point: part.tiers.as_ref().map(|it| it.point),
                            ..cell.trial(policy, levels.at(*level), load, *seed)
                        });
                    }
                }
            }
        }
        trials
    }

    /// Whether a page shows plots of the trial. Of every cell it would be too long to read: those of the
    /// first seed, the first pool and the knee stand for each workload. The suite of tiers has plots of its own.
    #[must_use]
    pub fn plots(&self, trial: &Trial) -> bool {
        self.seeds.first() == Some(&trial.scale.seed)
            && self.parts.iter().any(|part| {
                let knee = part.loads.iter().find(|load| **load == LoadLevel::Knee);
                let load = knee.or(part.loads.first());
                part.tiers.is_none()
                    && part.condition == trial.condition
                    && part.topologies.first() == Some(&trial.topology)
                    && load.is_some_and(|load| trial.load == Load::Level(*load))
            })
    }

    /// Whether it is, or has a part of, a suite of tiers.
    #[must_use]
    pub fn has_tiers(&self) -> bool {
        self.parts.iter().any(|part| part.tiers.is_some())
    }

    /// Each workload on each pool, part by part.
    fn places(&self) -> impl Iterator<Item = (&Part, &WorkloadSource, Topology)> {
        self.parts.iter().flat_map(|part| {
            part.sources.iter().flat_map(move |source| {
                let pools = part.topologies.iter();
                pools.map(move |topology| (part, source, *topology))
            })
        })
    }

    fn requests(&self, source: &WorkloadSource, topology: Topology) -> usize {
        sized_requests(source, topology.workers(), self.size)
    }

    /// What the workers of a part run while its loads are searched.
    fn searched_engine<'a>(&'a self, part: &'a Part) -> &'a Engine {
        part.tiers.as_ref().map_or(&self.engine, |it| &it.searched)
    }

    /// Whether this is where the loads of the workload on the pool are searched.
    fn is_cell(
        &self,
        cell: &Cell,
        part: &Part,
        source: &WorkloadSource,
        topology: Topology,
    ) -> bool {
        same_source(&cell.source, source)
            && cell.topology == topology
            && cell.settings == part.searched
            && cell.engine.name() == self.searched_engine(part).name()
    }
}

/// Requests of one run at a share of the [standard number](standard_requests).
pub(super) fn sized_requests(source: &WorkloadSource, workers: usize, size: f64) -> usize {
    let wanted = (standard_requests(source, workers) as f64 * size).ceil() as usize;
    match source {
        WorkloadSource::Generated(_) => wanted.max(1),
        // Half of the rows at most, so that seeds can differ.
        WorkloadSource::Recorded(trace) => wanted.min(trace.workload.requests() / 2).max(1),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::experiments::{Condition, Found};
    use crate::workloads::OfferedLoad;

    const fn found(rate: f64) -> Found {
        Found::given(OfferedLoad::Rate(rate))
    }

    const LEVELS: Levels = Levels {
        light: found(1.0),
        knee: found(2.0),
        saturated: found(3.0),
    };

    fn policies() -> Vec<Policy> {
        let catalog = Catalog::default();
        ["default", "regime-aware"]
            .map(|name| Policy::named(name, &catalog).unwrap())
            .to_vec()
    }

    fn suite(parts: Vec<Part>) -> Suite {
        Suite {
            parts,
            engine: Engine::load("fixed").unwrap(),
            seeds: vec![3, 4, 5],
            size: 0.1,
        }
    }

    fn standard() -> Suite {
        suite(vec![Part {
            condition: None,
            tiers: None,
            policies: policies(),
            sources: [Generator::Chat, Generator::Paper]
                .map(WorkloadSource::Generated)
                .to_vec(),
            topologies: vec!["1".parse().unwrap(), "1P1D".parse().unwrap()],
            loads: vec![LoadLevel::Light, LoadLevel::Knee, LoadLevel::Saturated],
            searched: Settings::default(),
            settings: Settings::default(),
        }])
    }

    fn stress() -> Suite {
        let part = |it: Condition| it.part(&policies(), &Settings::default()).unwrap();
        suite(Condition::ALL.map(part).into())
    }

    fn distinct_keys(trials: &[Trial]) -> usize {
        let keys: HashSet<String> = trials.iter().map(Trial::key).collect();
        keys.len()
    }

    #[test]
    fn a_suite_has_every_cell_level_seed_and_policy_once() {
        let suite = standard();
        let trials = suite.trials(&[Some(LEVELS); 4]);
        // 4 cells, 3 levels, 3 seeds, 2 policies.
        assert_eq!((trials.len(), distinct_keys(&trials)), (72, 72));
        // A search takes at most 20 runs in an open loop and 58 in a closed one.
        assert_eq!(suite.runs(), 2 * 20 + 2 * 58 + 72);
        let unsearched = [Some(LEVELS), None, None, None];
        assert_eq!(suite.trials(&unsearched).len(), 18);
        // A tenth of 2000 for four workers, and 0.25^0.75 = 0.354 of that for one.
        assert_eq!(trials[0].scale.requests, 71);
    }

    #[test]
    fn conditions_share_the_searches_that_are_the_same() {
        let suite = stress();
        let cells = suite.cells();
        // Late events: 6 workloads on 2 pools. Priors: decode-heavy is new. A slow worker: 5 workloads.
        // Large pools: 4 workloads on 2 pools.
        assert_eq!(cells.len(), 12 + 1 + 5 + 8);
        assert!(
            cells
                .iter()
                .all(|cell| cell.settings.kv_event_lag_ms == 0.0)
        );
        // 12 cells, twice 5, 5 and 8; 3 seeds and 2 policies at one load.
        let runs = (12 + 10 + 5 + 8) * 6;
        assert_eq!(suite.runs(), 24 * 20 + 2 * 58 + runs);
        let trials = suite.trials(&vec![Some(LEVELS); 26]);
        assert_eq!((trials.len(), distinct_keys(&trials)), (runs, runs));
    }

    #[test]
    fn the_runs_of_a_condition_have_its_settings_at_the_loads_of_their_own_cell() {
        let suite = stress();
        // Each cell's knee is its number.
        let levels: Vec<_> = (0..26)
            .map(|number| {
                Some(Levels {
                    knee: found(f64::from(number)),
                    ..LEVELS
                })
            })
            .collect();
        let cells = suite.cells();
        for trial in suite.trials(&levels) {
            let condition: Condition = trial.condition.unwrap().parse().unwrap();
            let late = condition == Condition::LateEvents;
            let slow = condition == Condition::SlowWorker;
            assert_eq!(
                trial.settings.kv_event_lag_ms,
                if late { 1_000.0 } else { 0.0 }
            );
            assert_eq!(trial.settings.slowdowns.len(), usize::from(slow));
            let cell = &cells[trial.scale.load.number() as usize];
            assert!(same_source(&cell.source, &trial.source));
            assert_eq!(cell.topology, trial.topology);
            assert_eq!(cell.settings.slowdowns, trial.settings.slowdowns);
        }
    }

    #[test]
    fn a_page_has_plots_of_one_seed_pool_and_load_of_each_part() {
        let shown = |suite: &Suite| {
            let trials = suite.trials(&vec![Some(LEVELS); 26]);
            trials.iter().filter(|it| suite.plots(it)).count()
        };
        // 2 workloads, 2 policies.
        assert_eq!(shown(&standard()), 4);
        // 6, twice 5, 5 and 4 workloads.
        assert_eq!(shown(&stress()), 2 * 25);
        let mut light = standard();
        light.parts[0].loads = vec![LoadLevel::Light];
        assert_eq!(shown(&light), 4);
    }

    #[test]
    fn every_policy_but_the_double_of_the_default_is_standard() {
        let names = standard_policies(&Catalog::default()).unwrap();
        assert!(names.iter().any(|name| name == "regime-aware"));
        assert!(!names.iter().any(|name| name == "dynamo-default-cost-fn"));
    }
}
