// SPDX-License-Identifier: Apache-2.0

//! `regime-lab replay`: one policy on one workload.

use std::process::ExitCode;

use super::args::{OutputArgs, ScenarioArgs, seed};
use super::{output, progress, tables};
use crate::experiments::{Cell, Runner};
use crate::policies::{Catalog, Policy};
use crate::report::RunDetail;
use crate::results::Results;
use crate::topology::Topology;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Policy: a name from `regime-lab policies`, or a router-policy YAML file. A named regime-aware policy
    /// draws with the seed of the run, one from a file with the seed in the file
    #[arg(long, value_name = "P")]
    policy: String,
    /// Workload: a name from `regime-lab workloads`, or trace:FILE
    #[arg(long, value_name = "W")]
    workload: String,
    /// Number of workers, such as 4, or prefill and decode workers, such as 2P3D
    #[arg(long, value_name = "T", default_value = "4")]
    topology: Topology,
    /// Seed of the workload and of the policy
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    scenario: ScenarioArgs,
}

pub(super) fn main(
    args: &Args,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let policy = Policy::named(&args.policy, catalog)?;
    policy.check(catalog)?;
    let cell = args
        .scenario
        .cell(&args.workload, args.topology, 1, output)?;
    output::prepare(output)?;
    Ok(output::outcome(run(args, &cell, policy, output, catalog)))
}

fn run(
    args: &Args,
    cell: &Cell,
    policy: Policy,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let searches = args.scenario.load.searches(std::slice::from_ref(cell));
    let bar = progress::bar(output, searches + 1);
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal: None,
        finished: &|| bar.inc(1),
    };
    let (found, load) = args.scenario.load.offered(cell, &runner)?;
    let trial = cell.trial(policy, found, load, args.seed);
    let (experiment, run) = trial.run(catalog)?;
    bar.finish_and_clear();
    let entry = trial.entry(&experiment, &run);
    let results = Results::new(output::provenance(), vec![entry]);
    output::finish(
        output,
        &results,
        || vec![RunDetail::from_run(&experiment, &run)],
        || results.runs.iter().map(tables::replay).collect(),
    )?;
    if run.metrics.completed == 0 {
        output::say("nothing completed");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
