// SPDX-License-Identifier: Apache-2.0

//! Which regime each pool was in, and when.
//!
//! The regime-aware policy tells only where it stands. This asks it during the run, and must not change
//! it by asking: a question brings the policy's state to the present, and a state brought to the present at
//! other times than its own would fold its windows at other times. So it asks only right after a first
//! token was told, when every pool has just been brought there.
//!
//! It asks once a second, which is as often as frontends are scraped and half the least stay in a regime
//! before it is left downwards. The answer says since when, so that times are exact to the millisecond.

use regime_policy::Handle;

use super::record::RegimeSince;
use super::simulation::Pool;

/// Least virtual time between two questions, ms.
const INTERVAL_MS: f64 = 1_000.0;

/// Asks the policy now and then.
pub(super) struct RegimeWatch {
    /// Absent when the policy is not linked in.
    ours: Option<Handle>,
    /// When to ask next.
    next_ms: f64,
}

impl RegimeWatch {
    pub(super) const fn new(ours: Option<Handle>) -> Self {
        Self { ours, next_ms: 0.0 }
    }

    pub(super) const fn ours(&self) -> Option<&Handle> {
        self.ours.as_ref()
    }

    /// A first token was told at `now_ms`.
    pub(super) fn first_token_told(&mut self, now_ms: f64, pools: &mut [Pool]) {
        let Some(ours) = self.ours.as_ref().filter(|_| now_ms >= self.next_ms) else {
            return;
        };
        let report = ours.report();
        if report.pools.is_empty() {
            // Another policy chooses, to the end of the run.
            self.next_ms = f64::INFINITY;
            return;
        }
        self.next_ms = now_ms + INTERVAL_MS;
        for theirs in report.pools {
            let role = |pool: &&mut Pool| pool.role.as_str() == theirs.role;
            let Some(pool) = pools.iter_mut().find(role) else {
                continue;
            };
            let before = pool.regimes.last();
            if before.is_some_and(|before| before.regime == theirs.health.regime) {
                continue;
            }
            let earliest_ms = before.map_or(0.0, |before| before.from_ms);
            pool.regimes.push(RegimeSince {
                from_ms: (now_ms - theirs.health.since_ms as f64)
                    .floor()
                    .max(earliest_ms),
                regime: theirs.health.regime,
            });
        }
    }
}
