// SPDX-License-Identifier: Apache-2.0

//! The event loop: virtual time, arrivals, routers, engines, and the transfer between prefill and decode.
//!
//! At each instant everything that can happen happens, in the order of NVIDIA's replay, until nothing
//! changes: transfers of the host tier, ends of passes, ends of KV transfers, hand-over steps, arrivals,
//! starts of passes. Then time jumps to the next event.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use aisimulate_core::engine::{
    Command, CommandResult, KvEvent, KvEventData, KvEventTier, Output, Request,
};
use aisimulate_core::replay::{HandoffCoordinatorCore, HandoffOrder, IssuedHandoffAction};
use anyhow::{Context, Result, bail, ensure};
use dynamo_kv_router::WorkerType;
use regime_core::{Timestamp, WorkerKey};
use regime_policy::{Handle, ManualClock};
use uuid::Uuid;

use super::build::Simulated;
use super::fleet::{Fleet, RankEnd, Started};
use super::record::{
    Decision, Ending, PoolRecord, RegimeSince, RequestRecord, RunRecord, TierTraffic,
};
use super::roster::Seat;
use super::router::{Ask, Placed, Router, SelectionTime};
use super::source::{Source, Tokens};
use super::watch::RegimeWatch;
use crate::lifecycle::{Lifecycle, SessionTurn};
use crate::workload::{LONGEST_MS, Workload};

/// Steps of a transfer to or from the host tier at one instant before the run is given up.
const MAX_SETTLE_STEPS: usize = 100_000;

/// Passes in a row that may end without a token, a refusal or a hand-over step while nothing arrives,
/// before the run is given up: engines short of memory can evict each other's work for ever. Far above
/// the chunks of all prompts that a fleet can hold.
const MAX_FRUITLESS_PASSES: u64 = 200_000;

/// Something that happens later.
#[derive(Debug, PartialEq)]
struct Event {
    at_ms: f64,
    kind: EventKind,
}

/// In the order of happening at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    PassEnd { pool: usize, worker: usize },
    Transferred { request: usize },
}

impl Eq for Event {}

/// Reversed, so that the heap gives the earliest first.
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let time = other.at_ms.total_cmp(&self.at_ms);
        time.then_with(|| other.kind.cmp(&self.kind))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One pool with its router and its engines.
pub(super) struct Pool {
    pub(super) role: WorkerType,
    pub(super) router: Router,
    pub(super) fleet: Fleet,
    pub(super) work_tokens: Vec<u64>,
    pub(super) requests: Vec<u64>,
    pub(super) regimes: Vec<RegimeSince>,
}

/// Where a request stands in one pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Stage {
    /// Not there, or no longer.
    #[default]
    Absent,
    /// Waiting for a worker; the step of the hand-over that waits with it, if any.
    Queued(Option<IssuedHandoffAction>),
    /// On a worker.
    Placed(Placed),
}

/// One request.
pub(super) struct Live {
    pub(super) record: RequestRecord,
    /// Prompt, while somebody may still need it.
    pub(super) tokens: Arc<Vec<u32>>,
    pub(super) output_tokens: u32,
    /// By pool.
    pub(super) stages: [Stage; 2],
    /// Disaggregated serving only.
    pub(super) handoff: Option<HandoffCoordinatorCore>,
    pub(super) prefilled: bool,
    /// The session has been told of the end.
    pub(super) answered: bool,
}

/// One run under way.
pub(super) struct Simulation<'a> {
    workload: &'a Workload,
    source: Source<'a>,
    tokens: Tokens,
    pub(super) pools: Vec<Pool>,
    pub(super) live: Vec<Live>,
    events: BinaryHeap<Event>,
    /// Steps of hand-overs that can be tried now.
    pub(super) actions: VecDeque<(usize, IssuedHandoffAction)>,
    /// Steps that wait for the pass of (pool, worker) to end.
    pub(super) deferred: BTreeMap<(usize, usize), VecDeque<(usize, IssuedHandoffAction)>>,
    pub(super) handoff_order: HandoffOrder,
    pub(super) handoff_latency_ms: f64,
    pub(super) now_ms: f64,
    max_time_ms: f64,
    clock: Arc<ManualClock>,
    lifecycles: Vec<Box<dyn Lifecycle>>,
    watch: RegimeWatch,
    shadow: Handle,
    token_gaps_ms: Vec<f32>,
    decisions: Vec<Decision>,
    /// Absent until an engine tells tiers apart.
    tiers: Option<TierTraffic>,
    host_tier: HostTier,
    written_tokens: u64,
    fruitless_passes: u64,
}

/// What is known of the host tier before a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostTier {
    /// Whether all workers share one.
    pub(super) shared: bool,
    pub(super) block_size: u64,
    pub(super) bytes_per_token: Option<u64>,
}

/// What a simulation needs besides its workload.
pub(super) struct Setup {
    pub(super) pools: Vec<Pool>,
    pub(super) handoff_order: HandoffOrder,
    pub(super) handoff_latency_ms: f64,
    pub(super) max_time_ms: Option<f64>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) lifecycles: Vec<Box<dyn Lifecycle>>,
    pub(super) watch: RegimeWatch,
    pub(super) shadow: Handle,
    pub(super) host_tier: HostTier,
}

pub(super) fn request_uuid(request: usize) -> Uuid {
    Uuid::from_u128(request as u128 + 1)
}

pub(super) const fn request_index(id: Uuid) -> usize {
    (id.as_u128() as usize).wrapping_sub(1)
}

impl<'a> Simulation<'a> {
    pub(super) fn new(workload: &'a Workload, setup: Setup) -> Self {
        Self {
            workload,
            source: Source::new(workload),
            tokens: Tokens::new(workload.block_size),
            pools: setup.pools,
            live: Vec::with_capacity(workload.requests()),
            events: BinaryHeap::new(),
            actions: VecDeque::new(),
            deferred: BTreeMap::new(),
            handoff_order: setup.handoff_order,
            handoff_latency_ms: setup.handoff_latency_ms,
            now_ms: 0.0,
            max_time_ms: setup.max_time_ms.unwrap_or(f64::INFINITY),
            clock: setup.clock,
            lifecycles: setup.lifecycles,
            watch: setup.watch,
            shadow: setup.shadow,
            token_gaps_ms: Vec::new(),
            decisions: Vec::new(),
            tiers: None,
            host_tier: setup.host_tier,
            written_tokens: 0,
            fruitless_passes: 0,
        }
    }

    /// Run to the end; the regime-aware policy is asked for its report there, before its pools go.
    pub(super) fn run(mut self) -> Result<Simulated> {
        while let Some(next_ms) = self.next_ms() {
            if next_ms > self.max_time_ms {
                break;
            }
            self.now_ms = self.now_ms.max(next_ms);
            ensure!(
                self.now_ms <= 2.0 * LONGEST_MS,
                "virtual time passes {} ms, twenty years: does a pass or a pause take too long?",
                2.0 * LONGEST_MS
            );
            self.clock.set(Timestamp::from_micros(
                (self.now_ms * 1_000.0).round() as u64
            ));
            self.settle_instant()?;
        }
        let stuck = self.live.iter().filter(|live| !live.answered).count();
        ensure!(
            stuck == 0 || self.next_ms().is_some(),
            "{stuck} requests wait for ever at {} ms: does a prompt need more KV blocks than a worker has?",
            self.now_ms
        );
        let selection = self.pools.iter().map(|pool| pool.router.selection_time());
        let selection = selection.fold(SelectionTime::default(), |sum, pool| SelectionTime {
            selections: sum.selections + pool.selections,
            total: sum.total + pool.total,
        });
        let report = self
            .watch
            .ours()
            .map(Handle::report)
            .filter(|report| !report.pools.is_empty());
        let shadow = self
            .pools
            .first_mut()
            .and_then(|pool| pool.router.take_shadow());
        let watched = shadow.map(|shadow| shadow.finish(&self.shadow));
        let record = RunRecord {
            requests: self.live.into_iter().map(|live| live.record).collect(),
            token_gaps_ms: self.token_gaps_ms,
            decisions: self.decisions,
            pools: self
                .pools
                .into_iter()
                .map(|pool| PoolRecord {
                    role: pool.role,
                    work_tokens: pool.work_tokens,
                    busy_ms: pool.fleet.busy_ms(),
                    requests: pool.requests,
                    regimes: pool.regimes,
                })
                .collect(),
            tiers: self.tiers.map(|tiers| TierTraffic {
                written_tokens: (!self.host_tier.shared).then_some(self.written_tokens),
                bytes_per_token: self.host_tier.bytes_per_token,
                ..tiers
            }),
            end_ms: self.now_ms,
        };
        Ok(Simulated {
            record,
            selection,
            report,
            watched,
        })
    }

    fn next_ms(&self) -> Option<f64> {
        let event = self.events.peek().map(|event| event.at_ms);
        let deadlines = self.pools.iter().map(|pool| pool.fleet.next_deadline_ms());
        deadlines
            .chain([event, self.source.next_ms()])
            .flatten()
            .min_by(f64::total_cmp)
    }

    fn settle_instant(&mut self) -> Result<()> {
        let mut changed = true;
        while changed {
            changed = self.settle_host_tier()?;
            if self.end_passes()? {
                changed = true;
                self.settle_host_tier()?;
            }
            changed |= self.end_transfers()?;
            changed |= self.hand_over()?;
            changed |= self.arrive()?;
            for pool in 0..self.pools.len() {
                changed |= self.start_passes(pool)?;
            }
        }
        Ok(())
    }

    fn settle_host_tier(&mut self) -> Result<bool> {
        for step in 0..MAX_SETTLE_STEPS {
            let mut worked = false;
            for pool in 0..self.pools.len() {
                if let Some(ends) = self.pools[pool].fleet.settle(self.now_ms)? {
                    worked = true;
                    for end in ends {
                        self.rank_ended(pool, end)?;
                    }
                }
            }
            if !worked {
                return Ok(step > 0);
            }
        }
        bail!("the host tier does not settle at {} ms", self.now_ms)
    }

    fn end_passes(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(EventKind::PassEnd { pool, worker }) = self.due_event() {
            self.events.pop();
            any = true;
            let ends = self.pools[pool].fleet.complete(worker, self.now_ms)?;
            self.wake(pool, worker);
            for end in ends {
                self.rank_ended(pool, end)?;
            }
        }
        Ok(any)
    }

    fn end_transfers(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(EventKind::Transferred { request }) = self.due_event() {
            self.events.pop();
            any = true;
            self.transferred(request)?;
        }
        Ok(any)
    }

    fn due_event(&self) -> Option<EventKind> {
        self.events
            .peek()
            .filter(|event| event.at_ms <= self.now_ms)
            .map(|event| event.kind)
    }

    pub(super) fn schedule_transfer(&mut self, request: usize, delay_ms: f64) {
        self.events.push(Event {
            at_ms: self.now_ms + delay_ms,
            kind: EventKind::Transferred { request },
        });
    }

    /// Steps that waited for this worker can be tried again.
    fn wake(&mut self, pool: usize, worker: usize) {
        if let Some(waiting) = self.deferred.remove(&(pool, worker)) {
            self.actions.extend(waiting);
        }
    }

    fn arrive(&mut self) -> Result<bool> {
        let mut arrived = Vec::new();
        while let Some(arrival) = self.source.pop(self.now_ms) {
            let turn = &self.workload.sessions[arrival.session].turns[arrival.turn];
            let tokens = self.tokens.prompt(&turn.hash_ids, turn.input_tokens)?;
            arrived.push(self.live.len());
            self.live.push(Live {
                record: RequestRecord {
                    session: arrival.session,
                    turn: arrival.turn,
                    arrival_ms: arrival.at_ms,
                    prompt_tokens: turn.input_tokens,
                    reused_tokens: None,
                    prefill_worker: None,
                    decode_worker: None,
                    first_token_ms: None,
                    last_token_ms: None,
                    tokens: 0,
                    ending: Ending::Unfinished,
                },
                tokens: Arc::new(tokens),
                output_tokens: turn.output_tokens,
                stages: [Stage::Absent; 2],
                handoff: None,
                prefilled: false,
                answered: false,
            });
        }
        if !arrived.is_empty() {
            self.fruitless_passes = 0;
        }
        for &request in &arrived {
            if self.pools.len() == 2 {
                self.begin_handoff(request)?;
            } else {
                self.route(0, request, None)?;
            }
        }
        Ok(!arrived.is_empty())
    }

    /// Ask the router of a pool for a worker.
    pub(super) fn route(
        &mut self,
        pool: usize,
        request: usize,
        action: Option<IssuedHandoffAction>,
    ) -> Result<()> {
        let role = self.pools[pool].role;
        let live = &mut self.live[request];
        live.stages[pool] = Stage::Queued(action);
        let id = request_uuid(request);
        let requested = &self.workload.sessions[live.record.session].turns[live.record.turn];
        let tokens = Arc::clone(&live.tokens);
        let session = self.workload.sessions[live.record.session].id.as_str();
        let name = id.to_string();
        let router = &mut self.pools[pool].router;
        let turn = SessionTurn {
            role,
            id: &name,
            session,
            prompt_tokens: tokens.len(),
            block_size: router.block_size(),
            device_blocks: &|worker| router.device_blocks(worker),
        };
        let mut target = None;
        for lifecycle in &mut self.lifecycles {
            lifecycle.routing(role, &name, tokens.len());
            target = lifecycle.session_target(&turn).or(target);
        }
        let ask = Ask {
            id,
            tokens: &tokens,
            output_tokens: if role == WorkerType::Prefill {
                1
            } else {
                live.output_tokens
            },
            session,
            priority: requested.priority.unwrap_or(0),
            policy_class: requested.policy_class.as_deref(),
            target,
        };
        if let Some(placed) = router.place(&ask, self.now_ms)? {
            self.dispatch(pool, placed)?;
        }
        Ok(())
    }

    pub(super) fn dispatch_all(&mut self, pool: usize, placed: Vec<Placed>) -> Result<()> {
        for placed in placed {
            self.dispatch(pool, placed)?;
        }
        Ok(())
    }

    /// Send a request to the worker that it was given.
    fn dispatch(&mut self, pool: usize, placed: Placed) -> Result<()> {
        let request = request_index(placed.id);
        let role = self.pools[pool].role;
        self.decisions.push(Decision {
            at_ms: self.now_ms,
            request,
            role,
            worker: placed.seat.worker,
            rank: placed.seat.rank,
            cached_tokens: placed.cached_tokens,
        });
        self.pools[pool].requests[placed.seat.worker] += 1;
        let live = &mut self.live[request];
        let Stage::Queued(action) = live.stages[pool] else {
            bail!("request {request} was placed without having asked");
        };
        live.stages[pool] = Stage::Placed(placed);
        if role != WorkerType::Decode {
            live.record.prefill_worker = Some(placed.seat.worker);
        }
        if role != WorkerType::Prefill {
            live.record.decode_worker = Some(placed.seat.worker);
        }
        let (name, worker) = (placed.id.to_string(), key(&placed));
        for lifecycle in &mut self.lifecycles {
            lifecycle.sent(role, &name, worker);
        }
        if let Some(action) = action {
            return self.dispatch_handoff(pool, request, placed, action);
        }
        let command =
            Command::Submit(self.engine_request(request, self.live[request].output_tokens));
        let effects = self.command(pool, &placed, command)?;
        ensure!(
            effects == CommandResult::Submitted(placed.id),
            "the engine did not take request {request}"
        );
        Ok(())
    }

    /// Apply a command whose only effects besides its result are KV events.
    fn command(&mut self, pool: usize, placed: &Placed, command: Command) -> Result<CommandResult> {
        let seat = placed.seat;
        let effects =
            self.pools[pool]
                .fleet
                .command(seat.worker, seat.rank, command, self.now_ms)?;
        self.observe(pool, seat, effects.kv_events)?;
        Ok(effects.result)
    }

    /// KV events of one rank go to the router of its pool.
    fn observe(&mut self, pool: usize, seat: Seat, events: Vec<KvEvent>) -> Result<()> {
        let written = events.iter().map(|event| match &event.data {
            KvEventData::Stored(stored) if event.tier == KvEventTier::HostPinned => {
                stored.blocks.len() as u64
            }
            _ => 0,
        });
        self.written_tokens += written.sum::<u64>() * self.host_tier.block_size;
        self.pools[pool].router.observe(seat, events, self.now_ms)
    }

    pub(super) fn engine_request(&self, request: usize, output_tokens: u32) -> Request {
        Request {
            request_id: request_uuid(request),
            tokens: self.live[request].tokens.to_vec(),
            max_output_tokens: output_tokens as usize,
            output_token_ids: None,
        }
    }

    fn start_passes(&mut self, pool: usize) -> Result<bool> {
        let mut any = false;
        while let Some(started) = self.pools[pool].fleet.drive(self.now_ms)? {
            any = true;
            let Started {
                worker,
                admissions,
                end_ms,
                ends,
            } = started;
            if self.pools[pool].role != WorkerType::Decode {
                for (_, admission) in admissions {
                    let live = self.live.get_mut(request_index(admission.request_id));
                    let record = &mut live
                        .context("the engine knows a request that we do not")?
                        .record;
                    record
                        .reused_tokens
                        .get_or_insert(u32::try_from(admission.reused_input_tokens)?);
                    if let Some(found) = admission.cache_tier_attribution {
                        let tiers = self.tiers.get_or_insert_default();
                        tiers.device_tokens += found.g1_reused_input_tokens as u64;
                        tiers.host_tokens += found.host_reused_input_tokens as u64;
                    }
                }
            }
            self.fruitless_passes += 1;
            ensure!(
                self.fruitless_passes < MAX_FRUITLESS_PASSES,
                "{} requests make no progress at {} ms: are there too few KV blocks for them?",
                self.live.iter().filter(|live| !live.answered).count(),
                self.now_ms
            );
            if let Some(at_ms) = end_ms {
                self.events.push(Event {
                    at_ms,
                    kind: EventKind::PassEnd { pool, worker },
                });
            }
            if !ends.is_empty() {
                self.wake(pool, worker);
            }
            for end in ends {
                self.rank_ended(pool, end)?;
            }
        }
        Ok(any)
    }

    fn rank_ended(&mut self, pool: usize, end: RankEnd) -> Result<()> {
        let seat = Seat {
            worker: end.worker,
            rank: end.rank,
        };
        self.pools[pool].work_tokens[end.worker] += end.work;
        self.observe(pool, seat, end.kv_events)?;
        if !end.outputs.is_empty() || !end.lifecycle.is_empty() {
            self.fruitless_passes = 0;
        }
        let role = self.pools[pool].role;
        for output in end.outputs {
            if role == WorkerType::Prefill {
                self.prefill_output(&output)?;
            } else {
                self.output(pool, &output)?;
            }
        }
        self.lifecycle_events(end.lifecycle)
    }

    /// A token from an aggregated or decode worker, or an end without one.
    fn output(&mut self, pool: usize, output: &Output) -> Result<()> {
        let request = request_index(output.request_id);
        let role = self.pools[pool].role;
        let name = output.request_id.to_string();
        let live = self.live.get_mut(request);
        let live = live.context("the engine answered a request that we do not know")?;
        let Stage::Placed(placed) = live.stages[pool] else {
            bail!("request {request} was answered by a worker that it is not on");
        };
        let (worker, record) = (key(&placed), &mut live.record);
        if output.token_id.is_some() {
            record.tokens += 1;
            if let Some(before) = record.last_token_ms.replace(self.now_ms) {
                self.token_gaps_ms.push((self.now_ms - before) as f32);
            } else {
                record.first_token_ms = Some(self.now_ms);
                let ttft_ms = self.now_ms - record.arrival_ms;
                for lifecycle in &mut self.lifecycles {
                    lifecycle.first_token(role, &name, worker, ttft_ms);
                }
                self.watch.first_token_told(self.now_ms, &mut self.pools);
            }
        }
        if !output.completed {
            if role == WorkerType::Aggregated && !std::mem::replace(&mut live.prefilled, true) {
                let placed = self.pools[pool]
                    .router
                    .prefilled(output.request_id, self.now_ms)?;
                self.dispatch_all(pool, placed)?;
            }
            return Ok(());
        }
        let context = record.prompt_tokens + record.tokens;
        record.ending = if output.rejected {
            Ending::Rejected
        } else {
            Ending::Completed
        };
        for lifecycle in &mut self.lifecycles {
            if output.rejected {
                lifecycle.aborted(role, &name, Some(worker));
            } else {
                lifecycle.completed(role, &name, worker, context as usize);
            }
        }
        let placed = self.leave(pool, request)?;
        self.answer(request);
        self.dispatch_all(pool, placed)
    }

    /// Take a request out of a pool's router; returns the queued requests that now got a worker.
    pub(super) fn leave(&mut self, pool: usize, request: usize) -> Result<Vec<Placed>> {
        let id = request_uuid(request);
        let router = &mut self.pools[pool].router;
        match std::mem::take(&mut self.live[request].stages[pool]) {
            Stage::Absent => Ok(Vec::new()),
            Stage::Queued(_) => {
                router.cancel_queued(id);
                Ok(Vec::new())
            }
            Stage::Placed(_) => router.free(id, self.now_ms),
        }
    }

    /// Let the session go on, once.
    pub(super) fn answer(&mut self, request: usize) {
        let live = &mut self.live[request];
        if !std::mem::replace(&mut live.answered, true) {
            live.tokens = Arc::default();
            let record = &live.record;
            self.source
                .answered(record.session, record.turn, self.now_ms);
        }
    }

    /// Tell that a request was given up before a decode worker had it.
    pub(super) fn abort(&mut self, request: usize) {
        let pool = self.pools.len() - 1;
        let worker = match &self.live[request].stages[pool] {
            Stage::Placed(placed) => Some(key(placed)),
            _ => None,
        };
        let name = request_uuid(request).to_string();
        for lifecycle in &mut self.lifecycles {
            lifecycle.aborted(self.pools[pool].role, &name, worker);
        }
    }
}

const fn key(placed: &Placed) -> WorkerKey {
    WorkerKey::new(placed.worker.worker_id, placed.worker.dp_rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_passes_before_transfers_then_by_pool_and_worker() {
        let pass = |at_ms, pool, worker| Event {
            at_ms,
            kind: EventKind::PassEnd { pool, worker },
        };
        let transfer = |at_ms, request| Event {
            at_ms,
            kind: EventKind::Transferred { request },
        };
        let mut heap = BinaryHeap::from(vec![
            transfer(1.0, 0),
            pass(2.0, 0, 0),
            pass(1.0, 1, 0),
            pass(1.0, 0, 1),
            pass(1.0, 0, 0),
        ]);
        let order: Vec<_> = std::iter::from_fn(|| heap.pop()).collect();
        let expected = [
            pass(1.0, 0, 0),
            pass(1.0, 0, 1),
            pass(1.0, 1, 0),
            transfer(1.0, 0),
            pass(2.0, 0, 0),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn requests_and_their_ids_match() {
        assert_eq!(request_index(request_uuid(41)), 41);
    }
}
