// SPDX-License-Identifier: Apache-2.0

//! Which runs belong together: cells, and pairs of runs in them.
//!
//! A cell is everything that policies have in common when they are compared: workload, load, topology,
//! engine, settings, and the condition if there is one. In a cell, two policies are paired by seed, that
//! is on the same arrivals.

use std::collections::BTreeMap;

use crate::results::RunEntry;

/// The runs of one cell, at least one.
pub(super) struct CellRuns<'a> {
    /// A run of it, for what all of them have in common.
    pub(super) first: &'a RunEntry,
    runs: Vec<&'a RunEntry>,
}

/// The cells of `runs`, in their order.
pub(super) fn cells(runs: &[RunEntry]) -> Vec<CellRuns<'_>> {
    let mut cells: Vec<CellRuns<'_>> = Vec::new();
    for run in runs {
        match cells.iter_mut().find(|cell| same_cell(cell.first, run)) {
            Some(cell) => cell.runs.push(run),
            None => cells.push(CellRuns {
                first: run,
                runs: vec![run],
            }),
        }
    }
    cells
}

impl<'a> CellRuns<'a> {
    /// Every run.
    pub(super) fn runs(&self) -> &[&'a RunEntry] {
        &self.runs
    }

    /// Policies but `baseline`, in the order of the runs.
    pub(super) fn policies_but(&self, baseline: &str) -> Vec<&'a str> {
        let mut policies: Vec<&str> = Vec::new();
        for run in &self.runs {
            if run.policy != baseline && !policies.contains(&run.policy.as_str()) {
                policies.push(&run.policy);
            }
        }
        policies
    }

    /// Runs of `policy` and `baseline` with the same seed, by seed.
    pub(super) fn pairs(&self, policy: &str, baseline: &str) -> Vec<(&'a RunEntry, &'a RunEntry)> {
        let base = self.of(baseline);
        self.of(policy)
            .iter()
            .filter_map(|(seed, run)| Some((*run, *base.get(seed)?)))
            .collect()
    }

    /// Runs of `policy` by seed.
    pub(super) fn of(&self, policy: &str) -> BTreeMap<u64, &'a RunEntry> {
        let mine = self.runs.iter().filter(|run| run.policy == policy);
        mine.map(|run| (run.seed, *run)).collect()
    }
}

fn same_cell(a: &RunEntry, b: &RunEntry) -> bool {
    a.condition == b.condition
        && a.workload == b.workload
        && a.load == b.load
        && a.topology == b.topology
        && a.engine == b.engine
        && a.settings == b.settings
}
