// SPDX-License-Identifier: Apache-2.0

//! Results as tables for a terminal.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use crate::detection::{Detection, PoolScores};
use crate::experiments::{
    Comparison, Gap, Overall, P99_MATTERS_MS, PaperReport, ParetoPoint, STATIC, Score, Standing,
    Verdict, VsBest, not_reached, overall,
};
use crate::measurement::{Measurement, PART_HEAD, Part, PoolMeasurement};
use crate::metrics::Distribution;
use crate::results::{Results, RunEntry};
use crate::run::{Load, load_words};

/// Metrics that comparisons show, with their headings.
const SHOWN: [(&str, &str); 5] = [
    ("ttft_ms.mean", "TTFT mean"),
    ("ttft_ms.p99", "TTFT P99"),
    ("e2e_ms.mean", "E2E mean"),
    ("requests_per_s", "requests/s"),
    ("goodput", "goodput"),
];

/// With so many policies a scoreboard shows them workload by workload.
const FEW_POLICIES: usize = 2;

/// An empty table; columns from the second on are numbers where `numbers`.
pub(super) fn table(head: &[&str], numbers: bool) -> Table {
    let mut table = Table::new();
    table
        .load_preset(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(head.to_vec());
    if numbers {
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// One run, a line for each metric.
pub(super) fn replay(run: &RunEntry) -> String {
    let metrics = &run.metrics;
    let mut lines = table(&["", "mean", "P50", "P90", "P99"], true);
    for (name, sample) in [
        ("TTFT, ms", metrics.ttft_ms),
        ("ITL, ms", metrics.itl_ms),
        ("end to end, ms", metrics.e2e_ms),
    ] {
        let mut cells = vec![name.to_owned()];
        match sample {
            Some(sample) => {
                cells.extend([sample.mean, sample.p50, sample.p90].map(|value| decimals(value, 1)));
                cells.push(p99(&sample));
            }
            None => cells.extend(["-"; 4].map(str::to_owned)),
        }
        lines.add_row(cells);
    }
    let mut facts = table(&["", ""], true);
    let share =
        |value: Option<f64>| value.map_or("-".into(), |value| format!("{:.1} %", 100.0 * value));
    let number =
        |value: Option<f64>, places| value.map_or("-".into(), |value| decimals(value, places));
    for (name, value) in [
        ("completed", metrics.completed.to_string()),
        (
            "rejected, errors, unfinished",
            format!(
                "{}, {}, {}",
                metrics.rejected, metrics.errors, metrics.unfinished
            ),
        ),
        ("requests/s", number(metrics.requests_per_s, 2)),
        ("output tokens/s", number(metrics.output_tokens_per_s, 0)),
        ("goodput: share within the SLO", share(metrics.goodput)),
        ("prompt tokens from cache", share(metrics.engine_reuse)),
        ("imbalance: largest over mean", number(metrics.imbalance, 3)),
        ("most requests at once", metrics.peak_in_flight.to_string()),
        ("worker-seconds", number(metrics.worker_seconds, 1)),
        (
            "slowdown = policy gap × temporal gap × overload",
            run.anarchy.as_ref().map_or_else(
                || format!("- ({})", run.anarchy_unavailable.as_deref().unwrap_or("?")),
                |it| {
                    let factors = [it.ttft.policy_gap, it.ttft.temporal_gap, it.ttft.overload];
                    let [policy, temporal, overload] = factors.map(|value| decimals(value, 2));
                    let slowdown = decimals(it.ttft.slowdown, 2);
                    format!("{slowdown} = {policy} × {temporal} × {overload}")
                },
            ),
        ),
        (
            "selection, µs (wall)",
            number(run.wall.and_then(|wall| wall.mean_us), 1),
        ),
    ] {
        facts.add_row([name.to_owned(), value]);
    }
    let head = format!(
        "{} on {} at {}, {} × {}, seed {}; simulated",
        run.policy,
        run.workload,
        load_words(run.load, run.offered),
        run.topology,
        run.engine,
        run.seed
    );
    let mut text = format!("{head}\n{lines}\n{facts}");
    if let Some(note) = not_reached(run) {
        text += &format!("\n{note}");
    }
    if metrics.completed == 0 {
        text += "\nnothing completed: this run ranks nowhere";
    }
    if metrics.ttft_ms.is_some_and(|ttft| ttft.p99_from_few) {
        text += "\n* from fewer than 100 samples";
    }
    text
}

/// Cell by cell, each policy against the baseline.
pub(super) fn comparisons(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for cell in comparisons.chunk_by(same_cell) {
        let Some(first) = cell.first() else {
            continue;
        };
        let mut head = vec!["policy"];
        head.extend(SHOWN.map(|(_, heading)| heading));
        head.push("seeds won:lost");
        head.push("conclusion");
        let mut lines = table(&head, false);
        for comparison in cell {
            let mut cells = vec![comparison.policy.clone()];
            for (name, _) in SHOWN {
                cells.push(comparison.metrics.get(name).map_or("-".into(), |measured| {
                    let few = if measured.verdict == Verdict::FewSamples {
                        "*"
                    } else {
                        ""
                    };
                    let ratio = measured.ratio;
                    match (ratio.low, ratio.high) {
                        (Some(low), Some(high)) => {
                            format!("{:.3}{few} [{low:.3}, {high:.3}]", ratio.ratio)
                        }
                        _ => format!("{:.3}{few}", ratio.ratio),
                    }
                }));
            }
            cells.push(
                comparison
                    .metrics
                    .get("ttft_ms.mean")
                    .map_or("-".into(), |it| format!("{}:{}", it.wins, it.losses)),
            );
            cells.push(comparison.conclusion());
            lines.add_row(cells);
        }
        let (topology, engine, baseline) = (&first.topology, &first.engine, &first.baseline);
        let load = load_words(first.load, first.offered);
        text += &format!(
            "{} at {load}, {topology} × {engine}: ratio to {baseline} [95 % interval]\n{lines}\n",
            first.workload
        );
        let mut notes: Vec<&String> = cell.iter().flat_map(|it| &it.notes).collect();
        notes.sort();
        notes.dedup();
        for note in notes {
            text += &format!("  {note}\n");
        }
    }
    text + "Seeds are won and lost on mean TTFT. Every number is simulated."
}

/// Each policy over the cells of each load and over all of them, condition by condition.
pub(super) fn scoreboard(results: &Results, baseline: &str) -> String {
    let mut text = String::new();
    let mut by_load = false;
    let mut conditions: Vec<&Option<String>> = Vec::new();
    for comparison in &results.comparisons {
        if !conditions.contains(&&comparison.condition) {
            conditions.push(&comparison.condition);
        }
    }
    for condition in conditions {
        let comparisons: Vec<_> = results
            .comparisons
            .iter()
            .filter(|it| it.condition == *condition)
            .cloned()
            .collect();
        let scores: Vec<_> = results
            .scoreboard
            .iter()
            .filter(|it| it.condition == *condition)
            .collect();
        let loads = overall_by_load(&comparisons);
        let name = match condition {
            Some(condition) => condition.as_str(),
            None if loads.len() > 1 => "all loads",
            None => "all cells",
        };
        // One load is the whole board.
        if loads.len() > 1 {
            by_load = true;
            for (at, overall) in &loads {
                text += &overall_table(&load_words(*at, None), overall);
            }
        }
        text += &scores_table(name, &scores);
        if scores.len() <= FEW_POLICIES {
            text += &families_table(&scores);
        }
    }
    let mut notes: Vec<&String> = results
        .comparisons
        .iter()
        .flat_map(|it| &it.notes)
        .collect();
    notes.sort();
    notes.dedup();
    for note in notes {
        text += &format!("  {note}\n");
    }
    text += &format!(
        "Geometric mean over the cells of the ratio to {baseline}, and the worst cell; a P99 is worst where it is more \
         than {P99_MATTERS_MS} ms worse. vs best: to the best other policy of each run.\n"
    );
    if by_load {
        text += "By load, in how many cells the policy is better (+) and worse (−) at 95 % confidence.\n";
    }
    let zeros = |it: &Score| it.goodput_from_zero + it.goodput_to_zero > 0;
    if results.scoreboard.iter().any(zeros) {
        text += "Behind goodput, in how many runs only the policy (+) or only the baseline (−) has any.\n";
    }
    text + "Every number is simulated. Each cell is in results.json."
}

/// Each detector over everything, and how often each is right by workload, for each kind of pool.
pub(super) fn detection(detection: &Detection) -> String {
    let pools: Vec<_> = detection.pools.iter().map(detectors).collect();
    format!(
        "{}\nUp and down: delay of a true change that was found, s. Every number is simulated.",
        pools.join("\n")
    )
}

fn detectors(pool: &PoolScores) -> String {
    let Some(first) = pool.detectors.first() else {
        return String::new();
    };
    let columns = first.overall.columns().map(|(title, _)| title);
    let mut lines = table(&[&["detector"], &columns[..]].concat(), true);
    let names: Vec<&str> = first.workloads.keys().map(String::as_str).collect();
    let mut by_workload = table(&[&["time right"], &names[..]].concat(), true);
    for detector in &pool.detectors {
        let cells = detector.overall.columns().map(|(_, cell)| cell);
        lines.add_row(std::iter::once(detector.title()).chain(cells));
        let right = detector.workloads.values().map(|score| score.right());
        by_workload.add_row(std::iter::once(detector.title()).chain(right));
    }
    format!(
        "{} pools: {} true changes in {:.1} h of virtual time\n{lines}\n{by_workload}",
        pool.role, first.overall.changes, first.overall.hours
    )
}

fn overall_by_load(comparisons: &[Comparison]) -> Vec<(Option<Load>, Vec<Overall>)> {
    let mut loads: Vec<Option<Load>> = Vec::new();
    for comparison in comparisons {
        if !loads.contains(&comparison.load) {
            loads.push(comparison.load);
        }
    }
    let at = |load: Option<Load>| {
        let cells: Vec<_> = comparisons
            .iter()
            .filter(|it| it.load == load)
            .cloned()
            .collect();
        (load, overall(&cells))
    };
    loads.into_iter().map(at).collect()
}

fn scores_table(name: &str, scores: &[&Score]) -> String {
    let head = [
        "policy",
        "cells",
        "TTFT mean",
        "TTFT P99",
        "worst mean",
        "worst P99",
        "requests/s, worst",
        "goodput, worst",
        "mean, P99 vs best",
    ];
    let mut lines = table(&head, true);
    for score in scores {
        let geo = |standing: &Option<Standing>| ratio(standing.as_ref().map(|it| it.geo));
        let worst = |standing: &Option<Standing>| {
            ratio(standing.as_ref().and_then(|standing| standing.worst))
        };
        let worst_cell = |standing: &Option<Standing>| {
            let cell = standing.as_ref().and_then(|it| it.worst_cell.as_deref());
            cell.map_or("-".into(), |cell| format!("{} {cell}", worst(standing)))
        };
        let zeros = match (score.goodput_from_zero, score.goodput_to_zero) {
            (0, 0) => String::new(),
            (from, to) => format!(" (+{from} −{to})"),
        };
        let (mean, p99) = (&score.ttft_ms_mean, &score.ttft_ms_p99);
        let (rate, goodput) = (&score.requests_per_s, &score.goodput);
        let best = |of: fn(&VsBest) -> f64| ratio(score.vs_best.as_ref().map(of));
        lines.add_row([
            score.policy.clone(),
            score.cells.to_string(),
            geo(mean),
            geo(p99),
            worst_cell(mean),
            worst_cell(p99),
            format!("{}, {}", geo(rate), worst(rate)),
            format!("{}, {}{zeros}", geo(goodput), worst(goodput)),
            format!(
                "{}, {}",
                best(|it| it.ttft_ms_mean),
                best(|it| it.ttft_ms_p99)
            ),
        ]);
    }
    let cells = scores.iter().map(|it| it.cells).max().unwrap_or(0);
    let seeds = scores.iter().map(|it| it.seeds).max().unwrap_or(0);
    format!("{name}, {cells} cells, seeds: {seeds}\n{lines}\n")
}

fn families_table(scores: &[&Score]) -> String {
    let heads: Vec<String> = scores
        .iter()
        .flat_map(|it| [format!("{} mean", it.policy), format!("{} P99", it.policy)])
        .collect();
    let mut head = vec!["workload", "cells"];
    head.extend(heads.iter().map(String::as_str));
    let mut lines = table(&head, true);
    let Some(first) = scores.first() else {
        return String::new();
    };
    for family in &first.families {
        let mut cells = vec![family.workload.clone(), family.cells.to_string()];
        for score in scores {
            let own = score
                .families
                .iter()
                .find(|it| it.workload == family.workload);
            cells.push(ratio(own.and_then(|it| it.ttft_ms_mean)));
            cells.push(ratio(own.and_then(|it| it.ttft_ms_p99)));
        }
        lines.add_row(cells);
    }
    format!("{lines}\n")
}

fn ratio(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| decimals(value, 3))
}

fn overall_table(name: &str, overall: &[Overall]) -> String {
    let mut head = vec!["policy"];
    head.extend(SHOWN.map(|(_, heading)| heading));
    let mut lines = table(&head, true);
    for policy in overall {
        let mut cells = vec![policy.policy.clone()];
        for (name, _) in SHOWN {
            cells.push(
                policy
                    .metrics
                    .get(name)
                    .map_or("-".into(), |(mean, better, worse)| {
                        format!("{mean:.3} (+{better} −{worse})")
                    }),
            );
        }
        lines.add_row(cells);
    }
    let cells = overall.iter().map(|policy| policy.cells).max().unwrap_or(0);
    format!("{name}, {cells} cells\n{lines}\n")
}

/// Means over seeds, the front marked.
pub(super) fn pareto(points: &[ParetoPoint]) -> String {
    let mut lines = table(&["setting", "requests/s", "TTFT P99, ms", "front"], true);
    for point in points {
        let front = if point.front { "yes" } else { "" };
        lines.add_row([
            point.policy.clone(),
            decimals(point.requests_per_s, 3),
            decimals(point.ttft_p99_ms, 1),
            front.into(),
        ]);
    }
    format!("{lines}\nNothing beats a setting on the front in both. Every number is simulated.")
}

/// Pool by pool: all windows, those of each regime, and stretches of time.
pub(super) fn anarchy(measurement: &Measurement) -> String {
    let Measurement {
        source,
        window_ms,
        window_count,
        ..
    } = measurement;
    let mut text = format!(
        "{}, written by {}\nBy {}, in windows of up to {window_count} decisions within {window_ms} ms; measured, not simulated\n",
        source.journal,
        match source.header.producer.as_str() {
            "" => "an unnamed program",
            producer => producer,
        },
        measurement.actual.words(),
    );
    for (count, what) in [
        (source.cut_off, "cut off by a crash"),
        (
            source.unknown_lines,
            "of kinds that this version does not know",
        ),
        (source.faults, "at fault and left out"),
    ] {
        if count > 0 {
            text += &format!("Lines {what}: {count}\n");
        }
    }
    if measurement.pools.is_empty() {
        text += "no decision of any pool\n";
    }
    for pool in &measurement.pools {
        text += &format!("\n{}: {}\n", pool.name, pool.account());
        text += &format!("{}\n", gaps(pool));
        if pool.over_time.len() > 1 {
            text += &format!("{}\n", gaps_over_time(pool));
        }
    }
    text + "slowdown = policy gap × temporal gap × overload; PoA-hat = policy gap × temporal gap [95 % interval over windows]"
}

fn gaps(pool: &PoolMeasurement) -> Table {
    let mut lines = table(&[&["windows that began"][..], &PART_HEAD].concat(), true);
    let mut add = |name: String, part: &Part| {
        lines.add_row(std::iter::once(name).chain(part.cells(true)));
    };
    add("at any time".into(), &pool.whole);
    for (regime, part) in &pool.regimes {
        add(format!("in regime {regime}"), part);
    }
    lines
}

fn gaps_over_time(pool: &PoolMeasurement) -> Table {
    let mut lines = table(&[&["seconds"][..], &PART_HEAD, &["regime"]].concat(), true);
    for slice in &pool.over_time {
        let seconds = |at_ms: f64| decimals(at_ms / 1e3, 1);
        let span = format!("{} to {}", seconds(slice.from_ms), seconds(slice.to_ms));
        let regime = slice.regime.map_or("-".into(), |regime| regime.to_string());
        let cells = std::iter::once(span).chain(slice.part.cells(false));
        lines.add_row(cells.chain([regime]));
    }
    lines
}

/// The paper beside what was measured.
pub(super) fn paper(report: &PaperReport) -> String {
    let head = ["claim", "published", "fleet", "measured", "outcome", "why"];
    let mut findings = table(&head, false);
    for it in &report.findings {
        findings.add_row([
            &it.claim,
            &it.published,
            &it.fleet,
            &it.measured,
            it.outcome.words(),
            &it.why,
        ]);
    }
    let head = [
        "fleet",
        "policy",
        "loads",
        "TTFT mean",
        "TTFT P99",
        "requests/s",
    ];
    let mut separation = table(&head, true);
    for fleet in &report.fleets {
        for it in &fleet.separation {
            let phase = if it.saturated {
                "from the knee"
            } else {
                "before the knee"
            };
            let gap = |gap: Option<Gap>| {
                gap.map_or("-".into(), |it| {
                    format!("{:.3} (+{} −{})", it.ratio, it.better, it.worse)
                })
            };
            separation.add_row([
                format!("{}, {phase}", fleet.name),
                it.policy.clone(),
                it.loads.to_string(),
                gap(it.ttft_ms_mean),
                gap(it.ttft_ms_p99),
                gap(it.requests_per_s),
            ]);
        }
    }
    let head = [
        "sweep",
        "TTFT P99, largest over least",
        "requests/s, likewise",
    ];
    let mut sweeps = table(&head, true);
    for it in &report.sweeps {
        sweeps.add_row([
            format!(
                "{} at {} sessions, {} pairs",
                it.fleet,
                it.sessions,
                it.points.len()
            ),
            decimals(it.p99_spread, 3),
            decimals(it.throughput_spread, 3),
        ]);
    }
    format!(
        "{}\n{findings}\nratios to {STATIC}: geometric means over the loads, and at how many of them the policy is better \
         (+) and worse (−) at 95 % confidence\n{separation}\n{sweeps}\nEvery number of ours is simulated.",
        report.source
    )
}

fn same_cell(a: &Comparison, b: &Comparison) -> bool {
    let key = |it: &Comparison| {
        (
            it.condition.clone(),
            it.workload.clone(),
            it.load.map(|load| load.to_string()),
            it.topology.clone(),
            it.engine.clone(),
        )
    };
    key(a) == key(b)
}

fn p99(sample: &Distribution) -> String {
    let few = if sample.p99_from_few { "*" } else { "" };
    format!("{}{few}", decimals(sample.p99, 1))
}

fn decimals(value: f64, places: usize) -> String {
    format!("{value:.places$}")
}
