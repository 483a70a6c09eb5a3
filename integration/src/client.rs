// SPDX-License-Identifier: Apache-2.0

//! An OpenAI client as small as the tests need.
//!
//! HTTP status 200 does not mean success: a stream that has begun can only report a failure as an event inside itself.
//! So a [`Reply`] collects every event, and [`Reply::ok`] asks for everything a complete answer has.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use eventsource_stream::{Event, Eventsource};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

/// Longest time any single request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// A client of one frontend.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

/// One request for text.
#[derive(Clone, Debug)]
pub struct Request {
    path: &'static str,
    body: Value,
    headers: Vec<(&'static str, String)>,
}

impl Request {
    /// To `/v1/chat/completions`, with one user message.
    #[must_use]
    pub fn chat(model: &str, prompt: &str) -> Self {
        let body = json!({"model": model, "messages": [{"role": "user", "content": prompt}]});
        Self::new("/v1/chat/completions", body)
    }

    /// To `/v1/completions`.
    #[must_use]
    pub fn completion(model: &str, prompt: &str) -> Self {
        Self::new("/v1/completions", json!({"model": model, "prompt": prompt}))
    }

    fn new(path: &'static str, mut body: Value) -> Self {
        body["max_tokens"] = json!(4);
        body["nvext"] = json!({"extra_fields": ["worker_id", "timing"]});
        Self {
            path,
            body,
            headers: Vec::new(),
        }
    }

    /// Ask for exactly `tokens` output tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: u32) -> Self {
        self.body["max_tokens"] = json!(tokens);
        self
    }

    /// Ask for a stream.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.body["stream"] = json!(true);
        self.body["stream_options"] = json!({"include_usage": true});
        self
    }

    /// Add a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A prompt of `words` words, each one token of the mock model. Prompts of different numbers differ from the first word on.
#[must_use]
pub fn prompt(number: u32, words: u32) -> String {
    (0..words)
        .map(|word| format!("w{}", 3 + (number * 67 + word) % 4000))
        .collect::<Vec<_>>()
        .join(" ")
}

/// A complete answer.
#[derive(Debug, Default)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Events of the stream in order, or the one document of an unstreamed answer.
    pub events: Vec<Value>,
    /// A stream ended with `[DONE]`; true for an unstreamed answer.
    pub done: bool,
}

impl Reply {
    /// Return the answer if it is complete: status 200, no error event, a finish reason, and the end marker.
    ///
    /// # Errors
    /// The whole answer, when it is not.
    pub fn ok(self) -> Result<Self> {
        ensure!(
            self.status == 200 && self.done && self.finish().is_some() && self.error().is_none(),
            "request failed: {self:?}"
        );
        Ok(self)
    }

    /// The error that the answer holds, wherever it came.
    #[must_use]
    pub fn error(&self) -> Option<&Value> {
        self.events.iter().find_map(|event| event.get("error"))
    }

    fn finish(&self) -> Option<&str> {
        self.events
            .iter()
            .find_map(|event| event["choices"][0]["finish_reason"].as_str())
    }

    /// Generated text.
    #[must_use]
    pub fn text(&self) -> String {
        self.events
            .iter()
            .map(|event| &event["choices"][0])
            .filter_map(|choice| {
                choice["text"]
                    .as_str()
                    .or_else(|| choice["delta"]["content"].as_str())
                    .or_else(|| choice["message"]["content"].as_str())
            })
            .collect()
    }

    /// Output tokens that the server counted.
    #[must_use]
    pub fn completion_tokens(&self) -> Option<u64> {
        self.events
            .iter()
            .find_map(|event| event["usage"]["completion_tokens"].as_u64())
    }

    fn nvext(&self, pointer: &str) -> Option<&Value> {
        self.events
            .iter()
            .find_map(|event| event.get("nvext")?.pointer(pointer))
    }

    /// Instance that generated the answer.
    #[must_use]
    pub fn decode_worker(&self) -> Option<u64> {
        self.nvext("/worker_id/decode_worker_id")?.as_u64()
    }

    /// Instance that read the prompt.
    #[must_use]
    pub fn prefill_worker(&self) -> Option<u64> {
        self.nvext("/worker_id/prefill_worker_id")?.as_u64()
    }

    /// Time to first token as the frontend saw it, ms.
    #[must_use]
    pub fn ttft_ms(&self) -> Option<f64> {
        self.nvext("/timing/ttft_ms")?.as_f64()
    }

    /// Share of the prompt's blocks that the router found cached where it sent the request, 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        self.nvext("/kv_hit_rate")
            .or_else(|| self.nvext("/timing/kv_hit_rate"))?
            .as_f64()
    }
}

/// A streamed answer on its way.
pub struct Stream {
    events: BoxStream<'static, Result<Event>>,
    reply: Reply,
}

impl Stream {
    fn new(response: reqwest::Response) -> Self {
        Self {
            reply: Reply {
                status: response.status().as_u16(),
                ..Reply::default()
            },
            events: response
                .bytes_stream()
                .eventsource()
                .map_err(Into::into)
                .boxed(),
        }
    }

    /// Wait for the next event and keep it; false at the end of the stream.
    ///
    /// # Errors
    /// When the connection breaks or an event is not JSON.
    pub async fn advance(&mut self) -> Result<bool> {
        let Some(event) = self.events.try_next().await? else {
            return Ok(false);
        };
        if event.data == "[DONE]" {
            self.reply.done = true;
        } else if !event.data.is_empty() {
            let document = serde_json::from_str(&event.data).context(event.data)?;
            self.reply.events.push(document);
        }
        Ok(true)
    }

    /// What has come so far.
    #[must_use]
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Read to the end.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub async fn finish(mut self) -> Result<Reply> {
        while self.advance().await? {}
        Ok(self.reply)
    }
}

impl Client {
    /// A client of the frontend on `port` of this machine.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn new(port: u16) -> Result<Self> {
        Ok(Self {
            http: reqwest::Client::builder()
                .no_proxy()
                .tcp_nodelay(true)
                .timeout(REQUEST_LIMIT)
                .build()?,
            base: format!("http://127.0.0.1:{port}"),
        })
    }

    /// Address of the frontend.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Status and body of a GET.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let response = self.http.get(format!("{}{path}", self.base)).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Body of a GET that must succeed.
    ///
    /// # Errors
    /// When the status is not 200.
    pub async fn page(&self, path: &str) -> Result<String> {
        let (status, body) = self.get(path).await?;
        ensure!(status == 200, "GET {path}: {status} {body}");
        Ok(body)
    }

    /// JSON document of a GET that must succeed.
    ///
    /// # Errors
    /// When the status is not 200 or the body is not JSON.
    pub async fn json(&self, path: &str) -> Result<Value> {
        let body = self.page(path).await?;
        serde_json::from_str(&body).with_context(|| format!("GET {path}: {body}"))
    }

    /// Send `request` and return as soon as the answer begins.
    ///
    /// # Errors
    /// When there is no answer, or one that is not a stream with status 200.
    pub async fn open(&self, request: &Request) -> Result<Stream> {
        let response = self.post(request).await?;
        let status = response.status().as_u16();
        if status != 200 {
            bail!("{status}: {}", response.text().await?);
        }
        Ok(Stream::new(response))
    }

    /// Send `request` and read the whole answer.
    ///
    /// # Errors
    /// When there is no answer or one that cannot be read. An answer that reports a failure is not an error here.
    pub async fn send(&self, request: &Request) -> Result<Reply> {
        let response = self.post(request).await?;
        let status = response.status().as_u16();
        if status == 200 && request.body["stream"] == json!(true) {
            return Stream::new(response).finish().await;
        }
        let body = response.text().await?;
        let document = serde_json::from_str(&body).unwrap_or(json!({"error": body}));
        Ok(Reply {
            status,
            events: vec![document],
            done: true,
        })
    }

    async fn post(&self, request: &Request) -> Result<reqwest::Response> {
        let mut post = self.http.post(format!("{}{}", self.base, request.path));
        for (name, value) in &request.headers {
            post = post.header(*name, value);
        }
        Ok(post.json(&request.body).send().await?)
    }
}
