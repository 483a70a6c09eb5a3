// SPDX-License-Identifier: Apache-2.0

//! What cached KV blocks are worth to the router.
//!
//! A block in HBM saves its whole prefill; one that must first be fetched from host memory, disk or a
//! shared store saves less. Pure arithmetic, no I/O, no allocation.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod credit;

pub use credit::{CacheView, Overlap, TierCredit, TierWeights, WeightError, uncached_tokens};
