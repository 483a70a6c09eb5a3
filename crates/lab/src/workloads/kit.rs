// SPDX-License-Identifier: Apache-2.0

//! What generators build their requests with.

use rand::Rng;
use rand_pcg::Pcg64;

use crate::traces::{BlockIds, Prompt};
use crate::workload::Turn;

/// Random numbers and block ids of one workload.
pub(crate) struct Kit {
    pub(crate) rng: Pcg64,
    block_size: u32,
    ids: BlockIds,
}

/// What one turn of a dialogue adds.
pub(crate) struct Step {
    /// Before the turn, ms; not used before the first.
    pub(crate) pause_ms: f64,
    /// New prompt tokens, at least 1.
    pub(crate) input: u32,
    /// Answer tokens, at least 1.
    pub(crate) output: u32,
}

impl Kit {
    pub(crate) fn new(rng: Pcg64, block_size: u32) -> Self {
        Self {
            rng,
            block_size,
            ids: BlockIds::default(),
        }
    }

    /// `count` prompts that share nothing with each other, each to be continued by several sessions:
    /// rounded up to whole blocks, so that two continuations have no block in common.
    pub(crate) fn shared(&mut self, count: usize, tokens: u32) -> Vec<Prompt> {
        let whole = tokens.div_ceil(self.block_size) * self.block_size;
        (0..count).map(|_| self.unique(whole)).collect()
    }

    /// A prompt that shares nothing with any other.
    pub(crate) fn unique(&mut self, tokens: u32) -> Prompt {
        self.grown(&Prompt::default(), tokens)
    }

    /// One of `prompts`, each as likely; there is at least one.
    pub(crate) fn pick<'a>(&mut self, prompts: &'a [Prompt]) -> &'a Prompt {
        &prompts[self.rng.random_range(0..prompts.len())]
    }

    /// One request: `prompt`, `input` new tokens, an answer of `output`.
    pub(crate) fn request(&mut self, prompt: &Prompt, input: u32, output: u32) -> Vec<Turn> {
        vec![turn(self.grown(prompt, input), output, 0.0)]
    }

    /// A session of `turns` turns: each prompt is the one before, its answer and new tokens.
    pub(crate) fn dialogue(
        &mut self,
        start: &Prompt,
        turns: usize,
        mut step: impl FnMut(&mut Pcg64, usize) -> Step,
    ) -> Vec<Turn> {
        let mut prompt = start.clone();
        let mut answer = 0;
        (0..turns)
            .map(|index| {
                let step = step(&mut self.rng, index);
                prompt = self.grown(&prompt, answer + step.input);
                answer = step.output;
                let delay_ms = if index == 0 { 0.0 } else { step.pause_ms };
                turn(prompt.clone(), answer, delay_ms)
            })
            .collect()
    }

    fn grown(&mut self, prompt: &Prompt, tokens: u32) -> Prompt {
        // Generated prompts are far below 32 bits.
        let grown = prompt.grown(tokens, self.block_size, &mut self.ids);
        grown.unwrap_or_else(|| prompt.clone())
    }
}

/// Turns of each session, so that together they are `requests`; the last session may be shorter.
pub(crate) fn turns_of_sessions(requests: usize, turns: usize) -> impl Iterator<Item = usize> {
    (0..requests)
        .step_by(turns)
        .map(move |before| turns.min(requests - before))
}

fn turn(prompt: Prompt, output_tokens: u32, delay_ms: f64) -> Turn {
    Turn {
        delay_ms,
        input_tokens: prompt.tokens(),
        output_tokens,
        hash_ids: prompt.into_ids(),
        priority: None,
        policy_class: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::draw::Streams;

    #[test]
    fn shared_prompts_are_whole_blocks_and_their_continuations_share_no_further_block() {
        let mut kit = Kit::new(Streams::new(1).contents, 16);
        let shared = kit.shared(1, 20);
        assert_eq!(shared[0].tokens(), 32);
        let (one, other) = (kit.request(&shared[0], 5, 1), kit.request(&shared[0], 5, 1));
        assert_eq!(one[0].input_tokens, 37);
        assert_eq!(one[0].hash_ids[..2], other[0].hash_ids[..2]);
        assert_ne!(one[0].hash_ids[2], other[0].hash_ids[2]);
    }

    #[test]
    fn a_dialogue_sends_all_that_was_said_before() {
        let mut kit = Kit::new(Streams::new(1).contents, 16);
        let start = kit.unique(32);
        let turns = kit.dialogue(&start, 3, |_, index| Step {
            pause_ms: 7.0,
            input: 10,
            output: 4 + index as u32,
        });
        // 32 + 10, + 4 + 10, + 5 + 10.
        let lengths: Vec<u32> = turns.iter().map(|turn| turn.input_tokens).collect();
        assert_eq!(lengths, [42, 56, 71]);
        assert_eq!((turns[0].delay_ms, turns[1].delay_ms), (0.0, 7.0));
    }

    #[test]
    fn the_last_session_takes_what_is_left() {
        assert_eq!(turns_of_sessions(12, 5).collect::<Vec<_>>(), [5, 5, 2]);
        assert_eq!(turns_of_sessions(10, 5).collect::<Vec<_>>(), [5, 5]);
    }
}
