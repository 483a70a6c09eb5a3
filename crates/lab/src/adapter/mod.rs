// SPDX-License-Identifier: Apache-2.0

//! NVIDIA's simulated engines behind Dynamo's router and a policy of choice.
//!
//! The engines are those of `aisimulate-core`: schedulers, KV cache with prefix reuse, eviction and
//! preemption, host tier, data-parallel groups, and the coordinator of the KV transfer between prefill
//! and decode workers. Around them this module keeps virtual time, arrivals and the routers.
//!
//! `aisimulate-core` also brings a driver of its own, `Replayer`, into which a placement policy can be put.
//! It was tried first and is not used here, because two things never leave it. In disaggregated serving
//! nothing tells the policy when a first token leaves a decode worker, so every controller that acts on
//! TTFT acts on the end of the prefill, 1.5 s early at saturation. And all workers of a role share one
//! engine factory, so none can be slower than its neighbours. The engines' own interface has both: each
//! engine is built alone and each pass returns its tokens by request. What that costs is the event loop
//! below, which is held to `Replayer` by tests: under round robin both give every request the same token
//! times, aggregated and disaggregated, and with Dynamo's default policy the loop agrees with
//! `dynamo-mocker`'s own router replay.

mod build;
mod fleet;
mod handoff;
mod record;
mod roster;
mod router;
mod shadow;
mod simulation;
mod source;
mod watch;

pub(crate) use build::{SimulationSettings, simulate};
pub use record::{
    Decision, Ending, PoolRecord, RegimeSince, RequestRecord, RunRecord, TierTraffic,
};
pub use roster::{Listing, WorkerConfig};
pub(crate) use router::{Chooser, KvEvents};
pub(crate) use shadow::{Seen, Watched};
