// SPDX-License-Identifier: Apache-2.0

//! How large a workload is and how hard it pushes.
//!
//! The load is one number, so that a search can move it: a rate for an open loop, requests in flight for a
//! closed one. Everything else stays as it is when the load changes: the same requests in the same
//! order, at times that shrink in proportion. So two loads, and two policies, are compared on the same
//! arrivals.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::error::SourceError;

/// Tokens for each block id.
pub(crate) const BLOCK_SIZES: RangeInclusive<u32> = 1..=65_536;
/// Requests per s.
const RATES: RangeInclusive<f64> = 1e-6..=1e6;

/// Size, load and seed of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Requests; at least 1, of a generated workload at most 1,000,000. Of a trace: at most, and as many whole sessions as start among them.
    pub requests: usize,
    /// How hard it pushes.
    pub load: OfferedLoad,
    /// Tokens for each block id, 1 to 65536: best the engine's. A trace keeps its own.
    pub block_size: u32,
    /// Seed of everything drawn. Equal seeds give equal workloads.
    pub seed: u64,
}

/// The number that a load search moves. As JSON `{"rate": 4.5}` or `{"concurrency": 64}`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OfferedLoad {
    /// Open loop: requests offered per s, 1e-6 to 1e6, averaged over the workload. Sessions arrive at this
    /// rate over the mean number of their turns.
    Rate(f64),
    /// Closed loop: requests in flight, at least 1.
    Concurrency(usize),
}

impl OfferedLoad {
    /// The number alone.
    #[must_use]
    pub const fn number(self) -> f64 {
        match self {
            Self::Rate(rate) => rate,
            Self::Concurrency(concurrency) => concurrency as f64,
        }
    }
}

impl fmt::Display for OfferedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Four digits tell two rates of a search apart.
            Self::Rate(rate) => {
                let digits = 3 - (rate.log10().floor() as i32).clamp(-9, 3);
                let text = format!("{rate:.*}", digits.unsigned_abs() as usize);
                let short = match text.contains('.') {
                    true => text.trim_end_matches('0').trim_end_matches('.'),
                    false => &text,
                };
                write!(f, "{short} requests/s")
            }
            Self::Concurrency(1) => f.write_str("1 session"),
            Self::Concurrency(sessions) => write!(f, "{sessions} sessions"),
        }
    }
}

impl Scale {
    /// Refuses values that make no workload.
    pub(crate) fn check(&self) -> Result<(), SourceError> {
        let wrong = |key, value: String, allowed| {
            Err(SourceError::Scale {
                key,
                value,
                allowed,
            })
        };
        if self.requests == 0 {
            return wrong("requests", "0".into(), "at least 1");
        }
        if !BLOCK_SIZES.contains(&self.block_size) {
            return wrong(
                "block_size",
                self.block_size.to_string(),
                "1 to 65536 tokens",
            );
        }
        match self.load {
            OfferedLoad::Rate(rate) if !RATES.contains(&rate) => {
                wrong("rate", rate.to_string(), "1e-6 to 1e6 requests a second")
            }
            OfferedLoad::Concurrency(0) => wrong("concurrency", "0".into(), "at least 1 request"),
            OfferedLoad::Rate(_) | OfferedLoad::Concurrency(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_told_with_its_unit_and_no_more_digits_than_it_has() {
        for (load, words) in [
            (OfferedLoad::Rate(4.0), "4 requests/s"),
            (OfferedLoad::Rate(61.5432), "61.54 requests/s"),
            (OfferedLoad::Rate(1_234.56), "1235 requests/s"),
            (OfferedLoad::Rate(20_000.0), "20000 requests/s"),
            (OfferedLoad::Rate(1e-6), "0.000001 requests/s"),
            (OfferedLoad::Concurrency(1), "1 session"),
            (OfferedLoad::Concurrency(64), "64 sessions"),
        ] {
            assert_eq!(load.to_string(), words);
        }
    }

    #[test]
    fn a_load_in_json_names_its_kind() {
        for (load, json) in [
            (OfferedLoad::Rate(4.5), r#"{"rate":4.5}"#),
            (OfferedLoad::Concurrency(64), r#"{"concurrency":64}"#),
        ] {
            assert_eq!(serde_json::to_string(&load).unwrap(), json);
            assert_eq!(serde_json::from_str::<OfferedLoad>(json).unwrap(), load);
        }
    }
}
