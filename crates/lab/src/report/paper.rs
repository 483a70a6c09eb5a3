// SPDX-License-Identifier: Apache-2.0

//! The paper beside what was measured, at the top of the page of a reproduction.

use std::fmt::Write as _;

use super::paint::{Axis, Unit, escape};
use crate::experiments::{FleetReport, Gap, Outcome, PaperReport, STATIC, Sweep};

pub(super) fn sections(html: &mut String, report: &PaperReport) {
    findings(html, report);
    fleets(html, report);
    separation(html, report);
    anarchy(html, report);
    sweeps(html, report);
}

/// Open a table with columns of text and then columns of numbers.
fn open(html: &mut String, caption: &str, texts: &[&str], numbers: &[&str]) {
    let _ = write!(
        html,
        "<div class=\"wide\" tabindex=\"0\"><table>\n<caption>{caption}</caption>\n<thead><tr>"
    );
    for title in texts {
        let _ = write!(
            html,
            "<th scope=\"col\" class=\"text\">{}</th>",
            escape(title)
        );
    }
    for title in numbers {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(title));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
}

const CLOSE: &str = "</tbody></table></div>\n";

fn findings(html: &mut String, report: &PaperReport) {
    let count = |outcome| {
        report
            .findings
            .iter()
            .filter(|it| it.outcome == outcome)
            .count()
    };
    let _ = writeln!(
        html,
        "<h2 id=\"paper\">The paper, reproduced</h2>\n<p>Published figures: {}. Ours are simulated. \
         {} reproduced, {} not reproduced, {} not comparable.</p>",
        escape(&report.source),
        count(Outcome::Reproduced),
        count(Outcome::NotReproduced),
        count(Outcome::NotComparable)
    );
    open(
        html,
        "A factor is reproduced where its 95 % interval over the repeats leaves out 1 and its logarithm is between half \
         and twice the published one; the knee where both loads around it lie within the published ones.",
        &[
            "claim",
            "published",
            "where",
            "our fleet",
            "measured",
            "outcome",
            "why",
        ],
        &[],
    );
    for it in &report.findings {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(&it.claim));
        for cell in [
            &it.published,
            &it.place,
            &it.fleet,
            &it.measured,
            it.outcome.words(),
            &it.why,
        ] {
            let _ = write!(html, "<td class=\"text\">{}</td>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str(CLOSE);
}

fn fleets(html: &mut String, report: &PaperReport) {
    html.push_str("<h3 id=\"fleets\">The fleets and their knees</h3>\n");
    open(
        html,
        "The knee is where the mean TTFT of the static rule passes three times that of the fewest sessions.",
        &["fleet", "what it is", "workload", "workers", "engine"],
        &[
            "knee, sessions",
            "by queueing",
            "decode seats",
            "largest slowdown",
        ],
    );
    for fleet in &report.fleets {
        let knee = fleet.knee.map_or("none".into(), |knee| {
            format!("({}, {}]", knee.above, knee.up_to)
        });
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(&fleet.name));
        for cell in [
            &fleet.about,
            &fleet.workload,
            &fleet.topology,
            &fleet.engine,
        ] {
            let _ = write!(html, "<td class=\"text\">{}</td>", escape(cell));
        }
        let _ = writeln!(
            html,
            "<td>{knee}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            fleet
                .expected_knee
                .map_or("–".into(), |it| format!("{it:.0}")),
            fleet.seats.map_or("–".into(), |it| it.to_string()),
            largest(fleet).map_or("–".into(), |it| Axis::text(it, Unit::Times)),
        );
    }
    html.push_str(CLOSE);
}

fn largest(fleet: &FleetReport) -> Option<f64> {
    let slowdowns = fleet.slowdowns.iter().map(|(_, slowdown)| *slowdown);
    slowdowns.max_by(f64::total_cmp)
}

fn separation(html: &mut String, report: &PaperReport) {
    html.push_str("<h3 id=\"separation\">Where policies separate</h3>\n");
    let caption = format!(
        "Ratio to {STATIC}, geometric mean over the loads before the knee and from it on; behind it at how many of \
         them the policy is better ▲ and worse ▼ at 95 % confidence."
    );
    open(
        html,
        &caption,
        &["fleet", "loads", "policy"],
        &["TTFT mean", "TTFT P99", "requests/s"],
    );
    for fleet in &report.fleets {
        for it in &fleet.separation {
            let _ = writeln!(
                html,
                "<tr><th scope=\"row\">{}</th><td class=\"text\">{} {}</td><td class=\"text\">{}</td>\
                 <td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&fleet.name),
                it.loads,
                phase(it.saturated),
                escape(&it.policy),
                gap(it.ttft_ms_mean),
                gap(it.ttft_ms_p99),
                gap(it.requests_per_s)
            );
        }
    }
    html.push_str(CLOSE);
}

fn anarchy(html: &mut String, report: &PaperReport) {
    if report.fleets.iter().all(|fleet| fleet.anarchy.is_empty()) {
        return;
    }
    html.push_str("<h3 id=\"blame\">Who is to blame</h3>\n");
    open(
        html,
        "By TTFT, with the same yardstick for every policy: slowdown is policy gap × temporal gap × overload, and PoA-hat \
         the first two. Geometric means over the runs.",
        &["fleet", "loads", "policy"],
        &[
            "slowdown",
            "policy gap",
            "temporal gap",
            "overload",
            "PoA-hat",
        ],
    );
    for fleet in &report.fleets {
        for it in &fleet.anarchy {
            let _ = write!(
                html,
                "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td class=\"text\">{}</td>",
                escape(&fleet.name),
                phase(it.saturated),
                escape(&it.policy)
            );
            for value in [
                it.slowdown,
                it.policy_gap,
                it.temporal_gap,
                it.overload,
                it.poa_hat,
            ] {
                let _ = write!(html, "<td>{value:.3}</td>");
            }
            html.push_str("</tr>\n");
        }
    }
    html.push_str(CLOSE);
}

const fn phase(saturated: bool) -> &'static str {
    if saturated {
        "from the knee"
    } else {
        "before the knee"
    }
}

fn gap(gap: Option<Gap>) -> String {
    gap.map_or("–".into(), |it| {
        format!("{:.3} ▲{} ▼{}", it.ratio, it.better, it.worse)
    })
}

fn sweeps(html: &mut String, report: &PaperReport) {
    if report.sweeps.is_empty() {
        return;
    }
    html.push_str("<h3 id=\"sweeps\">Fixed τ and ω</h3>\n");
    for sweep in &report.sweeps {
        grid(html, sweep);
    }
}

/// TTFT P99 and throughput, a row for each τ and a column for each ω.
fn grid(html: &mut String, sweep: &Sweep) {
    let mut omegas: Vec<f64> = sweep.points.iter().map(|it| it.omega).collect();
    let mut taus: Vec<f64> = sweep.points.iter().map(|it| it.tau).collect();
    for values in [&mut omegas, &mut taus] {
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
    }
    let caption = format!(
        "{} at {} sessions: TTFT P99 and requests/s, means over the seeds; ★ is beaten by no other in both. Largest over \
         least: {:.3} of P99, {:.3} of throughput.",
        escape(&sweep.fleet),
        sweep.sessions,
        sweep.p99_spread,
        sweep.throughput_spread
    );
    let titles: Vec<String> = omegas.iter().map(f64::to_string).collect();
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    open(html, &caption, &["τ \\ ω"], &titles);
    for tau in &taus {
        let _ = write!(html, "<tr><th scope=\"row\">{tau}</th>");
        for omega in &omegas {
            let point = sweep
                .points
                .iter()
                .find(|it| it.tau == *tau && it.omega == *omega);
            let text = point.map_or("–".into(), |it| {
                let star = if it.front { "★ " } else { "" };
                let p99 = Axis::text(it.ttft_p99_ms, Unit::Time);
                format!("{star}{p99}, {:.1}/s", it.requests_per_s)
            });
            let _ = write!(html, "<td>{text}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str(CLOSE);
}
