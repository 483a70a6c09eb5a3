// SPDX-License-Identifier: Apache-2.0

//! `chat` and `chat-pauses`: conversations of three turns behind one of eight system prompts.
//!
//! Each turn sends the whole conversation so far and a new message, after the person has thought. A
//! worker that has the conversation computes only the last message; any worker that has the system
//! prompt saves that. Lengths vary, because equal ones make all conversations answer in lockstep.
//!
//! Defaults: system prompts of 1,024 tokens, messages of 768 and answers of 64 on average, and a quarter of a
//! second of thought: longer thought would let few of the conversations ask at once, and a finite workload
//! could not fill a fleet. 2,100 requests are 700 conversations that grow to about 3,500 tokens. `chat-pauses` has ten
//! seconds of thought, in which a small cache holds many other conversations: they return to what has been
//! pushed out.

use std::ops::RangeInclusive;

use crate::workload::Turn;

use super::draw::{exponential, uniform};
use super::kit::{Kit, Step, turns_of_sessions};

/// Turns of a conversation.
pub(super) const TURNS: usize = 3;
const SYSTEM_PROMPTS: usize = 8;
const SYSTEM_TOKENS: u32 = 1_024;
const MESSAGE_TOKENS: RangeInclusive<u32> = 384..=1_152;
const ANSWER_TOKENS: RangeInclusive<u32> = 32..=96;
/// Mean pause between an answer and the next message, ms, of `chat`.
pub(super) const THOUGHT_MS: f64 = 250.0;
/// Of `chat-pauses`.
pub(super) const LONG_THOUGHT_MS: f64 = 10_000.0;

pub(super) fn sessions(kit: &mut Kit, requests: usize, mean_thought_ms: f64) -> Vec<Vec<Turn>> {
    let systems = kit.shared(SYSTEM_PROMPTS, SYSTEM_TOKENS);
    turns_of_sessions(requests, TURNS)
        .map(|turns| {
            let system = kit.pick(&systems);
            kit.dialogue(system, turns, |rng, _| Step {
                pause_ms: exponential(rng, mean_thought_ms),
                input: uniform(rng, MESSAGE_TOKENS),
                output: uniform(rng, ANSWER_TOKENS),
            })
        })
        .collect()
}
