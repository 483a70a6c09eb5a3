// SPDX-License-Identifier: Apache-2.0

//! What a run leaves behind: one record for each request, and what each pool did.

use dynamo_kv_router::WorkerType;
use regime_core::Regime;
use serde::{Deserialize, Serialize};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All its tokens left the fleet.
    Completed,
    /// The engine refused it: a prompt past the context limit or larger than the KV cache.
    Rejected,
    /// The router or the transfer between workers gave it up.
    Failed,
    /// The run stopped first.
    Unfinished,
}

/// One request; times are virtual ms since the start of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestRecord {
    /// Position of its session in the workload.
    pub session: usize,
    /// Position of its turn in the session.
    pub turn: usize,
    /// When it reached the router.
    pub arrival_ms: f64,
    /// Prompt length, tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens that were in the cache of the worker that computed the prompt; absent when no
    /// worker did.
    pub reused_tokens: Option<u32>,
    /// Position of the worker that computed the prompt in its pool; absent when none was chosen.
    pub prefill_worker: Option<usize>,
    /// Position of the worker that generated the answer in its pool; the same as the above in an
    /// aggregated pool.
    pub decode_worker: Option<usize>,
    /// When the first token left the fleet.
    pub first_token_ms: Option<f64>,
    /// When the last token left the fleet.
    pub last_token_ms: Option<f64>,
    /// Tokens generated.
    pub tokens: u32,
    /// How it ended.
    pub ending: Ending,
}

impl RequestRecord {
    /// Time to the first token, ms.
    #[must_use]
    pub fn ttft_ms(&self) -> Option<f64> {
        self.first_token_ms.map(|first| first - self.arrival_ms)
    }

    /// Mean time between tokens, ms; absent with fewer than two.
    #[must_use]
    pub fn mean_itl_ms(&self) -> Option<f64> {
        let gaps = self.tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some((self.last_token_ms? - self.first_token_ms?) / f64::from(gaps))
    }

    /// Time to the last token, ms.
    #[must_use]
    pub fn e2e_ms(&self) -> Option<f64> {
        self.last_token_ms.map(|last| last - self.arrival_ms)
    }
}

/// One routing decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// When, ms.
    pub at_ms: f64,
    /// Position of the request in the order of arrival.
    pub request: usize,
    /// Role of the pool.
    pub role: WorkerType,
    /// Position of the chosen worker in the pool.
    pub worker: usize,
    /// Its data-parallel rank.
    pub rank: u32,
    /// Prompt tokens that the router expected in the cache there.
    pub cached_tokens: usize,
}

/// What the workers of one pool did.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolRecord {
    /// Role of the pool.
    pub role: WorkerType,
    /// For each worker: prompt tokens computed plus tokens generated.
    pub work_tokens: Vec<u64>,
    /// For each worker: time in forward passes, ms.
    pub busy_ms: Vec<f64>,
    /// For each worker: requests placed there.
    pub requests: Vec<u64>,
    /// The pool's regimes in the eyes of the regime-aware policy, in order; empty under any other.
    pub regimes: Vec<RegimeSince>,
}

/// A regime that was entered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RegimeSince {
    /// When, ms.
    pub from_ms: f64,
    /// Which.
    pub regime: Regime,
}

/// Prompt tokens by the tier in which an engine found them, and what it moved to and from its host tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierTraffic {
    /// Tokens found in device memory, of the first admission of each request.
    pub device_tokens: u64,
    /// Tokens brought from the host tier, likewise.
    pub host_tokens: u64,
    /// Tokens written to the host tier; absent where workers share one, since all of them tell of each.
    pub written_tokens: Option<u64>,
    /// KV bytes of a token; absent where the engine does not say.
    pub bytes_per_token: Option<u64>,
}

/// Everything that came of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Requests in the order of their arrival.
    pub requests: Vec<RequestRecord>,
    /// Every time between two tokens of one request, ms, in the order of the second token.
    pub token_gaps_ms: Vec<f32>,
    /// Routing decisions in order.
    pub decisions: Vec<Decision>,
    /// One aggregated pool, or prefill and decode.
    pub pools: Vec<PoolRecord>,
    /// What the tiers of the prefilling pool did; absent where the engine does not tell them apart.
    pub tiers: Option<TierTraffic>,
    /// When the last thing happened, ms.
    pub end_ms: f64,
}
