// SPDX-License-Identifier: Apache-2.0

//! `regime-frontend check`, and the effective policy of each role.
//!
//! Dynamo builds only the instances that a role selects, so a mistake in a spare one shows on the day it is needed (field
//! report BR-20). Here every instance is built once through the plugin that will build it for real. What a role ends up
//! with depends on flags, on a variable that Dynamo reads by itself and on the file; the table says which of them spoke.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use dynamo_kv_router::config::DYN_ROUTER_WORKER_SELECTION_POLICY;
use dynamo_kv_router::plugins::{RouterPluginRegistry, RouterPlugins};
use dynamo_kv_router::{KvRouterConfig, WorkerType};

use crate::cli::Sources;
use crate::link::{Extensions, link};
use crate::router::{PolicyArgs, Resolved, TuningArgs};
use crate::{environment, output, policy_file, startup};

/// Arguments of `check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// The router-policy file [default: what serve would use].
    #[arg(value_name = "FILE", conflicts_with = "router")]
    pub file: Option<PathBuf>,

    /// Which policy routes.
    #[command(flatten)]
    pub policy: PolicyArgs,
}

/// Roles in the order they are shown.
const ROLES: [WorkerType; 4] = [
    WorkerType::Aggregated,
    WorkerType::Prefill,
    WorkerType::Decode,
    WorkerType::Encode,
];

/// Check, print the effective policies on stdout and each mistake as a line on stderr.
///
/// # Errors
/// When the file cannot be read or parsed at all.
pub fn main(
    args: CheckArgs,
    sources: &Sources,
    extensions: Extensions,
) -> anyhow::Result<ExitCode> {
    let mut policy = args.policy;
    if args.file.is_some() {
        policy.router_policy_config = args.file;
    }
    environment::settle(policy.environment_changes(sources))?;
    let linked = link(extensions)?;
    let routing = Resolved::new(&policy, &TuningArgs::default(), sources)?;
    let roles = Roles::of(&routing, sources, &policy)?;
    let problems = problems(&linked.registry, routing.kv());
    output::print(&routing.origin);
    for line in roles.lines() {
        output::print(&format!("  {line}"));
    }
    for line in &routing.queue {
        output::print(&format!("  queue      {line}"));
    }
    for problem in &problems {
        output::say(&format!("{}: {}", routing.origin, problem.text));
    }
    Ok(if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The policy that each role ends up with.
#[derive(Debug)]
pub struct Roles {
    /// What stands for the routing as a whole when no policies route.
    without_policies: Option<String>,
    roles: Vec<RolePolicy>,
}

#[derive(Debug)]
struct RolePolicy {
    role: WorkerType,
    /// `None` is Dynamo's built-in.
    instance: Option<String>,
    policy_type: String,
    from: String,
}

impl Roles {
    /// Apply Dynamo's precedence: flag of the stage, `DYN_ROUTER_WORKER_SELECTION_POLICY`, the file, the built-in.
    ///
    /// # Errors
    /// A flag or variable that names no instance of the file.
    pub fn of(routing: &Resolved, sources: &Sources, policy: &PolicyArgs) -> anyhow::Result<Self> {
        let everywhere = std::env::var(DYN_ROUTER_WORKER_SELECTION_POLICY).ok();
        Self::with_variable(routing, sources, policy, everywhere.as_deref())
    }

    fn with_variable(
        routing: &Resolved,
        sources: &Sources,
        policy: &PolicyArgs,
        everywhere: Option<&str>,
    ) -> anyhow::Result<Self> {
        let everywhere = named(everywhere).map(|name| {
            (
                name,
                format!("environment variable {DYN_ROUTER_WORKER_SELECTION_POLICY}"),
            )
        });
        if !routing.is_kv() {
            if let Some((name, variable)) = everywhere {
                bail!(
                    "{variable} ({name}) needs router mode kv, not {}",
                    routing.origin
                );
            }
            return Ok(Self {
                without_policies: Some(routing.origin.clone()),
                roles: Vec::new(),
            });
        }
        let stage = |argument: &Option<String>, id: &str| {
            named(argument.as_deref()).map(|name| (name, sources.name(id)))
        };
        let file = routing.kv().worker_selection_config()?;
        let known = file.map(|file| file.instance_names()).unwrap_or_default();
        let selections = match &routing.kv().router_policy_config {
            Some(path) => policy_file::selections(Path::new(path))?,
            None => HashMap::new(),
        };
        let mut roles = Vec::new();
        for role in ROLES {
            let own = match role {
                WorkerType::Prefill => {
                    stage(&policy.router_prefill_policy, "router_prefill_policy")
                }
                WorkerType::Decode => stage(&policy.router_decode_policy, "router_decode_policy"),
                WorkerType::Aggregated | WorkerType::Encode => None,
            };
            let in_file = selections
                .get(role.as_str())
                .map(|name| (name.clone(), routing.origin.clone()));
            let (name, from) = own
                .or_else(|| everywhere.clone())
                .or(in_file)
                .unwrap_or_else(|| (BUILT_IN.to_owned(), "not named".to_owned()));
            let instance = file.and_then(|file| file.instance(&name));
            roles.push(if name == BUILT_IN {
                RolePolicy {
                    role,
                    instance: None,
                    policy_type: "Dynamo's built-in".to_owned(),
                    from,
                }
            } else if let Some(instance) = instance {
                let policy_type = instance.policy_type().to_owned();
                RolePolicy {
                    role,
                    instance: Some(name),
                    policy_type,
                    from,
                }
            } else {
                let known = known
                    .iter()
                    .map(String::as_str)
                    .chain([BUILT_IN])
                    .collect::<Vec<_>>()
                    .join(", ");
                bail!(
                    "{from}: \"{name}\" is no instance of {}; allowed: {known}",
                    routing.origin
                );
            });
        }
        Ok(Self {
            without_policies: None,
            roles,
        })
    }

    /// One line a role.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        if let Some(mode) = &self.without_policies {
            return vec![format!("{mode}, no policy")];
        }
        self.roles
            .iter()
            .map(|role| {
                let mut line = format!("{:<11}{}", role.role.as_str(), role.policy_type);
                if let Some(instance) = role
                    .instance
                    .as_ref()
                    .filter(|instance| **instance != role.policy_type)
                {
                    let _ = write!(line, ", instance {instance}");
                }
                let _ = write!(line, " ({})", role.from);
                line
            })
            .collect()
    }

    /// Build what the roles select. A mistake elsewhere in the file is a warning on stderr.
    ///
    /// # Errors
    /// The file, the instance or the classifier, and what is wrong with it.
    pub fn resolve(
        &self,
        registry: &RouterPluginRegistry,
        routing: &Resolved,
    ) -> anyhow::Result<RouterPlugins> {
        for problem in problems(registry, routing.kv()) {
            let selected = problem.instance.as_ref().is_none_or(|instance| {
                self.roles
                    .iter()
                    .any(|role| role.instance.as_ref() == Some(instance))
            });
            if selected {
                bail!("{}: {}", routing.origin, problem.text);
            }
            startup::line(
                "warning",
                &format!("{}: {} (no role selects it)", routing.origin, problem.text),
            );
        }
        registry
            .resolve_plugins(routing.kv())
            .map_err(|error| anyhow::anyhow!("{}: {error}", routing.origin))
    }
}

/// Dynamo's reserved name for its built-in policy.
const BUILT_IN: &str = "default";

/// A name, unless it is blank: blank is unset, as in Dynamo.
fn named(value: Option<&str>) -> Option<String> {
    value
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// A mistake in a policy file.
struct Problem {
    /// The instance; `None` is the classifier.
    instance: Option<String>,
    text: String,
}

/// Build every instance, selected or not, and the classifier.
fn problems(registry: &RouterPluginRegistry, kv: &KvRouterConfig) -> Vec<Problem> {
    let names = kv
        .worker_selection_config()
        .ok()
        .flatten()
        .map(|file| file.instance_names())
        .unwrap_or_default();
    let mut problems: Vec<Problem> = names
        .into_iter()
        .filter_map(|name| {
            // The flag of the stage beats everything else, the environment included.
            let config = KvRouterConfig {
                router_prefill_policy: Some(name.clone()),
                ..kv.clone()
            };
            let error = registry
                .resolve_for_worker_type(&config, WorkerType::Prefill)
                .err()?;
            let text = format!(
                "instance \"{name}\": {}",
                output::squeeze(&error.to_string())
            );
            Some(Problem {
                instance: Some(name),
                text,
            })
        })
        .collect();
    if let Err(error) = registry.resolve_request_classifier(kv) {
        let text = format!(
            "request_classifier: {}",
            output::squeeze(&error.to_string())
        );
        problems.push(Problem {
            instance: None,
            text,
        });
    }
    problems
}

#[cfg(test)]
mod tests {
    use tempfile::NamedTempFile;

    use super::*;

    fn file(text: &str) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    const TWO: &str = "
worker_selection:
  aggregated: main
  decode: default
  instances:
    - { name: main, type: dynamo-two-tier-cost-fn }
    - { name: spare, type: dynamo-two-tier-cost-fn, parameters: { cache_threshold: -5 } }
";

    fn resolved(file: &NamedTempFile) -> (PolicyArgs, Resolved) {
        let policy = PolicyArgs {
            router_policy_config: Some(file.path().into()),
            ..Default::default()
        };
        let routing = Resolved::new(&policy, &TuningArgs::default(), &Sources::default()).unwrap();
        (policy, routing)
    }

    fn roles(
        policy: &PolicyArgs,
        routing: &Resolved,
        variable: Option<&str>,
    ) -> Result<Vec<Option<String>>, String> {
        Roles::with_variable(routing, &Sources::default(), policy, variable)
            .map(|roles| roles.roles.into_iter().map(|role| role.instance).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_selects_by_role() {
        let file = file(TWO);
        let (policy, routing) = resolved(&file);
        assert_eq!(
            roles(&policy, &routing, None),
            Ok(vec![Some("main".to_owned()), None, None, None])
        );
    }

    #[test]
    fn the_variable_overrides_every_role_of_the_file() {
        let file = file(TWO);
        let (policy, routing) = resolved(&file);
        assert_eq!(
            roles(&policy, &routing, Some("main")),
            Ok(vec![Some("main".to_owned()); 4])
        );
        assert_eq!(roles(&policy, &routing, Some("default")), Ok(vec![None; 4]));
    }

    #[test]
    fn a_blank_variable_is_not_set() {
        let file = file(TWO);
        let (policy, routing) = resolved(&file);
        assert_eq!(
            roles(&policy, &routing, Some(" ")),
            roles(&policy, &routing, None)
        );
    }

    #[test]
    fn a_stage_flag_beats_the_variable() {
        let file = file(TWO);
        let (mut policy, routing) = resolved(&file);
        policy.router_prefill_policy = Some("default".into());
        assert_eq!(roles(&policy, &routing, Some("main")).unwrap()[1], None);
    }

    #[test]
    fn a_variable_that_names_no_instance_is_an_error_that_names_it() {
        let file = file(TWO);
        let (policy, routing) = resolved(&file);
        let error = roles(&policy, &routing, Some("nosuch")).unwrap_err();
        let expected = format!(
            "environment variable DYN_ROUTER_WORKER_SELECTION_POLICY: \"nosuch\" is no instance of {}; \
             allowed: main, spare, default",
            file.path().display()
        );
        assert_eq!(error, expected);
    }

    #[test]
    fn the_variable_without_policies_to_choose_from_is_an_error() {
        let policy = PolicyArgs {
            router: Some(crate::router::Router::RoundRobin),
            ..Default::default()
        };
        let routing = Resolved::new(&policy, &TuningArgs::default(), &Sources::default()).unwrap();
        let error = roles(&policy, &routing, Some("main")).unwrap_err();
        assert!(
            error.contains(DYN_ROUTER_WORKER_SELECTION_POLICY) && error.contains("kv"),
            "{error}"
        );
    }

    #[test]
    fn an_instance_that_no_role_selects_is_checked_too() {
        let file = file(TWO);
        let (_, routing) = resolved(&file);
        let linked = link(Extensions::default()).unwrap();
        let problems = problems(&linked.registry, routing.kv());
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].text.starts_with("instance \"spare\": "),
            "{}",
            problems[0].text
        );
        assert!(
            problems[0].text.contains("cache_threshold"),
            "{}",
            problems[0].text
        );
    }

    #[test]
    fn a_mistake_in_a_selected_instance_stops_the_start_and_a_spare_one_does_not() {
        let file = file(TWO);
        let (policy, routing) = resolved(&file);
        let linked = link(Extensions::default()).unwrap();
        let resolve = |variable| {
            Roles::with_variable(&routing, &Sources::default(), &policy, variable)
                .unwrap()
                .resolve(&linked.registry, &routing)
        };
        assert!(resolve(None).is_ok());
        let error = resolve(Some("spare")).err().unwrap().to_string();
        assert!(
            error.contains(&file.path().display().to_string()) && error.contains("\"spare\""),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_type_lists_the_linked_ones() {
        let file =
            file("worker_selection: { aggregated: a, instances: [{ name: a, type: nosuch }] }\n");
        let (_, routing) = resolved(&file);
        let linked = link(Extensions::default()).unwrap();
        let problems = problems(&linked.registry, routing.kv());
        assert!(problems[0].text.contains("nosuch") && problems[0].text.contains("thunderagent"));
    }

    #[test]
    fn an_unknown_classifier_is_reported() {
        let file = file("request_classifier: { type: nosuch }\n");
        let (_, routing) = resolved(&file);
        let linked = link(Extensions::default()).unwrap();
        assert!(
            problems(&linked.registry, routing.kv())[0]
                .text
                .starts_with("request_classifier: ")
        );
    }
}
