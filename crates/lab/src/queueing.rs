// SPDX-License-Identifier: Apache-2.0

//! What queueing theory expects of a run, beside what came of it.
//!
//! # Idea
//!
//! A request waits twice: until its prompt is computed, and until a decode worker has a seat for it. Each is a
//! queue before equal servers, M/G/k: the prefill workers, whose service is the time in which an idle worker
//! computes the uncached tokens of the prompt; and the seats of the decode workers, whose service is the time
//! from the first to the last token. Rate, services and their variability are those measured in the run, so
//! theory is told what the cache saved and how long answers took. It is not told that one pass computes several
//! prompts, that arrivals may come in waves, or that in a closed loop nobody arrives while all sessions are
//! being served. Where it is right, the structure of a latency curve is a queue's and not a router's.
//!
//! The measured wait is TTFT minus the TTFT that the same requests would have had alone on an idle fleet. It may
//! be slightly below 0, since some tables have a batch step faster than a single sequence.
//!
//! # Assumptions
//!
//! Poisson arrivals, as the M says; the measured variability of arrivals stands beside it. Each stage gets the
//! arrivals of the whole fleet, and their waits add up. Workers of unequal speed count as their mean. Engines
//! whose pass times are neither in a table nor fixed have no prediction.
//!
//! # The knee
//!
//! The rate at which the predicted mean TTFT is three times that of an idle fleet, as everywhere in the lab. In a
//! closed loop Little's law turns it into sessions: rate times TTFT plus time to the last token.

use dynamo_kv_router::WorkerType;
use regime_anarchy::{Station, StationConfig};
use regime_core::Millis;
use serde::{Deserialize, Serialize};

use crate::adapter::{RequestRecord, RunRecord};
use crate::engines::Engine;
use crate::experiments::KNEE;
use crate::run::Settings;
use crate::topology::Topology;

const MS_PER_S: f64 = 1e3;
/// Share of the TTFT alone from which a wait counts as one: a slowdown of 1.5, where regimes leave Below.
const WAITS: f64 = 0.5;
/// Factor within which a prediction is right.
const RIGHT: f64 = 2.0;
/// Utilisation from which a stage is full. A closed loop offers no more than is served, so that the rate measured
/// there is the capacity itself, and a wait computed from it would be rounding.
pub(crate) const FULL: f64 = 0.98;
/// Steps of a bisection, enough for every digit.
const BISECTIONS: usize = 64;

/// Theory and measurement of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Queueing {
    /// Requests that were measured.
    pub requests: u64,
    /// Their arrivals a second.
    pub arrivals_per_s: f64,
    /// Squared coefficient of variation of the time between arrivals: 1 is Poisson, more comes in waves.
    pub arrival_scv: f64,
    /// Mean TTFT that they would have had alone on an idle fleet, ms.
    pub alone_ttft_ms: f64,
    /// Mean TTFT minus that, ms.
    pub wait_ms: f64,
    /// The prefill workers.
    pub prefill: Expected,
    /// The seats of the decode workers; absent where they have no limit, or more than 4,096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seats: Option<Expected>,
    /// Mean wait over both, ms; absent where one is full: from 98 % utilisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_wait_ms: Option<f64>,
    /// Requests a second at the knee.
    pub knee_per_s: f64,
    /// Sessions at once there, at this run's time to the last token.
    pub knee_sessions: f64,
    /// What the comparison says.
    pub reading: Reading,
}

/// One stage as theory sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// Workers, or seats.
    pub servers: u32,
    /// Mean service, ms.
    pub service_ms: f64,
    /// Its squared coefficient of variation.
    pub service_scv: f64,
    /// Offered work over capacity.
    pub utilisation: f64,
    /// Mean wait in one common queue (Allen–Cunneen), ms; absent where the utilisation is not below 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_wait_ms: Option<f64>,
    /// Bound of the mean wait where each request goes to a server at random (Kingman), ms; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_wait_bound_ms: Option<f64>,
}

/// What measured and predicted wait say together. A wait counts from half the TTFT alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Hardly anybody waits, and theory expects none to.
    NoWait,
    /// Right within a factor of two.
    Explained,
    /// Longer than predicted.
    Longer,
    /// Shorter than predicted.
    Shorter,
    /// A stage is full, or would be if no two prompts shared a pass, and yet hardly anybody waits.
    KeepsUp,
    /// A stage is full and requests wait: the model has no mean wait to offer.
    Full,
}

impl Reading {
    /// Every reading.
    pub const ALL: [Self; 6] = [
        Self::NoWait,
        Self::Explained,
        Self::Longer,
        Self::Shorter,
        Self::KeepsUp,
        Self::Full,
    ];

    fn of(wait_ms: f64, predicted_ms: Option<f64>, alone_ms: f64) -> Self {
        let counts = |wait_ms: f64| wait_ms > WAITS * alone_ms;
        let Some(predicted_ms) = predicted_ms else {
            return match counts(wait_ms) {
                true => Self::Full,
                false => Self::KeepsUp,
            };
        };
        if !counts(wait_ms) && !counts(predicted_ms) {
            Self::NoWait
        } else if wait_ms > RIGHT * predicted_ms {
            Self::Longer
        } else if RIGHT * wait_ms < predicted_ms {
            Self::Shorter
        } else {
            Self::Explained
        }
    }

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NoWait => "hardly any wait, and none expected",
            Self::Explained => "explained by the queue, within a factor of 2",
            Self::Longer => "longer than the queue explains",
            Self::Shorter => "shorter than the queue expects",
            Self::KeepsUp => "full by the model, and yet hardly any wait",
            Self::Full => "full: an open queue has no mean wait, a closed loop waits for itself",
        }
    }
}

impl Queueing {
    /// Of a run. Absent where there is nothing to measure: fewer than two requests that got a token, all at one
    /// instant, or pass times that are not known.
    pub(crate) fn of(
        record: &RunRecord,
        engine: &Engine,
        topology: Topology,
        settings: &Settings,
    ) -> Option<Self> {
        let fleet = FleetShape::new(engine, topology, settings);
        let measured = record.requests.get(settings.warm_up..).unwrap_or_default();
        let served: Vec<(&RequestRecord, Alone)> = measured
            .iter()
            .filter(|request| request.first_token_ms.is_some())
            .filter_map(|request| Some((request, fleet.alone(request)?)))
            .collect();
        let arrivals: Vec<f64> = served
            .iter()
            .map(|(request, _)| request.arrival_ms)
            .collect();
        let gaps: Vec<f64> = arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let gaps = Moments::of(&gaps)?;
        let services: Vec<f64> = served.iter().map(|(_, alone)| alone.prefill_ms).collect();
        let residences: Vec<f64> = served
            .iter()
            .filter_map(|(request, _)| Some(request.last_token_ms? - request.first_token_ms?))
            .collect();
        let rate = MS_PER_S / gaps.mean;
        let residence = Moments::of(&residences);
        let prefill = Stage::new(fleet.prefill_workers, Moments::of(&services)?)?;
        let seats = fleet
            .seats
            .zip(residence)
            .and_then(|(seats, residence)| Stage::new(seats, residence));
        let count = served.len() as f64;
        let alone_ttft_ms = served.iter().map(|(_, alone)| alone.ttft_ms()).sum::<f64>() / count;
        let ttft_ms = served.iter().filter_map(|(request, _)| request.ttft_ms());
        let wait_ms = ttft_ms.sum::<f64>() / count - alone_ttft_ms;
        let stages: Vec<Stage> = std::iter::once(prefill).chain(seats).collect();
        let predicted_wait_ms = wait(&stages, rate);
        let knee_per_s = knee(&stages, (KNEE - 1.0) * alone_ttft_ms);
        let to_last_ms = residence.map_or(0.0, |it| it.mean);
        Some(Self {
            requests: served.len() as u64,
            arrivals_per_s: rate,
            arrival_scv: gaps.scv,
            alone_ttft_ms,
            wait_ms,
            prefill: prefill.at(rate)?,
            seats: seats.and_then(|seats| seats.at(rate)),
            predicted_wait_ms,
            knee_per_s,
            knee_sessions: knee_per_s * (KNEE * alone_ttft_ms + to_last_ms) / MS_PER_S,
            reading: Reading::of(wait_ms, predicted_wait_ms, alone_ttft_ms),
        })
    }
}

/// Times of a request alone, ms.
struct Alone {
    prefill_ms: f64,
    /// From there to the first token.
    handed_over_ms: f64,
}

impl Alone {
    fn ttft_ms(&self) -> f64 {
        self.prefill_ms + self.handed_over_ms
    }
}

/// What of a fleet theory needs to know.
struct FleetShape<'a> {
    engine: &'a Engine,
    slowdowns: &'a [f64],
    prefill_role: WorkerType,
    /// Ranks that compute prompts.
    prefill_workers: usize,
    /// Sequences that all ranks generate at once.
    seats: Option<usize>,
}

impl<'a> FleetShape<'a> {
    fn new(engine: &'a Engine, topology: Topology, settings: &'a Settings) -> Self {
        let ranks = engine.ranks() as usize;
        let (prefill_role, prefill, decode_role, decode) = match topology {
            Topology::Aggregated { workers } => {
                let role = WorkerType::Aggregated;
                (role, workers, role, workers)
            }
            Topology::Disaggregated { prefill, decode } => {
                (WorkerType::Prefill, prefill, WorkerType::Decode, decode)
            }
        };
        let seats = engine.seats(decode_role);
        Self {
            engine,
            slowdowns: &settings.slowdowns,
            prefill_role,
            prefill_workers: prefill * ranks,
            seats: seats.map(|seats| seats.saturating_mul(decode * ranks)),
        }
    }

    /// Times of the request with what it found in the cache; absent when no worker took it up.
    fn alone(&self, request: &RequestRecord) -> Option<Alone> {
        let prompt = request.prompt_tokens;
        let uncached = prompt.saturating_sub(request.reused_tokens?);
        let slowdown = self.slowdowns.get(request.prefill_worker?).unwrap_or(&1.0);
        let computed_ms = self
            .engine
            .prefill_alone_ms(self.prefill_role, uncached as usize)?;
        let handed_over_ms = match self.prefill_role {
            WorkerType::Prefill => self.engine.handed_over_alone_ms(prompt as usize)?,
            _ => 0.0,
        };
        Some(Alone {
            prefill_ms: computed_ms * slowdown,
            handed_over_ms,
        })
    }
}

/// Mean and squared coefficient of variation.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moments {
    mean: f64,
    scv: f64,
}

impl Moments {
    /// Absent without values or where their mean is not above 0.
    fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (mean > 0.0).then_some(Self {
            mean,
            scv: squares / count / (mean * mean),
        })
    }
}

/// Equal servers and what they do.
#[derive(Debug, Clone, Copy)]
struct Stage {
    station: Station,
    servers: u32,
    service: Moments,
}

impl Stage {
    /// Absent outside of what the formulas are meant for.
    fn new(servers: usize, service: Moments) -> Option<Self> {
        let servers = u32::try_from(servers).ok()?;
        let station = Station::new(StationConfig {
            workers: servers,
            service_mean: Millis::new(service.mean),
            service_scv: service.scv,
            arrival_scv: 1.0,
        });
        Some(Self {
            station: station.ok()?,
            servers,
            service,
        })
    }

    fn at(&self, rate: f64) -> Option<Expected> {
        let prediction = self.station.predict(rate).ok()?;
        Some(Expected {
            servers: self.servers,
            service_ms: self.service.mean,
            service_scv: self.service.scv,
            utilisation: prediction.utilisation,
            mean_wait_ms: prediction.mean_wait.ok().map(Millis::get),
            random_wait_bound_ms: prediction.random_wait_bound.ok().map(Millis::get),
        })
    }
}

/// Mean wait over all stages at this rate; absent where one is full.
fn wait(stages: &[Stage], rate: f64) -> Option<f64> {
    stages
        .iter()
        .map(|stage| {
            let expected = stage.at(rate)?;
            expected
                .mean_wait_ms
                .filter(|_| expected.utilisation < FULL)
        })
        .sum()
}

/// The rate up to which requests wait at most `wait_ms` in the mean and no stage is full.
fn knee(stages: &[Stage], wait_ms: f64) -> f64 {
    let capacities = stages.iter().map(|stage| stage.station.capacity());
    let (mut below, mut above) = (0.0, capacities.fold(f64::MAX, f64::min));
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(below, above);
        if wait(stages, middle).is_some_and(|wait| wait <= wait_ms) {
            below = middle;
        } else {
            above = middle;
        }
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::policies::{Catalog, Policy};
    use crate::run::Experiment;
    use crate::workloads::{Generator, OfferedLoad, Scale};

    /// Twenty of the paper's requests, with `sessions` at once.
    fn queueing(
        engine: &str,
        topology: &str,
        sessions: usize,
        settings: Settings,
    ) -> Option<Queueing> {
        let catalog = Catalog::default();
        let scale = Scale {
            requests: 20,
            load: OfferedLoad::Concurrency(sessions),
            ..Generator::Paper.default_scale()
        };
        let experiment = Experiment {
            settings,
            ..Experiment::new(
                Policy::named("default", &catalog).unwrap(),
                Arc::new(Generator::Paper.generate(&scale).unwrap()),
                Engine::load(engine).unwrap(),
                topology.parse().unwrap(),
                1,
            )
        };
        let run = experiment.run(&catalog).unwrap();
        let Experiment {
            engine,
            topology,
            settings,
            ..
        } = &experiment;
        Queueing::of(&run.record, engine, *topology, settings)
    }

    fn assert_close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-3, "{value}, not {expected}");
    }

    #[test]
    fn one_session_waits_for_nobody_and_takes_the_time_of_its_passes() {
        // A pass of 20 ms; behind it, in a disaggregated fleet, a step of 10 ms.
        for (topology, alone_ms) in [("2", 20.0), ("1P2D", 30.0)] {
            let queueing = queueing("fixed", topology, 1, Settings::default()).unwrap();
            assert_close(queueing.alone_ttft_ms, alone_ms);
            assert_close(queueing.wait_ms, 0.0);
            assert_eq!(queueing.reading, Reading::NoWait);
            // 256 tokens take 255 steps of 10 ms; the next session begins at once.
            assert_close(queueing.arrivals_per_s, 1e3 / (alone_ms + 2_550.0));
            assert_close(queueing.arrival_scv, 0.0);
        }
    }

    #[test]
    fn the_times_alone_are_those_of_the_simulated_engines_on_a_table_too() {
        let settings = Settings {
            slowdowns: vec![2.0],
            warm_up: 5,
            ..Settings::default()
        };
        for engine in ["b200-70b", "b200-70b-narrow"] {
            let queueing = queueing(engine, "1P2D", 1, settings.clone()).unwrap();
            assert_eq!(queueing.requests, 15);
            assert_close(queueing.wait_ms, 0.0);
        }
    }

    #[test]
    fn servers_are_workers_and_their_seats() {
        let queueing = queueing("fixed", "2P3D", 8, Settings::default()).unwrap();
        assert_eq!(queueing.prefill.servers, 2);
        assert_eq!(queueing.seats.unwrap().servers, 3 * 64);
    }

    #[test]
    fn an_engine_whose_passes_are_in_no_table_has_no_prediction() {
        assert_eq!(queueing("polynomial", "2", 1, Settings::default()), None);
    }

    #[test]
    fn the_variability_of_constants_is_0_and_that_of_one_in_two_is_1() {
        assert_eq!(
            Moments::of(&[3.0, 3.0]),
            Some(Moments {
                mean: 3.0,
                scv: 0.0
            })
        );
        assert_eq!(
            Moments::of(&[0.0, 2.0]),
            Some(Moments {
                mean: 1.0,
                scv: 1.0
            })
        );
        assert_eq!(Moments::of(&[]), None);
        assert_eq!(Moments::of(&[0.0]), None);
    }

    #[test]
    fn the_knee_is_where_the_stages_together_wait_as_long_as_asked_for() {
        let constant = |mean| Moments { mean, scv: 0.0 };
        let prefill = Stage::new(1, constant(20.0)).unwrap();
        // 20·ρ / (2(1 − ρ)) = 40 at ρ = 0.8, of 50 a second.
        assert_close(knee(&[prefill], 40.0), 40.0);
        // The same once more: each stage waits half of it, at ρ = 2/3.
        assert_close(knee(&[prefill, prefill], 40.0), 100.0 / 3.0);
    }

    #[test]
    fn a_reading_compares_the_waits_that_count() {
        // Alone it takes 20 ms, so waits count from 10 ms.
        for (wait_ms, predicted_ms, reading) in [
            (9.0, Some(1.0), Reading::NoWait),
            (30.0, Some(20.0), Reading::Explained),
            (30.0, Some(14.0), Reading::Longer),
            (9.0, Some(20.0), Reading::Shorter),
            (9.0, None, Reading::KeepsUp),
            (11.0, None, Reading::Full),
        ] {
            assert_eq!(Reading::of(wait_ms, predicted_ms, 20.0), reading);
        }
    }
}
