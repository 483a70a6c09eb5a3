// SPDX-License-Identifier: Apache-2.0

//! The demo on the screen: a bar and a table that grow on a terminal, one line per finished step elsewhere.
//!
//! A log file or a pipe gets no control sequences and no half-finished numbers, because somebody will read it later.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::plan::Phase;
use super::summary::{HEADER, Summary};

/// Where progress is shown.
pub struct Screen {
    /// Absent when nobody watches.
    bar: Option<ProgressBar>,
    /// Time from the start of the plan to the start of each phase.
    starts: Vec<Duration>,
}

impl Screen {
    /// Progress of `plan`.
    #[must_use]
    pub fn new(plan: &[Phase]) -> Self {
        let mut total = Duration::ZERO;
        let starts = plan
            .iter()
            .map(|phase| {
                let start = total;
                total += phase.length;
                start
            })
            .collect();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total.as_millis().try_into().unwrap_or(u64::MAX));
            if let Ok(style) = ProgressStyle::with_template("{wide_bar} {eta} left\n{msg}") {
                bar.set_style(style);
            }
            bar
        });
        if bar.is_none() {
            println!("{}", line(&HEADER.map(str::to_owned)));
        }
        Self { bar, starts }
    }

    /// Show the state `into` the running `phase`.
    pub fn show(&self, summary: &Summary, phase: usize, into: Duration) {
        let Some(bar) = &self.bar else { return };
        let start = self.starts.get(phase).copied().unwrap_or_default();
        bar.set_position((start + into).as_millis().try_into().unwrap_or(u64::MAX));
        bar.set_message(summary.table().to_string());
    }

    /// Show that `phase` is over.
    pub fn step_done(&self, summary: &Summary, phase: usize) {
        if self.bar.is_none() {
            println!("{}", line(&summary.row(phase)));
        }
    }

    /// Take the live part away.
    pub fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(cells: &[String]) -> String {
    cells
        .iter()
        .map(|cell| format!("{cell:>10}"))
        .collect::<Vec<_>>()
        .join("  ")
}
