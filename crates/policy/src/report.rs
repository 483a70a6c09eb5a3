// SPDX-License-Identifier: Apache-2.0

//! The `/regime` document: everything the router believes, with sample counts and ages.
//!
//! Versioned by [`SCHEMA`]; fields may be added within a version, never renamed or removed. What is
//! not known is absent, never NaN or a made-up zero. Worker ids are strings, so that no reader loses
//! digits. Ages are ms before the time of the report.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use dynamo_kv_router::WorkerType;
use regime_anarchy::Figures;
use regime_core::{InFlight, LedgerCounts, RateSource, Regime, Timestamp, WorkerKey};
use regime_kv::{Tier, TierFactor};
use serde::Serialize;

use crate::guard::FallbackReason;
use crate::hub::Hub;
use crate::journal::Decision;
use crate::parameters::{Checked, CostModel};
use crate::pool::{Pool, SignalReading, State, WorkerState};

/// Version of the document.
pub const SCHEMA: u32 = 1;

/// The `/regime` document.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of the schema, [`SCHEMA`].
    pub schema: u32,
    /// Version of the policy crate.
    pub version: &'static str,
    /// Time since the plugin was registered, ms.
    pub uptime_ms: u64,
    /// Requests, over all models.
    pub requests: RequestsReport,
    /// Pools, by model, routing group and role.
    pub pools: Vec<PoolReport>,
}

/// Requests that the classifiers told of.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct RequestsReport {
    /// Open now.
    pub tracked: usize,
    /// Totals since the start.
    #[serde(flatten)]
    pub counts: LedgerCounts,
}

/// One pool.
#[derive(Debug, Clone, Serialize)]
pub struct PoolReport {
    /// Model served.
    pub model: String,
    /// Dynamo's routing group.
    pub routing_group: String,
    /// `aggregated`, `prefill`, `decode` or `encode`.
    pub role: &'static str,
    /// Cost model in use.
    pub cost: CostModel,
    /// Regime, since when, and why.
    #[serde(flatten)]
    pub health: HealthReport,
    /// Learned rates.
    pub rates: RatesReport,
    /// What is known about the speed of lower tiers.
    pub tiers: TiersReport,
    /// Prices in force.
    pub price: PriceReport,
    /// Requests in flight, over all workers.
    pub in_flight: InFlight,
    /// Price of Anarchy over the newest windows.
    pub anarchy: AnarchyReport,
    /// Regime changes since the start, by the regime entered.
    pub changes: BTreeMap<&'static str, u64>,
    /// Decisions since the start.
    pub decisions: DecisionsReport,
    /// Workers, by id and rank.
    pub workers: Vec<WorkerReport>,
    /// The latest decision that was read from the journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<Decision>,
}

/// A regime with its signals.
#[derive(Debug, Clone, Serialize)]
pub struct HealthReport {
    /// Regime.
    pub regime: Regime,
    /// Time in this regime, ms.
    pub since_ms: u64,
    /// Signals that have a value, by name.
    pub signals: BTreeMap<&'static str, SignalReport>,
    /// Latency over the sliding window.
    pub ttft: TtftReport,
}

/// One signal.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SignalReport {
    /// Value; ms where the name says so, else without unit.
    pub value: f64,
    /// Samples it rests on.
    pub samples: u64,
    /// Age of the newest sample, ms.
    pub age_ms: u64,
    /// Whether the signal decides the regime, or is only shown.
    pub decides: bool,
}

/// TTFT over the sliding window.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TtftReport {
    /// Samples in the window.
    pub samples: u64,
    /// Mean, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// Median, ms; absent below the minimum of samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// P99, ms; absent below the minimum of samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// With fewer than 100 samples the P99 is the maximum.
    pub p99_is_maximum: bool,
}

/// Rates learned from feedback; the priors until then.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RatesReport {
    /// What the prefill rates were last learned from: `events`, first tokens; `drain`, queues as its own
    /// decisions saw them, in a pool that no event reaches; `prior`, nothing yet.
    pub source: RateSource,
    /// Fixed part of a prefill pass, ms.
    pub pass_ms: f64,
    /// Prefill of one uncached token, ms.
    pub token_ms: f64,
    /// One decode step, ms.
    pub decode_step_ms: f64,
    /// From first token to completion, ms.
    pub residence_ms: f64,
    /// Prefill efficiency: 1 when prefill is the scarce resource, towards 0 when seats are.
    pub efficiency: f64,
    /// What the pool is short of first: `prefill` while the efficiency is at least 0.5, below it `seats`,
    /// that is sequences or KV memory.
    pub scarce: &'static str,
    /// Prefill passes seen.
    pub groups: u64,
    /// Age of the newest pass, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}

/// How much longer lower tiers take than the ladder says.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TiersReport {
    /// By tier; empty where tiers are weighted.
    pub factors: BTreeMap<&'static str, TierFactor>,
    /// Why nothing is learned: `weights`, tiers are not valued by time; `switched_off`; `no_outcomes`, no
    /// event tells when a prefill ended; `not_measured` yet, or not for long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<&'static str>,
}

/// What the cost function charges now.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PriceReport {
    /// Temperature τ of the choice.
    pub tau: f64,
    /// Value ω of one overlapped block: ms with `cost: calibrated` (per token, times the block size),
    /// blocks with `cost: paper`.
    pub omega: f64,
    /// Unit of `omega`.
    pub omega_unit: &'static str,
    /// Price π of one ms of prefill work.
    pub prefill: f64,
    /// Price κ of one seat in use, ms.
    pub seat_ms: f64,
}

/// Decisions of a pool.
#[derive(Debug, Clone, Serialize)]
pub struct DecisionsReport {
    /// Requests placed.
    pub made: u64,
    /// Placed by the fallback rule, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// Every candidate was saturated, so the saturation filter let all through.
    pub filter_failed_open: u64,
    /// Decisions with a candidate whose load the host did not know.
    pub unknown_loads: u64,
    /// Workers named to sessions, see `session_target` of the classifier.
    pub session_targets: u64,
    /// Requests placed on the worker that was named.
    pub session_targets_chosen: u64,
    /// Overwritten in the journal before anybody read them.
    pub journal_lost: u64,
    /// Requests matched with the decision that placed them.
    pub matched: u64,
    /// Requests for which no decision was found.
    pub unmatched: u64,
    /// Matched over all; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched_share: Option<f64>,
}

/// Price of Anarchy of a pool, see `regime-anarchy`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AnarchyReport {
    /// Share of the windows that are measured; absent before the first window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_rate: Option<f64>,
    /// By TTFT, from the arrival of the requests.
    #[serde(flatten)]
    pub ttft: GapReport,
    /// By time from the arrival to the last token.
    pub e2e: GapReport,
}

/// Price of Anarchy by one latency: figures, or why there are none.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GapReport {
    /// The ratios, with requests and windows behind them.
    #[serde(flatten)]
    pub figures: Option<Figures>,
    /// Age of the newest decision in them, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Share of the decisions in these windows that met their request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined_share: Option<f64>,
    /// Why there are no figures: `no_forecast`, nothing but prefill is forecast; `no_outcomes`, no event tells
    /// what became of requests; `switched_off`; `not_measured` yet; `stale`; or the name of a
    /// [`NoEstimate`](regime_anarchy::NoEstimate).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<&'static str>,
    /// Windows without an estimate, by the name of the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub without_estimate: BTreeMap<&'static str, usize>,
}

/// One worker.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerReport {
    /// Identity.
    #[serde(flatten)]
    pub worker: WorkerKey,
    /// Regime, since when, and why.
    #[serde(flatten)]
    pub health: HealthReport,
    /// Relative slowness of its prefill; 1 is the pool's typical worker.
    pub slowness: f64,
    /// One decode step, ms.
    pub decode_step_ms: f64,
    /// Requests in flight.
    pub in_flight: InFlight,
    /// Attempts that ended without a first token.
    pub failures: u64,
    /// Held back because it kept failing.
    pub held: bool,
    /// Time since it was last a candidate, ms.
    pub last_candidate_ms: u64,
}

pub(crate) fn report(hub: &Hub) -> Report {
    let now = hub.refresh();
    let mut requests = RequestsReport::default();
    for (tracked, counts) in hub.ledgers() {
        requests.tracked += tracked;
        requests.counts += counts;
    }
    Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        uptime_ms: age_ms(now, Timestamp::ORIGIN),
        requests,
        pools: hub
            .pools()
            .iter()
            .map(|pool| pool_report(hub, pool, now))
            .collect(),
    }
}

fn pool_report(hub: &Hub, pool: &Pool, now: Timestamp) -> PoolReport {
    let mut report = pool.with_state(now, |state| summarise(pool, state, now));
    // Ledgers are locked before pool states everywhere, so this waits until the state is released.
    for worker in &mut report.workers {
        worker.in_flight = hub.in_flight(worker.worker);
        report.in_flight.waiting += worker.in_flight.waiting;
        report.in_flight.running += worker.in_flight.running;
    }
    report.anarchy = pool.anarchy(now);
    report
}

fn summarise(pool: &Pool, state: &State, now: Timestamp) -> PoolReport {
    let parameters = &*pool.parameters;
    let estimate = state.calibration.estimate(now);
    PoolReport {
        model: pool.id.model.clone(),
        routing_group: pool.id.routing_group.clone(),
        role: pool.id.role.as_str(),
        cost: parameters.raw.cost,
        health: health(
            parameters,
            &state.health,
            state.health.signals(now, state.waiting(now)),
            now,
        ),
        rates: RatesReport {
            source: estimate.source,
            pass_ms: estimate.pass_ms,
            token_ms: estimate.token_ms,
            decode_step_ms: estimate.decode_step_ms,
            residence_ms: estimate.residence_ms,
            efficiency: estimate.efficiency,
            scarce: scarce(estimate.efficiency),
            groups: estimate.groups,
            age_ms: estimate.last_group.map(|at| age_ms(now, at)),
        },
        tiers: tiers(pool, state, now),
        price: price(pool, state, now),
        in_flight: InFlight::default(),
        anarchy: AnarchyReport::default(),
        changes: Regime::ALL
            .iter()
            .map(|&regime| (regime.as_str(), state.changes[regime as usize]))
            .collect(),
        decisions: decisions(pool, state),
        workers: state
            .workers
            .iter()
            .map(|(&key, worker)| worker_report(parameters, state, key, worker, now))
            .collect(),
        last_decision: state.last_decision.clone(),
    }
}

fn health(
    parameters: &Checked,
    health: &crate::pool::Health,
    signals: [SignalReading; Checked::SIGNALS.len()],
    now: Timestamp,
) -> HealthReport {
    let (regime, since) = health.regime(now);
    let ttft = health.ttft_summary(now);
    HealthReport {
        regime,
        since_ms: age_ms(now, since),
        signals: signals
            .into_iter()
            .zip(parameters.cuts())
            .filter_map(|(signal, cuts)| {
                let reading = signal.reading?;
                let report = SignalReport {
                    value: reading.value,
                    samples: reading.samples,
                    age_ms: age_ms(now, reading.at),
                    decides: cuts.is_some(),
                };
                Some((signal.name, report))
            })
            .collect(),
        ttft: TtftReport {
            samples: ttft.samples,
            mean_ms: ttft.mean.map(|mean| mean.get()),
            p50_ms: ttft.p50.map(|p50| p50.get()),
            p99_ms: ttft.p99.map(|p99| p99.get()),
            p99_is_maximum: ttft.p99_is_maximum,
        },
    }
}

fn tiers(pool: &Pool, state: &State, now: Timestamp) -> TiersReport {
    let Some(ladder) = &state.ladder else {
        return TiersReport {
            unavailable: Some("weights"),
            ..TiersReport::default()
        };
    };
    let factors = ladder.factors(now);
    let unavailable = if !ladder.learns() {
        Some("switched_off")
    } else if pool.id.role != WorkerType::Aggregated {
        Some("no_outcomes")
    } else if factors.iter().all(|it| it.samples == 0) {
        Some("not_measured")
    } else {
        None
    };
    let names = Tier::LOWER.map(Tier::name);
    TiersReport {
        factors: names.into_iter().zip(factors).collect(),
        unavailable,
    }
}

fn price(pool: &Pool, state: &State, now: Timestamp) -> PriceReport {
    let prices = state.prices(now);
    let (tau, omega, omega_unit) = match pool.parameters.raw.cost {
        CostModel::Calibrated => (0.0, prices.omega_per_token().get(), "ms_per_token"),
        CostModel::Paper => {
            let (regime, _) = state.health.regime(now);
            let row = pool.parameters.raw.paper.row(regime);
            (row.tau, row.omega, "blocks_per_block")
        }
    };
    PriceReport {
        tau,
        omega,
        omega_unit,
        prefill: prices.prefill,
        seat_ms: prices.seat.get(),
    }
}

fn decisions(pool: &Pool, state: &State) -> DecisionsReport {
    let (matched, unmatched) = state.pending.counts();
    let total = matched + unmatched;
    DecisionsReport {
        made: pool.counters.decisions.load(Relaxed),
        fallbacks: FallbackReason::ALL
            .iter()
            .map(|&reason| (reason.as_str(), pool.counters.fallbacks(reason)))
            .collect(),
        filter_failed_open: pool.counters.filter_failed_open.load(Relaxed),
        unknown_loads: pool.counters.unknown_loads.load(Relaxed),
        session_targets: pool.counters.session_targets.load(Relaxed),
        session_targets_chosen: pool.counters.session_targets_chosen.load(Relaxed),
        journal_lost: pool.journal.lost(),
        matched,
        unmatched,
        matched_share: (total > 0).then(|| matched as f64 / total as f64),
    }
}

fn worker_report(
    parameters: &Checked,
    state: &State,
    key: WorkerKey,
    worker: &WorkerState,
    now: Timestamp,
) -> WorkerReport {
    let estimate = state.calibration.worker(now, key);
    WorkerReport {
        worker: key,
        health: health(
            parameters,
            &worker.health,
            worker.health.signals(now, worker.waiting()),
            now,
        ),
        slowness: estimate.slowness,
        decode_step_ms: estimate.decode_step_ms,
        in_flight: InFlight::default(),
        failures: worker.accrual.failures(),
        held: worker.accrual.is_held(now),
        last_candidate_ms: age_ms(now, worker.last_candidate()),
    }
}

fn age_ms(now: Timestamp, at: Timestamp) -> u64 {
    u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX)
}

const fn scarce(efficiency: f64) -> &'static str {
    if efficiency >= 0.5 {
        "prefill"
    } else {
        "seats"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarce_resource_follows_the_efficiency() {
        assert_eq!([1.0, 0.5, 0.1].map(scarce), ["prefill", "prefill", "seats"]);
    }
}
