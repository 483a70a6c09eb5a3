// SPDX-License-Identifier: Apache-2.0

//! A Dynamo HTTP frontend with the regime-aware router linked in.
//!
//! A router plugin is Rust code compiled into the process that routes, so somebody has to own a `main`. This crate is
//! that `main` as a library: [`main_with`] parses the command line, links the plugins, and runs one subcommand. Another
//! binary can call it with its own [`Extensions`], for instance to link further policies or to inject faults in a test.
//!
//! | Module | Owns |
//! |---|---|
//! | [`cli`] | the command line: subcommands, environment, one-line errors |
//! | [`router`] | which policy routes: `--router`, the policy file, Dynamo's settings |
//! | [`mock`] | mock engine workers, in this process or as one process each |
//! | [`metrics`], [`ttft_feed`], [`routes`] | what the router tells, and what it is told |
//! | [`measuring`] | the Price of Anarchy, and the journal of decisions |
//! | [`lifecycle`] | signals, drain, exit |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod check;
pub mod cli;
pub mod demo;
pub mod discovery;
pub mod environment;
pub mod lifecycle;
pub mod link;
pub mod measuring;
pub mod metrics;
pub mod mock;
pub mod output;
pub mod policies;
pub mod policy_file;
pub mod router;
pub mod routes;
pub mod serve;
pub mod startup;
pub mod ttft_feed;
pub mod values;
pub mod worker;

use std::process::ExitCode;

pub use link::Extensions;

use cli::{Command, Parsed};

/// Parse the command line, run what it asks for, and say how it ended.
///
/// Exit codes: 0 done, 1 failed (one line on stderr says why), 2 the command line or the environment is wrong.
#[must_use]
pub fn main_with(extensions: Extensions) -> ExitCode {
    let parsed = match cli::parse() {
        Ok(parsed) => parsed,
        Err(exit) => return exit.report(),
    };
    match run(parsed, extensions) {
        Ok(code) => code,
        Err(error) => output::report(&error),
    }
}

fn run(parsed: Parsed, extensions: Extensions) -> anyhow::Result<ExitCode> {
    let Parsed { command, sources } = parsed;
    match command {
        Command::Serve(args) => serve::main(*args, &sources, extensions),
        Command::Worker(args) => worker::main(*args),
        Command::Check(args) => check::main(args, &sources, extensions),
        Command::Demo(args) => demo::main(&args),
        Command::Policies(args) => policies::main(&args),
        Command::Completions { shell } => Ok(cli::completions(shell)),
    }
}
