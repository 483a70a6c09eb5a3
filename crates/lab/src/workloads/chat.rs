// SPDX-License-Identifier: Apache-2.0

//! `chat`: conversations of five turns behind one of eight system prompts.
//!
//! Each turn sends the whole conversation so far and a new message, after the person has thought. A
//! worker that has the conversation computes only the last message; any worker that has the system
//! prompt saves that. Lengths vary, because equal ones make all conversations answer in lockstep.
//!
//! Defaults: system prompts of 1,024 tokens, messages of 512 and answers of 128 on average, and one
//! second of thought. 2,500 requests are 500 conversations that grow to about 4,000
//! tokens.

use std::ops::RangeInclusive;

use crate::workload::Turn;

use super::draw::{exponential, uniform};
use super::kit::{Kit, Step, turns_of_sessions};

/// Turns of a conversation.
pub(super) const TURNS: usize = 5;
const SYSTEM_PROMPTS: usize = 8;
const SYSTEM_TOKENS: u32 = 1_024;
const MESSAGE_TOKENS: RangeInclusive<u32> = 256..=768;
const ANSWER_TOKENS: RangeInclusive<u32> = 64..=192;
const MEAN_THOUGHT_MS: f64 = 1_000.0;

pub(super) fn sessions(kit: &mut Kit, requests: usize) -> Vec<Vec<Turn>> {
    let systems = kit.shared(SYSTEM_PROMPTS, SYSTEM_TOKENS);
    turns_of_sessions(requests, TURNS)
        .map(|turns| {
            let system = kit.pick(&systems);
            kit.dialogue(system, turns, |rng, _| Step {
                pause_ms: exponential(rng, MEAN_THOUGHT_MS),
                input: uniform(rng, MESSAGE_TOKENS),
                output: uniform(rng, ANSWER_TOKENS),
            })
        })
        .collect()
}
