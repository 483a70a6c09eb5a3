// SPDX-License-Identifier: Apache-2.0

//! From decisions back to prefill passes, for a pool that no event reaches.
//!
//! All that such a pool sees are its own decisions. At each, the host says how many tokens wait for
//! prefill on every worker; then the decision adds a request to one of them. A worker's number rises when
//! a request is placed on it and falls when one has been prefilled, so the requests on a worker are a queue
//! whose sum is known at every decision. Prefill is first come, first served: the number seen must be the
//! sum of the youngest requests of the queue, and the others have been prefilled since the last look.
//!
//! That settles the passes. A pass takes all that waits when it starts, and whether a request was placed
//! before or after the last drop is known. It also settles that a worker was busy: requests are placed at
//! decisions only, so a worker that had work at one look and has some left at the next had no pause.
//!
//! How much was prefilled by a drop is known too, unless a pass is full: then it ends with a part of the next
//! request, which shows only when that request is gone.
//!
//! What else is not known is when, between two looks, a pass ended. The middle is right on average, and errors
//! cancel between a stretch and the next. So a stretch goes on, over as many passes as it takes, until the
//! uncertain part at its ends is at most 0.6 of its time, and of its tokens: an error of 17 % at most each,
//! 0.6/√12. Below that, too little is learned of a worker that gets few requests; above, stretches come out
//! too long, because those in which a decision happened to fall are preferred. What came after the last usable drop, and a spell so short
//! that no look fell into it, teaches nothing. At light load that is nearly everything, and the rates stay
//! near where they were.
//!
//! Whatever does not add up makes the queue unknown, and nothing is learned, until the sum can be explained
//! again or the worker is idle: requests of another router, cancelled ones, decisions that got lost. Two
//! deviations are understood: a decision that placed nothing (a query), and a host that counts the cached
//! part of the newest request somewhat differently.
//!
//! Limits. Queries for prompts of exactly the length of the requests being prefilled look like progress. An
//! engine that prefills one request at a time, or splits long ones, has more passes than are counted here.
//! What a router believes to be cached may have been evicted. So the tokens of a stretch are not exact, and
//! the pool learns one factor from them and not a and b apart: errors in the tokens would make every pass
//! look equally long, and cached blocks look worthless.
//!
//! Source: Dynamo's `active_prefill_tokens`, raised when a request is booked and lowered when its prefill
//! has completed.

use std::collections::VecDeque;

use super::Stretch;
use crate::{Millis, Timestamp};

/// Largest share of the time and of the tokens of a stretch that may be uncertain.
const UNCERTAIN_SHARE: f64 = 0.6;
/// Tokens in one pass at most: the usual budget of engines that split long prompts.
const PASS_TOKENS: f64 = 8_192.0;
/// Difference of two sums of tokens that is taken for rounding.
const ROUNDING: f64 = 2.0;
/// Largest difference between the host's count and ours of the newest request, as a share of it.
const DISAGREEMENT: f64 = 0.25;
/// Requests followed on one worker. More than any router lets wait on one.
const MOST_QUEUED: usize = 1_024;

/// The prefill queue of one worker, as seen at decisions.
#[derive(Debug, Clone, Default)]
pub(super) struct DrainTracker {
    /// Requests placed here and not prefilled yet, oldest first.
    queue: VecDeque<Placed>,
    last_look: Option<Timestamp>,
    /// Whether others are, or may be, queued before them.
    strangers: bool,
    /// Absent while idle, and while the queue is not understood.
    spell: Option<Spell>,
}

#[derive(Debug, Clone, Copy)]
struct Placed {
    at: Timestamp,
    tokens: f64,
}

/// Work without a pause, up to the last drop.
#[derive(Debug, Clone, Copy)]
struct Spell {
    began: Moment,
    /// Tokens of what followed that may have been prefilled before.
    ahead: f64,
    passes: u32,
    tokens: f64,
    /// Requests placed until then are in the pass that is going on.
    pass_began: Timestamp,
}

/// A time of which bounds are known.
#[derive(Debug, Clone, Copy)]
struct Moment {
    earliest: Timestamp,
    latest: Timestamp,
}

impl DrainTracker {
    /// A decision at `at` sees `queued` tokens and `active` requests on the worker, before it places
    /// anything. Returns what the worker is now known to have done.
    pub(super) fn look(&mut self, at: Timestamp, queued: f64, active: u32) -> Option<Stretch> {
        let last = self.last_look.replace(at);
        let Some(drained) = self.explain(queued, last) else {
            if !self.strangers {
                self.give_up();
            }
            return None;
        };
        let end = Moment {
            earliest: last.unwrap_or(at),
            latest: at,
        };
        if std::mem::take(&mut self.strangers) {
            // They are gone, at some time since the last look.
            self.queue.drain(..drained);
            let ahead = self.ahead(0.0);
            self.spell = (!self.queue.is_empty()).then(|| Spell::new(end, ahead));
            return None;
        }
        if drained == 0 {
            return None;
        }
        let mut stretch = self.drop(drained, end)?;
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        stretch.running = active.saturating_sub(queued);
        Some(stretch)
    }

    /// The decision at `at` placed a request with `tokens` to prefill on the worker.
    pub(super) fn place(&mut self, at: Timestamp, tokens: f64) {
        if self.last_look != Some(at) || self.queue.len() == MOST_QUEUED {
            // The worker may have been idle in between.
            self.give_up();
        }
        if !(1.0..f64::INFINITY).contains(&tokens) {
            return;
        }
        if self.queue.is_empty() && !self.strangers {
            let now = Moment {
                earliest: at,
                latest: at,
            };
            self.spell = Some(Spell::new(now, 0.0));
        }
        self.queue.push_back(Placed { at, tokens });
    }

    /// The queue is not what it was thought to be.
    pub(super) fn give_up(&mut self) {
        self.strangers = true;
        self.queue.clear();
        self.spell = None;
    }

    /// How many of the oldest requests are gone, if `queued` can be explained. What the last decision
    /// placed is corrected, or forgotten.
    fn explain(&mut self, queued: f64, last: Option<Timestamp>) -> Option<usize> {
        let (drained, difference) = closest(&self.queue, queued);
        if difference.abs() <= ROUNDING {
            self.correct_newest(difference);
            return Some(drained);
        }
        if self.strangers {
            return None;
        }
        let newest = self.queue.pop_back_if(|newest| Some(newest.at) == last)?;
        let (without, off) = closest(&self.queue, queued);
        if off.abs() <= ROUNDING {
            return Some(without);
        }
        self.queue.push_back(newest);
        if drained < self.queue.len() && difference.abs() <= DISAGREEMENT * newest.tokens {
            self.correct_newest(difference);
            return Some(drained);
        }
        None
    }

    fn correct_newest(&mut self, difference: f64) {
        if let Some(newest) = self.queue.back_mut() {
            newest.tokens += difference;
        }
    }

    /// The `drained` oldest requests were prefilled by `end`.
    fn drop(&mut self, drained: usize, end: Moment) -> Option<Stretch> {
        let mut spell = self.spell.take()?;
        let (mut first, mut second) = (0.0, 0.0);
        for placed in self.queue.drain(..drained) {
            if placed.at <= spell.pass_began {
                first += placed.tokens;
            } else {
                second += placed.tokens;
            }
        }
        spell.passes += u32::from(first > 0.0) + u32::from(second > 0.0);
        spell.tokens += first + second;
        spell.pass_began = end.earliest;
        let ahead = self.ahead(if second > 0.0 { second } else { first });
        let stretch = spell.until(end, ahead);
        if !self.queue.is_empty() {
            self.spell = Some(match stretch {
                Some(_) => Spell::new(end, ahead),
                None => spell,
            });
        }
        stretch
    }

    /// Tokens of the next request that a pass over `tokens` may have prefilled already. One that fits in
    /// would have gone with it, so it came later.
    fn ahead(&self, tokens: f64) -> f64 {
        let next = self.queue.front().map_or(0.0, |next| next.tokens);
        if tokens + next > PASS_TOKENS {
            next.min(PASS_TOKENS)
        } else {
            0.0
        }
    }
}

impl Spell {
    fn new(began: Moment, ahead: f64) -> Self {
        Self {
            began,
            ahead,
            passes: 0,
            tokens: 0.0,
            pass_began: began.earliest,
        }
    }

    /// The work up to `end`, if both ends are known well enough.
    fn until(&self, end: Moment, ahead: f64) -> Option<Stretch> {
        let duration = end.middle() - self.began.middle();
        let known = duration > 0.0
            && end.width() + self.began.width() <= UNCERTAIN_SHARE * duration
            && ahead + self.ahead <= UNCERTAIN_SHARE * self.tokens;
        known.then_some(Stretch {
            at: end.latest,
            duration: Millis::new(duration),
            passes: self.passes,
            tokens: self.tokens,
            running: 0,
        })
    }
}

impl Moment {
    /// ms.
    fn middle(self) -> f64 {
        (self.earliest.as_micros() as f64 + self.latest.as_micros() as f64) / 2e3
    }

    /// ms.
    fn width(self) -> f64 {
        Millis::from(self.latest.since(self.earliest)).get()
    }
}

/// Number of requests to take from the front of `queue` so that the rest comes closest to `queued`
/// tokens, and what is then missing in the rest.
fn closest(queue: &VecDeque<Placed>, queued: f64) -> (usize, f64) {
    let mut rest = 0.0;
    let mut best = (queue.len(), queued);
    for (index, placed) in queue.iter().enumerate().rev() {
        rest += placed.tokens;
        let difference: f64 = queued - rest;
        if difference.abs() < best.1.abs() {
            best = (index, difference);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(at: u64) -> Timestamp {
        Timestamp::from_millis(at)
    }

    /// A worker seen idle at 0, on which the requests were placed, with a look at each time.
    fn tracker(requests: &[(u64, f64)]) -> DrainTracker {
        let mut tracker = DrainTracker::default();
        let mut queued = 0.0;
        for &(at, tokens) in requests {
            assert_eq!(tracker.look(ms(at), queued, 0), None);
            tracker.place(ms(at), tokens);
            queued += tokens;
        }
        tracker
    }

    fn stretch(at: u64, duration: f64, passes: u32, tokens: f64) -> Option<Stretch> {
        Some(Stretch {
            at: ms(at),
            duration: Millis::new(duration),
            passes,
            tokens,
            running: 0,
        })
    }

    #[test]
    fn a_pass_ended_in_the_middle_between_two_looks() {
        let mut tracker = tracker(&[(0, 1_000.0)]);
        assert_eq!(tracker.look(ms(38), 1_000.0, 1), None);
        assert_eq!(tracker.look(ms(42), 0.0, 0), stretch(42, 40.0, 1, 1_000.0));
    }

    #[test]
    fn requests_that_remain_active_after_their_prefill_count_as_running() {
        let mut tracker = tracker(&[(0, 1_000.0), (20, 400.0)]);
        tracker.look(ms(38), 1_400.0, 5);
        // Four active, one of which waits.
        let stretch = tracker.look(ms(42), 400.0, 4).unwrap();
        assert_eq!((stretch.tokens, stretch.running), (1_000.0, 3));
    }

    #[test]
    fn requests_placed_during_a_pass_are_the_next_pass() {
        let mut tracker = tracker(&[(0, 1_000.0), (10, 500.0), (20, 300.0)]);
        tracker.look(ms(38), 1_800.0, 3);
        assert_eq!(
            tracker.look(ms(42), 800.0, 2),
            stretch(42, 40.0, 1, 1_000.0)
        );
        tracker.look(ms(68), 800.0, 2);
        // From 40 to 70; its ends are uncertain by 4 + 4.
        assert_eq!(tracker.look(ms(72), 0.0, 0), stretch(72, 30.0, 1, 800.0));
    }

    #[test]
    fn passes_between_the_same_two_looks_are_counted() {
        let mut tracker = tracker(&[(0, 1_000.0), (10, 500.0), (20, 300.0)]);
        tracker.look(ms(60), 1_800.0, 3);
        assert_eq!(tracker.look(ms(80), 0.0, 0), stretch(80, 70.0, 2, 1_800.0));
    }

    #[test]
    fn a_stretch_goes_on_until_its_ends_are_known_well_enough() {
        let mut tracker = tracker(&[(0, 1_000.0), (20, 500.0)]);
        // The first drop is at 20 to 60, so after 40 ± 20 ms: not known.
        assert_eq!(tracker.look(ms(60), 500.0, 1), None);
        // The second is at 60 to 80: 70 ± 10 ms.
        assert_eq!(tracker.look(ms(80), 0.0, 0), stretch(80, 70.0, 2, 1_500.0));
    }

    #[test]
    fn a_stretch_goes_on_until_it_dwarfs_what_a_full_pass_took_of_the_next_request() {
        let mut tracker = tracker(&[(0, 6_000.0), (1, 6_000.0), (2, 1_000.0)]);
        tracker.look(ms(199), 13_000.0, 3);
        // The second request, 6,000 tokens, may have been started: more than 0.6 × 6,000.
        assert_eq!(tracker.look(ms(201), 7_000.0, 2), None);
        tracker.look(ms(399), 7_000.0, 2);
        assert_eq!(
            tracker.look(ms(401), 0.0, 0),
            stretch(401, 400.0, 2, 13_000.0)
        );
    }

    #[test]
    fn a_spell_without_a_look_teaches_nothing() {
        let mut tracker = tracker(&[(0, 1_000.0)]);
        assert_eq!(tracker.look(ms(1_000), 0.0, 0), None);
    }

    #[test]
    fn idle_time_is_not_work() {
        let mut tracker = tracker(&[(0, 1_000.0)]);
        tracker.look(ms(38), 1_000.0, 1);
        tracker.look(ms(42), 0.0, 0);
        tracker.look(ms(9_000), 0.0, 0);
        tracker.place(ms(9_000), 500.0);
        tracker.look(ms(9_029), 500.0, 1);
        assert_eq!(
            tracker.look(ms(9_031), 0.0, 0),
            stretch(9_031, 30.0, 1, 500.0)
        );
    }

    #[test]
    fn a_query_that_placed_nothing_is_forgotten() {
        let mut tracker = tracker(&[(0, 1_000.0)]);
        tracker.look(ms(10), 1_000.0, 1);
        tracker.place(ms(10), 700.0);
        tracker.look(ms(38), 1_000.0, 1);
        assert_eq!(tracker.look(ms(42), 0.0, 0), stretch(42, 40.0, 1, 1_000.0));
    }

    #[test]
    fn the_host_may_count_the_newest_request_differently() {
        let mut tracker = tracker(&[(0, 1_000.0)]);
        tracker.look(ms(10), 1_000.0, 1);
        tracker.place(ms(10), 400.0);
        assert_eq!(tracker.look(ms(38), 1_480.0, 2), None);
        tracker.look(ms(42), 480.0, 1);
        tracker.look(ms(61), 480.0, 1);
        assert_eq!(tracker.look(ms(63), 0.0, 0), stretch(63, 22.0, 1, 480.0));
    }

    #[test]
    fn requests_of_others_end_the_learning_until_they_are_gone() {
        let mut tracker = tracker(&[(0, 1_000.0)]);
        assert_eq!(tracker.look(ms(10), 3_000.0, 2), None);
        tracker.place(ms(10), 400.0);
        assert_eq!(tracker.look(ms(40), 2_400.0, 2), None);
        // Theirs are gone, ours began between 90 and 92 and ended between 110 and 112.
        tracker.look(ms(90), 2_400.0, 2);
        assert_eq!(tracker.look(ms(92), 400.0, 1), None);
        tracker.look(ms(110), 400.0, 1);
        assert_eq!(tracker.look(ms(112), 0.0, 0), stretch(112, 20.0, 1, 400.0));
    }

    #[test]
    fn a_request_that_vanished_from_the_middle_ends_the_learning() {
        let mut tracker = tracker(&[(0, 1_000.0), (10, 500.0), (20, 300.0)]);
        tracker.look(ms(30), 1_800.0, 3);
        assert_eq!(tracker.look(ms(36), 1_300.0, 2), None);
        tracker.look(ms(38), 1_300.0, 2);
        assert_eq!(tracker.look(ms(42), 300.0, 1), None);
        assert_eq!(tracker.look(ms(60), 0.0, 0), None);
    }

    #[test]
    fn a_request_placed_without_a_look_ends_the_learning() {
        let mut tracker = tracker(&[(0, 1_000.0)]);
        // Idle since 40 for all we know.
        tracker.place(ms(500), 1_000.0);
        tracker.look(ms(538), 1_000.0, 1);
        assert_eq!(tracker.look(ms(542), 0.0, 0), None);
    }

    #[test]
    fn a_worker_that_is_busy_when_first_seen_is_learned_from_once_it_was_idle() {
        let mut tracker = DrainTracker::default();
        assert_eq!(tracker.look(ms(0), 5_000.0, 2), None);
        assert_eq!(tracker.look(ms(100), 0.0, 0), None);
        tracker.place(ms(100), 1_000.0);
        tracker.look(ms(138), 1_000.0, 1);
        assert_eq!(
            tracker.look(ms(142), 0.0, 0),
            stretch(142, 40.0, 1, 1_000.0)
        );
    }

    #[test]
    fn memory_is_bounded_when_nothing_is_ever_prefilled() {
        let mut tracker = DrainTracker::default();
        for n in 0..5_000 {
            tracker.look(ms(n), n as f64 * 10.0, 1);
            tracker.place(ms(n), 10.0);
        }
        assert!(tracker.queue.len() <= MOST_QUEUED);
    }

    proptest! {
        #[test]
        fn whatever_is_seen_a_stretch_is_finite_and_has_a_pass(
            decisions in prop::collection::vec(
                (
                    0u64..200,
                    prop_oneof![0.0..4e3f64, prop::sample::select(vec![0.0, 1e3, 2e3, f64::NAN])],
                    any::<bool>(),
                    prop_oneof![Just(1e3), any::<f64>()],
                ),
                0..200,
            ),
        ) {
            let mut tracker = DrainTracker::default();
            let mut now = ms(0);
            for (gap, queued, looks, tokens) in decisions {
                now = now + std::time::Duration::from_millis(gap);
                let seen = if looks { tracker.look(now, queued, 3) } else { None };
                if let Some(stretch) = seen {
                    prop_assert!(stretch.duration.get() > 0.0 && stretch.duration.get() < 1e9);
                    prop_assert!(stretch.passes >= 1);
                    prop_assert!(stretch.tokens.is_finite() && stretch.tokens > 0.0);
                }
                tracker.place(now, tokens);
            }
        }
    }
}
