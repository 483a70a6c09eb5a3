// SPDX-License-Identifier: Apache-2.0

//! Panels over one another that share a horizontal axis, each with a line for every policy.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::group::Row;
use super::paint::{Area, Axis, BOTTOM, Drawing, LEFT, words, write_at};
use super::plots::{Frame, colour, stroke};

/// Height of a panel, px.
const HEIGHT: u32 = 150;

/// One policy in a panel, with its points.
pub(super) struct Line<'a> {
    pub(super) row: &'a Row<'a>,
    pub(super) points: Vec<(f64, f64)>,
}

/// One panel.
pub(super) struct Panel<'a> {
    pub(super) name: &'a str,
    /// The vertical axis.
    pub(super) y: Axis,
    /// Coloured policies first.
    pub(super) lines: &'a [Line<'a>],
}

/// Height of so many panels with the axis below them, px.
pub(super) const fn height(panels: usize) -> u32 {
    HEIGHT * panels as u32 + BOTTOM
}

/// Draw `panels` over the axis `x`, which is named once.
pub(super) fn draw(area: &Area<'_>, x: &Axis, x_name: &str, panels: &[Panel<'_>]) -> Drawing<()> {
    for (at, Panel { name, y, lines }) in panels.iter().enumerate() {
        let last = at + 1 == panels.len();
        let (bottom, x_name) = if last { (BOTTOM, x_name) } else { (0, "") };
        let (panel, _) = area.split_vertically(HEIGHT * (at as u32 + 1) + bottom);
        let (_, panel) = panel.split_vertically(HEIGHT * at as u32);
        let frame = Frame {
            x: (x.clone(), x_name),
            y: (y.clone(), ""),
            top: 22,
        };
        let mut chart = frame.chart(&panel, bottom)?;
        frame.mesh(&mut chart)?;
        // Grey lines first, so that they hide nothing.
        for line in lines.iter().rev() {
            let points = line.points.iter().copied();
            chart
                .draw_series(LineSeries::new(points.clone(), stroke(line.row)))
                .map_err(words)?;
            let dot = colour(line.row).filled();
            chart
                .draw_series(points.map(|point| Circle::new(point, 3, dot)))
                .map_err(words)?;
        }
        write_at(&panel, name, (LEFT as i32 + 2, 4), HPos::Left, 14.0)?;
    }
    Ok(())
}
