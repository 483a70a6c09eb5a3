// SPDX-License-Identifier: Apache-2.0

//! Experiments of many runs: comparisons, load searches, suites, and sweeps of parameters.
//!
//! All of them are lists of [`Trial`]s that a [`Runner`] works through. Which policies, loads and seeds a
//! list holds is decided beforehand and by simulation alone, so that neither threads nor interruptions
//! change what comes out.

mod comparison;
mod condition;
mod journal;
mod load_search;
mod pairing;
mod paper;
mod scoreboard;
mod statistics;
mod suite;
mod sweep;
mod tiers;
mod trial;

pub(crate) use comparison::not_reached;
pub use comparison::{Comparison, Measured, Overall, Verdict, compare, overall};
pub use condition::{Condition, ConditionError};
pub use journal::{JOURNAL, Journal};
pub(crate) use load_search::KNEE;
pub use load_search::{
    Cell, Found, Knee, Levels, SearchError, knee, runs_of_searches, search, searches,
};
pub use paper::{
    ADAPTIVE, AnarchyLine, FLEETS, Finding, Fleet, FleetReport, Gap, Outcome, Paper, PaperError,
    PaperReport, QUICK_SESSIONS, SESSIONS, STATIC, SWEEP, Separation, Sweep, SweepPoint,
};
pub use scoreboard::{Family, P99_MATTERS_MS, Score, Standing, VsBest, scoreboard};
pub use statistics::Ratio;
pub(crate) use statistics::median;
pub use suite::{Part, Suite, standard_policies, standard_requests};
pub use sweep::{Axis, AxisError, ParetoPoint, grid, mark_pareto, pareto_front};
pub use tiers::{TierError, TierPart, TierPoint, TierSuite};
pub use trial::{Runner, Trial, TrialError};
