// SPDX-License-Identifier: Apache-2.0

//! `regime_router_*` metrics, written through the `metrics` facade from a [`Report`].
//!
//! The plugin needs no handle of Dynamo for this: the host bridges the facade into its registry and
//! calls [`Publisher::publish`] before each scrape. Labels are models, roles, workers, ranks, regimes
//! and the fixed names in this crate, never anything that a request carries (field report BR-18).

use std::collections::HashMap;
use std::sync::Once;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use parking_lot::Mutex;
use regime_core::Regime;
use serde::Serialize;

use crate::report::{
    AnarchyReport, GapReport, HealthReport, PoolReport, Report, TiersReport, WorkerReport,
};

/// Writes reports as metrics; remembers totals, because the facade counts in steps.
#[derive(Debug)]
pub(crate) struct Publisher {
    described: Once,
    written: Mutex<HashMap<Vec<String>, u64>>,
}

type Labels = Vec<(&'static str, String)>;

impl Publisher {
    pub(crate) fn new() -> Self {
        Self {
            described: Once::new(),
            written: Mutex::default(),
        }
    }

    pub(crate) fn publish(&self, report: &Report) {
        // Not at registration: a host may install its recorder later than that.
        self.described.call_once(describe);
        let counts = &report.requests.counts;
        for (ending, total) in [
            ("completed", counts.completed - counts.no_first_token),
            ("no_first_token", counts.no_first_token),
            ("aborted", counts.aborted),
            ("cancelled", counts.cancelled),
            ("ended_early", counts.ended_early),
            ("evicted", counts.evicted),
        ] {
            let labels = vec![("ending", ending.to_owned())];
            self.count("regime_router_requests_total", labels, total);
        }
        gauge!("regime_router_requests_tracked").set(report.requests.tracked as f64);
        for pool in &report.pools {
            self.publish_pool(pool);
        }
    }

    fn publish_pool(&self, pool: &PoolReport) {
        let base = vec![
            ("model", pool.model.clone()),
            ("role", pool.role.to_owned()),
        ];
        set_health("regime_router_pool", &base, &pool.health);
        for (name, value) in [
            ("regime_router_tau", pool.price.tau),
            ("regime_router_omega", pool.price.omega),
            ("regime_router_prefill_price", pool.price.prefill),
            ("regime_router_seat_price_seconds", pool.price.seat_ms / 1e3),
            (
                "regime_router_prefill_pass_seconds",
                pool.rates.pass_ms / 1e3,
            ),
            (
                "regime_router_prefill_token_seconds",
                pool.rates.token_ms / 1e3,
            ),
            (
                "regime_router_decode_step_seconds",
                pool.rates.decode_step_ms / 1e3,
            ),
            ("regime_router_prefill_efficiency", pool.rates.efficiency),
        ] {
            set(name, &base, value);
        }
        if let Some(share) = pool.decisions.matched_share {
            set("regime_router_matched_share", &base, share);
        }
        publish_tiers(&base, &pool.tiers);
        publish_anarchy(&base, &pool.anarchy);
        for (name, total) in [
            ("regime_router_decisions_total", pool.decisions.made),
            (
                "regime_router_filter_failed_open_total",
                pool.decisions.filter_failed_open,
            ),
            (
                "regime_router_unknown_loads_total",
                pool.decisions.unknown_loads,
            ),
            (
                "regime_router_session_targets_total",
                pool.decisions.session_targets,
            ),
            (
                "regime_router_session_targets_chosen_total",
                pool.decisions.session_targets_chosen,
            ),
            (
                "regime_router_journal_lost_total",
                pool.decisions.journal_lost,
            ),
        ] {
            self.count(name, base.clone(), total);
        }
        for (&reason, &total) in &pool.decisions.fallbacks {
            let labels = with(&base, [("reason", reason.to_owned())]);
            self.count("regime_router_fallbacks_total", labels, total);
        }
        for (&regime, &total) in &pool.changes {
            let labels = with(&base, [("regime", regime.to_owned())]);
            self.count("regime_router_regime_changes_total", labels, total);
        }
        for worker in &pool.workers {
            publish_worker(&base, worker);
        }
    }

    /// Bring the counter up to `total`.
    fn count(&self, name: &'static str, labels: Labels, total: u64) {
        let key = std::iter::once(name.to_owned())
            .chain(labels.iter().map(|(_, value)| value.clone()))
            .collect();
        let mut written = self.written.lock();
        let before = written.entry(key).or_default();
        counter!(name, &labels).increment(total.saturating_sub(*before));
        *before = total.max(*before);
    }
}

fn publish_tiers(base: &Labels, tiers: &TiersReport) {
    for (&tier, known) in &tiers.factors {
        let labels = with(base, [("tier", tier.to_owned())]);
        set("regime_router_tier_time_factor", &labels, known.factor);
        let samples = known.samples as f64;
        set("regime_router_tier_time_samples", &labels, samples);
    }
}

fn publish_anarchy(base: &Labels, anarchy: &AnarchyReport) {
    if let Some(rate) = anarchy.sampling_rate {
        set("regime_router_poa_sampling_rate", base, rate);
    }
    for (latency, gaps) in [("ttft", &anarchy.ttft), ("e2e", &anarchy.e2e)] {
        publish_gaps(&with(base, [("latency", latency.to_owned())]), gaps);
    }
}

/// What is unavailable is not written, so that its series vanish.
fn publish_gaps(base: &Labels, gaps: &GapReport) {
    if let Some(figures) = &gaps.figures {
        for (name, value) in [
            ("regime_router_poa_slowdown", figures.slowdown),
            ("regime_router_poa_policy_gap", figures.policy_gap),
            ("regime_router_poa_temporal_gap", figures.temporal_gap),
            ("regime_router_poa_overload", figures.overload),
            ("regime_router_poa_hat", figures.poa_hat),
            ("regime_router_poa_requests", figures.n as f64),
            ("regime_router_poa_windows", figures.windows as f64),
        ] {
            set(name, base, value);
        }
        if let Some(interval) = &figures.interval {
            for (ratio, of) in [
                ("slowdown", interval.slowdown),
                ("policy_gap", interval.policy),
                ("temporal_gap", interval.temporal),
                ("overload", interval.overload),
                ("hat", interval.poa_hat),
            ] {
                let labels = with(base, [("ratio", ratio.to_owned())]);
                set("regime_router_poa_low", &labels, of.low);
                set("regime_router_poa_high", &labels, of.high);
            }
        }
    }
    if let Some(age_ms) = gaps.age_ms {
        set("regime_router_poa_age_seconds", base, age_ms as f64 / 1e3);
    }
    if let Some(share) = gaps.joined_share {
        set("regime_router_poa_joined_share", base, share);
    }
    if let Some(reason) = gaps.unavailable {
        let labels = with(base, [("reason", reason.to_owned())]);
        set("regime_router_poa_unavailable", &labels, 1.0);
    }
}

fn publish_worker(base: &Labels, worker: &WorkerReport) {
    let base = with(
        base,
        [
            ("worker_id", worker.worker.id.to_string()),
            ("dp_rank", worker.worker.rank.to_string()),
        ],
    );
    set_health("regime_router_worker", &base, &worker.health);
    for (state, requests) in [
        ("waiting", worker.in_flight.waiting),
        ("running", worker.in_flight.running),
    ] {
        let labels = with(&base, [("state", state.to_owned())]);
        set(
            "regime_router_worker_in_flight",
            &labels,
            f64::from(requests),
        );
    }
    set("regime_router_worker_slowness", &base, worker.slowness);
    set(
        "regime_router_worker_held",
        &base,
        f64::from(u8::from(worker.held)),
    );
    set(
        "regime_router_worker_failures",
        &base,
        worker.failures as f64,
    );
}

/// One series per regime, 1 for the current one, so that a dashboard can add up time in each.
fn set_health(prefix: &'static str, base: &Labels, health: &HealthReport) {
    let pool = prefix == "regime_router_pool";
    for regime in Regime::ALL {
        let labels = with(base, [("regime", regime.as_str().to_owned())]);
        let current = f64::from(u8::from(regime == health.regime));
        let name = if pool {
            "regime_router_pool_regime"
        } else {
            "regime_router_worker_regime"
        };
        set(name, &labels, current);
    }
    let name = if pool {
        "regime_router_pool_signal"
    } else {
        "regime_router_worker_signal"
    };
    for (&signal, reading) in &health.signals {
        let labels = with(base, [("signal", signal.to_owned())]);
        set(name, &labels, reading.value);
    }
}

fn with<const N: usize>(base: &Labels, more: [(&'static str, String); N]) -> Labels {
    base.iter().cloned().chain(more).collect()
}

fn set(name: &'static str, labels: &Labels, value: f64) {
    gauge!(name, labels).set(value);
}

/// One documented metric.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MetricDoc {
    /// Name.
    pub name: &'static str,
    /// `gauge` or `counter`.
    pub kind: &'static str,
    /// What it says.
    pub help: &'static str,
}

/// Every metric of the plugin, in reading order.
#[must_use]
pub fn metrics_documentation() -> Vec<MetricDoc> {
    let gauges = GAUGES.iter().map(|&(name, _, help)| MetricDoc {
        name,
        kind: "gauge",
        help,
    });
    let counters = COUNTERS.iter().map(|&(name, help)| MetricDoc {
        name,
        kind: "counter",
        help,
    });
    gauges.chain(counters).collect()
}

fn describe() {
    for (name, unit, help) in GAUGES {
        describe_gauge!(*name, *unit, *help);
    }
    for (name, help) in COUNTERS {
        describe_counter!(*name, Unit::Count, *help);
    }
}

const GAUGES: &[(&str, Unit, &str)] = &[
    (
        "regime_router_pool_regime",
        Unit::Count,
        "1 for the regime the pool is in, else 0",
    ),
    (
        "regime_router_worker_regime",
        Unit::Count,
        "1 for the regime the worker is in, else 0",
    ),
    (
        "regime_router_pool_signal",
        Unit::Count,
        "Value of a regime signal of the pool; ms where the signal's name says so",
    ),
    (
        "regime_router_worker_signal",
        Unit::Count,
        "Value of a regime signal of the worker; ms where the signal's name says so",
    ),
    (
        "regime_router_requests_tracked",
        Unit::Count,
        "Requests open in the ledger",
    ),
    (
        "regime_router_tau",
        Unit::Count,
        "Temperature of the choice",
    ),
    (
        "regime_router_omega",
        Unit::Count,
        "Value of overlap: ms per token (calibrated) or blocks per block (paper)",
    ),
    (
        "regime_router_prefill_price",
        Unit::Count,
        "Price of one ms of prefill work",
    ),
    (
        "regime_router_seat_price_seconds",
        Unit::Seconds,
        "Price of one seat in use",
    ),
    (
        "regime_router_prefill_pass_seconds",
        Unit::Seconds,
        "Learned fixed part of a prefill pass",
    ),
    (
        "regime_router_prefill_token_seconds",
        Unit::Seconds,
        "Learned prefill time of one uncached token",
    ),
    (
        "regime_router_decode_step_seconds",
        Unit::Seconds,
        "Learned time of one decode step",
    ),
    (
        "regime_router_prefill_efficiency",
        Unit::Count,
        "1 when prefill is the scarce resource, towards 0 when seats are",
    ),
    (
        "regime_router_tier_time_factor",
        Unit::Count,
        "Learned time to bring blocks from a lower tier over what the ladder says; only with `tier_value: time`",
    ),
    (
        "regime_router_tier_time_samples",
        Unit::Count,
        "Measurements that count for it",
    ),
    (
        "regime_router_matched_share",
        Unit::Count,
        "Share of requests matched with the decision that placed them",
    ),
    (
        "regime_router_poa_slowdown",
        Unit::Count,
        "Latency over that of each request alone on an idle worker: policy gap times temporal gap times overload; label latency is ttft or e2e, as in all of these",
    ),
    (
        "regime_router_poa_policy_gap",
        Unit::Count,
        "Predicted latency over that of the best assignment: what the router could have done better",
    ),
    (
        "regime_router_poa_temporal_gap",
        Unit::Count,
        "Latency over the predicted one: what happened after the choice",
    ),
    (
        "regime_router_poa_overload",
        Unit::Count,
        "Latency of the best assignment over that of each request alone: what no router can fix",
    ),
    (
        "regime_router_poa_hat",
        Unit::Count,
        "The paper's Price of Anarchy: policy gap times temporal gap",
    ),
    (
        "regime_router_poa_low",
        Unit::Count,
        "Low end of the 95 % interval of a ratio",
    ),
    (
        "regime_router_poa_high",
        Unit::Count,
        "High end of the 95 % interval of a ratio",
    ),
    (
        "regime_router_poa_requests",
        Unit::Count,
        "Requests behind these ratios",
    ),
    (
        "regime_router_poa_windows",
        Unit::Count,
        "Windows behind these ratios",
    ),
    (
        "regime_router_poa_age_seconds",
        Unit::Seconds,
        "Age of the newest decision in them",
    ),
    (
        "regime_router_poa_joined_share",
        Unit::Count,
        "Share of the decisions in these windows that met their request",
    ),
    (
        "regime_router_poa_sampling_rate",
        Unit::Count,
        "Share of the windows that are measured",
    ),
    (
        "regime_router_poa_unavailable",
        Unit::Count,
        "1 where the ratios are not known, by reason",
    ),
    (
        "regime_router_worker_in_flight",
        Unit::Count,
        "Requests in flight on the worker, before (waiting) and after (running) their first token",
    ),
    (
        "regime_router_worker_slowness",
        Unit::Count,
        "Relative slowness of the worker's prefill; 1 is the pool's typical worker",
    ),
    (
        "regime_router_worker_held",
        Unit::Count,
        "1 while the worker is held back because it kept failing",
    ),
    (
        "regime_router_worker_failures",
        Unit::Count,
        "Attempts on the worker that ended without a first token",
    ),
];

const COUNTERS: &[(&str, &str)] = &[
    (
        "regime_router_requests_total",
        "Requests ended, by how they ended",
    ),
    ("regime_router_decisions_total", "Requests placed"),
    (
        "regime_router_fallbacks_total",
        "Requests placed by the fallback rule, by reason",
    ),
    (
        "regime_router_filter_failed_open_total",
        "Selections in which every candidate was saturated, so that the filter let all through",
    ),
    (
        "regime_router_unknown_loads_total",
        "Selections with a candidate whose load the host did not know",
    ),
    (
        "regime_router_session_targets_total",
        "Turns to which the classifier named the worker that holds their prefix in a lower tier",
    ),
    (
        "regime_router_session_targets_chosen_total",
        "Requests placed on the worker that was named to their session",
    ),
    (
        "regime_router_journal_lost_total",
        "Decisions overwritten before anybody read them",
    ),
    (
        "regime_router_regime_changes_total",
        "Changes of the pool's regime, by the regime entered",
    ),
];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metrics::{
        Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    };
    use regime_anarchy::{Figures, Found};
    use regime_kv::TierFactor;

    use super::*;

    /// Gauges as they are written: name and labels, and the value.
    #[derive(Default)]
    struct Written(Arc<Mutex<Vec<(String, f64)>>>);

    struct Slot(Arc<Mutex<Vec<(String, f64)>>>, String);

    impl GaugeFn for Slot {
        fn increment(&self, _: f64) {}
        fn decrement(&self, _: f64) {}
        fn set(&self, value: f64) {
            self.0.lock().push((self.1.clone(), value));
        }
    }

    impl Recorder for Written {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            let labels = key.labels().map(|label| label.value());
            let name = std::iter::once(key.name()).chain(labels);
            let name = name.collect::<Vec<_>>().join(" ");
            Gauge::from_arc(Arc::new(Slot(Arc::clone(&self.0), name)))
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    fn written(publish: impl FnOnce(&Labels)) -> Vec<(String, f64)> {
        let recorder = Written::default();
        metrics::with_local_recorder(&recorder, || publish(&Vec::new()));
        let written = recorder.0.lock();
        written.clone()
    }

    fn assert_documented(written: &[(String, f64)]) {
        let documented: Vec<_> = metrics_documentation().iter().map(|it| it.name).collect();
        for (name, _) in written {
            let name = name.split(' ').next().unwrap_or_default();
            assert!(documented.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_ratio_that_is_not_known_is_not_written_but_its_reason_is() {
        let unavailable = |reason| GapReport {
            unavailable: Some(reason),
            ..GapReport::default()
        };
        let anarchy = AnarchyReport {
            sampling_rate: None,
            ttft: unavailable("no_forecast"),
            e2e: unavailable("stale"),
        };
        let written = written(|base| publish_anarchy(base, &anarchy));
        let gauge = |labels: &str| (format!("regime_router_poa_unavailable {labels}"), 1.0);
        assert_eq!(written, [gauge("ttft no_forecast"), gauge("e2e stale")]);
    }

    #[test]
    fn ratios_are_written_by_latency_and_every_one_is_documented() {
        let figures = Figures {
            n: 32,
            windows: 2,
            slowdown: 3.0,
            policy_gap: 1.5,
            temporal_gap: 1.0,
            overload: 2.0,
            poa_hat: 1.5,
            method: Found::Exact,
            bounds: None,
            interval: None,
        };
        let gaps = GapReport {
            figures: Some(figures),
            age_ms: Some(2_000),
            joined_share: Some(1.0),
            ..GapReport::default()
        };
        let anarchy = AnarchyReport {
            sampling_rate: Some(0.5),
            ttft: gaps.clone(),
            e2e: gaps,
        };
        let written = written(|base| publish_anarchy(base, &anarchy));
        for (name, value) in [
            ("regime_router_poa_policy_gap ttft", 1.5),
            ("regime_router_poa_slowdown e2e", 3.0),
            ("regime_router_poa_age_seconds e2e", 2.0),
            ("regime_router_poa_sampling_rate", 0.5),
        ] {
            assert!(written.contains(&(name.to_owned(), value)), "{name}");
        }
        assert_documented(&written);
    }

    #[test]
    fn factors_are_written_by_tier_and_documented() {
        let known = TierFactor {
            factor: 1.5,
            samples: 4,
        };
        let tiers = TiersReport {
            factors: [("disk", known)].into(),
            unavailable: None,
        };
        let written = written(|base| publish_tiers(base, &tiers));
        let gauge = |name: &str, value| (format!("regime_router_tier_time_{name} disk"), value);
        assert_eq!(written, [gauge("factor", 1.5), gauge("samples", 4.0)]);
        assert_documented(&written);
    }
}
