// SPDX-License-Identifier: Apache-2.0

//! What the runs of a reproduction say: knees, published figures beside ours, where policies differ, and the sweep.
//!
//! PoA-hat divides what a window of requests took by the optimum of the costs frozen at their decisions. Ours is
//! that of a run's `anarchy`, by TTFT, with the calibrated yardstick for every policy. Where runs have none, the
//! figures that need it are not comparable; beside them stands the ratio of mean TTFTs, which is the ratio of two
//! PoA-hats whose optima are equal.

use regime_anarchy::Figures;
use serde::{Deserialize, Serialize};

use super::published::{PUBLISHED, Published, Quantity, SATURATED_FROM, SOURCE};
use super::verdict::{self, Outcome, Verdict};
use super::{ADAPTIVE, Fleet, Paper, STATIC, SWEEP};
use crate::experiments::comparison::{Comparison, compare, overall};
use crate::experiments::load_search::{Knee, knee};
use crate::experiments::statistics::{Ratio, geometric_mean, median};
use crate::experiments::sweep::mark_pareto;
use crate::metrics::Metrics;
use crate::results::RunEntry;
use crate::run::Load;

/// A reproduction, in `results.json` as `paper`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PaperReport {
    /// Where the published figures are from.
    pub source: String,
    /// Published figures beside ours.
    pub findings: Vec<Finding>,
    /// The fleets.
    pub fleets: Vec<FleetReport>,
    /// The grid of fixed (τ, ω).
    pub sweeps: Vec<Sweep>,
}

/// A published figure on one of our fleets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub claim: String,
    /// The published figure.
    pub published: String,
    /// Where in the paper.
    pub place: String,
    /// Name of our fleet.
    pub fleet: String,
    /// Our figure.
    pub measured: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why.
    pub why: String,
}

/// One fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub about: String,
    /// Its workload.
    pub workload: String,
    /// Its workers.
    pub topology: String,
    /// What they run.
    pub engine: String,
    /// Sessions at once, and how many times the mean TTFT of the fewest the static rule has there.
    pub slowdowns: Vec<(f64, f64)>,
    /// Where that passes three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<Knee>,
    /// Sessions at which queueing theory expects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_knee: Option<f64>,
    /// Sequences that all decode workers generate at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Each other policy against the static rule, before the knee and from it on.
    pub separation: Vec<Separation>,
    /// The Price of Anarchy of each policy, likewise.
    pub anarchy: Vec<AnarchyLine>,
}

/// The Price of Anarchy of a policy over several loads: geometric means over the runs, by TTFT.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnarchyLine {
    /// The policy.
    pub policy: String,
    /// Whether the loads are those from the knee on.
    pub saturated: bool,
    /// Runs.
    pub runs: u64,
    /// Actual over alone: the product of the three gaps.
    pub slowdown: f64,
    /// Predicted over optimum: what a better choice would have saved.
    pub policy_gap: f64,
    /// Actual over predicted: what happened after the choice.
    pub temporal_gap: f64,
    /// Optimum over alone: what no router can fix.
    pub overload: f64,
    /// Actual over optimum: policy gap times temporal gap.
    pub poa_hat: f64,
}

/// A policy against the static rule over several loads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Separation {
    /// The policy.
    pub policy: String,
    /// Whether the loads are those from the knee on.
    pub saturated: bool,
    /// Number of loads.
    pub loads: u64,
    /// Mean TTFT.
    pub ttft_ms_mean: Option<Gap>,
    /// TTFT P99.
    pub ttft_ms_p99: Option<Gap>,
    /// Requests a second.
    pub requests_per_s: Option<Gap>,
}

/// A ratio over several loads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Geometric mean over the loads.
    pub ratio: f64,
    /// Loads at which the policy may be called better.
    pub better: u64,
    /// Loads at which it may be called worse.
    pub worse: u64,
}

/// The grid of fixed (τ, ω) on one fleet at one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Name of the fleet.
    pub fleet: String,
    /// Sessions at once.
    pub sessions: f64,
    /// Means over the seeds.
    pub points: Vec<SweepPoint>,
    /// Largest TTFT P99 over the least.
    pub p99_spread: f64,
    /// Largest throughput over the least.
    pub throughput_spread: f64,
}

/// One pair.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// Temperature.
    pub tau: f64,
    /// Value of an overlapped block, in blocks of load.
    pub omega: f64,
    /// TTFT P99, ms.
    pub ttft_p99_ms: f64,
    /// Completed requests a second.
    pub requests_per_s: f64,
    /// Nothing beats it in both.
    pub front: bool,
}

/// PoA-hat of a run, where it was measured.
fn poa_hat(run: &RunEntry) -> Option<f64> {
    Some(run.anarchy.as_ref()?.ttft.poa_hat).filter(|it| *it > 0.0)
}

pub(super) fn report(paper: &Paper, runs: &mut [RunEntry]) -> PaperReport {
    let sweeps = sweeps(paper, runs);
    let comparisons = compare(runs, STATIC);
    let measured: Vec<(&Fleet, FleetReport)> = paper
        .fleets
        .iter()
        .map(|fleet| (*fleet, fleet_report(fleet, runs, &comparisons)))
        .collect();
    let findings = PUBLISHED.iter().flat_map(|published| {
        let about = measured
            .iter()
            .filter(|(fleet, _)| fleet.is_of(published.topology));
        about.map(|(fleet, report)| finding(published, fleet, report, runs))
    });
    PaperReport {
        source: SOURCE.into(),
        findings: findings.collect(),
        fleets: measured.iter().map(|(_, report)| report.clone()).collect(),
        sweeps,
    }
}

fn fleet_report(fleet: &Fleet, runs: &[RunEntry], comparisons: &[Comparison]) -> FleetReport {
    let own: Vec<&RunEntry> = of(fleet, runs, STATIC).collect();
    let ttft = |metrics: &Metrics| Some(metrics.ttft_ms?.mean);
    let curve: Vec<(f64, f64)> = loads(&own)
        .into_iter()
        .filter_map(|load| {
            Some((
                load,
                median(
                    at(&own, load)
                        .filter_map(|run| ttft(&run.metrics))
                        .collect(),
                )?,
            ))
        })
        .collect();
    let knee = knee(&curve);
    let idle = curve
        .first()
        .map(|(_, ttft)| *ttft)
        .filter(|idle| *idle > 0.0);
    let slowdowns = idle.map(|idle| {
        curve
            .iter()
            .map(|(load, ttft)| (*load, ttft / idle))
            .collect()
    });
    // Where it has not bent yet, at the largest load.
    let near = knee
        .map(|knee| knee.above)
        .or(curve.last().map(|(load, _)| *load));
    let theory: Vec<_> = near
        .map(|load| at(&own, load).filter_map(RunEntry::queueing).collect())
        .unwrap_or_default();
    let seats = theory
        .first()
        .and_then(|it| Some(it.seats.as_ref()?.servers));
    let expected_knee = median(theory.iter().map(|it| it.knee_sessions).collect());
    let here: Vec<&Comparison> = comparisons
        .iter()
        .filter(|it| own.first().is_some_and(|run| same_place(it, run)))
        .collect();
    let from = knee.map_or(f64::INFINITY, |knee| knee.up_to);
    let separation = [false, true].into_iter().flat_map(|saturated| {
        let phase: Vec<Comparison> = here
            .iter()
            .filter(|it| (number(it.load).unwrap_or(0.0) >= from) == saturated)
            .map(|it| (*it).clone())
            .collect();
        separation(&phase, saturated)
    });
    FleetReport {
        name: fleet.name.into(),
        about: fleet.about.into(),
        workload: fleet.workload.name().into(),
        topology: fleet.topology.to_string(),
        engine: fleet.engine.into(),
        slowdowns: slowdowns.unwrap_or_default(),
        knee,
        expected_knee,
        seats,
        separation: separation.collect(),
        anarchy: anarchy(fleet, runs, from),
    }
}

/// Each policy on a fleet below `from` sessions and from there on; policies in the order of the runs.
fn anarchy(fleet: &Fleet, runs: &[RunEntry], from: f64) -> Vec<AnarchyLine> {
    let own: Vec<&RunEntry> = runs.iter().filter(|run| fleet.has(run)).collect();
    let mut policies: Vec<&str> = Vec::new();
    for run in &own {
        if !policies.contains(&run.policy.as_str()) {
            policies.push(&run.policy);
        }
    }
    let phases = [false, true].into_iter();
    let lines =
        phases.flat_map(|saturated| policies.iter().map(move |policy| (saturated, *policy)));
    lines
        .filter_map(|(saturated, policy)| {
            let here = own.iter().filter(|run| {
                run.policy == policy && (number(run.load).unwrap_or(0.0) >= from) == saturated
            });
            let figures: Vec<&Figures> = here
                .filter_map(|run| Some(&run.anarchy.as_ref()?.ttft))
                .collect();
            let mean = |of: fn(&Figures) -> f64| geometric_mean(figures.iter().map(|it| of(it)));
            Some(AnarchyLine {
                policy: policy.to_owned(),
                saturated,
                runs: figures.len() as u64,
                slowdown: mean(|it| it.slowdown)?,
                policy_gap: mean(|it| it.policy_gap)?,
                temporal_gap: mean(|it| it.temporal_gap)?,
                overload: mean(|it| it.overload)?,
                poa_hat: mean(|it| it.poa_hat)?,
            })
        })
        .collect()
}

fn separation(phase: &[Comparison], saturated: bool) -> Vec<Separation> {
    overall(phase)
        .into_iter()
        .map(|policy| {
            let gap = |name: &str| {
                let (ratio, better, worse) = *policy.metrics.get(name)?;
                Some(Gap {
                    ratio,
                    better,
                    worse,
                })
            };
            Separation {
                saturated,
                loads: policy.cells,
                ttft_ms_mean: gap("ttft_ms.mean"),
                ttft_ms_p99: gap("ttft_ms.p99"),
                requests_per_s: gap("requests_per_s"),
                policy: policy.policy,
            }
        })
        .collect()
}

fn finding(
    published: &Published,
    fleet: &Fleet,
    report: &FleetReport,
    runs: &[RunEntry],
) -> Finding {
    let (measured, (outcome, why)) = match published.quantity {
        Quantity::Knee { above, up_to } => knee_finding(above, up_to, report),
        Quantity::Plateau { least, most } => plateau(least, most, fleet, report, runs),
        Quantity::PoaDrop(factor) => poa_drop(factor, fleet, report, runs),
        Quantity::Throughput(factor) => {
            // The cost of adaptive: its figure over that of static.
            let pairs = Pairs::of(fleet, runs, |run| run.metrics.requests_per_s);
            pairs.finding(factor, false, report)
        }
        Quantity::P99Drop(factor) => {
            let pairs = Pairs::of(fleet, runs, |run| Some(run.metrics.ttft_ms?.p99));
            pairs.finding(factor, true, report)
        }
    };
    Finding {
        claim: published.claim.into(),
        published: published.figure.into(),
        place: published.place.into(),
        fleet: fleet.name.into(),
        measured,
        outcome,
        why,
    }
}

fn knee_finding(above: f64, up_to: f64, report: &FleetReport) -> (String, Verdict) {
    let last = report.slowdowns.last().copied();
    let (outcome, mut why) = verdict::knee(above, up_to, report.knee, last);
    let measured = report.knee.map_or_else(
        || "none".into(),
        |knee| format!("({}, {}]", knee.above, knee.up_to),
    );
    // The knee of seats is where sessions outnumber them.
    if let Some(seats) = report.seats {
        let seats = f64::from(seats);
        let limit = match report.knee {
            Some(knee) if (knee.above..knee.up_to).contains(&seats) => {
                format!("; the decode workers have {seats} seats")
            }
            None if last.is_some_and(|(load, _)| load < seats) => {
                format!("; the decode workers have {seats} seats, and prefill keeps up")
            }
            _ => String::new(),
        };
        why += &limit;
    }
    (measured, (outcome, why))
}

fn plateau(
    least: f64,
    most: f64,
    fleet: &Fleet,
    report: &FleetReport,
    runs: &[RunEntry],
) -> (String, Verdict) {
    let before = report.knee.map_or(f64::INFINITY, |knee| knee.up_to);
    let own: Vec<&RunEntry> = of(fleet, runs, STATIC).collect();
    let calm = loads(&own).into_iter().filter(|load| *load < before);
    let values: Vec<f64> = calm
        .filter_map(|load| median(at(&own, load).filter_map(poa_hat).collect()))
        .collect();
    if values.is_empty() {
        let slowest = report.slowdowns.iter().filter(|(load, _)| *load < before);
        let slowest = slowest.map(|(_, slowdown)| *slowdown).fold(1.0, f64::max);
        let measured = format!(
            "mean TTFT at most {slowdown:.2} times that of an idle fleet",
            slowdown = slowest
        );
        return (measured, (Outcome::NotComparable, NO_POA.into()));
    }
    let (low, high) = values
        .iter()
        .fold((f64::MAX, 0.0_f64), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
    (
        format!("{low:.2} to {high:.2}"),
        verdict::range(least, most, &values),
    )
}

const NO_POA: &str =
    "these runs hold no PoA-hat, which needs the optimum of each window's frozen costs";

fn poa_drop(
    factor: f64,
    fleet: &Fleet,
    report: &FleetReport,
    runs: &[RunEntry],
) -> (String, Verdict) {
    let pairs = Pairs::of(fleet, runs, poa_hat);
    if let Some((adaptive, fixed)) = pairs.means() {
        let (factor, verdict) = pairs.finding(factor, true, report);
        return (format!("{fixed:.1} to {adaptive:.1}, {factor}"), verdict);
    }
    let ttft = Pairs::of(fleet, runs, |run| Some(run.metrics.ttft_ms?.mean));
    let measured = ttft.ratio().map_or_else(
        || "nothing".into(),
        |ratio| format!("mean TTFT {}", drop_words(&ratio.inverse())),
    );
    (measured, (Outcome::NotComparable, NO_POA.into()))
}

/// The saturated phase of the adaptive rule and the static one, by seed: geometric means over the loads.
struct Pairs {
    adaptive_over_static: Vec<(f64, f64)>,
    /// Both rules measured the same in every pair of runs.
    alike: bool,
}

impl Pairs {
    fn of(fleet: &Fleet, runs: &[RunEntry], value: impl Fn(&RunEntry) -> Option<f64>) -> Self {
        let saturated =
            |run: &&RunEntry| number(run.load).is_some_and(|it| it >= SATURATED_FROM as f64);
        let fixed: Vec<&RunEntry> = of(fleet, runs, STATIC).filter(saturated).collect();
        let adaptive: Vec<&RunEntry> = of(fleet, runs, ADAPTIVE).filter(saturated).collect();
        let twin = |run: &RunEntry| {
            let same = |it: &&&RunEntry| it.seed == run.seed && it.load == run.load;
            adaptive.iter().find(same).copied()
        };
        let pairs: Vec<(&RunEntry, &RunEntry)> = fixed
            .iter()
            .filter_map(|run| Some((twin(run)?, *run)))
            .collect();
        let mut seeds: Vec<u64> = pairs.iter().map(|(_, run)| run.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        let of_seed = |seed: u64| {
            let values: Vec<(f64, f64)> = pairs
                .iter()
                .filter(|(_, run)| run.seed == seed)
                .filter_map(|(adaptive, fixed)| Some((value(adaptive)?, value(fixed)?)))
                .filter(|(adaptive, fixed)| *adaptive > 0.0 && *fixed > 0.0)
                .collect();
            let adaptive = geometric_mean(values.iter().map(|(adaptive, _)| *adaptive))?;
            Some((
                adaptive,
                geometric_mean(values.iter().map(|(_, fixed)| *fixed))?,
            ))
        };
        Self {
            adaptive_over_static: seeds.into_iter().filter_map(of_seed).collect(),
            alike: pairs
                .iter()
                .all(|(adaptive, fixed)| adaptive.metrics == fixed.metrics),
        }
    }

    fn ratio(&self) -> Option<Ratio> {
        Ratio::of(&self.adaptive_over_static)
    }

    /// Adaptive and static, geometric means over the seeds.
    fn means(&self) -> Option<(f64, f64)> {
        let pairs = || self.adaptive_over_static.iter();
        let adaptive = geometric_mean(pairs().map(|(adaptive, _)| *adaptive))?;
        Some((adaptive, geometric_mean(pairs().map(|(_, fixed)| *fixed))?))
    }

    /// Against a published factor, which is static over adaptive where it is a `drop`.
    fn finding(&self, factor: f64, drop: bool, report: &FleetReport) -> (String, Verdict) {
        let ratio = self.ratio().map(|it| if drop { it.inverse() } else { it });
        let measured = ratio.as_ref().map_or_else(
            || "nothing".into(),
            |it| {
                if drop {
                    drop_words(it)
                } else {
                    change_words(it)
                }
            },
        );
        let (outcome, mut why) = verdict::factor(factor, ratio.as_ref(), self.alike);
        let calm = report
            .knee
            .is_none_or(|knee| knee.above >= SATURATED_FROM as f64);
        if outcome == Outcome::NotReproduced && calm {
            why += &format!("; {SATURATED_FROM} sessions do not saturate this fleet");
        }
        if outcome == Outcome::NotReproduced && report.topology.starts_with("1P") {
            why += "; one prefill worker leaves no choice before the first token";
        }
        (measured, (outcome, why))
    }
}

/// `factor 3.10 (2.90 to 3.30)`.
fn drop_words(ratio: &Ratio) -> String {
    let factor = |it: f64| format!("{it:.2}");
    format!("factor {}{}", factor(ratio.ratio), interval(ratio, factor))
}

/// `-13.0 % (-14.0 % to -12.0 %)`.
fn change_words(ratio: &Ratio) -> String {
    let percent = |it: f64| format!("{:+.1} %", 100.0 * (it - 1.0));
    format!("{}{}", percent(ratio.ratio), interval(ratio, percent))
}

fn interval(ratio: &Ratio, text: impl Fn(f64) -> String) -> String {
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!(" ({} to {})", text(low), text(high)),
        _ => String::new(),
    }
}

fn sweeps(paper: &Paper, runs: &mut [RunEntry]) -> Vec<Sweep> {
    let mut sweeps = Vec::new();
    let same = |a: &RunEntry, b: &RunEntry| {
        (&a.condition, &a.workload, &a.topology, a.load)
            == (&b.condition, &b.workload, &b.topology, b.load)
    };
    for cell in runs.chunk_by_mut(same) {
        let Some(first) = cell.first() else {
            continue;
        };
        let fleet = paper.fleets.iter().find(|fleet| fleet.is_place_of(first));
        let (Some(fleet), Some(sessions)) = (fleet, number(first.load)) else {
            continue;
        };
        if first.condition.as_deref() != Some(SWEEP) {
            continue;
        }
        let points: Vec<SweepPoint> = mark_pareto(cell)
            .into_iter()
            .filter_map(|point| {
                let pair = paper
                    .pairs
                    .iter()
                    .find(|it| it.policy.label() == point.policy)?;
                Some(SweepPoint {
                    tau: pair.tau,
                    omega: pair.omega,
                    ttft_p99_ms: point.ttft_p99_ms,
                    requests_per_s: point.requests_per_s,
                    front: point.front,
                })
            })
            .collect();
        sweeps.push(Sweep {
            fleet: fleet.name.into(),
            sessions,
            p99_spread: spread(points.iter().map(|it| it.ttft_p99_ms)),
            throughput_spread: spread(points.iter().map(|it| it.requests_per_s)),
            points,
        });
    }
    sweeps
}

/// Largest over least of values above 0; 1 of none.
fn spread(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let least = values.clone().fold(f64::MAX, f64::min);
    let most = values.fold(0.0, f64::max);
    if most > 0.0 && least > 0.0 {
        most / least
    } else {
        1.0
    }
}

/// Runs of a policy on a fleet, outside of the sweep.
fn of<'a>(
    fleet: &'a Fleet,
    runs: &'a [RunEntry],
    policy: &'a str,
) -> impl Iterator<Item = &'a RunEntry> {
    runs.iter()
        .filter(move |run| run.policy == policy && fleet.has(run))
}

/// Loads of these runs, ascending.
fn loads(runs: &[&RunEntry]) -> Vec<f64> {
    let mut loads: Vec<f64> = runs.iter().filter_map(|run| number(run.load)).collect();
    loads.sort_unstable_by(f64::total_cmp);
    loads.dedup();
    loads
}

fn at<'a>(runs: &'a [&'a RunEntry], load: f64) -> impl Iterator<Item = &'a RunEntry> {
    runs.iter()
        .copied()
        .filter(move |run| number(run.load) == Some(load))
}

fn number(load: Option<Load>) -> Option<f64> {
    match load? {
        Load::Number(number) => Some(number),
        Load::Level(_) => None,
    }
}

fn same_place(comparison: &Comparison, run: &RunEntry) -> bool {
    comparison.condition == run.condition
        && comparison.workload == run.workload
        && comparison.topology == run.topology
        && comparison.engine == run.engine
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Distribution;
    use crate::policies::Catalog;
    use crate::queueing::{Expected, Queueing, Reading};
    use crate::run::Settings;
    use serde_json::json;

    /// A run on the fleet whose hundred requests all have this TTFT, with 128 decode seats and theory's knee at 120.
    fn run(fleet: &Fleet, policy: &str, sessions: usize, seed: u64, ttft_ms: f64) -> RunEntry {
        let stage = Expected {
            servers: 128,
            service_ms: 1.0,
            service_scv: 0.0,
            utilisation: 0.5,
            mean_wait_ms: None,
            random_wait_bound_ms: None,
        };
        let queueing = Queueing {
            requests: 100,
            arrivals_per_s: 1.0,
            arrival_scv: 1.0,
            alone_ttft_ms: 10.0,
            wait_ms: 0.0,
            prefill: stage.clone(),
            seats: Some(stage),
            predicted_wait_ms: None,
            knee_per_s: 50.0,
            knee_sessions: 120.0,
            reading: Reading::Full,
        };
        RunEntry {
            policy: policy.into(),
            condition: None,
            tier_point: None,
            workload: fleet.workload.name().into(),
            load: Some(Load::Number(sessions as f64)),
            offered: None,
            load_not_reached: false,
            topology: fleet.topology.to_string(),
            engine: fleet.engine.into(),
            seed,
            settings: Settings::default(),
            metrics: Metrics {
                completed: 100,
                peak_in_flight: 9,
                requests_per_s: Some(50.0),
                ttft_ms: Distribution::of(vec![ttft_ms; 100]),
                ..Metrics::default()
            },
            anarchy: None,
            anarchy_unavailable: None,
            wall: None,
            more: serde_json::Map::from_iter([("queueing".to_owned(), json!(queueing))]),
        }
    }

    /// The report of a fleet whose static and adaptive rule have these TTFTs at so many sessions, with two seeds.
    fn reported(name: &str, ttfts_ms: &[(usize, f64, f64)]) -> PaperReport {
        let fleet = Fleet::named(name).unwrap();
        let sessions = ttfts_ms.iter().map(|(sessions, ..)| *sessions).collect();
        let seeds = vec![1, 2];
        let paper = Paper::new(vec![fleet], sessions, seeds, 1.0, &Catalog::default()).unwrap();
        let mut runs = Vec::new();
        for (sessions, fixed, adaptive) in ttfts_ms {
            for seed in [1, 2] {
                runs.push(run(fleet, STATIC, *sessions, seed, *fixed));
                runs.push(run(fleet, ADAPTIVE, *sessions, seed, *adaptive));
            }
        }
        paper.report(&mut runs)
    }

    fn finding<'a>(report: &'a PaperReport, claim: &str) -> &'a Finding {
        let found = report.findings.iter().find(|it| it.claim.contains(claim));
        found.unwrap()
    }

    #[test]
    fn a_knee_comes_with_the_seats_that_make_it_and_theory_s() {
        let report = reported(
            "1P2D",
            &[(1, 10.0, 10.0), (128, 20.0, 20.0), (192, 90.0, 90.0)],
        );
        let fleet = &report.fleets[0];
        let knee = fleet.knee.unwrap();
        assert_eq!((knee.above, knee.up_to), (128.0, 192.0));
        assert_eq!((fleet.expected_knee, fleet.seats), (Some(120.0), Some(128)));
        assert_eq!(fleet.slowdowns, [(1.0, 1.0), (128.0, 2.0), (192.0, 9.0)]);
        let finding = finding(&report, "the knee");
        assert_eq!(finding.outcome, Outcome::NotReproduced);
        assert_eq!(finding.measured, "(128, 192]");
        assert!(finding.why.contains("128 seats"), "{}", finding.why);
    }

    #[test]
    fn the_published_effect_counts_where_both_rules_show_it_beyond_the_knee() {
        // Static over adaptive is 8 at both loads of the saturated phase.
        let report = reported(
            "1P2D",
            &[(1, 10.0, 10.0), (128, 80.0, 10.0), (192, 800.0, 100.0)],
        );
        let p99 = finding(&report, "TTFT P99");
        assert_eq!(
            (p99.outcome, p99.measured.as_str()),
            (Outcome::Reproduced, "factor 8.00 (8.00 to 8.00)")
        );
        let separation = &report.fleets[0].separation;
        let ratios: Vec<_> = separation
            .iter()
            .map(|it| (it.saturated, it.loads, it.ttft_ms_p99.unwrap().ratio))
            .collect();
        assert_eq!(ratios.len(), 2);
        assert_eq!(
            (ratios[0].0, ratios[0].1, ratios[1].0, ratios[1].1),
            (false, 1, true, 2)
        );
        assert!((ratios[0].2 - 1.0).abs() < 1e-12 && (ratios[1].2 - 0.125).abs() < 1e-12);
    }

    #[test]
    fn without_a_price_of_anarchy_its_figures_are_not_comparable_and_mean_ttfts_stand_beside() {
        let report = reported("1P5D", &[(1, 10.0, 10.0), (128, 40.0, 20.0)]);
        let drop = finding(&report, "PoA-hat of the saturated phase");
        assert_eq!(drop.outcome, Outcome::NotComparable);
        assert!(
            drop.measured.contains("mean TTFT factor 2.00"),
            "{}",
            drop.measured
        );
        assert_eq!(finding(&report, "plateau").outcome, Outcome::NotComparable);
        assert!(report.fleets[0].anarchy.is_empty());
    }

    #[test]
    fn rules_that_choose_alike_and_a_calm_fleet_are_told_as_reasons() {
        let report = reported("1P5D", &[(1, 10.0, 10.0), (128, 20.0, 20.0)]);
        let cost = finding(&report, "throughput");
        assert_eq!(cost.outcome, Outcome::NotReproduced);
        for words in ["the same runs", "do not saturate", "one prefill worker"] {
            assert!(cost.why.contains(words), "{}", cost.why);
        }
    }

    #[test]
    fn figures_of_the_paper_are_judged_on_fleets_with_its_workload_and_workers_alone() {
        let of = |name| {
            reported(name, &[(1, 10.0, 10.0), (128, 20.0, 20.0)])
                .findings
                .len()
        };
        assert_eq!([of("1P2D"), of("narrow-1P5D")], [4, 4]);
        assert_eq!(
            [of("mixed-answers"), of("more-prefill"), of("mixed-prompts")],
            [0, 0, 0]
        );
    }

    #[test]
    fn the_pairs_of_a_sweep_are_told_with_their_front_and_are_no_runs_of_the_fleet() {
        let fleet = Fleet::named("mixed-prompts").unwrap();
        let paper = Paper::new(vec![fleet], vec![8], vec![1], 1.0, &Catalog::default()).unwrap();
        let mut runs: Vec<RunEntry> = paper
            .pairs
            .iter()
            .zip(1..)
            .map(|(pair, number)| RunEntry {
                condition: Some(SWEEP.into()),
                ..run(fleet, pair.policy.label(), 8, 1, 10.0 * f64::from(number))
            })
            .collect();
        let report = paper.report(&mut runs);
        assert!(report.fleets[0].slowdowns.is_empty());
        let [sweep] = report.sweeps.as_slice() else {
            panic!("{:?}", report.sweeps);
        };
        assert_eq!((sweep.points.len(), sweep.p99_spread), (16, 16.0));
        let front: Vec<_> = sweep.points.iter().filter(|it| it.front).collect();
        // All serve as much, so that the first alone is on the front.
        assert_eq!((front.len(), front[0].tau, front[0].omega), (1, 0.0, 0.1));
    }
}
