// SPDX-License-Identifier: Apache-2.0

//! Recorded requests of one agent, one after the other, as a session.
//!
//! A recording says when each request started and, mostly, when it ended. If none starts before the one
//! before it ended, then the recorded order is a chain, and the gaps are the pauses of tools and
//! people. Requests that overlap ran in parallel: no session can hold them, and they are refused.
//! Without the end of a request, the gap to the next start contains its service time: the pause counts
//! as inferred (field report SP-2).

use crate::workload::{Session, Turn};

use super::fault::Findings;
use super::raw::Pauses;

/// Overlap that is rounding of the recorder's clock, ms.
const ROUNDING_MS: f64 = 1.0;

/// One request of a recording.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) line: u64,
    /// How to name it in a message.
    pub(crate) name: String,
    pub(crate) start_ms: f64,
    /// Absent when only the start is known.
    pub(crate) end_ms: Option<f64>,
    pub(crate) turn: Turn,
}

/// The session of these requests, in the order of their starts; nothing when there are none.
pub(crate) fn session(
    id: String,
    mut requests: Vec<Recorded>,
    pauses: &mut Pauses,
    findings: &Findings,
) -> Option<Session> {
    requests.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    let start_ms = requests.first()?.start_ms;
    let mut delays_ms = vec![0.0];
    for pair in requests.windows(2) {
        let [before, after] = pair else { continue };
        if before.end_ms.is_some() {
            pauses.explicit += 1;
        } else {
            pauses.inferred += 1;
            findings.warn(
                "inferred delay",
                Some(after.line),
                format!(
                    "the end of {} is not known: the delay of {} is inferred from two starts and includes a \
                     service time",
                    before.name, after.name
                ),
            );
        }
        let free_ms = before.end_ms.unwrap_or(before.start_ms);
        let gap_ms = after.start_ms - free_ms;
        if gap_ms < -ROUNDING_MS {
            findings.fault(
                after.line,
                format!("start of {}", after.name),
                format!("{} ms", after.start_ms),
                format!(
                    "at least {free_ms} ms, when {} of line {} ended: requests that run in parallel do not fit \
                     a session",
                    before.name, before.line
                ),
            );
        }
        delays_ms.push(gap_ms.max(0.0));
    }
    let turns = requests
        .into_iter()
        .zip(delays_ms)
        .map(|(request, delay_ms)| Turn {
            delay_ms,
            ..request.turn
        })
        .collect();
    Some(Session {
        id,
        start_ms,
        turns,
    })
}
