// SPDX-License-Identifier: Apache-2.0

//! The regime-aware router as a plugin on Dynamo's router traits.
//!
//! [`register`] links two types into a Dynamo frontend: the worker-selection type `regime-aware`, which
//! prices every worker in milliseconds and takes the cheapest, and the request-classifier type
//! `regime-feedback`, which tells it what came of its choices. A policy file then selects them:
//!
//! ```yaml
//! worker_selection:
//!   aggregated: main
//!   prefill: main
//!   decode: main
//!   instances:
//!     - { name: main, type: regime-aware, parameters: {} }
//! request_classifier: { type: regime-feedback, parameters: {} }
//! ```
//!
//! The returned [`Handle`] is what the host shows: [`Handle::report`] as JSON,
//! [`Handle::publish_metrics`] before a scrape, and [`Handle::measure`] once a second. State lives and dies with the registration.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod choice;
mod classifier;
mod clock;
mod cost;
mod feedback;
mod guard;
mod hub;
mod in_flight;
mod journal;
mod late_binding;
mod metrics;
mod observer;
mod parameters;
mod periodic;
mod pool;
mod progress;
mod registration;
mod report;
mod selection;
mod sessions;

pub use classifier::{FeedbackParameters, SessionTarget};
pub use clock::{Clock, ManualClock, SystemClock};
pub use feedback::Feedback;
pub use guard::{FallbackReason, is_guarded};
pub use journal::{Decision, DecisionRow};
pub use late_binding::{LateBinding, LateBindingError};
pub use metrics::{MetricDoc, metrics_documentation};
pub use observer::{Observed, Observer};
pub use parameters::{
    Anarchy, Calibrated, CostModel, Failures, Paper, PaperRow, ParameterDoc, ParameterError,
    Parameters, RegimeTiming, Section, SessionAffinity, Signals, TierValue, Window,
};
pub use pool::{ExportCounts, JoinedChoice};
pub use registration::{
    CLASSIFIER_TYPE, Handle, Options, POLICY_TYPE, PoolChoices, ScoreProbe, TtftDelta,
    classifier_parameters, policy_parameters, register, register_with,
};
pub use report::{
    AnarchyReport, DecisionsReport, GapReport, HealthReport, PoolReport, PriceReport, RatesReport,
    Report, RequestsReport, SCHEMA, SignalReport, TiersReport, TtftReport, WorkerReport,
};

use dynamo_kv_router::protocols::WorkerWithDpRank;
use regime_core::WorkerKey;

/// Our key for Dynamo's worker.
const fn key_of(worker: WorkerWithDpRank) -> WorkerKey {
    WorkerKey::new(worker.worker_id, worker.dp_rank)
}
