// SPDX-License-Identifier: Apache-2.0

//! Parameters through Dynamo's own start-up path (field report BR-20).

#![allow(clippy::unwrap_used)]

mod support;

use regime_policy::Options;
use support::{resolve, yaml};

fn refusal(parameters: &str) -> String {
    match resolve(&yaml(parameters), Options::default()) {
        Ok(_) => panic!("{parameters} was accepted"),
        Err(error) => error,
    }
}

#[test]
fn no_parameters_give_the_documented_defaults() {
    assert!(resolve(&yaml("{}"), Options::default()).is_ok());
}

#[test]
fn a_misspelt_parameter_is_named() {
    let error = refusal("{ewma_alhpa: 0.2}");
    assert!(
        error.contains("ewma_alhpa") && error.contains("regime-aware"),
        "{error}"
    );
}

#[test]
fn a_value_out_of_range_is_named_with_its_range() {
    let error = refusal("{tick_ms: -5}");
    assert!(
        error.contains("tick_ms is -5; allowed: 1 to 3600000"),
        "{error}"
    );
}

#[test]
fn a_nested_value_out_of_range_is_named_with_its_section() {
    let error = refusal("{calibration: {forgetting: 2}}");
    assert!(error.contains("calibration: forgetting is 2"), "{error}");
    let error = refusal("{tier_weights: {host: 1.5}}");
    assert!(
        error.contains("tier_weights: ") && error.contains("1.5"),
        "{error}"
    );
}

#[test]
fn a_number_with_a_comma_is_no_number() {
    let error = refusal("{tie_margin_ms: \"0,5\"}");
    assert!(error.contains("0,5"), "{error}");
}

#[test]
fn a_classifier_parameter_out_of_range_is_named() {
    let yaml = "request_classifier: { type: regime-feedback, parameters: { max_requests: 0 } }";
    let error = resolve(yaml, Options::default()).err().unwrap();
    assert!(error.contains("max_"), "{error}");
}

#[test]
fn every_documented_parameter_is_accepted_with_its_default() {
    for parameter in regime_policy::policy_parameters() {
        if parameter.default == "null" {
            continue;
        }
        let nested = parameter
            .name
            .rsplit('.')
            .fold(parameter.default.clone(), |inner, key| {
                format!("{{{key}: {inner}}}")
            });
        // A row of the paper's table, or its curve, is given whole or not at all.
        let row = parameter.name.split('.').nth(1);
        if matches!(row, Some("below" | "transition" | "saturated" | "curve")) {
            continue;
        }
        // The ladder counts only with time values.
        let parameters = if parameter.name.starts_with("tiers.") {
            nested.replacen('{', "{tier_value: time, ", 1)
        } else {
            nested
        };
        resolve(&yaml(&parameters), Options::default())
            .unwrap_or_else(|error| panic!("{}: {error}", parameter.name));
    }
}
