// SPDX-License-Identifier: Apache-2.0

//! Latencies of the recent past: a sliding window with mean, P50 and P99.
//!
//! The span is cut into slices, each with its own histogram. A slice is reused, in place, when its turn
//! comes again, so memory is fixed from the start: about 12 kB a slice. Reading is a projection to the
//! reader's time: slices that are too old are skipped by their number and not deleted, so a summary
//! needs no writer and silence empties the window by itself.
//!
//! A quantile is the sample at the nearest rank ⌈q·n⌉, to two significant digits, that is
//! within 1 %, far below the scatter of a P99. Below `min_samples`
//! it is absent: a P99 out of eight samples is their maximum, and one stall would raise an alarm (field
//! report BR-09). From there to 99 samples P99 still is the maximum, and the summary says so. The mean
//! is kept as a sum, beside the histogram.
//!
//! Defaults: 30 s spans enough requests of a busy worker for a P99 and is short against changes of
//! load; 6 slices make the window breathe by 5 s, one sixth; 20 samples is the least at which the
//! median is worth reading.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use thiserror::Error;

use crate::{Millis, Timestamp};

/// Shortest latency that is told from a shorter one: 1 µs.
const SHORTEST_US: u64 = 1;
/// Longest latency that is told from a longer one: 1 h.
const LONGEST_US: u64 = 3_600_000_000;
const SIGNIFICANT_DIGITS: u8 = 2;
const SHORTEST_SLICE: Duration = Duration::from_millis(1);

/// Extent of a [`LatencyWindow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowConfig {
    /// How far back the window reaches. At least 1 ms a slice; default 30 s.
    pub span: Duration,
    /// Parts that the window forgets at once. 2 to 64; default 6.
    pub slices: usize,
    /// Samples below which quantiles are absent. At least 1; default 20.
    pub min_samples: u64,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self {
            span: Duration::from_secs(30),
            slices: 6,
            min_samples: 20,
        }
    }
}

/// A setting of [`WindowConfig`] outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WindowError {
    /// Too short to be cut into slices.
    #[error("span is {value:?}; allowed: at least 1 ms for each of the {slices} slices")]
    Span {
        /// What `span` was set to.
        value: Duration,
        /// What `slices` was set to.
        slices: usize,
    },
    /// One slice would be empty at each turn, and too many cost memory.
    #[error("slices is {0}; allowed: 2 to 64")]
    Slices(usize),
    /// A quantile of no samples does not exist.
    #[error("min_samples is {0}; allowed: at least 1")]
    MinSamples(u64),
    /// The histogram refused its bounds.
    #[error("histogram of latencies: {0}")]
    Histogram(#[from] CreationError),
}

/// What a [`LatencyWindow`] holds at some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowSummary {
    /// Samples in the window.
    pub samples: u64,
    /// Time of the newest of them; absent when there is none.
    pub last_sample: Option<Timestamp>,
    /// Their mean; absent when there is none.
    pub mean: Option<Millis>,
    /// Their median; absent below `min_samples`.
    pub p50: Option<Millis>,
    /// Their 99th percentile; absent below `min_samples`.
    pub p99: Option<Millis>,
    /// With fewer than 100 samples the nearest rank of P99 is the last: low confidence.
    pub p99_is_maximum: bool,
}

/// Sliding window over latencies. Values are clamped to 1 µs..1 h.
#[derive(Debug, Clone)]
pub struct LatencyWindow {
    min_samples: u64,
    slice_us: u64,
    slices: Vec<Slice>,
}

#[derive(Debug, Clone)]
struct Slice {
    /// Number of this slice since the origin of the clock; its place in the ring is `number % slices`.
    number: u64,
    histogram: Histogram<u32>,
    sum_ms: f64,
    newest: Timestamp,
}

impl LatencyWindow {
    /// An empty window.
    ///
    /// # Errors
    /// Names the first setting outside its range.
    pub fn new(config: WindowConfig) -> Result<Self, WindowError> {
        let WindowConfig {
            span,
            slices,
            min_samples,
        } = config;
        if !(2..=64).contains(&slices) {
            return Err(WindowError::Slices(slices));
        }
        let slice_us = u64::try_from(span.as_micros() / slices as u128).unwrap_or(u64::MAX);
        if Duration::from_micros(slice_us) < SHORTEST_SLICE {
            return Err(WindowError::Span {
                value: span,
                slices,
            });
        }
        if min_samples == 0 {
            return Err(WindowError::MinSamples(min_samples));
        }
        let histogram = Histogram::new_with_bounds(SHORTEST_US, LONGEST_US, SIGNIFICANT_DIGITS)?;
        let slices = (0..slices as u64)
            .map(|number| Slice {
                number,
                histogram: histogram.clone(),
                sum_ms: 0.0,
                newest: Timestamp::ORIGIN,
            })
            .collect();
        Ok(Self {
            min_samples,
            slice_us,
            slices,
        })
    }

    /// Take in one latency, seen at `at`.
    pub fn record(&mut self, at: Timestamp, value: Millis) {
        self.record_n(at, value, 1);
    }

    /// Take in `count` equal latencies, such as the growth of one bucket of a cumulative histogram. A
    /// late sample goes to the slice of its time, or nowhere once that slice has been reused. A sample
    /// from the future stays out of summaries until their time reaches its slice.
    pub fn record_n(&mut self, at: Timestamp, value: Millis, count: u32) {
        if count == 0 {
            return;
        }
        let number = self.number(at);
        let place = (number % self.slices.len() as u64) as usize;
        let slice = &mut self.slices[place];
        if number < slice.number {
            return;
        }
        if number > slice.number {
            slice.number = number;
            slice.histogram.reset();
            slice.sum_ms = 0.0;
            slice.newest = at;
        }
        let micros = (value.get() * 1e3).clamp(SHORTEST_US as f64, LONGEST_US as f64);
        slice
            .histogram
            .saturating_record_n(micros.round() as u64, count);
        slice.sum_ms += micros / 1e3 * f64::from(count);
        slice.newest = slice.newest.max(at);
    }

    /// What the window holds at `now`.
    #[must_use]
    pub fn summary(&self, now: Timestamp) -> WindowSummary {
        let samples = self.live(now).map(|slice| slice.histogram.len()).sum();
        let sum_ms: f64 = self.live(now).map(|slice| slice.sum_ms).sum();
        let merged = if samples < self.min_samples {
            None
        } else {
            self.merged(now)
        };
        // ⌈0.5·n⌉ and ⌈0.99·n⌉, in whole numbers.
        let at_rank = |rank: u64| merged.as_ref().map(|all| value_at_rank(all, rank));
        WindowSummary {
            samples,
            last_sample: self.live(now).map(|slice| slice.newest).max(),
            mean: (samples > 0).then(|| Millis::new(sum_ms / samples as f64)),
            p50: at_rank(samples - samples / 2),
            p99: at_rank(samples - samples / 100),
            p99_is_maximum: samples < 100,
        }
    }

    /// The slices with samples that overlap the window at `now`.
    fn live(&self, now: Timestamp) -> impl Iterator<Item = &Slice> {
        let newest = self.number(now);
        let oldest = newest.saturating_sub(self.slices.len() as u64 - 1);
        self.slices.iter().filter(move |slice| {
            (oldest..=newest).contains(&slice.number) && !slice.histogram.is_empty()
        })
    }

    fn merged(&self, now: Timestamp) -> Option<Histogram<u32>> {
        let mut live = self.live(now);
        let mut all = live.next()?.histogram.clone();
        for slice in live {
            all.add(&slice.histogram).ok()?;
        }
        Some(all)
    }

    const fn number(&self, at: Timestamp) -> u64 {
        at.as_micros() / self.slice_us
    }
}

/// The `rank`-th smallest sample, counted from 1. Half a rank is taken off so that rounding of the
/// quotient cannot lead to the next one.
fn value_at_rank(histogram: &Histogram<u32>, rank: u64) -> Millis {
    let quantile = (rank as f64 - 0.5) / histogram.len() as f64;
    Millis::new(histogram.value_at_quantile(quantile) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 10 slices of 1 s.
    const TEN_SECONDS: WindowConfig = WindowConfig {
        span: Duration::from_secs(10),
        slices: 10,
        min_samples: 50,
    };

    fn window() -> LatencyWindow {
        LatencyWindow::new(TEN_SECONDS).unwrap()
    }

    fn secs(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn near(found: Option<Millis>, expected: f64) -> bool {
        found.is_some_and(|found| (found.get() - expected).abs() <= 1e-2 * expected)
    }

    // Field report BR-09 a.
    #[test]
    fn eight_samples_have_a_mean_and_no_quantile() {
        let mut window = window();
        window.record_n(secs(0), Millis::new(150.0), 7);
        window.record(secs(1), Millis::new(2_600.0));
        let summary = window.summary(secs(1));
        assert_eq!((summary.p50, summary.p99), (None, None));
        // (7·150 + 2600)/8
        assert_eq!(summary.mean, Some(Millis::new(456.25)));
        assert_eq!((summary.samples, summary.last_sample), (8, Some(secs(1))));
    }

    // Field report BR-09 b: the rank of P99 among 2010 is 1990, and 2000 samples are 50 ms.
    #[test]
    fn ten_old_outliers_do_not_hold_p99_up() {
        let mut window = window();
        window.record_n(secs(0), Millis::new(60.0), 10);
        for _ in 0..2_000 {
            window.record(secs(1), Millis::new(50.0));
        }
        let summary = window.summary(secs(1));
        assert_eq!(summary.samples, 2_010);
        assert!(near(summary.p99, 50.0));
        assert!(summary.p99.unwrap() <= Millis::new(52.0));
    }

    // Field report BR-09 c.
    #[test]
    fn a_p99_below_a_hundred_samples_is_marked_as_the_maximum() {
        let mut window = LatencyWindow::new(WindowConfig {
            min_samples: 20,
            ..TEN_SECONDS
        })
        .unwrap();
        window.record_n(secs(0), Millis::new(50.0), 39);
        window.record(secs(0), Millis::new(700.0));
        let few = window.summary(secs(0));
        assert!(near(few.p99, 700.0) && few.p99_is_maximum);
        window.record_n(secs(0), Millis::new(50.0), 60);
        let enough = window.summary(secs(0));
        assert!(near(enough.p99, 50.0) && !enough.p99_is_maximum);
    }

    #[test]
    fn silence_empties_the_window() {
        let mut window = window();
        window.record_n(secs(3), Millis::new(80.0), 60);
        assert_eq!(window.summary(secs(12)).samples, 60);
        let empty = window.summary(secs(13));
        assert_eq!(
            (empty.samples, empty.last_sample, empty.mean),
            (0, None, None)
        );
        assert_eq!((empty.p50, empty.p99), (None, None));
    }

    #[test]
    fn a_slice_is_emptied_when_its_turn_comes_again() {
        let mut window = window();
        window.record_n(secs(3), Millis::new(80.0), 60);
        window.record(secs(13), Millis::new(20.0));
        let summary = window.summary(secs(13));
        assert_eq!(
            (summary.samples, summary.mean),
            (1, Some(Millis::new(20.0)))
        );
    }

    #[test]
    fn a_late_sample_counts_until_its_own_time_leaves_the_window() {
        let mut window = window();
        window.record(secs(20), Millis::new(10.0));
        window.record(secs(15), Millis::new(30.0));
        let summary = window.summary(secs(20));
        assert_eq!((summary.samples, summary.last_sample), (2, Some(secs(20))));
        assert_eq!(window.summary(secs(25)).samples, 1);
    }

    #[test]
    fn a_sample_older_than_the_span_is_dropped() {
        let mut window = window();
        window.record(secs(20), Millis::new(10.0));
        window.record(secs(10), Millis::new(30.0));
        assert_eq!(window.summary(secs(20)).samples, 1);
        assert_eq!(window.summary(secs(10)).samples, 0);
    }

    #[test]
    fn a_sample_from_the_future_waits_for_its_time() {
        let mut window = window();
        window.record(secs(9), Millis::new(10.0));
        assert_eq!(window.summary(secs(8)).samples, 0);
        assert_eq!(window.summary(secs(9)).samples, 1);
    }

    #[test]
    fn values_outside_the_range_are_clamped() {
        let mut window = LatencyWindow::new(WindowConfig {
            min_samples: 1,
            ..TEN_SECONDS
        })
        .unwrap();
        window.record(secs(0), Millis::new(-5.0));
        assert_eq!(window.summary(secs(0)).mean, Some(Millis::new(0.001)));
        window.record(secs(0), Millis::new(Millis::LIMIT));
        assert!(near(window.summary(secs(0)).p99, 3.6e6));
    }

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_range() {
        let refusal = |config| LatencyWindow::new(config).unwrap_err().to_string();
        assert_eq!(
            refusal(WindowConfig {
                slices: 1,
                ..TEN_SECONDS
            }),
            "slices is 1; allowed: 2 to 64"
        );
        assert_eq!(
            refusal(WindowConfig {
                span: Duration::from_millis(9),
                ..TEN_SECONDS
            }),
            "span is 9ms; allowed: at least 1 ms for each of the 10 slices"
        );
        assert_eq!(
            refusal(WindowConfig {
                min_samples: 0,
                ..TEN_SECONDS
            }),
            "min_samples is 0; allowed: at least 1"
        );
    }

    proptest! {
        #[test]
        fn a_summary_agrees_with_sorting_the_samples(
            samples in proptest::collection::vec((0_u64..15_000, 0.001..1e5_f64), 1..300),
        ) {
            let mut window =
                LatencyWindow::new(WindowConfig { min_samples: 1, ..TEN_SECONDS }).unwrap();
            let mut in_order = samples;
            in_order.sort_by_key(|sample| sample.0);
            for &(at_ms, value) in &in_order {
                window.record(Timestamp::from_millis(at_ms), Millis::new(value));
            }
            // The window of 10 slices of 1 s that ends with the slice of 14 s starts at 5 s.
            let mut values: Vec<f64> =
                in_order.iter().filter(|sample| sample.0 >= 5_000).map(|sample| sample.1).collect();
            values.sort_by(f64::total_cmp);
            let summary = window.summary(Timestamp::from_millis(14_999));
            prop_assert_eq!(summary.samples, values.len() as u64);
            for (percent, found) in [(50, summary.p50), (99, summary.p99)] {
                let rank = (values.len() * percent).div_ceil(100);
                let expected = rank.checked_sub(1).map(|index| values[index]);
                prop_assert_eq!(found.is_some(), expected.is_some());
                if let (Some(found), Some(expected)) = (found, expected) {
                    // Two digits, and half a microsecond of rounding.
                    prop_assert!((found.get() - expected).abs() <= 1e-2 * expected + 6e-4);
                }
            }
            if let Some(mean) = summary.mean {
                let expected = values.iter().sum::<f64>() / values.len() as f64;
                prop_assert!((mean.get() - expected).abs() <= 1e-9 * expected);
            }
        }
    }
}
