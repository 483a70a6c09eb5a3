// SPDX-License-Identifier: Apache-2.0

//! How long a pool was in each regime, in the eyes of the regime-aware policy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::adapter::{PoolRecord, RunRecord};

/// The regimes of one pool over a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegimeTimes {
    /// Regimes entered after the first.
    pub changes: u64,
    /// Share of the run in each regime that was seen; together 1.
    pub shares: BTreeMap<String, f64>,
}

impl RegimeTimes {
    /// Of each pool of a run by its role; empty under a policy that tells no regimes.
    pub(crate) fn of(record: &RunRecord) -> BTreeMap<String, Self> {
        let pools = record.pools.iter();
        pools
            .filter_map(|pool| Some((pool.role.as_str().to_owned(), times(pool, record.end_ms)?)))
            .collect()
    }
}

fn times(pool: &PoolRecord, end_ms: f64) -> Option<RegimeTimes> {
    let first = pool.regimes.first()?;
    let whole_ms = end_ms - first.from_ms;
    if whole_ms <= 0.0 {
        return None;
    }
    let ends = pool.regimes.iter().skip(1).map(|next| next.from_ms);
    let mut shares = BTreeMap::new();
    for (since, end_ms) in pool.regimes.iter().zip(ends.chain([end_ms])) {
        let share = (end_ms - since.from_ms) / whole_ms;
        *shares.entry(since.regime.to_string()).or_insert(0.0) += share;
    }
    Some(RegimeTimes {
        changes: pool.regimes.len() as u64 - 1,
        shares,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::RegimeSince;
    use dynamo_kv_router::WorkerType;
    use regime_core::Regime;

    #[test]
    fn shares_are_of_the_time_since_the_first_regime_was_known() {
        let since = |from_ms, regime| RegimeSince { from_ms, regime };
        let pool = |regimes| PoolRecord {
            role: WorkerType::Prefill,
            work_tokens: Vec::new(),
            busy_ms: Vec::new(),
            requests: Vec::new(),
            regimes,
        };
        let seen = pool(vec![
            since(100.0, Regime::Below),
            since(200.0, Regime::Saturated),
            since(400.0, Regime::Below),
        ]);
        let times = times(&seen, 500.0).unwrap();
        assert_eq!(times.changes, 2);
        assert_eq!(
            times.shares,
            BTreeMap::from([("below".into(), 0.5), ("saturated".into(), 0.5)])
        );
        assert_eq!(super::times(&pool(Vec::new()), 500.0), None);
    }
}
