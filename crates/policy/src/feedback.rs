// SPDX-License-Identifier: Apache-2.0

//! Telling the policy what became of requests: a plain channel, driven by Dynamo's classifier events
//! or, in virtual time, by a simulator.
//!
//! Every call is stamped with the clock of the registration. Duplicated, lost and reordered events
//! are the ledger's business; none of them can leave a gauge behind.

use std::sync::Arc;

use regime_core::{Timestamp, Tokens, WorkerKey};

use crate::clock::Clock;
use crate::hub::{Feed, Hub};

/// One source of request events: the router of one model.
pub struct Feedback {
    hub: Arc<Hub>,
    feed: Arc<Feed>,
}

impl Feedback {
    pub(crate) fn new(hub: Arc<Hub>, feed: Arc<Feed>) -> Self {
        Self { hub, feed }
    }

    /// The clock that stamps the events.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.hub.clock.as_ref()
    }

    /// A request of `prompt` tokens reached the router at `ingress`.
    pub fn classified(&self, id: &str, ingress: Timestamp, prompt: Tokens) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.classified(id, ingress, prompt, outcomes);
        });
    }

    /// The request was dispatched to `worker`, for the first time or again after a failure.
    pub fn sent(&self, id: &str, worker: WorkerKey) {
        self.hub.sent(&self.feed, id, worker, self.clock().now());
    }

    /// The first response item arrived. `generated` is the number of tokens it carried, if known; zero
    /// is a false start, such as an error, and no first token.
    pub fn responding(&self, id: &str, worker: WorkerKey, generated: Option<u64>) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.responding(id, worker, now, generated, outcomes);
        });
    }

    /// The request was served; `context` is prompt plus generated tokens, if known.
    pub fn completed(&self, id: &str, worker: WorkerKey, context: Option<u64>) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.completed(id, worker, now, context, outcomes);
        });
    }

    /// The request ended unserved, with or without an error; `worker` is absent when none was chosen.
    pub fn aborted(&self, id: &str, worker: Option<WorkerKey>, error: bool) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.aborted(id, worker, now, error, outcomes);
        });
    }
}
