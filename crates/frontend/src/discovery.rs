// SPDX-License-Identifier: Apache-2.0

//! Where workers and frontends find each other, and how they talk.
//!
//! Dynamo's discovery is etcd by default; a folder (`file`) does for one machine and needs no service. Its folder has a
//! default shared by everybody on the machine, so two experiments see each other's workers: naming a folder is worth it,
//! and naming one selects the `file` back end.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use dynamo_runtime::distributed::{DiscoveryBackend, DistributedConfig};
use dynamo_runtime::pipeline::network::ResponsePlaneMode;
use dynamo_runtime::storage::kv::Selector;

/// Discovery and planes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Discovery and planes")]
pub struct DiscoveryArgs {
    /// Where workers announce themselves [default: etcd; file when --discovery-path is given].
    #[arg(
        long,
        env = "DYN_DISCOVERY_BACKEND",
        value_enum,
        value_name = "BACKEND"
    )]
    pub discovery_backend: Option<Backend>,

    /// Folder of the file back end [default: dynamo_store_kv in the temporary folder].
    #[arg(long, env = "DYN_FILE_KV", value_name = "FOLDER")]
    pub discovery_path: Option<PathBuf>,

    /// How requests travel to workers [default: tcp].
    #[arg(long, env = "DYN_REQUEST_PLANE", value_enum, value_name = "PLANE")]
    pub request_plane: Option<RequestPlane>,

    /// How answers travel back; workers must use the same [default: tcp].
    #[arg(long, env = "DYN_RESPONSE_PLANE", value_enum, value_name = "PLANE")]
    pub response_plane: Option<ResponsePlane>,

    /// How KV events and metrics travel [default: zmq].
    #[arg(long, env = "DYN_EVENT_PLANE", value_enum, value_name = "PLANE")]
    pub event_plane: Option<EventPlane>,
}

/// A discovery back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// An etcd cluster (ETCD_ENDPOINTS).
    Etcd,
    /// A folder on this machine.
    File,
    /// This process only.
    Mem,
    /// The Kubernetes API.
    Kubernetes,
}

/// A request plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RequestPlane {
    /// Plain TCP.
    Tcp,
    /// NATS.
    Nats,
}

/// A response plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResponsePlane {
    /// Plain TCP.
    Tcp,
    /// QUIC.
    Quic,
}

/// An event plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EventPlane {
    /// ZeroMQ, peer to peer.
    Zmq,
    /// NATS.
    Nats,
}

/// Discovery with every default filled in.
#[derive(Debug, Clone)]
pub struct Discovery {
    backend: Backend,
    path: PathBuf,
    request_plane: Option<RequestPlane>,
    response_plane: Option<ResponsePlane>,
    event_plane: Option<EventPlane>,
}

impl DiscoveryArgs {
    /// Fill in the defaults. `own_folder` is a folder of this process, for a fleet that nobody else shall see: it is used
    /// when neither a back end nor a folder was asked for.
    #[must_use]
    pub fn resolve(&self, own_folder: Option<&Path>) -> Discovery {
        let shared = || std::env::temp_dir().join("dynamo_store_kv");
        let (backend, path) = match (self.discovery_backend, &self.discovery_path, own_folder) {
            (Some(backend), Some(path), _) => (backend, path.clone()),
            (Some(backend), None, _) => (backend, shared()),
            (None, Some(path), _) => (Backend::File, path.clone()),
            (None, None, Some(own)) => (Backend::File, own.to_path_buf()),
            (None, None, None) => (Backend::Etcd, shared()),
        };
        Discovery {
            backend,
            path,
            request_plane: self.request_plane,
            response_plane: self.response_plane,
            event_plane: self.event_plane,
        }
    }
}

impl Discovery {
    /// Dynamo's form of it; one for each `DistributedRuntime`.
    ///
    /// # Errors
    /// What Dynamo finds wrong.
    pub fn config(&self) -> anyhow::Result<DistributedConfig> {
        let backend = name(self.backend);
        let request = name(self.request_plane.unwrap_or(RequestPlane::Tcp));
        let event = self.event_plane.and_then(name);
        let mut config = DistributedConfig::from_settings_with_overrides(
            backend.as_deref(),
            request.as_deref(),
            event.as_deref(),
        )?;
        if self.backend == Backend::File {
            config.discovery_backend = DiscoveryBackend::KvStore(Selector::File(self.path.clone()));
        }
        config.response_plane = Some(match self.response_plane {
            None | Some(ResponsePlane::Tcp) => ResponsePlaneMode::Tcp,
            Some(ResponsePlane::Quic) => ResponsePlaneMode::Quic,
        });
        Ok(config)
    }

    /// Whether instances exist only in the process that made them.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.backend == Backend::Mem
    }

    /// For the start-up lines.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.backend {
            Backend::Etcd => "etcd".to_owned(),
            Backend::File => format!("file ({})", self.path.display()),
            Backend::Mem => "mem".to_owned(),
            Backend::Kubernetes => "kubernetes".to_owned(),
        }
    }
}

fn name(value: impl ValueEnum) -> Option<String> {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(args: DiscoveryArgs, own: Option<&str>) -> String {
        args.resolve(own.map(Path::new)).describe()
    }

    #[test]
    fn etcd_is_the_default_as_in_dynamo() {
        assert_eq!(resolved(DiscoveryArgs::default(), None), "etcd");
    }

    #[test]
    fn naming_a_folder_selects_the_file_back_end() {
        let args = DiscoveryArgs {
            discovery_path: Some("/a".into()),
            ..Default::default()
        };
        assert_eq!(resolved(args, None), "file (/a)");
    }

    #[test]
    fn a_fleet_of_our_own_stays_in_its_folder_unless_told_otherwise() {
        assert_eq!(
            resolved(DiscoveryArgs::default(), Some("/own")),
            "file (/own)"
        );
        let args = DiscoveryArgs {
            discovery_path: Some("/a".into()),
            ..Default::default()
        };
        assert_eq!(resolved(args, Some("/own")), "file (/a)");
        let args = DiscoveryArgs {
            discovery_backend: Some(Backend::Etcd),
            ..Default::default()
        };
        assert_eq!(resolved(args, Some("/own")), "etcd");
    }
}
