// SPDX-License-Identifier: Apache-2.0

//! What the demo asks of the fleet: steps of concurrency, and the requests themselves.
//!
//! The fleet has 4 workers with 8 seats each. Its knee therefore lies at 32 requests in flight: below, every request
//! finds a seat; beyond, the rest waits. The staircase starts with one request a worker, which meets nobody, climbs to
//! four times the knee and comes down again, so that every regime is entered and left. It ends with silence, in which the
//! router's knowledge must age too.
//!
//! Every word of a prompt is one token of the mock tokenizer, so lengths and shared prefixes are exact. Requests take
//! turns over a few long prefixes, as sessions with a common system prompt do, and differ in their last words. Output
//! lengths are mixed because equal ones would finish in step and hide queueing.

use std::time::Duration;

/// Mock workers of the demo fleet.
pub const WORKERS: usize = 4;
/// Sequences that one worker runs at a time.
pub const SEATS_PER_WORKER: usize = 8;
/// Flags for the speed of the workers. Prefill is slow against a decode step, so that time to first token shows the queue
/// and not the step in progress; all is slow enough for a laptop: at the knee, about 30 requests and 700 tokens a second.
pub const TIMING: [&str; 6] = [
    "--mock-timing",
    "fixed",
    "--mock-prefill-ms",
    "80",
    "--mock-decode-ms",
    "25",
];

const PREFIXES: u64 = 7;
const PREFIX_WORDS: u64 = 256;
const SUFFIX_WORDS: u64 = 32;
const OUTPUT_TOKENS: [u32; 5] = [16, 20, 24, 28, 32];
/// Words `w3` to `w4095` are the vocabulary of the mock tokenizer.
const VOCABULARY: std::ops::Range<u64> = 3..4096;

/// One step of the staircase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// Requests kept in flight.
    pub concurrency: usize,
    /// How long.
    pub length: Duration,
}

/// The staircase, with `unit` a step. Steps after which a queue must fill, drain or be forgotten take twice as long.
#[must_use]
pub fn staircase(unit: Duration) -> Vec<Phase> {
    let knee = WORKERS * SEATS_PER_WORKER;
    [
        (WORKERS, 2),
        (knee / 2, 1),
        (knee, 1),
        (2 * knee, 1),
        (4 * knee, 2),
        (knee, 2),
        (knee / 2, 1),
        (WORKERS, 2),
        (0, 3),
    ]
    .map(|(concurrency, units)| Phase {
        concurrency,
        length: unit * units,
    })
    .into()
}

/// Prompt of request `number`.
#[must_use]
pub fn prompt(number: u64) -> String {
    let prefix = number % PREFIXES;
    let shared = (0..PREFIX_WORDS).map(|word| prefix * PREFIX_WORDS + word);
    // A stride that shares no factor with the vocabulary size, so that neighbours differ in every word.
    let own = (0..SUFFIX_WORDS).map(|word| number * 1_009 + word * 13);
    let size = VOCABULARY.end - VOCABULARY.start;
    shared
        .chain(own)
        .map(|word| format!("w{}", VOCABULARY.start + word % size))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Output length of request `number`, tokens.
#[must_use]
pub fn output_tokens(number: u64) -> u32 {
    OUTPUT_TOKENS[(number % OUTPUT_TOKENS.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_staircase_climbs_past_the_knee_and_comes_back_to_silence() {
        let steps: Vec<_> = staircase(Duration::from_secs(1))
            .iter()
            .map(|phase| phase.concurrency)
            .collect();
        assert_eq!(steps, [4, 16, 32, 64, 128, 32, 16, 4, 0]);
    }

    #[test]
    fn requests_of_one_prefix_share_its_words_and_no_others() {
        let words = |number| {
            prompt(number)
                .split(' ')
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (first, same, other) = (words(0), words(7), words(1));
        assert_eq!(first.len(), 288);
        assert_eq!(first[..256], same[..256]);
        assert!(first[256..].iter().zip(&same[256..]).all(|(a, b)| a != b));
        assert_ne!(first[0], other[0]);
    }

    #[test]
    fn every_word_is_in_the_vocabulary() {
        for word in prompt(u64::from(u32::MAX)).split(' ') {
            let id: u64 = word[1..].parse().unwrap();
            assert!(VOCABULARY.contains(&id), "{word}");
        }
    }
}
