// SPDX-License-Identifier: Apache-2.0

//! The Price of Anarchy of a run, split into choice, aftermath and overload, for every policy alike.
//!
//! The yardstick is the calibrated forecast of the regime-aware policy, which looks on in every run
//! whatever policy chooses. What became of a request the lab knows by its number, so decisions and outcomes
//! are joined exactly. A live frontend has to join them by worker and prompt length; that way runs along,
//! and the share of its joins that are right is told.
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
use regime_core::{Millis, Regime};
use regime_policy::JoinedChoice;
use serde::{Deserialize, Serialize};

use crate::adapter::{Ending, RequestRecord, RunRecord, Seen, Watched};
use crate::metrics::ratio;

/// Most stretches of time that a run is cut into.
pub const STRETCHES: usize = 24;
/// Choices that the collector holds before windows are cut.
const BATCH: usize = 10_000;
/// Two latencies are the same that differ by rounding to µs, ms.
const ROUNDING_MS: f64 = 0.01;

/// The Price of Anarchy of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Anarchy {
    /// By time from the decision to the first token.
    #[serde(flatten)]
    pub ttft: Figures,
    /// Role of the pool.
    pub pool: String,
    /// Share of its decisions that are measured: whose requests answered, and that are not too many.
    pub measured_share: f64,
    /// By time from the decision to the last token, of an aggregated pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e: Option<Figures>,
    /// Share of the decisions that met a request when joined as a live frontend does; of an aggregated pool.
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
    regime: Regime,
    residence: Millis,
    e2e: Option<Millis>,
}

/// One window.
struct Window {
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
        let joined_right = joins(&joined, &seen, record);
        let answered: Vec<_> = seen
            .into_iter()
            .filter(|seen| seen.request >= warm_up)
            .filter_map(|seen| answered(seen, record))
            .collect();
        let measured = answered.len();
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
            measured_share: measured as f64 / decisions.max(1) as f64,
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
        regime: seen.regime,
        residence: seen.residence,
        e2e,
    })
}

/// From the decision to the first and to the last token.
fn latencies(seen: &Seen, request: &RequestRecord) -> (Option<Millis>, Option<Millis>) {
    let since =
        |at_ms: f64| Millis::new(at_ms - seen.at.as_micros() as f64 / 1e3).max(Millis::ZERO);
    let served = request.ending == Ending::Completed;
    let last = request.last_token_ms.filter(|_| served);
    (request.first_token_ms.map(since), last.map(since))
}

/// Share of the live joins that gave a decision the latencies of its own request.
fn joins(joined: &[JoinedChoice], seen: &[Seen], record: &RunRecord) -> Option<f64> {
    let same = |a: Option<Millis>, b: Option<Millis>| match (a, b) {
        (Some(a), Some(b)) => (a - b).get().abs() < ROUNDING_MS,
        (None, None) => true,
        _ => false,
    };
    let right = joined.iter().filter_map(|choice| {
        let seen = seen.get(usize::try_from(choice.number).ok()?)?;
        let (ttft, e2e) = latencies(seen, record.requests.get(seen.request)?);
        Some(seen.at == choice.at && same(ttft, choice.ttft) && same(e2e, choice.e2e))
    });
    let right: Vec<_> = right.collect();
    ratio(
        right.iter().filter(|right| **right).count() as f64,
        right.len() as f64,
    )
}

/// Windows of consecutive decisions, which `answered` is in the order of.
fn windows(answered: Vec<Answered>) -> Result<Vec<Window>, CollectorError> {
    let mut collector = WindowCollector::new(CollectorConfig::default())?;
    let mut cut = Vec::new();
    let mut facts = Vec::with_capacity(answered.len());
    for (index, answered) in answered.into_iter().enumerate() {
        let at = answered.choice.decided_at;
        facts.push((answered.regime, answered.residence, answered.e2e));
        // Neither late nor too many: in order, and cut every now and then.
        let _ = collector.push(answered.choice);
        if index % BATCH == BATCH - 1 {
            cut.extend(collector.close(at));
        }
    }
    cut.extend(collector.finish());
    let mut facts = facts.as_slice();
    let mut windows = Vec::with_capacity(cut.len());
    for window in cut {
        let (own, rest) = facts.split_at(window.len());
        facts = rest;
        let (Some(last), Some((regime, ..))) = (window.last(), own.first()) else {
            continue;
        };
        let ttft = Estimator::default().estimate(&window);
        let residence = own.iter().map(|(_, residence, _)| *residence).sum();
        let e2e: Option<Millis> = own.iter().map(|(_, _, e2e)| *e2e).sum();
        windows.push(Window {
            end_ms: last.decided_at.as_micros() as f64 / 1e3,
            regime: *regime,
            e2e: e2e.map(|e2e| ttft.clone()?.end_to_end(e2e, residence)),
            ttft,
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
