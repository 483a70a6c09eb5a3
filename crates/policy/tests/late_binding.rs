// SPDX-License-Identifier: Apache-2.0

//! Late binding in Dynamo's own queue: the classes resolve as meant, and nothing starves.

#![allow(clippy::unwrap_used)]

use std::ops::Range;

use dynamo_kv_router::config::RouterQueuePolicy;
use dynamo_kv_router::scheduling::{
    PolicyProfile, PolicyQueue, QueueSnapshot, RouterPolicyConfig, WorkerPlacement,
};
use proptest::prelude::*;
use regime_policy::LateBinding;

/// Tokens that both classes may release in one turn.
const QUANTA: usize = 512 + 1_536;
/// Prompts with at least so many uncached tokens are long.
const LONG: usize = 1_024;
const SHORT_PROMPTS: Range<usize> = 0..LONG;
const LONG_PROMPTS: Range<usize> = LONG..200_000;

fn profile(settings: LateBinding) -> PolicyProfile {
    let yaml = serde_yaml::to_string(&settings.policy_file_keys().unwrap()).unwrap();
    RouterPolicyConfig::from_yaml(&yaml)
        .unwrap()
        .resolve_profile(None, None, RouterQueuePolicy::Fcfs)
}

/// Dynamo's queue with every worker free to take what it releases. The payload says who waits.
struct Queue {
    profile: PolicyProfile,
    queue: PolicyQueue<&'static str>,
    arrivals: u32,
}

impl Queue {
    fn new() -> Self {
        let profile = profile(LateBinding::default());
        Self {
            queue: PolicyQueue::new(profile.clone()),
            profile,
            arrivals: 0,
        }
    }

    fn push(&mut self, tokens: usize, who: &'static str) {
        let snapshot = QueueSnapshot::new(tokens, 0);
        let class = self
            .profile
            .resolve_class_index(None, snapshot.uncached_tokens);
        self.arrivals += 1;
        let at = f64::from(self.arrivals);
        self.queue
            .enqueue(class, 4, snapshot, at, 0.0, 0, WorkerPlacement::Any, who)
            .unwrap();
    }

    /// Release one request: who it is, and its tokens.
    fn pop(&mut self) -> (&'static str, usize) {
        let entry = self.queue.pop_next(|_, _, _| true).unwrap();
        let tokens = entry.snapshot().scheduling_cost_tokens;
        (entry.into_payload(), tokens)
    }

    /// Tokens released up to and with the target, while each release of a rival is followed by the
    /// arrival of the next one, so that the rivals never end.
    fn released_with_target(&mut self, rivals: &[usize]) -> usize {
        let mut endless = rivals.iter().copied().cycle();
        let mut released = 0;
        loop {
            let (who, tokens) = self.pop();
            released += tokens;
            match who {
                "target" => return released,
                "rival" => self.push(endless.next().unwrap(), "rival"),
                _ => {}
            }
        }
    }
}

#[test]
fn the_uncached_tokens_of_a_prompt_choose_its_class() {
    let profile = profile(LateBinding::default());
    let class = |tokens| {
        profile
            .class(profile.resolve_class_index(None, tokens))
            .name
            .as_str()
    };
    assert_eq!(
        [0, 1_023, 1_024, 100_000].map(class),
        [
            "short-prompts",
            "short-prompts",
            "long-prompts",
            "long-prompts"
        ]
    );
}

#[test]
fn a_request_waits_only_while_every_worker_is_over_the_threshold() {
    let profile = profile(LateBinding {
        threshold_tokens: 4_000,
        ..LateBinding::default()
    });
    for class in profile.classes() {
        assert!(class.queueing_enabled());
        assert!(!class.worker_is_busy(4_000, 8_192) && class.worker_is_busy(4_001, 8_192));
    }
}

#[test]
fn long_requests_get_three_quarters_of_what_is_released() {
    let mut queue = Queue::new();
    for _ in 0..8 {
        queue.push(500, "rival");
    }
    for _ in 0..3 {
        queue.push(8_000, "ahead");
    }
    queue.push(8_000, "target");
    // 32,000 tokens of its class up to and with it, a third as many of the others, and a few quanta.
    let released = queue.released_with_target(&[500]);
    assert!((42_000..=42_667 + QUANTA).contains(&released), "{released}");
}

#[test]
fn short_requests_overtake_a_long_one_that_came_first() {
    let mut queue = Queue::new();
    queue.push(100_000, "long");
    for _ in 0..10 {
        queue.push(500, "short");
    }
    // Ten short ones are 5,000 tokens; the long one must collect 100,000 first.
    for _ in 0..10 {
        assert_eq!(queue.pop().0, "short");
    }
    assert_eq!(queue.pop().0, "long");
}

#[test]
fn the_shipped_policy_file_of_the_defaults_has_the_default_late_binding() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../configs/policies/balanced.yaml"
    );
    let shipped = RouterPolicyConfig::from_path(path).unwrap();
    let shipped = shipped.resolve_profile(None, None, RouterQueuePolicy::Fcfs);
    assert_eq!(shipped, profile(LateBinding::default()));
}

/// Requests served before the target comes, those ahead of it in its class, its own size, and its endless
/// rivals in the other class.
type Trial = (Vec<usize>, Vec<usize>, usize, Vec<usize>);

fn trial(own: Range<usize>, rival: Range<usize>) -> impl Strategy<Value = Trial> {
    (
        prop::collection::vec(own.clone(), 0..8),
        prop::collection::vec(own.clone(), 0..12),
        own,
        prop::collection::vec(rival, 1..12),
    )
}

/// At most the tokens of its class up to and with the target over the `share` of the class, two rounds of
/// quanta, and the credit that the rivals had saved for their largest request before the target came.
fn assert_released_in_time((before, ahead, target, rivals): Trial, share: f64) {
    let mut queue = Queue::new();
    for &tokens in &rivals {
        queue.push(tokens, "rival");
    }
    for &tokens in &before {
        queue.push(tokens, "ahead");
    }
    for _ in 0..before.len() {
        if queue.pop().0 == "rival" {
            queue.push(rivals[0], "rival");
        }
    }
    let left: usize = queue
        .queue
        .entries()
        .filter(|entry| *entry.payload() == "ahead")
        .map(|entry| entry.snapshot().scheduling_cost_tokens)
        .sum();
    for &tokens in &ahead {
        queue.push(tokens, "ahead");
    }
    queue.push(target, "target");
    let own: usize = left
        + ahead
            .iter()
            .chain([&target])
            .map(|&tokens| tokens.max(1))
            .sum::<usize>();
    let largest_rival = rivals.iter().copied().max().unwrap_or(0);
    let released = queue.released_with_target(&rivals);
    let bound = (own as f64 / share) as usize + 2 * QUANTA + largest_rival;
    assert!(released <= bound, "{released} released, bound {bound}");
}

proptest! {
    #[test]
    fn endless_short_requests_starve_no_long_one(trial in trial(LONG_PROMPTS, SHORT_PROMPTS)) {
        assert_released_in_time(trial, 0.75);
    }

    #[test]
    fn endless_long_requests_starve_no_short_one(trial in trial(SHORT_PROMPTS, LONG_PROMPTS)) {
        assert_released_in_time(trial, 0.25);
    }
}
