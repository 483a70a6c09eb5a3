// SPDX-License-Identifier: Apache-2.0

//! One pool's router: Dynamo's own index, load tracking and policy queue around the policy under test.
//!
//! Only the policy is exchanged; everything around it is Dynamo's code in the arrangement of a live
//! frontend. For a request: look its blocks up in the radix tree and in the index of the host tier, project
//! the load of every worker with the request on it, ask the policy, and book the request on the chosen
//! worker. Requests wait in Dynamo's `PolicyQueue`, with its classes and priorities, while a queue
//! threshold is set and every worker is past it.
//!
//! What differs by role is what Dynamo sets by role: prefill pools do not track decode blocks, and decode
//! pools see no overlap, assume no reuse and do not track prefill tokens.
//!
//! Live routers learn of KV events some time after the fact; `kv_event_lag_ms` delays them. Completions
//! are never late: a router sees them on the response path. Many engines tell of device memory alone;
//! `device_events_only` keeps the others from the router.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use aisimulate_core::engine::{KvEvent, KvEventData, KvEventTier};
use anyhow::{Context, Result};
use dynamo_kv_router::indexer::{
    LowerTierIndexers, LowerTierQueryOptions, TieredMatchDetails, query_lower_tiers_with_options,
};
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, PrefillLoadHint, RoutingConstraints,
    StorageTier, WorkerAffinityTarget, WorkerConfigLike, WorkerWithDpRank,
    compute_seq_hash_for_block,
};
use dynamo_kv_router::queue::DEFAULT_MAX_BATCHED_TOKENS;
use dynamo_kv_router::scheduling::{
    OverlapAnalysis, OverlapSignals, PolicyClassConfig, PolicyProfile, PolicyQueue, QueueSnapshot,
    ScheduleMode, WorkerPlacement,
};
use dynamo_kv_router::{
    ActiveSequencesMultiWorker, KvRouterConfig, NoopSequencePublisher, RadixTree, RouterEvent,
    RoutingPartitionRef, SchedulingRequest, SequenceRequest, SessionContext, TrackingHashContext,
    TrackingHashScope, WorkerSelectionInput, WorkerType, compute_block_hash_for_seq,
};
use rand_pcg::Pcg64Mcg;
use regime_core::WorkerKey;
use regime_policy::Clock;
use tokio::time::Instant;
use uuid::Uuid;

use super::roster::{Roster, Seat, WorkerConfig};
use super::shadow::Shadow;
use super::simulation::request_index;
use crate::baselines::{Baseline, BaselineRequest, BaselineRow};
use crate::policies::{MODEL, Selector};

/// What decides.
pub(crate) enum Chooser {
    /// A Dynamo policy, from its factory.
    Policy(Selector),
    /// A rule of the lab, which may see the prompt.
    Baseline(Box<dyn Baseline>, Pcg64Mcg),
}

/// What a router hears of KV events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvEvents {
    /// How late, ms.
    pub(crate) lag_ms: f64,
    /// Of device memory alone.
    pub(crate) device_only: bool,
}

/// A request at the router.
pub(super) struct Ask<'a> {
    pub(super) id: Uuid,
    pub(super) tokens: &'a [u32],
    pub(super) output_tokens: u32,
    pub(super) session: &'a str,
    pub(super) priority: i32,
    pub(super) policy_class: Option<&'a str>,
    /// The worker that a classifier prefers.
    pub(super) target: Option<WorkerKey>,
}

/// A request that got its worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placed {
    pub(super) id: Uuid,
    pub(super) seat: Seat,
    /// The name by which the policy knows it.
    pub(super) worker: WorkerWithDpRank,
    /// Prompt tokens that the router expects to be cached there, weighted by tier.
    pub(super) cached_tokens: usize,
}

/// Time that selections took, on the wall clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SelectionTime {
    pub(crate) selections: u64,
    pub(crate) total: Duration,
}

struct Pending {
    id: Uuid,
    token_seq: Option<Vec<u64>>,
    /// Identity of the prompt's blocks in their context, for baselines; empty otherwise.
    block_hashes: Vec<u64>,
    isl_tokens: usize,
    overlap: OverlapSignals,
    output_tokens: u32,
    session: String,
    priority_jump: f64,
    policy_class: Option<String>,
    target: Option<WorkerAffinityTarget>,
}

pub(super) struct Router {
    config: KvRouterConfig,
    block_size: u32,
    roster: Roster,
    chooser: Chooser,
    /// Prices what the chooser chose; absent where nothing is forecast.
    shadow: Option<Shadow>,
    slots: ActiveSequencesMultiWorker<NoopSequencePublisher>,
    tracking: TrackingHashContext,
    index: Index,
    queue: PolicyQueue<Pending>,
    profile: PolicyProfile,
    /// Turns virtual times into the instants that Dynamo's load tracking wants.
    epoch: Instant,
    events: KvEvents,
    /// Events on their way: when they arrive, oldest first.
    late: VecDeque<(f64, Vec<RouterEvent>)>,
    stopwatch: std::sync::Arc<dyn Clock>,
    selection: SelectionTime,
}

/// Dynamo's settings for the pool of `role`.
pub(super) fn role_config(mut config: KvRouterConfig, role: WorkerType) -> KvRouterConfig {
    match role {
        WorkerType::Prefill => config.router_track_active_blocks = false,
        WorkerType::Decode => {
            config.overlap_score_credit = 0.0;
            config.router_assume_kv_reuse = false;
            config.router_track_prefill_tokens = false;
            config.router_prefill_load_model = dynamo_kv_router::RouterPrefillLoadModel::None;
        }
        _ => {}
    }
    config
}

impl Router {
    pub(super) fn new(
        config: KvRouterConfig,
        block_size: u32,
        roster: Roster,
        chooser: Chooser,
        shadow: Option<Shadow>,
        events: KvEvents,
        stopwatch: std::sync::Arc<dyn Clock>,
    ) -> Result<Self> {
        let ranges = roster
            .listed()
            .iter()
            .map(|(&id, worker)| (id, (0, worker.data_parallel_size())))
            .collect();
        let profile = config.configured_policy_profile()?;
        Ok(Self {
            slots: ActiveSequencesMultiWorker::new_without_expiry(
                NoopSequencePublisher,
                block_size as usize,
                ranges,
                false,
                0,
                "lab",
            ),
            tracking: TrackingHashContext::from_config(&config)?,
            index: Index::new(block_size),
            queue: PolicyQueue::new(profile.clone()),
            profile,
            epoch: Instant::now(),
            late: VecDeque::new(),
            selection: SelectionTime::default(),
            config,
            block_size,
            roster,
            chooser,
            shadow,
            events,
            stopwatch,
        })
    }

    pub(super) const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// KV blocks of device memory of a worker; none of one that is not in the pool.
    pub(super) fn device_blocks(&self, worker: WorkerKey) -> Option<u64> {
        self.roster.listed().get(&worker.id)?.total_kv_blocks()
    }

    pub(super) const fn selection_time(&self) -> SelectionTime {
        self.selection
    }

    pub(super) const fn take_shadow(&mut self) -> Option<Shadow> {
        self.shadow.take()
    }

    /// Place a request, or queue it: nothing is returned then.
    pub(super) fn place(&mut self, ask: &Ask<'_>, now_ms: f64) -> Result<Option<Placed>> {
        self.receive_events(now_ms)?;
        let pending = self.pending(ask);
        let snapshot = self.snapshot(&pending);
        let class_name = pending.policy_class.as_deref();
        let class_index = self
            .profile
            .direct_class_index(class_name)
            .unwrap_or_else(|| {
                self.profile
                    .resolve_class_index(class_name, snapshot.uncached_tokens)
            });
        let class = self.profile.class(class_index);
        let now = self.instant(now_ms);
        if class.queueing_enabled()
            && (self.queue.has_backlog(class_index)
                || all_busy(&self.slots.active_tokens(now), self.roster.listed(), class))
        {
            let workers = self.roster.names().count();
            let priority_jump = pending.priority_jump;
            self.queue
                .enqueue(
                    class_index,
                    workers,
                    snapshot,
                    now_ms / 1_000.0,
                    priority_jump,
                    0,
                    WorkerPlacement::Any,
                    pending,
                )
                .map_err(|(rejection, _)| rejection)?;
            return Ok(None);
        }
        self.admit(pending, now).map(Some)
    }

    /// KV events of one rank at the time they happened.
    pub(super) fn observe(
        &mut self,
        seat: Seat,
        mut events: Vec<KvEvent>,
        now_ms: f64,
    ) -> Result<()> {
        if self.events.device_only {
            events.retain(|event| event.tier == KvEventTier::Device);
        }
        if events.is_empty() {
            return Ok(());
        }
        let worker = self.roster.name(seat);
        let events = events.into_iter().map(|event| router_event(worker, event));
        let events: Vec<_> = events.collect();
        if self.events.lag_ms > 0.0 {
            self.late.push_back((now_ms + self.events.lag_ms, events));
            return Ok(());
        }
        self.index.apply(events)
    }

    /// The prompt has been computed; returns the queued requests that now got a worker.
    pub(super) fn prefilled(&mut self, id: Uuid, now_ms: f64) -> Result<Vec<Placed>> {
        self.receive_events(now_ms)?;
        let now = self.instant(now_ms);
        self.slots.mark_prefill_completed(&id.to_string(), now)?;
        self.drain(now)
    }

    /// The request left the pool; returns the queued requests that now got a worker.
    pub(super) fn free(&mut self, id: Uuid, now_ms: f64) -> Result<Vec<Placed>> {
        self.receive_events(now_ms)?;
        let now = self.instant(now_ms);
        self.slots.free(&id.to_string(), now)?;
        self.drain(now)
    }

    /// Take a request that has no worker yet out of the queue; whether it was there.
    pub(super) fn cancel_queued(&mut self, id: Uuid) -> bool {
        let before = self.queue.pending_count();
        self.queue.retain(|pending| pending.id != id);
        self.queue.pending_count() != before
    }

    fn pending(&self, ask: &Ask<'_>) -> Pending {
        let blocks: Vec<LocalBlockHash> =
            compute_block_hash_for_seq(ask.tokens, self.block_size, BlockHashOptions::default());
        let scope = TrackingHashScope {
            partition: RoutingPartitionRef::new(MODEL, dynamo_kv_router::DEFAULT_ROUTING_GROUP),
            block_size: self.block_size,
        };
        let token_seq = self.config.compute_seq_hashes_for_tracking_with_context(
            &self.tracking,
            scope,
            ask.tokens,
            None,
            BlockHashOptions::default(),
            Some(&blocks),
        );
        let block_hashes = match self.chooser {
            Chooser::Baseline(..) => compute_seq_hash_for_block(&blocks),
            Chooser::Policy(_) => Vec::new(),
        };
        let matches = self.index.find(blocks);
        Pending {
            id: ask.id,
            token_seq,
            block_hashes,
            isl_tokens: ask.tokens.len(),
            overlap: OverlapAnalysis::new(&self.config, self.block_size, &matches).signals(),
            output_tokens: ask.output_tokens,
            session: ask.session.to_owned(),
            priority_jump: f64::from(ask.priority.max(0)),
            policy_class: ask.policy_class.map(str::to_owned),
            target: (ask.target).map(|worker| WorkerWithDpRank::new(worker.id, worker.rank).into()),
        }
    }

    fn admit(&mut self, pending: Pending, now: Instant) -> Result<Placed> {
        let id = pending.id;
        let request_id = id.to_string();
        let mut request = SchedulingRequest {
            mode: ScheduleMode::Tracked {
                request_id: request_id.clone(),
            },
            worker_loads: self
                .slots
                .project_worker_loads(pending.token_seq.as_deref(), now),
            token_seq: pending.token_seq,
            isl_tokens: pending.isl_tokens,
            lora_name: None,
            expected_output_tokens: Some(pending.output_tokens),
            affinity_target: pending.target,
            pinned_worker: None,
            allowed_worker_ids: None,
            routing_constraints: RoutingConstraints::default(),
            router_config_override: None,
            track_prefill_tokens: self.config.router_track_prefill_tokens,
            priority_jump: pending.priority_jump,
            strict_priority: 0,
            policy_class: pending.policy_class,
            session_context: Some(SessionContext::new(pending.session, None, None, None)),
            overlap: pending.overlap,
            kv_transfer_candidates: None,
            retain_kv_transfer_chain: false,
            shared_cache_hits: None,
            resp_tx: None,
        };
        let before = self.stopwatch.now();
        let (worker, cached_tokens) = self.choose(&request, &pending.block_hashes)?;
        self.selection.total += self.stopwatch.now().since(before);
        self.selection.selections += 1;
        if let Some(shadow) = &mut self.shadow {
            let input = WorkerSelectionInput::configured(
                self.roster.listed(),
                &request,
                request.eligibility(),
                self.block_size,
            );
            shadow.observe(input, worker, request_index(id));
        }
        let fresh = request.isl_tokens.saturating_sub(cached_tokens);
        let hint = PrefillLoadHint {
            initial_effective_prefill_tokens: fresh,
            expected_prefill_duration: None,
        };
        self.slots.add_request(
            SequenceRequest {
                request_id,
                token_sequence: request.token_seq.take(),
                track_prefill_tokens: request.track_prefill_tokens,
                expected_output_tokens: request.expected_output_tokens,
                prefill_load_hint: (request.track_prefill_tokens && fresh > 0).then_some(hint),
                worker,
                lora_name: None,
            },
            now,
        )?;
        let seat = self
            .roster
            .seat(worker)
            .with_context(|| format!("the policy chose {worker:?}, which is not in the pool"))?;
        Ok(Placed {
            id,
            seat,
            worker,
            cached_tokens,
        })
    }

    fn choose(
        &mut self,
        request: &SchedulingRequest,
        block_hashes: &[u64],
    ) -> Result<(WorkerWithDpRank, usize)> {
        let (rule, rng) = match &mut self.chooser {
            Chooser::Policy(policy) => {
                let input = WorkerSelectionInput::configured(
                    self.roster.listed(),
                    request,
                    request.eligibility(),
                    self.block_size,
                );
                let chosen = policy.select_worker(input)?;
                return Ok((chosen.worker, chosen.cached_tokens));
            }
            Chooser::Baseline(rule, rng) => (rule, rng),
        };
        let rows: Vec<_> = self
            .roster
            .names()
            .map(|worker| {
                let load = request.worker_load_for(worker);
                let device = &request.overlap.tier_overlap_blocks.device;
                BaselineRow {
                    worker,
                    active_requests: load.active_requests,
                    active_prefill_tokens: load.active_prefill_tokens,
                    decode_blocks: load.potential_decode_blocks(),
                    device_overlap_blocks: device.get(&worker).copied().unwrap_or(0),
                }
            })
            .collect();
        let asked = BaselineRequest {
            block_hashes,
            prompt_tokens: request.isl_tokens,
            block_size: self.block_size as usize,
        };
        let index = rule.choose(&asked, &rows, rng);
        let worker = rows
            .get(index)
            .with_context(|| format!("the baseline chose row {index} of {}", rows.len()))?
            .worker;
        let cached = &request.overlap.effective_cached_tokens;
        Ok((worker, cached.get(&worker).copied().unwrap_or(0)))
    }

    fn drain(&mut self, now: Instant) -> Result<Vec<Placed>> {
        let mut placed = Vec::new();
        while self.queue.pending_count() > 0 {
            let (slots, workers) = (&self.slots, self.roster.listed());
            let mut tokens = None;
            let next = self.queue.pop_next(|_, class, _| {
                let tokens = tokens.get_or_insert_with(|| slots.active_tokens(now));
                !all_busy(tokens, workers, class)
            });
            let Some(next) = next else { break };
            placed.push(self.admit(next.into_payload(), now)?);
        }
        Ok(placed)
    }

    fn receive_events(&mut self, now_ms: f64) -> Result<()> {
        while self.late.front().is_some_and(|(at_ms, _)| *at_ms <= now_ms) {
            if let Some((_, events)) = self.late.pop_front() {
                self.index.apply(events)?;
            }
        }
        Ok(())
    }

    fn snapshot(&self, pending: &Pending) -> QueueSnapshot {
        let cached = pending.overlap.effective_cached_tokens.values();
        QueueSnapshot::new(pending.isl_tokens, cached.copied().max().unwrap_or(0))
    }

    fn instant(&self, now_ms: f64) -> Instant {
        self.epoch + Duration::from_secs_f64(now_ms.max(0.0) / 1_000.0)
    }
}

/// Whether every worker is past the threshold of the class.
fn all_busy(
    active_tokens: &HashMap<WorkerWithDpRank, usize>,
    workers: &HashMap<u64, WorkerConfig>,
    class: &PolicyClassConfig,
) -> bool {
    workers.iter().all(|(&id, worker)| {
        let capacity = worker
            .max_num_batched_tokens()
            .unwrap_or(DEFAULT_MAX_BATCHED_TOKENS);
        (0..worker.data_parallel_size()).all(|rank| {
            let tokens = active_tokens.get(&WorkerWithDpRank::new(id, rank));
            class.worker_is_busy(tokens.copied().unwrap_or(0), capacity)
        })
    })
}

/// The engine's event as the router's wire knows it.
fn router_event(worker: WorkerWithDpRank, event: KvEvent) -> RouterEvent {
    let data = match event.data {
        KvEventData::Stored(stored) => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: stored.parent_hash.map(ExternalSequenceBlockHash),
            start_position: stored
                .start_position
                .and_then(|position| u32::try_from(position).ok()),
            blocks: stored
                .blocks
                .iter()
                .map(|block| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(block.block_hash),
                    tokens_hash: LocalBlockHash(block.tokens_hash),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        KvEventData::Removed { block_hashes } => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: block_hashes
                .into_iter()
                .map(ExternalSequenceBlockHash)
                .collect(),
        }),
    };
    let tier = match event.tier {
        KvEventTier::Device => StorageTier::Device,
        KvEventTier::HostPinned => StorageTier::HostPinned,
    };
    let event = KvCacheEvent {
        event_id: event.event_id,
        data,
        dp_rank: worker.dp_rank,
    };
    RouterEvent::with_storage_tier(worker.worker_id, event, tier)
}

/// Which worker holds which blocks, in device memory and in the host tier.
struct Index {
    block_size: u32,
    device: RadixTree,
    /// Made with the first event of a lower tier: it starts a thread.
    lower: Option<LowerTierIndexers>,
}

impl Index {
    fn new(block_size: u32) -> Self {
        Self {
            block_size,
            device: RadixTree::new(),
            lower: None,
        }
    }

    fn find(&self, blocks: Vec<LocalBlockHash>) -> TieredMatchDetails {
        let Some(lower) = &self.lower else {
            return TieredMatchDetails {
                device: self.device.find_match_details(blocks, false),
                lower_tier: HashMap::default(),
            };
        };
        let device = self.device.find_match_details(blocks.clone(), false);
        let options = LowerTierQueryOptions::default();
        let lower_tier = query_lower_tiers_with_options(lower, &blocks, &device, options);
        TieredMatchDetails { device, lower_tier }
    }

    /// Apply events in order, and wait until they can be found.
    fn apply(&mut self, events: Vec<RouterEvent>) -> Result<()> {
        for event in events {
            if event.storage_tier.is_gpu() {
                self.device.apply_event(event)?;
                continue;
            }
            let block_size = self.block_size;
            let indexer = self
                .lower
                .get_or_insert_with(|| LowerTierIndexers::new(1, block_size))
                .get_or_create(event.storage_tier);
            futures::executor::block_on(indexer.apply_event_and_wait(event))?;
        }
        Ok(())
    }
}
