// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy, measured once a second.
//!
//! Solving windows takes tens of milliseconds of each second at full load, so it runs on a thread for blocking work,
//! where no request waits for it. The policy itself keeps to its share of a core.

use std::time::Duration;

use regime_policy::Handle;
use tokio::time::MissedTickBehavior;

const PERIOD: Duration = Duration::from_secs(1);

/// Measure for as long as the task runs.
pub async fn run(handle: Handle) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let handle = handle.clone();
        // A panic has been reported by the hook; once is enough.
        if tokio::task::spawn_blocking(move || handle.measure())
            .await
            .is_err()
        {
            return;
        }
    }
}
