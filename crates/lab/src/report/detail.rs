// SPDX-License-Identifier: Apache-2.0

//! What a plot needs of a run beyond its measurements, in bounded size.
//!
//! A run leaves a record of every request. A suite has hundreds of runs, so that what outlives a run is
//! thinned here, at once and to a fixed size: at most [`MAX_POINTS`] first tokens, [`QUANTILES`] quantiles
//! and [`CACHE_WINDOWS`] windows. Thinning keeps the least and the largest of every stretch, since a plot of
//! tail latency that drops its peaks would lie.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::adapter::{RegimeSince, RequestRecord};
use crate::run::{Experiment, Load, Run};

/// Most first tokens kept of a run.
pub const MAX_POINTS: usize = 2_000;

/// Quantiles kept of a run: from the least to the largest in steps of half a percent.
pub const QUANTILES: usize = 201;

/// Windows in which cache hits are counted.
pub const CACHE_WINDOWS: usize = 60;

/// One run, for plots. It belongs to the [`RunEntry`](crate::RunEntry) with the same label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDetail {
    /// Label of the policy.
    pub policy: String,
    /// What is unusual about the run, in a suite of such conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Name of the workload.
    pub workload: String,
    /// `light`, `knee`, `saturated`, or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// `4`, `2P3D`.
    pub topology: String,
    /// Name of the engine.
    pub engine: String,
    /// Seed of the run.
    pub seed: u64,
    /// First tokens in the order of arrival, at most [`MAX_POINTS`].
    pub first_tokens: Vec<FirstTokenPoint>,
    /// TTFT by quantile, ms: [`QUANTILES`] values from the least to the largest, or none.
    pub ttft_quantiles_ms: Vec<f64>,
    /// One aggregated pool, or prefill and decode.
    pub pools: Vec<PoolDetail>,
    /// Prompt tokens that came from an engine's cache, by time of arrival; empty windows are left out.
    pub cache: Vec<CacheWindow>,
    /// When the last thing happened, ms.
    pub end_ms: f64,
}

/// One request's first token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FirstTokenPoint {
    /// When the request reached the router, ms since the start of the run.
    pub arrival_ms: f64,
    /// Time to its first token, ms.
    pub ttft_ms: f64,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolDetail {
    /// `aggregated`, `prefill` or `decode`.
    pub role: String,
    /// Its workers in order.
    pub workers: Vec<WorkerDetail>,
    /// Its regimes in the eyes of the regime-aware policy; empty under any other.
    pub regimes: Vec<RegimeSince>,
}

/// One worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerDetail {
    /// Requests placed there.
    pub requests: u64,
    /// Prompt tokens computed plus tokens generated.
    pub work_tokens: u64,
    /// Time in forward passes, ms.
    pub busy_ms: f64,
}

/// Cache hits of the requests that arrived within one stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CacheWindow {
    /// Middle of the window, ms since the start of the run.
    pub at_ms: f64,
    /// Prompt tokens of the requests that a worker took up.
    pub prompt_tokens: u64,
    /// Those of them that were in its cache.
    pub reused_tokens: u64,
}

impl RunDetail {
    /// The detail of a run.
    #[must_use]
    pub fn from_run(experiment: &Experiment, run: &Run) -> Self {
        let record = &run.record;
        let points: Vec<_> = record.requests.iter().filter_map(first_token).collect();
        let pools = record.pools.iter().map(|pool| PoolDetail {
            role: pool.role.as_str().to_owned(),
            workers: pool
                .requests
                .iter()
                .zip(&pool.work_tokens)
                .zip(&pool.busy_ms)
                .map(|((&requests, &work_tokens), &busy_ms)| WorkerDetail {
                    requests,
                    work_tokens,
                    busy_ms,
                })
                .collect(),
            regimes: pool.regimes.clone(),
        });
        Self {
            policy: experiment.policy.label().to_owned(),
            condition: None,
            workload: experiment.workload.name.clone(),
            load: experiment.load,
            topology: experiment.topology.to_string(),
            engine: experiment.engine.name().to_owned(),
            seed: experiment.seed,
            ttft_quantiles_ms: quantiles(points.iter().map(|point| point.ttft_ms).collect()),
            first_tokens: thin(&points, MAX_POINTS),
            pools: pools.collect(),
            cache: cache(&record.requests, record.end_ms),
            end_ms: record.end_ms,
        }
    }
}

fn first_token(request: &RequestRecord) -> Option<FirstTokenPoint> {
    let ttft_ms = request.ttft_ms().filter(|ttft_ms| ttft_ms.is_finite())?;
    Some(FirstTokenPoint {
        arrival_ms: request.arrival_ms,
        ttft_ms,
    })
}

/// At most `most` points: the least and the largest TTFT of each of `most / 2` equal stretches.
pub(super) fn thin(points: &[FirstTokenPoint], most: usize) -> Vec<FirstTokenPoint> {
    if points.len() <= most {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil((most / 2).max(1));
    points
        .chunks(stretch)
        .flat_map(|chunk| {
            let by_ttft =
                |a: &&FirstTokenPoint, b: &&FirstTokenPoint| a.ttft_ms.total_cmp(&b.ttft_ms);
            let ends = [chunk.iter().min_by(by_ttft), chunk.iter().max_by(by_ttft)];
            ends.into_iter().flatten().copied()
        })
        .collect()
}

/// Quantiles of the nearest rank.
fn quantiles(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let steps = QUANTILES - 1;
    let rank = |step: usize| (values.len() * step).div_ceil(steps).max(1) - 1;
    (0..QUANTILES)
        .filter_map(|step| values.get(rank(step)).copied())
        .collect()
}

fn cache(requests: &[RequestRecord], end_ms: f64) -> Vec<CacheWindow> {
    let width_ms = end_ms / CACHE_WINDOWS as f64;
    if width_ms <= 0.0 {
        return Vec::new();
    }
    let mut windows: BTreeMap<usize, CacheWindow> = BTreeMap::new();
    for request in requests {
        let Some(reused) = request.reused_tokens else {
            continue;
        };
        let index = ((request.arrival_ms / width_ms) as usize).min(CACHE_WINDOWS - 1);
        let window = windows.entry(index).or_insert(CacheWindow {
            at_ms: (index as f64 + 0.5) * width_ms,
            prompt_tokens: 0,
            reused_tokens: 0,
        });
        window.prompt_tokens += u64::from(request.prompt_tokens);
        window.reused_tokens += u64::from(reused);
    }
    windows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Ending;

    fn point(arrival_ms: f64, ttft_ms: f64) -> FirstTokenPoint {
        FirstTokenPoint {
            arrival_ms,
            ttft_ms,
        }
    }

    #[test]
    fn thinning_keeps_the_peaks_and_the_order() {
        let mut points: Vec<_> = (0..10_000).map(|i| point(f64::from(i), 10.0)).collect();
        points[7_777].ttft_ms = 9_000.0;
        let thinned = thin(&points, 100);
        assert!(thinned.len() <= 100);
        assert!(thinned.contains(&point(7_777.0, 9_000.0)));
        assert_eq!(thin(&points[..50], 100), points[..50]);
    }

    #[test]
    fn quantiles_go_from_the_least_to_the_largest() {
        let of_200 = quantiles((1..=200).rev().map(f64::from).collect());
        assert_eq!(of_200.len(), QUANTILES);
        assert_eq!((of_200[0], of_200[100], of_200[200]), (1.0, 100.0, 200.0));
        assert_eq!(quantiles(vec![3.0]), vec![3.0; QUANTILES]);
        assert!(quantiles(Vec::new()).is_empty());
    }

    #[test]
    fn cache_hits_are_sums_over_windows_of_the_run() {
        let request = |arrival_ms, reused_tokens| RequestRecord {
            session: 0,
            turn: 0,
            arrival_ms,
            prompt_tokens: 100,
            reused_tokens,
            prefill_worker: None,
            decode_worker: None,
            first_token_ms: None,
            last_token_ms: None,
            tokens: 0,
            ending: Ending::Completed,
        };
        // A run of 600 ms has 60 windows of 10 ms.
        let requests = [
            request(1.0, Some(20)),
            request(9.0, Some(40)),
            request(15.0, None),
            request(600.0, Some(0)),
        ];
        let window = |at_ms, prompt_tokens, reused_tokens| CacheWindow {
            at_ms,
            prompt_tokens,
            reused_tokens,
        };
        assert_eq!(
            cache(&requests, 600.0),
            [window(5.0, 200, 60), window(595.0, 100, 0)]
        );
        assert!(cache(&requests, 0.0).is_empty());
    }
}
