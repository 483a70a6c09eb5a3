// SPDX-License-Identifier: Apache-2.0

//! The frozen game of one window, in whole microseconds.
//!
//! Requests are numbered in the order of their decisions and workers in the order of their keys, so
//! records given in another order make the same game.

use std::collections::BTreeMap;
use std::ops::Range;

use regime_core::{Millis, Timestamp, WorkerKey};

use super::{Candidate, Choice};
use crate::assignment::{MAX_COST_MS, SlotCosts, as_millis, whole_micros};
use crate::{Forecast, NoEstimate};

/// Largest forecast of one wait or one service: an hour, in which nobody trusts a forecast any more.
pub const MAX_FORECAST: Millis = Millis::new(3_600_000.0);

/// Most requests that [`Game::optimum`] takes at once: with one more hour for the wait, the last place
/// of the longest service stays below [`MAX_COST_MS`].
pub(super) const MAX_SOLVED: usize = 250;

/// Waits, services and choices of one window.
#[derive(Debug)]
pub(super) struct Game {
    /// Wait on each worker.
    waits: Vec<i64>,
    /// Service row by row, one row a request; `None` where the worker is no candidate.
    own: Vec<Option<i64>>,
    /// The worker that the router gave each request to.
    chosen: Vec<usize>,
    /// Sum over the requests.
    actual: i64,
}

impl Game {
    /// Check a window and freeze it.
    pub(super) fn freeze(window: &[Choice]) -> Result<Self, NoEstimate> {
        if window.is_empty() {
            return Err(NoEstimate::NoRequests);
        }
        let mut order: Vec<usize> = (0..window.len()).collect();
        order.sort_by_key(|&request| window[request].decided_at);

        let first_waits = first_waits(window)?;
        let workers: BTreeMap<WorkerKey, usize> = first_waits.keys().copied().zip(0..).collect();
        let mut own = Vec::with_capacity(window.len() * workers.len());
        let (mut chosen, mut actual) = (Vec::with_capacity(window.len()), 0_i64);
        for request in order {
            let choice = &window[request];
            let mut row = vec![None; workers.len()];
            for candidate in &choice.candidates {
                let cell = &mut row[workers[&candidate.worker]];
                if cell.replace(own_micros(request, candidate)?).is_some() {
                    let worker = candidate.worker;
                    return Err(NoEstimate::CandidateTwice { request, worker });
                }
            }
            let worker = workers.get(&choice.chosen).copied();
            let worker = worker.filter(|&worker| row[worker].is_some());
            chosen.push(worker.ok_or(NoEstimate::ChosenNoCandidate {
                request,
                worker: choice.chosen,
            })?);
            own.extend(row);
            actual = actual.saturating_add(actual_micros(request, choice)?);
        }
        Ok(Self {
            waits: first_waits.into_values().map(|(_, wait)| wait).collect(),
            own,
            chosen,
            actual,
        })
    }

    pub(super) fn requests(&self) -> usize {
        self.chosen.len()
    }

    pub(super) fn workers(&self) -> usize {
        self.waits.len()
    }

    /// What the requests really took.
    pub(super) fn actual(&self) -> i64 {
        self.actual
    }

    /// Each request on its cheapest worker, idle.
    pub(super) fn alone(&self) -> i64 {
        let cheapest = (0..self.requests()).map(|request| self.cheapest_own(request));
        cheapest.fold(0, i64::saturating_add)
    }

    /// The price of the router's choice.
    pub(super) fn chosen(&self) -> i64 {
        self.price(self.chosen.iter().copied().enumerate())
    }

    /// The worker of each request of `batch` in the cheapest assignment of these alone, at most
    /// [`MAX_SOLVED`].
    pub(super) fn optimum(&self, batch: Range<usize>) -> Result<Vec<usize>, NoEstimate> {
        let capacities = vec![batch.len(); self.workers()];
        let costs = SlotCosts::with_forbidden(batch.len(), &capacities, |position, seat| {
            let micros = self.seat(batch.start + position, seat.worker, seat.slot)?;
            Some(as_millis(micros).get())
        })?;
        let best = costs.optimum();
        best.total()?;
        Ok(best
            .seats()
            .iter()
            .flatten()
            .map(|seat| seat.worker)
            .collect())
    }

    /// Sum of the completion times when each request goes to its worker, the shortest first on each:
    /// the best order, since the k-th from the last is counted k times.
    pub(super) fn price(&self, placed: impl IntoIterator<Item = (usize, usize)>) -> i64 {
        let mut queues = vec![Vec::new(); self.workers()];
        for (request, worker) in placed {
            queues[worker].extend(self.own(request, worker));
        }
        let mut total = 0_i64;
        for (mut queue, &wait) in queues.into_iter().zip(&self.waits) {
            queue.sort_unstable();
            let mut completion = wait;
            for own in queue {
                completion = completion.saturating_add(own);
                total = total.saturating_add(completion);
            }
        }
        total
    }

    /// The price of one request in the k-th place from the last; `None` where it cannot go.
    pub(super) fn seat(&self, request: usize, worker: usize, k: usize) -> Option<i64> {
        let own = self.own(request, worker)?;
        Some(self.waits[worker].saturating_add(own.saturating_mul(k as i64)))
    }

    /// The shortest service of a request over its candidates.
    pub(super) fn cheapest_own(&self, request: usize) -> i64 {
        let row = (0..self.workers()).filter_map(|worker| self.own(request, worker));
        row.min().unwrap_or(0)
    }

    /// The shortest wait on any worker.
    pub(super) fn lowest_wait(&self) -> i64 {
        self.waits.iter().copied().min().unwrap_or(0)
    }

    fn own(&self, request: usize, worker: usize) -> Option<i64> {
        self.own[request * self.workers() + worker]
    }
}

/// The wait on each worker in the first row that names it; the lowest of several at the same time.
fn first_waits(window: &[Choice]) -> Result<BTreeMap<WorkerKey, (Timestamp, i64)>, NoEstimate> {
    let mut first_waits = BTreeMap::new();
    for (request, choice) in window.iter().enumerate() {
        for candidate in &choice.candidates {
            let seen = (choice.decided_at, wait_micros(request, candidate)?);
            let first = first_waits.entry(candidate.worker).or_insert(seen);
            *first = seen.min(*first);
        }
    }
    Ok(first_waits)
}

fn wait_micros(request: usize, candidate: &Candidate) -> Result<i64, NoEstimate> {
    within(candidate.wait, 0, MAX_FORECAST).ok_or(NoEstimate::UnusableForecast {
        request,
        worker: candidate.worker,
        forecast: Forecast::Wait,
        value: candidate.wait,
    })
}

fn own_micros(request: usize, candidate: &Candidate) -> Result<i64, NoEstimate> {
    within(candidate.own, 1, MAX_FORECAST).ok_or(NoEstimate::UnusableForecast {
        request,
        worker: candidate.worker,
        forecast: Forecast::Own,
        value: candidate.own,
    })
}

fn actual_micros(request: usize, choice: &Choice) -> Result<i64, NoEstimate> {
    within(choice.actual, 0, Millis::new(MAX_COST_MS)).ok_or(NoEstimate::UnusableActual {
        request,
        value: choice.actual,
    })
}

/// `value` in whole microseconds if these are at least `least`, and the value is at most `most`.
fn within(value: Millis, least: i64, most: Millis) -> Option<i64> {
    let micros = whole_micros(value.get())?;
    (micros >= least && value <= most).then_some(micros)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::windows;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_shortest_first_is_the_order_that_the_solver_finds(window in windows(8, 3)) {
            let game = Game::freeze(&window).unwrap();
            let capacities = vec![window.len(); game.workers()];
            let costs = SlotCosts::with_forbidden(window.len(), &capacities, |request, seat| {
                Some(as_millis(game.seat(request, seat.worker, seat.slot)?).get())
            });
            let realised = costs.unwrap().realised(&game.chosen).unwrap();
            prop_assert_eq!(realised.total(), Ok(as_millis(game.chosen())));
        }
    }
}
