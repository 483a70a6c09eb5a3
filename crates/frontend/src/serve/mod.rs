// SPDX-License-Identifier: Apache-2.0

//! `regime-frontend serve`: Dynamo's HTTP frontend with the plugins linked in.
//!
//! Everything that can be wrong is checked before a port opens: the settings, the policy file and its plugins, the TLS
//! files, the port. A frontend that starts half is harder to operate than one that does not start.

mod args;

pub use args::{HttpArgs, ModelArgs, ServeArgs};

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dynamo_llm::entrypoint::{EngineConfig, HttpFrontend};
use dynamo_llm::local_model::runtime_config::TokenizerBackend;
use dynamo_llm::local_model::{LocalModel, LocalModelBuilder};
use dynamo_llm::reasoning_field::ReasoningField;
use dynamo_runtime::{DistributedRuntime, Runtime};

use crate::check::Roles;
use crate::cli::Sources;
use crate::discovery::Discovery;
use crate::environment::Changes;
use crate::link::{Extensions, link};
use crate::measuring::{CHOICES_KEPT, Journal, Measuring};
use crate::mock::{Fleet, Topology};
use crate::router::Resolved;
use crate::{environment, lifecycle, metrics, output, routes, startup, ttft_feed};

/// Serve until a signal.
///
/// # Errors
/// What kept the frontend from starting or made it end.
pub fn main(
    args: ServeArgs,
    sources: &Sources,
    mut extensions: Extensions,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    // Contradictions are worth a line before the process starts over with a settled environment.
    args.policy.choose(sources)?;
    environment::settle(environment_changes(&args, sources))?;
    if args.journal.is_some() {
        extensions.policy_options.export_choices = Some(CHOICES_KEPT);
    }
    let linked = link(extensions)?;
    let topology = args.fleet.topology()?;
    args.engine.timing()?;
    let routing = Resolved::new(&args.policy, &args.tuning, sources)?;
    let roles = Roles::of(&routing, sources, &args.policy)?;
    let plugins = roles.resolve(&linked.registry, &routing)?;
    let own_folder = topology
        .map(|_| {
            tempfile::Builder::new()
                .prefix("regime-discovery-")
                .tempdir()
        })
        .transpose()
        .context("creating a discovery folder in the temporary folder")?;
    let discovery = args
        .discovery
        .resolve(own_folder.as_ref().map(tempfile::TempDir::path));
    anyhow::ensure!(
        topology.is_none() || !discovery.is_private(),
        "mock workers cannot be found over the mem back end, which gives each a memory of its own; use file"
    );
    let address = args.http.address(topology.is_some())?;
    args.http.check_tls()?;
    let journal = args.journal.as_ref().map(|path| {
        let uptime = Duration::from_millis(linked.handle.report().uptime_ms);
        let policies = roles
            .lines()
            .iter()
            .map(|line| output::squeeze(line))
            .collect();
        let journal = Journal::open(path, policies, uptime);
        journal.with_context(|| sources.name("journal"))
    });
    let journal = journal.transpose()?;
    let plan = Plan {
        started,
        args,
        topology,
        routing,
        roles,
        discovery,
        address,
    };
    lifecycle::run(move |runtime| async move {
        let ended = plan.run(runtime, linked.handle, plugins, journal).await;
        if let Some(folder) = &own_folder {
            emptied(folder.path()).await;
        }
        ended
    })
}

/// Settings that Dynamo reads from the environment alone.
fn environment_changes(args: &ServeArgs, sources: &Sources) -> Changes {
    let mut changes = args.policy.environment_changes(sources);
    if let Some(workers) = args.tuning.router_min_initial_workers {
        changes.push((
            "DYN_ROUTER_MIN_INITIAL_WORKERS".into(),
            Some(workers.to_string().into()),
        ));
    }
    changes
}

/// A start that has been checked.
struct Plan {
    started: Instant,
    args: ServeArgs,
    topology: Option<Topology>,
    routing: Resolved,
    roles: Roles,
    discovery: Discovery,
    address: SocketAddr,
}

impl Plan {
    async fn run(
        self,
        runtime: Runtime,
        handle: regime_policy::Handle,
        plugins: dynamo_kv_router::plugins::RouterPlugins,
        journal: Option<Journal>,
    ) -> anyhow::Result<()> {
        let args = &self.args;
        let config = self.discovery.config()?;
        let planes = format!(
            "requests over {}, events over {:?}",
            config.request_plane, config.event_transport_kind
        );
        self.announce(&planes.to_lowercase());
        let distributed = tokio::select! {
            biased;
            // Dynamo goes on trying for two minutes when etcd does not answer.
            () = runtime.primary_token().cancelled_owned() => return Ok(()),
            connected = DistributedRuntime::new(runtime.clone(), config) => connected,
        }
        .with_context(|| format!("connecting to discovery ({})", self.discovery.describe()))?;
        metrics::install(&distributed, handle.clone())?;
        let (extension, context) = routes::extension(handle.clone());
        let model = self.model().await?;

        let namespace = args.model.namespace.as_deref().unwrap_or("dynamo");
        let mut fleet = match self.topology {
            None => None,
            Some(topology) => {
                let fleet = Fleet::start(
                    topology,
                    &args.fleet,
                    &args.engine,
                    namespace,
                    &self.discovery,
                )
                .await?;
                startup::line(
                    "workers",
                    &format!("{topology}, mock model \"{}\"", args.engine.mock_model_name),
                );
                Some(fleet)
            }
        };

        let measuring = Measuring::start(handle.clone(), journal).context("starting to measure")?;
        let background = [
            tokio::spawn(startup::announce(
                self.started,
                reachable(self.address),
                self.url(),
                context.clone(),
            )),
            tokio::spawn(ttft_feed::run(handle, context)),
        ];
        let frontend = HttpFrontend::default()
            .plugins(plugins)
            .frontend_route_extensions(vec![extension])
            .run(
                distributed,
                EngineConfig::Dynamic {
                    model: Box::new(model),
                    chat_engine_factory: None,
                    prefill_load_estimator: None,
                },
            );
        let served = tokio::select! {
            served = frontend => served,
            error = failure(&mut fleet) => Err(error),
        };
        for task in background {
            task.abort();
        }
        measuring.finish().await;
        // Workers go last: requests that the frontend drains still run on them.
        if let Some(fleet) = fleet {
            fleet.stop().await?;
        }
        served
    }

    async fn model(&self) -> anyhow::Result<LocalModel> {
        let ServeArgs { http, model, .. } = &self.args;
        let mut builder = LocalModelBuilder::default();
        builder
            .model_name(model.model_name.clone())
            .kv_cache_block_size(model.kv_cache_block_size)
            .router_config(Some(self.routing.config.clone()))
            .http_host(Some(self.address.ip().to_string()))
            .http_port(self.address.port())
            .tls_cert_path(http.tls_cert_path.clone())
            .tls_key_path(http.tls_key_path.clone())
            .tls_client_ca_cert_path(http.tls_client_ca_cert_path.clone())
            .namespace(model.namespace.clone())
            .namespace_prefix(model.namespace_prefix.clone())
            .migration_limit(Some(model.migration_limit))
            .migration_max_seq_len(model.migration_max_seq_len)
            .metrics_prefix(http.metrics_prefix.clone())
            .enable_anthropic_api(http.enable_anthropic_api.unwrap_or(false))
            .strip_anthropic_preamble(http.strip_anthropic_preamble.unwrap_or(true))
            .enable_streaming_tool_dispatch(http.enable_streaming_tool_dispatch.unwrap_or(false))
            .enable_streaming_reasoning_dispatch(
                http.enable_streaming_reasoning_dispatch.unwrap_or(false),
            );
        if let Some(path) = &model.model_path {
            anyhow::ensure!(
                path.exists(),
                "--model-path: {} does not exist",
                path.display()
            );
            builder.model_path(path.clone());
        }
        if let Some(name) = &http.reasoning_field_name {
            builder.reasoning_field(name.parse::<ReasoningField>()?);
        }
        if let Some(name) = &model.tokenizer {
            builder.tokenizer_backend(Some(
                name.parse::<TokenizerBackend>()
                    .map_err(anyhow::Error::msg)?,
            ));
        }
        builder.build().await.context("frontend settings")
    }

    fn announce(&self, planes: &str) {
        startup::line("version", env!("CARGO_PKG_VERSION"));
        startup::line("discovery", &self.discovery.describe());
        startup::line("planes", planes);
        for line in self.roles.lines() {
            startup::line("policy", &line);
        }
        for line in &self.routing.queue {
            startup::line("queue", line);
        }
        if let Some(path) = &self.args.journal {
            startup::line("journal", &path.display().to_string());
        }
    }

    fn url(&self) -> String {
        let scheme = if self.args.http.tls_cert_path.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }
}

/// Wait a moment for Dynamo's background tasks to take their entries out of `folder`: they would log that it is gone.
async fn emptied(folder: &Path) {
    let deadline = Instant::now() + Duration::from_millis(500);
    while holds_files(folder) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn holds_files(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let path = entry.path();
            path.is_file() || holds_files(&path)
        })
    })
}

async fn failure(fleet: &mut Option<Fleet>) -> anyhow::Error {
    match fleet {
        Some(fleet) => fleet.failed().await,
        None => std::future::pending().await,
    }
}

/// Where this process itself reaches `address`: an unspecified address is every address, also loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            (std::net::Ipv6Addr::LOCALHOST, v6.port()).into()
        }
        specified => specified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_reached_over_loopback() {
        assert_eq!(
            reachable("0.0.0.0:80".parse().unwrap()),
            "127.0.0.1:80".parse().unwrap()
        );
        assert_eq!(
            reachable("[::]:80".parse().unwrap()),
            "[::1]:80".parse().unwrap()
        );
        assert_eq!(
            reachable("10.1.2.3:80".parse().unwrap()),
            "10.1.2.3:80".parse().unwrap()
        );
    }
}
