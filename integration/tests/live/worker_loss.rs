// SPDX-License-Identifier: Apache-2.0

//! Workers that leave: told in advance, or killed in the middle of an answer (field report BR-12).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use regime_integration::{Bed, Frontend, LIMIT, Process, Signal, eventually, regime_series};

/// A lease in the file store lives 10 s, and the router keeps what it learned of a worker for 30 s after it was last a
/// candidate. The rest is slack for a busy machine.
const MEMORY: Duration = Duration::from_secs(90);

/// Two slow workers as processes of their own, with the instance id of each, and a frontend with migration.
async fn start(bed: &Bed) -> Result<(Frontend, Vec<(u64, Process)>)> {
    let flags = ["--mock-timing", "fixed", "--mock-decode-ms", "50"];
    let first = bed.worker(&flags)?;
    let mut frontend = bed.serve(1, &["--migration-limit", "3"]).await?;
    let first_id = frontend.instances().await?[0];
    let second = bed.worker(&flags)?;
    frontend.wait_for(2).await?;
    let ids = frontend.instances().await?;
    let second_id = *ids
        .iter()
        .find(|id| **id != first_id)
        .context("second worker")?;
    Ok((frontend, vec![(first_id, first), (second_id, second)]))
}

async fn requests_succeed(frontend: &Frontend, count: usize) -> Result<()> {
    for _ in 0..count {
        frontend
            .client
            .send(&frontend.chat("w3").tokens(1))
            .await?
            .ok()?;
    }
    Ok(())
}

/// Wait until nothing that the router shows mentions worker `id`, and nothing is in flight.
async fn forgotten(frontend: &Frontend, id: u64) -> Result<()> {
    eventually("the worker is forgotten", MEMORY, async || {
        // Traffic drives the router's clockwork.
        requests_succeed(frontend, 1).await?;
        let regime = frontend.regime().await?;
        ensure!(!regime.to_string().contains(&id.to_string()), "{regime}");
        frontend.nothing_in_flight().await?;
        let page = frontend.client.page("/metrics").await?;
        for name in regime_series(&page).keys() {
            ensure!(!name.contains(&id.to_string()), "{name}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_leaves_at_once_and_no_request_fails() -> Result<()> {
    let bed = Bed::new()?;
    let (frontend, mut workers) = start(&bed).await?;
    let (gone, mut process) = workers.remove(0);
    process.signal(Signal::SIGTERM)?;
    eventually("the worker leaves", Duration::from_secs(5), async || {
        let left = frontend.instances().await?;
        ensure!(!left.contains(&gone), "{left:?}");
        Ok(())
    })
    .await?;
    requests_succeed(&frontend, 20).await?;
    ensure!(process.end(LIMIT).await?.success());
    forgotten(&frontend, gone).await
}

#[tokio::test]
async fn an_answer_survives_the_death_of_its_worker_and_the_worker_is_forgotten() -> Result<()> {
    let bed = Bed::new()?;
    let (frontend, mut workers) = start(&bed).await?;
    let request = frontend.completion("w3 w4").tokens(40).streaming();
    let mut stream = frontend.client.open(&request).await?;
    let serving = loop {
        ensure!(stream.advance().await?, "ended early: {:?}", stream.reply());
        if let (Some(worker), false) = (
            stream.reply().decode_worker(),
            stream.reply().text().is_empty(),
        ) {
            break worker;
        }
    };
    let at = workers
        .iter()
        .position(|(id, _)| *id == serving)
        .context("unknown worker")?;
    let (gone, process) = workers.remove(at);
    process.signal(Signal::SIGKILL)?;

    let reply = stream.finish().await?.ok()?;
    ensure!(reply.text().split_whitespace().count() == 40, "{reply:?}");
    requests_succeed(&frontend, 20).await?;
    forgotten(&frontend, gone).await
}
