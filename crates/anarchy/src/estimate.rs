// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of some requests, with the sums behind it and how the optimum was found.
//!
//! One window gives one, and so do many windows together: the ratios are of sums, so sums add up to
//! another estimate. An optimum that is only bounded makes an interval of every ratio that contains it;
//! the point estimate is at its high bound, which charges the router with the least.

use regime_core::Millis;
use serde::Serialize;

use crate::{GapIntervals, GapSplit, Interval, NoEstimate, WindowSums};

/// How the optimum was found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "method", rename_all = "snake_case")]
pub enum Method {
    /// Solved.
    Exact,
    /// Bounded from both sides; the point estimate uses the high bound.
    Bounded {
        /// No assignment is cheaper.
        optimum_low: Millis,
        /// Some assignment costs this.
        optimum_high: Millis,
    },
}

/// Price of Anarchy and gap split of one window, or of several together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Requests in it.
    pub requests: usize,
    /// The sums that the ratios are made of.
    pub sums: WindowSums,
    /// The slowdown and its three factors.
    pub gap: GapSplit,
    /// The paper's Price of Anarchy, policy gap × temporal gap.
    pub poa_hat: f64,
    /// How the optimum in `sums` was found.
    #[serde(flatten)]
    pub method: Method,
    /// The split at the low bound of the optimum.
    #[serde(skip)]
    gap_at_low: GapSplit,
}

impl Estimate {
    /// Of `requests` requests with these sums. `sums.optimum` is the high bound if there are bounds.
    pub(crate) fn new(
        requests: usize,
        sums: WindowSums,
        method: Method,
    ) -> Result<Self, NoEstimate> {
        let gap = GapSplit::new(sums)?;
        let gap_at_low = match method {
            Method::Exact => gap,
            Method::Bounded { optimum_low, .. } => GapSplit::new(WindowSums {
                optimum: optimum_low,
                ..sums
            })?,
        };
        Ok(Self {
            requests,
            sums,
            gap,
            poa_hat: gap.poa_hat(),
            method,
            gap_at_low,
        })
    }

    /// The same choices by end-to-end latency, of which `actual` is the sum. `residence` is the sum of what
    /// the requests were expected to take after their first token. It is part of chosen, optimum and alone
    /// alike and delays nobody: sequences are decoded side by side.
    ///
    /// # Errors
    /// As of [`GapSplit::new`].
    pub fn end_to_end(&self, actual: Millis, residence: Millis) -> Result<Self, NoEstimate> {
        self.with(actual, residence, residence)
    }

    /// The same choices from the arrival of the requests, `held` before their decisions and not from these:
    /// the sum of what the router's queue kept them. No choice changes it, and an idle fleet has no queue,
    /// so it is overload.
    ///
    /// # Errors
    /// As of [`GapSplit::new`].
    pub fn from_arrival(&self, held: Millis) -> Result<Self, NoEstimate> {
        self.with(self.sums.actual + held, held, Millis::ZERO)
    }

    /// The same choices where the requests were expected to wait for a seat, `wait` in sum, whatever the choice.
    /// An idle fleet has seats, so it is overload.
    ///
    /// # Errors
    /// As of [`GapSplit::new`].
    pub fn behind_seats(&self, wait: Millis) -> Result<Self, NoEstimate> {
        self.with(self.sums.actual, wait, Millis::ZERO)
    }

    /// With more time on every assignment, and `alone` more alone.
    fn with(&self, actual: Millis, placed: Millis, alone: Millis) -> Result<Self, NoEstimate> {
        let sums = WindowSums {
            actual,
            chosen: self.sums.chosen + placed,
            optimum: self.sums.optimum + placed,
            alone: self.sums.alone + alone,
        };
        let method = match self.method {
            Method::Exact => Method::Exact,
            Method::Bounded { optimum_low, .. } => Method::Bounded {
                optimum_low: optimum_low + placed,
                optimum_high: sums.optimum,
            },
        };
        Self::new(self.requests, sums, method)
    }

    /// The least that the optimum can be.
    #[must_use]
    pub fn optimum_low(&self) -> Millis {
        match self.method {
            Method::Exact => self.sums.optimum,
            Method::Bounded { optimum_low, .. } => optimum_low,
        }
    }

    /// What each ratio can be, given the bounds of the optimum. A point when the optimum is exact.
    #[must_use]
    pub fn bounds(&self) -> GapIntervals {
        GapIntervals::of(|ratio| {
            let (high, low) = (ratio(&self.gap), ratio(&self.gap_at_low));
            Interval {
                low: low.min(high),
                high: low.max(high),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_choice_changes_is_on_every_assignment_alike() {
        let millis = |[actual, chosen, optimum, alone]: [f64; 4]| WindowSums {
            actual: Millis::new(actual),
            chosen: Millis::new(chosen),
            optimum: Millis::new(optimum),
            alone: Millis::new(alone),
        };
        let bounds = |low, high| Method::Bounded {
            optimum_low: Millis::new(low),
            optimum_high: Millis::new(high),
        };
        let sums = millis([60.0, 40.0, 30.0, 10.0]);
        let ttft = Estimate::new(2, sums, bounds(20.0, 30.0)).unwrap();
        let e2e = ttft.end_to_end(Millis::new(330.0), Millis::new(200.0));
        let expected = millis([330.0, 240.0, 230.0, 210.0]);
        assert_eq!(e2e, Estimate::new(2, expected, bounds(220.0, 230.0)));
        // Held by the router, 50 ms more on everything but alone.
        let expected = millis([110.0, 90.0, 80.0, 10.0]);
        let held = ttft.from_arrival(Millis::new(50.0));
        assert_eq!(held, Estimate::new(2, expected, bounds(70.0, 80.0)));
        // Behind others for seats, 15 ms expected on everything but alone.
        let expected = millis([60.0, 55.0, 45.0, 10.0]);
        let behind = ttft.behind_seats(Millis::new(15.0));
        assert_eq!(behind, Estimate::new(2, expected, bounds(35.0, 45.0)));
    }
}
