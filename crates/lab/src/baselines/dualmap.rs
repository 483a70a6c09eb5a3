// SPDX-License-Identifier: Apache-2.0

//! DualMap: two candidates for each prefix, and the better one takes the request.
//!
//! Two independent hashes of the prompt's prefix name two workers. Equal prefixes always meet the same
//! two, which keeps caches warm, and different prefixes spread as with two choices. Between the two the
//! one that must compute fewer tokens wins while its backlog still lets the request meet its TTFT
//! target; otherwise the one with the smaller backlog. When both are past the target the prefix is a
//! hot spot, and the least backlog of the whole pool takes it.
//!
//! The TTFT target of 2 s is written as the prefill tokens a worker computes in it, 65,536, near what
//! the shipped tables give. The paper also moves requests that already wait on an overloaded worker;
//! Dynamo's traits place a request once, so choosing outside the two stands in for that.
//!
//! Source: Yuan et al., *DualMap*, arXiv 2602.06502.

use rand_pcg::Pcg64Mcg;

use super::{Baseline, BaselineRequest, BaselineRow, argmin, mix, prefix_key};

const PREFIX_TOKENS: usize = 128;

#[derive(Debug)]
pub(super) struct DualMap {
    /// Backlog within which the TTFT target is met, prefill tokens.
    target_tokens: usize,
}

impl Default for DualMap {
    fn default() -> Self {
        Self {
            target_tokens: 65_536,
        }
    }
}

impl Baseline for DualMap {
    fn choose(
        &mut self,
        request: &BaselineRequest<'_>,
        rows: &[BaselineRow],
        rng: &mut Pcg64Mcg,
    ) -> usize {
        let backlog = |row: &BaselineRow| row.active_prefill_tokens + row.uncached_tokens(request);
        let candidates = candidates(request, rows);
        let [first, second] = candidates.map(|index| &rows[index]);
        let key = |row: &BaselineRow| {
            (
                row.uncached_tokens(request),
                backlog(row),
                row.active_requests,
            )
        };
        let affine = usize::from(key(second) < key(first));
        if backlog(&rows[candidates[affine]]) <= self.target_tokens {
            return candidates[affine];
        }
        let idle = usize::from(backlog(second) < backlog(first));
        if backlog(&rows[candidates[idle]]) <= self.target_tokens {
            return candidates[idle];
        }
        argmin(rows, |row| (backlog(row), row.active_requests), rng)
    }
}

/// Two different workers for a prefix; the same one twice in a pool of one.
fn candidates(request: &BaselineRequest<'_>, rows: &[BaselineRow]) -> [usize; 2] {
    let prefix = prefix_key(request, PREFIX_TOKENS / request.block_size.max(1));
    let weight = |index: &usize, salt: u64| {
        let worker = rows[*index].worker;
        mix(
            prefix,
            mix(worker.worker_id, u64::from(worker.dp_rank)) ^ salt,
        )
    };
    // Rendezvous hashing: the highest weight wins, so a worker that leaves moves only its own prefixes.
    let first = (0..rows.len())
        .max_by_key(|index| weight(index, 1))
        .unwrap_or(0);
    let second = (0..rows.len())
        .filter(|&index| index != first)
        .max_by_key(|index| weight(index, 2))
        .unwrap_or(first);
    [first, second]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, rng, rows};
    use super::*;

    #[test]
    fn a_prefix_always_has_the_same_two_candidates() {
        let rows = rows(&[0; 8]);
        let [first, second] = candidates(&request(&[42]), &rows);
        assert_ne!(first, second);
        for _ in 0..10 {
            let chosen = DualMap::default().choose(&request(&[42]), &rows, &mut rng());
            assert!(chosen == first || chosen == second);
        }
    }

    #[test]
    fn the_cached_candidate_wins_within_the_target_and_the_idle_one_beyond() {
        let mut rows = rows(&[0; 4]);
        let [first, second] = candidates(&request(&[42]), &rows);
        rows[second].device_overlap_blocks = 1;
        rows[second].active_prefill_tokens = 65_000;
        let choose = |rows: &[_]| DualMap::default().choose(&request(&[42]), rows, &mut rng());
        assert_eq!(choose(&rows), second);
        rows[second].active_prefill_tokens = 66_000;
        assert_eq!(choose(&rows), first);
    }

    #[test]
    fn a_hot_prefix_leaves_its_candidates() {
        let mut rows = rows(&[0; 4]);
        let hot = candidates(&request(&[42]), &rows);
        for index in hot {
            rows[index].active_prefill_tokens = 100_000;
        }
        let chosen = DualMap::default().choose(&request(&[42]), &rows, &mut rng());
        assert!(!hot.contains(&chosen));
    }

    #[test]
    fn a_pool_of_one_works() {
        assert_eq!(
            DualMap::default().choose(&request(&[42]), &rows(&[3]), &mut rng()),
            0
        );
    }
}
