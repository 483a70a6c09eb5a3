// SPDX-License-Identifier: Apache-2.0

//! What the demo saw, phase by phase, and whether it was what a regime-aware router should show.
//!
//! A request counts in the phase that sent it, wherever it ends: the latency of a phase is the latency that its load met.
//! Latencies go into a high-dynamic-range histogram, whose quantiles are within 1 % at every scale and whose size does not
//! grow with the run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use regime_core::Regime;
use serde::Deserialize;
use serde_json::Value;

use super::load::Sample;
use super::plan::Phase;

/// Regimes that the staircase must enter and leave.
const WANTED: [Regime; 3] = [Regime::Below, Regime::Transition, Regime::Saturated];

/// Longest latency that is told apart, one hour.
const LONGEST_US: u64 = 3_600_000_000;

/// One pool of the `/regime` document, as far as the demo reads it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pool {
    /// Model that it serves.
    pub model: String,
    /// Role of its workers.
    pub role: String,
    /// Its regime now.
    pub regime: Regime,
}

/// Pools of a `/regime` document.
///
/// # Errors
/// When the document does not have them.
pub fn pools(mut document: Value) -> Result<Vec<Pool>> {
    Ok(serde_json::from_value(document["pools"].take())?)
}

/// What one phase saw.
struct Step {
    concurrency: usize,
    requests: u64,
    errors: u64,
    ttft_us: Histogram<u64>,
    regimes: Vec<Regime>,
}

/// What the run saw.
pub struct Summary {
    steps: Vec<Step>,
    /// Regimes of each pool in the order they were met, without repeats.
    paths: BTreeMap<String, Vec<Regime>>,
    first_error: Option<String>,
}

impl Summary {
    /// An empty summary of `plan`.
    ///
    /// # Errors
    /// Never: the bounds of the histogram are constants in range.
    pub fn new(plan: &[Phase]) -> Result<Self> {
        let steps = plan
            .iter()
            .map(|phase| {
                Ok(Step {
                    concurrency: phase.concurrency,
                    requests: 0,
                    errors: 0,
                    ttft_us: Histogram::new_with_bounds(1, LONGEST_US, 2)?,
                    regimes: Vec::new(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            steps,
            paths: BTreeMap::new(),
            first_error: None,
        })
    }

    /// Count a finished request.
    pub fn record(&mut self, sample: &Sample) {
        let Some(step) = self.steps.get_mut(sample.phase) else {
            return;
        };
        step.requests += 1;
        match &sample.ttft {
            Ok(ttft) => {
                let us = u64::try_from(ttft.as_micros()).unwrap_or(u64::MAX);
                step.ttft_us.saturating_record(us);
            }
            Err(error) => {
                step.errors += 1;
                self.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    /// Note the regimes seen during `phase`.
    pub fn observe(&mut self, phase: usize, pools: &[Pool]) {
        for pool in pools {
            let name = format!("{} {}", pool.model, pool.role);
            push_new(self.paths.entry(name).or_default(), pool.regime);
            if let Some(step) = self.steps.get_mut(phase) {
                push_new(&mut step.regimes, pool.regime);
            }
        }
    }

    /// One row for `phase`.
    #[must_use]
    pub fn row(&self, phase: usize) -> Vec<String> {
        self.steps.get(phase).map(Step::row).unwrap_or_default()
    }

    /// All phases as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table
            .load_preset(UTF8_FULL_CONDENSED)
            .set_header(HEADER)
            .add_rows(self.steps.iter().map(Step::row));
        for column in table.column_iter_mut().take(HEADER.len() - 1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// What went wrong, in words; empty when no request failed and one pool entered and left every regime.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let errors: u64 = self.steps.iter().map(|step| step.errors).sum();
        if let Some(error) = &self.first_error {
            faults.push(format!("{errors} requests failed; the first: {error}"));
        }
        let missed = |path: &Vec<Regime>| -> Vec<Regime> {
            WANTED
                .into_iter()
                .filter(|regime| !entered_and_left(path, *regime))
                .collect()
        };
        let best = self.paths.iter().min_by_key(|(_, path)| missed(path).len());
        match best {
            None => faults.push("the router reported no pool".to_owned()),
            Some((pool, path)) => faults.extend(missed(path).into_iter().map(|regime| {
                format!(
                    "pool {pool} did not enter and leave {regime}; its path was {}",
                    words(path)
                )
            })),
        }
        faults
    }
}

/// Column titles of the table.
pub const HEADER: [&str; 6] = [
    "in flight",
    "requests",
    "errors",
    "TTFT P50",
    "TTFT P99",
    "regimes seen",
];

impl Step {
    fn row(&self) -> Vec<String> {
        vec![
            self.concurrency.to_string(),
            self.requests.to_string(),
            self.errors.to_string(),
            self.quantile(0.5),
            self.quantile(0.99),
            words(&self.regimes),
        ]
    }

    fn quantile(&self, share: f64) -> String {
        if self.ttft_us.is_empty() {
            return "-".to_owned();
        }
        let ttft = Duration::from_micros(self.ttft_us.value_at_quantile(share));
        format!("{} ms", ttft.as_millis())
    }
}

fn push_new(path: &mut Vec<Regime>, regime: Regime) {
    if path.last() != Some(&regime) {
        path.push(regime);
    }
}

fn entered_and_left(path: &[Regime], regime: Regime) -> bool {
    path.split_last()
        .is_some_and(|(_, before)| before.contains(&regime))
}

fn words(path: &[Regime]) -> String {
    path.iter()
        .map(|regime| regime.as_str())
        .collect::<Vec<_>>()
        .join(" → ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;

    fn summary(path: &[Regime]) -> Summary {
        let mut summary = Summary::new(&[Phase {
            concurrency: 8,
            length: Duration::from_secs(1),
        }])
        .unwrap();
        for regime in path {
            let pool = Pool {
                model: "m".to_owned(),
                role: "aggregated".to_owned(),
                regime: *regime,
            };
            summary.observe(0, &[pool]);
        }
        summary
    }

    const ROUND_TRIP: [Regime; 6] = [
        Regime::Below,
        Regime::Transition,
        Regime::Saturated,
        Regime::Transition,
        Regime::Below,
        Regime::Unknown,
    ];

    #[test]
    fn a_round_trip_through_all_regimes_without_errors_has_no_fault() {
        assert_eq!(summary(&ROUND_TRIP).faults(), Vec::<String>::new());
    }

    #[test]
    fn a_regime_that_is_not_left_is_a_fault() {
        let faults = summary(&ROUND_TRIP[..3]).faults();
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("did not enter and leave saturated"));
    }

    #[test]
    fn a_failed_request_is_a_fault_that_quotes_the_first_error() {
        let mut summary = summary(&ROUND_TRIP);
        for error in ["boom", "later"] {
            summary.record(&Sample {
                phase: 0,
                ttft: Err(anyhow!(error)),
            });
        }
        assert_eq!(summary.faults(), ["2 requests failed; the first: boom"]);
    }

    #[test]
    fn no_pool_at_all_is_a_fault() {
        assert_eq!(summary(&[]).faults(), ["the router reported no pool"]);
    }

    #[test]
    fn a_row_holds_counts_quantiles_and_regimes() {
        let mut summary = summary(&[Regime::Below, Regime::Below, Regime::Transition]);
        for ms in [20, 20, 20, 90] {
            summary.record(&Sample {
                phase: 0,
                ttft: Ok(Duration::from_millis(ms)),
            });
        }
        let row = summary.row(0);
        // A value of the histogram stands for its bucket, which ends within 1 % above.
        assert_eq!(row[..5], ["8", "4", "0", "20 ms", "90 ms"]);
        assert_eq!(row[5], "below → transition");
    }

    #[test]
    fn a_phase_without_requests_shows_no_latency() {
        assert_eq!(summary(&[]).row(0)[3], "-");
    }

    #[test]
    fn pools_are_read_from_the_document_and_other_keys_are_left_alone() {
        let document = json!({"schema": 1, "pools": [
            {"model": "m", "role": "decode", "regime": "transition", "since": "x"}]});
        let pool = Pool {
            model: "m".to_owned(),
            role: "decode".to_owned(),
            regime: Regime::Transition,
        };
        assert_eq!(pools(document).unwrap(), [pool]);
    }
}
