// SPDX-License-Identifier: Apache-2.0

//! Results to stdout and files, failures to stderr.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::args::{OutputArgs, distinct};
use crate::experiments::{Journal, Trial, TrialError};
use crate::policies::Catalog;
use crate::report::{self, ReportError, RunDetail};
use crate::results::{Provenance, Results, RunEntry};
use crate::run::RunError;

/// Options that change nothing in the results, and whether a value follows.
const WITHOUT_EFFECT: [(&str, bool); 6] = [
    ("--out", true),
    ("--report", true),
    ("--threads", true),
    ("--json", false),
    ("--quiet", false),
    ("--fresh", false),
];

/// Tell the user something on stderr. A closed stderr is no reason to stop.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "regime-lab: {text}");
}

/// Print on stdout. A reader that went away (`… | head`) is no failure of ours.
pub(super) fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end_matches('\n'));
}

/// Where these results come from.
pub(super) fn provenance() -> Provenance {
    let args = std::env::args().skip(1);
    Provenance {
        command: Some(command(args)),
        ..Provenance::default()
    }
}

/// The command without what cannot change its results, so that the results do not tell it either.
fn command(args: impl Iterator<Item = String>) -> String {
    let mut words = vec!["regime-lab".to_owned()];
    let mut args = args;
    while let Some(arg) = args.next() {
        let name = arg.split('=').next().unwrap_or_default();
        match WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) {
            Some((_, true)) if !arg.contains('=') => {
                args.next();
            }
            Some(_) => {}
            None => words.push(arg),
        }
    }
    words.join(" ")
}

/// Make the folders that results go to, so that a run is not for nothing.
pub(super) fn prepare(output: &OutputArgs) -> anyhow::Result<()> {
    for (option, folder) in [("--out", &output.out), ("--report", &output.report)] {
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder)
                .and_then(|()| tempfile::tempfile_in(folder))
                .with_context(|| format!("{option} {}", folder.display()))?;
        }
    }
    Ok(())
}

/// Where finished runs are noted, if anywhere; with `fresh` what is there is forgotten.
pub(super) fn journal(output: &OutputArgs, fresh: bool) -> anyhow::Result<Option<Journal>> {
    let folder = output.out.as_deref();
    let journal = folder.map(|it| Journal::open(it, fresh)).transpose()?;
    if let Some(finished) = journal.as_ref().map(Journal::finished).filter(|it| *it > 0) {
        output.note(&format!(
            "going on after {finished} finished runs; --fresh begins anew"
        ));
    }
    Ok(journal)
}

/// The exit code of what ran: a failure is said.
pub(super) fn outcome(ran: anyhow::Result<ExitCode>) -> ExitCode {
    ran.unwrap_or_else(|error| {
        say(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

/// Write what was asked for and print; `tables` is called where tables are wanted.
pub(super) fn finish(
    output: &OutputArgs,
    results: &Results,
    details: impl FnOnce() -> Vec<RunDetail>,
    tables: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if results.runs.is_empty() {
        say("every run failed: there is nothing to write");
        return Ok(());
    }
    let page = |folder: &Path| report::write(folder, results, &details());
    finish_with(output, results, page, tables)
}

/// The same with a page of another kind.
pub(super) fn finish_with(
    output: &OutputArgs,
    results: &Results,
    page: impl FnOnce(&Path) -> Result<(), ReportError>,
    tables: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if let Some(folder) = &output.out {
        results.write(folder)?;
    }
    if let Some(folder) = &output.report {
        page(folder)?;
    }
    if output.json {
        print(&results.to_json());
    } else if !output.quiet {
        print(&tables());
        for folder in distinct(output.out.iter().chain(&output.report)) {
            say(&format!("written: {}", folder.display()));
        }
    }
    Ok(())
}

/// Runs that gave something, failures told apart: each is said once. Any makes the exit code 1, and so does
/// a plan in which nothing was completed.
pub(super) fn sort_out(
    trials: &[Trial],
    results: Vec<Result<RunEntry, TrialError>>,
) -> (Vec<RunEntry>, ExitCode) {
    let mut failures: Vec<String> = Vec::new();
    let mut runs = Vec::with_capacity(results.len());
    for (trial, result) in trials.iter().zip(results) {
        match result {
            Ok(run) => runs.push(run),
            Err(error) => {
                let named = matches!(&error, TrialError::Run(run) if matches!(**run, RunError::Simulation { .. }));
                let words = format!("{:#}", anyhow::Error::new(error));
                failures.push(match named {
                    true => words,
                    false => {
                        let (policy, source) = (trial.policy.label(), trial.source.name());
                        format!("{policy} on {source}: {words}")
                    }
                });
            }
        }
    }
    failures.dedup();
    for failure in &failures {
        say(failure);
    }
    let nothing = runs.iter().all(|run| run.metrics.completed == 0);
    if nothing && !runs.is_empty() {
        say("nothing completed");
    }
    let code = if failures.is_empty() && !nothing {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    (runs, code)
}

/// These trials once more, for their plots; those that fail have been named before.
pub(super) fn details<'a>(
    trials: impl Iterator<Item = &'a Trial>,
    catalog: &Catalog,
) -> Vec<RunDetail> {
    trials
        .filter_map(|trial| {
            let (experiment, run) = trial.run(catalog).ok()?;
            Some(RunDetail {
                condition: trial.condition.map(str::to_owned),
                ..RunDetail::from_run(&experiment, &run)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_what_cannot_change_its_results() {
        let given = "replay --policy default --threads 8 --out=a --seed 3 --json --report b";
        let told = command(given.split(' ').map(str::to_owned));
        assert_eq!(told, "regime-lab replay --policy default --seed 3");
    }
}
