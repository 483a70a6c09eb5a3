// SPDX-License-Identifier: Apache-2.0

//! Proven bounds of the optimum of a window that is too large to solve. The proofs are in the
//! documentation of [`super`].

use super::game::Game;
use crate::NoEstimate;

/// `low ≤ optimum ≤ high`, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) low: i64,
    pub(super) high: i64,
}

/// Bounds from batches of so many requests, from the seats of the whole window, and from the choice.
pub(super) fn optimum(game: &Game, batch: usize) -> Result<Bounds, NoEstimate> {
    let mut union = Vec::with_capacity(game.requests());
    let mut by_batches = 0_i64;
    for start in (0..game.requests()).step_by(batch) {
        let range = start..game.requests().min(start + batch);
        let best = game.optimum(range.clone())?;
        let placed = range.zip(best);
        by_batches = by_batches.saturating_add(game.price(placed.clone()));
        union.extend(placed);
    }
    let longest_first = longest_first(game);
    let by_union = game.price(union);
    let by_greed = game.price(greedy(game, &longest_first));
    Ok(Bounds {
        low: by_batches.max(by_places(game, &longest_first)),
        high: by_union.min(by_greed).min(game.chosen()),
    })
}

/// The longest request on the first places: J places at each k, each at the lowest wait and service.
fn by_places(game: &Game, longest_first: &[usize]) -> i64 {
    let wait = game.lowest_wait();
    let costs = longest_first.iter().enumerate().map(|(rank, &request)| {
        let k = (rank / game.workers()) as i64 + 1;
        let served = game.cheapest_own(request).saturating_mul(k);
        wait.saturating_add(served)
    });
    costs.fold(0, i64::saturating_add)
}

/// Each request, the longest first, in the cheapest next place.
fn greedy(game: &Game, longest_first: &[usize]) -> Vec<(usize, usize)> {
    let mut taken = vec![0_usize; game.workers()];
    let mut placed = Vec::with_capacity(longest_first.len());
    for &request in longest_first {
        let seats = (0..game.workers())
            .filter_map(|worker| Some((game.seat(request, worker, taken[worker] + 1)?, worker)));
        if let Some((_, worker)) = seats.min() {
            taken[worker] += 1;
            placed.push((request, worker));
        }
    }
    placed
}

fn longest_first(game: &Game) -> Vec<usize> {
    let mut requests: Vec<usize> = (0..game.requests()).collect();
    requests.sort_by_key(|&request| std::cmp::Reverse(game.cheapest_own(request)));
    requests
}
