// SPDX-License-Identifier: Apache-2.0

//! Transfers between tiers that the router has caused and that are still under way.
//!
//! # Idea
//!
//! Requests that are sent to one worker for the sake of its host cache share one link: the second waits
//! for the bytes of the first. The host reports no such load, but the router knows what it sent where,
//! so it keeps the bytes outstanding per worker and tier and lets them drain at the tier's bandwidth.
//! Bytes at a constant bandwidth are a time, so all there is to keep is when each link will be idle. The
//! shared store is one link for all workers: its own bandwidth, not theirs, is what they share.
//!
//! # Limits
//!
//! Transfers of other routers and evictions are not seen. Transfers count from the decision, though an
//! engine may begin them later. Both make the forecast a lower bound in the first case and an early one
//! in the second; it is gone as soon as the bytes would be.

use std::collections::HashMap;
use std::time::Duration;

use regime_core::{Millis, Timestamp, WorkerKey};
use rustc_hash::FxBuildHasher;

use crate::{Fetch, Ladder, Tier};

/// When the links of each worker, and of the shared store, will be idle.
#[derive(Debug, Default)]
pub struct Transfers {
    local: HashMap<WorkerKey, [Timestamp; 2], FxBuildHasher>,
    shared: Timestamp,
}

impl Transfers {
    /// Time at `now` until a new transfer to `worker` would begin, by tier in the order of
    /// [`Tier::LOWER`].
    #[must_use]
    pub fn queued(&self, worker: WorkerKey, now: Timestamp) -> [Millis; Tier::LOWER.len()] {
        let [host, disk] = self.local.get(&worker).copied().unwrap_or_default();
        [host, disk, self.shared].map(|end| Millis::from(end.since(now)))
    }

    /// Bytes on their way to `worker` from `tier` at `now`, from the whole store for [`Tier::Shared`].
    #[must_use]
    pub fn outstanding_bytes(
        &self,
        ladder: &Ladder,
        worker: WorkerKey,
        tier: Tier,
        now: Timestamp,
    ) -> f64 {
        let position = Tier::LOWER.into_iter().position(|lower| lower == tier);
        position
            .zip(ladder.speed(tier))
            .map_or(0.0, |(index, speed)| {
                self.queued(worker, now)[index].get() * speed.bandwidth_gb_s * 1e6
            })
    }

    /// A request that brings up `fetch` was sent to `worker` at `now`.
    pub fn placed(&mut self, ladder: &Ladder, worker: WorkerKey, fetch: &Fetch, now: Timestamp) {
        if fetch.bytes == Fetch::default().bytes {
            return;
        }
        let [host, disk] = self.local.entry(worker).or_default();
        for ((tier, end), bytes) in Tier::LOWER
            .into_iter()
            .zip([host, disk, &mut self.shared])
            .zip(fetch.bytes)
        {
            if let Some(speed) = ladder.speed(tier)
                && bytes > 0.0
            {
                let busy = speed.transfer(bytes).get() / 1e3;
                *end = (*end).max(now) + Duration::try_from_secs_f64(busy).unwrap_or_default();
            }
        }
    }

    /// Forget the idle links once there are more than twice the `workers` of the pool, and all of them if
    /// that is not enough: some workers have left.
    pub fn bound(&mut self, workers: usize, now: Timestamp) {
        if self.local.len() > 2 * workers {
            self.local
                .retain(|_, ends| ends.iter().any(|end| *end > now));
        }
        if self.local.len() > 2 * workers {
            self.local.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LadderConfig, TierSpeed};

    const A: WorkerKey = WorkerKey::new(1, 0);
    const B: WorkerKey = WorkerKey::new(2, 0);

    /// Host 10 GB/s, disk 1 GB/s, shared 0.5 GB/s.
    fn ladder() -> Ladder {
        Ladder::new(LadderConfig {
            host: Some(TierSpeed::new(0.5, 10.0)),
            disk: Some(TierSpeed::new(1.0, 1.0)),
            shared: Some(TierSpeed::new(4.0, 0.5)),
            ..LadderConfig::default()
        })
        .unwrap()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn fetch(bytes: [f64; 3]) -> Fetch {
        Fetch {
            bytes,
            ..Fetch::default()
        }
    }

    fn queued(transfers: &Transfers, worker: WorkerKey, now: u64) -> [f64; 3] {
        transfers.queued(worker, at(now)).map(Millis::get)
    }

    #[test]
    fn bytes_drain_at_the_bandwidth_of_their_tier() {
        let mut transfers = Transfers::default();
        transfers.placed(&ladder(), A, &fetch([50e6, 20e6, 0.0]), at(0));
        assert_eq!(queued(&transfers, A, 0), [5.0, 20.0, 0.0]);
        assert_eq!(queued(&transfers, A, 4), [1.0, 16.0, 0.0]);
        assert_eq!(queued(&transfers, A, 30), [0.0; 3]);
        let left = transfers.outstanding_bytes(&ladder(), A, Tier::Host, at(4));
        assert!((left - 10e6).abs() < 1.0);
    }

    #[test]
    fn transfers_of_one_link_queue_and_an_idle_link_starts_anew() {
        let mut transfers = Transfers::default();
        for now in [0, 2] {
            transfers.placed(&ladder(), A, &fetch([50e6, 0.0, 0.0]), at(now));
        }
        assert_eq!(queued(&transfers, A, 2)[0], 8.0);
        transfers.placed(&ladder(), A, &fetch([10e6, 0.0, 0.0]), at(100));
        assert_eq!(queued(&transfers, A, 100)[0], 1.0);
    }

    #[test]
    fn workers_have_links_of_their_own_and_one_store_between_them() {
        let mut transfers = Transfers::default();
        transfers.placed(&ladder(), A, &fetch([50e6, 0.0, 5e6]), at(0));
        assert_eq!(queued(&transfers, B, 0), [0.0, 0.0, 10.0]);
    }

    #[test]
    fn workers_that_left_do_not_pile_up() {
        let mut transfers = Transfers::default();
        for id in 0..9 {
            transfers.placed(
                &ladder(),
                WorkerKey::new(id, 0),
                &fetch([10e6, 0.0, 0.0]),
                at(id),
            );
        }
        // At 8.5 ms only the last is busy, which began at 8.
        transfers.bound(4, Timestamp::from_micros(8_500));
        assert_eq!(transfers.local.len(), 1);
        for id in 10..19 {
            transfers.placed(
                &ladder(),
                WorkerKey::new(id, 0),
                &fetch([10e6, 0.0, 0.0]),
                at(20),
            );
        }
        transfers.bound(4, at(20));
        assert!(transfers.local.is_empty());
    }
}
