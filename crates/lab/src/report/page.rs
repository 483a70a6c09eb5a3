// SPDX-License-Identifier: Apache-2.0

//! The page around the plots: provenance, one table for each group, and how to read them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::group::{Group, Row, ttft_p99};
use super::paint::{Axis, Plot, STYLE, Unit, escape, grouped, trimmed};
use super::plots::MAX_GROUPS;
use super::{OverLoad, paper, theory};
use crate::experiments::{Comparison, Measured, P99_MATTERS_MS, Verdict, not_reached};
use crate::metrics::{Distribution, Metrics};
use crate::results::{Results, RunEntry};

const CSS: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#57606a;--line:#d0d7de;--stripe:#f6f8fa;--best:#dff3ea}\
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#15181c;--soft:#9aa4ae;--line:#3a4047;--stripe:#1c2025;--best:#123a2c}}\
body{margin:2rem auto;max-width:96rem;padding:0 1rem;color:var(--ink);background:var(--paper);font:16px/1.5 system-ui,sans-serif}\
h1{margin:0 0 .5rem}h2{margin:3rem 0 .5rem;padding-top:1rem;border-top:1px solid var(--line);overflow-wrap:anywhere}\
.notice{padding:.5rem .8rem;border-left:4px solid #e69f00;background:var(--stripe)}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.8rem;font-variant-numeric:tabular-nums}\
caption{text-align:left;color:var(--soft);padding:.3rem 0}\
th,td{padding:.25rem .35rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\
thead th{vertical-align:bottom;white-space:normal}thead th:first-child,thead th.text{text-align:left}th[scope=row],td.text{text-align:left}th[scope=row]{font-weight:500;max-width:24rem;white-space:normal;overflow-wrap:anywhere}td.text{white-space:normal}\
tbody tr:nth-child(even){background:var(--stripe)}td.best{background:var(--best);font-weight:700}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,40rem),1fr));gap:1rem 2rem;margin-top:1.5rem}figure{margin:0}figure svg{width:100%;height:auto}figcaption,.soft{color:var(--soft);font-size:.875rem}\
section{content-visibility:auto;contain-intrinsic-size:auto 120rem}";

/// Which way a column is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

/// One measurement in the tables.
struct Column {
    title: &'static str,
    better: Better,
    unit: Unit,
    value: fn(&RunEntry) -> Option<f64>,
    /// The sample, if it is a P99.
    sample: Option<fn(&Metrics) -> Option<Distribution>>,
    /// Its name in comparisons, if it is compared.
    compared: Option<&'static str>,
}

impl Column {
    const fn compared(self, name: &'static str) -> Self {
        Self {
            compared: Some(name),
            ..self
        }
    }
}

const fn column(
    title: &'static str,
    better: Better,
    unit: Unit,
    value: fn(&RunEntry) -> Option<f64>,
) -> Column {
    Column {
        title,
        better,
        unit,
        value,
        sample: None,
        compared: None,
    }
}

const fn p99(
    title: &'static str,
    value: fn(&RunEntry) -> Option<f64>,
    sample: fn(&Metrics) -> Option<Distribution>,
) -> Column {
    Column {
        title,
        better: Better::Less,
        unit: Unit::Time,
        value,
        sample: Some(sample),
        compared: None,
    }
}

const TTFT_P99: Column = p99("TTFT P99", ttft_p99, |it| it.ttft_ms).compared("ttft_ms.p99");
const GOODPUT: Column = column("goodput", Better::More, Unit::Percent, |it| {
    it.metrics.goodput
})
.compared("goodput");
const REQUESTS: Column = column("requests/s", Better::More, Unit::Plain, |it| {
    it.metrics.requests_per_s
})
.compared("requests_per_s");

const COLUMNS: [Column; 16] = [
    GOODPUT,
    column("TTFT mean", Better::Less, Unit::Time, |it| {
        it.metrics.ttft_ms.map(|it| it.mean)
    })
    .compared("ttft_ms.mean"),
    column("TTFT P50", Better::Less, Unit::Time, |it| {
        it.metrics.ttft_ms.map(|it| it.p50)
    })
    .compared("ttft_ms.p50"),
    column("TTFT P90", Better::Less, Unit::Time, |it| {
        it.metrics.ttft_ms.map(|it| it.p90)
    }),
    TTFT_P99,
    column("ITL P50", Better::Less, Unit::Time, |it| {
        it.metrics.itl_ms.map(|it| it.p50)
    }),
    p99(
        "ITL P99",
        |it| it.metrics.itl_ms.map(|it| it.p99),
        |it| it.itl_ms,
    ),
    p99(
        "end to end P99",
        |it| it.metrics.e2e_ms.map(|it| it.p99),
        |it| it.e2e_ms,
    ),
    REQUESTS,
    column("output tokens/s", Better::More, Unit::Plain, |it| {
        it.metrics.output_tokens_per_s
    }),
    column("cache reuse", Better::More, Unit::Percent, |it| {
        it.metrics.engine_reuse
    }),
    column("imbalance", Better::Less, Unit::Times, |it| {
        it.metrics.imbalance
    }),
    column("slowdown", Better::Less, Unit::Times, |it| {
        Some(it.anarchy.as_ref()?.ttft.slowdown)
    }),
    column("policy gap", Better::Less, Unit::Times, |it| {
        Some(it.anarchy.as_ref()?.ttft.policy_gap)
    }),
    column("temporal gap", Better::Less, Unit::Times, |it| {
        Some(it.anarchy.as_ref()?.ttft.temporal_gap)
    }),
    column("overload", Better::Less, Unit::Times, |it| {
        Some(it.anarchy.as_ref()?.ttft.overload)
    }),
];

/// Columns left of them.
const BEFORE: usize = 4;

/// What stands first on every page of simulated numbers.
pub(super) const SIMULATED: &str = "<p class=\"notice\"><strong>All numbers are simulated.</strong> They rank policies on the engine timing given, and are no measurements of hardware.</p>\n";

/// The whole page.
pub(super) fn page(
    results: &Results,
    groups: &[Group<'_>],
    drawn: &[Vec<Plot>],
    over_load: &OverLoad,
) -> String {
    let mut html = String::from(SIMULATED);
    provenance(&mut html, results);
    if groups.is_empty() {
        html.push_str("<p><strong>No runs.</strong> There is nothing to show.</p>\n");
    }
    if let Some(report) = &results.paper {
        paper::sections(&mut html, report);
    }
    scoreboard(&mut html, results);
    ttft(&mut html, &over_load.ttft);
    theory::table(&mut html, groups);
    if groups.len() > 1 {
        overview(&mut html, results, groups);
    }
    anarchy(&mut html, &over_load.anarchy);
    for (index, group) in groups.iter().enumerate() {
        let plots = drawn.get(index).map_or(&[][..], Vec::as_slice);
        section(&mut html, results, group, index + 1, plots);
    }
    if groups.len() > MAX_GROUPS {
        let _ = writeln!(
            html,
            "<p>Plots are drawn for the first {MAX_GROUPS} of {} comparisons.</p>",
            groups.len()
        );
    }
    document("regime-lab report", &html)
}

/// A page around its body.
pub(super) fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{CSS}{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

pub(super) fn provenance(html: &mut String, results: &Results) {
    let provenance = &results.provenance;
    html.push_str("<h2 id=\"provenance\">Provenance</h2>\n<dl>\n");
    let runs = match results.runs.len() {
        0 => String::new(),
        runs => runs.to_string(),
    };
    let lines = [
        ("Command", provenance.command.as_deref().unwrap_or_default()),
        ("Program", &provenance.generator),
        ("Simulator", &provenance.simulator),
        ("Router", &provenance.router),
        ("Numbers", &provenance.numbers),
        ("Runs", &runs),
        ("Layout", &results.schema),
    ];
    for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escape(value));
    }
    html.push_str("</dl>\n");
}

/// Each policy over all cells, condition by condition.
pub(super) fn scoreboard(html: &mut String, results: &Results) {
    let Some(first) = results.scoreboard.first() else {
        return;
    };
    let _ = write!(
        html,
        "<h2 id=\"scoreboard\">Scoreboard</h2>\n<div class=\"wide\" tabindex=\"0\"><table>\n\
         <caption>Geometric mean over the cells of the ratio to {}, and the worst cell; a P99 is worst where it is more \
         than {P99_MATTERS_MS} ms worse. Vs best: to the best other policy of each run. Nothing is claimed here: \
         the comparisons below do.</caption>\n<thead><tr><th scope=\"col\">policy</th>",
        escape(&first.baseline)
    );
    let conditions = results.scoreboard.iter().any(|it| it.condition.is_some());
    if conditions {
        html.push_str("<th scope=\"col\">condition</th>");
    }
    for title in [
        "cells",
        "seeds",
        "TTFT mean",
        "worst",
        "TTFT P99",
        "worst",
        "requests/s",
        "worst",
        "goodput",
        "worst",
        "mean vs best",
        "P99 vs best",
    ] {
        let _ = write!(html, "<th scope=\"col\">{title}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for score in &results.scoreboard {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(&score.policy));
        if conditions {
            let condition = score.condition.as_deref().unwrap_or("–");
            let _ = write!(html, "<td class=\"text\">{}</td>", escape(condition));
        }
        let _ = write!(html, "<td>{}</td><td>{}</td>", score.cells, score.seeds);
        for standing in [
            &score.ttft_ms_mean,
            &score.ttft_ms_p99,
            &score.requests_per_s,
            &score.goodput,
        ] {
            let number = |value: Option<f64>| value.map_or("–".into(), |it| format!("{it:.3}"));
            let cell = standing.as_ref().and_then(|it| it.worst_cell.as_deref());
            let _ = write!(
                html,
                "<td>{}</td><td title=\"{}\">{}</td>",
                number(standing.as_ref().map(|it| it.geo)),
                escape(cell.unwrap_or_default()),
                number(standing.as_ref().and_then(|it| it.worst))
            );
        }
        let _ = match score.vs_best {
            Some(best) => writeln!(
                html,
                "<td>{:.3}</td><td>{:.3}</td></tr>",
                best.ttft_ms_mean, best.ttft_ms_p99
            ),
            None => writeln!(html, "<td>–</td><td>–</td></tr>"),
        };
    }
    html.push_str("</tbody></table></div>\n");
}

/// Curves over load, where there are any.
fn ttft(html: &mut String, plots: &[Plot]) {
    if plots.is_empty() {
        return;
    }
    html.push_str("<h2 id=\"over-load\">Over load</h2>\n");
    figures(html, "c", plots);
}

/// One line for each group: who wins what.
fn overview(html: &mut String, results: &Results, groups: &[Group<'_>]) {
    html.push_str(
        "<h2 id=\"overview\">Overview</h2>\n<div class=\"wide\" tabindex=\"0\"><table>\n\
         <caption>Best policy of each comparison by medians over seeds, where that may be claimed</caption>\n\
         <thead><tr><th scope=\"col\">comparison</th>\
         <th scope=\"col\">policies</th><th scope=\"col\" colspan=\"2\">least TTFT P99</th>\
         <th scope=\"col\" colspan=\"2\">most requests/s</th>\
         <th scope=\"col\" colspan=\"2\">most goodput</th></tr></thead>\n<tbody>\n",
    );
    for (index, group) in groups.iter().enumerate() {
        let number = index + 1;
        let _ = write!(
            html,
            "<tr><th scope=\"row\"><a href=\"#g{number}\">{}</a></th><td>{}</td>",
            escape(&group.title()),
            group.rows.len()
        );
        for column in [&TTFT_P99, &REQUESTS, &GOODPUT] {
            let Some(best) = best(results, group, column) else {
                html.push_str("<td class=\"text\">no claim</td><td></td>");
                continue;
            };
            let value = value(best, column).unwrap_or_default();
            let policy = escape(best.policy);
            let _ = write!(html, "<td class=\"text\">{policy}</td><td>{value}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
}

fn section(html: &mut String, results: &Results, group: &Group<'_>, number: usize, plots: &[Plot]) {
    let title = escape(&group.title());
    let _ = writeln!(
        html,
        "<section id=\"g{number}\" aria-label=\"{title}\">\n<h2>{title}</h2>"
    );
    conditions(html, group);
    table(html, results, group);
    comparisons(html, results, group);
    if plots.is_empty() {
        html.push_str(
            "<p>Nothing to plot: no run completed a request, or its details were not kept.</p>\n",
        );
    }
    figures(html, &format!("g{number}"), plots);
    html.push_str("</section>\n");
}

/// Plots beside each other; `id` tells them from others on the page.
pub(super) fn figures(html: &mut String, id: &str, plots: &[Plot]) {
    html.push_str("<div class=\"plots\">\n");
    for (index, plot) in plots.iter().enumerate() {
        let _ = writeln!(
            html,
            "<figure>\n{}<figcaption>{} <a href=\"{}\">As a file</a></figcaption>\n</figure>",
            plot.inline(&format!("{id}p{index}")),
            escape(&plot.note),
            escape(&plot.file)
        );
    }
    html.push_str("</div>\n");
}

/// Who is to blame for the slowdown, over load.
fn anarchy(html: &mut String, plots: &[Plot]) {
    if plots.is_empty() {
        return;
    }
    html.push_str(
        "<h2 id=\"anarchy\">Price of Anarchy over load</h2>\n\
         <p>Slowdown is time to first token over that of each request alone on an idle worker. It is the product of \
         the policy gap (what a better choice would have saved), the temporal gap (what happened after the choice) \
         and overload (what no router can fix). All policies are measured by one yardstick, which knows nothing of \
         what a placement is worth to later requests: affinity may look worse than it is.</p>\n",
    );
    figures(html, "a", plots);
}

/// What all of its runs had in common, and what to beware of.
fn conditions(html: &mut String, group: &Group<'_>) {
    let runs = || group.rows.iter().flat_map(|row| &row.runs);
    let Some(first) = runs().next() else {
        return;
    };
    let settings = &first.settings;
    let _ = write!(
        html,
        "<p class=\"soft\">Goodput: share of all requests with TTFT up to {} and mean ITL up to {}.",
        time(settings.slo.ttft_ms),
        time(settings.slo.mean_itl_ms)
    );
    if settings.kv_event_lag_ms > 0.0 {
        let _ = write!(
            html,
            " Routers learn of KV events {} late.",
            time(settings.kv_event_lag_ms)
        );
    }
    if settings.device_events_only {
        html.push_str(" Routers learn of blocks in device memory alone.");
    }
    if let Some(threshold) = settings.queue_threshold {
        let _ = write!(
            html,
            " Requests queue at the router above {} of the token budget.",
            trimmed(threshold)
        );
    }
    if !settings.slowdowns.is_empty() {
        let slow: Vec<_> = settings
            .slowdowns
            .iter()
            .map(|slow| trimmed(*slow))
            .collect();
        let _ = write!(html, " Workers take {} times as long.", slow.join(", "));
    }
    html.push_str("</p>\n");
    if runs().any(|run| run.settings != first.settings) {
        html.push_str("<p><strong>Settings differ between these runs.</strong> The line above is of the first.</p>\n");
    }
    if let Some(note) = not_reached(first) {
        let _ = writeln!(html, "<p><strong>{}.</strong></p>", escape(&note));
    }
    if runs().all(|run| run.metrics.peak_in_flight <= 1) {
        html.push_str("<p><strong>Never more than one request was in flight.</strong> Without contention no policy can matter.</p>\n");
    }
}

fn table(html: &mut String, results: &Results, group: &Group<'_>) {
    html.push_str(
        "<div class=\"wide\" tabindex=\"0\"><table>\n<caption>Simulated; medians over seeds, requests summed up. ★ is the best of a column, where that may be claimed",
    );
    let few = group
        .rows
        .iter()
        .any(|row| COLUMNS.iter().any(|column| from_few(row, column)));
    if few {
        html.push_str("; † is a P99 from fewer than 100 samples, hardly more than the maximum");
    }
    html.push_str(
        ".</caption>\n<thead><tr><th scope=\"col\">policy</th><th scope=\"col\">seeds</th><th scope=\"col\">completed</th>\
         <th scope=\"col\">not completed</th>",
    );
    for column in &COLUMNS {
        let _ = write!(html, "<th scope=\"col\">{}</th>", column.title);
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    let best = COLUMNS.each_ref().map(|it| best(results, group, it));
    for row in &group.rows {
        let _ = write!(
            html,
            "<tr><th scope=\"row\" title=\"{0}\">{0}</th><td>{1}</td>",
            escape(row.policy),
            row.runs.len()
        );
        let _ = write!(
            html,
            "<td>{}</td><td>{}</td>",
            grouped(row.total(|it| it.completed) as f64),
            not_completed(row)
        );
        let ranked = row.ranked().count();
        if ranked == 0 {
            let _ = writeln!(
                html,
                "<td class=\"text\" colspan=\"{}\"><strong>Completed nothing</strong>: not ranked.</td></tr>",
                COLUMNS.len()
            );
            continue;
        }
        for (column, best) in COLUMNS.iter().zip(&best) {
            let Some(value) = value(row, column) else {
                html.push_str("<td>–</td>");
                continue;
            };
            let few = if from_few(row, column) { " †" } else { "" };
            if best.is_some_and(|best| best.policy == row.policy) {
                let _ = write!(html, "<td class=\"best\">★ {value}{few}</td>");
            } else {
                let _ = write!(html, "<td>{value}{few}</td>");
            }
        }
        html.push_str("</tr>\n");
        if ranked < row.runs.len() {
            let _ = writeln!(
                html,
                "<tr><td class=\"text\" colspan=\"{}\">{}: {} of {} runs completed nothing and are not in the medians.</td></tr>",
                COLUMNS.len() + BEFORE,
                escape(row.policy),
                row.runs.len() - ranked,
                row.runs.len()
            );
        }
    }
    html.push_str("</tbody></table></div>\n");
}

/// Policies against the baseline, where they were compared.
fn comparisons(html: &mut String, results: &Results, group: &Group<'_>) {
    let all = results.comparisons.iter();
    let own: Vec<_> = all.filter(|it| group.holds(it)).collect();
    let Some(first) = own.first() else {
        return;
    };
    let names: BTreeSet<_> = own.iter().flat_map(|it| it.metrics.keys()).collect();
    let _ = write!(
        html,
        "<div class=\"wide\" tabindex=\"0\"><table>\n<caption>Ratios to {} on the same arrivals, with 95 % intervals over seeds: \
         ▲ better, ▼ worse, ≈ cannot be told apart, ? nothing can be claimed.</caption>\n\
         <thead><tr><th scope=\"col\">policy</th>",
        escape(&first.baseline)
    );
    for name in &names {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(heading(name)));
    }
    html.push_str("<th scope=\"col\">notes</th></tr></thead>\n<tbody>\n");
    for comparison in own {
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{}</th>",
            escape(&comparison.policy)
        );
        for name in &names {
            let measured = comparison.metrics.get(*name);
            let _ = write!(
                html,
                "<td>{}</td>",
                measured.map_or_else(|| "–".into(), ratio)
            );
        }
        let notes = escape(&comparison.notes.join("; "));
        let _ = writeln!(html, "<td class=\"text\">{notes}</td></tr>");
    }
    html.push_str("</tbody></table></div>\n");
}

/// The name of a compared metric as in the other tables.
fn heading(name: &str) -> &str {
    match name {
        "ttft_ms.mean" => "TTFT mean",
        "ttft_ms.p50" => "TTFT P50",
        "ttft_ms.p99" => "TTFT P99",
        "itl_ms.mean" => "ITL mean",
        "e2e_ms.mean" => "end to end mean",
        "requests_per_s" => "requests/s",
        other => other,
    }
}

fn ratio(measured: &Measured) -> String {
    let mark = match measured.verdict {
        Verdict::Better => "▲",
        Verdict::Worse => "▼",
        Verdict::NotDistinguishable => "≈",
        Verdict::NoContention | Verdict::OneSeed | Verdict::FewSamples => "?",
    };
    let it = &measured.ratio;
    match (it.low, it.high) {
        (Some(low), Some(high)) => format!("{mark} {:.3} ({low:.3}–{high:.3})", it.ratio),
        _ => format!("{mark} {:.3}", it.ratio),
    }
}

/// How many requests were not served, and why.
fn not_completed(row: &Row<'_>) -> String {
    let counts = [
        (row.total(|it| it.rejected), "rejected"),
        (row.total(|it| it.errors), "failed"),
        (row.total(|it| it.unfinished), "unfinished"),
    ];
    let some: Vec<_> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{} {why}", grouped(count as f64)))
        .collect();
    if some.is_empty() {
        return "0".into();
    }
    some.join(", ")
}

/// Whether a P99 of the row rests on too few samples.
fn from_few(row: &Row<'_>, column: &Column) -> bool {
    column.sample.is_some_and(|sample| {
        let few = |metrics: &Metrics| sample(metrics).is_some_and(|it| it.p99_from_few);
        row.ranked().any(|run| few(&run.metrics))
    })
}

/// As written in the table; values that read the same rank the same.
fn value(row: &Row<'_>, column: &Column) -> Option<String> {
    row.median(column.value)
        .map(|value| written(value, column.unit))
}

/// The policy with the best median of a column, where a comparison claims that it is better than the
/// baseline, or of the baseline that all others are worse.
fn best<'a>(results: &Results, group: &'a Group<'_>, column: &Column) -> Option<&'a Row<'a>> {
    let name = column.compared?;
    let medians = group
        .rows
        .iter()
        .filter_map(|row| Some((row, row.median(column.value)?)));
    let order = |a: &(&Row<'_>, f64), b: &(&Row<'_>, f64)| a.1.total_cmp(&b.1);
    let (best, _) = match column.better {
        Better::More => medians.max_by(order)?,
        Better::Less => medians.min_by(order)?,
    };
    let claims = |comparison: &Comparison, verdict| {
        let measured = comparison.metrics.get(name);
        measured.is_some_and(|it| it.verdict == verdict)
    };
    let mut own = results.comparisons.iter().filter(|it| group.holds(it));
    let claimed = match own.clone().find(|it| it.policy == best.policy) {
        Some(comparison) => claims(comparison, Verdict::Better),
        None => own.clone().next().is_some() && own.all(|it| claims(it, Verdict::Worse)),
    };
    claimed.then_some(best)
}

pub(super) fn written(value: f64, unit: Unit) -> String {
    Axis::text(value, unit)
}

fn time(value_ms: f64) -> String {
    written(value_ms, Unit::Time)
}
