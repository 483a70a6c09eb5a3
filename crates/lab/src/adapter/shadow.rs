// SPDX-License-Identifier: Apache-2.0

//! The same yardstick for every policy: the regime-aware policy looks on and prices what others choose.
//!
//! It is asked what the policy under test was asked, after it, and is told of every request, so it is as
//! calibrated as it would be as the policy. It draws from generators of its own and shares nothing but
//! virtual time: a run with it is the run without it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dynamo_kv_router::protocols::WorkerWithDpRank;
use dynamo_kv_router::{KvRouterConfig, RoutingPartitionRef, WorkerSelectionInput, WorkerType};
use regime_core::{Millis, Regime, Timestamp, WorkerKey};
use regime_policy::{
    Anarchy, Clock, Handle, JoinedChoice, ManualClock, Observer, Options, Parameters,
};

use super::roster::WorkerConfig;
use crate::policies::MODEL;

/// Rows of a pool that are kept, 64 MB. Later decisions are not measured.
const MAX_ROWS: usize = 2_000_000;

/// A decision and what every candidate was forecast to take.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    /// Position of the request in the order of arrival.
    pub(crate) request: usize,
    pub(crate) at: Timestamp,
    pub(crate) chosen: WorkerKey,
    /// Of the pool, as the yardstick sees it.
    pub(crate) regime: Regime,
    pub(crate) candidates: Vec<regime_anarchy::Candidate>,
    /// Mean time from first to last token.
    pub(crate) residence: Millis,
    /// Expected wait for a seat.
    pub(crate) seat_wait: Millis,
}

/// The decisions of one pool, and what a live frontend would make of them.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) role: WorkerType,
    /// All, also those that are not in `seen`.
    pub(crate) decisions: usize,
    pub(crate) seen: Vec<Seen>,
    /// Joined as a live frontend joins them.
    pub(crate) joined: Vec<JoinedChoice>,
    /// Decisions that met no request that way.
    pub(crate) unjoined: u64,
}

/// Decisions that are joined the live way, as long as nobody takes them.
const MAX_JOINED: usize = 100_000;

/// The state behind the shadows of a run.
pub(super) fn handle(clock: &Arc<ManualClock>) -> Handle {
    Handle::new(Options {
        clock: Some(Arc::clone(clock) as Arc<dyn Clock>),
        export_choices: Some(MAX_JOINED),
        ..Options::default()
    })
}

/// Looks on in one pool.
pub(super) struct Shadow {
    observer: Observer,
    clock: Arc<ManualClock>,
    role: WorkerType,
    decisions: usize,
    seen: Vec<Seen>,
    /// In `seen`.
    rows: usize,
}

impl Shadow {
    pub(super) fn new(
        handle: &Handle,
        clock: &Arc<ManualClock>,
        role: WorkerType,
        config: &KvRouterConfig,
    ) -> Result<Self> {
        let parameters = Parameters {
            // The lab knows the truth and measures with it.
            anarchy: Anarchy {
                core_share: 0.0,
                ..Anarchy::default()
            },
            ..Parameters::default()
        };
        let partition = RoutingPartitionRef::new(MODEL, dynamo_kv_router::DEFAULT_ROUTING_GROUP);
        Ok(Self {
            observer: handle.observer(parameters, config, role, partition)?,
            clock: Arc::clone(clock),
            role,
            decisions: 0,
            seen: Vec::new(),
            rows: 0,
        })
    }

    /// `chosen` was chosen for `request`.
    pub(super) fn observe(
        &mut self,
        input: WorkerSelectionInput<'_, WorkerConfig>,
        chosen: WorkerWithDpRank,
        request: usize,
    ) {
        self.decisions += 1;
        let observed = self.observer.observe(input, chosen);
        let Some(observed) = observed.filter(|_| self.rows < MAX_ROWS) else {
            return;
        };
        self.rows += observed.candidates.len();
        self.seen.push(Seen {
            request,
            at: self.clock.now(),
            chosen: WorkerKey::new(chosen.worker_id, chosen.dp_rank),
            regime: observed.regime,
            candidates: observed.candidates,
            residence: observed.residence,
            seat_wait: observed.seat_wait,
        });
    }

    /// All that was seen, when the run is over.
    pub(super) fn finish(self, handle: &Handle) -> Watched {
        // The windows of the last decisions are complete a while after them.
        self.clock.advance(Duration::from_secs(1));
        let pools = handle.take_choices().into_iter();
        let live = pools
            .map(|pool| (pool.choices, pool.counts.unjoined))
            .next();
        let (joined, unjoined) = live.unwrap_or_default();
        Watched {
            role: self.role,
            decisions: self.decisions,
            seen: self.seen,
            joined,
            unjoined,
        }
    }
}
