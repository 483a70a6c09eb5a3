// SPDX-License-Identifier: Apache-2.0

//! `regime-feedback`: the request classifier through which Dynamo tells us what became of requests.
//!
//! It changes nothing about a request. It is a thin shell: every event goes to a ledger with the time
//! of its delivery, and the ledger's conclusions go to the pools. Two facts of Dynamo 1.6.1 shape it.
//! `Responding` fires on the first response item of any kind, an error included, so the request's
//! progress counter decides whether a token came. And a request that migrates repeats `Sent` and
//! `Responding` under one id, without a second `classify`.

use std::collections::HashMap;

use async_trait::async_trait;
use dynamo_kv_router::plugins::request_classifier::{
    ClassifyEvent, ClassifyFuture, ClassifyRequest, RequestClassifier, RequestProgress,
};
use regime_core::{LedgerConfig, Tokens};
use serde::{Deserialize, Serialize};

use crate::feedback::Feedback;
use crate::key_of;

/// Parameters of a `regime-feedback` classifier.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackParameters {
    /// Requests tracked at once, at least 1; beyond it the oldest is closed as evicted.
    pub max_requests: usize,
    /// Age at which a request that nothing ended is closed, s, above 0.
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
        }
    }
}

impl FeedbackParameters {
    /// The ledger's own settings. What is out of range there is refused there.
    pub(crate) fn ledger(self) -> LedgerConfig {
        LedgerConfig {
            max_entries: self.max_requests,
            max_age: std::time::Duration::try_from_secs_f64(self.max_age_s).unwrap_or_default(),
        }
    }
}

/// The classifier of one model's router: a shell that turns events into [`Feedback`] calls.
pub(crate) struct FeedbackClassifier {
    feedback: Feedback,
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
    pub(crate) fn new(feedback: Feedback, max_requests: usize) -> Self {
        Self {
            feedback,
            max_requests,
            live: HashMap::new(),
        }
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
    fn classify(&mut self, request: ClassifyRequest) -> ClassifyFuture {
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
        Box::pin(std::future::ready(Ok(request)))
    }

    async fn on_event(&mut self, event: ClassifyEvent) {
        self.apply(event);
    }
}
