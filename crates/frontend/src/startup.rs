// SPDX-License-Identifier: Apache-2.0

//! What the operator sees while the frontend starts.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dynamo_llm::http::service::FrontendExtensionContext;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::routes;

/// How often to look whether something is there.
const POLL: Duration = Duration::from_millis(20);

/// Print one line, its parts in two columns.
pub fn line(what: &str, text: &str) {
    let _ = writeln!(std::io::stderr(), "  {what:<10} {text}");
}

/// Wait for the port to accept and for the first model to be servable, and say so.
pub async fn announce(
    started: Instant,
    address: SocketAddr,
    url: String,
    context: watch::Receiver<Option<FrontendExtensionContext>>,
) {
    while TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(POLL).await;
    }
    line(
        "listening",
        &format!("{url} (OpenAI API under /v1, /health, /metrics, /regime)"),
    );
    let Some(context) = routes::built(context).await else {
        return;
    };
    loop {
        let mut ready: Vec<String> = context.serving_ready_display_names().into_iter().collect();
        if !ready.is_empty() {
            ready.sort_unstable();
            let after = started.elapsed().as_secs_f64();
            line(
                "model",
                &format!("{} ready after {after:.1} s", ready.join(", ")),
            );
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}
