// SPDX-License-Identifier: Apache-2.0

//! `cold-burst`, `decode-heavy` and `mixed-lengths`: prompts that share nothing.
//!
//! Without shared prefixes only load matters, and every good rule is close to every other one. These
//! workloads say what a rule loses there, each on another resource:
//!
//! - `cold-burst`: half of the requests come in bursts of 24 at once, so that many choices are made
//!   before the first effect is seen. Prompts of 256 to 4,096 tokens, answers of 32 to 256.
//! - `decode-heavy`: short prompts of 64 to 256 tokens, answers of 256 to 2,048: seats and KV space
//!   are scarce, prefill is not.
//! - `mixed-lengths`: prompts of 64 to 16,384 tokens, answers of 16 to 512: a short request behind a long
//!   prompt waits a hundred times its own work.
//!
//! Lengths are log-uniform where they span a wide range: each doubling is as likely.

use std::ops::RangeInclusive;

use rand_pcg::Pcg64;

use crate::traces::Prompt;
use crate::workload::Turn;

use super::draw::{log_uniform, uniform};
use super::kit::Kit;

/// Distribution of lengths between two bounds.
#[derive(Debug, Clone)]
pub(super) enum Draw {
    Uniform(RangeInclusive<u32>),
    LogUniform(RangeInclusive<u32>),
}

/// Lengths of prompts and answers.
pub(super) struct Lengths {
    input: Draw,
    output: Draw,
}

pub(super) const BURST: Lengths = Lengths {
    input: Draw::LogUniform(256..=4_096),
    output: Draw::Uniform(32..=256),
};
pub(super) const DECODE_HEAVY: Lengths = Lengths {
    input: Draw::Uniform(64..=256),
    output: Draw::LogUniform(256..=2_048),
};
pub(super) const MIXED: Lengths = Lengths {
    input: Draw::LogUniform(64..=16_384),
    output: Draw::LogUniform(16..=512),
};

pub(super) fn sessions(kit: &mut Kit, requests: usize, lengths: &Lengths) -> Vec<Vec<Turn>> {
    (0..requests)
        .map(|_| {
            let input = lengths.input.length(&mut kit.rng);
            let output = lengths.output.length(&mut kit.rng);
            kit.request(&Prompt::default(), input, output)
        })
        .collect()
}

impl Draw {
    fn length(&self, rng: &mut Pcg64) -> u32 {
        match self {
            Self::Uniform(range) => uniform(rng, range.clone()),
            Self::LogUniform(range) => log_uniform(rng, range.clone()),
        }
    }
}
