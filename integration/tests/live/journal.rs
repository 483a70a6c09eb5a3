// SPDX-License-Identifier: Apache-2.0

//! The journal of decisions: what stands in the file is what the router measured.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use regime_anarchy::journal::{Counts, Entry, JournalReader, Record};
use regime_anarchy::{
    CollectorConfig, Estimate, Estimator, NoEstimate, WindowCollector, WindowSums,
};
use regime_core::Millis;
use regime_integration::{Bed, Frontend, LIMIT, Outcome, Signal, eventually, prompt};
use serde_json::Value;

/// Every window is measured, and none is forgotten while the test runs.
const POLICY: &str = "\
worker_selection:
  aggregated: main
  instances:
    - name: main
      type: regime-aware
      parameters: { anarchy: { core_share: 1.0, max_age_ms: 600000, windows: 10000 } }
request_classifier: { type: regime-feedback }
";

async fn start(bed: &Bed, journal: &Path) -> Result<Frontend> {
    let policy = bed.file("policy.yaml", POLICY)?;
    let journal = journal.display().to_string();
    let flags = [
        "--mock-workers",
        "4",
        "--mock-seats",
        "4",
        "--mock-timing",
        "fixed",
        "--mock-prefill-ms",
        "30",
        "--mock-decode-ms",
        "5",
        "--router-policy-config",
        &policy,
        "--journal",
        &journal,
    ];
    bed.serve(4, &flags).await
}

/// Send `count` requests, 16 at a time, each complete.
async fn send(frontend: &Frontend, first: u32, count: u32) -> Result<()> {
    for batch in (first..first + count).step_by(16) {
        let requests = (batch..(batch + 16).min(first + count)).map(async |number| {
            let request = frontend.completion(&prompt(number, 64)).tokens(8);
            frontend.client.send(&request).await?.ok()
        });
        try_join_all(requests).await?;
    }
    Ok(())
}

/// The decisions in the file, with the last counts.
fn read(path: &Path) -> Result<(Vec<Record>, Counts)> {
    let (mut records, mut last) = (Vec::new(), Counts::default());
    for entry in JournalReader::new(BufReader::new(File::open(path)?)) {
        match entry? {
            Entry::Begin(header) => ensure!(header.producer.starts_with("regime-frontend")),
            Entry::Decision { record, .. } => records.push(record),
            Entry::Counts { counts, .. } => last = counts,
        }
    }
    Ok((records, last))
}

/// Windows of the records by time to first token, in order.
fn windows(records: Vec<Record>) -> Result<Vec<Result<Estimate, NoEstimate>>> {
    let mut collector = WindowCollector::new(CollectorConfig::default())?;
    for record in records {
        let ttft = record.ttft.context("a request without a first token")?;
        collector.push(record.into_choice(ttft))?;
    }
    let windows = collector.finish();
    Ok(windows
        .iter()
        .map(|window| Estimator::default().estimate(window))
        .collect())
}

fn sum(windows: &[Result<Estimate, NoEstimate>], of: fn(&WindowSums) -> Millis) -> Result<f64> {
    let sums: Result<Vec<_>, _> = windows
        .iter()
        .map(|window| window.as_ref().map(|estimate| of(&estimate.sums)))
        .collect();
    match sums {
        Ok(sums) => Ok(sums.into_iter().sum::<Millis>().get()),
        Err(reason) => bail!("{reason}"),
    }
}

/// The file holds microseconds, as windows do, so the two differ by the rounding of sums alone.
fn agree(live: &Value, windows: &[Result<Estimate, NoEstimate>]) -> Result<()> {
    let measured = live["windows"].as_u64().context("no figures yet")?;
    let measured = usize::try_from(measured)?;
    ensure!(measured <= windows.len(), "{measured} of {}", windows.len());
    // Before the first measurement a window may have been skipped.
    let windows = &windows[windows.len() - measured..];
    let (actual, chosen) = (sum(windows, |it| it.actual)?, sum(windows, |it| it.chosen)?);
    let (optimum, alone) = (sum(windows, |it| it.optimum)?, sum(windows, |it| it.alone)?);
    for (name, expected) in [
        ("slowdown", actual / alone),
        ("policy_gap", chosen / optimum),
        ("temporal_gap", actual / chosen),
        ("overload", optimum / alone),
        ("poa_hat", actual / optimum),
    ] {
        let found = live[name].as_f64().context(name)?;
        ensure!(
            (found - expected).abs() <= 1e-6 * expected,
            "{name} is {found}, and {expected} from the file: {live}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_file_gives_the_figures_of_the_regime_document() -> Result<()> {
    let bed = Bed::new()?;
    let path = bed.path("decisions.jsonl");
    let frontend = start(&bed, &path).await?;
    let anarchy = async || {
        let regime = frontend.regime().await?;
        anyhow::Ok(regime["pools"][0]["anarchy"].clone())
    };
    // From the first figures on, every window is measured.
    let mut number = 0;
    eventually("figures", LIMIT, async || {
        send(&frontend, number, 1).await?;
        number += 1;
        let live = anarchy().await?;
        ensure!(live["windows"].as_u64() > Some(0), "{live}");
        Ok(())
    })
    .await?;
    send(&frontend, 1_000, 96).await?;
    eventually("agreement of both", LIMIT, async || {
        let regime = frontend.regime().await?;
        let pool = &regime["pools"][0];
        let (records, counts) = read(&path)?;
        let made = pool["decisions"]["made"].as_u64().context("decisions")?;
        ensure!(
            counts.decisions == made && counts.recorded == made,
            "{counts:?} of {made}"
        );
        ensure!(records.len() as u64 == made, "{} of {made}", records.len());
        let live = &pool["anarchy"];
        ensure!(live["n"].as_u64() >= Some(96), "{live}");
        agree(live, &windows(records)?)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_restarted_frontend_goes_on_in_the_file_and_the_end_of_each_is_in_it() -> Result<()> {
    let bed = Bed::new()?;
    let path = bed.path("decisions.jsonl");
    let mut before = 0;
    for run in 1..=2 {
        let mut frontend = start(&bed, &path).await?;
        send(&frontend, 0, 20).await?;
        let made = frontend.regime().await?["pools"][0]["decisions"]["made"].clone();
        frontend.process.signal(Signal::SIGTERM)?;
        ensure!(frontend.process.end(LIMIT).await?.success());
        let (records, counts) = read(&path)?;
        let written = (records.len() - before) as u64;
        ensure!(
            Some(written) == made.as_u64() && counts.recorded == written,
            "run {run}: {written} of {made}, {counts:?}"
        );
        before = records.len();
    }
    Ok(())
}

#[tokio::test]
async fn a_file_that_cannot_be_made_ends_the_start_by_flag_and_by_variable() -> Result<()> {
    let bed = Bed::new()?;
    let outcome = bed
        .outcome(&["serve", "--journal", "no/decisions.jsonl"])
        .await?;
    outcome.refused_with(&["--journal", "no/decisions.jsonl", "No such file"])?;
    let mut command = bed.program(&["serve"])?;
    command.env("REGIME_JOURNAL", "no/decisions.jsonl");
    let outcome = Outcome::of(command, LIMIT).await?;
    outcome.refused_with(&["REGIME_JOURNAL", "no/decisions.jsonl"])
}
