// SPDX-License-Identifier: Apache-2.0

//! What a pool has learned, and how feedback and time change it.
//!
//! Two sources feed it. Classifier events reach aggregated and decode pools, request by request, and
//! carry exact times. Prefill pools get none, nor does any pool without the classifier: there the
//! frontend's TTFT histogram stands in for first tokens, the queued work that the selections saw stands in
//! for waiting requests, and prefill rates and slowness are learned from how those queues drain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dynamo_kv_router::WorkerType;
use regime_core::{
    Ended, Ending, Ewma, FailureAccrual, FirstToken, LatencyWindow, Millis, Outcome,
    PoolCalibration, Reading, Regime, RegimeChange, RegimeMachine, SlowdownWindow, StepEwma,
    Timestamp, Tokens, WindowSummary, WorkerKey,
};
use regime_kv::{Brought, LearnedLadder};

use super::gauge;
use super::handover::Handover;
use super::meter::{Expected, Latency, Meter, Ticket};
use super::pending::{Attached, Pending, Placement};
use super::snapshot::{Snapshot, WorkerSnapshot};
use crate::TtftDelta;
use crate::cost::Prices;
use crate::journal::{Decision, DecisionRow, Journal};
use crate::parameters::Checked;

/// Weight of one decision in the means over decisions; the same as of one arrival.
const DECISION_WEIGHT: f64 = 0.05;

/// One regime signal with what the state machine makes of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SignalReading {
    pub(crate) name: &'static str,
    pub(crate) reading: Option<Reading>,
}

/// Latency of one worker or of the whole pool, and the regime that follows.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    ttft: LatencyWindow,
    slowdown: SlowdownWindow,
    last_slowdown: Option<Timestamp>,
    /// Of the window at the last tick that found new samples.
    summary: WindowSummary,
    /// Samples arrived since then.
    unread: bool,
    p99: Ewma,
    machine: RegimeMachine,
}

impl Health {
    fn new(parameters: &Checked) -> Self {
        let window = parameters.raw.window;
        Self {
            ttft: parameters.ttft_window.clone(),
            slowdown: SlowdownWindow::new(parameters.window_span, window.slices as usize),
            last_slowdown: None,
            summary: parameters.ttft_window.summary(Timestamp::ORIGIN),
            unread: false,
            p99: Ewma::new(parameters.p99_smoothing),
            machine: parameters.machine.clone(),
        }
    }

    fn record(&mut self, at: Timestamp, ttft: Millis, alone: Option<Millis>) {
        self.ttft.record(at, ttft);
        self.unread = true;
        if let Some(alone) = alone.filter(|&alone| alone > Millis::ZERO) {
            self.record_slowdown(at, ttft, alone, 1);
        }
    }

    fn record_slowdown(&mut self, at: Timestamp, actual: Millis, alone: Millis, count: u64) {
        self.slowdown.record(at, actual, alone, count);
        self.last_slowdown = self.last_slowdown.max(Some(at));
    }

    /// Summarise the window and smooth its P99, unless nothing arrived since the last time: merging
    /// histograms is the dearest part of a tick.
    fn summarise(&mut self, now: Timestamp) {
        if !std::mem::take(&mut self.unread) {
            return;
        }
        self.summary = self.ttft.summary(now);
        if let Some(p99) = self.summary.p99 {
            self.p99.update(now, p99.get());
        }
    }

    pub(crate) fn ttft_summary(&self, now: Timestamp) -> WindowSummary {
        self.ttft.summary(now)
    }

    /// The signals in the order in which [`Checked::machine`] holds their cuts.
    pub(crate) fn signals(
        &self,
        now: Timestamp,
        waiting: Option<Reading>,
    ) -> [SignalReading; Checked::SIGNALS.len()] {
        let slowdown = self.slowdown.slowdown(now).and_then(|slowdown| {
            Some(Reading {
                value: slowdown.ratio,
                samples: slowdown.samples,
                at: self.last_slowdown?,
            })
        });
        let p99 = self.p99.value().and_then(|value| {
            Some(Reading {
                value,
                samples: self.summary.samples,
                at: self.summary.last_sample?,
            })
        });
        let [a, b, c] = Checked::SIGNALS;
        [(a, slowdown), (b, waiting), (c, p99)]
            .map(|(name, reading)| SignalReading { name, reading })
    }

    fn observe(
        &mut self,
        now: Timestamp,
        waiting: Option<Reading>,
        parameters: &Checked,
    ) -> Option<RegimeChange> {
        self.summarise(now);
        let readings = self.signals(now, waiting).map(|signal| signal.reading);
        self.machine.observe(now, &parameters.deciding(readings))
    }

    pub(crate) fn regime(&self, now: Timestamp) -> (Regime, Timestamp) {
        (self.machine.regime(now), self.machine.since(now))
    }

    /// Smoothed P99 of TTFT, ms.
    fn p99_ms(&self) -> Option<f64> {
        self.p99.value()
    }
}

/// One worker of the pool.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(crate) health: Health,
    pub(crate) accrual: FailureAccrual,
    /// Written by the request path through the snapshot.
    last_candidate: Arc<AtomicU64>,
    /// Whether discovery has ever listed the worker.
    registered: bool,
    /// Attempts sent that have had no first token.
    waiting: u32,
    attempts: u64,
    last_event: Option<Timestamp>,
}

/// Everything learned about one pool.
#[derive(Debug)]
pub(crate) struct State {
    role: WorkerType,
    parameters: Arc<Checked>,
    pub(crate) calibration: PoolCalibration,
    /// Absent where tiers are weighted.
    pub(crate) ladder: Option<LearnedLadder>,
    pub(crate) health: Health,
    pub(crate) workers: BTreeMap<WorkerKey, WorkerState>,
    pub(crate) pending: Pending,
    /// In place of `pending` where no event tells of the requests.
    handover: Handover,
    /// Absent where nothing can be measured.
    pub(crate) meter: Option<Meter>,
    /// Whether classifier events reach this pool.
    event_fed: bool,
    arrivals: u64,
    last_arrival: Option<Timestamp>,
    /// Prefill work queued on the median worker, ms, over decisions.
    queued: StepEwma,
    /// Time alone on an idle worker, ms, over decisions.
    alone: StepEwma,
    pub(crate) changes: [u64; Regime::ALL.len()],
    pub(crate) last_decision: Option<Decision>,
    urgent: bool,
}

impl State {
    pub(super) fn new(role: WorkerType, parameters: &Arc<Checked>, export: Option<usize>) -> Self {
        let measured = |latency| gauge::excluded(role, latency).is_none();
        Self {
            role,
            calibration: parameters.calibration.clone(),
            ladder: parameters.ladder.clone(),
            health: Health::new(parameters),
            workers: BTreeMap::new(),
            pending: Pending::default(),
            handover: Handover::default(),
            meter: measured(Latency::Ttft)
                .then(|| Meter::new(parameters.metering, measured(Latency::E2e), export)),
            event_fed: false,
            arrivals: 0,
            last_arrival: None,
            queued: StepEwma::new(0.0, DECISION_WEIGHT),
            alone: StepEwma::new(0.0, DECISION_WEIGHT),
            changes: [0; Regime::ALL.len()],
            last_decision: None,
            urgent: false,
            parameters: Arc::clone(parameters),
        }
    }

    /// A new worker starts without a record of its own, that is as a typical worker of the pool.
    pub(super) fn join(&mut self, worker: WorkerKey, now: Timestamp) {
        self.workers.entry(worker).or_insert_with(|| WorkerState {
            health: Health::new(&self.parameters),
            accrual: self.parameters.accrual.clone(),
            last_candidate: Arc::new(AtomicU64::new(now.as_micros())),
            registered: false,
            waiting: 0,
            attempts: 0,
            last_event: None,
        });
        self.calibration.insert_worker(worker);
    }

    /// Learn from every decision written since the last time.
    pub(super) fn read_journal(&mut self, journal: &Journal) {
        while let Some(decision) = journal.read() {
            self.learn_from_decision(&decision);
            if let Some(spare) = self.last_decision.replace(*decision) {
                journal.recycle(Box::new(spare));
            }
        }
    }

    fn learn_from_decision(&mut self, decision: &Decision) {
        let ticket = self.keep(decision);
        match self.role {
            WorkerType::Prefill => self.handover.push(decision, ticket),
            _ => self.pending.push(decision, ticket),
        }
        if let Some(row) = decision.chosen_row()
            && row.alone_ms > Millis::ZERO
        {
            seeded(&mut self.alone, row.alone_ms.get());
        }
        if self.event_fed {
            return;
        }
        self.learn_from_queues(decision);
        let waits = decision.rows.iter().map(|row| row.wait_ms().get());
        if let Some(median) = median(waits) {
            self.queued.update(median);
            self.arrivals += 1;
            self.last_arrival = self.last_arrival.max(Some(decision.at));
        }
    }

    fn keep(&mut self, decision: &Decision) -> Option<Ticket> {
        let calibration = &self.calibration;
        let expected = || expected(calibration, decision);
        self.meter.as_mut()?.decided(decision, expected)
    }

    /// What was expected at the last decision; absent before the first.
    pub(crate) fn last_expected(&self) -> Option<Expected> {
        let decision = self.last_decision.as_ref()?;
        Some(expected(&self.calibration, decision))
    }

    /// Claim the decision behind a request of `prompt` tokens sent to `worker`.
    pub(crate) fn claim(
        &mut self,
        worker: WorkerKey,
        prompt: Tokens,
        now: Timestamp,
    ) -> Option<Placement> {
        let placement = self.pending.claim(worker, prompt, now)?;
        self.measure(placement.ticket, Meter::claimed);
        Some(placement)
    }

    /// Claim the decision of this prefill pool behind a request of `prompt` tokens that was sent to a decode
    /// worker, if it is kept to be measured.
    pub(crate) fn claim_prefill(&mut self, prompt: Tokens, now: Timestamp) -> Option<Ticket> {
        let ticket = self.handover.claim(prompt, now)?;
        self.measure(Some(ticket), Meter::claimed);
        Some(ticket)
    }

    /// Tell the meter of a step of the request behind a decision, if that is kept.
    fn measure(&mut self, ticket: Option<Ticket>, step: impl FnOnce(&mut Meter, Ticket)) {
        if let (Some(meter), Some(ticket)) = (&mut self.meter, ticket) {
            step(meter, ticket);
        }
    }

    /// What became, on a decode worker, of the request behind a decision of this prefill pool. When that
    /// request reached the router, and what it takes after its first token, is known elsewhere.
    pub(crate) fn apply_downstream(&mut self, ticket: Ticket, outcome: &Outcome<Attached>) {
        let at = match outcome {
            Outcome::Sent(_) => return,
            Outcome::FirstToken(first) => {
                self.measure(Some(ticket), |meter, ticket| {
                    meter.answered(ticket, first.at, None);
                });
                first.at
            }
            Outcome::Ended(ended) => ended.at,
        };
        self.measure(Some(ticket), |meter, ticket| meter.ended(ticket, at, false));
    }

    /// Learn from how the queues drain, where a queue is one of prefills.
    fn learn_from_queues(&mut self, decision: &Decision) {
        if !matches!(self.role, WorkerType::Prefill | WorkerType::Aggregated) {
            return;
        }
        let at = decision.at;
        for row in decision.rows.iter().filter(|row| row.load_known) {
            let active = row.active_requests as u32;
            self.calibration
                .on_look(row.worker, at, row.queued_tokens, active);
        }
        let uncached = decision.chosen_row().map(|row| row.uncached_tokens);
        self.calibration.on_placed(decision.chosen, at, uncached);
    }

    /// Learn from one step of one request on a worker of this pool.
    pub(crate) fn apply(&mut self, outcome: &Outcome<Attached>) {
        self.event_fed = true;
        match outcome {
            Outcome::Sent(sent) => {
                self.arrivals += 1;
                self.last_arrival = self.last_arrival.max(Some(sent.at));
                self.calibration.on_arrival(sent.at);
                self.calibration.on_sent(sent);
                if let Some(worker) = self.touch(sent.worker, sent.at) {
                    worker.attempts += 1;
                    worker.waiting += 1;
                }
            }
            Outcome::FirstToken(first) => self.apply_first_token(first),
            Outcome::Ended(ended) => self.apply_end(ended),
        }
    }

    fn apply_first_token(&mut self, first: &FirstToken<Attached>) {
        let placement = first.payload.and_then(|attached| attached.placement);
        let uncached = self.trains_prefill(first, placement);
        self.calibration.on_first_token(first, uncached);
        self.measure(ticket(placement), |meter, ticket| {
            meter.answered(ticket, first.at, first.ttft)
        });
        let alone = placement.map(|placement| placement.alone);
        if let Some(ttft) = first.ttft {
            self.health.record(first.at, ttft, alone);
        }
        if let Some(worker) = self.touch(first.worker, first.at) {
            worker.health.record(first.at, first.service, alone);
            worker.waiting = worker.waiting.saturating_sub(1);
            let was_held = worker.accrual.is_held(first.at);
            worker.accrual.record_success();
            self.urgent |= was_held;
        }
    }

    fn apply_end(&mut self, ended: &Ended<Attached>) {
        let Some(key) = ended.worker else {
            return;
        };
        self.calibration.on_ended(ended);
        // As residence is learned from.
        let served = matches!(ended.ending, Ending::Completed | Ending::EndedEarly);
        let placement = ended.payload.and_then(|attached| attached.placement);
        self.measure(ticket(placement), |meter, ticket| {
            meter.ended(ticket, ended.at, served);
        });
        let Some(worker) = self.touch(key, ended.at) else {
            return;
        };
        if ended.had_first_token() {
            return;
        }
        worker.waiting = worker.waiting.saturating_sub(1);
        if is_failure(ended.ending) {
            worker.accrual.record_failure(ended.at);
            self.urgent |= worker.accrual.is_held(ended.at);
        }
    }

    /// TTFTs of the whole model, from the frontend. They count here only where no event does.
    pub(super) fn observe_ttft(&mut self, delta: &TtftDelta, now: Timestamp) {
        if self.event_fed || delta.count == 0 {
            return;
        }
        for &(upper_ms, count) in &delta.buckets {
            self.health.ttft.record_n(
                now,
                Millis::new(upper_ms),
                u32::try_from(count).unwrap_or(u32::MAX),
            );
        }
        self.health.unread = true;
        if self.alone.samples() > 0 {
            let alone = Millis::new(self.alone.value()) * delta.count as f64;
            self.health
                .record_slowdown(now, Millis::new(delta.sum_ms), alone, delta.count);
        }
    }

    /// Discovery lists exactly `registered`; forget workers that it listed before. Ids that it never
    /// listed belong to another pool's discovery.
    pub(crate) fn reconcile(&mut self, registered: &dyn Fn(WorkerKey) -> bool) {
        for (key, worker) in &mut self.workers {
            worker.registered |= registered(*key);
        }
        self.retain(|key, worker| !worker.registered || registered(*key));
    }

    /// Fold the windows into regimes, and forget workers that are no longer candidates.
    pub(super) fn tick(&mut self, now: Timestamp) {
        let newest = self
            .workers
            .values()
            .map(WorkerState::last_candidate)
            .max()
            .unwrap_or_default();
        let ttl = self.parameters.worker_ttl;
        // Where discovery speaks it knows better: a busy worker may be withheld from selections for long.
        self.retain(|_, worker| worker.registered || newest.since(worker.last_candidate()) <= ttl);
        let parameters = Arc::clone(&self.parameters);
        for worker in self.workers.values_mut() {
            let waiting = worker.waiting();
            worker.health.observe(now, waiting, &parameters);
        }
        let waiting = self.waiting(now);
        if let Some(change) = self.health.observe(now, waiting, &parameters) {
            self.changes[change.to as usize] += 1;
        }
    }

    pub(super) fn snapshot(&self, now: Timestamp) -> Snapshot {
        Snapshot {
            machine: self.health.machine.clone(),
            prices: self.prices(now),
            ladder: self.ladder.as_ref().map(|ladder| ladder.ladder(now)),
            workers: self
                .workers
                .iter()
                .map(|(&key, worker)| WorkerSnapshot {
                    key,
                    machine: worker.health.machine.clone(),
                    accrual: worker.accrual.clone(),
                    slowness: self.calibration.worker(now, key).slowness,
                    ttft_p99_ms: worker.health.p99_ms(),
                    last_candidate: Arc::clone(&worker.last_candidate),
                })
                .collect(),
        }
    }

    pub(crate) fn prices(&self, now: Timestamp) -> Prices {
        let waiting = self.waiting(now).map_or(0.0, |reading| reading.value);
        Prices::new(
            &self.parameters.raw.calibrated,
            &self.calibration.estimate(now),
            waiting,
        )
    }

    /// Waiting requests on the median worker; absent once no request has arrived for the maximum age.
    pub(crate) fn waiting(&self, now: Timestamp) -> Option<Reading> {
        let at = self.last_arrival?;
        if now.since(at) > self.parameters.max_age {
            return None;
        }
        let value = if self.event_fed {
            self.calibration.estimate(now).waiting
        } else {
            // Queued work in units of a typical request.
            Millis::new(self.queued.value())
                .ratio(Millis::new(self.alone.value()))
                .unwrap_or(0.0)
        };
        Some(Reading {
            value,
            samples: self.arrivals,
            at,
        })
    }

    /// Whether a change must reach the request path before the next tick.
    pub(super) fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.urgent)
    }

    /// Prefill rates are learned where the worker that answers also prefills. On a decode worker the
    /// time to the first token is somebody else's prefill. What a request takes that brings up blocks says
    /// how fast their tier is, if anything.
    fn trains_prefill(
        &mut self,
        first: &FirstToken<Attached>,
        placement: Option<Placement>,
    ) -> Option<Tokens> {
        let placement = placement.filter(|_| self.role == WorkerType::Aggregated)?;
        match placement.brought {
            Brought::Nothing => Some(placement.uncached),
            Brought::From(haul) => {
                if let Some(ladder) = &mut self.ladder
                    && let Some(surplus) = self.calibration.surplus(first, haul.uncached)
                {
                    ladder.observe(&haul, surplus.over, surplus.prefill, first.at);
                }
                None
            }
            Brought::Untold => None,
        }
    }

    fn touch(&mut self, worker: WorkerKey, at: Timestamp) -> Option<&mut WorkerState> {
        let state = self.workers.get_mut(&worker)?;
        state.last_event = state.last_event.max(Some(at));
        Some(state)
    }

    fn retain(&mut self, keep: impl Fn(&WorkerKey, &WorkerState) -> bool) {
        let before = self.workers.len();
        self.workers.retain(|key, worker| keep(key, worker));
        if self.workers.len() != before {
            let workers = &self.workers;
            self.calibration
                .retain_workers(|key| workers.contains_key(&key));
            self.pending.retain(|key| workers.contains_key(&key));
            self.handover.retain(|key| workers.contains_key(&key));
            self.urgent = true;
        }
    }
}

impl WorkerState {
    pub(crate) fn last_candidate(&self) -> Timestamp {
        Timestamp::from_micros(self.last_candidate.load(Ordering::Relaxed))
    }

    pub(crate) fn waiting(&self) -> Option<Reading> {
        Some(Reading {
            value: f64::from(self.waiting),
            samples: self.attempts,
            at: self.last_event?,
        })
    }
}

/// The wait for a seat is the same on every worker, and what the candidates wait for prefill is a part of it.
fn expected(calibration: &PoolCalibration, decision: &Decision) -> Expected {
    let rows = &decision.rows;
    let seat_wait = calibration.seat_wait(rows.iter().map(|row| (row.worker, row.active_requests)));
    let prefill: Millis = rows.iter().map(DecisionRow::wait_ms).sum();
    Expected {
        residence: Millis::new(calibration.estimate(decision.at).residence_ms),
        seat_wait: (seat_wait - prefill / rows.len().max(1) as f64).max(Millis::ZERO),
    }
}

fn ticket(placement: Option<Placement>) -> Option<Ticket> {
    placement.and_then(|placement| placement.ticket)
}

/// An attempt that ended without a first token counts against its worker, whoever ended it: clients
/// that give up strike all workers alike, and a slow worker more.
const fn is_failure(ending: Ending) -> bool {
    matches!(
        ending,
        Ending::Aborted | Ending::Cancelled | Ending::Migrated
    )
}

/// The first value sets the average, so that it does not start from a made-up one.
fn seeded(average: &mut StepEwma, value: f64) {
    if average.samples() == 0 {
        *average = StepEwma::new(value, DECISION_WEIGHT);
    }
    average.update(value);
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let upper = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => values.get(upper).copied(),
        _ => Some((values[upper - 1] + values[upper]) / 2.0),
    }
}
