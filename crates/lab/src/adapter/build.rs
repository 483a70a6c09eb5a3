// SPDX-License-Identifier: Apache-2.0

//! Putting a run together: engines, routers and workers' names.

use std::num::NonZeroU32;
use std::sync::Arc;

use aisimulate_core::engine::generalized::EngineIdentity;
use aisimulate_core::engine::{Backend, EngineFactory, SharedG2Pool};
use aisimulate_core::replay::HandoffOrder;
use anyhow::{Context, Result};
use dynamo_kv_router::WorkerType;
use regime_core::WorkerKey;
use regime_policy::{Clock, Report};

use super::fleet::Fleet;
use super::record::RunRecord;
use super::roster::{Listing, Roster};
use super::router::{KvEvents, Router, SelectionTime, role_config};
use super::shadow::{self, Shadow, Watched};
use super::simulation::{HostTier, Pool, Setup, Simulation};
use super::watch::RegimeWatch;
use crate::engines::Engine;
use crate::lifecycle::RegimeLifecycle;
use crate::policies::{Catalog, Policy};
use crate::topology::Topology;
use crate::workload::Workload;

/// Settings of one run besides policy, workload, engine and topology.
pub(crate) struct SimulationSettings<'a> {
    pub(crate) seed: u64,
    pub(crate) events: KvEvents,
    pub(crate) queue_threshold: Option<f64>,
    pub(crate) slowdowns: &'a [f64],
    pub(crate) max_time_ms: Option<f64>,
    pub(crate) listing: Listing,
    pub(crate) stopwatch: Arc<dyn Clock>,
}

/// What a run gave, and the state of our policy at its end.
pub(crate) struct Simulated {
    pub(crate) record: RunRecord,
    pub(crate) selection: SelectionTime,
    pub(crate) report: Option<Report>,
    pub(crate) watched: Option<Watched>,
}

/// Run one experiment.
pub(crate) fn simulate(
    policy: &Policy,
    catalog: &Catalog,
    workload: &Workload,
    engine: &Engine,
    topology: Topology,
    settings: &SimulationSettings<'_>,
) -> Result<Simulated> {
    // Dynamo's own policies break ties with this generator.
    fastrand::seed(settings.seed);
    let roles = match topology {
        Topology::Aggregated { workers } => vec![(WorkerType::Aggregated, workers)],
        Topology::Disaggregated { prefill, decode } => {
            vec![(WorkerType::Prefill, prefill), (WorkerType::Decode, decode)]
        }
    };
    let mut first_id = 0;
    let mut rosters = Vec::new();
    for &(role, workers) in &roles {
        let config = engine.config(role, 1.0);
        let tokens = config.max_num_batched_tokens;
        let roster = Roster::new(
            first_id,
            workers,
            engine.ranks(),
            if tokens == usize::MAX {
                dynamo_kv_router::queue::DEFAULT_MAX_BATCHED_TOKENS
            } else {
                tokens as u64
            },
            config.num_gpu_blocks as u64,
            settings.listing,
        );
        // Worker ids are unique in a process, as with Dynamo.
        first_id += workers as u64;
        rosters.push(roster);
    }
    let names = roles.iter().zip(&rosters).flat_map(|(&(role, _), roster)| {
        roster
            .names()
            .map(move |name| (role, WorkerKey::new(name.worker_id, name.dp_rank)))
    });
    let mut names: Vec<_> = names.collect();
    if settings.listing == Listing::Reverse {
        names.reverse();
    }
    let mut built = policy.build(
        catalog,
        settings.seed,
        names.clone(),
        settings.queue_threshold.is_none(),
    )?;
    let shadow = shadow::handle(&built.clock);
    let told = RegimeLifecycle::new(&shadow, &names);
    built.lifecycles.push(Box::new(told));
    if settings.queue_threshold.is_some() {
        built.config.router_queue_threshold = settings.queue_threshold;
    }
    let host_pool = SharedG2Pool::new();
    let mut slowdowns = settings.slowdowns.iter().copied();
    let mut pools = Vec::new();
    for ((role, workers), roster) in roles.into_iter().zip(rosters) {
        let config = role_config(built.config.clone(), role);
        let chooser = built.chooser(role, &config)?;
        let watched = (role != WorkerType::Decode)
            .then(|| Shadow::new(&shadow, &built.clock, role, &config))
            .transpose()?;
        let router = Router::new(
            config,
            u32::try_from(engine.block_size())?,
            roster,
            chooser,
            watched,
            settings.events,
            Arc::clone(&settings.stopwatch),
        )
        .with_context(|| format!("router of the {} pool", role.as_str()))?;
        let engines = (0..workers)
            .map(|worker| {
                let slowdown = slowdowns.next().unwrap_or(1.0);
                build_engine(engine, role, worker, slowdown, &host_pool)
            })
            .collect::<Result<_>>()?;
        pools.push(Pool {
            role,
            router,
            fleet: Fleet::new(engines),
            work_tokens: vec![0; workers],
            requests: vec![0; workers],
            regimes: Vec::new(),
        });
    }
    let handoff_order = match engine.config(WorkerType::Prefill, 1.0).backend {
        Backend::Sglang => HandoffOrder::DestinationFirst,
        Backend::Vllm | Backend::Trtllm => HandoffOrder::SourceFirst,
    };
    let setup = Setup {
        pools,
        handoff_order,
        handoff_latency_ms: engine.handoff_latency_ms(),
        max_time_ms: settings.max_time_ms,
        clock: built.clock,
        lifecycles: built.lifecycles,
        watch: RegimeWatch::new(built.handle),
        shadow,
        host_tier: HostTier {
            shared: engine.shares_host_tier(),
            block_size: engine.block_size() as u64,
            bytes_per_token: engine.kv_bytes_per_token(),
        },
    };
    Simulation::new(workload, setup).run()
}

fn build_engine(
    engine: &Engine,
    role: WorkerType,
    worker: usize,
    slowdown: f64,
    host_pool: &SharedG2Pool,
) -> Result<aisimulate_core::engine::Engine> {
    let config = engine.config(role, slowdown);
    let factory = match engine.timing_model() {
        Some(table) => EngineFactory::with_timing_model(config, table)?,
        None => EngineFactory::new(config)?,
    };
    let ranks = NonZeroU32::new(engine.ranks()).unwrap_or(NonZeroU32::MIN);
    factory
        .with_shared_g2_pool(host_pool, engine.tensor_parallel())
        .build(EngineIdentity::new(worker as u64), ranks)
}
