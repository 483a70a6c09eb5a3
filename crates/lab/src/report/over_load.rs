// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy over load: one plot for each workload and fleet that was run at several loads.
//!
//! Three panels, since the three factors of the slowdown have nothing in common but their product: the
//! policy gap, the temporal gap, and on a logarithmic scale the overload, which leaves all others behind
//! at saturation.

use regime_anarchy::Figures;

use super::ReportError;
use super::group::{COLOURS, Group};
use super::paint::{Area, Axis, Drawing, Plot, Unit, plot};
use super::panels::{self, Line, Panel};
use super::plots::{MAX_GROUPS, keys, slug_of};
use crate::results::RunEntry;
use crate::run::Load;
use crate::workloads::OfferedLoad;

/// Name of the plot.
pub(super) const OVER_LOAD: &str = "anarchy-over-load";

/// A factor of the slowdown.
type Factor = (&'static str, fn(&Figures) -> f64);

const FACTORS: [Factor; 3] = [
    ("policy gap", |it| it.policy_gap),
    ("temporal gap", |it| it.temporal_gap),
    ("overload (log scale)", |it| it.overload),
];

/// Groups that differ in load alone.
pub(super) struct Family<'a> {
    /// By load, ascending; at least two.
    pub(super) groups: Vec<(f64, &'a Group<'a>)>,
}

/// A plot for each family.
pub(super) fn draw(families: &[Family<'_>]) -> Result<Vec<Plot>, ReportError> {
    let plots = (1..).zip(families.iter().take(MAX_GROUPS));
    plots
        .filter_map(|(number, family)| family.plot(number).transpose())
        .collect()
}

/// Groups that differ in nothing but a load that is known in numbers.
pub(super) fn families<'a>(groups: &'a [Group<'a>]) -> Vec<Family<'a>> {
    let key = |group: &Group<'a>| {
        (
            group.condition,
            group.workload,
            group.topology,
            group.engine,
        )
    };
    let mut families: Vec<Family<'a>> = Vec::new();
    for group in groups {
        let Some(load) = load(group) else { continue };
        let same = |family: &&mut Family<'a>| {
            let first = family.groups.first();
            first.is_some_and(|(_, first)| key(first) == key(group))
        };
        match families.iter_mut().find(same) {
            Some(family) => family.groups.push((load, group)),
            None => families.push(Family {
                groups: vec![(load, group)],
            }),
        }
    }
    for family in &mut families {
        family.groups.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    families.retain(|family| family.groups.len() > 1);
    families
}

/// What the load is in numbers.
fn load(group: &Group<'_>) -> Option<f64> {
    let run = group.rows.first()?.runs.first()?;
    match (run.offered, run.load) {
        (Some(OfferedLoad::Rate(rate)), _) => Some(rate),
        (Some(OfferedLoad::Concurrency(sessions)), _) => Some(sessions as f64),
        (None, Some(Load::Number(number))) => Some(number),
        (None, _) => None,
    }
}

impl<'a> Family<'a> {
    /// Whether its loads are sessions at once, and not requests/s.
    pub(super) fn closed(&self) -> bool {
        let groups = self.groups.iter().map(|(_, group)| group);
        let mut runs = groups.flat_map(|group| group.rows.iter().flat_map(|row| &row.runs));
        runs.any(|run| matches!(run.offered, Some(OfferedLoad::Concurrency(_))))
    }

    /// What its loads count.
    pub(super) fn unit(&self) -> &'static str {
        if self.closed() {
            "sessions at once"
        } else {
            "requests/s"
        }
    }

    fn plot(&self, number: usize) -> Result<Option<Plot>, ReportError> {
        let lines = FACTORS.map(|(_, value)| self.lines(value));
        let Some((_, first)) = self.groups.first().filter(|_| !lines[0].is_empty()) else {
            return Ok(None);
        };
        let file = format!(
            "{number:02}-{}-{OVER_LOAD}.svg",
            slug_of(&format!("{}-{}", first.workload, first.topology))
        );
        let condition = first.condition.map(|it| format!("{it} · "));
        let title = format!(
            "Price of Anarchy over load (simulated) — {}{} · topology {}",
            condition.unwrap_or_default(),
            first.workload,
            first.topology
        );
        let note = "Medians over seeds, by time to first token; 1 is the best that a policy gap or overload can be.";
        let keys = keys(lines[0].iter().map(|line| line.row));
        let height = panels::height(FACTORS.len());
        let draw = |area: &Area<'_>| self.panels(area, &lines);
        plot(file, title, note.into(), &keys, height, draw).map(Some)
    }

    /// Coloured policies first.
    fn lines(&self, value: fn(&Figures) -> f64) -> Vec<Line<'a>> {
        let mut lines: Vec<Line<'a>> = Vec::new();
        for (load, group) in &self.groups {
            for row in &group.rows {
                let figure = |run: &RunEntry| Some(value(&run.anarchy.as_ref()?.ttft));
                let Some(median) = row.median(figure) else {
                    continue;
                };
                let point = (*load, median);
                match lines.iter_mut().find(|it| it.row.policy == row.policy) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line {
                        row,
                        points: vec![point],
                    }),
                }
            }
        }
        lines.sort_by_key(|line| line.row.colour.unwrap_or(COLOURS));
        lines
    }

    fn panels(&self, area: &Area<'_>, lines: &[Vec<Line<'_>>; FACTORS.len()]) -> Drawing<()> {
        let x = Axis::around(self.groups.iter().map(|(load, _)| *load), Unit::Plain);
        let named = FACTORS.iter().zip(lines).enumerate();
        let drawn: Vec<_> = named
            .map(|(at, ((name, _), lines))| {
                let points = lines.iter().flat_map(|line| &line.points);
                let values = points.map(|point| point.1);
                let y = if at + 1 == FACTORS.len() {
                    Axis::log(values, Unit::Times)
                } else {
                    Axis::around(values.chain([1.0]), Unit::Times)
                };
                Panel { name, y, lines }
            })
            .collect();
        panels::draw(area, &x, self.unit(), &drawn)
    }
}
