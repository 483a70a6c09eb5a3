// SPDX-License-Identifier: Apache-2.0

//! A bar on stderr with the time that is left; nothing where stderr is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

use super::args::OutputArgs;

/// A bar for `runs` runs.
pub(super) fn bar(output: &OutputArgs, runs: usize) -> ProgressBar {
    if output.quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(runs as u64);
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {elapsed} gone, {eta} left {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
