// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of a fleet, from a journal that its frontend wrote.
//!
//! # Idea
//!
//! Windows are cut and estimated by the same code as in a live router, pool by pool, so both give the same
//! figures for the same decisions. Figures are given for the whole journal, for each of [`SLICES`] equal
//! stretches of it, and for each regime; a window belongs where its first decision does. Nothing here is
//! simulated: the latencies are those of the fleet, and so are the forecasts.
//!
//! # Defaults
//!
//! A journal is larger than memory, so it is read once and decisions are kept until their window is cut.
//! They come in the order in which their requests ended. At most [`MAX_OPEN`](regime_anarchy::MAX_OPEN) of
//! a pool wait: then the older half is cut, and a decision that comes later than that is left out and
//! counted.
//!
//! As in a live router, decisions without the latency asked for help to cut windows and are then left out of
//! them. What a request is expected to take after its first token is what the journal says, or else what it
//! took.

mod files;
mod pool;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use regime_anarchy::journal::{Counts, Entry, Fault, Header, JournalReader, NotRead, PoolName};
use regime_anarchy::{
    CollectorConfig, CollectorError, Figures, Found, GapIntervals, Interval, WindowCollector,
};
use regime_core::{Millis, Regime, Timestamp};
use serde::Serialize;

use pool::PoolWindows;

/// Version of the layout of a [`Measurement`] as JSON.
pub const SCHEMA: &str = "regime-lab.anarchy.v1";
/// Stretches of time with figures of their own.
pub const SLICES: usize = 20;
/// Faults listed at most; further ones are only counted.
const LISTED: usize = 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Which latency of a request is compared with its forecast.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Actual {
    /// From the decision to the first token
    #[default]
    Ttft,
    /// From the decision to the last token
    E2e,
}

impl Actual {
    /// What it is, in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Ttft => "time to first token",
            Self::E2e => "end-to-end latency",
        }
    }
}

/// What to measure.
#[derive(Debug, Clone, Default)]
pub struct MeasureOptions {
    /// When a window ends.
    pub window: CollectorConfig,
    /// Which latency.
    pub actual: Actual,
    /// Only pools whose model, role, routing group or whole name is this.
    pub pool: Option<String>,
    /// Threads; results do not depend on it.
    pub threads: usize,
}

/// A journal that could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The file system, or the content.
    #[error("{path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: NotRead,
    },
    /// No pool has the wanted name.
    #[error("--pool is {wanted:?}; allowed in this journal: {}", known.join(", "))]
    NoPool {
        /// The name asked for.
        wanted: String,
        /// Pools that the journal has.
        known: Vec<String>,
    },
    /// Windows that cannot be cut.
    #[error(transparent)]
    Window(#[from] CollectorError),
}

/// What a journal says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// Which latency was compared.
    pub actual: Actual,
    /// Longest span of a window, ms.
    pub window_ms: f64,
    /// Most decisions of a window.
    pub window_count: usize,
    /// Pools, in the order of the journal.
    pub pools: Vec<PoolMeasurement>,
}

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Source {
    /// As it was named.
    pub journal: String,
    /// Who wrote it: the first header.
    #[serde(flatten)]
    pub header: Header,
    /// Journals in the file, one after the other.
    pub journals: u64,
    /// Lines that a crash cut off.
    pub cut_off: u64,
    /// Lines of kinds that a later version wrote.
    pub unknown_lines: u64,
    /// Lines at fault, which are left out.
    pub faults: u64,
    /// The first of them.
    #[serde(skip)]
    pub first_faults: Vec<Fault>,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolMeasurement {
    /// Its name.
    #[serde(flatten)]
    pub name: PoolName,
    /// Decisions in the file.
    pub records: u64,
    /// What the producer counted; all zero where it did not.
    pub counted: Counts,
    /// Records over records, unjoined and lost ones; absent where nothing was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined_share: Option<f64>,
    /// Records that are in no window.
    pub left_out: LeftOut,
    /// Windows without an estimate, by reason.
    pub without_estimate: BTreeMap<&'static str, usize>,
    /// All windows.
    #[serde(flatten)]
    pub whole: Part,
    /// By the regime in which a window began; empty where regimes are not recorded.
    pub regimes: BTreeMap<Regime, Part>,
    /// Stretches of time that have windows.
    pub over_time: Vec<Slice>,
}

/// Records that are in no window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Without the latency asked for.
    pub no_latency: u64,
    /// They came when their window was cut.
    pub late: u64,
}

/// Some windows of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Part {
    /// Their figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anarchy: Option<Figures>,
    /// Why there are none: the name of a [`NoEstimate`](regime_anarchy::NoEstimate).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<&'static str>,
}

/// The windows of a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slice {
    /// Its beginning, ms since the start of the journal.
    pub from_ms: f64,
    /// Its end, ms.
    pub to_ms: f64,
    /// Regime in which most of its windows began, if recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regime: Option<Regime>,
    /// Its figures.
    #[serde(flatten)]
    pub part: Part,
}

/// Titles of [`Part::cells`].
pub(crate) const PART_HEAD: [&str; 7] = [
    "requests",
    "windows",
    "slowdown",
    "policy gap",
    "temporal gap",
    "overload",
    "PoA-hat",
];

impl Part {
    /// The figures in words, with their intervals if wanted; `~` where optima are bounded.
    pub(crate) fn cells(&self, intervals: bool) -> [String; PART_HEAD.len()] {
        let Some(figures) = &self.anarchy else {
            let mut cells = PART_HEAD.map(|_| "-".to_owned());
            cells[0] = self.unavailable.unwrap_or_default().to_owned();
            return cells;
        };
        let interval = figures.interval.filter(|_| intervals);
        let bounded = match figures.method {
            Found::Exact => "",
            Found::Bounded => "~",
        };
        let ratio = |value: f64, of: fn(&GapIntervals) -> Interval| match interval.as_ref().map(of)
        {
            Some(Interval { low, high }) => format!("{value:.3}{bounded} [{low:.3}, {high:.3}]"),
            None => format!("{value:.3}{bounded}"),
        };
        [
            figures.n.to_string(),
            figures.windows.to_string(),
            ratio(figures.slowdown, |it| it.slowdown),
            ratio(figures.policy_gap, |it| it.policy),
            ratio(figures.temporal_gap, |it| it.temporal),
            ratio(figures.overload, |it| it.overload),
            ratio(figures.poa_hat, |it| it.poa_hat),
        ]
    }
}

impl PoolMeasurement {
    /// How much of the pool's traffic the figures rest on, in one line.
    #[must_use]
    pub fn account(&self) -> String {
        let mut text = format!("{} decisions", self.records);
        match self.joined_share {
            Some(share) => {
                text += &format!(
                    ", {:.1} % of those whose fate is known ({} met no request, {} were lost)",
                    100.0 * share,
                    self.counted.unjoined,
                    self.counted.lost
                )
            }
            None => text += ", joined share unknown",
        }
        for (count, why) in [
            (self.left_out.no_latency, "without such a latency"),
            (self.left_out.late, "too late for their window"),
        ] {
            if count > 0 {
                text += &format!("; {count} left out {why}");
            }
        }
        for (reason, count) in &self.without_estimate {
            text += &format!("; {count} windows without an estimate: {reason}");
        }
        text
    }
}

/// A journal whose header has been read.
pub struct JournalFile {
    path: String,
    reader: JournalReader<Box<dyn BufRead>>,
    header: Header,
}

impl JournalFile {
    /// Open a journal, plain or gzip.
    ///
    /// # Errors
    /// When it cannot be read, or does not begin as a journal.
    pub fn open(path: &Path) -> Result<Self, MeasureError> {
        let error = |source| MeasureError::Read {
            path: path.display().to_string(),
            source,
        };
        let mut input = BufReader::new(File::open(path).map_err(|it| error(it.into()))?);
        let start = input.fill_buf().map_err(|it| error(it.into()))?;
        let input: Box<dyn BufRead> = if start.starts_with(&GZIP) {
            Box::new(BufReader::new(MultiGzDecoder::new(input)))
        } else {
            Box::new(input)
        };
        let mut reader = JournalReader::new(input);
        let header = match reader.next() {
            Some(Ok(Entry::Begin(header))) => header,
            Some(Err(problem)) => return Err(error(problem)),
            // The reader gives a header or a problem first.
            _ => Header::default(),
        };
        Ok(Self {
            path: path.display().to_string(),
            reader,
            header,
        })
    }

    /// Read the rest and measure it.
    ///
    /// # Errors
    /// When the file cannot be read to its end, when another journal in it has a layout that is not known,
    /// and for options that do not fit.
    pub fn measure(mut self, options: &MeasureOptions) -> Result<Measurement, MeasureError> {
        let mut source = Source {
            journal: self.path.clone(),
            header: self.header.clone(),
            journals: 1,
            ..Source::default()
        };
        let empty = WindowCollector::new(options.window)?;
        let mut clock = Clock::new(&self.header);
        let mut pools: Vec<PoolWindows> = Vec::new();
        while let Some(entry) = self.reader.next() {
            while let Some(name) = self.reader.pools().get(pools.len()) {
                pools.push(PoolWindows::new(name.clone(), &empty, options));
            }
            match entry {
                Ok(Entry::Begin(header)) => {
                    source.journals += 1;
                    clock.restart(&header);
                    for pool in &mut pools {
                        pool.finish(&empty, options.threads);
                    }
                }
                Ok(Entry::Decision { pool, record }) => {
                    let at_ms = clock.place(record.at);
                    if let Some(pool) = pools.get_mut(pool) {
                        pool.take(record, at_ms, options);
                    }
                }
                Ok(Entry::Counts { pool, at, counts }) => {
                    clock.place(at);
                    if let Some(pool) = pools.get_mut(pool) {
                        pool.count(counts);
                    }
                }
                Err(NotRead::Fault(fault)) => {
                    source.faults += 1;
                    if source.first_faults.len() < LISTED {
                        source.first_faults.push(fault);
                    }
                }
                Err(problem) => {
                    return Err(MeasureError::Read {
                        path: self.path,
                        source: problem,
                    });
                }
            }
        }
        source.cut_off = self.reader.cut_off();
        source.unknown_lines = self.reader.unknown();
        for pool in &mut pools {
            pool.finish(&empty, options.threads);
        }
        if let Some(wanted) = &options.pool
            && !pools.iter().any(PoolWindows::is_wanted)
        {
            return Err(MeasureError::NoPool {
                wanted: wanted.clone(),
                known: pools.iter().map(PoolWindows::name).collect(),
            });
        }
        pools.retain(PoolWindows::is_wanted);
        let times = || pools.iter().flat_map(PoolWindows::times_ms);
        let (first, last) = (
            times().fold(f64::INFINITY, f64::min),
            times().fold(0.0, f64::max),
        );
        Ok(Measurement {
            schema: SCHEMA,
            source,
            actual: options.actual,
            window_ms: Millis::from(options.window.span).get(),
            window_count: options.window.count,
            pools: pools
                .into_iter()
                .map(|pool| pool.measured(first, last))
                .collect(),
        })
    }
}

/// Places the times of several journals on one axis.
struct Clock {
    /// Start of the first journal on the wall clock.
    first: Option<u64>,
    /// Start of the journal that is read, ms on the axis.
    offset_ms: f64,
    /// Latest time seen, ms on the axis.
    latest_ms: f64,
}

impl Clock {
    fn new(header: &Header) -> Self {
        Self {
            first: header.started_unix_ms,
            offset_ms: 0.0,
            latest_ms: 0.0,
        }
    }

    /// A journal begins, after the one before.
    fn restart(&mut self, header: &Header) {
        let wall = |(first, now): (u64, u64)| now.saturating_sub(first) as f64;
        let since_first = self.first.zip(header.started_unix_ms).map(wall);
        self.offset_ms = since_first.unwrap_or(0.0).max(self.latest_ms);
    }

    fn place(&mut self, at: Timestamp) -> f64 {
        let at_ms = self.offset_ms + at.as_micros() as f64 / 1e3;
        self.latest_ms = self.latest_ms.max(at_ms);
        at_ms
    }
}
