// SPDX-License-Identifier: Apache-2.0

//! The wait that queueing theory expects, without any router: a baseline for the measured one.
//!
//! # Idea
//!
//! Two ends of what a router can do. In one queue before all workers (G/G/k) no worker idles while a
//! request waits; the Allen–Cunneen formula takes the wait of the Markovian queue, Erlang C, and scales
//! it by how irregular arrivals and services are. Irregularity is a squared coefficient of variation
//! (SCV), variance over squared mean: 0 for constant, 1 for exponential. At the other end each request
//! goes to a worker at random, and every worker has its own queue (G/G/1); Kingman's bound is never
//! below the wait of that. A router that stays below the first number does what the formula does not
//! know, such as finding more of the cache or letting short requests pass; one above the second does
//! worse than dice.
//!
//! The knee is the rate at which the mean time in the system is a given multiple of the mean service.
//!
//! # Defaults
//!
//! The knee is asked at 3: then a request waits twice as long as it is served. For exponential service
//! on one worker that is two thirds of its capacity. Up to 4,096 workers: Erlang B is computed by its
//! recursion, whose terms all lie between 0 and 1, so nothing overflows.
//!
//! Allen–Cunneen is exact for M/M/k and M/G/1 and an approximation otherwise, good where arrivals are
//! near Poisson. Kingman's bound is close at high load and loose at low load, where it grows as
//! arrivals get rarer.
//!
//! # Source
//!
//! Allen, *Probability, Statistics, and Queueing Theory*, 1990; Kingman, "Some inequalities for the
//! queue GI/G/1", 1962. Picking a renewal stream with probability 1/k makes its SCV 1 + (c² − 1)/k.

use regime_core::Millis;
use thiserror::Error;

/// Most workers of a [`Station`].
const MAX_WORKERS: u32 = 4_096;
/// Longest mean service: an hour.
const MAX_SERVICE_MS: f64 = 3_600_000.0;
/// Largest squared coefficient of variation.
const MAX_SCV: f64 = 1e6;
/// Highest arrival rate per second.
const MAX_RATE: f64 = 1e9;
/// Largest multiple of the mean service at a knee.
const MAX_MULTIPLE: f64 = 1e6;

/// A group of equal workers and the requests they get.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StationConfig {
    /// Workers, k. 1 to 4,096.
    pub workers: u32,
    /// Mean service of one request. Above 0, up to one hour.
    pub service_mean: Millis,
    /// Squared coefficient of variation of the service. 0 to 10⁶; 0 is constant, 1 exponential.
    pub service_scv: f64,
    /// Squared coefficient of variation of the time between arrivals. 0 to 10⁶; 1 is Poisson.
    pub arrival_scv: f64,
}

/// An input outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum QueueError {
    /// Nobody serves, or more than the recursion is meant for.
    #[error("workers is {0}; allowed: 1 to {MAX_WORKERS}")]
    Workers(u32),
    /// A service that takes no time.
    #[error("service_mean is {} ms; allowed: above 0, up to {MAX_SERVICE_MS} ms", .0.get())]
    ServiceMean(Millis),
    /// Not a squared coefficient of variation.
    #[error("service_scv is {0}; allowed: 0 to {MAX_SCV}")]
    ServiceScv(f64),
    /// Not a squared coefficient of variation.
    #[error("arrival_scv is {0}; allowed: 0 to {MAX_SCV}")]
    ArrivalScv(f64),
    /// Not a rate.
    #[error("arrivals per second are {0}; allowed: 0 to {MAX_RATE}")]
    Rate(f64),
    /// A knee where nobody waits.
    #[error("multiple is {0}; allowed: above 1, up to {MAX_MULTIPLE}")]
    Multiple(f64),
}

/// Why a queue has no mean wait.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum NoWait {
    /// More work arrives than can be served: the queue grows for ever.
    #[error("utilisation is {utilisation:.3}; from 1 on the queue has no mean wait")]
    Unstable {
        /// Offered work over capacity.
        utilisation: f64,
    },
    /// The bound needs a time between arrivals.
    #[error("nothing arrives")]
    NoArrivals,
}

/// What theory expects at one arrival rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Offered work over capacity, ρ = λ·s/k; above 1 when overloaded.
    pub utilisation: f64,
    /// Probability that a request has to wait with one common queue (Erlang C); 1 when overloaded.
    pub wait_probability: f64,
    /// Mean wait with one common queue (Allen–Cunneen).
    pub mean_wait: Result<Millis, NoWait>,
    /// Upper bound of the mean wait when workers are picked at random (Kingman).
    pub random_wait_bound: Result<Millis, NoWait>,
}

/// A validated [`StationConfig`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Station {
    config: StationConfig,
}

impl Station {
    /// The multiple of the mean service at which a knee is usually asked for.
    pub const KNEE_MULTIPLE: f64 = 3.0;

    /// Check the inputs.
    ///
    /// # Errors
    /// Names the first input outside its range.
    pub fn new(config: StationConfig) -> Result<Self, QueueError> {
        let scv = 0.0..=MAX_SCV;
        let service = config.service_mean.get();
        if !(1..=MAX_WORKERS).contains(&config.workers) {
            Err(QueueError::Workers(config.workers))
        } else if !(service > 0.0 && service <= MAX_SERVICE_MS) {
            Err(QueueError::ServiceMean(config.service_mean))
        } else if !scv.contains(&config.service_scv) {
            Err(QueueError::ServiceScv(config.service_scv))
        } else if !scv.contains(&config.arrival_scv) {
            Err(QueueError::ArrivalScv(config.arrival_scv))
        } else {
            Ok(Self { config })
        }
    }

    /// Requests per second at which all workers are always busy, k/s.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        self.workers() * 1e3 / self.config.service_mean.get()
    }

    /// What to expect at `rate` arrivals per second.
    ///
    /// # Errors
    /// [`QueueError::Rate`].
    pub fn predict(&self, rate: f64) -> Result<Prediction, QueueError> {
        if !(0.0..=MAX_RATE).contains(&rate) {
            return Err(QueueError::Rate(rate));
        }
        let utilisation = rate / self.capacity();
        if utilisation >= 1.0 {
            let unstable = NoWait::Unstable { utilisation };
            return Ok(Prediction {
                utilisation,
                wait_probability: 1.0,
                mean_wait: Err(unstable),
                random_wait_bound: Err(unstable),
            });
        }
        Ok(Prediction {
            utilisation,
            wait_probability: self.erlang_c(utilisation),
            mean_wait: Ok(self.allen_cunneen(utilisation)),
            random_wait_bound: self.kingman(utilisation),
        })
    }

    /// Requests per second at which the mean of wait and service together is `multiple` times the mean
    /// service, with one common queue; the capacity when nobody waits below it.
    ///
    /// # Errors
    /// [`QueueError::Multiple`].
    pub fn knee(&self, multiple: f64) -> Result<f64, QueueError> {
        if !(multiple > 1.0 && multiple <= MAX_MULTIPLE) {
            return Err(QueueError::Multiple(multiple));
        }
        let wait = self.config.service_mean * (multiple - 1.0);
        let (mut below, mut above) = (0.0, 1.0);
        loop {
            let middle = f64::midpoint(below, above);
            if middle <= below || middle >= above {
                return Ok(below * self.capacity());
            }
            if self.allen_cunneen(middle) <= wait {
                below = middle;
            } else {
                above = middle;
            }
        }
    }

    /// Mean wait in one queue before all workers; needs ρ < 1.
    fn allen_cunneen(&self, utilisation: f64) -> Millis {
        let irregularity = f64::midpoint(self.config.arrival_scv, self.config.service_scv);
        let markovian = self.erlang_c(utilisation) / (self.workers() * (1.0 - utilisation));
        self.config.service_mean * (markovian * irregularity)
    }

    /// Bound of the mean wait in the queue of one worker, which gets each arrival with probability 1/k;
    /// needs ρ < 1.
    fn kingman(&self, utilisation: f64) -> Result<Millis, NoWait> {
        if utilisation <= 0.0 {
            return Err(NoWait::NoArrivals);
        }
        let arrival_scv = 1.0 + (self.config.arrival_scv - 1.0) / self.workers();
        let services = (arrival_scv / utilisation + utilisation * self.config.service_scv)
            / (2.0 * (1.0 - utilisation));
        Ok(self.config.service_mean * services)
    }

    /// Probability that all k workers are busy at an arrival, by way of Erlang B; needs ρ < 1.
    fn erlang_c(&self, utilisation: f64) -> f64 {
        let offered = utilisation * self.workers();
        let blocked = (1..=self.config.workers).fold(1.0, |blocked, workers| {
            offered * blocked / (f64::from(workers) + offered * blocked)
        });
        blocked / (1.0 - utilisation * (1.0 - blocked))
    }

    fn workers(&self) -> f64 {
        f64::from(self.config.workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Workers with a mean service of 100 ms.
    fn station(workers: u32, service_scv: f64, arrival_scv: f64) -> Station {
        Station::new(StationConfig {
            workers,
            service_mean: Millis::new(100.0),
            service_scv,
            arrival_scv,
        })
        .unwrap()
    }

    fn wait(station: Station, rate: f64) -> f64 {
        station.predict(rate).unwrap().mean_wait.unwrap().get()
    }

    fn assert_close(value: f64, expected: f64) {
        assert!(
            (value - expected).abs() <= 1e-9 * expected,
            "{value}, not {expected}"
        );
    }

    #[test]
    fn one_worker_with_exponential_service_waits_rho_over_mu_minus_lambda() {
        // 0.5 / (10 − 5) s and 0.8 / (10 − 8) s.
        assert_close(wait(station(1, 1.0, 1.0), 5.0), 100.0);
        assert_close(wait(station(1, 1.0, 1.0), 8.0), 400.0);
    }

    #[test]
    fn constant_service_halves_the_wait() {
        assert_close(wait(station(1, 0.0, 1.0), 5.0), 50.0);
    }

    #[test]
    fn two_workers_wait_as_the_closed_form_says() {
        // ρ = 1/2: C = 2ρ² / (1 + ρ) = 1/3 and W = s·ρ² / (1 − ρ²) = 100 / 3.
        let prediction = station(2, 1.0, 1.0).predict(10.0).unwrap();
        assert_close(prediction.utilisation, 0.5);
        assert_close(prediction.wait_probability, 1.0 / 3.0);
        assert_close(prediction.mean_wait.unwrap().get(), 100.0 / 3.0);
    }

    #[test]
    fn four_thousand_workers_do_not_overflow() {
        let station = station(4_096, 1.0, 1.0);
        assert_eq!(station.predict(400.0).unwrap().wait_probability, 0.0);
        // Near the limit of heavy traffic, where nearly every request waits s / (k·(1 − ρ)).
        let rate = station.capacity() * (1.0 - 1e-6);
        assert!((wait(station, rate) / (100.0 / (4_096.0 * 1e-6)) - 1.0).abs() < 0.01);
    }

    #[test]
    fn an_overloaded_queue_has_no_mean_wait_and_says_so() {
        let prediction = station(2, 1.0, 1.0).predict(25.0).unwrap();
        let unstable = NoWait::Unstable { utilisation: 1.25 };
        assert_eq!(prediction.mean_wait, Err(unstable));
        assert_eq!(prediction.random_wait_bound, Err(unstable));
        assert_eq!(
            (prediction.utilisation, prediction.wait_probability),
            (1.25, 1.0)
        );
        assert_eq!(
            unstable.to_string(),
            "utilisation is 1.250; from 1 on the queue has no mean wait"
        );
        let at_capacity = station(1, 1.0, 1.0).predict(10.0).unwrap();
        assert!(at_capacity.mean_wait.is_err());
    }

    #[test]
    fn without_arrivals_nobody_waits_and_the_bound_is_absent() {
        let prediction = station(2, 1.0, 1.0).predict(0.0).unwrap();
        assert_eq!(prediction.mean_wait, Ok(Millis::ZERO));
        assert_eq!(prediction.random_wait_bound, Err(NoWait::NoArrivals));
    }

    #[test]
    fn the_bound_of_kingman_is_the_textbook_one() {
        // λ(σa² + σs²) / (2(1 − ρ)) = 5·(0.2² + 0.1²) / (2·0.5) s.
        let bound = |station: Station, rate| station.predict(rate).unwrap().random_wait_bound;
        assert_close(bound(station(1, 1.0, 1.0), 5.0).unwrap().get(), 250.0);
        // Regular arrivals, each to one of two workers at random: SCV 1/2 at 5 a second each.
        assert_close(bound(station(2, 1.0, 0.0), 10.0).unwrap().get(), 150.0);
    }

    #[test]
    fn the_knee_of_one_exponential_worker_is_two_thirds_of_its_capacity() {
        // Wait of twice the service: ρ / (1 − ρ) = 2.
        let knee = station(1, 1.0, 1.0).knee(Station::KNEE_MULTIPLE).unwrap();
        assert_close(knee, 10.0 * 2.0 / 3.0);
    }

    #[test]
    fn the_knee_is_the_capacity_when_nobody_waits_below_it() {
        let station = station(3, 0.0, 0.0);
        assert_close(station.knee(3.0).unwrap(), station.capacity());
        assert_close(station.capacity(), 30.0);
    }

    #[test]
    fn inputs_outside_their_range_are_named() {
        let good = StationConfig {
            workers: 1,
            service_mean: Millis::new(100.0),
            service_scv: 1.0,
            arrival_scv: 1.0,
        };
        let error = |config| Station::new(config).unwrap_err().to_string();
        for workers in [0, 4_097] {
            let message = format!("workers is {workers}; allowed: 1 to 4096");
            assert_eq!(error(StationConfig { workers, ..good }), message);
        }
        let service_mean = Millis::ZERO;
        assert_eq!(
            error(StationConfig {
                service_mean,
                ..good
            }),
            "service_mean is 0 ms; allowed: above 0, up to 3600000 ms"
        );
        let service_scv = f64::NAN;
        assert_eq!(
            error(StationConfig {
                service_scv,
                ..good
            }),
            "service_scv is NaN; allowed: 0 to 1000000"
        );
        let arrival_scv = -0.5;
        assert_eq!(
            error(StationConfig {
                arrival_scv,
                ..good
            }),
            "arrival_scv is -0.5; allowed: 0 to 1000000"
        );
        let station = Station::new(good).unwrap();
        assert_eq!(station.predict(-1.0), Err(QueueError::Rate(-1.0)));
        assert!(station.predict(f64::NAN).is_err());
        assert_eq!(station.knee(1.0), Err(QueueError::Multiple(1.0)));
        assert!(station.knee(f64::NAN).is_err());
    }

    /// Any station, and a utilisation below 1.
    fn stable() -> impl Strategy<Value = (StationConfig, f64)> {
        let config = (1_u32..=4_096, 0.01..10_000.0, 0.0..20.0, 0.0..20.0).prop_map(
            |(workers, service, service_scv, arrival_scv)| StationConfig {
                workers,
                service_mean: Millis::new(service),
                service_scv,
                arrival_scv,
            },
        );
        (config, 0.001..0.999)
    }

    proptest! {
        #[test]
        fn the_wait_rises_with_the_rate_and_with_irregularity(
            (config, utilisation) in stable(),
            more in 0.0..1.0,
        ) {
            let station = Station::new(config).unwrap();
            let rate = utilisation * station.capacity();
            let higher = rate + more * (0.9995 * station.capacity() - rate);
            let (low, high) = (station.predict(rate).unwrap(), station.predict(higher).unwrap());
            prop_assert!((0.0..=1.0).contains(&low.wait_probability));
            prop_assert!(low.wait_probability <= high.wait_probability * (1.0 + 1e-12));
            let tolerance = 1.0 + 1e-9;
            prop_assert!(low.mean_wait.unwrap() <= high.mean_wait.unwrap() * tolerance);
            let rougher = StationConfig { service_scv: config.service_scv + more, ..config };
            let rougher = Station::new(rougher).unwrap().predict(rate).unwrap();
            prop_assert!(low.mean_wait.unwrap() <= rougher.mean_wait.unwrap());
            prop_assert!(low.random_wait_bound.unwrap() <= rougher.random_wait_bound.unwrap());
        }

        #[test]
        fn a_worker_more_shortens_the_wait((config, utilisation) in stable()) {
            let station = Station::new(config).unwrap();
            let workers = config.workers.min(4_095) + 1;
            let larger = Station::new(StationConfig { workers, ..config }).unwrap();
            let rate = utilisation * station.capacity();
            prop_assert!(wait(larger, rate) <= wait(station, rate) * (1.0 + 1e-9));
        }

        #[test]
        fn the_bound_is_never_below_the_exact_wait_of_poisson_arrivals_at_one_worker(
            (config, utilisation) in stable(),
        ) {
            let config = StationConfig { workers: 1, arrival_scv: 1.0, ..config };
            let station = Station::new(config).unwrap();
            let prediction = station.predict(utilisation * station.capacity()).unwrap();
            prop_assert!(prediction.random_wait_bound.unwrap() >= prediction.mean_wait.unwrap());
        }

        #[test]
        fn the_wait_at_the_knee_is_the_one_asked_for(
            (config, _) in stable(),
            multiple in 1.01..20.0,
        ) {
            let config = StationConfig { arrival_scv: config.arrival_scv + 0.1, ..config };
            let station = Station::new(config).unwrap();
            let knee = station.knee(multiple).unwrap();
            let asked = config.service_mean.get() * (multiple - 1.0);
            prop_assert!((wait(station, knee) - asked).abs() <= 1e-6 * asked);
        }
    }
}
