// SPDX-License-Identifier: Apache-2.0

//! Sessions that are sent back to what they left in a lower tier of which no KV event tells.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dynamo_kv_router::config::RouterQueuePolicy;
use dynamo_kv_router::plugins::request_classifier::{
    RequestClassifierContext, RequestClassifierWorker,
};
use dynamo_kv_router::plugins::worker_selection::WorkerSelectionPolicy;
use dynamo_kv_router::protocols::{RoutingConstraints, WorkerWithDpRank};
use dynamo_kv_router::scheduling::{
    NoopOverlapScoresRefresh, OverlapSignals, PolicyProfile, ScheduleMode, ScheduleRequest,
};
use dynamo_kv_router::{
    ActiveSequencesMultiWorker, LocalScheduler, NoopSequencePublisher, RoutingPartitionRef,
    SessionContext, WorkerType,
};
use regime_core::{Tokens, WorkerKey};
use regime_policy::{Clock, Feedback, FeedbackParameters, Handle, Options, SessionTarget};
use support::{BLOCK_SIZE, Host, Row, TestWorker, key, request, resolve, row, yaml};
use tokio_util::sync::CancellationToken;

const PROMPT: Tokens = Tokens(1_024);
/// Of each worker: 1,600 tokens.
const DEVICE_BLOCKS: u64 = 100;

struct Pool {
    host: Host,
    feedback: Feedback,
}

impl Pool {
    /// Two workers that have served a turn of session `s` on the first, and nothing since.
    fn new(parameters: &str) -> Self {
        Self::on(&format!("{{session_affinity: advisory, {parameters}}}"))
    }

    fn on(parameters: &str) -> Self {
        let host = Host::new(parameters);
        let parameters = FeedbackParameters {
            session_target: SessionTarget {
                enabled: true,
                ..SessionTarget::default()
            },
            ..FeedbackParameters::default()
        };
        let workers = || vec![key(1), key(2)];
        let feedback = host.handle.feedback_with(parameters, workers).unwrap();
        host.select(64, &[row(1), row(2)]);
        let pool = Self { host, feedback };
        pool.serve("first", Some("s"), key(1));
        pool
    }

    fn send(&self, id: &str, session: Option<&str>, worker: WorkerKey) {
        let feedback = &self.feedback;
        feedback.classified(id, self.host.clock.now(), PROMPT);
        if let Some(session) = session {
            feedback.joined(id, session);
        }
        feedback.sent(id, worker);
    }

    /// 1,024 tokens and an answer of one.
    fn serve(&self, id: &str, session: Option<&str>, worker: WorkerKey) {
        self.send(id, session, worker);
        self.host.advance(40);
        self.feedback.responding(id, worker, Some(1));
        self.feedback.completed(id, worker, Some(PROMPT.0 + 1));
    }

    /// 2,050 tokens on `worker`.
    fn push_out(&self, worker: WorkerKey) {
        self.serve("second", None, worker);
        self.serve("third", None, worker);
    }

    fn target(&self) -> Option<WorkerKey> {
        let device = |_| Some(DEVICE_BLOCKS);
        self.feedback
            .session_target("s", PROMPT, BLOCK_SIZE, &device)
    }

    /// Tokens to compute on the first worker for a turn of 100 blocks that has it as its target.
    fn uncached_on_target(&self, first: Row) -> f64 {
        let mut request = request(100);
        request.affinity_target = Some(WorkerWithDpRank::from_worker_id(1).into());
        request.session_context = Some(SessionContext::new("s".to_owned(), None, None, None));
        self.host.select_with(request, &[first, row(2)]).unwrap();
        let rows = self.host.pool().last_decision.unwrap().rows;
        let target = rows.iter().find(|row| row.worker == key(1)).unwrap();
        target.uncached_tokens
    }
}

#[test]
fn a_session_returns_once_its_prefix_has_left_device_memory() {
    let pool = Pool::new("");
    assert_eq!(pool.target(), None);
    pool.push_out(key(2));
    assert_eq!(pool.target(), None);
    pool.push_out(key(1));
    assert_eq!(pool.target(), Some(key(1)));
    let unknown = |session| {
        pool.feedback
            .session_target(session, PROMPT, BLOCK_SIZE, &|_| None)
    };
    assert_eq!((unknown("s"), unknown("t")), (None, None));
}

#[test]
fn no_target_is_set_where_no_lower_tier_counts_or_the_index_sees_it() {
    for parameters in [
        "tier_weights: {host: 0, disk: 0}",
        "tier_value: time, tiers: {host: null, disk: null}",
        // A token takes 1.6 ms to bring.
        "tier_value: time, tiers: {host: {bandwidth_gb_s: 0.1}, disk: null, shared: null}",
        // 610 tokens, the device memory besides: 2,050 were computed since.
        "tier_value: time, tiers: {host: {capacity_gb: 0.07}, disk: null}",
    ] {
        let pool = Pool::new(parameters);
        pool.push_out(key(1));
        assert_eq!(pool.target(), None, "{parameters}");
    }
    let pool = Pool::new("");
    pool.push_out(key(1));
    pool.host.select(64, &[row(1), row(2).tiers(0, 1, 0)]);
    assert_eq!(pool.target(), None);
}

#[test]
fn a_failing_worker_gets_no_session_back() {
    let pool = Pool::new("");
    pool.push_out(key(1));
    for request in 0..3 {
        let id = request.to_string();
        pool.send(&id, None, key(1));
        pool.feedback.aborted(&id, Some(key(1)), true);
    }
    assert_eq!(pool.target(), None);
}

#[test]
fn at_saturation_the_queue_decides() {
    let pool = Pool::new(
        "regime: {windows: 1, dwell_ms: 0, min_samples: 1}, signals: {waiting: {transition_enter: 0.2, \
         transition_leave: 0.1, saturated_enter: 0.4, saturated_leave: 0.3}}",
    );
    pool.push_out(key(1));
    assert_eq!(pool.target(), Some(key(1)));
    pool.send("waits", None, key(1));
    pool.host.advance(300);
    pool.host.pool();
    assert_eq!(pool.target(), None);
}

#[test]
fn an_exclusive_pool_gets_no_target() {
    let pool = Pool::on("{session_affinity: exclusive}");
    pool.push_out(key(1));
    assert_eq!(pool.target(), None);
}

#[test]
fn what_a_session_left_counts_as_blocks_in_that_tier_beyond_those_that_are_known() {
    // 1,025 tokens are 64 whole blocks of 100.
    let pool = Pool::new("");
    pool.push_out(key(1));
    assert_eq!(pool.target(), Some(key(1)));
    assert_eq!(pool.uncached_on_target(row(1)), 1_600.0 - 0.75 * 1_024.0);
    let known = row(1).device(4);
    assert_eq!(
        pool.uncached_on_target(known),
        1_600.0 - 64.0 - 0.75 * 960.0
    );
    assert_eq!(pool.uncached_on_target(row(1).device(80)), 320.0);
    // By time they are brought whole.
    let pool = Pool::new("tier_value: time");
    pool.push_out(key(1));
    assert_eq!(pool.target(), Some(key(1)));
    assert_eq!(pool.uncached_on_target(row(1)), 1_600.0 - 1_024.0);
    let decisions = pool.host.pool().decisions;
    assert_eq!(
        (decisions.session_targets, decisions.session_targets_chosen),
        (1, 1)
    );
}

#[test]
fn a_target_of_somebody_else_keeps_its_flat_credit() {
    let pool = Pool::new("affinity_credit: 0.25");
    assert_eq!(pool.target(), None);
    assert_eq!(pool.uncached_on_target(row(1)), 0.75 * 1_600.0);
}

#[test]
fn a_parameter_out_of_range_is_named() {
    let refusal = |target: &str| {
        let yaml = format!(
            "request_classifier: {{ type: regime-feedback, parameters: {{ session_target: {{ {target} }} }} }}"
        );
        resolve(&yaml, Options::default()).err().unwrap()
    };
    let allowed = "session_target.max_sessions is 0; allowed: at least 1";
    assert!(refusal("max_sessions: 0").contains(allowed));
    let allowed = "session_target.max_age_s is NaN; allowed: 0.001 to 1000000000";
    assert!(refusal("max_age_s: .nan").contains(allowed));
    assert!(refusal("enable: true").contains("enable"));
}

type Scheduler = LocalScheduler<NoopSequencePublisher, TestWorker, WorkerSelectionPolicy>;

/// Dynamo's scheduler of two workers around our policy and our classifier.
struct Live {
    scheduler: Scheduler,
    handle: Handle,
    shutdown: CancellationToken,
    _workers: tokio::sync::watch::Sender<HashMap<u64, TestWorker>>,
}

impl Live {
    fn new(affinity: &str) -> Self {
        let yaml = yaml(&format!("{{session_affinity: {affinity}}}")).replace(
            "type: regime-feedback, parameters: {}",
            "type: regime-feedback, parameters: { session_target: { enabled: true } }",
        );
        let (handle, plugins, config) = resolve(&yaml, Options::default()).unwrap();
        let policy = plugins.worker_selection().unwrap()(
            &config,
            WorkerType::Aggregated,
            RoutingPartitionRef::new("model", "default"),
        );
        let workers = [1, 2].map(|id| (id, TestWorker::default()));
        let (sender, receiver) = tokio::sync::watch::channel(HashMap::from(workers));
        let slots = ActiveSequencesMultiWorker::new_without_expiry(
            NoopSequencePublisher,
            BLOCK_SIZE as usize,
            HashMap::from([1, 2].map(|id| (id, (0, 1)))),
            false,
            0,
            "test",
        );
        let shutdown = CancellationToken::new();
        let scheduler = LocalScheduler::new(
            Arc::new(slots),
            receiver,
            PolicyProfile::synthetic(None, RouterQueuePolicy::Fcfs),
            BLOCK_SIZE,
            policy,
            None,
            None::<Arc<NoopOverlapScoresRefresh>>,
            None,
            None,
            Duration::from_secs(60),
            true,
            shutdown.clone(),
            "test",
            false,
        );
        let context = RequestClassifierContext::new(BLOCK_SIZE, || {
            let worker = |id| {
                let name = WorkerWithDpRank::from_worker_id(id);
                RequestClassifierWorker::new(name, Some(DEVICE_BLOCKS))
            };
            [1, 2].map(worker).to_vec()
        });
        let classifier = plugins.request_classifier().unwrap()(context);
        assert!(scheduler.install_request_classifier(classifier, shutdown.clone()));
        Self {
            scheduler,
            handle,
            shutdown,
            _workers: sender,
        }
    }

    /// One request of 2,048 tokens from its arrival to its end; the worker that served it.
    async fn serve(&self, id: String, session: Option<&str>, only: Option<u64>) -> u64 {
        let session = session.map(|it| SessionContext::new(it.to_owned(), None, None, None));
        let mut lifecycle = (self.scheduler.begin_request_lifecycle(&id))
            .unwrap()
            .unwrap();
        let request = ScheduleRequest {
            mode: ScheduleMode::Tracked {
                request_id: id.clone(),
            },
            token_seq: None,
            block_hashes: None,
            isl_tokens: 2_048,
            lora_name: None,
            expected_output_tokens: None,
            affinity_target: None,
            pinned_worker: None,
            allowed_worker_ids: only.map(|worker| HashSet::from([worker])),
            routing_constraints: RoutingConstraints::default(),
            router_config_override: None,
            priority_jump: 0.0,
            strict_priority: 0,
            policy_class: None,
            session_context: session,
            overlap: OverlapSignals::default(),
            kv_transfer_candidates: None,
            retain_kv_transfer_chain: false,
            shared_cache_hits: None,
        };
        let placed = self.scheduler.schedule_request(request).await.unwrap();
        lifecycle.sent(placed.best_worker);
        lifecycle.observe_context_tokens(2_049);
        lifecycle.responding();
        lifecycle.complete();
        self.scheduler.free(&id).await.unwrap();
        // Events are delivered by a task of their own.
        while self.handle.report().requests.tracked > 0 {
            tokio::task::yield_now().await;
        }
        placed.best_worker.worker_id
    }

    /// How many of 16 sessions return to their worker after its memory was filled with something else.
    async fn returned(&self) -> usize {
        let mut returned = 0;
        for session in 0..16 {
            let name = format!("s{session}");
            let first = self.serve(format!("{name}-first"), Some(&name), None).await;
            self.serve(format!("{name}-other"), None, Some(first)).await;
            let second = self
                .serve(format!("{name}-second"), Some(&name), None)
                .await;
            returned += usize::from(first == second);
        }
        self.shutdown.cancel();
        returned
    }
}

#[tokio::test]
async fn dynamo_s_scheduler_sends_a_session_back_to_the_worker_that_the_classifier_names() {
    let live = Live::new("advisory");
    assert_eq!(live.returned().await, 16);
    let decisions = &live.handle.report().pools[0].decisions;
    assert_eq!(
        (decisions.session_targets, decisions.session_targets_chosen),
        (16, 16)
    );
    let live = Live::new("exclusive");
    assert!(live.returned().await < 16);
    assert_eq!(live.handle.report().pools[0].decisions.session_targets, 0);
}
