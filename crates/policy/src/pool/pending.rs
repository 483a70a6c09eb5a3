// SPDX-License-Identifier: Apache-2.0

//! Decisions that wait for their request: the join of what was chosen and what came of it.
//!
//! Dynamo tells the scorer no request id and the classifier no scores. What both see is the worker and
//! the prompt length, and a decision always precedes the `Sent` of its request. So a request takes the
//! oldest waiting decision for its worker with its prompt length, or, if there is none, no decision:
//! a wrong match would teach a wrong rate. Decisions that no request claims (dry runs, aborts before
//! dispatch) age out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use regime_core::{Millis, Timestamp, Tokens, WorkerKey};
use regime_kv::Brought;

use super::meter::Ticket;
use crate::journal::Decision;

/// Decisions kept per worker. More than a worker can have in dispatch at once.
const PER_WORKER: usize = 1_024;
/// Age at which a decision is given up. Dispatch takes milliseconds.
const MAX_AGE: Duration = Duration::from_secs(30);

/// What a decision promised, attached to the request it placed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Placement {
    /// Tokens to prefill on the chosen worker.
    pub(crate) uncached: Tokens,
    /// What its engine brings up from lower tiers.
    pub(crate) brought: Brought,
    /// Predicted TTFT.
    pub(crate) predicted: Millis,
    /// Predicted TTFT on an idle worker.
    pub(crate) alone: Millis,
    /// Of a decision that is kept to be measured.
    pub(crate) ticket: Option<Ticket>,
}

/// What is known about an attempt of a request when it is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Attached {
    /// By the pool of the worker it is sent to.
    pub(crate) placement: Option<Placement>,
    /// The decision of the prefill pool, if it is kept to be measured.
    pub(crate) prefill: Option<Ticket>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    at: Timestamp,
    prompt: Tokens,
    placement: Placement,
}

/// Decisions by worker, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    by_worker: BTreeMap<WorkerKey, VecDeque<Waiting>>,
    matched: u64,
    unmatched: u64,
}

impl Pending {
    pub(crate) fn push(&mut self, decision: &Decision, ticket: Option<Ticket>) {
        let Some(row) = decision.chosen_row() else {
            return;
        };
        let queue = self.by_worker.entry(decision.chosen).or_default();
        if queue.len() == PER_WORKER {
            queue.pop_front();
        }
        queue.push_back(Waiting {
            at: decision.at,
            prompt: decision.prompt_tokens,
            placement: Placement {
                // Clamped by construction to 0..=prompt.
                uncached: Tokens(row.uncached_tokens.round() as u64),
                brought: row.brought,
                predicted: row.predicted_ms,
                alone: row.alone_ms,
                ticket,
            },
        });
    }

    /// Claim the decision behind a request of `prompt` tokens sent to `worker`.
    pub(crate) fn claim(
        &mut self,
        worker: WorkerKey,
        prompt: Tokens,
        now: Timestamp,
    ) -> Option<Placement> {
        let claimed = self.by_worker.get_mut(&worker).and_then(|queue| {
            while queue
                .front()
                .is_some_and(|oldest| now.since(oldest.at) > MAX_AGE)
            {
                queue.pop_front();
            }
            let index = queue.iter().position(|waiting| waiting.prompt == prompt)?;
            queue.remove(index)
        });
        match claimed {
            Some(waiting) => {
                self.matched += 1;
                Some(waiting.placement)
            }
            None => {
                self.unmatched += 1;
                None
            }
        }
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(WorkerKey) -> bool) {
        self.by_worker.retain(|&worker, _| keep(worker));
    }

    /// Requests with and without a matching decision.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.matched, self.unmatched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::DecisionRow;

    const WORKER: WorkerKey = WorkerKey::new(1, 0);

    fn decision(at_ms: u64, prompt: u64, uncached: f64) -> Decision {
        Decision {
            at: Timestamp::from_millis(at_ms),
            prompt_tokens: Tokens(prompt),
            chosen: WORKER,
            rows: vec![DecisionRow {
                worker: WORKER,
                cost: 0.0,
                predicted_ms: Millis::ZERO,
                alone_ms: Millis::ZERO,
                uncached_tokens: uncached,
                brought: Brought::default(),
                queued_tokens: 0.0,
                active_requests: 0.0,
                load_known: true,
            }],
            ..Decision::default()
        }
    }

    fn claim(pending: &mut Pending, prompt: u64, at_ms: u64) -> Option<u64> {
        pending
            .claim(WORKER, Tokens(prompt), Timestamp::from_millis(at_ms))
            .map(|placement| placement.uncached.0)
    }

    #[test]
    fn a_request_claims_the_oldest_decision_of_its_length() {
        let mut pending = Pending::default();
        pending.push(&decision(0, 64, 60.0), None);
        pending.push(&decision(1, 32, 30.0), None);
        pending.push(&decision(2, 64, 16.0), None);
        assert_eq!(claim(&mut pending, 32, 3), Some(30));
        assert_eq!(claim(&mut pending, 64, 3), Some(60));
        assert_eq!(claim(&mut pending, 64, 3), Some(16));
        assert_eq!(claim(&mut pending, 64, 3), None);
        assert_eq!(pending.counts(), (3, 1));
    }

    #[test]
    fn a_decision_of_another_length_is_no_match() {
        let mut pending = Pending::default();
        pending.push(&decision(0, 64, 60.0), None);
        assert_eq!(claim(&mut pending, 65, 1), None);
    }

    #[test]
    fn a_decision_that_nobody_claims_ages_out() {
        let mut pending = Pending::default();
        pending.push(&decision(0, 64, 60.0), None);
        assert_eq!(claim(&mut pending, 64, 30_001), None);
    }

    #[test]
    fn memory_is_bounded_without_claims() {
        let mut pending = Pending::default();
        for at in 0..5_000 {
            pending.push(&decision(at, 64, 60.0), None);
        }
        assert_eq!(pending.by_worker[&WORKER].len(), PER_WORKER);
    }
}
