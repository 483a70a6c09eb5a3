// SPDX-License-Identifier: Apache-2.0

//! Mistakes that an operator makes at start: each ends the program with one line that says what to change.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, ensure};
use regime_integration::{Bed, LIMIT, Outcome};

/// A policy file in which the one instance has `parameters`.
fn with_parameters(parameters: &str) -> String {
    format!(
        "worker_selection:\n  aggregated: main\n  instances:\n    - name: main\n      type: regime-aware\n      parameters: {parameters}\n"
    )
}

/// Serve with the policy file `yaml`: it must be refused with one line that holds `words`.
async fn refused(yaml: &str, words: &[&str]) -> Result<()> {
    let bed = Bed::new()?;
    let file = bed.file("policy.yaml", yaml)?;
    bed.outcome(&["serve", "--router-policy-config", &file])
        .await?
        .refused_with(words)
}

/// Serve with one environment variable: it must be refused with one line that holds the variable's name and `words`.
async fn refused_variable(name: &str, value: &str, words: &[&str]) -> Result<()> {
    let bed = Bed::new()?;
    let mut command = bed.program(&["serve"])?;
    command.env(name, value);
    let outcome = Outcome::of(command, LIMIT).await?;
    outcome.refused_with(&[name])?;
    outcome.refused_with(words)
}

#[tokio::test]
async fn an_unknown_policy_type_is_refused_with_the_known_ones() -> Result<()> {
    let yaml = with_parameters("{}").replace("regime-aware", "nosuch");
    refused(&yaml, &["nosuch", "regime-aware", "dynamo-default-cost-fn"]).await
}

#[tokio::test]
async fn a_misspelt_parameter_is_refused_with_its_instance() -> Result<()> {
    refused(&with_parameters("{ sede: 1 }"), &["main", "sede"]).await
}

#[tokio::test]
async fn a_parameter_out_of_range_is_refused_with_what_is_allowed() -> Result<()> {
    let words = ["tie_margin_ms", "-1", "allowed"];
    refused(&with_parameters("{ tie_margin_ms: -1 }"), &words).await
}

#[tokio::test]
async fn a_role_without_its_instance_is_refused() -> Result<()> {
    let yaml = with_parameters("{}").replace("aggregated: main", "aggregated: other");
    refused(&yaml, &["aggregated", "other"]).await
}

#[tokio::test]
async fn an_unknown_top_level_key_is_refused() -> Result<()> {
    let yaml = with_parameters("{}").replace("worker_selection", "worker_selectoin");
    refused(&yaml, &["worker_selectoin", "worker_selection"]).await
}

#[tokio::test]
async fn parameters_that_are_no_mapping_are_refused() -> Result<()> {
    refused(&with_parameters("[1]"), &["main", "mapping"]).await
}

#[tokio::test]
async fn an_unknown_classifier_type_is_refused_with_the_known_ones() -> Result<()> {
    let yaml = "request_classifier: { type: nosuch, parameters: {} }\n";
    refused(yaml, &["nosuch", "regime-feedback"]).await
}

#[tokio::test]
async fn a_file_that_is_no_yaml_is_refused() -> Result<()> {
    refused("worker_selection: [", &["policy.yaml"]).await
}

#[tokio::test]
async fn a_missing_policy_file_is_refused() -> Result<()> {
    Bed::new()?
        .outcome(&["serve", "--router-policy-config", "nofile.yaml"])
        .await?
        .refused_with(&["nofile.yaml", "No such file"])
}

#[tokio::test]
async fn a_misspelt_flag_is_refused() -> Result<()> {
    Bed::new()?
        .outcome(&["serve", "--http-prot", "1"])
        .await?
        .refused_with(&["--http-prot", "--http-port"])
}

#[tokio::test]
async fn a_port_that_is_no_number_is_refused() -> Result<()> {
    Bed::new()?
        .outcome(&["serve", "--http-port", "many"])
        .await?
        .refused_with(&["--http-port", "many"])
}

#[tokio::test]
async fn an_occupied_port_is_refused() -> Result<()> {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = taken.local_addr()?.port().to_string();
    Bed::new()?
        .outcome(&["serve", "--http-host", "127.0.0.1", "--http-port", &port])
        .await?
        .refused_with(&[&port, "in use"])
}

#[tokio::test]
async fn a_decimal_comma_in_a_variable_is_refused() -> Result<()> {
    refused_variable("DYN_ROUTER_TEMPERATURE", "0,5", &["0,5"]).await
}

#[tokio::test]
async fn a_variable_that_names_no_policy_is_refused() -> Result<()> {
    refused_variable("DYN_ROUTER_WORKER_SELECTION_POLICY", "nosuch", &["nosuch"]).await
}

#[tokio::test]
async fn an_unknown_discovery_backend_is_refused() -> Result<()> {
    refused_variable("DYN_DISCOVERY_BACKEND", "zookeeper", &["zookeeper"]).await
}

/// Dynamo builds only the instances that a role selects, so this one does not keep the fleet from starting.
#[tokio::test]
async fn a_mistake_that_no_role_selects_is_a_warning_and_the_policies_are_announced() -> Result<()>
{
    let bed = Bed::new()?;
    let spare = "    - { name: spare, type: regime-aware, parameters: { tie_margin_ms: -5 } }\n";
    let file = bed.file("policy.yaml", &(with_parameters("{}") + spare))?;
    let flags = ["--router-policy-config", &file, "--mock-workers", "1"];
    let frontend = bed.serve(1, &flags).await?;
    let log = frontend.process.output();
    for words in [
        ["warning", "spare"],
        ["aggregated", "regime-aware"],
        ["decode", "built-in"],
    ] {
        let found = log
            .lines()
            .any(|line| words.iter().all(|word| line.contains(word)));
        ensure!(found, "no line with {words:?} in:\n{log}");
    }
    Ok(())
}
