// SPDX-License-Identifier: Apache-2.0

//! Field reports that need both sides of the policy: choices through Dynamo's selection path and what
//! becomes of them. Those that need one side are in `selection.rs` and `feedback.rs`.

#![allow(clippy::unwrap_used)]

mod support;

use regime_core::{Regime, Tokens};
use regime_policy::{Clock, Feedback, WorkerReport};
use support::{BLOCK_SIZE, Host, key, row};

fn worker(host: &Host, id: u64) -> WorkerReport {
    let workers = host.pool().workers;
    workers
        .into_iter()
        .find(|report| report.worker == key(id))
        .unwrap()
}

#[test]
fn saturation_of_the_hot_worker_alone_leaves_a_cached_prompt_where_it_is() {
    // Field report BR-01, case a, before and after W1 is saturated.
    for parameters in ["{}", "{saturation_filter: true}"] {
        let host = Host::new(parameters);
        let (feedback, _) = host.feedback(&[1, 2, 3]);
        let busy = |id, requests: usize| row(id).load(requests, 0, requests * 20 + 100);
        let rows = [busy(1, 70), busy(2, 4).device(90), busy(3, 2)];
        assert_eq!(host.select(100, &rows).worker_id, 2, "{parameters}");
        for request in 0..70 {
            feedback.sent(&request.to_string(), key(1));
        }
        for _ in 0..10 {
            host.advance(250);
            assert_eq!(host.select(100, &rows).worker_id, 2, "{parameters}");
        }
        let regimes = [1, 2, 3].map(|id| worker(&host, id).health.regime);
        assert_eq!(regimes[0], Regime::Saturated);
        assert!(!regimes[1..].contains(&Regime::Saturated), "{regimes:?}");
    }
}

/// A request that one worker answers.
struct Visit {
    at_ms: u64,
    worker: u64,
    blocks: usize,
    ttft_ms: u64,
}

/// Send and answer `visits`, in order of time.
fn play(host: &Host, feedback: &Feedback, visits: &[Visit]) {
    let mut steps: Vec<(u64, bool, usize)> = visits
        .iter()
        .enumerate()
        .flat_map(|(number, visit)| {
            [
                (visit.at_ms, true, number),
                (visit.at_ms + visit.ttft_ms, false, number),
            ]
        })
        .collect();
    steps.sort_unstable();
    for (at_ms, sends, number) in steps {
        host.advance(at_ms - host.clock.now().as_micros() / 1_000);
        let visit = &visits[number];
        let (id, to) = (format!("{}-{number}", visit.worker), key(visit.worker));
        let prompt = Tokens(visit.blocks as u64 * u64::from(BLOCK_SIZE));
        if sends {
            feedback.classified(&id, host.clock.now(), prompt);
            host.select(visit.blocks, &[row(visit.worker)]);
            feedback.sent(&id, to);
        } else {
            feedback.responding(&id, to, Some(1));
            feedback.completed(&id, to, Some(prompt.0 + 1));
        }
    }
}

#[test]
fn long_prompts_do_not_look_like_saturation() {
    // Field report BR-10: 0.1 ms a token everywhere. W1 gets one prompt of 60,000 tokens after the other, each 6 s;
    // W2 now and then 512 tokens, 50 ms; then W3 gets 512 tokens every 133 ms, so 30 at once, each after 4 s.
    let host = Host::new("{window: {span_ms: 120000}}");
    let (feedback, _) = host.feedback(&[1, 2, 3]);
    host.select(8, &[row(1), row(2), row(3)]);
    let visits = |worker, blocks, ttft_ms, apart_ms: u64, from_ms: u64| {
        (0u64..100).map(move |number| Visit {
            at_ms: from_ms + number * apart_ms,
            worker,
            blocks,
            ttft_ms,
        })
    };
    let calm: Vec<_> = visits(1, 3_750, 5_999, 6_000, 0)
        .chain(visits(2, 32, 50, 6_000, 100))
        .collect();
    play(&host, &feedback, &calm);
    let pool = host.pool();
    assert_ne!(pool.health.regime, Regime::Saturated, "{:?}", pool.health);
    let slowdown = |id| worker(&host, id).health.signals["slowdown"].value;
    assert!(slowdown(1) < 1.5, "{}", slowdown(1));

    let storm: Vec<_> = visits(3, 32, 4_000, 133, 600_000).collect();
    play(&host, &feedback, &storm);
    let regimes = [1, 2, 3].map(|id| worker(&host, id).health.regime);
    assert_eq!(regimes[2], Regime::Saturated);
    assert!(!regimes[..2].contains(&Regime::Saturated), "{regimes:?}");
    assert!(slowdown(3) > 8.0, "{}", slowdown(3));
}
