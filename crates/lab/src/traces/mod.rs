// SPDX-License-Identifier: Apache-2.0

//! Request traces, read strictly.
//!
//! The engine's own loaders accept much in silence: misspelt keys, surplus hash ids, outputs of zero
//! tokens, negative times, arrivals out of order. A replay of such a file runs and means nothing. So
//! every format has a reader here that checks each field, goes on after a fault, and reports all of
//! them, the first [`LISTED`] with file, line, field, value and what is allowed. What can be replayed
//! but should be known is a warning in the [`TraceSummary`].
//!
//! Every format becomes a [`Workload`]: sessions of turns with block identity. What sessions cannot
//! hold, such as requests that wait for two others, is refused with its reason.
//!
//! Times are rebased so that the first arrival is at 0: an absolute clock would put the origin into the
//! first latency (field report BR-16).
//!
//! Source: the formats are those that Dynamo 1.6.1 replays, and Azure's public traces.

mod agentic;
mod azure;
mod blocks;
mod chains;
mod content;
mod dynamo;
mod fault;
mod format;
mod mooncake;
mod raw;
mod request;
mod row;
mod serial;
mod shape;
mod summary;
mod weka;

use std::collections::HashSet;
use std::path::Path;

use crate::workload::{Arrivals, LONGEST_MS, Session, Workload};
use crate::workloads::BLOCK_SIZES;

pub(crate) use blocks::{BlockIds, Prompt};
pub use fault::{Fault, FaultList, LISTED, TraceError, Warning};
pub use format::{Format, UnknownFormatName};
pub use raw::Pauses;
pub use shape::{ShapeError, Slice, slice, speed_up, spread_buckets};
pub use summary::{Lengths, TraceSummary, ideal_prefix_hit_rate, offered_rate_per_s, span_ms};

use fault::Findings;
use mooncake::Turns;
use raw::{Clock, Raw, warn_about_order};
use summary::Origin;

/// Tokens for each hash id in files that do not say: what Mooncake's traces use.
pub const DEFAULT_BLOCK_SIZE: u32 = 512;

/// A stated clock that starts later than this, ms, is wall time: 11 days.
const WALL_CLOCK_MS: f64 = 1e9;
/// A wall clock below this, ms, would be before 1973: likely seconds.
const SECONDS_BELOW_MS: f64 = 1e11;
/// Fewer arrivals than this say nothing about the unit.
const UNIT_ARRIVALS: usize = 3;
/// Mean distance of arrivals, ms, below which the unit is doubtful.
const UNIT_GAP_MS: f64 = 1.0;

const DAY_MS: f64 = 86_400_000.0;
/// A span longer than this, ms, is doubtful.
const YEAR_MS: f64 = 365.0 * DAY_MS;

/// How to read a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Format; told from the content when absent.
    pub format: Option<Format>,
    /// Tokens for each hash id, at least 1. Absent: the file's own, or [`DEFAULT_BLOCK_SIZE`]. A file
    /// that says otherwise is refused.
    pub block_size: Option<u32>,
    /// Replay in a closed loop with so many requests in flight: then no arrival times are needed.
    pub concurrency: Option<usize>,
    /// Fields to pass over where unknown fields are refused.
    pub ignored_fields: Vec<String>,
}

/// A trace and what is known about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// How it was read.
    pub format: Format,
    /// The requests, named after the file; the first arrives at 0, sessions are in the order of arrival.
    pub workload: Workload,
    /// What it holds.
    pub summary: TraceSummary,
}

impl Trace {
    /// Reads and checks a file, plain or gzip.
    ///
    /// # Errors
    /// When it cannot be read, is of no known format, or has faults: then all of them.
    pub fn read(path: &Path, options: &ReadOptions) -> Result<Self, TraceError> {
        let file = path.display().to_string();
        let content = content::load(path).map_err(|source| TraceError::Read {
            file: file.clone(),
            source,
        })?;
        let findings = Findings::new(file.clone(), options.ignored_fields.clone());
        if content::lines(&content).next().is_none() {
            findings.fault(1, "file", "empty", "at least one request");
        }
        if let Some(size) = options.block_size.filter(|it| !BLOCK_SIZES.contains(it)) {
            findings.fault(1, "block_size", size, "1 to 65536 tokens");
        }
        if options.concurrency == Some(0) {
            findings.fault(1, "concurrency", 0, "at least 1 request");
        }
        findings.check()?;
        let format = match options.format.or_else(|| Format::detect(&content)) {
            Some(format) => format,
            None => {
                let found = first_line(&content);
                return Err(TraceError::UnknownFormat { file, found });
            }
        };
        let mut raw = read_as(format, &content, options, &findings);
        if raw.sessions.is_empty() && !findings.has_faults() {
            findings.fault(1, "file", "without a request", "at least one request");
        }
        findings.check()?;

        name_apart(&mut raw.sessions);
        let origin_ms = arrange(&mut raw, options.concurrency.is_none(), &findings);
        warn_about_span(&raw.sessions, &findings);
        refuse_aeons(&raw.sessions, &findings);
        findings.check()?;
        let name = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        let workload = Workload {
            name: name.unwrap_or_else(|| file.clone()),
            block_size: raw.block_size,
            sessions: raw.sessions,
            arrivals: match options.concurrency {
                Some(concurrency) => Arrivals::Closed { concurrency },
                None => Arrivals::Open,
            },
        };
        let origin = Origin {
            file,
            format,
            origin_ms,
            pauses: raw.pauses,
            prefix_identity: raw.prefix_identity,
            warnings: findings.into_warnings(),
        };
        Ok(Self {
            format,
            summary: TraceSummary::of(&workload, origin),
            workload,
        })
    }
}

/// What a file of no known format starts with, for a message.
fn first_line(content: &[u8]) -> String {
    if content.starts_with(&[0xff, 0xfe]) || content.starts_with(&[0xfe, 0xff]) {
        return "UTF-16 text, not UTF-8".into();
    }
    let line = content::lines(content).next().map_or(&[][..], |it| it.1);
    format!("\"{}\"", fault::shortened(&String::from_utf8_lossy(line)))
}

fn read_as(format: Format, content: &[u8], options: &ReadOptions, findings: &Findings) -> Raw {
    let block_size = options.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
    let open_loop = options.concurrency.is_none();
    match format {
        Format::Mooncake => mooncake::read(
            content,
            block_size,
            open_loop,
            Turns::WholePrompts,
            findings,
        ),
        Format::MooncakeDelta => {
            mooncake::read(content, block_size, open_loop, Turns::Deltas, findings)
        }
        Format::AgenticMooncake => agentic::read(content, options.block_size, findings),
        Format::LegacyAgentic => agentic::read_legacy(content, block_size, findings),
        Format::Weka => weka::read(content, options.block_size, findings),
        Format::DynamoRequest => dynamo::read(content, options.block_size, findings),
        Format::Azure => azure::read(content, block_size, findings),
    }
}

/// Gives sessions of one name different ones.
fn name_apart(sessions: &mut [Session]) {
    let mut taken = HashSet::new();
    for session in sessions {
        let name = session.id.clone();
        let mut copy = 1;
        while !taken.insert(session.id.clone()) {
            copy += 1;
            session.id = format!("{name}#{copy}");
        }
    }
}

/// Orders and rebases arrivals, warns about a doubtful clock, and returns its first moment, ms.
fn arrange(raw: &mut Raw, open_loop: bool, findings: &Findings) -> f64 {
    let backwards = raw
        .sessions
        .windows(2)
        .filter(|pair| matches!(pair, [before, after] if after.start_ms < before.start_ms))
        .count();
    let first_ms = shape::rebase(&mut raw.sessions);
    let sessions = raw.sessions.len();
    match raw.clock {
        Clock::Wall { origin_ms } => return origin_ms + first_ms,
        Clock::PerSession if open_loop && sessions > 1 => findings.warn(
            "no arrivals",
            None,
            format!("the format has no arrival times: all {sessions} sessions start at once"),
        ),
        Clock::Stated if open_loop => {
            warn_about_order(backwards, findings);
            warn_about_origin(first_ms, findings);
            warn_about_unit(&raw.sessions, findings);
        }
        Clock::Stated | Clock::PerSession => {}
    }
    first_ms
}

fn warn_about_span(sessions: &[Session], findings: &Findings) {
    let span_ms = sessions.last().map_or(0.0, |session| session.start_ms);
    if span_ms > YEAR_MS {
        let days = (span_ms / DAY_MS).round();
        let text = format!("arrivals span {days} days: are the timestamps right?");
        findings.warn("span", None, text);
    }
}

/// No session may last, or start, after the longest virtual time.
fn refuse_aeons(sessions: &[Session], findings: &Findings) {
    for session in sessions {
        let end_ms = session.earliest_end_ms();
        if end_ms > LONGEST_MS {
            findings.fault(
                1,
                format!("last turn of session {}", session.id),
                format!("{end_ms} ms or more after the first arrival"),
                format!("at most {LONGEST_MS} ms, ten years"),
            );
        }
    }
}

fn warn_about_origin(first_ms: f64, findings: &Findings) {
    if first_ms > WALL_CLOCK_MS {
        let doubt = if first_ms < SECONDS_BELOW_MS {
            "; as milliseconds that is before 1973: are they in seconds?"
        } else {
            ""
        };
        let text = format!("timestamps are absolute, the first is {first_ms}: rebased to 0{doubt}");
        findings.warn("origin", None, text);
    }
}

fn warn_about_unit(sessions: &[Session], findings: &Findings) {
    let span_ms = sessions.last().map_or(0.0, |session| session.start_ms);
    let arrivals = sessions.len();
    if arrivals >= UNIT_ARRIVALS && span_ms < UNIT_GAP_MS * (arrivals - 1) as f64 {
        let within_ms = span_ms.ceil().max(1.0);
        findings.warn(
            "unit",
            None,
            format!(
                "{arrivals} requests arrive within {within_ms} ms: are the timestamps in seconds?"
            ),
        );
    }
}
