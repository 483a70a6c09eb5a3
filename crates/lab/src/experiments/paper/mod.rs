// SPDX-License-Identifier: Apache-2.0

//! The paper, reproduced: its setting in the simulator, and variants in which policies can differ.
//!
//! # The setting
//!
//! Five templates of 128 tokens, 256 tokens asked for, a closed loop of 1 to 256 sessions, one prefill and two or
//! five decode workers, a 70B model on B200. The policies are the paper's static rule, which is its row below
//! saturation for ever (τ 0, ω 1, the formula of Dynamo's default policy), its adaptive rule, Dynamo's default
//! and the calibrated rule of this project. Besides, a grid of fixed (τ, ω) below and at saturation.
//!
//! # Why variants
//!
//! With one prefill worker there is nothing to choose before the first token. With answers of equal length all
//! sessions go in lockstep, and decode workers that get equally many are equally loaded. So the setting as
//! published can hardly tell policies apart, whatever they are; and with the engine's usual limits its knee is
//! not where the paper has it. Two fleets therefore have the engine `b200-70b-narrow`, whose prefill is slow enough
//! for the knee to be there, and three differ in what makes a choice matter: mixed answers, more prefill
//! workers, mixed prompts behind them.
//!
//! # How it is measured
//!
//! Each run has 30 requests a session and 120 more. The first third is not measured: all sessions begin at once,
//! and the paper's controller needs three polls of 5 s before it leaves its first row.
//!
//! Source: "The Price of Anarchy in Disaggregated Inference" (arXiv 2606.17081). Which sixteen pairs it sweeps and
//! its thresholds are not known to us; ours hold its three rows.

mod findings;
mod published;
mod verdict;

use regime_policy::POLICY_TYPE;
use serde_json::{Value, json};

pub use findings::{
    AnarchyLine, Finding, FleetReport, Gap, PaperReport, Separation, Sweep, SweepPoint,
};
pub use verdict::Outcome;

use super::load_search::{Cell, Found};
use super::sweep::{Axis, grid};
use super::trial::{Trial, TrialError};
use crate::engines::{Engine, EngineError};
use crate::policies::{Catalog, Policy, PolicyError};
use crate::results::RunEntry;
use crate::run::{Load, Settings};
use crate::topology::Topology;
use crate::workloads::{Generator, OfferedLoad, WorkloadSource};

/// The paper's rule at its row below saturation for ever.
pub const STATIC: &str = "paper-static";
/// The paper's rule with its whole table.
pub const ADAPTIVE: &str = "paper-adaptive";
/// Condition of the runs of the sweep.
pub const SWEEP: &str = "sweep";

/// Sessions at once.
pub const SESSIONS: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256];
/// Those of a quick reproduction.
pub const QUICK_SESSIONS: [usize; 5] = [1, 32, 96, 128, 256];

/// Requests of each session.
const REQUESTS_PER_SESSION: usize = 30;
/// Requests of each run besides, so that few sessions give a sample, too.
const REQUESTS_BESIDES: usize = 120;
/// Part of the requests that is not measured, and so often requests a session must have.
const WARM_UP_PART: usize = 3;
/// Most sessions of the sweep below saturation.
const BELOW_SATURATION: usize = 64;
const TAUS: [f64; 4] = [0.0, 0.4, 0.7, 0.8];
const OMEGAS: [f64; 4] = [0.1, 0.5, 1.0, 2.0];

/// A fleet with its workload.
#[derive(Debug, PartialEq)]
pub struct Fleet {
    /// Name in options and results.
    pub name: &'static str,
    /// One line on what it is for.
    pub about: &'static str,
    /// What arrives.
    pub workload: Generator,
    /// How many workers.
    pub topology: Topology,
    /// What they run: a preset.
    pub engine: &'static str,
    /// Whether the (τ, ω) pairs are swept on it.
    pub swept: bool,
}

const AS_PUBLISHED: &str = "b200-70b";
const NARROW: &str = "b200-70b-narrow";

const fn split(prefill: usize, decode: usize) -> Topology {
    Topology::Disaggregated { prefill, decode }
}

/// Every fleet.
pub const FLEETS: [Fleet; 7] = [
    Fleet {
        name: "1P2D",
        about: "as published",
        workload: Generator::Paper,
        topology: split(1, 2),
        engine: AS_PUBLISHED,
        swept: false,
    },
    Fleet {
        name: "1P5D",
        about: "as published",
        workload: Generator::Paper,
        topology: split(1, 5),
        engine: AS_PUBLISHED,
        swept: true,
    },
    Fleet {
        name: "narrow-1P2D",
        about: "as published, with prefill slow enough for the published knee",
        workload: Generator::Paper,
        topology: split(1, 2),
        engine: NARROW,
        swept: false,
    },
    Fleet {
        name: "narrow-1P5D",
        about: "as published, with prefill slow enough for the published knee",
        workload: Generator::Paper,
        topology: split(1, 5),
        engine: NARROW,
        swept: false,
    },
    Fleet {
        name: "mixed-answers",
        about: "answers of 16 to 1,024 tokens, so that decode workers differ",
        workload: Generator::PaperMixed,
        topology: split(1, 2),
        engine: AS_PUBLISHED,
        swept: false,
    },
    Fleet {
        name: "more-prefill",
        about: "three slow prefill workers, so that there is a choice before the first token",
        workload: Generator::Paper,
        topology: split(3, 5),
        engine: NARROW,
        swept: false,
    },
    Fleet {
        name: "mixed-prompts",
        about: "three slow prefill workers, and prompts of 128 to 2,176 tokens that differ in work and in what is cached",
        workload: Generator::PaperPrompts,
        topology: split(3, 5),
        engine: NARROW,
        swept: true,
    },
];

/// A reproduction that cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// No such fleet.
    #[error("fleet {given:?} is unknown; allowed are {}", FLEETS.map(|it| it.name).join(", "))]
    Fleet {
        /// What was asked for.
        given: String,
    },
    /// A policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A run that could not be run.
    #[error(transparent)]
    Trial(#[from] TrialError),
}

impl Fleet {
    /// The fleet of that name.
    ///
    /// # Errors
    /// When there is none; with the names.
    pub fn named(given: &str) -> Result<&'static Self, PaperError> {
        const ALL: &[Fleet] = &FLEETS;
        let found = ALL.iter().find(|fleet| fleet.name == given);
        found.ok_or_else(|| PaperError::Fleet {
            given: given.to_owned(),
        })
    }

    /// Whether the run is one of this fleet, outside of the sweep.
    fn has(&self, run: &RunEntry) -> bool {
        run.condition.is_none() && self.is_place_of(run)
    }

    /// Whether it has the published workload and these workers, or those of any published fleet.
    fn is_of(&self, topology: Option<Topology>) -> bool {
        let one_prefill = matches!(self.topology, Topology::Disaggregated { prefill: 1, .. });
        self.workload == Generator::Paper && topology.map_or(one_prefill, |it| it == self.topology)
    }

    fn is_place_of(&self, run: &RunEntry) -> bool {
        run.workload == self.workload.name()
            && run.topology == self.topology.to_string()
            && run.engine == self.engine
    }
}

/// A pair of the sweep.
struct Pair {
    tau: f64,
    omega: f64,
    policy: Policy,
}

/// A reproduction to run.
pub struct Paper {
    fleets: Vec<&'static Fleet>,
    /// Ascending.
    sessions: Vec<usize>,
    seeds: Vec<u64>,
    size: f64,
    policies: Vec<Policy>,
    pairs: Vec<Pair>,
}

impl Paper {
    /// Plan it: these fleets with so many sessions at once and these seeds; `size` scales the requests of each run.
    ///
    /// # Errors
    /// When a policy cannot be built or a run would be out of range.
    pub fn new(
        fleets: Vec<&'static Fleet>,
        mut sessions: Vec<usize>,
        seeds: Vec<u64>,
        size: f64,
        catalog: &Catalog,
    ) -> Result<Self, PaperError> {
        sessions.sort_unstable();
        sessions.dedup();
        let paper = |label, parameters: Value| {
            let Value::Object(parameters) = parameters else {
                return Policy::named(POLICY_TYPE, catalog);
            };
            Policy::named(POLICY_TYPE, catalog)?.with_parameters(parameters, label)
        };
        let row = json!({"tau": 0.0, "omega": 1.0});
        let policies = vec![
            paper(
                STATIC,
                json!({"cost": "paper", "paper": {"below": row, "transition": row, "saturated": row}}),
            )?,
            paper(ADAPTIVE, json!({"cost": "paper"}))?,
            Policy::named("default", catalog)?,
            Policy::named(POLICY_TYPE, catalog)?,
        ];
        for policy in &policies {
            policy.check(catalog)?;
        }
        let plan = Self {
            fleets,
            sessions,
            seeds,
            size,
            policies,
            pairs: pairs(catalog)?,
        };
        for fleet in &plan.fleets {
            for sessions in &plan.sessions {
                plan.cell(fleet, *sessions)?
                    .check(OfferedLoad::Concurrency(*sessions))?;
            }
        }
        Ok(plan)
    }

    /// Every policy on every fleet at every load, policies innermost, so that they share their workload.
    ///
    /// # Errors
    /// When an engine cannot be loaded.
    pub fn trials(&self) -> Result<Vec<Trial>, PaperError> {
        let cells = self
            .fleets
            .iter()
            .flat_map(|fleet| self.sessions.iter().map(move |it| (*fleet, *it)));
        self.trials_of(cells, &self.policies.iter().collect::<Vec<_>>())
    }

    /// The sweep: every pair below and at saturation.
    ///
    /// # Errors
    /// When an engine cannot be loaded.
    pub fn sweep(&self) -> Result<Vec<Trial>, PaperError> {
        let calm = self
            .sessions
            .iter()
            .rev()
            .find(|it| **it <= BELOW_SATURATION);
        let mut loads: Vec<usize> = calm
            .or(self.sessions.first())
            .copied()
            .into_iter()
            .collect();
        loads.extend(self.sessions.last());
        loads.dedup();
        let swept = self.fleets.iter().filter(|fleet| fleet.swept);
        let cells = swept.flat_map(|fleet| loads.iter().map(move |it| (*fleet, *it)));
        let policies: Vec<_> = self.pairs.iter().map(|pair| &pair.policy).collect();
        self.trials_of(cells, &policies)
    }

    /// Whether a page shows plots of the trial: of each fleet the first seed at the first load beyond the published
    /// knee.
    #[must_use]
    pub fn plots(&self, trial: &Trial) -> bool {
        let beyond = self
            .sessions
            .iter()
            .find(|it| **it >= published::SATURATED_FROM);
        let shown = beyond.or(self.sessions.last());
        self.seeds.first() == Some(&trial.scale.seed)
            && shown.map(|it| OfferedLoad::Concurrency(*it)) == Some(trial.scale.load)
    }

    /// What the runs say; those of the sweep have its [condition](SWEEP).
    #[must_use]
    pub fn report(&self, runs: &mut [RunEntry]) -> PaperReport {
        findings::report(self, runs)
    }

    fn trials_of(
        &self,
        cells: impl Iterator<Item = (&'static Fleet, usize)>,
        policies: &[&Policy],
    ) -> Result<Vec<Trial>, PaperError> {
        let mut trials = Vec::new();
        for (fleet, sessions) in cells {
            let cell = self.cell(fleet, sessions)?;
            let found = Found::given(OfferedLoad::Concurrency(sessions));
            for seed in &self.seeds {
                let load = Load::Number(sessions as f64);
                trials.extend(
                    policies
                        .iter()
                        .map(|policy| cell.trial((*policy).clone(), found, load, *seed)),
                );
            }
        }
        Ok(trials)
    }

    fn cell(&self, fleet: &Fleet, sessions: usize) -> Result<Cell, PaperError> {
        let full = (REQUESTS_PER_SESSION * sessions + REQUESTS_BESIDES) as f64;
        let requests = ((full * self.size).ceil() as usize).max(WARM_UP_PART * sessions);
        Ok(Cell {
            source: WorkloadSource::Generated(fleet.workload),
            engine: Engine::load(fleet.engine)?,
            topology: fleet.topology,
            requests,
            settings: Settings {
                warm_up: requests / WARM_UP_PART,
                ..Settings::default()
            },
        })
    }
}

fn pairs(catalog: &Catalog) -> Result<Vec<Pair>, PolicyError> {
    let axis = |name: &str, values: &[f64]| Axis {
        name: name.to_owned(),
        values: values.iter().map(|value| json!(value)).collect(),
    };
    let axes = [axis("tau", &TAUS), axis("omega", &OMEGAS)];
    let policies = grid(POLICY_TYPE, &axes, catalog)?;
    let values = TAUS
        .iter()
        .flat_map(|tau| OMEGAS.iter().map(move |omega| (*tau, *omega)));
    Ok(values
        .zip(policies)
        .map(|((tau, omega), policy)| Pair { tau, omega, policy })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paper(fleets: &[&str], sessions: &[usize], size: f64) -> Paper {
        let fleets = fleets.iter().map(|it| Fleet::named(it).unwrap()).collect();
        let catalog = Catalog::default();
        Paper::new(fleets, sessions.to_vec(), vec![1, 2, 3], size, &catalog).unwrap()
    }

    #[test]
    fn the_whole_plan_has_every_fleet_load_seed_and_policy_and_the_sweep_below_and_at_saturation() {
        let names = FLEETS.map(|fleet| fleet.name);
        let paper = paper(&names, &SESSIONS, 1.0);
        let (trials, sweep) = (paper.trials().unwrap(), paper.sweep().unwrap());
        assert_eq!(trials.len(), 7 * 11 * 3 * 4);
        assert_eq!(sweep.len(), 2 * 2 * 3 * 16);
        let loads: Vec<_> = sweep.iter().map(|trial| trial.scale.load).collect();
        assert_eq!(loads[0], OfferedLoad::Concurrency(64));
        assert_eq!(loads[47], OfferedLoad::Concurrency(64));
        assert_eq!(loads[48], OfferedLoad::Concurrency(256));
        // Plots of each fleet at 128 sessions.
        assert_eq!(
            trials.iter().filter(|trial| paper.plots(trial)).count(),
            7 * 4
        );
    }

    #[test]
    fn a_third_of_the_requests_warms_up_and_every_session_has_a_few() {
        let requests = |size| {
            let trials = paper(&["1P2D"], &[96], size).trials().unwrap();
            (trials[0].scale.requests, trials[0].settings.warm_up)
        };
        assert_eq!(requests(1.0), (3_000, 1_000));
        assert_eq!(requests(0.001), (288, 96));
    }

    #[test]
    fn the_sweep_holds_the_three_rows_of_the_paper_once() {
        let paper = paper(&["1P5D"], &[1], 1.0);
        for row in [(0.0, 1.0), (0.7, 1.0), (0.8, 0.1)] {
            let same = |pair: &&Pair| (pair.tau, pair.omega) == row;
            assert_eq!(paper.pairs.iter().filter(same).count(), 1, "{row:?}");
        }
        let label = paper.pairs[1].policy.label();
        assert_eq!(label, "regime-aware tau=0.0 omega=0.5");
    }

    #[test]
    fn loads_are_run_once_and_in_order_and_one_load_is_swept_once() {
        let paper = paper(&["1P5D"], &[8, 1, 8], 1.0);
        assert_eq!(paper.sessions, [1, 8]);
        assert_eq!(paper.sweep().unwrap().len(), 3 * 16);
    }

    #[test]
    fn an_unknown_fleet_gets_the_names() {
        let error = Fleet::named("2P2D").unwrap_err().to_string();
        assert!(
            error.contains("\"2P2D\"") && error.contains("narrow-1P5D, mixed-answers"),
            "{error}"
        );
    }
}
