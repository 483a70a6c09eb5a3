// SPDX-License-Identifier: Apache-2.0

//! Mock engine workers: Dynamo's simulated engine behind the real request path.
//!
//! They register, publish KV events, queue, batch and stream like engines, but compute nothing: the time of a forward pass
//! comes from a [`Timing`]. A laptop can so run a whole fleet, in this process ([`Fleet`]) or one process each.
//!
//! | Module | Owns |
//! |---|---|
//! | [`model_dir`] | the generated model: tokenizer, config, chat template |
//! | [`timing`] | how long a forward pass takes |
//! | [`topology`] | how many workers in which roles |
//! | [`worker`] | one worker, from registration to drain |
//! | [`fleet`] | several workers in this process |

pub mod fleet;
pub mod model_dir;
pub mod timing;
pub mod topology;
pub mod worker;

pub use fleet::{Fleet, FleetArgs};
pub use timing::{Timing, TimingTable};
pub use topology::{Role, Topology};
pub use worker::{EngineArgs, MockWorker, WorkerSpec};
