// SPDX-License-Identifier: Apache-2.0

//! `regime-frontend worker`: one mock worker as a process.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use dynamo_runtime::Runtime;

use crate::discovery::{Discovery, DiscoveryArgs};
use crate::mock::{EngineArgs, MockWorker, Role, WorkerSpec, model_dir};
use crate::{environment, lifecycle, output};

/// Arguments of `worker`.
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// What the worker does.
    #[arg(long, value_enum, default_value = "aggregated")]
    pub role: Role,

    /// Dynamo namespace to announce the worker in.
    #[arg(
        long,
        env = "DYN_NAMESPACE",
        value_name = "NAME",
        default_value = "dynamo"
    )]
    pub namespace: String,

    /// Folder of a model to serve by name and tokenizer [default: a generated one where the word wN is token N].
    #[arg(long, env = "DYN_MODEL_PATH", value_name = "FOLDER")]
    pub model_path: Option<PathBuf>,

    /// The simulated engine.
    #[command(flatten)]
    pub engine: EngineArgs,

    /// Discovery and planes.
    #[command(flatten)]
    pub discovery: DiscoveryArgs,
}

/// Run the worker until a signal.
///
/// # Errors
/// What kept it from starting or made it end.
pub fn main(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    environment::settle(Vec::new())?;
    let discovery = args.discovery.resolve(None);
    lifecycle::run(|runtime| run(runtime, args, discovery))
}

async fn run(runtime: Runtime, args: WorkerArgs, discovery: Discovery) -> anyhow::Result<()> {
    if let Some(folder) = &args.model_path {
        anyhow::ensure!(
            folder.is_dir(),
            "--model-path: no folder {}",
            folder.display()
        );
    }
    let model = match args.model_path {
        Some(folder) => folder,
        None => model_dir::generated()?,
    };
    let spec = WorkerSpec {
        role: args.role,
        namespace: args.namespace,
        model,
        speedup: args.engine.mock_speedup,
        engine: args.engine,
    };
    let mut worker = MockWorker::start(&spec, &discovery).await?;
    output::say(&format!(
        "{} mock worker {} for model \"{}\", namespace {}, discovery {}",
        spec.role,
        worker.instance_id,
        spec.engine.mock_model_name,
        spec.namespace,
        discovery.describe()
    ));
    tokio::select! {
        ended = worker.ended() => return ended,
        () = runtime.shutdown_started_token().cancelled_owned() => {}
    }
    worker.stop().await
}
