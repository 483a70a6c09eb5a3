// SPDX-License-Identifier: Apache-2.0

//! One mock engine worker.
//!
//! Each worker has a Dynamo `Runtime` of its own on the shared Tokio runtime. Two things follow: its discovery entry and
//! instance id are its own, as if it were a process, and it can be drained alone, while the frontend still needs the
//! others.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use dynamo_llm::entrypoint::EngineConfig;
use dynamo_llm::entrypoint::input::endpoint;
use dynamo_llm::local_model::LocalModelBuilder;
use dynamo_llm::local_model::runtime_config::{DisaggregatedEndpoint, ModelRuntimeConfig};
use dynamo_llm::mocker::make_mocker_engine;
use dynamo_mocker::common::protocols::MockerConfig;
use dynamo_runtime::protocols::EndpointId;
use dynamo_runtime::{DistributedRuntime, Runtime};
use serde_json::json;
use tokio::task::JoinHandle;

use super::timing::Timing;
use super::topology::Role;
use crate::discovery::Discovery;
use crate::values::{positive, switch};

/// What the simulated engine is like.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Mock engine")]
pub struct EngineArgs {
    /// Name of the mock model.
    #[arg(long, value_name = "NAME", default_value = "mock")]
    pub mock_model_name: String,

    /// Times of a forward pass: fixed, polynomial (Dynamo's own curve), or a table such as configs/timing/small.csv
    /// [default: polynomial; fixed when a fixed time is given].
    #[arg(long, value_name = "fixed|polynomial|FILE.csv")]
    pub mock_timing: Option<Timing>,

    /// Prefill pass with --mock-timing fixed, ms [default: 20].
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub mock_prefill_ms: Option<f64>,

    /// Decode step with --mock-timing fixed, ms [default: 5].
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub mock_decode_ms: Option<f64>,

    /// Simulated speed of every worker; 2 halves all times.
    #[arg(long, value_name = "RATIO", default_value = "1", value_parser = positive)]
    pub mock_speedup: f64,

    /// Sequences that run at once on a worker.
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..))]
    pub mock_seats: u32,

    /// KV blocks on a worker.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..))]
    pub mock_blocks: u32,

    /// Tokens in a KV block.
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    pub mock_block_size: u32,

    /// Prefill and decode legs overlap (bootstrap), as real engines do; if not, decode is routed after prefill.
    #[arg(long, value_name = "BOOL", default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub mock_bootstrap: bool,
}

/// Fixed prefill pass, ms.
const PREFILL_MS: f64 = 20.0;
/// Fixed decode step, ms.
const DECODE_MS: f64 = 5.0;
/// Tokens in one forward pass.
const BATCHED_TOKENS: u32 = 8192;

impl EngineArgs {
    /// The timing that was asked for.
    ///
    /// # Errors
    /// A fixed time beside a timing that is not fixed: it would have no effect.
    pub fn timing(&self) -> anyhow::Result<Timing> {
        let fixed = [
            ("--mock-prefill-ms", self.mock_prefill_ms),
            ("--mock-decode-ms", self.mock_decode_ms),
        ]
        .into_iter()
        .find_map(|(flag, value)| value.map(|_| flag));
        match (&self.mock_timing, fixed) {
            (None, None) => Ok(Timing::Polynomial),
            (None | Some(Timing::Fixed), _) => Ok(Timing::Fixed),
            (Some(timing), None) => Ok(timing.clone()),
            (Some(_), Some(flag)) => {
                anyhow::bail!("{flag} has no effect unless --mock-timing is fixed")
            }
        }
    }
}

/// One worker to start.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// What it does.
    pub role: Role,
    /// Dynamo namespace that it announces itself in.
    pub namespace: String,
    /// Folder of its model. Dynamo takes workers for one model only when the path is the same for all.
    pub model: PathBuf,
    /// Its simulated engine.
    pub engine: EngineArgs,
    /// Speed against the engine's times; replaces [`EngineArgs::mock_speedup`].
    pub speedup: f64,
}

impl WorkerSpec {
    fn endpoint(&self) -> String {
        let component = if self.role == Role::Prefill {
            "prefill"
        } else {
            "backend"
        };
        format!("dyn://{}.{component}.generate", self.namespace)
    }

    fn mocker(&self, bootstrap_port: Option<u16>) -> anyhow::Result<MockerConfig> {
        let engine = &self.engine;
        let timing = engine.timing()?;
        let timing_model = match timing {
            Timing::Fixed => json!({
                "type": "fixed",
                "prefill_ms": engine.mock_prefill_ms.unwrap_or(PREFILL_MS),
                "decode_ms": engine.mock_decode_ms.unwrap_or(DECODE_MS),
            }),
            Timing::Polynomial | Timing::Table(_) => json!({ "type": "polynomial" }),
        };
        let mut config = MockerConfig::from_value(json!({
            "engine": {
                "backend": "vllm",
                "worker_type": self.role.to_string(),
                "block_size": engine.mock_block_size,
                "num_gpu_blocks": engine.mock_blocks,
                "max_num_seqs": engine.mock_seats,
                "max_num_batched_tokens": BATCHED_TOKENS,
                "speedup_ratio": self.speedup,
                "timing_model": timing_model,
            },
            "dp_size": 1,
            "dynamo": { "enable_local_indexer": true, "bootstrap_port": bootstrap_port },
        }))
        .context("mock engine settings")?;
        if let Timing::Table(table) = timing {
            config.perf_model = Arc::new(table.perf_model());
        }
        Ok(config)
    }

    fn runtime_config(&self, bootstrap_port: Option<u16>) -> ModelRuntimeConfig {
        let publishes = self.role != Role::Decode;
        ModelRuntimeConfig {
            total_kv_blocks: Some(self.engine.mock_blocks.into()),
            max_num_seqs: Some(self.engine.mock_seats.into()),
            max_num_batched_tokens: Some(BATCHED_TOKENS.into()),
            kv_event_publishing_enabled: Some(publishes),
            enable_local_indexer: publishes,
            disaggregated_endpoint: bootstrap_port.map(|port| DisaggregatedEndpoint {
                bootstrap_host: Some("127.0.0.1".to_owned()),
                bootstrap_port: Some(port),
            }),
            ..Default::default()
        }
    }
}

/// A running worker.
#[derive(Debug)]
pub struct MockWorker {
    /// Its id in Dynamo's discovery.
    pub instance_id: u64,
    /// What it does.
    pub role: Role,
    runtime: Runtime,
    task: JoinHandle<anyhow::Result<()>>,
}

impl MockWorker {
    /// Start a worker on the current Tokio runtime. It announces itself in the background, some 0.1 s later.
    ///
    /// # Errors
    /// Settings that the engine refuses, a model folder that cannot be read, or no discovery.
    pub async fn start(spec: &WorkerSpec, discovery: &Discovery) -> anyhow::Result<Self> {
        let bootstrap = (spec.role == Role::Prefill && spec.engine.mock_bootstrap)
            .then(free_port)
            .transpose()?;
        let mocker = spec.mocker(bootstrap)?;
        let endpoint = spec.endpoint();
        let endpoint_id: EndpointId = endpoint.parse()?;
        let model = LocalModelBuilder::default()
            .model_path(spec.model.clone())
            .model_name(Some(spec.engine.mock_model_name.clone()))
            .endpoint_id(Some(endpoint_id.clone()))
            .kv_cache_block_size(Some(spec.engine.mock_block_size))
            .runtime_config(spec.runtime_config(bootstrap))
            .is_mocker(true)
            // The model is a folder on this machine.
            .self_host_metadata(false)
            .build()
            .await
            .with_context(|| format!("loading the model in {}", spec.model.display()))?;
        let runtime = Runtime::from_current()?;
        let distributed = DistributedRuntime::new(runtime.clone(), discovery.config()?)
            .await
            .with_context(|| format!("connecting to discovery ({})", discovery.describe()))?;
        let instance_id = distributed.connection_id();
        let engine = make_mocker_engine(distributed.clone(), endpoint_id, mocker).await?;
        let engine = EngineConfig::InProcessTokens {
            engine,
            model: Box::new(model),
            is_prefill: spec.role == Role::Prefill,
            is_decode: spec.role == Role::Decode,
        };
        let task = tokio::spawn(endpoint::run(distributed, endpoint, engine));
        Ok(Self {
            instance_id,
            role: spec.role,
            runtime,
            task,
        })
    }

    /// Wait until the worker ends by itself or because its runtime was shut down.
    ///
    /// # Errors
    /// Why it failed.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        (&mut self.task).await.context("a mock worker panicked")?
    }

    /// Finish the running requests, leave discovery and end.
    ///
    /// # Errors
    /// When its task panicked. An endpoint that ends because it was told to reports that as a failure; it is none.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.runtime.shutdown();
        let _told_to_end = self.task.await.context("a mock worker panicked")?;
        self.runtime.primary_token().cancelled().await;
        Ok(())
    }
}

/// A port that was free a moment ago: the engine takes a number, not a listener.
fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))
        .context("looking for a free bootstrap port")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn engine(flags: &[&str]) -> EngineArgs {
        Line::parse_from(["test"].iter().chain(flags)).engine
    }

    fn spec(role: Role, flags: &[&str]) -> WorkerSpec {
        WorkerSpec {
            role,
            namespace: "n".into(),
            model: "/m".into(),
            engine: engine(flags),
            speedup: 1.0,
        }
    }

    #[test]
    fn a_fixed_time_implies_fixed_timing() {
        assert!(matches!(engine(&[]).timing().unwrap(), Timing::Polynomial));
        assert!(matches!(
            engine(&["--mock-prefill-ms", "7"]).timing().unwrap(),
            Timing::Fixed
        ));
    }

    #[test]
    fn a_fixed_time_beside_another_timing_is_refused() {
        let error = engine(&["--mock-timing", "polynomial", "--mock-decode-ms", "7"])
            .timing()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "--mock-decode-ms has no effect unless --mock-timing is fixed"
        );
    }

    #[test]
    fn prefill_workers_have_an_endpoint_of_their_own() {
        assert_eq!(
            spec(Role::Prefill, &[]).endpoint(),
            "dyn://n.prefill.generate"
        );
        assert_eq!(
            spec(Role::Decode, &[]).endpoint(),
            "dyn://n.backend.generate"
        );
        assert_eq!(
            spec(Role::Aggregated, &[]).endpoint(),
            "dyn://n.backend.generate"
        );
    }

    #[test]
    fn the_engine_gets_what_the_flags_say() {
        let flags = [
            "--mock-seats",
            "3",
            "--mock-blocks",
            "64",
            "--mock-block-size",
            "32",
            "--mock-prefill-ms",
            "7",
        ];
        let config = spec(Role::Prefill, &flags).mocker(Some(9)).unwrap();
        assert_eq!(config.max_num_seqs, 3);
        assert_eq!(config.num_gpu_blocks, 64);
        assert_eq!(config.block_size, 32);
        assert!(config.is_prefill());
        assert_eq!(config.runtime.bootstrap_port, Some(9));
    }

    #[test]
    fn decode_workers_do_not_claim_to_publish_kv_events() {
        assert_eq!(
            spec(Role::Decode, &[])
                .runtime_config(None)
                .kv_event_publishing_enabled,
            Some(false)
        );
        assert_eq!(
            spec(Role::Aggregated, &[])
                .runtime_config(None)
                .kv_event_publishing_enabled,
            Some(true)
        );
    }
}
