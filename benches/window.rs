// SPDX-License-Identifier: Apache-2.0

//! Latency window of one worker: one record a finished request, one summary a tick.

#![allow(clippy::expect_used)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use regime_core::{LatencyWindow, Millis, Timestamp, WindowConfig};

/// Distance between samples: 100 requests a second.
const STEP: Duration = Duration::from_millis(10);

/// Latencies from 20 to 520 ms, none like the one before it.
fn latency(request: u32) -> Millis {
    Millis::new(20.0 + f64::from(request.wrapping_mul(7919) % 500))
}

fn window(c: &mut Criterion) {
    let empty = LatencyWindow::new(WindowConfig::default()).expect("the default is valid");

    let mut window = empty.clone();
    let (mut now, mut request) = (Timestamp::ORIGIN, 0u32);
    c.bench_function("window record", |b| {
        b.iter(|| {
            now = now + STEP;
            request = request.wrapping_add(1);
            window.record(now, black_box(latency(request)));
        });
    });

    let mut window = empty;
    let mut now = Timestamp::ORIGIN;
    // A full span at 100 requests a second.
    for request in 0..3_000 {
        now = now + STEP;
        window.record(now, latency(request));
    }
    c.bench_function("window summary, 3000 samples", |b| {
        b.iter(|| window.summary(black_box(now)));
    });
}

criterion_group!(benches, window);
criterion_main!(benches);
