// SPDX-License-Identifier: Apache-2.0

//! Windows for tests, in whole milliseconds, and their optimum by trying everything.

use proptest::prelude::*;
use regime_core::{Millis, Timestamp, WorkerKey};

use super::{Candidate, Choice};

/// Wait and service on one worker; `None` where it is no candidate.
pub(crate) type Forecasts = Option<(u32, u32)>;

/// A choice of the worker with id `chosen` among those with ids 0, 1, ….
pub(crate) fn choice(at_ms: u64, chosen: u64, row: &[Forecasts], actual: i32) -> Choice {
    let candidate = |(id, forecasts): (u64, &Forecasts)| {
        forecasts.map(|(wait, own)| Candidate {
            worker: WorkerKey::new(id, 0),
            wait: Millis::new(f64::from(wait)),
            own: Millis::new(f64::from(own)),
        })
    };
    Choice {
        decided_at: Timestamp::from_millis(at_ms),
        chosen: WorkerKey::new(chosen, 0),
        candidates: (0..).zip(row).filter_map(candidate).collect(),
        actual: Millis::new(f64::from(actual)),
    }
}

/// Windows of up to so many requests and workers, some decided at the same time, some with workers
/// missing in a row.
pub(crate) fn windows(requests: usize, workers: usize) -> impl Strategy<Value = Vec<Choice>> {
    let forecasts = (proptest::bool::weighted(0.8), 0_u32..50, 1_u32..50);
    (1..=workers).prop_flat_map(move |workers| {
        let row = proptest::collection::vec(forecasts.clone(), workers);
        let request = (0_u64..6, 0..workers, row, 1_i32..200);
        let request = request.prop_map(|(at_ms, chosen, row, actual)| {
            let forecasts = row
                .into_iter()
                .enumerate()
                .map(|(worker, (listed, wait, own))| {
                    (listed || worker == chosen).then_some((wait, own))
                });
            choice(at_ms, chosen as u64, &forecasts.collect::<Vec<_>>(), actual)
        });
        proptest::collection::vec(request, 1..=requests)
    })
}

/// Least sum of completion times, in ms, over all assignments and all orders.
pub(crate) fn cheapest(window: &[Choice]) -> f64 {
    let rows = |worker| {
        window.iter().flat_map(move |choice| {
            let listed = choice
                .candidates
                .iter()
                .filter(move |row| row.worker == worker);
            listed.map(|row| (choice.decided_at, row.wait.get()))
        })
    };
    let wait = |id| {
        let worker = WorkerKey::new(id, 0);
        let first = rows(worker).map(|(at, _)| at).min();
        let at_first = rows(worker).filter(|&(at, _)| Some(at) == first);
        at_first.map(|(_, wait)| wait).fold(f64::INFINITY, f64::min)
    };
    let ids = window
        .iter()
        .flat_map(|choice| &choice.candidates)
        .map(|row| row.worker.id);
    let mut free_at: Vec<f64> = (0..=ids.max().unwrap_or(0)).map(wait).collect();
    let mut waiting: Vec<&Choice> = window.iter().collect();
    append_each(&mut waiting, &mut free_at)
}

/// Serve each waiting request next on each worker, and go on with the rest.
fn append_each(waiting: &mut Vec<&Choice>, free_at: &mut [f64]) -> f64 {
    if waiting.is_empty() {
        return 0.0;
    }
    let mut least = f64::INFINITY;
    for next in 0..waiting.len() {
        let choice = waiting.swap_remove(next);
        for candidate in &choice.candidates {
            let worker = candidate.worker.id as usize;
            let before = free_at[worker];
            free_at[worker] += candidate.own.get();
            least = least.min(free_at[worker] + append_each(waiting, free_at));
            free_at[worker] = before;
        }
        waiting.push(choice);
        let last = waiting.len() - 1;
        waiting.swap(next, last);
    }
    least
}
