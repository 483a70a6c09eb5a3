// SPDX-License-Identifier: Apache-2.0

//! Weka's agent traces: one object for each run of an agent.
//!
//! A run is a list of model requests and of subagents with requests of their own. When no two of them
//! overlap in time the run is one session, subagents included; a run with parallel work is refused, see
//! [`super::serial`]. Times are seconds since the start of the run. Runs carry no time of arrival: in an
//! open loop all start at once, which the summary says.
//!
//! The format hashes only full blocks and keeps its hashes within a run. A block without hash, such as
//! a part of one at the end, is shared with nothing. Requests of a subagent are stamped on the clock of
//! the run or on the subagent's own; as in Dynamo's reader, one stamp before its subagent's start shows
//! that all of the file are the subagent's own.
//!
//! Source: the fields and these rules are those of Dynamo's Weka importer.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::workload::{REQUEST_TOKENS, Session, Turn};
use crate::workloads::BLOCK_SIZES;

use super::agentic::warn_about_models;
use super::blocks::BlockIds;
use super::content::lines;
use super::fault::Findings;
use super::raw::{Clock, Pauses, Raw};
use super::request::recorded_output;
use super::row::{Need, Row, Unknown};
use super::serial::{self, Recorded};

const MS_PER_S: f64 = 1e3;
/// Difference of stamps that is rounding, s.
const ROUNDING_S: f64 = 1e-6;

struct Run {
    line: u64,
    id: String,
    requests: Vec<Request>,
}

struct Request {
    name: String,
    /// On the clock of the run, or of the subagent when `within` is set.
    start_s: f64,
    api_time_s: Option<f64>,
    /// Start of the subagent this request belongs to.
    within_s: Option<f64>,
    input: u32,
    output: u32,
    hash_ids: Vec<u64>,
}

/// `expected`: the block size the user asked for, which must be the file's.
pub(crate) fn read(content: &[u8], expected: Option<u32>, findings: &Findings) -> Raw {
    let mut reader = Reader {
        findings,
        block_size: expected,
        models: BTreeSet::new(),
    };
    let runs: Vec<Run> = if serde_json::from_slice::<Value>(content).is_ok_and(|v| v.is_object()) {
        // One object, printed on one line or on many: faults are on the line it starts on.
        lines(content)
            .take(1)
            .filter_map(|(line, _)| reader.run(Row::parse(findings, line, content)?))
            .collect()
    } else {
        lines(content)
            .filter_map(|(line, text)| reader.run(Row::parse(findings, line, text)?))
            .collect()
    };
    warn_about_models(&reader.models, findings);
    if findings.has_faults() {
        return Raw::default();
    }
    let block_size = reader.block_size.unwrap_or(1);
    let own_clocks = runs.iter().flat_map(|run| &run.requests).any(|request| {
        request
            .within_s
            .is_some_and(|start_s| request.start_s < start_s - ROUNDING_S)
    });
    let mut pauses = Pauses::default();
    let mut ids = BlockIds::default();
    let sessions = (0..)
        .zip(runs)
        .filter_map(|(scope, run)| {
            let requests = run
                .requests
                .into_iter()
                .map(|request| {
                    recorded(
                        request, run.line, own_clocks, block_size, scope, &mut ids, findings,
                    )
                })
                .collect();
            let session = serial::session(run.id, requests, &mut pauses, findings)?;
            Some(Session {
                start_ms: 0.0,
                ..session
            })
        })
        .collect();
    Raw {
        block_size,
        sessions,
        pauses,
        clock: Clock::PerSession,
        prefix_identity: true,
    }
}

struct Reader<'a> {
    findings: &'a Findings,
    /// Known from the user or from the first run.
    block_size: Option<u32>,
    models: BTreeSet<String>,
}

impl Reader<'_> {
    fn run(&mut self, mut row: Row<'_>) -> Option<Run> {
        let id = row.text(&["id"], Need::Required);
        row.word("hash_id_scope", &["local"]);
        row.skip(&["models", "tool_tokens", "system_tokens", "totals"]);
        if let Some(own) = row.count(&["block_size"], Need::Required, BLOCK_SIZES) {
            let expected = *self.block_size.get_or_insert(own);
            if own != expected {
                row.fault("block_size", own, format!("{expected}, as before"));
            }
        }
        let mut requests = Vec::new();
        for entry in row.objects("requests", Need::Required) {
            if entry.has("requests") {
                self.subagent(entry, &mut requests);
            } else {
                requests.extend(self.request(entry, None));
            }
        }
        let own = || requests.iter().filter(|it| it.within_s.is_none());
        let pairs = own().zip(own().skip(1));
        let backwards = pairs.filter(|(before, after)| after.start_s < before.start_s);
        let backwards = backwards.count();
        if backwards > 0 {
            row.findings().warn(
                "order",
                Some(row.line()),
                format!("requests out of order: {backwards}; sorted by start"),
            );
        }
        if requests.is_empty() {
            row.fault("requests", "without a model request", "at least one");
        }
        let line = row.line();
        row.finish(Unknown::Warn);
        Some(Run {
            line,
            id: id?,
            requests,
        })
    }

    fn subagent(&mut self, mut row: Row<'_>, requests: &mut Vec<Request>) {
        row.word("type", &["subagent"]);
        row.text(&["agent_id"], Need::Required);
        row.word("status", &["completed", "async_launched"]);
        let start = row.time(&["t"], Need::Required);
        row.time(&["duration_ms"], Need::Optional);
        row.skip(&["subagent_type", "total_tokens", "tool_use_count", "models"]);
        row.skip(&["tool_tokens", "system_tokens"]);
        for entry in row.objects("requests", Need::Required) {
            requests.extend(self.request(entry, start));
        }
        row.finish(Unknown::Warn);
    }

    fn request(&mut self, mut row: Row<'_>, within_s: Option<f64>) -> Option<Request> {
        row.word("type", &["n", "s"]);
        self.models.extend(row.text(&["model"], Need::Required));
        let start_s = row.time(&["t"], Need::Required);
        let api_time_s = row.time(&["api_time"], Need::Optional);
        let input = row.count(&["in"], Need::Required, REQUEST_TOKENS);
        let output = row.count(&["out"], Need::Required, 0..=*REQUEST_TOKENS.end());
        let hash_ids = row.ids(&["hash_ids"], Need::Optional).unwrap_or_default();
        row.skip(&["input_types", "output_types", "stop", "think_time", "ttft"]);
        let name = row.name("").trim_end_matches('.').to_owned();
        if let (Some(input), Some(block_size)) = (input, self.block_size) {
            self.warn_about_hashes(&row, hash_ids.len(), input, block_size);
        }
        row.finish(Unknown::Warn);
        Some(Request {
            name,
            start_s: start_s?,
            api_time_s,
            within_s,
            input: input?,
            output: output?,
            hash_ids,
        })
    }

    fn warn_about_hashes(&self, row: &Row<'_>, given: usize, input: u32, block_size: u32) {
        let (full, blocks) = (
            (input / block_size) as usize,
            input.div_ceil(block_size) as usize,
        );
        if given < full {
            let text = format!(
                "{given} hash ids for {full} full blocks: the others are shared with nothing"
            );
            self.findings.warn("missing ids", Some(row.line()), text);
        } else if given > blocks {
            let text = format!(
                "{given} hash ids for {blocks} blocks: {} not used",
                given - blocks
            );
            self.findings.warn("surplus ids", Some(row.line()), text);
        }
    }
}

fn recorded(
    request: Request,
    line: u64,
    own_clocks: bool,
    block_size: u32,
    scope: u64,
    ids: &mut BlockIds,
    findings: &Findings,
) -> Recorded {
    let full = request.input / block_size;
    let hash_ids = (0..request.input.div_ceil(block_size))
        .map(|block| match request.hash_ids.get(block as usize) {
            Some(hash) if block < full => ids.scoped(scope, *hash),
            _ => ids.fresh(),
        })
        .collect();
    let start_s = match request.within_s {
        Some(subagent_s) if own_clocks => subagent_s + request.start_s,
        _ => request.start_s,
    };
    Recorded {
        line,
        name: request.name,
        start_ms: start_s * MS_PER_S,
        end_ms: request
            .api_time_s
            .map(|api_time_s| (start_s + api_time_s) * MS_PER_S),
        turn: Turn {
            delay_ms: 0.0,
            input_tokens: request.input,
            output_tokens: recorded_output(findings, line, request.output),
            hash_ids,
            priority: None,
            policy_class: None,
        },
    }
}
