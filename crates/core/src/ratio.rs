// SPDX-License-Identifier: Apache-2.0

//! Mean slowdown over a sliding window: Σ latency / Σ latency alone.
//!
//! The ratio of sums, not the mean of ratios: one tiny request that waited must not outweigh a
//! hundred long ones that did not. A prompt of 60,000 tokens that takes 6 s on an idle worker has a
//! slowdown of 1, so long prompts do not look like saturation (field report BR-10).

use std::time::Duration;

use crate::{Millis, Timestamp};

/// Sums of actual and alone latency over rotating slices.
#[derive(Debug, Clone)]
pub struct SlowdownWindow {
    slice: Duration,
    slices: Vec<Slice>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    epoch: u64,
    actual: Millis,
    alone: Millis,
    samples: u64,
}

/// What a [`SlowdownWindow`] holds at some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowdown {
    /// Σ actual / Σ alone.
    pub ratio: f64,
    /// Requests in the window.
    pub samples: u64,
}

impl SlowdownWindow {
    /// A window of `span`, forgetting in `slices` steps. Both are raised to at least one microsecond
    /// and one slice.
    #[must_use]
    pub fn new(span: Duration, slices: usize) -> Self {
        let slices = slices.max(1);
        let parts = u32::try_from(slices).unwrap_or(u32::MAX);
        Self {
            slice: (span / parts).max(Duration::from_micros(1)),
            slices: vec![Slice::default(); slices],
        }
    }

    /// Add `count` requests that took `actual` together and would have taken `alone` on an idle
    /// worker. Ignored when either is not positive, and when older than the window.
    pub fn record(&mut self, at: Timestamp, actual: Millis, alone: Millis, count: u64) {
        if count == 0 || actual <= Millis::ZERO || alone <= Millis::ZERO {
            return;
        }
        let epoch = self.epoch(at);
        let len = self.slices.len() as u64;
        let Some(slot) = usize::try_from(epoch % len)
            .ok()
            .and_then(|index| self.slices.get_mut(index))
        else {
            return;
        };
        if slot.epoch > epoch {
            return;
        }
        if slot.epoch < epoch {
            *slot = Slice {
                epoch,
                ..Slice::default()
            };
        }
        slot.actual += actual;
        slot.alone += alone;
        slot.samples += count;
    }

    /// The slowdown over the window that ends at `now`; absent without requests.
    #[must_use]
    pub fn slowdown(&self, now: Timestamp) -> Option<Slowdown> {
        let newest = self.epoch(now);
        let oldest = newest.saturating_sub(self.slices.len() as u64 - 1);
        let (mut actual, mut alone, mut samples) = (Millis::ZERO, Millis::ZERO, 0);
        for slice in &self.slices {
            if (oldest..=newest).contains(&slice.epoch) {
                actual += slice.actual;
                alone += slice.alone;
                samples += slice.samples;
            }
        }
        Some(Slowdown {
            ratio: actual.ratio(alone)?,
            samples,
        })
    }

    /// Slices are numbered from one, so that a slot nobody has written yet is older than any.
    fn epoch(&self, at: Timestamp) -> u64 {
        let slice = u64::try_from(self.slice.as_micros()).unwrap_or(u64::MAX);
        at.as_micros() / slice + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn window() -> SlowdownWindow {
        SlowdownWindow::new(Duration::from_secs(5), 5)
    }

    #[test]
    fn slowdown_is_the_ratio_of_sums() {
        let mut window = window();
        let at = Timestamp::from_secs(10);
        window.record(at, Millis::new(6_000.0), Millis::new(6_000.0), 1);
        window.record(at, Millis::new(100.0), Millis::new(10.0), 1);
        let Slowdown { ratio, samples } = window.slowdown(at).unwrap();
        // 6100 / 6010, although the second request alone was slowed ten times.
        assert!((ratio - 6_100.0 / 6_010.0).abs() < 1e-12);
        assert_eq!(samples, 2);
    }

    #[test]
    fn old_requests_leave_the_window_without_a_new_one() {
        let mut window = window();
        window.record(
            Timestamp::from_secs(1),
            Millis::new(9.0),
            Millis::new(1.0),
            1,
        );
        assert!(window.slowdown(Timestamp::from_secs(5)).is_some());
        assert_eq!(window.slowdown(Timestamp::from_secs(6)), None);
    }

    #[test]
    fn a_slot_is_emptied_when_its_turn_comes_again() {
        let mut window = window();
        window.record(
            Timestamp::from_secs(1),
            Millis::new(9.0),
            Millis::new(1.0),
            1,
        );
        let again = Timestamp::from_secs(6);
        window.record(again, Millis::new(2.0), Millis::new(1.0), 1);
        assert_eq!(window.slowdown(again).unwrap().ratio, 2.0);
    }

    proptest! {
        #[test]
        fn the_ratio_is_finite_for_any_input(
            samples in prop::collection::vec((0u64..100_000_000, any::<f64>(), any::<f64>(), 0u64..5), 0..50),
            now in 0u64..100_000_000,
        ) {
            let mut window = window();
            for (at, actual, alone, count) in samples {
                window.record(
                    Timestamp::from_micros(at), Millis::new(actual), Millis::new(alone), count,
                );
            }
            if let Some(slowdown) = window.slowdown(Timestamp::from_micros(now)) {
                prop_assert!(slowdown.ratio.is_finite() && slowdown.ratio > 0.0);
                prop_assert!(slowdown.samples > 0);
            }
        }
    }
}
