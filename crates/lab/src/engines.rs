// SPDX-License-Identifier: Apache-2.0

//! Which engine each worker runs: limits, cache sizes and the time of a forward pass.
//!
//! An engine is a YAML file. Presets are built in; any other file works by its path, and a table of pass
//! times is looked for beside it:
//!
//! ```yaml
//! description: what this is
//! timing: { type: table, file: my-gpu.csv, smooth: false }   # or polynomial, or fixed with prefill_ms, decode_ms
//! ranks: 1                  # data-parallel ranks of one worker
//! tensor_parallel: 4        # GPUs of one rank
//! handoff_latency_ms: 0     # KV transfer time where bytes and bandwidth are not given
//! engine:                   # any setting of NVIDIA's simulated engine, see below
//!   block_size: 16
//!   num_gpu_blocks: 8192
//! prefill: { max_num_seqs: 16 }     # differences of the prefill workers
//! decode: {}                        # differences of the decode workers
//! ```
//!
//! Settings of `engine` are those of `aisimulate_core::engine::EngineConfig`: among others `backend`
//! (vllm, sglang, trtllm), `max_num_seqs`, `max_num_batched_tokens`, `max_model_len`,
//! `native_host_offload` (`{num_host_blocks: …}` for a host tier of each worker, with
//! `scope: cluster_shared, kv_layout_id: …` for one that all share), `kv_transfer_bandwidth`. An unknown
//! setting is refused with the list of the known ones.
//!
//! [`crate::timing`] documents the table. Ask `aiconfigurator-core` on PyPI, NVIDIA's performance
//! database, for the figures of another model or system, or measure one pass of each size.
//!
//! The limits of the presets are vLLM's usual ones, with a KV cache of 8,192 blocks of 16 tokens, so
//! that a small fleet shows eviction: a 70B model leaves more room on eight GPUs, and less on two.

use std::path::Path;
use std::sync::Arc;

use aisimulate_core::engine::{
    EngineConfig, G2Scope, WorkerType as EngineRole, prefill_handoff_delay_ms,
};
use aisimulate_core::{TimingModel, TimingModelConfig};
use dynamo_kv_router::WorkerType;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::timing::{TableError, TimingTable};
use crate::workload::LONGEST_MS;

/// Built-in engines: name, YAML, and the table that it names.
const PRESETS: [(&str, &str, Option<&str>); 5] = [
    (
        "b200-70b",
        include_str!("../../../configs/engines/b200-70b.yaml"),
        Some(include_str!(
            "../../../configs/engines/b200-llama-3.1-70b-fp8-tp4.csv"
        )),
    ),
    (
        "b200-70b-narrow",
        include_str!("../../../configs/engines/b200-70b-narrow.yaml"),
        Some(include_str!(
            "../../../configs/engines/b200-llama-3.1-70b-fp8-tp4.csv"
        )),
    ),
    (
        "h200-70b",
        include_str!("../../../configs/engines/h200-70b.yaml"),
        Some(include_str!(
            "../../../configs/engines/h200-llama-3.1-70b-fp8-tp4.csv"
        )),
    ),
    (
        "polynomial",
        include_str!("../../../configs/engines/polynomial.yaml"),
        None,
    ),
    (
        "fixed",
        include_str!("../../../configs/engines/fixed.yaml"),
        None,
    ),
];

/// The engine used where none is named.
pub const DEFAULT_ENGINE: &str = "b200-70b";

/// The simulator's tier below host memory, which its engines refuse outside of its own event loop.
const DISK_TIER: &str = "g3_offload";

/// An engine that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No such preset, and no file of that name.
    #[error("unknown engine {name:?}; allowed are {allowed}, or the path of a YAML file")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names of the presets.
        allowed: String,
    },
    /// A file that cannot be read.
    #[error("engine file {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file that is not an engine.
    #[error("engine {name}: {problem}")]
    Invalid {
        /// Preset or path.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A table that is not one.
    #[error("timing table {path}")]
    Table {
        /// The file.
        path: String,
        /// Line and problem.
        source: TableError,
    },
}

/// One preset, for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnginePreset {
    /// Name to ask for.
    pub name: &'static str,
    /// One line of text.
    pub description: String,
}

/// An engine with everything resolved.
#[derive(Debug, Clone)]
pub struct Engine {
    name: String,
    description: String,
    timing: Timing,
    ranks: u32,
    tensor_parallel: u32,
    handoff_latency_ms: f64,
    /// Settings of the aggregated, prefill and decode workers.
    configs: [EngineConfig; 3],
}

#[derive(Debug, Clone)]
enum Timing {
    Table(Arc<TimingTable>),
    Fixed { prefill_ms: f64, decode_ms: f64 },
    Polynomial,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EngineFile {
    description: String,
    timing: TimingFile,
    #[serde(default = "one")]
    ranks: u32,
    #[serde(default = "one")]
    tensor_parallel: u32,
    #[serde(default)]
    handoff_latency_ms: f64,
    #[serde(default)]
    engine: Map<String, Value>,
    #[serde(default)]
    prefill: Map<String, Value>,
    #[serde(default)]
    decode: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum TimingFile {
    Table {
        file: String,
        #[serde(default)]
        smooth: bool,
    },
    Polynomial {},
    Fixed {
        prefill_ms: f64,
        decode_ms: f64,
    },
}

const fn one() -> u32 {
    1
}

impl Engine {
    /// The presets.
    #[must_use]
    pub fn presets() -> Vec<EnginePreset> {
        PRESETS
            .iter()
            .filter_map(|(name, ..)| {
                let engine = Self::load(name).ok()?;
                Some(EnginePreset {
                    name,
                    description: engine.description,
                })
            })
            .collect()
    }

    /// A preset by its name, or a YAML file by its path.
    ///
    /// # Errors
    /// When there is neither, or when it is not a valid engine.
    pub fn load(name: &str) -> Result<Self, EngineError> {
        Self::load_with(name, &Map::new())
    }

    /// The same with other settings: keys of the section `engine`, as in the file.
    ///
    /// # Errors
    /// As [`Self::load`], and when a setting is unknown or out of range.
    pub fn load_with(name: &str, settings: &Map<String, Value>) -> Result<Self, EngineError> {
        if let Some((name, yaml, table)) = PRESETS.iter().find(|(preset, ..)| *preset == name) {
            return Self::parse(name, yaml, settings, |_| {
                Ok(table.unwrap_or_default().to_owned())
            });
        }
        let path = Path::new(name);
        if !path.is_file() {
            let allowed: Vec<_> = PRESETS.iter().map(|(name, ..)| *name).collect();
            return Err(EngineError::Unknown {
                name: name.to_owned(),
                allowed: allowed.join(", "),
            });
        }
        let beside = path.parent().unwrap_or(Path::new("."));
        Self::parse(name, &read(path)?, settings, |file| {
            read(&beside.join(file))
        })
    }

    /// Preset or path that was asked for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One line of text.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Data-parallel ranks of one worker.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Tokens in a KV block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.configs[0].block_size
    }

    /// The same under another name, which tells variants apart in results.
    #[must_use]
    pub fn renamed(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// KV bytes of one token over all GPUs of a rank; absent where the engine does not say.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> Option<u64> {
        self.configs[0]
            .kv_cache_bytes_per_token
            .map(|bytes| bytes as u64)
    }

    /// Whether all workers share one host tier.
    pub(crate) fn shares_host_tier(&self) -> bool {
        let host = self.configs[0].native_host_offload.as_ref();
        host.is_some_and(|host| host.scope == G2Scope::ClusterShared)
    }

    pub(crate) const fn tensor_parallel(&self) -> u32 {
        self.tensor_parallel
    }

    pub(crate) const fn handoff_latency_ms(&self) -> f64 {
        self.handoff_latency_ms
    }

    /// The table, where there is one.
    pub(crate) fn timing_model(&self) -> Option<Arc<dyn TimingModel>> {
        match &self.timing {
            Timing::Table(table) => Some(Arc::clone(table) as Arc<dyn TimingModel>),
            Timing::Fixed { .. } | Timing::Polynomial => None,
        }
    }

    /// Settings of a worker of `role` that is `slowdown` times as slow as the table says.
    pub(crate) fn config(&self, role: WorkerType, slowdown: f64) -> EngineConfig {
        let mut config = self.of(role).clone();
        config.speedup_ratio /= slowdown;
        config
    }

    /// Sequences that a rank of `role` serves at once; absent where there is no limit.
    pub(crate) fn seats(&self, role: WorkerType) -> Option<usize> {
        Some(self.of(role).max_num_seqs).filter(|seats| *seats < usize::MAX)
    }

    /// Time in which an idle worker of `role` computes `tokens` of a prompt, ms. Absent where pass times are
    /// neither in a table nor fixed.
    pub(crate) fn prefill_alone_ms(&self, role: WorkerType, tokens: usize) -> Option<f64> {
        let pass_ms = |tokens| match &self.timing {
            Timing::Table(table) => Some(table.prefill_ms(tokens)),
            Timing::Fixed { prefill_ms, .. } => Some(*prefill_ms),
            Timing::Polynomial => None,
        };
        let config = self.of(role);
        let most = config.max_num_batched_tokens.max(1);
        let (full, rest) = (tokens / most, tokens % most);
        let mut ms = if rest > 0 { pass_ms(rest)? } else { 0.0 };
        if full > 0 {
            ms += full as f64 * pass_ms(most)?;
        }
        Some(ms / speed(config.speedup_ratio))
    }

    /// Time from the end of a prefill of `tokens` to the first token of an idle decode worker, ms: the transfer
    /// and a step of one sequence. Absent likewise.
    pub(crate) fn handed_over_alone_ms(&self, tokens: usize) -> Option<f64> {
        let (prefill, decode) = (self.of(WorkerType::Prefill), self.of(WorkerType::Decode));
        let transfer_ms = prefill_handoff_delay_ms(
            prefill.worker_type,
            true,
            tokens,
            prefill.kv_transfer_bandwidth,
            prefill.kv_transfer_bytes_per_token,
        );
        let step_ms = match &self.timing {
            Timing::Table(table) => table.decode_ms(1, tokens),
            Timing::Fixed { decode_ms, .. } => *decode_ms,
            Timing::Polynomial => return None,
        };
        let speed = speed(decode.speedup_ratio) * speed(decode.decode_speedup_ratio);
        Some(transfer_ms.unwrap_or(self.handoff_latency_ms) + step_ms / speed)
    }

    fn of(&self, role: WorkerType) -> &EngineConfig {
        match role {
            WorkerType::Prefill => &self.configs[1],
            WorkerType::Decode => &self.configs[2],
            _ => &self.configs[0],
        }
    }

    fn parse(
        name: &str,
        yaml: &str,
        settings: &Map<String, Value>,
        table: impl FnOnce(&str) -> Result<String, EngineError>,
    ) -> Result<Self, EngineError> {
        let invalid = |problem: String| EngineError::Invalid {
            name: name.to_owned(),
            problem,
        };
        let file: EngineFile =
            serde_yaml::from_str(yaml).map_err(|error| invalid(error.to_string()))?;
        for (key, value) in [
            ("ranks", file.ranks),
            ("tensor_parallel", file.tensor_parallel),
        ] {
            if !(1..=64).contains(&value) {
                return Err(invalid(format!("{key} is {value}; allowed are 1 to 64")));
            }
        }
        if file.engine.contains_key(DISK_TIER) || settings.contains_key(DISK_TIER) {
            return Err(invalid(format!(
                "{DISK_TIER} works in NVIDIA's own replay alone; allowed is native_host_offload with a disk's \
                 latency and bandwidth"
            )));
        }
        if !(0.0..=LONGEST_MS).contains(&file.handoff_latency_ms) {
            let value = file.handoff_latency_ms;
            return Err(invalid(format!(
                "handoff_latency_ms is {value}; allowed are 0 to {LONGEST_MS}"
            )));
        }
        let (timing, model) = match file.timing {
            TimingFile::Polynomial {} => (Timing::Polynomial, TimingModelConfig::Polynomial),
            TimingFile::Fixed {
                prefill_ms,
                decode_ms,
            } => (
                Timing::Fixed {
                    prefill_ms,
                    decode_ms,
                },
                TimingModelConfig::Fixed {
                    prefill_ms,
                    decode_ms,
                },
            ),
            TimingFile::Table { file, smooth } => {
                let parsed =
                    TimingTable::parse(&table(&file)?).map_err(|source| EngineError::Table {
                        path: file.clone(),
                        source,
                    })?;
                let parsed = if smooth { parsed.smooth() } else { parsed };
                (
                    Timing::Table(Arc::new(parsed)),
                    TimingModelConfig::Polynomial,
                )
            }
        };
        let config = |role, differences: &Map<String, Value>| {
            let mut all = file.engine.clone();
            all.extend(settings.clone());
            all.extend(differences.clone());
            let read = |all| serde_json::from_value::<EngineConfig>(Value::Object(all));
            let mut config = read(all.clone()).map_err(|error| {
                // The error does not say which setting it is about.
                let wrong = |(key, value): &(&String, &Value)| {
                    read(Map::from_iter([((*key).clone(), (*value).clone())])).is_err()
                };
                invalid(match all.iter().find(wrong) {
                    Some((key, value)) => format!("{key} is {value}: {error}"),
                    None => error.to_string(),
                })
            })?;
            config.worker_type = role;
            config.timing_model = model.clone();
            // Events of decode workers reach nobody: their pool does not look at overlap.
            config.emit_kv_events = role != EngineRole::Decode;
            config
                .validate()
                .map_err(|error| invalid(format!("{error:#}")))?;
            Ok(config)
        };
        let configs = [
            config(EngineRole::Aggregated, &Map::new())?,
            config(EngineRole::Prefill, &file.prefill)?,
            config(EngineRole::Decode, &file.decode)?,
        ];
        if configs
            .iter()
            .any(|config| config.block_size != configs[0].block_size)
        {
            return Err(invalid("block_size must be the same for all roles".into()));
        }
        Ok(Self {
            name: name.to_owned(),
            description: file.description,
            timing,
            ranks: file.ranks,
            tensor_parallel: file.tensor_parallel,
            handoff_latency_ms: file.handoff_latency_ms,
            configs,
        })
    }
}

/// The divisor of times that a speed-up is; the simulator takes 0 for none.
fn speed(ratio: f64) -> f64 {
    if ratio > 0.0 { ratio } else { 1.0 }
}

fn read(path: &Path) -> Result<String, EngineError> {
    std::fs::read_to_string(path).map_err(|source| EngineError::Read {
        path: path.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_preset_loads_and_is_described() {
        let names: Vec<_> = Engine::presets().iter().map(|preset| preset.name).collect();
        assert_eq!(
            names,
            [
                "b200-70b",
                "b200-70b-narrow",
                "h200-70b",
                "polynomial",
                "fixed"
            ]
        );
        assert!(
            Engine::presets()
                .iter()
                .all(|preset| preset.description.len() > 20)
        );
    }

    #[test]
    fn the_shipped_tables_hold_the_measured_figures() {
        for (name, prefill, decode) in [
            ("b200-70b", 11.8626, 9.3600),
            ("h200-70b", 13.6201, 10.7982),
        ] {
            let timing = Engine::load(name).unwrap().timing_model().unwrap();
            assert_eq!(timing.predict_prefill_ms(1, 128, 0).unwrap(), prefill);
            assert_eq!(timing.predict_decode_ms(64, 0, 256, 0).unwrap(), decode);
        }
    }

    #[test]
    fn an_unknown_engine_is_refused_with_the_names() {
        let error = Engine::load("b300").err().unwrap().to_string();
        assert!(
            error.contains("\"b300\"")
                && error.contains("b200-70b, b200-70b-narrow, h200-70b, polynomial, fixed")
        );
    }

    #[test]
    fn settings_replace_those_of_the_file_and_unknown_ones_are_refused() {
        let set = |key: &str, value: Value| {
            Engine::load_with("fixed", &Map::from_iter([(key.to_owned(), value)]))
        };
        let engine = set("num_gpu_blocks", json!(100)).unwrap();
        assert_eq!(engine.config(WorkerType::Prefill, 1.0).num_gpu_blocks, 100);
        let error = set("num_gpu_blocks", json!("x")).err().unwrap().to_string();
        assert!(
            error.starts_with("engine fixed: num_gpu_blocks is \"x\": "),
            "{error}"
        );
        let disk = json!({"scope": "worker_local", "num_g3_blocks": 1});
        let error = set("g3_offload", disk).err().unwrap().to_string();
        assert!(error.contains("native_host_offload"), "{error}");
        let error = set("num_gpu_block", json!(100)).err().unwrap().to_string();
        assert!(
            error.contains("num_gpu_block") && error.contains("num_gpu_blocks"),
            "{error}"
        );
    }

    #[test]
    fn a_slow_worker_takes_its_factor_longer() {
        let engine = Engine::load("fixed").unwrap();
        assert_eq!(
            engine.config(WorkerType::Aggregated, 2.0).speedup_ratio,
            0.5
        );
    }

    #[test]
    fn a_file_finds_its_table_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("t.csv"),
            "prefill,1\n,7\ndecode,1\n1,3\n",
        )
        .unwrap();
        let path = folder.path().join("e.yaml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let load = || Engine::load(path.to_str().unwrap());
        write("description: mine\ntiming: { type: table, file: t.csv }\nranks: 2\n");
        let engine = load().unwrap();
        assert_eq!(
            (
                engine.ranks(),
                engine
                    .timing_model()
                    .unwrap()
                    .predict_prefill_ms(1, 1, 0)
                    .unwrap()
            ),
            (2, 7.0)
        );
        for (text, word) in [
            (
                "description: mine\ntiming: { type: table, file: no.csv }\n",
                "no.csv",
            ),
            ("description: mine\ntiming: { type: cubic }\n", "polynomial"),
            (
                "description: mine\ntiming: { type: polynomial }\nranks: 0\n",
                "ranks is 0",
            ),
            (
                "description: mine\ntiming: { type: polynomial }\nengin: {}\n",
                "engin",
            ),
            ("timing: { type: polynomial }\n", "description"),
            (
                "description: mine\ntiming: { type: polynomial }\nprefill: { block_size: 32 }\n",
                "block_size",
            ),
        ] {
            write(text);
            let error = load().err().unwrap().to_string();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }
}
