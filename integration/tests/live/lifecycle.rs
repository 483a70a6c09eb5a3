// SPDX-License-Identifier: Apache-2.0

//! Ending a frontend: what is in flight is finished, then the process ends well.

use anyhow::{Result, ensure};
use regime_integration::{Bed, LIMIT, Signal};

/// A slow answer is under way when `signal` comes: it is delivered whole, and the exit code is 0.
async fn drains_on(signal: Signal) -> Result<()> {
    let bed = Bed::new()?;
    let timing = ["--mock-timing", "fixed", "--mock-decode-ms", "50"];
    let flags = [&["--mock-workers", "1"], &timing[..]].concat();
    let mut frontend = bed.serve(1, &flags).await?;
    let request = frontend.completion("w3 w4").tokens(30).streaming();
    let mut stream = frontend.client.open(&request).await?;
    while stream.reply().text().is_empty() {
        ensure!(stream.advance().await?, "no token: {:?}", stream.reply());
    }
    frontend.process.signal(signal)?;
    let reply = stream.finish().await?.ok()?;
    ensure!(reply.completion_tokens() == Some(30), "{reply:?}");
    let status = frontend.process.end(LIMIT).await?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_stream_in_flight_is_finished_on_sigterm() -> Result<()> {
    drains_on(Signal::SIGTERM).await
}

#[tokio::test]
async fn a_stream_in_flight_is_finished_on_sigint() -> Result<()> {
    drains_on(Signal::SIGINT).await
}
