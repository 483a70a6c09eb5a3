// SPDX-License-Identifier: Apache-2.0

//! Decisions of a prefill pool that wait for the request to turn up in decode routing.
//!
//! Dynamo tells nobody what became of a prefill. But the same request is routed once more, to a decode
//! worker, and of that its events tell. What both sides know is the prompt length. In bootstrap mode the
//! decode leg follows within milliseconds, otherwise when the prefill has ended; so a request takes, of the
//! waiting decisions of its length, the one whose prefill was forecast to end first. Two of one length may
//! be swapped; the sum of their latencies stays what it was.
//!
//! A decision whose request never gets there (a dry run, a prefill that failed) must not be taken by the next
//! request of its length, whose own would then be left for the one after. A worker cannot have more
//! decisions waiting than the host counts requests on it, so when it has for a second, the oldest go. The
//! second covers requests on their way between the two legs.

use std::collections::BTreeMap;
use std::time::Duration;

use regime_core::{Millis, Timestamp, Tokens, WorkerKey};

use super::meter::Ticket;
use crate::journal::Decision;

/// How long more decisions may wait than the host counts requests.
const GRACE: Duration = Duration::from_secs(1);
/// Age at which a decision is given up: no prefill takes that long.
const MAX_AGE: Duration = Duration::from_secs(120);
/// Decisions kept: as many as requests in a ledger.
const CAPACITY: usize = 65_536;

#[derive(Debug, Clone, Copy)]
struct Waiting {
    at: Timestamp,
    /// When its prefill was forecast to end, since the origin.
    due: Millis,
    worker: WorkerKey,
    /// Of a decision that is kept to be measured.
    ticket: Option<Ticket>,
}

/// Decisions that wait on one worker.
#[derive(Debug, Default)]
struct OnWorker {
    waiting: usize,
    /// Since when there are more than requests, and how many more at least.
    excess: Option<(Timestamp, usize)>,
}

/// Decisions of a prefill pool, by prompt length.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    by_prompt: BTreeMap<Tokens, Vec<Waiting>>,
    workers: BTreeMap<WorkerKey, OnWorker>,
    len: usize,
}

impl Handover {
    /// Take note of a decision, in the order of their times.
    pub(crate) fn push(&mut self, decision: &Decision, ticket: Option<Ticket>) {
        self.check(decision);
        let Some(row) = decision.chosen_row() else {
            return;
        };
        if self.len >= CAPACITY {
            self.remove_if(|waiting| decision.at.since(waiting.at) > MAX_AGE);
        }
        if self.len < CAPACITY {
            let waiting = Waiting {
                at: decision.at,
                due: Millis::from(decision.at.since(Timestamp::ORIGIN)) + row.predicted_ms,
                worker: decision.chosen,
                ticket,
            };
            let same = self.by_prompt.entry(decision.prompt_tokens).or_default();
            same.push(waiting);
            self.workers.entry(waiting.worker).or_default().waiting += 1;
            self.len += 1;
        }
    }

    /// Claim the decision behind a request of `prompt` tokens that is routed to a decode worker. The ticket
    /// is absent where there is none and where it is not kept.
    pub(crate) fn claim(&mut self, prompt: Tokens, now: Timestamp) -> Option<Ticket> {
        let same = self.by_prompt.get_mut(&prompt)?;
        let young = |waiting: &Waiting| now.since(waiting.at) <= MAX_AGE;
        let candidates = same.iter().enumerate().filter(|(_, it)| young(it));
        let (index, _) = candidates.min_by(|(_, a), (_, b)| a.due.get().total_cmp(&b.due.get()))?;
        let claimed = same.remove(index);
        if same.is_empty() {
            self.by_prompt.remove(&prompt);
        }
        self.forget(claimed.worker);
        claimed.ticket
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(WorkerKey) -> bool) {
        self.remove_if(|waiting| !keep(waiting.worker));
    }

    /// Drop what cannot be waiting any more by what the host counts.
    fn check(&mut self, decision: &Decision) {
        for row in decision.rows.iter().filter(|row| row.load_known) {
            let Some(on_worker) = self.workers.get_mut(&row.worker) else {
                continue;
            };
            let more = on_worker
                .waiting
                .saturating_sub(row.active_requests as usize);
            let (since, least) = on_worker.excess.unwrap_or((decision.at, more));
            let least = least.min(more);
            let over = decision.at.since(since) >= GRACE;
            on_worker.excess = (least > 0 && !over).then_some((since, least));
            if over {
                self.drop_oldest(row.worker, least);
            }
        }
    }

    fn drop_oldest(&mut self, worker: WorkerKey, count: usize) {
        let all = self.by_prompt.values().flatten();
        let mut times: Vec<_> = all
            .filter(|waiting| waiting.worker == worker)
            .map(|waiting| waiting.at)
            .collect();
        times.sort_unstable();
        if let Some(&last) = count.checked_sub(1).and_then(|index| times.get(index)) {
            self.remove_if(|waiting| waiting.worker == worker && waiting.at <= last);
        }
    }

    fn remove_if(&mut self, remove: impl Fn(&Waiting) -> bool) {
        let mut removed = Vec::new();
        self.by_prompt.retain(|_, same| {
            removed.extend(same.extract_if(.., |waiting| remove(waiting)));
            !same.is_empty()
        });
        for waiting in removed {
            self.forget(waiting.worker);
        }
    }

    /// One decision less waits on `worker`.
    fn forget(&mut self, worker: WorkerKey) {
        self.len -= 1;
        if let Some(on_worker) = self.workers.get_mut(&worker) {
            on_worker.waiting -= 1;
            if on_worker.waiting == 0 {
                self.workers.remove(&worker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::DecisionRow;
    use regime_kv::Brought;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// A choice of worker `chosen` of two, forecast to take `predicted`, with `active` requests on them.
    fn decision(
        at_ms: u64,
        prompt: u64,
        chosen: u64,
        predicted: f64,
        active: [u32; 2],
    ) -> Decision {
        let rows = (0..).zip(active).map(|(id, active)| DecisionRow {
            worker: WorkerKey::new(id, 0),
            cost: 0.0,
            predicted_ms: Millis::new(predicted),
            alone_ms: Millis::ZERO,
            uncached_tokens: 0.0,
            queued_tokens: 0.0,
            active_requests: f64::from(active),
            load_known: true,
            brought: Brought::default(),
        });
        Decision {
            at: at(at_ms),
            prompt_tokens: Tokens(prompt),
            chosen: WorkerKey::new(chosen, 0),
            rows: rows.collect(),
            ..Decision::default()
        }
    }

    /// Push a decision of 64 tokens whose ticket is told apart by its number.
    fn push(handover: &mut Handover, number: u64, decision: &Decision) {
        handover.push(decision, Some(Ticket::new(number, 0)));
    }

    fn claim(handover: &mut Handover, prompt: u64, at_ms: u64) -> Option<Ticket> {
        handover.claim(Tokens(prompt), at(at_ms))
    }

    fn ticket(number: u64) -> Option<Ticket> {
        Some(Ticket::new(number, 0))
    }

    #[test]
    fn a_request_takes_the_decision_of_its_length_that_ends_first() {
        let mut handover = Handover::default();
        push(&mut handover, 0, &decision(0, 64, 0, 300.0, [0, 0]));
        push(&mut handover, 1, &decision(10, 64, 1, 100.0, [1, 0]));
        push(&mut handover, 2, &decision(20, 32, 1, 10.0, [1, 1]));
        assert_eq!(claim(&mut handover, 64, 110), ticket(1));
        assert_eq!(claim(&mut handover, 64, 300), ticket(0));
        assert_eq!(claim(&mut handover, 64, 301), None);
        assert_eq!(claim(&mut handover, 32, 301), ticket(2));
        assert_eq!((handover.len, handover.workers.len()), (0, 0));
    }

    #[test]
    fn a_decision_that_is_not_kept_is_claimed_all_the_same() {
        let mut handover = Handover::default();
        handover.push(&decision(0, 64, 0, 100.0, [0, 0]), None);
        push(&mut handover, 1, &decision(10, 64, 0, 100.0, [1, 0]));
        assert_eq!(claim(&mut handover, 64, 100), None);
        assert_eq!(claim(&mut handover, 64, 200), ticket(1));
    }

    #[test]
    fn a_decision_without_a_request_is_dropped_and_not_taken_by_the_next() {
        let mut handover = Handover::default();
        // The first never gets to decode routing. Its worker has no request then, and the second there one.
        push(&mut handover, 0, &decision(0, 64, 0, 100.0, [0, 0]));
        push(&mut handover, 1, &decision(2_000, 32, 1, 5_000.0, [0, 0]));
        push(&mut handover, 2, &decision(3_000, 64, 0, 100.0, [0, 1]));
        assert_eq!(claim(&mut handover, 64, 3_100), ticket(2));
        assert_eq!(claim(&mut handover, 32, 7_000), ticket(1));
    }

    #[test]
    fn requests_between_their_two_legs_are_waited_for() {
        let mut handover = Handover::default();
        // The host counts the prefill as ended, and decode routing is not reached yet.
        push(&mut handover, 0, &decision(0, 64, 0, 100.0, [0, 0]));
        push(&mut handover, 1, &decision(100, 32, 1, 100.0, [0, 0]));
        push(&mut handover, 2, &decision(1_099, 32, 1, 100.0, [0, 1]));
        assert_eq!(claim(&mut handover, 64, 1_100), ticket(0));
    }

    #[test]
    fn an_excess_that_ends_is_none() {
        let mut handover = Handover::default();
        push(&mut handover, 0, &decision(0, 64, 0, 100.0, [0, 0]));
        push(&mut handover, 1, &decision(100, 32, 1, 1.0, [0, 0]));
        push(&mut handover, 2, &decision(600, 32, 1, 1.0, [1, 1]));
        push(&mut handover, 3, &decision(1_200, 32, 1, 1.0, [0, 2]));
        assert_eq!(claim(&mut handover, 64, 1_300), ticket(0));
    }

    #[test]
    fn decisions_age_out_and_go_with_their_worker() {
        let mut handover = Handover::default();
        push(&mut handover, 0, &decision(0, 64, 0, 100.0, [0, 0]));
        assert_eq!(claim(&mut handover, 64, 120_001), None);
        handover.retain(|worker| worker.id != 0);
        assert_eq!((handover.len, handover.workers.len()), (0, 0));
    }

    #[test]
    fn memory_is_bounded_without_claims() {
        let mut handover = Handover::default();
        for number in 0..CAPACITY as u64 + 10 {
            push(
                &mut handover,
                number,
                &decision(number / 1_000, 64, 0, 1.0, [u32::MAX, 0]),
            );
        }
        assert_eq!(handover.len, CAPACITY);
    }
}
