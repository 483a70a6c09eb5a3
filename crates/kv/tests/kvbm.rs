// SPDX-License-Identifier: Apache-2.0

//! The offload policy on KVBM's own registry and block managers, beside KVBM's own filters.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use futures::FutureExt;
use futures::executor::block_on;
use kvbm_engine::offload::{
    AllOfPolicy, AnyOfPolicy, EvalContext, ObjectPipelineBuilder, OffloadPolicy, PipelineBuilder,
    PresenceAndLFUFilter, PresenceFilter,
};
use kvbm_engine::{G1, G2, G3, G4, SequenceHash};
use kvbm_logical::BlockRegistry;
use kvbm_logical::blocks::ImmutableBlock;
use kvbm_logical::manager::{BlockManager, FrequencyTrackingCapacity};
use regime_core::{Millis, Regime};
use regime_kv::kvbm::AdvisedOffload;
use regime_kv::{
    Advisor, Ladder, LadderConfig, PlacementAdvisor, Rule, RuleConfig, Tier, TierSpeed,
};

/// A run of 16 tokens, 1 MB each, takes 16 ms to recompute. Host 1 + 1.6 ms, disk 2 + 8, store 4 + 16.
const RUN: u32 = 16;

fn advisor() -> Arc<Advisor> {
    let ladder = Ladder::new(LadderConfig {
        kv_bytes_per_token: 1e6,
        host: Some(TierSpeed::new(1.0, 10.0)),
        disk: Some(TierSpeed::new(2.0, 2.0)),
        shared: Some(TierSpeed::new(4.0, 1.0)),
        ..LadderConfig::default()
    })
    .unwrap();
    let config = RuleConfig {
        token_ms: 1.0,
        ..RuleConfig::default()
    };
    Arc::new(Advisor::new(Rule::new(ladder, config).unwrap()))
}

fn registry() -> Arc<BlockRegistry> {
    let tracker = FrequencyTrackingCapacity::Small.create_tracker();
    Arc::new(BlockRegistry::builder().frequency_tracker(tracker).build())
}

fn hash(block: u64) -> SequenceHash {
    SequenceHash::root(block)
}

fn external<T: Clone + Send + Sync + 'static>(block: u64) -> EvalContext<T> {
    EvalContext::from_external(block as usize, hash(block))
}

/// The answer, which must be there at once.
fn at_once<T: Clone + Send + Sync + 'static>(
    policy: &impl OffloadPolicy<T>,
    context: &EvalContext<T>,
) -> bool {
    policy.evaluate(context).now_or_never().unwrap().unwrap()
}

/// Count `accesses` more of a block.
fn access(registry: &BlockRegistry, block: u64, accesses: u32) {
    let before = registry.count(hash(block));
    for _ in 0..accesses {
        registry.touch(hash(block));
    }
    assert_eq!(registry.count(hash(block)), before + accesses);
}

fn manager<T: Clone + Send + Sync + 'static>(registry: &BlockRegistry) -> BlockManager<T> {
    BlockManager::<T>::builder()
        .block_count(8)
        .block_size(16)
        .registry(registry.clone())
        .with_lru_backend()
        .build()
        .unwrap()
}

fn store<T: Clone + Send + Sync + 'static>(
    manager: &BlockManager<T>,
    block: u64,
) -> ImmutableBlock<T> {
    let slot = manager.allocate_blocks(1).unwrap().remove(0);
    let Ok(complete) = slot.stage(hash(block), 16) else {
        panic!("a block of the manager's size");
    };
    manager.register_block(complete)
}

#[test]
fn a_block_just_written_by_the_engine_is_copied_to_host_memory() {
    // The registry learns of it with the copy. One access saves 16 − 2.6 ms there, the copy takes 2.6.
    let registry = registry();
    assert_eq!(registry.count(hash(1)), 0);
    let policy = AdvisedOffload::<G1, G2>::new(Arc::clone(&registry), advisor(), RUN);
    assert!(at_once(&policy, &external(1)));
    drop(store(&manager::<G2>(&registry), 1));
    assert_eq!(registry.count(hash(1)), 1);
}

#[test]
fn a_block_goes_to_disk_once_its_accesses_pay_for_the_copy() {
    // Each access saves 16 − 10 ms, the copy takes 10.
    let registry = registry();
    access(&registry, 1, 1);
    access(&registry, 2, 2);
    let host = manager::<G2>(&registry);
    let policy = AdvisedOffload::<G2, G3>::new(Arc::clone(&registry), advisor(), RUN);
    assert!(!at_once(&policy, &external(1)));
    assert!(at_once(&policy, &external(2)));
    // A block that is held counts as the registry counts it.
    let held = EvalContext::new(store(&host, 3));
    assert!(!at_once(&policy, &held));
    access(&registry, 3, 1);
    assert!(at_once(&policy, &held));
}

#[test]
fn nothing_goes_to_a_store_slower_than_recomputing_until_the_pool_saturates() {
    // 20 ms from the store against 16, and against 272 at saturation.
    let registry = registry();
    access(&registry, 1, 12);
    let advisor = advisor();
    let told = Arc::clone(&advisor);
    let policy = AdvisedOffload::<G2, G4>::new(registry, advisor, RUN);
    assert!(!at_once(&policy, &external(1)));
    told.set_regime(Regime::Saturated);
    assert!(at_once(&policy, &external(1)));
}

#[test]
fn a_full_host_takes_only_what_is_worth_more_than_what_it_holds() {
    // Each access saves 13.4 ms; a slot for 16 tokens is worth 32, the copy takes 2.6.
    let registry = registry();
    access(&registry, 1, 2);
    access(&registry, 2, 3);
    let advisor = advisor();
    advisor.set_slot_price(Tier::Host, Millis::new(2.0));
    let policy = AdvisedOffload::<G1, G2>::new(registry, advisor, RUN);
    assert!(!at_once(&policy, &external(1)));
    assert!(at_once(&policy, &external(2)));
}

#[test]
fn without_a_frequency_sketch_a_block_counts_as_used_once() {
    let registry = Arc::new(BlockRegistry::new());
    let to_host = AdvisedOffload::<G1, G2>::new(Arc::clone(&registry), advisor(), RUN);
    let to_disk = AdvisedOffload::<G2, G3>::new(registry, advisor(), RUN);
    assert!(at_once(&to_host, &external(1)));
    assert!(!at_once(&to_disk, &external(1)));
}

#[test]
fn a_batch_is_answered_at_once_and_like_its_blocks() {
    let registry = registry();
    for block in 0..40 {
        access(&registry, block, (block % 4) as u32);
    }
    let policy = AdvisedOffload::<G2, G3>::new(registry, advisor(), RUN);
    let contexts: Vec<_> = (0..40).map(external::<G2>).collect();
    let batch = policy
        .evaluate_batch(&contexts)
        .now_or_never()
        .unwrap()
        .unwrap();
    let single: Vec<_> = contexts
        .iter()
        .map(|context| at_once(&policy, context))
        .collect();
    assert_eq!(batch, single);
    assert_eq!(batch[..4], [false, false, true, true]);
    assert!(
        policy
            .evaluate_batch(&[])
            .now_or_never()
            .unwrap()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn an_answer_allocates_nothing_and_a_batch_only_its_vector() {
    let registry = registry();
    access(&registry, 1, 3);
    let policy = AdvisedOffload::<G2, G3>::new(registry, advisor(), RUN);
    let contexts: Vec<_> = (0..64).map(external::<G2>).collect();
    let single = allocation_counter::measure(|| {
        for context in &contexts {
            at_once(&policy, context);
        }
    });
    assert_eq!(single.count_total, 0);
    let batch = allocation_counter::measure(|| {
        policy
            .evaluate_batch(&contexts)
            .now_or_never()
            .unwrap()
            .unwrap();
    });
    assert_eq!(batch.count_total, 1);
}

#[test]
fn beside_the_presence_filter_only_what_is_missing_and_worth_it_passes() {
    let registry = registry();
    access(&registry, 1, 3);
    access(&registry, 2, 3);
    access(&registry, 3, 1);
    let disk = manager::<G3>(&registry);
    let present = store(&disk, 1);
    let both = AllOfPolicy::<G2>::new(vec![
        Arc::new(PresenceFilter::<G2, G3>::new(Arc::clone(&registry))),
        Arc::new(AdvisedOffload::<G2, G3>::new(registry, advisor(), RUN)),
    ]);
    let passes = |block| block_on(both.evaluate(&external(block))).unwrap();
    assert_eq!([1, 2, 3].map(passes), [false, true, false]);
    // Evicted from disk, it is worth a copy again.
    drop(present);
    for block in 10..18 {
        drop(store(&disk, block));
    }
    assert!(passes(1));
}

#[test]
fn beside_the_lfu_filter_the_stricter_and_the_milder_of_both_decide() {
    let registry = registry();
    // The rule asks for two accesses, the filter for more than eight.
    for (block, accesses) in [(1, 1), (2, 5), (3, 9)] {
        access(&registry, block, accesses);
    }
    let policies = || -> Vec<Arc<dyn OffloadPolicy<G2>>> {
        vec![
            Arc::new(PresenceAndLFUFilter::<G2, G3>::with_default_threshold(
                Arc::clone(&registry),
            )),
            Arc::new(AdvisedOffload::<G2, G3>::new(
                Arc::clone(&registry),
                advisor(),
                RUN,
            )),
        ]
    };
    let (all, any) = (AllOfPolicy::new(policies()), AnyOfPolicy::new(policies()));
    let passes = |policy: &dyn OffloadPolicy<G2>, block| {
        block_on(policy.evaluate(&external(block))).unwrap()
    };
    assert_eq!(
        [1, 2, 3].map(|block| passes(&all, block)),
        [false, false, true]
    );
    assert_eq!(
        [1, 2, 3].map(|block| passes(&any, block)),
        [false, true, true]
    );
    let contexts: Vec<_> = (1..=3).map(external::<G2>).collect();
    assert_eq!(
        block_on(all.evaluate_batch(&contexts)).unwrap(),
        [false, false, true]
    );
}

#[test]
fn pipelines_take_the_policy_on_every_edge() {
    let registry = registry();
    let advisor: Arc<dyn PlacementAdvisor> = advisor();
    let to_host = AdvisedOffload::<G1, G2>::new(Arc::clone(&registry), Arc::clone(&advisor), RUN);
    let to_disk = AdvisedOffload::<G2, G3>::new(Arc::clone(&registry), Arc::clone(&advisor), RUN);
    let to_store = AdvisedOffload::<G2, G4>::new(registry, advisor, RUN);
    let g1_to_g2 = PipelineBuilder::<G1, G2>::new()
        .policy(Arc::new(to_host))
        .build();
    let g2_to_g3 = PipelineBuilder::<G2, G3>::new()
        .policy(Arc::new(to_disk))
        .build();
    let g2_to_g4 = ObjectPipelineBuilder::<G2>::new()
        .policy(Arc::new(to_store))
        .build();
    let names = [
        g1_to_g2.policies[0].name(),
        g2_to_g3.policies[0].name(),
        g2_to_g4.policies[0].name(),
    ];
    assert_eq!(names, ["AdvisedOffload"; 3]);
}
