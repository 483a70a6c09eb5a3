// SPDX-License-Identifier: Apache-2.0

//! What a Dynamo frontend records: `dynamo.request.trace.v1`.
//!
//! Only `request_end` records with a `replay` part are requests; tool events and payloads are not
//! needed, since the gap between two requests already holds the time of the tools. Without
//! `agent_context` each request is a session of its own. With it, the requests of an agent session form
//! one session, together with those of its child sessions and of requests that others depend on; they
//! must not overlap in time, see [`super::serial`].
//!
//! Records may be wrapped, as by Dynamo's recorder: `{"timestamp": .., "event": {..}}`.
//!
//! Source: Dynamo's request trace and its replay reader.

use std::collections::{BTreeSet, HashMap};

use crate::workload::{REQUEST_TOKENS, Session, Turn};
use crate::workloads::BLOCK_SIZES;

use super::agentic::warn_about_models;
use super::content::lines;
use super::fault::Findings;
use super::format::DYNAMO_SCHEMA;
use super::raw::{Clock, Pauses, Raw};
use super::request::{fitting, recorded_output};
use super::row::{Need, Row, Unknown};
use super::serial::{self, Recorded};

/// Measurements that a replay makes anew.
const MEASURED: [&str; 13] = [
    "x_request_id",
    "input_tokens",
    "cached_tokens",
    "prefill_wait_time_ms",
    "prefill_time_ms",
    "ttft_ms",
    "avg_itl_ms",
    "kv_hit_rate",
    "kv_transfer_estimated_latency_ms",
    "queue_depth",
    "worker",
    "finish_reason_metadata",
    "finish_reason",
];

struct Entry {
    line: u64,
    request_id: String,
    agent: Option<Agent>,
    depends_on: Vec<String>,
    start_ms: u64,
    end_ms: Option<u64>,
    turn: Turn,
}

struct Agent {
    session: String,
    parent: Option<String>,
}

/// `expected`: the block size the user asked for, which must be the file's.
pub(crate) fn read(content: &[u8], expected: Option<u32>, findings: &Findings) -> Raw {
    let mut reader = Reader {
        block_size: expected,
        models: BTreeSet::new(),
        entries: Vec::new(),
        links: Vec::new(),
    };
    for (line, text) in lines(content) {
        if let Some(row) = Row::parse(findings, line, text) {
            reader.record(row);
        }
    }
    reader.check(findings);
    warn_about_models(&reader.models, findings);
    if findings.has_faults() {
        return Raw::default();
    }
    let origin_ms = reader
        .entries
        .iter()
        .map(|entry| entry.start_ms)
        .min()
        .unwrap_or(0);
    let mut pauses = Pauses::default();
    let block_size = reader.block_size.unwrap_or(1);
    let sessions = reader
        .groups()
        .into_iter()
        .filter_map(|(id, entries)| {
            let requests = entries
                .into_iter()
                .map(|entry| recorded(entry, origin_ms))
                .collect();
            serial::session(id, requests, &mut pauses, findings)
        })
        .collect::<Vec<Session>>();
    Raw {
        block_size,
        sessions,
        pauses,
        clock: Clock::Wall {
            origin_ms: origin_ms as f64,
        },
        prefix_identity: true,
    }
}

struct Reader {
    /// Known from the user or from the first record.
    block_size: Option<u32>,
    models: BTreeSet<String>,
    entries: Vec<Entry>,
    /// Pairs of agent sessions that belong together; the second names both.
    links: Vec<(String, String)>,
}

impl Reader {
    fn record(&mut self, mut row: Row<'_>) {
        if row.has("event") {
            row.skip(&["timestamp"]);
            let event = row.object("event", Need::Required);
            row.finish(Unknown::Warn);
            if let Some(event) = event {
                self.event(event);
            }
        } else {
            self.event(row);
        }
    }

    fn event(&mut self, mut row: Row<'_>) {
        row.word("schema", &[DYNAMO_SCHEMA]);
        let event = row.word(
            "event_type",
            &[
                "request_end",
                "tool_end",
                "tool_error",
                "tool_start",
                "request_payload",
            ],
        );
        let time_ms = row.integer(&["event_time_unix_ms"], Need::Required);
        row.skip(&["event_source"]);
        match event {
            Some("request_end") => {
                let agent = row.object("agent_context", Need::Optional).and_then(agent);
                if let Some(request) = row.object("request", Need::Required) {
                    let entry = self.request(request, time_ms, agent);
                    self.entries.extend(entry);
                }
                row.skip(&["tool", "payload"]);
                row.finish(Unknown::Warn);
            }
            Some("tool_end" | "tool_error") => {
                let agent = row.object("agent_context", Need::Optional).and_then(agent);
                let child = row
                    .object("tool", Need::Optional)
                    .and_then(|mut tool| tool.object("claude", Need::Optional))
                    .and_then(|mut claude| claude.text(&["child_session_id"], Need::Optional));
                self.links
                    .extend(child.zip(agent.map(|agent| agent.session)));
            }
            _ => {}
        }
    }

    fn request(
        &mut self,
        mut row: Row<'_>,
        time_ms: Option<u64>,
        agent: Option<Agent>,
    ) -> Option<Entry> {
        let line = row.line();
        let findings = row.findings();
        let request_id = row.text(&["request_id"], Need::Required);
        self.models.extend(row.text(&["model"], Need::Optional));
        let output = row.count(
            &["output_tokens"],
            Need::Required,
            0..=*REQUEST_TOKENS.end(),
        );
        let received_ms = row.integer(&["request_received_ms"], Need::Optional);
        let total_ms = row.time(&["total_time_ms"], Need::Optional);
        row.skip(&MEASURED);
        let replay = row
            .object("replay", Need::Required)
            .and_then(|replay| self.replay(replay));
        row.finish(Unknown::Warn);
        let (start_ms, end_ms) = times(time_ms?, received_ms, total_ms);
        let (input_tokens, hash_ids, depends_on) = replay?;
        Some(Entry {
            line,
            request_id: request_id?,
            agent,
            depends_on,
            start_ms,
            end_ms,
            turn: Turn {
                delay_ms: 0.0,
                input_tokens,
                output_tokens: recorded_output(findings, line, output?),
                hash_ids,
                priority: None,
                policy_class: None,
            },
        })
    }

    fn replay(&mut self, mut row: Row<'_>) -> Option<(u32, Vec<u64>, Vec<String>)> {
        let block_size = row.count(&["trace_block_size"], Need::Required, BLOCK_SIZES);
        let input = row.count(&["input_length"], Need::Required, REQUEST_TOKENS);
        let hashes = row.ids(&["input_sequence_hashes"], Need::Required);
        let depends_on = row
            .objects("dependencies", Need::Optional)
            .into_iter()
            .filter_map(|mut dependency| {
                let id = dependency.text(&["request_id"], Need::Required);
                dependency.word("relation", &["sequence", "spawn", "join", "replay_barrier"]);
                dependency.word("trigger", &["completion", "dispatch"]);
                dependency.finish(Unknown::Warn);
                id
            })
            .collect();
        let (line, field, findings) = (row.line(), row.name("input_length"), row.findings());
        let own = block_size?;
        let expected = *self.block_size.get_or_insert(own);
        if own != expected {
            row.fault("trace_block_size", own, format!("{expected}, as before"));
        }
        row.finish(Unknown::Warn);
        let input = input?;
        let hash_ids = fitting(findings, line, &field, input, hashes?, own)?;
        Some((input, hash_ids, depends_on))
    }

    /// What needs all records: unique ids, known dependencies, all with an agent or none.
    fn check(&mut self, findings: &Findings) {
        let mut known: HashMap<&str, &Entry> = HashMap::new();
        for entry in &self.entries {
            if known.insert(&entry.request_id, entry).is_some() {
                let allowed = "an id that no earlier record has";
                findings.fault(entry.line, "request.request_id", &entry.request_id, allowed);
            }
        }
        let with_agent = self
            .entries
            .first()
            .is_some_and(|entry| entry.agent.is_some());
        for entry in &self.entries {
            if entry.agent.is_some() != with_agent {
                let (value, allowed) = if with_agent {
                    ("missing", "given, as on the first request")
                } else {
                    ("given", "missing, as on the first request")
                };
                findings.fault(entry.line, "agent_context", value, allowed);
            }
            for id in &entry.depends_on {
                let Some(before) = known.get(id.as_str()) else {
                    let allowed = "the request_id of a request of this file";
                    findings.fault(entry.line, "request.replay.dependencies", id, allowed);
                    continue;
                };
                if let (Some(own), Some(other)) = (&entry.agent, &before.agent) {
                    self.links
                        .push((own.session.clone(), other.session.clone()));
                }
            }
            if let Some(Agent {
                session,
                parent: Some(parent),
            }) = &entry.agent
            {
                self.links.push((session.clone(), parent.clone()));
            }
        }
    }

    /// Requests that form a session, with its name, in the order of the file.
    fn groups(self) -> Vec<(String, Vec<Entry>)> {
        let mut names = Names::default();
        for (one, other) in &self.links {
            names.join(one, other);
        }
        let mut groups: Vec<(String, Vec<Entry>)> = Vec::new();
        let mut by_name: HashMap<String, usize> = HashMap::new();
        for entry in self.entries {
            let id = match &entry.agent {
                Some(agent) => names.first(&agent.session),
                None => entry.request_id.clone(),
            };
            let at = *by_name.entry(id.clone()).or_insert(groups.len());
            if at == groups.len() {
                groups.push((id, Vec::new()));
            }
            groups[at].1.push(entry);
        }
        groups
    }
}

/// Names that stand for the same thing.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// The name that stands for all that were joined with `name`.
    fn first(&self, name: &str) -> String {
        let mut name = name;
        while let Some(other) = self.0.get(name) {
            name = other;
        }
        name.to_owned()
    }

    fn join(&mut self, one: &str, other: &str) {
        let (one, other) = (self.first(one), self.first(other));
        if one != other {
            self.0.insert(one, other);
        }
    }
}

fn agent(mut row: Row<'_>) -> Option<Agent> {
    let session = row.text(&["session_id"], Need::Required);
    let parent = row.text(&["parent_session_id"], Need::Optional);
    Some(Agent {
        session: session?,
        parent,
    })
}

/// Start and end. The event is the end of the request; when neither start nor duration is known, it has
/// to serve as the start, and the end is unknown.
fn times(event_ms: u64, received_ms: Option<u64>, total_ms: Option<f64>) -> (u64, Option<u64>) {
    let total_ms = total_ms.map(|total_ms| total_ms.round() as u64);
    match (received_ms, total_ms) {
        (Some(start), Some(total)) => (start, Some(start.saturating_add(total))),
        (Some(start), None) => (start, Some(event_ms.max(start))),
        (None, Some(total)) => (event_ms.saturating_sub(total), Some(event_ms)),
        (None, None) => (event_ms, None),
    }
}

fn recorded(entry: Entry, origin_ms: u64) -> Recorded {
    let since_origin = |ms: u64| ms.saturating_sub(origin_ms) as f64;
    Recorded {
        line: entry.line,
        name: entry.request_id,
        start_ms: since_origin(entry.start_ms),
        end_ms: entry.end_ms.map(since_origin),
        turn: entry.turn,
    }
}
