// SPDX-License-Identifier: Apache-2.0

//! `regime-lab anarchy`: the Price of Anarchy of a fleet, from its journal.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::value_parser;
use regime_anarchy::CollectorConfig;

use super::args::{OutputArgs, distinct};
use super::{output, tables};
use crate::measurement::{Actual, JournalFile, MeasureError, MeasureOptions, Measurement};
use crate::report;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file that `regime-frontend serve --journal` wrote, or another in its format; plain or gzip
    journal: PathBuf,
    /// A window ends so long after its first decision, ms
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = value_parser!(u64).range(1..=3_600_000), allow_negative_numbers = true)]
    window_ms: u64,
    /// Or with so many decisions
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u16).range(1..=10_000), allow_negative_numbers = true)]
    window_count: u16,
    /// Which latency is compared with its forecast
    #[arg(long, value_name = "A", default_value = "ttft")]
    actual: Actual,
    /// Only pools with this model, role, routing group, or model/role/group
    #[arg(long, value_name = "P")]
    pool: Option<String>,
}

pub(super) fn main(args: &Args, output: &OutputArgs) -> anyhow::Result<ExitCode> {
    let options = MeasureOptions {
        window: CollectorConfig {
            span: Duration::from_millis(args.window_ms),
            count: usize::from(args.window_count),
        },
        actual: args.actual,
        pool: args.pool.clone(),
        threads: output.threads(),
    };
    let journal = JournalFile::open(&args.journal)?;
    output::prepare(output)?;
    match journal.measure(&options) {
        Ok(measurement) => Ok(output::outcome(show(&measurement, output))),
        Err(error @ (MeasureError::NoPool { .. } | MeasureError::Window(_))) => Err(error.into()),
        Err(error) => Ok(output::outcome(Err(error.into()))),
    }
}

fn show(measurement: &Measurement, output: &OutputArgs) -> anyhow::Result<ExitCode> {
    let source = &measurement.source;
    for fault in &source.first_faults {
        output::say(&fault.to_string());
    }
    let listed = source.first_faults.len() as u64;
    if source.faults > listed {
        output::say(&format!("and {} more faults", source.faults - listed));
    }
    if source.faults > 0 {
        output::say("lines at fault are left out");
    }
    if let Some(folder) = &output.out {
        measurement.write(folder)?;
    }
    if let Some(folder) = &output.report {
        report::write_anarchy(folder, measurement)?;
    }
    if output.json {
        output::print(&measurement.to_json());
    } else if !output.quiet {
        output::print(&tables::anarchy(measurement));
        for folder in distinct(output.out.iter().chain(&output.report)) {
            output::say(&format!("written: {}", folder.display()));
        }
    }
    let nothing = measurement
        .pools
        .iter()
        .all(|pool| pool.whole.anarchy.is_none());
    if nothing {
        output::say("no pool has an estimate");
    }
    Ok(if nothing || source.faults > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
