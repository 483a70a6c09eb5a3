// SPDX-License-Identifier: Apache-2.0

//! What is replayed: sessions of turns, whose prompts are known by the identity of their blocks.
//!
//! A prompt is a list of hash ids, one for each block of [`Workload::block_size`] tokens. Two prompts
//! share a prefix exactly as far as their lists of ids agree from the start, which is all that a KV
//! cache or a router can see of a text. Content beyond that would only be invented.
//!
//! Times are virtual milliseconds. The turns of a session follow each other: a turn can start only
//! after the previous one has been answered, so a slow fleet slows its own load down (a closed loop in
//! each session), as with people and agents.

use std::ops::RangeInclusive;

/// Longest virtual time, ms: ten years. Later, a clock in ms no longer tells single tokens apart, and
/// nobody means it.
pub const LONGEST_MS: f64 = 10.0 * 365.0 * 24.0 * 3_600_000.0;
/// Tokens of a prompt, and of an answer.
pub const REQUEST_TOKENS: RangeInclusive<u32> = 1..=10_000_000;

/// Requests to replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Name shown in results.
    pub name: String,
    /// Tokens for each hash id; at least 1.
    pub block_size: u32,
    /// Sessions, in any order; session ids are unique.
    pub sessions: Vec<Session>,
    /// When sessions start.
    pub arrivals: Arrivals,
}

/// Turns that follow each other, such as a conversation or the run of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Name of the session.
    pub id: String,
    /// Open loop: arrival of the first turn, ms since the start; not negative, and together with all
    /// pauses at most [`LONGEST_MS`].
    pub start_ms: f64,
    /// At least one turn.
    pub turns: Vec<Turn>,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Pause after the previous turn was answered, ms; 0 for the first turn.
    pub delay_ms: f64,
    /// Prompt length, tokens, within [`REQUEST_TOKENS`].
    pub input_tokens: u32,
    /// Tokens to generate, within [`REQUEST_TOKENS`].
    pub output_tokens: u32,
    /// Identity of the prompt's blocks: ⌈`input_tokens` / `block_size`⌉ ids.
    pub hash_ids: Vec<u64>,
    /// Dynamo's request priority; higher is more urgent.
    pub priority: Option<i32>,
    /// Dynamo's policy class of the request.
    pub policy_class: Option<String>,
}

/// When sessions start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// At their own [`Session::start_ms`].
    Open,
    /// As soon as fewer than `concurrency` sessions are going on, in the order listed;
    /// [`Session::start_ms`] is not used. With sessions of one turn these are requests in flight.
    Closed {
        /// Sessions at once; at least 1.
        concurrency: usize,
    },
}

/// A workload that cannot be replayed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("workload {workload:?}: {problem}")]
pub struct WorkloadError {
    /// Name of the workload.
    pub workload: String,
    /// Which value is wrong, and what is allowed.
    pub problem: String,
}

impl Workload {
    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.sessions
            .iter()
            .map(|session| session.turns.len())
            .sum()
    }

    /// Check what the types cannot say.
    ///
    /// # Errors
    /// With the first value that is not allowed.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let refuse = |problem: String| {
            Err(WorkloadError {
                workload: self.name.clone(),
                problem,
            })
        };
        if self.block_size == 0 {
            return refuse("block_size is 0; it must be at least 1".into());
        }
        if self.arrivals == (Arrivals::Closed { concurrency: 0 }) {
            return refuse("concurrency is 0; it must be at least 1".into());
        }
        if self.requests() == 0 {
            return refuse("it has no requests".into());
        }
        for session in &self.sessions {
            let id = &session.id;
            if !(session.start_ms.is_finite() && session.start_ms >= 0.0) {
                let value = session.start_ms;
                return refuse(format!(
                    "start_ms of session {id:?} is {value}; it must be finite and not negative"
                ));
            }
            for (turn, request) in session.turns.iter().enumerate() {
                let blocks = request.input_tokens.div_ceil(self.block_size) as usize;
                let problem = if !REQUEST_TOKENS.contains(&request.input_tokens) {
                    let (most, tokens) = (REQUEST_TOKENS.end(), request.input_tokens);
                    format!("has {tokens} input_tokens; it must have 1 to {most}")
                } else if !REQUEST_TOKENS.contains(&request.output_tokens) {
                    let (most, tokens) = (REQUEST_TOKENS.end(), request.output_tokens);
                    format!("has {tokens} output_tokens; it must have 1 to {most}")
                } else if !(request.delay_ms.is_finite() && request.delay_ms >= 0.0) {
                    format!(
                        "has delay_ms {}; it must be finite and not negative",
                        request.delay_ms
                    )
                } else if request.hash_ids.len() != blocks {
                    format!(
                        "has {} hash_ids for {} tokens in blocks of {}; it needs {blocks}",
                        request.hash_ids.len(),
                        request.input_tokens,
                        self.block_size
                    )
                } else {
                    continue;
                };
                return refuse(format!("turn {turn} of session {id:?} {problem}"));
            }
            let end_ms = session.earliest_end_ms();
            if end_ms > LONGEST_MS {
                return refuse(format!(
                    "the last turn of session {id:?} starts after {end_ms} ms or more; it must start within \
                     {LONGEST_MS} ms, ten years"
                ));
            }
        }
        Ok(())
    }
}

impl Session {
    /// When its last turn arrives if no request takes any time, ms.
    #[must_use]
    pub fn earliest_end_ms(&self) -> f64 {
        let pauses: f64 = self.turns.iter().map(|turn| turn.delay_ms).sum();
        self.start_ms + pauses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload {
            name: "w".into(),
            block_size: 16,
            sessions: vec![Session {
                id: "s".into(),
                start_ms: 0.0,
                turns: vec![Turn {
                    delay_ms: 0.0,
                    input_tokens: 17,
                    output_tokens: 1,
                    hash_ids: vec![1, 2],
                    priority: None,
                    policy_class: None,
                }],
            }],
            arrivals: Arrivals::Open,
        }
    }

    #[test]
    fn a_whole_workload_passes() {
        assert_eq!(workload().check(), Ok(()));
    }

    #[test]
    fn each_wrong_value_is_named() {
        type Fault = fn(&mut Workload);
        let faults: [(Fault, &str); 10] = [
            (|w| w.block_size = 0, "block_size is 0"),
            (
                |w| w.arrivals = Arrivals::Closed { concurrency: 0 },
                "concurrency is 0",
            ),
            (|w| w.sessions.clear(), "no requests"),
            (
                |w| w.sessions[0].start_ms = f64::NAN,
                "start_ms of session \"s\" is NaN",
            ),
            (
                |w| w.sessions[0].turns[0].input_tokens = 0,
                "has 0 input_tokens; it must have 1 to 10000000",
            ),
            (
                |w| w.sessions[0].turns[0].output_tokens = 10_000_001,
                "has 10000001 output_tokens; it must have 1 to 10000000",
            ),
            (
                |w| w.sessions[0].start_ms = 4e11,
                "starts after 400000000000 ms or more; it must start within 315360000000 ms",
            ),
            (
                |w| w.sessions[0].turns[0].delay_ms = 4e11,
                "starts after 400000000000 ms",
            ),
            (|w| w.sessions[0].turns[0].delay_ms = -1.0, "delay_ms -1"),
            (
                |w| w.sessions[0].turns[0].hash_ids.truncate(1),
                "has 1 hash_ids for 17 tokens in blocks of 16; it needs 2",
            ),
        ];
        for (fault, words) in faults {
            let mut workload = workload();
            fault(&mut workload);
            let error = workload.check().unwrap_err().to_string();
            assert!(error.contains(words), "{words:?}: {error}");
        }
    }
}
