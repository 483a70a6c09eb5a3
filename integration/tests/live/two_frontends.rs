// SPDX-License-Identifier: Apache-2.0

//! Two frontends over the same workers.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use regime_integration::Bed;

#[tokio::test]
async fn two_frontends_see_and_use_the_same_workers() -> Result<()> {
    let bed = Bed::new()?;
    let _workers = [bed.worker(&[])?, bed.worker(&[])?];
    let frontends = [bed.serve(2, &[]).await?, bed.serve(2, &[]).await?];
    ensure!(frontends[0].instances().await? == frontends[1].instances().await?);
    let requests = (0..40)
        .map(|number| &frontends[number % 2])
        .map(async |frontend| {
            frontend
                .client
                .send(&frontend.chat("w3 w4").streaming())
                .await?
                .ok()
        });
    try_join_all(requests).await?;
    Ok(())
}
