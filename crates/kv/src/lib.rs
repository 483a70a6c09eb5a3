// SPDX-License-Identifier: Apache-2.0

//! What cached KV blocks are worth to the router, and where they should lie.
//!
//! A block in HBM saves its whole prefill; one that must first be fetched from host memory, disk or a
//! shared store saves less. Pure arithmetic, no I/O; what the request path calls allocates nothing.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod credit;
#[cfg(feature = "kvbm")]
pub mod kvbm;
mod ladder;
mod learned;
mod placement;
mod time_value;
mod transfers;

pub use credit::{
    CacheView, Overlap, Prefix, TierCredit, TierWeights, WeightError, uncached_tokens,
};
pub use ladder::{KvShape, Ladder, LadderConfig, LadderError, Tier, TierSpeed};
pub use learned::{Brought, Haul, LearnedLadder, TierFactor};
pub use placement::{
    Advice, Advisor, Anarchy, BlockUse, Placement, PlacementAdvisor, Plan, ReplicationError,
    ReplicationGame, Rule, RuleConfig, RuleError, SlotPrices, plan,
};
pub use time_value::{Fetch, TimedCredit};
pub use transfers::Transfers;
