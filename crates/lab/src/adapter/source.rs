// SPDX-License-Identifier: Apache-2.0

//! When which request arrives, and what its tokens are.
//!
//! A session's next turn becomes ready a pause after the answer to the previous one. In a closed loop a
//! session starts when another one ends. Two requests that are ready at one instant arrive in the order
//! of their sessions.
//!
//! Engines want tokens, traces give identities of blocks. Each identity gets its own run of token
//! numbers, so that two prompts agree in their tokens exactly as far as they agree in their identities,
//! whatever the block sizes of trace and engine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use anyhow::{Result, ensure};
use rustc_hash::FxHashMap;

use crate::workload::{Arrivals, Workload};

/// A request that arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    /// Position of the session.
    pub(super) session: usize,
    /// Position of the turn in the session.
    pub(super) turn: usize,
    /// When, ms.
    pub(super) at_ms: f64,
}

pub(super) struct Source<'a> {
    workload: &'a Workload,
    /// (time as bits, session, turn): bits of non-negative numbers are in the order of the numbers.
    ready: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Closed loop: the next session to start.
    next_session: usize,
}

impl<'a> Source<'a> {
    pub(super) fn new(workload: &'a Workload) -> Self {
        let mut source = Self {
            workload,
            ready: BinaryHeap::new(),
            next_session: 0,
        };
        match workload.arrivals {
            Arrivals::Open => {
                for (session, script) in workload.sessions.iter().enumerate() {
                    if !script.turns.is_empty() {
                        source.push(script.start_ms, session, 0);
                    }
                }
            }
            Arrivals::Closed { concurrency } => {
                for _ in 0..concurrency.min(workload.sessions.len()) {
                    source.start_next(0.0);
                }
            }
        }
        source
    }

    /// When the next request arrives, ms.
    pub(super) fn next_ms(&self) -> Option<f64> {
        self.ready
            .peek()
            .map(|Reverse((bits, ..))| f64::from_bits(*bits))
    }

    /// The next request that has arrived by `now_ms`.
    pub(super) fn pop(&mut self, now_ms: f64) -> Option<Arrival> {
        self.next_ms().filter(|&at_ms| at_ms <= now_ms)?;
        let Reverse((bits, session, turn)) = self.ready.pop()?;
        Some(Arrival {
            session,
            turn,
            at_ms: f64::from_bits(bits),
        })
    }

    /// A request was answered, or refused for good.
    pub(super) fn answered(&mut self, session: usize, turn: usize, now_ms: f64) {
        let script = &self.workload.sessions[session];
        if let Some(next) = script.turns.get(turn + 1) {
            self.push(now_ms + next.delay_ms, session, turn + 1);
        } else if self.workload.arrivals != Arrivals::Open {
            self.start_next(now_ms);
        }
    }

    fn start_next(&mut self, now_ms: f64) {
        while let Some(script) = self.workload.sessions.get(self.next_session) {
            self.next_session += 1;
            if !script.turns.is_empty() {
                self.push(now_ms, self.next_session - 1, 0);
                return;
            }
        }
    }

    fn push(&mut self, at_ms: f64, session: usize, turn: usize) {
        // Adding zero turns a negative zero, whose bits are large, into zero.
        self.ready
            .push(Reverse(((at_ms + 0.0).to_bits(), session, turn)));
    }
}

/// Tokens of prompts.
pub(super) struct Tokens {
    block_size: u32,
    first_token: FxHashMap<u64, u32>,
}

impl Tokens {
    pub(super) fn new(block_size: u32) -> Self {
        Self {
            block_size,
            first_token: FxHashMap::default(),
        }
    }

    /// The prompt of `length` tokens whose blocks have these identities.
    pub(super) fn prompt(&mut self, hash_ids: &[u64], length: u32) -> Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(hash_ids.len() * self.block_size as usize);
        for &id in hash_ids {
            let known = self.first_token.len() as u64;
            let first = match self.first_token.get(&id) {
                Some(&first) => first,
                None => {
                    let first = known * u64::from(self.block_size);
                    let last = first + u64::from(self.block_size);
                    ensure!(
                        last <= u64::from(u32::MAX),
                        "the workload has more different blocks than there are token numbers: {known} of {} tokens",
                        self.block_size
                    );
                    self.first_token.insert(id, first as u32);
                    first as u32
                }
            };
            tokens.extend(first..first + self.block_size);
        }
        tokens.truncate(length as usize);
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Session, Turn};

    fn workload(arrivals: Arrivals, starts: &[f64], turns: usize) -> Workload {
        let turn = |index| Turn {
            delay_ms: if index == 0 { 0.0 } else { 5.0 },
            input_tokens: 16,
            output_tokens: 1,
            hash_ids: vec![1],
            priority: None,
            policy_class: None,
        };
        Workload {
            name: "w".into(),
            block_size: 16,
            sessions: starts
                .iter()
                .map(|&start_ms| Session {
                    id: start_ms.to_string(),
                    start_ms,
                    turns: (0..turns).map(turn).collect(),
                })
                .collect(),
            arrivals,
        }
    }

    #[test]
    fn open_arrivals_come_in_order_of_time() {
        let workload = workload(Arrivals::Open, &[30.0, 10.0], 1);
        let mut source = Source::new(&workload);
        assert_eq!(source.next_ms(), Some(10.0));
        assert_eq!(source.pop(9.0), None);
        assert_eq!(source.pop(50.0).unwrap().session, 1);
        assert_eq!(source.pop(50.0).unwrap().session, 0);
        assert_eq!(source.pop(50.0), None);
    }

    #[test]
    fn the_next_turn_waits_for_the_answer_and_the_pause() {
        let workload = workload(Arrivals::Open, &[0.0], 2);
        let mut source = Source::new(&workload);
        source.pop(0.0).unwrap();
        assert_eq!(source.next_ms(), None);
        source.answered(0, 0, 100.0);
        assert_eq!(source.next_ms(), Some(105.0));
        source.pop(105.0).unwrap();
        source.answered(0, 1, 200.0);
        assert_eq!(source.next_ms(), None);
    }

    #[test]
    fn a_closed_loop_starts_a_session_when_one_ends() {
        let workload = workload(Arrivals::Closed { concurrency: 2 }, &[9.0, 9.0, 9.0], 1);
        let mut source = Source::new(&workload);
        assert_eq!(
            (
                source.pop(0.0).unwrap().session,
                source.pop(0.0).unwrap().session
            ),
            (0, 1)
        );
        assert_eq!(source.pop(1e9), None);
        source.answered(1, 0, 40.0);
        assert_eq!(
            source.pop(40.0),
            Some(Arrival {
                session: 2,
                turn: 0,
                at_ms: 40.0
            })
        );
        source.answered(2, 0, 50.0);
        assert_eq!(source.next_ms(), None);
    }

    #[test]
    fn prompts_share_tokens_as_far_as_they_share_identities() {
        let mut tokens = Tokens::new(4);
        let first = tokens.prompt(&[7, 8, 9], 10).unwrap();
        let second = tokens.prompt(&[7, 8, 10], 12).unwrap();
        assert_eq!((first.len(), second.len()), (10, 12));
        assert_eq!(first[..8], second[..8]);
        assert_ne!(first[8], second[8]);
    }
}
