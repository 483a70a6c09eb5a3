// SPDX-License-Identifier: Apache-2.0

//! What a run is judged by.
//!
//! Nothing that was not measured has a number: an empty sample has no mean and no quantile, and a ratio
//! whose base is empty is absent, never 0 (field report BR-19). A P99 from fewer than 100 samples is
//! hardly more than the maximum, and says so.
//!
//! Two averages of a ratio are both right and must not be confused (field report SP-3): `engine_reuse` is
//! the ratio of sums, the share of all prompt tokens that came from a cache and thus the work saved;
//! `engine_reuse_request_mean` is the mean of the ratios of single requests.
//!
//! Quantiles are of the nearest rank. Latencies start when the request reaches the router.

use serde::{Deserialize, Serialize};

use crate::adapter::{Ending, RequestRecord, RunRecord, TierTraffic};

/// Latencies within which a request counts as served well.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Longest time to the first token, ms.
    pub ttft_ms: f64,
    /// Longest mean time between tokens of a request, ms.
    pub mean_itl_ms: f64,
}

impl Default for Slo {
    /// Two seconds to the first token, then faster than anybody reads.
    fn default() -> Self {
        Self {
            ttft_ms: 2_000.0,
            mean_itl_ms: 50.0,
        }
    }
}

/// A sample that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Number of samples.
    pub samples: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// Ninetieth percentile.
    pub p90: f64,
    /// Ninety-ninth percentile.
    pub p99: f64,
    /// The P99 stands on fewer than 100 samples.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub p99_from_few: bool,
}

/// Fewest samples that hold one beyond their P99.
const ENOUGH_FOR_P99: usize = 100;

impl Distribution {
    /// Summarise `values`, in any order; `None` when there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        let samples = values.len();
        if samples == 0 {
            return None;
        }
        // In a fixed order, so that the sum does not depend on the order of arrival.
        values.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| values[(samples * percent).div_ceil(100).max(1) - 1];
        Some(Self {
            samples: samples as u64,
            mean: values.iter().sum::<f64>() / samples as f64,
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            p99_from_few: samples < ENOUGH_FOR_P99,
        })
    }
}

/// Where prompts were found, and what moved between device memory and the host tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TierUse {
    /// Share of all prompt tokens that were in device memory.
    pub device_hits: f64,
    /// Share of all prompt tokens that came from the host tier.
    pub host_hits: f64,
    /// Brought from the host tier for first admissions, GB (10⁹ bytes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_read_gb: Option<f64>,
    /// Written to the host tier, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_written_gb: Option<f64>,
}

impl TierUse {
    /// Absent without prompt tokens.
    fn of(traffic: &TierTraffic, prompt_tokens: f64) -> Option<Self> {
        let gb = |tokens: u64| Some(tokens as f64 * traffic.bytes_per_token? as f64 / 1e9);
        Some(Self {
            device_hits: ratio(traffic.device_tokens as f64, prompt_tokens)?,
            host_hits: ratio(traffic.host_tokens as f64, prompt_tokens)?,
            host_read_gb: gb(traffic.host_tokens),
            host_written_gb: traffic.written_tokens.and_then(gb),
        })
    }
}

/// The measurements of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Requests that got all their tokens.
    pub completed: u64,
    /// Requests that an engine refused.
    pub rejected: u64,
    /// Requests that were lost on the way.
    pub errors: u64,
    /// Requests that were still being served when the run was cut.
    #[serde(default)]
    pub unfinished: u64,
    /// From the first arrival to the last token, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<f64>,
    /// Completed requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<f64>,
    /// Generated tokens a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_per_s: Option<f64>,
    /// Share of all requests that were completed within the SLO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    /// Requests a second that were completed within the SLO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput_requests_per_s: Option<f64>,
    /// Share of all prompt tokens that came from an engine's cache: ratio of sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_reuse: Option<f64>,
    /// The same as the mean over requests of each one's share: mean of ratios.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_reuse_request_mean: Option<f64>,
    /// The same by tier; absent without a host tier, and where the engine does not tell tiers apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiers: Option<TierUse>,
    /// Most tokens processed by one worker over the mean, in the less even pool; 1 is even.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<f64>,
    /// Jain's index of tokens processed, in the less even pool; 1 is even, 1/n is all on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imbalance_jain: Option<f64>,
    /// Most requests served or waiting at one time. At 1 there is no contention, and no policy can matter.
    #[serde(default)]
    pub peak_in_flight: u64,
    /// Workers times duration, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_seconds: Option<f64>,
    /// Time to first token, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<Distribution>,
    /// Time between two tokens of a request, ms; every gap counts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<Distribution>,
    /// Time to the last token of completed requests, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<Distribution>,
}

impl Metrics {
    /// Measure a run; TTFT and time to the last token without the first `warm_up` requests.
    #[must_use]
    pub fn of(record: &RunRecord, slo: Slo, warm_up: usize) -> Self {
        let requests = &record.requests;
        let measured = requests.get(warm_up..).unwrap_or_default();
        let ended = |ending| {
            requests
                .iter()
                .filter(|request| request.ending == ending)
                .count() as u64
        };
        let completed = || {
            requests
                .iter()
                .filter(|request| request.ending == Ending::Completed)
        };
        let good = completed()
            .filter(|request| {
                request.ttft_ms().is_some_and(|ttft| ttft <= slo.ttft_ms)
                    && request
                        .mean_itl_ms()
                        .is_none_or(|itl| itl <= slo.mean_itl_ms)
            })
            .count();
        let reuse = || {
            requests.iter().filter_map(|request| {
                Some((
                    f64::from(request.reused_tokens?),
                    f64::from(request.prompt_tokens),
                ))
            })
        };
        let duration_s = duration_s(record);
        let rate = |count: f64| Some(count / duration_s?);
        let workers: usize = record.pools.iter().map(|pool| pool.work_tokens.len()).sum();
        let evenness = || {
            record
                .pools
                .iter()
                .filter_map(|pool| evenness(&pool.work_tokens))
        };
        Self {
            completed: ended(Ending::Completed),
            rejected: ended(Ending::Rejected),
            errors: ended(Ending::Failed),
            unfinished: ended(Ending::Unfinished),
            duration_s,
            requests_per_s: rate(completed().count() as f64),
            output_tokens_per_s: rate(
                requests
                    .iter()
                    .map(|request| f64::from(request.tokens))
                    .sum(),
            ),
            goodput: ratio(good as f64, requests.len() as f64),
            goodput_requests_per_s: rate(good as f64),
            engine_reuse: ratio(
                reuse().map(|(hit, _)| hit).sum(),
                reuse().map(|(_, all)| all).sum(),
            ),
            engine_reuse_request_mean: ratio(
                reuse().filter_map(|(hit, all)| ratio(hit, all)).sum(),
                reuse().count() as f64,
            ),
            tiers: record
                .tiers
                .and_then(|it| TierUse::of(&it, reuse().map(|(_, all)| all).sum())),
            imbalance: evenness()
                .map(|(imbalance, _)| imbalance)
                .max_by(f64::total_cmp),
            imbalance_jain: evenness().map(|(_, jain)| jain).min_by(f64::total_cmp),
            peak_in_flight: peak_in_flight(record),
            worker_seconds: duration_s.map(|seconds| seconds * workers as f64),
            ttft_ms: Distribution::of(
                measured
                    .iter()
                    .filter_map(|request| request.ttft_ms())
                    .collect(),
            ),
            itl_ms: Distribution::of(
                record
                    .token_gaps_ms
                    .iter()
                    .map(|&gap| f64::from(gap))
                    .collect(),
            ),
            e2e_ms: Distribution::of(
                measured
                    .iter()
                    .filter(|request| request.ending == Ending::Completed)
                    .filter_map(RequestRecord::e2e_ms)
                    .collect(),
            ),
        }
    }
}

/// `part / whole`, absent when there is no whole.
pub(crate) fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then_some(part / whole)
}

fn duration_s(record: &RunRecord) -> Option<f64> {
    let first = record.requests.iter().map(|request| request.arrival_ms);
    let last = record
        .requests
        .iter()
        .filter_map(|request| request.last_token_ms);
    let span = last.max_by(f64::total_cmp)? - first.min_by(f64::total_cmp)?;
    (span > 0.0).then_some(span / 1_000.0)
}

/// Largest over mean, and Jain's index (Σx)²/(n·Σx²).
fn evenness(values: &[u64]) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    let sum: f64 = values.iter().map(|&value| value as f64).sum();
    let squares: f64 = values.iter().map(|&value| (value as f64).powi(2)).sum();
    let largest = *values.iter().max()? as f64;
    Some((ratio(largest * n, sum)?, ratio(sum * sum, n * squares)?))
}

fn peak_in_flight(record: &RunRecord) -> u64 {
    let mut changes: Vec<(f64, i64)> = Vec::with_capacity(record.requests.len() * 2);
    for request in &record.requests {
        let end_ms = match request.ending {
            Ending::Completed => request.last_token_ms,
            Ending::Unfinished => Some(record.end_ms),
            // Refused at once, or nobody knows when.
            Ending::Rejected | Ending::Failed => None,
        };
        if let Some(end_ms) = end_ms {
            changes.push((request.arrival_ms, 1));
            changes.push((end_ms, -1));
        }
    }
    // At one instant departures come first.
    changes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut now, mut peak) = (0i64, 0i64);
    for (_, change) in changes {
        now += change;
        peak = peak.max(now);
    }
    peak.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::PoolRecord;
    use dynamo_kv_router::WorkerType;

    fn request(arrival_ms: f64, first: f64, last: f64, tokens: u32) -> RequestRecord {
        RequestRecord {
            session: 0,
            turn: 0,
            arrival_ms,
            prompt_tokens: 100,
            reused_tokens: Some(50),
            prefill_worker: Some(0),
            decode_worker: Some(0),
            first_token_ms: Some(first),
            last_token_ms: Some(last),
            tokens,
            ending: Ending::Completed,
        }
    }

    fn run(requests: Vec<RequestRecord>) -> RunRecord {
        RunRecord {
            tiers: None,
            requests,
            token_gaps_ms: vec![10.0, 20.0],
            decisions: Vec::new(),
            pools: vec![PoolRecord {
                role: WorkerType::Aggregated,
                work_tokens: vec![300, 100],
                busy_ms: vec![0.0; 2],
                requests: vec![1, 1],
                regimes: Vec::new(),
            }],
            end_ms: 0.0,
        }
    }

    #[test]
    fn rates_latencies_and_goodput_are_those_of_the_records() {
        let metrics = Metrics::of(
            &run(vec![
                request(0.0, 100.0, 600.0, 11),
                request(500.0, 2_600.0, 2_700.0, 2),
            ]),
            Slo::default(),
            0,
        );
        // 2 requests and 13 tokens in 2.7 s; the second waited 2.1 s for its first token.
        assert_eq!(metrics.duration_s, Some(2.7));
        assert_eq!(metrics.output_tokens_per_s, Some(13.0 / 2.7));
        assert_eq!((metrics.completed, metrics.goodput), (2, Some(0.5)));
        let ttft = metrics.ttft_ms.unwrap();
        assert_eq!((ttft.mean, ttft.p50, ttft.p99), (1_100.0, 100.0, 2_100.0));
        assert_eq!(metrics.e2e_ms.unwrap().p50, 600.0);
        assert_eq!(metrics.peak_in_flight, 2);
        assert_eq!(metrics.worker_seconds, Some(5.4));
    }

    #[test]
    fn latencies_are_those_after_the_warm_up_and_counts_those_of_all() {
        let requests = vec![
            request(0.0, 900.0, 1_000.0, 2),
            request(500.0, 600.0, 800.0, 3),
        ];
        let metrics = Metrics::of(&run(requests), Slo::default(), 1);
        let (ttft, e2e) = (metrics.ttft_ms.unwrap(), metrics.e2e_ms.unwrap());
        assert_eq!((ttft.samples, ttft.mean, e2e.mean), (1, 100.0, 300.0));
        assert_eq!((metrics.completed, metrics.duration_s), (2, Some(1.0)));
    }

    #[test]
    fn a_slow_stream_misses_the_slo() {
        // 10 gaps in 510 ms: 51 ms each.
        let metrics = Metrics::of(&run(vec![request(0.0, 10.0, 520.0, 11)]), Slo::default(), 0);
        assert_eq!(metrics.goodput, Some(0.0));
    }

    #[test]
    fn imbalance_is_largest_over_mean_and_jains_index() {
        let metrics = Metrics::of(&run(Vec::new()), Slo::default(), 0);
        // 300 and 100: 300 / 200, and 400² / (2·100,000).
        assert_eq!(metrics.imbalance, Some(1.5));
        assert_eq!(metrics.imbalance_jain, Some(0.8));
    }

    #[test]
    fn nothing_measured_is_absent_and_not_zero() {
        let mut empty = run(Vec::new());
        empty.token_gaps_ms.clear();
        empty.pools[0].work_tokens = vec![0, 0];
        let metrics = Metrics::of(&empty, Slo::default(), 0);
        assert_eq!(metrics, Metrics::default());
        let json = serde_json::to_value(metrics).unwrap();
        assert!(json.get("ttft_ms").is_none() && json.get("engine_reuse").is_none());
        assert_eq!(json["completed"], 0);
    }

    #[test]
    fn the_ratio_of_sums_and_the_mean_of_ratios_differ() {
        // Field report SP-3: 4 blocks, 0 hits, and 196 blocks, 190 hits.
        let mut requests = vec![request(0.0, 1.0, 2.0, 2); 2];
        (requests[0].prompt_tokens, requests[0].reused_tokens) = (4, Some(0));
        (requests[1].prompt_tokens, requests[1].reused_tokens) = (196, Some(190));
        let metrics = Metrics::of(&run(requests), Slo::default(), 0);
        assert_eq!(metrics.engine_reuse, Some(0.95));
        let mean = metrics.engine_reuse_request_mean.unwrap();
        assert!((mean - 0.485).abs() < 0.001, "{mean}");
    }

    #[test]
    fn hits_and_bytes_are_told_by_tier_and_are_absent_where_they_are_not_known() {
        let mut record = run(vec![request(0.0, 1.0, 2.0, 2); 2]);
        assert_eq!(Metrics::of(&record, Slo::default(), 0).tiers, None);
        let mut traffic = TierTraffic {
            device_tokens: 60,
            host_tokens: 40,
            written_tokens: Some(80),
            bytes_per_token: Some(50_000_000),
        };
        record.tiers = Some(traffic);
        // Of 200 prompt tokens; 40 and 80 tokens of 0.05 GB.
        let expected = TierUse {
            device_hits: 0.3,
            host_hits: 0.2,
            host_read_gb: Some(2.0),
            host_written_gb: Some(4.0),
        };
        assert_eq!(
            Metrics::of(&record, Slo::default(), 0).tiers,
            Some(expected)
        );
        traffic.bytes_per_token = None;
        record.tiers = Some(traffic);
        let unknown = Metrics::of(&record, Slo::default(), 0).tiers.unwrap();
        assert_eq!(
            (unknown.host_read_gb, unknown.host_written_gb),
            (None, None)
        );
    }

    #[test]
    fn a_p99_from_few_samples_says_so() {
        let of = |n: u32| Distribution::of((1..=n).map(f64::from).collect()).unwrap();
        assert!(of(99).p99_from_few && !of(100).p99_from_few);
        assert_eq!((of(100).p50, of(100).p90, of(100).p99), (50.0, 90.0, 99.0));
        assert_eq!((of(1).p50, of(1).p99, of(1).samples), (1.0, 1.0, 1));
        assert_eq!(Distribution::of(vec![f64::NAN]), None);
    }
}
