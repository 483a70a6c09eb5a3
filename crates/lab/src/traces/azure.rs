// SPDX-License-Identifier: Apache-2.0

//! Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.
//!
//! The files do not say which prompts share a prefix. Every block gets an id of its own, so a replay
//! sees no cache hits, and the ideal hit rate is not known rather than 0.
//!
//! Source: AzurePublicDataset, the 2023 files (times without zone) and the 2024 files (times with one).

use csv::{ReaderBuilder, StringRecord};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use std::ops::RangeInclusive;

use crate::workload::{REQUEST_TOKENS, Session, Turn};

use super::blocks::BlockIds;
use super::fault::Findings;
use super::raw::warn_about_order;
use super::raw::{Clock, Raw};
use super::request::recorded_output;

const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];
const NANOS_PER_MS: f64 = 1e6;

/// One row that is right.
struct Record {
    line: u64,
    time_ns: i128,
    context: u32,
    generated: u32,
}

pub(crate) fn read(content: &[u8], block_size: u32, findings: &Findings) -> Raw {
    let records = records(content, findings);
    let backwards = records
        .windows(2)
        .filter(|pair| pair[1].time_ns < pair[0].time_ns)
        .count();
    warn_about_order(backwards, findings);
    let origin_ns = records
        .iter()
        .map(|record| record.time_ns)
        .min()
        .unwrap_or(0);
    let mut ids = BlockIds::default();
    let sessions = records
        .iter()
        .map(|record| Session {
            id: format!("row-{}", record.line),
            start_ms: (record.time_ns - origin_ns) as f64 / NANOS_PER_MS,
            turns: vec![Turn {
                delay_ms: 0.0,
                input_tokens: record.context,
                output_tokens: recorded_output(findings, record.line, record.generated),
                hash_ids: (0..record.context.div_ceil(block_size))
                    .map(|_| ids.fresh())
                    .collect(),
                priority: None,
                policy_class: None,
            }],
        })
        .collect();
    Raw {
        block_size,
        sessions,
        clock: Clock::Wall {
            origin_ms: origin_ns as f64 / NANOS_PER_MS,
        },
        prefix_identity: false,
        ..Raw::default()
    }
}

fn records(content: &[u8], findings: &Findings) -> Vec<Record> {
    let mut rows = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(content)
        .into_records();
    match rows.next() {
        Some(Ok(header)) if header.iter().eq(COLUMNS) => {}
        header => {
            let found = match header {
                Some(Ok(header)) => joined(&header),
                Some(Err(error)) => error.to_string(),
                None => "missing".to_owned(),
            };
            findings.fault(
                1,
                "line",
                found,
                format!("the header {}", COLUMNS.join(",")),
            );
            return Vec::new();
        }
    }
    rows.filter_map(|row| match row {
        Ok(row) => record(&row, findings),
        Err(error) => {
            let line = error.position().map_or(0, csv::Position::line);
            findings.fault(line, "line", error, "UTF-8 text in three columns");
            None
        }
    })
    .collect()
}

fn record(row: &StringRecord, findings: &Findings) -> Option<Record> {
    let line = row.position().map_or(0, csv::Position::line);
    let mut columns = row.iter();
    let (Some(time), Some(context), Some(generated), None) = (
        columns.next(),
        columns.next(),
        columns.next(),
        columns.next(),
    ) else {
        findings.fault(
            line,
            "line",
            joined(row),
            format!("three columns, {}", COLUMNS.join(",")),
        );
        return None;
    };
    let time_ns = nanoseconds(time);
    if time_ns.is_none() {
        findings.fault(
            line,
            COLUMNS[0],
            time,
            "a time as 2023-11-16 18:15:46.68, with a zone or without",
        );
    }
    let count = |column: usize, text: &str, range: RangeInclusive<u32>| {
        let count = text.parse().ok().filter(|count| range.contains(count));
        if count.is_none() {
            let allowed = format!("an integer from {} to {}", range.start(), range.end());
            findings.fault(line, COLUMNS[column], text, allowed);
        }
        count
    };
    let context = count(1, context, REQUEST_TOKENS);
    let generated = count(2, generated, 0..=*REQUEST_TOKENS.end());
    Some(Record {
        line,
        time_ns: time_ns?,
        context: context?,
        generated: generated?,
    })
}

/// Nanoseconds since 1970; a time without zone counts as UTC, since only differences matter.
fn nanoseconds(text: &str) -> Option<i128> {
    let timestamp = text.parse::<Timestamp>().ok().or_else(|| {
        let local: DateTime = text.parse().ok()?;
        Some(local.to_zoned(TimeZone::UTC).ok()?.timestamp())
    })?;
    Some(timestamp.as_nanosecond())
}

fn joined(row: &StringRecord) -> String {
    row.iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_and_without_zone_are_read_to_the_last_digit() {
        let local = nanoseconds("2023-11-16 18:15:46.6805900").unwrap();
        let zoned = nanoseconds("2023-11-16 18:15:46.680591+00:00").unwrap();
        assert_eq!(zoned - local, 1_000);
        assert_eq!(nanoseconds("yesterday"), None);
    }
}
