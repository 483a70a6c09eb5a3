// SPDX-License-Identifier: Apache-2.0

//! What cached blocks in lower tiers are worth, through Dynamo's own selection path. Before anything is
//! learned a prefill takes 12 ms and 0.03 ms a token, 0.48 ms a block.

#![allow(clippy::unwrap_used)]

mod support;

use std::ops::Range;

use dynamo_kv_router::WorkerType;
use dynamo_kv_router::protocols::WorkerAffinityTarget;
use regime_core::Tokens;
use regime_policy::{Clock, Feedback};
use support::{Host, Row, key, request, row, shared};

/// 1 MB a block: 0.5 ms and 0.1 ms a block from the host, 1 and 1 from the disk, 1 and 0.1 from the store.
const LADDER: &str = "{tier_value: time, tiers: {kv_bytes_per_token: 62500, \
     host: {latency_ms: 0.5, bandwidth_gb_s: 10}, \
     disk: {latency_ms: 1, bandwidth_gb_s: 1}, \
     shared: {latency_ms: 1, bandwidth_gb_s: 10}}}";

/// Predicted TTFT on each worker, in order of id, and the choice.
fn predict(host: &Host, blocks: usize, rows: &[Row], ranges: &[Range<u32>]) -> (Vec<f64>, u64) {
    let mut request = request(blocks);
    if !ranges.is_empty() {
        request.shared_cache_hits = shared(ranges);
    }
    let chosen = host.select_with(request, rows).unwrap().worker_id;
    let mut rows = host.pool().last_decision.unwrap().rows;
    rows.sort_by_key(|row| row.worker);
    (rows.iter().map(|row| row.alone_ms.get()).collect(), chosen)
}

fn assert_close(got: &[f64], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len());
    for (got, wanted) in got.iter().zip(wanted) {
        assert!((got - wanted).abs() < 1e-6, "{got} is not {wanted}");
    }
}

/// Field report BR-05.
fn overlaps() -> [Row; 5] {
    [
        row(1).tiers(10, 0, 0),
        row(2).tiers(6, 4, 0),
        row(3).tiers(0, 10, 0),
        row(4).tiers(6, 4, 5),
        row(5).tiers(0, 1, 0),
    ]
}

#[test]
fn weighted_extensions_count_once_and_end_with_the_prompt() {
    // Field report BR-05: credits 10, 9, 7.5, 9 and 0.75 blocks.
    let host = Host::new("{}");
    let (_, chosen) = predict(&host, 10, &overlaps(), &[]);
    assert_eq!(chosen, 1);
    let mut rows = host.pool().last_decision.unwrap().rows;
    rows.sort_by_key(|row| row.worker);
    let uncached: Vec<_> = rows.iter().map(|row| row.uncached_tokens).collect();
    assert_eq!(uncached, [0.0, 16.0, 40.0, 16.0, 148.0]);
    assert!(rows.iter().all(|row| row.cost >= 0.0));
}

#[test]
fn timed_extensions_cost_their_transfer_and_end_with_the_prompt() {
    // Field report BR-05 by time: 12 ms and 4, 10 and 4 blocks from the host at 0.5 + 0.1 each. W5's one
    // block takes 0.6 ms and saves 0.48, so all 10 are computed.
    let (alone, chosen) = predict(&Host::new(LADDER), 10, &overlaps(), &[]);
    assert_close(&alone, &[12.0, 12.9, 13.5, 12.9, 16.8]);
    assert_eq!(chosen, 1);
}

#[test]
fn a_prompt_without_tokens_earns_nothing_and_costs_are_finite() {
    for parameters in ["{}", LADDER] {
        let rows = [row(1).tiers(3, 2, 1), row(2)];
        let (alone, _) = predict(&Host::new(parameters), 0, &rows, &[]);
        assert_close(&alone, &[12.0, 12.0]);
    }
}

#[test]
fn shared_blocks_are_brought_only_from_the_end_of_the_local_prefix_and_if_they_pay() {
    // Field report BR-06 by time. W1: two shared blocks save 0.96 and take 1.2. W2: none begins at 4.
    // W3: four save 1.92 and take 1.4. W4: one from the host and two shared save 1.44 and take 1.8.
    let rows = [
        row(1).tiers(2, 0, 0),
        row(2).tiers(4, 0, 0),
        row(3).tiers(6, 0, 0),
        row(4).tiers(1, 1, 0),
    ];
    let (alone, chosen) = predict(&Host::new(LADDER), 10, &rows, &[2..4, 6..10]);
    assert_close(&alone, &[15.84, 14.88, 13.4, 16.32]);
    assert_eq!(chosen, 3);
}

#[test]
fn a_slow_disk_behind_a_fast_device_is_no_reason_to_go_there() {
    // A disk block takes 1 ms and saves 0.48: W1 computes all 100 blocks like W2, and W2 is idle.
    let host = Host::new(LADDER);
    let rows = [
        row(1).load(1, 0, 100).tiers(0, 0, 100),
        row(2).load(0, 0, 100),
    ];
    let (alone, chosen) = predict(&host, 100, &rows, &[]);
    assert_close(&alone, &[60.0, 60.0]);
    assert_eq!(chosen, 2);
    // At the fixed weight of 0.25 it looks 12 ms better.
    let (alone, chosen) = predict(&Host::new("{}"), 100, &rows, &[]);
    assert_close(&alone, &[48.0, 60.0]);
    assert_eq!(chosen, 1);
}

#[test]
fn requests_that_pull_from_one_host_lengthen_each_others_load_until_it_drains() {
    // 100 blocks take 10.5 ms and save 48. Each request sent there makes the next wait 10 ms more.
    let host = Host::new(LADDER);
    let rows = [row(1).tiers(0, 100, 0), row(2)];
    for ms in [22.5, 32.5, 42.5, 52.5] {
        let (alone, chosen) = predict(&host, 100, &rows, &[]);
        assert_close(&alone, &[ms, 60.0]);
        assert_eq!(chosen, 1);
    }
    let (alone, _) = predict(&host, 100, &rows, &[]);
    assert_close(&alone, &[60.0, 60.0]);
    host.advance(40);
    let (alone, chosen) = predict(&host, 100, &rows, &[]);
    assert_close(&alone, &[22.5, 60.0]);
    assert_eq!(chosen, 1);
}

#[test]
fn workers_share_the_line_of_the_shared_store() {
    // 40 blocks take 1 + 4 ms and save 19.2. The second pull waits 4 ms wherever it goes.
    let host = Host::new(LADDER);
    let store = 0u32..40;
    let rows = [row(1), row(2).load(1, 0, 0)];
    let pull = || predict(&host, 40, &rows, std::slice::from_ref(&store)).0;
    assert_close(&pull(), &[17.0, 17.0]);
    assert_close(&pull(), &[21.0, 21.0]);
}

#[test]
fn a_host_pool_that_is_lost_is_worth_nothing_at_the_next_decision() {
    // Events that remove its blocks leave the worker without a host overlap.
    for (parameters, before) in [(LADDER, 22.5), ("{}", 12.0 + 0.25 * 48.0)] {
        let host = Host::new(parameters);
        let (alone, chosen) = predict(&host, 100, &[row(1).tiers(0, 100, 0), row(2)], &[]);
        assert_close(&alone, &[before, 60.0]);
        assert_eq!(chosen, 1);
        let (alone, chosen) = predict(&host, 100, &[row(1), row(2).tiers(1, 0, 0)], &[]);
        assert_close(&alone, &[60.0, 59.52]);
        assert_eq!(chosen, 2);
    }
}

#[test]
fn a_session_target_is_believed_to_hold_its_share_where_that_is_worth_more() {
    // Half of 100 blocks, in device memory, save 24 ms. 100 from the host save 48 and take 10.5; 10 save
    // 4.8 and take 1.5.
    let parameters = LADDER.replacen('{', "{session_affinity: advisory, ", 1);
    for (host_blocks, ms) in [(100, 22.5), (10, 36.0)] {
        let host = Host::new(&parameters);
        let mut request = request(100);
        request.affinity_target = Some(WorkerAffinityTarget::new(1, None));
        let rows = [row(1).tiers(0, host_blocks, 0), row(2)];
        assert_eq!(host.select_with(request, &rows).unwrap().worker_id, 1);
        let rows = host.pool().last_decision.unwrap().rows;
        let target = rows.iter().find(|row| row.worker.id == 1).unwrap();
        assert_close(&[target.alone_ms.get()], &[ms]);
    }
}

/// `requests` of 100 blocks go one after the other to a worker that holds them in `row`, and each takes
/// `ttft_ms`.
fn serve(host: &Host, feedback: &Feedback, row: Row, requests: usize, ttft_ms: u64) {
    let prompt = Tokens(1_600);
    for _ in 0..requests {
        let id = format!("{:?}", host.clock.now());
        feedback.classified(&id, host.clock.now(), prompt);
        host.select(100, &[row]);
        feedback.sent(&id, key(1));
        host.advance(ttft_ms);
        feedback.responding(&id, key(1), Some(1));
        feedback.completed(&id, key(1), Some(prompt.0 + 1));
        host.advance(1_000);
    }
}

/// 30 prefills of 12 + 0.03 · 1,600 = 60 ms, so that rates are known.
fn with_known_rates(parameters: &str, role: WorkerType) -> (Host, Feedback) {
    let host = Host::with(parameters, role, None);
    let (feedback, _) = host.feedback(&[1]);
    serve(&host, &feedback, row(1), 30, 60);
    (host, feedback)
}

#[test]
fn a_tier_that_is_slower_than_the_ladder_says_is_priced_as_it_is() {
    let (host, feedback) = with_known_rates(LADDER, WorkerType::Aggregated);
    let on_host = row(1).tiers(0, 100, 0);
    // 12 + 10.5 ms by the ladder. They take 12 + 21.
    assert_close(&predict(&host, 100, &[on_host], &[]).0, &[22.5]);
    host.advance(1_000);
    serve(&host, &feedback, on_host, 10, 33);
    let tiers = host.pool().tiers;
    assert_eq!(tiers.unavailable, None);
    let [host_tier, disk] = ["host", "disk"].map(|tier| tiers.factors[tier]);
    assert_eq!((disk.factor, disk.samples), (1.0, 0));
    assert_eq!(host_tier.samples, 10);
    assert!((1.95..2.05).contains(&host_tier.factor), "{host_tier:?}");
    // The second waits for the 100 MB of the first, 10 ms by the ladder.
    let [first, second] = [(); 2].map(|()| predict(&host, 100, &[on_host], &[]).0[0]);
    assert!((32.0..34.0).contains(&first), "{first}");
    assert!((19.0..21.0).contains(&(second - first)), "{second}");
    // The rates of prefill have nothing to do with it.
    let rates = host.pool().rates;
    let prefill = rates.pass_ms + 1_600.0 * rates.token_ms;
    assert!((59.0..61.0).contains(&prefill), "{rates:?}");
    // In silence the ladder holds again.
    host.advance(700_000);
    assert_close(&[host.pool().tiers.factors["host"].factor], &[1.0]);
}

#[test]
fn requests_that_bring_up_blocks_teach_no_prefill_rates() {
    let (host, feedback) = with_known_rates(LADDER, WorkerType::Aggregated);
    // The first brings the last of those before to an end.
    serve(&host, &feedback, row(1).tiers(0, 90, 0), 1, 300);
    let before = host.pool().rates;
    serve(&host, &feedback, row(1).tiers(0, 90, 0), 30, 300);
    let after = host.pool().rates;
    assert_eq!([before.groups, after.groups], [30, 30]);
    assert_eq!(
        (after.pass_ms, after.token_ms),
        (before.pass_ms, before.token_ms)
    );
}

#[test]
fn where_tiers_cannot_be_told_apart_nothing_is_learned_and_the_report_says_why() {
    let on_host = row(1).tiers(0, 100, 0);
    let fixed = LADDER.replacen("tiers: {", "tiers: {learn: false, ", 1);
    let cases = [
        ("{}", WorkerType::Aggregated, on_host, Some("weights")),
        (
            fixed.as_str(),
            WorkerType::Aggregated,
            on_host,
            Some("switched_off"),
        ),
        (LADDER, WorkerType::Prefill, on_host, Some("no_outcomes")),
        (
            LADDER,
            WorkerType::Aggregated,
            row(1).tiers(0, 50, 50),
            Some("not_measured"),
        ),
        (LADDER, WorkerType::Aggregated, on_host, None),
    ];
    for (parameters, role, row, reason) in cases {
        let (host, feedback) = with_known_rates(parameters, role);
        serve(&host, &feedback, row, 10, 100);
        let tiers = host.pool().tiers;
        assert_eq!(tiers.unavailable, reason);
        let learned = tiers.factors.values().any(|it| it.samples > 0);
        assert_eq!(learned, reason.is_none(), "{reason:?}");
    }
}
