// SPDX-License-Identifier: Apache-2.0

//! Parameters of a `regime-aware` instance: YAML in, checked values out.
//!
//! Unknown keys are refused and every range is checked at start-up, because a setting that is ignored
//! in silence is worse than none (field report BR-20). An instance without parameters gets the
//! defaults below, and [`documentation`] prints the same defaults, taken from the same struct.

mod documentation;

use std::time::Duration;

use dynamo_kv_router::WorkerType;
use regime_core::{
    AccrualConfig, CalibrationConfig, CurveParameters, Cuts, FailureAccrual, LatencyCurve,
    LatencyWindow, PoolCalibration, Regime, RegimeConfig, RegimeMachine, WindowConfig,
};
use regime_kv::{Ladder, LadderConfig, Tier, TierWeights};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

pub use documentation::{ParameterDoc, documentation};

/// Which formula prices a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostModel {
    /// Milliseconds from learned rates (DESIGN sections 5 and 6 of the project).
    #[default]
    Calibrated,
    /// The (τ, ω) table of the paper over Dynamo's own block cost.
    Paper,
}

/// How a block in a lower tier is valued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierValue {
    /// By the fixed weights of `tier_weights`.
    #[default]
    Weights,
    /// By the time it saves, on the ladder of `tiers`.
    Time,
}

/// A section that knows whether the file names it, so that one without effect can be refused.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(transparent)]
pub struct Section<T> {
    value: T,
    #[serde(skip)]
    given: bool,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Section<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = T::deserialize(deserializer)?;
        Ok(Self { value, given: true })
    }
}

/// What a session-affinity target means to the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionAffinity {
    /// An eligible target is the only candidate, as in Dynamo's default policy.
    #[default]
    Exclusive,
    /// The target is credited with cached blocks and may still lose.
    Advisory,
}

/// All parameters of one instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Cost model.
    pub cost: CostModel,
    /// Seed of the tie-breaking and sampling generator. Pools of one instance draw from streams that
    /// also depend on model and role.
    pub seed: u64,
    /// How a block in a lower tier is valued.
    pub tier_value: TierValue,
    /// Worth of a cached block by the tier that holds it, relative to one in device memory.
    pub tier_weights: Section<TierWeights>,
    /// What it takes to bring a block from each tier.
    pub tiers: Section<LadderConfig>,
    /// Meaning of a session-affinity target.
    pub session_affinity: SessionAffinity,
    /// Share of the prompt that an advisory target is believed to hold at least, 0 to 1.
    pub affinity_credit: f64,
    /// Drop saturated workers from the choice while some worker is not saturated.
    pub saturation_filter: bool,
    /// Costs closer than this are ties, ms.
    pub tie_margin_ms: f64,
    /// How often windows are folded into regimes and prices, ms. Absent: 250, or 5000 (the paper's
    /// poll) with `cost: paper`.
    pub tick_ms: Option<f64>,
    /// A worker that has not been a candidate for this long, while others were, and that no discovery
    /// lists, is forgotten, ms.
    pub worker_ttl_ms: f64,
    /// Sliding window of latencies.
    pub window: Window,
    /// Regime state machine.
    pub regime: RegimeTiming,
    /// Which signals decide the regime, and where they cut. Absent: slowdown and waiting, in a prefill pool
    /// waiting alone, or `ttft_p99_ms` alone with `cost: paper`.
    pub signals: Option<Signals>,
    /// Consecutive failures.
    pub failures: Failures,
    /// The calibrated cost model.
    pub calibrated: Calibrated,
    /// Learning of rates.
    pub calibration: CalibrationConfig,
    /// The paper's cost model.
    pub paper: Paper,
    /// Measuring the Price of Anarchy.
    pub anarchy: Anarchy,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            cost: CostModel::default(),
            seed: 0,
            tier_value: TierValue::default(),
            tier_weights: Section::default(),
            tiers: Section::default(),
            session_affinity: SessionAffinity::default(),
            affinity_credit: 0.5,
            saturation_filter: false,
            tie_margin_ms: 0.01,
            tick_ms: None,
            worker_ttl_ms: 30_000.0,
            window: Window::default(),
            regime: RegimeTiming::default(),
            signals: None,
            failures: Failures::default(),
            calibrated: Calibrated::default(),
            calibration: CalibrationConfig::default(),
            paper: Paper::default(),
            anarchy: Anarchy::default(),
        }
    }
}

/// Measuring the Price of Anarchy. It changes no decision.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Anarchy {
    /// Length of a window, from its first decision, ms. Short against the service of a request, so that
    /// its requests compete for the same moment.
    pub window_ms: f64,
    /// Decisions in a window at most.
    pub window_requests: usize,
    /// Share of one core that may be spent: windows beyond it are skipped. 0 measures nothing.
    pub core_share: f64,
    /// Newest windows that a figure is made of.
    pub windows: usize,
    /// Age at which a window no longer counts, ms.
    pub max_age_ms: f64,
    /// Time after the first decision of a window at which requests that have not ended are left out, ms.
    pub patience_ms: f64,
}

impl Default for Anarchy {
    fn default() -> Self {
        Self {
            window_ms: 250.0,
            window_requests: 16,
            core_share: 0.03,
            windows: 256,
            max_age_ms: 60_000.0,
            patience_ms: 120_000.0,
        }
    }
}

/// Sliding window of latencies, per worker and per pool.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Window {
    /// Length, ms.
    pub span_ms: f64,
    /// Steps in which the window forgets.
    pub slices: u32,
    /// Samples below which no quantile is given. Fifty, because the P99 of fewer is the maximum.
    pub min_samples: u64,
    /// Time constant of the smoothing of windowed P99s, ms.
    pub p99_smoothing_ms: f64,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            span_ms: 5_000.0,
            slices: 10,
            min_samples: 50,
            p99_smoothing_ms: 5_000.0,
        }
    }
}

/// Timing of the regime state machine.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegimeTiming {
    /// Consecutive ticks that must agree before the regime changes; the paper's three samples.
    pub windows: u32,
    /// Least time in a regime before a milder one is entered, ms.
    pub dwell_ms: f64,
    /// Age at which a signal no longer counts, ms. With no signal left the regime is Unknown.
    pub max_age_ms: f64,
    /// Samples a signal needs to count.
    pub min_samples: u64,
}

impl Default for RegimeTiming {
    fn default() -> Self {
        Self {
            windows: 3,
            dwell_ms: 2_000.0,
            max_age_ms: 10_000.0,
            min_samples: 10,
        }
    }
}

impl RegimeTiming {
    /// The same for the state machine. A number of ms that is no duration becomes zero.
    #[must_use]
    pub fn config(&self) -> RegimeConfig {
        RegimeConfig {
            windows: self.windows,
            dwell: millis(self.dwell_ms),
            max_age: millis(self.max_age_ms),
            min_samples: self.min_samples,
        }
    }
}

/// Cuts of each regime signal; an absent signal does not count.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Signals {
    /// Σ TTFT / Σ TTFT alone on an idle worker, over the window.
    pub slowdown: Option<Cuts>,
    /// Requests sent without a first token, on the median worker.
    pub waiting: Option<Cuts>,
    /// Smoothed P99 of TTFT over the window, ms.
    pub ttft_p99_ms: Option<Cuts>,
}

impl Signals {
    /// In the order of [`Checked::SIGNALS`].
    const fn in_order(&self) -> [Option<Cuts>; Checked::SIGNALS.len()] {
        [self.slowdown, self.waiting, self.ttft_p99_ms]
    }
}

/// Holding back a worker that keeps failing.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Failures {
    /// Consecutive attempts without a first token that start a hold.
    pub consecutive: u32,
    /// First hold, ms; doubles with each further failure.
    pub min_hold_ms: f64,
    /// Longest hold, ms.
    pub max_hold_ms: f64,
    /// Added to the cost of a held worker, ms: a last resort, never excluded.
    pub penalty_ms: f64,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            consecutive: 3,
            min_hold_ms: 1_000.0,
            max_hold_ms: 60_000.0,
            penalty_ms: 10_000.0,
        }
    }
}

/// Constants of the calibrated cost model. All were measured in simulation; the response to each is
/// flat within a factor of two.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibrated {
    /// Price of prefill work per waiting request on the median worker: one ms of extra work delays
    /// everybody queued behind it, and the median queue undercounts the mean by about half.
    pub price_per_waiting: f64,
    /// Upper bound of both prices, a safety cap.
    pub price_cap: f64,
    /// Share of the mean residence time that one more seat in use costs: a decode step grows by .05 to
    /// .3 % with each further sequence, for itself and for the others, and a full worker makes its queue
    /// wait for a seat.
    pub seat_share: f64,
    /// KV tokens that take up as much of a worker as one sequence does. Engines hold 1,000 to 4,000
    /// tokens for each sequence they may run; with long prompts memory is the scarcer of the two.
    pub seat_tokens: f64,
    /// Growth of the seat price per waiting request when seats, not prefill, are scarce.
    pub seat_price_per_waiting: f64,
    /// Credit a prefix that is in use on a worker though no KV event told of it yet.
    pub in_flight: bool,
    /// Value ω of a cached token, times this. 1 is the calibrated value; others are for experiments.
    pub omega_scale: f64,
    /// Share of a worker's counted prefill work that is believed to remain at least, however long it has
    /// been at it: the host counts a prompt in full until its prefill ends. 1 believes the count.
    pub least_remaining: f64,
}

impl Default for Calibrated {
    fn default() -> Self {
        Self {
            price_per_waiting: 2.0,
            price_cap: 20.0,
            seat_share: 0.01,
            seat_tokens: 2_048.0,
            seat_price_per_waiting: 0.5,
            in_flight: true,
            omega_scale: 1.0,
            least_remaining: 0.5,
        }
    }
}

/// One row of the paper's table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperRow {
    /// Temperature τ of the choice; 0 is argmin.
    pub tau: f64,
    /// Value ω of one overlapped block, in blocks of load.
    pub omega: f64,
}

/// The paper's cost model. Table, poll and three-sample hysteresis are the paper's; what it leaves
/// open (thresholds, smoothing, curve) has defaults of our own.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Paper {
    /// Row for the regime Below, and for Unknown.
    pub below: PaperRow,
    /// Row for the regime Transition.
    pub transition: PaperRow,
    /// Row for the regime Saturated.
    pub saturated: PaperRow,
    /// Threshold θ1 of the smoothed TTFT P99 into Transition, ms. Ours.
    pub theta1_ms: f64,
    /// Threshold θ2 of the smoothed TTFT P99 into Saturated, ms. Ours.
    pub theta2_ms: f64,
    /// A threshold is left below this share of it. Ours.
    pub leave_share: f64,
    /// Congestion f(n) over load n in KV blocks. Ours: f(n) = n, which makes the cost at ω = 1 that of
    /// Dynamo's default policy.
    pub curve: CurveParameters,
}

impl Default for Paper {
    fn default() -> Self {
        Self {
            below: PaperRow {
                tau: 0.0,
                omega: 1.0,
            },
            transition: PaperRow {
                tau: 0.7,
                omega: 1.0,
            },
            saturated: PaperRow {
                tau: 0.8,
                omega: 0.1,
            },
            theta1_ms: 300.0,
            theta2_ms: 1_500.0,
            leave_share: 0.8,
            curve: CurveParameters {
                slope_ms_per_unit: 1.0,
                base_ms: 0.0,
                barrier_ms: 0.0,
                saturation_load: 1e6,
                barrier_exponent: 1.0,
                guard_load: 1.0,
            },
        }
    }
}

impl Paper {
    /// The row that `regime` selects.
    #[must_use]
    pub const fn row(&self, regime: Regime) -> PaperRow {
        match regime {
            Regime::Unknown | Regime::Below => self.below,
            Regime::Transition => self.transition,
            Regime::Saturated => self.saturated,
        }
    }
}

/// A parameter outside its range.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ParameterError {
    /// A value of this crate.
    #[error("{key} is {value}; allowed: {allowed}")]
    OutOfRange {
        /// Path of the key in the YAML.
        key: String,
        /// The refused value.
        value: String,
        /// What would have been accepted.
        allowed: &'static str,
    },
    /// A value that another crate of the project checks.
    #[error("{section}: {reason}")]
    Section {
        /// Path of the mapping in the YAML.
        section: &'static str,
        /// Names key, value and what is allowed.
        reason: String,
    },
}

/// Parameters whose ranges were checked, in the types that the policy works with. State machines are
/// prototypes: a pool clones them for itself and for each worker.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) raw: Parameters,
    pub(crate) tick: Duration,
    pub(crate) worker_ttl: Duration,
    pub(crate) max_age: Duration,
    pub(crate) window_span: Duration,
    pub(crate) p99_smoothing: Duration,
    pub(crate) ttft_window: LatencyWindow,
    pub(crate) machine: RegimeMachine,
    pub(crate) accrual: FailureAccrual,
    pub(crate) calibration: PoolCalibration,
    pub(crate) curve: LatencyCurve,
    pub(crate) metering: Metering,
    pub(crate) horizon: Horizon,
    pub(crate) tiers: Tiers,
    signals: Signals,
}

/// What values a block in a lower tier.
#[derive(Debug)]
pub(crate) enum Tiers {
    Weights(TierWeights),
    Time(Ladder),
}

impl Tiers {
    pub(crate) const fn ladder(&self) -> Option<&Ladder> {
        match self {
            Self::Weights(_) => None,
            Self::Time(ladder) => Some(ladder),
        }
    }

    /// The tiers of a worker below device memory whose blocks count, nearest first, with the tokens that
    /// each holds where that is known.
    pub(crate) fn below_device(
        &self,
        block_size: u32,
    ) -> impl Iterator<Item = (Tier, Option<u64>)> + '_ {
        [Tier::Host, Tier::Disk]
            .into_iter()
            .filter_map(move |tier| {
                let capacity = match self {
                    Self::Weights(weights) => {
                        let weight = match tier {
                            Tier::Disk => weights.disk,
                            _ => weights.host,
                        };
                        (weight > 0.0).then_some(None)?
                    }
                    Self::Time(ladder) => {
                        ladder.speed(tier)?;
                        let blocks = ladder.capacity_blocks(tier, block_size);
                        blocks.map(|blocks| blocks.saturating_mul(u64::from(block_size)))
                    }
                };
                Some((tier, capacity))
            })
    }
}

/// Which decisions are kept to be measured, and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metering {
    pub(crate) window_span: Duration,
    pub(crate) window_requests: usize,
    pub(crate) core_share: f64,
    pub(crate) patience: Duration,
}

/// Which measured windows a figure is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Horizon {
    pub(crate) windows: usize,
    pub(crate) max_age: Duration,
    /// Of the bootstrap.
    pub(crate) seed: u64,
}

impl Checked {
    /// Names of the regime signals, in the order in which everything here lists them.
    pub(crate) const SIGNALS: [&'static str; 3] = ["slowdown", "waiting", "ttft_p99_ms"];

    /// Cuts of each signal, absent where the signal does not decide the regime.
    pub(crate) const fn cuts(&self) -> [Option<Cuts>; Self::SIGNALS.len()] {
        self.signals.in_order()
    }

    /// The readings that decide the regime, in the order in which [`Checked::machine`] has their cuts.
    pub(crate) fn deciding<T>(&self, readings: [T; Self::SIGNALS.len()]) -> Vec<T> {
        readings
            .into_iter()
            .zip(self.cuts())
            .filter_map(|(reading, cuts)| cuts.map(|_| reading))
            .collect()
    }
}

impl Parameters {
    /// Check every range, for a pool that events reach; see [`Parameters::for_role`].
    ///
    /// # Errors
    /// Names the first key out of range, its value and what is allowed.
    pub(crate) fn check(self) -> Result<Checked, ParameterError> {
        in_range("affinity_credit", self.affinity_credit, 0.0, 1.0, "0 to 1")?;
        non_negative("tie_margin_ms", self.tie_margin_ms)?;
        let tick_ms = self.tick_ms.unwrap_or(match self.cost {
            CostModel::Calibrated => 250.0,
            CostModel::Paper => 5_000.0,
        });
        in_range("tick_ms", tick_ms, 1.0, 3.6e6, "1 to 3600000")?;
        positive_ms("worker_ttl_ms", self.worker_ttl_ms)?;
        positive_ms("window.span_ms", self.window.span_ms)?;
        positive_ms("window.p99_smoothing_ms", self.window.p99_smoothing_ms)?;
        positive_ms("regime.max_age_ms", self.regime.max_age_ms)?;
        in_range(
            "regime.dwell_ms",
            self.regime.dwell_ms,
            0.0,
            3.6e6,
            "0 to 3600000",
        )?;
        positive_ms("failures.min_hold_ms", self.failures.min_hold_ms)?;
        positive_ms("failures.max_hold_ms", self.failures.max_hold_ms)?;
        non_negative("failures.penalty_ms", self.failures.penalty_ms)?;
        self.check_calibrated()?;
        self.check_paper()?;
        self.check_anarchy()?;
        let tiers = self.check_tiers()?;

        let window = WindowConfig {
            span: millis(self.window.span_ms),
            slices: self.window.slices as usize,
            min_samples: self.window.min_samples,
        };
        let regime = self.regime.config();
        let accrual = AccrualConfig {
            consecutive: self.failures.consecutive,
            min_hold: millis(self.failures.min_hold_ms),
            max_hold: millis(self.failures.max_hold_ms),
        };
        let signals = self.deciding_signals(WorkerType::Aggregated);
        for (section, cuts) in [
            ("signals.slowdown", signals.slowdown),
            ("signals.waiting", signals.waiting),
            ("signals.ttft_p99_ms", signals.ttft_p99_ms),
        ] {
            nested(section, cuts.map_or(Ok(()), |cuts| cuts.validate()))?;
        }
        let deciding = signals.in_order().into_iter().flatten().collect();
        Ok(Checked {
            tick: millis(tick_ms),
            worker_ttl: millis(self.worker_ttl_ms),
            max_age: regime.max_age,
            window_span: window.span,
            p99_smoothing: millis(self.window.p99_smoothing_ms),
            ttft_window: nested("window", LatencyWindow::new(window))?,
            machine: nested("regime", RegimeMachine::new(regime, deciding))?,
            accrual: nested("failures", FailureAccrual::new(accrual))?,
            calibration: nested("calibration", PoolCalibration::new(self.calibration))?,
            curve: nested("paper.curve", LatencyCurve::new(self.paper.curve))?,
            metering: Metering {
                window_span: millis(self.anarchy.window_ms),
                window_requests: self.anarchy.window_requests,
                core_share: self.anarchy.core_share,
                patience: millis(self.anarchy.patience_ms),
            },
            horizon: Horizon {
                windows: self.anarchy.windows,
                max_age: millis(self.anarchy.max_age_ms),
                seed: self.seed,
            },
            tiers,
            signals,
            raw: self,
        })
    }

    fn check_tiers(&self) -> Result<Tiers, ParameterError> {
        match self.tier_value {
            TierValue::Weights if self.tiers.given => {
                Err(refuse("tiers", "given", "only with `tier_value: time`"))
            }
            TierValue::Weights => {
                let weights = self.tier_weights.value;
                nested("tier_weights", weights.validate())?;
                Ok(Tiers::Weights(weights))
            }
            TierValue::Time if self.tier_weights.given => Err(refuse(
                "tier_weights",
                "given",
                "only with `tier_value: weights`",
            )),
            // The paper's costs are blocks, and milliseconds cannot be added to them.
            TierValue::Time if self.cost == CostModel::Paper => {
                Err(refuse("tier_value", "time", "`weights` with `cost: paper`"))
            }
            TierValue::Time => Ok(Tiers::Time(nested("tiers", Ladder::new(self.tiers.value))?)),
        }
    }

    fn check_calibrated(&self) -> Result<(), ParameterError> {
        let Calibrated {
            price_per_waiting,
            price_cap,
            seat_share,
            seat_tokens,
            seat_price_per_waiting,
            in_flight: _,
            omega_scale,
            least_remaining,
        } = self.calibrated;
        for (key, value) in [
            ("calibrated.price_per_waiting", price_per_waiting),
            ("calibrated.price_cap", price_cap),
            ("calibrated.seat_price_per_waiting", seat_price_per_waiting),
        ] {
            in_range(key, value, 0.0, 1e3, "0 to 1000")?;
        }
        in_range("calibrated.omega_scale", omega_scale, 0.0, 1e3, "0 to 1000")?;
        in_range("calibrated.seat_share", seat_share, 0.0, 1.0, "0 to 1")?;
        in_range(
            "calibrated.least_remaining",
            least_remaining,
            0.0,
            1.0,
            "0 to 1",
        )?;
        in_range(
            "calibrated.seat_tokens",
            seat_tokens,
            1.0,
            1e9,
            "1 to 1000000000",
        )
    }

    fn check_paper(&self) -> Result<(), ParameterError> {
        let paper = &self.paper;
        for (name, row) in [
            ("below", paper.below),
            ("transition", paper.transition),
            ("saturated", paper.saturated),
        ] {
            in_range(&format!("paper.{name}.tau"), row.tau, 0.0, 1e3, "0 to 1000")?;
            in_range(
                &format!("paper.{name}.omega"),
                row.omega,
                0.0,
                1e3,
                "0 to 1000",
            )?;
        }
        positive_ms("paper.theta1_ms", paper.theta1_ms)?;
        positive_ms("paper.theta2_ms", paper.theta2_ms)?;
        if paper.theta2_ms < paper.theta1_ms {
            return Err(refuse(
                "paper.theta2_ms",
                paper.theta2_ms,
                "at least paper.theta1_ms",
            ));
        }
        in_range("paper.leave_share", paper.leave_share, 0.0, 1.0, "0 to 1")
    }

    fn check_anarchy(&self) -> Result<(), ParameterError> {
        let Anarchy {
            window_ms,
            window_requests,
            core_share,
            windows,
            max_age_ms,
            patience_ms,
        } = self.anarchy;
        in_range("anarchy.window_ms", window_ms, 1.0, 3.6e6, "1 to 3600000")?;
        if !(1..=250).contains(&window_requests) {
            return Err(refuse(
                "anarchy.window_requests",
                window_requests,
                "1 to 250",
            ));
        }
        in_range("anarchy.core_share", core_share, 0.0, 1.0, "0 to 1")?;
        if !(2..=10_000).contains(&windows) {
            return Err(refuse("anarchy.windows", windows, "2 to 10000"));
        }
        positive_ms("anarchy.max_age_ms", max_age_ms)?;
        positive_ms("anarchy.patience_ms", patience_ms)
    }

    /// The same with the signals of a pool of `role` spelt out.
    #[must_use]
    pub(crate) fn for_role(self, role: WorkerType) -> Self {
        Self {
            signals: Some(self.deciding_signals(role)),
            ..self
        }
    }

    /// The signals that decide the regime of a pool of `role`: those given, or the defaults of the cost model.
    #[must_use]
    pub fn deciding_signals(&self, role: WorkerType) -> Signals {
        self.signals.unwrap_or_else(|| self.default_signals(role))
    }

    /// Scale-free cuts for the calibrated model, θ1 and θ2 for the paper's. A level is left a quarter
    /// below where it was entered, so that noise around a cut does not flap.
    ///
    /// In a prefill pool the slowdown is only shown. Its TTFTs are the frontend's and hold the transfer and the
    /// first decode step, too, while the time alone is that of a prefill: with short prompts the ratio is 2
    /// without any load, which would be Transition for ever.
    fn default_signals(&self, role: WorkerType) -> Signals {
        match self.cost {
            CostModel::Calibrated => Signals {
                slowdown: (role != WorkerType::Prefill).then(|| cuts(1.5, 8.0, 0.75)),
                waiting: Some(cuts(1.0, 8.0, 0.75)),
                ttft_p99_ms: None,
            },
            CostModel::Paper => Signals {
                ttft_p99_ms: Some(cuts(
                    self.paper.theta1_ms,
                    self.paper.theta2_ms,
                    self.paper.leave_share,
                )),
                ..Signals::default()
            },
        }
    }
}

fn cuts(transition: f64, saturated: f64, leave_share: f64) -> Cuts {
    Cuts {
        transition_enter: transition,
        transition_leave: transition * leave_share,
        saturated_enter: saturated,
        saturated_leave: saturated * leave_share,
    }
}

/// Callers have checked the range, which fits a duration.
fn millis(value: f64) -> Duration {
    Duration::try_from_secs_f64(value / 1e3).unwrap_or_default()
}

fn refuse(key: &str, value: impl ToString, allowed: &'static str) -> ParameterError {
    ParameterError::OutOfRange {
        key: key.to_owned(),
        value: value.to_string(),
        allowed,
    }
}

fn nested<T>(
    section: &'static str,
    checked: Result<T, impl std::error::Error>,
) -> Result<T, ParameterError> {
    checked.map_err(|error| ParameterError::Section {
        section,
        reason: error.to_string(),
    })
}

fn in_range(
    key: &str,
    value: f64,
    low: f64,
    high: f64,
    allowed: &'static str,
) -> Result<(), ParameterError> {
    // False for NaN, too.
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(refuse(key, value, allowed))
    }
}

fn non_negative(key: &str, value: f64) -> Result<(), ParameterError> {
    in_range(key, value, 0.0, 1e9, "0 to 1000000000")
}

fn positive_ms(key: &str, value: f64) -> Result<(), ParameterError> {
    in_range(key, value, 1e-3, 1e9, "0.001 to 1000000000")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(yaml: &str) -> Parameters {
        serde_yaml::from_str(yaml).unwrap()
    }

    #[test]
    fn an_empty_mapping_gives_the_documented_defaults() {
        let checked = parse("{}").check().unwrap();
        assert_eq!(checked.raw.cost, CostModel::Calibrated);
        assert_eq!(checked.tick, Duration::from_millis(250));
        let slowdown = checked.signals.slowdown.unwrap();
        assert_eq!(
            (slowdown.transition_enter, slowdown.saturated_enter),
            (1.5, 8.0)
        );
        assert!(checked.signals.ttft_p99_ms.is_none());
    }

    #[test]
    fn the_paper_model_polls_every_five_seconds_on_p99_alone() {
        let checked = parse("cost: paper").check().unwrap();
        assert_eq!(checked.tick, Duration::from_secs(5));
        assert!(checked.signals.slowdown.is_none() && checked.signals.waiting.is_none());
        let p99 = checked.signals.ttft_p99_ms.unwrap();
        // 0.8 × 1500.
        assert_eq!(
            (p99.saturated_enter, p99.saturated_leave),
            (1_500.0, 1_200.0)
        );
    }

    #[test]
    fn a_prefill_pool_decides_by_what_waits_unless_told_otherwise() {
        let prefill = parse("{}").for_role(WorkerType::Prefill);
        let prefill = prefill.check().unwrap().signals;
        assert!(prefill.slowdown.is_none() && prefill.waiting.is_some());
        let told = "{signals: {slowdown: {transition_enter: 3, transition_leave: 2, saturated_enter: 8, \
                    saturated_leave: 6}}}";
        let told = parse(told).for_role(WorkerType::Prefill);
        let told = told.check().unwrap().signals;
        assert!(told.slowdown.is_some() && told.waiting.is_none());
    }

    #[test]
    fn a_misspelt_key_is_refused_by_name() {
        let error = serde_yaml::from_str::<Parameters>("{tick_msec: 3}").unwrap_err();
        assert!(error.to_string().contains("tick_msec"), "{error}");
    }

    #[test]
    fn a_value_out_of_range_names_key_value_and_range() {
        let error = parse("paper: {theta1_ms: -5}").check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "paper.theta1_ms is -5; allowed: 0.001 to 1000000000"
        );
    }

    #[test]
    fn not_a_number_is_refused_everywhere() {
        for yaml in [
            "{tie_margin_ms: .nan}",
            "{affinity_credit: .nan}",
            "{tick_ms: .inf}",
            "{window: {span_ms: .nan}}",
            "{regime: {dwell_ms: .inf}}",
            "{failures: {penalty_ms: .nan}}",
            "{calibrated: {seat_share: .nan}}",
            "{calibration: {prior_pass_ms: .nan}}",
            "{calibrated: {omega_scale: .nan}}",
            "{tier_weights: {host: .nan}}",
            "{tier_value: time, tiers: {host: {latency_ms: .nan, bandwidth_gb_s: 1}}}",
            "{paper: {below: {tau: .nan, omega: 1}}}",
            "{signals: {waiting: {transition_enter: .nan, transition_leave: 1, saturated_enter: 8, saturated_leave: 6}}}",
        ] {
            assert!(parse(yaml).check().is_err(), "{yaml}");
        }
    }

    #[test]
    fn weights_and_time_values_at_once_are_refused_by_name() {
        let refusal = |yaml| parse(yaml).check().unwrap_err().to_string();
        assert_eq!(
            refusal("{tier_value: time, tier_weights: {host: 0.5}}"),
            "tier_weights is given; allowed: only with `tier_value: weights`"
        );
        assert_eq!(
            refusal("{tiers: {disk: null}}"),
            "tiers is given; allowed: only with `tier_value: time`"
        );
        assert_eq!(
            refusal("{tier_value: time, cost: paper}"),
            "tier_value is time; allowed: `weights` with `cost: paper`"
        );
    }

    #[test]
    fn a_ladder_in_the_wrong_order_is_refused_with_its_path() {
        let yaml = "{tier_value: time, tiers: {disk: {latency_ms: 0.01, bandwidth_gb_s: 2}}}";
        assert_eq!(
            parse(yaml).check().unwrap_err().to_string(),
            "tiers: disk.latency_ms is 0.01; allowed: at least 0.05, the latency of host"
        );
    }

    #[test]
    fn thresholds_in_the_wrong_order_are_refused() {
        let error = parse("paper: {theta1_ms: 900, theta2_ms: 300}")
            .check()
            .unwrap_err();
        assert!(error.to_string().starts_with("paper.theta2_ms is 300"));
    }
}
