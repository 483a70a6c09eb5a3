// SPDX-License-Identifier: Apache-2.0

//! TTFT from the frontend to the policy.
//!
//! In disaggregated serving without bootstrap the classifier sees a request only after its prefill has ended, so its own
//! TTFT leaves the prefill out: 22 ms where the client waited 216 ms. The frontend knows better, so it tells.
//!
//! Source: Dynamo's histogram `dynamo_component_router_time_to_first_token_seconds`. It runs from the arrival of the
//! request at the frontend to the first token, over both legs. Its twin `dynamo_frontend_time_to_first_token_seconds` has a
//! label for the model but lies in a registry that Dynamo hands to nobody. The router's histogram covers all models of the
//! process, so the feed speaks only while exactly one model is served, which is the rule. In disaggregated serving each
//! request is observed twice, at the first item of either leg, both counted from its arrival; the mean lies between the end
//! of the prefill and the first token, 208 ms where the client saw 225 ms. It is read from memory once a
//! second; the histogram counts from process start, so the policy gets differences.

use std::time::Duration;

use dynamo_llm::http::service::FrontendExtensionContext;
use dynamo_llm::kv_router::metrics::RouterRequestMetrics;
use prometheus::Histogram;
use prometheus::core::Collector;
use regime_policy::{Handle, TtftDelta};
use tokio::sync::watch;

use crate::routes;

/// How often the histogram is read.
const PERIOD: Duration = Duration::from_secs(1);

/// Feed `handle` for as long as the task runs.
pub async fn run(handle: Handle, context: watch::Receiver<Option<FrontendExtensionContext>>) {
    let Some(context) = routes::built(context).await else {
        return;
    };
    let mut before = Snapshot::default();
    let mut ticks = tokio::time::interval(PERIOD);
    loop {
        ticks.tick().await;
        let Some(metrics) = RouterRequestMetrics::get() else {
            continue;
        };
        let now = Snapshot::of(&metrics.time_to_first_token_seconds);
        let delta = now.since(&before);
        before = now;
        let models = context.model_display_names();
        let mut models = models.iter();
        if let (Some(delta), Some(model), None) = (delta, models.next(), models.next()) {
            handle.observe_frontend_ttft(model, &delta);
        }
    }
}

/// A histogram at one moment, in seconds, counted from process start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// (upper bound in s, observations up to it), bounds increasing.
    buckets: Vec<(f64, u64)>,
    sum_s: f64,
    count: u64,
}

impl Snapshot {
    fn of(histogram: &Histogram) -> Self {
        let families = histogram.collect();
        let metric = families
            .first()
            .and_then(|family| family.get_metric().first());
        metric.map_or_else(Self::default, |metric| {
            let histogram = metric.get_histogram();
            Self {
                buckets: histogram
                    .get_bucket()
                    .iter()
                    .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
                    .collect(),
                sum_s: histogram.get_sample_sum(),
                count: histogram.get_sample_count(),
            }
        })
    }

    /// What came since `before`; `None` when nothing did.
    ///
    /// A count that fell, or other bounds, mean a new histogram: then everything in it is new (field report SP-4). Values
    /// above the last bound are in `count` and `sum_ms` only.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<TtftDelta> {
        let nothing = Self::default();
        let before = if self.continues(before) {
            before
        } else {
            &nothing
        };
        let count = self.count - before.count;
        if count == 0 {
            return None;
        }
        let mut below = 0;
        let buckets = self
            .buckets
            .iter()
            .enumerate()
            .map(|(index, (bound, cumulative))| {
                let new = cumulative - before.buckets.get(index).map_or(0, |bucket| bucket.1);
                // Cumulative counts are read one after the other while others write: never let that go below 0.
                let own = new.saturating_sub(below);
                below = new;
                (bound * 1000.0, own)
            })
            .collect();
        Some(TtftDelta {
            buckets,
            sum_ms: ((self.sum_s - before.sum_s) * 1000.0).max(0.0),
            count,
        })
    }

    fn continues(&self, before: &Self) -> bool {
        before.count <= self.count
            && (before.buckets.is_empty() || before.buckets.len() == self.buckets.len())
            && before
                .buckets
                .iter()
                .zip(&self.buckets)
                .all(|(old, new)| old.0 == new.0 && old.1 <= new.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(buckets: &[(f64, u64)], sum_s: f64, count: u64) -> Snapshot {
        Snapshot {
            buckets: buckets.to_vec(),
            sum_s,
            count,
        }
    }

    #[test]
    fn the_first_reading_counts_from_zero() {
        let delta = snapshot(&[(0.1, 1), (1.0, 3)], 0.9, 3)
            .since(&Snapshot::default())
            .unwrap();
        assert_eq!(delta.buckets, [(100.0, 1), (1000.0, 2)]);
        assert_eq!(delta.count, 3);
        assert!((delta.sum_ms - 900.0).abs() < 1e-9);
    }

    #[test]
    fn later_readings_are_differences_per_bucket() {
        let before = snapshot(&[(0.1, 1), (1.0, 3)], 0.9, 3);
        let delta = snapshot(&[(0.1, 2), (1.0, 6)], 2.4, 7)
            .since(&before)
            .unwrap();
        // One more below 0.1 s, two more up to 1 s, one more above.
        assert_eq!(delta.buckets, [(100.0, 1), (1000.0, 2)]);
        assert_eq!(delta.count, 4);
        assert!((delta.sum_ms - 1500.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_new_is_nothing() {
        let reading = snapshot(&[(0.1, 1)], 0.05, 1);
        assert!(reading.since(&reading).is_none());
    }

    #[test]
    fn a_histogram_that_started_again_is_all_new() {
        // 6 observations of 9 s in all after a restart: 1.5 s each, not a negative average.
        let before = snapshot(&[(1.0, 40)], 20.0, 40);
        let delta = snapshot(&[(1.0, 0)], 9.0, 6).since(&before).unwrap();
        assert_eq!(delta.count, 6);
        assert!((delta.sum_ms / 6.0 - 1500.0).abs() < 1e-9);
    }

    #[test]
    fn other_bounds_are_another_histogram() {
        let before = snapshot(&[(1.0, 4)], 2.0, 4);
        let delta = snapshot(&[(2.0, 5)], 3.0, 5).since(&before).unwrap();
        assert_eq!((delta.buckets, delta.count), (vec![(2000.0, 5)], 5));
    }

    #[test]
    fn a_prometheus_histogram_is_read_with_its_bounds() {
        let options = prometheus::HistogramOpts::new("a", "a").buckets(vec![0.1, 1.0]);
        let histogram = Histogram::with_opts(options).unwrap();
        histogram.observe(0.05);
        histogram.observe(0.5);
        histogram.observe(5.0);
        assert_eq!(
            Snapshot::of(&histogram),
            snapshot(&[(0.1, 1), (1.0, 2)], 5.55, 3)
        );
    }
}
