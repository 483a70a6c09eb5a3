// SPDX-License-Identifier: Apache-2.0

//! `regime-lab compare`: policies on the same arrivals, seed by seed.

use std::process::ExitCode;

use super::args::{OutputArgs, ScenarioArgs, SeedArgs, policies};
use super::{output, progress, tables};
use crate::experiments::{Cell, Runner, Trial, compare};
use crate::policies::{Catalog, Policy};
use crate::results::Results;
use crate::topology::Topology;

/// Number of seeds where none is given.
const USUAL_SEEDS: u16 = 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Policies: names from `regime-lab policies`, or router-policy YAML files. A named regime-aware policy
    /// draws with the seed of the run, one from a file with the seed in the file
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
    #[command(flatten)]
    seeds: SeedArgs,
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
    let seeds = args.seeds.list(USUAL_SEEDS)?;
    let cells = args
        .scenario
        .cells(&args.workloads, &args.topologies, seeds.len(), output)?;
    output::prepare(output)?;
    Ok(output::outcome(run(
        args, &cells, &policies, &seeds, output, catalog,
    )))
}

fn run(
    args: &Args,
    cells: &[Cell],
    policies: &[Policy],
    seeds: &[u64],
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let searches = args.scenario.load.searches(cells);
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
    for cell in cells {
        let (found, load) = args.scenario.load.offered(cell, &runner)?;
        for seed in seeds {
            trials.extend(
                policies
                    .iter()
                    .map(|policy| cell.trial(policy.clone(), found, load, *seed)),
            );
        }
    }
    bar.set_length(bar.position() + trials.len() as u64);
    let (runs, code) = output::sort_out(&trials, runner.run(&trials));
    bar.finish_and_clear();
    let mut results = Results::new(output::provenance(), runs);
    results.comparisons = compare(&results.runs, &args.baseline);
    let first_seed = trials.iter().filter(|trial| trial.scale.seed == seeds[0]);
    output::finish(
        output,
        &results,
        || output::details(first_seed, catalog),
        || tables::comparisons(&results.comparisons),
    )?;
    Ok(code)
}
