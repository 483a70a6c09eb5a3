// SPDX-License-Identifier: Apache-2.0

//! The request ledger: from lifecycle events to latency samples, failures and in-flight gauges.
//!
//! A request is opened by `classified`, dispatched by `sent`, and closed by `completed` or `aborted`.
//! Between them it makes one or more *attempts*: a migration or a retry sends the same id again. Every
//! attempt ends in exactly one [`Ended`], whatever happens, so a gauge that an attempt raised always
//! comes down again (field report BR-12).
//!
//! What counts as what:
//!
//! - A first token is a response event after at least one generated token. The host reports the first
//!   response item of any kind, and a worker that dies during prefill answers with an error item: such
//!   a false start leaves the attempt waiting.
//! - TTFT runs from ingress to the first token of the request, once per request. A later attempt of a
//!   request that had already begun to answer yields a service time, but no TTFT.
//! - No first token, no sample: neither a fast failure nor a long completion without a response event
//!   says anything about latency (field report BR-08).
//! - An attempt is a failure of its worker when it ended in an error, or was replaced by another
//!   attempt, before its first token. A client that walks away is not. Neither is an abort without an
//!   error after the first token: in bootstrap mode the host reports successful requests like that.
//!
//! Events may be lost, doubled or out of order: what fits no live request is counted as stray and
//! changes nothing. Requests whose end never comes are closed when they are too old or too many.
//!
//! 65,536 requests are more than a frontend has in flight, at about 200 bytes each; no request of a
//! chat client lives for an hour.
//!
//! Source: Dynamo's `ClassifyEvent` and its lifecycle of retries.

use std::collections::BTreeMap;
use std::time::Duration;

use hashlink::LinkedHashMap;
use serde::Serialize;
use thiserror::Error;

use crate::{Millis, Timestamp, Tokens, WorkerKey};

/// Bounds of a [`Ledger`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Requests tracked at once; one more closes the oldest. At least 1; default 65,536.
    pub max_entries: usize,
    /// Age at which [`Ledger::expire`] closes a request. Above zero; default 1 h.
    pub max_age: Duration,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            max_entries: 65_536,
            max_age: Duration::from_secs(3_600),
        }
    }
}

impl LedgerConfig {
    /// Check every setting.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn validate(&self) -> Result<(), LedgerError> {
        if self.max_entries == 0 {
            return Err(LedgerError::MaxEntries(self.max_entries));
        }
        if self.max_age.is_zero() {
            return Err(LedgerError::MaxAge(self.max_age));
        }
        Ok(())
    }
}

/// A setting of [`LedgerConfig`] outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// A ledger without entries tracks nothing.
    #[error("max_entries is {0}; allowed: at least 1")]
    MaxEntries(usize),
    /// Every request would be too old at once.
    #[error("max_age is {0:?}; allowed: above 0")]
    MaxAge(Duration),
}

/// How an attempt, or a request without a live attempt, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Completed after a first token.
    Completed,
    /// Completed, but no first token was ever reported.
    CompletedWithoutFirstToken,
    /// Aborted with an error.
    Aborted,
    /// Aborted without an error before the first token: the client went away.
    Cancelled,
    /// Aborted without an error after the first token: the client went away, or the host reports a
    /// successful request this way.
    EndedEarly,
    /// Replaced by another attempt of the same request.
    Migrated,
    /// Its worker left the pool; the request may still be sent elsewhere.
    WorkerLeft,
    /// Closed by the ledger: too old, over the limit, or its id was used again.
    Evicted,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 8] = [
        Self::Completed,
        Self::CompletedWithoutFirstToken,
        Self::Aborted,
        Self::Cancelled,
        Self::EndedEarly,
        Self::Migrated,
        Self::WorkerLeft,
        Self::Evicted,
    ];

    /// The name as it appears in metrics and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::CompletedWithoutFirstToken => "completed_without_first_token",
            Self::Aborted => "aborted",
            Self::Cancelled => "cancelled",
            Self::EndedEarly => "ended_early",
            Self::Migrated => "migrated",
            Self::WorkerLeft => "worker_left",
            Self::Evicted => "evicted",
        }
    }
}

/// What the ledger concludes from events. `T` is whatever the caller attached to the attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome<T> {
    /// An attempt began.
    Sent(Sent),
    /// An attempt answered.
    FirstToken(FirstToken<T>),
    /// An attempt ended, or a request without a live attempt did.
    Ended(Ended<T>),
}

/// An attempt began: a request was dispatched to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Where it was sent.
    pub worker: WorkerKey,
    /// When it was sent.
    pub at: Timestamp,
    /// Prompt length; absent when the request was never classified.
    pub prompt_tokens: Option<Tokens>,
    /// 1 for the first attempt of a request.
    pub attempt: u32,
}

/// First token of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstToken<T> {
    /// Who answered.
    pub worker: WorkerKey,
    /// When the token was reported.
    pub at: Timestamp,
    /// When this attempt was sent.
    pub sent_at: Timestamp,
    /// User-visible time to first token, from ingress; absent when an earlier attempt of the request
    /// had already answered. Measured from the first dispatch for a request that was never classified.
    pub ttft: Option<Millis>,
    /// From the dispatch of this attempt to its first token.
    pub service: Millis,
    /// From ingress to the dispatch of this attempt. For a later attempt this includes the failed
    /// ones.
    pub queue_wait: Millis,
    /// Prompt length; absent when the request was never classified.
    pub prompt_tokens: Option<Tokens>,
    /// What the caller attached to the attempt.
    pub payload: Option<T>,
}

/// End of an attempt, or of a request without a live attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended<T> {
    /// Worker of the attempt; absent when no attempt was live.
    pub worker: Option<WorkerKey>,
    /// When it ended.
    pub at: Timestamp,
    /// How it ended.
    pub ending: Ending,
    /// When the attempt was sent; absent together with `worker`.
    pub sent_at: Option<Timestamp>,
    /// The decode phase; absent when the attempt had no first token.
    pub decode: Option<Decode>,
    /// What the caller attached to the attempt.
    pub payload: Option<T>,
}

impl<T> Ended<T> {
    /// Whether the attempt answered at all.
    #[must_use]
    pub const fn had_first_token(&self) -> bool {
        self.decode.is_some()
    }

    /// Whether the worker failed: the attempt broke off before its first token. An error after the
    /// first token, or a client that went away, is left to the caller to judge by `ending`.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        self.worker.is_some()
            && self.decode.is_none()
            && matches!(self.ending, Ending::Aborted | Ending::Migrated)
    }
}

/// Decode phase of an attempt: from its first token to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decode {
    /// When the first token was reported.
    pub first_token_at: Timestamp,
    /// From the first token to the end.
    pub span: Millis,
    /// Tokens generated within the span, the first one not counted; absent unless the host reported
    /// both the prompt and the final context.
    pub tokens: Option<u64>,
}

impl Decode {
    /// Time per generated token; absent when the number of tokens is unknown or zero.
    #[must_use]
    pub fn step(&self) -> Option<Millis> {
        self.span
            .ratio(Millis::new(self.tokens? as f64))
            .map(Millis::new)
    }
}

/// Live attempts on one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct InFlight {
    /// Sent, no first token yet.
    pub waiting: u32,
    /// Had a first token, not ended.
    pub running: u32,
}

/// Totals since the ledger was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LedgerCounts {
    /// Requests opened by `classified`.
    pub classified: u64,
    /// Requests opened by `sent`, because their `classified` was lost.
    pub unclassified: u64,
    /// Attempts.
    pub sent: u64,
    /// Requests that got a first token: the number of TTFT samples.
    pub first_tokens: u64,
    /// Response events without a generated token.
    pub false_starts: u64,
    /// Requests completed, with or without a first token.
    pub completed: u64,
    /// Of these, without a first token.
    pub no_first_token: u64,
    /// Requests aborted with an error.
    pub aborted: u64,
    /// Requests aborted without an error before the first token.
    pub cancelled: u64,
    /// Requests aborted without an error after the first token.
    pub ended_early: u64,
    /// Attempts replaced by another attempt.
    pub migrated: u64,
    /// Attempts whose worker left the pool.
    pub worker_left: u64,
    /// Requests closed by the ledger itself.
    pub evicted: u64,
    /// Attempts that failed: see [`Ended::is_failure`].
    pub failures: u64,
    /// Events that fitted no live request or attempt.
    pub strays: u64,
}

impl std::ops::AddAssign for LedgerCounts {
    fn add_assign(&mut self, other: Self) {
        self.classified += other.classified;
        self.unclassified += other.unclassified;
        self.sent += other.sent;
        self.first_tokens += other.first_tokens;
        self.false_starts += other.false_starts;
        self.completed += other.completed;
        self.no_first_token += other.no_first_token;
        self.aborted += other.aborted;
        self.cancelled += other.cancelled;
        self.ended_early += other.ended_early;
        self.migrated += other.migrated;
        self.worker_left += other.worker_left;
        self.evicted += other.evicted;
        self.failures += other.failures;
        self.strays += other.strays;
    }
}

impl LedgerCounts {
    /// Requests that ended in any kind of abort.
    #[must_use]
    pub const fn aborts(&self) -> u64 {
        self.aborted + self.cancelled + self.ended_early
    }

    fn record(&mut self, ending: Ending) {
        match ending {
            Ending::Completed => self.completed += 1,
            Ending::CompletedWithoutFirstToken => {
                self.completed += 1;
                self.no_first_token += 1;
            }
            Ending::Aborted => self.aborted += 1,
            Ending::Cancelled => self.cancelled += 1,
            Ending::EndedEarly => self.ended_early += 1,
            Ending::Migrated => self.migrated += 1,
            Ending::WorkerLeft => self.worker_left += 1,
            Ending::Evicted => self.evicted += 1,
        }
    }
}

/// Lifecycle accounting for every request of a router. Outcomes are pushed to the vector that the
/// caller passes, which can be reused.
#[derive(Debug, Clone)]
pub struct Ledger<T> {
    config: LedgerConfig,
    /// In the order in which requests were opened.
    entries: LinkedHashMap<String, Entry<T>>,
    /// Memory of closed ids, for reuse.
    spare_ids: Vec<String>,
    books: Books,
}

#[derive(Debug, Clone)]
struct Entry<T> {
    opened_at: Timestamp,
    ingress: Timestamp,
    prompt_tokens: Option<Tokens>,
    attempts: u32,
    answered: bool,
    attempt: Option<Attempt<T>>,
}

#[derive(Debug, Clone)]
struct Attempt<T> {
    worker: WorkerKey,
    sent_at: Timestamp,
    first_token: Option<Answer>,
    payload: Option<T>,
}

/// The first token of an attempt, and how many tokens the request had generated by then.
#[derive(Debug, Clone, Copy)]
struct Answer {
    at: Timestamp,
    generated: u64,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            config: LedgerConfig::default(),
            entries: LinkedHashMap::new(),
            spare_ids: Vec::new(),
            books: Books::default(),
        }
    }
}

impl<T: Clone> Ledger<T> {
    /// An empty ledger.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn new(config: LedgerConfig) -> Result<Self, LedgerError> {
        config.validate()?;
        Ok(Self {
            config,
            ..Self::default()
        })
    }

    /// A request reached the router at `at`. An id that is still live is closed first; one that was
    /// opened by `sent` only gets its missing facts.
    pub fn classified(
        &mut self,
        id: &str,
        at: Timestamp,
        prompt_tokens: Tokens,
        out: &mut Vec<Outcome<T>>,
    ) {
        self.books.counts.classified += 1;
        match self.entries.get_mut(id) {
            Some(entry) if entry.prompt_tokens.is_none() => {
                self.books.counts.unclassified -= 1;
                entry.prompt_tokens = Some(prompt_tokens);
                entry.ingress = entry.ingress.min(at);
                return;
            }
            Some(_) => self.close(id, at, Ending::Evicted, None, out),
            None => {}
        }
        self.open(id, at, Some(prompt_tokens), out);
    }

    /// A request was dispatched to `worker`; `payload` comes back with the outcomes of this attempt.
    /// A live attempt of the same request is over: hosts send again only after an attempt broke.
    pub fn sent(
        &mut self,
        id: &str,
        worker: WorkerKey,
        at: Timestamp,
        payload: Option<T>,
        out: &mut Vec<Outcome<T>>,
    ) {
        if !self.entries.contains_key(id) {
            self.books.counts.unclassified += 1;
            self.open(id, at, None, out);
        }
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        if let Some(broken) = entry.attempt.take() {
            self.books.end(broken, at, Ending::Migrated, None, out);
        }
        entry.attempts = entry.attempts.saturating_add(1);
        entry.attempt = Some(Attempt {
            worker,
            sent_at: at,
            first_token: None,
            payload,
        });
        self.books.start(worker);
        out.push(Outcome::Sent(Sent {
            worker,
            at,
            prompt_tokens: entry.prompt_tokens,
            attempt: entry.attempts,
        }));
    }

    /// The first response item of an attempt arrived. `generated_tokens` is what the request has
    /// generated so far: `Some(0)` is a false start, and unknown counts as one token.
    pub fn responding(
        &mut self,
        id: &str,
        worker: WorkerKey,
        at: Timestamp,
        generated_tokens: Option<u64>,
        out: &mut Vec<Outcome<T>>,
    ) {
        let waiting = self.entries.get_mut(id).and_then(|entry| {
            let Entry {
                ingress,
                prompt_tokens,
                answered,
                attempt,
                ..
            } = entry;
            let attempt = attempt
                .as_mut()
                .filter(|attempt| attempt.worker == worker && attempt.first_token.is_none())?;
            Some((*ingress, *prompt_tokens, answered, attempt))
        });
        let Some((ingress, prompt_tokens, answered, attempt)) = waiting else {
            self.books.counts.strays += 1;
            return;
        };
        if generated_tokens == Some(0) {
            self.books.counts.false_starts += 1;
            return;
        }
        let first_of_request = !std::mem::replace(answered, true);
        attempt.first_token = Some(Answer {
            at,
            generated: generated_tokens.unwrap_or(1),
        });
        self.books.answer(worker, first_of_request);
        out.push(Outcome::FirstToken(FirstToken {
            worker,
            at,
            sent_at: attempt.sent_at,
            ttft: first_of_request.then(|| at.since(ingress).into()),
            service: at.since(attempt.sent_at).into(),
            queue_wait: attempt.sent_at.since(ingress).into(),
            prompt_tokens,
            payload: attempt.payload.clone(),
        }));
    }

    /// The request was served. `context_tokens` is prompt plus everything generated.
    pub fn completed(
        &mut self,
        id: &str,
        worker: WorkerKey,
        at: Timestamp,
        context_tokens: Option<u64>,
        out: &mut Vec<Outcome<T>>,
    ) {
        self.finish(id, Some(worker), at, context_tokens, out, |answered| {
            if answered {
                Ending::Completed
            } else {
                Ending::CompletedWithoutFirstToken
            }
        });
    }

    /// The request ended without being served, with or without an error. `worker` is absent when none
    /// was ever chosen.
    pub fn aborted(
        &mut self,
        id: &str,
        worker: Option<WorkerKey>,
        at: Timestamp,
        error: bool,
        out: &mut Vec<Outcome<T>>,
    ) {
        self.finish(id, worker, at, None, out, |answered| {
            match (error, answered) {
                (true, _) => Ending::Aborted,
                (false, false) => Ending::Cancelled,
                (false, true) => Ending::EndedEarly,
            }
        });
    }

    /// Close every request that was opened more than the maximum age before `now`.
    pub fn expire(&mut self, now: Timestamp, out: &mut Vec<Outcome<T>>) {
        while self
            .entries
            .front()
            .is_some_and(|(_, entry)| now.since(entry.opened_at) > self.config.max_age)
        {
            self.evict_oldest(now, out);
        }
    }

    /// `worker` left the pool: its attempts end and its gauges vanish. Their requests stay open, since
    /// they may be sent to another worker.
    pub fn remove_worker(&mut self, worker: WorkerKey, at: Timestamp, out: &mut Vec<Outcome<T>>) {
        self.retain_workers(at, |other| other != worker, out);
    }

    /// [`remove_worker`](Self::remove_worker) for every worker that `keep` refuses.
    pub fn retain_workers(
        &mut self,
        at: Timestamp,
        mut keep: impl FnMut(WorkerKey) -> bool,
        out: &mut Vec<Outcome<T>>,
    ) {
        let before = self.books.in_flight.len();
        let mut live = false;
        self.books.in_flight.retain(|&worker, load| {
            let kept = keep(worker);
            live |= !kept && *load != InFlight::default();
            kept
        });
        if !live || self.books.in_flight.len() == before {
            return;
        }
        for entry in self.entries.values_mut() {
            let gone = entry
                .attempt
                .take_if(|attempt| !self.books.in_flight.contains_key(&attempt.worker));
            if let Some(attempt) = gone {
                self.books.end(attempt, at, Ending::WorkerLeft, None, out);
            }
        }
    }

    /// Live attempts on `worker`; zero for a worker that was never sent anything.
    #[must_use]
    pub fn in_flight(&self, worker: WorkerKey) -> InFlight {
        self.books
            .in_flight
            .get(&worker)
            .copied()
            .unwrap_or_default()
    }

    /// Every worker that was sent a request and has not left, in key order.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerKey, InFlight)> {
        self.books
            .in_flight
            .iter()
            .map(|(&worker, &load)| (worker, load))
    }

    /// Prompt length of an open request that was classified.
    #[must_use]
    pub fn prompt_tokens(&self, id: &str) -> Option<Tokens> {
        self.entries.get(id)?.prompt_tokens
    }

    /// Requests that are open.
    #[must_use]
    pub fn tracked(&self) -> usize {
        self.entries.len()
    }

    /// Totals since the start.
    #[must_use]
    pub const fn counts(&self) -> &LedgerCounts {
        &self.books.counts
    }

    fn open(
        &mut self,
        id: &str,
        at: Timestamp,
        prompt_tokens: Option<Tokens>,
        out: &mut Vec<Outcome<T>>,
    ) {
        while self.entries.len() >= self.config.max_entries {
            self.evict_oldest(at, out);
        }
        let mut key = self.spare_ids.pop().unwrap_or_default();
        key.push_str(id);
        self.entries.insert(
            key,
            Entry {
                opened_at: at,
                ingress: at,
                prompt_tokens,
                attempts: 0,
                answered: false,
                attempt: None,
            },
        );
    }

    /// A terminal event. One that names another worker than the live attempt belongs to a retry that
    /// was never sent, so that the live attempt had broken before.
    fn finish(
        &mut self,
        id: &str,
        worker: Option<WorkerKey>,
        at: Timestamp,
        context_tokens: Option<u64>,
        out: &mut Vec<Outcome<T>>,
        ending: impl FnOnce(bool) -> Ending,
    ) {
        let Some(entry) = self.entries.get_mut(id) else {
            self.books.counts.strays += 1;
            return;
        };
        let ending = ending(entry.answered);
        let generated = context_tokens
            .zip(entry.prompt_tokens)
            .map(|(context, prompt)| context.saturating_sub(prompt.0));
        let broken = entry
            .attempt
            .take_if(|attempt| worker.is_some_and(|worker| worker != attempt.worker));
        if let Some(broken) = broken {
            self.books.end(broken, at, Ending::Migrated, None, out);
        }
        self.close(id, at, ending, generated, out);
    }

    fn evict_oldest(&mut self, at: Timestamp, out: &mut Vec<Outcome<T>>) {
        if let Some((id, entry)) = self.entries.pop_front() {
            self.settle(id, entry, at, Ending::Evicted, None, out);
        }
    }

    fn close(
        &mut self,
        id: &str,
        at: Timestamp,
        ending: Ending,
        generated: Option<u64>,
        out: &mut Vec<Outcome<T>>,
    ) {
        if let Some((id, entry)) = self.entries.remove_entry(id) {
            self.settle(id, entry, at, ending, generated, out);
        }
    }

    /// Account for an entry that was taken out of the map.
    fn settle(
        &mut self,
        mut id: String,
        entry: Entry<T>,
        at: Timestamp,
        ending: Ending,
        generated: Option<u64>,
        out: &mut Vec<Outcome<T>>,
    ) {
        id.clear();
        self.spare_ids.push(id);
        match entry.attempt {
            Some(attempt) => self.books.end(attempt, at, ending, generated, out),
            None => {
                self.books.counts.record(ending);
                out.push(Outcome::Ended(Ended {
                    worker: None,
                    at,
                    ending,
                    sent_at: None,
                    decode: None,
                    payload: None,
                }));
            }
        }
    }
}

/// Gauges and totals.
#[derive(Debug, Clone, Default)]
struct Books {
    in_flight: BTreeMap<WorkerKey, InFlight>,
    counts: LedgerCounts,
}

impl Books {
    fn start(&mut self, worker: WorkerKey) {
        self.counts.sent += 1;
        self.in_flight.entry(worker).or_default().waiting += 1;
    }

    fn answer(&mut self, worker: WorkerKey, first_of_request: bool) {
        self.counts.first_tokens += u64::from(first_of_request);
        if let Some(load) = self.in_flight.get_mut(&worker) {
            load.waiting = load.waiting.saturating_sub(1);
            load.running += 1;
        }
    }

    /// `generated` is what the whole request generated.
    fn end<T>(
        &mut self,
        attempt: Attempt<T>,
        at: Timestamp,
        ending: Ending,
        generated: Option<u64>,
        out: &mut Vec<Outcome<T>>,
    ) {
        if let Some(load) = self.in_flight.get_mut(&attempt.worker) {
            let gauge = match attempt.first_token {
                Some(_) => &mut load.running,
                None => &mut load.waiting,
            };
            *gauge = gauge.saturating_sub(1);
        }
        self.counts.record(ending);
        let ended = Ended {
            worker: Some(attempt.worker),
            at,
            ending,
            sent_at: Some(attempt.sent_at),
            decode: attempt.first_token.map(|answer| Decode {
                first_token_at: answer.at,
                span: at.since(answer.at).into(),
                tokens: generated.map(|total| total.saturating_sub(answer.generated)),
            }),
            payload: attempt.payload,
        };
        self.counts.failures += u64::from(ended.is_failure());
        out.push(Outcome::Ended(ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: WorkerKey = WorkerKey::new(1, 0);
    const B: WorkerKey = WorkerKey::new(2, 0);
    const PROMPT: Tokens = Tokens(64);

    /// A ledger with the outcomes it has produced; times in ms. The payload is a number.
    struct Fixture {
        ledger: Ledger<u32>,
        out: Vec<Outcome<u32>>,
    }

    impl Fixture {
        fn new() -> Self {
            Self::with(LedgerConfig::default())
        }

        fn with(config: LedgerConfig) -> Self {
            Self {
                ledger: Ledger::new(config).unwrap(),
                out: Vec::new(),
            }
        }

        fn classified(&mut self, id: &str, at: u64) {
            self.ledger.classified(id, ms(at), PROMPT, &mut self.out);
        }

        fn sent(&mut self, id: &str, worker: WorkerKey, at: u64) {
            self.ledger.sent(id, worker, ms(at), Some(7), &mut self.out);
        }

        fn responding(&mut self, id: &str, worker: WorkerKey, at: u64, generated: Option<u64>) {
            self.ledger
                .responding(id, worker, ms(at), generated, &mut self.out);
        }

        fn completed(&mut self, id: &str, worker: WorkerKey, at: u64, context: Option<u64>) {
            self.ledger
                .completed(id, worker, ms(at), context, &mut self.out);
        }

        fn aborted(&mut self, id: &str, worker: Option<WorkerKey>, at: u64, error: bool) {
            self.ledger
                .aborted(id, worker, ms(at), error, &mut self.out);
        }

        fn first_tokens(&self) -> Vec<&FirstToken<u32>> {
            self.out
                .iter()
                .filter_map(|outcome| match outcome {
                    Outcome::FirstToken(token) => Some(token),
                    _ => None,
                })
                .collect()
        }

        fn ended(&self) -> Vec<&Ended<u32>> {
            self.out
                .iter()
                .filter_map(|outcome| match outcome {
                    Outcome::Ended(ended) => Some(ended),
                    _ => None,
                })
                .collect()
        }

        fn failures_of(&self, worker: WorkerKey) -> usize {
            self.ended()
                .iter()
                .filter(|ended| ended.worker == Some(worker) && ended.is_failure())
                .count()
        }

        fn endings(&self) -> Vec<Ending> {
            self.ended().iter().map(|ended| ended.ending).collect()
        }

        fn is_idle(&self) -> bool {
            self.ledger.tracked() == 0
                && self
                    .ledger
                    .workers()
                    .all(|(_, load)| load == InFlight::default())
        }
    }

    fn ms(at: u64) -> Timestamp {
        Timestamp::from_millis(at)
    }

    fn load(waiting: u32, running: u32) -> InFlight {
        InFlight { waiting, running }
    }

    #[test]
    fn a_normal_request_yields_ttft_service_queue_wait_and_decode_step() {
        let mut f = Fixture::new();
        f.classified("r", 100);
        f.sent("r", A, 116);
        assert_eq!(f.ledger.in_flight(A), load(1, 0));
        f.responding("r", A, 139, Some(1));
        assert_eq!(f.ledger.in_flight(A), load(0, 1));
        f.completed("r", A, 159, Some(69));
        assert_eq!(
            f.out,
            vec![
                Outcome::Sent(Sent {
                    worker: A,
                    at: ms(116),
                    prompt_tokens: Some(PROMPT),
                    attempt: 1,
                }),
                Outcome::FirstToken(FirstToken {
                    worker: A,
                    at: ms(139),
                    sent_at: ms(116),
                    ttft: Some(Millis::new(39.0)),
                    service: Millis::new(23.0),
                    queue_wait: Millis::new(16.0),
                    prompt_tokens: Some(PROMPT),
                    payload: Some(7),
                }),
                Outcome::Ended(Ended {
                    worker: Some(A),
                    at: ms(159),
                    ending: Ending::Completed,
                    sent_at: Some(ms(116)),
                    // 69 − 64 = 5 tokens, 4 of them after the first.
                    decode: Some(Decode {
                        first_token_at: ms(139),
                        span: Millis::new(20.0),
                        tokens: Some(4),
                    }),
                    payload: Some(7),
                }),
            ]
        );
        assert_eq!(f.ended()[0].decode.unwrap().step(), Some(Millis::new(5.0)));
        assert!(f.is_idle());
    }

    #[test]
    fn tokens_that_were_out_before_the_response_event_do_not_count_as_decoded() {
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 0);
        // All 8 tokens are out when the event is delivered.
        f.responding("r", A, 50, Some(8));
        f.completed("r", A, 51, Some(72));
        let decode = f.ended()[0].decode.unwrap();
        assert_eq!((decode.tokens, decode.step()), (Some(0), None));
    }

    // Field report BR-08.
    #[test]
    fn failures_and_endings_without_a_token_are_no_latency_samples() {
        let mut f = Fixture::new();
        for n in 0..20 {
            let (good, bad) = (format!("a{n}"), format!("b{n}"));
            f.classified(&good, 0);
            f.classified(&bad, 0);
            f.sent(&good, A, 0);
            f.sent(&bad, B, 0);
            f.aborted(&bad, Some(B), 5, true);
            f.responding(&good, A, 500, Some(1));
            f.completed(&good, A, 600, None);
        }
        for n in 0..5 {
            let silent = format!("c{n}");
            f.classified(&silent, 0);
            f.sent(&silent, A, 0);
            f.completed(&silent, A, 42_000, None);
        }
        let ttfts = f.first_tokens();
        assert_eq!(ttfts.len(), 20);
        assert!(
            ttfts
                .iter()
                .all(|t| t.worker == A && t.ttft == Some(Millis::new(500.0)))
        );
        assert_eq!((f.failures_of(A), f.failures_of(B)), (0, 20));
        let counts = f.ledger.counts();
        assert_eq!((counts.no_first_token, counts.completed), (5, 25));
        assert_eq!((counts.failures, counts.aborted), (20, 20));
        assert!(f.is_idle());
    }

    #[test]
    fn a_migrated_request_has_one_ttft_from_its_first_attempt() {
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 10);
        f.responding("r", A, 30, Some(1));
        f.sent("r", B, 100);
        assert_eq!(
            (f.ledger.in_flight(A), f.ledger.in_flight(B)),
            (load(0, 0), load(1, 0))
        );
        f.responding("r", B, 150, Some(6));
        f.completed("r", B, 190, Some(74));
        let tokens = f.first_tokens();
        assert_eq!(tokens[0].ttft, Some(Millis::new(30.0)));
        assert_eq!(
            (tokens[1].ttft, tokens[1].service),
            (None, Millis::new(50.0))
        );
        assert_eq!(f.endings(), [Ending::Migrated, Ending::Completed]);
        // 10 tokens in all; the second attempt had begun when 6 were out: 4 in 40 ms.
        assert_eq!(f.ended()[1].decode.unwrap().step(), Some(Millis::new(10.0)));
        // The first attempt had answered: it broke later, which is no failure to answer.
        assert_eq!(f.failures_of(A), 0);
        assert_eq!(
            (f.ledger.counts().first_tokens, f.ledger.counts().migrated),
            (1, 1)
        );
        assert!(f.is_idle());
    }

    #[test]
    fn a_false_start_is_a_failure_and_the_second_worker_gives_the_ttft() {
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 10);
        f.responding("r", A, 30, Some(0));
        assert_eq!(f.ledger.in_flight(A), load(1, 0));
        f.sent("r", B, 100);
        f.responding("r", B, 160, Some(3));
        f.completed("r", B, 200, None);
        let tokens = f.first_tokens();
        assert_eq!(tokens.len(), 1);
        assert_eq!(tokens[0].worker, B);
        assert_eq!(tokens[0].ttft, Some(Millis::new(160.0)));
        assert_eq!(tokens[0].service, Millis::new(60.0));
        assert_eq!((f.failures_of(A), f.failures_of(B)), (1, 0));
        assert_eq!(f.ledger.counts().false_starts, 1);
    }

    #[test]
    fn a_worker_killed_in_prefill_is_a_failure_without_a_sample() {
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 1);
        f.responding("r", A, 80, Some(0));
        f.aborted("r", Some(A), 80, true);
        assert!(f.first_tokens().is_empty());
        assert_eq!((f.endings(), f.failures_of(A)), (vec![Ending::Aborted], 1));
        assert!(f.is_idle());
    }

    #[test]
    fn an_abort_without_an_error_after_the_first_token_is_no_failure() {
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 0);
        f.responding("r", A, 50, Some(1));
        f.aborted("r", Some(A), 90, false);
        let ended = f.ended()[0];
        assert_eq!(ended.ending, Ending::EndedEarly);
        assert!(ended.had_first_token() && !ended.is_failure());
        assert_eq!(ended.decode.unwrap().span, Millis::new(40.0));
    }

    #[test]
    fn a_client_that_leaves_before_the_first_token_is_cancelled_and_no_failure() {
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 0);
        f.aborted("r", Some(A), 90, false);
        let ended = f.ended()[0];
        assert_eq!((ended.worker, ended.ending), (Some(A), Ending::Cancelled));
        assert!(!ended.had_first_token() && !ended.is_failure());
        assert!(f.is_idle());
    }

    #[test]
    fn an_end_on_another_worker_means_that_the_live_attempt_had_broken() {
        // A retry was placed on B, but failed before it was sent.
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 0);
        f.aborted("r", Some(B), 20, true);
        assert_eq!(f.endings(), [Ending::Migrated, Ending::Aborted]);
        assert_eq!(f.ended()[1].worker, None);
        assert_eq!(f.failures_of(A), 1);
        assert!(f.is_idle());
    }

    #[test]
    fn a_request_sent_without_being_classified_counts_from_its_dispatch() {
        let mut f = Fixture::new();
        f.sent("r", A, 10);
        f.responding("r", A, 30, None);
        assert_eq!(f.first_tokens()[0].ttft, Some(Millis::new(20.0)));
        assert_eq!(f.first_tokens()[0].prompt_tokens, None);
        assert_eq!(f.ledger.counts().unclassified, 1);
    }

    #[test]
    fn a_late_classification_supplies_the_missing_ingress() {
        let mut f = Fixture::new();
        f.sent("r", A, 10);
        f.classified("r", 4);
        f.responding("r", A, 30, None);
        assert_eq!(f.first_tokens()[0].ttft, Some(Millis::new(26.0)));
        assert_eq!(
            (f.ledger.counts().classified, f.ledger.counts().unclassified),
            (1, 0)
        );
        assert_eq!(f.ledger.tracked(), 1);
    }

    #[test]
    fn a_second_classification_closes_the_old_request() {
        let mut f = Fixture::new();
        f.classified("r", 0);
        f.sent("r", A, 0);
        f.classified("r", 10);
        assert_eq!(f.endings(), [Ending::Evicted]);
        assert_eq!((f.ledger.tracked(), f.ledger.in_flight(A)), (1, load(0, 0)));
    }

    #[test]
    fn events_that_fit_nothing_are_counted_and_change_nothing() {
        let mut f = Fixture::new();
        f.responding("unknown", A, 1, Some(1));
        f.completed("unknown", A, 1, None);
        f.aborted("unknown", None, 1, true);
        f.classified("r", 0);
        f.responding("r", A, 1, Some(1));
        f.sent("r", A, 2);
        f.responding("r", B, 3, Some(1));
        f.responding("r", A, 4, Some(1));
        f.responding("r", A, 5, Some(1));
        assert_eq!(f.ledger.counts().strays, 6);
        assert_eq!(f.first_tokens().len(), 1);
        assert_eq!(f.ledger.in_flight(A), load(0, 1));
    }

    #[test]
    fn a_worker_that_leaves_takes_its_gauges_but_not_its_requests() {
        let mut f = Fixture::new();
        f.classified("waiting", 0);
        f.sent("waiting", A, 0);
        f.classified("running", 0);
        f.sent("running", A, 0);
        f.responding("running", A, 5, Some(1));
        f.classified("other", 0);
        f.sent("other", B, 0);
        f.ledger.remove_worker(A, ms(9), &mut f.out);
        assert_eq!(f.endings(), [Ending::WorkerLeft; 2]);
        assert_eq!(f.ledger.workers().collect::<Vec<_>>(), [(B, load(1, 0))]);
        assert_eq!(f.ledger.tracked(), 3);
        // One migrates, one is completed by the worker that was already gone from the pool.
        f.sent("waiting", B, 10);
        f.completed("running", A, 20, None);
        assert_eq!(f.ended()[2].ending, Ending::Completed);
        assert_eq!(f.ledger.in_flight(B), load(2, 0));
        assert_eq!(f.ledger.counts().failures, 0);
    }

    #[test]
    fn the_oldest_request_is_closed_when_the_ledger_is_full() {
        let mut f = Fixture::with(LedgerConfig {
            max_entries: 2,
            ..LedgerConfig::default()
        });
        for (id, at) in [("first", 0), ("second", 1), ("third", 2)] {
            f.classified(id, at);
            f.sent(id, A, at);
        }
        assert_eq!(
            (f.endings(), f.ledger.tracked()),
            (vec![Ending::Evicted], 2)
        );
        assert_eq!(f.ended()[0].sent_at, Some(ms(0)));
        assert_eq!(f.ledger.in_flight(A), load(2, 0));
    }

    #[test]
    fn a_request_older_than_the_maximum_age_expires() {
        let mut f = Fixture::new();
        f.classified("old", 0);
        f.sent("old", A, 0);
        f.classified("young", 1_000);
        f.ledger.expire(Timestamp::from_secs(3_600), &mut f.out);
        assert_eq!(f.ledger.tracked(), 2);
        f.ledger
            .expire(Timestamp::from_millis(3_600_001), &mut f.out);
        assert_eq!(
            (f.ledger.tracked(), f.endings()),
            (1, vec![Ending::Evicted])
        );
        assert_eq!(f.ledger.in_flight(A), load(0, 0));
        assert_eq!(f.failures_of(A), 0);
    }

    // Field report BR-12.
    #[test]
    fn requests_that_vanish_leave_neither_load_nor_memory_behind() {
        let mut f = Fixture::new();
        for n in 0..1_000 {
            let id = format!("lost-{n}");
            f.classified(&id, n);
            match n {
                0..5 => f.aborted(&id, None, n, true),
                5..10 => f.completed(&id, A, n, None),
                _ => {
                    f.sent(&id, if n % 2 == 0 { A } else { B }, n);
                    f.aborted(&id, None, n + 5, n % 3 == 0);
                }
            }
        }
        assert_eq!(f.ledger.counts().aborts(), 995);
        assert!(f.is_idle());

        let mut capacity = 0;
        for n in 0..100_000 {
            let id = format!("normal-{n}");
            f.out.clear();
            f.classified(&id, n);
            f.sent(&id, A, n);
            f.responding(&id, A, n + 1, Some(1));
            f.completed(&id, A, n + 2, Some(70));
            if n == 50_000 {
                capacity = f.ledger.entries.capacity();
            }
        }
        assert_eq!(f.ledger.entries.capacity(), capacity);
        assert_eq!(f.ledger.spare_ids.len(), 1);
        assert_eq!(
            f.ledger.workers().collect::<Vec<_>>(),
            [(A, load(0, 0)), (B, load(0, 0))]
        );
        assert!(f.is_idle());
    }

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_range() {
        let refusal = |config| Ledger::<()>::new(config).unwrap_err().to_string();
        let good = LedgerConfig::default();
        assert_eq!(
            refusal(LedgerConfig {
                max_entries: 0,
                ..good
            }),
            "max_entries is 0; allowed: at least 1"
        );
        assert_eq!(
            refusal(LedgerConfig {
                max_age: Duration::ZERO,
                ..good
            }),
            "max_age is 0ns; allowed: above 0"
        );
    }

    #[test]
    fn an_ending_has_the_same_name_in_metrics_and_in_json() {
        for ending in Ending::ALL {
            let json = serde_json::to_string(&ending).unwrap();
            assert_eq!(json, format!("\"{}\"", ending.as_str()));
        }
    }

    #[derive(Debug, Clone)]
    enum Event {
        Classified,
        Sent(WorkerKey),
        Responding(WorkerKey, Option<u64>),
        Completed(WorkerKey, Option<u64>),
        Aborted(Option<WorkerKey>, bool),
        Expire,
        RemoveWorker(WorkerKey),
    }

    fn event() -> impl Strategy<Value = Event> {
        let worker = || (0u64..3).prop_map(|id| WorkerKey::new(id, 0));
        prop_oneof![
            3 => Just(Event::Classified),
            4 => worker().prop_map(Event::Sent),
            4 => (worker(), prop::option::of(0u64..3))
                .prop_map(|(worker, generated)| Event::Responding(worker, generated)),
            2 => (worker(), prop::option::of(any::<u64>()))
                .prop_map(|(worker, context)| Event::Completed(worker, context)),
            2 => (prop::option::of(worker()), any::<bool>())
                .prop_map(|(worker, error)| Event::Aborted(worker, error)),
            1 => Just(Event::Expire),
            1 => worker().prop_map(Event::RemoveWorker),
        ]
    }

    impl Fixture {
        fn apply(&mut self, id: &str, at: u64, event: &Event) {
            match *event {
                Event::Classified => self.classified(id, at),
                Event::Sent(worker) => self.sent(id, worker, at),
                Event::Responding(worker, generated) => self.responding(id, worker, at, generated),
                Event::Completed(worker, context) => self.completed(id, worker, at, context),
                Event::Aborted(worker, error) => self.aborted(id, worker, at, error),
                Event::Expire => self.ledger.expire(ms(at), &mut self.out),
                Event::RemoveWorker(worker) => {
                    self.ledger.remove_worker(worker, ms(at), &mut self.out);
                }
            }
        }

        /// Gauges counted from scratch out of the open requests.
        fn recount(&self) -> BTreeMap<WorkerKey, InFlight> {
            let mut gauges = BTreeMap::<_, InFlight>::new();
            for attempt in self
                .ledger
                .entries
                .values()
                .filter_map(|e| e.attempt.as_ref())
            {
                let load = gauges.entry(attempt.worker).or_default();
                match attempt.first_token {
                    Some(_) => load.running += 1,
                    None => load.waiting += 1,
                }
            }
            gauges
        }
    }

    proptest! {
        /// Times are random too, so that events arrive late, doubled and out of order.
        #[test]
        fn whatever_is_lost_doubled_or_reordered_the_gauges_add_up(
            events in prop::collection::vec((0u64..6, 0u64..8_000_000, event()), 0..120),
        ) {
            let mut f = Fixture::with(LedgerConfig { max_entries: 4, ..LedgerConfig::default() });
            for (id, at, event) in &events {
                f.apply(&id.to_string(), *at, event);
                let recount = f.recount();
                for (worker, load) in f.ledger.workers() {
                    prop_assert_eq!(load, recount.get(&worker).copied().unwrap_or_default());
                }
                prop_assert!(recount.keys().all(|w| f.ledger.books.in_flight.contains_key(w)));
                prop_assert!(f.ledger.tracked() <= 4);
            }
            for id in 0..6 {
                f.aborted(&id.to_string(), None, 8_000_000, false);
            }
            prop_assert!(f.is_idle());
            let sent = f.out.iter().filter(|o| matches!(o, Outcome::Sent(_))).count();
            let ended = f.ended().iter().filter(|e| e.worker.is_some()).count();
            prop_assert_eq!(sent, ended);
            prop_assert!(f.ledger.spare_ids.len() <= 4);
        }
    }
}
