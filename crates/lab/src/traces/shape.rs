// SPDX-License-Identifier: Apache-2.0

//! Cutting and stretching a workload: slices, speed, and arrivals spread inside time buckets.
//!
//! A session is never cut: it belongs where it starts. A slice starts at time 0. A slice without
//! requests is an error, because a replay of nothing looks like a perfect one (field report BR-16).
//!
//! Mooncake's conversation trace counts time in steps of 3 s, so a replay sees bursts that never were.
//! Spreading moves each arrival to a random place before the next step, in the order of the file.

use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use thiserror::Error;

use crate::workload::{Session, Workload};

use super::summary::span_ms;

/// Part of a workload.
#[derive(Debug, Clone, PartialEq)]
pub enum Slice {
    /// Sessions that start in `[from, to)`, ms since the first arrival.
    WindowMs(Range<f64>),
    /// Sessions whose first request is in this range, counted from 0 in the order of arrival.
    Rows(Range<usize>),
}

/// Why a workload cannot be shaped as asked.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ShapeError {
    /// No session starts in the window.
    #[error(
        "slice is {from} to {to} ms and holds no request; allowed: a part of 0 to {span} ms, where arrivals are"
    )]
    EmptyWindow {
        /// Start of the window, ms.
        from: f64,
        /// End of the window, ms.
        to: f64,
        /// Last arrival, ms.
        span: f64,
    },
    /// No session's first request is in the range.
    #[error(
        "slice is rows {from} to {to} and holds no session's first request; allowed: a part of 0 to {rows}"
    )]
    EmptyRows {
        /// First row.
        from: usize,
        /// Row after the last.
        to: usize,
        /// Rows of the workload.
        rows: usize,
    },
    /// Time cannot stand still or run backwards.
    #[error("speed is {0}; allowed: a number above 0")]
    Speed(f64),
}

/// The sessions of a slice, with times from its first moment.
///
/// # Errors
/// When the slice holds no request.
pub fn slice(workload: &Workload, slice: &Slice) -> Result<Workload, ShapeError> {
    let mut sessions: Vec<Session> = match slice {
        Slice::WindowMs(window) => {
            let first_ms = first_ms(&workload.sessions);
            let inside = |session: &&Session| window.contains(&(session.start_ms - first_ms));
            workload.sessions.iter().filter(inside).cloned().collect()
        }
        Slice::Rows(range) => {
            let mut sessions: Vec<&Session> = workload.sessions.iter().collect();
            sessions.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
            let mut row = 0;
            sessions
                .into_iter()
                .filter(|session| {
                    let first = row;
                    row += session.turns.len();
                    range.contains(&first)
                })
                .cloned()
                .collect()
        }
    };
    if sessions.is_empty() {
        return Err(match slice {
            Slice::WindowMs(window) => ShapeError::EmptyWindow {
                from: window.start,
                to: window.end,
                span: span_ms(workload),
            },
            Slice::Rows(range) => ShapeError::EmptyRows {
                from: range.start,
                to: range.end,
                rows: workload.requests(),
            },
        });
    }
    rebase(&mut sessions);
    Ok(Workload {
        name: workload.name.clone(),
        block_size: workload.block_size,
        sessions,
        arrivals: workload.arrivals,
    })
}

/// The same requests with all times, arrivals and pauses, divided by `factor`.
///
/// # Errors
/// When `factor` is not a number above 0.
pub fn speed_up(workload: &Workload, factor: f64) -> Result<Workload, ShapeError> {
    if !(factor.is_finite() && factor > 0.0) {
        return Err(ShapeError::Speed(factor));
    }
    let mut faster = workload.clone();
    for session in &mut faster.sessions {
        session.start_ms /= factor;
        for turn in &mut session.turns {
            turn.delay_ms /= factor;
        }
    }
    Ok(faster)
}

/// Arrivals that share a time, spread at random over `width_ms` from it, in their order; without
/// `width_ms` over the shortest distance between two different times. Sessions come out in the order
/// of their starts.
#[must_use]
pub fn spread_buckets(workload: &Workload, width_ms: Option<f64>, seed: u64) -> Workload {
    let mut spread = workload.clone();
    spread
        .sessions
        .sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    let steps = spread.sessions.windows(2).filter_map(|pair| match pair {
        [before, after] => Some(after.start_ms - before.start_ms),
        _ => None,
    });
    let shortest_ms = steps.filter(|step| *step > 0.0).reduce(f64::min);
    let Some(width_ms) = width_ms
        .or(shortest_ms)
        .filter(|width| width.is_finite() && *width > 0.0)
    else {
        return spread;
    };
    let mut rng = Pcg64::seed_from_u64(seed);
    for bucket in spread
        .sessions
        .chunk_by_mut(|a, b| a.start_ms == b.start_ms)
    {
        if bucket.len() == 1 {
            continue;
        }
        let mut offsets: Vec<f64> = bucket
            .iter()
            .map(|_| width_ms * rng.random::<f64>())
            .collect();
        offsets.sort_by(f64::total_cmp);
        for (session, offset_ms) in bucket.iter_mut().zip(offsets) {
            session.start_ms += offset_ms;
        }
    }
    spread
        .sessions
        .sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    spread
}

/// Puts sessions in the order of their starts and the first at 0; returns where it was, ms.
pub(crate) fn rebase(sessions: &mut [Session]) -> f64 {
    sessions.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    let origin_ms = first_ms(sessions);
    for session in sessions {
        session.start_ms -= origin_ms;
    }
    origin_ms
}

fn first_ms(sessions: &[Session]) -> f64 {
    sessions
        .iter()
        .map(|session| session.start_ms)
        .reduce(f64::min)
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Arrivals, Turn};

    /// Sessions named by their place, with as many turns as told.
    fn workload(starts: &[(f64, usize)]) -> Workload {
        let turn = Turn {
            delay_ms: 40.0,
            input_tokens: 1,
            output_tokens: 1,
            hash_ids: vec![1],
            priority: None,
            policy_class: None,
        };
        Workload {
            name: "w".into(),
            block_size: 1,
            sessions: starts
                .iter()
                .enumerate()
                .map(|(index, (start_ms, turns))| Session {
                    id: index.to_string(),
                    start_ms: *start_ms,
                    turns: vec![turn.clone(); *turns],
                })
                .collect(),
            arrivals: Arrivals::Open,
        }
    }

    fn starts(workload: &Workload) -> Vec<f64> {
        workload
            .sessions
            .iter()
            .map(|session| session.start_ms)
            .collect()
    }

    #[test]
    fn a_window_holds_the_arrivals_before_its_end_and_starts_at_zero() {
        let all = workload(&[(0.0, 1), (500.0, 1), (600.0, 1), (900.0, 1)]);
        assert_eq!(
            starts(&slice(&all, &Slice::WindowMs(0.0..600.0)).unwrap()),
            [0.0, 500.0]
        );
        assert_eq!(
            starts(&slice(&all, &Slice::WindowMs(500.0..901.0)).unwrap()),
            [0.0, 100.0, 400.0]
        );
    }

    #[test]
    fn a_session_belongs_to_the_slice_of_its_first_row() {
        // Rows 0 to 2 are session 0, row 3 is session 1, row 4 is session 2.
        let all = workload(&[(0.0, 3), (10.0, 1), (20.0, 1)]);
        let part = slice(&all, &Slice::Rows(1..4)).unwrap();
        assert_eq!(part.sessions.len(), 1);
        assert_eq!(part.sessions[0].id, "1");
    }

    #[test]
    fn an_empty_slice_is_an_error_that_names_what_there_is() {
        let all = workload(&[(0.0, 1), (500.0, 1)]);
        let error = slice(&all, &Slice::WindowMs(600.0..700.0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "slice is 600 to 700 ms and holds no request; allowed: a part of 0 to 500 ms, where arrivals are"
        );
        let error = slice(&all, &Slice::Rows(2..9)).unwrap_err();
        assert!(
            error.to_string().ends_with("allowed: a part of 0 to 2"),
            "{error}"
        );
    }

    #[test]
    fn speed_divides_arrivals_and_pauses() {
        let faster = speed_up(&workload(&[(0.0, 1), (500.0, 1)]), 4.0).unwrap();
        assert_eq!(starts(&faster), [0.0, 125.0]);
        assert_eq!(faster.sessions[0].turns[0].delay_ms, 10.0);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(speed_up(&faster, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn arrivals_of_a_bucket_spread_up_to_the_next_one_in_their_order() {
        let coarse = workload(&[
            (0.0, 1),
            (0.0, 1),
            (0.0, 1),
            (3000.0, 1),
            (9000.0, 1),
            (9000.0, 1),
        ]);
        let fine = spread_buckets(&coarse, None, 7);
        let ids: Vec<&str> = fine
            .sessions
            .iter()
            .map(|session| session.id.as_str())
            .collect();
        assert_eq!(ids, ["0", "1", "2", "3", "4", "5"]);
        let at = starts(&fine);
        assert!(
            at[0] > 0.0 && at[0] < at[1] && at[1] < at[2] && at[2] < 3000.0,
            "{at:?}"
        );
        assert_eq!(at[3], 3000.0);
        assert!(at[4] > 9000.0 && at[5] < 12000.0, "{at:?}");
        assert_eq!(fine, spread_buckets(&coarse, None, 7));
        assert_ne!(fine, spread_buckets(&coarse, None, 8));
    }

    #[test]
    fn arrivals_at_one_time_have_no_bucket_to_spread_in_unless_told() {
        let burst = workload(&[(0.0, 1), (0.0, 1)]);
        assert_eq!(spread_buckets(&burst, None, 1), burst);
        assert!(starts(&spread_buckets(&burst, Some(10.0), 1))[1] > 0.0);
    }
}
