// SPDX-License-Identifier: Apache-2.0

//! The placement rule as an offload policy of KVBM, NVIDIA's KV block manager.
//!
//! # Idea
//!
//! KVBM copies blocks down as they are written, G1 → G2 and then G2 → G3 or G4, and asks its policies
//! which blocks are worth a copy. [`AdvisedOffload`] answers with the rule: a block is copied if its
//! expected accesses save more in the tier below, against recomputing, than the copy and the slot cost.
//! KVBM's own filters ask other questions, whether the block is there already and whether it was used
//! often enough, and a pipeline takes all of them together: put the presence filter first, and this policy
//! in place of the LFU filter, whose fixed count it replaces, or behind it.
//!
//! # What it knows
//!
//! Accesses come from the registry's frequency sketch. It halves as it ages, so recency is in the count.
//! A block counts as used once at least, because it was written for somebody: device blocks of an engine
//! are not in the registry before their first copy, and a registry may have no sketch. Blocks are judged
//! one by one, as KVBM asks, but brought back in runs that share one latency; how long a run is, the
//! operator says.
//!
//! Answers are synchronous, and one answer allocates nothing; a batch allocates the vector it returns.
//!
//! # Source
//!
//! `kvbm_engine::offload::OffloadPolicy` 1.6.1, whose pipelines ask for one block at a time.

use std::marker::PhantomData;
use std::sync::Arc;

use kvbm_engine::offload::{
    EvalContext, OffloadPolicy, PolicyBatchFuture, PolicyFuture, sync_batch_result, sync_result,
};
use kvbm_engine::{G1, G2, G3, G4, SequenceHash};
use kvbm_logical::BlockRegistry;
use kvbm_logical::blocks::BlockMetadata;
use regime_core::Millis;

use crate::{BlockUse, PlacementAdvisor, Tier};

/// A tier of KVBM.
pub trait KvbmTier: BlockMetadata {
    /// The same tier here.
    const TIER: Tier;
}

impl KvbmTier for G1 {
    const TIER: Tier = Tier::Device;
}

impl KvbmTier for G2 {
    const TIER: Tier = Tier::Host;
}

impl KvbmTier for G3 {
    const TIER: Tier = Tier::Disk;
}

impl KvbmTier for G4 {
    const TIER: Tier = Tier::Shared;
}

/// Passes the blocks of `Src` that are worth a copy in `Dst`.
pub struct AdvisedOffload<Src, Dst> {
    registry: Arc<BlockRegistry>,
    advisor: Arc<dyn PlacementAdvisor>,
    run_tokens: u32,
    tiers: PhantomData<fn(Src) -> Dst>,
}

impl<Src: KvbmTier, Dst: KvbmTier> AdvisedOffload<Src, Dst> {
    /// A policy over the registry of the block managers. `run_tokens` are brought back together and
    /// share one latency: a typical cached prefix, and at least one block.
    #[must_use]
    pub fn new(
        registry: Arc<BlockRegistry>,
        advisor: Arc<dyn PlacementAdvisor>,
        run_tokens: u32,
    ) -> Self {
        Self {
            registry,
            advisor,
            run_tokens,
            tiers: PhantomData,
        }
    }

    fn passes(&self, block: SequenceHash) -> bool {
        let block = BlockUse {
            tier: Src::TIER,
            accesses: f64::from(self.registry.count(block).max(1)),
            idle: Millis::ZERO,
            tokens: self.run_tokens,
            elsewhere: None,
        };
        self.advisor.worth_copying(&block, Dst::TIER)
    }
}

impl<Src: KvbmTier, Dst: KvbmTier> OffloadPolicy<Src> for AdvisedOffload<Src, Dst> {
    fn name(&self) -> &str {
        "AdvisedOffload"
    }

    fn evaluate<'a>(&'a self, context: &'a EvalContext<Src>) -> PolicyFuture<'a> {
        sync_result(Ok(self.passes(context.sequence_hash)))
    }

    fn evaluate_batch<'a>(&'a self, contexts: &'a [EvalContext<Src>]) -> PolicyBatchFuture<'a> {
        let passed = contexts
            .iter()
            .map(|context| self.passes(context.sequence_hash))
            .collect();
        sync_batch_result(Ok(passed))
    }
}
