// SPDX-License-Identifier: Apache-2.0

//! How far a worker is through the prefill work that the host still counts in full.
//!
//! # Idea
//!
//! The host takes a prompt's tokens off a worker's load when its prefill ends, not as it proceeds: a
//! prompt of 200 ms counts as 200 ms to the last. Who asks in the middle of it is told twice the wait, and
//! computes elsewhere what would be here in no time. The router knows better: it placed the work, so
//! it knows when the work should end. Each placement moves that end by its own predicted prefill; work
//! starts when the worker has no other.
//!
//! # Defaults
//!
//! A forecast may be wrong and another router's work is not in it, so the host's count stays the upper
//! bound, and the share `calibrated.least_remaining` of it the lower one: half, what is left
//! of a single running prefill on average. Simulated over five workloads on pools of 4, 32 and 2P3D, mean
//! TTFT fell from 0.78 to 0.76 of Dynamo's default; shares from 0.2 to 0.5 do the same.
//!
//! # Source
//!
//! Dynamo's `active_prefill_tokens`, without a prefill load model.

use std::collections::HashMap;
use std::time::Duration;

use regime_core::{Millis, Timestamp, WorkerKey};
use rustc_hash::FxBuildHasher;

/// When the prefill work of each worker should end.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    ends: HashMap<WorkerKey, Timestamp, FxBuildHasher>,
}

impl Progress {
    /// Time at `now` until the prefill work on `worker` should have ended, where the host counts
    /// `prefill_tokens`. Zero when it is overdue; absent when nothing placed here is known to remain.
    pub(crate) fn remaining(
        &mut self,
        worker: WorkerKey,
        prefill_tokens: f64,
        now: Timestamp,
    ) -> Option<Millis> {
        if prefill_tokens <= 0.0 {
            self.ends.remove(&worker);
            return None;
        }
        let end = self.ends.get(&worker)?;
        Some(Millis::from(end.since(now)))
    }

    /// A request whose prefill should take `own` was placed on `worker` at `now`.
    pub(crate) fn placed(&mut self, worker: WorkerKey, own: Millis, now: Timestamp) {
        let end = self.ends.entry(worker).or_insert(now);
        let own = Duration::try_from_secs_f64(own.get() / 1e3).unwrap_or_default();
        *end = (*end).max(now) + own;
    }

    /// Forget everything once there is more to remember than twice the `workers` of the pool: some have
    /// left.
    pub(crate) fn bound(&mut self, workers: usize) {
        if self.ends.len() > 2 * workers {
            self.ends.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkerKey = WorkerKey::new(1, 0);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn work_ends_after_what_was_placed_before_it() {
        let mut progress = Progress::default();
        progress.placed(W, Millis::new(200.0), at(0));
        progress.placed(W, Millis::new(100.0), at(50));
        // 300 ms of work since 0, of which 120 have passed.
        let remaining = progress.remaining(W, 5_000.0, at(120));
        assert_eq!(remaining, Some(Millis::new(180.0)));
    }

    #[test]
    fn an_idle_worker_starts_anew() {
        let mut progress = Progress::default();
        progress.placed(W, Millis::new(200.0), at(0));
        assert_eq!(progress.remaining(W, 0.0, at(90)), None);
        progress.placed(W, Millis::new(100.0), at(90));
        let remaining = progress.remaining(W, 1_000.0, at(100));
        assert_eq!(remaining, Some(Millis::new(90.0)));
    }

    #[test]
    fn overdue_work_has_nothing_left_and_does_not_delay_the_next() {
        let mut progress = Progress::default();
        progress.placed(W, Millis::new(10.0), at(0));
        assert_eq!(progress.remaining(W, 1_000.0, at(50)), Some(Millis::ZERO));
        progress.placed(W, Millis::new(10.0), at(50));
        let remaining = progress.remaining(W, 2_000.0, at(50));
        assert_eq!(remaining, Some(Millis::new(10.0)));
    }

    #[test]
    fn of_work_that_others_placed_nothing_is_known() {
        let mut progress = Progress::default();
        assert_eq!(progress.remaining(W, 1_000.0, at(0)), None);
    }

    #[test]
    fn workers_that_left_do_not_pile_up() {
        let mut progress = Progress::default();
        for id in 0..9 {
            progress.placed(WorkerKey::new(id, 0), Millis::new(1.0), at(0));
        }
        progress.bound(4);
        assert!(progress.ends.is_empty());
    }
}
