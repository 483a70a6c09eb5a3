// SPDX-License-Identifier: Apache-2.0

//! Agentic Mooncake: requests that name the requests they wait for.
//!
//! Version 2 has a header that owns the block size, and typed dependencies. The legacy form has no
//! header, `wait_for`, and one pause for all of it. Both become chains, see [`super::chains`].
//!
//! Source: `dynamo.agentic_mooncake` version 2 and the legacy rows, as Dynamo's replay reads them.

use std::collections::BTreeSet;

use super::chains::{Node, Until, Wait, into_sessions};
use super::content::lines;
use super::fault::Findings;
use super::format::AGENTIC_SCHEMA;
use super::raw::{Pauses, Raw};
use super::request::take_request;
use super::row::{Need, Row, Unknown};
use crate::workloads::BLOCK_SIZES;

const VERSION: u32 = 2;

/// Version 2. `expected`: the block size the user asked for, which must be the header's.
pub(crate) fn read(content: &[u8], expected: Option<u32>, findings: &Findings) -> Raw {
    let mut rows = lines(content);
    let Some(block_size) = rows
        .next()
        .and_then(|(line, text)| Row::parse(findings, line, text))
        .and_then(|row| header(row, expected))
    else {
        return Raw::default();
    };
    let mut models = BTreeSet::new();
    let nodes: Vec<Node> = rows
        .filter_map(|(line, text)| node(Row::parse(findings, line, text)?, block_size, &mut models))
        .collect();
    warn_about_models(&models, findings);
    raw(nodes, "dependencies", block_size, findings)
}

/// The form without header.
pub(crate) fn read_legacy(content: &[u8], block_size: u32, findings: &Findings) -> Raw {
    let nodes: Vec<Node> = lines(content)
        .filter_map(|(line, text)| legacy_node(Row::parse(findings, line, text)?, block_size))
        .collect();
    raw(nodes, "wait_for", block_size, findings)
}

/// One model answers in a replay.
pub(crate) fn warn_about_models(models: &BTreeSet<String>, findings: &Findings) {
    if models.len() > 1 {
        let names: Vec<&str> = models.iter().map(String::as_str).collect();
        findings.warn(
            "models",
            None,
            format!(
                "{} models ({}) are replayed as one",
                names.len(),
                names.join(", ")
            ),
        );
    }
}

fn raw(nodes: Vec<Node>, field: &str, block_size: u32, findings: &Findings) -> Raw {
    if findings.has_faults() {
        return Raw::default();
    }
    let mut sessions = into_sessions(nodes, field, findings);
    // The order of the rows means nothing here.
    sessions.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    let later_turns = sessions
        .iter()
        .map(|session| session.turns.len() as u64 - 1)
        .sum();
    Raw {
        block_size,
        sessions,
        pauses: Pauses {
            explicit: later_turns,
            inferred: 0,
        },
        prefix_identity: true,
        ..Raw::default()
    }
}

fn header(mut row: Row<'_>, expected: Option<u32>) -> Option<u32> {
    row.word("schema", &[AGENTIC_SCHEMA]);
    let version = row.count(&["version"], Need::Required, 0..=u32::MAX);
    if let Some(version) = version.filter(|version| *version != VERSION) {
        row.fault("version", version, VERSION);
    }
    row.word("hash_id_scope", &["local"]);
    if let Some(mut source) = row.object("source", Need::Required) {
        source.text(&["format"], Need::Required);
        source.text(&["digest"], Need::Required);
        source.finish(Unknown::Refuse);
    }
    let block_size = row.count(&["block_size"], Need::Required, BLOCK_SIZES);
    if let (Some(own), Some(expected)) = (block_size, expected)
        && own != expected
    {
        row.fault(
            "block_size",
            own,
            format!("{expected}, the block size asked for"),
        );
    }
    row.finish(Unknown::Refuse);
    block_size
}

fn node(mut row: Row<'_>, block_size: u32, models: &mut BTreeSet<String>) -> Option<Node> {
    let request_id = row.text(&["request_id"], Need::Required);
    let play = row.text(&["play_id"], Need::Required);
    row.text(&["session_id"], Need::Required);
    models.extend(row.text(&["model"], Need::Required));
    row.integer(&["source_play_ordinal"], Need::Optional);
    row.time(&["recorded_api_time_ms"], Need::Optional);
    let not_before_ms = row.time(&["not_before_ms"], Need::Required);
    let waits = row
        .objects("dependencies", Need::Optional)
        .into_iter()
        .filter_map(wait)
        .collect();
    let turn = take_request(&mut row, block_size);
    let line = row.line();
    row.finish(Unknown::Refuse);
    Some(Node {
        line,
        request_id: request_id?,
        play: play?,
        not_before_ms: not_before_ms?,
        turn: turn?,
        waits,
    })
}

fn wait(mut row: Row<'_>) -> Option<Wait> {
    let request_id = row.text(&["request_id"], Need::Required);
    let delay_ms = row.time(&["delay_ms"], Need::Required);
    let trigger = row.word("trigger", &["completion", "dispatch"]);
    let relation = row.word("relation", &["sequence", "spawn", "join", "replay_barrier"]);
    if trigger == Some("dispatch")
        && let Some(relation) = relation.filter(|relation| *relation != "spawn")
    {
        row.fault(
            "trigger",
            "dispatch",
            format!("completion, for the relation {relation}"),
        );
    }
    row.finish(Unknown::Refuse);
    Some(Wait {
        request_id: request_id?,
        delay_ms: delay_ms?,
        until: match trigger? {
            "dispatch" => Until::Dispatch,
            _ => Until::Completion,
        },
    })
}

fn legacy_node(mut row: Row<'_>, block_size: u32) -> Option<Node> {
    let request_id = row.text(&["request_id"], Need::Required);
    row.text(&["session_id"], Need::Optional);
    let stamp = row.time(&["timestamp", "created_time"], Need::Optional);
    let delay = row.time(&["delay"], Need::Optional);
    let delay_ms = row.time(&["delay_ms"], Need::Optional);
    if delay.is_some() && delay_ms.is_some() {
        row.fault("delay", "given as delay and as delay_ms", "one of them");
    }
    let tool_wait = row.time(&["tool_wait_ms"], Need::Optional);
    let pause_ms = delay.or(delay_ms).unwrap_or(0.0) + tool_wait.unwrap_or(0.0);
    let wait_for = row.texts(&["wait_for"], Need::Optional).unwrap_or_default();
    if wait_for.is_empty() && pause_ms > 0.0 {
        row.findings().warn(
            "pause of a root",
            Some(row.line()),
            format!("a pause of {pause_ms} ms after nothing is not used"),
        );
    }
    let turn = take_request(&mut row, block_size);
    let line = row.line();
    row.finish(Unknown::Refuse);
    let root = wait_for.is_empty();
    Some(Node {
        line,
        request_id: request_id?,
        play: String::new(),
        not_before_ms: if root { stamp.unwrap_or(0.0) } else { 0.0 },
        turn: turn?,
        waits: wait_for
            .into_iter()
            .map(|request_id| Wait {
                request_id,
                delay_ms: pause_ms,
                until: Until::Completion,
            })
            .collect(),
    })
}
