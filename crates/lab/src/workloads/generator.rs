// SPDX-License-Identifier: Apache-2.0

//! The generated workloads by name.

use rand_pcg::Pcg64;

use crate::workload::{Arrivals, Session, Turn, Workload};

use super::arrivals::{Pattern, times};
use super::draw::Streams;
use super::error::SourceError;
use super::kit::Kit;
use super::scale::{OfferedLoad, Scale};
use super::{agentic, chat, cold, hotspot, paper, working_set};

const MS_PER_S: f64 = 1e3;
/// Prompts of more requests would not fit into memory.
const MOST_REQUESTS: usize = 1_000_000;

/// A workload that is made from a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Generator {
    /// Conversations behind shared system prompts.
    Chat,
    /// The same with long pauses for thought.
    ChatPauses,
    /// One of sixteen prefixes becomes hot, twice.
    HotspotShift,
    /// Bursts of prompts that share nothing.
    ColdBurst,
    /// Short prompts, long answers.
    DecodeHeavy,
    /// Prompts from 64 to 16,384 tokens.
    MixedLengths,
    /// Documents of three times one worker's cache.
    WorkingSet,
    /// Long runs with tools behind long shared contexts.
    Agentic,
    /// The paper's: five templates, 128 tokens in, 256 out.
    Paper,
    /// The paper's with four output lengths.
    PaperMixed,
    /// The paper's with four prompt lengths.
    PaperPrompts,
}

impl Generator {
    /// Every generator.
    pub const ALL: [Self; 11] = [
        Self::Chat,
        Self::ChatPauses,
        Self::HotspotShift,
        Self::ColdBurst,
        Self::DecodeHeavy,
        Self::MixedLengths,
        Self::WorkingSet,
        Self::Agentic,
        Self::Paper,
        Self::PaperMixed,
        Self::PaperPrompts,
    ];

    /// Those of the standard suite. The paper's with mixed prompts is for its reproduction, and long pauses are
    /// for lower tiers.
    pub const STANDARD: [Self; 9] = [
        Self::Chat,
        Self::HotspotShift,
        Self::ColdBurst,
        Self::DecodeHeavy,
        Self::MixedLengths,
        Self::WorkingSet,
        Self::Agentic,
        Self::Paper,
        Self::PaperMixed,
    ];

    /// The name used in options and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::ChatPauses => "chat-pauses",
            Self::HotspotShift => "hotspot-shift",
            Self::ColdBurst => "cold-burst",
            Self::DecodeHeavy => "decode-heavy",
            Self::MixedLengths => "mixed-lengths",
            Self::WorkingSet => "working-set",
            Self::Agentic => "agentic",
            Self::Paper => "paper",
            Self::PaperMixed => "paper-mixed",
            Self::PaperPrompts => "paper-prompts",
        }
    }

    /// One line on what it is.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Chat => {
                "conversations of 3 turns, 8 system prompts of 1024 tokens, 0.25 s of thought"
            }
            Self::ChatPauses => {
                "conversations of 3 turns, 8 system prompts of 1024 tokens, 10 s of thought"
            }
            Self::HotspotShift => {
                "16 prefixes of 2048 tokens, one takes 85 % in two of four phases"
            }
            Self::ColdBurst => "unique prompts of 256 to 4096 tokens, half of them in bursts of 24",
            Self::DecodeHeavy => "unique prompts of 64 to 256 tokens, 256 to 2048 out",
            Self::MixedLengths => "unique prompts of 64 to 16384 tokens, 16 to 512 out",
            Self::WorkingSet => {
                "questions about 48 documents of 8192 tokens, 3 times one worker's cache"
            }
            Self::Agentic => "runs of 5 turns behind 16 contexts of 8192 tokens, pauses for tools",
            Self::Paper => "5 templates, 128 tokens in, 256 out, closed loop",
            Self::PaperMixed => "5 templates, 128 tokens in, 16, 64, 256 or 1024 out, closed loop",
            Self::PaperPrompts => {
                "5 templates of 128 tokens and up to 2048 more, 256 out, closed loop"
            }
        }
    }

    /// A scale that some four workers of the B200 preset carry without strain: blocks of 16 tokens, seed
    /// 0, closed loop for the paper's workloads and open loop for the others.
    #[must_use]
    pub const fn default_scale(self) -> Scale {
        let (requests, load) = match self {
            Self::Chat | Self::ChatPauses => (2_100, OfferedLoad::Rate(20.0)),
            Self::HotspotShift => (2_000, OfferedLoad::Rate(40.0)),
            Self::ColdBurst => (2_000, OfferedLoad::Rate(20.0)),
            Self::DecodeHeavy => (1_000, OfferedLoad::Rate(8.0)),
            Self::MixedLengths => (2_000, OfferedLoad::Rate(10.0)),
            Self::WorkingSet => (2_000, OfferedLoad::Rate(20.0)),
            Self::Agentic => (1_200, OfferedLoad::Rate(10.0)),
            Self::Paper | Self::PaperMixed | Self::PaperPrompts => {
                (1_280, OfferedLoad::Concurrency(64))
            }
        };
        Scale {
            requests,
            load,
            block_size: 16,
            seed: 0,
        }
    }

    /// The workload of this scale.
    ///
    /// # Errors
    /// When a number of the scale is outside its range.
    pub fn generate(self, scale: &Scale) -> Result<Workload, SourceError> {
        Self::check(scale)?;
        let mut streams = Streams::new(scale.seed);
        let mut kit = Kit::new(streams.contents, scale.block_size);
        let turns = self.turns(&mut kit, scale.requests);
        let starts_ms = starts_ms(self.pattern(), &turns, scale.load, &mut streams.arrivals);
        let sessions = (1..)
            .zip(turns.into_iter().zip(starts_ms))
            .map(|(number, (turns, start_ms))| Session {
                id: format!("{}-{number}", self.name()),
                start_ms,
                turns,
            })
            .collect();
        Ok(Workload {
            name: self.name().to_owned(),
            block_size: scale.block_size,
            sessions,
            arrivals: arrivals(scale.load),
        })
    }

    pub(super) fn check(scale: &Scale) -> Result<(), SourceError> {
        scale.check()?;
        if scale.requests > MOST_REQUESTS {
            return Err(SourceError::Scale {
                key: "requests",
                value: scale.requests.to_string(),
                allowed: "at most 1000000 of a generated workload",
            });
        }
        Ok(())
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    fn pattern(self) -> Pattern {
        match self {
            Self::ColdBurst => Pattern::Bursts,
            _ => Pattern::Poisson,
        }
    }

    fn turns(self, kit: &mut Kit, requests: usize) -> Vec<Vec<Turn>> {
        match self {
            Self::Chat => chat::sessions(kit, requests, chat::THOUGHT_MS),
            Self::ChatPauses => chat::sessions(kit, requests, chat::LONG_THOUGHT_MS),
            Self::HotspotShift => hotspot::sessions(kit, requests),
            Self::ColdBurst => cold::sessions(kit, requests, &cold::BURST),
            Self::DecodeHeavy => cold::sessions(kit, requests, &cold::DECODE_HEAVY),
            Self::MixedLengths => cold::sessions(kit, requests, &cold::MIXED),
            Self::WorkingSet => working_set::sessions(kit, requests),
            Self::Agentic => agentic::sessions(kit, requests),
            Self::Paper => paper::sessions(kit, requests, &paper::PUBLISHED),
            Self::PaperMixed => paper::sessions(kit, requests, &paper::MIXED_OUTPUTS),
            Self::PaperPrompts => paper::sessions(kit, requests, &paper::MIXED_PROMPTS),
        }
    }
}

/// How sessions start under this load.
pub(super) fn arrivals(load: OfferedLoad) -> Arrivals {
    match load {
        OfferedLoad::Rate(_) => Arrivals::Open,
        OfferedLoad::Concurrency(concurrency) => Arrivals::Closed { concurrency },
    }
}

/// Start of each session, ms, ascending from 0; all 0 in a closed loop.
pub(super) fn starts_ms(
    pattern: Pattern,
    sessions: &[Vec<Turn>],
    load: OfferedLoad,
    rng: &mut Pcg64,
) -> Vec<f64> {
    let OfferedLoad::Rate(rate) = load else {
        return vec![0.0; sessions.len()];
    };
    let requests: usize = sessions.iter().map(Vec::len).sum();
    let mean_gap_ms = MS_PER_S / rate * requests as f64 / sessions.len() as f64;
    times(pattern, sessions.len(), rng)
        .into_iter()
        .map(|time| mean_gap_ms * time)
        .collect()
}
