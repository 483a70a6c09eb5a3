// SPDX-License-Identifier: Apache-2.0

//! Identity of prompt blocks: fresh ids, ids of separate scopes, and prompts that grow.
//!
//! A conversation's next prompt is the last one, its answer and the new message. The block that the last
//! prompt filled in part keeps its id when it is filled up, because the replay lets a block stand for
//! its first tokens too: so every prompt of a conversation starts with the whole one before. Prompts
//! of different conversations that end inside the same block would then agree to its end; shared
//! prefixes of generated prompts are therefore whole blocks.

use std::collections::HashMap;

/// Hands out block ids.
#[derive(Debug, Default)]
pub(crate) struct BlockIds {
    known: HashMap<(u64, u64), u64>,
    next: u64,
}

impl BlockIds {
    /// An id that was never given out.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The id for `hash` in `scope`: equal hashes of different scopes are different blocks.
    pub(crate) fn scoped(&mut self, scope: u64, hash: u64) -> u64 {
        let next = &mut self.next;
        *self.known.entry((scope, hash)).or_insert_with(|| {
            *next += 1;
            *next
        })
    }
}

/// A prompt that only grows at its end; empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    tokens: u32,
    ids: Vec<u64>,
}

impl Prompt {
    /// A prompt of `tokens` tokens, at most what `ids` hold.
    pub(crate) fn new(tokens: u32, ids: Vec<u64>) -> Self {
        Self { tokens, ids }
    }

    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    pub(crate) fn into_ids(self) -> Vec<u64> {
        self.ids
    }

    /// Appends `tokens` tokens of new content; nothing when the length would not fit 32 bits.
    #[must_use]
    pub(crate) fn grown(&self, tokens: u32, block_size: u32, ids: &mut BlockIds) -> Option<Self> {
        let length = self.tokens.checked_add(tokens)?;
        let blocks = length.div_ceil(block_size) as usize;
        let mut grown = self.ids.clone();
        grown.extend((grown.len()..blocks).map(|_| ids.fresh()));
        Some(Self::new(length, grown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_filled_in_part_keeps_its_id() {
        let mut ids = BlockIds::default();
        let first = Prompt::new(6, vec![ids.fresh(), ids.fresh()]);
        // 6 + 5 = 11 tokens are three blocks of four.
        let second = first.grown(5, 4, &mut ids).unwrap();
        assert_eq!((second.tokens(), second.into_ids()), (11, vec![1, 2, 3]));
    }

    #[test]
    fn equal_hashes_of_two_scopes_are_two_blocks() {
        let mut ids = BlockIds::default();
        let (a, b) = (ids.scoped(0, 7), ids.scoped(1, 7));
        assert_ne!(a, b);
        assert_eq!(ids.scoped(0, 7), a);
        assert_ne!(ids.fresh(), b);
    }

    #[test]
    fn a_prompt_beyond_32_bits_is_refused() {
        let prompt = Prompt::new(u32::MAX, vec![1]);
        assert_eq!(prompt.grown(1, u32::MAX, &mut BlockIds::default()), None);
    }
}
