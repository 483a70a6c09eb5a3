// SPDX-License-Identifier: Apache-2.0

//! `regime-lab trace check`: what a trace holds, or all that is wrong with it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::args::{OutputArgs, TraceArgs};
use super::output;
use crate::traces::{Trace, TraceError};

#[derive(Debug, Subcommand)]
pub(super) enum Args {
    /// Summarise a trace, or list its faults
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// The file, plain or gzip
    file: PathBuf,
    #[command(flatten)]
    traces: TraceArgs,
}

pub(super) fn check(args: &CheckArgs, output: &OutputArgs) -> anyhow::Result<ExitCode> {
    match Trace::read(&args.file, &args.traces.options()) {
        Ok(trace) => {
            if output.json {
                output::print(&serde_json::to_string_pretty(&trace.summary)?);
            } else if !output.quiet {
                output::print(&trace.summary.to_string());
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(TraceError::Faults(faults)) => {
            if output.json {
                output::print(&serde_json::to_string_pretty(&faults)?);
            } else {
                let faulty = if faults.total == 1 { "fault" } else { "faults" };
                output::say(&format!("{} {faulty}\n{faults}", faults.total));
            }
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}
