// SPDX-License-Identifier: Apache-2.0

//! What is shown of a summary, under the names that reports, results and gauges have in common.

use serde::{Deserialize, Serialize};

use crate::{GapIntervals, Method, NoEstimate, Summary};

/// The Price of Anarchy of some windows. Every ratio is finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests in the windows.
    pub n: usize,
    /// Windows.
    pub windows: usize,
    /// Actual over alone: policy gap × temporal gap × overload.
    pub slowdown: f64,
    /// Predicted over optimum, at least 1: what a better choice would have saved.
    pub policy_gap: f64,
    /// Actual over predicted: what happened after the choice.
    pub temporal_gap: f64,
    /// Optimum over alone, at least 1: what no router can fix.
    pub overload: f64,
    /// Actual over optimum, the paper's Price of Anarchy.
    pub poa_hat: f64,
    /// How the optima were found.
    pub method: Found,
    /// What the ratios can be where optima are bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<GapIntervals>,
    /// 95 % intervals by bootstrap over windows; absent with fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<GapIntervals>,
}

/// [`Method`] in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Every optimum was solved.
    Exact,
    /// Some are bounded from both sides; the ratios charge the router with the least.
    Bounded,
}

impl Summary {
    /// What is shown, or why there is nothing: the reason that most windows have, see
    /// [`NoEstimate::name`].
    ///
    /// # Errors
    /// The name of the reason.
    pub fn figures(&self) -> Result<Figures, &'static str> {
        let total = self.total.ok_or_else(|| {
            let most = self
                .without_estimate
                .iter()
                .max_by_key(|(_, count)| **count);
            most.map_or(NoEstimate::NoRequests.name(), |(name, _)| *name)
        })?;
        let (method, bounds) = match total.method {
            Method::Exact => (Found::Exact, None),
            Method::Bounded { .. } => (Found::Bounded, Some(total.bounds())),
        };
        Ok(Figures {
            n: total.requests,
            windows: self.windows,
            slowdown: total.gap.slowdown,
            policy_gap: total.gap.policy,
            temporal_gap: total.gap.temporal,
            overload: total.gap.overload,
            poa_hat: total.poa_hat,
            method,
            bounds,
            interval: self.interval,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Candidate, Choice, Estimator, summarise};
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;
    use regime_core::{Millis, Timestamp, WorkerKey};

    /// Two requests that share worker 0 though 1 is hardly slower: 30 ms where 25 were to be had.
    fn window(own_ms: f64) -> Vec<Choice> {
        let candidate = |id, own| Candidate {
            worker: WorkerKey::new(id, 0),
            wait: Millis::ZERO,
            own: Millis::new(own),
        };
        let choice = Choice {
            decided_at: Timestamp::ORIGIN,
            chosen: WorkerKey::new(0, 0),
            candidates: vec![candidate(0, own_ms), candidate(1, 1.5 * own_ms)],
            actual: Millis::new(1.5 * own_ms),
        };
        vec![choice.clone(), choice]
    }

    fn summary(windows: &[Vec<Choice>], exact_work: usize) -> Summary {
        let estimates = windows
            .iter()
            .map(|window| Estimator { exact_work }.estimate(window));
        let estimates: Vec<_> = estimates.collect();
        summarise(&estimates, &mut Pcg64Mcg::seed_from_u64(1))
    }

    #[test]
    fn figures_have_the_names_that_files_use() {
        let figures = summary(&[window(10.0), window(10.0)], 1_000).figures();
        let json = serde_json::to_value(figures.unwrap()).unwrap();
        for (name, value) in [
            ("slowdown", 1.5),
            ("policy_gap", 1.2),
            ("overload", 1.25),
            ("poa_hat", 1.2),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        assert_eq!((&json["n"], &json["windows"]), (&4.into(), &2.into()));
        assert_eq!(json["method"], "exact");
        assert_eq!(json["interval"]["policy_gap"]["low"], 1.2);
        assert!(json.get("bounds").is_none());
        assert_eq!(
            serde_json::from_value::<Figures>(json).unwrap(),
            figures.unwrap()
        );
    }

    #[test]
    fn bounded_optima_show_what_the_ratios_can_be() {
        let figures = summary(&[window(10.0)], 0).figures().unwrap();
        // One by one both cost 10, so the optimum is 20 to 25.
        let policy = figures.bounds.unwrap().policy;
        assert_eq!(
            (figures.method, policy.low, policy.high),
            (Found::Bounded, 1.2, 1.5)
        );
    }

    #[test]
    fn without_an_estimate_the_most_frequent_reason_is_named() {
        let windows = [window(0.0), Vec::new(), window(0.0)];
        assert_eq!(summary(&windows, 0).figures(), Err("unusable_forecast"));
        assert_eq!(summary(&[], 0).figures(), Err("no_requests"));
    }
}
