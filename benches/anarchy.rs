// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of one window of 16 decisions, and of the newest 256 windows together: what
//! measuring costs a live frontend. At 1,000 requests/s there are 62 windows a second, each estimated by TTFT
//! and end to end.

#![allow(
    clippy::expect_used,
    reason = "a bench that cannot be set up shall stop"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use regime_anarchy::{Candidate, Choice, Estimator, summarise};
use regime_core::{Millis, Timestamp, WorkerKey};

/// Waits and services that differ between workers, because each has another queue and another cache.
fn window(workers: u64) -> Vec<Choice> {
    let choice = |request: u64| Choice {
        decided_at: Timestamp::from_millis(request),
        chosen: WorkerKey::new(request * 7 % workers, 0),
        candidates: (0..workers)
            .map(|worker| Candidate {
                worker: WorkerKey::new(worker, 0),
                wait: Millis::new((worker * 37 % 23) as f64),
                own: Millis::new(10.0 + ((request * 101 + worker * 53) % 97) as f64),
            })
            .collect(),
        actual: Millis::new(80.0),
    };
    (0..16).map(choice).collect()
}

fn anarchy(c: &mut Criterion) {
    let mut group = c.benchmark_group("price of anarchy");
    for workers in [4, 64, 512] {
        let window = window(workers);
        group.bench_function(BenchmarkId::new("window, workers", workers), |b| {
            b.iter(|| Estimator::default().estimate(black_box(&window)));
        });
    }
    let estimate = Estimator::default().estimate(&window(4));
    let windows = vec![Ok(estimate.expect("a usable window")); 256];
    group.bench_function("summary of 256 windows", |b| {
        b.iter(|| summarise(black_box(&windows), &mut Pcg64Mcg::seed_from_u64(0)));
    });
    group.finish();
}

criterion_group!(benches, anarchy);
criterion_main!(benches);
