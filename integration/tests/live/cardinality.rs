// SPDX-License-Identifier: Apache-2.0

//! Field report BR-18: what clients write into requests must not become label values, or memory grows until the restart.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use regime_integration::{Bed, Frontend, Request, regime_series};

const REQUESTS: usize = 300;
const AT_ONCE: usize = 20;

/// Names of the series, without those that come and go with the traffic: a signal with too few samples is absent, and so are
/// ratios of the Price of Anarchy without a measured window.
async fn names(frontend: &Frontend) -> Result<Vec<String>> {
    let page = frontend.client.page("/metrics").await?;
    let names = regime_series(&page).into_keys();
    let passing = ["_signal{", "_router_poa_"];
    Ok(names
        .filter(|name| !passing.iter().any(|part| name.contains(part)))
        .collect())
}

/// Two tokens, so that inter-token latency has a sample too.
async fn ask(frontend: &Frontend, number: usize) -> Result<()> {
    let served = frontend
        .chat("w3 w4")
        .tokens(2)
        .header("x-dynamo-session-id", format!("session-{number}"))
        .header("x-dynamo-meta-policy-class", format!("class-{number}"))
        .header("x-request-id", format!("request-{number}"));
    frontend.client.send(&served).await?.ok()?;
    let misspelt = Request::chat(&format!("model-{number}"), "w3 w4");
    ensure!(frontend.client.send(&misspelt).await?.status == 404);
    Ok(())
}

#[tokio::test]
async fn sessions_classes_and_model_names_add_no_series() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = bed
        .serve(4, &["--mock-workers", "4", "--mock-speedup", "10"])
        .await?;
    let mut batches = (0..REQUESTS).collect::<Vec<_>>();
    let later = batches.split_off(REQUESTS / 3);
    let run = async |numbers: Vec<usize>| -> Result<()> {
        for batch in numbers.chunks(AT_ONCE) {
            try_join_all(batch.iter().map(|number| ask(&frontend, *number))).await?;
        }
        Ok(())
    };
    // The first third visits every worker and fills every series that ordinary traffic has.
    run(batches).await?;
    let before = names(&frontend).await?;
    run(later).await?;
    let after = names(&frontend).await?;
    ensure!(before == after, "before: {before:#?}\nafter: {after:#?}");
    for name in after {
        ensure!(
            !name.contains("session-") && !name.contains("class-") && !name.contains("model-"),
            "{name}"
        );
    }
    Ok(())
}
