// SPDX-License-Identifier: Apache-2.0

//! `regime-lab policies`, `workloads` and `engines`: the names that can be used.

use std::process::ExitCode;

use serde_json::json;

use super::args::OutputArgs;
use super::{output, tables};
use crate::baselines::BASELINES;
use crate::engines::{DEFAULT_ENGINE, Engine};
use crate::policies::Catalog;
use crate::traces::Format;
use crate::workloads::Generator;

pub(super) fn policies(output: &OutputArgs, catalog: &Catalog) -> anyhow::Result<ExitCode> {
    let kind = |name: &str| match name {
        "default" => "Dynamo's built-in selector",
        name if BASELINES.contains(&name) => "baseline of the lab",
        _ => "worker-selection type, linked in",
    };
    let names = catalog.names()?;
    let rows = names
        .iter()
        .map(|name| (name.clone(), kind(name).to_owned()));
    list(
        output,
        rows.collect(),
        "A router-policy YAML file is a policy, too.",
    );
    Ok(ExitCode::SUCCESS)
}

pub(super) fn workloads(output: &OutputArgs) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<_> = Generator::ALL
        .iter()
        .map(|it| (it.name().to_owned(), it.describe().to_owned()))
        .collect();
    let formats = Format::ALL.map(Format::name).join(", ");
    rows.push(("trace:FILE".into(), format!("a recording: {formats}")));
    list(output, rows, "");
    Ok(ExitCode::SUCCESS)
}

pub(super) fn engines(output: &OutputArgs) -> anyhow::Result<ExitCode> {
    let rows = Engine::presets()
        .into_iter()
        .map(|it| (it.name.to_owned(), it.description));
    let more =
        format!("{DEFAULT_ENGINE} is used where none is named. A YAML file is an engine, too.");
    list(output, rows.collect(), &more);
    Ok(ExitCode::SUCCESS)
}

fn list(output: &OutputArgs, rows: Vec<(String, String)>, more: &str) {
    if output.json {
        let objects: Vec<_> = rows
            .iter()
            .map(|(name, description)| json!({"name": name, "description": description}))
            .collect();
        output::print(&format!("{:#}", json!(objects)));
        return;
    }
    let mut table = tables::table(&["name", "what it is"], false);
    for (name, description) in rows {
        table.add_row([name, description]);
    }
    output::print(&format!("{table}\n{more}"));
}
