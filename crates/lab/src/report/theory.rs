// SPDX-License-Identifier: Apache-2.0

//! What queueing theory expects, beside the measured wait and the regimes that were seen.
//!
//! One line for each group. Theory knows no router, so one policy stands for the group: Dynamo's default, or the
//! first where it did not run, by the run whose wait is the middle one of its seeds.

use std::fmt::Write as _;

use regime_policy::POLICY_TYPE;

use super::group::{Group, Row};
use super::paint::{Axis, Unit, escape};
use crate::queueing::{FULL, Queueing, Reading};
use crate::regimes::RegimeTimes;

const REFERENCE: &str = "default";
/// Least expected wait that a ratio is told of, ms.
const LEAST_MS: f64 = 1.0;
/// Least share of a run in a regime that is told.
const LEAST_SHARE: f64 = 0.005;

/// What theory says of the group.
pub(super) fn of(group: &Group<'_>) -> Option<Queueing> {
    let row = group.rows.iter().find(|row| row.policy == REFERENCE);
    let row = row.or(group.rows.first())?;
    let mut all: Vec<Queueing> = row.runs.iter().filter_map(|run| run.queueing()).collect();
    all.sort_by(|a, b| a.wait_ms.total_cmp(&b.wait_ms));
    let middle = all.len().saturating_sub(1) / 2;
    all.into_iter().nth(middle)
}

/// The table, where theory says something of a group.
pub(super) fn table(html: &mut String, groups: &[Group<'_>]) {
    let lines: Vec<(usize, &Group<'_>, Queueing)> = groups
        .iter()
        .enumerate()
        .filter_map(|(index, group)| Some((index + 1, group, of(group)?)))
        .collect();
    if lines.is_empty() {
        return;
    }
    html.push_str(
        "<h2 id=\"queueing\">What queueing explains, and what it does not</h2>\n\
         <p class=\"soft\">Two queues without a router: prompts before the prefill workers, each served in the time that an \
         idle worker takes for its uncached tokens, and requests before the seats of the decode workers, each held from \
         the first token to the last. M/G/k: Poisson arrivals at the measured rate, services with the measured mean and \
         variability; Allen–Cunneen for one common queue, Kingman's bound where workers are drawn at random. The \
         measured wait is mean TTFT minus that of the same requests alone on an idle fleet.</p>\n<p>",
    );
    let count = |reading| {
        lines
            .iter()
            .filter(|(.., it)| it.reading == reading)
            .count()
    };
    let counts: Vec<String> = Reading::ALL
        .into_iter()
        .filter(|reading| count(*reading) > 0)
        .map(|reading| format!("{}: {}", reading.words(), count(reading)))
        .collect();
    let _ = write!(
        html,
        "Of {} lines: {}.</p>\n<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr><th scope=\"col\">comparison</th>",
        lines.len(),
        escape(&counts.join("; "))
    );
    for title in [
        "arrivals/s",
        "their SCV",
        "prefill workers busy",
        "seats busy",
        "expected wait",
        "drawn at random, at most",
        "measured wait",
        "measured over expected",
    ] {
        let _ = write!(html, "<th scope=\"col\">{title}</th>");
    }
    for title in ["reading", "regimes seen"] {
        let _ = write!(html, "<th scope=\"col\" class=\"text\">{title}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (number, group, it) in &lines {
        let ratio = it.predicted_wait_ms.filter(|wait| *wait >= LEAST_MS);
        let bound = it.prefill.random_wait_bound_ms;
        let bound = bound.filter(|_| it.prefill.utilisation < FULL);
        let cells = [
            plain(it.arrivals_per_s),
            plain(it.arrival_scv),
            percent(Some(it.prefill.utilisation)),
            percent(it.seats.as_ref().map(|seats| seats.utilisation)),
            time(it.predicted_wait_ms),
            time(bound),
            time(Some(it.wait_ms)),
            ratio.map_or("–".into(), |wait| {
                Axis::text(it.wait_ms / wait, Unit::Times)
            }),
        ];
        let _ = write!(
            html,
            "<tr><th scope=\"row\"><a href=\"#g{number}\">{}</a></th>",
            escape(&group.title())
        );
        for cell in cells {
            let _ = write!(html, "<td>{cell}</td>");
        }
        let _ = writeln!(
            html,
            "<td class=\"text\">{}</td><td class=\"text\">{}</td></tr>",
            it.reading.words(),
            escape(&regimes(group))
        );
    }
    html.push_str("</tbody></table></div>\n");
}

/// The regimes of each pool in a run of the regime-aware policy, or of the first one that tells them.
fn regimes(group: &Group<'_>) -> String {
    let told = |row: &Row<'_>| {
        let seen = row
            .runs
            .iter()
            .map(|run| run.regimes())
            .find(|it| !it.is_empty())?;
        let pools: Vec<String> = seen.iter().map(|(role, times)| pool(role, times)).collect();
        Some(format!("{} ({})", pools.join("; "), row.policy))
    };
    let ours = group.rows.iter().find(|row| row.policy == POLICY_TYPE);
    let told = ours
        .and_then(told)
        .or_else(|| group.rows.iter().find_map(told));
    told.unwrap_or_else(|| "no policy here tells".into())
}

fn pool(role: &str, times: &RegimeTimes) -> String {
    let shares = times
        .shares
        .iter()
        .filter(|(_, share)| **share >= LEAST_SHARE);
    let shares: Vec<String> = shares
        .map(|(regime, share)| format!("{regime} {:.0} %", 100.0 * share))
        .collect();
    let changes = match times.changes {
        1 => "1 change".to_owned(),
        changes => format!("{changes} changes"),
    };
    format!("{role}: {}, {changes}", shares.join(", "))
}

fn plain(value: f64) -> String {
    Axis::text(value, Unit::Plain)
}

fn percent(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| Axis::text(value, Unit::Percent))
}

fn time(value_ms: Option<f64>) -> String {
    // To the microsecond, so that nothing reads -0.
    let rounded = |value_ms: f64| (1e3 * value_ms).round() / 1e3 + 0.0;
    value_ms.map_or("none".into(), |it| Axis::text(rounded(it), Unit::Time))
}
