// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of a run, split into choice, aftermath and overload, for every policy alike.
//!
//! The yardstick is the calibrated forecast of the regime-aware policy, which looks on in every run
//! whatever policy chooses. What became of a request the lab knows by its number, so decisions and outcomes
//! are joined exactly. A live frontend has to join them by worker and prompt length, in a prefill pool by
//! length alone; that way runs along, and the share of its joins that are right is told.
//!
//! Measured is the pool that prefills: the aggregated one, or the prefill pool. What a decode worker takes
//! is not forecast. In a prefill pool the latency is still that of the user, so that the transfer and the
//! wait for a decode seat are aftermath.
//!
//! Affinity may look worse than it is: a worker that is a little slower now may be chosen since it, or the
//! prefix that it gets, will be worth more later, and no forecast of a request knows of others to come.

use std::collections::BTreeMap;

use dynamo_kv_router::WorkerType;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use regime_anarchy::{
    Choice, CollectorConfig, CollectorError, Estimate, Estimator, Figures, NoEstimate,
    WindowCollector, summarise, total,
};
use regime_core::{Millis, Regime, Timestamp};
use regime_policy::JoinedChoice;
use serde::{Deserialize, Serialize};

use crate::adapter::{Ending, RequestRecord, RunRecord, Seen, Watched};
use crate::metrics::ratio;

/// Most stretches of time that a run is cut into.
pub const STRETCHES: usize = 24;
/// Workers of a pool whose windows are all measured; of one twice as large it is every second.
const WORKERS: usize = 32;
/// Choices that the collector holds before windows are cut.
const BATCH: usize = 10_000;
/// Two latencies are the same that differ by rounding to µs, ms.
const ROUNDING_MS: f64 = 0.01;

/// The Price of Anarchy of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Anarchy {
    /// By TTFT, from the arrival of the requests.
    #[serde(flatten)]
    pub ttft: Figures,
    /// Role of the pool.
    pub pool: String,
    /// Share of its decisions that are measured: whose requests answered, and in a pool of more than 32
    /// workers, every so many windows.
    pub measured_share: f64,
    /// By time from the arrival to the last token, of an aggregated pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e: Option<Figures>,
    /// Share of the decisions that met a request when joined as a live frontend does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_share: Option<f64>,
    /// Share of these that met their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_right: Option<f64>,
    /// By the regime of the pool at the first decision of a window, as the yardstick sees it.
    #[serde(default)]
    pub by_regime: BTreeMap<String, Gaps>,
    /// By time, oldest first; at most [`STRETCHES`].
    #[serde(default)]
    pub over_time: Vec<Stretch>,
}

/// The ratios of some windows, by TTFT.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    /// Requests.
    pub n: usize,
    /// Actual over alone.
    pub slowdown: f64,
    /// Predicted over optimum.
    pub policy_gap: f64,
    /// Actual over predicted.
    pub temporal_gap: f64,
    /// Optimum over alone.
    pub overload: f64,
}

/// A stretch of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// Its end, ms.
    pub end_ms: f64,
    /// Of the windows whose last decision lies in it.
    #[serde(flatten)]
    pub gaps: Gaps,
}

/// A decision whose request answered.
struct Answered {
    choice: Choice,
    facts: Facts,
}

/// What a window does not take of a decision.
struct Facts {
    regime: Regime,
    /// Time before the decision.
    held: Millis,
    seat_wait: Millis,
    residence: Millis,
    e2e: Option<Millis>,
}

/// One window.
struct Window {
    requests: usize,
    end_ms: f64,
    regime: Regime,
    ttft: Result<Estimate, NoEstimate>,
    /// Absent where a request was not served to its end.
    e2e: Option<Result<Estimate, NoEstimate>>,
}

impl Anarchy {
    /// Of a run that was watched, without its first `warm_up` requests.
    ///
    /// # Errors
    /// Why there is none, in a word; see [`NoEstimate::name`].
    pub(crate) fn of(
        record: &RunRecord,
        watched: Watched,
        warm_up: usize,
    ) -> Result<Self, &'static str> {
        let Watched {
            role,
            decisions,
            seen,
            joined,
            unjoined,
        } = watched;
        let joined_right = joins(&joined, &seen, record, role);
        let answered: Vec<_> = seen
            .into_iter()
            .filter(|seen| seen.request >= warm_up)
            .filter_map(|seen| answered(seen, record))
            .collect();
        let windows = windows(answered).map_err(|_| NoEstimate::NoRequests.name())?;
        let figures = |estimates: &mut dyn Iterator<Item = &Result<Estimate, NoEstimate>>| {
            summarise(estimates, &mut Pcg64Mcg::seed_from_u64(0)).figures()
        };
        let mut ended = windows.iter().filter_map(|window| window.e2e.as_ref());
        let e2e = figures(&mut ended).ok();
        let met = joined.len() as f64;
        Ok(Self {
            ttft: figures(&mut windows.iter().map(|window| &window.ttft))?,
            pool: role.as_str().to_owned(),
            measured_share: windows.iter().map(|window| window.requests).sum::<usize>() as f64
                / decisions.max(1) as f64,
            e2e: e2e.filter(|_| role == WorkerType::Aggregated),
            joined_share: ratio(met, met + unjoined as f64),
            joined_right,
            by_regime: by_regime(&windows),
            over_time: over_time(&windows, record.end_ms),
        })
    }
}

/// The decision with the latencies of its request; nothing when that got no token.
fn answered(seen: Seen, record: &RunRecord) -> Option<Answered> {
    let request = record.requests.get(seen.request)?;
    let (ttft, e2e) = latencies(&seen, request);
    Some(Answered {
        choice: Choice {
            decided_at: seen.at,
            chosen: seen.chosen,
            candidates: seen.candidates,
            actual: ttft?,
        },
        facts: Facts {
            regime: seen.regime,
            held: Millis::new(at_ms(seen.at) - request.arrival_ms).max(Millis::ZERO),
            seat_wait: seen.seat_wait,
            residence: seen.residence,
            e2e,
        },
    })
}

/// From the decision to the first and to the last token.
fn latencies(seen: &Seen, request: &RequestRecord) -> (Option<Millis>, Option<Millis>) {
    let since = |then_ms: f64| Millis::new(then_ms - at_ms(seen.at)).max(Millis::ZERO);
    let served = request.ending == Ending::Completed;
    let last = request.last_token_ms.filter(|_| served);
    (request.first_token_ms.map(since), last.map(since))
}

fn at_ms(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1e3
}

/// Share of the live joins that gave a decision the latencies of its own request.
fn joins(
    joined: &[JoinedChoice],
    seen: &[Seen],
    record: &RunRecord,
    role: WorkerType,
) -> Option<f64> {
    let same = |a: Option<Millis>, b: Option<Millis>| match (a, b) {
        (Some(a), Some(b)) => (a - b).get().abs() < ROUNDING_MS,
        (None, None) => true,
        _ => false,
    };
    let right = joined.iter().filter_map(|choice| {
        let seen = seen.get(usize::try_from(choice.number).ok()?)?;
        let (ttft, e2e) = latencies(seen, record.requests.get(seen.request)?);
        // A live prefill pool is not told of the end.
        let e2e = e2e.filter(|_| role == WorkerType::Aggregated);
        Some(seen.at == choice.at && same(ttft, choice.ttft) && same(e2e, choice.e2e))
    });
    let right: Vec<_> = right.collect();
    ratio(
        right.iter().filter(|right| **right).count() as f64,
        right.len() as f64,
    )
}

/// Windows of consecutive decisions, which `answered` is in the order of. In a large pool some are left
/// out, so that solving them costs a fraction of simulating them.
fn windows(answered: Vec<Answered>) -> Result<Vec<Window>, CollectorError> {
    let mut collector = WindowCollector::new(CollectorConfig::default())?;
    let mut cut = Vec::new();
    let workers = answered.iter().map(|it| it.choice.candidates.len()).max();
    let every = workers.unwrap_or(0).div_ceil(WORKERS).max(1);
    let mut facts = Vec::with_capacity(answered.len());
    for (index, answered) in answered.into_iter().enumerate() {
        let at = answered.choice.decided_at;
        facts.push(answered.facts);
        // Neither late nor too many: in order, and cut every now and then.
        let _ = collector.push(answered.choice);
        if index % BATCH == BATCH - 1 {
            cut.extend(collector.close(at));
        }
    }
    cut.extend(collector.finish());
    let mut facts = facts.as_slice();
    let mut windows = Vec::with_capacity(cut.len());
    for (index, window) in cut.into_iter().enumerate() {
        let (own, rest) = facts.split_at(window.len());
        facts = rest;
        if index % every > 0 {
            continue;
        }
        let (Some(last), Some(first)) = (window.last(), own.first()) else {
            continue;
        };
        let estimate = Estimator::default().estimate(&window);
        let held = own.iter().map(|it| it.held).sum();
        let residence = own.iter().map(|it| it.residence).sum();
        let seat_wait = own.iter().map(|it| it.seat_wait).sum();
        // What no choice changed.
        let with_waits = |it: Estimate| it.from_arrival(held)?.behind_seats(seat_wait);
        let e2e: Option<Millis> = own.iter().map(|it| it.e2e).sum();
        windows.push(Window {
            requests: window.len(),
            end_ms: at_ms(last.decided_at),
            regime: first.regime,
            e2e: e2e.map(|e2e| with_waits(estimate?.end_to_end(e2e, residence)?)),
            ttft: estimate.and_then(with_waits),
        });
    }
    Ok(windows)
}

fn by_regime(windows: &[Window]) -> BTreeMap<String, Gaps> {
    let gaps = |regime: Regime| {
        let own = windows.iter().filter(move |window| window.regime == regime);
        Some((regime.as_str().to_owned(), gaps(own)?))
    };
    Regime::ALL.into_iter().filter_map(gaps).collect()
}

fn over_time(windows: &[Window], end_ms: f64) -> Vec<Stretch> {
    let length_ms = end_ms / STRETCHES as f64;
    let stretch = |index: usize| {
        let end_ms = length_ms * (index + 1) as f64;
        let own = windows.iter().filter(|window| {
            let at = (window.end_ms / length_ms) as usize;
            at.min(STRETCHES - 1) == index
        });
        Some(Stretch {
            end_ms,
            gaps: gaps(own)?,
        })
    };
    (0..STRETCHES).filter_map(stretch).collect()
}

fn gaps<'a>(windows: impl Iterator<Item = &'a Window>) -> Option<Gaps> {
    let total = total(windows.filter_map(|window| window.ttft.as_ref().ok()))?;
    Some(Gaps {
        n: total.requests,
        slowdown: total.gap.slowdown,
        policy_gap: total.gap.policy,
        temporal_gap: total.gap.temporal,
        overload: total.gap.overload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regime_anarchy::Candidate;
    use regime_core::{Tokens, WorkerKey};

    const W: WorkerKey = WorkerKey::new(0, 0);

    /// Arrives and is placed at once; 20 ms were forecast.
    fn seen(request: usize, at_ms: u64) -> Seen {
        Seen {
            request,
            at: Timestamp::from_millis(at_ms),
            chosen: W,
            regime: Regime::Below,
            candidates: vec![Candidate {
                worker: W,
                wait: Millis::ZERO,
                own: Millis::new(20.0),
            }],
            residence: Millis::new(100.0),
            seat_wait: Millis::ZERO,
        }
    }

    fn request(arrival_ms: f64, ttft_ms: Option<f64>, ending: Ending) -> RequestRecord {
        RequestRecord {
            session: 0,
            turn: 0,
            arrival_ms,
            prompt_tokens: 100,
            reused_tokens: None,
            prefill_worker: Some(0),
            decode_worker: Some(0),
            first_token_ms: ttft_ms.map(|ttft| arrival_ms + ttft),
            last_token_ms: ttft_ms.map(|ttft| arrival_ms + ttft + 200.0),
            tokens: 2,
            ending,
        }
    }

    fn record(requests: Vec<RequestRecord>) -> RunRecord {
        RunRecord {
            tiers: None,
            requests,
            token_gaps_ms: Vec::new(),
            decisions: Vec::new(),
            pools: Vec::new(),
            end_ms: 10_000.0,
        }
    }

    fn watched(seen: Vec<Seen>, joined: Vec<JoinedChoice>) -> Watched {
        Watched {
            role: WorkerType::Aggregated,
            decisions: seen.len(),
            seen,
            joined,
            unjoined: 0,
        }
    }

    fn joined(number: u64, at_ms: u64, ttft_ms: f64) -> JoinedChoice {
        JoinedChoice {
            number,
            at: Timestamp::from_millis(at_ms),
            prompt_tokens: Tokens(100),
            regime: Regime::Below,
            chosen: W,
            candidates: Vec::new(),
            residence: Millis::ZERO,
            held: Millis::ZERO,
            seat_wait: Millis::ZERO,
            ttft: Some(Millis::new(ttft_ms)),
            e2e: Some(Millis::new(ttft_ms + 200.0)),
        }
    }

    #[test]
    fn requests_of_the_warm_up_are_left_out() {
        let requests = vec![
            request(0.0, Some(900.0), Ending::Completed),
            request(1_000.0, Some(40.0), Ending::Completed),
        ];
        let watched = watched(vec![seen(0, 0), seen(1, 1_000)], Vec::new());
        let anarchy = Anarchy::of(&record(requests), watched, 1).unwrap();
        assert_eq!((anarchy.ttft.n, anarchy.ttft.slowdown), (1, 2.0));
    }

    #[test]
    fn latencies_run_from_arrival_and_requests_without_a_token_are_left_out() {
        let requests = vec![
            request(0.0, Some(30.0), Ending::Completed),
            request(1_000.0, Some(50.0), Ending::Completed),
            request(2_000.0, None, Ending::Unfinished),
        ];
        // The second waited 10 ms in the router.
        let seen = vec![seen(0, 0), seen(1, 1_010), seen(2, 2_000)];
        let anarchy = Anarchy::of(&record(requests), watched(seen, Vec::new()), 0).unwrap();
        // 30 and 50 against 20 and 20; end to end 230 and 250 against 120 and 120.
        assert_eq!((anarchy.ttft.n, anarchy.ttft.slowdown), (2, 80.0 / 40.0));
        assert_eq!(anarchy.e2e.unwrap().slowdown, 480.0 / 240.0);
        // No worker could be had for 10 ms; after the decisions 30 and 40 were 20 and 20 at best.
        assert_eq!(
            (anarchy.ttft.overload, anarchy.ttft.temporal_gap),
            (50.0 / 40.0, 80.0 / 50.0)
        );
        assert_eq!(anarchy.measured_share, 2.0 / 3.0);
        assert_eq!(anarchy.by_regime["below"].n, 2);
    }

    #[test]
    fn of_a_large_pool_every_so_many_windows_are_measured() {
        let pool = |workers: u64| {
            let seen = (0..6).map(|at_s| {
                let mut seen = seen(0, at_s * 1_000);
                let row = seen.candidates[0];
                seen.candidates = (0..workers)
                    .map(|id| Candidate {
                        worker: WorkerKey::new(id, 0),
                        ..row
                    })
                    .collect();
                seen
            });
            let record = record(vec![request(6_000.0, Some(30.0), Ending::Completed)]);
            let anarchy = Anarchy::of(&record, watched(seen.collect(), Vec::new()), 0).unwrap();
            anarchy.measured_share
        };
        assert_eq!(
            [1, 32, 33, 64, 65].map(pool),
            [1.0, 1.0, 0.5, 0.5, 1.0 / 3.0]
        );
    }

    #[test]
    fn a_window_in_which_a_request_was_cut_off_is_not_measured_end_to_end() {
        let requests = vec![
            request(0.0, Some(30.0), Ending::Unfinished),
            request(1_000.0, Some(50.0), Ending::Completed),
        ];
        let watched = watched(vec![seen(0, 0), seen(1, 1_000)], Vec::new());
        let anarchy = Anarchy::of(&record(requests), watched, 0).unwrap();
        assert_eq!((anarchy.ttft.windows, anarchy.e2e.unwrap().windows), (2, 1));
    }

    #[test]
    fn a_decision_that_met_the_request_of_another_is_joined_wrong() {
        let requests = [30.0, 50.0].map(|ttft| request(0.0, Some(ttft), Ending::Completed));
        let swapped = vec![joined(0, 0, 50.0), joined(1, 0, 30.0)];
        let right = vec![joined(0, 0, 30.0), joined(1, 0, 50.0)];
        for (joined, share) in [(swapped, 0.0), (right, 1.0)] {
            let watched = watched(vec![seen(0, 0), seen(1, 0)], joined);
            let anarchy = Anarchy::of(&record(requests.to_vec()), watched, 0).unwrap();
            assert_eq!(anarchy.joined_right, Some(share));
        }
    }

    #[test]
    fn a_run_that_answered_nothing_has_a_reason_and_no_number() {
        let requests = vec![request(0.0, None, Ending::Rejected)];
        let none = Anarchy::of(&record(requests), watched(vec![seen(0, 0)], Vec::new()), 0);
        assert_eq!(none, Err("no_requests"));
    }
}
