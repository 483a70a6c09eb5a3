// SPDX-License-Identifier: Apache-2.0

//! The placement of one worker: which blocks in which tier, at the least expected access cost.
//!
//! KV blocks are all of one size, so the game of one worker has a simple solution: the block with the most
//! expected accesses goes to the fastest slot, the next to the next, and a block goes nowhere once the
//! slots left are slower than doing without it. Swapping any two blocks of such an order multiplies the
//! larger number with the larger time, so the order is optimal. A sort finds it.
//!
//! One more slot in a tier moves one block up across the border below it, one across the next border, and
//! so on down: that sum is the tier's slot price. At these prices no block, asked alone, would rather be
//! elsewhere, which is why [`Rule`](super::Rule) can decide block by block.
//!
//! Source: rearrangement inequality; prices are the multipliers of the capacities.

use regime_core::Millis;

use crate::Tier;

/// A placement of the blocks of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Tier of each block; absent where it is not kept.
    pub tiers: Vec<Option<Tier>>,
    /// Expected access cost: Σ expected accesses × access time.
    pub cost: Millis,
    /// Worth of one more slot in each tier, in the order of [`Tier::ALL`]; zero where there is room.
    pub slots: [Millis; Tier::ALL.len()],
}

/// Place blocks with `accesses` expected each, in tiers of `capacity` blocks that take `access` per
/// block, where doing without a block takes `without`.
///
/// Both arrays follow [`Tier::ALL`]; `access` must not fall, as no [`Ladder`](crate::Ladder) allows.
/// Accesses below zero or not a number count as none.
#[must_use]
pub fn plan(
    accesses: &[f64],
    capacity: [u64; Tier::ALL.len()],
    access: [Millis; Tier::ALL.len()],
    without: Millis,
) -> Plan {
    // `Millis` makes a NaN zero and keeps products finite.
    let expected = |block: usize| Millis::new(accesses[block]).max(Millis::ZERO).get();
    let mut order: Vec<usize> = (0..accesses.len()).collect();
    order.sort_by(|&a, &b| expected(b).total_cmp(&expected(a)).then(a.cmp(&b)));
    let saved = access.map(|access| (without - access).max(Millis::ZERO));

    let mut tiers = vec![None; accesses.len()];
    let mut cost = Millis::ZERO;
    let mut slots = [Millis::ZERO; Tier::ALL.len()];
    let mut next = 0usize;
    // Blocks above each border, and what the border below a tier is worth to the first block under it.
    let mut borders = [Millis::ZERO; Tier::ALL.len()];
    for (index, tier) in Tier::ALL.into_iter().enumerate() {
        if saved[index] == Millis::ZERO {
            break;
        }
        let room = usize::try_from(capacity[index]).unwrap_or(usize::MAX);
        let end = next.saturating_add(room).min(order.len());
        for &block in &order[next..end] {
            tiers[block] = Some(tier);
            cost += access[index] * expected(block);
        }
        next = end;
        if let Some(&first_below) = order.get(next) {
            let below = saved.get(index + 1).copied().unwrap_or(Millis::ZERO);
            borders[index] = (saved[index] - below) * expected(first_below);
        }
    }
    for &block in &order[next..] {
        cost += without * expected(block);
    }
    let mut price = Millis::ZERO;
    for index in (0..slots.len()).rev() {
        price += borders[index];
        slots[index] = price;
    }
    Plan { tiers, cost, slots }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(values: [f64; 4]) -> [Millis; 4] {
        values.map(Millis::new)
    }

    #[test]
    fn the_block_used_most_lies_nearest_and_a_slow_tier_stays_empty() {
        // Shared takes longer than doing without.
        let access = millis([0.0, 1.0, 4.0, 12.0]);
        let plan = plan(
            &[2.0, 9.0, 5.0, 1.0, 3.0],
            [1, 1, 1, 9],
            access,
            Millis::new(10.0),
        );
        let [device, host, disk] = [Tier::Device, Tier::Host, Tier::Disk].map(Some);
        assert_eq!(plan.tiers, [None, device, host, None, disk]);
        // 5 × 1 + 3 × 4 + (2 + 1) × 10.
        assert_eq!(plan.cost, Millis::new(47.0));
    }

    #[test]
    fn a_slot_is_worth_what_moves_up_when_it_opens() {
        let access = millis([0.0, 1.0, 4.0, 12.0]);
        let plan = plan(
            &[9.0, 5.0, 3.0, 2.0],
            [1, 1, 1, 9],
            access,
            Millis::new(10.0),
        );
        // Device: 5 × 1, and all below move up too. Host: 3 × 3. Disk: 2 × 6.
        assert_eq!(plan.slots, millis([26.0, 21.0, 12.0, 0.0]));
    }

    #[test]
    fn slots_are_free_where_there_is_room() {
        let plan = plan(
            &[1.0, 2.0],
            [9, 9, 9, 9],
            millis([0.0, 1.0, 2.0, 3.0]),
            Millis::new(9.0),
        );
        assert_eq!(plan.slots, [Millis::ZERO; 4]);
        assert_eq!(plan.cost, Millis::ZERO);
    }

    /// Least cost over every placement.
    fn brute_force(accesses: &[f64], capacity: [u64; 4], access: [f64; 4], without: f64) -> f64 {
        let Some((&first, rest)) = accesses.split_first() else {
            return 0.0;
        };
        let mut best = first * without + brute_force(rest, capacity, access, without);
        for tier in 0..4 {
            if capacity[tier] > 0 {
                let mut left = capacity;
                left[tier] -= 1;
                let cost = first * access[tier] + brute_force(rest, left, access, without);
                best = best.min(cost);
            }
        }
        best
    }

    fn rising() -> impl Strategy<Value = [f64; 4]> {
        [0.0..4.0f64, 0.0..4.0f64, 0.0..4.0f64, 0.0..4.0f64].prop_map(|mut times| {
            times.sort_by(f64::total_cmp);
            times
        })
    }

    proptest! {
        #[test]
        fn no_placement_is_cheaper(
            accesses in proptest::collection::vec(0.0..9.0f64, 0..5),
            capacity in [0u64..3, 0u64..3, 0u64..3, 0u64..3],
            access in rising(),
            without in 0.0..4.0f64,
        ) {
            let plan = plan(&accesses, capacity, millis(access), Millis::new(without));
            let best = brute_force(&accesses, capacity, access, without);
            prop_assert!((plan.cost.get() - best).abs() < 1e-9);
        }

        #[test]
        fn one_more_slot_saves_its_price(
            accesses in proptest::collection::vec(0.0..9.0f64, 0..6),
            capacity in [0u64..3, 0u64..3, 0u64..3, 0u64..3],
            access in rising(),
            without in 0.0..4.0f64,
            tier in 0usize..4,
        ) {
            let (access, without) = (millis(access), Millis::new(without));
            let before = plan(&accesses, capacity, access, without);
            let mut more = capacity;
            more[tier] += 1;
            let after = plan(&accesses, more, access, without);
            let saved = before.cost - after.cost;
            prop_assert!((saved - before.slots[tier]).get().abs() < 1e-9);
        }

        #[test]
        fn at_these_prices_no_block_wants_to_be_elsewhere(
            accesses in proptest::collection::vec(0.0..9.0f64, 0..8),
            capacity in [0u64..3, 0u64..3, 0u64..3, 0u64..3],
            access in rising(),
            without in 0.0..4.0f64,
        ) {
            let plan = plan(&accesses, capacity, millis(access), Millis::new(without));
            for (block, tier) in plan.tiers.iter().enumerate() {
                let net = |tier: Option<Tier>| tier.map_or(0.0, |tier| {
                    let index = tier as usize;
                    accesses[block] * (without - access[index]).max(0.0) - plan.slots[index].get()
                });
                for other in Tier::ALL.map(Some).into_iter().chain([None]) {
                    // A tier without slots cannot be moved to at any price.
                    if other.is_none_or(|tier| capacity[tier as usize] > 0) {
                        prop_assert!(net(*tier) >= net(other) - 1e-9);
                    }
                }
            }
        }
    }
}
