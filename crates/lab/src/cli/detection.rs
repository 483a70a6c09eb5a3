// SPDX-License-Identifier: Apache-2.0

//! `regime-lab detection`: how well the regime detector knows the regime.

use std::process::ExitCode;

use super::args::{FleetArgs, OutputArgs, SeedArgs, distinct, size};
use super::{output, progress, tables};
use crate::detection::{Plan, Schedule};
use crate::experiments::{Cell, Runner, runs_of_searches, searches, standard_requests};
use crate::policies::Catalog;
use crate::report;
use crate::results::Results;
use crate::topology::Topology;
use crate::traces::ReadOptions;
use crate::workloads::{OfferedLoad, WorkloadSource};

/// Number of seeds where none is given.
const USUAL_SEEDS: u16 = 3;
const WORKLOADS: [&str; 5] = [
    "chat",
    "mixed-lengths",
    "hotspot-shift",
    "decode-heavy",
    "cold-burst",
];
const TOPOLOGIES: [&str; 3] = ["4", "8", "2P3D"];
/// Of each list, in the quick run.
const QUICK: usize = 2;
/// Seeds of the quick run.
const QUICK_SEEDS: u16 = 1;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Two workloads, two pools, one seed
    #[arg(long)]
    quick: bool,
    /// Generated workloads with a rate; absent: chat, mixed-lengths, hotspot-shift, decode-heavy and
    /// cold-burst
    #[arg(long, value_name = "W,W,…", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Pools; absent: 4, 8 and 2P3D
    #[arg(long = "topology", value_name = "T,T,…", value_delimiter = ',')]
    topologies: Vec<Topology>,
    /// Length of the phases as a share of the standard one
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = size)]
    size: f64,
    #[command(flatten)]
    seeds: SeedArgs,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub(super) fn main(
    args: &Args,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let cells = args.cells()?;
    let usual = if args.quick { QUICK_SEEDS } else { USUAL_SEEDS };
    let seeds = args.seeds.list(usual)?;
    output::prepare(output)?;
    Ok(output::outcome(run(args, cells, seeds, output, catalog)))
}

fn run(
    args: &Args,
    cells: Vec<Cell>,
    seeds: Vec<u64>,
    output: &OutputArgs,
    catalog: &Catalog,
) -> anyhow::Result<ExitCode> {
    let bar = progress::bar(output, runs_of_searches(&cells));
    let runner = Runner {
        catalog,
        threads: output.threads(),
        journal: None,
        finished: &|| bar.inc(1),
    };
    let levels: Vec<_> = searches(&cells, &runner)?
        .into_iter()
        .collect::<Result<_, _>>()?;
    let plan = Plan {
        cells: cells.into_iter().zip(levels).collect(),
        schedules: Schedule::standard(args.size),
        seeds,
    };
    bar.set_length(bar.position() + plan.runs() as u64);
    let (detection, timelines) = plan.run(catalog, output.threads(), &|| bar.inc(1))?;
    bar.finish_and_clear();
    let mut results = Results::new(output::provenance(), Vec::new());
    results.detection = Some(detection);
    output::finish_with(
        output,
        &results,
        |folder| report::write_detection(folder, &results, &timelines),
        || {
            results
                .detection
                .as_ref()
                .map(tables::detection)
                .unwrap_or_default()
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Each workload on each pool.
    fn cells(&self) -> anyhow::Result<Vec<Cell>> {
        let (engine, settings) = (self.fleet.engine()?, self.fleet.settings());
        let shown = if self.quick { QUICK } else { usize::MAX };
        let topologies = match self.topologies.is_empty() {
            true => {
                let usual = TOPOLOGIES.iter().take(shown);
                usual.map(|name| name.parse()).collect::<Result<_, _>>()?
            }
            false => distinct(self.topologies.iter().copied()),
        };
        let mut names = distinct(self.workloads.iter().map(String::as_str));
        if names.is_empty() {
            names.extend(WORKLOADS.iter().take(shown));
        }
        let mut cells = Vec::new();
        for name in names {
            let source = WorkloadSource::open(name, &ReadOptions::default())?;
            let WorkloadSource::Generated(generator) = &source else {
                anyhow::bail!(
                    "workload is {name:?}; allowed are generated ones, whose rate can change"
                );
            };
            let usual = generator.default_scale().load;
            if let OfferedLoad::Concurrency(_) = usual {
                anyhow::bail!("workload is {name:?}, a closed loop; allowed are those with a rate");
            }
            for topology in &topologies {
                let cell = Cell {
                    requests: standard_requests(&source, topology.workers()),
                    source: source.clone(),
                    engine: engine.clone(),
                    topology: *topology,
                    settings: settings.clone(),
                };
                cell.check(usual)?;
                cells.push(cell);
            }
        }
        Ok(cells)
    }
}
