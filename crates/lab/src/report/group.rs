// SPDX-License-Identifier: Apache-2.0

//! Which runs are compared with which, and what stands for a policy in a comparison.
//!
//! Policies are compared on the same workload, topology, load and engine, and under the same condition.
//! Over several seeds a policy is represented by the median of each measurement: a mean would be drawn
//! away by one bad seed. Plots show runs as they happened, of one seed for all policies and thus on the
//! same arrivals: the seed whose TTFT P99 is the middle one.

use std::collections::{BTreeMap, HashMap};

use super::RunDetail;
use crate::experiments::{Comparison, median};
use crate::metrics::Metrics;
use crate::results::{Results, RunEntry};
use crate::run::{Load, load_words};

/// Policies with a colour of their own.
pub(super) const COLOURS: usize = 7;

/// Runs that are compared.
pub(super) struct Group<'a> {
    /// What is unusual about its runs, in a suite of such conditions.
    pub(super) condition: Option<&'a str>,
    pub(super) workload: &'a str,
    pub(super) topology: &'a str,
    /// `knee`, `20`, or nothing.
    pub(super) load: String,
    /// The same in words.
    pub(super) load_words: String,
    pub(super) engine: &'a str,
    /// The one seed that is drawn, for all policies.
    pub(super) seed: Option<u64>,
    /// By policy, in the order of the results.
    pub(super) rows: Vec<Row<'a>>,
}

/// One policy in a group.
pub(super) struct Row<'a> {
    pub(super) policy: &'a str,
    /// Its colour, the same in every group; grey when absent.
    pub(super) colour: Option<usize>,
    pub(super) runs: Vec<&'a RunEntry>,
    /// Of the run that is drawn.
    pub(super) detail: Option<&'a RunDetail>,
}

impl Group<'_> {
    /// What the group compares on, in words.
    pub(super) fn title(&self) -> String {
        let load = match self.load_words.as_str() {
            "" => String::new(),
            words => format!(" · {words}"),
        };
        let condition = match self.condition {
            None => String::new(),
            Some(condition) => format!("{condition} · "),
        };
        format!(
            "{condition}{} · topology {}{load} · engine {}",
            self.workload, self.topology, self.engine
        )
    }

    /// Whether a comparison is about its runs.
    pub(super) fn holds(&self, comparison: &Comparison) -> bool {
        comparison.condition.as_deref() == self.condition
            && comparison.workload == self.workload
            && comparison.topology == self.topology
            && comparison.engine == self.engine
            && load_text(comparison.load) == self.load
    }

    /// Details of its policies, coloured ones first and in the order of their colours.
    pub(super) fn detailed(&self) -> Vec<(&Row<'_>, &RunDetail)> {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .filter_map(|row| Some((row, row.detail?)))
            .collect();
        rows.sort_by_key(|(row, _)| row.colour.unwrap_or(COLOURS));
        rows
    }
}

impl Row<'_> {
    /// Runs that completed something: only those are ranked.
    pub(super) fn ranked(&self) -> impl Iterator<Item = &RunEntry> {
        let runs = self.runs.iter().copied();
        runs.filter(|run| run.metrics.completed > 0)
    }

    /// Median over its ranked runs.
    pub(super) fn median(&self, value: impl Fn(&RunEntry) -> Option<f64>) -> Option<f64> {
        median(self.ranked().filter_map(value).collect())
    }

    /// Sum over all its runs.
    pub(super) fn total(&self, count: impl Fn(&Metrics) -> u64) -> u64 {
        self.runs.iter().map(|run| count(&run.metrics)).sum()
    }
}

/// TTFT P99, ms.
pub(super) fn ttft_p99(run: &RunEntry) -> Option<f64> {
    run.metrics.ttft_ms.map(|ttft| ttft.p99)
}

/// Every group, in the order of the results.
pub(super) fn groups<'a>(results: &'a Results, details: &'a [RunDetail]) -> Vec<Group<'a>> {
    let by_run: HashMap<_, _> = details
        .iter()
        .map(|it| {
            let load = load_text(it.load);
            let group = (
                it.condition.as_deref(),
                it.workload.as_str(),
                it.topology.as_str(),
                load,
                it.engine.as_str(),
            );
            ((group, it.policy.as_str(), it.seed), it)
        })
        .collect();
    let colours = colours(results);
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut group_at = HashMap::new();
    let mut row_at = HashMap::new();
    for run in &results.runs {
        let load = load_text(run.load);
        let key = (
            run.condition.as_deref(),
            run.workload.as_str(),
            run.topology.as_str(),
            load.clone(),
            run.engine.as_str(),
        );
        let at = *group_at.entry(key.clone()).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Group {
                condition: run.condition.as_deref(),
                workload: &run.workload,
                topology: &run.topology,
                load,
                load_words: load_words(run.load, run.offered),
                engine: &run.engine,
                seed: None,
                rows: Vec::new(),
            });
        }
        let rows = &mut groups[at].rows;
        let row = *row_at
            .entry((at, run.policy.as_str()))
            .or_insert(rows.len());
        if row == rows.len() {
            rows.push(Row {
                policy: &run.policy,
                colour: colours.get(run.policy.as_str()).copied(),
                runs: Vec::new(),
                detail: None,
            });
        }
        rows[row].runs.push(run);
    }
    for (key, at) in group_at {
        let detail_of = |run: &RunEntry| {
            let run_key = (key.clone(), run.policy.as_str(), run.seed);
            by_run.get(&run_key).copied()
        };
        let group = &mut groups[at];
        group.seed = shown_seed(&group.rows, |run| detail_of(run).is_some());
        for row in &mut group.rows {
            let shown = row.ranked().find(|run| Some(run.seed) == group.seed);
            row.detail = shown.and_then(detail_of);
        }
    }
    groups
}

/// Of the seeds that most policies can be drawn of, the one in the middle by the median of their TTFT P99.
fn shown_seed(rows: &[Row<'_>], drawable: impl Fn(&RunEntry) -> bool) -> Option<u64> {
    let mut by_seed: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for run in rows
        .iter()
        .flat_map(Row::ranked)
        .filter(|run| drawable(run))
    {
        by_seed.entry(run.seed).or_default().extend(ttft_p99(run));
    }
    let most = by_seed.values().map(Vec::len).max()?;
    by_seed.retain(|_, values| values.len() == most);
    let mut seeds: Vec<_> = by_seed
        .into_iter()
        .map(|(seed, values)| (median(values).unwrap_or(0.0), seed))
        .collect();
    seeds.sort_by(|a, b| a.0.total_cmp(&b.0));
    seeds.get((seeds.len() - 1) / 2).map(|(_, seed)| *seed)
}

/// Colours go to the policy of this project, Dynamo's default, and then in the order of the results.
fn colours(results: &Results) -> HashMap<&str, usize> {
    let mut policies: Vec<&str> = Vec::new();
    for run in &results.runs {
        if !policies.contains(&run.policy.as_str()) {
            policies.push(&run.policy);
        }
    }
    policies.sort_by_key(|policy| match *policy {
        regime_policy::POLICY_TYPE => 0,
        "default" => 1,
        _ => 2,
    });
    let coloured = policies.into_iter().take(COLOURS);
    coloured
        .enumerate()
        .map(|(at, policy)| (policy, at))
        .collect()
}

fn load_text(load: Option<Load>) -> String {
    load.map_or_else(String::new, |load| load.to_string())
}
