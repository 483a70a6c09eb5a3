// SPDX-License-Identifier: Apache-2.0

//! Cuts a stream of choices into windows.
//!
//! # Idea
//!
//! A choice is complete when its request has answered, so complete choices come in the order of the
//! answers, while a window is made of consecutive decisions. The collector keeps them until the caller
//! says up to when all decisions are settled, that is, answered or given up; then it cuts the settled
//! ones, in the order of their decisions. A window begins with a decision and ends when it spans
//! `span`, or holds `count` decisions, whichever comes first. A choice that comes after its time was
//! settled is refused: the window it belongs to is gone.
//!
//! # Defaults
//!
//! 250 ms and 16 decisions: short against the service of a request, so that they compete for the same
//! moment, and far below the size that is solved exactly. At most [`MAX_OPEN`] choices are kept, so a
//! caller that settles nothing cannot fill the memory.
//!
//! # Source
//!
//! Windows of 16 decisions are those in which the policy gaps of known routing rules were measured in
//! simulation: they told a rule with a noisy estimate of speed (1.31) from a good one (1.02) where the
//! mean TTFT did not.

use std::time::Duration;

use regime_core::Timestamp;
use thiserror::Error;

use super::Choice;

/// Choices that wait for their window at once.
pub const MAX_OPEN: usize = 100_000;

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(3_600);
const MOST: usize = 10_000;

/// When a window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectorConfig {
    /// Time from its first decision. 1 ms to 1 h; default 250 ms.
    pub span: Duration,
    /// Decisions in it. 1 to 10,000; default 16.
    pub count: usize,
}

impl Default for CollectorConfig {
    fn default() -> Self {
        Self {
            span: Duration::from_millis(250),
            count: 16,
        }
    }
}

/// A setting of [`CollectorConfig`] outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CollectorError {
    /// Not a window, or a whole day.
    #[error("span is {0:?}; allowed: {SHORTEST:?} to {LONGEST:?}")]
    Span(Duration),
    /// An empty window, or too many requests for one game.
    #[error("count is {0}; allowed: 1 to {MOST}")]
    Count(usize),
}

/// Why a choice was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotCollected {
    /// Its window may have been cut already.
    #[error("the choice was decided before the time that is settled")]
    Late,
    /// Too many choices wait to be settled.
    #[error("{MAX_OPEN} choices wait to be settled; no more are kept")]
    Full,
}

/// Collects complete choices and cuts them into windows.
#[derive(Debug, Clone)]
pub struct WindowCollector {
    config: CollectorConfig,
    open: Vec<Choice>,
    settled: Timestamp,
}

impl WindowCollector {
    /// An empty collector.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn new(config: CollectorConfig) -> Result<Self, CollectorError> {
        if !(SHORTEST..=LONGEST).contains(&config.span) {
            return Err(CollectorError::Span(config.span));
        }
        if !(1..=MOST).contains(&config.count) {
            return Err(CollectorError::Count(config.count));
        }
        Ok(Self {
            config,
            open: Vec::new(),
            settled: Timestamp::ORIGIN,
        })
    }

    /// Take one complete choice, in any order.
    ///
    /// # Errors
    /// [`NotCollected::Late`] or [`NotCollected::Full`]; the choice is dropped.
    pub fn push(&mut self, choice: Choice) -> Result<(), NotCollected> {
        if choice.decided_at < self.settled {
            return Err(NotCollected::Late);
        }
        if self.open.len() >= MAX_OPEN {
            return Err(NotCollected::Full);
        }
        self.open.push(choice);
        Ok(())
    }

    /// The windows that are complete, given that every decision before `settled` has been pushed or
    /// never will be. A live caller names the oldest decision that may still be answered. A time before
    /// an earlier one changes nothing.
    pub fn close(&mut self, settled: Timestamp) -> Vec<Vec<Choice>> {
        self.settled = self.settled.max(settled);
        self.open.sort_by_key(|choice| choice.decided_at);
        let before = |end: Timestamp, open: &[Choice]| {
            open.partition_point(|choice| choice.decided_at < end)
        };
        let mut rest = &self.open[..before(self.settled, &self.open)];
        let mut sizes = Vec::new();
        while let Some(first) = rest.first() {
            let end = first.decided_at + self.config.span;
            let size = before(end, rest).min(self.config.count);
            if size < self.config.count && end > self.settled {
                break;
            }
            sizes.push(size);
            rest = &rest[size..];
        }
        let mut closed = self.open.drain(..sizes.iter().sum::<usize>());
        let windows = sizes.into_iter();
        windows
            .map(|size| closed.by_ref().take(size).collect())
            .collect()
    }

    /// All windows that are left, when no more choices come.
    #[must_use]
    pub fn finish(mut self) -> Vec<Vec<Choice>> {
        self.close(Timestamp::from_micros(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regime_core::{Millis, WorkerKey};

    fn collector(span_ms: u64, count: usize) -> WindowCollector {
        WindowCollector::new(CollectorConfig {
            span: Duration::from_millis(span_ms),
            count,
        })
        .unwrap()
    }

    fn decided(at_ms: u64) -> Choice {
        Choice {
            decided_at: Timestamp::from_millis(at_ms),
            chosen: WorkerKey::new(1, 0),
            candidates: Vec::new(),
            actual: Millis::ZERO,
        }
    }

    fn filled(span_ms: u64, count: usize, at_ms: &[u64]) -> WindowCollector {
        let mut collector = collector(span_ms, count);
        for &at in at_ms {
            collector.push(decided(at)).unwrap();
        }
        collector
    }

    fn times(windows: &[Vec<Choice>]) -> Vec<Vec<u64>> {
        let millis = |choice: &Choice| choice.decided_at.as_micros() / 1_000;
        windows
            .iter()
            .map(|window| window.iter().map(millis).collect())
            .collect()
    }

    #[test]
    fn a_window_ends_a_span_after_its_first_decision() {
        let mut collector = filled(250, 16, &[10, 100, 259, 260, 300]);
        // 10 + 250 is outside, and opens the next window, which lasts until 510.
        let windows = collector.close(Timestamp::from_millis(509));
        assert_eq!(times(&windows), [[10, 100, 259]]);
        let windows = collector.close(Timestamp::from_millis(510));
        assert_eq!(times(&windows), [[260, 300]]);
    }

    #[test]
    fn a_full_window_ends_before_its_span() {
        let mut collector = filled(250, 2, &[10, 11, 12]);
        let windows = collector.close(Timestamp::from_millis(13));
        assert_eq!(times(&windows), [[10, 11]]);
        assert_eq!(times(&collector.finish()), [[12]]);
    }

    #[test]
    fn a_full_window_waits_for_decisions_that_are_not_settled() {
        let mut collector = filled(250, 2, &[10, 12]);
        // A decision at 11 may still be answered, and would belong before the one at 12.
        assert!(collector.close(Timestamp::from_millis(11)).is_empty());
        collector.push(decided(11)).unwrap();
        let windows = collector.close(Timestamp::from_millis(20));
        assert_eq!(times(&windows), [[10, 11]]);
    }

    #[test]
    fn a_choice_from_settled_time_is_refused() {
        let mut collector = collector(250, 16);
        assert!(collector.close(Timestamp::from_millis(50)).is_empty());
        assert_eq!(collector.push(decided(49)), Err(NotCollected::Late));
        assert_eq!(collector.push(decided(50)), Ok(()));
    }

    #[test]
    fn settled_time_never_runs_back() {
        let mut collector = collector(250, 16);
        collector.close(Timestamp::from_millis(50));
        collector.close(Timestamp::from_millis(20));
        assert_eq!(collector.push(decided(30)), Err(NotCollected::Late));
    }

    #[test]
    fn a_caller_that_settles_nothing_cannot_fill_the_memory() {
        let mut collector = filled(250, 16, &vec![0; MAX_OPEN]);
        assert_eq!(collector.push(decided(0)), Err(NotCollected::Full));
    }

    #[test]
    fn settings_outside_their_range_are_named() {
        let error = |span, count| {
            let error = WindowCollector::new(CollectorConfig { span, count }).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            error(Duration::ZERO, 16),
            "span is 0ns; allowed: 1ms to 3600s"
        );
        assert_eq!(
            error(Duration::from_secs(3_601), 16),
            "span is 3601s; allowed: 1ms to 3600s"
        );
        let span = CollectorConfig::default().span;
        assert_eq!(error(span, 0), "count is 0; allowed: 1 to 10000");
        assert_eq!(error(span, 10_001), "count is 10001; allowed: 1 to 10000");
    }

    proptest! {
        #[test]
        fn the_order_of_arrival_and_the_moments_of_closing_change_no_window(
            mut at_ms in proptest::collection::vec(0_u64..2_000, 0..100),
            settle in 0_u64..2_000,
            count in 1_usize..8,
        ) {
            let at_once = times(&filled(250, count, &at_ms).finish());
            at_ms.reverse();
            let (early, late): (Vec<u64>, Vec<u64>) = at_ms.iter().partition(|&&at| at < settle);
            let mut collector = filled(250, count, &early);
            let mut windows = collector.close(Timestamp::from_millis(settle));
            for at in late {
                collector.push(decided(at)).unwrap();
            }
            windows.extend(collector.finish());
            prop_assert_eq!(times(&windows), at_once);
        }
    }
}
