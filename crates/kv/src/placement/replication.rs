// SPDX-License-Identifier: Apache-2.0

//! The replication game: several workers that can read each other's blocks.
//!
//! # Idea
//!
//! Each worker keeps a set of blocks, at most as many as it has room for. An access to a block costs the
//! least of: `local` if the worker keeps it, `peer` if another does, `store` if there is a shared store,
//! and `recompute`. Keeping a block costs the worker `replica`, whatever else its room would be good for.
//! A worker minimises its own cost, the society the sum.
//!
//! A copy helps others, which its holder does not see. So selfish workers go wrong in two ways. Where
//! room is short, each fills it with what is used most, all with the same, and what is used less is
//! nowhere. Where a copy has a price, each waits for another to make it. Both vanish as `peer` nears
//! `local`'s price, and with a fast store there is little to gain from peers at all.
//!
//! # What is computed
//!
//! Small games by brute force: every profile of sets, the equilibria among them, the optimum, hence the
//! price of anarchy and of stability. Larger games between bounds: the equilibrium that best responses
//! reach, the greedy placement of a planner, and a bound below which no placement can be. The bound lets
//! all workers share their room: the number of copies of each block is then all that matters, the gain of
//! one more copy falls with each, so taking the best copies first is optimal. With equal demand
//! everywhere the room can be dealt out in turn, and the bound is reached.
//!
//! # Source
//!
//! Distributed selfish replication and caching: Laoutaris et al. (IEEE TPDS 2006), Chun et al. (PODC 2004),
//! Pollatos et al. (Networking 2008). Blocks are of one size, as KV blocks are.

use regime_core::Millis;
use thiserror::Error;

/// Which worker keeps which block, `[worker][block]`.
pub type Placement = Vec<Vec<bool>>;

/// Costs closer than this are equal, relative to the larger.
const EQUAL: f64 = 1e-9;
/// Profiles that a brute force looks at, at most.
const MOST_PROFILES: usize = 1 << 20;
/// Rounds of best responses before they are taken to cycle.
const MOST_ROUNDS: usize = 1_000;

/// A game among workers with equal room.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicationGame {
    /// Expected accesses, `[worker][block]`; as many blocks for each worker.
    pub demand: Vec<Vec<f64>>,
    /// Blocks that each worker has room for.
    pub room: usize,
    /// Time of an access to a block of one's own.
    pub local: Millis,
    /// Time of an access to another worker's block; at least `local`.
    pub peer: Millis,
    /// Time of an access to the shared store, which holds every block; absent without a store.
    pub store: Option<Millis>,
    /// Time to recompute a block; at least `peer`.
    pub recompute: Millis,
    /// Price of keeping one block.
    pub replica: Millis,
}

/// A game that makes no sense.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{key} is {value}; allowed: {allowed}")]
pub struct ReplicationError {
    /// Name of the field in [`ReplicationGame`].
    pub key: &'static str,
    /// The refused value.
    pub value: String,
    /// What would have been accepted.
    pub allowed: &'static str,
}

/// Equilibria of a game against its optimum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Anarchy {
    /// Cost of the dearest equilibrium.
    pub worst: Millis,
    /// Cost of the cheapest equilibrium.
    pub best: Millis,
    /// Cost of the cheapest profile.
    pub optimum: Millis,
    /// Number of equilibria.
    pub equilibria: usize,
}

impl Anarchy {
    /// Dearest equilibrium over optimum; absent when the optimum costs nothing.
    #[must_use]
    pub fn price_of_anarchy(&self) -> Option<f64> {
        self.worst.ratio(self.optimum)
    }

    /// Cheapest equilibrium over optimum; absent when the optimum costs nothing.
    #[must_use]
    pub fn price_of_stability(&self) -> Option<f64> {
        self.best.ratio(self.optimum)
    }
}

impl ReplicationGame {
    /// Check the numbers.
    ///
    /// # Errors
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ReplicationError> {
        let refuse = |key, value: String, allowed| {
            Err(ReplicationError {
                key,
                value,
                allowed,
            })
        };
        let blocks = self.blocks();
        for row in &self.demand {
            if row.len() != blocks {
                let allowed = "rows of equal length";
                return refuse("demand", format!("a row of {}", row.len()), allowed);
            }
            if let Some(bad) = row.iter().find(|demand| !(0.0..=1e9).contains(*demand)) {
                return refuse("demand", bad.to_string(), "0 to 1e9");
            }
        }
        for (key, value, low, allowed) in [
            ("local", self.local, Millis::ZERO, "from 0"),
            ("peer", self.peer, self.local, "at least `local`"),
            ("recompute", self.recompute, self.peer, "at least `peer`"),
            ("replica", self.replica, Millis::ZERO, "from 0"),
            (
                "store",
                self.store.unwrap_or(self.local),
                self.local,
                "at least `local`",
            ),
        ] {
            if value < low {
                return refuse(key, value.get().to_string(), allowed);
            }
        }
        Ok(())
    }

    /// The placement in which nobody keeps anything.
    #[must_use]
    pub fn empty(&self) -> Placement {
        vec![vec![false; self.blocks()]; self.demand.len()]
    }

    /// What `worker` pays.
    #[must_use]
    pub fn cost(&self, placement: &Placement, worker: usize) -> Millis {
        (0..self.blocks())
            .map(|block| {
                if placement[worker][block] {
                    self.local * self.demand[worker][block] + self.replica
                } else {
                    self.away(placement, worker, block) * self.demand[worker][block]
                }
            })
            .sum()
    }

    /// What all pay.
    #[must_use]
    pub fn social_cost(&self, placement: &Placement) -> Millis {
        (0..self.demand.len())
            .map(|worker| self.cost(placement, worker))
            .sum()
    }

    /// The set that costs `worker` least, given what the others keep.
    #[must_use]
    pub fn best_response(&self, placement: &Placement, worker: usize) -> Vec<bool> {
        let mut gains: Vec<(Millis, usize)> = (0..self.blocks())
            .map(|block| {
                let saved = self.away(placement, worker, block) - self.local;
                (saved * self.demand[worker][block] - self.replica, block)
            })
            .filter(|(gain, _)| *gain > Millis::ZERO)
            .collect();
        gains.sort_by(|a, b| b.0.get().total_cmp(&a.0.get()).then(a.1.cmp(&b.1)));
        let mut kept = vec![false; self.blocks()];
        for (_, block) in gains.into_iter().take(self.room) {
            kept[block] = true;
        }
        kept
    }

    /// Where best responses, one worker after the other, come to rest from `start`; absent if they do not.
    #[must_use]
    pub fn equilibrium(&self, start: Placement) -> Option<Placement> {
        let mut placement = start;
        for _ in 0..MOST_ROUNDS {
            let mut rests = true;
            for worker in 0..self.demand.len() {
                let before = self.cost(&placement, worker);
                let answer = self.best_response(&placement, worker);
                let old = std::mem::replace(&mut placement[worker], answer);
                if less(self.cost(&placement, worker), before) {
                    rests = false;
                } else {
                    placement[worker] = old;
                }
            }
            if rests {
                return Some(placement);
            }
        }
        None
    }

    /// The placement of a planner who adds the copy that helps all most, until none helps.
    #[must_use]
    pub fn greedy(&self) -> Placement {
        let mut placement = self.empty();
        loop {
            let mut best: Option<(Millis, usize, usize)> = None;
            for worker in 0..self.demand.len() {
                if placement[worker].iter().filter(|kept| **kept).count() >= self.room {
                    continue;
                }
                for block in 0..self.blocks() {
                    if placement[worker][block] {
                        continue;
                    }
                    let gain = self.social_gain(&placement, worker, block);
                    if gain > best.map_or(Millis::ZERO, |(gain, ..)| gain) {
                        best = Some((gain, worker, block));
                    }
                }
            }
            let Some((_, worker, block)) = best else {
                return placement;
            };
            placement[worker][block] = true;
        }
    }

    /// A cost below which no placement can be: the optimum if all workers shared their room.
    #[must_use]
    pub fn lower_bound(&self) -> Millis {
        let mut total = Millis::ZERO;
        let mut gains = Vec::new();
        for block in 0..self.blocks() {
            let mut demand: Vec<f64> = self.demand.iter().map(|row| row[block]).collect();
            demand.sort_by(|a, b| b.total_cmp(a));
            let all: f64 = demand.iter().sum();
            total += self.alone() * all;
            for (copy, own) in demand.into_iter().enumerate() {
                let gain = if copy == 0 {
                    // The first copy serves everybody.
                    (self.alone() - self.local) * own + (self.alone() - self.remote()) * (all - own)
                } else {
                    (self.remote() - self.local) * own
                };
                gains.push(gain - self.replica);
            }
        }
        gains.sort_by(|a, b| b.get().total_cmp(&a.get()));
        let saved: Millis = gains
            .into_iter()
            .take(self.room.saturating_mul(self.demand.len()))
            .map(|gain| gain.max(Millis::ZERO))
            .sum();
        total - saved
    }

    /// Equilibria and optimum over all profiles; absent for a game too large, or without an equilibrium.
    #[must_use]
    pub fn anarchy(&self) -> Option<Anarchy> {
        let sets = self.sets()?;
        let workers = u32::try_from(self.demand.len()).ok()?;
        let profiles = sets
            .len()
            .checked_pow(workers)
            .filter(|profiles| *profiles <= MOST_PROFILES)?;
        let mut optimum: Option<Millis> = None;
        let mut found: Option<Anarchy> = None;
        let mut placement = self.empty();
        for profile in 0..profiles {
            let mut digits = profile;
            for set in &mut placement {
                set.clone_from(&sets[digits % sets.len()]);
                digits /= sets.len();
            }
            let cost = self.social_cost(&placement);
            optimum = Some(optimum.map_or(cost, |best| best.min(cost)));
            if self.rests(&mut placement) {
                let seen = found.get_or_insert(Anarchy {
                    worst: cost,
                    best: cost,
                    optimum: cost,
                    equilibria: 0,
                });
                seen.worst = seen.worst.max(cost);
                seen.best = seen.best.min(cost);
                seen.equilibria += 1;
            }
        }
        let optimum = optimum?;
        found.map(|found| Anarchy { optimum, ..found })
    }

    fn blocks(&self) -> usize {
        self.demand.first().map_or(0, Vec::len)
    }

    /// Time of an access to a block that nobody keeps.
    fn alone(&self) -> Millis {
        self.store
            .map_or(self.recompute, |store| store.min(self.recompute))
    }

    /// Time of an access to a block that another worker keeps.
    fn remote(&self) -> Millis {
        self.peer.min(self.alone())
    }

    /// Time of an access of `worker` to `block` if it does not keep it.
    fn away(&self, placement: &Placement, worker: usize, block: usize) -> Millis {
        let held = (0..placement.len()).any(|other| other != worker && placement[other][block]);
        if held { self.remote() } else { self.alone() }
    }

    /// What one more copy saves all.
    fn social_gain(&self, placement: &Placement, worker: usize, block: usize) -> Millis {
        let own = self.demand[worker][block];
        let away = self.away(placement, worker, block);
        let others: f64 = self.demand.iter().map(|row| row[block]).sum::<f64>() - own;
        (away - self.local) * own + (away - self.remote()) * others - self.replica
    }

    /// Whether no worker can do better alone.
    fn rests(&self, placement: &mut Placement) -> bool {
        (0..self.demand.len()).all(|worker| {
            let cost = self.cost(placement, worker);
            let answer = self.best_response(placement, worker);
            let old = std::mem::replace(&mut placement[worker], answer);
            let better = less(self.cost(placement, worker), cost);
            placement[worker] = old;
            !better
        })
    }

    /// Every set that fits; absent for too many blocks.
    fn sets(&self) -> Option<Vec<Vec<bool>>> {
        let blocks = self.blocks();
        let masks = 1usize
            .checked_shl(u32::try_from(blocks).ok()?)
            .filter(|masks| *masks <= MOST_PROFILES)?;
        Some(
            (0..masks)
                .filter(|mask| mask.count_ones() as usize <= self.room)
                .map(|mask| (0..blocks).map(|block| mask >> block & 1 == 1).collect())
                .collect(),
        )
    }
}

/// Whether `a` is less than `b` by more than rounding.
fn less(a: Millis, b: Millis) -> bool {
    a.get() < b.get() - EQUAL * b.get().abs().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two workers with room for one block each: local 0, peer 1, recompute 10.
    fn two(demand: [[f64; 2]; 2]) -> ReplicationGame {
        ReplicationGame {
            demand: demand.map(Vec::from).to_vec(),
            room: 1,
            local: Millis::ZERO,
            peer: Millis::new(1.0),
            store: None,
            recompute: Millis::new(10.0),
            replica: Millis::ZERO,
        }
    }

    #[test]
    fn a_worker_keeps_what_saves_it_most() {
        let game = two([[3.0, 2.0], [3.0, 2.0]]);
        // With nothing elsewhere, 3 × 10 beats 2 × 10. With block 0 at the other, 3 × 1 loses to 2 × 10.
        let empty = game.empty();
        assert_eq!(game.best_response(&empty, 0), [true, false]);
        let other = vec![vec![false, false], vec![true, false]];
        assert_eq!(game.best_response(&other, 0), [false, true]);
        assert_eq!(game.cost(&other, 0), Millis::new(3.0 + 20.0));
    }

    #[test]
    fn fast_peers_divide_the_blocks_between_them() {
        let game = two([[3.0, 2.0], [3.0, 2.0]]);
        let found = game.anarchy().unwrap();
        // One keeps each: 2 × 1 + 3 × 1. Both ways are equilibria.
        assert_eq!(
            (found.worst, found.best, found.optimum),
            (Millis::new(5.0), Millis::new(5.0), Millis::new(5.0))
        );
        assert_eq!(found.equilibria, 2);
        assert_eq!(found.price_of_anarchy(), Some(1.0));
    }

    #[test]
    fn slow_peers_make_everybody_keep_the_same_and_the_rest_is_nowhere() {
        // Peer 9: each would rather have block 0 itself (3 × 9) than block 1 (2 × 10 − …): 27 > 20.
        let game = ReplicationGame {
            peer: Millis::new(9.0),
            ..two([[3.0, 2.0], [3.0, 2.0]])
        };
        let found = game.anarchy().unwrap();
        // Equilibrium: 20 each. Optimum: one keeps each block, 18 + 27 = 45 > 40, so here it is the same.
        assert_eq!(
            (found.worst, found.optimum),
            (Millis::new(40.0), Millis::new(40.0))
        );
        // Peer 7: 3 × 7 > 2 × 10 still, but dividing costs 14 + 21 = 35 in all.
        let game = ReplicationGame {
            peer: Millis::new(7.0),
            ..game
        };
        let found = game.anarchy().unwrap();
        assert_eq!(
            (found.worst, found.optimum),
            (Millis::new(40.0), Millis::new(35.0))
        );
        assert!((found.price_of_anarchy().unwrap() - 40.0 / 35.0).abs() < 1e-12);
    }

    #[test]
    fn a_copy_with_a_price_is_left_to_nobody() {
        // One block, a replica at 12: too dear for one worker that saves 10, cheap for both together,
        // who save 10 + 9.
        let game = ReplicationGame {
            demand: vec![vec![1.0], vec![1.0]],
            replica: Millis::new(12.0),
            ..two([[0.0; 2]; 2])
        };
        let found = game.anarchy().unwrap();
        assert_eq!(
            (found.worst, found.optimum),
            (Millis::new(20.0), Millis::new(13.0))
        );
    }

    #[test]
    fn a_store_bounds_what_anarchy_can_cost() {
        let game = ReplicationGame {
            peer: Millis::new(7.0),
            store: Some(Millis::new(2.0)),
            ..two([[3.0, 2.0], [3.0, 2.0]])
        };
        // Everybody reads what it does not keep from the store: 2 × 2 each.
        let found = game.anarchy().unwrap();
        assert_eq!(
            (found.worst, found.optimum),
            (Millis::new(8.0), Millis::new(8.0))
        );
    }

    #[test]
    fn with_equal_demand_the_bound_is_reached() {
        let game = ReplicationGame {
            peer: Millis::new(7.0),
            ..two([[3.0, 2.0], [3.0, 2.0]])
        };
        assert_eq!(game.lower_bound(), Millis::new(35.0));
    }

    #[test]
    fn a_game_too_large_to_enumerate_has_no_exact_answer() {
        let game = ReplicationGame {
            demand: vec![vec![1.0; 30]; 2],
            ..two([[0.0; 2]; 2])
        };
        assert_eq!(game.anarchy(), None);
        assert!(game.equilibrium(game.empty()).is_some());
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let refusal = |game: ReplicationGame| game.validate().unwrap_err().to_string();
        let game = two([[3.0, 2.0], [3.0, 2.0]]);
        assert_eq!(game.validate(), Ok(()));
        assert_eq!(
            refusal(ReplicationGame {
                local: Millis::new(5.0),
                ..game.clone()
            }),
            "peer is 1; allowed: at least `local`"
        );
        assert_eq!(
            refusal(two([[f64::NAN, 1.0], [1.0, 1.0]])),
            "demand is NaN; allowed: 0 to 1e9"
        );
        let mut ragged = game;
        ragged.demand[1].pop();
        assert_eq!(
            refusal(ragged),
            "demand is a row of 1; allowed: rows of equal length"
        );
    }

    fn any_game() -> impl Strategy<Value = ReplicationGame> {
        let demand = proptest::collection::vec(proptest::collection::vec(0.0..5.0f64, 3), 1..4);
        (
            demand,
            0usize..3,
            [0.0..4.0f64, 0.0..4.0f64, 0.0..4.0f64],
            0.0..6.0f64,
            any::<bool>(),
        )
            .prop_map(|(demand, room, [local, peer, recompute], replica, store)| {
                let (peer, recompute) = (local + peer, local + peer + recompute);
                ReplicationGame {
                    demand,
                    room,
                    local: Millis::new(local),
                    peer: Millis::new(peer),
                    store: store.then(|| Millis::new((local + recompute) / 2.0)),
                    recompute: Millis::new(recompute),
                    replica: Millis::new(replica),
                }
            })
    }

    proptest! {
        #[test]
        fn equilibria_are_found_and_lie_above_the_optimum_which_lies_above_the_bound(
            game in any_game(),
        ) {
            prop_assert_eq!(game.validate(), Ok(()));
            let found = game.anarchy().unwrap();
            prop_assert!(!less(found.best, found.optimum) && !less(found.worst, found.best));
            prop_assert!(!less(found.optimum, game.lower_bound()));
            let planned = game.social_cost(&game.greedy());
            prop_assert!(!less(planned, found.optimum));
            let reached = game.equilibrium(game.empty()).unwrap();
            let cost = game.social_cost(&reached);
            prop_assert!(!less(found.worst, cost) && !less(cost, found.best));
        }

        #[test]
        fn the_bound_is_the_optimum_where_demand_is_equal(
            mut game in any_game(),
        ) {
            let first = game.demand[0].clone();
            game.demand.fill(first);
            let found = game.anarchy().unwrap();
            let bound = game.lower_bound();
            prop_assert!(!less(bound, found.optimum) && !less(found.optimum, bound));
        }
    }
}
