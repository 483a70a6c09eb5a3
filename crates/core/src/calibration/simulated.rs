// SPDX-License-Identifier: Apache-2.0

//! A fleet of known speed, for tests: what is the truth that the calibration should find.
//!
//! Every worker prefills whatever is waiting in one pass of s·(a + b·Σu) ms, with a little noise and a
//! few outliers. Requests arrive at random intervals, take turns on the workers, and stay for a random
//! residence time after their first token.

use super::{CalibrationConfig, PoolCalibration};
use crate::{Decode, Ended, Ending, FirstToken, Millis, Sent, Timestamp, Tokens, WorkerKey};

/// a, ms per pass.
pub(super) const PASS_MS: f64 = 20.0;
/// b, ms per token.
pub(super) const TOKEN_MS: f64 = 0.025;
/// Share of passes that take ten times as long.
const OUTLIERS: f64 = 0.05;
/// Mean time between arrivals at one worker.
const GAP_MS: f64 = 140.0;
/// Mean time from first token to completion.
const RESIDENCE_MS: f64 = 400.0;
/// Prompt lengths are uniform from 1 to this.
const LONGEST_PROMPT: f64 = 2_000.0;

/// The truth: 45 ms of work every 140 ms on a worker of slowness 1.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    /// One entry per worker; worker `i` has id `i`.
    pub(super) slowness: Vec<f64>,
    now_ms: f64,
    random: Random,
}

enum Event {
    Sent(Sent),
    FirstToken(FirstToken<()>, Tokens),
    Ended(Ended<()>),
}

impl Fleet {
    /// A fleet that differs from others by arrivals, prompts, noise and outliers as `seed` says.
    pub(super) fn new(slowness: &[f64], seed: u64) -> Self {
        Self {
            slowness: slowness.to_vec(),
            now_ms: 0.0,
            random: Random(seed),
        }
    }

    /// Time of the last event.
    pub(super) fn now(&self) -> Timestamp {
        at(self.now_ms)
    }

    /// A calibration that knows the workers and nothing else.
    pub(super) fn calibration(&self, config: CalibrationConfig) -> PoolCalibration {
        let mut calibration = PoolCalibration::new(config).unwrap();
        for worker in 0..self.slowness.len() {
            calibration.insert_worker(WorkerKey::new(worker as u64, 0));
        }
        calibration
    }

    /// Serve requests until the calibration has seen `groups` more passes, and then some.
    pub(super) fn serve(&mut self, calibration: &mut PoolCalibration, groups: u64) {
        let goal = calibration.estimate(self.now()).groups + groups;
        while calibration.estimate(self.now()).groups < goal {
            // Ten requests a worker, all of which end before the next ten come.
            let mut events = Vec::new();
            for worker in 0..self.slowness.len() {
                self.serve_worker(worker, 10, &mut events);
            }
            events.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (time, event) in events {
                self.now_ms = time;
                match event {
                    Event::Sent(sent) => {
                        calibration.on_arrival(at(time));
                        calibration.on_sent(&sent);
                    }
                    Event::FirstToken(token, uncached) => {
                        calibration.on_first_token(&token, Some(uncached));
                    }
                    Event::Ended(ended) => calibration.on_ended(&ended),
                }
            }
        }
    }

    fn serve_worker(&mut self, worker: usize, requests: usize, events: &mut Vec<(f64, Event)>) {
        let key = WorkerKey::new(worker as u64, 0);
        let mut arrival = self.now_ms;
        let arrivals: Vec<(f64, f64)> = (0..requests)
            .map(|_| {
                arrival += self.random.exponential(GAP_MS);
                (arrival, 1.0 + (self.random.unit() * LONGEST_PROMPT).floor())
            })
            .collect();
        let mut free_at = self.now_ms;
        let mut rest = arrivals.as_slice();
        while let Some(&(first, _)) = rest.first() {
            let start = free_at.max(first);
            let (batch, later) = rest.split_at(rest.partition_point(|&(sent, _)| sent <= start));
            rest = later;
            let tokens: f64 = batch.iter().map(|&(_, tokens)| tokens).sum();
            let noise = 0.85 + 0.3 * self.random.unit();
            let hiccup = if self.random.unit() < OUTLIERS {
                10.0
            } else {
                1.0
            };
            let length = self.slowness[worker] * (PASS_MS + TOKEN_MS * tokens);
            free_at = start + length * noise * hiccup;
            for &(sent, tokens) in batch {
                let stay = self.random.exponential(RESIDENCE_MS);
                events.extend(request(key, sent, free_at, stay, Tokens(tokens as u64)));
            }
        }
    }
}

/// The three events of a request that generates a token every 8 ms.
fn request(
    worker: WorkerKey,
    sent: f64,
    first: f64,
    stay: f64,
    prompt: Tokens,
) -> [(f64, Event); 3] {
    let decode = Decode {
        first_token_at: at(first),
        span: Millis::new(stay),
        tokens: Some((stay / 8.0).round() as u64),
    };
    [
        (
            sent,
            Event::Sent(Sent {
                worker,
                at: at(sent),
                prompt_tokens: Some(prompt),
                attempt: 1,
            }),
        ),
        (
            first,
            Event::FirstToken(
                FirstToken {
                    worker,
                    at: at(first),
                    sent_at: at(sent),
                    ttft: None,
                    service: at(first).since(at(sent)).into(),
                    queue_wait: Millis::ZERO,
                    prompt_tokens: Some(prompt),
                    payload: None,
                },
                prompt,
            ),
        ),
        (
            first + stay,
            Event::Ended(Ended {
                worker: Some(worker),
                at: at(first + stay),
                ending: Ending::Completed,
                sent_at: Some(at(sent)),
                decode: Some(decode),
                payload: None,
            }),
        ),
    ]
}

fn at(ms: f64) -> Timestamp {
    Timestamp::from_micros((ms * 1e3) as u64)
}

/// A linear congruential generator: the same numbers on every machine.
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Uniform in 0..1.
    pub(super) fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}
