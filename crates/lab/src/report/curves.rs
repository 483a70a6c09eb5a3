// SPDX-License-Identifier: Apache-2.0

//! Mean TTFT over load, where one workload ran at several loads that are numbers.
//!
//! On logarithmic axes, each policy by the medians over its seeds, and what queueing theory expects: the TTFT alone
//! and the predicted wait. That line ends where more arrives than the model can serve. An upright line stands where
//! the first policy passes three times the mean TTFT of its least load, and a grey one where theory has that.

use plotters::prelude::*;

use super::ReportError;
use super::group::{Group, Row};
use super::paint::{Axis, BOTTOM, GREY, INK, Key, Plot, Unit, plot, words};
use super::plots::{Frame, HEIGHT, OVER_LOAD, keys, slug, stroke};
use super::theory;
use crate::experiments::{Knee, knee, median};
use crate::queueing::Queueing;
use crate::workloads::OfferedLoad;

/// Loads from which a curve is drawn.
const FEWEST: usize = 3;

/// Groups that differ in their load alone, in ascending order.
struct Family<'a> {
    points: Vec<(f64, &'a Group<'a>)>,
}

/// The curve of every family.
pub(super) fn draw(groups: &[Group<'_>]) -> Result<Vec<Plot>, ReportError> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for group in groups {
        let Ok(load) = group.load.parse::<f64>() else {
            continue;
        };
        let same = |family: &&mut Family<'_>| {
            family
                .points
                .first()
                .is_some_and(|(_, it)| alike(it, group))
        };
        match families.iter_mut().find(same) {
            Some(family) => family.points.push((load, group)),
            None => families.push(Family {
                points: vec![(load, group)],
            }),
        }
    }
    families.retain(|family| family.points.len() >= FEWEST);
    for family in &mut families {
        family.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let curves = families
        .iter()
        .zip(1..)
        .map(|(family, number)| curve(family, number));
    curves.collect()
}

fn alike(a: &Group<'_>, b: &Group<'_>) -> bool {
    (a.condition, a.workload, a.topology, a.engine)
        == (b.condition, b.workload, b.topology, b.engine)
}

fn curve(family: &Family<'_>, number: usize) -> Result<Plot, ReportError> {
    let Some((_, first)) = family.points.first() else {
        return Err(ReportError::Plot {
            name: OVER_LOAD.into(),
            problem: "no load".into(),
        });
    };
    let lines: Vec<(&Row<'_>, Vec<(f64, f64)>)> = first
        .rows
        .iter()
        .map(|row| (row, measured(family, row.policy)))
        .collect();
    let theory: Vec<(f64, Queueing)> = family
        .points
        .iter()
        .filter_map(|(load, group)| Some((*load, theory::of(group)?)))
        .collect();
    let expected: Vec<(f64, f64)> = theory
        .iter()
        .map_while(|(load, it)| Some((*load, it.alone_ttft_ms + it.predicted_wait_ms?)))
        .collect();
    let bend = lines.first().and_then(|(_, line)| knee(line));
    let closed = first
        .rows
        .iter()
        .flat_map(|row| &row.runs)
        .any(|run| matches!(run.offered, Some(OfferedLoad::Concurrency(_))));
    let expected_bend = expected_knee(&theory, bend, closed);
    let all = || lines.iter().flat_map(|(_, line)| line).chain(&expected);
    let frame = Frame {
        x: (
            Axis::log(all().map(|(load, _)| *load), Unit::Plain),
            if closed {
                "sessions at once (log scale)"
            } else {
                "requests/s offered (log scale)"
            },
        ),
        y: (
            Axis::log(all().map(|(_, ttft)| *ttft), Unit::Time),
            "mean TTFT (log scale)",
        ),
        top: 8,
    };
    let mut keys = keys(lines.iter().map(|(row, _)| *row));
    keys.push(Key::line("expected by queueing", GREY));
    let file = format!(
        "{number:02}-{}-{OVER_LOAD}.svg",
        slug(&[first.workload, first.topology, first.engine])
    );
    let title = format!(
        "Mean TTFT over load (simulated) — {} · {} · {}",
        first.workload, first.topology, first.engine
    );
    let heights = (frame.y.0.least(), frame.y.0.most());
    plot(
        file,
        title,
        note(bend, expected_bend, closed),
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
        Some((*load, row.median(|it| Some(it.ttft_ms?.mean))?))
    };
    family.points.iter().filter_map(point).collect()
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

fn note(bend: Option<Knee>, expected: Option<f64>, closed: bool) -> String {
    let unit = if closed { "sessions" } else { "requests/s" };
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
