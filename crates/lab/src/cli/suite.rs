// SPDX-License-Identifier: Apache-2.0

//! `regime-lab suite standard`: the scoreboard.
//!
//! With `--out` each finished run is noted at once. The same command goes on where it was interrupted.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;

use super::args::{FleetArgs, OutputArgs, policies, seeds};
use super::{output, progress, tables};
use crate::experiments::{Journal, Runner, Suite, compare, standard_policies};
use crate::policies::Catalog;
use crate::results::Results;
use crate::run::{Load, LoadLevel};
use crate::topology::Topology;
use crate::traces::{ReadOptions, TraceError};
use crate::workloads::{Generator, SourceError, WorkloadSource};

const BASELINE: &str = "default";

/// Policies, workloads and pools of the quick suite.
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

#[derive(Debug, Subcommand)]
pub(super) enum Args {
    /// Every workload at light, knee and saturated load on pools of 4, 8, 32 and 2P3D
    Standard(StandardArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct StandardArgs {
    /// Fewer workloads, pools, policies and requests: under two minutes on two cores
    #[arg(long)]
    quick: bool,
    /// Add every trace in this folder
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value = "3")]
    seeds: NonZeroUsize,
    /// First seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Policies, each compared with default; absent: all
    #[arg(long, value_name = "P,P,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Workloads; absent: all
    #[arg(long, value_name = "W,W,…", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Pools; absent: 4, 8, 32 and 2P3D
    #[arg(long = "topology", value_name = "T,T,…", value_delimiter = ',')]
    topologies: Vec<Topology>,
    /// Requests of each run as a share of the standard number
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = size)]
    size: f64,
    /// Forget the finished runs in the folder of --out
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub(super) fn main(
    args: &StandardArgs,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let suite = args.suite(catalog)?;
    let journal = output
        .out
        .as_deref()
        .map(|folder| Journal::open(folder, args.fresh))
        .transpose()?;
    if let Some(finished) = journal.as_ref().map(Journal::finished).filter(|it| *it > 0) {
        output::say(&format!(
            "going on after {finished} finished runs; --fresh begins anew"
        ));
    }
    let bar = progress::bar(output, suite.runs());
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal: journal.as_ref(),
        finished: &|| bar.inc(1),
    };
    let mut code = ExitCode::SUCCESS;
    let mut levels = Vec::new();
    for found in suite.search(&runner)? {
        levels.push(match found {
            Ok(levels) => Some(levels),
            Err(error) => {
                bar.suspend(|| output::say(&error.to_string()));
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
    results.comparisons = compare(&results.runs, BASELINE);
    // A page of every cell would be too long to read: one plotted cell for each workload.
    let plotted = trials.iter().filter(|trial| {
        trial.load == Load::Level(LoadLevel::Knee)
            && trial.scale.seed == args.seed
            && suite.topologies.first() == Some(&trial.topology)
    });
    output::finish(
        output,
        &results,
        || output::details(plotted, catalog),
        || tables::scoreboard(&results.comparisons, BASELINE),
    )?;
    Ok(code)
}

impl StandardArgs {
    fn suite(&self, catalog: &Catalog) -> anyhow::Result<Suite> {
        let mut names = vec![BASELINE.to_owned()];
        names.extend(if !self.policies.is_empty() {
            self.policies.clone()
        } else if self.quick {
            QUICK_POLICIES.map(str::to_owned).to_vec()
        } else {
            standard_policies(catalog)?
        });
        let mut sources: Vec<WorkloadSource> = if !self.workloads.is_empty() {
            let open = |name: &String| WorkloadSource::open(name, &ReadOptions::default());
            self.workloads.iter().map(open).collect::<Result<_, _>>()?
        } else if self.quick {
            QUICK_WORKLOADS.map(WorkloadSource::Generated).to_vec()
        } else {
            Generator::ALL.map(WorkloadSource::Generated).to_vec()
        };
        if let Some(folder) = &self.traces {
            sources.extend(traces(folder)?);
        }
        let standard: &[&str] = if self.quick {
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
            self.topologies.clone()
        };
        Ok(Suite {
            policies: policies(&names, catalog)?,
            sources,
            topologies,
            engine: self.fleet.engine()?,
            seeds: seeds(self.seed, self.seeds),
            size: self.size,
            settings: self.fleet.settings(),
        })
    }
}

/// Every trace in `folder`, in the order of names; files that are none are passed over.
fn traces(folder: &Path) -> anyhow::Result<Vec<WorkloadSource>> {
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
            Err(SourceError::Trace(TraceError::UnknownFormat { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::ensure!(
        !sources.is_empty(),
        "folder of traces {name}: no file in it is a trace"
    );
    Ok(sources)
}

fn size(given: &str) -> Result<f64, String> {
    given
        .parse()
        .ok()
        .filter(|size: &f64| *size > 0.0 && *size <= 100.0)
        .ok_or_else(|| "allowed is a number above 0, at most 100".into())
}
