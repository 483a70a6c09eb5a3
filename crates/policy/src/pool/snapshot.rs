// SPDX-License-Identifier: Apache-2.0

//! What the request path reads: prices and worker facts, frozen at a tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use regime_core::{FailureAccrual, Regime, RegimeMachine, Timestamp, WorkerKey};
use regime_kv::Ladder;

use crate::cost::Prices;

/// A pool at one tick. Regimes are projected to the reader's time, so they go stale by themselves.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(super) machine: RegimeMachine,
    pub(crate) prices: Prices,
    /// What it takes to bring blocks, as learned; absent where tiers are weighted.
    pub(crate) ladder: Option<Ladder>,
    /// Sorted by key.
    pub(super) workers: Vec<WorkerSnapshot>,
}

/// One worker at one tick.
#[derive(Debug)]
pub(crate) struct WorkerSnapshot {
    pub(super) key: WorkerKey,
    pub(super) machine: RegimeMachine,
    pub(super) accrual: FailureAccrual,
    pub(crate) slowness: f64,
    pub(crate) ttft_p99_ms: Option<f64>,
    pub(super) last_candidate: Arc<AtomicU64>,
}

impl Snapshot {
    pub(crate) fn regime(&self, now: Timestamp) -> Regime {
        self.machine.regime(now)
    }

    pub(crate) fn worker(&self, key: WorkerKey) -> Option<&WorkerSnapshot> {
        self.workers
            .binary_search_by_key(&key, |worker| worker.key)
            .ok()
            .map(|index| &self.workers[index])
    }
}

impl WorkerSnapshot {
    pub(crate) fn is_saturated(&self, now: Timestamp) -> bool {
        self.machine.regime(now) == Regime::Saturated
    }

    pub(crate) fn is_held(&self, now: Timestamp) -> bool {
        self.accrual.is_held(now)
    }

    /// Note that the worker was a candidate at `now`.
    pub(crate) fn seen(&self, now: Timestamp) {
        self.last_candidate
            .fetch_max(now.as_micros(), Ordering::Relaxed);
    }
}
