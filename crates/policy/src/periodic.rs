// SPDX-License-Identifier: Apache-2.0

//! Work that is due now and then, done by whoever comes by: without a thread, and once per period however
//! many come by at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use regime_core::Timestamp;

/// When the work is due next; at once in the beginning.
#[derive(Debug, Default)]
pub(crate) struct Periodic {
    due_micros: AtomicU64,
}

impl Periodic {
    /// Whether the work is due. Another thread may still claim it first.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        now.as_micros() >= self.due_micros.load(Ordering::Relaxed)
    }

    /// Take the work, if it is due and nobody else took it; it is due again after `period`.
    pub(crate) fn claim(&self, now: Timestamp, period: Duration) -> bool {
        let due = self.due_micros.load(Ordering::Relaxed);
        let next = (now + period).as_micros();
        now.as_micros() >= due
            && self
                .due_micros
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_claimed_once_per_period() {
        let periodic = Periodic::default();
        let claim =
            |millis| periodic.claim(Timestamp::from_millis(millis), Duration::from_millis(250));
        assert!(claim(0));
        assert!(!claim(0) && !claim(249));
        assert!(periodic.is_due(Timestamp::from_millis(250)));
        assert!(claim(250));
    }
}
