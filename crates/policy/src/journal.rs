// SPDX-License-Identifier: Apache-2.0

//! The decision journal: what the policy saw and chose, handed from the router's thread to whoever
//! learns from it.
//!
//! Dynamo's selector sees no request id and its classifier sees no scores, so this journal is the only
//! place where a choice and its outcome can meet. It must never slow or stop a selection: it is
//! bounded, lock-free, overwrites the oldest record when nobody reads, and reuses the memory of
//! records that were read.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use regime_core::{Millis, Regime, Timestamp, Tokens, WorkerKey};
use regime_kv::Brought;
use serde::Serialize;

/// One candidate as the policy saw it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DecisionRow {
    /// The candidate.
    #[serde(flatten)]
    pub worker: WorkerKey,
    /// Total cost: ms with `cost: calibrated`, blocks with `cost: paper`.
    pub cost: f64,
    /// Predicted TTFT by calibrated rates, ms; zero where the stage does not prefill.
    pub predicted_ms: Millis,
    /// Predicted TTFT on this worker if it were idle, ms.
    pub alone_ms: Millis,
    /// Prompt tokens this worker would have to prefill.
    pub uncached_tokens: f64,
    /// What the engine brings up from lower tiers, whether that pays or not.
    #[serde(skip)]
    pub brought: Brought,
    /// Tokens that wait for prefill here, before this request; imputed when `load_known` is false.
    pub queued_tokens: f64,
    /// Active requests, imputed when `load_known` is false.
    pub active_requests: f64,
    /// Whether the host knew the load. When it did not, the row was scored with another row's.
    pub load_known: bool,
}

impl DecisionRow {
    /// Predicted wait before the request's own prefill.
    #[must_use]
    pub fn wait_ms(&self) -> Millis {
        self.predicted_ms - self.alone_ms
    }

    /// The row as the Price of Anarchy sees it.
    pub(crate) fn forecast(&self) -> regime_anarchy::Candidate {
        regime_anarchy::Candidate {
            worker: self.worker,
            wait: self.wait_ms(),
            own: self.alone_ms,
        }
    }
}

/// One decision.
#[derive(Debug, Clone, Serialize)]
pub struct Decision {
    /// Time of the choice, µs of the plugin's clock.
    pub at: Timestamp,
    /// Prompt length.
    pub prompt_tokens: Tokens,
    /// Regime of the pool at the choice.
    pub regime: Regime,
    /// Temperature of the choice.
    pub tau: f64,
    /// The chosen worker.
    pub chosen: WorkerKey,
    /// Whether the fallback rule scored the rows.
    pub fallback: bool,
    /// Every candidate.
    pub rows: Vec<DecisionRow>,
}

impl Default for Decision {
    fn default() -> Self {
        Self {
            at: Timestamp::ORIGIN,
            prompt_tokens: Tokens(0),
            regime: Regime::Unknown,
            tau: 0.0,
            chosen: WorkerKey::new(0, 0),
            fallback: false,
            rows: Vec::new(),
        }
    }
}

impl Decision {
    /// The row of the chosen worker; absent when the fallback rule left no rows.
    #[must_use]
    pub fn chosen_row(&self) -> Option<&DecisionRow> {
        self.rows.iter().find(|row| row.worker == self.chosen)
    }
}

/// Bounded queue of decisions.
#[derive(Debug)]
pub(crate) struct Journal {
    written: ArrayQueue<Box<Decision>>,
    spare: ArrayQueue<Box<Decision>>,
    lost: AtomicU64,
}

impl Journal {
    /// Hold at most `capacity` unread decisions.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            written: ArrayQueue::new(capacity),
            spare: ArrayQueue::new(capacity),
            lost: AtomicU64::new(0),
        }
    }

    /// Write one decision. `fill` gets a record with its old contents and overwrites every field.
    pub(crate) fn write(&self, fill: impl FnOnce(&mut Decision)) {
        let mut record = self.spare.pop().unwrap_or_default();
        fill(&mut record);
        if let Some(oldest) = self.written.force_push(record) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.recycle(oldest);
        }
    }

    /// The oldest unread decision. Hand it back with [`Journal::recycle`].
    pub(crate) fn read(&self) -> Option<Box<Decision>> {
        self.written.pop()
    }

    /// Take back a record for reuse.
    pub(crate) fn recycle(&self, record: Box<Decision>) {
        // A full pool of spares means that this one is not needed.
        drop(self.spare.push(record));
    }

    /// Decisions overwritten before anybody read them.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(journal: &Journal, prompt: u64) {
        journal.write(|decision| decision.prompt_tokens = Tokens(prompt));
    }

    #[test]
    fn decisions_come_out_in_order() {
        let journal = Journal::new(4);
        write(&journal, 1);
        write(&journal, 2);
        assert_eq!(journal.read().unwrap().prompt_tokens, Tokens(1));
        assert_eq!(journal.read().unwrap().prompt_tokens, Tokens(2));
        assert!(journal.read().is_none());
    }

    #[test]
    fn a_journal_that_nobody_reads_loses_the_oldest_and_counts_it() {
        let journal = Journal::new(2);
        for prompt in 1..=5 {
            write(&journal, prompt);
        }
        assert_eq!(journal.lost(), 3);
        assert_eq!(journal.read().unwrap().prompt_tokens, Tokens(4));
    }

    #[test]
    fn a_record_that_was_read_is_written_again() {
        let journal = Journal::new(2);
        journal.write(|decision| decision.rows.reserve(64));
        journal.recycle(journal.read().unwrap());
        journal.write(|decision| assert!(decision.rows.capacity() >= 64));
    }
}
