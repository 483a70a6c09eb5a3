// SPDX-License-Identifier: Apache-2.0

//! From first tokens back to prefill passes.
//!
//! A router does not see passes; it sees first tokens. Requests that were prefilled together get
//! theirs at the same moment, so first tokens within a short gap are one pass. Work that was waiting
//! when the previous pass ended has been worked on since; work that came later, since it came. Hence a
//! pass lasted from the end of the previous pass, or from its earliest dispatch, whichever is later.

use std::time::Duration;

use super::Stretch;
use crate::{Millis, Timestamp, Tokens};

/// The passes of one worker.
#[derive(Debug, Clone, Default)]
pub(super) struct PassTracker {
    open: Option<OpenPass>,
    previous_began: Timestamp,
    previous_end: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct OpenPass {
    at: Timestamp,
    earliest_sent: Timestamp,
    /// Absent as soon as one request of the pass has an unknown number.
    tokens: Option<f64>,
    running: u32,
}

impl PassTracker {
    /// A first token at `at`, of a request sent at `sent_at`, while `running` others ran. It joins the
    /// open pass, if the caller has left one open, and opens one otherwise.
    pub(super) fn first_token(
        &mut self,
        at: Timestamp,
        sent_at: Timestamp,
        uncached: Option<Tokens>,
        running: u32,
    ) {
        let uncached = uncached.map(Tokens::as_f64);
        match &mut self.open {
            Some(pass) => {
                pass.earliest_sent = pass.earliest_sent.min(sent_at);
                pass.tokens = pass.tokens.zip(uncached).map(|(sum, more)| sum + more);
            }
            None => {
                self.open = Some(OpenPass {
                    at,
                    earliest_sent: sent_at,
                    tokens: uncached,
                    running,
                });
            }
        }
    }

    /// How long the worker was at a request that was sent at `sent_at` and answers at `at`, if no other pass
    /// began in between. Call after [`close_before`](Self::close_before), before its own first token.
    pub(super) fn alone(&self, sent_at: Timestamp, at: Timestamp) -> Option<Millis> {
        let undisturbed = self.open.is_none() && self.previous_began <= sent_at;
        undisturbed.then(|| Millis::from(at.since(self.previous_end.max(sent_at))))
    }

    /// Close the open pass if it is more than `gap` old at `at`; returns it if it can be learned from.
    pub(super) fn close_before(&mut self, at: Timestamp, gap: Duration) -> Option<Stretch> {
        let pass = self.open.take_if(|pass| at.since(pass.at) > gap)?;
        let began = self.previous_end.max(pass.earliest_sent);
        (self.previous_began, self.previous_end) = (began, pass.at);
        let duration = Millis::from(pass.at.since(began));
        let tokens = pass.tokens?;
        (duration > Millis::ZERO).then_some(Stretch {
            at: pass.at,
            duration,
            passes: 1,
            tokens,
            running: pass.running,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_micros(500);

    fn us(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn token(
        tracker: &mut PassTracker,
        at: u64,
        sent_at: u64,
        uncached: Option<u64>,
    ) -> Option<Stretch> {
        let closed = tracker.close_before(us(at), GAP);
        tracker.first_token(us(at), us(sent_at), uncached.map(Tokens), 3);
        closed
    }

    #[test]
    fn first_tokens_within_the_gap_are_one_pass() {
        let mut tracker = PassTracker::default();
        assert_eq!(token(&mut tracker, 30_000, 10_000, Some(100)), None);
        assert_eq!(token(&mut tracker, 30_500, 12_000, Some(200)), None);
        let pass = token(&mut tracker, 30_501, 12_000, Some(400)).unwrap();
        assert_eq!(
            pass,
            Stretch {
                at: us(30_000),
                duration: Millis::new(20.0),
                passes: 1,
                tokens: 300.0,
                running: 3,
            }
        );
    }

    #[test]
    fn work_that_was_waiting_counts_from_the_end_of_the_previous_pass() {
        let mut tracker = PassTracker::default();
        token(&mut tracker, 30_000, 10_000, Some(100));
        token(&mut tracker, 45_000, 11_000, Some(100));
        let pass = tracker.close_before(us(60_000), GAP).unwrap();
        assert_eq!(pass.duration, Millis::new(15.0));
    }

    #[test]
    fn work_that_came_to_an_idle_worker_counts_from_its_dispatch() {
        let mut tracker = PassTracker::default();
        token(&mut tracker, 30_000, 10_000, Some(100));
        token(&mut tracker, 90_000, 70_000, Some(100));
        let pass = tracker.close_before(us(100_000), GAP).unwrap();
        assert_eq!(pass.duration, Millis::new(20.0));
    }

    #[test]
    fn a_pass_with_an_unknown_request_teaches_nothing_but_ends_the_one_before() {
        let mut tracker = PassTracker::default();
        token(&mut tracker, 30_000, 10_000, Some(100));
        token(&mut tracker, 30_100, 10_000, None);
        assert_eq!(token(&mut tracker, 50_000, 10_000, Some(100)), None);
        let pass = tracker.close_before(us(60_000), GAP).unwrap();
        assert_eq!(pass.duration, Millis::new(20.0));
    }

    #[test]
    fn a_pass_of_no_duration_teaches_nothing() {
        let mut tracker = PassTracker::default();
        token(&mut tracker, 30_000, 30_000, Some(100));
        assert_eq!(tracker.close_before(us(40_000), GAP), None);
    }
}
