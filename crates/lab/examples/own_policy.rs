// SPDX-License-Identifier: Apache-2.0

//! Link a policy crate of your own into the lab and compare it with Dynamo's default.
//!
//! The policy is an ordinary Dynamo worker-selection type: what [`register`] does here, your crate's own
//! `register` does already. It sends a request where the fewest prompt tokens have to be computed before
//! its own first token, its own included.
//!
//! `cargo run -p regime-lab --example own_policy`

use std::sync::Arc;

use dynamo_kv_router::plugins::worker_selection::{
    WorkerCandidates, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
};
use dynamo_kv_router::plugins::{RouterPluginRegistry, RouterPluginRegistryError};
use regime_lab::workloads::{Generator, OfferedLoad, Scale};
use regime_lab::{Catalog, DEFAULT_ENGINE, Engine, Experiment, Link, Policy, Topology};

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

fn main() -> anyhow::Result<()> {
    let catalog = Catalog::default().with(|link: &mut Link<'_>| {
        register(link.registry)?;
        Ok(None)
    });
    let workload = Arc::new(Generator::Chat.generate(&Scale {
        requests: 400,
        load: OfferedLoad::Rate(4.0),
        ..Generator::Chat.default_scale()
    })?);
    for name in ["default", "least-work"] {
        let experiment = Experiment::new(
            Policy::named(name, &catalog)?,
            Arc::clone(&workload),
            Engine::load(DEFAULT_ENGINE)?,
            "4".parse::<Topology>()?,
            1,
        );
        let metrics = experiment.run(&catalog)?.metrics;
        if let (Some(ttft), Some(reuse)) = (metrics.ttft_ms, metrics.engine_reuse) {
            println!(
                "{name:>10}: {} requests, TTFT mean {:.0} ms, P99 {:.0} ms, {:.0} % of the prompts from cache",
                metrics.completed,
                ttft.mean,
                ttft.p99,
                reuse * 100.0
            );
        }
    }
    Ok(())
}
