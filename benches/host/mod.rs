// SPDX-License-Identifier: Apache-2.0

//! A host for the policy: Dynamo's own selection path over made-up loads and caches.

use std::collections::HashMap;

use dynamo_custom_policy_builtin::default_registry;
use dynamo_kv_router::plugins::worker_selection::WorkerSelectionPolicy;
use dynamo_kv_router::protocols::{RoutingConstraints, WorkerConfigLike, WorkerWithDpRank};
use dynamo_kv_router::scheduling::{OverlapSignals, ScheduleMode};
use dynamo_kv_router::{
    KvRouterConfig, RoutingPartitionRef, SchedulingRequest, WorkerLoadProjection,
    WorkerSelectionInput, WorkerSelector, WorkerType,
};
use regime_policy::Handle;

const BLOCK_SIZE: u32 = 16;

/// A worker of one rank.
pub struct Worker;

impl WorkerConfigLike for Worker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        1
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(8_192)
    }
}

/// A request of 4,096 tokens to `workers` workers; each `salt` has other queues and caches.
pub fn request(workers: u64, salt: usize) -> SchedulingRequest {
    let mut request = SchedulingRequest {
        mode: ScheduleMode::QueryOnly { request_id: None },
        token_seq: None,
        isl_tokens: 4_096,
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
    };
    for id in 0..workers {
        let (worker, id) = (WorkerWithDpRank::from_worker_id(id), id as usize + salt);
        let tiers = &mut request.overlap.tier_overlap_blocks;
        tiers.device.insert(worker, id * 7 % 256);
        request.worker_loads.insert(
            worker,
            WorkerLoadProjection {
                active_prefill_tokens: id * 613 % 8_192,
                active_decode_blocks: id * 97 % 4_096,
                active_requests: id * 5 % 64,
                additional_active_blocks: 256,
            },
        );
    }
    request
}

/// The policy as a frontend makes it, for an aggregated pool.
pub fn regime_aware(parameters: &str) -> (Handle, WorkerSelectionPolicy) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let policy_file = format!(
        "worker_selection:\n  aggregated: main\n  instances: [{{ name: main, type: regime-aware, parameters: {{{parameters}}} }}]\n"
    );
    std::fs::write(file.path(), policy_file).expect("a written policy file");
    let config = KvRouterConfig {
        router_policy_config: Some(file.path().display().to_string()),
        ..KvRouterConfig::default()
    };
    let mut registry = default_registry();
    let handle = regime_policy::register(&mut registry).expect("a fresh registry");
    let factory = registry.resolve(&config).expect("a valid policy file");
    let factory = factory.expect("a selected policy");
    let partition = RoutingPartitionRef::new("model", "default");
    (handle, factory(&config, WorkerType::Aggregated, partition))
}

/// The worker that `policy` chooses for `request`.
pub fn select(
    policy: &WorkerSelectionPolicy,
    workers: &HashMap<u64, Worker>,
    request: &SchedulingRequest,
) -> WorkerWithDpRank {
    let input =
        WorkerSelectionInput::configured(workers, request, request.eligibility(), BLOCK_SIZE);
    policy.select_worker(input).expect("a worker").worker
}
