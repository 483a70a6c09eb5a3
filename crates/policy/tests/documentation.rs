// SPDX-License-Identifier: Apache-2.0

//! The reference pages under `docs/` say what the code does. `UPDATE_DOCS=1 cargo test -p regime-policy
//! --test documentation` writes them anew.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::Path;

use regime_policy::{
    ParameterDoc, classifier_parameters, metrics_documentation, policy_parameters,
};

fn assert_page(name: &str, section: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    let (begin, end) = ("<!-- generated -->\n", "<!-- end -->\n");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(begin).unwrap();
    let (_, tail) = rest.split_once(end).unwrap();
    let wanted = format!("{head}{begin}{section}{end}{tail}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(
        page == wanted,
        "docs/{name} is out of date: see the head of this test"
    );
}

fn parameters(title: &str, parameters: &[ParameterDoc]) -> String {
    let mut section = format!(
        "\n### `{title}`\n\n| Parameter | Default | Allowed | What it does |\n|---|---|---|---|\n"
    );
    for ParameterDoc {
        name,
        default,
        allowed,
        help,
    } in parameters
    {
        writeln!(section, "| `{name}` | {default} | {allowed} | {help} |").unwrap();
    }
    section
}

#[test]
fn the_parameter_reference_is_current() {
    let section = parameters("regime-aware", &policy_parameters())
        + &parameters("regime-feedback", &classifier_parameters())
        + "\n";
    assert_page("parameters.md", &section);
}

#[test]
fn the_metric_reference_is_current() {
    let mut section = "\n| Metric | Kind | What it says |\n|---|---|---|\n".to_owned();
    for metric in metrics_documentation() {
        writeln!(
            section,
            "| `{}` | {} | {} |",
            metric.name, metric.kind, metric.help
        )
        .unwrap();
    }
    section.push('\n');
    assert_page("metrics.md", &section);
}
