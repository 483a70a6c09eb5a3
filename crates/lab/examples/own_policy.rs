// SPDX-License-Identifier: Apache-2.0

//! The whole program of the lab with a policy crate of your own linked in.
//!
//! The policy is an ordinary Dynamo worker-selection type: what [`register`] does here, your crate's own
//! `register` does already. It sends a request where the fewest prompt tokens have to be computed before
//! its own first token, its own included.
//!
//! `cargo run --profile lab -p regime-lab --example own_policy -- compare --policies least-work --workloads chat`

use std::process::ExitCode;
use std::sync::Arc;

use dynamo_kv_router::plugins::worker_selection::{
    WorkerCandidates, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
};
use dynamo_kv_router::plugins::{RouterPluginRegistry, RouterPluginRegistryError};
use regime_lab::{Catalog, Link};

struct LeastWork;

impl WorkerScorer for LeastWork {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE | WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let prompt = context.prompt_tokens() as f64;
        let block = f64::from(context.block_size());
        for (candidate, cost) in candidates.iter().zip(costs) {
            let (Some(cache), Some(load)) = (candidate.cache(), candidate.load()) else {
                return Err(WorkerSelectionPolicyError::failed("inputs are missing"));
            };
            let own = (prompt - cache.device_overlap_blocks() * block).max(0.0);
            *cost = load.active_prefill_tokens() as f64 + own;
        }
        Ok(())
    }
}

struct Cheapest;

impl WorkerPicker for Cheapest {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        // Rows have no order of their own, so ties go to the smallest worker.
        let rows = input.candidates().iter().enumerate();
        rows.min_by(|(_, a), (_, b)| {
            let cost = a.cost().total_cmp(&b.cost());
            cost.then_with(|| a.worker().cmp(&b.worker()))
        })
        .map(|(row, _)| row)
        .ok_or_else(|| WorkerSelectionPolicyError::failed("no worker"))
    }
}

/// What a policy crate exports.
fn register(registry: &mut RouterPluginRegistry) -> Result<(), RouterPluginRegistryError> {
    registry.register_worker_selection(
        "least-work",
        Arc::new(|_| {
            Ok(Arc::new(|config, role, _| {
                WorkerSelectionPolicy::new(
                    config.clone(),
                    role.as_str(),
                    vec![Box::new(LeastWork)],
                    Box::new(Cheapest),
                )
            }))
        }),
    )?;
    Ok(())
}

fn main() -> ExitCode {
    let catalog = Catalog::default().with(|link: &mut Link<'_>| {
        register(link.registry)?;
        Ok(None)
    });
    regime_lab::cli::main_with(&catalog)
}
