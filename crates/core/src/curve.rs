// SPDX-License-Identifier: Apache-2.0

//! The congestion curve of one worker: predicted delay as a function of load.
//!
//! f(n) = a·n + b + d/(n_sat − n)^β. The affine part is a worker that serves its queue at a constant
//! rate; the barrier is what happens when it runs out of batch slots or KV blocks. A barrier that
//! goes to infinity would hand the router infinite costs as soon as the load passes n_sat, and Dynamo
//! fails a whole selection on one cost that is not finite. So the curve ends at the guard point
//! n_g = n_sat − δ and continues as its own tangent. Value and slope agree there, hence f stays
//! finite, convex and increasing for every n ≥ 0, and a marginal cost exists everywhere.
//!
//! There are no default coefficients: they are fitted from feedback, or given by whoever knows the
//! worker. A curve with d = 0 is plainly affine.
//!
//! Source: the routing game Γ_R of the paper; the Pigou price is f(n) + n·f′(n); the share of the
//! barrier in the slope is the curvature signal of Proposition 4(iii).

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Millis;

/// Coefficients of a [`LatencyCurve`]. The unit of load is the caller's: milliseconds of queued work
/// for prefill, resident sequences or blocks for decode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurveParameters {
    /// a, the delay that one unit of load adds far from saturation. 0 to 1e12.
    pub slope_ms_per_unit: f64,
    /// b, the delay on an idle worker. 0 to 1e12.
    pub base_ms: f64,
    /// d, the height of the barrier; 0 makes the curve affine. 0 to 1e12.
    pub barrier_ms: f64,
    /// n_sat, the load at which the worker saturates. Above 0, at most 1e12.
    pub saturation_load: f64,
    /// β, how suddenly the barrier rises. Above 0.
    pub barrier_exponent: f64,
    /// δ, how far below n_sat the curve continues as a tangent. Above 0, below n_sat.
    pub guard_load: f64,
}

/// A coefficient outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("{key} is {value}; allowed: {allowed}")]
pub struct CurveError {
    /// Name of the field in [`CurveParameters`].
    pub key: &'static str,
    /// What it was set to.
    pub value: f64,
    /// What it may be set to.
    pub allowed: &'static str,
}

/// Delay in ms against load: finite, convex and increasing on n ≥ 0. A negative or NaN load counts
/// as 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyCurve {
    parameters: CurveParameters,
}

impl LatencyCurve {
    /// A curve with these coefficients.
    ///
    /// # Errors
    /// Names the first coefficient outside its range. `guard_load` is also refused when it is so small
    /// that the barrier overflows before the guard point.
    pub fn new(parameters: CurveParameters) -> Result<Self, CurveError> {
        let p = parameters;
        let coefficient = |value: f64| (0.0..=Millis::LIMIT).contains(&value);
        check(
            "slope_ms_per_unit",
            p.slope_ms_per_unit,
            coefficient,
            "0 to 1e12",
        )?;
        check("base_ms", p.base_ms, coefficient, "0 to 1e12")?;
        check("barrier_ms", p.barrier_ms, coefficient, "0 to 1e12")?;
        check(
            "saturation_load",
            p.saturation_load,
            |load| load > 0.0 && load <= Millis::LIMIT,
            "above 0, at most 1e12",
        )?;
        check(
            "barrier_exponent",
            p.barrier_exponent,
            |exponent| exponent > 0.0 && exponent.is_finite(),
            "finite, above 0",
        )?;
        check(
            "guard_load",
            p.guard_load,
            |guard| guard > 0.0 && guard < p.saturation_load,
            "above 0, below saturation_load",
        )?;
        let curve = Self { parameters };
        let guard_point = curve.guard_point();
        let finite = (curve.inner_delay(guard_point) + curve.inner_slope(guard_point)).is_finite();
        check(
            "guard_load",
            p.guard_load,
            |_| finite,
            "large enough that the barrier stays finite at the guard point",
        )?;
        Ok(curve)
    }

    /// The coefficients of this curve.
    #[must_use]
    pub const fn parameters(&self) -> &CurveParameters {
        &self.parameters
    }

    /// f(n): the delay at `load`.
    #[must_use]
    pub fn delay(&self, load: f64) -> Millis {
        let load = usable(load);
        let inner = load.min(self.guard_point());
        Millis::new(self.inner_delay(inner) + self.inner_slope(inner) * (load - inner))
    }

    /// f′(n): the delay that one more unit of load adds, in ms per unit; constant beyond the guard point.
    #[must_use]
    pub fn slope(&self, load: f64) -> f64 {
        self.inner_slope(usable(load).min(self.guard_point()))
    }

    /// f(n) + n·f′(n): the Pigou price, own delay plus the delay one more unit inflicts on those
    /// already there.
    #[must_use]
    pub fn marginal_cost(&self, load: f64) -> Millis {
        self.delay(load) + Millis::new(usable(load) * self.slope(load))
    }

    /// The load whose affine part a·n + b equals `delay`. Absent when a is 0, so that any load would
    /// do, or when `delay` is below b, so that none would.
    #[must_use]
    pub fn affine_inverse(&self, delay: Millis) -> Option<f64> {
        let CurveParameters {
            slope_ms_per_unit,
            base_ms,
            ..
        } = self.parameters;
        (slope_ms_per_unit > 0.0 && delay.get() >= base_ms)
            .then(|| ((delay.get() - base_ms) / slope_ms_per_unit).min(f64::MAX))
    }

    /// n/n_sat: how far `load` is on the way to saturation; above 1 beyond it.
    #[must_use]
    pub fn position(&self, load: f64) -> f64 {
        (usable(load) / self.parameters.saturation_load).min(f64::MAX)
    }

    /// Share of the slope that comes from the barrier, 0 to 1: the curvature, free of scale. It is 0
    /// where the curve is affine, ½ where the barrier costs as much as the queue (the knee), and never
    /// falls as the load grows. A curve without any slope has a share of 0.
    #[must_use]
    pub fn superlinear_share(&self, load: f64) -> f64 {
        let slope = self.slope(load);
        if slope > 0.0 {
            1.0 - self.parameters.slope_ms_per_unit / slope
        } else {
            0.0
        }
    }

    /// n_g, the load from which the tangent takes over.
    fn guard_point(&self) -> f64 {
        self.parameters.saturation_load - self.parameters.guard_load
    }

    /// f at a load up to the guard point.
    fn inner_delay(&self, load: f64) -> f64 {
        let p = &self.parameters;
        p.slope_ms_per_unit * load
            + p.base_ms
            + p.barrier_ms * self.gap(load).powf(-p.barrier_exponent)
    }

    /// f′ at a load up to the guard point.
    fn inner_slope(&self, load: f64) -> f64 {
        let p = &self.parameters;
        p.slope_ms_per_unit
            + p.barrier_ms * p.barrier_exponent * self.gap(load).powf(-p.barrier_exponent - 1.0)
    }

    /// n_sat − n, kept from vanishing when δ is smaller than the rounding of n_sat.
    fn gap(&self, load: f64) -> f64 {
        (self.parameters.saturation_load - load).max(self.parameters.guard_load)
    }
}

/// Any float as a finite load of at least 0.
const fn usable(load: f64) -> f64 {
    load.max(0.0).min(f64::MAX)
}

fn check(
    key: &'static str,
    value: f64,
    holds: impl Fn(f64) -> bool,
    allowed: &'static str,
) -> Result<(), CurveError> {
    if holds(value) {
        Ok(())
    } else {
        Err(CurveError {
            key,
            value,
            allowed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// f(n) = 2n + 10 + 100/(20 − n), tangent from n = 15.
    const EXAMPLE: CurveParameters = CurveParameters {
        slope_ms_per_unit: 2.0,
        base_ms: 10.0,
        barrier_ms: 100.0,
        saturation_load: 20.0,
        barrier_exponent: 1.0,
        guard_load: 5.0,
    };

    fn example() -> LatencyCurve {
        LatencyCurve::new(EXAMPLE).unwrap()
    }

    fn refusal(parameters: CurveParameters) -> String {
        LatencyCurve::new(parameters).unwrap_err().to_string()
    }

    #[test]
    fn delay_follows_the_formula_and_then_its_tangent() {
        // f(10) = 20 + 10 + 100/10; f(15) = 30 + 10 + 100/5; f′(15) = 2 + 100/25.
        assert_eq!(example().delay(10.0), Millis::new(40.0));
        assert_eq!(example().delay(15.0), Millis::new(60.0));
        assert_eq!(example().slope(15.0), 6.0);
        assert_eq!(example().delay(25.0), Millis::new(60.0 + 6.0 * 10.0));
    }

    #[test]
    fn marginal_cost_adds_the_delay_inflicted_on_the_others() {
        // f(10) = 40, f′(10) = 2 + 100/100 = 3; f(25) = 120, f′(25) = 6.
        assert_eq!(
            example().marginal_cost(10.0),
            Millis::new(40.0 + 10.0 * 3.0)
        );
        assert_eq!(
            example().marginal_cost(25.0),
            Millis::new(120.0 + 25.0 * 6.0)
        );
    }

    #[test]
    fn a_negative_or_missing_load_is_an_idle_worker() {
        let idle = example().delay(0.0);
        assert_eq!(idle, Millis::new(15.0));
        assert_eq!(example().delay(-3.0), idle);
        assert_eq!(example().delay(f64::NAN), idle);
    }

    #[test]
    fn an_infinite_load_on_a_flat_curve_costs_the_base() {
        let flat = CurveParameters {
            slope_ms_per_unit: 0.0,
            barrier_ms: 0.0,
            ..EXAMPLE
        };
        let flat = LatencyCurve::new(flat).unwrap();
        assert_eq!(flat.delay(f64::INFINITY), Millis::new(10.0));
        assert_eq!(flat.superlinear_share(f64::INFINITY), 0.0);
    }

    #[test]
    fn the_affine_inverse_is_absent_where_no_single_load_fits() {
        assert_eq!(example().affine_inverse(Millis::new(16.0)), Some(3.0));
        assert_eq!(example().affine_inverse(Millis::new(9.0)), None);
        let flat = CurveParameters {
            slope_ms_per_unit: 0.0,
            ..EXAMPLE
        };
        assert_eq!(
            LatencyCurve::new(flat)
                .unwrap()
                .affine_inverse(Millis::new(16.0)),
            None
        );
    }

    #[test]
    fn the_barrier_makes_half_of_the_slope_at_the_knee() {
        // Its slope is 100/(20 − n)²: as steep as a = 1 at n = 10, four times as steep at n = 15.
        let curve = LatencyCurve::new(CurveParameters {
            slope_ms_per_unit: 1.0,
            ..EXAMPLE
        })
        .unwrap();
        assert_eq!(curve.superlinear_share(10.0), 0.5);
        assert_eq!(curve.superlinear_share(15.0), 0.8);
        assert_eq!(curve.superlinear_share(40.0), 0.8);
        assert_eq!(curve.position(30.0), 1.5);
    }

    #[test]
    fn a_bad_coefficient_is_named_with_its_value_and_range() {
        assert_eq!(
            refusal(CurveParameters {
                slope_ms_per_unit: -1.0,
                ..EXAMPLE
            }),
            "slope_ms_per_unit is -1; allowed: 0 to 1e12"
        );
        assert_eq!(
            refusal(CurveParameters {
                guard_load: 20.0,
                ..EXAMPLE
            }),
            "guard_load is 20; allowed: above 0, below saturation_load"
        );
        assert_eq!(
            refusal(CurveParameters {
                barrier_exponent: f64::NAN,
                ..EXAMPLE
            }),
            "barrier_exponent is NaN; allowed: finite, above 0"
        );
    }

    #[test]
    fn a_guard_so_thin_that_the_barrier_overflows_is_refused() {
        let thin = CurveParameters {
            guard_load: 1e-200,
            barrier_exponent: 2.0,
            ..EXAMPLE
        };
        assert!(refusal(thin).starts_with("guard_load is "));
    }

    fn curves() -> impl Strategy<Value = LatencyCurve> {
        (
            0.0..100.0,
            0.0..1e3,
            0.0..1e3,
            10.0..1e4,
            0.1..3.0,
            0.01..0.9,
        )
            .prop_map(
                |(
                    slope_ms_per_unit,
                    base_ms,
                    barrier_ms,
                    saturation_load,
                    barrier_exponent,
                    guard,
                )| {
                    LatencyCurve::new(CurveParameters {
                        slope_ms_per_unit,
                        base_ms,
                        barrier_ms,
                        saturation_load,
                        barrier_exponent,
                        guard_load: guard * saturation_load,
                    })
                    .unwrap()
                },
            )
    }

    /// Rounding allowed on a value of this size.
    fn rounding(size: f64) -> f64 {
        1e-9 * (1.0 + size.abs())
    }

    proptest! {
        #[test]
        fn more_load_never_costs_less(curve in curves(), a in 0.0..2e4, b in 0.0..2e4) {
            let (low, high) = (f64::min(a, b), f64::max(a, b));
            let (less, more) = (curve.delay(low).get(), curve.delay(high).get());
            prop_assert!(less <= more + rounding(more));
            prop_assert!(curve.slope(low) <= curve.slope(high));
            prop_assert!(curve.superlinear_share(low) <= curve.superlinear_share(high) + 1e-12);
        }

        #[test]
        fn the_midpoint_lies_below_the_chord(curve in curves(), a in 0.0..2e4, b in 0.0..2e4) {
            let chord = f64::midpoint(curve.delay(a).get(), curve.delay(b).get());
            prop_assert!(curve.delay(f64::midpoint(a, b)).get() <= chord + rounding(chord));
        }

        #[test]
        fn value_and_slope_agree_on_both_sides_of_the_guard_point(curve in curves()) {
            let guard = curve.guard_point();
            let step = 1e-7 * curve.parameters.guard_load;
            let at = curve.delay(guard).get();
            let left = (at - curve.delay(guard - step).get()) / step;
            let right = (curve.delay(guard + step).get() - at) / step;
            let slope = curve.slope(guard);
            // Differences of rounded values: allow one part in 1e13 of the value over the step.
            let tolerance = 1e-5 * slope + 1e-13 * at / step + 1e-13 * curve.slope(guard) * guard / step;
            prop_assert!((left - slope).abs() <= tolerance, "left {left}, slope {slope}");
            prop_assert!((right - slope).abs() <= tolerance, "right {right}, slope {slope}");
        }

        #[test]
        fn any_float_gives_finite_answers(
            values in proptest::array::uniform6(proptest::num::f64::ANY),
            load in proptest::num::f64::ANY,
        ) {
            let [slope_ms_per_unit, base_ms, barrier_ms, saturation_load, barrier_exponent, guard] =
                values.map(f64::abs);
            let parameters = CurveParameters {
                slope_ms_per_unit: slope_ms_per_unit.min(Millis::LIMIT),
                base_ms: base_ms.min(Millis::LIMIT),
                barrier_ms: barrier_ms.min(Millis::LIMIT),
                saturation_load: saturation_load.min(Millis::LIMIT),
                barrier_exponent,
                guard_load: guard.min(saturation_load.min(Millis::LIMIT) / 2.0),
            };
            // Whatever passes validation must serve any load.
            if let Ok(curve) = LatencyCurve::new(parameters) {
                let answers = [
                    curve.delay(load).get(),
                    curve.slope(load),
                    curve.marginal_cost(load).get(),
                    curve.position(load),
                    curve.superlinear_share(load),
                    curve.affine_inverse(Millis::new(load)).unwrap_or(0.0),
                ];
                for answer in answers {
                    prop_assert!(answer.is_finite());
                }
            }
        }

        #[test]
        fn the_affine_inverse_undoes_the_affine_part(
            slope_ms_per_unit in 0.01..100.0,
            base_ms in 0.0..1e3,
            load in 0.0..1e4,
        ) {
            let affine = LatencyCurve::new(CurveParameters {
                slope_ms_per_unit,
                base_ms,
                barrier_ms: 0.0,
                ..EXAMPLE
            })
            .unwrap();
            let back = affine.affine_inverse(affine.delay(load)).unwrap();
            prop_assert!((back - load).abs() <= rounding(load));
        }
    }
}
