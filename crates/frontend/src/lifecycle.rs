// SPDX-License-Identifier: Apache-2.0

//! From start to exit: the Tokio runtime, signals, drain.
//!
//! The first SIGINT or SIGTERM asks the application to drain: no new requests, those in flight finish. A second one, or a
//! drain that takes longer than `DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT` seconds (default 30), ends the process at once.
//! Dynamo's `Worker::execute` does the first half; it is not used because it has no second Ctrl-C and prints errors with
//! a backtrace.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use dynamo_runtime::{Runtime, Worker};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output;

/// Seconds that a drain may take.
const DRAIN_LIMIT_SECS: u64 = 30;

/// Run `application` on Dynamo's runtime until it ends, or until a signal made it drain.
///
/// The application must end soon after [`Runtime::primary_token`] is cancelled.
///
/// # Errors
/// The application's own error, or that the runtime could not be built.
pub fn run<F, Fut>(application: F) -> anyhow::Result<ExitCode>
where
    F: FnOnce(Runtime) -> Fut,
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    dynamo_runtime::logging::init();
    keep_guarded_panics_quiet();
    let worker = Worker::from_settings().context("building the runtime")?;
    let runtime = worker.runtime().clone();
    let application = application(runtime.clone());
    let code = runtime
        .primary()
        .block_on(supervise(runtime.clone(), application))?;
    Ok(code)
}

/// The policy catches its own panics, serves the request by its fallback rule and logs that once a minute. The hook would
/// log each of them, with a backtrace.
fn keep_guarded_panics_quiet() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !regime_policy::is_guarded() {
            hook(panic);
        }
    }));
}

async fn supervise(
    runtime: Runtime,
    application: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::new()?;
    let mut application = tokio::spawn(application);
    tokio::select! {
        ended = &mut application => return finished(ended),
        () = stop.asked() => {}
    }
    output::say("draining; a second signal stops at once");
    runtime.shutdown();
    let outcome = tokio::select! {
        ended = &mut application => return finished(ended),
        () = stop.asked() => {
            output::say("stopped before the drain was over");
            Ok(ExitCode::from(130))
        }
        () = tokio::time::sleep(drain_limit()) => {
            Err(anyhow::anyhow!("still busy {} s after the signal", drain_limit().as_secs()))
        }
    };
    // Drop what the application holds, such as temporary folders.
    application.abort();
    let _ = application.await;
    outcome
}

fn finished(ended: Result<anyhow::Result<()>, tokio::task::JoinError>) -> anyhow::Result<ExitCode> {
    ended
        .context("the application panicked")?
        .map(|()| ExitCode::SUCCESS)
}

fn drain_limit() -> Duration {
    let seconds = std::env::var("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT").ok();
    Duration::from_secs(
        seconds
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(DRAIN_LIMIT_SECS),
    )
}

/// SIGINT and SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
