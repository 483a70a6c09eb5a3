// SPDX-License-Identifier: Apache-2.0

//! Congestion curve of one worker: evaluated for every candidate of every request.

#![allow(clippy::expect_used)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use regime_core::{CurveParameters, LatencyCurve};

fn delay(c: &mut Criterion) {
    let curve = LatencyCurve::new(CurveParameters {
        slope_ms_per_unit: 1.2,
        base_ms: 8.0,
        barrier_ms: 900.0,
        saturation_load: 256.0,
        barrier_exponent: 1.5,
        guard_load: 16.0,
    })
    .expect("coefficients within their ranges");
    let mut group = c.benchmark_group("curve delay");
    for (part, load) in [("before the guard point", 120.0), ("on the tangent", 300.0)] {
        group.bench_function(part, |b| b.iter(|| curve.delay(black_box(load))));
    }
    group.finish();
}

criterion_group!(benches, delay);
criterion_main!(benches);
