// SPDX-License-Identifier: Apache-2.0

//! One selection through Dynamo's own path: our policy beside Dynamo's default, for pools of 8 to 4,096
//! workers that carry load and cache.

#![allow(
    clippy::expect_used,
    reason = "a bench that cannot be set up shall stop"
)]

mod host;

use std::collections::HashMap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dynamo_custom_policy_builtin::default_policy;
use dynamo_kv_router::KvRouterConfig;
use host::Worker;

fn selection(c: &mut Criterion) {
    let mut group = c.benchmark_group("select a worker");
    let (_handle, regime_aware) = host::regime_aware("");
    let policies = [
        ("regime-aware", regime_aware),
        (
            "dynamo default",
            default_policy(KvRouterConfig::default(), "decode"),
        ),
    ];
    for workers in [8, 64, 512, 4_096] {
        let request = host::request(workers, 0);
        let configs: HashMap<_, _> = (0..workers).map(|id| (id, Worker)).collect();
        for (name, policy) in &policies {
            group.bench_function(BenchmarkId::new(*name, workers), |b| {
                b.iter(|| host::select(policy, &configs, black_box(&request)));
            });
        }
    }
}

criterion_group!(benches, selection);
criterion_main!(benches);
