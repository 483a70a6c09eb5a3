// SPDX-License-Identifier: Apache-2.0

//! A prefill pool of known speed that no event reaches, for tests of what its decisions teach.
//!
//! Requests arrive at random. Each decision sees the tokens and requests on every worker and places the
//! request where the calibration says that it will be prefilled first. A worker that is free takes what
//! waits, in order and up to a budget of tokens, and prefills it in one pass of s·(a + b·Σu) ms, with a
//! little noise.

use std::collections::VecDeque;

use super::simulated::{PASS_MS, Random, TOKEN_MS};
use super::{CalibrationConfig, PoolCalibration};
use crate::{Timestamp, WorkerKey};

/// Prompt tokens in one pass at most, unless one prompt is longer.
const BUDGET: f64 = 8_192.0;

struct DrainedFleet {
    workers: Vec<Engine>,
    /// Uncached tokens are uniform from the first to the second.
    prompts: (f64, f64),
    /// Mean time between arrivals.
    gap_ms: f64,
    now_ms: f64,
    random: Random,
}

#[derive(Debug, Default)]
struct Engine {
    slowness: f64,
    waiting: VecDeque<f64>,
    /// End of the pass that is going on, and its requests.
    pass: Option<(f64, Vec<f64>)>,
}

impl Engine {
    fn queued(&self) -> f64 {
        let pass = self.pass.iter().flat_map(|(_, tokens)| tokens);
        self.waiting.iter().chain(pass).sum()
    }

    fn active(&self) -> u32 {
        let pass = self.pass.as_ref().map_or(0, |(_, tokens)| tokens.len());
        (self.waiting.len() + pass) as u32
    }

    fn advance(&mut self, now_ms: f64, random: &mut Random) {
        while let Some((end, _)) = self.pass.take_if(|(end, _)| *end <= now_ms) {
            self.start(end, random);
        }
    }

    fn start(&mut self, at: f64, random: &mut Random) {
        let mut tokens = Vec::new();
        let mut sum = 0.0;
        while let Some(&next) = self.waiting.front()
            && (tokens.is_empty() || sum + next <= BUDGET)
        {
            self.waiting.pop_front();
            sum += next;
            tokens.push(next);
        }
        if !tokens.is_empty() {
            let noise = 0.85 + 0.3 * random.unit();
            let length = self.slowness * (PASS_MS + TOKEN_MS * sum) * noise;
            self.pass = Some((at + length, tokens));
        }
    }
}

impl DrainedFleet {
    /// Arrivals keep workers as fast as these busy for `utilisation` of the time, each alone.
    fn new(slowness: &[f64], utilisation: f64, prompts: (f64, f64), seed: u64) -> Self {
        let typical = PASS_MS + TOKEN_MS * (prompts.0 + prompts.1) / 2.0;
        let speed: f64 = slowness.iter().map(|slowness| slowness.recip()).sum();
        Self {
            workers: slowness
                .iter()
                .map(|&slowness| Engine {
                    slowness,
                    ..Engine::default()
                })
                .collect(),
            prompts,
            gap_ms: typical / (utilisation * speed),
            now_ms: 0.0,
            random: Random(seed),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros((self.now_ms * 1e3) as u64)
    }

    /// A calibration that knows the workers, with a prior that is wrong by `factor`.
    fn calibration(&self, factor: f64) -> PoolCalibration {
        let mut calibration = PoolCalibration::new(CalibrationConfig {
            prior_pass_ms: PASS_MS * factor,
            prior_token_ms: TOKEN_MS * factor,
            ..CalibrationConfig::default()
        })
        .unwrap();
        for worker in 0..self.workers.len() {
            calibration.insert_worker(key(worker));
        }
        calibration
    }

    /// Place requests.
    fn decide(&mut self, calibration: &mut PoolCalibration, decisions: u32) {
        for _ in 0..decisions {
            let (worker, tokens) = self.query(calibration);
            let engine = &mut self.workers[worker];
            engine.waiting.push_back(tokens);
            if engine.pass.is_none() {
                engine.start(self.now_ms, &mut self.random);
            }
        }
    }

    /// Decide for the next request, without placing it.
    fn query(&mut self, calibration: &mut PoolCalibration) -> (usize, f64) {
        self.now_ms += self.random.exponential(self.gap_ms);
        let (low, high) = self.prompts;
        let tokens = (low + (high - low) * self.random.unit()).round();
        let now = self.now();
        for (worker, engine) in self.workers.iter_mut().enumerate() {
            engine.advance(self.now_ms, &mut self.random);
            calibration.on_look(key(worker), now, engine.queued(), engine.active());
        }
        let estimate = calibration.estimate(now);
        let cost = |worker: usize| {
            let queued = self.workers[worker].queued();
            let residual = if queued > 0.0 { 0.5 } else { 0.0 };
            calibration.worker(now, key(worker)).slowness
                * (estimate.pass_ms * (1.0 + residual) + estimate.token_ms * (queued + tokens))
        };
        let chosen = (0..self.workers.len())
            .min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
            .unwrap();
        calibration.on_placed(key(chosen), now, Some(tokens));
        (chosen, tokens)
    }

    /// Predicted over true time of a typical request alone.
    fn accuracy(&self, calibration: &PoolCalibration) -> f64 {
        let estimate = calibration.estimate(self.now());
        let tokens = (self.prompts.0 + self.prompts.1) / 2.0;
        (estimate.pass_ms + estimate.token_ms * tokens) / (PASS_MS + TOKEN_MS * tokens)
    }

    fn slowness(&self, calibration: &PoolCalibration) -> Vec<f64> {
        let estimates = calibration.workers(self.now());
        estimates.map(|(_, worker)| worker.slowness).collect()
    }
}

fn key(worker: usize) -> WorkerKey {
    WorkerKey::new(worker as u64, 0)
}

mod tests {
    use super::*;
    use crate::RateSource;

    const CHAT: (f64, f64) = (1.0, 2_000.0);
    const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;
    /// From six times too low to six times too high.
    const WRONG: [f64; 3] = [1.0 / 6.0, 1.0, 6.0];

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    #[test]
    fn four_hundred_decisions_teach_the_time_of_a_typical_prefill_whatever_the_prior() {
        for prompts in [CHAT, (1_000.0, 1_000.0), (3_000.0, 9_000.0)] {
            for (workers, load, factor) in [2, 4, 16]
                .into_iter()
                .flat_map(|workers| [0.6, 0.75, 0.9].map(|load| (workers, load)))
                .flat_map(|(workers, load)| WRONG.map(|factor| (workers, load, factor)))
            {
                for seed in 1..=4 {
                    let mut fleet = DrainedFleet::new(&vec![1.0; workers], load, prompts, seed);
                    let mut pool = fleet.calibration(factor);
                    fleet.decide(&mut pool, 400);
                    let accuracy = fleet.accuracy(&pool);
                    assert!(
                        (0.9..1.1).contains(&accuracy),
                        "{accuracy}: {workers} workers, load {load}, prior × {factor}, {prompts:?}"
                    );
                    assert_eq!(fleet.slowness(&pool), vec![1.0; workers]);
                    assert_eq!(pool.estimate(fleet.now()).source, RateSource::Drain);
                }
            }
        }
    }

    #[test]
    fn a_slow_worker_of_four_is_found_in_400_decisions_within_20_percent_in_the_median() {
        for (load, factor) in [0.6, 0.75, 0.9]
            .into_iter()
            .flat_map(|load| WRONG.map(|factor| (load, factor)))
        {
            let mut found = Vec::new();
            for seed in SEEDS {
                let mut fleet = DrainedFleet::new(&[1.0, 1.0, 1.0, 2.5], load, CHAT, seed);
                let mut pool = fleet.calibration(factor);
                fleet.decide(&mut pool, 400);
                let slowness = fleet.slowness(&pool);
                assert_eq!(slowness[..3], [1.0; 3]);
                assert!((1.9..3.0).contains(&slowness[3]), "{slowness:?}");
                assert!((0.9..1.1).contains(&fleet.accuracy(&pool)));
                found.push(slowness[3]);
            }
            let found = median(found);
            assert!((2.0..3.0).contains(&found), "{found}: {load}, {factor}");
        }
    }

    #[test]
    fn a_worker_that_slows_down_half_way_is_found() {
        for seed in SEEDS {
            let mut fleet = DrainedFleet::new(&[1.0; 4], 0.6, CHAT, seed);
            let mut pool = fleet.calibration(1.0);
            fleet.decide(&mut pool, 400);
            assert_eq!(fleet.slowness(&pool), [1.0; 4]);
            fleet.workers[2].slowness = 2.5;
            fleet.decide(&mut pool, 400);
            let slowness = fleet.slowness(&pool);
            assert!((1.75..3.0).contains(&slowness[2]), "{slowness:?}");
            assert_eq!([slowness[0], slowness[1], slowness[3]], [1.0; 3]);
        }
    }

    #[test]
    fn at_light_load_the_rates_stay_near_a_right_prior_and_say_how_little_they_rest_on() {
        let accuracies = SEEDS.map(|seed| {
            let mut fleet = DrainedFleet::new(&[1.0; 2], 0.05, CHAT, seed);
            let mut pool = fleet.calibration(1.0);
            fleet.decide(&mut pool, 400);
            let groups = pool.estimate(fleet.now()).groups;
            assert!(groups <= 8, "{groups}");
            assert_eq!(fleet.slowness(&pool), [1.0; 2]);
            let accuracy = fleet.accuracy(&pool);
            assert!((0.75..1.33).contains(&accuracy), "{accuracy}");
            accuracy
        });
        let typical = median(accuracies.collect());
        assert!((0.95..1.05).contains(&typical), "{typical}");
    }

    #[test]
    fn a_decision_alone_teaches_nothing() {
        let mut fleet = DrainedFleet::new(&[1.0; 4], 0.6, CHAT, 1);
        let mut pool = fleet.calibration(6.0);
        fleet.decide(&mut pool, 1);
        let estimate = pool.estimate(fleet.now());
        assert_eq!((estimate.groups, estimate.source), (0, RateSource::Prior));
        assert!((fleet.accuracy(&pool) - 6.0).abs() < 1e-9);
    }

    #[test]
    fn queries_that_place_nothing_do_not_mislead() {
        for seed in SEEDS {
            let mut fleet = DrainedFleet::new(&[1.0; 4], 0.75, CHAT, seed);
            let mut pool = fleet.calibration(6.0);
            for _ in 0..400 {
                fleet.decide(&mut pool, 1);
                fleet.query(&mut pool);
            }
            let accuracy = fleet.accuracy(&pool);
            assert!((0.85..1.15).contains(&accuracy), "{accuracy}");
            assert_eq!(fleet.slowness(&pool), [1.0; 4]);
        }
    }

    #[test]
    fn a_router_that_sees_half_of_the_requests_is_not_misled() {
        for seed in SEEDS {
            let mut fleet = DrainedFleet::new(&[1.0; 4], 0.75, CHAT, seed);
            let (mut one, mut other) = (fleet.calibration(1.0), fleet.calibration(1.0));
            for _ in 0..1_000 {
                fleet.decide(&mut one, 1);
                fleet.decide(&mut other, 1);
            }
            for pool in [one, other] {
                let accuracy = fleet.accuracy(&pool);
                assert!((0.8..1.25).contains(&accuracy), "{accuracy}");
                assert_eq!(fleet.slowness(&pool), [1.0; 4]);
            }
        }
    }

    #[test]
    fn a_worker_that_joins_busy_and_one_that_leaves_change_nothing_for_the_others() {
        for seed in SEEDS {
            let mut fleet = DrainedFleet::new(&[1.0; 4], 0.6, CHAT, seed);
            let mut pool = fleet.calibration(1.0);
            fleet.decide(&mut pool, 400);
            // A fifth with somebody else's work on it.
            let mut joining = Engine {
                slowness: 1.0,
                ..Engine::default()
            };
            joining.waiting.extend([4_000.0, 4_000.0]);
            joining.start(fleet.now_ms, &mut fleet.random);
            fleet.workers.push(joining);
            pool.insert_worker(key(4));
            fleet.decide(&mut pool, 200);
            assert_eq!(fleet.slowness(&pool), [1.0; 5]);
            fleet.workers.pop();
            pool.remove_worker(key(4));
            fleet.decide(&mut pool, 200);
            assert_eq!(fleet.slowness(&pool), [1.0; 4]);
            let accuracy = fleet.accuracy(&pool);
            assert!((0.9..1.1).contains(&accuracy), "{accuracy}");
        }
    }
}
