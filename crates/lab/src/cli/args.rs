// SPDX-License-Identifier: Apache-2.0

//! Options that several commands have.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum, value_parser};
use serde_json::{Map, Value};

use super::output;
use crate::engines::{DEFAULT_ENGINE, Engine};
use crate::experiments::{Cell, Found, Runner, runs_of_searches, search};
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
    #[arg(long, value_name = "N", global = true, value_parser = value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    threads: Option<u16>,
}

impl OutputArgs {
    /// Tell the user something that is no failure.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            output::say(text);
        }
    }

    pub(super) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(cores, usize::from)
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
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    kv_event_lag_ms: f64,
    /// Engines tell the router of blocks in device memory alone
    #[arg(long)]
    device_events_only: bool,
    /// Requests wait at the router while every worker has more than this share of its token budget to
    /// prefill; absent: no queue
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    queue_threshold: Option<f64>,
    /// How many times as long each worker takes, prefill workers first
    #[arg(
        long,
        value_name = "X,X,…",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    slowdowns: Vec<f64>,
    /// Cut the run at this virtual time, ms
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    max_time_ms: Option<f64>,
    /// Requests at the start of each run whose latencies are not measured
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    warm_up: usize,
    /// Longest TTFT that counts as served well, ms
    #[arg(long, value_name = "MS", default_value_t = Slo::default().ttft_ms, allow_negative_numbers = true)]
    slo_ttft_ms: f64,
    /// Longest mean time between tokens that counts as served well, ms
    #[arg(long, value_name = "MS", default_value_t = Slo::default().mean_itl_ms, allow_negative_numbers = true)]
    slo_itl_ms: f64,
}

impl FleetArgs {
    pub(super) fn engine(&self) -> anyhow::Result<Engine> {
        Ok(Engine::load_with(&self.engine, &self.engine_settings()?)?)
    }

    /// Name of the engine.
    pub(super) fn engine_name(&self) -> &str {
        &self.engine
    }

    /// Its changed settings.
    pub(super) fn engine_settings(&self) -> anyhow::Result<Map<String, Value>> {
        let mut settings = Map::new();
        for setting in &self.engine_set {
            let (key, value) = setting
                .split_once('=')
                .with_context(|| format!("--engine-set is {setting:?}; allowed is KEY=VALUE"))?;
            let value: Value = serde_yaml::from_str(value)
                .with_context(|| format!("--engine-set {key}: {value:?} is no YAML"))?;
            settings.insert(key.to_owned(), value);
        }
        Ok(settings)
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            kv_event_lag_ms: self.kv_event_lag_ms,
            device_events_only: self.device_events_only,
            queue_threshold: self.queue_threshold,
            slowdowns: self.slowdowns.clone(),
            max_time_ms: self.max_time_ms,
            warm_up: self.warm_up,
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
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=65_536), allow_negative_numbers = true)]
    block_size: Option<u32>,
    /// Pass over this field where unknown fields are refused
    #[arg(long = "ignore-field", value_name = "NAME")]
    ignored_fields: Vec<String>,
}

impl TraceArgs {
    pub(super) fn options(&self) -> ReadOptions {
        ReadOptions {
            format: self.format,
            block_size: self.block_size,
            ignored_fields: self.ignored_fields.clone(),
            ..ReadOptions::default()
        }
    }

    fn given(&self) -> bool {
        self.options() != ReadOptions::default()
    }
}

/// How hard the workload pushes.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// Open loop: requests a second; absent: the workload's own
    #[arg(
        long,
        value_name = "R",
        group = "offered",
        allow_negative_numbers = true
    )]
    rate: Option<f64>,
    /// Closed loop: sessions at once
    #[arg(long, value_name = "C", group = "offered", value_parser = count, allow_negative_numbers = true)]
    concurrency: Option<usize>,
    /// Search for this load with Dynamo's default policy
    #[arg(long, value_name = "LEVEL", group = "offered")]
    load: Option<Level>,
    /// Requests of each run; absent: the workload's own number
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
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

    /// The load given, or the workload's own.
    fn given(&self, source: &WorkloadSource) -> OfferedLoad {
        match (self.rate, self.concurrency) {
            (Some(rate), _) => OfferedLoad::Rate(rate),
            (None, Some(concurrency)) => OfferedLoad::Concurrency(concurrency),
            (None, None) => source.default_scale().load,
        }
    }

    /// The load of the cell, and what it is called.
    pub(super) fn offered(
        &self,
        cell: &Cell,
        runner: &Runner<'_>,
    ) -> anyhow::Result<(Found, Load)> {
        if let Some(level) = self.load {
            let level = level.load();
            return Ok((search(cell, runner)?.at(level), Load::Level(level)));
        }
        let offered = self.given(&cell.source);
        Ok((Found::given(offered), Load::Number(offered.number())))
    }

    /// Runs that finding the loads of so many cells takes at most.
    pub(super) fn searches(&self, cells: &[Cell]) -> usize {
        self.load.map_or(0, |_| runs_of_searches(cells))
    }

    /// Why all seeds replay the same rows, or fewer than asked for.
    fn of_a_trace(&self, source: &WorkloadSource, seeds: usize) -> Option<String> {
        let WorkloadSource::Recorded(trace) = source else {
            return None;
        };
        let (name, rows) = (source.name(), trace.workload.requests());
        match self.requests {
            Some(wanted) if wanted < rows => None,
            Some(wanted) if wanted > rows => Some(format!(
                "{name} has {rows} requests, fewer than {wanted}: every seed replays all of it"
            )),
            _ if seeds > 1 => Some(format!(
                "every seed replays all of {name}, so seeds differ in little; --requests takes another part for each"
            )),
            _ => None,
        }
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
    /// The cells of these workloads on these pools, each once and checked.
    pub(super) fn cells(
        &self,
        workloads: &[String],
        topologies: &[Topology],
        seeds: usize,
        output: &OutputArgs,
    ) -> anyhow::Result<Vec<Cell>> {
        let options = self.traces.options();
        let open = |name: &String| WorkloadSource::open(name, &options);
        let sources: Vec<_> = workloads.iter().map(open).collect::<Result<_, _>>()?;
        let recorded = |it: &WorkloadSource| matches!(it, WorkloadSource::Recorded(_));
        if self.traces.given() && !sources.iter().any(recorded) {
            anyhow::bail!(
                "--format, --block-size and --ignore-field are for traces, and no workload is one"
            );
        }
        let engine = self.fleet.engine()?;
        let mut cells = Vec::new();
        for source in WorkloadSource::distinct(sources) {
            if let Some(note) = self.load.of_a_trace(&source, seeds) {
                output.note(&note);
            }
            for topology in distinct(topologies.iter().copied()) {
                let settings = self.fleet.settings();
                let cell = self
                    .load
                    .cell(source.clone(), engine.clone(), topology, settings);
                cell.check(self.load.given(&cell.source))?;
                cells.push(cell);
            }
        }
        Ok(cells)
    }

    /// The cell of one workload on one pool.
    pub(super) fn cell(
        &self,
        workload: &str,
        topology: Topology,
        seeds: usize,
        output: &OutputArgs,
    ) -> anyhow::Result<Cell> {
        let mut cells = self.cells(&[workload.to_owned()], &[topology], seeds, output)?;
        cells.pop().context("no workload")
    }
}

/// Each once, in the order given.
pub(super) fn distinct<T: PartialEq>(given: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in given {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// A share of a number of requests.
pub(super) fn size(given: &str) -> Result<f64, String> {
    given
        .parse()
        .ok()
        .filter(|size: &f64| *size > 0.0 && *size <= 100.0)
        .ok_or_else(|| "allowed is a number above 0, at most 100".into())
}

pub(super) fn count(given: &str) -> Result<usize, String> {
    let number = given.parse().ok().filter(|count| *count > 0);
    number.ok_or_else(|| "allowed is an integer, at least 1".into())
}

pub(super) fn seed(given: &str) -> Result<u64, String> {
    let number = given.parse();
    number.map_err(|_| format!("allowed is an integer from 0 to {}", u64::MAX))
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

/// Which seeds.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct SeedArgs {
    /// First seed
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    seed: u64,
    /// Number of seeds; absent: 20 in a comparison, 5 in a sweep, 3 in a suite
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=10_000), allow_negative_numbers = true)]
    seeds: Option<u16>,
}

impl SeedArgs {
    /// The seeds; `usual` is their number where none is given.
    pub(super) fn list(self, usual: u16) -> anyhow::Result<Vec<u64>> {
        let (first, count) = (self.seed, u64::from(self.seeds.unwrap_or(usual)));
        let last = first.checked_add(count - 1).with_context(|| {
            let most = u64::MAX - count + 1;
            format!("--seed is {first}; allowed with {count} seeds: 0 to {most}")
        })?;
        Ok((first..=last).collect())
    }
}
