// SPDX-License-Identifier: Apache-2.0

//! Options that several commands have.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::engines::{DEFAULT_ENGINE, Engine};
use crate::experiments::{Cell, Runner, runs_of_searches, search};
use crate::metrics::Slo;
use crate::policies::{Catalog, Policy};
use crate::run::{Load, LoadLevel, Settings};
use crate::topology::Topology;
use crate::traces::{Format, ReadOptions};
use crate::workloads::{OfferedLoad, WorkloadSource};

/// Where results go, and how.
#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// Folder for results.json and results.csv
    #[arg(long, value_name = "DIR", global = true)]
    pub(super) out: Option<PathBuf>,
    /// Folder for a page with plots
    #[arg(long, value_name = "DIR", global = true)]
    pub(super) report: Option<PathBuf>,
    /// Print results as JSON instead of tables
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print nothing but failures
    #[arg(long, global = true, conflicts_with = "json")]
    pub(super) quiet: bool,
    /// Threads; absent: one for each core. Results do not depend on it
    #[arg(long, value_name = "N", global = true)]
    threads: Option<NonZeroUsize>,
}

impl OutputArgs {
    pub(super) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(cores, NonZeroUsize::get)
    }
}

/// The fleet, and what each run is judged by.
#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// Engine of the workers: a preset or a YAML file
    #[arg(long, value_name = "E", default_value = DEFAULT_ENGINE)]
    engine: String,
    /// Change a setting of the engine, such as num_gpu_blocks=4096
    #[arg(long = "engine-set", value_name = "KEY=VALUE")]
    engine_set: Vec<String>,
    /// How late the router learns of KV events, ms
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    kv_event_lag_ms: f64,
    /// Requests wait at the router while every worker has more than this share of its token budget to
    /// prefill; absent: no queue
    #[arg(long, value_name = "SHARE")]
    queue_threshold: Option<f64>,
    /// How many times as long each worker takes, prefill workers first
    #[arg(long, value_name = "X,X,…", value_delimiter = ',')]
    slowdowns: Vec<f64>,
    /// Cut the run at this virtual time, ms
    #[arg(long, value_name = "MS")]
    max_time_ms: Option<f64>,
    /// Longest TTFT that counts as served well, ms
    #[arg(long, value_name = "MS", default_value_t = Slo::default().ttft_ms)]
    slo_ttft_ms: f64,
    /// Longest mean time between tokens that counts as served well, ms
    #[arg(long, value_name = "MS", default_value_t = Slo::default().mean_itl_ms)]
    slo_itl_ms: f64,
}

impl FleetArgs {
    pub(super) fn engine(&self) -> anyhow::Result<Engine> {
        let mut settings = Map::new();
        for setting in &self.engine_set {
            let (key, value) = setting
                .split_once('=')
                .with_context(|| format!("--engine-set is {setting:?}; allowed is KEY=VALUE"))?;
            let value: Value = serde_yaml::from_str(value)
                .with_context(|| format!("--engine-set {key}: {value:?} is no YAML"))?;
            settings.insert(key.to_owned(), value);
        }
        Ok(Engine::load_with(&self.engine, &settings)?)
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            kv_event_lag_ms: self.kv_event_lag_ms,
            queue_threshold: self.queue_threshold,
            slowdowns: self.slowdowns.clone(),
            max_time_ms: self.max_time_ms,
            slo: Slo {
                ttft_ms: self.slo_ttft_ms,
                mean_itl_ms: self.slo_itl_ms,
            },
            ..Settings::default()
        }
    }
}

/// How traces are read.
#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    /// Format of traces; absent: told from the content
    #[arg(long = "format", value_name = "F")]
    format: Option<Format>,
    /// Tokens for each hash id of a trace; absent: what the file says, or 512
    #[arg(long, value_name = "N")]
    block_size: Option<u32>,
}

impl TraceArgs {
    pub(super) fn options(&self) -> ReadOptions {
        ReadOptions {
            format: self.format,
            block_size: self.block_size,
            ..ReadOptions::default()
        }
    }
}

/// How hard the workload pushes.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// Open loop: requests a second; absent: the workload's own
    #[arg(long, value_name = "R", group = "offered")]
    rate: Option<f64>,
    /// Closed loop: sessions at once
    #[arg(long, value_name = "C", group = "offered")]
    concurrency: Option<usize>,
    /// Search for this load with Dynamo's default policy
    #[arg(long, value_name = "LEVEL", group = "offered")]
    load: Option<Level>,
    /// Requests of each run; absent: the workload's own number
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
}

/// A load by its name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Level {
    Light,
    Knee,
    Saturated,
}

impl Level {
    pub(super) const fn load(self) -> LoadLevel {
        match self {
            Self::Light => LoadLevel::Light,
            Self::Knee => LoadLevel::Knee,
            Self::Saturated => LoadLevel::Saturated,
        }
    }
}

impl LoadArgs {
    pub(super) fn cell(
        &self,
        source: WorkloadSource,
        engine: Engine,
        topology: Topology,
        settings: Settings,
    ) -> Cell {
        Cell {
            requests: self.requests.unwrap_or(source.default_scale().requests),
            source,
            engine,
            topology,
            settings,
        }
    }

    /// The load of the cell, and what it is called.
    pub(super) fn offered(
        &self,
        cell: &Cell,
        runner: &Runner<'_>,
    ) -> anyhow::Result<(OfferedLoad, Load)> {
        if let Some(level) = self.load {
            let level = level.load();
            return Ok((search(cell, runner)?.at(level), Load::Level(level)));
        }
        let offered = match (self.rate, self.concurrency) {
            (Some(rate), _) => OfferedLoad::Rate(rate),
            (None, Some(concurrency)) => OfferedLoad::Concurrency(concurrency),
            (None, None) => cell.source.default_scale().load,
        };
        Ok((offered, Load::Number(offered.number())))
    }

    /// Runs that finding the loads of so many cells takes at most.
    pub(super) fn searches(&self, cells: usize) -> usize {
        self.load.map_or(0, |_| runs_of_searches(cells))
    }

    pub(super) const fn requests(&self) -> Option<usize> {
        self.requests
    }
}

/// What is run, besides policy, workload, pool and seed: common to `replay`, `compare` and `sweep`.
#[derive(Debug, Args)]
pub(super) struct ScenarioArgs {
    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) fleet: FleetArgs,
    #[command(flatten)]
    pub(super) traces: TraceArgs,
}

impl ScenarioArgs {
    /// The cell of one workload on one pool.
    pub(super) fn cell(&self, workload: &str, topology: Topology) -> anyhow::Result<Cell> {
        let source = WorkloadSource::open(workload, &self.traces.options())?;
        let (engine, settings) = (self.fleet.engine()?, self.fleet.settings());
        Ok(self.load.cell(source, engine, topology, settings))
    }
}

/// Policies by their names, each checked before anything runs.
pub(super) fn policies(names: &[String], catalog: &Catalog) -> anyhow::Result<Vec<Policy>> {
    let mut policies: Vec<Policy> = Vec::new();
    for name in names {
        let policy = Policy::named(name, catalog)?;
        policy.check(catalog)?;
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    Ok(policies)
}

/// `count` seeds from `first`.
pub(super) fn seeds(first: u64, count: NonZeroUsize) -> Vec<u64> {
    (0..count.get() as u64)
        .map(|step| first.wrapping_add(step))
        .collect()
}
