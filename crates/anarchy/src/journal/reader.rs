// SPDX-License-Identifier: Apache-2.0

//! Reading a journal, line by line and in bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead, Read as _};

use regime_core::{Timestamp, Tokens, WorkerKey};
use serde::de::IgnoredAny;
use serde_json::error::Category;
use thiserror::Error;

use super::wire::{At, CountLine, Decision, HeaderLine, KINDS, Line};
use super::{Counts, Header, PoolName, Record, SCHEMA, VERSION};
use crate::Candidate;

/// Longest line, bytes: a decision on some 500,000 workers.
pub const LONGEST_LINE: usize = 16 * 1024 * 1024;
/// Most pools of a file: far more than any fleet has.
const MOST_POOLS: usize = 1_000;
/// Longest text of a message that comes from the file, characters.
const SHOWN: usize = 120;

/// What a line says. `pool` is a position in [`JournalReader::pools`].
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A journal begins: times and numbers start over.
    Begin(Header),
    /// One decision.
    Decision {
        /// Its pool.
        pool: usize,
        /// The decision.
        record: Record,
    },
    /// What became of all decisions of a pool since the journal began.
    Counts {
        /// The pool.
        pool: usize,
        /// Until when.
        at: Timestamp,
        /// How many.
        counts: Counts,
    },
}

/// One line that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {field}: {problem}")]
pub struct Fault {
    /// Line, from 1.
    pub line: u64,
    /// Path of the field, such as `decision.rows[2][1]`; `line` for the line as a whole.
    pub field: String,
    /// What it holds and what is allowed.
    pub problem: String,
}

/// Why there is no entry. After a [`Fault`] the reader goes on with the next line, after the others it is
/// at its end.
#[derive(Debug, Error)]
pub enum NotRead {
    /// The line is left out.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The content does not begin with a header.
    #[error("no journal: it begins with {found}; allowed: a line with a header of schema {SCHEMA}")]
    NoJournal {
        /// How it begins.
        found: String,
    },
    /// A journal of a layout that this reader does not know.
    #[error("line {line}: version is {found}; allowed: {}.0 to {}.x", VERSION.0, VERSION.0)]
    Version {
        /// Line of the header, from 1.
        line: u64,
        /// Its version.
        found: String,
    },
    /// The input refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads journals, one after the other, from any input.
#[derive(Debug)]
pub struct JournalReader<R> {
    input: R,
    text: Vec<u8>,
    line: u64,
    state: State,
    pools: Vec<PoolName>,
    /// Numbers of the journal that is being read.
    pool_numbers: BTreeMap<u32, usize>,
    workers: BTreeMap<u32, WorkerKey>,
    cut_off: u64,
    unknown: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    BeforeHeader,
    Within,
    Ended,
}

/// What the next line is.
enum Next {
    End,
    Text,
    TooLong,
}

impl<R: BufRead> JournalReader<R> {
    /// Read from `input`.
    pub fn new(input: R) -> Self {
        Self {
            input,
            text: Vec::new(),
            line: 0,
            state: State::BeforeHeader,
            pools: Vec::new(),
            pool_numbers: BTreeMap::new(),
            workers: BTreeMap::new(),
            cut_off: 0,
            unknown: 0,
        }
    }

    /// Pools so far; the same name in two journals is the same pool.
    #[must_use]
    pub fn pools(&self) -> &[PoolName] {
        &self.pools
    }

    /// Lines that end in the middle, as a crash leaves the last one of a journal.
    #[must_use]
    pub fn cut_off(&self) -> u64 {
        self.cut_off
    }

    /// Lines of kinds that this version does not know.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// The entry of the next line that has one.
    fn step(&mut self) -> Result<Option<Entry>, NotRead> {
        loop {
            match self.next_line()? {
                Next::End if self.state == State::BeforeHeader => return Err(self.no_journal()),
                Next::End => return Ok(None),
                Next::TooLong if self.state == State::Within => {
                    let problem = format!("longer than {LONGEST_LINE} bytes");
                    return Err(self.fault("line", problem));
                }
                Next::TooLong => return Err(self.no_journal()),
                Next::Text if self.text.trim_ascii().is_empty() => {}
                Next::Text => {
                    if let Some(entry) = self.parse()? {
                        return Ok(Some(entry));
                    }
                }
            }
        }
    }

    /// Fill `text`.
    fn next_line(&mut self) -> io::Result<Next> {
        self.text.clear();
        self.line += 1;
        let most = LONGEST_LINE as u64 + 1;
        let read = (&mut self.input)
            .take(most)
            .read_until(b'\n', &mut self.text);
        match read {
            Ok(0) => Ok(Next::End),
            Ok(_) if self.text.len() <= LONGEST_LINE || self.text.ends_with(b"\n") => {
                Ok(Next::Text)
            }
            Ok(_) => {
                self.text.truncate(SHOWN);
                self.input.skip_until(b'\n')?;
                Ok(Next::TooLong)
            }
            // A compressed file that was cut off.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.cut_off += 1;
                Ok(Next::End)
            }
            Err(error) => Err(error),
        }
    }

    fn parse(&mut self) -> Result<Option<Entry>, NotRead> {
        let line = match serde_json::from_slice::<Line>(&self.text) {
            Ok(line) => line,
            Err(_) if self.state != State::Within => return Err(self.no_journal()),
            Err(error) if error.classify() == Category::Eof => {
                self.cut_off += 1;
                return Ok(None);
            }
            Err(_) if self.is_unknown() => {
                self.unknown += 1;
                return Ok(None);
            }
            Err(_) => return Err(self.misfit()),
        };
        match line {
            Line::Header(header) => self.begin(header).map(Some),
            _ if self.state != State::Within => Err(self.no_journal()),
            Line::Pool(pool) => {
                let known = self.pools.iter().position(|name| *name == pool.name);
                let index = known.unwrap_or(self.pools.len());
                if index >= MOST_POOLS {
                    return Err(self.fault("pool", format!("more than {MOST_POOLS} pools")));
                }
                if known.is_none() {
                    self.pools.push(pool.name);
                }
                self.pool_numbers.insert(pool.n, index);
                Ok(None)
            }
            Line::Worker(worker) => {
                let key = WorkerKey::new(worker.id.0, worker.rank);
                self.workers.insert(worker.n, key);
                Ok(None)
            }
            Line::Decision(decision) => {
                let pool = self.pool("decision.pool", decision.pool)?;
                let record = self.record(decision)?;
                Ok(Some(Entry::Decision { pool, record }))
            }
            Line::Count(CountLine { pool, at, counts }) => {
                let pool = self.pool("count.pool", pool)?;
                let at = timestamp(at);
                Ok(Some(Entry::Counts { pool, at, counts }))
            }
        }
    }

    fn begin(&mut self, line: HeaderLine) -> Result<Entry, NotRead> {
        if line.schema != SCHEMA {
            return Err(self.no_journal());
        }
        let major = line.version.split('.').next().unwrap_or_default();
        if major.parse() != Ok(VERSION.0) {
            return Err(NotRead::Version {
                line: self.line,
                found: shown(&line.version),
            });
        }
        self.state = State::Within;
        self.pool_numbers.clear();
        self.workers.clear();
        Ok(Entry::Begin(line.header))
    }

    fn record(&self, line: Decision) -> Result<Record, NotRead> {
        let mut seen = BTreeSet::new();
        let mut candidates = Vec::with_capacity(line.rows.len());
        for (index, (number, wait, own)) in line.rows.iter().enumerate() {
            let field = || format!("decision.rows[{index}][0]");
            if !seen.insert(*number) {
                return Err(self.fault(field(), format!("worker {number} is listed twice")));
            }
            let Some(&worker) = self.workers.get(number) else {
                return Err(self.fault(field(), format!("no line names worker {number}")));
            };
            candidates.push(Candidate {
                worker,
                wait: wait.millis(),
                own: own.millis(),
            });
        }
        let chosen = Some(line.chosen).filter(|number| seen.contains(number));
        let Some(&chosen) = chosen.and_then(|number| self.workers.get(&number)) else {
            let problem = format!("worker {} is not among the rows", line.chosen);
            return Err(self.fault("decision.chosen", problem));
        };
        if line.e2e.is_some() && line.e2e < line.ttft {
            return Err(self.fault("decision.e2e", "below ttft; allowed: at least ttft"));
        }
        Ok(Record {
            at: timestamp(line.at),
            prompt: Tokens(line.prompt),
            regime: line.regime,
            chosen,
            candidates,
            residence: line.residence.map(|span| span.millis()),
            held: line.held.millis(),
            seat_wait: line.seat_wait.millis(),
            ttft: line.ttft.map(|span| span.millis()),
            e2e: line.e2e.map(|span| span.millis()),
        })
    }

    fn pool(&self, field: &str, number: u32) -> Result<usize, NotRead> {
        let index = self.pool_numbers.get(&number).copied();
        index.ok_or_else(|| self.fault(field, format!("no line names pool {number}")))
    }

    /// Whether the line is whole, and of a kind that a later minor version may have.
    fn is_unknown(&self) -> bool {
        let keys = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(&self.text);
        keys.is_ok_and(|keys| keys.len() == 1 && !keys.keys().any(|key| KINDS.contains(&&**key)))
    }

    /// Where the line differs from its kind.
    fn misfit(&self) -> NotRead {
        let mut json = serde_json::Deserializer::from_slice(&self.text);
        let line = serde_path_to_error::deserialize::<_, Line>(&mut json);
        let Err(error) = line else {
            return self.fault("line", "more than one object");
        };
        let path = error.path().to_string();
        let problem = error.inner().to_string();
        let problem = problem.split(" at line ").next().unwrap_or_default();
        match path.as_str() {
            "." | "?" => self.fault("line", problem),
            path => self.fault(path, problem),
        }
    }

    fn fault(&self, field: impl fmt::Display, problem: impl fmt::Display) -> NotRead {
        NotRead::Fault(Fault {
            line: self.line,
            field: shown(&field.to_string()),
            problem: shown(&problem.to_string()),
        })
    }

    fn no_journal(&self) -> NotRead {
        let text = String::from_utf8_lossy(self.text.trim_ascii());
        let found = match text.as_ref() {
            "" => "nothing".to_owned(),
            text => shown(text),
        };
        NotRead::NoJournal { found }
    }
}

impl<R: BufRead> Iterator for JournalReader<R> {
    type Item = Result<Entry, NotRead>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Ended {
            return None;
        }
        let step = self.step();
        if !matches!(step, Ok(Some(_)) | Err(NotRead::Fault(_))) {
            self.state = State::Ended;
        }
        step.transpose()
    }
}

fn timestamp(at: At) -> Timestamp {
    Timestamp::from_micros(u64::try_from(at.micros()).unwrap_or(0))
}

/// At most [`SHOWN`] printable characters.
fn shown(text: &str) -> String {
    let printable = |character: char| match character.is_control() {
        true => '\u{fffd}',
        false => character,
    };
    let mut shown: String = text.chars().take(SHOWN).map(printable).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}
