// SPDX-License-Identifier: Apache-2.0

//! `regime-lab paper`: the paper's setting, and variants in which policies can differ.
//!
//! With `--out` each finished run is noted at once. The same command goes on where it was interrupted.

use std::process::ExitCode;

use super::args::{OutputArgs, SeedArgs, count, distinct, size};
use super::{output, progress, tables};
use crate::experiments::{
    FLEETS, Fleet, Journal, Paper, QUICK_SESSIONS, Runner, SESSIONS, STATIC, SWEEP, compare,
};
use crate::policies::Catalog;
use crate::results::Results;

/// Number of seeds where none is given, as many as the paper has repeats.
const USUAL_SEEDS: u16 = 3;
const QUICK_SEEDS: u16 = 2;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Fewer numbers of sessions and two seeds: a few minutes on two cores
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    seeds: SeedArgs,
    /// Fleets: 1P2D and 1P5D as published, narrow-1P2D and narrow-1P5D with the published knee, mixed-answers,
    /// more-prefill, mixed-prompts; absent: all
    #[arg(long, value_name = "F,F,…", value_delimiter = ',')]
    fleets: Vec<String>,
    /// Sessions at once; absent: those of the paper, 1 to 256
    #[arg(long, value_name = "C,C,…", value_delimiter = ',', value_parser = count, allow_negative_numbers = true)]
    concurrency: Vec<usize>,
    /// Requests of each run as a share of the standard number
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = size)]
    size: f64,
    /// Forget the finished runs in the folder of --out
    #[arg(long)]
    fresh: bool,
}

pub(super) fn main(
    args: &Args,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let paper = args.plan(catalog)?;
    output::prepare(output)?;
    let journal = output::journal(output, args.fresh)?;
    let ran = run(&paper, journal.as_ref(), output, catalog);
    Ok(output::outcome(ran))
}

impl Args {
    fn plan(&self, catalog: &Catalog) -> anyhow::Result<Paper> {
        let fleets: Vec<&'static Fleet> = match self.fleets.as_slice() {
            [] => FLEETS.iter().collect(),
            names => {
                let named: Result<Vec<_>, _> =
                    names.iter().map(|name| Fleet::named(name)).collect();
                distinct(named?.into_iter())
            }
        };
        let (sessions, seeds) = match self.quick {
            true => (QUICK_SESSIONS.to_vec(), QUICK_SEEDS),
            false => (SESSIONS.to_vec(), USUAL_SEEDS),
        };
        let sessions = match self.concurrency.as_slice() {
            [] => sessions,
            given => given.to_vec(),
        };
        let seeds = self.seeds.list(seeds)?;
        Ok(Paper::new(fleets, sessions, seeds, self.size, catalog)?)
    }
}

fn run(
    paper: &Paper,
    journal: Option<&Journal>,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let (trials, sweep) = (paper.trials()?, paper.sweep()?);
    let bar = progress::bar(output, trials.len() + sweep.len());
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal,
        finished: &|| bar.inc(1),
    };
    let done = runner.run(&trials);
    let swept = runner.run(&sweep);
    bar.finish_and_clear();
    let (mut runs, code) = output::sort_out(&trials, done);
    let (mut swept, swept_code) = output::sort_out(&sweep, swept);
    for run in &mut swept {
        run.condition = Some(SWEEP.into());
    }
    runs.append(&mut swept);
    let report = paper.report(&mut runs);
    let mut results = Results::new(output::provenance(), runs);
    results.comparisons = compare(&results.runs, STATIC);
    results.paper = Some(report);
    let plotted = trials.iter().filter(|trial| paper.plots(trial));
    output::finish(
        output,
        &results,
        || output::details(plotted, catalog),
        || results.paper.iter().map(tables::paper).collect(),
    )?;
    Ok(if code == ExitCode::SUCCESS {
        swept_code
    } else {
        code
    })
}
