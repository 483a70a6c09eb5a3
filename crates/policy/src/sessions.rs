// SPDX-License-Identifier: Apache-2.0

//! Where a session left its prefix, and how far down the tiers that has sunk.
//!
//! # Idea
//!
//! Many engines tell the router only of blocks in device memory. A prefix that has been pushed out to host
//! memory is then nowhere to be seen, though the worker that served the session last need only bring it
//! back. So the worker of each session's last turn is remembered, together with two running totals of
//! that worker. *Touched* counts all tokens that its requests read or wrote: as long as fewer were touched
//! than device memory holds, a prefix cannot have been pushed out of it. *Computed* counts those that were
//! new: only they take up room further down, so once they exceed what all tiers hold, the prefix is gone.
//! Both are estimates. What the index says of device memory is exact, and the scorer believes in a prefix
//! below only where the index ends.
//!
//! # Defaults
//!
//! 65,536 sessions are some ten megabytes. Ten minutes outlast most pauses of people and tools.
//!
//! # Source
//!
//! Stack distance of a least-recently-used memory: Mattson et al., "Evaluation techniques for storage
//! hierarchies", IBM Systems Journal 9 (1970).

use std::collections::BTreeMap;
use std::time::Duration;

use hashlink::LinkedHashMap;
use regime_core::{Blocks, Timestamp, Tokens, WorkerKey};
use regime_kv::Tier;

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SessionLimits {
    /// Sessions at once; beyond it the one that was served longest ago is forgotten.
    pub(crate) max_sessions: usize,
    /// Time since its last turn at which a session is forgotten.
    pub(crate) max_age: Duration,
}

/// Running totals of one worker, tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Passed {
    touched: u64,
    computed: u64,
}

/// The end of a session's last turn.
#[derive(Debug, Clone, Copy)]
struct Visit {
    worker: WorkerKey,
    /// Prompt and answer.
    context: Tokens,
    at: Timestamp,
    /// Totals of the worker at that time.
    passed: Passed,
    /// The tier in which the classifier took the prefix to be when it named the worker.
    named: Option<Tier>,
}

/// Sessions of one pool.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// Oldest visit first.
    visits: LinkedHashMap<String, Visit>,
    workers: BTreeMap<WorkerKey, Passed>,
}

/// What a session left, and what its worker has done since.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Left {
    pub(crate) worker: WorkerKey,
    /// Prompt and answer of the last turn.
    pub(crate) context: Tokens,
    since: Passed,
}

/// A turn of a session that is about to be placed.
pub(crate) struct Turn<'a> {
    pub(crate) session: &'a str,
    pub(crate) prompt: Tokens,
    /// Tokens in one KV block, at least 1.
    pub(crate) block_size: u32,
    /// KV blocks that a worker holds in device memory; none of a worker that does not exist or does not tell.
    pub(crate) device_blocks: &'a dyn Fn(WorkerKey) -> Option<u64>,
    pub(crate) limits: SessionLimits,
}

/// A prefix for whose sake a worker was named.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Named {
    pub(crate) worker: WorkerKey,
    pub(crate) context: Tokens,
    pub(crate) tier: Tier,
}

impl Sessions {
    /// `worker` works on `touched` more tokens, of which `computed` are new to it.
    pub(crate) fn passed(&mut self, worker: WorkerKey, touched: Tokens, computed: Tokens) {
        let passed = self.workers.entry(worker).or_default();
        passed.touched = passed.touched.saturating_add(touched.0);
        passed.computed = passed.computed.saturating_add(computed.0);
    }

    /// `worker` has served a turn of `session`, which is `context` tokens long now.
    pub(crate) fn served(
        &mut self,
        session: String,
        worker: WorkerKey,
        context: Tokens,
        now: Timestamp,
        limits: SessionLimits,
    ) {
        let visit = Visit {
            worker,
            context,
            at: now,
            passed: self.workers.get(&worker).copied().unwrap_or_default(),
            named: None,
        };
        // Not in place: the order is that of the visits.
        self.visits.remove(&session);
        self.visits.insert(session, visit);
        while self.visits.len() > limits.max_sessions
            || (self.visits.front()).is_some_and(|(_, oldest)| oldest.is_old(now, limits))
        {
            self.visits.pop_front();
        }
    }

    /// What `session` left, unless that is unknown or too long ago.
    pub(crate) fn left(
        &self,
        session: &str,
        now: Timestamp,
        limits: SessionLimits,
    ) -> Option<Left> {
        let visit = self.visits.get(session)?;
        let passed = self.workers.get(&visit.worker).copied().unwrap_or_default();
        (!visit.is_old(now, limits)).then_some(Left {
            worker: visit.worker,
            context: visit.context,
            since: Passed {
                touched: passed.touched.saturating_sub(visit.passed.touched),
                computed: passed.computed.saturating_sub(visit.passed.computed),
            },
        })
    }

    /// Note whether the next selection of `session` is to believe in its prefix, and in which tier.
    pub(crate) fn name(&mut self, session: &str, tier: Option<Tier>) {
        if let Some(visit) = self.visits.get_mut(session) {
            visit.named = tier;
        }
    }

    /// The prefix for whose sake a worker was named to `session`.
    pub(crate) fn named(&self, session: &str) -> Option<Named> {
        let visit = self.visits.get(session)?;
        Some(Named {
            worker: visit.worker,
            context: visit.context,
            tier: visit.named?,
        })
    }

    /// Forget workers that are gone, and what was left there.
    pub(crate) fn retain(&mut self, keep: impl Fn(WorkerKey) -> bool) {
        let before = self.workers.len();
        self.workers.retain(|&worker, _| keep(worker));
        if self.workers.len() != before {
            self.visits.retain(|_, visit| keep(visit.worker));
        }
    }
}

impl Visit {
    fn is_old(&self, now: Timestamp, limits: SessionLimits) -> bool {
        now.since(self.at) > limits.max_age
    }
}

impl Left {
    /// Whole blocks of it.
    pub(crate) fn blocks(&self, block_size: u32) -> Blocks {
        whole_blocks(self.context, block_size)
    }

    /// The tier below device memory that holds the prefix by now: none while it may be in device memory
    /// still, and none once nothing can hold it. Device memory holds `device` tokens; `lower` are the tiers
    /// below, nearest first, with what they hold where that is known.
    pub(crate) fn tier(
        &self,
        device: u64,
        lower: impl IntoIterator<Item = (Tier, Option<u64>)>,
    ) -> Option<Tier> {
        if self.since.touched <= device {
            return None;
        }
        let mut room = device;
        for (tier, capacity) in lower {
            room = room.saturating_add(capacity.unwrap_or(u64::MAX));
            if self.since.computed <= room {
                return Some(tier);
            }
        }
        None
    }
}

impl Named {
    /// Whole blocks of it.
    pub(crate) fn blocks(&self, block_size: u32) -> Blocks {
        whole_blocks(self.context, block_size)
    }
}

fn whole_blocks(tokens: Tokens, block_size: u32) -> Blocks {
    Blocks::new((tokens.0 / u64::from(block_size.max(1))) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SessionLimits = SessionLimits {
        max_sessions: 2,
        max_age: Duration::from_secs(60),
    };
    const WORKER: WorkerKey = WorkerKey::new(1, 0);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn visit(sessions: &mut Sessions, session: &str, seconds: u64) {
        sessions.served(session.to_owned(), WORKER, Tokens(500), at(seconds), LIMITS);
    }

    /// A session that left 500 tokens, after which so many passed.
    fn left(touched: u64, computed: u64) -> Left {
        let mut sessions = Sessions::default();
        sessions.passed(WORKER, Tokens(500), Tokens(500));
        visit(&mut sessions, "a", 0);
        sessions.passed(WORKER, Tokens(touched), Tokens(computed));
        sessions.left("a", at(1), LIMITS).unwrap()
    }

    #[test]
    fn a_prefix_may_be_in_device_memory_until_as_much_was_touched_as_that_holds() {
        let host = [(Tier::Host, None)];
        assert_eq!(left(1_000, 0).tier(1_000, host), None);
        assert_eq!(left(1_001, 0).tier(1_000, host), Some(Tier::Host));
    }

    #[test]
    fn a_prefix_sinks_by_what_was_computed_and_falls_off_the_last_tier() {
        let lower = [(Tier::Host, Some(2_000)), (Tier::Disk, Some(4_000))];
        let tier = |computed| left(10_000, computed).tier(1_000, lower);
        assert_eq!(tier(3_000), Some(Tier::Host));
        assert_eq!(tier(3_001), Some(Tier::Disk));
        assert_eq!(tier(7_000), Some(Tier::Disk));
        assert_eq!(tier(7_001), None);
    }

    #[test]
    fn a_tier_of_unknown_size_holds_everything_and_no_tier_holds_nothing() {
        let lower = [(Tier::Host, None), (Tier::Disk, Some(1))];
        assert_eq!(left(u64::MAX, u64::MAX).tier(1, lower), Some(Tier::Host));
        assert_eq!(left(10_000, 0).tier(1_000, []), None);
    }

    #[test]
    fn the_session_served_longest_ago_makes_room() {
        let mut sessions = Sessions::default();
        for (seconds, session) in (0..).zip(["a", "b", "a", "c"]) {
            visit(&mut sessions, session, seconds);
        }
        let known = ["a", "b", "c"].map(|it| sessions.left(it, at(4), LIMITS).is_some());
        assert_eq!(known, [true, false, true]);
    }

    #[test]
    fn a_session_is_forgotten_when_its_last_turn_is_too_long_ago() {
        let mut sessions = Sessions::default();
        visit(&mut sessions, "a", 0);
        assert!(sessions.left("a", at(60), LIMITS).is_some());
        assert!(sessions.left("a", at(61), LIMITS).is_none());
        visit(&mut sessions, "b", 61);
        assert_eq!(sessions.visits.len(), 1);
    }

    #[test]
    fn the_worker_of_the_last_turn_is_the_one_that_is_remembered() {
        let mut sessions = Sessions::default();
        visit(&mut sessions, "a", 0);
        let other = WorkerKey::new(2, 0);
        sessions.served("a".to_owned(), other, Tokens(900), at(1), LIMITS);
        let left = sessions.left("a", at(1), LIMITS).unwrap();
        assert_eq!((left.worker, left.context), (other, Tokens(900)));
    }

    #[test]
    fn a_prefix_is_named_until_it_is_said_otherwise_or_the_next_turn_ends() {
        let mut sessions = Sessions::default();
        visit(&mut sessions, "a", 0);
        assert_eq!(sessions.named("a"), None);
        for forget in [
            (|it: &mut Sessions| it.name("a", None)) as fn(&mut Sessions),
            |it| visit(it, "a", 1),
        ] {
            sessions.name("a", Some(Tier::Host));
            let named = sessions.named("a").unwrap();
            assert_eq!((named.worker, named.context), (WORKER, Tokens(500)));
            forget(&mut sessions);
            assert_eq!(sessions.named("a"), None);
        }
    }

    #[test]
    fn nothing_is_left_on_a_worker_that_is_gone() {
        let mut sessions = Sessions::default();
        sessions.passed(WORKER, Tokens(1), Tokens(1));
        visit(&mut sessions, "a", 0);
        sessions.retain(|_| false);
        assert!(sessions.left("a", at(0), LIMITS).is_none());
    }
}
