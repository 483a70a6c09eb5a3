// SPDX-License-Identifier: Apache-2.0

//! Trace files of every format, good and malformed, through the public reader.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use regime_lab::traces::{
    DEFAULT_BLOCK_SIZE, FaultList, Format, LISTED, ReadOptions, Slice, Trace, TraceError, slice,
};
use regime_lab::{Arrivals, Turn};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/traces")
        .join(name)
}

fn read(name: &str) -> Trace {
    Trace::read(&sample(name), &ReadOptions::default()).unwrap()
}

fn read_text(text: &[u8]) -> Result<Trace, TraceError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text).unwrap();
    Trace::read(file.path(), &ReadOptions::default())
}

fn faults_of(result: Result<Trace, TraceError>) -> FaultList {
    match result {
        Err(TraceError::Faults(list)) => list,
        other => panic!("not a list of faults: {other:?}"),
    }
}

/// `line: field is value; allowed: ..` of each fault of a sample.
fn faults(name: &str) -> Vec<String> {
    let path = sample(name);
    let list = faults_of(Trace::read(&path, &ReadOptions::default()));
    assert_eq!(list.total, list.faults.len());
    let file = format!("{}:", path.display());
    list.faults
        .iter()
        .map(|fault| fault.to_string().strip_prefix(&file).unwrap().to_owned())
        .collect()
}

fn warnings(trace: &Trace) -> Vec<String> {
    trace
        .summary
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn starts(trace: &Trace) -> Vec<f64> {
    trace
        .workload
        .sessions
        .iter()
        .map(|session| session.start_ms)
        .collect()
}

fn delays(turns: &[Turn]) -> Vec<f64> {
    turns.iter().map(|turn| turn.delay_ms).collect()
}

#[test]
fn a_mooncake_file_becomes_sessions_of_one_turn() {
    let trace = read("mooncake.jsonl");
    assert_eq!(trace.format, Format::Mooncake);
    assert_eq!(trace.workload.name, "mooncake");
    assert_eq!(trace.workload.block_size, DEFAULT_BLOCK_SIZE);
    assert_eq!(trace.workload.arrivals, Arrivals::Open);
    assert_eq!(starts(&trace), [0.0, 250.0, 1000.0]);
    assert_eq!(
        trace.workload.sessions[2].turns,
        [Turn {
            delay_ms: 0.0,
            input_tokens: 600,
            output_tokens: 8,
            hash_ids: vec![9, 8],
            priority: Some(2),
            policy_class: Some("batch".into()),
        }]
    );
    // Seven blocks, of which 1 and 1-2 come twice.
    assert_eq!(trace.summary.ideal_prefix_hit_rate, Some(1.0 - 5.0 / 7.0));
    assert_eq!(trace.summary.requests_per_s, Some(3.0));
    assert!(warnings(&trace).is_empty(), "{:?}", warnings(&trace));
}

#[test]
fn an_explicit_delay_counts_from_the_end_of_the_turn_before() {
    let trace = read("mooncake-sessions.jsonl");
    assert_eq!((trace.summary.rows, trace.summary.sessions), (3, 2));
    assert_eq!(delays(&trace.workload.sessions[0].turns), [0.0, 2000.0]);
    assert_eq!(
        (trace.summary.pauses.explicit, trace.summary.pauses.inferred),
        (1, 0)
    );
    assert!(warnings(&trace).is_empty());
}

#[test]
fn a_delay_inferred_from_stamps_is_said_to_be_inferred() {
    let trace = read("mooncake-stamps-only.jsonl");
    assert_eq!(delays(&trace.workload.sessions[0].turns), [0.0, 10_000.0]);
    assert_eq!(
        (trace.summary.pauses.explicit, trace.summary.pauses.inferred),
        (0, 1)
    );
    assert_eq!(
        warnings(&trace),
        [
            "line 2: no delay in session chat: inferred as 10000 ms, the difference of the timestamps, which includes \
         the service time of the turn before"
        ]
    );
    assert!(trace.summary.to_string().contains("0 given, 1 inferred"));
}

#[test]
fn deltas_are_accumulated_when_asked_for_and_suspected_otherwise() {
    let path = sample("mooncake-delta.jsonl");
    let options = ReadOptions {
        format: Some(Format::MooncakeDelta),
        ..ReadOptions::default()
    };
    let turns = &Trace::read(&path, &options).unwrap().workload.sessions[0].turns;
    // 600 + 100 + 400 = 1100 tokens are three blocks of 512.
    assert_eq!(turns[1].input_tokens, 1100);
    assert_eq!(turns[1].hash_ids.len(), 3);
    assert_eq!(turns[1].hash_ids[..2], turns[0].hash_ids);
    assert!(warnings(&read("mooncake-delta.jsonl"))[0].contains("mooncake-delta"));
}

#[test]
fn an_input_beyond_the_capacity_of_its_hash_ids_is_refused() {
    assert_eq!(
        faults("bad-too-long.jsonl"),
        ["1: input_length is 1300; allowed: at most 1024, what 2 hash ids hold at 512 tokens each"]
    );
}

#[test]
fn surplus_hash_ids_are_dropped_with_a_warning() {
    let trace = read("surplus-ids.jsonl");
    assert_eq!(trace.workload.sessions[0].turns[0].hash_ids, [11]);
    assert!(
        warnings(&trace)[0]
            .starts_with("line 1: 3 hash ids for 300 tokens at 512 tokens each: 2 not used")
    );
}

#[test]
fn a_truncated_line_is_refused() {
    let found = faults("bad-truncated.jsonl");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("1: line is {\"timestamp\":0,"),
        "{found:?}"
    );
    assert!(
        found[0].contains("(EOF while parsing an object at column 68)"),
        "{found:?}"
    );
}

#[test]
fn a_session_that_goes_back_in_time_is_refused() {
    assert_eq!(
        faults("bad-back-in-time.jsonl"),
        [
            "2: timestamp is 3000; allowed: at least 5000, the timestamp of the turn before in session s1 (the delay \
         would be -2000)"
        ]
    );
}

#[test]
fn a_missing_output_length_is_refused() {
    assert_eq!(
        faults("bad-no-output.jsonl"),
        ["1: output_length is missing; allowed: an integer from 1 to 10000000"]
    );
}

#[test]
fn all_faults_of_a_file_are_reported_in_one_run() {
    let found = faults("bad-many.jsonl");
    let starts_with = [
        "1: timestamp is -5; allowed: a number from 0 to 1e13",
        "2: timestamp is missing;",
        "2: timestmap is 10; allowed: fields request_id, timestamp, created_time,",
        "3: input_length is 0; allowed: an integer from 1",
        "3: output_length is 0; allowed: an integer from 1",
        "4: hash_ids[0] is \"x\"; allowed: an integer, at least 0",
        "5: hash_ids is missing;",
        "6: line is not json; allowed: one JSON object (expected",
        "7: output_token_ids is a list of 2; allowed: 20 ids",
        "7: delay is 9; allowed: 0 or none on the first turn",
    ];
    assert_eq!(found.len(), starts_with.len(), "{found:#?}");
    for (fault, start) in found.iter().zip(starts_with) {
        assert!(
            fault.starts_with(start),
            "{fault} does not start with {start}"
        );
    }
}

#[test]
fn faults_beyond_the_listed_ones_are_counted() {
    let row = "{\"timestamp\":0,\"input_length\":1,\"output_length\":0,\"hash_ids\":[1]}\n";
    let list = faults_of(read_text(row.repeat(30).as_bytes()));
    assert_eq!((list.faults.len(), list.total), (LISTED, 30));
    assert!(list.to_string().ends_with("and 10 more faults"));
}

#[test]
fn blank_lines_crlf_and_a_byte_order_mark_are_no_faults() {
    let row = r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#;
    let trace = read_text(format!("\u{feff}{row}\r\n\r\n{row}\r\n").as_bytes()).unwrap();
    assert_eq!(trace.summary.rows, 2);
}

#[test]
fn times_and_lengths_that_no_replay_can_hold_are_refused() {
    let row = |start: &str, more: &str| {
        format!(r#"{{"timestamp":{start},"output_length":1,"hash_ids":[1],{more}}}"#)
    };
    let refused = |text: String| {
        let list = faults_of(read_text(text.as_bytes()));
        assert_eq!(list.total, 1);
        let fault = list.faults[0].to_string();
        fault.split_once(':').unwrap().1.to_owned()
    };
    assert_eq!(
        refused(row("1e300", r#""input_length":1"#)),
        "1: timestamp is 1e+300; allowed: a number from 0 to 1e13"
    );
    assert_eq!(
        refused(row("0", r#""input_length":10000001"#)),
        "1: input_length is 10000001; allowed: an integer from 1 to 10000000"
    );
    // Twelve years of 365 days.
    let late = row("378432000000", r#""input_length":1"#);
    assert_eq!(
        refused(format!("{}\n{late}", row("0", r#""input_length":1"#))),
        "1: last turn of session row-2 is 378432000000 ms or more after the first arrival; allowed: at most \
         315360000000 ms, ten years"
    );
}

#[test]
fn a_file_without_requests_is_refused() {
    for text in ["", "\r\n \n"] {
        let list = faults_of(read_text(text.as_bytes()));
        let fault = &list.faults[0];
        assert_eq!(
            (fault.line, fault.field.as_str(), fault.value.as_str()),
            (1, "file", "empty")
        );
    }
    let header = std::fs::read_to_string(sample("agentic.jsonl")).unwrap();
    let list = faults_of(read_text(header.lines().next().unwrap().as_bytes()));
    assert!(
        list.to_string()
            .ends_with(":1: file is without a request; allowed: at least one request")
    );
}

#[test]
fn a_file_of_no_known_format_names_the_formats() {
    let error = read_text(b"some text\n").unwrap_err().to_string();
    assert!(
        error.ends_with(
            "allowed: mooncake, mooncake-delta, agentic-mooncake, legacy-agentic, weka, \
                             dynamo-request, azure"
        ),
        "{error}"
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Trace::read(Path::new("no/such.jsonl"), &ReadOptions::default()).unwrap_err();
    assert!(
        error.to_string().starts_with("cannot read no/such.jsonl"),
        "{error}"
    );
}

#[test]
fn absolute_timestamps_are_rebased_with_a_warning() {
    let trace = read("epoch.jsonl");
    assert_eq!(starts(&trace), [0.0, 500.0, 900.0]);
    assert_eq!(trace.summary.origin_ms, 1_787_000_000_000.0);
    assert_eq!(
        warnings(&trace),
        ["timestamps are absolute, the first is 1787000000000: rebased to 0"]
    );
}

#[test]
fn a_window_over_absolute_timestamps_counts_from_the_first_arrival() {
    let trace = read("epoch.jsonl");
    let first = slice(&trace.workload, &Slice::WindowMs(0.0..600.0)).unwrap();
    assert_eq!(first.sessions.len(), 2);
}

#[test]
fn timestamps_in_seconds_are_suspected() {
    let trace = read("seconds.jsonl");
    assert_eq!(
        warnings(&trace),
        ["3 requests arrive within 1 ms: are the timestamps in seconds?"]
    );
}

#[test]
fn arrivals_out_of_order_are_sorted_with_a_warning() {
    let row = |at: u32| {
        format!(
            "{{\"timestamp\":{at},\"input_length\":1,\"output_length\":1,\"hash_ids\":[{at}]}}\n"
        )
    };
    let trace = read_text(format!("{}{}{}", row(500), row(100), row(900)).as_bytes()).unwrap();
    assert_eq!(starts(&trace), [0.0, 400.0, 800.0]);
    assert_eq!(
        warnings(&trace),
        ["arrivals out of order: 1; sorted by time"]
    );
}

#[test]
fn azure_and_weka_files_out_of_order_are_sorted_with_a_warning() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:05,10,1\n2024-01-01 00:00:01,10,1\n";
    let trace = read_text(azure.as_bytes()).unwrap();
    assert_eq!(starts(&trace), [0.0, 4_000.0]);
    assert_eq!(
        warnings(&trace),
        ["arrivals out of order: 1; sorted by time"]
    );
    let request = |t| {
        format!(r#"{{"type":"n","t":{t},"model":"m","in":16,"out":1,"hash_ids":[1],"api_time":1}}"#)
    };
    let (late, early) = (request(5), request(0));
    let weka = format!(
        r#"{{"id":"r","block_size":16,"hash_id_scope":"local","requests":[{late},{early}]}}"#
    );
    let trace = read_text(weka.as_bytes()).unwrap();
    assert_eq!(delays(&trace.workload.sessions[0].turns), [0.0, 4_000.0]);
    assert_eq!(
        warnings(&trace),
        ["line 1: requests out of order: 1; sorted by start"]
    );
}

#[test]
fn a_span_of_years_and_a_request_id_given_twice_are_warned_about() {
    let row = |at_ms: u64| {
        format!(
            r#"{{"request_id":"a","timestamp":{at_ms},"input_length":1,"output_length":1,"hash_ids":[1]}}"#
        )
    };
    // 400 days.
    let trace = read_text(format!("{}\n{}", row(0), row(34_560_000_000)).as_bytes()).unwrap();
    assert_eq!(
        warnings(&trace),
        [
            "line 2: request_id a is that of line 1, too",
            "arrivals span 400 days: are the timestamps right?"
        ]
    );
}

#[test]
fn a_closed_loop_needs_no_arrival_times() {
    let row = r#"{"input_length":1,"output_length":1,"hash_ids":[1]}"#;
    assert!(
        faults_of(read_text(row.as_bytes()))
            .to_string()
            .contains("timestamp is missing")
    );
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(row.as_bytes()).unwrap();
    let options = ReadOptions {
        concurrency: Some(4),
        ..ReadOptions::default()
    };
    let trace = Trace::read(file.path(), &options).unwrap();
    assert_eq!(trace.workload.arrivals, Arrivals::Closed { concurrency: 4 });
}

#[test]
fn a_field_that_is_to_be_ignored_is_no_fault() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(
        br#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1],"type":"chat"}"#,
    )
    .unwrap();
    let list = faults_of(Trace::read(file.path(), &ReadOptions::default()));
    assert_eq!((list.total, list.faults[0].field.as_str()), (1, "type"));
    let options = ReadOptions {
        ignored_fields: vec!["type".into()],
        ..ReadOptions::default()
    };
    assert_eq!(Trace::read(file.path(), &options).unwrap().summary.rows, 1);
}

#[test]
fn an_agentic_chain_is_a_session() {
    let trace = read("agentic.jsonl");
    assert_eq!(
        (trace.format, trace.workload.block_size),
        (Format::AgenticMooncake, 16)
    );
    let sessions: Vec<_> = trace
        .workload
        .sessions
        .iter()
        .map(|s| (s.id.as_str(), s.start_ms))
        .collect();
    assert_eq!(sessions, [("q1", 0.0), ("r1", 100.0)]);
    assert_eq!(delays(&trace.workload.sessions[1].turns), [0.0, 250.0]);
}

#[test]
fn an_agentic_fan_in_is_refused_with_its_reason() {
    assert_eq!(
        faults("bad-agentic.jsonl"),
        [
            "4: dependencies is [a, b]; allowed: one request, or others that it implies: a turn of a session follows \
         one turn (fan-in)"
        ]
    );
}

#[test]
fn a_wrong_agentic_header_is_refused() {
    assert_eq!(
        faults("bad-agentic-header.jsonl"),
        [
            "1: version is 1; allowed: 2",
            "1: hash_id_scope is \"global\"; allowed: local",
        ]
    );
}

#[test]
fn a_block_size_that_is_not_the_file_s_own_is_refused() {
    let options = ReadOptions {
        block_size: Some(64),
        ..ReadOptions::default()
    };
    for name in ["agentic.jsonl", "weka.jsonl", "dynamo.jsonl"] {
        let list = faults_of(Trace::read(&sample(name), &options));
        assert!(list.faults[0].field.ends_with("block_size"), "{list}");
        assert!(list.faults[0].allowed.starts_with("64,"), "{list}");
    }
}

#[test]
fn legacy_agentic_rows_wait_for_the_request_they_name() {
    let trace = read("legacy-agentic.jsonl");
    assert_eq!(trace.format, Format::LegacyAgentic);
    assert_eq!(trace.summary.origin_ms, 40.0);
    assert_eq!(delays(&trace.workload.sessions[0].turns), [0.0, 300.0]);
}

#[test]
fn a_weka_run_without_parallel_work_is_a_session_with_its_subagents() {
    let trace = read("weka.jsonl");
    assert_eq!(trace.format, Format::Weka);
    let run = &trace.workload.sessions[0];
    // The subagent's clock starts at its own start: 0 to 1.5 s, 2.5 to 3.5 s, 4 s.
    assert_eq!(delays(&run.turns), [0.0, 1000.0, 500.0]);
    assert_eq!(run.turns[0].hash_ids[..2], run.turns[2].hash_ids[..2]);
    // A part of a block is shared with nothing.
    assert_ne!(run.turns[0].hash_ids[2], run.turns[2].hash_ids[2]);
    // Hashes of another run are other blocks; runs of one name are told apart.
    let other = &trace.workload.sessions[1];
    assert_ne!(other.turns[0].hash_ids[0], run.turns[0].hash_ids[0]);
    assert_eq!((run.id.as_str(), other.id.as_str()), ("run-1", "run-1#2"));
    assert_eq!(
        warnings(&trace),
        [
            "line 1: the recorded output is 0 tokens; replayed as 1, the first token",
            "the format has no arrival times: all 2 sessions start at once",
        ]
    );
}

#[test]
fn a_weka_object_printed_over_many_lines_is_read() {
    let text = std::fs::read_to_string(sample("weka.jsonl")).unwrap();
    let object: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let trace = read_text(serde_json::to_string_pretty(&object).unwrap().as_bytes()).unwrap();
    assert_eq!((trace.format, trace.summary.rows), (Format::Weka, 3));
}

#[test]
fn weka_requests_that_overlap_are_refused() {
    assert_eq!(
        faults("bad-weka-parallel.jsonl"),
        [
            "1: start of requests[1] is 1000 ms; allowed: at least 3000 ms, when requests[0] of line 1 ended: requests \
         that run in parallel do not fit a session"
        ]
    );
}

#[test]
fn a_weka_fault_names_its_place_in_the_object() {
    assert_eq!(
        faults("bad-weka.jsonl"),
        [
            "1: hash_id_scope is \"global\"; allowed: local",
            "1: requests[0].type is \"q\"; allowed: n, s",
            "1: requests[0].in is 0; allowed: an integer from 1 to 10000000",
            "1: requests is without a model request; allowed: at least one",
        ]
    );
}

#[test]
fn a_dynamo_trace_joins_the_sessions_of_an_agent_and_its_child() {
    let trace = read("dynamo.jsonl");
    assert_eq!(
        (trace.format, trace.workload.block_size),
        (Format::DynamoRequest, 16)
    );
    assert_eq!(trace.summary.origin_ms, 1_787_000_000_000.0);
    let sessions = &trace.workload.sessions;
    assert_eq!(sessions.len(), 2);
    // alone: ends at 400 after 400 ms. parent: 100 to 900, child 1100 to 1600, parent 2000.
    assert_eq!(
        (sessions[0].id.as_str(), sessions[0].start_ms),
        ("alone", 0.0)
    );
    assert_eq!(
        (sessions[1].id.as_str(), sessions[1].start_ms),
        ("parent", 100.0)
    );
    assert_eq!(delays(&sessions[1].turns), [0.0, 200.0, 400.0]);
    assert_eq!(sessions[1].turns[0].hash_ids[0], u64::MAX);
    assert!(warnings(&trace).is_empty(), "{:?}", warnings(&trace));
}

#[test]
fn a_dynamo_trace_is_read_from_gzip() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut gz = flate2::write::GzEncoder::new(&mut file, flate2::Compression::default());
    gz.write_all(&std::fs::read(sample("dynamo.jsonl")).unwrap())
        .unwrap();
    gz.finish().unwrap();
    let trace = Trace::read(file.path(), &ReadOptions::default()).unwrap();
    assert_eq!(
        trace.workload.sessions,
        read("dynamo.jsonl").workload.sessions
    );
}

#[test]
fn faults_of_a_dynamo_trace_name_the_nested_field() {
    assert_eq!(
        faults("bad-dynamo.jsonl"),
        [
            "1: schema is \"v9\"; allowed: dynamo.request.trace.v1",
            "2: event_type is \"boom\"; allowed: request_end, tool_end, tool_error, tool_start, request_payload",
            "3: request.replay is missing; allowed: an object",
            "4: request.replay.trace_block_size is 32; allowed: 16, as before",
            "4: request.replay.input_length is 40; allowed: at most 32, what 1 hash ids hold at 32 tokens each",
        ]
    );
}

#[test]
fn azure_rows_share_nothing_and_have_no_hit_rate() {
    let trace = read("azure.csv");
    assert_eq!(
        (trace.format, trace.summary.ideal_prefix_hit_rate),
        (Format::Azure, None)
    );
    assert_eq!(starts(&trace), [0.0, 2250.0]);
    let ids: Vec<_> = trace
        .workload
        .sessions
        .iter()
        .map(|s| s.turns[0].hash_ids.clone())
        .collect();
    assert_eq!(ids, [vec![1, 2], vec![3]]);
    assert_eq!(trace.workload.sessions[1].turns[0].output_tokens, 1);
    assert_eq!(
        warnings(&trace),
        ["line 3: the recorded output is 0 tokens; replayed as 1, the first token"]
    );
    let summary = trace.summary.to_string();
    assert!(
        summary.contains("ideal prefix hit rate   not known: no prefix identity"),
        "{summary}"
    );
}

#[test]
fn faults_of_an_azure_file_name_the_column() {
    assert_eq!(
        faults("bad-azure.csv"),
        [
            "2: ContextTokens is 0; allowed: an integer from 1 to 10000000",
            "3: TIMESTAMP is yesterday; allowed: a time as 2023-11-16 18:15:46.68, with a zone or without",
            "3: GeneratedTokens is -1; allowed: an integer from 0 to 10000000",
            "4: line is 2024-02-28 23:59:59.5000000,12; allowed: three columns, TIMESTAMP,ContextTokens,GeneratedTokens",
        ]
    );
    assert_eq!(
        faults("bad-azure-header.csv"),
        [
            "1: line is timestamp,context,generated; allowed: the header TIMESTAMP,ContextTokens,GeneratedTokens"
        ]
    );
}

#[test]
fn a_summary_is_read_back_from_json() {
    let summary = read("mooncake.jsonl").summary;
    let json: serde_json::Value =
        serde_json::from_str(&serde_json::to_string(&summary).unwrap()).unwrap();
    assert_eq!(json["format"], "mooncake");
    assert_eq!(json["rows"], 3);
    assert_eq!(json["input_tokens"]["p50"], 1024);
    let azure = serde_json::to_value(read("azure.csv").summary).unwrap();
    assert!(azure.get("ideal_prefix_hit_rate").is_none());
}

const GOOD: [&str; 8] = [
    "mooncake.jsonl",
    "mooncake-sessions.jsonl",
    "agentic.jsonl",
    "legacy-agentic.jsonl",
    "weka.jsonl",
    "dynamo.jsonl",
    "azure.csv",
    "epoch.jsonl",
];

/// What a reader may return: a workload that keeps its contract, or an error with a message.
fn check_outcome(outcome: Result<Trace, TraceError>) -> Result<(), TestCaseError> {
    let trace = match outcome {
        Ok(trace) => trace,
        Err(error) => {
            prop_assert!(!error.to_string().is_empty());
            return Ok(());
        }
    };
    prop_assert_eq!(trace.workload.check(), Ok(()));
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_outcome(read_text(&bytes))?;
    }

    #[test]
    fn a_damaged_sample_is_read_or_refused(
        name in prop::sample::select(GOOD.to_vec()),
        at in any::<prop::sample::Index>(),
        len in 0_usize..20,
        patch in "[0-9a-z\\-\\.\",:\\[\\]{}]{0,4}",
    ) {
        let mut bytes = std::fs::read(sample(name)).unwrap();
        let start = at.index(bytes.len());
        let end = bytes.len().min(start + len);
        bytes.splice(start..end, patch.bytes());
        check_outcome(read_text(&bytes))?;
    }
}
