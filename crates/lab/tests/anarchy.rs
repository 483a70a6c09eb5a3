// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of real runs, under policies of every kind.

#![allow(clippy::unwrap_used)]

mod support;

use regime_lab::report;
use regime_lab::{Anarchy, Load, Provenance, Results, RunEntry, STRETCHES};
use serde_json::json;
use support::{chat, engine, experiment, run};

fn anarchy(policy: &str, topology: &str, gap_ms: f64) -> Anarchy {
    let engine = engine("b200-70b", json!({}));
    run(&experiment(
        policy,
        chat(60, 4, gap_ms, 1),
        engine,
        topology,
        1,
    ))
    .anarchy
    .unwrap()
}

#[test]
fn every_policy_is_measured_by_the_same_yardstick() {
    for policy in [
        "default",
        "regime-aware",
        "dynamo-two-tier-cost-fn",
        "round-robin",
    ] {
        for (topology, pool) in [("2", "aggregated"), ("2P1D", "prefill")] {
            let anarchy = anarchy(policy, topology, 100.0);
            let it = anarchy.ttft;
            assert_eq!((it.n, anarchy.pool.as_str()), (240, pool), "{policy}");
            assert!(it.policy_gap >= 1.0 && it.overload >= 1.0, "{it:?}");
            let product = it.policy_gap * it.temporal_gap * it.overload;
            assert!((product / it.slowdown - 1.0).abs() < 1e-12, "{it:?}");
            assert_eq!(anarchy.measured_share, 1.0);
            assert_eq!(anarchy.e2e.is_some(), pool == "aggregated");
        }
    }
}

#[test]
fn requests_are_joined_right_by_worker_and_prompt_length() {
    // Behind a prefill pool the length alone is known, and some prompts are equally long.
    for (topology, least) in [("2", 1.0), ("2P1D", 0.95)] {
        let anarchy = anarchy("default", topology, 50.0);
        assert_eq!(anarchy.joined_share, Some(1.0), "{topology}");
        assert!(anarchy.joined_right >= Some(least), "{anarchy:?}");
    }
}

#[test]
fn with_one_worker_the_policy_gap_is_exactly_one() {
    assert_eq!(anarchy("default", "1", 100.0).ttft.policy_gap, 1.0);
}

#[test]
fn a_policy_that_sees_no_loads_has_the_larger_gap() {
    let gap = |policy| anarchy(policy, "4", 60.0).ttft.policy_gap;
    let (ours, blind) = (gap("regime-aware"), gap("round-robin"));
    assert!(blind > 1.1 * ours, "{ours} {blind}");
}

#[test]
fn stretches_and_regimes_hold_every_request_once() {
    let anarchy = anarchy("regime-aware", "2", 50.0);
    let over_time = &anarchy.over_time;
    assert!((2..=STRETCHES).contains(&over_time.len()));
    assert!(over_time.is_sorted_by(|a, b| a.end_ms < b.end_ms));
    assert_eq!(over_time.iter().map(|it| it.gaps.n).sum::<usize>(), 240);
    assert_eq!(
        anarchy.by_regime.values().map(|it| it.n).sum::<usize>(),
        240
    );
}

#[test]
fn results_have_the_agreed_names_and_the_page_a_plot_over_load() {
    let runs = [200.0, 50.0].map(|gap_ms| {
        let engine = engine("b200-70b", json!({}));
        let mut trial = experiment("default", chat(20, 3, gap_ms, 1), engine, "2", 1);
        trial.load = Some(Load::Number(1_000.0 / gap_ms));
        RunEntry::new(&trial, &run(&trial))
    });
    let results = Results::new(Provenance::default(), runs.to_vec());
    let json: serde_json::Value = serde_json::from_str(&results.to_json()).unwrap();
    let anarchy = &json["runs"][0]["anarchy"];
    for name in [
        "n",
        "slowdown",
        "policy_gap",
        "temporal_gap",
        "overload",
        "poa_hat",
    ] {
        assert!(anarchy[name].is_number(), "{name}");
    }
    assert_eq!(anarchy["method"], "exact");
    assert!(results.to_csv().contains(",anarchy.policy_gap,"));
    let folder = tempfile::tempdir().unwrap();
    results.write(folder.path()).unwrap();
    let read = Results::read(&folder.path().join("results.json")).unwrap();
    assert_eq!(read.runs[1].anarchy.as_ref().unwrap().ttft.n, 60);

    report::write(folder.path(), &results, &[]).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("index.html").contains("Price of Anarchy over load"));
    let plot = read("01-chat-2-anarchy-over-load.svg");
    assert!(plot.contains("policy gap") && !plot.contains("NaN"));
}
