// SPDX-License-Identifier: Apache-2.0

//! One of four workers is slowed 2.5 times. The router finds out which, and how slow it is, from the answers alone; then
//! the tail of the time to first token is better than with Dynamo's default router, which sends the worker its full share.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use regime_integration::{Bed, Frontend, Process, Reply, prompt};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

/// 16 ms a pass and 80 ms for the 2000 tokens of a prompt. A decode step takes 1 ms.
const TIMING: &str = "prefill,100,10000\n,20,416\ndecode,1000\n1,1\n64,1\n";
const WORDS: u32 = 2_000;
const SLOWDOWN: f64 = 2.5;
/// Requests from which the router learns, and how many at once: so many that the slow worker has some queued before the
/// router knows it.
const LEARNED_FROM: u32 = 170;
const AT_ONCE: usize = 16;
/// Requests that are compared, and the time between them: they take 58 % of the typical workers' time.
const COMPARED: u32 = 200;
const APART: Duration = Duration::from_millis(55);
/// The router must know a worker by the time that it has answered this many requests.
const MOST_ANSWERS: usize = 60;

/// A frontend over four workers, the first of them slow, with its id.
struct Fleet {
    frontend: Frontend,
    _workers: Vec<Process>,
    slow: u64,
}

async fn start(bed: &Bed, router: &str) -> Result<Fleet> {
    let timing = bed.file("timing.csv", TIMING)?;
    let worker = |speed: f64| {
        let speed = speed.to_string();
        let engine = ["--mock-timing", timing.as_str()];
        bed.worker(&[&engine[..], &["--mock-speedup", &speed]].concat())
    };
    let mut workers = vec![worker(1.0 / SLOWDOWN)?];
    let mut frontend = bed.serve(1, &["--router", router]).await?;
    let slow = frontend.instances().await?[0];
    for _ in 0..3 {
        workers.push(worker(1.0)?);
    }
    frontend.wait_for(4).await?;
    Ok(Fleet {
        frontend,
        _workers: workers,
        slow,
    })
}

impl Fleet {
    async fn ask(&self, number: u32) -> Result<Reply> {
        let request = self.frontend.completion(&prompt(number, WORDS)).tokens(1);
        self.frontend.client.send(&request).await?.ok()
    }

    /// A closed loop; the answers by worker.
    async fn learn(&self) -> Result<BTreeMap<u64, usize>> {
        let replies: Vec<Reply> = stream::iter(0..LEARNED_FROM)
            .map(|number| self.ask(number))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let mut answers = BTreeMap::new();
        for reply in replies {
            let worker = reply.decode_worker().context("worker id")?;
            *answers.entry(worker).or_default() += 1;
        }
        Ok(answers)
    }

    /// TTFT P99 over evenly spaced requests, ms.
    async fn ttft_p99_ms(&self) -> Result<f64> {
        let start = Instant::now();
        let mut times = try_join_all((0..COMPARED).map(async |number| {
            sleep_until(start + APART * number).await;
            let reply = self.ask(LEARNED_FROM + number).await?;
            reply.ttft_ms().context("no timing")
        }))
        .await?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() * 99 / 100 - 1])
    }

    /// Learned slowness by worker.
    async fn slowness(&self) -> Result<BTreeMap<u64, f64>> {
        let regime = self.frontend.regime().await?;
        let workers = regime["pools"][0]["workers"]
            .as_array()
            .context("workers")?;
        workers
            .iter()
            .map(|worker: &Value| {
                let id = worker["id"].as_str().context("id")?.parse()?;
                Ok((id, worker["slowness"].as_f64().context("slowness")?))
            })
            .collect()
    }
}

#[tokio::test]
async fn a_slowed_worker_is_recognised_within_60_answers_and_kept_out_of_the_tail() -> Result<()> {
    let bed = Bed::alone()?;
    let fleet = start(&bed, "regime-aware").await?;
    let answers = fleet.learn().await?;
    let slowness = fleet.slowness().await?;
    let known = format!(
        "answers {answers:?}, slowness {slowness:?}, slow {}",
        fleet.slow
    );
    eprintln!("{known}");
    ensure!(
        answers.values().all(|answers| *answers <= MOST_ANSWERS),
        "{known}"
    );
    ensure!(slowness.len() == 4, "{known}");
    for (worker, slowness) in slowness {
        let learned = if worker == fleet.slow {
            (slowness / SLOWDOWN - 1.0).abs() <= 0.25
        } else {
            slowness == 1.0
        };
        ensure!(learned, "{worker}: {known}");
    }
    let ours = fleet.ttft_p99_ms().await?;
    drop((fleet, bed));

    let bed = Bed::alone()?;
    let fleet = start(&bed, "default").await?;
    fleet.learn().await?;
    let default = fleet.ttft_p99_ms().await?;
    eprintln!("TTFT P99 {ours} ms against {default} ms");
    ensure!(ours < default, "{ours} ms against {default} ms");
    Ok(())
}
