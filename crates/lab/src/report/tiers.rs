// SPDX-License-Identifier: Apache-2.0

//! The page of the suite of tiers: TTFT over the size of the device cache and over ω, and where prompts were
//! found.
//!
//! A plot has a panel for each load, since loads differ by orders of magnitude, and a line for each policy:
//! the medians over seeds. Axes are logarithmic: sizes and scales of ω are multiples of each other.

use std::fmt::Write as _;

use super::ReportError;
use super::group::{COLOURS, Group, groups, ttft_p99};
use super::page::{document, figures, provenance, scoreboard, written};
use super::paint::{Area, Axis, Drawing, Plot, Unit, escape, plot};
use super::panels::{self, Line, Panel};
use super::plots::{keys, slug_of};
use crate::experiments::TierPoint;
use crate::results::{Results, RunEntry};

/// Name of the page.
pub(super) const PAGE: &str = "tiers.html";
const PREFIX: &str = "tiers-";

/// What a plot runs over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Cache,
    Omega,
}

impl Over {
    const fn value(self, point: TierPoint) -> f64 {
        match self {
            Self::Cache => point.cache_share,
            Self::Omega => point.omega_scale,
        }
    }

    /// Whether groups are points of one plot, and panels of it where their loads differ.
    fn joins(self, one: &Group<'_>, other: &Group<'_>) -> bool {
        one.workload == other.workload
            && one.topology == other.topology
            && match self {
                Self::Cache => one.condition == other.condition,
                Self::Omega => one.engine == other.engine,
            }
    }
}

/// The groups of one plot.
struct Family<'a> {
    over: Over,
    groups: Vec<&'a Group<'a>>,
}

/// The page and its plots.
pub(super) fn page(results: &Results) -> Result<(String, Vec<Plot>), ReportError> {
    let groups = groups(results, &[]);
    let cache = draw(Over::Cache, &groups)?;
    let omega = draw(Over::Omega, &groups)?;
    let mut html = String::from(
        "<p class=\"notice\"><strong>All numbers are simulated.</strong> They rank policies on the engine timing given, and are no measurements of hardware.</p>\n",
    );
    provenance(&mut html, results);
    scoreboard(&mut html, results);
    html.push_str(
        "<h2 id=\"cache\">Time to first token over the device cache</h2>\n\
         <p>All workers' device memory as a share of the blocks that are asked for more than once; each worker's host \
         tier holds all of them. The engine brings up whatever it finds there, so policies differ in whom they send \
         a request to and in nothing else. Loads are searched for each size: a line compares policies, not sizes. \
         What may be claimed of each cell is on <a href=\"index.html\">the page of all comparisons</a>.</p>\n",
    );
    figures(&mut html, "c", &cache);
    html.push_str(
        "<h2 id=\"omega\">Time to first token over ω</h2>\n\
         <p>The value of a cached token, as a multiple of the calibrated one.</p>\n",
    );
    figures(&mut html, "o", &omega);
    tables(&mut html, &groups);
    let drawn = cache.into_iter().chain(omega).collect();
    Ok((document("Cache tiers", &html), drawn))
}

/// Whether a file has the name of a plot of this page.
pub(super) fn is_ours(file: &str) -> bool {
    file.starts_with(PREFIX) && file.ends_with(".svg")
}

fn point(group: &Group<'_>) -> Option<TierPoint> {
    group.rows.first()?.runs.first()?.tier_point
}

fn draw(over: Over, groups: &[Group<'_>]) -> Result<Vec<Plot>, ReportError> {
    let families = families(over, groups);
    let plots = families.iter().map(Family::plot);
    plots.collect()
}

fn families<'a>(over: Over, groups: &'a [Group<'a>]) -> Vec<Family<'a>> {
    let mut families: Vec<Family<'a>> = Vec::new();
    for group in groups {
        let Some(point) = point(group) else { continue };
        if over == Over::Cache && point.omega_scale != 1.0 {
            continue;
        }
        let same = |family: &&mut Family<'a>| {
            let first = family.groups.first();
            first.is_some_and(|first| over.joins(first, group))
        };
        match families.iter_mut().find(same) {
            Some(family) => family.groups.push(group),
            None => families.push(Family {
                over,
                groups: vec![group],
            }),
        }
    }
    families.retain(|family| family.values().windows(2).any(|pair| pair[0] != pair[1]));
    families
}

impl<'a> Family<'a> {
    fn values(&self) -> Vec<f64> {
        let points = self.groups.iter().filter_map(|group| point(group));
        points.map(|point| self.over.value(point)).collect()
    }

    /// Loads of which there is more than one point, in the order of the results.
    fn loads(&self) -> Vec<&'a str> {
        let of = |load: &str| self.groups.iter().filter(|it| it.load == load).count();
        let mut loads: Vec<&str> = Vec::new();
        for group in &self.groups {
            if !loads.contains(&group.load.as_str()) && of(&group.load) > 1 {
                loads.push(&group.load);
            }
        }
        loads
    }

    /// Coloured policies first, each with its points in ascending order.
    fn lines(&self, load: &str) -> Vec<Line<'a>> {
        let mut lines: Vec<Line<'a>> = Vec::new();
        for group in self.groups.iter().filter(|it| it.load == load) {
            let Some(x) = point(group).map(|it| self.over.value(it)) else {
                continue;
            };
            for row in &group.rows {
                let Some(y) = row.median(|run| Some(run.metrics.ttft_ms?.mean)) else {
                    continue;
                };
                match lines.iter_mut().find(|it| it.row.policy == row.policy) {
                    Some(line) => line.points.push((x, y)),
                    None => lines.push(Line {
                        row,
                        points: vec![(x, y)],
                    }),
                }
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        lines.sort_by_key(|line| line.row.colour.unwrap_or(COLOURS));
        lines
    }

    fn plot(&self) -> Result<Plot, ReportError> {
        let first = self.groups.first();
        let (workload, condition) = first.map_or(("", ""), |it| {
            (it.workload, it.condition.unwrap_or_default())
        });
        let (what, subject) = match self.over {
            Over::Cache => ("device cache", condition),
            Over::Omega => ("ω", first.map_or("", |it| it.engine)),
        };
        let name = match self.over {
            Over::Cache => format!("cache-{condition}-{workload}"),
            Over::Omega => format!("omega-{workload}"),
        };
        let file = format!("{PREFIX}{}.svg", slug_of(&name));
        let title = format!("TTFT mean over {what} (simulated) — {workload} · {subject}");
        let note = "Medians over seeds; one panel for each load. Both axes are logarithmic.";
        let loads = self.loads();
        let panels: Vec<(&str, Vec<Line<'_>>)> =
            loads.iter().map(|load| (*load, self.lines(load))).collect();
        let rows = panels.first().map_or(&[][..], |(_, lines)| lines);
        let keys = keys(rows.iter().map(|line| line.row));
        let height = panels::height(panels.len());
        let draw = |area: &Area<'_>| self.panels(area, &panels);
        plot(file, title, note.into(), &keys, height, draw)
    }

    fn panels(&self, area: &Area<'_>, loads: &[(&str, Vec<Line<'_>>)]) -> Drawing<()> {
        let (unit, name) = match self.over {
            Over::Cache => (Unit::Percent, "device cache, share of the working set"),
            Over::Omega => (Unit::Times, "ω over its calibrated value"),
        };
        let drawn: Vec<_> = loads
            .iter()
            .map(|(name, lines)| {
                let points = lines.iter().flat_map(|line| &line.points);
                let y = Axis::log(points.map(|point| point.1), Unit::Time);
                Panel { name, y, lines }
            })
            .collect();
        let x = Axis::log(self.values().into_iter(), unit);
        panels::draw(area, &x, name, &drawn)
    }
}

/// A column: its title, how it counts, and its value.
type Column = (&'static str, Unit, fn(&RunEntry) -> Option<f64>);

const COLUMNS: [Column; 8] = [
    ("TTFT P50", Unit::Time, |it| {
        it.metrics.ttft_ms.map(|it| it.p50)
    }),
    ("TTFT mean", Unit::Time, |it| {
        it.metrics.ttft_ms.map(|it| it.mean)
    }),
    ("TTFT P99", Unit::Time, ttft_p99),
    ("requests/s", Unit::Plain, |it| it.metrics.requests_per_s),
    ("device hits", Unit::Percent, |it| {
        it.metrics.tiers.map(|it| it.device_hits)
    }),
    ("host hits", Unit::Percent, |it| {
        it.metrics.tiers.map(|it| it.host_hits)
    }),
    ("read, GB", Unit::Plain, |it| it.metrics.tiers?.host_read_gb),
    ("written, GB", Unit::Plain, |it| {
        it.metrics.tiers?.host_written_gb
    }),
];

/// A table for each condition.
fn tables(html: &mut String, groups: &[Group<'_>]) {
    let mut conditions: Vec<Option<&str>> = Vec::new();
    for group in groups.iter().filter(|it| point(it).is_some()) {
        if !conditions.contains(&group.condition) {
            conditions.push(group.condition);
        }
    }
    for condition in conditions {
        let name = escape(condition.unwrap_or_default());
        // Writing to a string cannot fail.
        let _ = write!(
            html,
            "<h2 id=\"{name}\">{name}</h2>\n<div class=\"wide\" tabindex=\"0\"><table>\n\
             <caption>Simulated; medians over seeds. Hits are shares of all prompt tokens; read from and written to the \
             host tier</caption>\n<thead><tr><th scope=\"col\">workload</th><th scope=\"col\">cache</th>\
             <th scope=\"col\">load</th><th scope=\"col\">policy</th>"
        );
        for (title, ..) in COLUMNS {
            let _ = write!(html, "<th scope=\"col\">{title}</th>");
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for group in groups.iter().filter(|it| it.condition == condition) {
            let Some(point) = point(group) else { continue };
            for row in &group.rows {
                let _ = write!(
                    html,
                    "<tr><th scope=\"row\">{}</th><td>{:.0} %</td><td class=\"text\">{}</td><td class=\"text\">{}</td>",
                    escape(group.workload),
                    100.0 * point.cache_share,
                    escape(&group.load),
                    escape(row.policy)
                );
                for (_, unit, value) in COLUMNS {
                    let cell = row.median(value).map_or("–".into(), |it| written(it, unit));
                    let _ = write!(html, "<td>{cell}</td>");
                }
                html.push_str("</tr>\n");
            }
        }
        html.push_str("</tbody></table></div>\n");
    }
}
