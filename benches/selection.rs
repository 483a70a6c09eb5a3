// SPDX-License-Identifier: Apache-2.0

//! One selection through Dynamo's own path: our policy beside Dynamo's default, for pools of 8 to 4,096
//! workers that carry load and cache.

#![allow(
    clippy::expect_used,
    reason = "a bench that cannot be set up shall stop"
)]

use std::collections::HashMap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dynamo_custom_policy_builtin::{default_policy, default_registry};
use dynamo_kv_router::plugins::worker_selection::WorkerSelectionPolicy;
use dynamo_kv_router::protocols::{RoutingConstraints, WorkerConfigLike, WorkerWithDpRank};
use dynamo_kv_router::scheduling::{OverlapSignals, ScheduleMode};
use dynamo_kv_router::{
    KvRouterConfig, RoutingPartitionRef, SchedulingRequest, WorkerLoadProjection,
    WorkerSelectionInput, WorkerSelector, WorkerType,
};

const POLICY_FILE: &str = "\
worker_selection:
  aggregated: main
  instances: [{ name: main, type: regime-aware }]
";

struct Worker;

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

fn request(workers: u64) -> SchedulingRequest {
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
        let (worker, id) = (WorkerWithDpRank::from_worker_id(id), id as usize);
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

fn regime_aware() -> WorkerSelectionPolicy {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), POLICY_FILE).expect("a written policy file");
    let config = KvRouterConfig {
        router_policy_config: Some(file.path().display().to_string()),
        ..KvRouterConfig::default()
    };
    let mut registry = default_registry();
    regime_policy::register(&mut registry).expect("a fresh registry");
    let factory = registry.resolve(&config).expect("a valid policy file");
    let factory = factory.expect("a selected policy");
    let partition = RoutingPartitionRef::new("model", "default");
    factory(&config, WorkerType::Aggregated, partition)
}

fn selection(c: &mut Criterion) {
    let mut group = c.benchmark_group("select a worker");
    let policies = [
        ("regime-aware", regime_aware()),
        (
            "dynamo default",
            default_policy(KvRouterConfig::default(), "decode"),
        ),
    ];
    for workers in [8, 64, 512, 4_096] {
        let request = request(workers);
        let configs: HashMap<_, _> = (0..workers).map(|id| (id, Worker)).collect();
        for (name, policy) in &policies {
            group.bench_function(BenchmarkId::new(*name, workers), |b| {
                b.iter(|| {
                    let input = WorkerSelectionInput::configured(
                        &configs,
                        black_box(&request),
                        request.eligibility(),
                        16,
                    );
                    policy.select_worker(input).expect("a worker")
                });
            });
        }
    }
}

criterion_group!(benches, selection);
criterion_main!(benches);
