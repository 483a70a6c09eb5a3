// SPDX-License-Identifier: Apache-2.0

//! The plugin's scorer and picker: Dynamo's candidate table in, one row out.
//!
//! The scorer turns rows into [`Candidate`]s, prices them, and leaves what the picker and the journal
//! need in a scratch table that both share; the picker chooses and writes the journal. Buffers are
//! reused, so a selection allocates nothing once the pool has been as large as it gets. Selecting has
//! no side effect on the host.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dynamo_kv_router::plugins::worker_selection::{
    WorkerCandidate, WorkerCandidates, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
};
use dynamo_kv_router::protocols::{WorkerAffinityTarget, WorkerWithDpRank};
use dynamo_kv_router::{KvRouterConfig, WorkerType};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use regime_core::{Blocks, Millis, Regime, Timestamp, Tokens, WorkerKey};
use regime_kv::{Brought, CacheView, Fetch, Ladder, Overlap, TimedCredit, Transfers};

use crate::choice::{Choice, Contender, Rule, choose};
use crate::clock::Clock;
use crate::cost::{
    Candidate, Cost, Load, Prices, RequestFacts, calibrated, impute_missing_loads, paper,
};
use crate::guard::{Failure, guarded};
use crate::in_flight::InFlight;
use crate::journal::DecisionRow;
use crate::parameters::{CostModel, SessionAffinity};
use crate::pool::{Pool, Snapshot};
use crate::progress::Progress;
use crate::sessions::Named;
use crate::{ScoreProbe, key_of};

/// Compose the policy of one pool. It shares the tables with whoever wants to look into them after a
/// selection.
pub(crate) fn policy(
    pool: Arc<Pool>,
    config: &KvRouterConfig,
    clock: Arc<dyn Clock>,
    probe: Option<ScoreProbe>,
) -> (WorkerSelectionPolicy, Arc<Mutex<Scratch>>) {
    let role = pool.id.role;
    let exclusive = pool.parameters.raw.session_affinity == SessionAffinity::Exclusive;
    let scratch = Arc::new(Mutex::new(Scratch::new(&pool)));
    let inputs = inputs(role, config.conditional_disagg_enabled);
    let scorer = Scorer {
        pool: Arc::clone(&pool),
        scratch: Arc::clone(&scratch),
        clock: Arc::clone(&clock),
        probe,
        inputs,
    };
    let picker = Picker {
        pool,
        scratch: Arc::clone(&scratch),
        clock,
    };
    let policy = WorkerSelectionPolicy::new(
        config.clone(),
        role.as_str(),
        vec![Box::new(scorer)],
        Box::new(picker),
    )
    .with_exclusive_affinity(exclusive);
    (policy, scratch)
}

/// Plain decode and encode stages reuse no prefix, so they ask for no cache: a host that is asked for
/// it must index it. A decode stage that may also prefill (conditional disaggregation) does reuse.
fn inputs(role: WorkerType, conditional_disaggregation: bool) -> WorkerInputs {
    let load = WorkerInputs::LOAD | WorkerInputs::PREFERRED_TAINT;
    match role {
        WorkerType::Aggregated | WorkerType::Prefill => load | WorkerInputs::CACHE,
        WorkerType::Decode if conditional_disaggregation => load | WorkerInputs::CACHE,
        WorkerType::Decode | WorkerType::Encode => load,
    }
}

/// Tables of the selection in progress. Scorer and picker are called one after the other by one
/// actor, so nobody ever waits for the lock.
pub(crate) struct Scratch {
    rng: Pcg64Mcg,
    candidates: Vec<Candidate>,
    costs: Vec<Cost>,
    order: Vec<usize>,
    contenders: Vec<Contender>,
    in_flight: InFlight,
    progress: Progress,
    transfers: Transfers,
    regime: Regime,
    tau: f64,
    /// Whether the tables belong to the selection in progress and may be journalled.
    scored: bool,
    /// The worker that our own classifier named for the selection in progress.
    named: Option<WorkerKey>,
    /// The worker that somebody else chose for the selection in progress; see [`crate::Observer`].
    pub(crate) given: Option<WorkerKey>,
}

impl Scratch {
    fn new(pool: &Pool) -> Self {
        Self {
            rng: Pcg64Mcg::seed_from_u64(seed(pool)),
            candidates: Vec::new(),
            costs: Vec::new(),
            order: Vec::new(),
            contenders: Vec::new(),
            in_flight: InFlight::default(),
            progress: Progress::default(),
            transfers: Transfers::default(),
            regime: Regime::Unknown,
            tau: 0.0,
            scored: false,
            named: None,
            given: None,
        }
    }

    /// The forecasts of the last selection in the order of the workers; absent when it failed.
    pub(crate) fn forecasts(&self) -> Option<Vec<regime_anarchy::Candidate>> {
        let rows = self.candidates.iter().zip(&self.costs);
        let forecast = |(candidate, cost): (&Candidate, &Cost)| regime_anarchy::Candidate {
            worker: candidate.worker,
            wait: cost.predicted - cost.alone,
            own: cost.alone,
        };
        let mut forecasts: Vec<_> = rows.map(forecast).collect();
        forecasts.sort_unstable_by_key(|row| row.worker);
        self.scored.then_some(forecasts)
    }

    /// Remember what the selection in progress put where.
    fn placed(&mut self, row: usize, request_blocks: f64, ladder: Option<&Ladder>, now: Timestamp) {
        let (Some(row), Some(cost)) = (self.candidates.get(row), self.costs.get(row)) else {
            return;
        };
        if let Some(ladder) = ladder {
            self.transfers.bound(self.candidates.len(), now);
            self.transfers.placed(ladder, row.worker, &row.fetch, now);
        }
        if !row.load_known {
            return;
        }
        self.progress.bound(self.candidates.len());
        self.in_flight.bound(self.candidates.len());
        self.progress.placed(row.worker, cost.alone, now);
        self.in_flight.placed(
            row.worker,
            row.load.active_requests,
            row.load.decode_blocks,
            request_blocks,
        );
    }
}

/// Pools of one instance must not draw the same numbers, and must draw the same ones in every run.
fn seed(pool: &Pool) -> u64 {
    let identity = [
        pool.id.model.as_str(),
        pool.id.routing_group.as_str(),
        pool.id.role.as_str(),
    ];
    // FNV-1a: stable across processes and versions, which std's hasher is not.
    identity
        .iter()
        .flat_map(|part| part.bytes().chain([0]))
        .fold(
            0xcbf2_9ce4_8422_2325 ^ pool.parameters.raw.seed,
            |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3),
        )
}

struct Scorer {
    pool: Arc<Pool>,
    scratch: Arc<Mutex<Scratch>>,
    clock: Arc<dyn Clock>,
    probe: Option<ScoreProbe>,
    inputs: WorkerInputs,
}

impl WorkerScorer for Scorer {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.inputs
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let now = self.clock.now();
        self.pool.tick_if_due(now);
        let scratch = &mut *self.scratch.lock();
        scratch.scored = false;
        scratch.named = None;
        if let Err(failure) = guarded(|| {
            if let Some(probe) = &self.probe {
                probe(self.pool.id.role.as_str());
            }
            price(&self.pool, context, candidates, scratch, costs, now)
        }) {
            self.pool
                .record_fallback(failure.reason, &failure.detail, now);
            least_loaded(candidates, costs);
        }
        Ok(())
    }
}

/// Price every candidate into `costs`.
fn price(
    pool: &Pool,
    context: &WorkerSelectionContext<'_>,
    candidates: WorkerCandidates<'_>,
    scratch: &mut Scratch,
    costs: &mut [f64],
    now: Timestamp,
) -> Result<(), Failure> {
    let mut snapshot = pool.snapshot();
    if candidates
        .iter()
        .any(|row| snapshot.worker(key_of(row.worker())).is_none())
    {
        pool.join(candidates.iter().map(|row| key_of(row.worker())), now);
        snapshot = pool.snapshot();
    }
    let parameters = &pool.parameters;
    let request = RequestFacts {
        prompt: Tokens(context.prompt_tokens() as u64),
        block_size: context.block_size().max(1),
        prefills: match pool.id.role {
            WorkerType::Aggregated | WorkerType::Prefill => true,
            WorkerType::Decode => context.tracks_prefill_tokens(),
            WorkerType::Encode => false,
        },
    };
    let advised = Advised::of(pool, context);
    scratch.named = advised.named.map(|named| named.worker);
    scratch.candidates.clear();
    for row in candidates.iter() {
        let transfers = &scratch.transfers;
        let candidate = candidate(pool, &snapshot, context, &advised, row, transfers, now)?;
        scratch.candidates.push(candidate);
    }
    if request.prefills {
        if parameters.raw.calibrated.in_flight {
            credit_in_flight(
                scratch,
                &snapshot.prices,
                request.block_size,
                context.request_blocks() as f64,
                snapshot.ladder.is_some(),
            );
        }
        note_progress(scratch, now);
    }
    impute_missing_loads(
        &mut scratch.candidates,
        &mut scratch.order,
        &mut scratch.rng,
    );
    scratch.regime = snapshot.regime(now);
    match parameters.raw.cost {
        CostModel::Calibrated => {
            scratch.tau = 0.0;
            calibrated(
                &request,
                &snapshot.prices,
                &scratch.candidates,
                &mut scratch.costs,
            );
        }
        CostModel::Paper => {
            let row = parameters.raw.paper.row(scratch.regime);
            scratch.tau = row.tau;
            paper(
                &request,
                &parameters.curve,
                row.omega,
                &snapshot.prices,
                &scratch.candidates,
                &mut scratch.costs,
            );
        }
    }
    for (row, (slot, cost)) in costs.iter_mut().zip(&scratch.costs).enumerate() {
        if !cost.total.is_finite() {
            return Err(Failure::non_finite(format!("row {row}: {}", cost.total)));
        }
        *slot = cost.total;
    }
    scratch.scored = true;
    Ok(())
}

/// The worker that a request had better go to by somebody else's advice.
#[derive(Default)]
struct Advised {
    target: Option<WorkerAffinityTarget>,
    /// What it is for, if the advice came from our own classifier.
    named: Option<Named>,
}

impl Advised {
    fn of(pool: &Pool, context: &WorkerSelectionContext<'_>) -> Self {
        let advisory = pool.parameters.raw.session_affinity == SessionAffinity::Advisory;
        let Some(target) = context.affinity_target().filter(|_| advisory) else {
            return Self::default();
        };
        let session = context.session_context();
        let named = session.and_then(|it| pool.sessions.lock().named(it.session_id()));
        Self {
            target: Some(target),
            named: named.filter(|named| {
                let worker = WorkerWithDpRank::new(named.worker.id, named.worker.rank);
                targets(target, worker)
            }),
        }
    }
}

fn candidate(
    pool: &Pool,
    snapshot: &Snapshot,
    context: &WorkerSelectionContext<'_>,
    advised: &Advised,
    row: WorkerCandidate<'_>,
    transfers: &Transfers,
    now: Timestamp,
) -> Result<Candidate, Failure> {
    let worker = key_of(row.worker());
    let parameters = &pool.parameters.raw;
    let load = row
        .load()
        .ok_or_else(|| Failure::error("load input unavailable"))?;
    let known = snapshot.worker(worker);
    if let Some(known) = known {
        known.seen(now);
    }
    let slowness = known.map_or(1.0, |worker| worker.slowness);
    let token = snapshot.prices.omega_per_token() * slowness;
    let named = advised.named.filter(|named| named.worker == worker);
    let (
        TimedCredit {
            blocks: credit,
            fetch,
        },
        brought,
    ) = credit(pool, snapshot, context, row, named, token, transfers, now);
    let held = known.is_some_and(|worker| worker.is_held(now));
    let mut candidate = Candidate {
        worker,
        load: Load {
            prefill_tokens: load.active_prefill_tokens() as f64,
            decode_blocks: load.decode_cost_blocks(),
            active_requests: load.active_requests() as f64,
        },
        load_known: load.is_available(),
        remaining: None,
        credit,
        in_use: Blocks::ZERO,
        fetch,
        brought,
        slowness,
        penalty: Millis::new(if held {
            parameters.failures.penalty_ms
        } else {
            0.0
        }),
        taint: row.preferred_taint_multiplier().unwrap_or(1.0),
    };
    if advised.named.is_none()
        && (advised.target).is_some_and(|target| targets(target, row.worker()))
    {
        let believed = context.request_blocks() as f64 * parameters.affinity_credit;
        candidate.believe(
            Blocks::new(believed),
            token * f64::from(context.block_size()),
        );
    }
    Ok(candidate)
}

/// A prefix that is in use on a worker is as good as cached there, whether its KV events came or not.
/// Where lower tiers cost `time`, it also spares the fetch.
fn credit_in_flight(
    scratch: &mut Scratch,
    prices: &Prices,
    block_size: u32,
    request_blocks: f64,
    timed: bool,
) {
    let block_value = prices.omega_per_token() * f64::from(block_size);
    let seen = &mut scratch.in_flight;
    for row in scratch.candidates.iter_mut().filter(|row| row.load_known) {
        let Load {
            active_requests,
            decode_blocks,
            ..
        } = row.load;
        let shared = seen.shared(row.worker, active_requests, decode_blocks, request_blocks);
        row.in_use = shared;
        row.brought = row.brought.besides(shared);
        if timed {
            row.believe(shared, block_value * row.slowness);
        }
    }
}

/// How far the workers are through the prefill work that was placed here.
fn note_progress(scratch: &mut Scratch, now: Timestamp) {
    let progress = &mut scratch.progress;
    for row in scratch.candidates.iter_mut().filter(|row| row.load_known) {
        row.remaining = progress.remaining(row.worker, row.load.prefill_tokens, now);
    }
}

/// Cached prefix of the prompt on this worker, where a token not recomputed saves `token`, and what the
/// worker brings up of it; none where no cache was asked for. Weights stand for what bringing takes. What a
/// session left is believed in beyond what the index knows, but whether it was there nobody tells.
#[expect(clippy::too_many_arguments, reason = "each is one fact about the row")]
fn credit(
    pool: &Pool,
    snapshot: &Snapshot,
    context: &WorkerSelectionContext<'_>,
    row: WorkerCandidate<'_>,
    named: Option<Named>,
    token: Millis,
    transfers: &Transfers,
    now: Timestamp,
) -> (TimedCredit, Brought) {
    let Some(cache) = row.cache() else {
        return Default::default();
    };
    let overlap = Overlap {
        device: Blocks::new(cache.device_overlap_blocks()),
        host: Blocks::new(cache.host_overlap_blocks()),
        disk: Blocks::new(cache.disk_overlap_blocks()),
    };
    let (estimate, _) = cache.accounting_cache_estimate();
    if overlap.host > Blocks::ZERO || overlap.disk > Blocks::ZERO {
        pool.sees_lower_tiers.store(true, Relaxed);
    }
    let mut view = CacheView::new(cache.has_tier_matches(), overlap, Blocks::new(estimate));
    if let Some(named) = named {
        view = view.at_least(named.blocks(context.block_size()), named.tier);
    }
    let shared = cache
        .shared_hits()
        .into_iter()
        .flat_map(|hits| hits.ranges.iter())
        .map(|range| u64::from(range.start)..u64::from(range.end));
    let blocks = context.request_blocks();
    let Some(ladder) = &snapshot.ladder else {
        let weights = &pool.parameters.tier_weights;
        let weighted = TimedCredit {
            blocks: weights.credit(blocks, view, shared).weighted,
            fetch: Fetch::default(),
        };
        return (weighted, Brought::Nothing);
    };
    let prompt = Tokens(context.prompt_tokens() as u64);
    let block_size = context.block_size();
    let prefix = view.prefix(blocks, shared);
    let queued = transfers.queued(key_of(row.worker()), now);
    (
        ladder.credit(prompt, block_size, &prefix, token, queued),
        match named {
            Some(_) => Brought::Untold,
            None => ladder.brought(prompt, block_size, &prefix, queued),
        },
    )
}

fn targets(target: WorkerAffinityTarget, worker: WorkerWithDpRank) -> bool {
    target.worker_id == worker.worker_id && target.dp_rank.is_none_or(|rank| rank == worker.dp_rank)
}

/// The fallback rule: fewest active requests. A worker of unknown load counts as the mean.
fn least_loaded(candidates: WorkerCandidates<'_>, costs: &mut [f64]) {
    let known = || {
        candidates
            .iter()
            .filter_map(|row| row.load().filter(|load| load.is_available()))
    };
    let total: f64 = known().map(|load| load.active_requests() as f64).sum();
    let mean = total / known().count().max(1) as f64;
    for (row, cost) in candidates.iter().zip(costs) {
        *cost = row
            .load()
            .filter(|load| load.is_available())
            .map_or(mean, |load| load.active_requests() as f64);
    }
}

struct Picker {
    pool: Arc<Pool>,
    scratch: Arc<Mutex<Scratch>>,
    clock: Arc<dyn Clock>,
}

impl WorkerPicker for Picker {
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let now = self.clock.now();
        let scratch = &mut *self.scratch.lock();
        let picked = guarded(|| {
            let choice = self.choose(context, input, scratch, now)?;
            self.record(context, scratch, choice, now);
            let blocks = context.request_blocks() as f64;
            let snapshot = self.pool.snapshot();
            scratch.placed(choice.row, blocks, snapshot.ladder.as_ref(), now);
            Ok(choice.row)
        });
        Ok(picked.unwrap_or_else(|failure| {
            self.pool
                .record_fallback(failure.reason, &failure.detail, now);
            cheapest(input)
        }))
    }
}

impl Picker {
    fn choose(
        &self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
        scratch: &mut Scratch,
        now: Timestamp,
    ) -> Result<Choice, Failure> {
        if let Some(worker) = scratch.given {
            let offered = input.candidates().iter();
            let row = offered
                .map(|row| key_of(row.worker()))
                .position(|it| it == worker);
            let row = row.ok_or_else(|| Failure::error("the given worker is no candidate"))?;
            return Ok(Choice {
                row,
                worker,
                failed_open: false,
            });
        }
        let parameters = &self.pool.parameters.raw;
        if scratch.scored && scratch.candidates.len() != input.candidates().len() {
            return Err(Failure::error("scored and offered rows differ in number"));
        }
        let snapshot = self.pool.snapshot();
        scratch.contenders.clear();
        scratch
            .contenders
            .extend(input.candidates().iter().enumerate().map(|(row, offered)| {
                let worker = key_of(offered.worker());
                let known = snapshot.worker(worker);
                Contender {
                    row,
                    worker,
                    cost: offered.cost(),
                    saturated: known.is_some_and(|worker| worker.is_saturated(now)),
                    ttft_p99_ms: known.and_then(|worker| worker.ttft_p99_ms),
                }
            }));
        if let Some(pin) = context.pinned_worker().map(key_of) {
            scratch
                .contenders
                .retain(|contender| contender.worker == pin);
        }
        if let Some(tau) = context
            .router_temperature_override()
            .filter(|tau| tau.is_finite() && *tau >= 0.0)
        {
            scratch.tau = tau;
        }
        let rule = Rule {
            tau: scratch.tau,
            tie_margin: parameters.tie_margin_ms,
            saturation_filter: parameters.saturation_filter,
        };
        choose(&mut scratch.contenders, rule, &mut scratch.rng)
            .ok_or_else(|| Failure::error("no candidate to pick from"))
    }

    fn record(
        &self,
        context: &WorkerSelectionContext<'_>,
        scratch: &Scratch,
        choice: Choice,
        now: Timestamp,
    ) {
        let counters = &self.pool.counters;
        counters.decisions.fetch_add(1, Relaxed);
        if scratch.named == Some(choice.worker) {
            counters.session_targets_chosen.fetch_add(1, Relaxed);
        }
        if choice.failed_open {
            counters.filter_failed_open.fetch_add(1, Relaxed);
        }
        let rows = || scratch.candidates.iter().zip(&scratch.costs);
        if scratch.scored && rows().any(|(candidate, _)| !candidate.load_known) {
            counters.unknown_loads.fetch_add(1, Relaxed);
        }
        self.pool.journal.write(|decision| {
            decision.at = now;
            decision.prompt_tokens = Tokens(context.prompt_tokens() as u64);
            decision.regime = scratch.regime;
            decision.tau = scratch.tau;
            decision.chosen = choice.worker;
            decision.fallback = !scratch.scored;
            decision.rows.clear();
            if scratch.scored {
                decision
                    .rows
                    .extend(rows().map(|(candidate, cost)| DecisionRow {
                        worker: candidate.worker,
                        cost: cost.total,
                        predicted_ms: cost.predicted,
                        alone_ms: cost.alone,
                        uncached_tokens: cost.uncached_tokens,
                        brought: candidate.brought,
                        queued_tokens: candidate.load.prefill_tokens,
                        active_requests: candidate.load.active_requests,
                        load_known: candidate.load_known,
                    }));
            }
        });
    }
}

/// The picker's own fallback. Dynamo never offers an empty table; row 0 of one is refused by the host.
fn cheapest(input: WorkerInputView<'_>) -> usize {
    let rows = input.candidates();
    (0..rows.len())
        .min_by(|&a, &b| {
            rows[a]
                .cost()
                .total_cmp(&rows[b].cost())
                .then_with(|| rows[a].worker().cmp(&rows[b].worker()))
        })
        .unwrap_or(0)
}
