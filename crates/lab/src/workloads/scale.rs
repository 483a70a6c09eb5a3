// SPDX-License-Identifier: Apache-2.0

//! How large a workload is and how hard it pushes.
//!
//! The load is one number, so that a search can move it: a rate for an open loop, requests in flight for a
//! closed one. Everything else stays as it is when the load changes: the same requests in the same
//! order, at times that shrink in proportion. So two loads, and two policies, are compared on the same
//! arrivals.

use std::ops::RangeInclusive;

use super::error::SourceError;

const BLOCK_SIZES: RangeInclusive<u32> = 1..=65_536;

/// Size, load and seed of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Requests; at least 1. Of a trace: at most, and as many whole sessions as start among them.
    pub requests: usize,
    /// How hard it pushes.
    pub load: OfferedLoad,
    /// Tokens for each block id, 1 to 65536: best the engine's. A trace keeps its own.
    pub block_size: u32,
    /// Seed of everything drawn. Equal seeds give equal workloads.
    pub seed: u64,
}

/// The number that a load search moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OfferedLoad {
    /// Open loop: requests offered per s, above 0, averaged over the workload. Sessions arrive at this
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
            OfferedLoad::Rate(rate) if !(rate.is_finite() && rate > 0.0) => wrong(
                "rate",
                rate.to_string(),
                "a number of requests per s, above 0",
            ),
            OfferedLoad::Concurrency(0) => wrong("concurrency", "0".into(), "at least 1 request"),
            OfferedLoad::Rate(_) | OfferedLoad::Concurrency(_) => Ok(()),
        }
    }
}
