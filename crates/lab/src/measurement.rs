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
//! They come in the order in which their requests ended. At most
//! [`MAX_OPEN`] of a pool wait: then the older half is cut, and a decision that comes later than that is
//! left out and counted.
//!
//! End to end, each request is expected to take after its first token what it took, since a journal does
//! not say what was expected: the temporal gap then tells of first tokens alone.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use regime_anarchy::journal::{
    Counts, Entry, Fault, Header, JournalReader, NotRead, PoolName, Record,
};
use regime_anarchy::{
    Choice, CollectorConfig, Estimate, Estimator, Figures, MAX_OPEN, NoEstimate, Summary,
    WindowCollector, summarise,
};
use regime_core::{Millis, Regime, Timestamp};
use serde::Serialize;

use crate::run::in_parallel;

/// Version of the layout of a [`Measurement`] as JSON.
pub const SCHEMA: &str = "regime-lab.anarchy.v1";
/// Stretches of time with figures of their own.
pub const SLICES: usize = 20;
/// Faults listed at most; further ones are only counted.
const LISTED: usize = 20;
/// Windows that are estimated at once.
const BATCH: usize = 1_024;
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
    Window(#[from] regime_anarchy::CollectorError),
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
    pub regimes: BTreeMap<&'static str, Part>,
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
    /// Why there are none: the name of a [`NoEstimate`].
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
                        pool.counted_now = counts;
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
            && !pools.iter().any(|pool| pool.wanted)
        {
            return Err(MeasureError::NoPool {
                wanted: wanted.clone(),
                known: pools.iter().map(|pool| pool.name.to_string()).collect(),
            });
        }
        pools.retain(|pool| pool.wanted);
        let times = pools.iter().flat_map(|pool| &pool.done);
        let (first, last) = times.fold((f64::INFINITY, 0.0_f64), |(first, last), window| {
            (first.min(window.at_ms), last.max(window.at_ms))
        });
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

/// What is known of a decision besides its choice.
#[derive(Debug, Clone, Copy)]
struct Aside {
    /// Time on the axis of all journals, ms.
    at_ms: f64,
    regime: Option<Regime>,
    /// From the first token to the last; zero where first tokens are measured.
    decode: Millis,
}

/// A window that was cut: the aside of its first decision, with the decode time of all.
struct Cut(Aside, Vec<Choice>);

/// A window that was estimated.
struct Done {
    at_ms: f64,
    regime: Option<Regime>,
    estimate: Result<Estimate, NoEstimate>,
}

/// One pool while the journal is read.
struct PoolWindows {
    name: PoolName,
    wanted: bool,
    collector: WindowCollector,
    /// Of the decisions in the collector; those of one time in the order in which they were pushed, which
    /// windows keep.
    asides: BTreeMap<Timestamp, VecDeque<Aside>>,
    open: usize,
    cut: Vec<Cut>,
    done: Vec<Done>,
    records: u64,
    counted_before: Counts,
    counted_now: Counts,
    left_out: LeftOut,
}

impl PoolWindows {
    fn new(name: PoolName, empty: &WindowCollector, options: &MeasureOptions) -> Self {
        let wanted = options.pool.as_ref().is_none_or(|wanted| {
            let parts = [&name.model, &name.role, &name.routing_group];
            parts.contains(&wanted) || name.to_string() == *wanted
        });
        Self {
            name,
            wanted,
            collector: empty.clone(),
            asides: BTreeMap::new(),
            open: 0,
            cut: Vec::new(),
            done: Vec::new(),
            records: 0,
            counted_before: Counts::default(),
            counted_now: Counts::default(),
            left_out: LeftOut::default(),
        }
    }

    fn take(&mut self, record: Record, at_ms: f64, options: &MeasureOptions) {
        self.records += 1;
        if !self.wanted {
            return;
        }
        let decode = match options.actual {
            Actual::Ttft => Some(Millis::ZERO),
            Actual::E2e => record.decode(),
        };
        let (at, regime) = (record.at, record.regime);
        let (Some(decode), Some(choice)) = (decode, record.into_choice()) else {
            self.left_out.no_latency += 1;
            return;
        };
        if self.open >= MAX_OPEN {
            let middle = self.asides.keys().nth(self.asides.len() / 2).copied();
            let windows = self.collector.close(middle.unwrap_or_default());
            self.keep(windows, options.threads);
        }
        if self.collector.push(choice).is_err() {
            self.left_out.late += 1;
            return;
        }
        self.open += 1;
        self.asides.entry(at).or_default().push_back(Aside {
            at_ms,
            regime,
            decode,
        });
    }

    /// A journal ends.
    fn finish(&mut self, empty: &WindowCollector, threads: usize) {
        let collector = std::mem::replace(&mut self.collector, empty.clone());
        self.keep(collector.finish(), threads);
        self.estimate(threads);
        self.counted_before = self.counted_before.plus(self.counted_now);
        self.counted_now = Counts::default();
    }

    /// Take windows that were cut, with the asides of their decisions.
    fn keep(&mut self, windows: Vec<Vec<Choice>>, threads: usize) {
        for choices in windows {
            self.open -= choices.len();
            let mut whole: Option<Aside> = None;
            for choice in &choices {
                let Some(mut of_one_time) = self.asides.first_entry() else {
                    continue;
                };
                debug_assert_eq!(*of_one_time.key(), choice.decided_at);
                let aside = of_one_time.get_mut().pop_front();
                if of_one_time.get().is_empty() {
                    of_one_time.remove();
                }
                if let Some(aside) = aside {
                    let before = whole.map_or(Millis::ZERO, |whole| whole.decode);
                    let first = whole.unwrap_or(aside);
                    whole = Some(Aside {
                        decode: before + aside.decode,
                        ..first
                    });
                }
            }
            self.cut.extend(whole.map(|whole| Cut(whole, choices)));
            if self.cut.len() >= BATCH {
                self.estimate(threads);
            }
        }
    }

    /// Estimate the windows that were cut.
    fn estimate(&mut self, threads: usize) {
        let cut = std::mem::take(&mut self.cut);
        let estimates = in_parallel(cut.len(), threads, |index| {
            let Cut(aside, choices) = &cut[index];
            let estimate = Estimator::default().estimate(choices)?;
            let actual = estimate.sums.actual + aside.decode;
            estimate.end_to_end(actual, aside.decode)
        });
        self.done
            .extend(cut.iter().zip(estimates).map(|(cut, estimate)| Done {
                at_ms: cut.0.at_ms,
                regime: cut.0.regime,
                estimate,
            }));
    }

    /// With its slices between two times on the axis.
    fn measured(self, first_ms: f64, last_ms: f64) -> PoolMeasurement {
        let Self { name, done, .. } = self;
        let counted = self.counted_before;
        let regimes = Regime::ALL.into_iter().filter_map(|regime| {
            let part = part(done.iter().filter(|it| it.regime == Some(regime)))?;
            Some((regime.as_str(), part))
        });
        let width = (last_ms - first_ms) / SLICES as f64;
        let slice_of = |window: &Done| match width > 0.0 {
            true => (((window.at_ms - first_ms) / width) as usize).min(SLICES - 1),
            false => 0,
        };
        let over_time = (0..SLICES).filter_map(|slice| {
            let within = || done.iter().filter(|it| slice_of(it) == slice);
            let most = Regime::ALL.into_iter().max_by_key(|regime| {
                within().filter(|it| it.regime == Some(*regime)).count()
            });
            Some(Slice {
                from_ms: first_ms + width * slice as f64,
                to_ms: first_ms + width * (slice + 1) as f64,
                regime: most.filter(|most| within().any(|it| it.regime == Some(*most))),
                part: part(within())?,
            })
        });
        let summary = summary(done.iter());
        PoolMeasurement {
            name,
            records: self.records,
            counted,
            joined_share: (counted != Counts::default())
                .then(|| Counts { recorded: self.records, ..counted }.joined_share())
                .flatten(),
            left_out: self.left_out,
            whole: Part::of(&summary),
            regimes: regimes.collect(),
            over_time: over_time.collect(),
            without_estimate: summary.without_estimate,
        }
    }
}

impl Part {
    fn of(summary: &Summary) -> Self {
        let figures = summary.figures();
        Self {
            anarchy: figures.ok(),
            unavailable: figures.err(),
        }
    }
}

/// The figures of some windows; `None` without a window.
fn part<'a>(windows: impl Iterator<Item = &'a Done> + Clone) -> Option<Part> {
    windows.clone().next()?;
    Some(Part::of(&summary(windows)))
}

fn summary<'a>(windows: impl Iterator<Item = &'a Done>) -> Summary {
    // The same for every part, so that equal parts have equal intervals.
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    summarise(windows.map(|it| &it.estimate), &mut rng)
}
