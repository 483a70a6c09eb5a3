// SPDX-License-Identifier: Apache-2.0

//! Writing a journal into anything that takes bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use regime_core::{Millis, Timestamp, WorkerKey};
use thiserror::Error;

use super::wire::{
    At, CountLine, Decision, HeaderLine, Latency, Line, Own, PoolLine, Span, Wait, WorkerId,
    WorkerLine,
};
use super::{Counts, Header, PoolName, Record, SCHEMA, VERSION};

/// Why something was not written. After [`Self::Unusable`] the journal is as before; after [`Self::Io`]
/// its last line may be incomplete.
#[derive(Debug, Error)]
pub enum NotWritten {
    /// A value that no reader would take.
    #[error("{field} is {value}; allowed: {allowed}")]
    Unusable {
        /// Which field of the record.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        allowed: String,
    },
    /// The file system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Writes one journal, line by line. Buffer the output: a line is one write.
#[derive(Debug)]
pub struct JournalWriter<W> {
    out: W,
    /// Pools and workers that have a number.
    pools: BTreeMap<PoolName, u32>,
    workers: BTreeMap<WorkerKey, u32>,
    /// Reused from line to line.
    text: Vec<u8>,
    decision: Decision,
}

impl<W: Write> JournalWriter<W> {
    /// Begin a journal in `out`, which may hold others before it.
    ///
    /// # Errors
    /// Of `out`.
    pub fn new(out: W, header: Header) -> io::Result<Self> {
        let mut writer = Self {
            out,
            pools: BTreeMap::new(),
            workers: BTreeMap::new(),
            text: Vec::new(),
            decision: Decision::default(),
        };
        let (major, minor) = VERSION;
        writer.line(&Line::Header(HeaderLine {
            schema: SCHEMA.to_owned(),
            version: format!("{major}.{minor}"),
            header,
        }))?;
        Ok(writer)
    }

    /// Write one decision of `pool`.
    ///
    /// # Errors
    /// Names the first value that no reader would take, or what `out` said.
    pub fn record(&mut self, pool: &PoolName, record: &Record) -> Result<(), NotWritten> {
        let latency = |field, span: Option<Millis>| -> Result<Option<Latency>, NotWritten> {
            span.map(|span| usable(field, span)).transpose()
        };
        let residence = latency("residence", record.residence)?;
        let held = usable("held", record.held)?;
        let seat_wait = usable("seat_wait", record.seat_wait)?;
        let (ttft, e2e) = (latency("ttft", record.ttft)?, latency("e2e", record.e2e)?);
        if e2e.is_some() && e2e < ttft {
            return Err(unusable("e2e", &record.e2e, "at least ttft"));
        }
        let at = at(record.at)?;
        let mut seen = BTreeSet::new();
        for candidate in &record.candidates {
            let _: Wait = usable("wait", candidate.wait)?;
            let _: Own = usable("own", candidate.own)?;
            if !seen.insert(candidate.worker) {
                return Err(unusable("candidates", &candidate.worker, "each once"));
            }
        }
        if !seen.contains(&record.chosen) {
            return Err(unusable("chosen", &record.chosen, "one of the candidates"));
        }

        let mut line = std::mem::take(&mut self.decision);
        line.rows.clear();
        for candidate in &record.candidates {
            let number = self.worker(candidate.worker)?;
            line.rows.push((
                number,
                usable("wait", candidate.wait)?,
                usable("own", candidate.own)?,
            ));
        }
        line = Decision {
            pool: self.pool(pool)?,
            at,
            prompt: record.prompt.0,
            regime: record.regime,
            chosen: self.worker(record.chosen)?,
            residence,
            held,
            seat_wait,
            ttft,
            e2e,
            rows: line.rows,
        };
        let line = Line::Decision(line);
        self.line(&line)?;
        if let Line::Decision(line) = line {
            self.decision = line;
        }
        Ok(())
    }

    /// Write what became of the decisions of `pool` until `at`.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub fn counts(
        &mut self,
        pool: &PoolName,
        at_time: Timestamp,
        counts: Counts,
    ) -> Result<(), NotWritten> {
        let (pool, at) = (self.pool(pool)?, at(at_time)?);
        Ok(self.line(&Line::Count(CountLine { pool, at, counts }))?)
    }

    /// Hand on what is buffered.
    ///
    /// # Errors
    /// Of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn pool(&mut self, name: &PoolName) -> io::Result<u32> {
        if let Some(&number) = self.pools.get(name) {
            return Ok(number);
        }
        let n = self.pools.len() as u32;
        let name = name.clone();
        self.line(&Line::Pool(PoolLine {
            n,
            name: name.clone(),
        }))?;
        self.pools.insert(name, n);
        Ok(n)
    }

    fn worker(&mut self, worker: WorkerKey) -> io::Result<u32> {
        if let Some(&number) = self.workers.get(&worker) {
            return Ok(number);
        }
        let n = self.workers.len() as u32;
        let (id, rank) = (WorkerId(worker.id), worker.rank);
        self.line(&Line::Worker(WorkerLine { n, id, rank }))?;
        self.workers.insert(worker, n);
        Ok(n)
    }

    fn line(&mut self, line: &Line) -> io::Result<()> {
        self.text.clear();
        serde_json::to_writer(&mut self.text, line)?;
        self.text.push(b'\n');
        self.out.write_all(&self.text)
    }
}

fn at(time: Timestamp) -> Result<At, NotWritten> {
    let micros = i64::try_from(time.as_micros()).ok();
    let at = micros.and_then(At::from_micros);
    at.ok_or_else(|| unusable("at", &time, &At::allowed()))
}

fn usable<const LEAST: i64, const MOST: i64>(
    field: &'static str,
    span: Millis,
) -> Result<Span<LEAST, MOST>, NotWritten> {
    Span::from_millis(span)
        .ok_or_else(|| unusable(field, &span.get(), &Span::<LEAST, MOST>::allowed()))
}

fn unusable(field: &'static str, value: &impl std::fmt::Debug, allowed: &str) -> NotWritten {
    NotWritten::Unusable {
        field,
        value: format!("{value:?}"),
        allowed: allowed.to_owned(),
    }
}
