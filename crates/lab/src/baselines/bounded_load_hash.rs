// SPDX-License-Identifier: Apache-2.0

//! Consistent hashing with bounded loads on the prompt's prefix.
//!
//! Each worker owns points on a ring. The prefix of the prompt is hashed onto the ring, and the first
//! worker clockwise that still has room takes the request. Room is the mean load times 1 + ε: equal
//! prefixes meet on one worker until it is ε fuller than the mean, and then spill to the next one on the
//! ring, always the same for the same prefix. A worker that joins or leaves moves only its own keys.
//!
//! ε = 0.25 and hashing only the first tokens of a prompt are what serving systems that ship this rule
//! use; 128 points a worker keep the shares of the ring within about 10 % of each other; 128 tokens are
//! enough to tell system prompts apart.
//!
//! Source: Mirrokni, Thorup, Zadimoghaddam, *Consistent Hashing with Bounded Loads*, arXiv 1608.01350.

use dynamo_kv_router::protocols::WorkerWithDpRank;
use rand_pcg::Pcg64Mcg;

use super::{Baseline, BaselineRequest, BaselineRow, mix, prefix_key};

const POINTS: u64 = 128;
const EPSILON: f64 = 0.25;
const PREFIX_TOKENS: usize = 128;

#[derive(Debug, Default)]
pub(super) struct BoundedLoadHash {
    /// (position, worker), by position; for the candidates of the last request.
    ring: Vec<(u64, WorkerWithDpRank)>,
    members: Vec<WorkerWithDpRank>,
}

impl BoundedLoadHash {
    fn build(&mut self, rows: &[BaselineRow]) {
        if self
            .members
            .iter()
            .copied()
            .eq(rows.iter().map(|row| row.worker))
        {
            return;
        }
        self.members = rows.iter().map(|row| row.worker).collect();
        self.ring = self
            .members
            .iter()
            .flat_map(|&worker| {
                let identity = mix(worker.worker_id, u64::from(worker.dp_rank));
                (0..POINTS).map(move |point| (mix(identity, point + 1), worker))
            })
            .collect();
        self.ring.sort_unstable();
    }
}

impl Baseline for BoundedLoadHash {
    fn choose(
        &mut self,
        request: &BaselineRequest<'_>,
        rows: &[BaselineRow],
        _: &mut Pcg64Mcg,
    ) -> usize {
        self.build(rows);
        let total: usize = rows.iter().map(|row| row.active_requests).sum();
        let mean = (total + 1) as f64 / rows.len() as f64;
        let capacity = (mean * (1.0 + EPSILON)).ceil() as usize;
        let key = mix(
            prefix_key(request, PREFIX_TOKENS / request.block_size.max(1)),
            0,
        );
        let start = self.ring.partition_point(|(position, _)| *position < key);
        let clockwise = self.ring[start..].iter().chain(&self.ring[..start]);
        // Room for everybody is more than what is there, so somebody has some.
        clockwise
            .filter_map(|(_, worker)| rows.iter().position(|row| row.worker == *worker))
            .find(|&index| rows[index].active_requests < capacity)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, rng, rows};
    use super::*;

    fn choose(rule: &mut BoundedLoadHash, hashes: &[u64], active: &[usize]) -> usize {
        rule.choose(&request(hashes), &rows(active), &mut rng())
    }

    #[test]
    fn prompts_with_one_prefix_meet_on_one_worker() {
        let mut rule = BoundedLoadHash::default();
        let prefix: Vec<u64> = (100..108).collect();
        let longer: Vec<u64> = (100..120).collect();
        assert_eq!(
            choose(&mut rule, &prefix, &[0; 4]),
            choose(&mut rule, &longer, &[0; 4])
        );
    }

    #[test]
    fn a_full_worker_spills_to_the_next_on_the_ring() {
        let mut rule = BoundedLoadHash::default();
        let home = choose(&mut rule, &[5], &[0; 4]);
        let mut active = [4; 4];
        // Mean with this request 17 / 4, room for ⌈5.3⌉ = 6.
        active[home] = 5;
        assert_eq!(choose(&mut rule, &[5], &active), home);
        active[home] = 6;
        let spill = choose(&mut rule, &[5], &active);
        assert_ne!(spill, home);
        assert_eq!(choose(&mut rule, &[5], &active), spill);
    }

    #[test]
    fn prefixes_spread_over_the_workers() {
        let mut rule = BoundedLoadHash::default();
        let mut share = [0; 4];
        for key in 0..4_000 {
            share[choose(&mut rule, &[key], &[0; 4])] += 1;
        }
        assert!(
            share.iter().all(|share| (700..=1_300).contains(share)),
            "{share:?}"
        );
    }

    #[test]
    fn a_worker_that_leaves_moves_only_its_own_prefixes() {
        let mut rule = BoundedLoadHash::default();
        for key in 0..200 {
            let before = choose(&mut rule, &[key], &[0; 4]);
            if before != 3 {
                assert_eq!(choose(&mut rule, &[key], &[0; 3]), before);
            }
        }
    }
}
