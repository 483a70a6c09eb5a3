// SPDX-License-Identifier: Apache-2.0

//! Optimal assignment of a window of 16 requests to J workers, 16 slots each: off the request path,
//! but paid once a window.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use regime_anarchy::{NoEstimate, Seat, SlotCosts};

const REQUESTS: usize = 16;

/// The k-th place costs the wait of the worker plus k times the request's own service, in ms. Own
/// costs differ between workers because each holds another part of the prompt.
fn cost(request: usize, seat: Seat) -> f64 {
    let wait = (seat.worker * 37 % 23) as f64;
    let own = 10.0 + (request * 101 + seat.worker * 53) as f64 % 97.0;
    wait + seat.slot as f64 * own
}

fn window(workers: usize) -> Result<SlotCosts, NoEstimate> {
    SlotCosts::new(REQUESTS, &vec![REQUESTS; workers], cost)
}

fn assignment(c: &mut Criterion) {
    let mut group = c.benchmark_group("assignment of 16 requests");
    for workers in [4, 16, 64] {
        group.bench_function(BenchmarkId::new("optimum, workers", workers), |b| {
            b.iter(|| window(black_box(workers)).map(|costs| costs.optimum()));
        });
        let chosen: Vec<usize> = (0..REQUESTS).map(|request| request % workers).collect();
        group.bench_function(BenchmarkId::new("realised, workers", workers), |b| {
            b.iter(|| window(black_box(workers)).and_then(|costs| costs.realised(&chosen)));
        });
    }
    group.finish();
}

criterion_group!(benches, assignment);
criterion_main!(benches);
