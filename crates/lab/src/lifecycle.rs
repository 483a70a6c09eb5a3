// SPDX-License-Identifier: Apache-2.0

//! Telling a policy what became of requests, in virtual time.
//!
//! A live frontend feeds the regime-aware policy from two sources, and so does the lab, with the same
//! gaps: classifier events reach the aggregated or the decode pool request by request, and the prefill
//! pool, which no classifier event reaches, gets the TTFT that the frontend measured. In disaggregated
//! serving the classifier sees a request when decode routing starts, after its prefill.
//!
//! The TTFT is that of the first token which left the fleet, from the arrival of the request, at the
//! very instant it left. The live frontend reads a histogram once a second instead; its buckets and its
//! second are left out, so that what is simulated is the policy and not the sampling.

use dynamo_kv_router::WorkerType;
use regime_core::{Timestamp, Tokens, WorkerKey};
use regime_policy::{Feedback, FeedbackParameters, Handle, ParameterError, TtftDelta};

use crate::policies::MODEL;

/// Wants to be told of requests. Every method is called in the order of virtual time, with the clock of
/// the run already moved to that time.
pub trait Lifecycle {
    /// The router of `role` was asked for a worker.
    fn routing(&mut self, role: WorkerType, id: &str, prompt_tokens: usize) {
        let _ = (role, id, prompt_tokens);
    }
    /// The request belongs to a session; the worker that it is to prefer, as a classifier may name one. It
    /// reaches the policy as `affinity_target`.
    fn session_target(&mut self, turn: &SessionTurn<'_>) -> Option<WorkerKey> {
        let _ = turn;
        None
    }
    /// The request was sent to `worker` of the pool of `role`.
    fn sent(&mut self, role: WorkerType, id: &str, worker: WorkerKey) {
        let _ = (role, id, worker);
    }
    /// The first token left `worker`, `ttft_ms` after the arrival of the request.
    fn first_token(&mut self, role: WorkerType, id: &str, worker: WorkerKey, ttft_ms: f64) {
        let _ = (role, id, worker, ttft_ms);
    }
    /// The last token left `worker`; `context_tokens` is prompt plus generated tokens.
    fn completed(&mut self, role: WorkerType, id: &str, worker: WorkerKey, context_tokens: usize) {
        let _ = (role, id, worker, context_tokens);
    }
    /// The request ended without being served; `worker` is absent when none was chosen.
    fn aborted(&mut self, role: WorkerType, id: &str, worker: Option<WorkerKey>) {
        let _ = (role, id, worker);
    }
}

/// What a classifier may know of a request that belongs to a session.
pub struct SessionTurn<'a> {
    /// Role of the pool that was asked for a worker.
    pub role: WorkerType,
    /// The request.
    pub id: &'a str,
    /// Its session.
    pub session: &'a str,
    /// Length of the prompt.
    pub prompt_tokens: usize,
    /// Tokens in one KV block.
    pub block_size: u32,
    /// KV blocks that a worker holds in device memory; none of a worker that is not in the pool.
    pub device_blocks: &'a dyn Fn(WorkerKey) -> Option<u64>,
}

/// Our own plugin behind [`Lifecycle`].
pub struct RegimeLifecycle {
    handle: Handle,
    feedback: Feedback,
    /// Whether our policy chooses in this run; known once its pools exist.
    chooses: Option<bool>,
}

impl RegimeLifecycle {
    /// Tell the plugin behind `handle`; `workers` is the fleet, as in [`Link::workers`](crate::Link).
    #[must_use]
    pub fn new(handle: &Handle, workers: &[(WorkerType, WorkerKey)]) -> Self {
        let listed = listed(workers);
        Self {
            handle: handle.clone(),
            feedback: handle.feedback(move || listed.clone()),
            chooses: None,
        }
    }

    /// The same with the parameters of a classifier.
    ///
    /// # Errors
    /// Names the first that is out of range.
    pub fn with_parameters(
        handle: &Handle,
        workers: &[(WorkerType, WorkerKey)],
        parameters: FeedbackParameters,
    ) -> Result<Self, ParameterError> {
        let listed = listed(workers);
        Ok(Self {
            handle: handle.clone(),
            feedback: handle.feedback_with(parameters, move || listed.clone())?,
            chooses: None,
        })
    }

    fn chooses(&mut self) -> bool {
        *self
            .chooses
            .get_or_insert_with(|| !self.handle.report().pools.is_empty())
    }
}

/// The workers that classifier events reach.
fn listed(workers: &[(WorkerType, WorkerKey)]) -> Vec<WorkerKey> {
    workers
        .iter()
        .filter(|(role, _)| *role != WorkerType::Prefill)
        .map(|(_, worker)| *worker)
        .collect()
}

impl Lifecycle for RegimeLifecycle {
    fn routing(&mut self, role: WorkerType, id: &str, prompt_tokens: usize) {
        if role != WorkerType::Prefill && self.chooses() {
            let now: Timestamp = self.feedback.clock().now();
            self.feedback
                .classified(id, now, Tokens(prompt_tokens as u64));
        }
    }

    fn session_target(&mut self, turn: &SessionTurn<'_>) -> Option<WorkerKey> {
        if turn.role == WorkerType::Prefill || !self.chooses() {
            return None;
        }
        self.feedback.joined(turn.id, turn.session);
        self.feedback.session_target(
            turn.session,
            Tokens(turn.prompt_tokens as u64),
            turn.block_size,
            turn.device_blocks,
        )
    }

    fn sent(&mut self, role: WorkerType, id: &str, worker: WorkerKey) {
        if role != WorkerType::Prefill && self.chooses() {
            self.feedback.sent(id, worker);
        }
    }

    fn first_token(&mut self, role: WorkerType, id: &str, worker: WorkerKey, ttft_ms: f64) {
        if !self.chooses() {
            return;
        }
        self.feedback.responding(id, worker, Some(1));
        if role == WorkerType::Decode {
            let delta = TtftDelta {
                buckets: vec![(ttft_ms, 1)],
                sum_ms: ttft_ms,
                count: 1,
            };
            self.handle.observe_frontend_ttft(MODEL, &delta);
        }
    }

    fn completed(&mut self, _: WorkerType, id: &str, worker: WorkerKey, context_tokens: usize) {
        if self.chooses() {
            self.feedback
                .completed(id, worker, Some(context_tokens as u64));
        }
    }

    fn aborted(&mut self, role: WorkerType, id: &str, worker: Option<WorkerKey>) {
        if role != WorkerType::Prefill && self.chooses() {
            self.feedback.aborted(id, worker, true);
        }
    }
}
