// SPDX-License-Identifier: Apache-2.0

//! The standard suite: every workload at three loads on every pool, under every policy.
//!
//! First the loads of each workload on each pool are [searched](super::search), then every policy runs
//! at each of them with the same seeds.
//!
//! A trace is cut to as many requests, each seed another part of it, and sped up to the same loads.

use super::load_search::{Cell, Levels, SearchError, runs_of_searches, searches};
use super::trial::{Runner, Trial};
use crate::engines::Engine;
use crate::policies::{Catalog, Policy, PolicyError};
use crate::run::{Load, LoadLevel, Settings};
use crate::topology::Topology;
use crate::workloads::{Generator, WorkloadSource};

/// The loads of the suite.
pub const LEVELS: [LoadLevel; 3] = [LoadLevel::Light, LoadLevel::Knee, LoadLevel::Saturated];

/// A suite to run.
pub struct Suite {
    /// Policies; each gets the same trials.
    pub policies: Vec<Policy>,
    /// Workloads.
    pub sources: Vec<WorkloadSource>,
    /// Pools.
    pub topologies: Vec<Topology>,
    /// What each worker runs.
    pub engine: Engine,
    /// Seeds of workload and run.
    pub seeds: Vec<u64>,
    /// Share of [`standard_requests`].
    pub size: f64,
    /// The rest.
    pub settings: Settings,
}

/// Requests of one run of `source` on a pool of `workers`, at full size: enough on four workers for a
/// saturated load to build up its queue, and growing with the pool, but with the root of its size: a run of
/// a large pool costs as much per request.
#[must_use]
pub fn standard_requests(source: &WorkloadSource, workers: usize) -> usize {
    let on_four: f64 = match source {
        WorkloadSource::Generated(generator) => match generator {
            Generator::Chat => 1_600.0,
            Generator::MixedLengths | Generator::Agentic => 600.0,
            Generator::HotspotShift
            | Generator::ColdBurst
            | Generator::WorkingSet
            | Generator::DecodeHeavy
            | Generator::Paper
            | Generator::PaperMixed => 800.0,
        },
        WorkloadSource::Recorded(_) => 500.0,
    };
    (on_four * (workers as f64 / 4.0).sqrt()).ceil() as usize
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
    /// Every workload on every pool.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let cell = |source: &WorkloadSource, topology: Topology| Cell {
            source: source.clone(),
            engine: self.engine.clone(),
            topology,
            requests: self.requests(source, topology),
            settings: self.settings.clone(),
        };
        self.sources
            .iter()
            .flat_map(|source| self.topologies.iter().map(move |it| cell(source, *it)))
            .collect()
    }

    /// Runs in all, those of the load search included; no more than that are needed.
    #[must_use]
    pub fn runs(&self) -> usize {
        let cells = self.sources.len() * self.topologies.len();
        runs_of_searches(cells) + cells * LEVELS.len() * self.seeds.len() * self.policies.len()
    }

    /// The loads of every cell.
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
        let mut trials = Vec::new();
        for (cell, levels) in self.cells().iter().zip(levels) {
            let Some(levels) = levels else {
                continue;
            };
            for level in LEVELS {
                for seed in &self.seeds {
                    for policy in &self.policies {
                        let (policy, load) = (policy.clone(), Load::Level(level));
                        trials.push(cell.trial(policy, levels.at(level), load, *seed));
                    }
                }
            }
        }
        trials
    }

    fn requests(&self, source: &WorkloadSource, topology: Topology) -> usize {
        let full = standard_requests(source, topology.workers()) as f64;
        let wanted = (full * self.size).ceil() as usize;
        match source {
            WorkloadSource::Generated(_) => wanted.max(1),
            // Half of the rows at most, so that seeds can differ.
            WorkloadSource::Recorded(trace) => wanted.min(trace.workload.requests() / 2).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::OfferedLoad;

    fn suite() -> Suite {
        let catalog = Catalog::default();
        Suite {
            policies: ["default", "random"]
                .map(|name| Policy::named(name, &catalog).unwrap())
                .to_vec(),
            sources: [Generator::Chat, Generator::Paper]
                .map(WorkloadSource::Generated)
                .to_vec(),
            topologies: vec!["1".parse().unwrap(), "1P1D".parse().unwrap()],
            engine: Engine::load("fixed").unwrap(),
            seeds: vec![3, 4, 5],
            size: 0.1,
            settings: Settings::default(),
        }
    }

    #[test]
    fn a_suite_has_every_cell_level_seed_and_policy_once() {
        let levels = Levels {
            light: OfferedLoad::Rate(1.0),
            knee: OfferedLoad::Rate(2.0),
            saturated: OfferedLoad::Rate(3.0),
        };
        let suite = suite();
        let trials = suite.trials(&[Some(levels); 4]);
        // 4 cells, 3 levels, 3 seeds, 2 policies.
        assert_eq!(trials.len(), 72);
        let mut keys: Vec<String> = trials.iter().map(Trial::key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 72);
        assert_eq!(suite.trials(&[Some(levels), None, None, None]).len(), 18);
        // A tenth of 1600 for four workers, and half of that for one.
        assert_eq!(trials[0].scale.requests, 80);
    }

    #[test]
    fn every_policy_but_the_double_of_the_default_is_standard() {
        let names = standard_policies(&Catalog::default()).unwrap();
        assert!(names.iter().any(|name| name == "regime-aware"));
        assert!(!names.iter().any(|name| name == "dynamo-default-cost-fn"));
    }
}
