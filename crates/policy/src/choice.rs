// SPDX-License-Identifier: Apache-2.0

//! Choosing a row from its costs: argmin with seeded ties, or a softmax over normalised costs.
//!
//! Rows come from a hash map, so their order means nothing. Rows are therefore ordered by worker
//! before anything is drawn: the same seed and costs give the same worker whatever the row order, and
//! equal workers share the traffic evenly (field report BR-02).
//!
//! τ > 0 samples with probability ∝ exp(−c/τ) over costs normalised to their range, as Dynamo does for
//! `router_temperature`, so that one τ means the same for milliseconds and for blocks.

use rand::Rng;
use regime_core::WorkerKey;

/// One row that may be chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contender {
    /// Index in the host's candidate table.
    pub(crate) row: usize,
    pub(crate) worker: WorkerKey,
    /// Finite; lower is better.
    pub(crate) cost: f64,
    /// Whether the worker is saturated.
    pub(crate) saturated: bool,
    /// Smoothed TTFT P99, ms, if it is known: orders saturated workers of equal cost.
    pub(crate) ttft_p99_ms: Option<f64>,
}

/// How to choose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Temperature; 0 is argmin.
    pub(crate) tau: f64,
    /// Costs closer than this to the least are ties.
    pub(crate) tie_margin: f64,
    /// Leave saturated workers out while there are others.
    pub(crate) saturation_filter: bool,
}

/// The chosen row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) row: usize,
    pub(crate) worker: WorkerKey,
    /// Every contender was saturated, so the filter let all of them through (field report BR-04).
    pub(crate) failed_open: bool,
}

/// Choose among `contenders`, which are reordered and thinned in place; `None` when there are none.
pub(crate) fn choose(
    contenders: &mut Vec<Contender>,
    rule: Rule,
    rng: &mut impl Rng,
) -> Option<Choice> {
    let all_saturated = contenders.iter().all(|contender| contender.saturated);
    if rule.saturation_filter && !all_saturated {
        contenders.retain(|contender| !contender.saturated);
    }
    contenders.sort_unstable_by_key(|contender| contender.worker);
    let least = minimum(contenders.iter().map(|contender| contender.cost))?;
    if rule.tau > 0.0 {
        let most = contenders
            .iter()
            .fold(least, |most, contender| most.max(contender.cost));
        if most > least {
            return sample(contenders, rule.tau, least, most - least, rng)
                .map(|contender| outcome(contender, false));
        }
    }
    contenders.retain(|contender| contender.cost <= least + rule.tie_margin);
    let failed_open = rule.saturation_filter && all_saturated;
    if failed_open {
        // Nothing but its record tells equally priced saturated workers apart.
        if let Some(best) = minimum(contenders.iter().filter_map(|c| c.ttft_p99_ms)) {
            contenders.retain(|contender| contender.ttft_p99_ms.is_none_or(|p99| p99 <= best));
        }
    }
    let index = rng.random_range(0..contenders.len());
    contenders
        .get(index)
        .map(|contender| outcome(contender, failed_open))
}

fn outcome(contender: &Contender, failed_open: bool) -> Choice {
    Choice {
        row: contender.row,
        worker: contender.worker,
        failed_open,
    }
}

fn minimum(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.min_by(f64::total_cmp)
}

/// Weights are relative to the cheapest contender, so the largest is 1 and the sum cannot vanish.
fn sample<'a>(
    contenders: &'a [Contender],
    tau: f64,
    least: f64,
    range: f64,
    rng: &mut impl Rng,
) -> Option<&'a Contender> {
    let weight = |contender: &Contender| (-(contender.cost - least) / range / tau).exp();
    let total: f64 = contenders.iter().map(weight).sum();
    let mut left = rng.random::<f64>() * total;
    contenders
        .iter()
        .find(|contender| {
            left -= weight(contender);
            left < 0.0
        })
        .or_else(|| contenders.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    const ARGMIN: Rule = Rule {
        tau: 0.0,
        tie_margin: 0.01,
        saturation_filter: false,
    };

    fn contenders(costs: &[f64]) -> Vec<Contender> {
        costs
            .iter()
            .enumerate()
            .map(|(row, &cost)| Contender {
                row,
                worker: WorkerKey::new(100 + row as u64, 0),
                cost,
                saturated: false,
                ttft_p99_ms: None,
            })
            .collect()
    }

    fn rng(seed: u64) -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(seed)
    }

    #[test]
    fn the_cheapest_row_wins() {
        let choice = choose(&mut contenders(&[3.0, 1.0, 2.0]), ARGMIN, &mut rng(0)).unwrap();
        assert_eq!((choice.row, choice.worker.id), (1, 101));
    }

    #[test]
    fn four_equal_workers_share_the_requests() {
        let mut rng = rng(7);
        let mut wins = [0; 4];
        for _ in 0..400 {
            wins[choose(&mut contenders(&[1.0; 4]), ARGMIN, &mut rng)
                .unwrap()
                .row] += 1;
        }
        assert!(
            wins.iter().all(|wins| (60..=140).contains(wins)),
            "{wins:?}"
        );
    }

    #[test]
    fn row_order_does_not_change_the_worker() {
        for rule in [ARGMIN, Rule { tau: 0.7, ..ARGMIN }] {
            let (mut forward_rng, mut backward_rng) = (rng(3), rng(3));
            for _ in 0..100 {
                let rows = contenders(&[1.0, 1.0, 4.0, 2.0]);
                let mut reversed: Vec<_> = rows.iter().rev().copied().collect();
                let forward = choose(&mut rows.clone(), rule, &mut forward_rng).unwrap();
                let backward = choose(&mut reversed, rule, &mut backward_rng).unwrap();
                assert_eq!(forward.worker, backward.worker);
            }
        }
    }

    #[test]
    fn temperature_one_draws_by_exp_of_normalised_cost() {
        let mut rng = rng(11);
        let rule = Rule { tau: 1.0, ..ARGMIN };
        let draws = 20_000;
        let cheap = (0..draws)
            .filter(|_| {
                choose(&mut contenders(&[5.0, 25.0]), rule, &mut rng)
                    .unwrap()
                    .row
                    == 0
            })
            .count();
        // 1 / (1 + e^−1) = 0.731.
        assert!((cheap as f64 / f64::from(draws) - 0.731).abs() < 0.02);
    }

    #[test]
    fn a_saturated_worker_is_left_out_while_another_is_not() {
        let mut rows = contenders(&[1.0, 5.0]);
        rows[0].saturated = true;
        let rule = Rule {
            saturation_filter: true,
            ..ARGMIN
        };
        assert_eq!(choose(&mut rows, rule, &mut rng(0)).unwrap().row, 1);
    }

    #[test]
    fn the_filter_fails_open_when_every_worker_is_saturated() {
        // Field report BR-04: P99s of 3100, 2900 and 2700 ms, otherwise equal; then one worker alone.
        let rule = Rule {
            saturation_filter: true,
            ..ARGMIN
        };
        let mut rows = contenders(&[1.0; 3]);
        for (row, p99) in rows.iter_mut().zip([3_100.0, 2_900.0, 2_700.0]) {
            row.saturated = true;
            row.ttft_p99_ms = Some(p99);
        }
        let mut alone = vec![rows[0]];
        let choice = choose(&mut rows, rule, &mut rng(0)).unwrap();
        assert_eq!((choice.row, choice.failed_open), (2, true));
        let choice = choose(&mut alone, rule, &mut rng(0)).unwrap();
        assert_eq!((choice.row, choice.failed_open), (0, true));
    }

    #[test]
    fn no_contender_is_no_choice() {
        assert_eq!(choose(&mut Vec::new(), ARGMIN, &mut rng(0)), None);
    }

    proptest! {
        #[test]
        fn the_choice_is_always_one_of_the_rows(
            costs in prop::collection::vec(-1e12..1e12f64, 1..20),
            tau in 0.0..10.0f64,
            seed: u64,
        ) {
            let rule = Rule { tau, ..ARGMIN };
            let choice = choose(&mut contenders(&costs), rule, &mut rng(seed)).unwrap();
            prop_assert!(choice.row < costs.len());
            if tau == 0.0 {
                let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
                prop_assert!(costs[choice.row] <= least + 0.01);
            }
        }
    }
}
