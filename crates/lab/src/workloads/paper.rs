// SPDX-License-Identifier: Apache-2.0

//! `paper` and `paper-mixed`: the workload of the paper, in a closed loop.
//!
//! Five templates of 128 tokens, each as likely, sent whole. `paper` asks for 256 tokens each time. Then all
//! requests of a wave end together and the next wave starts together, and policies can hardly differ;
//! `paper-mixed` asks for 16, 64, 256 or 1,024 tokens instead, which breaks the lockstep.
//!
//! Source: the evaluation of the paper, 5 templates, 128 tokens in and 256 out, swept over concurrency.

use rand::Rng;

use crate::workload::Turn;

use super::kit::Kit;

const TEMPLATES: usize = 5;
const TEMPLATE_TOKENS: u32 = 128;
/// Output lengths of `paper`.
pub(super) const FIXED: &[u32] = &[256];
/// Output lengths of `paper-mixed`.
pub(super) const MIXED: &[u32] = &[16, 64, 256, 1_024];

pub(super) fn sessions(kit: &mut Kit, requests: usize, outputs: &[u32]) -> Vec<Vec<Turn>> {
    let templates: Vec<_> = (0..TEMPLATES)
        .map(|_| kit.unique(TEMPLATE_TOKENS))
        .collect();
    (0..requests)
        .map(|_| {
            let template = kit.pick(&templates);
            let output = outputs[kit.rng.random_range(0..outputs.len())];
            kit.request(template, 0, output)
        })
        .collect()
}
