// SPDX-License-Identifier: Apache-2.0

//! How latency answers to load: a forgetting fit, its elasticity and its curvature.
//!
//! Each request is a point: the load n that it met and the latency f that it got. Least squares put
//! ln f = c₀ + c₁·ln n + c₂·(ln n)² through the points of the recent past, each weighted by exp(−age/τ). At the
//! mean of ln n the fit gives two numbers without a unit:
//!
//! - elasticity n·f′/f, the position on the curve: by how many percent latency grows for one percent more
//!   load. It is below 1 where a fixed part dominates, 1 where latency is in proportion to load, and above
//!   1 where it grows faster;
//! - curvature n²·f″/f: 0 where latency is affine, above it where its slope grows with the load.
//!
//! Logarithms, because loads and latencies range over decades and scatter in proportion to their size: in a fit
//! to the plain values a point of 60 times the load has 60⁴ times the say, and a moment of overload would be
//! remembered for 16 τ. The sums are turned into central moments, so that the fit solves in closed form in an
//! orthogonal basis. No slope exists where all points met the same load: the fit is absent while
//! loads scatter by less than a tenth.
//!
//! Source: position and curvature as signals of the regime are Proposition 4(iii) of the paper.

use std::time::Duration;

use crate::{Millis, Timestamp};

/// Least variance of ln n: a scatter of a tenth.
const LEAST_SPREAD: f64 = 0.01;

/// Points of latency over load, forgotten with a time constant. Nine numbers, whatever it has seen.
#[derive(Debug, Clone)]
pub struct LoadResponse {
    time_constant: Duration,
    newest: Timestamp,
    /// Σ w·(ln n)ᵏ for k of 0 to 4.
    loads: [f64; 5],
    /// Σ w·ln f·(ln n)ᵏ for k of 0 to 2.
    latencies: [f64; 3],
}

/// What a [`LoadResponse`] says at the geometric mean load of its points. All values are finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResponseFit {
    /// That load, in the caller's unit. Above 0.
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
        let (load, latency) = (load.ln(), latency.ln());
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

    /// The fit; absent without points, and while their loads hardly differ.
    #[must_use]
    pub fn fit(&self) -> Option<ResponseFit> {
        let weight = self.loads[0];
        let [_, m1, m2, m3, m4] = self.loads.map(|sum| sum / weight);
        let [y0, y1, y2] = self.latencies.map(|sum| sum / weight);
        // Moments of x = ln n around its mean, from those around 0.
        let variance = m2 - m1 * m1;
        // Not a number without points.
        if variance.is_nan() || variance < LEAST_SPREAD {
            return None;
        }
        let third = m3 - 3.0 * m1 * m2 + 2.0 * m1.powi(3);
        let fourth = m4 - 4.0 * m1 * m3 + 6.0 * m1 * m1 * m2 - 3.0 * m1.powi(4);
        let with_x = y1 - m1 * y0;
        let with_x2 = y2 - 2.0 * m1 * y1 + m1 * m1 * y0;
        // Orthogonal to 1 and to x: x² − skew·x − variance.
        let skew = third / variance;
        let norm = fourth - skew * third - variance * variance;
        // Two different loads have a slope and no more to tell.
        let bent = if norm > LEAST_SPREAD * variance * variance {
            (with_x2 - skew * with_x - variance * y0) / norm
        } else {
            0.0
        };
        let elasticity = with_x / variance - bent * skew;
        let fit = ResponseFit {
            load: m1.exp(),
            elasticity,
            // Of f as a function of n, from the slope and bend of ln f over ln n.
            curvature: 2.0 * bent + elasticity * (elasticity - 1.0),
            weight,
        };
        (fit.elasticity.is_finite() && fit.curvature.is_finite()).then_some(fit)
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
    fn a_latency_in_proportion_to_the_load_has_elasticity_one_and_no_curvature() {
        let fit = fitted(&[1.0, 2.0, 4.0], |n| 5.0 * n).unwrap();
        assert!(near(fit.load, 2.0) && near(fit.elasticity, 1.0) && near(fit.curvature, 0.0));
    }

    #[test]
    fn a_square_law_has_elasticity_two_and_curvature_two() {
        // f = 3n²: n·6n/3n² and n²·6/3n².
        let fit = fitted(&[1.0, 2.0, 4.0, 5.0], |n| 3.0 * n * n).unwrap();
        assert!(
            near(fit.elasticity, 2.0) && near(fit.curvature, 2.0),
            "{fit:?}"
        );
    }

    #[test]
    fn a_latency_that_does_not_depend_on_load_has_neither() {
        let fit = fitted(&[1.0, 7.0, 30.0], |_| 40.0).unwrap();
        assert!(near(fit.elasticity, 0.0) && near(fit.curvature, 0.0));
    }

    #[test]
    fn an_affine_latency_is_nearly_straight_within_a_narrow_range() {
        // f = 10 + 5n around 2: 2·5/20, and no curvature.
        let fit = fitted(&[1.6, 1.8, 2.0, 2.2, 2.45], |n| 10.0 + 5.0 * n).unwrap();
        assert!((fit.elasticity - 0.5).abs() < 0.01, "{fit:?}");
        assert!(fit.curvature.abs() < 0.02, "{fit:?}");
    }

    #[test]
    fn two_loads_have_a_slope_and_no_bend() {
        let fit = fitted(&[1.0, 3.0], |n| 10.0 * n).unwrap();
        assert!(
            near(fit.elasticity, 1.0) && near(fit.curvature, 0.0),
            "{fit:?}"
        );
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
        fn a_known_curve_is_found_at_any_scale(
            elasticity in -1.0..3.0_f64,
            bend in -1.0..1.0_f64,
            scale in 1e-3..1e6_f64,
            factor in 1.2..3.0_f64,
        ) {
            // Loads around `scale`, so that the geometric mean is `scale`.
            let loads = [-2, -1, 0, 1, 2].map(|power| scale * factor.powi(power));
            let curve = |n: f64| {
                let x = (n / scale).ln();
                (elasticity * x + bend / 2.0 * x * x).exp()
            };
            let fit = fitted(&loads, curve).unwrap();
            prop_assert!((fit.elasticity - elasticity).abs() < 1e-4);
            let curvature = bend + elasticity * (elasticity - 1.0);
            prop_assert!((fit.curvature - curvature).abs() < 1e-3);
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
