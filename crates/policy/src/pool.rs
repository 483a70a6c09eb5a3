// SPDX-License-Identifier: Apache-2.0

//! One pool: the candidates of one policy instance, that is one model and one role.
//!
//! The scorer and the feedback path meet here. The scorer reads an immutable [`Snapshot`] with one
//! atomic load and never waits: what it has to say goes into the journal. The feedback path owns the
//! learned [`State`] behind a lock and publishes a new snapshot at each tick. There is no thread; a
//! tick runs when a selection, an event or a reader comes by and one is due, and readers project the
//! last one to their own time, so that silence ages the state too.

mod gauge;
mod handover;
mod meter;
mod pending;
mod snapshot;
mod state;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use arc_swap::ArcSwap;
use dynamo_kv_router::{RoutingPartitionRef, WorkerType};
use parking_lot::Mutex;
use regime_core::{Blocks, Millis, Regime, Timestamp, WorkerKey};
use regime_kv::{CacheView, Tier};

use gauge::{Gauge, Measured};
pub(crate) use meter::Ticket;
pub use meter::{ExportCounts, JoinedChoice};
pub(crate) use pending::{Attached, Placement};
pub(crate) use snapshot::Snapshot;
pub(crate) use state::{Health, SignalReading, State, WorkerState};

use crate::clock::Clock;
use crate::journal::Journal;
use crate::parameters::{Checked, SessionAffinity};
use crate::periodic::Periodic;
use crate::report::AnarchyReport;
use crate::sessions::{Left, Sessions, Turn};
use crate::{FallbackReason, TtftDelta};

/// Unread decisions that are kept: a second at 1,000 requests/s between two ticks, four times over.
const JOURNAL_CAPACITY: usize = 4_096;
/// How often a failing score is logged at most.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Which pool this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolId {
    pub(crate) model: String,
    pub(crate) routing_group: String,
    pub(crate) role: WorkerType,
}

impl PoolId {
    pub(crate) fn new(role: WorkerType, partition: RoutingPartitionRef<'_>) -> Self {
        Self {
            model: partition.model_name.to_owned(),
            routing_group: partition.routing_group.to_owned(),
            role,
        }
    }

    /// Whether `prefill` prefills for this pool.
    pub(crate) fn is_served_by(&self, prefill: &Self) -> bool {
        self.role == WorkerType::Decode
            && self.model == prefill.model
            && self.routing_group == prefill.routing_group
    }
}

/// Events that only ever count up.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) decisions: AtomicU64,
    pub(crate) filter_failed_open: AtomicU64,
    pub(crate) unknown_loads: AtomicU64,
    pub(crate) session_targets: AtomicU64,
    pub(crate) session_targets_chosen: AtomicU64,
    fallbacks: [AtomicU64; FallbackReason::ALL.len()],
}

impl Counters {
    pub(crate) fn fallbacks(&self, reason: FallbackReason) -> u64 {
        self.fallbacks[reason as usize].load(Ordering::Relaxed)
    }
}

pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) parameters: Arc<Checked>,
    pub(crate) journal: Journal,
    pub(crate) counters: Counters,
    snapshot: ArcSwap<Snapshot>,
    state: Mutex<State>,
    /// Never locked together with the state.
    gauge: Mutex<Gauge>,
    /// Nothing else is locked while it is held.
    pub(crate) sessions: Mutex<Sessions>,
    /// Whether the index has ever shown blocks below device memory: then it knows where they are.
    pub(crate) sees_lower_tiers: AtomicBool,
    warned: Once,
    tick: Periodic,
    log: Periodic,
}

impl Pool {
    pub(crate) fn new(id: PoolId, parameters: Arc<Checked>, export: Option<usize>) -> Self {
        let state = State::new(id.role, &parameters, export);
        Self {
            snapshot: ArcSwap::from_pointee(state.snapshot(Timestamp::ORIGIN)),
            state: Mutex::new(state),
            gauge: Mutex::default(),
            sessions: Mutex::default(),
            sees_lower_tiers: AtomicBool::new(false),
            warned: Once::new(),
            journal: Journal::new(JOURNAL_CAPACITY),
            counters: Counters::default(),
            tick: Periodic::default(),
            log: Periodic::default(),
            parameters,
            id,
        }
    }

    /// What the request path knows.
    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Take note of candidates that the snapshot does not know. Rare: once per worker.
    pub(crate) fn join(&self, workers: impl Iterator<Item = WorkerKey>, now: Timestamp) {
        let mut state = self.state.lock();
        for worker in workers {
            state.join(worker, now);
        }
        self.publish(&state, now);
    }

    /// Fold the windows if a tick is due and nobody else holds the state; a selection must not wait.
    pub(crate) fn tick_if_due(&self, now: Timestamp) {
        if self.tick.is_due(now)
            && let Some(mut state) = self.state.try_lock()
            && self.tick.claim(now, self.parameters.tick)
        {
            state.read_journal(&self.journal);
            self.fold(&mut state, now);
        }
    }

    /// Bring the state up to date and change it. The request path learns of it at the next tick, or at
    /// once where the change is urgent.
    pub(crate) fn with_state<T>(&self, now: Timestamp, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.read_journal(&self.journal);
        let result = change(&mut state);
        if self.tick.claim(now, self.parameters.tick) {
            self.fold(&mut state, now);
        } else if state.take_urgent() {
            self.publish(&state, now);
        }
        result
    }

    /// Feed TTFTs that the frontend measured, for stages that no classifier event reaches.
    pub(crate) fn observe_ttft(&self, delta: &TtftDelta, now: Timestamp) {
        self.with_state(now, |state| state.observe_ttft(delta, now));
    }

    /// Measure the Price of Anarchy of the windows that have settled. Takes its time, off the request path.
    pub(crate) fn measure(&self, clock: &dyn Clock) {
        let now = clock.now();
        let measurable = self.with_state(now, |state| {
            let meter = state.meter.as_mut();
            meter.map(|meter| meter.take_measurable(now))
        });
        let Some(windows) = measurable else {
            return;
        };
        let measured = windows.iter().map(Measured::new).collect();
        let horizon = self.parameters.horizon;
        self.gauge.lock().add(measured, horizon, now);
        let done = clock.now();
        self.with_state(done, |state| {
            if let Some(meter) = &mut state.meter {
                meter.pay(done, done.since(now), windows.len());
            }
        });
    }

    /// The Price of Anarchy as it stands at `now`.
    pub(crate) fn anarchy(&self, now: Timestamp) -> AnarchyReport {
        let off = self.parameters.metering.core_share <= 0.0;
        let unavailable = |latency| {
            gauge::excluded(self.id.role, latency).or(off.then_some(gauge::reason::SWITCHED_OFF))
        };
        let rate = self.with_state(now, |state| state.meter.as_ref()?.sampling_rate());
        let gauge = self.gauge.lock();
        gauge.report(unavailable, rate, self.parameters.horizon, now)
    }

    /// The worker to which a turn had better return, because it left its prefix in a lower tier there.
    pub(crate) fn session_target(&self, turn: &Turn<'_>, now: Timestamp) -> Option<WorkerKey> {
        if self.parameters.raw.session_affinity == SessionAffinity::Exclusive {
            self.warned.call_once(|| {
                tracing::warn!(
                    model = self.id.model,
                    "session_target has no effect: it needs session_affinity: advisory in regime-aware"
                );
            });
            return None;
        }
        let left = self.sessions.lock().left(turn.session, now, turn.limits)?;
        let tier = self.worth_returning(&left, turn, now);
        self.sessions.lock().name(turn.session, tier);
        tier?;
        self.counters
            .session_targets
            .fetch_add(1, Ordering::Relaxed);
        Some(left.worker)
    }

    /// The tier that holds what a session left, if it is worth going there for it. While its worker or the
    /// pool is saturated the queue decides, not the session.
    fn worth_returning(&self, left: &Left, turn: &Turn<'_>, now: Timestamp) -> Option<Tier> {
        let (block_size, snapshot) = (turn.block_size, self.snapshot());
        let device = (turn.device_blocks)(left.worker)?.saturating_mul(u64::from(block_size));
        let worker = snapshot.worker(left.worker)?;
        if self.sees_lower_tiers.load(Ordering::Relaxed)
            || snapshot.regime(now) == Regime::Saturated
            || worker.is_saturated(now)
            || worker.is_held(now)
        {
            return None;
        }
        let tier = left.tier(device, self.below_device(&snapshot, block_size))?;
        if let Some(ladder) = &snapshot.ladder {
            let prefix = CacheView::default()
                .at_least(left.blocks(block_size), tier)
                .prefix(turn.prompt.0.div_ceil(u64::from(block_size)), []);
            let token = snapshot.prices.omega_per_token() * worker.slowness;
            let idle = [Millis::ZERO; Tier::LOWER.len()];
            let credit = ladder.credit(turn.prompt, block_size, &prefix, token, idle);
            if credit.blocks == Blocks::ZERO {
                return None;
            }
        }
        Some(tier)
    }

    /// The tiers of a worker below device memory whose blocks count, nearest first, with the tokens that each
    /// holds where that is known.
    fn below_device(
        &self,
        snapshot: &Snapshot,
        block_size: u32,
    ) -> impl Iterator<Item = (Tier, Option<u64>)> {
        let weights = self.parameters.tier_weights;
        [(Tier::Host, weights.host), (Tier::Disk, weights.disk)]
            .into_iter()
            .filter_map(move |(tier, weight)| {
                let Some(ladder) = &snapshot.ladder else {
                    return (weight > 0.0).then_some((tier, None));
                };
                ladder.speed(tier)?;
                let blocks = ladder.capacity_blocks(tier, block_size);
                let tokens = blocks.map(|blocks| blocks.saturating_mul(u64::from(block_size)));
                Some((tier, tokens))
            })
    }

    /// Count a use of the fallback rule, and log it at most once a minute.
    pub(crate) fn record_fallback(&self, reason: FallbackReason, detail: &str, now: Timestamp) {
        let total = self.counters.fallbacks[reason as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if self.log.claim(now, LOG_PERIOD) {
            tracing::error!(
                model = self.id.model,
                role = self.id.role.as_str(),
                reason = reason.as_str(),
                total,
                detail,
                "regime-aware scoring failed; least-loaded fallback serves the request"
            );
        }
    }

    fn fold(&self, state: &mut State, now: Timestamp) {
        state.tick(now);
        self.publish(state, now);
    }

    fn publish(&self, state: &State, now: Timestamp) {
        self.snapshot.store(Arc::new(state.snapshot(now)));
    }
}
