// SPDX-License-Identifier: Apache-2.0

//! Values on the command line and in the environment.
//!
//! Each parser says in its error what is allowed; the caller adds which flag or variable the value came from. Parsing is
//! strict because a value that is half understood is worse than none: Dynamo's own reader of `DYN_ROUTER_TEMPERATURE`
//! drops "0,5" without a word and keeps the default (field report BR-20).

/// A finite number ≥ 0.
///
/// # Errors
/// What is allowed.
pub fn non_negative(text: &str) -> Result<f64, String> {
    number(
        text,
        |value| value >= 0.0,
        "a finite number of at least 0, such as 0.5",
    )
}

/// A finite number > 0.
///
/// # Errors
/// What is allowed.
pub fn positive(text: &str) -> Result<f64, String> {
    number(
        text,
        |value| value > 0.0,
        "a finite number above 0, such as 0.5",
    )
}

/// A number from 0 to 1.
///
/// # Errors
/// What is allowed.
pub fn fraction(text: &str) -> Result<f64, String> {
    number(
        text,
        |value| (0.0..=1.0).contains(&value),
        "a number from 0 to 1, such as 0.5",
    )
}

/// A switch: true/false, yes/no, on/off or 1/0, in any case.
///
/// # Errors
/// What is allowed.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("must be true or false (also yes/no, on/off, 1/0)".to_owned()),
    }
}

fn number(text: &str, allowed: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|value: &f64| value.is_finite() && allowed(*value))
        .ok_or_else(|| format!("must be {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_comma_is_refused() {
        let error = non_negative("0,5").unwrap_err();
        assert_eq!(error, "must be a finite number of at least 0, such as 0.5");
    }

    #[test]
    fn nan_and_infinity_are_refused_everywhere() {
        for text in ["NaN", "inf", "-inf"] {
            assert!(non_negative(text).is_err(), "{text}");
            assert!(positive(text).is_err(), "{text}");
            assert!(fraction(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_edges_of_each_range_hold() {
        assert_eq!(non_negative("0"), Ok(0.0));
        assert!(positive("0").is_err());
        assert_eq!(fraction("1"), Ok(1.0));
        assert!(fraction("1.01").is_err());
    }

    #[test]
    fn switches_understand_the_usual_spellings_and_nothing_else() {
        assert_eq!(switch("Yes"), Ok(true));
        assert_eq!(switch("off"), Ok(false));
        assert!(switch("maybe").is_err());
        assert!(switch("2").is_err());
    }
}
