// SPDX-License-Identifier: Apache-2.0

//! `regime-feedback`: the request classifier through which Dynamo tells us what became of requests.
//!
//! It changes nothing about a request, unless sessions may get a [soft target](SessionTarget); a hard pin
//! stays as it is. It is a thin shell: every event goes to a ledger with the time
//! of its delivery, and the ledger's conclusions go to the pools. Two facts of Dynamo 1.6.1 shape it.
//! `Responding` fires on the first response item of any kind, an error included, so the request's
//! progress counter decides whether a token came. And a request that migrates repeats `Sent` and
//! `Responding` under one id, without a second `classify`.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dynamo_kv_router::plugins::request_classifier::{
    ClassifyEvent, ClassifyFuture, ClassifyRequest, RequestClassifier, RequestClassifierContext,
    RequestProgress,
};
use dynamo_kv_router::protocols::WorkerWithDpRank;
use regime_core::{Ledger, LedgerConfig, Tokens, WorkerKey};
use serde::{Deserialize, Serialize};

use crate::feedback::Feedback;
use crate::key_of;
use crate::parameters::ParameterError;
use crate::pool::Attached;
use crate::sessions::SessionLimits;

/// Parameters of a `regime-feedback` classifier.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackParameters {
    /// Requests tracked at once, at least 1; beyond it the oldest is closed as evicted.
    pub max_requests: usize,
    /// Age at which a request that nothing ended is closed, s, above 0.
    pub max_age_s: f64,
    /// Sending a session back to the worker that holds its prefix in a lower tier.
    pub session_target: SessionTarget,
}

/// A soft target for turns whose prefix no KV event tells of; see `docs/tiers.md`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionTarget {
    /// Whether any target is set.
    pub enabled: bool,
    /// Sessions remembered, at least 1; beyond it the one served longest ago is forgotten.
    pub max_sessions: usize,
    /// Time since its last turn at which a session is forgotten, s, above 0.
    pub max_age_s: f64,
}

impl Default for FeedbackParameters {
    fn default() -> Self {
        let LedgerConfig {
            max_entries,
            max_age,
        } = LedgerConfig::default();
        Self {
            max_requests: max_entries,
            max_age_s: max_age.as_secs_f64(),
            session_target: SessionTarget::default(),
        }
    }
}

impl Default for SessionTarget {
    fn default() -> Self {
        Self {
            enabled: false,
            max_sessions: 65_536,
            max_age_s: 600.0,
        }
    }
}

impl FeedbackParameters {
    /// Check every range: an empty ledger, and how much is remembered of sessions where they get a target.
    ///
    /// # Errors
    /// Names the first key out of range, its value and what is allowed.
    pub(crate) fn check(self) -> Result<(Ledger<Attached>, Option<SessionLimits>), ParameterError> {
        let seconds = |value| Duration::try_from_secs_f64(value).unwrap_or_default();
        let config = LedgerConfig {
            max_entries: self.max_requests,
            max_age: seconds(self.max_age_s),
        };
        let ledger = Ledger::new(config).map_err(|error| ParameterError::Section {
            section: "max_requests, max_age_s",
            reason: error.to_string(),
        })?;
        let target = self.session_target;
        let refuse = |key: &str, value: String, allowed| ParameterError::OutOfRange {
            key: format!("session_target.{key}"),
            value,
            allowed,
        };
        if target.max_sessions == 0 {
            return Err(refuse("max_sessions", "0".to_owned(), "at least 1"));
        }
        if !(1e-3..=1e9).contains(&target.max_age_s) {
            let value = target.max_age_s.to_string();
            return Err(refuse("max_age_s", value, "0.001 to 1000000000"));
        }
        let limits = SessionLimits {
            max_sessions: target.max_sessions,
            max_age: seconds(target.max_age_s),
        };
        Ok((ledger, target.enabled.then_some(limits)))
    }
}

/// The classifier of one model's router: a shell that turns events into [`Feedback`] calls.
pub(crate) struct FeedbackClassifier {
    feedback: Feedback,
    context: RequestClassifierContext,
    max_requests: usize,
    /// Dynamo's own counters of live requests, by id.
    live: HashMap<String, Live>,
}

struct Live {
    prompt_tokens: usize,
    progress: RequestProgress,
}

impl Live {
    fn generated(&self) -> u64 {
        (self.progress.context_tokens()).saturating_sub(self.prompt_tokens) as u64
    }
}

impl FeedbackClassifier {
    pub(crate) fn new(
        feedback: Feedback,
        context: RequestClassifierContext,
        max_requests: usize,
    ) -> Self {
        Self {
            feedback,
            context,
            max_requests,
            live: HashMap::new(),
        }
    }

    /// The worker to which a request had better go for the sake of its session.
    fn session_target(&self, request: &ClassifyRequest) -> Option<WorkerWithDpRank> {
        let session = request.session_context()?.session_id();
        let id = request.request_id()?;
        self.feedback.joined(id, session);
        if request.pinned_worker().is_some() {
            return None;
        }
        let prompt = Tokens(request.input_tokens() as u64);
        let device_blocks = |wanted: WorkerKey| {
            let workers = self.context.workers();
            let worker = workers.iter().find(|it| key_of(it.worker()) == wanted)?;
            worker.total_kv_blocks()
        };
        let block_size = self.context.block_size();
        let feedback = &self.feedback;
        let target = feedback.session_target(session, prompt, block_size, &device_blocks)?;
        Some(WorkerWithDpRank::new(target.id, target.rank))
    }

    fn apply(&mut self, event: ClassifyEvent) {
        match event {
            ClassifyEvent::Sent { request_id, worker } => {
                self.feedback.sent(&request_id, key_of(worker));
            }
            ClassifyEvent::Responding { request_id, worker } => {
                let generated = self.live.get(&request_id).map(Live::generated);
                self.feedback
                    .responding(&request_id, key_of(worker), generated);
            }
            ClassifyEvent::Completed {
                request_id,
                worker,
                context_tokens,
            } => {
                self.live.remove(&request_id);
                let context = context_tokens.map(|tokens| tokens as u64);
                self.feedback
                    .completed(&request_id, key_of(worker), context);
            }
            ClassifyEvent::Aborted {
                request_id,
                worker,
                error,
            } => {
                self.live.remove(&request_id);
                self.feedback
                    .aborted(&request_id, worker.map(key_of), error.is_some());
            }
            // The event type is open: a later Dynamo may tell more than this version understands.
            _ => {}
        }
    }
}

#[async_trait]
impl RequestClassifier for FeedbackClassifier {
    fn classify(&mut self, mut request: ClassifyRequest) -> ClassifyFuture {
        if let Some(id) = request.request_id() {
            let prompt_tokens = request.input_tokens();
            let ingress = self.feedback.clock().now() - request.ingress_at().elapsed();
            self.feedback
                .classified(id, ingress, Tokens(prompt_tokens as u64));
            // Beyond the bound a request only loses the check for false starts.
            if self.live.len() < self.max_requests {
                let progress = request.progress().clone();
                let live = Live {
                    prompt_tokens,
                    progress,
                };
                self.live.insert(id.to_owned(), live);
            }
        }
        if let Some(target) = self.session_target(&request) {
            request.set_worker_selection_target(target);
        }
        Box::pin(std::future::ready(Ok(request)))
    }

    async fn on_event(&mut self, event: ClassifyEvent) {
        self.apply(event);
    }
}
