// SPDX-License-Identifier: Apache-2.0

//! `working-set`: questions about more documents than one worker can cache.
//!
//! 48 documents of 8,192 tokens are 393 k tokens, three times the cache of a worker with 8,192 blocks of
//! 16 tokens. Four workers hold them all if each keeps its own share; they thrash if requests go
//! anywhere. Every document is as likely, so no worker's share is hotter than another's.
//!
//! Defaults: questions of 32 to 128 tokens, answers of 32 to 128: the document is nearly all the work.

use std::ops::RangeInclusive;

use crate::workload::Turn;

use super::draw::uniform;
use super::kit::Kit;

const DOCUMENTS: usize = 48;
const DOCUMENT_TOKENS: u32 = 8_192;
const QUESTION_TOKENS: RangeInclusive<u32> = 32..=128;
const ANSWER_TOKENS: RangeInclusive<u32> = 32..=128;

pub(super) fn sessions(kit: &mut Kit, requests: usize) -> Vec<Vec<Turn>> {
    let documents = kit.shared(DOCUMENTS, DOCUMENT_TOKENS);
    (0..requests)
        .map(|_| {
            let document = kit.pick(&documents);
            let question = uniform(&mut kit.rng, QUESTION_TOKENS);
            let answer = uniform(&mut kit.rng, ANSWER_TOKENS);
            kit.request(document, question, answer)
        })
        .collect()
}
