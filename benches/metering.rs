// SPDX-License-Identifier: Apache-2.0

//! What the live Price of Anarchy costs under load: 1,000 requests/s on 64 workers, through Dynamo's own selection
//! path and the feedback of every request, while a thread measures once a second as the frontend's does.
//!
//! Not a micro-benchmark: it runs in real time, since the budget is one by the clock. It prints the CPU time of
//! the measuring thread as a share of one core, for budgets from nothing to all of a core, and that of the thread
//! which serves; the difference to the run without metering is what keeping decisions costs there. Linux counts
//! the CPU time of a thread in `/proc/thread-self/schedstat`.

#![allow(
    clippy::expect_used,
    reason = "a bench that cannot be set up shall stop"
)]

mod host;

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use dynamo_kv_router::protocols::WorkerWithDpRank;
use host::Worker;
use regime_core::{Tokens, WorkerKey};
use regime_policy::{Feedback, Handle};

const WORKERS: u64 = 64;
const REQUESTS_PER_S: u64 = 1_000;
const SECONDS: u64 = 20;
const TTFT: Duration = Duration::from_millis(150);
const E2E: Duration = Duration::from_millis(400);

fn main() {
    // As `cargo test` would call it.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!(
        "{WORKERS} workers, {REQUESTS_PER_S} requests/s, {SECONDS} s each; shares of one core"
    );
    println!("core_share  measuring  serving  requests/s  sampling  windows in figures  joined");
    for core_share in [0.0, 0.01, 0.03, 1.0] {
        run(core_share);
    }
}

/// Serve for a while, and print a line.
fn run(core_share: f64) {
    let (handle, policy) = host::regime_aware(&format!("anarchy: {{core_share: {core_share}}}"));
    let feedback = handle.feedback(|| (0..WORKERS).map(|id| WorkerKey::new(id, 0)).collect());
    let workers: HashMap<_, _> = (0..WORKERS).map(|id| (id, Worker)).collect();
    let requests: Vec<_> = (0..61).map(|salt| host::request(WORKERS, salt)).collect();
    let (stop, stopped) = channel();
    let measuring = measure(handle.clone(), stopped);

    let (start, cpu) = (Instant::now(), cpu_time());
    let mut served = Served::default();
    for number in 0..REQUESTS_PER_S * SECONDS {
        let due = Duration::from_micros(number * 1_000_000 / REQUESTS_PER_S);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let now = start.elapsed();
        served.answer(&feedback, now);
        let request = &requests[number as usize % requests.len()];
        let prompt = Tokens(request.isl_tokens as u64);
        let id = number.to_string();
        feedback.classified(&id, feedback.clock().now(), prompt);
        let worker = key(host::select(&policy, &workers, request));
        feedback.sent(&id, worker);
        served.waiting.push_back((now, id, worker));
    }
    let (elapsed, serving) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
    drop(stop);
    let measuring = measuring.join().expect("the measuring thread");
    let pool = &handle.report().pools[0];
    let ttft = &pool.anarchy.ttft;
    println!(
        "{core_share:>10}  {:>9.4}  {:>7.4}  {:>10.0}  {:>8}  {:>18}  {:>6}",
        measuring.as_secs_f64() / elapsed,
        serving.as_secs_f64() / elapsed,
        pool.decisions.made as f64 / elapsed,
        number(pool.anarchy.sampling_rate),
        ttft.figures.as_ref().map_or(0, |figures| figures.windows),
        number(ttft.joined_share),
    );
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

/// The requests under way, by the time of their choice.
#[derive(Default)]
struct Served {
    waiting: VecDeque<(Duration, String, WorkerKey)>,
    running: VecDeque<(Duration, String, WorkerKey)>,
}

impl Served {
    /// First and last tokens that are due at `now`.
    fn answer(&mut self, feedback: &Feedback, now: Duration) {
        while let Some(request) = self.waiting.pop_front_if(|(at, ..)| *at + TTFT <= now) {
            feedback.responding(&request.1, request.2, Some(1));
            self.running.push_back(request);
        }
        while let Some((_, id, worker)) = self.running.pop_front_if(|(at, ..)| *at + E2E <= now) {
            feedback.completed(&id, worker, None);
        }
    }
}

/// Measure once a second; the thread gives its CPU time.
fn measure(
    handle: Handle,
    stopped: std::sync::mpsc::Receiver<()>,
) -> std::thread::JoinHandle<Duration> {
    std::thread::spawn(move || {
        let cpu = cpu_time();
        while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            handle.measure();
        }
        cpu_time() - cpu
    })
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux with schedstat");
    let nanos = text
        .split_whitespace()
        .next()
        .and_then(|it| it.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds"))
}

fn key(worker: WorkerWithDpRank) -> WorkerKey {
    WorkerKey::new(worker.worker_id, worker.dp_rank)
}
