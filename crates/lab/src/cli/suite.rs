// SPDX-License-Identifier: Apache-2.0

//! `regime-lab suite standard`, `stress` and `tiers`: the scoreboards.
//!
//! With `--out` each finished run is noted at once. The same command goes on where it was interrupted.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;

use super::args::{FleetArgs, Level, OutputArgs, SeedArgs, distinct, policies, size};
use super::{output, progress, tables};
use crate::engines::Engine;
use crate::experiments::{
    Condition, Journal, Part, Runner, Suite, TierSuite, compare, scoreboard, standard_policies,
};
use crate::policies::{Catalog, Policy};
use crate::report;
use crate::results::Results;
use crate::topology::Topology;
use crate::traces::{ReadOptions, TraceError};
use crate::workloads::{Generator, SourceError, WorkloadSource};

/// Number of seeds where none is given.
const USUAL_SEEDS: u16 = 3;
const BASELINE: &str = "default";

/// Share of the standard requests in a run of the suite of tiers, which has many.
const TIERS_SIZE: f64 = 0.5;

/// Policies of the quick standard suite and of the stress suite.
const QUICK_POLICIES: [&str; 5] = [
    BASELINE,
    "dynamo-two-tier-cost-fn",
    "regime-aware",
    "round-robin",
    "lmetric",
];
const QUICK_WORKLOADS: [Generator; 4] = [
    Generator::Chat,
    Generator::MixedLengths,
    Generator::WorkingSet,
    Generator::PaperMixed,
];
const QUICK_TOPOLOGIES: [&str; 2] = ["4", "2P3D"];
const TOPOLOGIES: [&str; 4] = ["4", "8", "32", "2P3D"];

/// Workloads of each condition in the quick stress suite, on the first of its pools.
const QUICK_STRESS: usize = 2;

#[derive(Debug, Subcommand)]
pub(super) enum Args {
    /// Every workload at light, knee and saturated load on pools of 4, 8, 32 and 2P3D
    Standard(StandardArgs),
    /// Policies where something is wrong with the fleet, or with what they take it for
    Stress(StressArgs),
    /// Ways to count cached blocks in lower tiers, over link, cache size, sharing, load and ω
    Tiers(TiersArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct StandardArgs {
    #[command(flatten)]
    common: SuiteArgs,
    /// Add every trace in this folder
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Workloads; absent: all
    #[arg(long, value_name = "W,W,…", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Pools; absent: 4, 8, 32 and 2P3D
    #[arg(long = "topology", value_name = "T,T,…", value_delimiter = ',')]
    topologies: Vec<Topology>,
    /// Loads; absent: all three
    #[arg(
        long,
        value_name = "L,L,…",
        value_delimiter = ',',
        default_values = ["light", "knee", "saturated"],
        hide_default_value = true
    )]
    loads: Vec<Level>,
}

#[derive(Debug, clap::Args)]
pub(super) struct StressArgs {
    #[command(flatten)]
    common: SuiteArgs,
    /// Conditions: late-events, priors-high, priors-low, slow-worker, large-pools; absent: all
    #[arg(long, value_name = "C,C,…", value_delimiter = ',')]
    conditions: Vec<Condition>,
}

#[derive(Debug, clap::Args)]
pub(super) struct TiersArgs {
    #[command(flatten)]
    common: SuiteArgs,
    /// Generated workloads; absent: cold-burst, chat and working-set
    #[arg(long, value_name = "W,W,…", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Conditions: host-63, disk-10, slow-4, omega-0.1, omega-0.5, omega-2, omega-4; absent: all
    #[arg(long, value_name = "C,C,…", value_delimiter = ',')]
    conditions: Vec<String>,
}

/// What all suites have.
#[derive(Debug, clap::Args)]
struct SuiteArgs {
    /// Fewer workloads and pools, and of the standard suite fewer policies: a few minutes on two cores
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    seeds: SeedArgs,
    /// Policies, each compared with default; absent: all in the standard suite, five in the stress suite and
    /// where it is quick. In the suite of tiers: weights, the baseline there, time, time-preset, device,
    /// session-target, or any other
    #[arg(long, value_name = "P,P,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Requests of each run as a share of the standard number; absent: 1, in the suite of tiers 0.5
    #[arg(long, value_name = "X", value_parser = size)]
    size: Option<f64>,
    /// Forget the finished runs in the folder of --out
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub(super) fn main(
    args: &Args,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let (common, parts, baseline, usual_size) = match args {
        Args::Standard(args) => {
            let part = args.part(output, catalog)?;
            (&args.common, vec![part], BASELINE, 1.0)
        }
        Args::Stress(args) => (&args.common, args.parts(output, catalog)?, BASELINE, 1.0),
        Args::Tiers(args) => {
            let parts = args.parts(catalog)?;
            (&args.common, parts, TierSuite::BASELINE, TIERS_SIZE)
        }
    };
    let suite = Suite {
        parts,
        engine: common.fleet.engine()?,
        seeds: common.seeds.list(USUAL_SEEDS)?,
        size: common.size.unwrap_or(usual_size),
    };
    for cell in suite.cells() {
        cell.check(cell.source.default_scale().load)?;
    }
    output::prepare(output)?;
    let journal = output::journal(output, common.fresh)?;
    Ok(output::outcome(run(
        &suite,
        baseline,
        journal.as_ref(),
        output,
        catalog,
    )))
}

fn run(
    suite: &Suite,
    baseline: &str,
    journal: Option<&Journal>,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let bar = progress::bar(output, suite.runs());
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal,
        finished: &|| bar.inc(1),
    };
    let mut code = ExitCode::SUCCESS;
    let mut levels = Vec::new();
    for found in suite.search(&runner)? {
        levels.push(match found {
            Ok(levels) => Some(levels),
            Err(error) => {
                let whole = anyhow::Error::new(error);
                bar.suspend(|| output::say(&format!("{whole:#}")));
                code = ExitCode::FAILURE;
                None
            }
        });
    }
    let trials = suite.trials(&levels);
    bar.set_length(bar.position() + trials.len() as u64);
    let (runs, runs_code) = output::sort_out(&trials, runner.run(&trials));
    bar.finish_and_clear();
    if runs_code != ExitCode::SUCCESS {
        code = runs_code;
    }
    let mut results = Results::new(output::provenance(), runs);
    results.comparisons = compare(&results.runs, baseline);
    results.scoreboard = scoreboard(&results.runs, baseline);
    let plotted = trials.iter().filter(|trial| suite.plots(trial));
    output::finish(
        output,
        &results,
        || output::details(plotted, catalog),
        || tables::scoreboard(&results, baseline),
    )?;
    if let Some(folder) = output.report.as_deref().filter(|_| suite.has_tiers()) {
        report::write_tiers(folder, &results)?;
    }
    Ok(code)
}

impl StandardArgs {
    fn part(&self, output: &OutputArgs, catalog: &Catalog) -> anyhow::Result<Part> {
        let quick = self.common.quick;
        let policies = self.common.policies(catalog, || {
            if quick {
                return Ok(QUICK_POLICIES.map(str::to_owned).to_vec());
            }
            Ok(standard_policies(catalog)?)
        })?;
        let mut sources: Vec<WorkloadSource> = if !self.workloads.is_empty() {
            let open = |name: &String| WorkloadSource::open(name, &ReadOptions::default());
            self.workloads.iter().map(open).collect::<Result<_, _>>()?
        } else if quick {
            QUICK_WORKLOADS.map(WorkloadSource::Generated).to_vec()
        } else {
            Generator::STANDARD.map(WorkloadSource::Generated).to_vec()
        };
        if let Some(folder) = &self.traces {
            sources.extend(traces(folder, output)?);
        }
        let standard: &[&str] = if quick {
            &QUICK_TOPOLOGIES
        } else {
            &TOPOLOGIES
        };
        let topologies = if self.topologies.is_empty() {
            standard
                .iter()
                .map(|name| name.parse())
                .collect::<Result<_, _>>()?
        } else {
            distinct(self.topologies.iter().copied())
        };
        let settings = self.common.fleet.settings();
        Ok(Part {
            condition: None,
            tiers: None,
            policies,
            sources: WorkloadSource::distinct(sources),
            topologies,
            loads: distinct(self.loads.iter().map(|level| level.load())),
            searched: settings.clone(),
            settings,
        })
    }
}

impl StressArgs {
    fn parts(&self, output: &OutputArgs, catalog: &Catalog) -> anyhow::Result<Vec<Part>> {
        let quick = QUICK_POLICIES.map(str::to_owned).to_vec();
        let policies = self.common.policies(catalog, || Ok(quick))?;
        let settings = self.common.fleet.settings();
        let conditions = if self.conditions.is_empty() {
            Condition::ALL.to_vec()
        } else {
            distinct(self.conditions.iter().copied())
        };
        let is_file = |policy: &Policy| Path::new(policy.label()).is_file();
        if policies.iter().any(is_file) && conditions.iter().any(|it| it.changes_policies()) {
            output.note("priors are changed of the named policy regime-aware, not of policy files");
        }
        let mut parts = Vec::new();
        for condition in conditions {
            let mut part = condition.part(&policies, &settings)?;
            if self.common.quick {
                part.sources.truncate(QUICK_STRESS);
                part.topologies.truncate(1);
            }
            parts.push(part);
        }
        Ok(parts)
    }
}

impl TiersArgs {
    fn parts(&self, catalog: &Catalog) -> anyhow::Result<Vec<Part>> {
        let fleet = &self.common.fleet;
        let given = fleet.engine_settings()?;
        let suite = TierSuite {
            quick: self.common.quick,
            workloads: (self.workloads.iter())
                .map(|name| match WorkloadSource::open(name, &ReadOptions::default())? {
                    WorkloadSource::Generated(generator) => Ok(generator),
                    WorkloadSource::Recorded(_) => {
                        anyhow::bail!("--workloads {name}: the suite of tiers takes generated workloads alone")
                    }
                })
                .collect::<Result<_, _>>()?,
            conditions: self.conditions.clone(),
            size: self.common.size.unwrap_or(TIERS_SIZE),
            settings: fleet.settings(),
            catalog,
            policies: match self.common.policies.is_empty() {
                true => TierSuite::POLICIES.map(str::to_owned).to_vec(),
                false => self.common.policies.clone(),
            },
            engine: &|settings| {
                let mut all = given.clone();
                all.extend(settings);
                Engine::load_with(fleet.engine_name(), &all)
            },
        };
        Ok(suite.parts()?)
    }
}

impl SuiteArgs {
    /// The baseline, and the policies named or else those that are `usual`.
    fn policies(
        &self,
        catalog: &Catalog,
        usual: impl FnOnce() -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Vec<Policy>> {
        let mut names = vec![BASELINE.to_owned()];
        if self.policies.is_empty() {
            names.extend(usual()?);
        } else {
            names.extend(self.policies.clone());
        }
        policies(&names, catalog)
    }
}

/// Every trace in `folder`, in the order of names; files that are none are passed over, which is said.
fn traces(folder: &Path, output: &OutputArgs) -> anyhow::Result<Vec<WorkloadSource>> {
    let name = folder.display();
    let mut files = std::fs::read_dir(folder)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.path()))
                .collect::<Result<Vec<_>, _>>()
        })
        .with_context(|| format!("folder of traces {name}"))?;
    files.retain(|file| file.is_file());
    files.sort();
    let mut sources = Vec::new();
    for file in files {
        let file = format!("trace:{}", file.display());
        match WorkloadSource::open(&file, &ReadOptions::default()) {
            Ok(source) => sources.push(source),
            Err(SourceError::Trace(TraceError::UnknownFormat { file, .. })) => {
                output.note(&format!("passed over, since it is no trace: {file}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::ensure!(
        !sources.is_empty(),
        "folder of traces {name}: no file in it is a trace"
    );
    Ok(sources)
}
