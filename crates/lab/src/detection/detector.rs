// SPDX-License-Identifier: Apache-2.0

//! Detectors: the policy's own state machine on one signal or several.
//!
//! Each is a set of signals with their cuts, and the timing of the policy's defaults. Where several signals
//! decide, the worst of them does, as in the policy. Slowdown, waiting and P99 have the cuts of the policy:
//! those of its default and the paper's θ1 and θ2. Position and curvature have cuts of this module, the best of
//! a few tried on seeds 1 and 2 of the standard workloads and pools.

use std::collections::BTreeMap;

use dynamo_kv_router::WorkerType;
use regime_core::{Cuts, Regime, RegimeError, RegimeMachine, Timestamp};
use regime_policy::{CostModel, Parameters};

use super::series::Tick;
use crate::adapter::RegimeSince;

/// What a detector may look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// Σ TTFT / Σ TTFT alone.
    Slowdown,
    /// Waiting requests on the median worker.
    Waiting,
    /// Smoothed P99 of TTFT, ms.
    TtftP99,
    /// Elasticity of latency over load.
    Position,
    /// Curvature of latency over load.
    Curvature,
}

/// Every signal, in the order of their readings.
pub(super) const SIGNALS: [Signal; 5] = [
    Signal::Slowdown,
    Signal::Waiting,
    Signal::TtftP99,
    Signal::Position,
    Signal::Curvature,
];

impl Signal {
    /// The policy's name of it, where it has one.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Slowdown => "slowdown",
            Self::Waiting => "waiting",
            Self::TtftP99 => "ttft_p99_ms",
            Self::Position => "position",
            Self::Curvature => "curvature",
        }
    }

    fn cuts(self) -> Option<Cuts> {
        let ours = Parameters::default().deciding_signals(WorkerType::Aggregated);
        let paper = Parameters {
            cost: CostModel::Paper,
            ..Parameters::default()
        };
        match self {
            Self::Slowdown => ours.slowdown,
            Self::Waiting => ours.waiting,
            Self::TtftP99 => paper.deciding_signals(WorkerType::Aggregated).ttft_p99_ms,
            Self::Position => Some(POSITION),
            Self::Curvature => Some(CURVATURE),
        }
    }
}

/// Latency grows by 0.7 % for 1 % more load, and in proportion to it; left at nine tenths.
const POSITION: Cuts = Cuts {
    transition_enter: 0.7,
    transition_leave: 0.63,
    saturated_enter: 1.0,
    saturated_leave: 0.9,
};

/// Left at three quarters.
const CURVATURE: Cuts = Cuts {
    transition_enter: 1.0,
    transition_leave: 0.75,
    saturated_enter: 3.0,
    saturated_leave: 2.25,
};

/// A state machine to be judged.
#[derive(Debug, Clone)]
pub(super) struct Detector {
    signals: Vec<Signal>,
    cuts: Vec<Cuts>,
}

impl Detector {
    fn of(signals: &[Signal]) -> Self {
        let (signals, cuts) = signals
            .iter()
            .filter_map(|signal| Some((*signal, signal.cuts()?)))
            .unzip();
        Self { signals, cuts }
    }

    /// Every signal alone, then combinations.
    pub(super) fn all() -> Vec<Self> {
        use Signal::{Curvature, Position, Slowdown, TtftP99, Waiting};
        let combinations: [&[Signal]; 5] = [
            &[Slowdown, Waiting],
            &[Slowdown, Waiting, TtftP99],
            &[Slowdown, Waiting, Position],
            &[Slowdown, Waiting, Curvature],
            &SIGNALS,
        ];
        let alone = SIGNALS.iter().map(std::slice::from_ref);
        alone.chain(combinations).map(Self::of).collect()
    }

    /// Whether the policy decides by the same signals in a pool of `role` when nothing is said.
    pub(super) fn is_default(&self, role: WorkerType) -> bool {
        let ours = Parameters::default().deciding_signals(role);
        let decides = |signal: Signal| match signal {
            Signal::Slowdown => ours.slowdown.is_some(),
            Signal::Waiting => ours.waiting.is_some(),
            Signal::TtftP99 => ours.ttft_p99_ms.is_some(),
            Signal::Position | Signal::Curvature => false,
        };
        SIGNALS
            .iter()
            .all(|signal| self.signals.contains(signal) == decides(*signal))
    }

    /// Names of its signals.
    pub(super) fn name(&self) -> String {
        let names: Vec<_> = self.signals.iter().map(|signal| signal.name()).collect();
        names.join(" + ")
    }

    /// Its cuts by signal.
    pub(super) fn cuts(&self) -> BTreeMap<String, Cuts> {
        let named = self.signals.iter().map(|signal| signal.name().to_owned());
        named.zip(self.cuts.iter().copied()).collect()
    }

    /// The regimes that it finds, up to `end`.
    ///
    /// # Errors
    /// When cuts or timing are outside their ranges.
    pub(super) fn replay(
        &self,
        ticks: &[Tick],
        end: Timestamp,
    ) -> Result<Vec<RegimeSince>, RegimeError> {
        let timing = Parameters::default().regime.config();
        let mut machine = RegimeMachine::new(timing, self.cuts.clone())?;
        let mut regimes = vec![RegimeSince {
            from_ms: 0.0,
            regime: Regime::Unknown,
        }];
        let since = |at: Timestamp, regime| RegimeSince {
            from_ms: at.as_micros() as f64 / 1e3,
            regime,
        };
        for tick in ticks.iter().take_while(|tick| tick.at < end) {
            let readings: Vec<_> = self
                .signals
                .iter()
                .map(|signal| tick.readings[*signal as usize])
                .collect();
            if let Some(change) = machine.observe(tick.at, &readings) {
                regimes.push(since(change.at, change.to));
            }
        }
        // Silence at the end makes no change that is observed.
        let last = machine.regime(end);
        if regimes.last().is_some_and(|before| before.regime != last) {
            regimes.push(since(machine.since(end), last));
        }
        Ok(regimes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use regime_core::Reading;

    use super::*;

    #[test]
    fn each_kind_of_pool_has_one_default() {
        let default = |role| {
            let all = Detector::all().into_iter();
            let names: Vec<_> = all
                .filter(|it| it.is_default(role))
                .map(|it| it.name())
                .collect();
            names
        };
        assert_eq!(default(WorkerType::Aggregated), ["slowdown + waiting"]);
        assert_eq!(default(WorkerType::Prefill), ["waiting"]);
    }

    #[test]
    fn a_replay_finds_what_the_policy_would_and_ages_as_it_does() {
        let waiting = Detector::of(&[Signal::Waiting]);
        // 20 requests wait on the median worker, four ticks long, and then nothing is heard.
        let ticks: Vec<_> = (1..=4)
            .map(|number| {
                let at = Timestamp::ORIGIN + number * Duration::from_millis(250);
                let reading = Reading {
                    value: 20.0,
                    samples: 100,
                    at,
                };
                let mut readings = [None; SIGNALS.len()];
                readings[Signal::Waiting as usize] = Some(reading);
                Tick::of(at, readings)
            })
            .collect();
        let found = waiting.replay(&ticks, Timestamp::from_secs(60)).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.from_ms, it.regime)).collect();
        // The third tick in a row; stale 10 s after the last sample.
        assert_eq!(
            found,
            [
                (0.0, Regime::Unknown),
                (750.0, Regime::Saturated),
                (11_000.0, Regime::Unknown)
            ]
        );
    }
}
