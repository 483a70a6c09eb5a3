// SPDX-License-Identifier: Apache-2.0

//! `hotspot-shift`: sixteen prefixes, of which one becomes hot, twice, and not the same.
//!
//! The run has four phases of equal length. In the first and third each prefix is as likely. In the
//! second and fourth one of them takes 85 % of the requests. A rule that only follows the cache sends
//! them all to one worker; a rule that ignores it computes the prefix everywhere. Phases are counted in
//! requests, so that every load has the same ones.
//!
//! Defaults: prefixes of 2,048 tokens, questions of 64 to 256 and answers of 32 to 256.

use std::ops::RangeInclusive;

use rand::Rng;

use crate::workload::Turn;

use super::draw::uniform;
use super::kit::Kit;

const PREFIXES: usize = 16;
const PREFIX_TOKENS: u32 = 2_048;
const PHASES: usize = 4;
const HOT_SHARE: f64 = 0.85;
const QUESTION_TOKENS: RangeInclusive<u32> = 64..=256;
const ANSWER_TOKENS: RangeInclusive<u32> = 32..=256;

pub(super) fn sessions(kit: &mut Kit, requests: usize) -> Vec<Vec<Turn>> {
    let prefixes = kit.shared(PREFIXES, PREFIX_TOKENS);
    (0..requests)
        .map(|request| {
            let phase = PHASES * request / requests;
            // Prefixes are drawn alike, so the hot ones may as well be those of the phase's number.
            let hot = phase % 2 == 1 && kit.rng.random_bool(HOT_SHARE);
            let prefix = if hot {
                &prefixes[phase]
            } else {
                kit.pick(&prefixes)
            };
            let question = uniform(&mut kit.rng, QUESTION_TOKENS);
            let answer = uniform(&mut kit.rng, ANSWER_TOKENS);
            kit.request(prefix, question, answer)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::draw::Streams;
    use std::collections::HashMap;

    #[test]
    fn one_prefix_is_hot_in_the_second_phase_and_another_in_the_fourth() {
        let mut kit = Kit::new(Streams::new(1).contents, 16);
        let sessions = sessions(&mut kit, 4_000);
        let favourite = |phase: usize| {
            let mut counts: HashMap<u64, usize> = HashMap::new();
            for turns in &sessions[1_000 * phase..1_000 * (phase + 1)] {
                *counts.entry(turns[0].hash_ids[0]).or_default() += 1;
            }
            counts.into_iter().max_by_key(|(_, count)| *count).unwrap()
        };
        // 85 % and a sixteenth of the rest are 859 of 1000; a sixteenth is 62.
        let favourites = [0, 1, 2, 3].map(favourite);
        let counts = favourites.map(|(_, count)| count);
        assert!(counts[0] < 120 && counts[2] < 120, "{counts:?}");
        assert!(
            (800..920).contains(&counts[1]) && (800..920).contains(&counts[3]),
            "{counts:?}"
        );
        assert_ne!(favourites[1].0, favourites[3].0);
    }
}
