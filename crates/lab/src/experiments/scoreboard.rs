// SPDX-License-Identifier: Apache-2.0

//! Policies over many cells: how good on the whole, how bad at worst, and how far from the best choice.
//!
//! A mean over cells hides the one in which a policy ruins a fleet, so each mean stands beside the worst
//! cell and its name. In a cell a policy is paired with the baseline seed by seed, and the ratio of the
//! cell is the geometric mean over the seeds; over the cells it is the geometric mean of those.
//!
//! - Where P99s are a few ms, a ratio says nothing. Only a cell whose P99, as geometric mean over the seeds,
//!   is more than [`P99_MATTERS_MS`] above the baseline's can be the worst one: less, nobody notices.
//! - Goodput is a share and may be 0. A pair in which both are 0 says nothing and is left out. One in which
//!   only one is 0 has no ratio either; it is left out and counted, [for](Score::goodput_from_zero) the
//!   policy or [against](Score::goodput_to_zero) it.
//! - The baseline is one policy; an operator could have chosen another. So each run is also set against
//!   the best run of all other policies on the same arrivals, chosen afterwards. No single policy is that
//!   good, and 1 means that nothing tried was ever better. A run that left a request without an answer is
//!   not the best of anything.
//!
//! None of this claims a difference: the [comparisons](super::Comparison) of each cell do.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::comparison::{GOODPUT, Measure, REQUESTS_PER_S, TTFT_MEAN, TTFT_P99};
use super::pairing::{CellRuns, cells};
use super::statistics::{Ratio, geometric_mean};
use crate::metrics::Metrics;
use crate::results::RunEntry;

/// A P99 that is no more than this above the baseline's is not worse, ms.
pub const P99_MATTERS_MS: f64 = 10.0;

/// One policy over all cells of one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The condition, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The policy.
    pub policy: String,
    /// What it is compared with.
    pub baseline: String,
    /// Cells in which both completed something.
    pub cells: u64,
    /// Seeds in which both did.
    pub seeds: u64,
    /// Mean TTFT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms_mean: Option<Standing>,
    /// P99 of TTFT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms_p99: Option<Standing>,
    /// Requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<Standing>,
    /// Share of requests served well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<Standing>,
    /// Pairs without a ratio of goodput, since the baseline's is 0 and the policy's is not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub goodput_from_zero: u64,
    /// Pairs without a ratio of goodput, since the policy's is 0 and the baseline's is not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub goodput_to_zero: u64,
    /// Against the best of all other policies; absent with fewer than two of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_best: Option<VsBest>,
    /// The same by workload, in the order of the runs.
    pub families: Vec<Family>,
}

/// Ratios to the baseline over cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Geometric mean.
    pub geo: f64,
    /// The worst cell's; absent where no cell counts as worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<f64>,
    /// Workload, load and topology of that cell: `chat/knee/4`, and the cache in a suite of tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_cell: Option<String>,
}

/// Geometric means of the ratios to the best run of all other policies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VsBest {
    /// Mean TTFT over the least mean TTFT.
    pub ttft_ms_mean: f64,
    /// P99 over the least P99, which may be another policy's.
    pub ttft_ms_p99: f64,
}

/// A policy over the cells of one workload: geometric means of the ratios to the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// The workload.
    pub workload: String,
    /// Its cells.
    pub cells: u64,
    /// Mean TTFT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms_mean: Option<f64>,
    /// P99 of TTFT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms_p99: Option<f64>,
}

/// Every policy but the baseline over all cells, condition by condition, in the order of the runs. A
/// policy that shares no seed with the baseline in any cell is left out.
#[must_use]
pub fn scoreboard(runs: &[RunEntry], baseline: &str) -> Vec<Score> {
    let cells = cells(runs);
    let mut conditions: Vec<&Option<String>> = Vec::new();
    for cell in &cells {
        if !conditions.contains(&&cell.first.condition) {
            conditions.push(&cell.first.condition);
        }
    }
    conditions
        .into_iter()
        .flat_map(|condition| {
            let cells: Vec<_> = cells
                .iter()
                .filter(|cell| cell.first.condition == *condition)
                .collect();
            let mut policies: Vec<&str> = Vec::new();
            for policy in cells.iter().flat_map(|cell| cell.policies_but(baseline)) {
                if !policies.contains(&policy) {
                    policies.push(policy);
                }
            }
            let scores = policies
                .into_iter()
                .filter_map(|policy| score(&cells, policy, baseline));
            scores.collect::<Vec<_>>()
        })
        .collect()
}

/// A policy against the baseline in one cell.
struct Outcome<'a> {
    run: &'a RunEntry,
    seeds: Vec<u64>,
    ttft_ms_mean: Option<f64>,
    ttft_ms_p99: Option<f64>,
    requests_per_s: Option<f64>,
    goodput: Option<f64>,
    /// Geometric mean of the policy's P99s less that of the baseline's, ms.
    p99_excess_ms: f64,
    goodput_from_zero: u64,
    goodput_to_zero: u64,
}

impl<'a> Outcome<'a> {
    /// Absent where no seed has runs of both that completed something.
    fn of(cell: &CellRuns<'a>, policy: &str, baseline: &str) -> Option<Self> {
        let pairs: Vec<_> = cell
            .pairs(policy, baseline)
            .into_iter()
            .filter(|(mine, base)| mine.metrics.completed > 0 && base.metrics.completed > 0)
            .collect();
        let values = |measure: Measure| -> Vec<(f64, f64)> {
            let of = measure.of;
            let both = |(mine, base): &(&RunEntry, &RunEntry)| {
                Some((of(&mine.metrics)?, of(&base.metrics)?))
            };
            pairs.iter().filter_map(both).collect()
        };
        let ratio = |measure| Ratio::of(&values(measure)).map(|it| it.ratio);
        let goodput = values(GOODPUT);
        let count = |counts: fn(f64, f64) -> bool| {
            let counted = goodput.iter().filter(|(mine, base)| counts(*mine, *base));
            counted.count() as u64
        };
        let p99s = values(TTFT_P99);
        let mine = geometric_mean(p99s.iter().map(|(mine, _)| *mine));
        let base = geometric_mean(p99s.iter().map(|(_, base)| *base));
        Some(Self {
            run: pairs.first()?.0,
            seeds: pairs.iter().map(|(mine, _)| mine.seed).collect(),
            ttft_ms_mean: ratio(TTFT_MEAN),
            ttft_ms_p99: ratio(TTFT_P99),
            requests_per_s: ratio(REQUESTS_PER_S),
            goodput: ratio(GOODPUT),
            p99_excess_ms: mine.unwrap_or(0.0) - base.unwrap_or(0.0),
            goodput_from_zero: count(|mine, base| mine > 0.0 && base <= 0.0),
            goodput_to_zero: count(|mine, base| mine <= 0.0 && base > 0.0),
        })
    }

    fn name(&self) -> String {
        let load = self.run.load.map_or("-".into(), |load| load.to_string());
        let place = format!("{}/{load}/{}", self.run.workload, self.run.topology);
        match self.run.tier_point {
            Some(point) => format!("{place}/cache {:.0} %", 100.0 * point.cache_share),
            None => place,
        }
    }
}

fn score(cells: &[&CellRuns<'_>], policy: &str, baseline: &str) -> Option<Score> {
    let outcomes: Vec<Outcome<'_>> = cells
        .iter()
        .filter_map(|cell| Outcome::of(cell, policy, baseline))
        .collect();
    if outcomes.is_empty() {
        return None;
    }
    let seeds: BTreeSet<u64> = outcomes.iter().flat_map(|it| it.seeds.clone()).collect();
    let any = |_: &Outcome<'_>| true;
    Some(Score {
        condition: cells.first()?.first.condition.clone(),
        policy: policy.to_owned(),
        baseline: baseline.to_owned(),
        cells: outcomes.len() as u64,
        seeds: seeds.len() as u64,
        ttft_ms_mean: standing(&outcomes, &TTFT_MEAN, |it| it.ttft_ms_mean, any),
        ttft_ms_p99: standing(
            &outcomes,
            &TTFT_P99,
            |it| it.ttft_ms_p99,
            |it| it.p99_excess_ms > P99_MATTERS_MS,
        ),
        requests_per_s: standing(&outcomes, &REQUESTS_PER_S, |it| it.requests_per_s, any),
        goodput: standing(&outcomes, &GOODPUT, |it| it.goodput, any),
        goodput_from_zero: outcomes.iter().map(|it| it.goodput_from_zero).sum(),
        goodput_to_zero: outcomes.iter().map(|it| it.goodput_to_zero).sum(),
        vs_best: vs_best(cells, policy),
        families: families(&outcomes),
    })
}

/// Mean over the outcomes, and the worst of those that `may_be_worst`.
fn standing(
    outcomes: &[Outcome<'_>],
    measure: &Measure,
    ratio: fn(&Outcome<'_>) -> Option<f64>,
    may_be_worst: fn(&Outcome<'_>) -> bool,
) -> Option<Standing> {
    let worst = outcomes
        .iter()
        .filter(|it| may_be_worst(it))
        .filter_map(|it| Some((ratio(it)?, it)))
        .max_by(|(a, _), (b, _)| {
            let order = a.total_cmp(b);
            if measure.less_is_better {
                order
            } else {
                order.reverse()
            }
        });
    Some(Standing {
        geo: geometric_mean(outcomes.iter().filter_map(ratio))?,
        worst: worst.map(|(ratio, _)| ratio),
        worst_cell: worst.map(|(_, outcome)| outcome.name()),
    })
}

fn vs_best(cells: &[&CellRuns<'_>], policy: &str) -> Option<VsBest> {
    let others: BTreeSet<&str> = cells
        .iter()
        .flat_map(|cell| cell.policies_but(policy))
        .collect();
    if others.len() < 2 {
        return None;
    }
    let mean = |measure: Measure| {
        let ratios = cells
            .iter()
            .flat_map(|cell| ratios_to_best(cell, policy, &measure));
        geometric_mean(ratios)
    };
    Some(VsBest {
        ttft_ms_mean: mean(TTFT_MEAN)?,
        ttft_ms_p99: mean(TTFT_P99)?,
    })
}

/// For each seed, the policy's value over the least of all other policies.
fn ratios_to_best(cell: &CellRuns<'_>, policy: &str, measure: &Measure) -> Vec<f64> {
    let ratio = |(seed, mine): (u64, &RunEntry)| {
        let best = cell
            .runs()
            .iter()
            .filter(|it| it.seed == seed && it.policy != policy && answered_all(&it.metrics))
            .filter_map(|it| (measure.of)(&it.metrics))
            .min_by(f64::total_cmp)?;
        Ratio::of(&[((measure.of)(&mine.metrics)?, best)]).map(|it| it.ratio)
    };
    cell.of(policy).into_iter().filter_map(ratio).collect()
}

fn answered_all(metrics: &Metrics) -> bool {
    metrics.completed > 0 && metrics.errors + metrics.rejected + metrics.unfinished == 0
}

fn families(outcomes: &[Outcome<'_>]) -> Vec<Family> {
    let mut workloads: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !workloads.contains(&outcome.run.workload.as_str()) {
            workloads.push(&outcome.run.workload);
        }
    }
    let family = |workload: &str| {
        let own = || outcomes.iter().filter(|it| it.run.workload == workload);
        Family {
            workload: workload.to_owned(),
            cells: own().count() as u64,
            ttft_ms_mean: geometric_mean(own().filter_map(|it| it.ttft_ms_mean)),
            ttft_ms_p99: geometric_mean(own().filter_map(|it| it.ttft_ms_p99)),
        }
    };
    workloads.into_iter().map(family).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::TierPoint;
    use crate::metrics::Distribution;
    use crate::run::{Load, LoadLevel, Settings};

    /// A run at the knee on four workers whose hundred requests all have this TTFT.
    fn run(policy: &str, workload: &str, seed: u64, ttft_ms: f64) -> RunEntry {
        RunEntry {
            policy: policy.into(),
            condition: None,
            tier_point: None,
            workload: workload.into(),
            load: Some(Load::Level(LoadLevel::Knee)),
            offered: None,
            load_not_reached: false,
            topology: "4".into(),
            engine: "e".into(),
            seed,
            settings: Settings::default(),
            metrics: Metrics {
                completed: 100,
                requests_per_s: Some(1e3 / ttft_ms),
                goodput: Some(0.5),
                ttft_ms: Distribution::of(vec![ttft_ms; 100]),
                ..Metrics::default()
            },
            anarchy: None,
            anarchy_unavailable: None,
            wall: None,
            more: serde_json::Map::new(),
        }
    }

    /// Each seed in its turn, default against mine.
    fn pairs(workload: &str, ttfts_ms: &[(f64, f64)]) -> Vec<RunEntry> {
        let pair = |(seed, (base, mine)): (u64, &(f64, f64))| {
            [
                run("default", workload, seed, *base),
                run("mine", workload, seed, *mine),
            ]
        };
        (1..).zip(ttfts_ms).flat_map(pair).collect()
    }

    fn only(runs: &[RunEntry]) -> Score {
        let [score] = &scoreboard(runs, "default")[..] else {
            panic!("one policy beside the baseline");
        };
        score.clone()
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-9
    }

    #[test]
    fn means_are_geometric_over_seeds_and_then_over_cells() {
        // Cell a: 1/2 and 1/8, so 1/4. Cell b: 4. Over both: 1.
        let mut runs = pairs("a", &[(100.0, 50.0), (800.0, 100.0)]);
        runs.extend(pairs("b", &[(100.0, 400.0)]));
        let score = only(&runs);
        assert_eq!((score.cells, score.seeds), (2, 2));
        let mean = score.ttft_ms_mean.unwrap();
        assert!(near(mean.geo, 1.0) && near(mean.worst.unwrap(), 4.0));
        assert_eq!(mean.worst_cell.as_deref(), Some("b/knee/4"));
        // Rates are the inverse of the TTFTs here: 4 and 1/4, and the least is the worst.
        let rate = score.requests_per_s.unwrap();
        assert!(near(rate.geo, 1.0) && near(rate.worst.unwrap(), 0.25));
        assert_eq!(rate.worst_cell.as_deref(), Some("b/knee/4"));
        let families: Vec<_> = score
            .families
            .iter()
            .map(|it| (it.workload.as_str(), it.cells, it.ttft_ms_mean.unwrap()))
            .collect();
        assert_eq!((families[0].0, families[0].1), ("a", 1));
        assert!(near(families[0].2, 0.25) && near(families[1].2, 4.0));
    }

    #[test]
    fn a_p99_is_worst_only_where_it_is_more_than_10_ms_worse() {
        // Three times as long, but 10 ms; a fifth as long again, and 20 ms.
        let mut runs = pairs("little", &[(5.0, 15.0)]);
        runs.extend(pairs("much", &[(100.0, 120.0)]));
        let p99 = only(&runs).ttft_ms_p99.unwrap();
        assert!(near(p99.worst.unwrap(), 1.2));
        assert_eq!(p99.worst_cell.as_deref(), Some("much/knee/4"));
        for run in &mut runs {
            run.tier_point = Some(TierPoint {
                cache_share: 0.1,
                omega_scale: 1.0,
            });
        }
        let p99 = only(&runs).ttft_ms_p99.unwrap();
        assert_eq!(p99.worst_cell.as_deref(), Some("much/knee/4/cache 10 %"));
        let p99 = only(&runs[..2]).ttft_ms_p99.unwrap();
        assert!(near(p99.geo, 3.0));
        assert_eq!((p99.worst, p99.worst_cell), (None, None));
    }

    #[test]
    fn the_p99s_of_a_cell_are_told_apart_by_their_geometric_means() {
        // √(50·200) is 100 on both sides; with 240 it is 109.5, with 250 it is 111.8.
        let worst = |last| {
            let runs = pairs("w", &[(50.0, 50.0), (200.0, last)]);
            only(&runs).ttft_ms_p99.unwrap().worst
        };
        assert_eq!((worst(200.0), worst(240.0)), (None, None));
        assert!(near(worst(250.0).unwrap(), 1.25_f64.sqrt()));
    }

    #[test]
    fn a_goodput_of_zero_has_no_ratio_and_is_counted() {
        let mut runs = pairs("w", &[(100.0, 100.0); 4]);
        let goodputs = [(0.5, 0.25), (0.0, 0.0), (0.0, 0.5), (0.5, 0.0)];
        for (pair, (base, mine)) in runs.chunks_mut(2).zip(goodputs) {
            pair[0].metrics.goodput = Some(base);
            pair[1].metrics.goodput = Some(mine);
        }
        let score = only(&runs);
        let goodput = score.goodput.unwrap();
        assert!(near(goodput.geo, 0.5) && near(goodput.worst.unwrap(), 0.5));
        assert_eq!((score.goodput_from_zero, score.goodput_to_zero), (1, 1));
    }

    #[test]
    fn the_best_other_policy_is_chosen_for_each_run() {
        // The best others are 50 and 80: ratios 2 and 1/2.
        let mut runs = pairs("w", &[(100.0, 100.0), (80.0, 40.0)]);
        runs.extend([run("other", "w", 1, 50.0), run("other", "w", 2, 90.0)]);
        let best = |runs: &[RunEntry]| scoreboard(runs, "default")[0].vs_best;
        let both = best(&runs).unwrap();
        assert!(near(both.ttft_ms_mean, 1.0) && near(both.ttft_ms_p99, 1.0));
        // A run that lost a request is not the best, so that the baseline is: ratios 1 and 1/2.
        runs[4].metrics.unfinished = 1;
        assert!(near(best(&runs).unwrap().ttft_ms_mean, 0.5_f64.sqrt()));
        assert_eq!(best(&runs[..4]), None);
    }

    #[test]
    fn conditions_and_settings_are_cells_of_their_own() {
        let mut runs = pairs("w", &[(100.0, 50.0)]);
        for mut run in pairs("w", &[(100.0, 200.0)]) {
            run.condition = Some("late".into());
            runs.push(run);
        }
        for mut run in pairs("w", &[(100.0, 200.0)]) {
            run.settings.kv_event_lag_ms = 5.0;
            runs.push(run);
        }
        let scores = scoreboard(&runs, "default");
        let shown: Vec<_> = scores
            .iter()
            .map(|it| (it.condition.as_deref(), it.cells))
            .collect();
        assert_eq!(shown, [(None, 2), (Some("late"), 1)]);
        assert!(near(scores[0].ttft_ms_mean.as_ref().unwrap().geo, 1.0));
        assert!(near(scores[1].ttft_ms_mean.as_ref().unwrap().geo, 2.0));
    }

    #[test]
    fn a_policy_that_completes_nothing_has_no_score() {
        let mut runs = pairs("w", &[(100.0, 50.0)]);
        runs[1].metrics.completed = 0;
        assert_eq!(scoreboard(&runs, "default"), []);
    }
}
