// SPDX-License-Identifier: Apache-2.0

//! Which router decides, and with which settings.
//!
//! Three things can name a policy, and mixing them silently is how a fleet ends up on a router nobody chose:
//!
//! - `--router NAME` picks one without a file; the file is generated;
//! - `--router-policy-config FILE` says it all in Dynamo's YAML;
//! - `--router-prefill-policy`, `--router-decode-policy` and `DYN_ROUTER_WORKER_SELECTION_POLICY` name instances of that
//!   file for some or all roles.
//!
//! The first two together are a contradiction and end the start. With neither, the regime-aware policy routes: it is what
//! this program is for. It needs Dynamo's KV mode, so that is the default mode here, where `python -m dynamo.frontend`
//! defaults to round-robin.
//!
//! Dynamo applies the `router:` section of a policy file over flags and environment. Here a flag or a variable that was
//! given wins: the keys it overrides are left out of a private copy of the file.

mod choice;
mod tuning;

pub use choice::{Choice, Mode, PolicyArgs, Router};
pub use tuning::{ConditionalDisagg, TuningArgs};

use anyhow::Context as _;
use dynamo_kv_router::KvRouterConfig;
use dynamo_llm::entrypoint::RouterConfig;
use tempfile::TempPath;

use crate::cli::Sources;
use crate::policy_file;
use choice::name;

/// Everything Dynamo needs to know about routing, and the private policy file behind it.
#[derive(Debug)]
pub struct Resolved {
    /// For `LocalModelBuilder::router_config`.
    pub config: RouterConfig,
    /// The file as the operator knows it: what errors and start-up lines call it.
    pub origin: String,
    /// Deletes the private policy file when dropped.
    _file: Option<TempPath>,
}

impl Resolved {
    /// Combine flags, variables and the policy file.
    ///
    /// # Errors
    /// Contradicting settings, a policy file that cannot be read or parsed, or settings that Dynamo refuses.
    pub fn new(
        policy: &PolicyArgs,
        tuning: &TuningArgs,
        sources: &Sources,
    ) -> anyhow::Result<Self> {
        let choice = policy.choose(sources)?;
        let mut kv = KvRouterConfig {
            router_prefill_policy: policy.router_prefill_policy.clone(),
            router_decode_policy: policy.router_decode_policy.clone(),
            ..Default::default()
        };
        let given = tuning.apply(&mut kv)?;
        let (mode, yaml, origin) = match &choice {
            Choice::Named(router) => (
                Mode::Kv,
                router.policy_yaml(),
                format!("--router {}", router.name()),
            ),
            Choice::Mode(mode) => (*mode, None, format!("router mode {}", name(*mode))),
            Choice::File(file) => {
                kv.router_policy_config = Some(policy_file::checked_path(file)?);
                (
                    Mode::Kv,
                    policy_file::without_router_keys(file, &given)?,
                    file.display().to_string(),
                )
            }
        };
        let file = yaml.map(|yaml| policy_file::private(&yaml)).transpose()?;
        if let Some(file) = &file {
            kv.router_policy_config = Some(file.display().to_string());
        }
        kv.apply_policy_config()
            .map_err(|error| anyhow::anyhow!("{origin}: {error}"))?;
        kv.validate()
            .map_err(anyhow::Error::msg)
            .context("router settings")?;
        Ok(Self {
            config: tuning.router_config(mode.into(), kv)?,
            origin,
            _file: file,
        })
    }

    /// Dynamo's settings of its KV router.
    #[must_use]
    pub fn kv(&self) -> &KvRouterConfig {
        &self.config.kv_router_config
    }

    /// Whether policies route at all.
    #[must_use]
    pub fn is_kv(&self) -> bool {
        self.config.router_mode.is_kv_routing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_beats_the_router_section_of_the_policy_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "router: { router_ttl_secs: 7.0, router_event_threads: 2 }\n",
        )
        .unwrap();
        let policy = PolicyArgs {
            router_policy_config: Some(file.path().into()),
            ..Default::default()
        };
        let tuning = TuningArgs {
            router_ttl_secs: Some(60.0),
            ..Default::default()
        };
        let resolved = Resolved::new(&policy, &tuning, &Sources::default()).unwrap();
        assert_eq!(resolved.kv().router_ttl_secs, 60.0);
        assert_eq!(resolved.kv().router_event_threads, 2);
    }
}
