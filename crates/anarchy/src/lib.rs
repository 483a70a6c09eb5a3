// SPDX-License-Identifier: Apache-2.0

//! How much latency a router loses, and to what.
//!
//! [`WindowCollector`] cuts a stream of [`Choice`]s into windows; [`Estimator`] freezes one window into
//! a game and compares the choices with the optimum; [`summarise`] adds windows up. Below these,
//! [`SlotCosts`] finds the assignment that a coordinated router would have made, and [`GapSplit`] splits
//! the slowdown into the router's fault, bad timing, and what no router could fix. [`Station`] is the
//! baseline of queueing theory, which knows no router at all. [`journal`] is the file that a live router
//! writes its decisions into, to be measured later. Off the request path, pure arithmetic.
//! An estimate that is not available is absent and says why ([`NoEstimate`]); it is never NaN.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod assignment;
mod estimate;
mod figures;
mod gap;
mod interval;
pub mod journal;
mod queueing;
mod reason;
mod summary;
mod window;

pub use assignment::{Assignment, MAX_COST_MS, Seat, SlotCosts};
pub use estimate::{Estimate, Method};
pub use figures::{Figures, Found};
pub use gap::{GapSplit, WindowSums};
pub use interval::{GapIntervals, Interval};
pub use queueing::{NoWait, Prediction, QueueError, Station, StationConfig};
pub use reason::{Forecast, NoEstimate};
pub use summary::{Summary, summarise, total};
pub use window::{
    Candidate, Choice, CollectorConfig, CollectorError, Estimator, MAX_FORECAST, MAX_OPEN,
    NotCollected, WindowCollector,
};
