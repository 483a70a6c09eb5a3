// SPDX-License-Identifier: Apache-2.0

//! Arguments of `serve`, and the checks that need only them.
//!
//! Flags and variables are those of `python -m dynamo.frontend` wherever they mean the same.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use crate::discovery::DiscoveryArgs;
use crate::mock::{EngineArgs, FleetArgs};
use crate::router::{PolicyArgs, TuningArgs};
use crate::values::switch;

/// Arguments of `serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// HTTP.
    #[command(flatten)]
    pub http: HttpArgs,
    /// Which models are served.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Discovery and planes.
    #[command(flatten)]
    pub discovery: DiscoveryArgs,
    /// Which policy routes.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Dynamo's router settings.
    #[command(flatten)]
    pub tuning: TuningArgs,
    /// Write every decision of regime-aware in aggregated pools, with what came of it, behind what FILE holds;
    /// regime-lab anarchy FILE measures it.
    #[arg(
        long,
        env = "REGIME_JOURNAL",
        value_name = "FILE",
        help_heading = "Routing policy"
    )]
    pub journal: Option<PathBuf>,
    /// Mock workers in this process.
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Their simulated engine.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// The HTTP service.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// Address or name to listen on [default: 0.0.0.0; 127.0.0.1 with mock workers in this process].
    #[arg(long, env = "DYN_HTTP_HOST", value_name = "HOST")]
    pub http_host: Option<String>,

    /// Port to listen on; 0 takes a free one.
    #[arg(
        long,
        env = "DYN_HTTP_PORT",
        value_name = "PORT",
        default_value = "8000"
    )]
    pub http_port: u16,

    /// Certificate chain (PEM); with --tls-key-path the frontend speaks HTTPS.
    #[arg(
        long,
        env = "DYN_TLS_CERT_PATH",
        value_name = "FILE",
        requires = "tls_key_path"
    )]
    pub tls_cert_path: Option<PathBuf>,

    /// Private key (PEM) of the certificate.
    #[arg(
        long,
        env = "DYN_TLS_KEY_PATH",
        value_name = "FILE",
        requires = "tls_cert_path"
    )]
    pub tls_key_path: Option<PathBuf>,

    /// Only clients with a certificate of this authority (PEM) may connect.
    #[arg(
        long,
        env = "DYN_TLS_CLIENT_CA_CERT_PATH",
        value_name = "FILE",
        requires = "tls_cert_path"
    )]
    pub tls_client_ca_cert_path: Option<PathBuf>,

    /// Prefix of Dynamo's frontend metrics [default: dynamo_frontend].
    #[arg(long, env = "DYN_METRICS_PREFIX", value_name = "PREFIX")]
    pub metrics_prefix: Option<String>,

    /// Serve the Anthropic Messages API as well [default: false].
    #[arg(long, env = "DYN_ENABLE_ANTHROPIC_API", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub enable_anthropic_api: Option<bool>,

    /// Strip the billing preamble from Anthropic requests [default: true].
    #[arg(long, env = "DYN_STRIP_ANTHROPIC_PREAMBLE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub strip_anthropic_preamble: Option<bool>,

    /// Send extra events for tool calls while streaming [default: false].
    #[arg(long, env = "DYN_ENABLE_STREAMING_TOOL_DISPATCH", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub enable_streaming_tool_dispatch: Option<bool>,

    /// Send extra events for reasoning while streaming [default: false].
    #[arg(long, env = "DYN_ENABLE_STREAMING_REASONING_DISPATCH", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub enable_streaming_reasoning_dispatch: Option<bool>,

    /// Name of the reasoning field in answers [default: reasoning_content].
    #[arg(long, env = "DYN_REASONING_FIELD_NAME", value_name = "NAME", value_parser = ["reasoning", "reasoning_content"])]
    pub reasoning_field_name: Option<String>,
}

/// Which models are served, and how requests survive their workers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Models")]
pub struct ModelArgs {
    /// Serve only models of this Dynamo namespace [default: all; dynamo for mock workers].
    #[arg(long, env = "DYN_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,

    /// Serve only models of namespaces that begin so.
    #[arg(
        long,
        env = "DYN_NAMESPACE_PREFIX",
        value_name = "PREFIX",
        conflicts_with = "namespace"
    )]
    pub namespace_prefix: Option<String>,

    /// Name that the frontend reports for itself.
    #[arg(long, env = "DYN_MODEL_NAME", value_name = "NAME")]
    pub model_name: Option<String>,

    /// Folder of the model, in place of what workers advertise.
    #[arg(long, env = "DYN_MODEL_PATH", value_name = "FOLDER")]
    pub model_path: Option<PathBuf>,

    /// Tokens in a KV block, for workers that do not say [default: 16].
    #[arg(long, env = "DYN_KV_CACHE_BLOCK_SIZE", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_cache_block_size: Option<u32>,

    /// How often a request may move to another worker when its own fails.
    #[arg(
        long,
        env = "DYN_MIGRATION_LIMIT",
        value_name = "N",
        default_value = "0"
    )]
    pub migration_limit: u32,

    /// Requests longer than this do not move [default: no limit].
    #[arg(long, env = "DYN_MIGRATION_MAX_SEQ_LEN", value_name = "TOKENS")]
    pub migration_max_seq_len: Option<u32>,

    /// Tokenizer implementation [default: default].
    #[arg(long, env = "DYN_TOKENIZER", value_name = "NAME", value_parser = ["default", "fastokens", "basetenkenizer"])]
    pub tokenizer: Option<String>,
}

impl HttpArgs {
    /// The address to listen on, known to be free.
    ///
    /// # Errors
    /// A host that does not resolve, or a port that cannot be had.
    pub(super) fn address(&self, own_fleet: bool) -> anyhow::Result<SocketAddr> {
        let host =
            self.http_host
                .as_deref()
                .unwrap_or(if own_fleet { "127.0.0.1" } else { "0.0.0.0" });
        let host = host.trim().trim_start_matches('[').trim_end_matches(']');
        let port = self.http_port;
        let wanted = (host, port)
            .to_socket_addrs()
            .ok()
            .and_then(|mut addresses| addresses.next())
            .with_context(|| {
                format!("http-host {host} is neither an address nor a name that resolves")
            })?;
        // Dynamo binds again: this finds out early, and picks the port when any will do.
        let listener = TcpListener::bind(wanted).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                anyhow::anyhow!("http-port {port} on {host} is already in use")
            }
            _ => anyhow::anyhow!("cannot listen on http-host {host}, http-port {port}: {error}"),
        })?;
        Ok(listener.local_addr()?)
    }

    /// Read the TLS files once, so that a wrong one is a start-up error.
    ///
    /// # Errors
    /// Names the flag of a file that is missing, or the files when they are not what TLS needs.
    pub(super) fn check_tls(&self) -> anyhow::Result<()> {
        let (Some(certificate), Some(key)) = (&self.tls_cert_path, &self.tls_key_path) else {
            return Ok(());
        };
        let authority = self.tls_client_ca_cert_path.as_deref();
        for (flag, file) in [
            ("--tls-cert-path", Some(certificate.as_path())),
            ("--tls-key-path", Some(key.as_path())),
            ("--tls-client-ca-cert-path", authority),
        ] {
            if let Some(file) = file.filter(|file| !file.is_file()) {
                anyhow::bail!("{flag}: no file {}", file.display());
            }
        }
        let paths = || {
            let authority = authority
                .map(|file| format!(", {}", file.display()))
                .unwrap_or_default();
            format!(
                "TLS files {}, {}{authority}",
                certificate.display(),
                key.display()
            )
        };
        dynamo_runtime::tls_utils::server_tls_config(certificate, key, authority.map(Path::new))
            .map(drop)
            .with_context(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(host: &str, port: u16) -> HttpArgs {
        let arguments = [
            "f",
            "serve",
            "--http-host",
            host,
            "--http-port",
            &port.to_string(),
        ]
        .map(Into::into)
        .to_vec();
        let parsed = crate::cli::parse_from(arguments, &|_| None).unwrap();
        let crate::cli::Command::Serve(args) = parsed.command else {
            panic!("not serve")
        };
        args.http
    }

    #[test]
    fn port_0_takes_a_free_one() {
        assert_ne!(http("127.0.0.1", 0).address(false).unwrap().port(), 0);
    }

    #[test]
    fn an_occupied_port_is_named() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = http("127.0.0.1", port).address(false).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("http-port {port} on 127.0.0.1 is already in use")
        );
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        assert!(
            http("localhost", 0)
                .address(false)
                .unwrap()
                .ip()
                .is_loopback()
        );
        assert!(http("no host", 0).address(false).is_err());
    }
}
