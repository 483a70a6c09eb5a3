// SPDX-License-Identifier: Apache-2.0

//! Policies at work.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;

use regime_lab::{Catalog, Ending, Link, Metrics, Policy, run_all};
use serde_json::json;
use support::{chat, engine, experiment, run, templates};

#[test]
fn every_policy_serves_every_request() {
    for policy in Catalog::default().names().unwrap() {
        for topology in ["3", "1P2D"] {
            let experiment = experiment(
                &policy,
                chat(10, 2, 100.0, 1),
                engine("b200-70b", json!({})),
                topology,
                1,
            );
            let metrics = run(&experiment).metrics;
            assert_eq!(metrics.completed, 20, "{policy} on {topology}");
            assert_eq!(
                metrics.worker_seconds.unwrap(),
                metrics.duration_s.unwrap() * 3.0
            );
        }
    }
}

#[test]
fn the_regime_aware_policy_beats_round_robin_where_prompts_share_prefixes() {
    let ttft = |policy| {
        let experiment = experiment(
            policy,
            chat(120, 4, 120.0, 3),
            engine("b200-70b", json!({})),
            "4",
            3,
        );
        let metrics = run(&experiment).metrics;
        (metrics.ttft_ms.unwrap(), metrics.engine_reuse.unwrap())
    };
    let ((ours, our_reuse), (theirs, their_reuse)) = (ttft("regime-aware"), ttft("round-robin"));
    println!(
        "mean {:.1} / {:.1} ms, P99 {:.1} / {:.1} ms, reuse {our_reuse:.3} / {their_reuse:.3}",
        ours.mean, theirs.mean, ours.p99, theirs.p99
    );
    assert!(ours.mean < 0.85 * theirs.mean);
    assert!(ours.p99 < theirs.p99);
    assert!(our_reuse > their_reuse);
}

#[test]
fn a_policy_that_panics_fails_its_own_run_by_name_and_no_other() {
    let catalog = Catalog::default().with(|link: &mut Link<'_>| {
        link.registry.register_worker_selection(
            "shelf",
            Arc::new(|_| Ok(Arc::new(|_, _, _| panic!("no such shelf")))),
        )?;
        Ok(None)
    });
    let run = |policy| {
        let mut trial = experiment(
            "default",
            chat(3, 1, 1.0, 1),
            engine("fixed", json!({})),
            "2",
            7,
        );
        trial.policy = Policy::named(policy, &catalog).unwrap();
        trial
    };
    let outcomes = run_all(&[run("shelf"), run("default")], &catalog, 2, |_, run| {
        run.map(|run| run.metrics.completed)
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
    });
    assert_eq!(
        outcomes,
        [
            Err(
                "policy \"shelf\" on workload \"chat\", topology 2, seed 7: panic: no such shelf"
                    .into()
            ),
            Ok(3)
        ]
    );
}

#[test]
fn a_pass_that_takes_aeons_ends_the_run_with_words() {
    let engine = engine("fixed", json!({ "speedup_ratio": 1e-13 }));
    let error = experiment("default", templates(1, 1, &[2]), engine, "1", 1)
        .run(&Catalog::default())
        .unwrap_err();
    let error = format!("{:#}", anyhow::Error::from(error));
    assert!(error.contains("virtual time passes"), "{error}");
}

#[test]
fn a_slow_worker_is_slow_and_a_policy_that_learns_avoids_it() {
    let share = |policy| {
        let mut experiment = experiment(
            policy,
            templates(600, 24, &[8]),
            engine("b200-70b", json!({})),
            "4",
            1,
        );
        experiment.settings.slowdowns = vec![4.0];
        let run = run(&experiment);
        let requests = &run.record.pools[0].requests;
        requests[0] as f64 / requests.iter().sum::<u64>() as f64
    };
    assert!((share("round-robin") - 0.25).abs() < 0.01);
    let ours = share("regime-aware");
    assert!(ours < 0.15, "{ours}");
}

#[test]
fn passes_of_a_worker_twice_as_slow_take_twice_as_long() {
    // 20 ms for the prompt and 10 ms for each of 3 more tokens.
    let mut experiment = experiment(
        "round-robin",
        templates(1, 1, &[4]),
        engine("fixed", json!({})),
        "1",
        1,
    );
    let request = run(&experiment).record.requests[0];
    assert_eq!(
        (request.first_token_ms, request.last_token_ms),
        (Some(20.0), Some(50.0))
    );
    experiment.settings.slowdowns = vec![2.0];
    let request = run(&experiment).record.requests[0];
    assert_eq!(
        (request.first_token_ms, request.last_token_ms),
        (Some(40.0), Some(100.0))
    );
}

#[test]
fn late_events_hide_the_cache_from_the_router() {
    let cached = |kv_event_lag_ms| {
        let mut experiment = experiment(
            "default",
            chat(20, 3, 50.0, 1),
            engine("b200-70b", json!({})),
            "2",
            1,
        );
        experiment.settings.kv_event_lag_ms = kv_event_lag_ms;
        let decisions = run(&experiment).record.decisions;
        decisions
            .iter()
            .map(|decision| decision.cached_tokens)
            .sum::<usize>()
    };
    let (at_once, late, never) = (cached(0.0), cached(500.0), cached(1e9));
    assert!(at_once > late && late > never);
    assert_eq!(never, 0);
}

#[test]
fn with_a_queue_threshold_requests_wait_at_the_router() {
    let waiting = |queue_threshold| {
        let mut experiment = experiment(
            "default",
            templates(60, 60, &[4]),
            engine("fixed", json!({ "max_num_batched_tokens": 128 })),
            "2",
            1,
        );
        experiment.settings.queue_threshold = queue_threshold;
        let run = run(&experiment);
        assert_eq!(run.metrics.completed, 60);
        let late = |decision: &&regime_lab::Decision| decision.at_ms > 0.0;
        run.record.decisions.iter().filter(late).count()
    };
    assert_eq!(waiting(None), 0);
    assert!(waiting(Some(1.0)) > 40);
}

#[test]
fn data_parallel_ranks_are_chosen_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ranks.yaml");
    std::fs::write(
        &path,
        "description: ranks\ntiming: { type: polynomial }\nranks: 2\n",
    )
    .unwrap();
    for (topology, workers) in [("2", 2), ("8", 8)] {
        let experiment = experiment(
            "round-robin",
            templates(32, 32, &[4]),
            engine(path.to_str().unwrap(), json!({})),
            topology,
            1,
        );
        let decisions = run(&experiment).record.decisions;
        let mut seats: Vec<_> = decisions
            .iter()
            .map(|decision| (decision.worker, decision.rank))
            .collect();
        seats.sort_unstable();
        seats.dedup();
        assert_eq!(seats.len(), workers * 2);
    }
}

#[test]
fn a_shared_host_tier_serves_what_another_worker_computed() {
    let reuse = |settings| {
        let experiment = experiment(
            "round-robin",
            chat(20, 4, 400.0, 1),
            engine("b200-70b", settings),
            "2",
            1,
        );
        run(&experiment).metrics.engine_reuse.unwrap()
    };
    let none = reuse(json!({}));
    let shared = reuse(json!({ "native_host_offload": {
        "scope": "cluster_shared", "num_host_blocks": 50_000, "kv_layout_id": "one",
    } }));
    assert!(shared > none + 0.05, "{shared} against {none}");
}

#[test]
fn a_run_in_which_nothing_completes_has_no_latencies() {
    // Field report BR-19: the simulator itself says 0.0.
    let experiment = experiment(
        "default",
        templates(5, 5, &[4]),
        engine("fixed", json!({ "max_model_len": 100 })),
        "2",
        1,
    );
    let run = run(&experiment);
    assert!(
        run.record
            .requests
            .iter()
            .all(|request| request.ending == Ending::Rejected)
    );
    let expected = Metrics {
        rejected: 5,
        goodput: Some(0.0),
        ..Metrics::default()
    };
    assert_eq!(run.metrics, expected);
}

#[test]
fn requests_that_never_meet_are_no_contention() {
    let mut workload = chat(10, 1, 1.0, 1);
    for (index, session) in workload.sessions.iter_mut().enumerate() {
        session.start_ms = index as f64 * 30_000.0;
    }
    let experiment = experiment("default", workload, engine("b200-70b", json!({})), "4", 1);
    assert_eq!(run(&experiment).metrics.peak_in_flight, 1);
}

#[test]
fn a_run_that_is_cut_reports_what_is_unfinished() {
    let mut experiment = experiment(
        "default",
        templates(4, 2, &[100]),
        engine("fixed", json!({})),
        "2",
        1,
    );
    experiment.settings.max_time_ms = Some(500.0);
    let metrics = run(&experiment).metrics;
    assert_eq!((metrics.completed, metrics.unfinished), (0, 2));
}

/// Two prompts of 8 blocks and 40 tokens to generate, on workers of this many blocks.
fn crowded(blocks: usize, backend: &str, topology: &str) -> Result<Metrics, String> {
    let engine = engine(
        "fixed",
        json!({ "num_gpu_blocks": blocks, "backend": backend, "block_size": 16 }),
    );
    let experiment = experiment("default", templates(2, 2, &[40]), engine, topology, 1);
    let run = experiment.run(&Catalog::default());
    run.map(|run| run.metrics)
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
}

#[test]
fn prompts_that_no_worker_can_hold_are_refused() {
    for topology in ["1", "1P1D"] {
        assert_eq!(crowded(4, "vllm", topology).unwrap().rejected, 2);
    }
    // This backend reserves the destination first, and the reservation fails.
    assert_eq!(crowded(4, "sglang", "1P1D").unwrap().errors, 2);
}

#[test]
fn requests_that_outgrow_every_worker_end_the_run_with_words() {
    for (blocks, backend, topology) in [
        (9, "vllm", "1"),
        (9, "vllm", "1P1D"),
        (8, "sglang", "1"),
        (9, "sglang", "1P1D"),
    ] {
        let error = crowded(blocks, backend, topology).unwrap_err();
        assert!(
            error.starts_with("policy \"default\" on workload \"templates\"")
                && error.contains("KV blocks"),
            "{backend} on {topology}: {error}"
        );
    }
}
