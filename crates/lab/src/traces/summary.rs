// SPDX-License-Identifier: Apache-2.0

//! What a trace holds, for `trace check` and for reports.
//!
//! The ideal prefix hit rate is what one cache of unlimited size would serve: the share of prompt blocks
//! whose whole prefix some earlier prompt already had. It does not depend on the order, since each
//! distinct prefix misses once. Without prefix identity, or without blocks, it is absent, not 0 (field
//! report BR-19).

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use crate::workload::Workload;

use super::fault::Warning;
use super::format::Format;
use super::raw::Pauses;

/// Facts about a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceSummary {
    /// The file as it was named.
    pub file: String,
    /// How it was read.
    pub format: Format,
    /// Tokens for each hash id.
    pub block_size: u32,
    /// Requests.
    pub rows: u64,
    /// Sessions; as many as rows when no request follows another.
    pub sessions: u64,
    /// First arrival on the clock of the file, ms. Taken off all times.
    pub origin_ms: f64,
    /// From the first to the last arrival of a session, ms.
    pub span_ms: f64,
    /// Rows over the span; absent without span.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<f64>,
    /// Prompt lengths, tokens; absent without rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<Lengths>,
    /// Output lengths, tokens; absent without rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<Lengths>,
    /// Where the pauses between turns come from.
    pub pauses: Pauses,
    /// Share of prompt blocks that one cache without limit would serve, 0..=1; absent when the file does
    /// not say which prompts share a prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ideal_prefix_hit_rate: Option<f64>,
    /// What to know before trusting a replay.
    pub warnings: Vec<Warning>,
}

/// Distribution of lengths; a quantile is the nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Lengths {
    /// Shortest.
    pub min: u32,
    /// Median.
    pub p50: u32,
    /// 90th percentile.
    pub p90: u32,
    /// 99th percentile.
    pub p99: u32,
    /// Longest.
    pub max: u32,
    /// Mean.
    pub mean: f64,
    /// Sum.
    pub total: u64,
}

impl Lengths {
    /// Absent for no lengths.
    fn of(lengths: impl Iterator<Item = u32>) -> Option<Self> {
        let mut sorted: Vec<u32> = lengths.collect();
        sorted.sort_unstable();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let total = sorted.iter().map(|length| u64::from(*length)).sum();
        let rank = |percent: usize| {
            let rank = (percent * sorted.len()).div_ceil(100);
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or(max)
        };
        Some(Self {
            min,
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max,
            mean: total as f64 / sorted.len() as f64,
            total,
        })
    }
}

/// Facts about the file that the workload does not hold.
pub(crate) struct Origin {
    pub(crate) file: String,
    pub(crate) format: Format,
    pub(crate) origin_ms: f64,
    pub(crate) pauses: Pauses,
    pub(crate) prefix_identity: bool,
    pub(crate) warnings: Vec<Warning>,
}

impl TraceSummary {
    pub(crate) fn of(workload: &Workload, origin: Origin) -> Self {
        let turns = || workload.sessions.iter().flat_map(|session| &session.turns);
        Self {
            file: origin.file,
            format: origin.format,
            block_size: workload.block_size,
            rows: workload.requests() as u64,
            sessions: workload.sessions.len() as u64,
            origin_ms: origin.origin_ms,
            span_ms: span_ms(workload),
            requests_per_s: offered_rate_per_s(workload),
            input_tokens: Lengths::of(turns().map(|turn| turn.input_tokens)),
            output_tokens: Lengths::of(turns().map(|turn| turn.output_tokens)),
            pauses: origin.pauses,
            ideal_prefix_hit_rate: origin
                .prefix_identity
                .then(|| ideal_prefix_hit_rate(workload))
                .flatten(),
            warnings: origin.warnings,
        }
    }
}

impl fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<24}{value}");
        line("file", self.file.clone())?;
        line(
            "format",
            format!("{}, {} tokens a block", self.format, self.block_size),
        )?;
        line("rows", self.rows.to_string())?;
        line("sessions", self.sessions.to_string())?;
        line("span", format!("{:.1} s", self.span_ms / 1e3))?;
        let rate = self
            .requests_per_s
            .map_or("not known: no span".into(), |r| format!("{r:.2} /s"));
        line("rate", rate)?;
        for (name, lengths) in [
            ("input tokens", &self.input_tokens),
            ("output tokens", &self.output_tokens),
        ] {
            let Some(Lengths {
                min,
                p50,
                p90,
                p99,
                max,
                mean,
                ..
            }) = lengths
            else {
                continue;
            };
            let text =
                format!("min {min}, p50 {p50}, p90 {p90}, p99 {p99}, max {max}, mean {mean:.1}");
            line(name, text)?;
        }
        if self.pauses != Pauses::default() {
            let Pauses { explicit, inferred } = self.pauses;
            line(
                "pauses between turns",
                format!("{explicit} given, {inferred} inferred"),
            )?;
        }
        let hits = self
            .ideal_prefix_hit_rate
            .map_or("not known: no prefix identity".into(), |rate| {
                format!("{:.1} % of blocks", 100.0 * rate)
            });
        line("ideal prefix hit rate", hits)?;
        for warning in &self.warnings {
            line("warning", warning.to_string())?;
        }
        Ok(())
    }
}

/// Share of prompt blocks whose whole prefix an earlier prompt had; absent without blocks.
#[must_use]
pub fn ideal_prefix_hit_rate(workload: &Workload) -> Option<f64> {
    // A prefix is a node of a tree: its parent and the id of its last block.
    let mut nodes: HashMap<(usize, u64), usize> = HashMap::new();
    let mut blocks = 0_u64;
    for turn in workload.sessions.iter().flat_map(|session| &session.turns) {
        let mut at = 0;
        for id in &turn.hash_ids {
            blocks += 1;
            let fresh = nodes.len() + 1;
            at = *nodes.entry((at, *id)).or_insert(fresh);
        }
    }
    (blocks > 0).then(|| 1.0 - nodes.len() as f64 / blocks as f64)
}

/// Requests over the span of arrivals, per s; absent when all arrive at once.
#[must_use]
pub fn offered_rate_per_s(workload: &Workload) -> Option<f64> {
    let span_s = span_ms(workload) / 1e3;
    let rate = workload.requests() as f64 / span_s;
    (span_s > 0.0 && rate.is_finite()).then_some(rate)
}

/// From the first to the last arrival of a session, ms.
#[must_use]
pub fn span_ms(workload: &Workload) -> f64 {
    let starts = || workload.sessions.iter().map(|session| session.start_ms);
    let (first, last) = (starts().reduce(f64::min), starts().reduce(f64::max));
    last.zip(first).map_or(0.0, |(last, first)| last - first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Arrivals, Session, Turn};

    fn workload(prompts: &[&[u64]]) -> Workload {
        Workload {
            name: "w".into(),
            block_size: 1,
            sessions: prompts
                .iter()
                .enumerate()
                .map(|(index, ids)| Session {
                    id: index.to_string(),
                    start_ms: 500.0 * index as f64,
                    turns: vec![Turn {
                        delay_ms: 0.0,
                        input_tokens: ids.len() as u32,
                        output_tokens: 1,
                        hash_ids: ids.to_vec(),
                        priority: None,
                        policy_class: None,
                    }],
                })
                .collect(),
            arrivals: Arrivals::Open,
        }
    }

    #[test]
    fn a_block_hits_only_behind_the_same_prefix() {
        // Of seven blocks, five are new: 1, 1-2, 1-3, 9 and 9-2. The hits are 1 and 1-2.
        let rate = ideal_prefix_hit_rate(&workload(&[&[1, 2], &[1, 3], &[9, 2], &[1]]));
        assert_eq!(rate, Some(1.0 - 5.0 / 7.0));
    }

    #[test]
    fn no_blocks_have_no_hit_rate() {
        assert_eq!(ideal_prefix_hit_rate(&workload(&[])), None);
    }

    #[test]
    fn the_rate_is_requests_over_the_span_and_absent_without_one() {
        // Three arrivals at 0, 500 and 1000 ms.
        let three = workload(&[&[1], &[1], &[1]]);
        assert_eq!(
            (span_ms(&three), offered_rate_per_s(&three)),
            (1000.0, Some(3.0))
        );
        assert_eq!(offered_rate_per_s(&workload(&[&[1]])), None);
    }

    #[test]
    fn quantiles_are_nearest_ranks() {
        let lengths = Lengths::of(1..=10).unwrap();
        assert_eq!((lengths.p50, lengths.p90, lengths.p99), (5, 9, 10));
        assert_eq!(
            (lengths.min, lengths.max, lengths.mean, lengths.total),
            (1, 10, 5.5, 55)
        );
        assert_eq!(Lengths::of(std::iter::empty()), None);
    }
}
