// SPDX-License-Identifier: Apache-2.0

//! The live stack from outside: real processes, real HTTP, nothing installed.

mod aggregated;
mod cardinality;
mod check;
mod disaggregated;
mod disconnect;
mod fault;
mod journal;
mod late_binding;
mod lifecycle;
mod slow_worker;
mod startup;
mod two_frontends;
mod worker_loss;
