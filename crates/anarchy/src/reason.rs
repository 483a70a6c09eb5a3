// SPDX-License-Identifier: Apache-2.0

//! Why an estimate is absent.
//!
//! A ratio without data is neither NaN nor a perfect 1: it does not exist, and the operator is told
//! which input was missing or unusable (field reports BR-13, BR-14 and BR-19).

use std::fmt;

use regime_core::{Millis, WorkerKey};
use thiserror::Error;

use crate::assignment::{MAX_COST_MS, Seat};
use crate::window::MAX_FORECAST;

/// The two forecasts of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forecast {
    /// Wait before service.
    Wait,
    /// Service of the request itself.
    Own,
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "wait",
            Self::Own => "own",
        })
    }
}

/// Why an assignment or a gap could not be computed. Requests and workers are positions in the
/// arguments, from 0; slots count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum NoEstimate {
    /// The window holds no request.
    #[error("the window holds no request")]
    NoRequests,
    /// No worker offers a slot.
    #[error("no worker offers a slot")]
    NoSlots,
    /// A cost that the solver must not see.
    #[error(
        "cost of request {request} on worker {}, slot {} is unusable; \
         allowed is a finite number within ±{MAX_COST_MS} ms",
        seat.worker, seat.slot
    )]
    UnusableCost {
        /// The request.
        request: usize,
        /// The seat it was priced at.
        seat: Seat,
    },
    /// More requests than slots, so that some have no cost.
    #[error("{requests} requests for {slots} slots: some are not placed")]
    Incomplete {
        /// Requests in the window.
        requests: usize,
        /// Slots that all workers offer together.
        slots: usize,
    },
    /// The choices to price are not one for each request.
    #[error("{chosen} choices for {requests} requests; one each is needed")]
    ChoiceCount {
        /// Choices given.
        chosen: usize,
        /// Requests in the window.
        requests: usize,
    },
    /// The choices put more requests on a worker than it has slots; a worker that is not known has
    /// none.
    #[error("{chosen} requests chose worker {worker}, which offers {slots} slots")]
    OverCapacity {
        /// The worker.
        worker: usize,
        /// Requests that chose it.
        chosen: usize,
        /// Slots it offers.
        slots: usize,
    },
    /// A forecast of a candidate that no game must contain.
    #[error(
        "{forecast} of request {request} on worker {worker} is {} ms; \
         allowed: {} to {} ms",
        value.get(),
        match forecast { Forecast::Wait => 0.0, Forecast::Own => 0.001 },
        MAX_FORECAST.get()
    )]
    UnusableForecast {
        /// The request.
        request: usize,
        /// The candidate.
        worker: WorkerKey,
        /// Which of its forecasts.
        forecast: Forecast,
        /// What it was.
        value: Millis,
    },
    /// A latency that no request can have had.
    #[error(
        "actual latency of request {request} is {} ms; allowed: 0 to {MAX_COST_MS} ms",
        value.get()
    )]
    UnusableActual {
        /// The request.
        request: usize,
        /// What it was.
        value: Millis,
    },
    /// A worker stands twice in the row of a request.
    #[error("worker {worker} is listed twice among the candidates of request {request}")]
    CandidateTwice {
        /// The request.
        request: usize,
        /// The worker.
        worker: WorkerKey,
    },
    /// The chosen worker is missing in the row of its request.
    #[error("worker {worker} was chosen for request {request}, but is not among its candidates")]
    ChosenNoCandidate {
        /// The request.
        request: usize,
        /// The worker.
        worker: WorkerKey,
    },
    /// A sum at the limit of [`Millis`], where it is no longer exact.
    #[error("the sum of {sum} costs reaches {} ms", Millis::LIMIT)]
    SumTooLarge {
        /// Which sum, as in [`Self::NotPositive`].
        sum: &'static str,
    },
    /// A sum of the window that a ratio needs is zero or negative.
    #[error("the sum of {sum} costs is not positive, so it has no ratio")]
    NotPositive {
        /// Which sum: `actual`, `chosen`, `optimum` or `alone`.
        sum: &'static str,
    },
    /// The sums of the window do not rise from alone over optimum to chosen.
    #[error(
        "the sums of the window must satisfy alone ≤ optimum ≤ chosen: they are not of one matrix"
    )]
    OutOfOrder,
}

impl NoEstimate {
    /// The kind of reason in one word, for counting.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoRequests => "no_requests",
            Self::NoSlots => "no_slots",
            Self::UnusableCost { .. } => "unusable_cost",
            Self::Incomplete { .. } => "incomplete",
            Self::ChoiceCount { .. } => "choice_count",
            Self::OverCapacity { .. } => "over_capacity",
            Self::UnusableForecast { .. } => "unusable_forecast",
            Self::UnusableActual { .. } => "unusable_actual",
            Self::CandidateTwice { .. } => "candidate_twice",
            Self::ChosenNoCandidate { .. } => "chosen_no_candidate",
            Self::SumTooLarge { .. } => "sum_too_large",
            Self::NotPositive { .. } => "not_positive",
            Self::OutOfOrder => "out_of_order",
        }
    }
}
