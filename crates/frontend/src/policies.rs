// SPDX-License-Identifier: Apache-2.0

//! `regime-frontend policies`: what is linked, with parameters and defaults.
//!
//! Our own parameters come from the policy crate, which also validates by them. Dynamo publishes no list of its own; the
//! one here was read in its builtin policies (1.6.1), and a test builds each type with every default in it, so a name or a
//! value that a later version refuses is noticed.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::output;
use crate::router::Mode;

/// Arguments of `policies`.
#[derive(Debug, Clone, Args)]
pub struct PoliciesArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// One linked type.
#[derive(Debug, Serialize)]
struct Plugin {
    name: &'static str,
    kind: &'static str,
    origin: &'static str,
    help: &'static str,
    parameters: Vec<Parameter>,
}

/// One parameter.
#[derive(Debug, Serialize)]
struct Parameter {
    name: &'static str,
    /// As YAML; empty when it depends on other settings.
    default: String,
    allowed: &'static str,
    help: &'static str,
}

/// A routing mode of Dynamo.
#[derive(Debug, Serialize)]
struct RoutingMode {
    name: String,
    help: String,
}

/// Print them.
///
/// # Errors
/// None in practice: the document is always serialisable.
pub fn main(args: &PoliciesArgs) -> anyhow::Result<ExitCode> {
    let (plugins, modes) = (plugins(), modes());
    if args.json {
        let document = serde_json::json!({ "plugins": plugins, "modes": modes });
        output::print(&serde_json::to_string_pretty(&document)?);
        return Ok(ExitCode::SUCCESS);
    }
    for plugin in &plugins {
        output::print(&format!(
            "{}  ({}, {})\n  {}",
            plugin.name, plugin.kind, plugin.origin, plugin.help
        ));
        if !plugin.parameters.is_empty() {
            output::print(&table(&plugin.parameters).trim_fmt());
        }
        output::print("");
    }
    output::print("routing modes (--router-mode, or by name with --router)");
    for mode in &modes {
        output::print(&format!("  {:<22} {}", mode.name, mode.help));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(parameters: &[Parameter]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["parameter", "default", "allowed", "what it does"]);
    for parameter in parameters {
        table.add_row([
            parameter.name,
            &parameter.default,
            parameter.allowed,
            parameter.help,
        ]);
    }
    table
}

const SELECTION: &str = "worker selection";
const CLASSIFIER: &str = "request classifier";

fn plugins() -> Vec<Plugin> {
    let ours = |parameters: Vec<regime_policy::ParameterDoc>| {
        parameters
            .into_iter()
            .map(|p| Parameter {
                name: p.name,
                default: p.default,
                allowed: p.allowed,
                help: p.help,
            })
            .collect()
    };
    vec![
        Plugin {
            name: regime_policy::POLICY_TYPE,
            kind: SELECTION,
            origin: "regime-router",
            help: "Congestion minus the calibrated value of cached blocks, priced by the regime of the pool.",
            parameters: ours(regime_policy::policy_parameters()),
        },
        Plugin {
            name: regime_policy::CLASSIFIER_TYPE,
            kind: CLASSIFIER,
            origin: "regime-router",
            help: "Feeds what became of each request back into the policy, and admits it.",
            parameters: ours(regime_policy::classifier_parameters()),
        },
        Plugin {
            name: "dynamo-default-cost-fn",
            kind: SELECTION,
            origin: "Dynamo",
            help: "Dynamo's built-in cost function as a named instance. Defaults are the router settings of serve.",
            parameters: DEFAULT_COST.into_iter().map(dynamo).collect(),
        },
        Plugin {
            name: "dynamo-two-tier-cost-fn",
            kind: SELECTION,
            origin: "Dynamo",
            help: "Least loaded when the load is uneven, else most overlap, else least loaded.",
            parameters: TWO_TIER.into_iter().map(dynamo).collect(),
        },
        Plugin {
            name: "thunderagent",
            kind: SELECTION,
            origin: "Dynamo",
            help: "Executes the placement of the thunderagent classifier.",
            parameters: Vec::new(),
        },
        Plugin {
            name: "thunderagent",
            kind: CLASSIFIER,
            origin: "Dynamo",
            help: "Program-aware admission: pauses and resumes agent programs by KV usage.",
            parameters: THUNDERAGENT.into_iter().map(dynamo).collect(),
        },
    ]
}

fn modes() -> Vec<RoutingMode> {
    Mode::value_variants()
        .iter()
        .filter_map(ValueEnum::to_possible_value)
        .map(|value| RoutingMode {
            name: value.get_name().to_owned(),
            help: value
                .get_help()
                .map(ToString::to_string)
                .unwrap_or_default(),
        })
        .collect()
}

type Documented = (&'static str, &'static str, &'static str, &'static str);

fn dynamo((name, default, allowed, help): Documented) -> Parameter {
    Parameter {
        name,
        default: default.to_owned(),
        allowed,
        help,
    }
}

const DEFAULT_COST: [Documented; 8] = [
    (
        "overlap_score_credit",
        "1.0",
        ">= 0",
        "credit for a block on the device",
    ),
    (
        "overlap_score_credit_decay",
        "0.0",
        ">= 0",
        "how fast it falls as prefill load rises",
    ),
    (
        "prefill_load_scale",
        "1.0",
        ">= 0",
        "weight of prefill load",
    ),
    (
        "decode_active_request_weight",
        "0.0",
        ">= 0",
        "blocks that one active request counts for",
    ),
    (
        "host_cache_hit_weight",
        "0.75",
        ">= 0",
        "worth of a block in host memory",
    ),
    (
        "disk_cache_hit_weight",
        "0.25",
        ">= 0",
        "worth of a block on disk",
    ),
    (
        "shared_cache_multiplier",
        "0.0",
        ">= 0",
        "worth of a block in the shared cache; 0.5 with hicache",
    ),
    (
        "router_temperature",
        "0.0",
        ">= 0",
        "0 takes the cheapest worker",
    ),
];

const TWO_TIER: [Documented; 3] = [
    (
        "cache_threshold",
        "0.5",
        "0 to 1",
        "share of the prompt that must be cached for cache to decide",
    ),
    (
        "balance_abs_threshold",
        "32",
        "whole number >= 0",
        "spread in requests above which load decides",
    ),
    (
        "balance_rel_threshold",
        "1.1",
        ">= 1",
        "and ratio of most to least loaded",
    ),
];

const THUNDERAGENT: [Documented; 10] = [
    (
        "pause_threshold",
        "0.95",
        "0 to 1",
        "KV usage above which programs are paused",
    ),
    (
        "pause_target",
        "0.8",
        "0 to pause_threshold",
        "KV usage to pause down to",
    ),
    (
        "resume_hysteresis",
        "0.1",
        "0 to pause_threshold",
        "how far below to resume",
    ),
    ("resume_timeout_seconds", "1800.0", "> 0", "longest pause"),
    (
        "session_retention_seconds",
        "1800.0",
        "> 0",
        "how long an idle program is remembered",
    ),
    (
        "scheduler_interval_seconds",
        "5.0",
        "> 0",
        "period of the scheduler",
    ),
    (
        "acting_token_weight",
        "1.0",
        "> 0",
        "weight of tokens of a program that is acting",
    ),
    (
        "acting_decay_tau_seconds",
        "1.0",
        "> 0",
        "how fast that weight decays",
    ),
    (
        "buffer_per_program",
        "100",
        "whole number >= 0",
        "tokens kept free for each program",
    ),
    (
        "max_tracked_requests",
        "10000",
        "whole number >= 1",
        "most requests tracked",
    ),
];

#[cfg(test)]
mod tests {
    use dynamo_kv_router::{KvRouterConfig, WorkerType};

    use super::*;
    use crate::link::{Extensions, link};
    use crate::policy_file;

    /// A policy file with every parameter at its documented default, but those in the section `without` and
    /// what `instead` sets. A dot in a name is a nested key.
    fn yaml(plugin: &Plugin, without: &str, instead: (&str, &str)) -> String {
        let mut parameters = serde_json::json!({});
        for parameter in &plugin.parameters {
            if parameter.name.starts_with(&format!("{without}.")) {
                continue;
            }
            let place = parameter
                .name
                .split('.')
                .fold(&mut parameters, |place, key| &mut place[key]);
            *place = if parameter.name == instead.0 {
                instead.1.into()
            } else {
                serde_yaml::from_str(&parameter.default).unwrap()
            };
        }
        if plugin.kind == CLASSIFIER {
            serde_json::json!({ "request_classifier": { "type": plugin.name, "parameters": parameters } }).to_string()
        } else {
            serde_json::json!({ "worker_selection": {
                "prefill": "a",
                "instances": [{ "name": "a", "type": plugin.name, "parameters": parameters }],
            }})
            .to_string()
        }
    }

    #[test]
    fn every_listed_type_is_linked_and_takes_its_documented_defaults() {
        let linked = link(Extensions::default()).unwrap();
        // Lower tiers are valued by weight or by time, and either refuses the section of the other.
        let values = [("tiers", "weights"), ("tier_weights", "time")];
        let cases = plugins().into_iter().flat_map(|plugin| {
            values.map(|(without, value)| {
                (yaml(&plugin, without, ("tier_value", value)), plugin.name)
            })
        });
        for (yaml, name) in cases {
            let file = policy_file::private(&yaml).unwrap();
            let config = KvRouterConfig {
                router_policy_config: Some(file.display().to_string()),
                ..Default::default()
            };
            let selection = linked
                .registry
                .resolve_for_worker_type(&config, WorkerType::Prefill);
            let classifier = linked.registry.resolve_request_classifier(&config);
            assert!(selection.is_ok(), "{}: {}", name, selection.err().unwrap());
            assert!(
                classifier.is_ok(),
                "{}: {}",
                name,
                classifier.err().unwrap()
            );
        }
    }

    #[test]
    fn every_linked_selection_type_is_listed() {
        let linked = link(Extensions::default()).unwrap();
        let file = policy_file::private(&policy_file::for_all_roles("nosuch", None)).unwrap();
        let config = KvRouterConfig {
            router_policy_config: Some(file.display().to_string()),
            ..Default::default()
        };
        let error = linked.registry.resolve(&config).err().unwrap().to_string();
        let mut listed: Vec<_> = plugins()
            .iter()
            .filter(|p| p.kind == SELECTION)
            .map(|p| p.name)
            .collect();
        listed.sort_unstable();
        assert!(error.ends_with(&listed.join(", ")), "{error}");
    }

    #[test]
    fn all_routing_modes_are_listed() {
        let names: Vec<_> = modes().into_iter().map(|mode| mode.name).collect();
        assert_eq!(
            names,
            [
                "kv",
                "round-robin",
                "random",
                "power-of-two",
                "least-loaded",
                "direct",
                "device-aware-weighted"
            ]
        );
    }
}
