// SPDX-License-Identifier: Apache-2.0

//! Which regime a fleet is in, from what it is offered and what waits.
//!
//! A level of load stands for a regime: light for Below, knee for Transition, saturated for Saturated. A step up
//! holds at once. A step down holds once the backlog is gone, since a fleet that still works off a queue is as
//! loaded as before, whatever is offered: at the first moment of the phase at which no more requests wait than
//! there are workers that prefill. A request waits from its arrival at the router to its first token, so one
//! for each worker is the work in hand and no backlog. If that moment never comes in the phase, the regime
//! before stays to its end.
//!
//! No detector can know this: it takes the offered rate and every request of the fleet.

use regime_core::Regime;

use super::schedule::Schedule;
use crate::adapter::{RegimeSince, RequestRecord};
use crate::run::LoadLevel;

/// The regimes over the time of the schedule, from 0. `workers` prefill.
pub(super) fn truth(
    schedule: &Schedule,
    requests: &[RequestRecord],
    workers: usize,
) -> Vec<RegimeSince> {
    let waiting = waiting(requests);
    let starts_ms = schedule.starts_ms();
    let mut regimes: Vec<RegimeSince> = Vec::new();
    for (phase, bounds) in schedule.phases.iter().zip(starts_ms.windows(2)) {
        let regime = regime_of(phase.level);
        let before = regimes.last().map(|since| since.regime);
        let from_ms = match before {
            Some(before) if before == regime => None,
            Some(before) if before > regime => {
                drained_ms(&waiting, bounds[0], workers).filter(|at_ms| *at_ms < bounds[1])
            }
            _ => Some(bounds[0]),
        };
        regimes.extend(from_ms.map(|from_ms| RegimeSince { from_ms, regime }));
    }
    regimes
}

const fn regime_of(level: LoadLevel) -> Regime {
    match level {
        LoadLevel::Light => Regime::Below,
        LoadLevel::Knee => Regime::Transition,
        LoadLevel::Saturated => Regime::Saturated,
    }
}

/// Requests that wait from each moment on at which their number changes. Those that never got a token do
/// not count: nobody knows when they gave up.
fn waiting(requests: &[RequestRecord]) -> Vec<(f64, usize)> {
    let mut changes: Vec<(f64, bool)> = requests
        .iter()
        .filter_map(|request| Some((request.arrival_ms, request.first_token_ms?)))
        .flat_map(|(arrival_ms, first_ms)| [(arrival_ms, true), (first_ms, false)])
        .collect();
    // At one moment arrivals come first, so that no number is below 0.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let mut count = 0_usize;
    let counts = changes.into_iter().map(|(at_ms, arrived)| {
        count = if arrived { count + 1 } else { count - 1 };
        (at_ms, count)
    });
    counts.collect()
}

/// The first moment from `from_ms` on at which at most `most` requests wait.
fn drained_ms(waiting: &[(f64, usize)], from_ms: f64, most: usize) -> Option<f64> {
    let next = waiting.partition_point(|(at_ms, _)| *at_ms <= from_ms);
    let at_start = next.checked_sub(1).map_or(0, |last| waiting[last].1);
    if at_start <= most {
        return Some(from_ms);
    }
    let rest = waiting[next..].iter();
    rest.clone()
        .find(|(_, count)| *count <= most)
        .map(|(at_ms, _)| *at_ms)
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Phase;
    use super::*;
    use crate::adapter::Ending;

    fn request(arrival_ms: f64, first_token_ms: f64) -> RequestRecord {
        RequestRecord {
            session: 0,
            turn: 0,
            arrival_ms,
            prompt_tokens: 1,
            reused_tokens: None,
            prefill_worker: None,
            decode_worker: None,
            first_token_ms: Some(first_token_ms),
            last_token_ms: None,
            tokens: 1,
            ending: Ending::Completed,
        }
    }

    fn schedule(levels: &[LoadLevel]) -> Schedule {
        let phases = levels.iter().map(|&level| Phase {
            level,
            seconds: 10.0,
        });
        Schedule {
            name: "s".into(),
            phases: phases.collect(),
        }
    }

    fn found(levels: &[LoadLevel], requests: &[RequestRecord]) -> Vec<(f64, Regime)> {
        let regimes = truth(&schedule(levels), requests, 1);
        regimes
            .iter()
            .map(|since| (since.from_ms, since.regime))
            .collect()
    }

    const UP_AND_DOWN: [LoadLevel; 3] = [LoadLevel::Light, LoadLevel::Saturated, LoadLevel::Light];

    #[test]
    fn a_step_up_holds_at_once_and_a_step_down_when_one_request_a_worker_waits() {
        // Three requests wait at 20 s; the second last gets its token at 23 s.
        let requests = [
            request(18_000.0, 21_000.0),
            request(18_500.0, 23_000.0),
            request(19_000.0, 25_000.0),
        ];
        assert_eq!(
            found(&UP_AND_DOWN, &requests),
            [
                (0.0, Regime::Below),
                (10_000.0, Regime::Saturated),
                (23_000.0, Regime::Below)
            ]
        );
    }

    #[test]
    fn without_a_backlog_a_step_down_holds_at_once() {
        assert_eq!(
            found(&UP_AND_DOWN, &[request(19_000.0, 25_000.0)])[2],
            (20_000.0, Regime::Below)
        );
    }

    #[test]
    fn a_backlog_that_outlasts_the_phase_keeps_the_regime() {
        let requests = [request(18_000.0, 40_000.0), request(18_000.0, 41_000.0)];
        assert_eq!(found(&UP_AND_DOWN, &requests).len(), 2);
    }

    #[test]
    fn a_load_that_stays_is_one_regime() {
        assert_eq!(
            found(&[LoadLevel::Knee; 2], &[]),
            [(0.0, Regime::Transition)]
        );
    }
}
