// SPDX-License-Identifier: Apache-2.0

//! Runs as a page to look at.
//!
//! [`write`] makes one HTML page with everything in it, no script and nothing fetched, and beside it each
//! plot as an SVG file. Runs are compared within a group: one workload, topology, load and engine. Where a
//! group has several seeds the table shows medians, and the plots one seed that is the middle one by TTFT P99.
//!
//! A reader should not be misled. The page says that its numbers are simulated. A run that completed
//! nothing is named and never ranked, a P99 from few samples is marked, and thinning a plot keeps its
//! peaks. Colours are those of Okabe and Ito, which colour-blind readers can tell apart; with more than
//! seven policies the others are grey.

mod anarchy;
mod curves;
mod detail;
mod detection;
mod group;
mod over_load;
mod page;
mod paint;
mod panels;
mod paper;
mod plots;
mod theory;
mod tiers;

use std::path::Path;

use paint::Plot;

pub use detail::{
    CACHE_WINDOWS, CacheWindow, FirstTokenPoint, MAX_POINTS, PoolDetail, QUANTILES, RunDetail,
    WorkerDetail,
};

use crate::detection::Timeline;
use crate::files::write_whole;
use crate::measurement::Measurement;
use crate::results::Results;

/// Name of the page.
pub const PAGE: &str = "index.html";

/// A page that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file system.
    #[error("{path}")]
    Io {
        /// File or folder.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A plot that could not be drawn.
    #[error("plot {name}: {problem}")]
    Plot {
        /// File name of the plot.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

/// Plots of several groups each.
struct OverLoad {
    ttft: Vec<Plot>,
    anarchy: Vec<Plot>,
}

/// Write [`PAGE`] and its plots into `dir`, which is made if need be. Runs without a detail are in the tables
/// and in the plot of throughput against TTFT only. Each file is written beside its place and then moved, the
/// page last, so that a reader never sees half of one. Plots of an earlier page in that folder go.
///
/// # Errors
/// Of the file system, and when a plot cannot be drawn.
pub fn write(dir: &Path, results: &Results, details: &[RunDetail]) -> Result<(), ReportError> {
    let groups = group::groups(results, details);
    let mut drawn = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        drawn.push(plots::draw(group, index + 1, groups.len())?);
    }
    let families = over_load::families(&groups);
    let over_load = OverLoad {
        ttft: curves::draw(&families)?,
        anarchy: over_load::draw(&families)?,
    };
    let page = page::page(results, &groups, &drawn, &over_load);
    let drawn: Vec<Plot> = drawn
        .into_iter()
        .flatten()
        .chain(over_load.ttft)
        .chain(over_load.anarchy)
        .collect();
    publish(dir, PAGE, page, &drawn, plots::is_ours)
}

/// Write `anarchy.html` and its plots into `dir`, as [`write`] does.
///
/// # Errors
/// As [`write`].
pub fn write_anarchy(dir: &Path, measurement: &Measurement) -> Result<(), ReportError> {
    let (page, drawn) = anarchy::page(measurement)?;
    publish(dir, anarchy::PAGE, page, &drawn, anarchy::is_ours)
}

/// Write the page of the scores of regime detectors into `dir`, with a plot of each timeline, as [`write`] does.
///
/// # Errors
/// As [`write`].
pub fn write_detection(
    dir: &Path,
    results: &Results,
    timelines: &[Timeline],
) -> Result<(), ReportError> {
    let drawn: Vec<_> = (1..)
        .zip(timelines)
        .map(|(number, timeline)| detection::draw(timeline, number))
        .collect::<Result<_, _>>()?;
    publish(
        dir,
        PAGE,
        detection::page(results, &drawn),
        &drawn,
        plots::is_ours,
    )
}

/// Write `tiers.html` and its plots into `dir`, as [`write`] does: the runs of a suite of tiers.
///
/// # Errors
/// As [`write`].
pub fn write_tiers(dir: &Path, results: &Results) -> Result<(), ReportError> {
    let (page, drawn) = tiers::page(results)?;
    publish(dir, tiers::PAGE, page, &drawn, tiers::is_ours)
}

fn publish(
    dir: &Path,
    name: &str,
    page: String,
    drawn: &[Plot],
    is_ours: fn(&str) -> bool,
) -> Result<(), ReportError> {
    let io = |path: &Path, source| ReportError::Io {
        path: path.display().to_string(),
        source,
    };
    std::fs::create_dir_all(dir).map_err(|source| io(dir, source))?;
    let plots = drawn
        .iter()
        .map(|plot| (plot.file.as_str(), plot.file_text()));
    for (name, text) in plots.chain([(name, page)]) {
        write_whole(dir, name, &text).map_err(|source| io(&dir.join(name), source))?;
    }
    let of_this_page = |name: &str| drawn.iter().any(|plot| plot.file == name);
    for entry in std::fs::read_dir(dir).map_err(|source| io(dir, source))? {
        let path = entry.map_err(|source| io(dir, source))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| is_ours(name) && !of_this_page(name)) {
            std::fs::remove_file(&path).map_err(|source| io(&path, source))?;
        }
    }
    Ok(())
}
