// SPDX-License-Identifier: Apache-2.0

//! `paper`, `paper-mixed` and `paper-prompts`: the workload of the paper, in a closed loop.
//!
//! Five templates of 128 tokens, each as likely. `paper` sends them whole and asks for 256 tokens each time.
//! Then all requests of a wave end together and the next wave starts together, and policies can hardly
//! differ. The two others differ from it in one thing each. `paper-mixed` asks for 16, 64, 256 or 1,024
//! tokens, which breaks the lockstep. `paper-prompts` continues a template with 0, 128, 512 or 2,048 tokens of
//! its own, so that prompts differ in the work they make.
//!
//! Source: the evaluation of the paper, 5 templates, 128 tokens in and up to 256 out, swept over concurrency.

use rand::Rng;

use crate::workload::Turn;

use super::kit::Kit;

const TEMPLATES: usize = 5;
const TEMPLATE_TOKENS: u32 = 128;

/// What each request draws from, every length as likely.
pub(super) struct Lengths {
    /// Tokens behind the template.
    own: &'static [u32],
    /// Tokens asked for.
    outputs: &'static [u32],
}

/// Those of `paper`.
pub(super) const PUBLISHED: Lengths = Lengths {
    own: &[0],
    outputs: &[256],
};
/// Those of `paper-mixed`.
pub(super) const MIXED_OUTPUTS: Lengths = Lengths {
    outputs: &[16, 64, 256, 1_024],
    ..PUBLISHED
};
/// Those of `paper-prompts`.
pub(super) const MIXED_PROMPTS: Lengths = Lengths {
    own: &[0, 128, 512, 2_048],
    ..PUBLISHED
};

pub(super) fn sessions(kit: &mut Kit, requests: usize, lengths: &Lengths) -> Vec<Vec<Turn>> {
    let templates: Vec<_> = (0..TEMPLATES)
        .map(|_| kit.unique(TEMPLATE_TOKENS))
        .collect();
    (0..requests)
        .map(|_| {
            let template = kit.pick(&templates);
            let output = lengths.outputs[kit.rng.random_range(0..lengths.outputs.len())];
            let own = match lengths.own {
                [only] => *only,
                several => several[kit.rng.random_range(0..several.len())],
            };
            kit.request(template, own, output)
        })
        .collect()
}
