// SPDX-License-Identifier: Apache-2.0

//! Late binding: requests wait in the router, not on a worker, while every worker is busy.
//!
//! A request that is placed while every worker has a long prefill queue waits on the worker that was
//! best when it came, which is seldom the one that is best when its turn comes. Dynamo's router can hold
//! it instead and place it when some worker has room: it then sees the loads and caches of that moment.
//! What waits in the router can also be put in another order, which a queue on a worker cannot.
//!
//! The queue has two classes, by the tokens that a prompt leaves to compute. Dynamo serves backlogged
//! classes by deficit round robin: of the tokens that are released while both wait, short prompts get a
//! quarter and long ones the rest. So short prompts overtake long ones, and nothing starves: a short
//! prompt is released after at most four times the tokens ahead of it in its own class and its own, a
//! long one after four thirds of them, and a few quanta, however many requests the other class gets.
//! Within a class requests leave in the order of their arrival.
//!
//! Defaults: 8192 queued prefill tokens are one full pass of an engine, so a worker never runs dry
//! while requests wait here. 1024 uncached tokens part chat turns from documents. Equal shares are a few
//! per cent better in the mean where prompts are short, and cost goodput where long ones have a deadline
//! too (0.94 of Dynamo's default against 1.00 on one simulated workload on 32 workers). The shortest prompt
//! first (`wspt`) is better in the mean and makes the longest prompts wait three times as long, so it is
//! not used.
//!
//! On where the router is generated (`--router regime-aware`), and in the lab's `regime-aware`. What it
//! buys at each load, and what was measured, is in `docs/routing-rule.md`.
//!
//! Source: the policy classes and the deficit round robin of Dynamo's router queue
//! (`uncached_isl_buckets` and `policy_classes` of the router-policy file).

use serde_yaml::{Mapping, Value};
use thiserror::Error;

/// Tokens that a class may release when its turn comes; their ratio is that of the shares.
const SHORT_QUANTUM: u32 = 512;
const LONG_QUANTUM: u32 = 3 * SHORT_QUANTUM;
/// The one family of requests: classes differ by uncached tokens alone.
const FAMILY: &str = "late-binding";
/// Names of the classes and of their buckets, as they stand in Dynamo's metrics.
const SHORT: &str = "short-prompts";
const LONG: &str = "long-prompts";

/// When requests wait in the router, and in which class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateBinding {
    /// A worker with more queued prefill tokens than this is busy; requests wait while all are.
    /// 1 to 1,000,000; default 8192.
    pub threshold_tokens: u32,
    /// Prompts with at least this many uncached tokens wait in a class of their own. 1 to 1,000,000;
    /// default 1024.
    pub long_prompt_tokens: u32,
}

/// A setting of [`LateBinding`] outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{key} is {value}; allowed: 1 to {MOST_TOKENS}")]
pub struct LateBindingError {
    /// Name of the field in [`LateBinding`].
    pub key: &'static str,
    /// What it was set to.
    pub value: u32,
}

/// More tokens than this are a typing mistake: longer than any prompt.
const MOST_TOKENS: u32 = 1_000_000;

impl Default for LateBinding {
    fn default() -> Self {
        Self {
            threshold_tokens: 8_192,
            long_prompt_tokens: 1_024,
        }
    }
}

impl LateBinding {
    /// The keys of a router-policy file that switch it on: `default_policy_family`,
    /// `uncached_isl_buckets` and `policy_classes`.
    ///
    /// # Errors
    /// Names the setting that is out of its range.
    pub fn policy_file_keys(&self) -> Result<Mapping, LateBindingError> {
        for (key, value) in [
            ("threshold_tokens", self.threshold_tokens),
            ("long_prompt_tokens", self.long_prompt_tokens),
        ] {
            if !(1..=MOST_TOKENS).contains(&value) {
                return Err(LateBindingError { key, value });
            }
        }
        let bucket = |name: &str, from: u32| {
            mapping([("min_tokens", from.into()), ("bucket", name.into())]).into()
        };
        let class = |name: &str, quantum: u32| {
            mapping([
                ("name", name.into()),
                ("policy_family", FAMILY.into()),
                ("cache_bucket", name.into()),
                ("queue_policy", "fcfs".into()),
                ("quantum", quantum.into()),
                ("prefill_busy_threshold", self.threshold_tokens.into()),
            ])
            .into()
        };
        Ok(mapping([
            ("default_policy_family", FAMILY.into()),
            (
                "uncached_isl_buckets",
                Value::Sequence(vec![
                    bucket(SHORT, 0),
                    bucket(LONG, self.long_prompt_tokens),
                ]),
            ),
            (
                "policy_classes",
                Value::Sequence(vec![class(SHORT, SHORT_QUANTUM), class(LONG, LONG_QUANTUM)]),
            ),
        ]))
    }
}

fn mapping<const N: usize>(entries: [(&str, Value); N]) -> Mapping {
    entries
        .into_iter()
        .map(|(key, value)| (key.into(), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_out_of_range_is_named_with_its_value() {
        let error = LateBinding {
            threshold_tokens: 0,
            ..LateBinding::default()
        }
        .policy_file_keys()
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "threshold_tokens is 0; allowed: 1 to 1000000"
        );
        let error = LateBinding {
            long_prompt_tokens: 1_000_001,
            ..LateBinding::default()
        }
        .policy_file_keys()
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "long_prompt_tokens is 1000001; allowed: 1 to 1000000"
        );
    }
}
