// SPDX-License-Identifier: Apache-2.0

//! Every signal of a pool over the time of one run.
//!
//! Slowdown, waiting requests and the smoothed P99 are the policy's own: a recorder asks it for its report
//! at each first token, at most once in 250 ms, which is the policy's own tick. Asked there, right after the
//! policy was told and so brought to the present, the answer changes nothing in the run.
//!
//! Position and curvature are no signals of the policy, so they are computed from the record of the run, with
//! what a router could know at that time: each request met the requests in flight on its worker, itself
//! included, and took so many times the time alone that the policy then predicted for its uncached tokens. A
//! slowdown and not ms, since prompts of two lengths are on two curves. On a prefill worker a request is in
//! flight until its first token. The time constant of the fit is the span of the policy's windows.
//!
//! The pool is the one that computes prompts.

use std::sync::Arc;
use std::time::Duration;

use dynamo_kv_router::WorkerType;
use parking_lot::Mutex;
use regime_core::{LoadResponse, Millis, Reading, Timestamp, WorkerKey};
use regime_policy::{Clock, Handle, ManualClock, Parameters, PoolReport};

use super::detector::{SIGNALS, Signal};
use crate::adapter::RunRecord;
use crate::lifecycle::Lifecycle;
use crate::policies::Catalog;

/// Least virtual time between two ticks.
const TICK: Duration = Duration::from_millis(250);

/// What could be read at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tick {
    /// When.
    pub(super) at: Timestamp,
    /// In the order of [`SIGNALS`].
    pub(super) readings: [Option<Reading>; SIGNALS.len()],
    /// Learned rates: ms of a prefill pass, and of one uncached token.
    rates_ms: (f64, f64),
}

#[cfg(test)]
impl Tick {
    pub(super) const fn of(at: Timestamp, readings: [Option<Reading>; SIGNALS.len()]) -> Self {
        Self {
            at,
            readings,
            rates_ms: (0.0, 0.0),
        }
    }
}

/// Where a recorder leaves its ticks.
pub(super) type Ticks = Arc<Mutex<Vec<Tick>>>;

/// The catalog with a recorder of one run, which leaves the policy's own signals in `ticks`.
pub(super) fn recording(catalog: &Catalog, ticks: &Ticks) -> Catalog {
    let ticks = Arc::clone(ticks);
    catalog.clone().with(move |link| {
        let Some(handle) = link.ours() else {
            return Ok(None);
        };
        Ok(Some(Box::new(Recorder {
            handle,
            clock: Arc::clone(&link.clock),
            next: Timestamp::ORIGIN,
            ticks: Arc::clone(&ticks),
        })))
    })
}

struct Recorder {
    handle: Handle,
    clock: Arc<ManualClock>,
    next: Timestamp,
    ticks: Ticks,
}

impl Lifecycle for Recorder {
    fn first_token(&mut self, _: WorkerType, _: &str, _: WorkerKey, _: f64) {
        let now = self.clock.now();
        if now < self.next {
            return;
        }
        self.next = now + TICK;
        let report = self.handle.report();
        let prefills = |pool: &&PoolReport| pool.role != WorkerType::Decode.as_str();
        if let Some(pool) = report.pools.iter().find(prefills) {
            self.ticks.lock().push(tick(pool, now));
        }
    }
}

fn tick(pool: &PoolReport, now: Timestamp) -> Tick {
    let readings = SIGNALS.map(|signal| {
        let report = pool.health.signals.get(signal.name())?;
        let age = Duration::from_millis(report.age_ms);
        let now_us = now.as_micros();
        Some(Reading {
            value: report.value,
            samples: report.samples,
            at: Timestamp::from_micros(now_us.saturating_sub(age.as_micros() as u64)),
        })
    });
    Tick {
        at: now,
        readings,
        rates_ms: (pool.rates.pass_ms, pool.rates.token_ms),
    }
}

/// Something that happened to a request in the pool.
enum Step {
    /// It was sent to this worker, where it would take so long alone, ms.
    Placed { worker: usize, alone_ms: f64 },
    /// Its first token came.
    FirstToken,
    /// It left its worker.
    Left,
}

/// Add the signals that the policy does not have.
pub(super) fn add_load_signals(ticks: &mut [Tick], record: &RunRecord) {
    let span = Duration::from_secs_f64(Parameters::default().window.span_ms / 1e3);
    let mut response = LoadResponse::new(span);
    let mut steps = steps(ticks, record).into_iter().peekable();
    let mut in_flight: Vec<u32> = Vec::new();
    // Of each request in the pool: its worker, the load that it met, its time alone.
    let mut met: Vec<Option<(usize, f64, f64)>> = vec![None; record.requests.len()];
    for tick in ticks {
        let now_ms = tick.at.as_micros() as f64 / 1e3;
        while let Some((at_ms, request, step)) = steps.next_if(|(at_ms, ..)| *at_ms <= now_ms) {
            match step {
                Step::Placed { worker, alone_ms } => {
                    if in_flight.len() <= worker {
                        in_flight.resize(worker + 1, 0);
                    }
                    in_flight[worker] += 1;
                    met[request] = Some((worker, f64::from(in_flight[worker]), alone_ms));
                }
                Step::FirstToken => {
                    let ttft_ms = record.requests[request].ttft_ms();
                    if let (Some((_, load, alone_ms)), Some(ttft_ms)) = (met[request], ttft_ms) {
                        let at = Timestamp::from_micros((at_ms * 1e3) as u64);
                        response.record(at, load, ttft_ms / alone_ms);
                    }
                }
                Step::Left => {
                    if let Some((worker, ..)) = met[request].take() {
                        in_flight[worker] -= 1;
                    }
                }
            }
        }
        if let Some(fit) = response.fit() {
            let reading = |value: f64| Reading {
                value,
                samples: fit.weight.round() as u64,
                at: response.newest(),
            };
            tick.readings[Signal::Position as usize] = Some(reading(fit.elasticity));
            tick.readings[Signal::Curvature as usize] = Some(reading(fit.curvature));
        }
    }
}

/// Placements in the pool that computes prompts and what followed, in order of time.
fn steps(ticks: &[Tick], record: &RunRecord) -> Vec<(f64, usize, Step)> {
    let mut steps = Vec::with_capacity(2 * record.requests.len());
    let placed = record.decisions.iter();
    for decision in placed.filter(|it| it.role != WorkerType::Decode) {
        let Some(request) = record.requests.get(decision.request) else {
            continue;
        };
        let known =
            ticks.partition_point(|tick| tick.at.as_micros() as f64 / 1e3 <= decision.at_ms);
        let Some(tick) = ticks.get(known.saturating_sub(1)) else {
            continue;
        };
        let (pass_ms, token_ms) = tick.rates_ms;
        let uncached = f64::from(request.prompt_tokens) - decision.cached_tokens as f64;
        let placed = Step::Placed {
            worker: decision.worker,
            alone_ms: Millis::new(pass_ms + token_ms * uncached.max(0.0)).get(),
        };
        steps.push((decision.at_ms, decision.request, placed));
        let first = request.first_token_ms;
        steps.extend(first.map(|at_ms| (at_ms, decision.request, Step::FirstToken)));
        let left = match decision.role {
            WorkerType::Prefill => first,
            _ => request.last_token_ms,
        };
        steps.extend(left.map(|at_ms| (at_ms, decision.request, Step::Left)));
    }
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    steps
}
