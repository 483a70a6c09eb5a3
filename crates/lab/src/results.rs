// SPDX-License-Identifier: Apache-2.0

//! Runs as files: `results.json` for machines, `results.csv` for spreadsheets.
//!
//! Names of fields stay; later additions stand beside them. What was not measured is left out, in CSV an
//! empty cell. Everything but the object `wall` is a pure function of the inputs, so two files of the
//! same experiments differ nowhere else. Numbers come from a simulation, and the file says so.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::anarchy::Anarchy;
use crate::detection::Detection;
use crate::experiments::{Comparison, PaperReport, Score, TierPoint};
use crate::files::write_whole;
use crate::metrics::Metrics;
use crate::queueing::Queueing;
use crate::regimes::RegimeTimes;
use crate::run::{Experiment, Load, Run, SelectionCost, Settings};
use crate::workloads::OfferedLoad;

/// Version of the file's layout.
pub const SCHEMA: &str = "regime-lab.results.v1";

/// What was run and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: String,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// One entry for each run.
    pub runs: Vec<RunEntry>,
    /// Policies against a baseline, where they were compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// Policies over all cells, in a suite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scoreboard: Vec<Score>,
    /// The paper beside what was measured, in a reproduction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<PaperReport>,
    /// How well the regime detector knows the regime, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
}

/// Where numbers come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// This program and its version.
    pub generator: String,
    /// The simulator and its version.
    pub simulator: String,
    /// The router and its version.
    pub router: String,
    /// What kind of numbers these are.
    pub numbers: String,
    /// The command that made the file, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl Default for Provenance {
    fn default() -> Self {
        Self {
            generator: concat!("regime-lab ", env!("CARGO_PKG_VERSION")).into(),
            simulator: "aisimulate-core 0.13.0".into(),
            router: "dynamo-kv-router 1.6.1".into(),
            numbers: "simulated; they rank policies and are no measurements of hardware".into(),
            command: None,
        }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// Label of the policy.
    pub policy: String,
    /// What is unusual about the run, in a suite of such conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Where it stands in the suite of tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier_point: Option<TierPoint>,
    /// Name of the workload.
    pub workload: String,
    /// `light`, `knee`, `saturated`, or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// The rate or the sessions at once that this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<OfferedLoad>,
    /// The search never got as far as the load is defined: the highest try stands for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub load_not_reached: bool,
    /// `4`, `2P3D`.
    pub topology: String,
    /// Name of the engine.
    pub engine: String,
    /// Seed of the run.
    pub seed: u64,
    /// Settings of the run.
    pub settings: Settings,
    /// Measurements.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Price of Anarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anarchy: Option<Anarchy>,
    /// Why there is none: `not_watched`, or the name of a `NoEstimate` of `regime-anarchy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anarchy_unavailable: Option<String>,
    /// Wall-clock times: the only values that differ between two runs of the same inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<SelectionCost>,
    /// Objects added by others.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl RunEntry {
    /// The entry of a run.
    #[must_use]
    pub fn new(experiment: &Experiment, run: &Run) -> Self {
        Self {
            policy: experiment.policy.label().to_owned(),
            condition: None,
            tier_point: None,
            workload: experiment.workload.name.clone(),
            load: experiment.load,
            offered: experiment.offered,
            load_not_reached: false,
            topology: experiment.topology.to_string(),
            engine: experiment.engine.name().to_owned(),
            seed: experiment.seed,
            settings: experiment.settings.clone(),
            metrics: run.metrics.clone(),
            anarchy: run.anarchy.clone().ok(),
            anarchy_unavailable: run.anarchy.as_ref().err().map(|why| (*why).to_owned()),
            wall: Some(run.selection),
            more: objects(experiment, run),
        }
    }

    /// Theory beside measurement, where there is any.
    #[must_use]
    pub fn queueing(&self) -> Option<Queueing> {
        Queueing::deserialize(self.more.get("queueing")?).ok()
    }

    /// The regimes of each pool by its role, under a policy that tells them.
    #[must_use]
    pub fn regimes(&self) -> BTreeMap<String, RegimeTimes> {
        let regimes = self.more.get("regimes");
        regimes
            .and_then(|it| Deserialize::deserialize(it).ok())
            .unwrap_or_default()
    }
}

/// What else is known of a run: [`Queueing`] as `queueing`, [`RegimeTimes`] by pool as `regimes`.
fn objects(experiment: &Experiment, run: &Run) -> Map<String, Value> {
    let Experiment {
        engine,
        topology,
        settings,
        ..
    } = experiment;
    let mut objects = Map::new();
    if let Some(queueing) = Queueing::of(&run.record, engine, *topology, settings) {
        objects.insert("queueing".into(), json!(queueing));
    }
    let regimes = RegimeTimes::of(&run.record);
    if !regimes.is_empty() {
        objects.insert("regimes".into(), json!(regimes));
    }
    objects
}

/// A file that could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file system.
    #[error("{path}")]
    Io {
        /// File or folder.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Not a results file.
    #[error("{path}: {problem}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

impl Results {
    /// Results of these runs.
    #[must_use]
    pub fn new(provenance: Provenance, runs: Vec<RunEntry>) -> Self {
        Self {
            schema: SCHEMA.into(),
            provenance,
            runs,
            comparisons: Vec::new(),
            scoreboard: Vec::new(),
            paper: None,
            detection: None,
        }
    }

    /// As JSON, with a newline at the end.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Nothing in the structure can fail: keys are strings and numbers are finite.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// As CSV: one line for each run.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = csv::Writer::from_writer(Vec::new());
        for (index, run) in self.runs.iter().enumerate() {
            let (names, values): (Vec<_>, Vec<_>) = cells(run).into_iter().unzip();
            // Writing to memory cannot fail, and every line has the same columns.
            if index == 0 {
                let _ = csv.write_record(names);
            }
            let _ = csv.write_record(values);
        }
        let bytes = csv.into_inner().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Write `results.json` and `results.csv` into `folder`, which is made if need be. Each file is
    /// written beside its place and then moved, so that a reader never sees half of one.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, folder: &Path) -> Result<(), ResultsError> {
        let io = |path: &Path, source| ResultsError::Io {
            path: path.display().to_string(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
        for (name, text) in [
            ("results.json", self.to_json()),
            ("results.csv", self.to_csv()),
        ] {
            write_whole(folder, name, &text).map_err(|source| io(&folder.join(name), source))?;
        }
        Ok(())
    }

    /// Read a `results.json`.
    ///
    /// # Errors
    /// Of the file system, and when the file has another layout.
    pub fn read(path: &Path) -> Result<Self, ResultsError> {
        let text = std::fs::read_to_string(path).map_err(|source| ResultsError::Io {
            path: path.display().to_string(),
            source,
        })?;
        let format = |problem: String| ResultsError::Format {
            path: path.display().to_string(),
            problem,
        };
        let results: Self =
            serde_json::from_str(&text).map_err(|error| format(error.to_string()))?;
        if results.schema != SCHEMA {
            return Err(format(format!(
                "schema {:?}, expected {SCHEMA:?}",
                results.schema
            )));
        }
        Ok(results)
    }
}

/// Columns of a run, the same for every run.
fn cells(run: &RunEntry) -> Vec<(String, String)> {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let metrics = &run.metrics;
    let mut cells: Vec<(String, String)> = [
        ("policy", run.policy.clone()),
        ("workload", run.workload.clone()),
        (
            "load",
            run.load.map_or_else(String::new, |load| load.to_string()),
        ),
        ("topology", run.topology.clone()),
        ("engine", run.engine.clone()),
        ("seed", run.seed.to_string()),
        ("completed", metrics.completed.to_string()),
        ("rejected", metrics.rejected.to_string()),
        ("errors", metrics.errors.to_string()),
        ("unfinished", metrics.unfinished.to_string()),
        ("duration_s", number(metrics.duration_s)),
        ("requests_per_s", number(metrics.requests_per_s)),
        ("output_tokens_per_s", number(metrics.output_tokens_per_s)),
        ("goodput", number(metrics.goodput)),
        (
            "goodput_requests_per_s",
            number(metrics.goodput_requests_per_s),
        ),
        ("engine_reuse", number(metrics.engine_reuse)),
        (
            "engine_reuse_request_mean",
            number(metrics.engine_reuse_request_mean),
        ),
        ("imbalance", number(metrics.imbalance)),
        ("imbalance_jain", number(metrics.imbalance_jain)),
        ("peak_in_flight", metrics.peak_in_flight.to_string()),
        ("worker_seconds", number(metrics.worker_seconds)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    for (name, sample) in [
        ("ttft_ms", &metrics.ttft_ms),
        ("itl_ms", &metrics.itl_ms),
        ("e2e_ms", &metrics.e2e_ms),
    ] {
        let values = sample.as_ref().map(|it| [it.mean, it.p50, it.p90, it.p99]);
        for (index, what) in ["mean", "p50", "p90", "p99"].into_iter().enumerate() {
            let value = values.and_then(|values| values.get(index).copied());
            cells.push((format!("{name}.{what}"), number(value)));
        }
    }
    let selection = run.wall.and_then(|wall| wall.mean_us);
    cells.push(("wall.mean_us".into(), number(selection)));
    let condition = run.condition.clone().unwrap_or_default();
    cells.push(("condition".into(), condition));
    let (rate, concurrency) = match run.offered {
        Some(OfferedLoad::Rate(rate)) => (rate.to_string(), String::new()),
        Some(OfferedLoad::Concurrency(sessions)) => (String::new(), sessions.to_string()),
        None => Default::default(),
    };
    cells.push(("offered.rate".into(), rate));
    cells.push(("offered.concurrency".into(), concurrency));
    let reached = if run.load_not_reached { "true" } else { "" };
    cells.push(("load_not_reached".into(), reached.into()));
    let anarchy = run.anarchy.as_ref().map(|it| it.ttft);
    for (name, value) in [
        ("slowdown", anarchy.map(|it| it.slowdown)),
        ("policy_gap", anarchy.map(|it| it.policy_gap)),
        ("temporal_gap", anarchy.map(|it| it.temporal_gap)),
        ("overload", anarchy.map(|it| it.overload)),
        ("poa_hat", anarchy.map(|it| it.poa_hat)),
    ] {
        cells.push((format!("anarchy.{name}"), number(value)));
    }
    let (point, tiers) = (run.tier_point, metrics.tiers);
    for (name, value) in [
        ("tier_point.cache_share", point.map(|it| it.cache_share)),
        ("tier_point.omega_scale", point.map(|it| it.omega_scale)),
        ("tiers.device_hits", tiers.map(|it| it.device_hits)),
        ("tiers.host_hits", tiers.map(|it| it.host_hits)),
        ("tiers.host_read_gb", tiers.and_then(|it| it.host_read_gb)),
        (
            "tiers.host_written_gb",
            tiers.and_then(|it| it.host_written_gb),
        ),
    ] {
        cells.push((name.into(), number(value)));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Distribution;

    fn entry() -> RunEntry {
        RunEntry {
            policy: "mine, \"twice\"".into(),
            condition: None,
            tier_point: None,
            workload: "chat".into(),
            load: Some(Load::Number(1.5)),
            offered: Some(OfferedLoad::Rate(1.5)),
            load_not_reached: false,
            topology: "4".into(),
            engine: "fixed".into(),
            seed: u64::MAX,
            settings: Settings::default(),
            metrics: Metrics {
                completed: 1,
                ttft_ms: Distribution::of(vec![0.1 + 0.2]),
                ..Metrics::default()
            },
            anarchy: None,
            anarchy_unavailable: None,
            wall: None,
            more: Map::from_iter([("regimes".into(), json!({"below": 1}))]),
        }
    }

    #[test]
    fn a_report_reads_back_as_it_was_written() {
        let results = Results::new(Provenance::default(), vec![entry()]);
        let folder = tempfile::tempdir().unwrap();
        results.write(&folder.path().join("out")).unwrap();
        let read = Results::read(&folder.path().join("out/results.json")).unwrap();
        assert_eq!(read, results);
    }

    #[test]
    fn json_has_the_agreed_names_and_leaves_out_what_is_absent() {
        let results = Results::new(Provenance::default(), vec![entry()]);
        let json: Value = serde_json::from_str(&results.to_json()).unwrap();
        let run = &json["runs"][0];
        assert_eq!(
            (&json["schema"], &run["load"], &run["completed"]),
            (&json!(SCHEMA), &json!(1.5), &json!(1))
        );
        assert_eq!(run["offered"], json!({"rate": 1.5}));
        assert!(run.get("load_not_reached").is_none());
        assert_eq!(run["ttft_ms"]["p99_from_few"], true);
        assert!(run.get("goodput").is_none() && run.get("itl_ms").is_none());
        assert_eq!(run["regimes"]["below"], 1);
        assert!(!results.to_json().contains("null"));
    }

    #[test]
    fn csv_quotes_what_must_be_quoted_and_leaves_absent_cells_empty() {
        let csv = Results::new(Provenance::default(), vec![entry(), entry()]).to_csv();
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("policy,workload,load,topology,engine,seed,completed"));
        assert!(lines[1].starts_with(
            "\"mine, \"\"twice\"\"\",chat,1.5,4,fixed,18446744073709551615,1,0,0,0,,,"
        ));
    }

    #[test]
    fn a_file_of_another_layout_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        let mut results = Results::new(Provenance::default(), Vec::new());
        results.schema = "other".into();
        std::fs::write(&path, results.to_json()).unwrap();
        assert!(
            Results::read(&path)
                .unwrap_err()
                .to_string()
                .contains("schema \"other\"")
        );
        assert!(
            Results::read(&folder.path().join("no.json"))
                .unwrap_err()
                .to_string()
                .contains("no.json")
        );
    }
}
