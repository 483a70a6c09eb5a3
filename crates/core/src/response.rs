// SPDX-License-Identifier: Apache-2.0

//! How latency answers to load: a forgetting quadratic fit, its elasticity and its curvature.
//!
//! Each request is a point: the load that it met and the latency that it got. Least squares put
//! f(n) = c₀ + c₁·n + c₂·n² through the points of the recent past, each weighted by exp(−age/τ). At the mean
//! load of these points the fit gives two numbers without a unit:
//!
//! - elasticity n·f′/f, the position on the curve: by how many percent latency grows for one percent more
//!   load. Where n counts the requests that wait and f is their wait, throughput n/f has its best ratio to
//!   latency at ½ (Kleinrock's power), and grows no further at 1: that is the knee, and that is
//!   saturation;
//! - curvature n²·f″/f: zero where latency is affine, above it where latency grows faster than load.
//!
//! The sums are central moments of the load over its mean, so that the fit solves in closed form in an
//! orthogonal basis, and is as good for loads near 1 as for loads near 10⁶. No slope exists where all
//! points met the same load: the fit is absent while loads scatter by less than a tenth of their mean.
//!
//! Source: position and curvature as signals of the regime are Proposition 4(iii) of the paper; that power is
//! best at elasticity ½ is Kleinrock, "Power and deterministic rules of thumb" (1979).

use std::time::Duration;

use crate::{Millis, Timestamp};

/// Least variance of the load over its squared mean: a scatter of a tenth.
const LEAST_SPREAD: f64 = 0.01;

/// Points of latency over load, forgotten with a time constant. Nine numbers, whatever it has seen.
#[derive(Debug, Clone)]
pub struct LoadResponse {
    time_constant: Duration,
    newest: Timestamp,
    /// Σ w·nᵏ for k of 0 to 4.
    loads: [f64; 5],
    /// Σ w·y·nᵏ for k of 0 to 2.
    latencies: [f64; 3],
}

/// What a [`LoadResponse`] says at the mean load of its points. All values are finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResponseFit {
    /// The mean load, in the caller's unit. Above 0.
    pub load: f64,
    /// n·f′/f.
    pub elasticity: f64,
    /// n²·f″/f.
    pub curvature: f64,
    /// Weight of the points: their number, less what is forgotten.
    pub weight: f64,
}

impl LoadResponse {
    /// No points yet; they will be forgotten with `time_constant`, which is raised to at least 1 µs.
    #[must_use]
    pub fn new(time_constant: Duration) -> Self {
        Self {
            time_constant: time_constant.max(Duration::from_micros(1)),
            newest: Timestamp::ORIGIN,
            loads: [0.0; 5],
            latencies: [0.0; 3],
        }
    }

    /// Take in a request that met `load` and had `latency`, in any unit, seen at `at`. Ignored unless both
    /// are above 0 and at most 1e12. One that comes late counts as if it were new.
    pub fn record(&mut self, at: Timestamp, load: f64, latency: f64) {
        let usable = |value: f64| value > 0.0 && value <= Millis::LIMIT;
        if !usable(load) || !usable(latency) {
            return;
        }
        let age = at.since(self.newest).as_secs_f64() / self.time_constant.as_secs_f64();
        let kept = (-age).exp();
        self.newest = self.newest.max(at);
        let mut power = 1.0;
        for k in 0..self.loads.len() {
            self.loads[k] = self.loads[k] * kept + power;
            if let Some(sum) = self.latencies.get_mut(k) {
                *sum = *sum * kept + power * latency;
            }
            power *= load;
        }
    }

    /// Time of the newest point; the origin of the clock before the first.
    #[must_use]
    pub const fn newest(&self) -> Timestamp {
        self.newest
    }

    /// The fit; absent without points, while their loads hardly differ, and where the fitted latency is not
    /// positive.
    #[must_use]
    pub fn fit(&self) -> Option<ResponseFit> {
        let [weight, sum, ..] = self.loads;
        let load = sum / weight;
        // Moments of z = n/load around 1, from those around 0.
        let z = |k: usize| self.loads[k] / weight / load.powi(k as i32);
        let variance = z(2) - 1.0;
        // Not a number without points.
        if variance.is_nan() || variance < LEAST_SPREAD {
            return None;
        }
        let third = z(3) - 3.0 * z(2) + 2.0;
        let fourth = z(4) - 4.0 * z(3) + 6.0 * z(2) - 3.0;
        let y = |k: usize| self.latencies[k] / weight / load.powi(k as i32);
        let mean = y(0);
        let with_x = y(1) - mean;
        let with_x2 = y(2) - 2.0 * y(1) + mean;
        // Orthogonal to 1 and to x = z − 1: x² − skew·x − variance.
        let skew = third / variance;
        let norm = fourth - skew * third - variance * variance;
        let straight = with_x / variance;
        // Two different loads have no curvature to tell.
        let bent = if norm > LEAST_SPREAD * variance * variance {
            (with_x2 - skew * with_x - variance * mean) / norm
        } else {
            0.0
        };
        // At x = 0.
        let value = mean - bent * variance;
        let fit = ResponseFit {
            load,
            elasticity: (straight - bent * skew) / value,
            curvature: 2.0 * bent / value,
            weight,
        };
        let sound = value > 0.0 && fit.elasticity.is_finite() && fit.curvature.is_finite();
        sound.then_some(fit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A fit to `latency` at these loads, all at one time.
    fn fitted(loads: &[f64], latency: impl Fn(f64) -> f64) -> Option<ResponseFit> {
        let mut response = LoadResponse::new(SECOND);
        for &load in loads {
            response.record(Timestamp::from_secs(1), load, latency(load));
        }
        response.fit()
    }

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 1e-6 * (1.0 + expected.abs())
    }

    #[test]
    fn an_affine_latency_has_no_curvature_and_the_elasticity_of_its_slope() {
        // f(n) = 10 + 5n at the mean load 2: 2·5/20.
        let fit = fitted(&[1.0, 2.0, 3.0], |n| 10.0 + 5.0 * n).unwrap();
        assert_eq!(fit.load, 2.0);
        assert!(near(fit.elasticity, 0.5) && near(fit.curvature, 0.0));
    }

    #[test]
    fn a_quadratic_latency_has_its_own_curvature() {
        // f(n) = 3 + n² at the mean load 3: f = 12, f′ = 6, f″ = 2; 3·6/12 and 9·2/12.
        let fit = fitted(&[1.0, 2.0, 4.0, 5.0], |n| 3.0 + n * n).unwrap();
        assert!(near(fit.elasticity, 1.5), "{fit:?}");
        assert!(near(fit.curvature, 1.5), "{fit:?}");
    }

    #[test]
    fn two_loads_have_a_slope_and_no_curvature() {
        // From (1, 10) to (3, 30): f(2) = 20, f′ = 10.
        let fit = fitted(&[1.0, 3.0], |n| 10.0 * n).unwrap();
        assert!(near(fit.elasticity, 1.0) && fit.curvature == 0.0, "{fit:?}");
    }

    #[test]
    fn loads_that_hardly_differ_give_no_fit() {
        assert_eq!(fitted(&[], |n| n), None);
        assert_eq!(fitted(&[4.0, 4.0, 4.0], |n| n), None);
        assert_eq!(fitted(&[100.0, 105.0], |n| n), None);
    }

    #[test]
    fn the_past_is_forgotten_with_the_time_constant() {
        let mut response = LoadResponse::new(SECOND);
        for load in [1.0, 2.0, 3.0] {
            response.record(Timestamp::ORIGIN, load, 100.0);
        }
        for load in [1.0, 2.0, 3.0] {
            response.record(Timestamp::from_secs(20), load, load);
        }
        let fit = response.fit().unwrap();
        // 3 new points, and e⁻²⁰ of the old ones.
        assert!((fit.weight - 3.0).abs() < 1e-6);
        assert!((fit.elasticity - 1.0).abs() < 1e-4, "{fit:?}");
    }

    #[test]
    fn a_point_that_is_no_number_or_not_positive_is_ignored() {
        let mut response = LoadResponse::new(SECOND);
        for (load, latency) in [
            (f64::NAN, 1.0),
            (1.0, f64::INFINITY),
            (0.0, 1.0),
            (1.0, -1.0),
        ] {
            response.record(Timestamp::from_secs(1), load, latency);
        }
        assert_eq!(response.newest(), Timestamp::ORIGIN);
        assert_eq!(response.fit(), None);
    }

    proptest! {
        #[test]
        fn a_known_quadratic_is_found_at_any_scale(
            coefficients in proptest::array::uniform3(0.1..10.0_f64),
            scale in 1e-3..1e6_f64,
            loads in proptest::collection::vec(1.0..10.0, 8..40),
        ) {
            let [c0, c1, c2] = coefficients;
            let curve = |n: f64| c0 + c1 * n / scale + c2 * (n / scale).powi(2);
            let loads: Vec<f64> = loads.iter().map(|load| load * scale).collect();
            prop_assume!(loads.iter().copied().fold(0.0, f64::max) > 2.0 * loads[0]);
            if let Some(fit) = fitted(&loads, curve) {
                let z = fit.load / scale;
                let value = c0 + c1 * z + c2 * z * z;
                prop_assert!((fit.elasticity - (c1 * z + 2.0 * c2 * z * z) / value).abs() < 1e-4);
                prop_assert!((fit.curvature - 2.0 * c2 * z * z / value).abs() < 1e-3);
            }
        }

        #[test]
        fn any_float_leaves_a_fit_of_finite_values(
            points in proptest::collection::vec((any::<u64>(), proptest::num::f64::ANY, proptest::num::f64::ANY), 0..30),
            constant_us: u64,
        ) {
            let mut response = LoadResponse::new(Duration::from_micros(constant_us));
            for (at, load, latency) in points {
                response.record(Timestamp::from_micros(at), load.abs(), latency.abs());
                if let Some(fit) = response.fit() {
                    prop_assert!(fit.load > 0.0 && fit.load.is_finite() && fit.weight.is_finite());
                    prop_assert!(fit.elasticity.is_finite() && fit.curvature.is_finite());
                }
            }
        }
    }
}
