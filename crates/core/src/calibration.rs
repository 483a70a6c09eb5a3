// SPDX-License-Identifier: Apache-2.0

//! What a pool's latencies are made of, learned from request outcomes.
//!
//! | Symbol | Meaning | Learned from |
//! |---|---|---|
//! | a, b | ms per prefill pass, ms per uncached token | duration of passes against their tokens |
//! | s | slowness of a worker, 1 is typical | its measured over its predicted pass times |
//! | L | requests without a first token on the median worker | every arrival |
//! | e | prefill efficiency, predicted over measured pass time | every pass that events tell of |
//! | R | time from first token to completion | every request that ends by itself |
//! |  | time per generated token | the same requests |
//!
//! First tokens of one worker that come together are one prefill pass. A pass feeds a and b, and the
//! speed of its worker. On a worker that is limited by seats, the time between passes says nothing
//! about prefill: such passes count only towards e, which tells scarce prefill (near 1) from scarce
//! seats or memory (towards 0).
//!
//! A request that also has to wait for cached blocks to be brought up teaches none of this. What it took
//! beyond its prefill measures the transfer, where it had the worker to itself.
//!
//! Where no event tells of first tokens, the queues that decisions see stand in for them: how they drain
//! gives s and the scale of a and b, though not the two apart.
//!
//! Slowness is relative to the median worker, and 1 within a dead band. The median, because one
//! extreme worker must not change what the others are worth: a mean would move all of them when it
//! joins and again when it leaves. The reference is renewed by passes only, so a join or a leave by
//! itself changes nobody else's value (field report BR-07). With an even number of workers the faster
//! half decides.
//!
//! L is taken on the median worker too: cache affinity may overload one worker on purpose, and a mean
//! would answer with a higher price, hence with more affinity.
//!
//! Everything starts at a prior that behaves sensibly and is unlearned when wrong; no value is ever
//! absent, zero where zero is an opinion, or not finite.
//!
//! Source: the paper's calibrated costs; the constants were found in NVIDIA's simulator.

mod config;
mod drain;
#[cfg(test)]
mod drained_fleet;
mod passes;
mod prefill_fit;
#[cfg(test)]
mod simulated;
mod speed;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::{
    Ended, Ending, FirstToken, InFlight, Millis, Sent, StepEwma, Timestamp, Tokens, WorkerKey,
};

pub use config::{CalibrationConfig, CalibrationError};
use drain::DrainTracker;
use passes::PassTracker;
use prefill_fit::{PrefillFit, Sample};
use speed::{RATIO_RANGE, Speed, Yardstick};

/// Efficiency before anything is learned: prefill is the bottleneck.
const PRIOR_EFFICIENCY: f64 = 1.0;
/// First tokens in a row, with others waiting, after which a peak of running requests is taken for the number
/// of seats: while a queue fills idle seats, nearly each first token is a new peak.
const SEATS_SHOWN: u32 = 16;

/// Where a pool's prefill rates come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateSource {
    /// Configured start values: nothing has been learned.
    #[default]
    Prior,
    /// First tokens, as reported by events.
    Events,
    /// Queues, as seen by decisions.
    Drain,
}

/// What a pool has learned, at some time. All values are finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PoolEstimate {
    /// a, fixed part of a prefill pass on a typical worker, ms. At least 0.1.
    pub pass_ms: f64,
    /// b, prefill time per uncached token on a typical worker, ms. At least 1e-5.
    pub token_ms: f64,
    /// L, requests sent without a first token on the median worker, averaged over arrivals.
    pub waiting: f64,
    /// e, predicted over measured pass time. Above 0, at most 1.
    pub efficiency: f64,
    /// R, time from first token to completion, ms.
    pub residence_ms: f64,
    /// Time per generated token, ms.
    pub decode_step_ms: f64,
    /// Prefill passes seen.
    pub groups: u64,
    /// End of the last of them; absent before the first.
    pub last_group: Option<Timestamp>,
    /// What `pass_ms` and `token_ms` were last learned from.
    pub source: RateSource,
}

impl PoolEstimate {
    /// a + b·u: prefill of `uncached` tokens on an idle, typical worker.
    #[must_use]
    pub fn prefill(&self, uncached: Tokens) -> Millis {
        Millis::new(self.pass_ms + self.token_ms * uncached.as_f64())
    }
}

/// What is known about one worker, at some time. All values are finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WorkerEstimate {
    /// s, prefill time relative to a typical worker. 0.1 to 10, and 1 within the dead band.
    pub slowness: f64,
    /// Time per generated token, ms.
    pub decode_step_ms: f64,
    /// Prefill passes that the slowness was learned from.
    pub groups: u64,
    /// End of the last of them; absent before the first.
    pub last_sample: Option<Timestamp>,
}

/// What a request that had its worker to itself took beyond its prefill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Surplus {
    /// Time beyond the prediction; below zero where it was faster.
    pub over: Millis,
    /// The prediction, s·(a + b·u).
    pub prefill: Millis,
}

/// Learns the latencies of one pool. See the module for what and how.
///
/// Feed it every outcome of the [`Ledger`](crate::Ledger) that belongs to the pool. A worker becomes
/// known when it is inserted or sent something; outcomes of others are ignored.
#[derive(Debug, Clone)]
pub struct PoolCalibration {
    config: CalibrationConfig,
    group_gap: Duration,
    workers: BTreeMap<WorkerKey, Worker>,
    fit: PrefillFit,
    /// Measured over predicted time on the median worker: what "slowness 1" stands for.
    typical: f64,
    waiting: f64,
    last_arrival: Timestamp,
    efficiency: StepEwma,
    residence: StepEwma,
    decode_step: StepEwma,
    groups: u64,
    last_group: Option<Timestamp>,
    source: RateSource,
    /// Scratch space for medians.
    values: Vec<f64>,
}

#[derive(Debug, Clone, Default)]
struct Worker {
    load: InFlight,
    most_running: u32,
    /// First tokens since that rose, while others waited.
    under_ceiling: u32,
    passes: PassTracker,
    drain: DrainTracker,
    speed: Speed,
    decode: Option<DecodeSpeed>,
}

#[derive(Debug, Clone)]
struct DecodeSpeed {
    step: StepEwma,
    last_sample: Timestamp,
}

/// Prefill without a pause that has ended: one pass, or several in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stretch {
    /// When it ended.
    at: Timestamp,
    /// How long it lasted. Above zero.
    duration: Millis,
    /// Passes, at least 1.
    passes: u32,
    /// Tokens prefilled.
    tokens: f64,
    /// Requests that ran on the worker when it ended, those just prefilled not counted.
    running: u32,
}

impl PoolCalibration {
    /// A pool about which nothing is known.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn new(config: CalibrationConfig) -> Result<Self, CalibrationError> {
        config.validate()?;
        Ok(Self {
            group_gap: Duration::from_secs_f64(config.group_gap_ms / 1e3),
            workers: BTreeMap::new(),
            fit: PrefillFit::new(&config),
            typical: 1.0,
            waiting: 0.0,
            last_arrival: Timestamp::ORIGIN,
            efficiency: StepEwma::new(PRIOR_EFFICIENCY, config.efficiency_weight),
            residence: StepEwma::new(config.prior_residence_ms, config.residence_weight),
            decode_step: StepEwma::new(config.prior_decode_step_ms, config.decode_weight),
            groups: 0,
            last_group: None,
            source: RateSource::Prior,
            values: Vec::new(),
            config,
        })
    }

    /// `worker` belongs to the pool. It counts as typical until it proves otherwise, and as idle in
    /// the median. No effect on a worker that is known.
    pub fn insert_worker(&mut self, worker: WorkerKey) {
        self.workers.entry(worker).or_default();
    }

    /// `worker` left the pool, and what was learned about it is forgotten.
    pub fn remove_worker(&mut self, worker: WorkerKey) {
        self.workers.remove(&worker);
    }

    /// Forget every worker that `keep` refuses.
    pub fn retain_workers(&mut self, mut keep: impl FnMut(WorkerKey) -> bool) {
        self.workers.retain(|&worker, _| keep(worker));
    }

    /// A request for the pool arrived at `at`.
    pub fn on_arrival(&mut self, at: Timestamp) {
        self.values.clear();
        self.values.extend(
            self.workers
                .values()
                .map(|worker| f64::from(worker.load.waiting)),
        );
        let median = lower_median(&mut self.values).unwrap_or(0.0);
        let waiting = self.waiting_at(at);
        self.waiting = waiting + self.config.waiting_weight * (median - waiting);
        self.last_arrival = self.last_arrival.max(at);
    }

    /// An attempt was sent to a worker of the pool.
    pub fn on_sent(&mut self, sent: &Sent) {
        self.close_pass(sent.worker, sent.at);
        let load = &mut self.workers.entry(sent.worker).or_default().load;
        load.waiting = load.waiting.saturating_add(1);
    }

    /// An attempt answered; `uncached` is what its worker had to prefill, absent when unknown.
    pub fn on_first_token<T>(&mut self, token: &FirstToken<T>, uncached: Option<Tokens>) {
        self.close_pass(token.worker, token.at);
        let Some(worker) = self.workers.get_mut(&token.worker) else {
            return;
        };
        let Worker {
            load,
            most_running,
            under_ceiling,
            passes,
            ..
        } = worker;
        passes.first_token(token.at, token.sent_at, uncached, load.running);
        load.waiting = load.waiting.saturating_sub(1);
        load.running = load.running.saturating_add(1);
        if load.running > *most_running {
            *most_running = load.running;
            *under_ceiling = 0;
        } else if load.waiting > 0 {
            *under_ceiling = under_ceiling.saturating_add(1);
        }
    }

    /// What the attempt that is about to answer took beyond the prefill of `uncached` tokens. Absent where
    /// that would say something else: before a and b are known, where other prefills ran or waited on its
    /// worker meanwhile, and where seats or memory may have been scarce. Ask before
    /// [`on_first_token`](Self::on_first_token).
    #[must_use]
    pub fn surplus<T>(&mut self, token: &FirstToken<T>, uncached: Tokens) -> Option<Surplus> {
        self.close_pass(token.worker, token.at);
        let known = self.source == RateSource::Events
            && self.groups >= u64::from(self.config.misfit_groups);
        let worker = self.workers.get(&token.worker)?;
        let plentiful = worker.load.running <= worker.most_running / 2;
        if !known || worker.load.waiting != 1 || !plentiful {
            return None;
        }
        let took = worker.passes.alone(token.sent_at, token.at)?;
        let yardstick = Yardstick::new(&self.fit, self.typical, &self.config);
        let slowness = worker.speed.slowness(token.at, yardstick);
        let prefill = Millis::new(slowness * self.fit.predict(1.0, uncached.as_f64()));
        Some(Surplus {
            over: took - prefill,
            prefill,
        })
    }

    /// An attempt ended. Residence and decode step are learned from requests that ended by themselves
    /// or by their client; an attempt that broke off says nothing about either.
    pub fn on_ended<T>(&mut self, ended: &Ended<T>) {
        let Some(key) = ended.worker else { return };
        self.close_pass(key, ended.at);
        let Some(worker) = self.workers.get_mut(&key) else {
            return;
        };
        let gauge = match ended.decode {
            Some(_) => &mut worker.load.running,
            None => &mut worker.load.waiting,
        };
        *gauge = gauge.saturating_sub(1);
        let Some(decode) = ended.decode else { return };
        if !matches!(ended.ending, Ending::Completed | Ending::EndedEarly) {
            return;
        }
        self.residence.update(decode.span.get());
        let Some(step) = decode.step() else { return };
        let own = worker.decode.get_or_insert_with(|| DecodeSpeed {
            step: StepEwma::new(self.decode_step.value(), self.config.decode_weight),
            last_sample: ended.at,
        });
        own.step.update(step.get());
        own.last_sample = own.last_sample.max(ended.at);
        self.decode_step.update(step.get());
    }

    /// A decision at `at` sees `queued` tokens waiting for prefill and `active` requests on `worker`,
    /// before it places anything. With [`on_placed`](Self::on_placed), this is how a pool learns that no
    /// event reaches; not to be mixed with events.
    pub fn on_look(&mut self, worker: WorkerKey, at: Timestamp, queued: f64, active: u32) {
        let Some(known) = self.workers.get_mut(&worker) else {
            return;
        };
        let Some(stretch) = known.drain.look(at, queued, active) else {
            return;
        };
        known.most_running = known.most_running.max(stretch.running);
        self.learn(worker, &stretch, RateSource::Drain);
    }

    /// The decision at `at` placed a request on `worker` that leaves it `uncached` tokens to prefill;
    /// absent when unknown.
    pub fn on_placed(&mut self, worker: WorkerKey, at: Timestamp, uncached: Option<f64>) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            match uncached {
                Some(tokens) => worker.drain.place(at, tokens),
                None => worker.drain.give_up(),
            }
        }
    }

    /// How long one more request would wait for a seat if the pool's requests were spread at will, where
    /// `active` is the number on each worker without it. Seats come free at the rate at which the running
    /// end, seats / R, and as many have to as there are requests without one.
    ///
    /// How many seats a worker has shows when they run out: then the most that ever ran stays the most,
    /// though others wait. Zero until every worker has shown it, by 16 first tokens in a row.
    #[must_use]
    pub fn seat_wait(&self, active: impl IntoIterator<Item = (WorkerKey, f64)>) -> Millis {
        let (mut requests, mut seats) = (1.0, 0.0);
        for (key, active) in active {
            let known = self.workers.get(&key);
            let Some(worker) = known.filter(|worker| worker.has_shown_its_seats()) else {
                return Millis::ZERO;
            };
            requests += active;
            seats += f64::from(worker.most_running);
        }
        let without = (requests - seats).max(0.0);
        let each = Millis::new(self.residence.value()).ratio(Millis::new(seats));
        Millis::new(without * each.unwrap_or(0.0))
    }

    /// What the pool has learned, as it stands at `now`.
    #[must_use]
    pub fn estimate(&self, now: Timestamp) -> PoolEstimate {
        PoolEstimate {
            pass_ms: self.fit.pass_ms(),
            token_ms: self.fit.token_ms(),
            waiting: self.waiting_at(now),
            efficiency: self.efficiency.value(),
            residence_ms: self.residence.value(),
            decode_step_ms: self.decode_step.value(),
            groups: self.groups,
            last_group: self.last_group,
            source: self.source,
        }
    }

    /// What is known about `worker` at `now`; an unknown worker is typical.
    #[must_use]
    pub fn worker(&self, now: Timestamp, worker: WorkerKey) -> WorkerEstimate {
        self.workers.get(&worker).map_or_else(
            || self.describe(now, &Worker::default()),
            |known| self.describe(now, known),
        )
    }

    /// Every known worker at `now`, in key order.
    pub fn workers(&self, now: Timestamp) -> impl Iterator<Item = (WorkerKey, WorkerEstimate)> {
        self.workers
            .iter()
            .map(move |(&key, worker)| (key, self.describe(now, worker)))
    }

    fn describe(&self, now: Timestamp, worker: &Worker) -> WorkerEstimate {
        let yardstick = Yardstick::new(&self.fit, self.typical, &self.config);
        let pool_step = self.decode_step.value();
        let decode_step_ms = worker.decode.as_ref().map_or(pool_step, |own| {
            let kept = self.config.kept(own.last_sample, now);
            own.step.value() * kept + pool_step * (1.0 - kept)
        });
        WorkerEstimate {
            slowness: worker.speed.slowness(now, yardstick),
            decode_step_ms,
            groups: worker.speed.groups(),
            last_sample: worker.speed.last_sample(),
        }
    }

    /// The queue drains in silence.
    fn waiting_at(&self, now: Timestamp) -> f64 {
        self.waiting * self.config.kept(self.last_arrival, now)
    }

    /// Learn from the open pass of `worker`, if time has closed it.
    fn close_pass(&mut self, key: WorkerKey, at: Timestamp) {
        let closed = self
            .workers
            .get_mut(&key)
            .and_then(|worker| worker.passes.close_before(at, self.group_gap));
        if let Some(stretch) = closed {
            self.learn(key, &stretch, RateSource::Events);
        }
    }

    fn learn(&mut self, worker: WorkerKey, stretch: &Stretch, source: RateSource) {
        let Some(worker) = self.workers.get_mut(&worker) else {
            return;
        };
        self.groups = self.groups.saturating_add(u64::from(stretch.passes));
        self.last_group = self.last_group.max(Some(stretch.at));
        let (duration, passes) = (stretch.duration.get(), f64::from(stretch.passes));
        let yardstick = Yardstick::new(&self.fit, self.typical, &self.config);
        let slowness = worker.speed.slowness(stretch.at, yardstick);
        let predicted = slowness * self.fit.predict(passes, stretch.tokens);
        if source == RateSource::Events {
            // Not from queues: one that drains slowly does not say whether prefill or seats are scarce.
            self.efficiency.update((predicted / duration).min(1.0));
        }
        if worker.is_seat_limited(stretch, &self.config) {
            return;
        }
        worker.speed.observe(stretch, yardstick);
        let sample = Sample {
            duration: duration / slowness,
            passes,
            tokens: stretch.tokens,
            clean: stretch.running <= worker.most_running / 2,
            exact: source == RateSource::Events,
        };
        self.source = source;
        if let Some(scale) = self.fit.observe(sample, &self.config) {
            self.set_typical(self.typical / scale);
            self.efficiency = StepEwma::new(PRIOR_EFFICIENCY, self.config.efficiency_weight);
        }
        self.renew_typical(stretch.at);
    }

    fn renew_typical(&mut self, at: Timestamp) {
        let yardstick = Yardstick::new(&self.fit, self.typical, &self.config);
        self.values.clear();
        self.values.extend(
            self.workers
                .values()
                .filter(|worker| worker.speed.groups() > 0)
                .map(|worker| worker.speed.ratio(at, yardstick)),
        );
        if let Some(median) = lower_median(&mut self.values) {
            self.set_typical(median);
        }
    }

    fn set_typical(&mut self, ratio: f64) {
        self.typical = ratio.clamp(RATIO_RANGE.0, RATIO_RANGE.1);
    }
}

impl Worker {
    fn has_shown_its_seats(&self) -> bool {
        self.under_ceiling >= SEATS_SHOWN
    }

    /// Whether `stretch` ended with about as many requests running as ever did, and with enough of them
    /// for that to mean something.
    fn is_seat_limited(&self, stretch: &Stretch, config: &CalibrationConfig) -> bool {
        stretch.running >= config.seat_limit_running
            && stretch.running >= self.most_running.saturating_sub(1)
    }
}

/// Median of `values`, which it reorders; of an even number, the lower of the two in the middle.
fn lower_median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

#[cfg(test)]
mod tests {
    use super::simulated::{Fleet, PASS_MS, TOKEN_MS};
    use super::*;
    use crate::{Decode, Ledger, LedgerConfig, Outcome};
    use proptest::prelude::*;

    const A: WorkerKey = WorkerKey::new(1, 0);
    const B: WorkerKey = WorkerKey::new(2, 0);
    const C: WorkerKey = WorkerKey::new(3, 0);

    fn ms(at: u64) -> Timestamp {
        Timestamp::from_millis(at)
    }

    fn pool(config: CalibrationConfig) -> PoolCalibration {
        PoolCalibration::new(config).unwrap()
    }

    fn sent(worker: WorkerKey, at: u64) -> Sent {
        Sent {
            worker,
            at: ms(at),
            prompt_tokens: None,
            attempt: 1,
        }
    }

    fn first_token(worker: WorkerKey, sent_at: u64, at: u64) -> FirstToken<()> {
        FirstToken {
            worker,
            at: ms(at),
            sent_at: ms(sent_at),
            ttft: None,
            service: Millis::ZERO,
            queue_wait: Millis::ZERO,
            prompt_tokens: None,
            payload: None,
        }
    }

    /// `decode` is first token, span in ms and tokens.
    fn ended(
        worker: WorkerKey,
        at: u64,
        ending: Ending,
        decode: Option<(u64, u64, u64)>,
    ) -> Ended<()> {
        Ended {
            worker: Some(worker),
            at: ms(at),
            ending,
            sent_at: Some(ms(0)),
            decode: decode.map(|(first, span, tokens)| Decode {
                first_token_at: ms(first),
                span: Millis::new(span as f64),
                tokens: Some(tokens),
            }),
            payload: None,
        }
    }

    /// One request that is alone on its worker: prefill of `tokens` from `at`, over at once.
    fn pass(
        pool: &mut PoolCalibration,
        worker: WorkerKey,
        at: u64,
        millis: u64,
        tokens: Option<u64>,
    ) {
        let done = at + millis;
        pool.on_sent(&sent(worker, at));
        pool.on_first_token(&first_token(worker, at, done), tokens.map(Tokens));
        pool.on_ended(&ended(
            worker,
            done + 1,
            Ending::Completed,
            Some((done, 1, 0)),
        ));
    }

    /// A pool of worker A that knows its rates from 20 passes: 20 ms and 0.025 ms a token.
    fn pool_of_known_rates() -> PoolCalibration {
        let mut pool = pool(CalibrationConfig {
            prior_pass_ms: 20.0,
            prior_token_ms: 0.025,
            ..CalibrationConfig::default()
        });
        for n in 0..20 {
            pass(&mut pool, A, n * 1_000, 45, Some(1_000));
        }
        pool
    }

    /// Time beyond a prefill of 1,000 tokens, by times in ms after 30 s.
    fn over(pool: &mut PoolCalibration, sent_at: u64, at: u64) -> Option<f64> {
        let token = first_token(A, 30_000 + sent_at, 30_000 + at);
        let surplus = pool.surplus(&token, Tokens(1_000))?;
        assert!((surplus.prefill.get() - 45.0).abs() < 0.5, "{surplus:?}");
        Some(surplus.over.get().round())
    }

    #[test]
    fn what_a_lone_request_takes_beyond_its_prefill_is_surplus() {
        let mut pool = pool_of_known_rates();
        pool.on_sent(&sent(A, 30_000));
        assert_eq!(over(&mut pool, 0, 95), Some(50.0));
        pool.on_first_token(&first_token(A, 30_000, 30_095), None);
        let estimate = pool.estimate(ms(31_000));
        assert!(close(estimate.prefill(Tokens(1_000)).get(), 45.0, 0.01));
    }

    #[test]
    fn a_request_that_came_during_a_pass_is_measured_from_its_end() {
        let mut pool = pool_of_known_rates();
        pool.on_sent(&sent(A, 30_000));
        pool.on_sent(&sent(A, 30_020));
        pool.on_first_token(&first_token(A, 30_000, 30_045), Some(Tokens(1_000)));
        pool.on_ended(&ended(A, 30_046, Ending::Completed, Some((30_045, 1, 0))));
        assert_eq!(over(&mut pool, 20, 150), Some(60.0));
    }

    #[test]
    fn where_other_prefills_mix_in_there_is_no_surplus() {
        // Another one waits.
        let mut pool = pool_of_known_rates();
        pool.on_sent(&sent(A, 30_000));
        pool.on_sent(&sent(A, 30_010));
        assert_eq!(over(&mut pool, 0, 95), None);
        // A pass began and ended in between.
        pool.on_first_token(&first_token(A, 30_010, 30_060), Some(Tokens(1_000)));
        assert_eq!(over(&mut pool, 0, 150), None);
    }

    #[test]
    fn before_rates_are_known_and_where_room_may_be_scarce_there_is_no_surplus() {
        let mut fresh = pool(CalibrationConfig::default());
        fresh.on_sent(&sent(A, 30_000));
        assert_eq!(over(&mut fresh, 0, 95), None);

        // A runs more than half of the two requests that it ever ran.
        let mut pool = pool_of_known_rates();
        for at in [25_000, 26_000] {
            pool.on_sent(&sent(A, at));
            pool.on_first_token(&first_token(A, at, at + 45), Some(Tokens(1_000)));
        }
        pool.on_sent(&sent(A, 30_000));
        assert_eq!(over(&mut pool, 0, 95), None);
    }

    fn close(actual: f64, expected: f64, tolerance: f64) -> bool {
        (actual / expected - 1.0).abs() < tolerance
    }

    /// Fleets that differ by chance only.
    fn fleets(slowness: &[f64]) -> impl Iterator<Item = Fleet> {
        (1..=50).map(|seed| Fleet::new(slowness, seed))
    }

    fn slowness(fleet: &Fleet, pool: &PoolCalibration) -> Vec<f64> {
        let estimates = pool.workers(fleet.now());
        estimates.map(|(_, worker)| worker.slowness).collect()
    }

    #[test]
    fn fleets_of_known_speed_are_recovered_from_200_passes_within_10_percent() {
        let recovered = |mut fleet: Fleet| {
            let mut pool = fleet.calibration(CalibrationConfig::default());
            fleet.serve(&mut pool, 200);
            let estimate = pool.estimate(fleet.now());
            let slowness = slowness(&fleet, &pool);
            assert_eq!(slowness[..3], [1.0; 3]);
            close(estimate.pass_ms, PASS_MS, 0.1)
                && close(estimate.token_ms, TOKEN_MS, 0.1)
                && close(slowness[3], 2.5, 0.1)
        };
        let fleets = fleets(&[1.0, 1.0, 1.0, 2.5]);
        let recovered = fleets.filter(|fleet| recovered(fleet.clone())).count();
        // One in fifty is 12 % off, by chance.
        assert!(recovered >= 49, "{recovered} of 50");
    }

    #[test]
    fn a_worker_that_slows_down_is_followed_within_its_memory() {
        for mut fleet in fleets(&[1.0; 4]) {
            let mut pool = fleet.calibration(CalibrationConfig::default());
            fleet.serve(&mut pool, 200);
            assert_eq!(slowness(&fleet, &pool), [1.0; 4]);
            fleet.slowness[1] = 2.5;
            fleet.serve(&mut pool, 200);
            let slowness = slowness(&fleet, &pool);
            assert!(close(slowness[1], 2.5, 0.2), "{slowness:?}");
            assert_eq!([slowness[0], slowness[2], slowness[3]], [1.0; 3]);
        }
    }

    #[test]
    fn a_pool_that_slows_down_as_a_whole_is_followed_by_pass_and_token_time() {
        for mut fleet in fleets(&[1.0; 4]) {
            let mut pool = fleet.calibration(CalibrationConfig::default());
            fleet.serve(&mut pool, 200);
            fleet.slowness = vec![2.0; 4];
            fleet.serve(&mut pool, 300);
            let prefill = pool.estimate(fleet.now()).prefill(Tokens(1_000));
            assert!(close(prefill.get(), 90.0, 0.1), "{prefill:?}");
            assert_eq!(slowness(&fleet, &pool), [1.0; 4]);
        }
    }

    #[test]
    fn a_prior_that_is_wrong_by_eight_is_unlearned() {
        for factor in [8.0, 0.125] {
            for mut fleet in fleets(&[1.0, 1.0, 1.0, 2.5]) {
                let mut pool = fleet.calibration(CalibrationConfig {
                    prior_pass_ms: PASS_MS * factor,
                    prior_token_ms: TOKEN_MS * factor,
                    ..CalibrationConfig::default()
                });
                fleet.serve(&mut pool, 300);
                let estimate = pool.estimate(fleet.now());
                let prefill = estimate.prefill(Tokens(1_000)).get();
                assert!(close(prefill, 45.0, 0.1), "{factor}: {estimate:?}");
                assert!(
                    close(estimate.token_ms, TOKEN_MS, 0.15),
                    "{factor}: {estimate:?}"
                );
                assert!(close(slowness(&fleet, &pool)[3], 2.5, 0.2));
                assert!(estimate.efficiency > 0.8, "{factor}: {estimate:?}");
            }
        }
    }

    // Field report BR-07.
    #[test]
    fn a_new_worker_is_typical_and_leaves_the_others_and_the_pool_alone() {
        // Without a dead band the values show every change.
        let mut pool = pool(CalibrationConfig {
            dead_band: 0.0,
            ..CalibrationConfig::default()
        });
        for n in 0..200 {
            pass(&mut pool, A, n * 1_000, 420, Some(10_000));
            pass(&mut pool, B, n * 1_000, 380, Some(10_000));
        }
        let mut now = ms(200_000);
        let others = |pool: &PoolCalibration, now| [A, B].map(|worker| pool.worker(now, worker));
        let model = pool.estimate(now).prefill(Tokens(10_000));
        assert!((380.0..420.0).contains(&model.get()), "{model:?}");

        let before = others(&pool, now);
        pool.insert_worker(C);
        assert_eq!(pool.worker(now, C).slowness, 1.0);
        assert_eq!(others(&pool, now), before);

        for n in 0..40 {
            let at = 200_000 + n * 1_000;
            pass(&mut pool, A, at, 420, Some(10_000));
            pass(&mut pool, B, at, 380, Some(10_000));
            if n % 4 == 0 {
                pass(&mut pool, C, at, 3_000, Some(10_000));
            }
        }
        now = ms(240_000);
        assert!(pool.worker(now, C).slowness > 2.0);
        let moved = pool.estimate(now).prefill(Tokens(10_000)).ratio(model);
        assert!(close(moved.unwrap(), 1.0, 0.05), "{moved:?}");

        let before = others(&pool, now);
        for (old, new) in others(&pool, ms(200_000)).iter().zip(&before) {
            assert!(close(new.slowness, old.slowness, 0.05));
        }
        pool.remove_worker(C);
        assert_eq!(others(&pool, now), before);
    }

    #[test]
    fn passes_with_unknown_tokens_teach_nothing() {
        let mut pool = pool(CalibrationConfig::default());
        for n in 0..50 {
            pass(&mut pool, A, n * 1_000, 300, None);
        }
        let estimate = pool.estimate(ms(50_000));
        assert_eq!((estimate.pass_ms, estimate.token_ms), (12.0, 0.03));
        assert_eq!((estimate.groups, estimate.last_group), (0, None));
        assert_eq!(estimate.efficiency, 1.0);
    }

    #[test]
    fn a_pass_that_takes_twice_the_predicted_time_halves_its_efficiency() {
        let mut pool = pool(CalibrationConfig::default());
        // 12 + 0.03 · 1000 = 42 ms; one pass weighs 2 %.
        pass(&mut pool, A, 0, 84, Some(1_000));
        pass(&mut pool, A, 200, 84, Some(1_000));
        assert!((pool.estimate(ms(284)).efficiency - 0.99).abs() < 1e-12);
    }

    #[test]
    fn a_worker_at_its_seat_limit_lowers_efficiency_and_nothing_else() {
        let mut pool = pool(CalibrationConfig::default());
        // Eighteen seats fill up; from then on a first token has to wait for a completion, every 100 ms.
        for n in 0..18 {
            pool.on_sent(&sent(A, n * 100));
            pool.on_first_token(&first_token(A, n * 100, n * 100 + 42), Some(Tokens(1_000)));
        }
        let learned = pool.estimate(ms(1_800));
        let passes = pool.worker(ms(1_800), A).groups;
        for n in 18..200 {
            pool.on_ended(&ended(
                A,
                n * 100,
                Ending::Completed,
                Some((n * 100 - 1_800, 1_800, 9)),
            ));
            pool.on_sent(&sent(A, 0));
            pool.on_first_token(&first_token(A, 0, n * 100 + 1), Some(Tokens(1_000)));
        }
        let limited = pool.estimate(ms(20_000));
        assert_eq!(
            (limited.pass_ms, limited.token_ms),
            (learned.pass_ms, learned.token_ms)
        );
        assert_eq!(pool.worker(ms(20_000), A).groups, passes);
        assert!(limited.groups > learned.groups + 150);
        assert!(limited.efficiency < 0.5, "{limited:?}");
    }

    #[test]
    fn waiting_is_that_of_the_median_worker_averaged_over_arrivals() {
        let mut pool = pool(CalibrationConfig::default());
        for (worker, requests) in [(A, 2), (B, 4), (C, 90)] {
            (0..requests).for_each(|_| pool.on_sent(&sent(worker, 0)));
        }
        pool.on_arrival(ms(0));
        assert!((pool.estimate(ms(0)).waiting - 0.05 * 4.0).abs() < 1e-12);
        pool.on_arrival(ms(0));
        assert!((pool.estimate(ms(0)).waiting - (0.2 + 0.05 * 3.8)).abs() < 1e-12);
    }

    #[test]
    fn an_overloaded_worker_of_two_does_not_count_as_the_median() {
        let mut pool = pool(CalibrationConfig::default());
        pool.insert_worker(A);
        (0..50).for_each(|_| pool.on_sent(&sent(B, 0)));
        pool.on_arrival(ms(0));
        assert_eq!(pool.estimate(ms(0)).waiting, 0.0);
    }

    #[test]
    fn the_queue_is_taken_to_drain_without_arrivals() {
        let mut pool = pool(CalibrationConfig::default());
        (0..100).for_each(|_| pool.on_sent(&sent(A, 0)));
        pool.on_arrival(ms(0));
        assert_eq!(pool.estimate(ms(0)).waiting, 5.0);
        let after_a_minute = pool.estimate(ms(60_000)).waiting;
        assert!((after_a_minute - 5.0 / std::f64::consts::E).abs() < 1e-9);
    }

    #[test]
    fn the_wait_for_a_seat_is_what_the_seats_take_to_come_free() {
        let mut pool = pool(CalibrationConfig::default());
        pool.insert_worker(B);
        for _ in 0..20 {
            pool.on_sent(&sent(A, 0));
        }
        pool.on_first_token(&first_token(A, 0, 100), None);
        pool.on_first_token(&first_token(A, 0, 200), None);
        // Two run and the others wait. Whenever one ends, the next begins.
        for at in (1..=16).map(|cycle| 200 + cycle * 1_500) {
            assert_eq!(pool.seat_wait([(A, 5.0)]), Millis::ZERO);
            pool.on_ended(&ended(
                A,
                at,
                Ending::Completed,
                Some((at - 1_500, 1_500, 100)),
            ));
            pool.on_first_token(&first_token(A, 0, at), None);
        }
        // With five there, four requests more than seats have to end, two in 1.5 s.
        assert_eq!(pool.seat_wait([(A, 5.0)]), Millis::new(3_000.0));
        assert_eq!(pool.seat_wait([(A, 1.0)]), Millis::ZERO);
        // The other worker may have seats.
        assert_eq!(pool.seat_wait([(A, 5.0), (B, 0.0)]), Millis::ZERO);
        // A third at once: there are more seats than two.
        pool.on_first_token(&first_token(A, 0, 24_300), None);
        assert_eq!(pool.seat_wait([(A, 5.0)]), Millis::ZERO);
    }

    #[test]
    fn residence_and_decode_step_follow_requests_that_ended_by_themselves() {
        let mut pool = pool(CalibrationConfig::default());
        pool.insert_worker(A);
        pool.on_ended(&ended(A, 600, Ending::Completed, Some((100, 500, 25))));
        let estimate = pool.estimate(ms(600));
        // 1500 + 0.02 · (500 − 1500), and 10 + 0.02 · (20 − 10).
        assert!((estimate.residence_ms - 1_480.0).abs() < 1e-9);
        assert!((estimate.decode_step_ms - 10.2).abs() < 1e-12);
        for ending in [
            Ending::Evicted,
            Ending::Migrated,
            Ending::WorkerLeft,
            Ending::Aborted,
        ] {
            pool.on_ended(&ended(A, 600, ending, Some((100, 9_999_999, 25))));
        }
        assert_eq!(pool.estimate(ms(600)), estimate);
    }

    #[test]
    fn a_worker_with_slow_decode_stands_out_until_it_falls_silent() {
        let mut pool = pool(CalibrationConfig::default());
        pool.insert_worker(A);
        pool.insert_worker(B);
        for n in 0..300 {
            pool.on_ended(&ended(A, n, Ending::Completed, Some((0, 300, 10))));
            pool.on_ended(&ended(B, n, Ending::Completed, Some((0, 100, 10))));
        }
        let step = |now, worker| pool.worker(ms(now), worker).decode_step_ms;
        assert!(close(step(300, A), 30.0, 0.01) && close(step(300, B), 10.0, 0.01));
        assert!(close(
            step(900_000, A),
            pool.estimate(ms(0)).decode_step_ms,
            0.01
        ));
    }

    #[test]
    fn a_worker_that_falls_silent_becomes_typical_again() {
        let mut fleet = Fleet::new(&[1.0, 1.0, 1.0, 2.5], 1);
        let mut pool = fleet.calibration(CalibrationConfig::default());
        fleet.serve(&mut pool, 200);
        let slow = WorkerKey::new(3, 0);
        assert!(pool.worker(fleet.now(), slow).slowness > 2.0);
        let later = fleet.now() + Duration::from_secs(600);
        assert_eq!(pool.worker(later, slow).slowness, 1.0);
    }

    #[test]
    fn an_unknown_worker_is_typical_and_its_outcomes_are_ignored() {
        let mut pool = pool(CalibrationConfig::default());
        pool.insert_worker(A);
        pool.on_first_token(&first_token(B, 0, 900), Some(Tokens(10)));
        pool.on_ended(&ended(B, 950, Ending::Completed, Some((900, 50, 5))));
        assert_eq!(pool.worker(ms(1_000), B).slowness, 1.0);
        assert_eq!(
            pool.workers(ms(1_000))
                .map(|(key, _)| key)
                .collect::<Vec<_>>(),
            [A]
        );
        assert_eq!(pool.estimate(ms(1_000)).residence_ms, 1_500.0);
    }

    #[test]
    fn workers_come_in_key_order_whatever_order_they_joined_in() {
        let mut pool = pool(CalibrationConfig::default());
        [C, A, B]
            .into_iter()
            .for_each(|worker| pool.insert_worker(worker));
        pool.retain_workers(|worker| worker != B);
        assert_eq!(
            pool.workers(ms(0)).map(|(key, _)| key).collect::<Vec<_>>(),
            [A, C]
        );
    }

    #[test]
    fn a_ledger_keeps_the_waiting_requests_of_a_pool_in_balance() {
        let mut pool = pool(CalibrationConfig::default());
        let mut ledger = Ledger::<Tokens>::new(LedgerConfig::default()).unwrap();
        let mut out = Vec::new();
        // Migrated before its first token, cancelled, and lost.
        ledger.sent("a", A, ms(0), Some(Tokens(500)), &mut out);
        ledger.sent("b", A, ms(0), None, &mut out);
        ledger.sent("c", A, ms(0), None, &mut out);
        ledger.sent("a", B, ms(10), Some(Tokens(500)), &mut out);
        ledger.responding("a", B, ms(60), Some(1), &mut out);
        ledger.completed("a", B, ms(90), None, &mut out);
        ledger.aborted("b", Some(A), ms(95), false, &mut out);
        ledger.expire(Timestamp::from_secs(7_200), &mut out);
        for outcome in &out {
            match outcome {
                Outcome::Sent(sent) => pool.on_sent(sent),
                Outcome::FirstToken(token) => pool.on_first_token(token, token.payload),
                Outcome::Ended(ended) => pool.on_ended(ended),
            }
        }
        assert!(
            pool.workers
                .values()
                .all(|worker| worker.load == InFlight::default())
        );
        assert_eq!(pool.estimate(ms(0)).groups, 1);
    }

    #[test]
    fn a_bad_setting_is_refused() {
        let config = CalibrationConfig {
            forgetting: 1.5,
            ..CalibrationConfig::default()
        };
        let error = PoolCalibration::new(config).unwrap_err();
        assert_eq!(error.to_string(), "forgetting is 1.5; allowed: 0.5 to 1");
    }

    #[derive(Debug, Clone)]
    enum Event {
        Arrival,
        Sent,
        FirstToken(u64, Option<u64>),
        Ended(Ending, Option<(u64, u64, u64)>),
        Look(f64, u32),
        Placed(Option<f64>),
        Insert,
        Remove,
    }

    fn event() -> impl Strategy<Value = Event> {
        let tokens = prop_oneof![0u64..10_000, any::<u64>()];
        prop_oneof![
            1 => Just(Event::Arrival),
            3 => Just(Event::Sent),
            5 => (0u64..5_000, prop::option::of(tokens))
                .prop_map(|(sent_at, tokens)| Event::FirstToken(sent_at, tokens)),
            3 => (
                prop::sample::select(&Ending::ALL[..]),
                prop::option::of((any::<u64>(), any::<u64>(), any::<u64>())),
            )
                .prop_map(|(ending, decode)| Event::Ended(ending, decode)),
            3 => (prop_oneof![Just(0.0), Just(1e3), any::<f64>()], any::<u32>())
                .prop_map(|(queued, active)| Event::Look(queued, active)),
            3 => prop::option::of(prop_oneof![Just(1e3), any::<f64>()]).prop_map(Event::Placed),
            1 => Just(Event::Insert),
            1 => Just(Event::Remove),
        ]
    }

    proptest! {
        #[test]
        fn any_order_of_events_leaves_every_value_finite_and_in_range(
            events in prop::collection::vec(
                (0u64..4, prop_oneof![0u64..5_000, any::<u64>()], event()),
                0..300,
            ),
        ) {
            let mut pool = pool(CalibrationConfig::default());
            for (id, at, event) in events {
                let worker = WorkerKey::new(id, 0);
                match event {
                    Event::Arrival => pool.on_arrival(ms(at)),
                    Event::Sent => pool.on_sent(&sent(worker, at)),
                    Event::FirstToken(sent_at, tokens) => {
                        pool.on_first_token(&first_token(worker, sent_at, at), tokens.map(Tokens));
                    }
                    Event::Ended(ending, decode) => {
                        pool.on_ended(&ended(worker, at, ending, decode));
                    }
                    Event::Look(queued, active) => {
                        pool.on_look(worker, ms(at), queued, active);
                    }
                    Event::Placed(tokens) => pool.on_placed(worker, ms(at), tokens),
                    Event::Insert => pool.insert_worker(worker),
                    Event::Remove => pool.remove_worker(worker),
                }
                let estimate = pool.estimate(ms(at));
                prop_assert!((0.1..=1e6).contains(&estimate.pass_ms));
                prop_assert!((1e-5..=1e3).contains(&estimate.token_ms));
                prop_assert!(estimate.waiting >= 0.0 && estimate.waiting.is_finite());
                prop_assert!(estimate.efficiency > 0.0 && estimate.efficiency <= 1.0);
                prop_assert!(estimate.residence_ms >= 0.0 && estimate.residence_ms.is_finite());
                prop_assert!(estimate.decode_step_ms >= 0.0 && estimate.decode_step_ms.is_finite());
                for (_, worker) in pool.workers(ms(at)) {
                    prop_assert!((0.1..=10.0).contains(&worker.slowness));
                    prop_assert!(worker.decode_step_ms >= 0.0 && worker.decode_step_ms.is_finite());
                }
            }
        }
    }
}
