// SPDX-License-Identifier: Apache-2.0

//! What the policy learns from events, in virtual time.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use dynamo_kv_router::WorkerType;
use regime_core::{RateSource, Regime, Timestamp, Tokens, WorkerKey};
use regime_policy::{Clock, Feedback, PoolReport, TtftDelta, WorkerReport};
use support::{Host, Row, key, row};

const BLOCKS: usize = 64;
const PROMPT: Tokens = Tokens(64 * 16);

/// One request on `worker` that answers after `ttft_ms` and is done at once.
fn serve(host: &Host, feedback: &Feedback, id: &str, worker: WorkerKey, ttft_ms: u64) {
    feedback.classified(id, host.clock.now(), PROMPT);
    feedback.sent(id, worker);
    host.advance(ttft_ms);
    feedback.responding(id, worker, Some(1));
    feedback.completed(id, worker, Some(PROMPT.0 + 1));
}

fn worker_report(host: &Host, worker: WorkerKey) -> WorkerReport {
    let workers = host.pool().workers;
    workers
        .into_iter()
        .find(|report| report.worker == worker)
        .unwrap()
}

#[test]
fn a_first_token_is_matched_with_the_decision_that_placed_it() {
    let host = Host::new("{}");
    let (feedback, _) = host.feedback(&[1, 2]);
    for request in 0..10 {
        let id = request.to_string();
        feedback.classified(&id, host.clock.now(), PROMPT);
        let worker = host.select(BLOCKS, &[row(1), row(2)]);
        feedback.sent(&id, key(worker.worker_id));
        host.advance(40);
        feedback.responding(&id, key(worker.worker_id), Some(1));
        feedback.completed(&id, key(worker.worker_id), Some(PROMPT.0 + 1));
    }
    let pool = host.pool();
    assert_eq!(pool.decisions.matched_share, Some(1.0));
    // Alone: 12 ms + 1024 tokens × 0.03 ms = 42.72 ms, of which every request took 40.
    let slowdown = pool.health.signals["slowdown"];
    assert_eq!(slowdown.samples, 10);
    assert!((0.5..2.0).contains(&slowdown.value), "{slowdown:?}");
}

#[test]
fn failures_give_no_ttft_and_hold_the_worker_back() {
    // Field report BR-08.
    let host = Host::new("{}");
    let (feedback, _) = host.feedback(&[1, 2]);
    host.select(BLOCKS, &[row(1), row(2)]);
    for request in 0..20 {
        serve(&host, &feedback, &format!("ok-{request}"), key(1), 500);
        let id = format!("failed-{request}");
        feedback.classified(&id, host.clock.now(), PROMPT);
        feedback.sent(&id, key(2));
        host.advance(5);
        feedback.aborted(&id, Some(key(2)), true);
    }
    for request in 0..5 {
        let id = format!("silent-{request}");
        feedback.classified(&id, host.clock.now(), PROMPT);
        feedback.sent(&id, key(1));
        host.advance(42_000);
        feedback.completed(&id, key(1), None);
    }
    let report = host.handle.report();
    assert_eq!(report.requests.counts.first_tokens, 20);
    assert_eq!(report.requests.counts.no_first_token, 5);
    assert_eq!(worker_report(&host, key(2)).failures, 20);
    assert_eq!(worker_report(&host, key(2)).health.ttft.samples, 0);

    // Three more failures in a row hold W2; idle and equal otherwise, W1 is preferred.
    for request in 0..3 {
        let id = format!("again-{request}");
        feedback.sent(&id, key(2));
        feedback.aborted(&id, Some(key(2)), true);
    }
    assert!(worker_report(&host, key(2)).held);
    for _ in 0..20 {
        assert_eq!(host.select(BLOCKS, &[row(1), row(2)]).worker_id, 1);
    }
    // A held worker still serves when there is no other, and is tried again after a minute.
    assert_eq!(host.select(BLOCKS, &[row(2)]).worker_id, 2);
    host.advance(61_000);
    assert!(!worker_report(&host, key(2)).held);
}

#[test]
fn a_new_worker_starts_as_a_typical_one_and_is_not_flooded() {
    // Field report BR-07: W3 joins, answers in 3 s ten times, then like the others, then leaves.
    let host = Host::new("{}");
    let (feedback, listed) = host.feedback(&[1, 2]);
    for request in 0..400 {
        let worker = key(1 + request % 2);
        host.select(BLOCKS, &[row(worker.id)]);
        serve(&host, &feedback, &request.to_string(), worker, 400);
    }
    let slowness = |id| worker_report(&host, key(id)).slowness;
    let before = [slowness(1), slowness(2)];
    listed.lock().unwrap().push(key(3));

    let mut in_flight: Vec<(Timestamp, String, WorkerKey)> = Vec::new();
    let mut placed = BTreeMap::new();
    for request in 0..30 {
        let now = host.clock.now();
        in_flight.retain(|(due, id, worker)| {
            if *due <= now {
                feedback.responding(id, *worker, Some(1));
                feedback.completed(id, *worker, Some(PROMPT.0 + 1));
            }
            *due > now
        });
        let rows: Vec<Row> = (1..=3)
            .map(|id| {
                let active = in_flight.iter().filter(|(_, _, worker)| worker.id == id);
                let active = active.count();
                row(id).load(active, active * 1_024, (active + 1) * BLOCKS)
            })
            .collect();
        let id = format!("join-{request}");
        feedback.classified(&id, now, PROMPT);
        let worker = key(host.select(BLOCKS, &rows).worker_id);
        feedback.sent(&id, worker);
        if request == 0 {
            assert_eq!(slowness(3), 1.0);
        }
        let served = placed.entry(worker.id).or_insert(0);
        *served += 1;
        let millis = if worker.id == 3 && *served <= 10 {
            3_000
        } else {
            400
        };
        in_flight.push((now + Duration::from_millis(millis), id, worker));
        host.advance(100);
        assert_ne!(host.pool().health.regime, Regime::Saturated);
    }
    assert!(
        placed.get(&3).is_none_or(|&served| served <= 15),
        "{placed:?}"
    );
    assert_eq!([slowness(1), slowness(2)], before);

    listed.lock().unwrap().retain(|worker| worker.id != 3);
    host.advance(2_000);
    let pool = host.pool();
    assert_eq!(pool.workers.len(), 2);
    assert_eq!([slowness(1), slowness(2)], before);
    assert!(!serde_json::to_string(&pool).unwrap().contains("NaN"));
}

#[test]
fn vanished_requests_leave_no_load_behind() {
    // Field report BR-12.
    let host = Host::new("{}");
    let (feedback, _) = host.feedback(&[1, 2]);
    host.select(BLOCKS, &[row(1), row(2)]);
    for request in 0..1_000 {
        let (id, worker) = (request.to_string(), key(1 + request % 2));
        feedback.classified(&id, host.clock.now(), PROMPT);
        match request {
            0..990 => {
                feedback.sent(&id, worker);
                feedback.aborted(&id, Some(worker), true);
            }
            990..995 => feedback.aborted(&id, None, true),
            _ => feedback.completed(&id, worker, None),
        }
    }
    let report = host.handle.report();
    assert_eq!(report.requests.tracked, 0);
    assert_eq!(report.requests.counts.aborts(), 995);
    for worker in &report.pools[0].workers {
        assert_eq!((worker.in_flight.waiting, worker.in_flight.running), (0, 0));
    }
}

/// `requests` arrive at once and are served one by one, each worker taking 43 ms for each, which is
/// what a request takes alone. Returns the regimes that were seen.
fn serve_burst(host: &Host, feedback: &Feedback, requests: u64, tag: &str) -> Vec<Regime> {
    let mut queues = [Vec::new(), Vec::new()];
    for request in 0..requests {
        let id = format!("{tag}-{request}");
        let load = |queue: &Vec<String>| (queue.len(), queue.len() * 1_024, queue.len() * BLOCKS);
        let [a, b] = [&queues[0], &queues[1]].map(load);
        feedback.classified(&id, host.clock.now(), PROMPT);
        let rows = [row(1).load(a.0, a.1, a.2), row(2).load(b.0, b.1, b.2)];
        let worker = host.select(BLOCKS, &rows).worker_id;
        feedback.sent(&id, key(worker));
        queues[usize::from(worker == 2)].push(id);
    }
    let mut seen = Vec::new();
    while queues.iter().any(|queue| !queue.is_empty()) {
        host.advance(43);
        for (queue, worker) in queues.iter_mut().zip([1, 2]) {
            if !queue.is_empty() {
                let id = queue.remove(0);
                feedback.responding(&id, key(worker), Some(1));
                feedback.completed(&id, key(worker), Some(PROMPT.0 + 1));
            }
        }
        seen.push(host.pool().health.regime);
    }
    seen
}

#[test]
fn saturation_is_entered_and_left_and_silence_makes_it_unknown() {
    let host = Host::new("{}");
    let (feedback, _) = host.feedback(&[1, 2]);
    assert_eq!(host.handle.report().pools[0].health.regime, Regime::Unknown);
    let calm = |tag: &str| -> Vec<Regime> {
        (0..300)
            .flat_map(|burst| serve_burst(&host, &feedback, 1, &format!("{tag}-{burst}")))
            .collect()
    };
    assert_eq!(calm("before").last(), Some(&Regime::Below));
    let storm = serve_burst(&host, &feedback, 200, "storm");
    assert!(storm.contains(&Regime::Saturated), "{storm:?}");
    let after = calm("after");
    assert_eq!(after.last(), Some(&Regime::Below), "{after:?}");

    host.advance(600_000);
    let pool = host.pool();
    assert_eq!(pool.health.regime, Regime::Unknown);
    assert_eq!(pool.price.prefill, 0.0);
    let workers = pool.workers.iter();
    assert!(
        workers
            .map(|worker| worker.health.regime)
            .all(|regime| regime == Regime::Unknown)
    );
}

#[test]
fn saturation_of_one_rank_does_not_mark_another() {
    // Field report SP-6: W1/1 is saturated, W1/0 idle.
    let host = Host::new("{}");
    let (feedback, _) = host.feedback(&[]);
    let ranks = [(1, 0), (1, 1), (2, 0), (2, 1)].map(|(id, rank)| {
        let mut row = row(id);
        row.worker.dp_rank = rank;
        row
    });
    host.select(BLOCKS, &ranks);
    let hot = WorkerKey::new(1, 1);
    for request in 0..12 {
        feedback.sent(&request.to_string(), hot);
    }
    for _ in 0..10 {
        host.advance(250);
        host.select(BLOCKS, &ranks);
    }
    let regime = |worker| worker_report(&host, worker).health.regime;
    assert_eq!(regime(hot), Regime::Saturated);
    assert_ne!(regime(WorkerKey::new(1, 0)), Regime::Saturated);
}

#[test]
fn a_filter_that_would_remove_everybody_lets_everybody_through() {
    // Field report BR-04 a and b: P99s of 3100, 2900 and 2700 ms, otherwise equal.
    let host = Host::new(
        "{saturation_filter: true, window: {min_samples: 10}, regime: {max_age_ms: 600000},
          signals: {ttft_p99_ms: {transition_enter: 1000, transition_leave: 800,
                                  saturated_enter: 2000, saturated_leave: 1600}}}",
    );
    let (feedback, _) = host.feedback(&[1, 2, 3]);
    let rows = [1, 2, 3].map(row);
    host.select(BLOCKS, &rows);
    let ids = |worker: u64| (0..15).map(move |request| format!("{worker}-{request}"));
    for worker in 1..=3 {
        ids(worker).for_each(|id| feedback.sent(&id, key(worker)));
    }
    for (wait, worker) in [(2_700, 3), (200, 2), (200, 1)] {
        host.advance(wait);
        ids(worker).for_each(|id| feedback.responding(&id, key(worker), Some(1)));
    }
    for _ in 0..4 {
        host.advance(250);
        host.pool();
    }
    let saturated = host
        .pool()
        .workers
        .iter()
        .all(|worker| worker.health.regime == Regime::Saturated);
    assert!(saturated, "{:?}", host.pool().workers);
    let before = host.pool().decisions.filter_failed_open;
    assert_eq!(host.select(BLOCKS, &rows).worker_id, 3);
    assert_eq!(host.pool().decisions.filter_failed_open, before + 1);
    assert_eq!(host.select(BLOCKS, &rows[..1]).worker_id, 1);
}

#[test]
fn a_prefill_pool_learns_from_the_frontends_own_histogram() {
    let host = Host::with("{}", WorkerType::Prefill, None);
    for _ in 0..40 {
        host.select(BLOCKS, &[row(1), row(2)]);
        host.advance(50);
        // 100 ms each; alone 12 + 1024 × 0.03 = 42.72 ms.
        let delta = TtftDelta {
            buckets: vec![(128.0, 1)],
            sum_ms: 100.0,
            count: 1,
        };
        host.handle.observe_frontend_ttft("model", &delta);
        host.handle.observe_frontend_ttft("another model", &delta);
    }
    let pool = host.pool();
    let slowdown = pool.health.signals["slowdown"];
    assert!(
        (slowdown.value - 100.0 / 42.72).abs() < 0.01,
        "{slowdown:?}"
    );
    assert_eq!(slowdown.samples, 40);
    // The frontend's TTFT holds more than a prefill, so it is shown and does not decide.
    assert!(!slowdown.decides && pool.health.signals["waiting"].decides);
    assert_eq!(pool.health.regime, Regime::Below);
}

#[test]
fn an_unread_journal_costs_nothing_but_records() {
    let host = Host::with("{tick_ms: 3600000}", WorkerType::Decode, None);
    let decode = || {
        let mut request = support::request(BLOCKS);
        request.track_prefill_tokens = false;
        host.select_with(request, &[row(1), row(2)]).unwrap()
    };
    decode();
    for _ in 0..6_000 {
        decode();
    }
    let pool = host.pool();
    assert_eq!(pool.decisions.made, 6_001);
    assert!(pool.decisions.journal_lost > 0);
}

#[test]
fn without_events_the_queues_that_selections_saw_raise_the_price() {
    let host = Host::new("{}");
    // 4,000 tokens are no sum of these prompts, so the queues teach nothing about the rates.
    let rows = [row(1), row(2)].map(|row| row.load(4, 4_000, 256));
    for _ in 0..200 {
        host.select(BLOCKS, &rows);
        host.advance(20);
    }
    let pool = host.pool();
    // 4000 × 0.03 + 12 / 2 = 126 ms queued, in requests of 42.72 ms: 2.95, at a price of 2 each.
    let waiting = pool.health.signals["waiting"].value;
    assert!((waiting - 2.95).abs() < 0.01, "{waiting}");
    assert!((pool.price.prefill - 5.90).abs() < 0.02, "{:?}", pool.price);
    assert_eq!(pool.rates.source, RateSource::Prior);
}

#[test]
fn a_worker_that_is_withheld_from_selections_is_kept_while_discovery_lists_it() {
    let host = Host::new("{}");
    let (feedback, listed) = host.feedback(&[1]);
    host.select(BLOCKS, &[row(1), row(2)]);
    serve(&host, &feedback, "first", key(1), 40);
    for _ in 0..40 {
        host.advance(1_000);
        host.select(BLOCKS, &[row(3)]);
    }
    let ids = || -> Vec<u64> {
        let workers = host.pool().workers;
        workers.iter().map(|worker| worker.worker.id).collect()
    };
    // Worker 2 is in no discovery and was no candidate for 40 s.
    assert_eq!(ids(), [1, 3]);
    listed.lock().unwrap().clear();
    host.advance(1_000);
    assert_eq!(ids(), [3]);
}

/// One event of a request on its way to the router.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Sent,
    FirstToken,
    Completed,
}

/// 200 requests a worker, one every 200 ms, of 800 and 2,400 tokens in turn, which take 20 ms and
/// 0.025 ms a token. `mangle` changes the events, as time in ms, request and step, before they arrive.
fn after_mangled_events(mangle: impl Fn(&mut Vec<(u64, u64, Step)>)) -> PoolReport {
    let host = Host::new("{}");
    let (feedback, _) = host.feedback(&[1, 2]);
    let blocks = |request: u64| [50, 150][request as usize / 2 % 2];
    let worker = |request: u64| key(1 + request % 2);
    let mut events = Vec::new();
    for request in 0..400 {
        let at = request / 2 * 200 + request % 2;
        let prefill = 20 + blocks(request) as u64 * 16 / 40;
        for (time, step) in [
            (at, Step::Sent),
            (at + prefill, Step::FirstToken),
            (at + prefill + 60, Step::Completed),
        ] {
            events.push((time, request, step));
        }
    }
    mangle(&mut events);
    events.sort_by_key(|&(at, ..)| at);
    let mut now = 0;
    let mut placed = 0;
    for (at, request, step) in events {
        host.advance(at - now);
        now = at;
        let id = request.to_string();
        let tokens = Tokens(blocks(request) as u64 * 16);
        // Decisions are the router's own and keep their order.
        while placed <= request {
            feedback.classified(
                &placed.to_string(),
                host.clock.now(),
                Tokens(blocks(placed) as u64 * 16),
            );
            host.select(blocks(placed), &[row(worker(placed).id)]);
            placed += 1;
        }
        match step {
            Step::Sent => feedback.sent(&id, worker(request)),
            Step::FirstToken => feedback.responding(&id, worker(request), Some(1)),
            Step::Completed => feedback.completed(&id, worker(request), Some(tokens.0 + 8)),
        }
    }
    let pool = host.pool();
    assert_eq!(pool.rates.source, RateSource::Events);
    assert!(pool.workers.iter().all(|worker| worker.slowness == 1.0));
    pool
}

/// Learned over true time of a prefill of 1,600 tokens, which is 60 ms.
fn prefill_accuracy(pool: &PoolReport) -> f64 {
    (pool.rates.pass_ms + pool.rates.token_ms * 1_600.0) / 60.0
}

#[test]
fn rates_are_learned_from_events_in_order() {
    let pool = after_mangled_events(|_| {});
    assert!((0.97..1.03).contains(&prefill_accuracy(&pool)));
    assert!((pool.rates.token_ms / 0.025 - 1.0).abs() < 0.1);
}

#[test]
fn first_tokens_that_arrive_late_cost_no_more_than_their_delay() {
    let pool = after_mangled_events(|events| {
        for (n, (at, _, step)) in events.iter_mut().enumerate() {
            if *step != Step::Sent {
                *at += n as u64 % 7;
            }
        }
    });
    // 0 to 6 ms late, 3 on average.
    let accuracy = prefill_accuracy(&pool);
    assert!((1.0..1.1).contains(&accuracy), "{accuracy}");
}

#[test]
fn lost_events_do_not_change_the_rates() {
    let pool = after_mangled_events(|events| {
        let mut n = 0;
        events.retain(|_| {
            n += 1;
            n % 7 != 0
        });
    });
    let accuracy = prefill_accuracy(&pool);
    assert!((0.95..1.05).contains(&accuracy), "{accuracy}");
}

#[test]
fn answers_that_arrive_twice_count_once() {
    // A second dispatch is no duplicate: Dynamo sends a request anew when its worker fails.
    let twice = after_mangled_events(|events| {
        let answers = |&&(_, _, step): &&(u64, u64, Step)| step != Step::Sent;
        let again: Vec<_> = events.iter().filter(answers).copied().collect();
        events.extend(again);
    });
    let once = after_mangled_events(|_| {});
    assert_eq!(twice.rates.groups, once.rates.groups);
    assert_eq!(twice.rates.pass_ms, once.rates.pass_ms);
    assert_eq!(twice.in_flight, once.in_flight);
}

#[test]
fn events_that_overtake_each_other_do_not_change_the_rates() {
    let pool = after_mangled_events(|events| {
        for request in events.chunks_mut(3) {
            match request[0].1 % 5 {
                // The first token before the dispatch, and the end before the first token.
                0 => request[0].0 = request[1].0 + 1,
                1 => request[1].0 = request[2].0 + 1,
                _ => {}
            }
        }
    });
    let accuracy = prefill_accuracy(&pool);
    assert!((0.95..1.05).contains(&accuracy), "{accuracy}");
    assert_eq!((pool.in_flight.waiting, pool.in_flight.running), (0, 0));
}

/// A prefill worker that takes all that waits in one pass of s·(40 ms + 0.1 ms a token).
#[derive(Debug, Default)]
struct Prefiller {
    slowness: f64,
    /// Blocks of each waiting request.
    waiting: Vec<usize>,
    /// End of the pass that is going on, and the blocks of its requests.
    pass: Option<(f64, Vec<usize>)>,
}

impl Prefiller {
    fn start(&mut self, at: f64) {
        if self.pass.is_none() && !self.waiting.is_empty() {
            let tokens = self.waiting.iter().sum::<usize>() * 16;
            let end = at + self.slowness * (40.0 + 0.1 * tokens as f64);
            self.pass = Some((end, std::mem::take(&mut self.waiting)));
        }
    }

    fn advance(&mut self, now: f64) {
        while let Some((end, _)) = self.pass.take_if(|(end, _)| *end <= now) {
            self.start(end);
        }
    }

    fn row(&self, id: u64) -> Row {
        let pass = self.pass.iter().flat_map(|(_, blocks)| blocks);
        let queued: Vec<usize> = self.waiting.iter().chain(pass).copied().collect();
        let blocks: usize = queued.iter().sum();
        row(id).load(queued.len(), blocks * 16, 0)
    }
}

#[test]
fn a_prefill_pool_learns_its_rates_and_its_slow_worker_from_its_own_decisions() {
    let host = Host::with("{}", WorkerType::Prefill, None);
    let mut workers = [1.0, 1.0, 1.0, 2.5].map(|slowness| Prefiller {
        slowness,
        ..Prefiller::default()
    });
    let mut now = 0;
    for request in 0..600_usize {
        // 20 to 99 blocks, 10 to 88 ms apart, in an order that repeats only after 6,320 requests.
        let blocks = 20 + request * 37 % 80;
        let gap = 10 + request as u64 * 53 % 79;
        host.advance(gap);
        now += gap;
        let rows: Vec<Row> = (1..)
            .zip(&mut workers)
            .map(|(id, worker)| {
                worker.advance(now as f64);
                worker.row(id)
            })
            .collect();
        let chosen = host.select(blocks, &rows).worker_id;
        let worker = &mut workers[chosen as usize - 1];
        worker.waiting.push(blocks);
        worker.start(now as f64);
    }
    let pool = host.pool();
    assert_eq!(pool.rates.source, RateSource::Drain);
    // 960 tokens take 136 ms; the priors say 41.
    let typical = pool.rates.pass_ms + pool.rates.token_ms * 960.0;
    assert!((typical / 136.0 - 1.0).abs() < 0.1, "{:?}", pool.rates);
    let slowness: Vec<_> = pool.workers.iter().map(|worker| worker.slowness).collect();
    assert_eq!(slowness[..3], [1.0; 3]);
    assert!((2.0..3.0).contains(&slowness[3]), "{slowness:?}");
}

#[test]
fn a_decode_pool_learns_no_prefill_rates_from_its_decisions() {
    let host = Host::with("{}", WorkerType::Decode, None);
    for request in 0..200 {
        let tokens = request % 2 * 1_024;
        host.select(BLOCKS, &[row(1).load(1, tokens, 64)]);
        host.advance(20);
    }
    assert_eq!(host.pool().rates.source, RateSource::Prior);
}
