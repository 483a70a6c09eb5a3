// SPDX-License-Identifier: Apache-2.0

//! One process: the frontend and four mock workers that do prefill and decode.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use regime_integration::{Bed, Frontend, LIMIT, Reply, eventually, prompt, regime_series};

const WORKERS: usize = 4;

async fn start(bed: &Bed) -> Result<Frontend> {
    let flags = ["--mock-workers", "4", "--mock-speedup", "10"];
    bed.serve(WORKERS, &flags).await
}

#[tokio::test]
async fn chat_and_completions_answer_whole_and_streamed() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = start(&bed).await?;
    for request in [frontend.chat("w3 w4"), frontend.completion("w3 w4")] {
        for request in [request.clone(), request.streaming()] {
            let reply = frontend.client.send(&request.tokens(6)).await?.ok()?;
            ensure!(reply.completion_tokens() == Some(6), "{reply:?}");
            ensure!(reply.text().split_whitespace().count() == 6, "{reply:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_unknown_model_is_not_found_and_hurts_nobody() -> Result<()> {
    let bed = Bed::new()?;
    let mut frontend = start(&bed).await?;
    let known = std::mem::replace(&mut frontend.model, "nobody-serves-this".to_owned());
    ensure!(frontend.client.send(&frontend.chat("w3")).await?.status == 404);
    frontend.model = known;
    frontend.client.send(&frontend.chat("w3")).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn an_operator_finds_health_models_metrics_and_regime() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = start(&bed).await?;
    let health = frontend.client.json("/health").await?;
    ensure!(health["status"] == "healthy", "{health}");
    let models = frontend.client.json("/v1/models").await?;
    ensure!(
        models["data"].as_array().map(Vec::len) == Some(1),
        "{models}"
    );
    let page = frontend.client.page("/metrics").await?;
    ensure!(!regime_series(&page).is_empty(), "{page}");
    ensure!(!page.contains("NaN"), "no data must not be shown as NaN");
    Ok(())
}

#[tokio::test]
async fn the_regime_document_names_its_schema_and_one_pool_of_four_workers() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = start(&bed).await?;
    let regime = frontend.regime().await?;
    ensure!(regime["schema"] == 1, "{regime}");
    let pools = regime["pools"].as_array().context("pools")?;
    ensure!(pools.len() == 1, "{regime}");
    ensure!(pools[0]["model"] == frontend.model.as_str(), "{regime}");
    ensure!(pools[0]["role"] == "aggregated", "{regime}");
    ensure!(
        pools[0]["workers"].as_array().map(Vec::len) == Some(WORKERS),
        "{regime}"
    );
    Ok(())
}

/// Field report SP-5: ids use all 64 bits, and readers that hold numbers as doubles would merge two of them.
#[tokio::test]
async fn worker_ids_keep_all_their_digits() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = start(&bed).await?;
    let regime = frontend.regime().await?.to_string();
    let ids = frontend.instances().await?;
    ensure!(ids.iter().any(|id| *id > 1 << 53), "{ids:?}");
    for id in ids {
        ensure!(
            regime.contains(&format!("\"{id}\"")),
            "{id} is not in {regime}"
        );
    }
    Ok(())
}

/// A prompt of 100 blocks at the speed of a real engine: recomputing it elsewhere would cost far more than the trace that
/// the request before may have left in the load of its worker.
#[tokio::test]
async fn a_repeated_prompt_stays_on_the_worker_that_has_it_cached() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = bed.serve(WORKERS, &["--mock-workers", "4"]).await?;
    let prompt = prompt(0, 1_600);
    let ask = async || {
        frontend
            .client
            .send(&frontend.completion(&prompt))
            .await?
            .ok()
    };
    let cached = |reply: &Reply| reply.hit_rate().is_some_and(|rate| rate > 0.9);
    let first = eventually("a cache hit", LIMIT, async || {
        let reply = ask().await?;
        ensure!(cached(&reply), "{reply:?}");
        Ok(reply)
    })
    .await?;
    for _ in 0..8 {
        let reply = ask().await?;
        ensure!(cached(&reply), "{reply:?}");
        ensure!(
            reply.decode_worker() == first.decode_worker(),
            "{first:?} {reply:?}"
        );
    }
    Ok(())
}

/// Field report BR-02: paced requests, so that every worker is idle at every choice. A prefill takes 2 ms, so that the noise
/// of a busy machine is larger than what is measured and must not make a worker look slow.
#[tokio::test]
async fn idle_workers_share_unrelated_prompts() -> Result<()> {
    let bed = Bed::new()?;
    let timing = ["--mock-timing", "fixed", "--mock-prefill-ms", "2"];
    let flags = [&["--mock-workers", "4"], &timing[..]].concat();
    let frontend = bed.serve(WORKERS, &flags).await?;
    let mut shares: BTreeMap<u64, u32> = BTreeMap::new();
    for number in 1..=80 {
        let request = frontend.completion(&prompt(number, 64)).tokens(1);
        let reply = frontend.client.send(&request).await?.ok()?;
        let worker = reply.decode_worker().context("worker id")?;
        *shares.entry(worker).or_default() += 1;
    }
    // The mean is 20 and the standard deviation of a uniform choice 3.9.
    ensure!(shares.len() == WORKERS, "{shares:?}");
    ensure!(shares.values().all(|share| *share >= 8), "{shares:?}");
    Ok(())
}
