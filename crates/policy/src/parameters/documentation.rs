// SPDX-License-Identifier: Apache-2.0

//! The parameter reference: one line per key, defaults read from [`Parameters::default`].

use serde::Serialize;
use serde_yaml::Value;

use super::Parameters;

/// One documented parameter.
#[derive(Debug, Clone, Serialize)]
pub struct ParameterDoc {
    /// Path of the key in the YAML, `section.key`.
    pub name: &'static str,
    /// Default, as YAML; `null` where it depends on another parameter.
    pub default: String,
    /// Allowed values.
    pub allowed: &'static str,
    /// What it does, with its unit.
    pub help: &'static str,
}

/// Every parameter of `regime-aware`, in reading order.
#[must_use]
pub fn documentation() -> Vec<ParameterDoc> {
    let defaults = serde_yaml::to_value(Parameters::default()).unwrap_or(Value::Null);
    ROWS.iter()
        .map(|&(name, allowed, help)| ParameterDoc {
            name,
            default: lookup(&defaults, name),
            allowed,
            help,
        })
        .collect()
}

fn lookup(defaults: &Value, path: &str) -> String {
    let value = path
        .split('.')
        .try_fold(defaults, |value, key| value.get(key));
    match value {
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::String(text)) => text.clone(),
        _ => "null".to_owned(),
    }
}

/// Key, allowed values, help.
type Row = (&'static str, &'static str, &'static str);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("cost", "`calibrated` or `paper`", "cost model: ms from learned rates, or the paper's table over KV blocks"),
    ("seed", "an integer from 0", "seed of tie-breaking and sampling"),
    ("tier_value", "`weights` or `time`", "how a block in a lower tier is valued: by `tier_weights`, or by the time it saves on the ladder of `tiers`"),
    ("tier_weights.device", "0 to 1", "worth of a block cached in device memory"),
    ("tier_weights.host", "0 to 1", "worth of a block cached in host memory"),
    ("tier_weights.disk", "0 to 1", "worth of a block cached on disk"),
    ("tier_weights.shared", "0 to 1", "worth of a block in the shared cache"),
    ("tiers.kv_bytes_per_token", "above 0", "KV bytes of one token over all ranks of a worker: 2 × layers × KV heads × head dimension × bytes; this and what follows only with `tier_value: time`"),
    ("tiers.device_capacity_gb", "above 0, or absent", "device memory for KV blocks, GB; for placement plans, the score does not use it"),
    ("tiers.host.latency_ms", "above 0", "time to the first byte from host memory, once per request, ms; `tiers.host: null`: blocks there are worth nothing"),
    ("tiers.host.bandwidth_gb_s", "above 0", "bandwidth from host memory to the worker's devices together, GB/s; default: one PCIe 5.0 ×16 link"),
    ("tiers.host.capacity_gb", "above 0, or absent", "host memory for KV blocks, GB; for placement plans"),
    ("tiers.disk.latency_ms", "at least that of `host`", "time to the first byte from the local SSD, ms; `tiers.disk: null`: worth nothing"),
    ("tiers.disk.bandwidth_gb_s", "above 0, at most that of `host`", "bandwidth from the SSD to the device, GB/s; default: PCIe 4.0 ×4"),
    ("tiers.disk.capacity_gb", "above 0, or absent", "SSD for KV blocks, GB; for placement plans"),
    ("tiers.shared.latency_ms", "at least that of `disk`", "time to the first byte from the shared store, ms; `tiers.shared: null`: worth nothing"),
    ("tiers.shared.bandwidth_gb_s", "above 0, at most that of `host`", "bandwidth of the shared store, for all workers together, GB/s; default: 100 Gb/s"),
    ("tiers.shared.capacity_gb", "above 0, or absent", "shared store, GB; for placement plans"),
    ("tiers.learn", "`true` or `false`", "learn from requests by how much the tiers are slower or faster than that, [tiers.md](tiers.md)"),
    ("session_affinity", "`exclusive` or `advisory`", "a session's target is the only candidate, or is credited with cache"),
    ("affinity_credit", "0 to 1", "share of the prompt that an advisory target is believed to hold at least"),
    ("saturation_filter", "`true` or `false`", "leave saturated workers out while others are not"),
    ("tie_margin_ms", "0 to 1000000000", "costs closer than this to the least are ties, ms"),
    ("tick_ms", "1 to 3600000", "how often windows become regimes and prices, ms; absent: 250, or 5000 with `cost: paper`"),
    ("worker_ttl_ms", "0.001 to 1000000000", "a worker that is no candidate for this long, while others are, and that no discovery lists, is forgotten, ms"),
    ("window.span_ms", "0.001 to 1000000000", "length of the sliding window of latencies, ms"),
    ("window.slices", "2 to 64", "steps in which the window forgets"),
    ("window.min_samples", "at least 1", "samples below which no quantile is given"),
    ("window.p99_smoothing_ms", "0.001 to 1000000000", "time constant of the smoothing of windowed P99s, ms"),
    ("regime.windows", "at least 1", "consecutive ticks that must agree before the regime changes"),
    ("regime.dwell_ms", "0 to 3600000", "least time in a regime before a milder one, ms"),
    ("regime.max_age_ms", "0.001 to 1000000000", "age at which a signal no longer counts, ms"),
    ("regime.min_samples", "at least 1", "samples that a signal needs to count"),
    ("signals", "a mapping", "cuts of `slowdown`, `waiting` and `ttft_p99_ms`, each `{transition_enter, transition_leave, saturated_enter, saturated_leave}`; absent: slowdown 1.5/8 and waiting 1/8, left at three quarters, in a prefill pool waiting alone, or `ttft_p99_ms` alone with `cost: paper`"),
    ("failures.consecutive", "at least 1", "attempts without a first token, in a row, that start a hold"),
    ("failures.min_hold_ms", "0.001 to 1000000000", "first hold of a failing worker, ms; the next one is twice as long"),
    ("failures.max_hold_ms", "0.001 to 1000000000", "longest hold, ms"),
    ("failures.penalty_ms", "0 to 1000000000", "added to the cost of a held worker, ms (blocks with `cost: paper`)"),
    ("calibrated.price_per_waiting", "0 to 1000", "growth of the price of prefill work per waiting request on the median worker"),
    ("calibrated.price_cap", "0 to 1000", "upper bound of the growth of both prices"),
    ("calibrated.seat_share", "0 to 1", "share of the mean residence time that one more seat in use costs"),
    ("calibrated.seat_tokens", "1 to 1000000000", "KV tokens that take up as much of a worker as one sequence; a worker's seats in use are the larger of the two counts"),
    ("calibrated.seat_price_per_waiting", "0 to 1000", "growth of the seat price per waiting request when seats are scarce"),
    ("calibrated.in_flight", "true or false", "credit a prefix that is in use on a worker though no KV event told of it yet"),
    ("calibrated.omega_scale", "0 to 1000", "value ω of a cached token, times this; other values than 1 are for experiments"),
    ("calibrated.least_remaining", "0 to 1", "share of a worker's counted prefill work that remains at least, however long it has been at it"),
    ("calibration.prior_pass_ms", "0.1 to 1e6", "fixed part of a prefill pass before anything is learned, ms"),
    ("calibration.prior_token_ms", "1e-5 to 1e3", "prefill time per uncached token before anything is learned, ms"),
    ("calibration.prior_residence_ms", "0.1 to 1e6", "time from first token to completion before anything is learned, ms"),
    ("calibration.prior_decode_step_ms", "0.1 to 1e6", "time per generated token before anything is learned, ms"),
    ("calibration.forgetting", "0.5 to 1", "share of the evidence on prefill rates that survives one more pass"),
    ("calibration.outlier_ratio", "1.1 to 1e3", "a pass longer than this many times the prediction is suspect"),
    ("calibration.outlier_weight", "above 0, at most 1", "weight of a suspect pass"),
    ("calibration.drop_ratio", "1.1 to 1e3", "a pass longer than this many times the prediction plus `drop_slack_ms` teaches nothing"),
    ("calibration.drop_slack_ms", "0 to 1e6", "see `drop_ratio`, ms"),
    ("calibration.misfit_groups", "5 to 1000", "passes whose median must be off by `misfit_ratio` before the rates start again"),
    ("calibration.misfit_ratio", "1.1 to 1e3", "see `misfit_groups`"),
    ("calibration.group_gap_ms", "0 to 1e3", "first tokens of one worker this close together come from one pass, ms"),
    ("calibration.speed_memory_groups", "2 to 1e4", "passes after which a worker's speed is mostly forgotten"),
    ("calibration.dead_band", "0 to 10", "a worker within this share of the typical one counts as typical"),
    ("calibration.dead_band_ms", "0 to 1e3", "a worker whose passes differ by less than this from a typical one's counts as typical, ms"),
    ("calibration.idle_decay_ms", "1 to 1e9", "time constant in which a silent worker's slowness returns to 1, ms"),
    ("calibration.seat_limit_running", "at least 1", "running requests from which a worker near its peak counts as limited by seats"),
    ("calibration.waiting_weight", "above 0, at most 1", "weight of one arrival in the mean queue of the median worker"),
    ("calibration.efficiency_weight", "above 0, at most 1", "weight of one pass in the prefill efficiency"),
    ("calibration.residence_weight", "above 0, at most 1", "weight of one request in the mean residence time"),
    ("calibration.decode_weight", "above 0, at most 1", "weight of one request in the mean decode step"),
    ("paper.below.tau", "0 to 1000", "temperature in the regimes Below and Unknown"),
    ("paper.below.omega", "0 to 1000", "value of an overlapped block there, in blocks of load"),
    ("paper.transition.tau", "0 to 1000", "temperature in the regime Transition"),
    ("paper.transition.omega", "0 to 1000", "value of an overlapped block there, in blocks of load"),
    ("paper.saturated.tau", "0 to 1000", "temperature in the regime Saturated"),
    ("paper.saturated.omega", "0 to 1000", "value of an overlapped block there, in blocks of load"),
    ("paper.theta1_ms", "0.001 to 1000000000", "smoothed TTFT P99 at which Transition begins, ms; ours, the paper leaves it open"),
    ("paper.theta2_ms", "at least `paper.theta1_ms`", "smoothed TTFT P99 at which Saturated begins, ms; ours"),
    ("paper.leave_share", "0 to 1", "a threshold is left below this share of it; ours"),
    ("paper.curve.slope_ms_per_unit", "from 0", "slope a of f(n) = a·n + b + d/(n_sat − n)^β, n in KV blocks; ours"),
    ("paper.curve.base_ms", "from 0", "b; ours"),
    ("paper.curve.barrier_ms", "from 0", "d; ours, 0 leaves the barrier out"),
    ("paper.curve.saturation_load", "above 0", "n_sat, KV blocks; ours"),
    ("paper.curve.barrier_exponent", "above 0", "β; ours"),
    ("paper.curve.guard_load", "above 0, below `paper.curve.saturation_load`", "distance δ from n_sat at which the tangent takes over, KV blocks; ours"),
    ("anarchy.window_ms", "1 to 3600000", "a window of the Price of Anarchy ends so long after its first decision, ms"),
    ("anarchy.window_requests", "1 to 250", "or with so many decisions"),
    ("anarchy.core_share", "0 to 1", "share of one core that measuring may take; windows beyond it are skipped, and 0 measures nothing"),
    ("anarchy.windows", "2 to 10000", "newest windows that a figure is made of"),
    ("anarchy.max_age_ms", "0.001 to 1000000000", "age at which a window no longer counts, ms"),
    ("anarchy.patience_ms", "0.001 to 1000000000", "so long after a window began, requests that have not ended are left out, ms"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(prefix: &str, value: &Value, out: &mut Vec<String>) {
        if let Value::Mapping(mapping) = value {
            for (key, value) in mapping {
                let key = key.as_str().unwrap();
                let path = if prefix.is_empty() {
                    key.to_owned()
                } else {
                    format!("{prefix}.{key}")
                };
                leaves(&path, value, out);
            }
        } else {
            out.push(prefix.to_owned());
        }
    }

    #[test]
    fn every_parameter_is_documented_and_nothing_else() {
        let mut parameters = Vec::new();
        leaves(
            "",
            &serde_yaml::to_value(Parameters::default()).unwrap(),
            &mut parameters,
        );
        let mut documented: Vec<_> = ROWS.iter().map(|row| row.0.to_owned()).collect();
        parameters.sort();
        documented.sort();
        assert_eq!(documented, parameters);
    }

    #[test]
    fn a_default_is_the_one_the_code_uses() {
        let docs = documentation();
        let tie = docs.iter().find(|doc| doc.name == "tie_margin_ms").unwrap();
        assert_eq!(tie.default, "0.01");
    }
}
