// SPDX-License-Identifier: Apache-2.0

//! One prefill worker and two decode workers, with prefill and decode overlapping (bootstrap) or one after the other.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use regime_integration::{Bed, Frontend, LIMIT, eventually};

const REQUESTS: usize = 40;

async fn start(bed: &Bed, bootstrap: &[&str]) -> Result<Frontend> {
    let flags = ["--mock-topology", "1P2D", "--mock-speedup", "10"];
    bed.serve(3, &[&flags[..], bootstrap].concat()).await
}

/// Requests at once, half of them streamed: all succeed, each on one prefill and one decode worker.
async fn all_succeed(frontend: &Frontend) -> Result<()> {
    let requests = (0..REQUESTS).map(|number| {
        let request = frontend
            .completion(&format!("w{} w4 w5", 3 + number))
            .tokens(8);
        if number % 2 == 0 {
            request.streaming()
        } else {
            request
        }
    });
    let replies =
        try_join_all(requests.map(async |request| frontend.client.send(&request).await?.ok()))
            .await?;
    for reply in replies {
        ensure!(reply.completion_tokens() == Some(8), "{reply:?}");
        let prefill = reply.prefill_worker().context("no prefill worker")?;
        let decode = reply.decode_worker().context("no decode worker")?;
        ensure!(prefill != decode, "{reply:?}");
    }
    Ok(())
}

async fn roles(frontend: &Frontend) -> Result<Vec<String>> {
    let regime = frontend.regime().await?;
    let mut roles: Vec<String> = regime["pools"]
        .as_array()
        .context("pools")?
        .iter()
        .filter_map(|pool| Some(pool["role"].as_str()?.to_owned()))
        .collect();
    roles.sort();
    Ok(roles)
}

#[tokio::test]
async fn requests_succeed_with_bootstrap() -> Result<()> {
    let bed = Bed::new()?;
    all_succeed(&start(&bed, &[]).await?).await
}

#[tokio::test]
async fn requests_succeed_without_bootstrap() -> Result<()> {
    let bed = Bed::new()?;
    all_succeed(&start(&bed, &["--no-mock-bootstrap"]).await?).await
}

#[tokio::test]
async fn prefill_and_decode_are_pools_of_their_own() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = start(&bed, &[]).await?;
    all_succeed(&frontend).await?;
    let roles = roles(&frontend).await?;
    ensure!(roles == ["decode", "prefill"], "{roles:?}");
    Ok(())
}

#[tokio::test]
async fn the_prefill_pool_is_measured_by_the_first_tokens_of_decode() -> Result<()> {
    for flags in [&[][..], &["--no-mock-bootstrap"]] {
        let bed = Bed::new()?;
        let frontend = start(&bed, flags).await?;
        eventually("figures of the prefill pool", LIMIT, async || {
            all_succeed(&frontend).await?;
            let regime = frontend.regime().await?;
            let mut pools = regime["pools"].as_array().context("pools")?.iter();
            let prefill = pools.find(|pool| pool["role"] == "prefill");
            let anarchy = &prefill.context("prefill pool")?["anarchy"];
            ensure!(anarchy["windows"].as_u64() > Some(0), "{anarchy}");
            // One worker leaves no choice.
            ensure!(anarchy["policy_gap"] == 1.0, "{anarchy}");
            ensure!(anarchy["joined_share"] == 1.0, "{anarchy}");
            ensure!(anarchy["e2e"]["unavailable"] == "no_forecast", "{anarchy}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
