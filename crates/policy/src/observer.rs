// SPDX-License-Identifier: Apache-2.0

//! Watching another policy choose: the yardstick for any policy.
//!
//! To say what a choice cost, somebody must say what every worker would have cost, in a way that does not
//! depend on who chose. So an observer is the whole policy of a pool, with its calibration, its credit for
//! cached prefixes and its notes of work under way; only the choice comes from outside. It is asked what
//! the other policy was asked, prices it, writes the other's choice into its journal, and learns from it
//! as from its own. Two observers of the same requests differ only in what was chosen.

use std::sync::Arc;

use dynamo_kv_router::protocols::{WorkerConfigLike, WorkerWithDpRank};
use dynamo_kv_router::{
    KvRouterConfig, WorkerSelectionInput, WorkerSelectionPolicy, WorkerSelector,
};
use parking_lot::Mutex;
use regime_anarchy::Candidate;
use regime_core::{Millis, Regime};

use crate::clock::Clock;
use crate::key_of;
use crate::pool::Pool;
use crate::selection::{self, Scratch};

/// The policy of one pool, without its choices. From [`Handle::observer`](crate::Handle::observer), whose
/// other methods tell what it learns.
pub struct Observer {
    policy: WorkerSelectionPolicy,
    scratch: Arc<Mutex<Scratch>>,
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
}

/// A choice as the observer saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Regime of the pool.
    pub regime: Regime,
    /// Every candidate with its forecasts, in ms, in the order of the workers; those of a stage that does not prefill are zero.
    pub candidates: Vec<Candidate>,
    /// What a request takes from its first token to its last, in the mean over the pool.
    pub residence: Millis,
    /// How long a request then had to wait for a seat, whatever the choice.
    pub seat_wait: Millis,
}

impl Observer {
    pub(crate) fn new(pool: Arc<Pool>, config: &KvRouterConfig, clock: Arc<dyn Clock>) -> Self {
        let (policy, scratch) =
            selection::policy(Arc::clone(&pool), config, Arc::clone(&clock), None);
        Self {
            policy,
            scratch,
            pool,
            clock,
        }
    }

    /// `chosen` was chosen for `input`. Nothing comes of a choice that is no candidate.
    pub fn observe<C: WorkerConfigLike>(
        &self,
        input: WorkerSelectionInput<'_, C>,
        chosen: WorkerWithDpRank,
    ) -> Option<Observed> {
        let chosen = key_of(chosen);
        self.scratch.lock().given = Some(chosen);
        let selected = self.policy.select_worker(input);
        let selected = selected.ok().map(|selected| key_of(selected.worker));
        let candidates = self.scratch.lock().forecasts();
        let now = self.clock.now();
        let expected = self.pool.with_state(now, |state| state.last_expected());
        let expected = expected.unwrap_or_default();
        Some(Observed {
            regime: self.pool.snapshot().regime(now),
            candidates: candidates.filter(|_| selected == Some(chosen))?,
            residence: expected.residence,
            seat_wait: expected.seat_wait,
        })
    }
}
