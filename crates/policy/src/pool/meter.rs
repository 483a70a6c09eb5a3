// SPDX-License-Identifier: Apache-2.0

//! Decisions that are kept until their requests have ended: what the Price of Anarchy is measured from, and
//! what a host may export.
//!
//! # Idea
//!
//! Decisions are cut into windows as they come from the journal: a window begins with a decision and ends
//! after `window_ms` or `window_requests` of them. Of a window either every decision is kept with its rows,
//! or none: a window with holes would look like less contention than there was. Each kept decision
//! waits for its request, which claims it by worker and prompt length, answers, and ends. A window whose
//! decisions have all answered can be measured by TTFT, one whose decisions have all ended end to end.
//!
//! Measuring is the host's: it calls now and then, from a thread of its own, and pays with the share of one
//! core that it may take. A window costs what windows have cost so far; windows that cannot be paid are
//! skipped, and the share of those that were not is shown. A host that never calls keeps nothing. With an
//! export every decision is kept, and the same few are measured.
//!
//! # Defaults
//!
//! In `Anarchy` of the parameters. A call pays for two seconds at most, so that a pause is no licence.
//! [`MAX_ROWS`] rows, 32 bytes each, are kept; beyond them, windows are skipped.
//!
//! # Source
//!
//! Γ_R and PoA-hat of the paper; the join is that of [`super::pending`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use regime_anarchy::{Candidate, Choice};
use regime_core::{Millis, Regime, StepEwma, Timestamp, Tokens, WorkerKey};

use crate::journal::{Decision, DecisionRow};
use crate::parameters::Metering;

/// Rows kept at once.
const MAX_ROWS: usize = 500_000;
/// Time that one call of the host pays for at most.
const MAX_PAID: Duration = Duration::from_secs(2);
/// What a window is taken to cost before one was measured, ms: 16 requests on 64 workers, twice.
const PRIOR_PRICE_MS: f64 = 1.5;
/// Weight of one call in the price, and of one window in the sampling rate.
const WEIGHT: f64 = 0.05;

/// One decision and what became of its request.
#[derive(Debug, Clone, PartialEq)]
pub struct JoinedChoice {
    /// Position among the decisions of the pool.
    pub number: u64,
    /// Time of the choice, on the plugin's clock.
    pub at: Timestamp,
    /// Prompt length.
    pub prompt_tokens: Tokens,
    /// Regime of the pool at the choice.
    pub regime: Regime,
    /// The chosen worker.
    pub chosen: WorkerKey,
    /// Every candidate with its forecasts, in the order of the workers.
    pub candidates: Vec<Candidate>,
    /// What a request took at that time from its first token to its last, in the mean over the pool.
    pub residence: Millis,
    /// Time that the request had been held by the router before the choice; zero until a token tells.
    pub held: Millis,
    /// How long a request then had to wait for a seat, whatever the choice.
    pub seat_wait: Millis,
    /// From the choice to the first token; absent when none came.
    pub ttft: Option<Millis>,
    /// From the choice to the last token; absent when the request was not served to its end.
    pub e2e: Option<Millis>,
}

impl JoinedChoice {
    /// As a window takes it, with `actual` for its latency.
    fn choice(&self, actual: Millis) -> Choice {
        Choice {
            decided_at: self.at,
            chosen: self.chosen,
            candidates: self.candidates.clone(),
            actual,
        }
    }
}

/// What any request is expected to take at a decision, wherever it goes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Expected {
    /// From its first token to its last.
    pub(crate) residence: Millis,
    /// Waiting for a seat.
    pub(crate) seat_wait: Millis,
}

/// Where a kept decision is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    window: u64,
    index: usize,
}

#[cfg(test)]
impl Ticket {
    pub(crate) const fn new(window: u64, index: usize) -> Self {
        Self { window, index }
    }
}

/// How far the request of a kept decision is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// No request has claimed it.
    Unclaimed,
    Sent,
    Answered,
    Ended,
}

#[derive(Debug)]
struct Kept {
    choice: JoinedChoice,
    stage: Stage,
}

#[derive(Debug)]
struct Window {
    started: Timestamp,
    /// Whether it is to be measured, or kept for the export only.
    sampled: bool,
    /// No more decisions come.
    complete: bool,
    ttft_taken: bool,
    kept: Vec<Kept>,
}

/// Which latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Latency {
    Ttft,
    E2e,
}

/// A window that can be measured.
#[derive(Debug)]
pub(crate) struct Measurable {
    pub(crate) latency: Latency,
    /// Last decision.
    pub(crate) at: Timestamp,
    pub(crate) decisions: usize,
    /// Decisions that met their request.
    pub(crate) joined: usize,
    /// Those with this latency.
    pub(crate) choices: Vec<Choice>,
    /// Time that the router had held the requests of the choices, in sum.
    pub(crate) held: Millis,
    /// Expected wait for seats, in sum.
    pub(crate) seat_wait: Millis,
    /// Expected time after the first token, in sum; zero for TTFT.
    pub(crate) residence: Millis,
}

/// The window that takes the next decision.
#[derive(Debug)]
struct Latest {
    number: u64,
    started: Timestamp,
    decisions: usize,
}

#[derive(Debug)]
pub(crate) struct Meter {
    settings: Metering,
    /// Windows are measured end to end, too.
    end_to_end: bool,
    /// Choices kept for the host at once; absent where it wants none.
    export: Option<usize>,
    latest: Option<Latest>,
    open: BTreeMap<u64, Window>,
    /// Settled, to be measured.
    settled: Vec<Window>,
    exported: VecDeque<JoinedChoice>,
    /// Rows in `open` and `settled`.
    rows: usize,
    decisions: u64,
    unjoined: u64,
    lost: u64,
    /// Time that may be spent on windows.
    credit: Millis,
    paid_at: Option<Timestamp>,
    /// Time that one estimate takes, ms.
    price_ms: StepEwma,
    sampled: StepEwma,
}

/// What became of the decisions of a pool, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Decisions made.
    pub decisions: u64,
    /// Decisions that no request claimed.
    pub unjoined: u64,
    /// Decisions that were not kept: too many at once, or nobody took them.
    pub lost: u64,
}

impl Meter {
    pub(crate) fn new(settings: Metering, end_to_end: bool, export: Option<usize>) -> Self {
        Self {
            settings,
            end_to_end,
            export,
            latest: None,
            open: BTreeMap::new(),
            settled: Vec::new(),
            exported: VecDeque::new(),
            rows: 0,
            decisions: 0,
            unjoined: 0,
            lost: 0,
            credit: Millis::ZERO,
            paid_at: None,
            price_ms: StepEwma::new(PRIOR_PRICE_MS, WEIGHT),
            sampled: StepEwma::new(0.0, WEIGHT),
        }
    }

    /// Take note of a decision, in the order of their times. The ticket is of one that is kept.
    pub(crate) fn decided(
        &mut self,
        decision: &Decision,
        expected: impl FnOnce() -> Expected,
    ) -> Option<Ticket> {
        let number = self.decisions;
        self.decisions += 1;
        let window = self.window_of(decision.at);
        let kept = match self.open.get_mut(&window) {
            Some(open) if !decision.rows.is_empty() => &mut open.kept,
            _ => {
                self.lost += u64::from(self.export.is_some());
                return None;
            }
        };
        self.rows += decision.rows.len();
        let Expected {
            residence,
            seat_wait,
        } = expected();
        let mut candidates: Vec<_> = decision.rows.iter().map(DecisionRow::forecast).collect();
        candidates.sort_unstable_by_key(|row| row.worker);
        kept.push(Kept {
            choice: JoinedChoice {
                number,
                at: decision.at,
                prompt_tokens: decision.prompt_tokens,
                regime: decision.regime,
                chosen: decision.chosen,
                candidates,
                residence,
                held: Millis::ZERO,
                seat_wait,
                ttft: None,
                e2e: None,
            },
            stage: Stage::Unclaimed,
        });
        Some(Ticket {
            window,
            index: kept.len() - 1,
        })
    }

    /// A request claimed the decision.
    pub(crate) fn claimed(&mut self, ticket: Ticket) {
        self.advance(ticket, Stage::Sent);
    }

    /// Its first token came at `at`, `ttft` after its arrival; absent when an earlier attempt had answered.
    pub(crate) fn answered(&mut self, ticket: Ticket, at: Timestamp, ttft: Option<Millis>) {
        if let Some(choice) = self.advance(ticket, Stage::Answered) {
            let since = at.since(choice.at).into();
            choice.ttft = Some(since);
            choice.held = ttft.map_or(Millis::ZERO, |ttft| (ttft - since).max(Millis::ZERO));
        }
    }

    /// Its attempt ended at `at`, `served` to the end or not.
    pub(crate) fn ended(&mut self, ticket: Ticket, at: Timestamp, served: bool) {
        if let Some(choice) = self.advance(ticket, Stage::Ended)
            && served
            && choice.ttft.is_some()
        {
            choice.e2e = Some(at.since(choice.at).into());
        }
    }

    /// Windows that can be measured at `now`, each once by each latency that is measured.
    pub(crate) fn take_measurable(&mut self, now: Timestamp) -> Vec<Measurable> {
        self.settle(now);
        let mut measurable = Vec::new();
        for window in self.open.values_mut() {
            if window.sampled && !window.ttft_taken && window.is(Stage::Answered) {
                window.ttft_taken = true;
                measurable.extend(window.measurable(Latency::Ttft));
            }
        }
        for window in self.settled.drain(..) {
            self.rows -= window.rows();
            if !window.ttft_taken {
                measurable.extend(window.measurable(Latency::Ttft));
            }
            if self.end_to_end {
                measurable.extend(window.measurable(Latency::E2e));
            }
        }
        measurable
    }

    /// At `now` the host has spent `spent` on `estimates` of windows, and pays for more.
    pub(crate) fn pay(&mut self, now: Timestamp, spent: Duration, estimates: usize) {
        if estimates > 0 {
            let each = Millis::from(spent) / estimates as f64;
            self.price_ms.update(each.get());
        }
        let since = self
            .paid_at
            .replace(now)
            .map_or(MAX_PAID, |at| now.since(at));
        let share = self.settings.core_share;
        // A share that does not pay for one window in two seconds pays for one in more.
        let most = (Millis::from(MAX_PAID) * share).max(self.price() * 2.0);
        self.credit = (self.credit + Millis::from(since) * share).min(most);
    }

    /// Decisions whose requests have ended, oldest first, and counts of all.
    pub(crate) fn take_exported(&mut self, now: Timestamp) -> (Vec<JoinedChoice>, ExportCounts) {
        self.settle(now);
        let counts = ExportCounts {
            decisions: self.decisions,
            unjoined: self.unjoined,
            lost: self.lost,
        };
        (self.exported.drain(..).collect(), counts)
    }

    /// Share of the windows that are measured; absent before the first window.
    pub(crate) fn sampling_rate(&self) -> Option<f64> {
        (self.sampled.samples() > 0).then(|| self.sampled.value())
    }

    /// What a window costs: one estimate by each latency.
    fn price(&self) -> Millis {
        Millis::new(self.price_ms.value()) * (1.0 + f64::from(u8::from(self.end_to_end)))
    }

    /// The window of a decision at `at`, opened if need be. It is among the open ones if it is kept.
    fn window_of(&mut self, at: Timestamp) -> u64 {
        let number = match &mut self.latest {
            Some(latest)
                if latest.decisions < self.settings.window_requests
                    && at < latest.started + self.settings.window_span =>
            {
                latest.decisions += 1;
                return latest.number;
            }
            Some(full) => {
                if let Some(window) = self.open.get_mut(&full.number) {
                    window.complete = true;
                }
                full.number + 1
            }
            None => 0,
        };
        self.latest = Some(Latest {
            number,
            started: at,
            decisions: 1,
        });
        self.open_window(number, at);
        number
    }

    fn open_window(&mut self, number: u64, at: Timestamp) {
        let fits = self.rows < MAX_ROWS;
        let price = self.price();
        let sampled = fits && self.settings.core_share > 0.0 && price <= self.credit;
        if sampled {
            self.credit = self.credit - price;
        }
        let rate = f64::from(u8::from(sampled));
        if self.sampled.samples() == 0 {
            self.sampled = StepEwma::new(rate, WEIGHT);
        }
        self.sampled.update(rate);
        if sampled || (fits && self.export.is_some()) {
            let window = Window {
                started: at,
                sampled,
                complete: false,
                ttft_taken: false,
                kept: Vec::new(),
            };
            self.open.insert(number, window);
        }
    }

    fn advance(&mut self, ticket: Ticket, to: Stage) -> Option<&mut JoinedChoice> {
        let window = self.open.get_mut(&ticket.window)?;
        let kept = window.kept.get_mut(ticket.index)?;
        if to <= kept.stage {
            return None;
        }
        kept.stage = to;
        Some(&mut kept.choice)
    }

    /// Take out the windows whose requests have all ended, or have had long enough.
    fn settle(&mut self, now: Timestamp) {
        let Metering {
            window_span,
            patience,
            ..
        } = self.settings;
        for window in self.open.values_mut() {
            window.complete |= now >= window.started + window_span;
        }
        let over = |_: &u64, window: &mut Window| {
            let late = now.since(window.started) > patience;
            window.is(Stage::Ended) || (window.complete && late)
        };
        for (_, window) in self.open.extract_if(.., over) {
            if let Some(capacity) = self.export {
                for kept in &window.kept {
                    if kept.stage == Stage::Unclaimed {
                        self.unjoined += 1;
                    } else if self.exported.len() < capacity {
                        self.exported.push_back(kept.choice.clone());
                    } else {
                        self.lost += 1;
                    }
                }
            }
            if window.sampled {
                self.settled.push(window);
            } else {
                self.rows -= window.rows();
            }
        }
    }
}

impl Window {
    /// Whether no more decisions come and all are at `stage` or beyond.
    fn is(&self, stage: Stage) -> bool {
        self.complete && self.kept.iter().all(|kept| kept.stage >= stage)
    }

    fn rows(&self) -> usize {
        let rows = self.kept.iter().map(|kept| kept.choice.candidates.len());
        rows.sum()
    }

    /// The window by a latency; nothing when no decision in it had rows.
    fn measurable(&self, latency: Latency) -> Option<Measurable> {
        let at = self.kept.last()?.choice.at;
        let joined = self.kept.iter().filter(|it| it.stage > Stage::Unclaimed);
        let mut measurable = Measurable {
            latency,
            at,
            decisions: self.kept.len(),
            joined: joined.count(),
            choices: Vec::new(),
            held: Millis::ZERO,
            seat_wait: Millis::ZERO,
            residence: Millis::ZERO,
        };
        for Kept { choice, .. } in &self.kept {
            let (actual, residence) = match latency {
                Latency::Ttft => (choice.ttft, Millis::ZERO),
                Latency::E2e => (choice.e2e, choice.residence),
            };
            if let Some(actual) = actual {
                measurable.choices.push(choice.choice(actual));
                measurable.held += choice.held;
                measurable.seat_wait += choice.seat_wait;
                measurable.residence += residence;
            }
        }
        Some(measurable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regime_kv::Brought;

    const W: WorkerKey = WorkerKey::new(1, 0);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn meter(core_share: f64, export: Option<usize>) -> Meter {
        let settings = Metering {
            window_span: Duration::from_millis(250),
            window_requests: 2,
            core_share,
            patience: Duration::from_secs(10),
        };
        let mut meter = Meter::new(settings, true, export);
        meter.pay(at(0), Duration::ZERO, 0);
        meter
    }

    fn decide(meter: &mut Meter, at_ms: u64) -> Option<Ticket> {
        let decision = Decision {
            at: at(at_ms),
            chosen: W,
            rows: vec![DecisionRow {
                worker: W,
                cost: 0.0,
                predicted_ms: Millis::new(30.0),
                alone_ms: Millis::new(20.0),
                uncached_tokens: 0.0,
                brought: Brought::default(),
                queued_tokens: 0.0,
                active_requests: 0.0,
                load_known: true,
            }],
            ..Decision::default()
        };
        meter.decided(&decision, || Expected {
            residence: Millis::new(500.0),
            seat_wait: Millis::new(7.0),
        })
    }

    fn serve(meter: &mut Meter, ticket: Ticket, first_ms: u64, last_ms: u64) {
        meter.claimed(ticket);
        meter.answered(ticket, at(first_ms), None);
        meter.ended(ticket, at(last_ms), true);
    }

    fn taken(meter: &mut Meter, now_ms: u64) -> Vec<(Latency, usize, Vec<f64>)> {
        let windows = meter.take_measurable(at(now_ms));
        let actual = |window: &Measurable| {
            let choices = window.choices.iter();
            choices.map(|choice| choice.actual.get()).collect()
        };
        windows
            .iter()
            .map(|window| (window.latency, window.joined, actual(window)))
            .collect()
    }

    #[test]
    fn a_window_is_measured_by_ttft_when_all_have_answered_and_end_to_end_when_all_have_ended() {
        let mut meter = meter(1.0, None);
        let a = decide(&mut meter, 0).unwrap();
        let b = decide(&mut meter, 10).unwrap();
        // The third begins the next window, so that the first is complete.
        decide(&mut meter, 20).unwrap();
        serve(&mut meter, a, 40, 300);
        meter.claimed(b);
        assert!(taken(&mut meter, 50).is_empty());
        meter.answered(b, at(60), None);
        assert_eq!(
            taken(&mut meter, 60),
            [(Latency::Ttft, 2, vec![40.0, 50.0])]
        );
        meter.ended(b, at(410), true);
        assert_eq!(
            taken(&mut meter, 410),
            [(Latency::E2e, 2, vec![300.0, 400.0])]
        );
    }

    #[test]
    fn end_to_end_the_expected_residence_of_each_request_is_added_up() {
        let mut meter = meter(1.0, None);
        for at_ms in [0, 10] {
            let ticket = decide(&mut meter, at_ms).unwrap();
            serve(&mut meter, ticket, 40, 300);
        }
        let windows = meter.take_measurable(at(300));
        let residences = windows.iter().map(|window| window.residence.get());
        assert_eq!(residences.collect::<Vec<_>>(), [0.0, 1_000.0]);
        // The wait for a seat is before the first token.
        let seat_waits = windows.iter().map(|window| window.seat_wait.get());
        assert_eq!(seat_waits.collect::<Vec<_>>(), [14.0, 14.0]);
        let row = windows[0].choices[0].candidates[0];
        assert_eq!((row.wait, row.own), (Millis::new(10.0), Millis::new(20.0)));
    }

    #[test]
    fn the_time_before_the_choice_is_known_from_the_ttft() {
        let mut meter = meter(1.0, None);
        let ticket = decide(&mut meter, 30).unwrap();
        meter.claimed(ticket);
        // Arrived at 10, chosen at 30, answered at 80.
        meter.answered(ticket, at(80), Some(Millis::new(70.0)));
        let window = &meter.take_measurable(at(280))[0];
        assert_eq!(
            (window.held, window.choices[0].actual),
            (Millis::new(20.0), Millis::new(50.0))
        );
    }

    #[test]
    fn a_request_that_broke_off_has_met_its_decision_and_has_no_latency() {
        let mut meter = meter(1.0, None);
        let broken = decide(&mut meter, 0).unwrap();
        let aborted = decide(&mut meter, 1).unwrap();
        meter.claimed(broken);
        meter.ended(broken, at(5), false);
        meter.claimed(aborted);
        meter.answered(aborted, at(31), None);
        meter.ended(aborted, at(40), false);
        let expected = [(Latency::Ttft, 2, vec![30.0]), (Latency::E2e, 2, vec![])];
        assert_eq!(taken(&mut meter, 250), expected);
    }

    #[test]
    fn a_window_does_not_wait_for_ever() {
        let mut meter = meter(1.0, None);
        let answered = decide(&mut meter, 0).unwrap();
        decide(&mut meter, 1).unwrap();
        serve(&mut meter, answered, 40, 90);
        assert!(taken(&mut meter, 10_000).is_empty());
        let expected = [
            (Latency::Ttft, 1, vec![40.0]),
            (Latency::E2e, 1, vec![90.0]),
        ];
        assert_eq!(taken(&mut meter, 10_001), expected);
        assert_eq!(meter.rows, 0);
    }

    #[test]
    fn windows_are_kept_whole_or_not_at_all_as_far_as_they_are_paid() {
        // 2 s · 0.003 pay for two windows of twice 1.5 ms.
        let mut meter = meter(0.003, None);
        let kept: Vec<_> = (0..8).map(|i| decide(&mut meter, i).is_some()).collect();
        assert_eq!(kept, [true, true, true, true, false, false, false, false]);
        assert!((meter.sampling_rate().unwrap() - 0.95_f64.powi(2)).abs() < 1e-12);
        // A second pays for one.
        meter.pay(at(1_000), Duration::ZERO, 0);
        let kept: Vec<_> = (8..12).map(|i| decide(&mut meter, i).is_some()).collect();
        assert_eq!(kept, [true, true, false, false]);
    }

    #[test]
    fn dear_windows_are_measured_less_often() {
        let mut meter = meter(0.01, None);
        meter.pay(at(0), Duration::from_millis(400), 2);
        // 1.5 · 0.95 + 200 · 0.05 is 11.425 ms an estimate. Less than a window was saved up: wait.
        assert_eq!(meter.price(), Millis::new(22.85));
        assert_eq!(decide(&mut meter, 1), None);
        meter.pay(at(2_000), Duration::ZERO, 0);
        assert!(decide(&mut meter, 2_000).is_some());
    }

    #[test]
    fn a_host_that_never_measures_keeps_nothing() {
        let settings = meter(1.0, None).settings;
        let mut meter = Meter::new(settings, true, None);
        assert_eq!(decide(&mut meter, 0), None);
        assert!(meter.open.is_empty());
    }

    #[test]
    fn every_decision_is_exported_and_the_others_are_counted() {
        let mut meter = meter(0.0, Some(2));
        let tickets: Vec<_> = (0..4).map(|i| decide(&mut meter, i).unwrap()).collect();
        for &ticket in &tickets[..3] {
            serve(&mut meter, ticket, 40, 90);
        }
        assert!(taken(&mut meter, 300).is_empty());
        let (first, _) = meter.take_exported(at(300));
        let numbers: Vec<_> = first.iter().map(|choice| choice.number).collect();
        assert_eq!(numbers, [0, 1]);
        assert_eq!(
            (first[1].ttft, first[1].e2e),
            (Some(Millis::new(39.0)), Some(Millis::new(89.0)))
        );
        let (second, counts) = meter.take_exported(at(10_003));
        assert_eq!(second.len(), 1);
        let expected = ExportCounts {
            decisions: 4,
            unjoined: 1,
            lost: 0,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_host_that_takes_nothing_loses_the_newest_and_counts_them() {
        let mut meter = meter(0.0, Some(2));
        for at_ms in 0..6 {
            let ticket = decide(&mut meter, at_ms).unwrap();
            serve(&mut meter, ticket, 40, 90);
        }
        let (choices, counts) = meter.take_exported(at(300));
        assert_eq!((choices.len(), counts.lost), (2, 4));
    }

    #[test]
    fn memory_is_bounded_while_nothing_ends() {
        let mut meter = meter(0.0, Some(10));
        let mut decision = Decision::default();
        for (id, worker) in (0..1_000).zip((0..).map(|id| WorkerKey::new(id, 0))) {
            decision.rows.push(DecisionRow {
                worker,
                cost: f64::from(id),
                predicted_ms: Millis::ZERO,
                alone_ms: Millis::ZERO,
                uncached_tokens: 0.0,
                brought: Brought::default(),
                queued_tokens: 0.0,
                active_requests: 0.0,
                load_known: true,
            });
        }
        for _ in 0..600 {
            meter.decided(&decision, Expected::default);
        }
        assert_eq!((meter.rows, meter.lost), (MAX_ROWS, 100));
    }

    #[test]
    fn a_decision_without_rows_is_not_measured() {
        let mut meter = meter(1.0, None);
        assert_eq!(meter.decided(&Decision::default(), Expected::default), None);
        assert!(taken(&mut meter, 300).is_empty());
    }
}
