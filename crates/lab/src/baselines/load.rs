// SPDX-License-Identifier: Apache-2.0

//! Rules that look at nothing or at the number of active requests.
//!
//! Power of two choices draws two different workers and takes the less loaded one: nearly as even as
//! looking at all of them, and safe against herding on stale counts (Mitzenmacher 2001).

use rand::Rng;
use rand_pcg::Pcg64Mcg;

use super::{Baseline, BaselineRequest, BaselineRow, argmin};

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl Baseline for RoundRobin {
    fn choose(&mut self, _: &BaselineRequest<'_>, rows: &[BaselineRow], _: &mut Pcg64Mcg) -> usize {
        let index = self.next % rows.len();
        self.next = index + 1;
        index
    }
}

#[derive(Debug)]
pub(super) struct Random;

impl Baseline for Random {
    fn choose(
        &mut self,
        _: &BaselineRequest<'_>,
        rows: &[BaselineRow],
        rng: &mut Pcg64Mcg,
    ) -> usize {
        rng.random_range(0..rows.len())
    }
}

#[derive(Debug)]
pub(super) struct LeastLoaded;

impl Baseline for LeastLoaded {
    fn choose(
        &mut self,
        _: &BaselineRequest<'_>,
        rows: &[BaselineRow],
        rng: &mut Pcg64Mcg,
    ) -> usize {
        argmin(rows, |row| row.active_requests, rng)
    }
}

#[derive(Debug)]
pub(super) struct PowerOfTwo;

impl Baseline for PowerOfTwo {
    fn choose(
        &mut self,
        _: &BaselineRequest<'_>,
        rows: &[BaselineRow],
        rng: &mut Pcg64Mcg,
    ) -> usize {
        let first = rng.random_range(0..rows.len());
        if rows.len() == 1 {
            return first;
        }
        let second = (first + rng.random_range(1..rows.len())) % rows.len();
        if rows[second].active_requests < rows[first].active_requests {
            second
        } else {
            first
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, rng, rows};
    use super::*;

    #[test]
    fn round_robin_takes_turns() {
        let (mut rule, mut rng) = (RoundRobin::default(), rng());
        let rows = rows(&[9, 0, 0]);
        let chosen: Vec<_> = (0..4)
            .map(|_| rule.choose(&request(&[]), &rows, &mut rng))
            .collect();
        assert_eq!(chosen, [0, 1, 2, 0]);
    }

    #[test]
    fn power_of_two_never_takes_the_most_loaded_worker() {
        let (rows, mut rng) = (rows(&[1, 5, 1, 1]), rng());
        for _ in 0..200 {
            assert_ne!(PowerOfTwo.choose(&request(&[]), &rows, &mut rng), 1);
        }
    }

    #[test]
    fn least_loaded_takes_the_minimum() {
        assert_eq!(
            LeastLoaded.choose(&request(&[]), &rows(&[3, 2, 4]), &mut rng()),
            1
        );
    }
}
