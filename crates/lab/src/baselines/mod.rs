// SPDX-License-Identifier: Apache-2.0

//! Rules to compare with that are not published as Dynamo plugins.
//!
//! A Dynamo policy sees overlaps, never the prompt. Rules that hash the prompt need its blocks, so these
//! baselines live in the lab and see what a Dynamo policy sees, in the same virtual time and behind the
//! same queue, plus the identity of the prompt's blocks. They are implemented from their papers:
//!
//! | name | rule | source |
//! |---|---|---|
//! | `round-robin` | workers in turn | |
//! | `random` | uniform | |
//! | `least-loaded` | fewest active requests, ties at random | |
//! | `power-of-two` | the less loaded of two drawn workers | Mitzenmacher, *The power of two choices in randomized load balancing*, 2001 |
//! | `lmetric` | least product of pending prefill tokens and batch size | arXiv 2603.15202 |
//! | `bounded-load-hash` | consistent hashing of the prompt's prefix with bounded loads | Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350 |
//! | `dualmap` | two hashed candidates for each prefix | arXiv 2602.06502 |
//!
//! A decode pool receives its KV blocks from the prefill worker, so affinity means nothing there: the two
//! hashing rules choose the least loaded decode worker.

mod bounded_load_hash;
mod dualmap;
mod lmetric;
mod load;

use dynamo_kv_router::WorkerType;
use dynamo_kv_router::protocols::WorkerWithDpRank;
use rand_pcg::Pcg64Mcg;

/// One request as a baseline sees it.
#[derive(Debug, Clone, Copy)]
pub struct BaselineRequest<'a> {
    /// Identity of each full block of the prompt in its context: two prompts share a prefix as far as
    /// these agree.
    pub block_hashes: &'a [u64],
    /// Prompt length, tokens.
    pub prompt_tokens: usize,
    /// Tokens in a block.
    pub block_size: usize,
}

/// One candidate; rows are ordered by worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BaselineRow {
    /// The worker.
    pub worker: WorkerWithDpRank,
    /// Requests placed there that have not ended.
    pub active_requests: usize,
    /// Prompt tokens placed there that have not been prefilled.
    pub active_prefill_tokens: usize,
    /// KV blocks in use there, this request included.
    pub decode_blocks: usize,
    /// Blocks of this prompt in the worker's device memory.
    pub device_overlap_blocks: usize,
}

impl BaselineRow {
    /// Prompt tokens that this worker would have to compute.
    fn uncached_tokens(&self, request: &BaselineRequest<'_>) -> usize {
        request
            .prompt_tokens
            .saturating_sub(self.device_overlap_blocks * request.block_size)
    }
}

/// A routing rule.
pub trait Baseline: Send {
    /// Index of the chosen row; `rows` is not empty.
    fn choose(
        &mut self,
        request: &BaselineRequest<'_>,
        rows: &[BaselineRow],
        rng: &mut Pcg64Mcg,
    ) -> usize;
}

/// Names of all baselines.
pub const BASELINES: [&str; 7] = [
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "lmetric",
    "bounded-load-hash",
    "dualmap",
];

/// The baseline `name` for a pool of `role`; `None` when there is no such baseline.
#[must_use]
pub fn baseline(name: &str, role: WorkerType) -> Option<Box<dyn Baseline>> {
    let decode = role == WorkerType::Decode;
    Some(match name {
        "round-robin" => Box::new(load::RoundRobin::default()),
        "random" => Box::new(load::Random),
        "power-of-two" => Box::new(load::PowerOfTwo),
        "lmetric" => Box::new(lmetric::Lmetric),
        "least-loaded" => Box::new(load::LeastLoaded),
        "bounded-load-hash" | "dualmap" if decode => Box::new(load::LeastLoaded),
        "bounded-load-hash" => Box::new(bounded_load_hash::BoundedLoadHash::default()),
        "dualmap" => Box::new(dualmap::DualMap::default()),
        _ => return None,
    })
}

/// A row drawn uniformly from those of least `cost`.
fn argmin<C: PartialOrd + Copy>(
    rows: &[BaselineRow],
    cost: impl Fn(&BaselineRow) -> C,
    rng: &mut Pcg64Mcg,
) -> usize {
    let mut best: Vec<usize> = Vec::with_capacity(rows.len());
    let mut least = None;
    for (index, row) in rows.iter().enumerate() {
        let cost = cost(row);
        if least.is_none_or(|least| cost < least) {
            least = Some(cost);
            best.clear();
            best.push(index);
        } else if least == Some(cost) {
            best.push(index);
        }
    }
    best[rand::Rng::random_range(rng, 0..best.len())]
}

/// Identity of the first `blocks` blocks of a prompt; shorter prompts count whole.
fn prefix_key(request: &BaselineRequest<'_>, blocks: usize) -> u64 {
    let last = request.block_hashes.len().min(blocks);
    last.checked_sub(1)
        .map_or(request.prompt_tokens as u64, |last| {
            request.block_hashes[last]
        })
}

/// A well-spread hash of `key` under `salt` (the finaliser of splitmix64).
const fn mix(key: u64, salt: u64) -> u64 {
    let mut z = key ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rand::SeedableRng;

    pub(crate) fn rng() -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(1)
    }

    /// Workers with these active requests.
    pub(crate) fn rows(active: &[usize]) -> Vec<BaselineRow> {
        active
            .iter()
            .enumerate()
            .map(|(id, &active_requests)| BaselineRow {
                worker: WorkerWithDpRank::new(id as u64, 0),
                active_requests,
                active_prefill_tokens: 0,
                decode_blocks: 0,
                device_overlap_blocks: 0,
            })
            .collect()
    }

    pub(crate) fn request(block_hashes: &[u64]) -> BaselineRequest<'_> {
        BaselineRequest {
            block_hashes,
            prompt_tokens: block_hashes.len() * 16,
            block_size: 16,
        }
    }

    #[test]
    fn every_name_is_a_baseline_for_every_role() {
        for name in BASELINES {
            for role in [
                WorkerType::Aggregated,
                WorkerType::Prefill,
                WorkerType::Decode,
            ] {
                let mut rule = baseline(name, role).unwrap();
                let hashes = [1, 2, 3];
                assert!(rule.choose(&request(&hashes), &rows(&[3, 1, 2]), &mut rng()) < 3);
            }
        }
        assert!(baseline("nosuch", WorkerType::Aggregated).is_none());
    }

    #[test]
    fn ties_are_drawn_uniformly() {
        let (rows, mut rng) = (rows(&[1, 0, 0]), rng());
        let second = (0..1_000)
            .filter(|_| argmin(&rows, |row| row.active_requests, &mut rng) == 1)
            .count();
        assert!((430..=570).contains(&second), "{second}");
    }

    #[test]
    fn the_prefix_key_is_the_block_where_the_prefix_ends() {
        assert_eq!(prefix_key(&request(&[7, 8, 9]), 2), 8);
        assert_eq!(prefix_key(&request(&[7, 8, 9]), 8), 9);
        let short = BaselineRequest {
            prompt_tokens: 5,
            ..request(&[])
        };
        assert_eq!(prefix_key(&short, 8), 5);
    }
}
