// SPDX-License-Identifier: Apache-2.0

//! What a policy is told in virtual time is what happened.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dynamo_kv_router::WorkerType;
use regime_core::{Timestamp, WorkerKey};
use regime_lab::{Catalog, Ending, Lifecycle, Link};
use regime_policy::{Clock, ManualClock};
use serde_json::json;
use support::{chat, engine, experiment, run, templates};

#[derive(Debug, Default, Clone, PartialEq)]
struct Told {
    routed: Vec<WorkerType>,
    sent: Vec<(WorkerType, WorkerKey)>,
    first: Option<(Timestamp, f64)>,
    completed: Option<Timestamp>,
    aborted: bool,
}

type Log = Arc<Mutex<BTreeMap<String, Told>>>;

struct Recorder {
    log: Log,
    clock: Arc<ManualClock>,
}

impl Recorder {
    fn note(&self, id: &str, change: impl FnOnce(&mut Told, Timestamp)) {
        let mut log = self.log.lock().unwrap();
        change(log.entry(id.to_owned()).or_default(), self.clock.now());
    }
}

impl Lifecycle for Recorder {
    fn routing(&mut self, role: WorkerType, id: &str, _: usize) {
        self.note(id, |told, _| told.routed.push(role));
    }
    fn sent(&mut self, role: WorkerType, id: &str, worker: WorkerKey) {
        self.note(id, |told, _| told.sent.push((role, worker)));
    }
    fn first_token(&mut self, _: WorkerType, id: &str, _: WorkerKey, ttft_ms: f64) {
        self.note(id, |told, now| told.first = Some((now, ttft_ms)));
    }
    fn completed(&mut self, _: WorkerType, id: &str, _: WorkerKey, _: usize) {
        self.note(id, |told, now| told.completed = Some(now));
    }
    fn aborted(&mut self, _: WorkerType, id: &str, _: Option<WorkerKey>) {
        self.note(id, |told, _| told.aborted = true);
    }
}

fn recording() -> (Catalog, Log) {
    let log = Log::default();
    let shared = Arc::clone(&log);
    let catalog = Catalog::default().with(move |link: &mut Link<'_>| {
        Ok(Some(Box::new(Recorder {
            log: Arc::clone(&shared),
            clock: Arc::clone(&link.clock),
        }) as Box<dyn Lifecycle>))
    });
    (catalog, log)
}

fn micros(ms: f64) -> Timestamp {
    Timestamp::from_micros((ms * 1_000.0).round() as u64)
}

/// Run at a load where decode seats are short, and compare what was told with the records.
fn assert_exact(topology: &str, roles: &[WorkerType]) {
    let (catalog, log) = recording();
    let experiment = experiment(
        "default",
        templates(120, 60, &[16, 64, 200]),
        engine("b200-70b", json!({ "max_num_seqs": 8 })),
        topology,
        1,
    );
    let run = experiment.run(&catalog).unwrap();
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 120);
    for (told, request) in log.values().zip(&run.record.requests) {
        let (at, ttft_ms) = told.first.unwrap();
        // Exact: the difference is 0, not small.
        assert_eq!(at, micros(request.first_token_ms.unwrap()));
        assert_eq!(ttft_ms, request.ttft_ms().unwrap());
        assert_eq!(told.completed, Some(micros(request.last_token_ms.unwrap())));
        assert_eq!(told.routed, roles);
        assert_eq!(
            told.sent.iter().map(|(role, _)| *role).collect::<Vec<_>>(),
            roles
        );
    }
}

#[test]
fn aggregated_first_tokens_are_told_when_they_leave() {
    assert_exact("2", &[WorkerType::Aggregated]);
}

#[test]
fn disaggregated_first_tokens_are_told_when_they_leave_the_decode_worker() {
    assert_exact("1P2D", &[WorkerType::Prefill, WorkerType::Decode]);
}

#[test]
fn workers_of_all_pools_have_different_names() {
    let (catalog, log) = recording();
    let experiment = experiment(
        "round-robin",
        templates(12, 12, &[4]),
        engine("fixed", json!({})),
        "2P3D",
        1,
    );
    experiment.run(&catalog).unwrap();
    let log = log.lock().unwrap();
    let mut workers: Vec<_> = log.values().flat_map(|told| told.sent.clone()).collect();
    workers.sort_unstable_by_key(|(_, worker)| *worker);
    workers.dedup();
    assert_eq!(workers.len(), 5);
}

#[test]
fn a_refused_request_is_told_as_aborted_and_the_session_goes_on() {
    let (catalog, log) = recording();
    // Prompts of 1,536, 2,048 and 2,560 tokens; the last is past the limit.
    for topology in ["2", "1P1D"] {
        log.lock().unwrap().clear();
        let experiment = experiment(
            "default",
            chat(4, 3, 100.0, 1),
            engine("b200-70b", json!({ "max_model_len": 2_400 })),
            topology,
            1,
        );
        let run = experiment.run(&catalog).unwrap();
        assert_eq!(
            (run.metrics.completed, run.metrics.rejected),
            (8, 4),
            "{topology}"
        );
        let log = log.lock().unwrap();
        for (told, request) in log.values().zip(&run.record.requests) {
            assert_eq!(told.aborted, request.ending == Ending::Rejected);
            assert_eq!(
                told.completed.is_some(),
                request.ending == Ending::Completed
            );
        }
    }
}

#[test]
fn the_regime_aware_policy_learns_the_true_ttft_of_both_pools() {
    for topology in ["2", "1P2D"] {
        let experiment = experiment(
            "regime-aware",
            templates(300, 60, &[16, 64, 200]),
            engine("b200-70b", json!({ "max_num_seqs": 8 })),
            topology,
            1,
        );
        let run = run(&experiment);
        let report = run.report.unwrap();
        let last_ms = run.record.end_ms;
        // The P99 of the policy's window, and of the requests whose first token fell in it.
        for pool in &report.pools {
            let p99 = pool.health.ttft.p99_ms.unwrap();
            let mut recent: Vec<_> = run
                .record
                .requests
                .iter()
                .filter(|request| request.first_token_ms.unwrap() >= last_ms - 25_000.0)
                .map(|request| request.ttft_ms().unwrap())
                .collect();
            recent.sort_by(f64::total_cmp);
            let (low, high) = (recent[recent.len() * 9 / 10], recent[recent.len() - 1]);
            assert!(
                (low..=high * 1.02).contains(&p99),
                "{topology}: {p99} in {low}..={high}"
            );
        }
    }
}
