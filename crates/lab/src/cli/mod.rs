// SPDX-License-Identifier: Apache-2.0

//! The program `regime-lab`.
//!
//! Results go to stdout, progress and failures to stderr. What cannot be run as asked, such as a wrong
//! option, name, value or trace, is said before anything runs or is written, with what is allowed, and
//! gives exit code 2. A run that fails, a plan in which nothing is completed, results that cannot be
//! written and a trace or journal that has faults give 1. Files appear whole or not at all.
//!
//! A crate with its own policies gets the same program from [`main_with`]:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let catalog = regime_lab::Catalog::default(); // .with(|link| …)
//!     regime_lab::cli::main_with(&catalog)
//! }
//! ```

mod anarchy;
mod args;
mod compare;
mod detection;
mod list;
mod output;
mod paper;
mod progress;
mod replay;
mod suite;
mod sweep;
mod tables;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::policies::Catalog;
use args::OutputArgs;

/// Exit code of a command that cannot be run as asked.
const WRONG_USAGE: u8 = 2;

/// Any Dynamo router policy in NVIDIA's own simulator. Every number is simulated, but for those that
/// `anarchy` takes from a live fleet.
#[derive(Debug, Parser)]
#[command(name = "regime-lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one policy on one workload
    Replay(replay::Args),
    /// Compare policies on the same arrivals, seed by seed
    Compare(compare::Args),
    /// Run a scoreboard over workloads, loads, pools and conditions
    #[command(subcommand)]
    Suite(suite::Args),
    /// Reproduce the paper, with variants in which policies can differ
    Paper(paper::Args),
    /// Try a grid of policy parameters
    Sweep(sweep::Args),
    /// Measure the Price of Anarchy of a live fleet from its journal; nothing here is simulated
    Anarchy(anarchy::Args),
    /// Score the regime detector on loads that change in known steps
    Detection(detection::Args),
    /// List policies
    Policies,
    /// List workloads
    Workloads,
    /// List engines
    Engines,
    /// Look at trace files
    #[command(subcommand)]
    Trace(trace::Args),
}

/// Run the program with the policies of `catalog`, and give its exit code.
#[must_use]
pub fn main_with(catalog: &Catalog) -> ExitCode {
    let Cli { command, output } = Cli::parse();
    let done = match command {
        Command::Replay(args) => replay::main(&args, &output, catalog),
        Command::Compare(args) => compare::main(&args, &output, catalog),
        Command::Suite(args) => suite::main(&args, &output, catalog),
        Command::Paper(args) => paper::main(&args, &output, catalog),
        Command::Sweep(args) => sweep::main(&args, &output, catalog),
        Command::Anarchy(args) => anarchy::main(&args, &output),
        Command::Detection(args) => detection::main(&args, &output, catalog),
        Command::Policies => list::policies(&output, catalog),
        Command::Workloads => list::workloads(&output),
        Command::Engines => list::engines(&output),
        Command::Trace(trace::Args::Check(args)) => trace::check(&args, &output),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            output::say(&format!("{error:#}"));
            ExitCode::from(WRONG_USAGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_are_consistent() {
        Cli::command().debug_assert();
    }
}
