// SPDX-License-Identifier: Apache-2.0

//! A scorer that panics. A panic that reaches the host ends the router of that model for good while health stays green,
//! so it must not reach it: the request is served by the fallback rule, counted, and forgotten.

use std::fs;

use anyhow::{Result, ensure};
use regime_integration::{Bed, regime_series};

#[tokio::test]
async fn a_panic_in_the_scorer_is_counted_and_every_request_is_served() -> Result<()> {
    let bed = Bed::new()?;
    let trigger = bed.path("panic");
    let mut command = bed.program(&["serve"])?;
    command.env("REGIME_TEST_PANIC_FILE", &trigger);
    let frontend = bed.serve_by(4, command, &["--mock-workers", "4"]).await?;
    let fallbacks = async || -> Result<f64> {
        let page = frontend.client.page("/metrics").await?;
        Ok(regime_series(&page)
            .iter()
            .filter(|(name, _)| name.starts_with("regime_router_fallbacks_total"))
            .map(|(_, count)| count)
            .sum())
    };

    ensure!(fallbacks().await? == 0.0);
    fs::write(&trigger, "")?;
    for _ in 0..5 {
        frontend.client.send(&frontend.chat("w3 w4")).await?.ok()?;
    }
    ensure!(fallbacks().await? == 5.0, "{}", fallbacks().await?);

    fs::remove_file(&trigger)?;
    for _ in 0..5 {
        frontend.client.send(&frontend.chat("w3 w4")).await?.ok()?;
    }
    ensure!(fallbacks().await? == 5.0, "{}", fallbacks().await?);
    Ok(())
}
