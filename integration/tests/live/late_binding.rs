// SPDX-License-Identifier: Apache-2.0

//! `--late-binding`: a burst waits in the router, short prompts do not wait behind long ones, and all are answered.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::{try_join, try_join_all};
use regime_integration::{Bed, Frontend, LIMIT, Request, eventually, prompt};

/// A pass of 8192 tokens, two long prompts, takes 500 ms: the burst lasts five seconds.
const TIMING: [&str; 4] = ["--mock-timing", "fixed", "--mock-prefill-ms", "500"];
const LONG: u32 = 40;
const SHORT: u32 = 8;

/// Requests of `class` that wait in the router.
async fn waiting(frontend: &Frontend, class: &str) -> Result<f64> {
    let page = frontend.client.page("/metrics").await?;
    let class = format!("policy_class=\"{class}\"");
    page.lines()
        .filter(|line| line.starts_with("dynamo_frontend_router_queue_pending_requests{"))
        .find(|line| line.contains(&class))
        .and_then(|line| line.rsplit_once(' '))
        .map(|(_, value)| Ok(value.parse()?))
        .with_context(|| format!("no queue metric of {class}"))?
}

/// When each of `requests` was answered, all sent at once.
async fn answered(frontend: &Frontend, requests: Vec<Request>) -> Result<Vec<Instant>> {
    try_join_all(requests.iter().map(async |request| {
        frontend.client.send(request).await?.ok()?;
        Ok(Instant::now())
    }))
    .await
}

#[tokio::test]
async fn a_burst_waits_in_the_router_and_short_prompts_overtake_it() -> Result<()> {
    let bed = Bed::new()?;
    let flags = [&["--mock-workers", "2", "--late-binding"], &TIMING[..]].concat();
    let frontend = bed.serve(2, &flags).await?;
    let log = frontend.process.output();
    let announced = log
        .lines()
        .any(|line| line.contains("queue") && line.contains("long-prompts"));
    ensure!(announced, "no queue among the start-up lines:\n{log}");

    let requests = |numbers: std::ops::Range<u32>, words| {
        numbers
            .map(|number| frontend.completion(&prompt(number, words)).tokens(1))
            .collect()
    };
    let long = answered(&frontend, requests(0..LONG, 4_000));
    let short = async {
        eventually("long prompts wait", LIMIT, async || {
            let waiting = waiting(&frontend, "long-prompts").await?;
            ensure!(waiting >= f64::from(LONG / 3), "{waiting}");
            Ok(())
        })
        .await?;
        answered(&frontend, requests(LONG..LONG + SHORT, 64)).await
    };
    let (long, short) = try_join(long, short).await?;

    let after_all_short = short.iter().max().context("short prompts")?;
    let overtaken = long.iter().filter(|at| *at > after_all_short).count();
    ensure!(overtaken > 0, "short prompts waited for every long one");
    for class in ["short-prompts", "long-prompts"] {
        ensure!(waiting(&frontend, class).await? == 0.0, "{class}");
    }
    Ok(())
}
