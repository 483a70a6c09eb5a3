// SPDX-License-Identifier: Apache-2.0

//! How much latency a router loses, and to what.
//!
//! [`SlotCosts`] freezes the prices of one window of requests and finds the assignment that a
//! coordinated router would have made; [`GapSplit`] splits the slowdown of the window into the
//! router's fault, bad timing, and what no router could fix. Off the request path, pure arithmetic.
//! An estimate that is not available is absent and says why ([`NoEstimate`]); it is never NaN.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod assignment;
mod gap;
mod reason;

pub use assignment::{Assignment, MAX_COST_MS, Seat, SlotCosts, alone_total};
pub use gap::{GapSplit, WindowSums};
pub use reason::NoEstimate;
