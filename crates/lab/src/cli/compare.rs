// SPDX-License-Identifier: Apache-2.0

//! `regime-lab compare`: policies on the same arrivals, seed by seed.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use super::args::{OutputArgs, ScenarioArgs, policies, seeds};
use super::{output, progress, tables};
use crate::experiments::{Cell, Runner, Trial, compare};
use crate::policies::Catalog;
use crate::results::Results;
use crate::topology::Topology;
use crate::workloads::WorkloadSource;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Policies: names from `regime-lab policies`, or router-policy YAML files
    #[arg(long, value_name = "P,P,…", value_delimiter = ',', required = true)]
    policies: Vec<String>,
    /// Workloads: names from `regime-lab workloads`, or trace:FILE
    #[arg(long, value_name = "W,W,…", value_delimiter = ',', required = true)]
    workloads: Vec<String>,
    /// Policy that the others are compared with
    #[arg(long, value_name = "P", default_value = "default")]
    baseline: String,
    /// Pools, such as 4 or 2P3D
    #[arg(
        long = "topology",
        value_name = "T,T,…",
        value_delimiter = ',',
        default_value = "4"
    )]
    topologies: Vec<Topology>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value = "20")]
    seeds: NonZeroUsize,
    /// First seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    scenario: ScenarioArgs,
}

pub(super) fn main(
    args: &Args,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let mut names = vec![args.baseline.clone()];
    names.extend(
        args.policies
            .iter()
            .filter(|name| **name != args.baseline)
            .cloned(),
    );
    let policies = policies(&names, catalog)?;
    let engine = args.scenario.fleet.engine()?;
    let seeds = seeds(args.seed, args.seeds);
    let mut cells: Vec<Cell> = Vec::new();
    for name in &args.workloads {
        let source = WorkloadSource::open(name, &args.scenario.traces.options())?;
        if let WorkloadSource::Recorded(trace) = &source
            && args
                .scenario
                .load
                .requests()
                .is_none_or(|it| it >= trace.workload.requests())
            && seeds.len() > 1
        {
            output::say(&format!(
                "every seed replays all of {name}, so seeds differ in little; --requests takes another part for each"
            ));
        }
        cells.extend(args.topologies.iter().map(|topology| {
            args.scenario.load.cell(
                source.clone(),
                engine.clone(),
                *topology,
                args.scenario.fleet.settings(),
            )
        }));
    }
    let searches = args.scenario.load.searches(cells.len());
    let bar = progress::bar(
        output,
        searches + cells.len() * seeds.len() * policies.len(),
    );
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal: None,
        finished: &|| bar.inc(1),
    };
    let mut trials: Vec<Trial> = Vec::new();
    for cell in &cells {
        let (offered, load) = args.scenario.load.offered(cell, &runner)?;
        for seed in &seeds {
            trials.extend(
                policies
                    .iter()
                    .map(|policy| cell.trial(policy.clone(), offered, load, *seed)),
            );
        }
    }
    bar.set_length(bar.position() + trials.len() as u64);
    let (runs, code) = output::sort_out(&trials, runner.run(&trials));
    bar.finish_and_clear();
    let mut results = Results::new(output::provenance(), runs);
    results.comparisons = compare(&results.runs, &args.baseline);
    let first_seed = trials.iter().filter(|trial| trial.scale.seed == args.seed);
    output::finish(
        output,
        &results,
        || output::details(first_seed, catalog),
        || tables::comparisons(&results.comparisons),
    )?;
    Ok(code)
}
