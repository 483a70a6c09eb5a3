// SPDX-License-Identifier: Apache-2.0

//! `agentic`: long runs behind a long shared context, with pauses for tools.
//!
//! An agent starts from the tools and instructions of its kind, gets a task, and then alternates between
//! a short answer and the output of a tool. Its prompt grows to some 14 k tokens, of which a worker that
//! has the run computes only the last tool's output. Most tools are quick; one in five takes up to
//! five seconds, long enough for the run to lose its place in a full cache. The contexts of all kinds are as
//! much as a worker with 8,192 blocks can hold.
//!
//! Defaults: 16 kinds of 8,192 tokens, 5 turns, tasks of 256 to 1,024 tokens, tool outputs of 256 to
//! 4,096, answers of 16 to 128, and pauses of 25 to 250 ms or 0.5 to 5 s. Lengths of tool outputs and
//! pauses are log-uniform: small ones are common and large ones carry the weight.

use std::ops::RangeInclusive;

use rand::Rng;

use crate::workload::Turn;

use super::draw::{log_uniform, uniform};
use super::kit::{Kit, Step, turns_of_sessions};

/// Requests of a run.
pub(super) const TURNS: usize = 5;
const KINDS: usize = 16;
const CONTEXT_TOKENS: u32 = 8_192;
const TASK_TOKENS: RangeInclusive<u32> = 256..=1_024;
const TOOL_TOKENS: RangeInclusive<u32> = 256..=4_096;
const ANSWER_TOKENS: RangeInclusive<u32> = 16..=128;
const QUICK_TOOL_MS: RangeInclusive<u32> = 25..=250;
const SLOW_TOOL_MS: RangeInclusive<u32> = 500..=5_000;
const SLOW_SHARE: f64 = 0.2;

pub(super) fn sessions(kit: &mut Kit, requests: usize) -> Vec<Vec<Turn>> {
    let contexts = kit.shared(KINDS, CONTEXT_TOKENS);
    turns_of_sessions(requests, TURNS)
        .map(|turns| {
            let context = kit.pick(&contexts);
            kit.dialogue(context, turns, |rng, index| {
                let slow = rng.random_bool(SLOW_SHARE);
                let tool_ms = if slow { SLOW_TOOL_MS } else { QUICK_TOOL_MS };
                Step {
                    pause_ms: f64::from(log_uniform(rng, tool_ms)),
                    input: match index {
                        0 => uniform(rng, TASK_TOKENS),
                        _ => log_uniform(rng, TOOL_TOKENS),
                    },
                    output: uniform(rng, ANSWER_TOKENS),
                }
            })
        })
        .collect()
}
