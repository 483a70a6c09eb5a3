// SPDX-License-Identifier: Apache-2.0

//! The windows of one pool while a journal is read, and what they give in the end.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use regime_anarchy::journal::{Counts, PoolName, Record};
use regime_anarchy::{
    Choice, Estimate, Estimator, MAX_OPEN, NoEstimate, Summary, WindowCollector, summarise,
};
use regime_core::{Millis, Regime, Timestamp};

use super::{Actual, LeftOut, MeasureOptions, Part, PoolMeasurement, SLICES, Slice};
use crate::run::in_parallel;

/// Windows that are estimated at once.
const BATCH: usize = 1_024;

/// What is known of a decision besides its choice.
#[derive(Debug, Clone, Copy)]
struct Aside {
    /// Time on the axis of all journals, ms.
    at_ms: f64,
    regime: Option<Regime>,
    /// Whether it has the latency asked for.
    measured: bool,
    /// Expected time after what the forecasts are of; zero where first tokens are measured.
    residence: Millis,
    /// What the router had held the request.
    held: Millis,
    seat_wait: Millis,
}

/// A window that was cut.
struct Cut {
    /// Of the first decision, with the sums of the times over all that are measured.
    aside: Aside,
    /// Those that are measured.
    choices: Vec<Choice>,
}

/// A window that was estimated.
struct Done {
    at_ms: f64,
    regime: Option<Regime>,
    estimate: Result<Estimate, NoEstimate>,
}

/// One pool while the journal is read.
pub(super) struct PoolWindows {
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
    pub(super) fn new(name: PoolName, empty: &WindowCollector, options: &MeasureOptions) -> Self {
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

    pub(super) fn take(&mut self, record: Record, at_ms: f64, options: &MeasureOptions) {
        self.records += 1;
        if !self.wanted {
            return;
        }
        let (actual, residence) = match options.actual {
            Actual::Ttft => (record.ttft, None),
            Actual::E2e => {
                let decode = record.e2e.zip(record.ttft).map(|(e2e, ttft)| e2e - ttft);
                (record.e2e, record.residence.or(decode))
            }
        };
        let aside = Aside {
            at_ms,
            regime: record.regime,
            measured: actual.is_some(),
            residence: residence.unwrap_or_default(),
            held: record.held,
            seat_wait: record.seat_wait,
        };
        self.left_out.no_latency += u64::from(!aside.measured);
        let at = record.at;
        let choice = record.into_choice(actual.unwrap_or_default());
        if self.open >= MAX_OPEN {
            let mut times = self.asides.keys();
            let middle = times.nth(self.asides.len() / 2).copied().unwrap_or(at);
            // All of one time, if there is no later one.
            let last = times.next_back().copied().unwrap_or(middle);
            let mut windows = self.collector.close(middle);
            if windows.is_empty() {
                windows = self.collector.close(last + Duration::from_micros(1));
            }
            self.keep(windows, options.threads);
        }
        if self.collector.push(choice).is_err() {
            self.left_out.late += 1;
            return;
        }
        self.open += 1;
        self.asides.entry(at).or_default().push_back(aside);
    }

    pub(super) fn name(&self) -> String {
        self.name.to_string()
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// When windows began.
    pub(super) fn times_ms(&self) -> impl Iterator<Item = f64> {
        self.done.iter().map(|window| window.at_ms)
    }

    /// What the producer counted since this journal began.
    pub(super) fn count(&mut self, counts: Counts) {
        self.counted_now = counts;
    }

    /// A journal ends.
    pub(super) fn finish(&mut self, empty: &WindowCollector, threads: usize) {
        let collector = std::mem::replace(&mut self.collector, empty.clone());
        self.keep(collector.finish(), threads);
        self.estimate(threads);
        self.counted_before = self.counted_before.plus(self.counted_now);
        self.counted_now = Counts::default();
    }

    /// Take windows that were cut, with what is known of their decisions.
    fn keep(&mut self, windows: Vec<Vec<Choice>>, threads: usize) {
        for window in windows {
            self.open -= window.len();
            let with_asides = window
                .into_iter()
                .filter_map(|choice| Some((self.aside(choice.decided_at)?, choice)));
            let all: Vec<(Aside, Choice)> = with_asides.collect();
            let Some(&(first, _)) = all.first() else {
                continue;
            };
            let measured = all.into_iter().filter(|(aside, _)| aside.measured);
            let (asides, choices): (Vec<Aside>, _) = measured.unzip();
            let residence = asides.iter().map(|aside| aside.residence).sum();
            let held = asides.iter().map(|aside| aside.held).sum();
            let seat_wait = asides.iter().map(|aside| aside.seat_wait).sum();
            self.cut.push(Cut {
                aside: Aside {
                    residence,
                    held,
                    seat_wait,
                    ..first
                },
                choices,
            });
            if self.cut.len() >= BATCH {
                self.estimate(threads);
            }
        }
    }

    /// What is known of the first decision of that time that is left.
    fn aside(&mut self, at: Timestamp) -> Option<Aside> {
        let of_one_time = self.asides.get_mut(&at)?;
        let aside = of_one_time.pop_front();
        if of_one_time.is_empty() {
            self.asides.remove(&at);
        }
        aside
    }

    /// Estimate the windows that were cut.
    fn estimate(&mut self, threads: usize) {
        let cut = std::mem::take(&mut self.cut);
        let estimates = in_parallel(cut.len(), threads, |index| {
            let Cut { aside, choices } = &cut[index];
            let estimate = Estimator::default().estimate(choices)?;
            estimate
                .end_to_end(estimate.sums.actual, aside.residence)?
                .from_arrival(aside.held)?
                .behind_seats(aside.seat_wait)
        });
        self.done
            .extend(cut.iter().zip(estimates).map(|(cut, estimate)| Done {
                at_ms: cut.aside.at_ms,
                regime: cut.aside.regime,
                estimate,
            }));
    }

    /// With its slices between two times on the axis.
    pub(super) fn measured(self, first_ms: f64, last_ms: f64) -> PoolMeasurement {
        let Self { name, done, .. } = self;
        let counted = self.counted_before;
        let in_file = Counts {
            recorded: self.records,
            ..counted
        };
        let regimes = Regime::ALL.into_iter().filter_map(|regime| {
            let part = part(done.iter().filter(|it| it.regime == Some(regime)))?;
            Some((regime, part))
        });
        let width = (last_ms - first_ms) / SLICES as f64;
        let slice_of = |window: &Done| match width > 0.0 {
            true => (((window.at_ms - first_ms) / width) as usize).min(SLICES - 1),
            false => 0,
        };
        let over_time = (0..SLICES).filter_map(|slice| {
            let within = || done.iter().filter(|it| slice_of(it) == slice);
            let most = Regime::ALL
                .into_iter()
                .max_by_key(|regime| within().filter(|it| it.regime == Some(*regime)).count());
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
            joined_share: in_file
                .joined_share()
                .filter(|_| counted != Counts::default()),
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
