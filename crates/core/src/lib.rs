// SPDX-License-Identifier: Apache-2.0

//! What the router learns about a fleet, as pure state machines: no clock, no threads, no I/O.
//!
//! Time and randomness are arguments, so that a live frontend, NVIDIA's simulator and a unit test run
//! the same code. Everything is keyed by [`WorkerKey`] and bounded in memory.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod accrual;
mod calibration;
mod curve;
mod ewma;
mod ledger;
mod ratio;
mod regime;
mod response;
mod time;
mod units;
mod window;
mod worker;

pub use accrual::{AccrualConfig, AccrualError, FailureAccrual, HoldDown};
pub use calibration::{
    CalibrationConfig, CalibrationError, PoolCalibration, PoolEstimate, RateSource, Surplus,
    WorkerEstimate,
};
pub use curve::{CurveError, CurveParameters, LatencyCurve};
pub use ewma::{Ewma, StepEwma};
pub use ledger::{
    Decode, Ended, Ending, FirstToken, InFlight, Ledger, LedgerConfig, LedgerCounts, LedgerError,
    Outcome, Sent,
};
pub use ratio::{Slowdown, SlowdownWindow};
pub use regime::{Cuts, Reading, Regime, RegimeChange, RegimeConfig, RegimeError, RegimeMachine};
pub use response::{LoadResponse, ResponseFit};
pub use time::Timestamp;
pub use units::{Blocks, Millis, Tokens};
pub use window::{LatencyWindow, WindowConfig, WindowError, WindowSummary};
pub use worker::WorkerKey;
