// SPDX-License-Identifier: Apache-2.0

//! The page of a detection: scores of the detectors, and a timeline of each workload.
//!
//! A timeline has a strip for the truth, the default detector and each signal alone, in the colours of
//! regimes, and below it every signal with the truth behind it.

use std::fmt::Write as _;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use regime_core::Regime;

use super::ReportError;
use super::page::{SIMULATED, document, provenance};
use super::paint::{
    Area, Axis, BOTTOM, Drawing, GRID, INK, PALETTE, Plot, RIGHT, Unit, escape, plot, words,
    write_at,
};
use super::plots::{regime_key, shade};
use crate::adapter::RegimeSince;
use crate::detection::{Detection, PoolScores, Timeline};
use crate::results::Results;

/// Last part of a plot's file name.
pub(super) const NAME: &str = "detection";
/// Left of strips and panels, px.
const LEFT: u32 = 150;
/// Height of a strip, px.
const STRIP: u32 = 24;
/// Height of a signal's panel, px.
const PANEL: u32 = 96;

/// The page.
pub(super) fn page(results: &Results, drawn: &[Plot]) -> String {
    let mut html = String::from(SIMULATED);
    provenance(&mut html, results);
    if let Some(detection) = &results.detection {
        scores(&mut html, detection);
    }
    html.push_str("<h2 id=\"timelines\">Timelines</h2>\n<div class=\"plots\">\n");
    for (index, plot) in drawn.iter().enumerate() {
        let _ = writeln!(
            html,
            "<figure>\n{}<figcaption>{} <a href=\"{}\">As a file</a></figcaption>\n</figure>",
            plot.inline(&format!("d{index}")),
            escape(&plot.note),
            escape(&plot.file)
        );
    }
    html.push_str("</div>\n");
    document("regime-lab report", &html)
}

fn scores(html: &mut String, detection: &Detection) {
    html.push_str(
        "<h2 id=\"detectors\">Detectors</h2>\n<p>The offered load changes in known steps: Below at the light load, Transition at the \
         knee, Saturated at the saturated one, and after a step down the old regime until no more requests wait \
         than workers prefill. Delays are those of true changes that were found before the next; a false alarm is a \
         move upwards while truly Below, a flap a level left and come back to.</p>\n",
    );
    for pool in &detection.pools {
        detectors(html, pool);
    }
    html.push_str(
        "<div class=\"wide\" tabindex=\"0\"><table>\n<caption>Loads, requests/s</caption>\n<thead><tr><th scope=\"col\">workload</th>\
         <th scope=\"col\">pool</th><th scope=\"col\">light</th><th scope=\"col\">knee</th><th scope=\"col\">saturated</th></tr></thead>\n<tbody>\n",
    );
    for loads in &detection.loads {
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td></tr>",
            escape(&loads.workload),
            escape(&loads.topology),
            loads.light,
            loads.knee,
            loads.saturated
        );
    }
    html.push_str("</tbody></table></div>\n");
}

fn detectors(html: &mut String, pool: &PoolScores) {
    let Some(first) = pool.detectors.first() else {
        return;
    };
    let _ = write!(
        html,
        "<div class=\"wide\" tabindex=\"0\"><table>\n<caption>Simulated; {} pools: {} true changes in {:.1} h of virtual time. \
         On the right: time right by workload.</caption>\n<thead><tr><th scope=\"col\">detector</th>",
        escape(&pool.role),
        first.overall.changes,
        first.overall.hours
    );
    let titles = first.overall.columns().map(|(title, _)| title);
    for title in titles
        .into_iter()
        .chain(first.workloads.keys().map(String::as_str))
    {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(title));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for detector in &pool.detectors {
        let name = escape(&detector.title());
        let _ = write!(html, "<tr><th scope=\"row\">{name}</th>");
        let cells = detector.overall.columns().map(|(_, cell)| cell);
        for cell in cells
            .into_iter()
            .chain(detector.workloads.values().map(|it| it.right()))
        {
            let _ = write!(html, "<td>{cell}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
}

/// The timeline of one run.
pub(super) fn draw(timeline: &Timeline, number: usize) -> Result<Plot, ReportError> {
    let Timeline {
        workload,
        topology,
        schedule,
        seed,
        end_ms,
        ..
    } = timeline;
    let strips: Vec<_> = timeline
        .regimes
        .iter()
        .filter(|(name, _)| name == "truth" || *name == timeline.default || !name.contains('+'))
        .collect();
    let signals: Vec<_> = timeline
        .signals
        .iter()
        .filter(|(_, values)| !values.is_empty())
        .collect();
    let keys: Vec<_> = Regime::ALL.into_iter().map(regime_key).collect();
    let x = Axis::from_zero([*end_ms].into_iter(), Unit::Time);
    let strips_height = STRIP * strips.len() as u32 + 8;
    let height = strips_height + PANEL * signals.len() as u32 + BOTTOM;
    let note = format!(
        "Strips: the true regime, and what each detector finds. Below: each signal over time, with the true regime \
         behind it, from 0 up, and ttft_p99_ms on a log scale. The default here is {}. Seed {seed}.",
        timeline.default
    );
    let title =
        format!("Regimes found (simulated) — {workload} · topology {topology} · {schedule}");
    let file = format!(
        "{number:02}-{workload}-{}-{NAME}.svg",
        topology.to_lowercase()
    );
    plot(file, title, note, &keys, height, |area| {
        let (top, rest) = area.split_vertically(strips_height);
        let names = strips.iter().map(|(name, _)| name.as_str());
        regimes(&top, &strips, &x, *end_ms)?;
        for (at, name) in names.enumerate() {
            let y = 8 + (STRIP * at as u32) as i32 + 4;
            write_at(&top, name, (LEFT as i32 - 8, y), HPos::Right, 14.0)?;
        }
        let truth = strips.first().map_or(&[][..], |(_, truth)| truth);
        for (at, (name, values)) in signals.iter().enumerate() {
            let last = at + 1 == signals.len();
            let bottom = if last { BOTTOM } else { 0 };
            let (_, panel) = rest.split_vertically(PANEL * at as u32);
            let (panel, _) = panel.split_vertically(PANEL + bottom);
            signal(&panel, name, values, truth, &x, *end_ms, bottom)?;
        }
        Ok(())
    })
}

/// A strip for each list of regimes.
fn regimes(
    area: &Area<'_>,
    strips: &[&(String, Vec<RegimeSince>)],
    x: &Axis,
    end_ms: f64,
) -> Drawing<()> {
    let rows = strips.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin_top(8)
        .margin_right(RIGHT)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .build_cartesian_2d(x.clone(), 0.0..rows)
        .map_err(words)?;
    for (at, (_, list)) in strips.iter().enumerate() {
        let top = rows - at as f64;
        chart
            .draw_series(bands(list, end_ms, (top - 0.9, top - 0.1)))
            .map_err(words)?;
    }
    Ok(())
}

/// One signal over the true regimes.
fn signal(
    area: &Area<'_>,
    name: &str,
    values: &[(f64, f64)],
    truth: &[RegimeSince],
    x: &Axis,
    end_ms: f64,
    bottom: u32,
) -> Drawing<()> {
    let numbers = values.iter().map(|(_, value)| *value);
    let y = match name {
        "ttft_p99_ms" => Axis::log(numbers, Unit::Time),
        _ => Axis::from_zero(numbers, Unit::Plain),
    };
    let range = plotters::coord::ranged1d::Ranged::range(&y);
    let mut chart = ChartBuilder::on(area)
        .margin_top(10)
        .margin_right(RIGHT)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .set_label_area_size(LabelAreaPosition::Bottom, bottom)
        .build_cartesian_2d(x.clone(), y.clone())
        .map_err(words)?;
    chart
        .draw_series(bands(truth, end_ms, (range.start, range.end)))
        .map_err(words)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(10)
        .y_labels(4)
        .y_label_formatter(&|value| y.label(*value))
        .x_label_formatter(&|value| x.label(*value))
        .x_desc(if bottom > 0 { "time" } else { "" })
        .y_desc(name)
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .draw()
        .map_err(words)?;
    let line = values.iter().copied();
    chart
        .draw_series(LineSeries::new(line, PALETTE[0].stroke_width(1)))
        .map_err(words)?;
    Ok(())
}

/// Regimes as rectangles between two heights.
fn bands(
    list: &[RegimeSince],
    end_ms: f64,
    (low, high): (f64, f64),
) -> impl Iterator<Item = Rectangle<(f64, f64)>> {
    let ends = list.iter().skip(1).map(|next| next.from_ms).chain([end_ms]);
    list.iter().zip(ends).map(move |(since, to_ms)| {
        let corners = [(since.from_ms, low), (to_ms, high)];
        Rectangle::new(corners, shade(since.regime).filled())
    })
}
