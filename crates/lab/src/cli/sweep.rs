// SPDX-License-Identifier: Apache-2.0

//! `regime-lab sweep`: a grid of policy parameters.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use super::args::{OutputArgs, ScenarioArgs, seeds};
use super::{output, progress, tables};
use crate::experiments::{Axis, Runner, Trial, grid, mark_pareto};
use crate::policies::Catalog;
use crate::results::Results;
use crate::topology::Topology;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Parameter and values to try, such as calibrated.price_per_waiting=1,2,4; omega and tau stand for
    /// those of all rows of the paper's table
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
    /// Number of seeds
    #[arg(long, value_name = "N", default_value = "5")]
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
    let policies = grid(&args.policy, &args.axes, catalog)?;
    let cell = args.scenario.cell(&args.workload, args.topology)?;
    let seeds = seeds(args.seed, args.seeds);
    let searches = args.scenario.load.searches(1);
    let bar = progress::bar(output, searches + seeds.len() * policies.len());
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal: None,
        finished: &|| bar.inc(1),
    };
    let (offered, load) = args.scenario.load.offered(&cell, &runner)?;
    let trials: Vec<Trial> = seeds
        .iter()
        .flat_map(|seed| {
            policies
                .iter()
                .map(|policy| cell.trial(policy.clone(), offered, load, *seed))
        })
        .collect();
    bar.set_length(bar.position() + trials.len() as u64);
    let (mut runs, code) = output::sort_out(&trials, runner.run(&trials));
    bar.finish_and_clear();
    let points = mark_pareto(&mut runs);
    let results = Results::new(output::provenance(), runs);
    let first_seed = trials.iter().filter(|trial| trial.scale.seed == args.seed);
    output::finish(
        output,
        &results,
        || output::details(first_seed, catalog),
        || tables::pareto(&points),
    )?;
    Ok(code)
}
