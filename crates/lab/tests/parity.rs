// SPDX-License-Identifier: Apache-2.0

//! The lab's event loop against NVIDIA's own drivers of the same engines.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;

use aisimulate_core::replay::loadgen::{MooncakeRow, Trace};
use aisimulate_core::replay::{
    CURRENT_REPLAY_SPEC_VERSION, ReplayAdapters, ReplayCaptureOptions, ReplayEngineFactory,
    ReplayRuntimeInput, ReplaySpec, ReplayTopology, Replayer, SlaThresholds, WorkerPoolSpec,
};
use dynamo_mocker::common::protocols::MockerConfig;
use dynamo_mocker::replay::{
    OfflineDisaggReplayConfig, ReplayRouterMode, TraceSimulationReport,
    simulate_loaded_trace_disagg_with_router_mode_and_options,
    simulate_loaded_trace_with_router_mode_and_options,
};
use regime_lab::{Arrivals, Run, Topology, Workload};
use serde_json::{Value, json};
use support::{chat, engine, experiment, run, templates};

const BLOCK: usize = 16;

fn rows(workload: &Workload) -> Vec<MooncakeRow> {
    let row = |session: &regime_lab::Session, index: usize| {
        let turn = &session.turns[index];
        MooncakeRow {
            session_id: Some(session.id.clone()),
            input_length: Some(turn.input_tokens as usize),
            output_length: Some(turn.output_tokens as usize),
            hash_ids: Some(turn.hash_ids.clone()),
            timestamp: (index == 0).then_some(session.start_ms),
            delay: (index > 0).then_some(turn.delay_ms),
            ..MooncakeRow::default()
        }
    };
    let sessions = workload.sessions.iter();
    sessions
        .flat_map(|session| (0..session.turns.len()).map(move |index| row(session, index)))
        .collect()
}

fn pool(workers: usize) -> WorkerPoolSpec {
    WorkerPoolSpec {
        initial_workers: workers,
        ..WorkerPoolSpec::default()
    }
}

/// NVIDIA's `Replayer` with its own round robin.
fn replayer(workload: &Workload, settings: &Value, topology: Topology) -> TraceSimulationReport {
    let trace = Trace::from_mooncake_rows(rows(workload), BLOCK).unwrap();
    let (driver, max_in_flight) = match workload.arrivals {
        Arrivals::Open => (
            trace.into_trace_driver_with_block_size(BLOCK).unwrap(),
            None,
        ),
        Arrivals::Closed { concurrency } => (
            trace
                .into_concurrency_driver_with_block_size(BLOCK, concurrency)
                .unwrap(),
            Some(concurrency),
        ),
    };
    let spec = ReplaySpec {
        version: CURRENT_REPLAY_SPEC_VERSION,
        topology: match topology {
            Topology::Aggregated { workers } => ReplayTopology::Aggregated {
                workers: pool(workers),
            },
            Topology::Disaggregated { prefill, decode } => ReplayTopology::Disaggregated {
                prefill: pool(prefill),
                decode: pool(decode),
                handoff_latency_ms: 0.0,
            },
        },
        engine: json!({ "rank": settings }),
        adapters: ReplayAdapters::default(),
        max_sim_time_ms: None,
        max_in_flight,
        record_per_request: true,
        sla: SlaThresholds::default(),
        requests: Vec::new(),
    };
    Replayer::new(spec, ReplayEngineFactory::new())
        .unwrap()
        .with_runtime_input(ReplayRuntimeInput::Workload(driver))
        .with_capture_options(ReplayCaptureOptions {
            capture_per_request: true,
            ..ReplayCaptureOptions::default()
        })
        .run()
        .unwrap()
}

/// First token, last token, tokens, and reused tokens at the first admission of each turn.
type Times = BTreeMap<(String, usize), (Option<f64>, Option<f64>, usize, usize)>;

fn theirs(report: &TraceSimulationReport) -> Times {
    report
        .per_request
        .iter()
        .map(|request| {
            let key = (
                request.session_id.clone().unwrap(),
                request.turn_index.unwrap(),
            );
            let times = (
                request.first_token_ms,
                request.last_token_ms,
                request.output_length,
                request.admission_history[0].reused_input_tokens,
            );
            (key, times)
        })
        .collect()
}

fn ours(run: &Run, workload: &Workload) -> Times {
    run.record
        .requests
        .iter()
        .map(|request| {
            let key = (workload.sessions[request.session].id.clone(), request.turn);
            let times = (
                request.first_token_ms,
                request.last_token_ms,
                request.tokens as usize,
                request.reused_tokens.unwrap_or(0) as usize,
            );
            (key, times)
        })
        .collect()
}

fn assert_same_times(workload: Workload, settings: Value, topology: &str) {
    let expected = theirs(&replayer(&workload, &settings, topology.parse().unwrap()));
    let experiment = experiment(
        "round-robin",
        workload.clone(),
        engine("polynomial", settings),
        topology,
        1,
    );
    let actual = ours(&run(&experiment), &workload);
    assert_eq!(expected.len(), workload.requests());
    for (key, times) in &expected {
        assert_eq!(actual.get(key), Some(times), "turn {key:?}");
    }
}

/// Limits that make engines queue, evict and preempt.
fn tight() -> Value {
    json!({
        "block_size": BLOCK, "num_gpu_blocks": 1_000, "max_num_seqs": 8, "max_num_batched_tokens": 2_048,
    })
}

#[test]
fn round_robin_gives_every_request_the_token_times_of_nvidias_driver() {
    assert_same_times(chat(40, 3, 150.0, 1), tight(), "3");
}

#[test]
fn the_same_holds_in_a_closed_loop() {
    assert_same_times(templates(60, 24, &[20, 7, 33]), tight(), "2");
}

#[test]
fn the_same_holds_with_prefill_and_decode_workers() {
    let mut settings = tight();
    settings["kv_transfer_bytes_per_token"] = json!(163_840);
    settings["kv_transfer_bandwidth"] = json!(10.0);
    assert_same_times(chat(40, 3, 150.0, 2), settings, "2P3D");
}

#[test]
fn the_same_holds_for_a_closed_loop_with_prefill_and_decode_workers() {
    assert_same_times(templates(60, 40, &[20, 7, 33]), tight(), "1P2D");
}

#[test]
fn the_same_holds_for_a_backend_that_reserves_the_destination_first() {
    let mut settings = tight();
    settings["backend"] = json!("sglang");
    settings["num_gpu_blocks"] = json!(4_000);
    assert_same_times(chat(20, 3, 150.0, 3), settings, "2P2D");
}

#[test]
fn the_same_holds_with_a_host_tier() {
    let mut settings = tight();
    settings["kv_cache_bytes_per_token"] = json!(163_840);
    settings["native_host_offload"] = json!({"num_host_blocks": 4_000});
    assert_same_times(chat(30, 3, 150.0, 4), settings, "2");
}

/// `dynamo-mocker`'s own replay with Dynamo's router and default policy.
fn mocker(workload: &Workload, settings: &Value, topology: Topology) -> TraceSimulationReport {
    let args = |role: &str| {
        let mut engine = settings.clone();
        engine["worker_type"] = json!(role);
        MockerConfig::from_value(json!({ "engine": engine, "dp_size": 1 })).unwrap()
    };
    let trace = Trace::from_mooncake_rows(rows(workload), BLOCK).unwrap();
    // It breaks ties with this generator, and does not seed it.
    fastrand::seed(1);
    match topology {
        Topology::Aggregated { workers } => simulate_loaded_trace_with_router_mode_and_options(
            args("aggregated"),
            None,
            None,
            trace,
            workers,
            1.0,
            ReplayRouterMode::KvRouter,
            true,
            None,
            SlaThresholds::default(),
        ),
        Topology::Disaggregated { prefill, decode } => {
            simulate_loaded_trace_disagg_with_router_mode_and_options(
                OfflineDisaggReplayConfig {
                    prefill_args: args("prefill"),
                    decode_args: args("decode"),
                    num_prefill_workers: prefill,
                    num_decode_workers: decode,
                },
                None,
                None,
                trace,
                1.0,
                ReplayRouterMode::KvRouter,
                true,
                None,
                SlaThresholds::default(),
            )
        }
    }
    .unwrap()
}

fn assert_agrees_with_the_mocker(gap_ms: f64, topology: &str) {
    let workload = chat(150, 4, gap_ms, 5);
    let settings = json!({
        "block_size": BLOCK, "num_gpu_blocks": 8_192, "max_num_seqs": 64, "max_num_batched_tokens": 8_192,
    });
    let theirs = mocker(&workload, &settings, topology.parse().unwrap());
    let mut ttfts: Vec<_> = theirs
        .per_request
        .iter()
        .filter_map(|request| request.ttft_ms)
        .collect();
    ttfts.sort_by(f64::total_cmp);
    let rank = |percent: usize| ttfts[(ttfts.len() * percent).div_ceil(100) - 1];
    let experiment = experiment(
        "default",
        workload,
        engine("polynomial", settings),
        topology,
        1,
    );
    let ours = run(&experiment).metrics;
    let ttft = ours.ttft_ms.unwrap();
    let off = |ours: f64, theirs: f64| (ours / theirs - 1.0).abs();
    println!(
        "{topology} gap {gap_ms}: TTFT P50 {:.2} / {:.2}, P99 {:.2} / {:.2}, requests/s {:.3} / {:.3} (lab / mocker)",
        ttft.p50,
        rank(50),
        ttft.p99,
        rank(99),
        ours.requests_per_s.unwrap(),
        theirs.throughput.request_throughput_rps,
    );
    assert_eq!(ours.completed as usize, ttfts.len());
    assert!(
        off(ttft.p50, rank(50)) <= 0.05,
        "P50 {} against {}",
        ttft.p50,
        rank(50)
    );
    assert!(
        off(ttft.p99, rank(99)) <= 0.20,
        "P99 {} against {}",
        ttft.p99,
        rank(99)
    );
    assert!(
        off(
            ours.requests_per_s.unwrap(),
            theirs.throughput.request_throughput_rps
        ) <= 0.05
    );
}

#[test]
fn the_default_policy_agrees_with_the_mockers_replay() {
    assert_agrees_with_the_mocker(400.0, "4");
    assert_agrees_with_the_mocker(100.0, "4");
}

#[test]
fn the_default_policy_agrees_with_the_mockers_disaggregated_replay() {
    assert_agrees_with_the_mocker(400.0, "2P3D");
    assert_agrees_with_the_mocker(100.0, "2P3D");
}
