// SPDX-License-Identifier: Apache-2.0

//! Trials: runs of a plan, whose workloads are made when they are needed.
//!
//! A plan of a thousand runs would not fit into memory with all its workloads. A [`Trial`] says how its
//! workload is made, and a [`Runner`] makes it once for successive trials that share it, such as
//! policies on the same arrivals.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::journal::{Journal, as_read};
use super::tiers::TierPoint;
use crate::engines::Engine;
use crate::policies::{Catalog, Policy};
use crate::results::{ResultsError, RunEntry};
use crate::run::{Experiment, Load, Run, RunError, Settings, in_parallel};
use crate::topology::Topology;
use crate::workload::Workload;
use crate::workloads::{Scale, SourceError, WorkloadSource};

/// One run of a plan.
#[derive(Clone)]
pub struct Trial {
    /// Who chooses.
    pub policy: Policy,
    /// What is unusual about it, for the record.
    pub condition: Option<&'static str>,
    /// Where it stands in the suite of tiers.
    pub tier_point: Option<TierPoint>,
    /// Where the workload comes from.
    pub source: WorkloadSource,
    /// Its size, load and seed; the seed is that of the run, too.
    pub scale: Scale,
    /// How heavy that is, for the record.
    pub load: Load,
    /// Whether a search got as far as that load is defined; true where nothing was searched.
    pub load_reached: bool,
    /// What each worker runs.
    pub engine: Engine,
    /// How many workers.
    pub topology: Topology,
    /// The rest.
    pub settings: Settings,
}

/// A trial that gave nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TrialError {
    /// Its workload cannot be made.
    #[error(transparent)]
    Source(#[from] Arc<SourceError>),
    /// It cannot be run.
    #[error(transparent)]
    Run(#[from] Arc<RunError>),
    /// It could not be noted down.
    #[error(transparent)]
    Journal(#[from] Arc<ResultsError>),
}

impl Trial {
    /// Run it by itself.
    ///
    /// # Errors
    /// When the workload cannot be made or the run fails.
    pub fn run(&self, catalog: &Catalog) -> Result<(Experiment, Run), TrialError> {
        let workload = self.source.build(&self.scale).map_err(Arc::new)?;
        self.run_on(Arc::new(workload), catalog)
    }

    /// Tells the trial from every other one that would give something else.
    #[must_use]
    pub fn key(&self) -> String {
        let mut hasher = DefaultHasher::new();
        let load = serde_json::to_string(&self.load).unwrap_or_default();
        format!(
            "{:?} {:?} {:?} {:?} {load} {:?} {} {:?}",
            self.policy,
            self.condition,
            self.tier_point,
            self.scale,
            self.engine,
            self.topology,
            self.settings,
        )
        .hash(&mut hasher);
        // A policy file may change under its name, and so may a trace.
        std::fs::read(self.policy.label()).ok().hash(&mut hasher);
        self.source.name().hash(&mut hasher);
        if let WorkloadSource::Recorded(trace) = &self.source {
            trace.workload.block_size.hash(&mut hasher);
            trace.format.name().hash(&mut hasher);
            std::fs::read(&trace.summary.file).ok().hash(&mut hasher);
        }
        format!("{:016x}", hasher.finish())
    }

    /// What results say of a run of it.
    #[must_use]
    pub fn entry(&self, experiment: &Experiment, run: &Run) -> RunEntry {
        RunEntry {
            condition: self.condition.map(str::to_owned),
            tier_point: self.tier_point,
            load_not_reached: !self.load_reached,
            ..RunEntry::new(experiment, run)
        }
    }

    fn run_on(
        &self,
        workload: Arc<Workload>,
        catalog: &Catalog,
    ) -> Result<(Experiment, Run), TrialError> {
        let experiment = Experiment {
            policy: self.policy.clone(),
            workload,
            engine: self.engine.clone(),
            topology: self.topology,
            seed: self.scale.seed,
            load: Some(self.load),
            offered: Some(self.scale.load),
            settings: self.settings.clone(),
        };
        let run = experiment.run(catalog).map_err(Arc::new)?;
        Ok((experiment, run))
    }

    fn shares_workload_with(&self, other: &Self) -> bool {
        same_source(&self.source, &other.source) && self.scale == other.scale
    }
}

/// Whether both are the same generator, or clones of one recording.
pub(super) fn same_source(one: &WorkloadSource, other: &WorkloadSource) -> bool {
    match (one, other) {
        (WorkloadSource::Generated(one), WorkloadSource::Generated(other)) => one == other,
        (WorkloadSource::Recorded(one), WorkloadSource::Recorded(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

/// Runs trials on several threads; what comes of them does not depend on how many.
pub struct Runner<'a> {
    /// The policies.
    pub catalog: &'a Catalog,
    /// Threads, at least 1.
    pub threads: usize,
    /// Where finished runs are noted and looked up.
    pub journal: Option<&'a Journal>,
    /// Called after each trial.
    pub finished: &'a (dyn Fn() + Sync),
}

impl Runner<'_> {
    /// Run `trials`; results are in their order.
    #[must_use]
    pub fn run(&self, trials: &[Trial]) -> Vec<Result<RunEntry, TrialError>> {
        let groups = groups(trials);
        let workloads = Workloads::new(self.threads);
        in_parallel(trials.len(), self.threads, |index| {
            let trial = &trials[index];
            let result = self.one(trial, || workloads.get(groups[index], trial));
            (self.finished)();
            result
        })
    }

    fn one(
        &self,
        trial: &Trial,
        workload: impl FnOnce() -> Result<Arc<Workload>, Arc<SourceError>>,
    ) -> Result<RunEntry, TrialError> {
        let key = self.journal.map(|_| trial.key()).unwrap_or_default();
        if let Some(known) = self.journal.and_then(|journal| journal.get(&key)) {
            return Ok(known.clone());
        }
        let (experiment, run) = trial.run_on(workload()?, self.catalog)?;
        let entry = trial.entry(&experiment, &run);
        if let Some(journal) = self.journal {
            journal.add(key, &entry).map_err(Arc::new)?;
        }
        Ok(as_read(entry))
    }
}

/// For each trial the number of its group: successive trials that share their workload.
fn groups(trials: &[Trial]) -> Vec<usize> {
    let mut group = 0;
    let mut groups = Vec::with_capacity(trials.len());
    for (index, trial) in trials.iter().enumerate() {
        if index > 0 && !trial.shares_workload_with(&trials[index - 1]) {
            group += 1;
        }
        groups.push(group);
    }
    groups
}

type Made = Arc<OnceLock<Result<Arc<Workload>, Arc<SourceError>>>>;

/// The workloads of the last few groups.
struct Workloads {
    recent: Mutex<VecDeque<(usize, Made)>>,
    kept: usize,
}

impl Workloads {
    /// Threads work on as many groups at most.
    fn new(threads: usize) -> Self {
        Self {
            recent: Mutex::default(),
            kept: threads.max(1),
        }
    }

    fn get(&self, group: usize, trial: &Trial) -> Result<Arc<Workload>, Arc<SourceError>> {
        let made = {
            let mut recent = self.recent.lock();
            match recent.iter().find(|(known, _)| *known == group) {
                Some((_, made)) => Arc::clone(made),
                None => {
                    let made = Made::default();
                    recent.push_back((group, Arc::clone(&made)));
                    if recent.len() > self.kept {
                        recent.pop_front();
                    }
                    made
                }
            }
        };
        made.get_or_init(|| {
            trial
                .source
                .build(&trial.scale)
                .map(Arc::new)
                .map_err(Arc::new)
        })
        .clone()
    }
}
