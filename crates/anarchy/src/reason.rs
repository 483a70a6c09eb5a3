// SPDX-License-Identifier: Apache-2.0

//! Why an estimate is absent.
//!
//! A ratio without data is neither NaN nor a perfect 1: it does not exist, and the operator is told
//! which input was missing or unusable (field reports BR-13, BR-14 and BR-19).

use thiserror::Error;

use crate::assignment::{MAX_COST_MS, Seat};

/// Why an assignment or a gap could not be computed. Requests and workers are positions in the
/// arguments, from 0; slots count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
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
    /// A cost on an idle worker that no sum must contain.
    #[error(
        "cost of request {request} on an idle worker is unusable; \
         allowed is a finite number within ±{MAX_COST_MS} ms"
    )]
    UnusableAlone {
        /// The request.
        request: usize,
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
