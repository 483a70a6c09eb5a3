// SPDX-License-Identifier: Apache-2.0

//! `regime-lab sweep`: a grid of policy parameters.

use std::process::ExitCode;

use super::args::{OutputArgs, ScenarioArgs, SeedArgs};
use super::{output, progress, tables};
use crate::experiments::{Axis, Cell, Runner, Trial, grid, mark_pareto};
use crate::policies::{Catalog, Policy};
use crate::results::Results;
use crate::topology::Topology;

/// Number of seeds where none is given.
const USUAL_SEEDS: u16 = 5;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Parameter and values to try, such as calibrated.price_per_waiting=1,2,4; omega and tau stand for
    /// those of all rows of the paper's table and switch to cost=paper, in which calibrated.… means nothing
    #[arg(long = "param", value_name = "NAME=V,V,…", required = true)]
    axes: Vec<Axis>,
    /// Policy type that has these parameters
    #[arg(long, value_name = "P", default_value = "regime-aware")]
    policy: String,
    /// Workload: a name from `regime-lab workloads`, or trace:FILE
    #[arg(long, value_name = "W", default_value = "chat")]
    workload: String,
    /// Number of workers, such as 4, or prefill and decode workers, such as 2P3D
    #[arg(long, value_name = "T", default_value = "4")]
    topology: Topology,
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
    let policies = grid(&args.policy, &args.axes, catalog)?;
    let seeds = args.seeds.list(USUAL_SEEDS)?;
    let cell = args
        .scenario
        .cell(&args.workload, args.topology, seeds.len(), output)?;
    output::prepare(output)?;
    Ok(output::outcome(run(
        args, &cell, &policies, &seeds, output, catalog,
    )))
}

fn run(
    args: &Args,
    cell: &Cell,
    policies: &[Policy],
    seeds: &[u64],
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let searches = args.scenario.load.searches(std::slice::from_ref(cell));
    let bar = progress::bar(output, searches + seeds.len() * policies.len());
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal: None,
        finished: &|| bar.inc(1),
    };
    let (found, load) = args.scenario.load.offered(cell, &runner)?;
    let trials: Vec<Trial> = seeds
        .iter()
        .flat_map(|seed| {
            policies
                .iter()
                .map(|policy| cell.trial(policy.clone(), found, load, *seed))
        })
        .collect();
    bar.set_length(bar.position() + trials.len() as u64);
    let (mut runs, code) = output::sort_out(&trials, runner.run(&trials));
    bar.finish_and_clear();
    let points = mark_pareto(&mut runs);
    let results = Results::new(output::provenance(), runs);
    let first_seed = trials.iter().filter(|trial| trial.scale.seed == seeds[0]);
    output::finish(
        output,
        &results,
        || output::details(first_seed, catalog),
        || tables::pareto(&points),
    )?;
    Ok(code)
}
