// SPDX-License-Identifier: Apache-2.0

//! `regime-frontend demo`: a small fleet, a staircase of load, and what the router says about it.
//!
//! The demo starts this program once more as `serve` with mock workers, sends real HTTP requests to it, and reads
//! `/regime` while the load climbs past the knee and comes down again. It succeeds when no request failed and the pool
//! entered and left every regime, so it is also a check of an installation. `--url` drives a frontend that already runs;
//! there the fleet may be too large for this load to reach its knee.
//!
//! | Module | Owns |
//! |---|---|
//! | [`plan`] | the staircase and the requests |
//! | [`fleet`] | the frontend and its workers, as a process |
//! | [`load`] | the closed loop of streaming clients |
//! | [`summary`] | what was seen, and whether it was right |
//! | [`screen`] | the live table on a terminal, plain lines elsewhere |

mod fleet;
mod load;
mod plan;
mod screen;
mod summary;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use fleet::Fleet;
use load::{Load, Sample, Target};
use plan::Phase;
use screen::Screen;
use summary::Summary;

/// How often `/regime` is read. The router folds its windows this often.
const LOOK: Duration = Duration::from_millis(250);
/// Longest wait for the first answer of the fleet.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Flags of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Drive the frontend at this address instead of starting one.
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Length of one step of the staircase, seconds; there are 15.
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0, value_parser = step_seconds)]
    step_seconds: f64,

    /// Write the decisions into FILE, for regime-lab anarchy.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    journal: Option<PathBuf>,
}

fn step_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.5..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("allowed: 0.5 to 600 seconds".to_owned()),
    }
}

/// Run the demo.
///
/// # Errors
/// When the fleet does not start or the frontend cannot be reached. A run that showed something wrong is no error: it
/// prints what, and the exit code is 1.
pub fn main(args: &DemoArgs) -> Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(args))
}

async fn run(args: &DemoArgs) -> Result<ExitCode> {
    let plan = plan::staircase(Duration::from_secs_f64(args.step_seconds));
    let (url, mut fleet) = match &args.url {
        Some(url) => (url.trim_end_matches('/').to_owned(), None),
        None => {
            println!(
                "starting {} mock workers with {} seats each",
                plan::WORKERS,
                plan::SEATS_PER_WORKER
            );
            let fleet = Fleet::start(args.journal.as_deref())?;
            (fleet.url.clone(), Some(fleet))
        }
    };
    let http = load::client()?;
    let model = first_answer(&http, &url, fleet.as_mut()).await?;
    println!("driving {model} at {url}; what the router knows is at {url}/regime\n");

    let mut summary = Summary::new(&plan)?;
    climb(&http, &url, &model, &plan, &mut summary).await?;

    println!("\n{}", summary.table());
    let faults = summary.faults();
    for fault in &faults {
        println!("FAULT: {fault}");
    }
    if let (false, Some(fleet)) = (faults.is_empty(), &fleet) {
        println!("The fleet's log says:\n{}", fleet.complaints());
    }
    if faults.is_empty() {
        println!("no request failed; the pool entered and left Below, Transition and Saturated");
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

/// Walk through `plan`, collecting samples and regimes.
async fn climb(
    http: &reqwest::Client,
    url: &str,
    model: &str,
    plan: &[Phase],
    summary: &mut Summary,
) -> Result<()> {
    let (sender, mut samples) = mpsc::unbounded_channel::<Sample>();
    let clients = plan.iter().map(|phase| phase.concurrency).max();
    let load = Load::start(url, model, clients.unwrap_or(0), &sender)?;
    drop(sender);
    let screen = Screen::new(plan);
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (phase, step) in plan.iter().enumerate() {
        load.set(Target {
            phase,
            concurrency: step.concurrency,
        });
        let begin = Instant::now();
        while begin.elapsed() < step.length {
            tokio::select! {
                Some(sample) = samples.recv() => summary.record(&sample),
                _ = look.tick() => {
                    let pools = summary::pools(document(http, &format!("{url}/regime")).await?)?;
                    summary.observe(phase, &pools);
                    screen.show(summary, phase, begin.elapsed());
                }
            }
        }
        screen.step_done(summary, phase);
    }
    load.finish().await;
    while let Some(sample) = samples.recv().await {
        summary.record(&sample);
    }
    screen.close();
    Ok(())
}

/// Wait until a request is answered and return the name of the model.
async fn first_answer(
    http: &reqwest::Client,
    url: &str,
    mut fleet: Option<&mut Fleet>,
) -> Result<String> {
    let begin = Instant::now();
    loop {
        if let Some(fleet) = &mut fleet {
            fleet.must_run()?;
        }
        match probe(http, url).await {
            Ok(model) => return Ok(model),
            Err(error) if begin.elapsed() > START_LIMIT => {
                return Err(error.context(format!("no answer from {url} within {START_LIMIT:?}")));
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}

async fn probe(http: &reqwest::Client, url: &str) -> Result<String> {
    let models = document(http, &format!("{url}/v1/models")).await?;
    let model = models["data"][0]["id"].as_str().context("no model yet")?;
    load::time_to_first_token(http, &format!("{url}/v1/completions"), model, 0).await?;
    Ok(model.to_owned())
}

async fn document(http: &reqwest::Client, address: &str) -> Result<Value> {
    let response = http.get(address).send().await?;
    ensure!(
        response.status().is_success(),
        "GET {address}: {}",
        response.status()
    );
    Ok(response.json().await?)
}
