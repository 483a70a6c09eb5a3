// SPDX-License-Identifier: Apache-2.0

//! What a format's reader returns, before arrivals are put in order and rebased.

use serde::Serialize;

use crate::workload::Session;

use super::fault::Findings;

/// Sessions as recorded.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    pub(crate) block_size: u32,
    /// `start_ms` on the file's own clock.
    pub(crate) sessions: Vec<Session>,
    pub(crate) pauses: Pauses,
    pub(crate) clock: Clock,
    /// Whether the hash ids tell which prompts share a prefix.
    pub(crate) prefix_identity: bool,
}

/// Arrivals before the one on the line above.
pub(crate) fn warn_about_order(backwards: usize, findings: &Findings) {
    if backwards > 0 {
        let text = format!("arrivals out of order: {backwards}; sorted by time");
        findings.warn("order", None, text);
    }
}

/// What is known about the file's clock.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) enum Clock {
    /// Milliseconds by the format's word; producers get this wrong.
    #[default]
    Stated,
    /// Wall time whose origin the format defines, ms since 1970, already taken off.
    Wall { origin_ms: f64 },
    /// Each session has its own zero.
    PerSession,
}

/// Where the pauses between the turns of a session come from.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pauses {
    /// Given by the file: from the end of a turn to the start of the next.
    pub explicit: u64,
    /// Inferred from two start times, so that they include the service time of the turn before.
    pub inferred: u64,
}
