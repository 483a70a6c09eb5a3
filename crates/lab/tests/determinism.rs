// SPDX-License-Identifier: Apache-2.0

//! The same inputs give the same run (field report BR-17).

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use regime_lab::{Catalog, Experiment, Listing, Provenance, Results, RunEntry, run_all};
use serde_json::json;
use support::{chat, engine, experiment, run};

/// 200 requests, seed 7, on workers short of memory and seats.
fn trial(policy: &str, topology: &str) -> Experiment {
    let engine = engine(
        "b200-70b",
        json!({ "num_gpu_blocks": 1_000, "max_num_seqs": 4 }),
    );
    let mut workload = chat(50, 4, 100.0, 7);
    let turns = workload.sessions.iter_mut().flat_map(|it| &mut it.turns);
    turns.for_each(|turn| turn.output_tokens /= 8);
    experiment(policy, workload, engine, topology, 7)
}

/// Everything a run gives, but the times on the wall.
fn bytes(experiment: &Experiment, run: &regime_lab::Run) -> String {
    let mut entry = RunEntry::new(experiment, run);
    entry.wall = None;
    let report = Results::new(Provenance::default(), vec![entry]).to_json();
    format!("{report}{:?}{:?}", run.record, run.report)
}

const POLICIES: [&str; 5] = [
    "default",
    "dynamo-two-tier-cost-fn",
    "regime-aware",
    "power-of-two",
    "dualmap",
];

#[test]
fn twice_the_same_is_the_same_to_the_byte_and_so_is_another_listing() {
    for policy in POLICIES {
        // Up to six workers are listed one by one, nine as the ranks of one.
        for topology in ["4", "9", "2P3D"] {
            let mut trial = trial(policy, topology);
            let once = bytes(&trial, &run(&trial));
            assert!(
                once == bytes(&trial, &run(&trial)),
                "{policy} on {topology}"
            );
            trial.settings.listing = Listing::Reverse;
            assert!(
                once == bytes(&trial, &run(&trial)),
                "{policy} on {topology}, reversed"
            );
        }
    }
}

#[test]
fn one_thread_and_eight_threads_give_the_same() {
    let trials: Vec<_> = POLICIES.iter().map(|policy| trial(policy, "4")).collect();
    let all = |threads| {
        run_all(&trials, &Catalog::default(), threads, |index, run| {
            bytes(&trials[index], &run.unwrap())
        })
    };
    assert!(all(1) == all(8));
}

#[test]
fn another_seed_draws_other_workers_and_is_named() {
    let mut trial = trial("random", "4");
    let seven = run(&trial).record.decisions;
    trial.seed = 8;
    let eight = run(&trial);
    assert_ne!(seven, eight.record.decisions);
    assert_eq!(RunEntry::new(&trial, &eight).seed, 8);
}
