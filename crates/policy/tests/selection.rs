// SPDX-License-Identifier: Apache-2.0

//! The choice of a worker, through Dynamo's own selection path.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use dynamo_kv_router::WorkerType;
use dynamo_kv_router::protocols::{WorkerAffinityTarget, WorkerWithDpRank};
use dynamo_kv_router::scheduling::KvSchedulerError;
use support::{Host, request, row, shared};

fn worker(id: u64) -> WorkerWithDpRank {
    WorkerWithDpRank::from_worker_id(id)
}

#[test]
fn idle_workers_share_unrelated_requests_whatever_the_row_order() {
    // Field report BR-02: 400 requests, each done before the next.
    let wins = |reversed: bool| {
        let host = Host::new("{seed: 7}");
        let mut rows = [1, 2, 3, 4].map(row);
        if reversed {
            rows.reverse();
        }
        (0..400)
            .map(|_| {
                host.advance(50);
                host.select(8, &rows).worker_id
            })
            .collect::<Vec<_>>()
    };
    let picks = wins(false);
    for id in 1..=4 {
        let share = picks.iter().filter(|&&pick| pick == id).count();
        assert!((60..=140).contains(&share), "worker {id}: {share}");
    }
    assert_eq!(picks, wins(true));
}

#[test]
fn a_session_stays_with_its_prefix_and_sessions_spread() {
    // Field report BR-02, second part: 10 sessions of 8 turns, each 8 blocks longer than the last.
    let host = Host::new("{seed: 3}");
    let mut used = HashMap::new();
    for session in 0..10 {
        let mut home: Option<u64> = None;
        for turn in 0..8 {
            let rows = [1, 2, 3, 4].map(|id| {
                let cached = if home == Some(id) { turn * 8 } else { 0 };
                row(id).device(cached)
            });
            let pick = host.select((turn + 1) * 8, &rows).worker_id;
            assert!(
                home.is_none_or(|home| home == pick),
                "session {session} turn {turn}"
            );
            home = Some(pick);
        }
        *used.entry(home.unwrap()).or_insert(0) += 1;
    }
    assert!(used.len() >= 3, "{used:?}");
}

#[test]
fn a_worker_of_unknown_load_is_neither_flooded_nor_starved() {
    // Field report BR-03.
    let host = Host::new("{}");
    let mut active = [6, 5];
    let mut unknown_wins = 0;
    for _ in 0..30 {
        let rows = [
            row(1).load(active[0], 2_048, 900),
            row(2).load(active[1], 1_024, 850),
            row(3).unknown_load(),
        ];
        match host.select(256, &rows).worker_id {
            1 => active[0] += 1,
            2 => active[1] += 1,
            _ => unknown_wins += 1,
        }
        let rows = host.pool().last_decision.unwrap().rows;
        let cost = |id| rows.iter().find(|row| row.worker.id == id).unwrap();
        assert!(!cost(3).load_known && cost(1).load_known);
        let (low, high) = (
            cost(1).cost.min(cost(2).cost),
            cost(1).cost.max(cost(2).cost),
        );
        assert!((low..=high).contains(&cost(3).cost), "{rows:?}");
    }
    assert!((1..=15).contains(&unknown_wins), "{unknown_wins} of 30");
    assert_eq!(host.pool().decisions.unknown_loads, 30);
}

#[test]
fn requests_spread_when_no_load_is_known() {
    let host = Host::new("{}");
    let rows = [1, 2, 3].map(|id| row(id).unknown_load());
    let mut wins = HashMap::new();
    for _ in 0..90 {
        *wins.entry(host.select(8, &rows)).or_insert(0) += 1;
    }
    assert!(
        wins.len() == 3 && wins.values().all(|&wins| wins >= 15),
        "{wins:?}"
    );
}

#[test]
fn one_hot_worker_does_not_change_how_the_others_are_scored() {
    // Field report BR-01, cases a to c, under both cost models.
    for parameters in ["{}", "{cost: paper}"] {
        let host = Host::new(parameters);
        let busy = |id, requests: usize| row(id).load(requests, 0, requests * 20 + 100);
        let a = [busy(1, 70), busy(2, 4).device(90), busy(3, 2)];
        assert_eq!(host.select(100, &a), worker(2), "{parameters}");
        let b = [busy(1, 70).device(90), busy(2, 4), busy(3, 2)];
        assert_eq!(host.select(100, &b), worker(3), "{parameters}");
        let c = [busy(1, 70).device(90), busy(2, 69), busy(3, 68)];
        assert_eq!(host.select(100, &c), worker(1), "{parameters}");
    }
}

#[test]
fn cache_that_holds_none_of_the_prompt_does_not_attract_it() {
    // Field report SP-1: W2's cache is full of other prompts, which the host shows as overlap 0.
    let host = Host::new("{}");
    let rows = [row(1).load(40, 0, 300), row(2).load(0, 0, 40)];
    assert_eq!(host.select(40, &rows), worker(2));
}

#[test]
fn no_workers_is_the_hosts_error_and_changes_nothing() {
    // Field report BR-04 c.
    let host = Host::new("{}");
    host.select(8, &[row(1), row(2)]);
    let error = host.select_with(request(8), &[]).unwrap_err();
    assert!(matches!(error, KvSchedulerError::NoEndpoints));
    let pool = host.pool();
    assert_eq!(pool.decisions.made, 1);
    assert_eq!(pool.workers.len(), 2);
}

#[test]
fn a_pin_is_obeyed_whatever_it_costs() {
    let host = Host::new("{}");
    let mut pinned = request(100);
    pinned.pinned_worker = Some(worker(1));
    let rows = [row(1).load(90, 90_000, 5_000), row(2).device(100)];
    assert_eq!(host.select_with(pinned, &rows).unwrap(), worker(1));
}

#[test]
fn a_session_target_is_exclusive_by_default() {
    let host = Host::new("{}");
    let rows = [row(1).load(90, 90_000, 5_000), row(2).device(100)];
    let mut sticky = request(100);
    sticky.affinity_target = Some(WorkerAffinityTarget::new(1, Some(0)));
    // The host narrows the candidates to the target when the policy asks for exclusivity.
    assert!(
        dynamo_kv_router::WorkerSelector::<support::TestWorker>::uses_exclusive_affinity_target(
            &host.policy
        )
    );
    sticky.pinned_worker = Some(worker(1));
    assert_eq!(host.select_with(sticky, &rows).unwrap(), worker(1));
}

#[test]
fn an_advisory_target_is_credited_and_may_lose() {
    let host = Host::new("{session_affinity: advisory}");
    let target = |id| {
        let mut sticky = request(100);
        sticky.affinity_target = Some(WorkerAffinityTarget::new(id, None));
        sticky
    };
    let idle = [row(1), row(2)];
    for _ in 0..20 {
        assert_eq!(host.select_with(target(2), &idle).unwrap(), worker(2));
    }
    let swamped = [row(1), row(2).load(90, 90_000, 5_000)];
    assert_eq!(host.select_with(target(2), &swamped).unwrap(), worker(1));
}

#[test]
fn a_preferred_taint_outweighs_a_small_difference() {
    let mut host = Host::new("{}");
    host.taints.insert(1, vec!["gold"]);
    let mut picky = request(100);
    picky
        .routing_constraints
        .preferred_taints
        .insert("gold".to_owned(), 1.0);
    // 12 + 48 + 2.5 ms against 12 + 48 ms, times e^−tanh(1) = 0.467 for worker 1.
    let rows = [row(1).load(1, 0, 0), row(2)];
    assert_eq!(host.select_with(picky, &rows).unwrap(), worker(1));
    assert_eq!(host.select(100, &rows), worker(2));
}

#[test]
fn a_temperature_of_the_request_spreads_the_choice() {
    let host = Host::new("{}");
    let rows = [row(1).load(1, 0, 0), row(2)];
    let warm = || {
        let mut warm = request(8);
        warm.router_config_override = Some(dynamo_kv_router::RouterConfigOverride {
            router_temperature: Some(1.0),
            ..Default::default()
        });
        warm
    };
    let wins = (0..200)
        .filter(|_| host.select_with(warm(), &rows).unwrap() == worker(1))
        .count();
    // 1 / (1 + e) = 0.27 of 200.
    assert!((30..=80).contains(&wins), "{wins}");
    assert_eq!(host.select(8, &rows), worker(2));
}

#[test]
fn the_paper_model_is_greedy_while_the_pool_is_below_its_knee() {
    let host = Host::new("{cost: paper}");
    let rows = [row(1).load(0, 0, 10), row(2).load(0, 0, 11)];
    for _ in 0..50 {
        assert_eq!(host.select(8, &rows), worker(1));
    }
}

#[test]
fn a_decode_pool_is_chosen_by_load_alone() {
    let host = Host::with("{}", WorkerType::Decode, None);
    let mut decode = request(100);
    decode.track_prefill_tokens = false;
    let rows = [row(1).load(3, 0, 300).device(100), row(2).load(2, 0, 200)];
    assert_eq!(host.select_with(decode, &rows).unwrap(), worker(2));
}

#[test]
fn shared_blocks_count_only_beyond_the_whole_local_prefix() {
    // Field report BR-06: credits 3, 4, 8 and W4 dev 1 + host 1 + 2 shared at 0.5 = 2.75.
    let host = Host::new("{}");
    let mut rows = [
        row(1).device(2),
        row(2).device(4),
        row(3).device(6),
        row(4).device(1),
    ];
    rows[3].host = 1;
    let mut request = request(10);
    request.shared_cache_hits = shared(&[2..4, 6..10]);
    assert_eq!(host.select_with(request, &rows).unwrap(), worker(3));
    let decision = host.pool().last_decision.unwrap();
    for (id, credit) in [(1, 3.0), (2, 4.0), (3, 8.0), (4, 2.75)] {
        let row = decision
            .rows
            .iter()
            .find(|row| row.worker.id == id)
            .unwrap();
        assert_eq!(row.uncached_tokens, 160.0 - 16.0 * credit, "worker {id}");
    }
}

#[test]
fn a_prompt_without_tokens_is_placed_by_load() {
    let host = Host::new("{}");
    let rows = [row(1).load(5, 100, 80).device(3), row(2).load(1, 0, 8)];
    assert_eq!(host.select(0, &rows), worker(2));
}

#[test]
fn a_panic_in_the_scorer_is_served_by_the_fallback_and_counted() {
    let probe = Arc::new(|_: &'static str| panic!("injected"));
    let host = Host::with("{}", WorkerType::Aggregated, Some(probe));
    let rows = [row(1).load(5, 0, 0).device(8), row(2).load(1, 0, 0)];
    for _ in 0..3 {
        assert_eq!(host.select(8, &rows), worker(2));
    }
    let pool = host.pool();
    assert_eq!(pool.decisions.fallbacks["panic"], 3);
    assert_eq!(pool.decisions.made, 3);
    assert!(pool.last_decision.unwrap().fallback);
}

#[test]
fn ids_that_differ_in_the_last_digit_stay_two_workers() {
    // Field report SP-5.
    let (a, b) = (16_882_743_587_675_780_123, 16_882_743_587_675_780_124);
    let host = Host::new("{}");
    host.select(8, &[row(a), row(b)]);
    let json = serde_json::to_value(host.handle.report()).unwrap();
    let workers = json["pools"][0]["workers"].as_array().unwrap();
    let ids: Vec<_> = workers.iter().map(|worker| &worker["id"]).collect();
    assert_eq!(ids, ["16882743587675780123", "16882743587675780124"]);
    let text = json.to_string();
    assert!(!text.contains("NaN") && !text.contains("null"), "{text}");
}

/// Two workers whose requests never end. The prompt of 400 blocks went to the first of them, an unrelated
/// one of 10 blocks to the other; no KV event has come. Where does the long prompt go next?
fn second_home_of_a_prompt(parameters: &str) -> (WorkerWithDpRank, WorkerWithDpRank) {
    let host = Host::new(parameters);
    let first = host.select(400, &[row(1).load(0, 0, 400), row(2).load(0, 0, 400)]);
    let load = |id: u64, held: (usize, usize, usize), other: (usize, usize, usize)| {
        let (requests, tokens, blocks) = if worker(id) == first { held } else { other };
        row(id).load(requests, tokens, blocks)
    };
    // Ten blocks more than the 400 in use there, and ten on the idle one.
    let rows = [1, 2].map(|id| load(id, (1, 6_400, 410), (0, 0, 10)));
    let short = host.select(10, &rows);
    assert_ne!(short, first);
    // The prompt adds nothing to the 400 where it is, and 400 to the 10 elsewhere.
    let rows = [1, 2].map(|id| load(id, (1, 6_400, 400), (1, 160, 410)));
    (first, host.select(400, &rows))
}

#[test]
fn a_prompt_on_its_way_draws_its_like_before_any_kv_event() {
    // Waiting for 6,400 tokens and computing none costs 198 + 12 ms; 160 and 6,400 cost 11 + 204 ms, and
    // the price of 400 blocks more in memory decides.
    let (first, second) = second_home_of_a_prompt("{}");
    assert_eq!(first, second);
    let (first, second) = second_home_of_a_prompt("{calibrated: {in_flight: false}}");
    assert_ne!(first, second);
}
