// SPDX-License-Identifier: Apache-2.0

//! Policies against a baseline, seed by seed, and what may be claimed from it.
//!
//! In each cell every policy is paired with the baseline by seed. A winner is claimed only where the 95 %
//! interval of the ratio leaves out 1 and the ratio is at least half a percent away from it; never from a
//! single seed, from a P99 of fewer than 100 samples, or without contention. Less than half a percent
//! nobody would notice, however sure it is. Seeds that all give the same run count as one.
//! A run that completes nothing has no latency to be proud of: it is named and not ranked (field
//! report BR-19).
//!
//! One interval in twenty leaves out 1 by chance. Who looks at a hundred should expect five.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pairing::{CellRuns, cells};
use super::statistics::{Ratio, geometric_mean};
use crate::metrics::Metrics;
use crate::results::RunEntry;
use crate::run::Load;
use crate::workloads::OfferedLoad;

/// Something to compare.
pub(super) struct Measure {
    name: &'static str,
    pub(super) less_is_better: bool,
    pub(super) of: fn(&Metrics) -> Option<f64>,
}

impl Measure {
    const fn less(name: &'static str, of: fn(&Metrics) -> Option<f64>) -> Self {
        Self {
            name,
            less_is_better: true,
            of,
        }
    }

    const fn more(name: &'static str, of: fn(&Metrics) -> Option<f64>) -> Self {
        Self {
            name,
            less_is_better: false,
            of,
        }
    }
}

pub(super) const TTFT_MEAN: Measure = Measure::less("ttft_ms.mean", |m| Some(m.ttft_ms?.mean));
pub(super) const TTFT_P99: Measure = Measure::less("ttft_ms.p99", |m| Some(m.ttft_ms?.p99));
pub(super) const REQUESTS_PER_S: Measure = Measure::more("requests_per_s", |m| m.requests_per_s);
pub(super) const GOODPUT: Measure = Measure::more("goodput", |m| m.goodput);

const MEASURES: [Measure; 7] = [
    TTFT_MEAN,
    Measure::less("ttft_ms.p50", |m| Some(m.ttft_ms?.p50)),
    TTFT_P99,
    Measure::less("itl_ms.mean", |m| Some(m.itl_ms?.mean)),
    Measure::less("e2e_ms.mean", |m| Some(m.e2e_ms?.mean)),
    REQUESTS_PER_S,
    GOODPUT,
];

/// One policy against the baseline in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The policy.
    pub policy: String,
    /// What it is compared with.
    pub baseline: String,
    /// Condition of the cell, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Workload of the cell.
    pub workload: String,
    /// Load of the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// The rate or the sessions at once that this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<OfferedLoad>,
    /// Topology of the cell.
    pub topology: String,
    /// Engine of the cell.
    pub engine: String,
    /// By name of the metric, as in a run: `ttft_ms.mean`.
    pub metrics: BTreeMap<String, Measured>,
    /// What forbids a claim, or should be known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One metric of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Policy over baseline.
    #[serde(flatten)]
    pub ratio: Ratio,
    /// Seeds in which the policy did better.
    pub wins: u64,
    /// Seeds in which the baseline did better.
    pub losses: u64,
    /// What may be claimed.
    pub verdict: Verdict,
}

/// What may be claimed from a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The policy is better: the interval leaves out 1, and the ratio is half a percent away from it.
    Better,
    /// The policy is worse, likewise.
    Worse,
    /// The interval contains 1, or the ratio is less than half a percent away from it.
    NotDistinguishable,
    /// At most one request at a time: no policy can matter.
    NoContention,
    /// A single seed has no interval.
    OneSeed,
    /// A P99 from fewer than 100 samples.
    FewSamples,
}

impl Comparison {
    /// Whether a metric tells policy and baseline apart.
    #[must_use]
    pub fn distinguishable(&self) -> bool {
        self.metrics
            .values()
            .any(|it| matches!(it.verdict, Verdict::Better | Verdict::Worse))
    }

    /// One line: what may be said of the policy.
    #[must_use]
    pub fn conclusion(&self) -> String {
        let of = |verdict| {
            let names: Vec<_> = self
                .metrics
                .iter()
                .filter(|(_, measured)| measured.verdict == verdict)
                .map(|(name, _)| name.as_str())
                .collect();
            names.join(", ")
        };
        if self.metrics.is_empty() {
            return "not ranked".into();
        }
        if self
            .metrics
            .values()
            .any(|it| it.verdict == Verdict::NoContention)
        {
            return NO_CONTENTION.into();
        }
        if self
            .metrics
            .values()
            .all(|it| matches!(it.verdict, Verdict::OneSeed | Verdict::FewSamples))
        {
            return "one seed claims nothing".into();
        }
        match (of(Verdict::Better), of(Verdict::Worse)) {
            (better, worse) if better.is_empty() && worse.is_empty() => {
                "cannot be told apart".into()
            }
            (better, worse) if worse.is_empty() => format!("better: {better}"),
            (better, worse) if better.is_empty() => format!("worse: {worse}"),
            (better, worse) => format!("better: {better}; worse: {worse}"),
        }
    }
}

/// A ratio nearer to 1 than this, or its inverse, is no difference.
pub(super) const MATTERS: f64 = 1.005;

const NO_CONTENTION: &str = "no contention, policies not distinguishable";

/// Every policy against `baseline`, cell by cell, in the order of the runs. A cell without a run of the
/// baseline gives nothing.
#[must_use]
pub fn compare(runs: &[RunEntry], baseline: &str) -> Vec<Comparison> {
    cells(runs)
        .iter()
        .flat_map(|cell| compare_cell(cell, baseline))
        .collect()
}

fn compare_cell(cell: &CellRuns<'_>, baseline: &str) -> Vec<Comparison> {
    if cell.of(baseline).is_empty() {
        return Vec::new();
    }
    let contention = cell.runs().iter().any(|run| run.metrics.peak_in_flight > 1);
    cell.policies_but(baseline)
        .into_iter()
        .map(|policy| {
            let pairs: Vec<(&Metrics, &Metrics)> = cell
                .pairs(policy, baseline)
                .into_iter()
                .map(|(mine, base)| (&mine.metrics, &base.metrics))
                .collect();
            let first = cell.first;
            let same = same_in_all(&pairs);
            let counted = if same { &pairs[..1] } else { &pairs[..] };
            Comparison {
                policy: policy.to_owned(),
                baseline: baseline.to_owned(),
                condition: first.condition.clone(),
                workload: first.workload.clone(),
                load: first.load,
                offered: first.offered,
                topology: first.topology.clone(),
                engine: first.engine.clone(),
                metrics: measure(counted, contention),
                notes: not_reached(first)
                    .into_iter()
                    .chain(notes(policy, baseline, &pairs, contention))
                    .collect(),
            }
        })
        .collect()
}

fn measure(pairs: &[(&Metrics, &Metrics)], contention: bool) -> BTreeMap<String, Measured> {
    let ranked: Vec<_> = pairs
        .iter()
        .filter(|(mine, base)| mine.completed > 0 && base.completed > 0)
        .collect();
    let mut measured = BTreeMap::new();
    for Measure {
        name,
        less_is_better,
        of,
    } in MEASURES
    {
        let values: Vec<(f64, f64)> = ranked
            .iter()
            .filter_map(|(mine, base)| Some((of(mine)?, of(base)?)))
            .collect();
        let Some(ratio) = Ratio::of(&values) else {
            continue;
        };
        let few = name == TTFT_P99.name && ranked.iter().any(|(mine, base)| few(mine) || few(base));
        let less = values.iter().filter(|(mine, base)| mine < base).count() as u64;
        let more = values.iter().filter(|(mine, base)| mine > base).count() as u64;
        let (wins, losses) = if less_is_better {
            (less, more)
        } else {
            (more, less)
        };
        let verdict = if !contention {
            Verdict::NoContention
        } else if few {
            Verdict::FewSamples
        } else if ratio.pairs == 1 {
            Verdict::OneSeed
        } else if !ratio.differs() || ratio.ratio.max(1.0 / ratio.ratio) < MATTERS {
            Verdict::NotDistinguishable
        } else if (ratio.ratio < 1.0) == less_is_better {
            Verdict::Better
        } else {
            Verdict::Worse
        };
        measured.insert(
            name.to_owned(),
            Measured {
                ratio,
                wins,
                losses,
                verdict,
            },
        );
    }
    measured
}

fn few(metrics: &Metrics) -> bool {
    metrics.ttft_ms.is_none_or(|ttft| ttft.p99_from_few)
}

/// Whether seeds make no difference to either policy.
fn same_in_all(pairs: &[(&Metrics, &Metrics)]) -> bool {
    pairs.len() > 1 && pairs.windows(2).all(|two| two[0] == two[1])
}

/// What to know of a load that a search did not reach.
pub(crate) fn not_reached(run: &RunEntry) -> Option<String> {
    let RunEntry {
        workload,
        load,
        topology,
        ..
    } = run;
    let load = load.filter(|_| run.load_not_reached)?;
    Some(format!(
        "{workload} on {topology} never reached {load}: the highest load tried stands for it"
    ))
}

fn notes(
    policy: &str,
    baseline: &str,
    pairs: &[(&Metrics, &Metrics)],
    contention: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    let mine = pairs.iter().map(|(mine, _)| *mine);
    let base = pairs.iter().map(|(_, base)| *base);
    for (name, runs) in [
        (policy, mine.collect::<Vec<_>>()),
        (baseline, base.collect()),
    ] {
        let empty = runs.iter().filter(|run| run.completed == 0).count();
        if empty > 0 {
            let all = runs.len();
            notes.push(format!(
                "{name} completed nothing in {empty} of {all} runs: not ranked there"
            ));
        }
        let lost: u64 = runs
            .iter()
            .map(|run| run.errors + run.rejected + run.unfinished)
            .sum();
        if lost > 0 {
            notes.push(format!("{name} left {lost} requests without an answer"));
        }
    }
    if !contention {
        notes.push(NO_CONTENTION.into());
    }
    if same_in_all(pairs) {
        notes.push(format!(
            "all {} seeds of {policy} and {baseline} gave the same run: they count as one",
            pairs.len()
        ));
    }
    if !pairs.is_empty() && pairs.iter().all(|(mine, base)| mine == base) {
        notes.push(format!(
            "{policy} and {baseline} gave the same runs: there was nothing to choose, or they choose alike"
        ));
    }
    if pairs.iter().any(|(mine, base)| few(mine) || few(base)) {
        notes.push("P99 from fewer than 100 samples claims nothing".into());
    }
    notes
}

/// One policy over all cells.
#[derive(Debug, Clone, PartialEq)]
pub struct Overall {
    /// The policy.
    pub policy: String,
    /// By name of the metric: geometric mean over cells, cells where it is better, and worse.
    pub metrics: BTreeMap<String, (f64, u64, u64)>,
    /// Cells.
    pub cells: u64,
}

/// Each policy over all cells, in the order of `comparisons`.
#[must_use]
pub fn overall(comparisons: &[Comparison]) -> Vec<Overall> {
    let mut policies: Vec<&str> = Vec::new();
    for comparison in comparisons {
        if !policies.contains(&comparison.policy.as_str()) {
            policies.push(&comparison.policy);
        }
    }
    policies
        .into_iter()
        .map(|policy| {
            let cells: Vec<_> = comparisons
                .iter()
                .filter(|it| it.policy == policy)
                .collect();
            let metrics = MEASURES.iter().filter_map(|Measure { name, .. }| {
                let measured: Vec<_> = cells
                    .iter()
                    .filter_map(|cell| cell.metrics.get(*name))
                    .collect();
                let mean = geometric_mean(measured.iter().map(|it| it.ratio.ratio))?;
                let count =
                    |verdict| measured.iter().filter(|it| it.verdict == verdict).count() as u64;
                Some((
                    (*name).to_owned(),
                    (mean, count(Verdict::Better), count(Verdict::Worse)),
                ))
            });
            Overall {
                policy: policy.to_owned(),
                metrics: metrics.collect(),
                cells: cells.len() as u64,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Distribution;
    use crate::run::{LoadLevel, Settings};

    /// A run whose hundred requests all have this TTFT.
    fn run(policy: &str, seed: u64, ttft_ms: f64) -> RunEntry {
        RunEntry {
            policy: policy.into(),
            condition: None,
            tier_point: None,
            workload: "w".into(),
            load: Some(Load::Level(LoadLevel::Knee)),
            offered: None,
            load_not_reached: false,
            topology: "4".into(),
            engine: "e".into(),
            seed,
            settings: Settings::default(),
            metrics: Metrics {
                completed: 100,
                peak_in_flight: 9,
                ttft_ms: Distribution::of(vec![ttft_ms; 100]),
                ..Metrics::default()
            },
            anarchy: None,
            anarchy_unavailable: None,
            wall: None,
            more: serde_json::Map::new(),
        }
    }

    fn verdict(runs: &[RunEntry], metric: &str) -> Verdict {
        compare(runs, "default")[0].metrics[metric].verdict
    }

    #[test]
    fn half_the_ttft_in_every_seed_is_better_and_counted() {
        let runs: Vec<_> = (1..=3)
            .flat_map(|seed| {
                [
                    run("default", seed, 100.0 * seed as f64),
                    run("mine", seed, 50.0 * seed as f64),
                ]
            })
            .collect();
        let comparison = &compare(&runs, "default")[0];
        let mean = &comparison.metrics["ttft_ms.mean"];
        assert!((mean.ratio.ratio - 0.5).abs() < 1e-12);
        assert_eq!(
            (mean.wins, mean.losses, mean.verdict),
            (3, 0, Verdict::Better)
        );
        assert!(comparison.conclusion().starts_with("better: ttft_ms"));
    }

    #[test]
    fn seeds_that_disagree_cannot_be_told_apart() {
        let runs = [
            run("default", 1, 100.0),
            run("mine", 1, 50.0),
            run("default", 2, 100.0),
            run("mine", 2, 150.0),
        ];
        assert_eq!(verdict(&runs, "ttft_ms.mean"), Verdict::NotDistinguishable);
        assert_eq!(
            compare(&runs, "default")[0].conclusion(),
            "cannot be told apart"
        );
    }

    #[test]
    fn less_than_half_a_percent_is_no_difference_however_sure() {
        let with = |mine_ms| {
            let runs: Vec<_> = (1..=3)
                .flat_map(|seed| {
                    let scale = seed as f64;
                    [
                        run("default", seed, 100.0 * scale),
                        run("mine", seed, mine_ms * scale),
                    ]
                })
                .collect();
            verdict(&runs, "ttft_ms.mean")
        };
        assert_eq!(with(99.6), Verdict::NotDistinguishable);
        assert_eq!(with(100.4), Verdict::NotDistinguishable);
        assert_eq!((with(99.0), with(101.0)), (Verdict::Better, Verdict::Worse));
    }

    #[test]
    fn seeds_that_do_not_vary_count_as_one() {
        let runs: Vec<_> = (1..=3)
            .flat_map(|seed| [run("default", seed, 100.0), run("mine", seed, 50.0)])
            .collect();
        let comparison = &compare(&runs, "default")[0];
        let mean = &comparison.metrics["ttft_ms.mean"];
        assert_eq!((mean.ratio.pairs, mean.ratio.low), (1, None));
        assert_eq!(mean.verdict, Verdict::OneSeed);
        assert_eq!(
            comparison.notes,
            ["all 3 seeds of mine and default gave the same run: they count as one"]
        );
    }

    #[test]
    fn policies_that_give_the_same_runs_are_said_to() {
        let runs: Vec<_> = (1..=2)
            .flat_map(|seed| ["default", "mine"].map(|policy| run(policy, seed, seed as f64)))
            .collect();
        let notes = &compare(&runs, "default")[0].notes;
        assert!(notes[0].starts_with("mine and default gave the same runs"));
    }

    #[test]
    fn one_seed_claims_nothing() {
        let runs = [run("default", 1, 100.0), run("mine", 1, 50.0)];
        assert_eq!(verdict(&runs, "ttft_ms.mean"), Verdict::OneSeed);
        assert!(!compare(&runs, "default")[0].distinguishable());
    }

    #[test]
    fn a_p99_from_few_samples_claims_nothing() {
        let mut runs = [
            run("default", 1, 100.0),
            run("mine", 1, 50.0),
            run("default", 2, 200.0),
            run("mine", 2, 100.0),
        ];
        runs[1].metrics.ttft_ms = Distribution::of(vec![50.0; 99]);
        assert_eq!(verdict(&runs, "ttft_ms.p99"), Verdict::FewSamples);
        assert_eq!(verdict(&runs, "ttft_ms.mean"), Verdict::Better);
    }

    #[test]
    fn one_request_at_a_time_has_no_winner() {
        let mut runs = [
            run("default", 1, 100.0),
            run("mine", 1, 50.0),
            run("default", 2, 100.0),
            run("mine", 2, 50.0),
        ];
        for run in &mut runs {
            run.metrics.peak_in_flight = 1;
        }
        let comparison = &compare(&runs, "default")[0];
        assert_eq!(comparison.conclusion(), NO_CONTENTION);
        assert!(!comparison.distinguishable());
    }

    #[test]
    fn a_run_that_completes_nothing_is_named_and_not_ranked() {
        let mut runs = [run("default", 1, 100.0), run("mine", 1, 50.0)];
        (runs[1].metrics.completed, runs[1].metrics.errors) = (0, 100);
        let comparison = &compare(&runs, "default")[0];
        assert!(comparison.metrics.is_empty());
        assert_eq!(comparison.conclusion(), "not ranked");
        assert_eq!(
            comparison.notes[0],
            "mine completed nothing in 1 of 1 runs: not ranked there"
        );
    }

    #[test]
    fn only_runs_of_the_same_cell_and_seed_are_paired() {
        let mut runs = vec![
            run("default", 1, 100.0),
            run("mine", 2, 50.0),
            run("mine", 1, 50.0),
        ];
        runs[2].topology = "8".into();
        let comparisons = compare(&runs, "default");
        assert_eq!(comparisons.len(), 1);
        assert!(comparisons[0].metrics.is_empty());
    }

    #[test]
    fn the_mean_over_cells_is_geometric() {
        let mut runs = vec![run("default", 1, 100.0), run("mine", 1, 50.0)];
        for mut other in [run("default", 1, 100.0), run("mine", 1, 200.0)] {
            other.topology = "8".into();
            runs.push(other);
        }
        let overall = overall(&compare(&runs, "default"));
        assert!((overall[0].metrics["ttft_ms.mean"].0 - 1.0).abs() < 1e-12);
        assert_eq!(overall[0].cells, 2);
    }
}
