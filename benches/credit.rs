// SPDX-License-Identifier: Apache-2.0

//! Tier credit of one worker: paid once for every candidate of every request.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use regime_core::Blocks;
use regime_kv::{CacheView, Overlap, TierWeights};

fn tier_credit(c: &mut Criterion) {
    let weights = TierWeights::default();
    let view = CacheView::Tiers(Overlap {
        device: Blocks::new(120.0),
        host: Blocks::new(40.0),
        disk: Blocks::new(20.0),
    });
    // Five separate runs, the most that Dynamo calls typical.
    let shared = [0..100, 110..130, 150..200, 200..220, 240..256];
    c.bench_function("tier credit, 256 blocks", |b| {
        b.iter(|| {
            let shared = black_box(&shared).iter().cloned();
            weights.credit(black_box(256), black_box(view), shared)
        });
    });
}

criterion_group!(benches, tier_credit);
criterion_main!(benches);
