// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of a pool: decisions through Dynamo's selection path, what became of their requests,
//! and the figures that follow.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use dynamo_kv_router::protocols::WorkerWithDpRank;
use dynamo_kv_router::{KvRouterConfig, RoutingPartitionRef, WorkerSelectionInput, WorkerType};
use regime_core::{Millis, Tokens};
use regime_policy::{AnarchyReport, Feedback, Handle, ManualClock, Observed, Observer, Options};
use support::{BLOCK_SIZE, Host, Row, key, request, row};

/// 1,600 tokens: 20 + 160 ms on an idle worker.
const BLOCKS: usize = 100;
const RATES: &str = "calibration: {prior_pass_ms: 20, prior_token_ms: 0.1}";

fn host(parameters: &str) -> Host {
    let host = Host::new(&format!("{{{RATES}, {parameters}}}"));
    host.handle.measure();
    host
}

/// Place one request; the policy chooses `worker`.
fn place(host: &Host, feedback: &Feedback, id: &str, worker: u64, rows: &[Row]) {
    let prompt = Tokens((BLOCKS * BLOCK_SIZE as usize) as u64);
    feedback.classified(id, feedback.clock().now(), prompt);
    assert_eq!(host.select(BLOCKS, rows).worker_id, worker);
    feedback.sent(id, key(worker));
}

fn answer(feedback: &Feedback, id: &str, worker: u64) {
    feedback.responding(id, key(worker), Some(1));
}

fn complete(feedback: &Feedback, id: &str, worker: u64) {
    let context = (BLOCKS * BLOCK_SIZE as usize + 10) as u64;
    feedback.completed(id, key(worker), Some(context));
}

/// What is known after the windows have settled.
fn measured(host: &Host) -> AnarchyReport {
    host.advance(250);
    host.handle.measure();
    host.pool().anarchy
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn the_slowdown_of_a_request_is_split_into_choice_aftermath_and_overload() {
    for cost in ["calibrated", "paper"] {
        let host = host(&format!("cost: {cost}"));
        let (feedback, _) = host.feedback(&[1, 2]);
        // 600 tokens wait on the chosen worker, 200 on the other, which is short of seats and memory: 60 + 10
        // and 20 + 10 ms.
        let rows = [row(1).load(1, 600, 200), row(2).load(50, 200, 2_000)];
        place(&host, &feedback, "a", 1, &rows);
        host.advance(500);
        answer(&feedback, "a", 1);
        host.advance(1_000);
        complete(&feedback, "a", 1);
        let ttft = measured(&host).ttft;
        let figures = ttft.figures.unwrap();
        assert!(
            near(figures.policy_gap, 250.0 / 210.0),
            "{cost}: {figures:?}"
        );
        assert!(
            near(figures.temporal_gap, 500.0 / 250.0),
            "{cost}: {figures:?}"
        );
        assert!(near(figures.overload, 210.0 / 180.0), "{cost}: {figures:?}");
        assert!(near(figures.slowdown, 500.0 / 180.0), "{cost}: {figures:?}");
        assert_eq!((ttft.joined_share, ttft.unavailable), (Some(1.0), None));
    }
}

#[test]
fn end_to_end_the_expected_residence_is_on_both_sides() {
    let host = host("");
    let (feedback, _) = host.feedback(&[1]);
    place(&host, &feedback, "a", 1, &[row(1)]);
    host.advance(180);
    answer(&feedback, "a", 1);
    host.advance(1_500);
    complete(&feedback, "a", 1);
    // 1,500 ms is what a request takes after its first token until the pool knows better.
    let figures = measured(&host).e2e.figures.unwrap();
    assert!(near(figures.slowdown, 1.0), "{figures:?}");
}

#[test]
fn with_one_worker_there_is_nothing_to_choose() {
    // Field report BR-14: the policy gap is exactly 1.
    let host = host("");
    let (feedback, _) = host.feedback(&[1]);
    for id in ["a", "b", "c"] {
        place(&host, &feedback, id, 1, &[row(1).load(3, 900, 300)]);
    }
    host.advance(2_000);
    for id in ["a", "b", "c"] {
        answer(&feedback, id, 1);
        complete(&feedback, id, 1);
    }
    let figures = measured(&host).ttft.figures.unwrap();
    assert_eq!((figures.n, figures.policy_gap), (3, 1.0));
}

#[test]
fn a_window_in_which_a_worker_vanished_is_measured_by_what_is_left() {
    let host = host("");
    let (feedback, workers) = host.feedback(&[1, 2]);
    place(
        &host,
        &feedback,
        "gone",
        1,
        &[row(1), row(2).load(50, 200, 200)],
    );
    place(
        &host,
        &feedback,
        "stays",
        2,
        &[row(1).load(50, 200, 200), row(2)],
    );
    workers.lock().unwrap().remove(0);
    host.advance(1_000);
    answer(&feedback, "stays", 2);
    complete(&feedback, "stays", 2);
    let ttft = measured(&host).ttft;
    assert_eq!(ttft.figures.unwrap().n, 1);
    assert_eq!(ttft.joined_share, Some(1.0));
}

#[test]
fn pools_without_forecasts_have_a_reason_and_no_number() {
    for (role, reason) in [
        (WorkerType::Decode, "no_forecast"),
        (WorkerType::Encode, "no_forecast"),
    ] {
        let host = Host::with("{}", role, None);
        let (feedback, _) = host.feedback(&[1]);
        host.handle.measure();
        place(&host, &feedback, "a", 1, &[row(1)]);
        answer(&feedback, "a", 1);
        complete(&feedback, "a", 1);
        let anarchy = measured(&host);
        assert_eq!(anarchy.ttft.unavailable, Some(reason), "{role:?}");
        assert_eq!(anarchy.ttft.figures, None);
    }
}

#[test]
fn a_prefill_is_measured_by_the_first_token_of_its_decode_leg() {
    // Whether the decode pool is ours, or the prefill pool is the only one we have.
    for ours in [true, false] {
        let host = Host::with("{}", WorkerType::Decode, None);
        let (feedback, _) = host.feedback(&[11]);
        let prefill = observer_of(&host.handle, WorkerType::Prefill);
        host.handle.measure();
        let rows = [row(1).load(1, 600, 200), row(2).load(1, 200, 200)];
        observe(&host, &host.handle, &prefill, 1, &rows).unwrap();
        host.advance(300);
        if ours {
            place(&host, &feedback, "a", 11, &[row(11)]);
        } else {
            let prompt = Tokens((BLOCKS * BLOCK_SIZE as usize) as u64);
            feedback.classified("a", feedback.clock().now(), prompt);
            feedback.sent("a", key(11));
        }
        host.advance(100);
        answer(&feedback, "a", 11);
        host.advance(1_000);
        complete(&feedback, "a", 11);
        host.handle.measure();
        let pools = host.handle.report().pools;
        let pool = pools.iter().find(|pool| pool.role == "prefill").unwrap();
        let ttft = &pool.anarchy.ttft;
        // 70 + 180 ms chosen, 30 + 180 to be had, 400 taken.
        let figures = ttft.figures.as_ref().unwrap();
        assert!(near(figures.policy_gap, 250.0 / 210.0), "{figures:?}");
        assert!(near(figures.slowdown, 400.0 / 180.0), "{figures:?}");
        assert_eq!((ttft.joined_share, ttft.unavailable), (Some(1.0), None));
        assert_eq!(pool.anarchy.e2e.unavailable, Some("no_forecast"));
    }
}

#[test]
fn a_pool_that_no_event_reaches_says_so_once_it_has_waited() {
    let host = host("anarchy: {patience_ms: 1000}");
    host.select(BLOCKS, &[row(1)]);
    assert_eq!(measured(&host).ttft.unavailable, Some("not_measured"));
    host.advance(1_000);
    let ttft = measured(&host).ttft;
    assert_eq!(ttft.unavailable, Some("no_outcomes"));
    assert_eq!(ttft.joined_share, Some(0.0));
}

#[test]
fn measuring_can_be_switched_off() {
    let host = host("anarchy: {core_share: 0}");
    host.select(BLOCKS, &[row(1)]);
    let anarchy = measured(&host);
    assert_eq!(anarchy.ttft.unavailable, Some("switched_off"));
}

#[test]
fn choices_are_exported_with_what_became_of_them() {
    let clock = Arc::new(ManualClock::default());
    let options = Options {
        clock: Some(Arc::clone(&clock) as _),
        export_choices: Some(100),
        ..Options::default()
    };
    let host = Host::with_options(
        &format!("{{{RATES}}}"),
        WorkerType::Aggregated,
        clock,
        options,
    );
    let (feedback, _) = host.feedback(&[1, 2]);
    place(
        &host,
        &feedback,
        "served",
        1,
        &[row(1).load(1, 600, 200), row(2).load(50, 0, 200)],
    );
    place(
        &host,
        &feedback,
        "aborted",
        2,
        &[row(1).load(50, 0, 200), row(2)],
    );
    host.advance(200);
    answer(&feedback, "served", 1);
    feedback.aborted("aborted", Some(key(2)), true);
    complete(&feedback, "served", 1);
    // Nobody measures, and nothing is due before the window is complete.
    assert!(host.handle.take_choices()[0].choices.is_empty());
    host.advance(50);
    let pools = host.handle.take_choices();
    let pool = &pools[0];
    assert_eq!((pool.model.as_str(), pool.role), ("model", "aggregated"));
    let latencies: Vec<_> = pool.choices.iter().map(|it| (it.ttft, it.e2e)).collect();
    let fifth = Some(Millis::new(200.0));
    assert_eq!(latencies, [(fifth, fifth), (None, None)]);
    let served = &pool.choices[0];
    assert_eq!(
        (served.chosen, served.prompt_tokens),
        (key(1), Tokens(1_600))
    );
    let forecasts = served
        .candidates
        .iter()
        .map(|it| (it.worker.id, it.wait.get(), it.own.get()));
    assert_eq!(
        forecasts.collect::<Vec<_>>(),
        [(1, 70.0, 180.0), (2, 0.0, 180.0)]
    );
    assert_eq!(
        (
            pool.counts.decisions,
            pool.counts.unjoined,
            pool.counts.lost
        ),
        (2, 0, 0)
    );
}

/// What an observer of `host`'s pool makes of the choice of `worker` among `rows`.
fn observe(
    host: &Host,
    handle: &Handle,
    observer: &Observer,
    worker: u64,
    rows: &[Row],
) -> Option<Observed> {
    let (request, workers) = host.prepare(request(BLOCKS), rows);
    let input =
        WorkerSelectionInput::configured(&workers, &request, request.eligibility(), BLOCK_SIZE);
    let observed = observer.observe(input, WorkerWithDpRank::from_worker_id(worker));
    let pools = handle.report().pools;
    let last = pools.iter().find_map(|pool| pool.last_decision.as_ref());
    assert_eq!(
        last.map(|last| last.chosen),
        observed.is_some().then(|| key(worker))
    );
    observed
}

fn observer(host: &Host) -> (Handle, Observer) {
    let handle = Handle::new(Options {
        clock: Some(Arc::clone(&host.clock) as _),
        ..Options::default()
    });
    let observer = observer_of(&handle, WorkerType::Aggregated);
    (handle, observer)
}

fn observer_of(handle: &Handle, role: WorkerType) -> Observer {
    let parameters = serde_yaml::from_str(&format!("{{{RATES}}}")).unwrap();
    let config = KvRouterConfig::default();
    let partition = RoutingPartitionRef::new("model", "default");
    handle
        .observer(parameters, &config, role, partition)
        .unwrap()
}

#[test]
fn an_observer_prices_a_choice_that_was_not_its_own() {
    let host = host("");
    let (handle, observer) = observer(&host);
    let rows = [row(1), row(2).load(1, 600, 200)];
    let observed = observe(&host, &handle, &observer, 2, &rows).unwrap();
    let forecasts = observed
        .candidates
        .iter()
        .map(|it| (it.worker.id, it.wait.get(), it.own.get()));
    assert_eq!(
        forecasts.collect::<Vec<_>>(),
        [(1, 0.0, 180.0), (2, 70.0, 180.0)]
    );
    assert_eq!(observed.residence, Millis::new(1_500.0));
}

#[test]
fn an_observer_knows_of_the_choices_that_others_made() {
    let host = host("");
    let (handle, observer) = observer(&host);
    observe(&host, &handle, &observer, 2, &[row(1), row(2)]).unwrap();
    // 180 ms of work were placed there 90 ms ago: half remains, not the 170 ms that the host counts.
    host.advance(90);
    let rows = [row(1), row(2).load(1, 1_600, 100)];
    let observed = observe(&host, &handle, &observer, 1, &rows).unwrap();
    assert_eq!(observed.candidates[1].wait, Millis::new(90.0));
}

#[test]
fn a_choice_that_is_no_candidate_is_not_observed() {
    let host = host("");
    let (handle, observer) = observer(&host);
    assert_eq!(
        observe(&host, &handle, &observer, 9, &[row(1), row(2)]),
        None
    );
}
