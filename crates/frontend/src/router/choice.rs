// SPDX-License-Identifier: Apache-2.0

//! Which router decides: names, modes, and contradictions between them.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use dynamo_kv_router::config::DYN_ROUTER_WORKER_SELECTION_POLICY;
use dynamo_runtime::pipeline::RouterMode;
use regime_policy::LateBinding;

use super::TuningArgs;
use crate::cli::{Source, Sources};
use crate::environment::Changes;
use crate::policy_file;
use crate::values::switch;

/// Which policy routes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Routing policy")]
pub struct PolicyArgs {
    /// Policy for all roles, without a file [default: regime-aware].
    #[arg(long, env = "REGIME_ROUTER", value_enum, value_name = "NAME")]
    pub router: Option<Router>,

    /// Router-policy file (YAML); then the file decides, and --router must not be given.
    #[arg(long, env = "DYN_ROUTER_POLICY_CONFIG", value_name = "FILE")]
    pub router_policy_config: Option<PathBuf>,

    /// Instance of the policy file for prefill workers; "default" is Dynamo's built-in.
    #[arg(long, env = "DYN_ROUTER_PREFILL_POLICY", value_name = "INSTANCE")]
    pub router_prefill_policy: Option<String>,

    /// Instance of the policy file for decode workers; "default" is Dynamo's built-in.
    #[arg(long, env = "DYN_ROUTER_DECODE_POLICY", value_name = "INSTANCE")]
    pub router_decode_policy: Option<String>,

    /// Dynamo's routing mode [default: kv, which every policy needs; the stock frontend defaults to round-robin].
    #[arg(long, env = "DYN_ROUTER_MODE", value_enum, value_name = "MODE")]
    pub router_mode: Option<Mode>,

    /// Keep requests here while every worker has over 8192 prefill tokens queued, and place them when one has room;
    /// adds two queue classes to the policy file [default: true with --router regime-aware and no other queue].
    #[arg(long, env = "REGIME_LATE_BINDING", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub late_binding: Option<bool>,
}

/// A router that needs no policy file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Router {
    /// Congestion minus calibrated cache value, per regime (this project).
    RegimeAware,
    /// Dynamo's built-in KV cost function.
    Default,
    /// Dynamo's two-tier cost function: load first, then cache.
    DynamoTwoTierCostFn,
    /// Dynamo's built-in cost function as a named instance.
    DynamoDefaultCostFn,
    /// Dynamo's program-aware admission and placement.
    Thunderagent,
    /// Each worker in turn.
    RoundRobin,
    /// A worker at random.
    Random,
    /// The less loaded of two random workers.
    PowerOfTwo,
    /// The worker with the fewest requests.
    LeastLoaded,
    /// The worker that the request names.
    Direct,
    /// Weighted by the workers' devices.
    DeviceAwareWeighted,
}

/// Dynamo's routing modes, by the names of the stock frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Policies over KV overlap and load.
    Kv,
    /// Each worker in turn.
    RoundRobin,
    /// A worker at random.
    Random,
    /// The less loaded of two random workers.
    PowerOfTwo,
    /// The worker with the fewest requests.
    LeastLoaded,
    /// The worker that the request names.
    Direct,
    /// Weighted by the workers' devices.
    DeviceAwareWeighted,
}

impl Router {
    /// The mode that this router runs in.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Self::RegimeAware
            | Self::Default
            | Self::DynamoTwoTierCostFn
            | Self::DynamoDefaultCostFn
            | Self::Thunderagent => Mode::Kv,
            Self::RoundRobin => Mode::RoundRobin,
            Self::Random => Mode::Random,
            Self::PowerOfTwo => Mode::PowerOfTwo,
            Self::LeastLoaded => Mode::LeastLoaded,
            Self::Direct => Mode::Direct,
            Self::DeviceAwareWeighted => Mode::DeviceAwareWeighted,
        }
    }

    /// The policy file that selects it, for those that are policies.
    #[must_use]
    pub fn policy_yaml(self) -> Option<String> {
        let (policy, classifier) = match self {
            Self::RegimeAware => (
                regime_policy::POLICY_TYPE,
                Some(regime_policy::CLASSIFIER_TYPE),
            ),
            Self::Thunderagent => ("thunderagent", Some("thunderagent")),
            Self::DynamoTwoTierCostFn => ("dynamo-two-tier-cost-fn", None),
            Self::DynamoDefaultCostFn => ("dynamo-default-cost-fn", None),
            _ => return None,
        };
        Some(policy_file::for_all_roles(policy, classifier))
    }

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        name(self)
    }
}

impl From<Mode> for RouterMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Kv => Self::KV,
            Mode::RoundRobin => Self::RoundRobin,
            Mode::Random => Self::Random,
            Mode::PowerOfTwo => Self::PowerOfTwoChoices,
            Mode::LeastLoaded => Self::LeastLoaded,
            Mode::Direct => Self::Direct,
            Mode::DeviceAwareWeighted => Self::DeviceAwareWeighted,
        }
    }
}

/// What routes, after contradictions are ruled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// A router without a file.
    Named(Router),
    /// A policy file.
    File(PathBuf),
    /// A mode of Dynamo without a policy.
    Mode(Mode),
}

impl PolicyArgs {
    /// Decide, or say which two settings contradict each other.
    ///
    /// # Errors
    /// Names both settings and where they came from.
    pub fn choose(&self, sources: &Sources) -> anyhow::Result<Choice> {
        let from = |id: &str| sources.name(id);
        let mode = self.router_mode;
        let choice = match (self.router, &self.router_policy_config) {
            (Some(router), Some(file)) => bail!(
                "{} ({}) and {} ({}) both choose the policy; give one of them",
                from("router"),
                router.name(),
                from("router_policy_config"),
                file.display()
            ),
            (Some(router), None) => {
                if let Some(mode) = mode.filter(|mode| *mode != router.mode()) {
                    bail!(
                        "{} ({}) needs router mode {}, but {} says {}",
                        from("router"),
                        router.name(),
                        name(router.mode()),
                        from("router_mode"),
                        name(mode)
                    );
                }
                match router.mode() {
                    Mode::Kv => Choice::Named(router),
                    mode => Choice::Mode(mode),
                }
            }
            (None, Some(file)) => {
                if let Some(mode) = mode.filter(|mode| *mode != Mode::Kv) {
                    bail!(
                        "{} ({}) needs router mode kv, but {} says {}",
                        from("router_policy_config"),
                        file.display(),
                        from("router_mode"),
                        name(mode)
                    );
                }
                Choice::File(file.clone())
            }
            (None, None) => match mode {
                None | Some(Mode::Kv) => Choice::Named(Router::RegimeAware),
                Some(mode) => Choice::Mode(mode),
            },
        };
        if let Choice::Mode(mode) = choice {
            for (id, stage) in [
                ("router_prefill_policy", &self.router_prefill_policy),
                ("router_decode_policy", &self.router_decode_policy),
            ] {
                if let Some(stage) = stage {
                    bail!(
                        "{} ({stage}) needs router mode kv, not {}",
                        from(id),
                        name(mode)
                    );
                }
            }
            if self.late_binding == Some(true) {
                bail!(
                    "{} needs router mode kv, not {}",
                    from("late_binding"),
                    name(mode)
                );
            }
        }
        Ok(choice)
    }

    /// The queue that [`Self::late_binding`] asks for, or that comes with a generated `regime-aware`.
    ///
    /// # Errors
    /// Names the other setting that asks for a queue: Dynamo would let the classes win without a word.
    pub(super) fn late_binding(
        &self,
        choice: &Choice,
        tuning: &TuningArgs,
        sources: &Sources,
    ) -> anyhow::Result<Option<LateBinding>> {
        let Some(asked) = self.late_binding else {
            let own = *choice == Choice::Named(Router::RegimeAware)
                && tuning.router_queue_threshold.is_none()
                && tuning.router_queue_policy.is_none();
            return Ok(own.then(LateBinding::default));
        };
        if !asked {
            return Ok(None);
        }
        for (id, value) in [
            (
                "router_queue_threshold",
                tuning.router_queue_threshold.map(|value| value.to_string()),
            ),
            ("router_queue_policy", tuning.router_queue_policy.clone()),
        ] {
            if let Some(value) = value {
                bail!(
                    "{} and {} ({value}) both choose the router's queue; give one of them",
                    sources.name("late_binding"),
                    sources.name(id)
                );
            }
        }
        Ok(Some(LateBinding::default()))
    }
}

impl PolicyArgs {
    /// Variables that a flag beats although Dynamo reads them by itself.
    ///
    /// `DYN_ROUTER_WORKER_SELECTION_POLICY` beats any policy file, also the one that `--router` generates.
    #[must_use]
    pub fn environment_changes(&self, sources: &Sources) -> Changes {
        match sources.of("router") {
            Some(Source::Flag(_)) => vec![(DYN_ROUTER_WORKER_SELECTION_POLICY.into(), None)],
            _ => Changes::new(),
        }
    }
}

pub(super) fn name(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(args: PolicyArgs) -> Result<Choice, String> {
        args.choose(&Sources::default())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn with_nothing_said_the_regime_aware_policy_routes() {
        assert_eq!(
            choose(PolicyArgs::default()),
            Ok(Choice::Named(Router::RegimeAware))
        );
        let kv = PolicyArgs {
            router_mode: Some(Mode::Kv),
            ..Default::default()
        };
        assert_eq!(choose(kv), Ok(Choice::Named(Router::RegimeAware)));
    }

    #[test]
    fn a_policy_file_without_router_decides() {
        let args = PolicyArgs {
            router_policy_config: Some("p.yaml".into()),
            ..Default::default()
        };
        assert_eq!(choose(args), Ok(Choice::File("p.yaml".into())));
    }

    #[test]
    fn router_and_a_policy_file_contradict_each_other() {
        let args = PolicyArgs {
            router: Some(Router::RoundRobin),
            router_policy_config: Some("p.yaml".into()),
            ..Default::default()
        };
        let error = choose(args).unwrap_err();
        assert_eq!(
            error,
            "--router (round-robin) and --router-policy-config (p.yaml) both choose the policy; give one of them"
        );
    }

    #[test]
    fn a_mode_that_the_router_cannot_run_in_is_refused() {
        let args = PolicyArgs {
            router: Some(Router::RegimeAware),
            router_mode: Some(Mode::Random),
            ..Default::default()
        };
        assert_eq!(
            choose(args).unwrap_err(),
            "--router (regime-aware) needs router mode kv, but --router-mode says random"
        );
    }

    #[test]
    fn late_binding_needs_kv_mode() {
        let args = PolicyArgs {
            router: Some(Router::LeastLoaded),
            late_binding: Some(true),
            ..Default::default()
        };
        assert_eq!(
            choose(args).unwrap_err(),
            "--late-binding needs router mode kv, not least-loaded"
        );
    }

    #[test]
    fn a_stage_policy_needs_kv_mode() {
        let args = PolicyArgs {
            router_mode: Some(Mode::Random),
            router_prefill_policy: Some("a".into()),
            ..Default::default()
        };
        assert_eq!(
            choose(args).unwrap_err(),
            "--router-prefill-policy (a) needs router mode kv, not random"
        );
    }
}
