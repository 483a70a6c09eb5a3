// SPDX-License-Identifier: Apache-2.0

//! Minimum-cost assignment of a window of requests to workers, with congestion.
//!
//! # Idea
//!
//! A worker gets slower with every request it takes, so a plain cost per request and worker is not
//! enough. Worker j therefore offers slots k = 1, 2, …, and slot k has the price of being the k-th
//! request there. Choosing a slot for each request is then an ordinary assignment problem, which has
//! an exact solution. The assignment that a router really made is priced in the same table, each
//! worker's requests in their best order, so it can never look cheaper than the optimum.
//!
//! # Defaults
//!
//! Costs are rounded to whole microseconds. On integers the solver always ends and both sums are
//! exact, and a microsecond is far below what a latency forecast can resolve. A cost that is not
//! finite, or above [`MAX_COST_MS`], is refused before the solver sees it. A worker offers at most as
//! many slots as there are requests, since no window can fill more. When the requests outnumber the
//! slots, every slot is filled, those requests stay out whose absence makes the rest cheapest, and
//! the assignment has no total: it compares with no other.
//!
//! A seat can be forbidden to a request. The solver then sees a price above every sum of allowed
//! ones, in 128 bits so that it cannot overflow: as many requests as possible get an allowed seat,
//! as cheaply as possible, and one that gets none counts as not placed.
//!
//! # Source
//!
//! Γ_R of the paper, a congestion game whose optimum defines the Price of Anarchy. Solved by the
//! Kuhn–Munkres algorithm of `pathfinding`, which panics with more rows than columns and may loop for
//! ever on infinities. Field reports BR-13 and BR-14.

use std::ops::Range;

use pathfinding::prelude::{Matrix, kuhn_munkres_min};
use regime_core::Millis;

use crate::NoEstimate;

/// Largest magnitude of one cost in ms: about eleven days. Keeps every sum inside the solver far
/// within 64 bits.
pub const MAX_COST_MS: f64 = 1e9;

/// One slot of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Position of the worker in the list of capacities, from 0.
    pub worker: usize,
    /// Place among the requests of that worker, from 1.
    pub slot: usize,
}

/// Frozen prices of one window: every request at every seat, in whole microseconds.
#[derive(Debug, Clone)]
pub struct SlotCosts {
    requests: usize,
    seats: Vec<Seat>,
    /// Columns of each worker in `seats`.
    columns: Vec<Range<usize>>,
    /// Row by row, one row a request; `None` where the seat is forbidden.
    micros: Vec<Option<i64>>,
}

impl SlotCosts {
    /// Price `requests` requests on workers that take at most `capacities[j]` of them each.
    ///
    /// `cost(request, seat)` is in ms and may be negative. It is asked once for every pair. On one
    /// worker it should not fall from slot to slot; where it does, an early slot may stay empty.
    ///
    /// # Errors
    ///
    /// [`NoEstimate::NoRequests`], [`NoEstimate::NoSlots`], or [`NoEstimate::UnusableCost`] at the
    /// first cost that is not finite or exceeds [`MAX_COST_MS`].
    pub fn new(
        requests: usize,
        capacities: &[usize],
        mut cost: impl FnMut(usize, Seat) -> f64,
    ) -> Result<Self, NoEstimate> {
        Self::with_forbidden(requests, capacities, |request, seat| {
            Some(cost(request, seat))
        })
    }

    /// As [`Self::new`], with `None` for a seat that the request cannot take.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_forbidden(
        requests: usize,
        capacities: &[usize],
        mut cost: impl FnMut(usize, Seat) -> Option<f64>,
    ) -> Result<Self, NoEstimate> {
        if requests == 0 {
            return Err(NoEstimate::NoRequests);
        }
        let (mut seats, mut columns) = (Vec::new(), Vec::new());
        for (worker, &capacity) in capacities.iter().enumerate() {
            let first = seats.len();
            seats.extend((1..=capacity.min(requests)).map(|slot| Seat { worker, slot }));
            columns.push(first..seats.len());
        }
        if seats.is_empty() {
            return Err(NoEstimate::NoSlots);
        }
        let mut micros = Vec::with_capacity(requests * seats.len());
        for request in 0..requests {
            for &seat in &seats {
                let unusable = NoEstimate::UnusableCost { request, seat };
                let cost = cost(request, seat).map(|cost| whole_micros(cost).ok_or(unusable));
                micros.push(cost.transpose()?);
            }
        }
        Ok(Self {
            requests,
            seats,
            columns,
            micros,
        })
    }

    /// The cheapest assignment. A request has no seat when the slots, or those allowed to it, are
    /// all taken.
    #[must_use]
    pub fn optimum(&self) -> Assignment {
        let everyone: Vec<usize> = (0..self.requests).collect();
        self.seated(self.place(&everyone, 0..self.seats.len()))
    }

    /// The assignment that gives request i to worker `chosen[i]`, each worker's requests in their
    /// best order. Never cheaper than [`Self::optimum`].
    ///
    /// # Errors
    ///
    /// [`NoEstimate::ChoiceCount`] and [`NoEstimate::OverCapacity`]. A choice of a forbidden seat
    /// shows as [`NoEstimate::Incomplete`] in the total.
    pub fn realised(&self, chosen: &[usize]) -> Result<Assignment, NoEstimate> {
        if chosen.len() != self.requests {
            return Err(NoEstimate::ChoiceCount {
                chosen: chosen.len(),
                requests: self.requests,
            });
        }
        let mut by_worker = vec![Vec::new(); self.columns.len()];
        for (request, &worker) in chosen.iter().enumerate() {
            let of_worker = by_worker.get_mut(worker).ok_or(NoEstimate::OverCapacity {
                worker,
                chosen: chosen.iter().filter(|&&other| other == worker).count(),
                slots: 0,
            })?;
            of_worker.push(request);
        }
        let mut placed = Vec::with_capacity(self.requests);
        for (worker, requests) in by_worker.iter().enumerate() {
            let columns = self.columns[worker].clone();
            if requests.len() > columns.len() {
                return Err(NoEstimate::OverCapacity {
                    worker,
                    chosen: requests.len(),
                    slots: columns.len(),
                });
            }
            placed.extend(self.place(requests, columns));
        }
        Ok(self.seated(placed))
    }

    /// Cheapest pairs of request and column; all requests, or all columns when those are fewer.
    fn place(&self, requests: &[usize], columns: Range<usize>) -> Vec<(usize, usize)> {
        let cost = |row: usize, column: usize| self.cost(requests[row], columns.start + column);
        // The solver refuses more rows than columns, and needs at least one row.
        let pairs: Vec<(usize, usize)> = if requests.is_empty() {
            Vec::new()
        } else if requests.len() <= columns.len() {
            let columns = cheapest_columns(requests.len(), columns.len(), cost);
            columns.into_iter().enumerate().collect()
        } else {
            let rows = cheapest_columns(columns.len(), requests.len(), |c, r| cost(r, c));
            rows.into_iter().enumerate().map(|(c, r)| (r, c)).collect()
        };
        pairs
            .into_iter()
            .map(|(row, column)| (requests[row], columns.start + column))
            .collect()
    }

    fn seated(&self, placed: Vec<(usize, usize)>) -> Assignment {
        let mut seats = vec![None; self.requests];
        let mut micros = 0;
        for (request, column) in placed {
            if let Some(cost) = self.cost(request, column) {
                seats[request] = Some(self.seats[column]);
                micros += cost;
            }
        }
        Assignment {
            seats,
            slots: self.seats.len(),
            placed_total: as_millis(micros),
        }
    }

    fn cost(&self, request: usize, column: usize) -> Option<i64> {
        self.micros[request * self.seats.len() + column]
    }
}

/// Requests in their seats.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    seats: Vec<Option<Seat>>,
    slots: usize,
    placed_total: Millis,
}

impl Assignment {
    /// The seat of each request; `None` for a request that found no free slot allowed to it.
    #[must_use]
    pub fn seats(&self) -> &[Option<Seat>] {
        &self.seats
    }

    /// Sum of the costs of all requests.
    ///
    /// # Errors
    ///
    /// [`NoEstimate::Incomplete`] when some request has no seat: a sum over fewer requests compares
    /// with no other.
    pub fn total(&self) -> Result<Millis, NoEstimate> {
        if self.seats.contains(&None) {
            return Err(NoEstimate::Incomplete {
                requests: self.seats.len(),
                slots: self.slots,
            });
        }
        Ok(self.placed_total)
    }
}

/// Price of a forbidden seat: above every sum of allowed costs over up to 2^38 requests.
const FORBIDDEN: i128 = 1 << 80;

/// The column of each row, at the lowest total. Needs at least one row, and as many columns.
fn cheapest_columns(
    rows: usize,
    columns: usize,
    cost: impl Fn(usize, usize) -> Option<i64>,
) -> Vec<usize> {
    let mut forbidden = false;
    let costs = Matrix::from_fn(rows, columns, |(row, column)| {
        cost(row, column).unwrap_or_else(|| {
            forbidden = true;
            0
        })
    });
    if !forbidden {
        return kuhn_munkres_min(&costs).1;
    }
    let costs = Matrix::from_fn(rows, columns, |(row, column)| {
        cost(row, column).map_or(FORBIDDEN, i128::from)
    });
    kuhn_munkres_min(&costs).1
}

pub(crate) fn whole_micros(millis: f64) -> Option<i64> {
    (-MAX_COST_MS..=MAX_COST_MS)
        .contains(&millis)
        .then(|| (millis * 1e3).round() as i64)
}

pub(crate) fn as_millis(micros: i64) -> Millis {
    Millis::new(micros as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table whose second and later slots cost `congestion` more for each request before them.
    fn table<const J: usize>(
        rows: &[[f64; J]],
        capacity: usize,
        congestion: f64,
    ) -> Result<SlotCosts, NoEstimate> {
        SlotCosts::new(rows.len(), &[capacity; J], |request, seat| {
            rows[request][seat.worker] + congestion * (seat.slot - 1) as f64
        })
    }

    fn workers(assignment: &Assignment) -> Vec<Option<usize>> {
        let seats = assignment.seats().iter();
        seats.map(|seat| seat.map(|seat| seat.worker)).collect()
    }

    const A: usize = 0;
    const B: usize = 1;
    const C: usize = 2;

    /// Field report BR-14: five requests, three workers.
    const FIVE: [[f64; 3]; 5] = [
        [19.0, 21.0, 11.0],
        [8.0, 14.0, 28.0],
        [25.0, 11.0, 2.0],
        [26.0, 24.0, 2.0],
        [17.0, 15.0, 28.0],
    ];

    #[test]
    fn five_requests_on_three_workers_cost_56_at_best() {
        let best = table(&FIVE, 2, 5.0).unwrap().optimum();
        // A takes r1 and r2 (19 + 8 + 5), C takes r3 and r4 (2 + 2 + 5), B takes r5 (15).
        assert_eq!(workers(&best), [A, A, C, C, B].map(Some));
        assert_eq!(best.total(), Ok(Millis::new(56.0)));
    }

    #[test]
    fn selfish_choices_cost_a_quarter_more_than_the_optimum() {
        let costs = table(&FIVE, 2, 5.0).unwrap();
        // C: 11 + 2 + 5, A: 8, B: 24 + 15 + 5.
        let selfish = costs.realised(&[C, A, C, B, B]).unwrap().total().unwrap();
        assert_eq!(selfish, Millis::new(70.0));
        assert_eq!(selfish.ratio(costs.optimum().total().unwrap()), Some(1.25));
    }

    #[test]
    fn with_one_worker_every_choice_is_the_optimum() {
        let costs = table(&[[3.0], [1.0], [2.0]], 3, 4.0).unwrap();
        // 3 + 1 + 2, plus 4 for the second place and 8 for the third.
        assert_eq!(costs.optimum().total(), Ok(Millis::new(18.0)));
        assert_eq!(
            costs.realised(&[A, A, A]).unwrap().total(),
            costs.optimum().total()
        );
    }

    #[test]
    fn the_realised_order_within_a_worker_is_the_best_one() {
        // The request in slot k delays k requests, itself included: short ones take the late slots.
        let own = [1.0, 5.0];
        let costs = SlotCosts::new(2, &[2], |request, seat| own[request] * seat.slot as f64);
        let realised = costs.unwrap().realised(&[A, A]).unwrap();
        // 5 · 1 + 1 · 2, not 1 · 1 + 5 · 2.
        assert_eq!(realised.total(), Ok(Millis::new(7.0)));
        assert_eq!(realised.seats()[0], Some(Seat { worker: A, slot: 2 }));
    }

    #[test]
    fn seven_requests_for_six_slots_leave_the_dearest_out_and_have_no_total() {
        let rows = [1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0].map(|cost| [cost; 3]);
        let best = table(&rows, 2, 5.0).unwrap().optimum();
        let out: Vec<usize> = (0..7).filter(|&i| best.seats()[i].is_none()).collect();
        assert_eq!(out, [3]);
        assert_eq!(
            best.total(),
            Err(NoEstimate::Incomplete {
                requests: 7,
                slots: 6
            })
        );
    }

    #[test]
    fn costs_that_are_all_zero_have_a_zero_optimum() {
        let best = table(&[[0.0; 3]; 5], 2, 0.0).unwrap().optimum();
        assert_eq!(best.total(), Ok(Millis::ZERO));
    }

    #[test]
    fn a_cost_that_is_not_finite_is_named_instead_of_solved() {
        // Field report BR-13, cases a, b and c.
        const INF: f64 = f64::INFINITY;
        let unusable = |request, worker| NoEstimate::UnusableCost {
            request,
            seat: Seat { worker, slot: 1 },
        };
        assert_eq!(
            table(&[[INF, INF], [INF, INF]], 1, 0.0).unwrap_err(),
            unusable(0, A)
        );
        assert_eq!(
            table(&[[7.0, INF], [4.0, INF]], 1, 0.0).unwrap_err(),
            unusable(0, B)
        );
        let one_nan = [[1.0, 2.0, 3.0], [4.0, 5.0, f64::NAN], [7.0, 8.0, 9.0]];
        assert_eq!(table(&one_nan, 1, 0.0).unwrap_err(), unusable(1, C));
        assert_eq!(
            unusable(1, C).to_string(),
            "cost of request 1 on worker 2, slot 1 is unusable; \
             allowed is a finite number within ±1000000000 ms"
        );
    }

    #[test]
    fn an_empty_window_and_an_empty_fleet_have_their_own_reasons() {
        // Field report BR-13, case d.
        assert_eq!(table::<3>(&[], 2, 0.0).unwrap_err(), NoEstimate::NoRequests);
        assert_eq!(
            table::<0>(&[[]; 2], 2, 0.0).unwrap_err(),
            NoEstimate::NoSlots
        );
        assert_eq!(
            table(&[[1.0; 3]; 2], 0, 0.0).unwrap_err(),
            NoEstimate::NoSlots
        );
    }

    #[test]
    fn choices_that_do_not_fit_the_table_are_refused() {
        let costs = table(&FIVE, 2, 5.0).unwrap();
        assert_eq!(
            costs.realised(&[A, B]).unwrap_err(),
            NoEstimate::ChoiceCount {
                chosen: 2,
                requests: 5
            }
        );
        assert_eq!(
            costs.realised(&[A, A, A, B, B]).unwrap_err(),
            NoEstimate::OverCapacity {
                worker: A,
                chosen: 3,
                slots: 2
            }
        );
        assert_eq!(
            costs.realised(&[A, 7, B, 7, B]).unwrap_err(),
            NoEstimate::OverCapacity {
                worker: 7,
                chosen: 2,
                slots: 0
            }
        );
    }

    #[test]
    fn the_largest_costs_do_not_overflow_the_solver() {
        let costs = SlotCosts::new(40, &[40; 2], |request, seat| {
            if (request + seat.slot) % 2 == 0 {
                MAX_COST_MS
            } else {
                -MAX_COST_MS
            }
        });
        let best = costs.unwrap().optimum();
        assert_eq!(best.total(), Ok(Millis::new(-40.0 * MAX_COST_MS)));
    }

    #[test]
    fn a_forbidden_seat_is_never_taken_however_dear_the_others_are() {
        let costs = SlotCosts::with_forbidden(2, &[1, 1], |request, seat| {
            let dear = if seat.worker == B { MAX_COST_MS } else { 1.0 };
            (request == 0 || seat.worker == B).then_some(dear)
        });
        let costs = costs.unwrap();
        assert_eq!(workers(&costs.optimum()), [A, B].map(Some));
        assert_eq!(costs.optimum().total(), Ok(Millis::new(1.0 + MAX_COST_MS)));
        // A choice of it is not placed, so it has no total either.
        assert_eq!(workers(&costs.realised(&[B, A]).unwrap()), [Some(B), None]);
    }

    #[test]
    fn a_request_whose_seats_are_all_forbidden_is_not_placed() {
        let costs = SlotCosts::with_forbidden(2, &[2], |request, _| (request == 0).then_some(3.0));
        let best = costs.unwrap().optimum();
        assert_eq!(workers(&best), [Some(A), None]);
        let (requests, slots) = (2, 2);
        assert_eq!(
            best.total(),
            Err(NoEstimate::Incomplete { requests, slots })
        );
    }

    /// Most requests placed, then least cost, by trying them all; `None` is forbidden.
    fn best_by_trial(rows: &[[Option<u32>; 3]], taken: &mut [u32; 3], capacity: u32) -> (u32, u32) {
        let Some((row, rest)) = rows.split_first() else {
            return (0, 0);
        };
        let (out, cost) = best_by_trial(rest, taken, capacity);
        let mut best = (out + 1, cost);
        for worker in 0..3 {
            let Some(price) = row[worker].filter(|_| taken[worker] < capacity) else {
                continue;
            };
            let here = price + 5 * taken[worker];
            taken[worker] += 1;
            let (out, cost) = best_by_trial(rest, taken, capacity);
            best = best.min((out, here + cost));
            taken[worker] -= 1;
        }
        best
    }

    /// Cheapest complete placement by trying them all, in units of the table.
    fn brute_force(rows: &[[u32; 3]], taken: &mut [u32; 3], congestion: u32) -> u32 {
        let Some((row, rest)) = rows.split_first() else {
            return 0;
        };
        (0..3)
            .map(|worker| {
                let here = row[worker] + congestion * taken[worker];
                taken[worker] += 1;
                let total = here + brute_force(rest, taken, congestion);
                taken[worker] -= 1;
                total
            })
            .min()
            .unwrap()
    }

    proptest! {
        #[test]
        fn the_optimum_matches_trying_every_placement(
            rows in proptest::collection::vec([0u32..30, 0u32..30, 0u32..30], 1..6),
            congestion in 0u32..10,
        ) {
            let prices: Vec<[f64; 3]> = rows.iter().map(|row| row.map(f64::from)).collect();
            let costs = table(&prices, rows.len(), f64::from(congestion)).unwrap();
            let cheapest = brute_force(&rows, &mut [0; 3], congestion);
            prop_assert_eq!(costs.optimum().total(), Ok(Millis::new(f64::from(cheapest))));
        }

        #[test]
        fn forbidden_seats_and_full_workers_match_trying_every_placement(
            rows in proptest::collection::vec(proptest::array::uniform3(
                proptest::option::weighted(0.6, 0_u32..30)), 1..6),
            capacity in 1_u32..4,
        ) {
            let costs = SlotCosts::with_forbidden(rows.len(), &[capacity as usize; 3], |request, seat| {
                Some(f64::from(rows[request][seat.worker]? + 5 * (seat.slot as u32 - 1)))
            });
            let best = costs.unwrap().optimum();
            let out = best.seats().iter().filter(|seat| seat.is_none()).count() as u32;
            let cost = best.placed_total.get() as u32;
            prop_assert_eq!((out, cost), best_by_trial(&rows, &mut [0; 3], capacity));
        }

        #[test]
        fn no_choice_is_cheaper_than_the_optimum(
            (chosen, prices) in (1usize..8).prop_flat_map(|n| (
                proptest::collection::vec(0usize..3, n),
                proptest::collection::vec(-50.0..1000.0, n * 3 * n),
            )),
        ) {
            let n = chosen.len();
            let costs = SlotCosts::new(n, &[n; 3], |request, seat| {
                prices[(request * 3 + seat.worker) * n + seat.slot - 1]
            }).unwrap();
            let realised = costs.realised(&chosen).unwrap();
            prop_assert_eq!(workers(&realised), chosen.into_iter().map(Some).collect::<Vec<_>>());
            prop_assert!(realised.total().unwrap() >= costs.optimum().total().unwrap());
        }
    }
}
