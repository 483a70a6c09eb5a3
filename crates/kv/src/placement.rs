// SPDX-License-Identifier: Apache-2.0

//! Where KV blocks should lie: the placement game and the rule that follows from it.
//!
//! - [`plan`] places the blocks of one worker in its tiers at the least expected access cost, and says
//!   what one more slot in each tier would be worth.
//! - [`Rule`] is the same optimum one block at a time: at those prices each block, asked alone, wants to
//!   be where the plan puts it. So a block manager needs no plan, only prices.
//! - [`ReplicationGame`] has several workers that can read each other's blocks, where what is best for
//!   each is not best for all.
//! - [`PlacementAdvisor`] is how a block manager asks.
//!
//! Source: the placement game Γ_KV of the paper.

mod advisor;
mod plan;
mod replication;
mod rule;

pub use advisor::{Advisor, PlacementAdvisor};
pub use plan::{Plan, plan};
pub use replication::{Anarchy, Placement, ReplicationError, ReplicationGame};
pub use rule::{Advice, BlockUse, Rule, RuleConfig, RuleError, SlotPrices};
