// SPDX-License-Identifier: Apache-2.0

//! Clients that go away in the middle of an answer (field report BR-12).

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use regime_integration::{Bed, LIMIT, eventually};

const CLIENTS: u64 = 20;

#[tokio::test]
async fn clients_that_go_away_leave_nothing_in_flight() -> Result<()> {
    let bed = Bed::new()?;
    let timing = ["--mock-timing", "fixed", "--mock-decode-ms", "50"];
    let flags = [&["--mock-workers", "2"], &timing[..]].concat();
    let frontend = bed.serve(2, &flags).await?;
    let request = frontend.completion("w3 w4").tokens(1000).streaming();
    let streams = try_join_all((0..CLIENTS).map(async |_| {
        let mut stream = frontend.client.open(&request).await?;
        ensure!(stream.advance().await?, "ended early");
        Ok(stream)
    }))
    .await?;
    ensure!(frontend.nothing_in_flight().await.is_err());
    drop(streams);
    eventually("the load goes", LIMIT, async || {
        frontend.nothing_in_flight().await
    })
    .await?;
    let requests = &frontend.regime().await?["requests"];
    ensure!(requests["ended_early"] == CLIENTS, "{requests}");
    Ok(())
}
