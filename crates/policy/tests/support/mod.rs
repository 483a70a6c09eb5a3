// SPDX-License-Identifier: Apache-2.0

//! A host for the policy: Dynamo's own selection path over rows that a test writes down, in virtual
//! time. The policy is built from YAML through Dynamo's registry, exactly as in a live frontend.

#![allow(clippy::unwrap_used, dead_code, reason = "each test file uses a part")]

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dynamo_kv_router::plugins::worker_selection::WorkerSelectionPolicy;
use dynamo_kv_router::plugins::{RouterPluginRegistry, RouterPlugins};
use dynamo_kv_router::protocols::{
    RoutingConstraints, SharedCacheHits, WorkerConfigLike, WorkerWithDpRank,
};
use dynamo_kv_router::scheduling::{KvSchedulerError, OverlapSignals, ScheduleMode};
use dynamo_kv_router::{
    KvRouterConfig, RoutingPartitionRef, SchedulingRequest, WorkerLoadProjection,
    WorkerSelectionInput, WorkerSelector, WorkerType,
};
use regime_core::WorkerKey;
use regime_policy::{Clock, Feedback, Handle, ManualClock, Options, PoolReport, ScoreProbe};

pub const BLOCK_SIZE: u32 = 16;

/// One row of the candidate table: worker, load (absent when unknown), overlap in blocks by tier.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub worker: WorkerWithDpRank,
    pub load: Option<(usize, usize, usize)>,
    pub device: usize,
    pub host: usize,
    pub disk: usize,
}

/// An idle worker that holds nothing.
pub fn row(id: u64) -> Row {
    Row {
        worker: WorkerWithDpRank::from_worker_id(id),
        load: Some((0, 0, 0)),
        device: 0,
        host: 0,
        disk: 0,
    }
}

impl Row {
    /// Active requests, active prefill tokens, decode cost blocks.
    pub fn load(mut self, requests: usize, prefill_tokens: usize, blocks: usize) -> Self {
        self.load = Some((requests, prefill_tokens, blocks));
        self
    }

    pub fn unknown_load(mut self) -> Self {
        self.load = None;
        self
    }

    pub fn device(mut self, blocks: usize) -> Self {
        self.device = blocks;
        self
    }

    /// Blocks by tier, each an extension of the one before.
    pub fn tiers(mut self, device: usize, host: usize, disk: usize) -> Self {
        (self.device, self.host, self.disk) = (device, host, disk);
        self
    }
}

#[derive(Clone, Default, PartialEq)]
pub struct TestWorker {
    ranks: u32,
    taints: HashSet<String>,
}

impl WorkerConfigLike for TestWorker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        self.ranks.max(1)
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(8_192)
    }
    fn taints(&self) -> &HashSet<String> {
        &self.taints
    }
}

/// A request of `blocks` blocks.
pub fn request(blocks: usize) -> SchedulingRequest {
    SchedulingRequest {
        mode: ScheduleMode::QueryOnly { request_id: None },
        token_seq: None,
        isl_tokens: blocks * BLOCK_SIZE as usize,
        lora_name: None,
        expected_output_tokens: None,
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints::default(),
        router_config_override: None,
        track_prefill_tokens: true,
        priority_jump: 0.0,
        strict_priority: 0,
        policy_class: None,
        session_context: None,
        overlap: OverlapSignals::default(),
        kv_transfer_candidates: None,
        retain_kv_transfer_chain: false,
        shared_cache_hits: None,
        worker_loads: Default::default(),
        resp_tx: None,
    }
}

/// A request with its rows, and the workers.
pub type Prepared = (SchedulingRequest, HashMap<u64, TestWorker>);

pub struct Host {
    pub policy: WorkerSelectionPolicy,
    pub plugins: RouterPlugins,
    pub handle: Handle,
    pub clock: Arc<ManualClock>,
    pub taints: HashMap<u64, Vec<&'static str>>,
}

/// Resolve a policy file the way a frontend does at start-up.
pub fn resolve(
    yaml: &str,
    options: Options,
) -> Result<(Handle, RouterPlugins, KvRouterConfig), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let config = KvRouterConfig {
        router_policy_config: Some(file.path().display().to_string()),
        ..KvRouterConfig::default()
    };
    let mut registry: RouterPluginRegistry = dynamo_custom_policy_builtin::default_registry();
    let handle = regime_policy::register_with(&mut registry, options).unwrap();
    let plugins = registry
        .resolve_plugins(&config)
        .map_err(|error| error.to_string())?;
    Ok((handle, plugins, config))
}

pub fn yaml(parameters: &str) -> String {
    format!(
        "worker_selection:
  aggregated: main
  prefill: main
  decode: main
  encode: main
  instances:
    - {{ name: main, type: regime-aware, parameters: {parameters} }}
request_classifier: {{ type: regime-feedback, parameters: {{}} }}
"
    )
}

impl Host {
    pub fn new(parameters: &str) -> Self {
        Self::with(parameters, WorkerType::Aggregated, None)
    }

    pub fn with(parameters: &str, role: WorkerType, score_probe: Option<ScoreProbe>) -> Self {
        let clock = Arc::new(ManualClock::default());
        let options = Options {
            clock: Some(Arc::clone(&clock) as Arc<dyn Clock>),
            score_probe,
            ..Options::default()
        };
        Self::with_options(parameters, role, clock, options)
    }

    /// `clock` is the one in `options`.
    pub fn with_options(
        parameters: &str,
        role: WorkerType,
        clock: Arc<ManualClock>,
        options: Options,
    ) -> Self {
        let (handle, plugins, config) = resolve(&yaml(parameters), options).unwrap();
        let factory = plugins.worker_selection().unwrap();
        let policy = factory(&config, role, RoutingPartitionRef::new("model", "default"));
        Self {
            policy,
            plugins,
            handle,
            clock,
            taints: HashMap::new(),
        }
    }

    pub fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    pub fn select(&self, blocks: usize, rows: &[Row]) -> WorkerWithDpRank {
        self.select_with(request(blocks), rows).unwrap()
    }

    pub fn select_with(
        &self,
        request: SchedulingRequest,
        rows: &[Row],
    ) -> Result<WorkerWithDpRank, KvSchedulerError> {
        self.select_prepared(&self.prepare(request, rows))
    }

    pub fn select_prepared(
        &self,
        (request, workers): &Prepared,
    ) -> Result<WorkerWithDpRank, KvSchedulerError> {
        let eligibility = request.eligibility();
        self.policy
            .select_worker(WorkerSelectionInput::configured(
                workers,
                request,
                eligibility,
                BLOCK_SIZE,
            ))
            .map(|result| result.worker)
    }

    /// Write the rows into the request and the worker table, where Dynamo keeps them.
    pub fn prepare(&self, mut request: SchedulingRequest, rows: &[Row]) -> Prepared {
        let mut workers: HashMap<u64, TestWorker> = HashMap::new();
        for row in rows {
            let worker = workers.entry(row.worker.worker_id).or_default();
            worker.ranks = worker.ranks.max(row.worker.dp_rank + 1);
            if let Some(taints) = self.taints.get(&row.worker.worker_id) {
                worker.taints = taints.iter().map(ToString::to_string).collect();
            }
            let tiers = &mut request.overlap.tier_overlap_blocks;
            for (tier, blocks) in [
                (&mut tiers.device, row.device),
                (&mut tiers.host_pinned, row.host),
                (&mut tiers.disk, row.disk),
            ] {
                if blocks > 0 {
                    tier.insert(row.worker, blocks);
                }
            }
            if let Some((active_requests, active_prefill_tokens, blocks)) = row.load {
                request.worker_loads.insert(
                    row.worker,
                    WorkerLoadProjection {
                        active_requests,
                        active_prefill_tokens,
                        active_decode_blocks: blocks,
                        additional_active_blocks: 0,
                    },
                );
            }
        }
        (request, workers)
    }

    pub fn pool(&self) -> PoolReport {
        self.handle.report().pools.remove(0)
    }

    /// A feedback channel over workers that the test can change.
    pub fn feedback(&self, workers: &[u64]) -> (Feedback, Arc<Mutex<Vec<WorkerKey>>>) {
        let listed: Vec<_> = workers.iter().map(|&id| WorkerKey::new(id, 0)).collect();
        let listed = Arc::new(Mutex::new(listed));
        let discovery = Arc::clone(&listed);
        let feedback = self
            .handle
            .feedback(move || discovery.lock().unwrap().clone());
        (feedback, listed)
    }
}

pub fn shared(ranges: &[Range<u32>]) -> Option<SharedCacheHits> {
    Some(SharedCacheHits::from_ranges(ranges.to_vec()))
}

pub fn key(id: u64) -> WorkerKey {
    WorkerKey::new(id, 0)
}
