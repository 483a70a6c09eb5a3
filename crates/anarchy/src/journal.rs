// SPDX-License-Identifier: Apache-2.0

//! The journal of decisions: a file from which anybody can measure a router.
//!
//! # Idea
//!
//! A window can be estimated wherever there is the frozen row of each decision and what came of it. So a
//! frontend writes these down, one JSON object a line, and the measurement needs neither the fleet nor
//! the router any more. Nothing in the format belongs to one router: who knows, for each request, the
//! predicted wait and the predicted service on every candidate can write it.
//!
//! A line is an object with one key that says what it is:
//!
//! | Key | What |
//! |---|---|
//! | `header` | a journal begins: schema, version, producer, settings |
//! | `pool` | the number by which later lines call a pool: model, role, routing group |
//! | `worker` | the number by which later lines call a worker |
//! | `decision` | one decision whose request has ended, with its row |
//! | `count` | what became of all decisions of a pool so far, also of those that are not in the file |
//!
//! Numbers hold from their line to the next header. Times are ms with three decimals; `at` counts from the
//! start of the journal. A file may hold several journals one after the other, so files can be joined, and
//! a frontend that starts again goes on in the same file. `docs/journal.md` is the reference, with an
//! example to compute by hand.
//!
//! # Defaults
//!
//! Numbers in place of ids, since an id has up to 20 digits and a decision on 64 workers names 64. Such a
//! decision takes 1.0 to 1.5 kB, one on 4 workers 0.2 kB. Within a version keys may be added, and kinds of
//! lines: a reader passes over what it does not know, and refuses another major version. A line that was
//! cut off by a crash is counted. Lines at fault are named and left out; the reader goes on.
//!
//! # Source
//!
//! Field report SP-5 for ids as strings. What a window needs: [`Choice`](crate::Choice).

mod reader;
mod wire;
mod writer;

use regime_core::{Millis, Regime, Timestamp, Tokens, WorkerKey};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use reader::{Entry, Fault, JournalReader, LONGEST_LINE, NotRead};
pub use writer::{JournalWriter, NotWritten};

use crate::{Candidate, Choice};

/// Name of the format.
pub const SCHEMA: &str = "regime.journal";
/// Version that is written, and major version that is read.
pub const VERSION: (u32, u32) = (1, 0);

/// Who wrote a journal, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Program and version.
    #[serde(default)]
    pub producer: String,
    /// Start of the journal on the wall clock, ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ms: Option<u64>,
    /// What the producer was told, by name; for readers of the file alone.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
}

/// The candidates of one policy: one model, one role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolName {
    /// Model served.
    pub model: String,
    /// `aggregated`, `prefill`, `decode`, or another word of the producer.
    pub role: String,
    /// Group of workers within the role; empty where there are none.
    #[serde(default)]
    pub routing_group: String,
}

impl std::fmt::Display for PoolName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.model, self.role)?;
        match self.routing_group.as_str() {
            "" => Ok(()),
            group => write!(f, "/{group}"),
        }
    }
}

/// One decision, with what became of its request.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// When the router chose, from the start of the journal.
    pub at: Timestamp,
    /// Prompt length.
    pub prompt: Tokens,
    /// Regime of the pool at the decision, where the producer knows one.
    pub regime: Option<Regime>,
    /// The worker chosen: one of the candidates.
    pub chosen: WorkerKey,
    /// The frozen row: every candidate once.
    pub candidates: Vec<Candidate>,
    /// What the producer expected the request to take from its first token to its last.
    pub residence: Option<Millis>,
    /// How long the router had held the request before it chose.
    pub held: Millis,
    /// How long the request was expected to wait for a seat, whatever the choice.
    pub seat_wait: Millis,
    /// From the decision to the first token; absent when none came.
    pub ttft: Option<Millis>,
    /// From the decision to the last token, at least `ttft`; absent when the request was not served to its
    /// end.
    pub e2e: Option<Millis>,
}

impl Record {
    /// The decision as a window takes it, with `actual` for its latency.
    #[must_use]
    pub fn into_choice(self, actual: Millis) -> Choice {
        Choice {
            decided_at: self.at,
            chosen: self.chosen,
            candidates: self.candidates,
            actual,
        }
    }
}

/// What became of the decisions of one pool, all since the start of the journal. What none of these counts
/// is still open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Decisions made.
    pub decisions: u64,
    /// Written as a decision.
    pub recorded: u64,
    /// Never met their request, or a request that never met its decision.
    pub unjoined: u64,
    /// Known, but not written: a buffer was full, or a forecast was none.
    pub lost: u64,
}

impl Counts {
    /// Recorded over all whose fate is known; absent before the first.
    #[must_use]
    pub fn joined_share(&self) -> Option<f64> {
        let known = self
            .recorded
            .saturating_add(self.unjoined)
            .saturating_add(self.lost);
        (known > 0).then(|| self.recorded as f64 / known as f64)
    }

    /// Of two journals together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            decisions: self.decisions.saturating_add(other.decisions),
            recorded: self.recorded.saturating_add(other.recorded),
            unjoined: self.unjoined.saturating_add(other.unjoined),
            lost: self.lost.saturating_add(other.lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: WorkerKey = WorkerKey::new(u64::MAX, 0);
    const B: WorkerKey = WorkerKey::new(u64::MAX - 1, 3);

    fn pool(role: &str) -> PoolName {
        PoolName {
            model: "m".into(),
            role: role.into(),
            routing_group: "default".into(),
        }
    }

    fn ms(span: f64) -> Millis {
        Millis::new(span)
    }

    fn candidate(worker: WorkerKey, wait: f64, own: f64) -> Candidate {
        Candidate {
            worker,
            wait: ms(wait),
            own: ms(own),
        }
    }

    fn record(at_us: u64) -> Record {
        Record {
            at: Timestamp::from_micros(at_us),
            prompt: Tokens(288),
            regime: Some(Regime::Below),
            chosen: B,
            candidates: vec![candidate(A, 12.5, 80.0), candidate(B, 0.0, 80.001)],
            residence: Some(ms(600.5)),
            held: ms(20.0),
            seat_wait: ms(5.0),
            ttft: Some(ms(81.25)),
            e2e: Some(ms(700.0)),
        }
    }

    fn written(records: &[Record]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = JournalWriter::new(&mut bytes, Header::default()).unwrap();
        for record in records {
            writer.record(&pool("aggregated"), record).unwrap();
        }
        bytes
    }

    #[derive(Debug, Default)]
    struct Read {
        records: Vec<Record>,
        faults: Vec<String>,
        cut_off: u64,
        unknown: u64,
    }

    impl Read {
        /// How many records, and how many lines that gave none.
        fn counts(&self) -> [u64; 4] {
            let (records, faults) = (self.records.len() as u64, self.faults.len() as u64);
            [records, faults, self.cut_off, self.unknown]
        }
    }

    fn read(bytes: &[u8]) -> Read {
        let mut reader = JournalReader::new(bytes);
        let mut read = Read::default();
        for entry in &mut reader {
            match entry {
                Ok(Entry::Decision { record, .. }) => read.records.push(record),
                Ok(_) => {}
                Err(fault) => read.faults.push(fault.to_string()),
            }
        }
        (read.cut_off, read.unknown) = (reader.cut_off(), reader.unknown());
        read
    }

    /// A journal with these lines after its header.
    fn journal(lines: &[&str]) -> String {
        let header = r#"{"header":{"schema":"regime.journal","version":"1.0"}}"#;
        let pool = r#"{"pool":{"n":0,"model":"m","role":"aggregated"}}"#;
        let worker = r#"{"worker":{"n":0,"id":"7"}}"#;
        [&[header, pool, worker], lines].concat().join("\n") + "\n"
    }

    fn fault_of(line: &str) -> String {
        read(journal(&[line]).as_bytes()).faults.concat()
    }

    #[test]
    fn lines_read_as_the_reference_says() {
        let text = String::from_utf8(written(&[record(12_250)])).unwrap();
        let expected = [
            r#"{"header":{"schema":"regime.journal","version":"1.0","producer":""}}"#,
            r#"{"worker":{"n":0,"id":"18446744073709551615","rank":0}}"#,
            r#"{"worker":{"n":1,"id":"18446744073709551614","rank":3}}"#,
            r#"{"pool":{"n":0,"model":"m","role":"aggregated","routing_group":"default"}}"#,
            r#"{"decision":{"pool":0,"at":12.25,"prompt":288,"regime":"below","chosen":1,"residence":600.5,"held":20,"seat_wait":5,"ttft":81.25,"e2e":700,"rows":[[0,12.5,80],[1,0,80.001]]}}"#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_decision_on_64_workers_takes_one_and_a_half_kilobytes_at_most() {
        let of = |workers: u64| {
            let worker = |id| WorkerKey::new(u64::MAX - id, 0);
            let row = |id| candidate(worker(id), 17.041 * id as f64, 1_234.567);
            let mut record = record(3_599_999_999);
            (record.chosen, record.candidates) = (worker(0), (0..workers).map(row).collect());
            let sizes = [1, 2].map(|count| written(&vec![record.clone(); count]).len());
            sizes[1] - sizes[0]
        };
        assert!((1_000..1_600).contains(&of(64)), "{}", of(64));
        assert!((100..250).contains(&of(4)), "{}", of(4));
    }

    #[test]
    fn journals_one_after_the_other_share_pools_by_name_and_nothing_else() {
        let mut bytes = Vec::new();
        for roles in [["prefill", "decode"], ["decode", "prefill"]] {
            let mut writer = JournalWriter::new(&mut bytes, Header::default()).unwrap();
            for role in roles {
                writer.record(&pool(role), &record(0)).unwrap();
            }
        }
        let mut reader = JournalReader::new(&bytes[..]);
        let mut seen = Vec::new();
        for entry in &mut reader {
            match entry.unwrap() {
                Entry::Begin(_) => seen.push(None),
                Entry::Decision { pool, .. } => seen.push(Some(pool)),
                Entry::Counts { .. } => {}
            }
        }
        assert_eq!(seen, [None, Some(0), Some(1), None, Some(1), Some(0)]);
        assert_eq!(reader.pools(), [pool("prefill"), pool("decode")]);
    }

    #[test]
    fn numbers_of_an_earlier_journal_are_forgotten() {
        let header = journal(&[]).lines().next().unwrap().to_owned();
        let stray = r#"{"count":{"pool":0,"at":0}}"#;
        let faults = read(journal(&[&header, stray]).as_bytes()).faults;
        assert_eq!(faults, ["line 5: count.pool: no line names pool 0"]);
    }

    #[test]
    fn another_major_version_is_refused_with_what_is_allowed() {
        let text = journal(&[]).replace("1.0", "2.0");
        let faults = read(text.as_bytes()).faults;
        assert_eq!(faults, ["line 1: version is 2.0; allowed: 1.0 to 1.x"]);
        let minor = read(journal(&[]).replace("1.0", "1.7").as_bytes());
        assert_eq!(minor.counts(), [0; 4]);
    }

    #[test]
    fn what_a_later_minor_version_adds_is_passed_over() {
        let decision = r#"{"decision":{"pool":0,"at":1,"chosen":0,"rows":[[0,0,1]],"later":[{}]}}"#;
        let read = read(journal(&[r#"{"later":{"a":1}}"#, decision]).as_bytes());
        assert_eq!(read.counts(), [1, 0, 0, 1]);
    }

    #[test]
    fn what_is_no_journal_is_refused_by_its_first_line() {
        for (text, found) in [
            ("", "nothing"),
            ("\n \n", "nothing"),
            ("timestamp,a\n1,2\n", "timestamp,a"),
            (
                r#"{"header":{"schema":"x","version":"1.0"}}"#,
                r#"{"header":{"schema":"x","version":"1.0"}}"#,
            ),
            (
                r#"{"count":{"pool":0,"at":0}}"#,
                r#"{"count":{"pool":0,"at":0}}"#,
            ),
        ] {
            let faults = read(text.as_bytes()).faults;
            let expected = format!(
                "no journal: it begins with {found}; allowed: a line with a header of schema regime.journal"
            );
            assert_eq!(faults, [expected]);
        }
    }

    #[test]
    fn a_fault_is_named_by_line_and_field() {
        for (line, fault) in [
            (
                r#"{"decision":{"pool":0,"at":1,"chosen":0,"rows":[[0,-1,1]]}}"#,
                "line 4: decision.rows[0][1]: -1 is outside of 0 to 3600000 ms",
            ),
            (
                r#"{"decision":{"pool":0,"at":1,"chosen":0,"rows":[[0,0,0]]}}"#,
                "line 4: decision.rows[0][2]: 0 is outside of 0.001 to 3600000 ms",
            ),
            (
                r#"{"decision":{"pool":0,"at":"1","chosen":0,"rows":[]}}"#,
                "line 4: decision.at: invalid type: string \"1\", expected f64",
            ),
            (
                r#"{"decision":{"pool":0,"chosen":0,"rows":[]}}"#,
                "line 4: decision: missing field `at`",
            ),
            (
                r#"{"decision":{"pool":0,"at":1,"chosen":0,"rows":[[0,0,1],[0,0,1]]}}"#,
                "line 4: decision.rows[1][0]: worker 0 is listed twice",
            ),
            (
                r#"{"decision":{"pool":0,"at":1,"chosen":0,"rows":[[5,0,1]]}}"#,
                "line 4: decision.rows[0][0]: no line names worker 5",
            ),
            (
                r#"{"decision":{"pool":0,"at":1,"chosen":1,"rows":[[0,0,1]]}}"#,
                "line 4: decision.chosen: worker 1 is not among the rows",
            ),
            (
                r#"{"decision":{"pool":3,"at":1,"chosen":0,"rows":[[0,0,1]]}}"#,
                "line 4: decision.pool: no line names pool 3",
            ),
            (
                r#"{"decision":{"pool":0,"at":1,"chosen":0,"ttft":2,"e2e":1,"rows":[[0,0,1]]}}"#,
                "line 4: decision.e2e: below ttft; allowed: at least ttft",
            ),
            (
                r#"{"decision":{"pool":0,"at":1,"chosen":0,"regime":"hot","rows":[[0,0,1]]}}"#,
                "line 4: decision.regime: unknown variant `hot`, expected one of `unknown`, `below`, `transition`, `saturated`",
            ),
            (
                r#"{"worker":{"n":1,"id":"pod-7"}}"#,
                "line 4: worker.id: invalid value: string \"pod-7\", expected a whole number, or its digits as a string",
            ),
            ("[1]", "line 4: line: expected value"),
        ] {
            assert_eq!(fault_of(line), fault);
        }
    }

    #[test]
    fn the_reader_goes_on_after_a_fault() {
        let good = r#"{"decision":{"pool":0,"at":1,"chosen":0,"rows":[[0,0,1]]}}"#;
        let read = read(journal(&["nonsense", good]).as_bytes());
        assert_eq!(read.counts(), [1, 1, 0, 0]);
    }

    #[test]
    fn a_line_that_a_crash_cut_off_is_counted_and_no_fault() {
        let whole = written(&[record(0), record(1)]);
        let cut = &whole[..whole.len() - 20];
        assert_eq!(read(cut).counts(), [1, 0, 1, 0]);
        // The next journal goes on behind it.
        let both = [cut, b"\n", &whole].concat();
        assert_eq!(read(&both).counts(), [3, 0, 1, 0]);
    }

    #[test]
    fn a_line_without_end_takes_no_memory_without_end() {
        let long = "x".repeat(LONGEST_LINE + 1);
        let good = r#"{"decision":{"pool":0,"at":1,"chosen":0,"rows":[[0,0,1]]}}"#;
        let read = read(journal(&[&long, good]).as_bytes());
        assert_eq!(read.faults, ["line 4: line: longer than 16777216 bytes"]);
        assert_eq!(read.records.len(), 1);
    }

    #[test]
    fn what_no_reader_would_take_is_not_written() {
        let mut bytes = Vec::new();
        let mut writer = JournalWriter::new(&mut bytes, Header::default()).unwrap();
        let mut refused = |change: &dyn Fn(&mut Record)| {
            let mut record = record(0);
            change(&mut record);
            writer
                .record(&pool("aggregated"), &record)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused(&|it| it.candidates[1].own = Millis::ZERO),
            "own is 0.0; allowed: 0.001 to 3600000 ms"
        );
        assert_eq!(
            refused(&|it| it.candidates[0].wait = ms(3_600_001.0)),
            "wait is 3600001.0; allowed: 0 to 3600000 ms"
        );
        assert_eq!(
            refused(&|it| it.e2e = Some(ms(81.0))),
            "e2e is Some(Millis(81.0)); allowed: at least ttft"
        );
        assert!(refused(&|it| it.chosen.rank = 9).ends_with("allowed: one of the candidates"));
        assert!(refused(&|it| it.candidates[1].worker = A).ends_with("allowed: each once"));
        assert_eq!(read(&bytes).counts(), [0; 4]);
    }

    #[test]
    fn a_request_without_a_first_token_is_recorded_too() {
        let failed = Record {
            residence: None,
            held: Millis::ZERO,
            seat_wait: Millis::ZERO,
            ttft: None,
            e2e: None,
            ..record(5)
        };
        let back = read(&written(std::slice::from_ref(&failed)));
        assert_eq!(back.records, [failed]);
    }

    #[test]
    fn the_joined_share_is_of_the_decisions_whose_fate_is_known() {
        let counts = Counts {
            decisions: 20,
            recorded: 12,
            unjoined: 3,
            lost: 1,
        };
        assert_eq!(counts.joined_share(), Some(0.75));
        assert_eq!(Counts::default().joined_share(), None);
        let mut bytes = Vec::new();
        let mut writer = JournalWriter::new(&mut bytes, Header::default()).unwrap();
        let at = Timestamp::from_secs(1);
        writer.counts(&pool("prefill"), at, counts).unwrap();
        let entry = JournalReader::new(&bytes[..]).nth(1).unwrap().unwrap();
        assert_eq!(
            entry,
            Entry::Counts {
                pool: 0,
                at,
                counts
            }
        );
    }

    #[test]
    fn the_header_says_who_wrote_it_and_how() {
        let header = Header {
            producer: "somebody 1.2".into(),
            started_unix_ms: Some(1_700_000_000_000),
            settings: Map::from_iter([("window_ms".to_owned(), 250.into())]),
        };
        let mut bytes = Vec::new();
        JournalWriter::new(&mut bytes, header.clone()).unwrap();
        let entry = JournalReader::new(&bytes[..]).next().unwrap().unwrap();
        assert_eq!(entry, Entry::Begin(header));
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let span = || (0_u32..2_000_000_000).prop_map(|micros| ms(f64::from(micros) / 1e3));
        let own = (1_u32..2_000_000_000).prop_map(|micros| ms(f64::from(micros) / 1e3));
        let rows = proptest::collection::btree_map(any::<(u64, u32)>(), (span(), own), 1..9);
        let latency = proptest::option::of((span(), proptest::option::of(span())));
        (
            rows,
            any::<proptest::sample::Index>(),
            any::<u32>(),
            any::<u64>(),
            latency,
        )
            .prop_map(|(rows, chosen, at, prompt, latency)| {
                let candidates: Vec<Candidate> = rows
                    .into_iter()
                    .map(|((id, rank), (wait, own))| Candidate {
                        worker: WorkerKey::new(id, rank),
                        wait,
                        own,
                    })
                    .collect();
                Record {
                    at: Timestamp::from_micros(u64::from(at)),
                    prompt: Tokens(prompt),
                    regime: Regime::ALL.get(prompt as usize % 5).copied(),
                    chosen: chosen.get(&candidates).worker,
                    candidates,
                    residence: latency.and_then(|(_, decode)| decode),
                    held: latency.map_or(Millis::ZERO, |(ttft, _)| ttft),
                    seat_wait: latency.map_or(Millis::ZERO, |(ttft, _)| ttft * 0.5),
                    ttft: latency.map(|(ttft, _)| ttft),
                    e2e: latency.and_then(|(ttft, decode)| Some(ttft + decode?)),
                }
            })
    }

    /// In whole microseconds.
    fn rounded(mut record: Record) -> Record {
        let round = |span: Millis| ms((span.get() * 1e3).round() / 1e3);
        for candidate in &mut record.candidates {
            (candidate.wait, candidate.own) = (round(candidate.wait), round(candidate.own));
        }
        for span in [&mut record.residence, &mut record.ttft, &mut record.e2e] {
            *span = span.map(round);
        }
        (record.held, record.seat_wait) = (round(record.held), round(record.seat_wait));
        record
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_to_the_microsecond(
            records in proptest::collection::vec(any_record(), 0..8),
        ) {
            let back = read(&written(&records));
            prop_assert_eq!(back.counts(), [records.len() as u64, 0, 0, 0]);
            let expected: Vec<Record> = records.into_iter().map(rounded).collect();
            prop_assert_eq!(back.records, expected);
        }

        #[test]
        fn garbage_is_refused_and_nothing_worse(bytes: Vec<u8>) {
            prop_assert_eq!(read(&bytes).counts(), [0, 1, 0, 0]);
        }

        #[test]
        fn a_damaged_journal_is_read_to_its_end(
            at in any::<proptest::sample::Index>(),
            damage in proptest::collection::vec(any::<u8>(), 0..6),
        ) {
            let mut bytes = written(&[record(0), record(1), record(2)]);
            let from = at.index(bytes.len());
            let to = (from + damage.len()).min(bytes.len());
            bytes.splice(from..to, damage);
            let [records, faults, cut_off, unknown] = read(&bytes).counts();
            // Six lines, and at most six more by line ends among the damage.
            prop_assert!(records + faults + cut_off + unknown <= 12);
        }
    }
}
