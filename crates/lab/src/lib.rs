// SPDX-License-Identifier: Apache-2.0

//! The lab: any Dynamo router policy in NVIDIA's own simulator.
//!
//! An [`Experiment`] is a [`Policy`], a [`Workload`], an [`Engine`], a [`Topology`] and a seed. Running it
//! gives [`Metrics`] and, request by request, what happened. The policy is built from the same YAML by the
//! same factory as in a frontend, and is fed in virtual time; the engines are those of
//! `aisimulate-core`. The same experiment always gives the same run.
//!
//! ```
//! use std::sync::Arc;
//! use regime_lab::workloads::{Generator, Scale};
//! use regime_lab::{Catalog, Engine, Experiment, Policy};
//!
//! let catalog = Catalog::default();
//! let workload = Generator::Chat.generate(&Scale { requests: 20, ..Generator::Chat.default_scale() })?;
//! let experiment = Experiment::new(
//!     Policy::named("regime-aware", &catalog)?,
//!     Arc::new(workload),
//!     Engine::load("b200-70b")?,
//!     "2".parse()?,
//!     1,
//! );
//! let run = experiment.run(&catalog)?;
//! assert_eq!(run.metrics.completed, 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything is simulated. Numbers rank policies on the timing tables given; they are no measurements of
//! hardware.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod adapter;
mod anarchy;
pub mod baselines;
pub mod cli;
pub mod detection;
mod engines;
pub mod experiments;
mod files;
mod lifecycle;
pub mod measurement;
mod metrics;
mod policies;
mod queueing;
mod regimes;
pub mod report;
mod results;
mod run;
pub mod timing;
mod topology;
pub mod traces;
mod workload;
pub mod workloads;

pub use adapter::{
    Decision, Ending, Listing, PoolRecord, RegimeSince, RequestRecord, RunRecord, TierTraffic,
    WorkerConfig,
};
pub use anarchy::{Anarchy, Gaps, STRETCHES, Stretch};
pub use engines::{DEFAULT_ENGINE, Engine, EngineError, EnginePreset};
pub use lifecycle::{Lifecycle, RegimeLifecycle, SessionTurn};
pub use metrics::{Distribution, Metrics, Slo, TierUse};
pub use policies::{Catalog, Link, Linker, MODEL, Policy, PolicyError, Selector};
pub use queueing::{Expected, Queueing, Reading};
pub use regimes::RegimeTimes;
pub use results::{Provenance, Results, ResultsError, RunEntry, SCHEMA};
pub use run::{Experiment, Load, LoadLevel, Run, RunError, SelectionCost, Settings, run_all};
pub use topology::{Topology, TopologyError};
pub use workload::{Arrivals, LONGEST_MS, REQUEST_TOKENS, Session, Turn, Workload, WorkloadError};
