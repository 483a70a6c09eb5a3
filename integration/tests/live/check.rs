// SPDX-License-Identifier: Apache-2.0

//! `check`: a policy file is judged without serving, and more strictly than the host does (field report BR-20).

use std::path::Path;

use anyhow::{Context, Result, ensure};
use regime_integration::{Bed, LIMIT, Outcome};

const TWO_INSTANCES: &str = "\
worker_selection:
  aggregated: main
  decode: default
  instances:
    - { name: main, type: regime-aware, parameters: { MAIN } }
    - { name: spare, type: regime-aware, parameters: { SPARE } }
request_classifier: { type: regime-feedback, parameters: {} }
";

fn two_instances(main: &str, spare: &str) -> String {
    TWO_INSTANCES.replace("MAIN", main).replace("SPARE", spare)
}

async fn check(yaml: &str, variables: &[(&str, &str)]) -> Result<Outcome> {
    check_with(yaml, &[], variables).await
}

async fn check_with(yaml: &str, flags: &[&str], variables: &[(&str, &str)]) -> Result<Outcome> {
    let bed = Bed::new()?;
    let file = bed.file("policy.yaml", yaml)?;
    let mut command = bed.program(&["check", &file])?;
    command.args(flags);
    command.envs(variables.iter().copied());
    Outcome::of(command, LIMIT).await
}

/// The line of the report that starts with `role`.
fn role<'a>(outcome: &'a Outcome, role: &str) -> Result<&'a str> {
    ensure!(outcome.code == Some(0), "refused: {outcome:?}");
    outcome
        .stdout
        .lines()
        .find(|line| line.trim_start().starts_with(role))
        .ok_or_else(|| anyhow::anyhow!("no line for {role}: {outcome:?}"))
}

#[tokio::test]
async fn a_good_file_shows_the_policy_of_each_role() -> Result<()> {
    let outcome = check(&two_instances("", ""), &[]).await?;
    ensure!(role(&outcome, "aggregated")?.contains("regime-aware"));
    ensure!(role(&outcome, "decode")?.contains("built-in"));
    ensure!(role(&outcome, "prefill")?.contains("built-in"));
    Ok(())
}

#[tokio::test]
async fn every_shipped_policy_file_is_sound() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/policies");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder)? {
        let file = entry?.path();
        let outcome = check_with(&std::fs::read_to_string(&file)?, &[], &[]).await?;
        role(&outcome, "decode").with_context(|| file.display().to_string())?;
        checked += 1;
    }
    ensure!(checked > 0);
    Ok(())
}

#[tokio::test]
async fn late_binding_is_shown_with_the_flag_or_the_variable_behind_it() -> Result<()> {
    let yaml = two_instances("", "");
    let by_flag = check_with(&yaml, &["--late-binding"], &[]).await?;
    ensure!(role(&by_flag, "queue")?.contains("8192 prefill tokens"));
    ensure!(role(&by_flag, "queue")?.contains("--late-binding"));
    let by_variable = check(&yaml, &[("REGIME_LATE_BINDING", "on")]).await?;
    ensure!(role(&by_variable, "queue")?.contains("REGIME_LATE_BINDING"));
    ensure!(role(&check(&yaml, &[]).await?, "queue").is_err());
    Ok(())
}

#[tokio::test]
async fn late_binding_beside_classes_of_the_file_is_refused() -> Result<()> {
    let classes = "\
default_policy_family: all
uncached_isl_buckets: [{ min_tokens: 0, bucket: any }]
policy_classes: [{ name: own, policy_family: all, cache_bucket: any, quantum: 1 }]
";
    let yaml = two_instances("", "") + classes;
    let variable = ("REGIME_LATE_BINDING", "true");
    check(&yaml, &[variable]).await?.refused_with(&[
        "REGIME_LATE_BINDING",
        "policy_classes",
        "policy.yaml",
    ])
}

#[tokio::test]
async fn a_misspelt_key_is_named_with_its_instance() -> Result<()> {
    check(&two_instances("sede: 1", ""), &[])
        .await?
        .refused_with(&["main", "sede"])
}

#[tokio::test]
async fn an_instance_that_no_role_selects_is_checked_too() -> Result<()> {
    check(&two_instances("", "tie_margin_ms: -5"), &[])
        .await?
        .refused_with(&["spare", "tie_margin_ms", "-5"])
}

#[tokio::test]
async fn the_variable_overrides_every_role_of_the_file() -> Result<()> {
    let variable = ("DYN_ROUTER_WORKER_SELECTION_POLICY", "main");
    let outcome = check(&two_instances("", ""), &[variable]).await?;
    ensure!(role(&outcome, "decode")?.contains("regime-aware"));
    ensure!(role(&outcome, "decode")?.contains("DYN_ROUTER_WORKER_SELECTION_POLICY"));
    Ok(())
}

#[tokio::test]
async fn a_blank_variable_is_not_set() -> Result<()> {
    let variable = ("DYN_ROUTER_WORKER_SELECTION_POLICY", " ");
    let outcome = check(&two_instances("", ""), &[variable]).await?;
    ensure!(role(&outcome, "decode")?.contains("built-in"));
    Ok(())
}

#[tokio::test]
async fn a_variable_that_names_no_instance_is_refused() -> Result<()> {
    let variable = ("DYN_ROUTER_WORKER_SELECTION_POLICY", "nosuch");
    check(&two_instances("", ""), &[variable])
        .await?
        .refused_with(&["DYN_ROUTER_WORKER_SELECTION_POLICY", "nosuch"])
}

#[tokio::test]
async fn a_flag_beats_the_variable() -> Result<()> {
    let flags = ["--router-decode-policy", "default"];
    let variable = ("DYN_ROUTER_WORKER_SELECTION_POLICY", "main");
    let outcome = check_with(&two_instances("", ""), &flags, &[variable]).await?;
    ensure!(role(&outcome, "decode")?.contains("--router-decode-policy"));
    ensure!(role(&outcome, "prefill")?.contains("DYN_ROUTER_WORKER_SELECTION_POLICY"));
    Ok(())
}
