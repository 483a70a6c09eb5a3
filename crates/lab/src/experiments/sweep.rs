// SPDX-License-Identifier: Apache-2.0

//! A grid over policy parameters, and the settings on it that no other one beats in everything.
//!
//! An axis is a parameter with its values: `calibrated.price_per_waiting=1,2,4`. The names are those of
//! the router-policy file, a dot for each level. `omega` and `tau` stand for that entry in all rows of
//! the paper's table and select the paper's cost, the only one that has them. A parameter of a cost that
//! is not selected would change nothing, so `calibrated.…` beside those, and `paper.…` without `cost=paper`,
//! are refused.
//!
//! The paper's rows are given whole or not at all, so a policy of our own type starts from its whole
//! defaults; others get the named parameters alone.

use regime_policy::{CostModel, POLICY_TYPE, Parameters};
use serde_json::{Map, Value, json};

use crate::policies::{Catalog, Policy, PolicyError};
use crate::results::RunEntry;

/// Rows of the paper's table.
const ROWS: [&str; 3] = ["below", "transition", "saturated"];

/// A parameter and the values to try.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Dotted name, or `omega`, or `tau`.
    pub name: String,
    /// YAML scalars, as written.
    pub values: Vec<Value>,
}

/// An axis that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "parameter {given:?} is not understood; allowed is NAME=VALUE,VALUE,… such as omega=0.5,1,2"
)]
pub struct AxisError {
    given: String,
}

impl std::str::FromStr for Axis {
    type Err = AxisError;

    fn from_str(given: &str) -> Result<Self, AxisError> {
        let error = || AxisError {
            given: given.to_owned(),
        };
        let (name, values) = given.split_once('=').ok_or_else(error)?;
        if name.is_empty() || name.split('.').any(str::is_empty) {
            return Err(error());
        }
        let values = values
            .split(',')
            .map(|value| {
                let value: Value = serde_yaml::from_str(value.trim()).map_err(|_| error())?;
                let scalar = !(value.is_null() || value.is_array() || value.is_object());
                scalar.then_some(value).ok_or_else(error)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name: name.to_owned(),
            values,
        })
    }
}

/// Every combination of the axes as a policy of type `name`, labelled by what it sets.
///
/// # Errors
/// When the policy is unknown or Dynamo refuses a combination, before anything is run.
pub fn grid(name: &str, axes: &[Axis], catalog: &Catalog) -> Result<Vec<Policy>, PolicyError> {
    check(name, axes).map_err(|problem| PolicyError::Refused {
        name: name.to_owned(),
        problem,
    })?;
    let mut points: Vec<Vec<(&str, &Value)>> = vec![Vec::new()];
    for axis in axes {
        points = points
            .into_iter()
            .flat_map(|point| {
                axis.values.iter().map(move |value| {
                    let mut point = point.clone();
                    point.push((&axis.name, value));
                    point
                })
            })
            .collect();
    }
    points
        .into_iter()
        .map(|point| {
            let set: Vec<_> = point
                .iter()
                .map(|(name, value)| format!("{name}={}", text(value)))
                .collect();
            let label = format!("{name} {}", set.join(" "));
            let policy =
                Policy::named(name, catalog)?.with_parameters(parameters(name, &point), label)?;
            policy.check(catalog)?;
            Ok(policy)
        })
        .collect()
}

/// Refuses a parameter that is given twice or that would change nothing.
fn check(policy: &str, axes: &[Axis]) -> Result<(), String> {
    for (index, axis) in axes.iter().enumerate() {
        if axes[..index].iter().any(|before| before.name == axis.name) {
            return Err(format!(
                "parameter {} is given twice; allowed is once, with all its values",
                axis.name
            ));
        }
    }
    if policy != POLICY_TYPE {
        return Ok(());
    }
    let short = axes.iter().find(|axis| is_short(&axis.name));
    let cost = axes.iter().find(|axis| axis.name == "cost");
    if let (Some(short), Some(_)) = (short, cost) {
        return Err(format!(
            "parameter {} selects cost=paper; it cannot be given together with cost",
            short.name
        ));
    }
    let usual = [json!(CostModel::default())];
    let paper = [json!(CostModel::Paper)];
    let costs = match (short, cost) {
        (Some(_), _) => &paper[..],
        (None, Some(cost)) => &cost.values,
        (None, None) => &usual,
    };
    for axis in axes {
        let needed = match axis.name.split_once('.') {
            Some(("calibrated", _)) => json!(CostModel::Calibrated),
            Some(("paper", _)) => json!(CostModel::Paper),
            _ => continue,
        };
        if let Some(other) = costs.iter().find(|cost| **cost != needed) {
            return Err(format!(
                "parameter {} changes nothing with cost={}; allowed with cost={} alone",
                axis.name,
                text(other),
                text(&needed)
            ));
        }
    }
    Ok(())
}

/// Whether the name stands for an entry of all rows of the paper's table.
fn is_short(name: &str) -> bool {
    matches!(name, "omega" | "tau")
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn parameters(policy: &str, point: &[(&str, &Value)]) -> Map<String, Value> {
    let ours = policy == POLICY_TYPE;
    let mut all = match serde_json::to_value(Parameters::default()) {
        Ok(Value::Object(mut defaults)) if ours => {
            // One of the tier sections is without effect, and refused if it is given.
            let left_out = ["seed", "tier_weights", "tiers"];
            defaults.retain(|name, value| !left_out.contains(&name.as_str()) && !value.is_null());
            defaults
        }
        _ => Map::new(),
    };
    for (name, value) in point {
        if ours && is_short(name) {
            set(&mut all, "cost", &json!("paper"));
            for row in ROWS {
                set(&mut all, &format!("paper.{row}.{name}"), value);
            }
        } else {
            set(&mut all, name, value);
        }
    }
    all
}

fn set(into: &mut Map<String, Value>, name: &str, value: &Value) {
    match name.split_once('.') {
        None => {
            into.insert(name.to_owned(), value.clone());
        }
        Some((first, rest)) => {
            let inner = into.entry(first).or_insert_with(|| json!({}));
            if !inner.is_object() {
                *inner = json!({});
            }
            if let Value::Object(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

/// A setting on the plane of throughput and latency.
#[derive(Debug, Clone, PartialEq)]
pub struct ParetoPoint {
    /// Label of the policy.
    pub policy: String,
    /// Completed requests a second, mean over the seeds.
    pub requests_per_s: f64,
    /// TTFT P99, mean over the seeds, ms.
    pub ttft_p99_ms: f64,
    /// No other setting is better in one without being worse in the other.
    pub front: bool,
}

/// The settings in the order of the runs, without those of which a run completed nothing. The runs get
/// `pareto: true` on the front and `pareto: false` elsewhere.
pub fn mark_pareto(runs: &mut [RunEntry]) -> Vec<ParetoPoint> {
    let mut policies: Vec<String> = Vec::new();
    for run in runs.iter() {
        if !policies.contains(&run.policy) {
            policies.push(run.policy.clone());
        }
    }
    let mut points: Vec<ParetoPoint> = policies
        .into_iter()
        .filter_map(|policy| {
            let own = runs.iter().filter(|run| run.policy == policy);
            let measured: Option<Vec<(f64, f64)>> = own
                .map(|RunEntry { metrics, .. }| {
                    let ranked = metrics.completed > 0;
                    ranked.then_some((metrics.requests_per_s?, metrics.ttft_ms?.p99))
                })
                .collect();
            let measured = measured?;
            let n = measured.len() as f64;
            Some(ParetoPoint {
                policy,
                requests_per_s: measured.iter().map(|(rate, _)| rate).sum::<f64>() / n,
                ttft_p99_ms: measured.iter().map(|(_, p99)| p99).sum::<f64>() / n,
                front: false,
            })
        })
        .collect();
    let plane: Vec<_> = points
        .iter()
        .map(|point| (point.requests_per_s, point.ttft_p99_ms))
        .collect();
    for (point, front) in points.iter_mut().zip(pareto_front(&plane)) {
        point.front = front;
    }
    for run in runs {
        if let Some(point) = points.iter().find(|point| point.policy == run.policy) {
            run.more.insert("pareto".into(), json!(point.front));
        }
    }
    points
}

/// For each point of throughput and latency whether no other has more of the one without more of the
/// other.
#[must_use]
pub fn pareto_front(points: &[(f64, f64)]) -> Vec<bool> {
    points
        .iter()
        .map(|(throughput, latency)| {
            !points.iter().any(|(more, less)| {
                more >= throughput && less <= latency && (more > throughput || less < latency)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axes(given: &[&str]) -> Vec<Axis> {
        given.iter().map(|axis| axis.parse().unwrap()).collect()
    }

    #[test]
    fn an_axis_is_a_name_and_yaml_scalars() {
        let axis: Axis = "a.b=1,0.5,paper,true".parse().unwrap();
        assert_eq!(
            axis.values,
            [json!(1), json!(0.5), json!("paper"), json!(true)]
        );
        for given in ["omega", "=1", "a..b=1", "omega=", "omega=1,,2", "omega=[1]"] {
            let error = given.parse::<Axis>().unwrap_err().to_string();
            assert!(error.contains("NAME=VALUE"), "{given}: {error}");
        }
    }

    #[test]
    fn a_grid_has_every_combination_and_is_accepted_by_dynamo() {
        let policies = grid(
            "regime-aware",
            &axes(&["omega=0.5,1", "tau=0,0.7,1"]),
            &Catalog::default(),
        )
        .unwrap();
        let labels: Vec<_> = policies.iter().map(Policy::label).collect();
        assert_eq!(labels.len(), 6);
        assert_eq!(labels[1], "regime-aware omega=0.5 tau=0.7");
    }

    #[test]
    fn a_shorthand_sets_all_rows_and_the_paper_s_cost() {
        let (omega, tick) = (json!(3), json!(100));
        let set = parameters("regime-aware", &[("omega", &omega), ("tick_ms", &tick)]);
        assert_eq!(
            (&set["cost"], &set["tick_ms"]),
            (&json!("paper"), &json!(100))
        );
        for row in ROWS {
            assert_eq!(set["paper"][row]["omega"], 3);
        }
        assert_eq!(set["paper"]["saturated"]["tau"], 0.8);
        assert!(!set.contains_key("seed"));
    }

    #[test]
    fn tiers_can_be_swept_by_weight_or_by_time() {
        for given in [
            ["tier_value=weights", "tier_weights.host=0,0.75"],
            ["tier_value=time", "tiers.host.bandwidth_gb_s=20,63"],
            ["tier_value=time,weights", "calibrated.omega_scale=0.1,4"],
        ] {
            let policies = grid("regime-aware", &axes(&given), &Catalog::default());
            assert!(policies.is_ok(), "{policies:?}");
        }
        let error = grid(
            "regime-aware",
            &axes(&["tier_value=time", "tier_weights.host=0.5"]),
            &Catalog::default(),
        );
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("tier_weights is given")
        );
    }

    #[test]
    fn other_types_get_the_named_parameters_alone() {
        let value = json!(0.5);
        let set = parameters("dynamo-two-tier-cost-fn", &[("cache_threshold", &value)]);
        assert_eq!(Value::Object(set), json!({"cache_threshold": 0.5}));
    }

    #[test]
    fn an_unknown_parameter_or_value_is_refused_before_any_run() {
        for (axis, word) in [
            ("calibrated.prise=1", "prise"),
            ("calibrated.price_cap=-1", "price_cap"),
        ] {
            let error = grid("regime-aware", &axes(&[axis]), &Catalog::default()).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let error = grid("random", &axes(&["omega=1"]), &Catalog::default()).unwrap_err();
        assert!(error.to_string().contains("no parameters"), "{error}");
    }

    #[test]
    fn a_parameter_given_twice_or_without_effect_is_refused() {
        let refused = |given: &[&str]| {
            let error = grid("regime-aware", &axes(given), &Catalog::default()).unwrap_err();
            error.to_string()
        };
        assert!(refused(&["omega=1", "omega=2"]).contains("omega is given twice"));
        for (given, words) in [
            (
                ["omega=1", "calibrated.price_cap=2"],
                "calibrated.price_cap changes nothing with cost=paper",
            ),
            (["tau=1", "cost=paper"], "tau selects cost=paper"),
            (
                ["cost=paper,calibrated", "paper.below.omega=1"],
                "paper.below.omega changes nothing with cost=calibrated",
            ),
        ] {
            let error = refused(&given);
            assert!(error.contains(words), "{error}");
        }
        assert!(refused(&["paper.below.omega=1"]).contains("changes nothing with cost=calibrated"));
    }

    #[test]
    fn the_front_holds_what_nothing_beats_in_both() {
        // The second has less throughput and more latency than the first; the third trades.
        assert_eq!(
            pareto_front(&[(10.0, 5.0), (9.0, 6.0), (12.0, 9.0), (10.0, 5.0)]),
            [true, false, true, true]
        );
    }

    proptest! {
        #[test]
        fn every_point_off_the_front_is_beaten_by_one_on_it(points in prop::collection::vec((0.0..9.0f64, 0.0..9.0f64), 1..20)) {
            let front = pareto_front(&points);
            prop_assert!(front.iter().any(|on| *on));
            for (point, on) in points.iter().zip(&front) {
                let beaten = points.iter().zip(&front).any(|(other, front)| {
                    *front && other != point && other.0 >= point.0 && other.1 <= point.1
                });
                prop_assert!(*on || beaten);
            }
        }
    }
}
