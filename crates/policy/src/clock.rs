// SPDX-License-Identifier: Apache-2.0

//! The one clock that the plugin reads, and its replacement in tests and simulations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use regime_core::Timestamp;

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// Time since the clock was made, from the operating system.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::ORIGIN + self.origin.elapsed()
    }
}

/// Virtual time: stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock {
    micros: AtomicU64,
}

impl ManualClock {
    /// Move time forward by `span`.
    pub fn advance(&self, span: Duration) {
        self.set(self.now() + span);
    }

    /// Move time to `now`.
    pub fn set(&self, now: Timestamp) {
        self.micros.store(now.as_micros(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::Relaxed))
    }
}
