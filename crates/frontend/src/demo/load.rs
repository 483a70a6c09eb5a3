// SPDX-License-Identifier: Apache-2.0

//! A closed loop of streaming clients: each waits for its answer before it asks again.
//!
//! Closed rather than open, because a demo must come back: an open loop past the knee builds a queue that nothing drains.
//! A client that is above the wanted concurrency finishes its request and sleeps.
//!
//! Time to first token is read at the client: from the moment the request is sent to the first event with text. A stream
//! can fail after status 200, so every event is looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use eventsource_stream::Eventsource;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::plan;

/// Longest time that one request may take. A queue of 128 on 32 seats is through in a few seconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// What is wanted now.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Index of the phase.
    pub phase: usize,
    /// Requests to keep in flight.
    pub concurrency: usize,
}

/// One finished request.
#[derive(Debug)]
pub struct Sample {
    /// Phase in which it was sent.
    pub phase: usize,
    /// Time to first token, or what went wrong.
    pub ttft: Result<Duration>,
}

/// The running clients.
pub struct Load {
    target: watch::Sender<Target>,
    clients: JoinSet<()>,
}

impl Load {
    /// Start `clients` clients of `model` at `url`, all idle. Samples go to `samples`.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn start(
        url: &str,
        model: &str,
        clients: usize,
        samples: &mpsc::UnboundedSender<Sample>,
    ) -> Result<Self> {
        let http = client()?;
        let (target, _) = watch::channel(Target {
            phase: 0,
            concurrency: 0,
        });
        let number = Arc::new(AtomicU64::new(0));
        let mut set = JoinSet::new();
        for index in 0..clients {
            let (http, number, samples) = (http.clone(), number.clone(), samples.clone());
            let (endpoint, model) = (format!("{url}/v1/completions"), model.to_owned());
            let mut wanted = target.subscribe();
            set.spawn(async move {
                loop {
                    let target = match wanted.wait_for(|target| target.concurrency > index).await {
                        Ok(target) => *target,
                        Err(_) => return,
                    };
                    let number = number.fetch_add(1, Ordering::Relaxed);
                    let ttft = time_to_first_token(&http, &endpoint, &model, number).await;
                    let sample = Sample {
                        phase: target.phase,
                        ttft,
                    };
                    if samples.send(sample).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            target,
            clients: set,
        })
    }

    /// Change what is wanted.
    pub fn set(&self, target: Target) {
        self.target.send_replace(target);
    }

    /// Let the requests in flight finish and end the clients.
    pub async fn finish(self) {
        let Self {
            target,
            mut clients,
        } = self;
        drop(target);
        while clients.join_next().await.is_some() {}
    }
}

/// An HTTP client for a local frontend.
///
/// # Errors
/// When it cannot be set up.
pub fn client() -> Result<reqwest::Client> {
    Ok(reqwest::Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .timeout(REQUEST_LIMIT)
        .build()?)
}

/// Send request `number` and read its answer to the end.
///
/// # Errors
/// When any part of the answer is missing or reports a failure.
pub async fn time_to_first_token(
    http: &reqwest::Client,
    endpoint: &str,
    model: &str,
    number: u64,
) -> Result<Duration> {
    let body = json!({
        "model": model,
        "prompt": plan::prompt(number),
        "max_tokens": plan::output_tokens(number),
        "stream": true,
    });
    let sent = Instant::now();
    let response = http.post(endpoint).json(&body).send().await?;
    let status = response.status();
    if !status.is_success() {
        bail!("HTTP {status}: {}", response.text().await?);
    }
    let mut events = response.bytes_stream().eventsource();
    let (mut first, mut done) = (None, false);
    while let Some(event) = events.next().await {
        match read(&event?.data)? {
            Read::Token => first = first.or_else(|| Some(sent.elapsed())),
            Read::End => done = true,
            Read::Nothing => {}
        }
    }
    ensure!(done, "the stream ended early");
    first.context("no token came")
}

/// What one event says.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Token,
    End,
    Nothing,
}

fn read(data: &str) -> Result<Read> {
    if data == "[DONE]" {
        return Ok(Read::End);
    }
    if data.is_empty() {
        return Ok(Read::Nothing);
    }
    let event: Value = serde_json::from_str(data)?;
    if let Some(error) = event.get("error") {
        bail!("the stream reports {error}");
    }
    let text = event["choices"][0]["text"].as_str();
    Ok(if text.is_some_and(|text| !text.is_empty()) {
        Read::Token
    } else {
        Read::Nothing
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_token_and_an_empty_text_is_not() {
        assert_eq!(read(r#"{"choices":[{"text":"w3"}]}"#).unwrap(), Read::Token);
        assert_eq!(read(r#"{"choices":[{"text":""}]}"#).unwrap(), Read::Nothing);
    }

    #[test]
    fn an_error_inside_the_stream_fails_the_request() {
        let error = read(r#"{"error":{"code":503}}"#).unwrap_err();
        assert!(error.to_string().contains("503"));
    }

    #[test]
    fn the_end_marker_ends_the_stream() {
        assert_eq!(read("[DONE]").unwrap(), Read::End);
    }
}
