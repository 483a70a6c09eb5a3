// SPDX-License-Identifier: Apache-2.0

//! A workload by its name: a generator, or a trace at any load.
//!
//! A trace is read and checked once. A scale takes as many requests as asked for from it: a run of
//! successive sessions whose beginning the seed chooses, so that each seed sees another part. Arrivals
//! inside one step of the trace's clock are spread over it, and all times, pauses too, are divided by
//! one factor so that the offered rate is the one asked for. A trace without times of arrival gets
//! Poisson arrivals.

use std::path::Path;
use std::sync::Arc;

use rand::Rng;

use crate::traces::{
    ReadOptions, Slice, Trace, offered_rate_per_s, slice, speed_up, spread_buckets,
};
use crate::workload::{Turn, Workload};

use super::arrivals::Pattern;
use super::draw::Streams;
use super::error::SourceError;
use super::generator::{Generator, arrivals, starts_ms};
use super::scale::{OfferedLoad, Scale};

const TRACE_PREFIX: &str = "trace:";

/// Where workloads come from.
#[derive(Debug, Clone)]
pub enum WorkloadSource {
    /// Made from a seed.
    Generated(Generator),
    /// Taken from a recording, which is shared by all clones.
    Recorded(Arc<Trace>),
}

impl WorkloadSource {
    /// A generator's name, or `trace:FILE`; then the file is read and checked, as `options` say.
    ///
    /// # Errors
    /// An unknown name, or what is wrong with the file.
    pub fn open(name: &str, options: &ReadOptions) -> Result<Self, SourceError> {
        if let Some(file) = name.strip_prefix(TRACE_PREFIX).filter(|it| !it.is_empty()) {
            let trace = Trace::read(Path::new(file), options)?;
            return Ok(Self::Recorded(Arc::new(trace)));
        }
        Generator::ALL
            .into_iter()
            .find(|generator| generator.name() == name)
            .map(Self::Generated)
            .ok_or_else(|| SourceError::UnknownName {
                name: name.to_owned(),
            })
    }

    /// Each of `sources` once. Traces whose files have the same name get as much of their paths as tells
    /// them apart.
    #[must_use]
    pub fn distinct(sources: Vec<Self>) -> Vec<Self> {
        let mut distinct: Vec<Self> = Vec::new();
        for source in sources {
            if !distinct.iter().any(|known| known.is(&source)) {
                distinct.push(source);
            }
        }
        for parts in 1.. {
            let names: Vec<String> = distinct.iter().map(Self::name).collect();
            let shared = |name: &String| names.iter().filter(|it| *it == name).count() > 1;
            let mut longer = false;
            for (source, name) in distinct.iter_mut().zip(&names) {
                if let Self::Recorded(trace) = source
                    && shared(name)
                {
                    let file = end_of(Path::new(&trace.summary.file), parts);
                    longer |= file != trace.workload.name;
                    Arc::make_mut(trace).workload.name = file;
                }
            }
            if !longer {
                break;
            }
        }
        distinct
    }

    /// Whether both are the same generator or the same file.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Generated(one), Self::Generated(other)) => one == other,
            (Self::Recorded(one), Self::Recorded(other)) => {
                let file = |trace: &Trace| Path::new(&trace.summary.file).canonicalize().ok();
                Arc::ptr_eq(one, other) || file(one).is_some_and(|it| Some(it) == file(other))
            }
            _ => false,
        }
    }

    /// The name shown in results; of a trace `trace:` and the file's name without extension, or more of its
    /// path, see [`Self::distinct`].
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Generated(generator) => generator.name().to_owned(),
            Self::Recorded(trace) => format!("{TRACE_PREFIX}{}", trace.workload.name),
        }
    }

    /// What is used when nothing is said: of a trace, all of it at its own rate.
    #[must_use]
    pub fn default_scale(&self) -> Scale {
        match self {
            Self::Generated(generator) => generator.default_scale(),
            Self::Recorded(trace) => Scale {
                requests: trace.workload.requests(),
                load: OfferedLoad::Rate(offered_rate_per_s(&trace.workload).unwrap_or(1.0)),
                block_size: trace.workload.block_size,
                seed: 0,
            },
        }
    }

    /// Refuses a scale that makes no workload.
    ///
    /// # Errors
    /// When a number of the scale is outside its range.
    pub fn check(&self, scale: &Scale) -> Result<(), SourceError> {
        match self {
            Self::Generated(_) => Generator::check(scale),
            Self::Recorded(_) => scale.check(),
        }
    }

    /// The workload of this scale.
    ///
    /// # Errors
    /// When a number of the scale is outside its range.
    pub fn build(&self, scale: &Scale) -> Result<Workload, SourceError> {
        match self {
            Self::Generated(generator) => generator.generate(scale),
            Self::Recorded(trace) => {
                scale.check()?;
                let workload = replayed(&trace.workload, scale)?;
                Ok(Workload {
                    name: self.name(),
                    arrivals: arrivals(scale.load),
                    ..workload
                })
            }
        }
    }
}

/// The last `parts` of a path.
fn end_of(path: &Path, parts: usize) -> String {
    let all: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    all[all.len().saturating_sub(parts)..].join("/")
}

fn replayed(trace: &Workload, scale: &Scale) -> Result<Workload, SourceError> {
    let mut streams = Streams::new(scale.seed);
    let part = part(trace, scale.requests, &mut streams)?;
    let OfferedLoad::Rate(rate) = scale.load else {
        return Ok(part);
    };
    let mut spread = spread_buckets(&part, None, scale.seed);
    if let Some(offered) = offered_rate_per_s(&spread) {
        return Ok(speed_up(&spread, rate / offered)?);
    }
    let turns: Vec<Vec<Turn>> = spread
        .sessions
        .iter()
        .map(|session| session.turns.clone())
        .collect();
    let starts_ms = starts_ms(Pattern::Poisson, &turns, scale.load, &mut streams.arrivals);
    for (session, start_ms) in spread.sessions.iter_mut().zip(starts_ms) {
        session.start_ms = start_ms;
    }
    Ok(spread)
}

/// Successive sessions of about `wanted` requests, from a place that the seed chooses.
fn part(trace: &Workload, wanted: usize, streams: &mut Streams) -> Result<Workload, SourceError> {
    let spare = trace.requests().saturating_sub(wanted);
    // Rows at which a session starts and enough rows follow.
    let firsts: Vec<usize> = trace
        .sessions
        .iter()
        .scan(0, |row, session| {
            let first = *row;
            *row += session.turns.len();
            Some(first)
        })
        .take_while(|first| *first <= spare)
        .collect();
    let chosen = streams.contents.random_range(0..firsts.len().max(1));
    let from = firsts.get(chosen).copied().unwrap_or(0);
    Ok(slice(
        trace,
        &Slice::Rows(from..from.saturating_add(wanted)),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn recorded(rows: impl Iterator<Item = String>) -> WorkloadSource {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for row in rows {
            writeln!(file, "{row}").unwrap();
        }
        let name = format!("trace:{}", file.path().display());
        WorkloadSource::open(&name, &ReadOptions::default()).unwrap()
    }

    /// A hundred requests, one each 100 ms, told apart by their only block.
    fn hundred() -> WorkloadSource {
        recorded((0..100).map(|row| {
            format!(
                r#"{{"timestamp":{},"input_length":1,"output_length":1,"hash_ids":[{row}]}}"#,
                100 * row
            )
        }))
    }

    fn scale(requests: usize, load: OfferedLoad, seed: u64) -> Scale {
        Scale {
            requests,
            load,
            block_size: 16,
            seed,
        }
    }

    #[test]
    fn a_trace_is_sped_up_to_the_rate_asked_for() {
        let workload = hundred()
            .build(&scale(1_000, OfferedLoad::Rate(50.0), 1))
            .unwrap();
        assert_eq!(workload.sessions.len(), 100);
        let rate = offered_rate_per_s(&workload).unwrap();
        assert!((rate - 50.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn each_seed_takes_successive_requests_from_another_place() {
        let source = hundred();
        let blocks = |seed| -> Vec<u64> {
            let workload = source
                .build(&scale(20, OfferedLoad::Rate(5.0), seed))
                .unwrap();
            assert_eq!(workload.sessions[0].start_ms, 0.0);
            workload
                .sessions
                .iter()
                .map(|session| session.turns[0].hash_ids[0])
                .collect()
        };
        let (one, other) = (blocks(1), blocks(2));
        assert_eq!(one, (one[0]..one[0] + 20).collect::<Vec<_>>());
        assert_ne!(one, other);
        assert_eq!(one, blocks(1));
    }

    #[test]
    fn a_trace_in_a_closed_loop_keeps_its_order() {
        let workload = hundred()
            .build(&scale(100, OfferedLoad::Concurrency(8), 1))
            .unwrap();
        assert_eq!(
            workload.arrivals,
            crate::workload::Arrivals::Closed { concurrency: 8 }
        );
        let blocks: Vec<u64> = workload
            .sessions
            .iter()
            .map(|s| s.turns[0].hash_ids[0])
            .collect();
        assert_eq!(blocks, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_trace_without_a_span_gets_poisson_arrivals_at_the_rate_asked_for() {
        let source = recorded((0..400).map(|row| {
            format!(r#"{{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[{row}]}}"#)
        }));
        let workload = source
            .build(&scale(400, OfferedLoad::Rate(10.0), 1))
            .unwrap();
        // 400 arrivals: four standard errors of the rate are 20 %.
        let rate = offered_rate_per_s(&workload).unwrap();
        assert!((rate - 10.0).abs() < 2.0, "{rate}");
    }

    #[test]
    fn the_default_scale_of_a_trace_is_all_of_it_at_its_own_rate() {
        let scale = hundred().default_scale();
        // 100 requests in 9.9 s.
        assert_eq!(
            (scale.requests, scale.load),
            (100, OfferedLoad::Rate(100.0 / 9.9))
        );
    }

    #[test]
    fn traces_of_one_name_are_told_apart_by_their_paths_and_one_file_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let row = r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#;
        let open = |file: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, row).unwrap();
            let name = format!("trace:{}", path.display());
            WorkloadSource::open(&name, &ReadOptions::default()).unwrap()
        };
        let files = [
            "s1/x.jsonl",
            "s2/x.jsonl",
            "s2/../s2/x.jsonl",
            "s2/y.jsonl",
            "s2/y.json",
        ];
        let sources = files.map(open).to_vec();
        let names: Vec<String> = WorkloadSource::distinct(sources)
            .iter()
            .map(WorkloadSource::name)
            .collect();
        assert_eq!(
            names,
            [
                "trace:s1/x.jsonl",
                "trace:s2/x.jsonl",
                "trace:y.jsonl",
                "trace:y.json"
            ]
        );
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = WorkloadSource::open("chatt", &ReadOptions::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "workload is \"chatt\"; allowed: chat, chat-pauses, hotspot-shift, cold-burst, decode-heavy, \
             mixed-lengths, working-set, agentic, paper, paper-mixed, paper-prompts, trace:FILE"
        );
    }
}
