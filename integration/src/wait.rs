// SPDX-License-Identifier: Apache-2.0

//! Waiting for a condition, with a deadline.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

/// Pause between two looks. Short against anything a test waits for, long against the cost of one HTTP request.
const PAUSE: Duration = Duration::from_millis(50);

/// Look until `look` returns `Ok`, and return what it found.
///
/// # Errors
/// The last error of `look`, when `deadline` has passed without an `Ok`.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() >= end => {
                return Err(error).with_context(|| format!("{what}: not within {deadline:?}"));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
