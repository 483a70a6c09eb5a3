// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of a live fleet as a page.
//!
//! For each pool a table and two plots. *Over time*: the three factors of the slowdown, on a logarithmic
//! scale, on which factors add up to their product, with the regimes of the pool behind them. *By regime*: each
//! factor with its 95 % interval, so that a difference between regimes can be told from chance.

use std::fmt::Write as _;

use plotters::coord::ranged1d::Ranged as _;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use regime_anarchy::{Figures, Interval};

use super::ReportError;
use super::page::{document, figures};
use super::paint::{
    Axis, BOTTOM, Key, LEFT, PALETTE, Plot, Unit, escape, grouped, plot, width, words, write_at,
};
use super::plots::{Frame, regime_key, row_chart, shade};
use crate::measurement::{Measurement, PART_HEAD, Part, PoolMeasurement};

/// Name of the page.
pub(super) const PAGE: &str = "anarchy.html";
/// Begins the names of its plots.
const PREFIX: &str = "anarchy-";
/// Height of the plot over time, px.
const HEIGHT: u32 = 340;
/// Height of a factor in the plot by regime, px.
const ROW: u32 = 24;
/// Pools that are drawn; the others have tables only.
const DRAWN: usize = 20;

/// One factor of the slowdown.
struct Factor {
    name: &'static str,
    colour: RGBColor,
    value: fn(&Figures) -> f64,
    interval: fn(&Figures) -> Option<Interval>,
}

const FACTORS: [Factor; 3] = [
    Factor {
        name: "policy gap",
        colour: PALETTE[0],
        value: |it| it.policy_gap,
        interval: |it| Some(it.interval?.policy),
    },
    Factor {
        name: "temporal gap",
        colour: PALETTE[1],
        value: |it| it.temporal_gap,
        interval: |it| Some(it.interval?.temporal),
    },
    Factor {
        name: "overload",
        colour: PALETTE[2],
        value: |it| it.overload,
        interval: |it| Some(it.interval?.overload),
    },
];

/// Whether a file has the name of one of its plots.
pub(super) fn is_ours(file: &str) -> bool {
    file.starts_with(PREFIX) && file.ends_with(".svg")
}

/// The page and its plots.
pub(super) fn page(measurement: &Measurement) -> Result<(String, Vec<Plot>), ReportError> {
    let source = &measurement.source;
    let mut body = String::from(
        "<p class=\"notice\"><strong>Measured, not simulated.</strong> Latencies are those of a fleet, forecasts those of its router.</p>\n",
    );
    body.push_str("<h2 id=\"provenance\">Provenance</h2>\n<dl>\n");
    let windows = format!(
        "up to {} decisions within {} ms",
        measurement.window_count, measurement.window_ms
    );
    let count = |count: u64| {
        if count > 0 {
            grouped(count as f64)
        } else {
            String::new()
        }
    };
    for (name, value) in [
        ("Journal", source.journal.clone()),
        ("Written by", source.header.producer.clone()),
        ("Latency", measurement.actual.words().to_owned()),
        ("Windows", windows),
        ("Lines cut off by a crash", count(source.cut_off)),
        ("Lines of unknown kinds", count(source.unknown_lines)),
        ("Lines at fault, left out", count(source.faults)),
        ("Layout", measurement.schema.to_owned()),
    ] {
        if !value.is_empty() {
            let _ = writeln!(body, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
        }
    }
    body.push_str(
        "</dl>\n<p>Slowdown is actual latency over that alone on an idle worker, and the product of three \
         factors. <strong>Policy gap</strong>: what a better choice would have saved, on the state that the router saw. \
         <strong>Temporal gap</strong>: what happened after the choice. <strong>Overload</strong>: what no router can fix. \
         PoA-hat is policy gap × temporal gap.</p>\n",
    );
    let mut plots = Vec::new();
    for (index, pool) in measurement.pools.iter().enumerate() {
        let number = index + 1;
        let drawn: Vec<Plot> = if number <= DRAWN {
            let drawn = [over_time(pool, number)?, by_regime(pool, number)?];
            drawn.into_iter().flatten().collect()
        } else {
            Vec::new()
        };
        let title = escape(&pool.name.to_string());
        let _ = writeln!(
            body,
            "<section id=\"g{number}\" aria-label=\"{title}\">\n<h2>{title}</h2>\n<p class=\"soft\">{}.</p>",
            escape(&pool.account())
        );
        table(&mut body, pool);
        figures(&mut body, &format!("g{number}"), &drawn);
        body.push_str("</section>\n");
        plots.extend(drawn);
    }
    let title = "The Price of Anarchy of a fleet";
    Ok((document(title, &body), plots))
}

fn table(html: &mut String, pool: &PoolMeasurement) {
    html.push_str(
        "<div class=\"wide\" tabindex=\"0\"><table>\n<caption>With 95 % intervals by bootstrap over windows; ~ where an optimum \
         is bounded, and the router charged with the least.</caption>\n<thead><tr><th scope=\"col\">windows that began</th>",
    );
    for title in PART_HEAD {
        let _ = write!(html, "<th scope=\"col\">{title}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    let regimes = pool.regimes.iter();
    let rows = regimes.map(|(regime, part)| (format!("in regime {regime}"), part));
    for (name, part) in std::iter::once(("at any time".to_owned(), &pool.whole)).chain(rows) {
        let _ = write!(html, "<tr><th scope=\"row\">{name}</th>");
        for cell in part.cells(true) {
            let _ = write!(html, "<td>{}</td>", escape(&cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
}

/// The factors in each stretch of time.
fn over_time(pool: &PoolMeasurement, number: usize) -> Result<Option<Plot>, ReportError> {
    let slices: Vec<_> = pool
        .over_time
        .iter()
        .filter_map(|slice| Some((slice, slice.part.anarchy?)))
        .collect();
    let [(first, _), .., (last, _)] = slices.as_slice() else {
        return Ok(None);
    };
    let values = slices
        .iter()
        .flat_map(|(_, figures)| FACTORS.iter().map(|factor| (factor.value)(figures)));
    let frame = Frame {
        x: (
            Axis::between(first.from_ms, last.to_ms, Unit::Time),
            "since the journal began",
        ),
        y: (
            Axis::log(values.chain([1.0]), Unit::Times),
            "factor (log scale)",
        ),
        top: 8,
    };
    let regimes = regime_core::Regime::ALL.into_iter();
    let seen = regimes.filter(|regime| slices.iter().any(|(it, _)| it.regime == Some(*regime)));
    let mut keys: Vec<Key> = FACTORS
        .iter()
        .map(|factor| Key::line(factor.name, factor.colour))
        .collect();
    keys.extend(seen.map(regime_key));
    let note = "Factors of the slowdown of the windows that began in each stretch of time. Behind them: the regime in which most \
                of these windows began.";
    let file = format!("{PREFIX}{number:02}-over-time.svg");
    let title = format!("Factors of the slowdown over time — {}", pool.name);
    plot(file, title, note.into(), &keys, HEIGHT, |area| {
        let mut chart = frame.chart(area, BOTTOM)?;
        let (low, high) = (frame.y.0.range().start, frame.y.0.range().end);
        for (slice, _) in &slices {
            if let Some(regime) = slice.regime {
                let corners = [(slice.from_ms, low), (slice.to_ms, high)];
                let patch = Rectangle::new(corners, shade(regime).filled());
                chart.draw_series([patch]).map_err(words)?;
            }
        }
        frame.mesh(&mut chart)?;
        for factor in &FACTORS {
            let points = slices.iter().map(|(slice, figures)| {
                let middle = f64::midpoint(slice.from_ms, slice.to_ms);
                (middle, (factor.value)(figures))
            });
            let points: Vec<(f64, f64)> = points.collect();
            // Nothing is drawn through a stretch without windows.
            let joined = slices.windows(2).zip(points.windows(2));
            let lines = joined
                .filter(|(pair, _)| pair[1].0.from_ms <= pair[0].0.to_ms)
                .map(|(_, ends)| PathElement::new(ends.to_vec(), factor.colour.stroke_width(2)));
            chart.draw_series(lines).map_err(words)?;
            let dots = points
                .iter()
                .map(|at| Circle::new(*at, 3, factor.colour.filled()));
            chart.draw_series(dots).map_err(words)?;
        }
        Ok(())
    })
    .map(Some)
}

/// The factors in each regime, with their intervals.
fn by_regime(pool: &PoolMeasurement, number: usize) -> Result<Option<Plot>, ReportError> {
    let known = |(name, part): (&'static str, &Part)| Some((name, part.anarchy?));
    let all = std::iter::once(("at any time", &pool.whole));
    let regimes = pool
        .regimes
        .iter()
        .map(|(regime, part)| (regime.as_str(), part));
    let parts: Vec<(&str, Figures)> = all.chain(regimes).filter_map(known).collect();
    if parts.is_empty() {
        return Ok(None);
    }
    let rows: Vec<(usize, &Factor, &str, &Figures)> = FACTORS
        .iter()
        .flat_map(|factor| parts.iter().map(move |(name, it)| (factor, *name, it)))
        .enumerate()
        .map(|(at, (factor, name, it))| (at, factor, name, it))
        .collect();
    let spans = rows.iter().flat_map(|(_, factor, _, figures)| {
        let value = (factor.value)(figures);
        let interval = (factor.interval)(figures);
        interval.map_or([value; 2], |it| [it.low, it.high])
    });
    let x = Axis::log(spans.chain([1.0]), Unit::Times);
    let keys: Vec<Key> = FACTORS
        .iter()
        .map(|factor| Key::line(factor.name, factor.colour))
        .collect();
    let names = rows.iter().map(|(_, _, name, _)| width(name));
    let left = names.fold(f64::from(LEFT), f64::max) as u32 + 14;
    let height = ROW * rows.len() as u32 + BOTTOM + 8;
    let file = format!("{PREFIX}{number:02}-by-regime.svg");
    let title = format!("Factors of the slowdown by regime — {}", pool.name);
    let note = "Each point is a ratio of sums over all windows that began in that regime, with its 95 % interval (log scale).";
    plot(file, title, note.into(), &keys, height, |area| {
        let x = (&x, "factor of the slowdown (log scale)");
        let mut chart = row_chart(area, x, rows.len(), left)?;
        for (at, factor, name, figures) in &rows {
            let y = rows.len() as f64 - *at as f64 - 0.5;
            let top = 8 + (ROW * *at as u32) as i32 + 5;
            write_at(area, name, (left as i32 - 8, top), HPos::Right, 14.0)?;
            let value = (factor.value)(figures);
            if let Some(Interval { low, high }) = (factor.interval)(figures) {
                let line = PathElement::new([(low, y), (high, y)], factor.colour.stroke_width(2));
                chart.draw_series([line]).map_err(words)?;
            }
            let dot = Circle::new((value, y), 5, factor.colour.filled());
            chart.draw_series([dot]).map_err(words)?;
        }
        Ok(())
    })
    .map(Some)
}
