// SPDX-License-Identifier: Apache-2.0

//! A test bed for the live stack: real processes, real HTTP, discovery in a directory of its own.
//!
//! A [`Bed`] is one machine in miniature. It owns a temporary directory that serves as home, as temporary directory and
//! as discovery store, so that beds do not see each other and tests run side by side. Frontends and workers started on
//! one bed find each other. Processes die with their handle, and their output is printed then: the test runner shows it
//! for a failed test and hides it for a passed one.
//!
//! Nothing waits for a fixed time. [`eventually`] polls a condition until it holds or a deadline passes.

mod bed;
mod client;
mod metrics;
mod process;
mod wait;

pub use bed::{Bed, Frontend, LIMIT, free_port};
pub use client::{Client, Reply, Request, Stream, prompt};
pub use metrics::{Series, regime_series};
pub use process::{Outcome, Process, Signal};
pub use wait::eventually;
