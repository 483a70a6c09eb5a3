// SPDX-License-Identifier: Apache-2.0

//! Mean TTFT over load, where one workload ran at several loads.
//!
//! On logarithmic axes, each policy by the medians over its seeds, and what queueing theory expects: the TTFT alone
//! and the predicted wait. That line ends where more arrives than the model can serve. An upright line stands where
//! the first policy passes three times the mean TTFT of its least load, and a grey one where theory has that.

use plotters::prelude::*;

use super::ReportError;
use super::group::{Group, Row};
use super::over_load::Family;
use super::paint::{Axis, BOTTOM, GREY, INK, Key, Plot, Unit, plot, words};
use super::plots::{Frame, HEIGHT, MAX_GROUPS, TTFT_OVER_LOAD, keys, slug_of, stroke};
use super::theory;
use crate::experiments::{Knee, knee, median};
use crate::queueing::Queueing;

/// Loads from which a curve is drawn.
const FEWEST: usize = 3;

/// The curve of every family with enough loads.
pub(super) fn draw(families: &[Family<'_>]) -> Result<Vec<Plot>, ReportError> {
    let long = families
        .iter()
        .filter(|family| family.groups.len() >= FEWEST);
    let firsts = long.filter_map(|family| Some((family, family.groups.first()?.1)));
    let curves = firsts.take(MAX_GROUPS).zip(1..);
    curves
        .map(|((family, first), number)| curve(family, first, number))
        .collect()
}

fn curve(family: &Family<'_>, first: &Group<'_>, number: usize) -> Result<Plot, ReportError> {
    let lines: Vec<(&Row<'_>, Vec<(f64, f64)>)> = first
        .rows
        .iter()
        .map(|row| (row, measured(family, row.policy)))
        .collect();
    let theory: Vec<(f64, Queueing)> = family
        .groups
        .iter()
        .filter_map(|(load, group)| Some((*load, theory::of(group)?)))
        .collect();
    let expected: Vec<(f64, f64)> = theory
        .iter()
        .map_while(|(load, it)| Some((*load, it.alone_ttft_ms + it.predicted_wait_ms?)))
        .collect();
    let bend = lines.first().and_then(|(_, line)| knee(line));
    let unit = family.unit();
    let expected_bend = expected_knee(&theory, bend, family.closed());
    let all = || lines.iter().flat_map(|(_, line)| line).chain(&expected);
    let frame = Frame {
        x: (Axis::log(all().map(|(load, _)| *load), Unit::Plain), unit),
        y: (
            Axis::log(all().map(|(_, ttft)| *ttft), Unit::Time),
            "mean TTFT (log scale)",
        ),
        top: 8,
    };
    let mut keys = keys(lines.iter().map(|(row, _)| *row));
    keys.push(Key::line("expected by queueing", GREY));
    let file = format!(
        "{number:02}-{}-{TTFT_OVER_LOAD}.svg",
        slug_of(&format!(
            "{}-{}-{}",
            first.workload, first.topology, first.engine
        ))
    );
    let title = format!(
        "Mean TTFT over load (simulated) — {} · {} · {}",
        first.workload, first.topology, first.engine
    );
    let heights = (frame.y.0.least(), frame.y.0.most());
    plot(
        file,
        title,
        note(bend, expected_bend, unit),
        &keys,
        HEIGHT,
        |area| {
            let mut chart = frame.chart(area, BOTTOM)?;
            frame.mesh(&mut chart)?;
            for (at, ink) in [(expected_bend, GREY), (bend.map(|it| it.at), INK)] {
                let upright = at.into_iter().map(|at| {
                    PathElement::new([(at, heights.0), (at, heights.1)], ink.stroke_width(1))
                });
                chart.draw_series(upright).map_err(words)?;
            }
            chart
                .draw_series(LineSeries::new(
                    expected.iter().copied(),
                    GREY.stroke_width(3),
                ))
                .map_err(words)?;
            // The first policies last, so that nothing hides them.
            for (row, line) in lines.iter().rev() {
                chart
                    .draw_series(LineSeries::new(line.iter().copied(), stroke(row)))
                    .map_err(words)?;
            }
            Ok(())
        },
    )
}

fn measured(family: &Family<'_>, policy: &str) -> Vec<(f64, f64)> {
    let point = |(load, group): &(f64, &Group<'_>)| {
        let row = group.rows.iter().find(|row| row.policy == policy)?;
        Some((*load, row.median(|it| Some(it.metrics.ttft_ms?.mean))?))
    };
    family.groups.iter().filter_map(point).collect()
}

/// Theory's knee by the services of the last load before the measured one, or of the last load of all.
fn expected_knee(theory: &[(f64, Queueing)], bend: Option<Knee>, closed: bool) -> Option<f64> {
    let last = theory.last().map(|(load, _)| *load);
    let near = bend.map(|it| it.above).or(last)?;
    let values = theory.iter().filter(|(load, _)| *load == near);
    median(
        values
            .map(|(_, it)| {
                if closed {
                    it.knee_sessions
                } else {
                    it.knee_per_s
                }
            })
            .collect(),
    )
}

fn note(bend: Option<Knee>, expected: Option<f64>, unit: &str) -> String {
    let mut note = match bend {
        Some(knee) => format!(
            "The first policy passes three times its least mean TTFT between {} and {} {unit}.",
            knee.above, knee.up_to
        ),
        None => "The first policy never passes three times its least mean TTFT.".to_owned(),
    };
    if let Some(expected) = expected {
        note += &format!(" Queueing theory has that at {expected:.0} {unit}.");
    }
    note
}
