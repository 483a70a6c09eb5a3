// SPDX-License-Identifier: Apache-2.0

//! The workers of a pool as its router knows them.
//!
//! Dynamo hands candidates to a policy in the order of a `std` hash map, which differs from process to
//! process and cannot be chosen. A policy that breaks ties by row, as Dynamo's own do, would make two
//! runs differ (field report BR-17). So the lab makes the order the same every time:
//!
//! - up to six workers: the map is rebuilt until it happens to iterate in order, 720 tries at most on
//!   average;
//! - more: the pool is listed as one worker instance with as many data-parallel ranks, which Dynamo
//!   always lists in order. State is keyed by (worker, rank) everywhere in Dynamo and in this project,
//!   so nothing else changes; a policy that keys by the worker id alone sees one worker, as it would
//!   with real data-parallel ranks.

use std::collections::HashMap;

use dynamo_kv_router::protocols::{WorkerConfigLike, WorkerId, WorkerWithDpRank};

/// Largest pool whose workers are listed as instances of their own.
const MAX_INSTANCES: usize = 6;

/// What a worker tells the router about itself.
#[derive(Debug, Clone, Copy)]
pub struct WorkerConfig {
    ranks: u32,
    max_num_batched_tokens: u64,
    total_kv_blocks: u64,
}

impl WorkerConfigLike for WorkerConfig {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        self.ranks
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        Some(self.max_num_batched_tokens)
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(self.total_kv_blocks)
    }
}

/// One rank of one simulated worker, by position in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub(crate) worker: usize,
    pub(crate) rank: u32,
}

pub(super) struct Roster {
    first_id: WorkerId,
    /// Ranks of one simulated worker.
    ranks: u32,
    workers: usize,
    listed: HashMap<WorkerId, WorkerConfig>,
}

/// Order in which workers are listed to the router. It must not change any result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Listing {
    /// First worker first.
    #[default]
    Forward,
    /// Last worker first.
    Reverse,
}

impl Roster {
    /// `workers` of `ranks` each; ids count up from `first_id`.
    pub(super) fn new(
        first_id: WorkerId,
        workers: usize,
        ranks: u32,
        max_num_batched_tokens: u64,
        total_kv_blocks: u64,
        listing: Listing,
    ) -> Self {
        let config = |ranks| WorkerConfig {
            ranks,
            max_num_batched_tokens,
            total_kv_blocks,
        };
        let listed = if workers > MAX_INSTANCES {
            HashMap::from([(first_id, config(workers as u32 * ranks))])
        } else {
            let ids = first_id..first_id + workers as u64;
            let mut ids: Vec<_> = ids.collect();
            if listing == Listing::Reverse {
                ids.reverse();
            }
            loop {
                let map: HashMap<_, _> = ids.iter().map(|&id| (id, config(ranks))).collect();
                if map.keys().is_sorted() {
                    break map;
                }
            }
        };
        Self {
            first_id,
            ranks,
            workers,
            listed,
        }
    }

    /// What the policy gets.
    pub(super) const fn listed(&self) -> &HashMap<WorkerId, WorkerConfig> {
        &self.listed
    }

    /// The worker that the router calls by this name.
    pub(super) fn seat(&self, worker: WorkerWithDpRank) -> Option<Seat> {
        let id = usize::try_from(worker.worker_id.checked_sub(self.first_id)?).ok()?;
        let seat = if self.workers > MAX_INSTANCES {
            Seat {
                worker: (worker.dp_rank / self.ranks) as usize,
                rank: worker.dp_rank % self.ranks,
            }
        } else {
            Seat {
                worker: id,
                rank: worker.dp_rank,
            }
        };
        (id < self.workers && seat.worker < self.workers && seat.rank < self.ranks).then_some(seat)
    }

    /// The name by which the router calls this worker.
    pub(super) fn name(&self, seat: Seat) -> WorkerWithDpRank {
        if self.workers > MAX_INSTANCES {
            WorkerWithDpRank::new(self.first_id, seat.worker as u32 * self.ranks + seat.rank)
        } else {
            WorkerWithDpRank::new(self.first_id + seat.worker as u64, seat.rank)
        }
    }

    /// Every name, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = WorkerWithDpRank> + '_ {
        (0..self.workers).flat_map(move |worker| {
            (0..self.ranks).map(move |rank| self.name(Seat { worker, rank }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(workers: usize, ranks: u32, listing: Listing) -> Roster {
        Roster::new(10, workers, ranks, 8_192, 100, listing)
    }

    #[test]
    fn rows_come_in_order_however_workers_are_listed() {
        for listing in [Listing::Forward, Listing::Reverse] {
            let order: Vec<_> = roster(6, 1, listing).listed().keys().copied().collect();
            assert_eq!(order, [10, 11, 12, 13, 14, 15]);
        }
    }

    #[test]
    fn names_and_seats_match_in_small_and_large_pools() {
        for (workers, ranks) in [(1, 1), (4, 2), (6, 1), (7, 1), (32, 4)] {
            let roster = roster(workers, ranks, Listing::Forward);
            let mut names = Vec::new();
            for worker in 0..workers {
                for rank in 0..ranks {
                    let seat = Seat { worker, rank };
                    assert_eq!(roster.seat(roster.name(seat)), Some(seat));
                    names.push(roster.name(seat));
                }
            }
            assert!(names.is_sorted());
            assert_eq!(names, roster.names().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_stranger_has_no_seat() {
        for workers in [2, 9] {
            let roster = roster(workers, 1, Listing::Forward);
            for (id, rank) in [(9, 0), (19, 0), (10, 9)] {
                assert_eq!(roster.seat(WorkerWithDpRank::new(id, rank)), None);
            }
        }
    }
}
