// SPDX-License-Identifier: Apache-2.0

//! The engines of one pool, and when they may start a pass.
//!
//! NVIDIA's engine commits a pass at its start and releases what came of it at its end; between the two
//! it takes commands but starts nothing. A worker is one engine, or several data-parallel ranks behind
//! one pass. The rules of when a worker is driven are those of NVIDIA's replay: in order of worker,
//! again after each command, and with a bounded number of passes that take no time and change nothing.

use std::collections::BTreeSet;

use aisimulate_core::engine::generalized::{PassId, SameTimestampRetry, SchedulerCommand};
use aisimulate_core::engine::{
    Admission, Command, CommandEffects, Engine, KvEvent, LifecycleEvent, Output,
};
use anyhow::{Context, Result, bail};

/// Passes without effect that a worker may run at one instant before the run is given up.
const MAX_IDLE_PASSES: u32 = 1_024;

/// What one rank gave at the end of a pass, or while it worked on its own.
pub(super) struct RankEnd {
    pub(super) worker: usize,
    pub(super) rank: u32,
    pub(super) outputs: Vec<Output>,
    pub(super) lifecycle: Vec<LifecycleEvent>,
    pub(super) kv_events: Vec<KvEvent>,
    /// Prompt tokens computed, and sequences that took a decode step.
    pub(super) work: u64,
}

/// A pass that has begun.
pub(super) struct Started {
    pub(super) worker: usize,
    /// Requests that got a place in a batch for the first time or again.
    pub(super) admissions: Vec<(u32, Admission)>,
    /// End of the pass, ms; absent when it took no time and `ends` holds what came of it.
    pub(super) end_ms: Option<f64>,
    pub(super) ends: Vec<RankEnd>,
}

struct Worker {
    engine: Engine,
    pass: Option<PassId>,
    idle_passes: u32,
    countdown: Option<usize>,
    /// Time spent in passes so far, ms.
    busy_ms: f64,
}

impl Worker {
    fn is_ready(&self) -> bool {
        self.pass.is_none() && self.engine.is_ready() && !self.engine.waiting_for_external_command()
    }
}

pub(super) struct Fleet {
    workers: Vec<Worker>,
    ready: BTreeSet<usize>,
    /// Ready, but the last pass changed nothing: worth another try after something else happened.
    deferred: BTreeSet<usize>,
}

impl Fleet {
    pub(super) fn new(engines: Vec<Engine>) -> Self {
        Self {
            workers: engines
                .into_iter()
                .map(|engine| Worker {
                    engine,
                    pass: None,
                    idle_passes: 0,
                    countdown: None,
                    busy_ms: 0.0,
                })
                .collect(),
            ready: BTreeSet::new(),
            deferred: BTreeSet::new(),
        }
    }

    pub(super) fn busy_ms(&self) -> Vec<f64> {
        self.workers.iter().map(|worker| worker.busy_ms).collect()
    }

    pub(super) fn is_busy(&self, worker: usize) -> bool {
        self.workers
            .get(worker)
            .is_some_and(|worker| worker.pass.is_some())
    }

    /// Apply a command to one rank.
    pub(super) fn command(
        &mut self,
        worker: usize,
        rank: u32,
        command: Command,
        now_ms: f64,
    ) -> Result<CommandEffects> {
        let effects = self
            .worker(worker)?
            .engine
            .apply_command_effects(SchedulerCommand::new(rank, command), now_ms)?;
        self.refresh(worker);
        effects
            .into_by_rank()
            .into_iter()
            .next()
            .map(|rank| rank.effects)
            .context("a command had no effects")
    }

    /// End the pass of a worker.
    pub(super) fn complete(&mut self, worker: usize, now_ms: f64) -> Result<Vec<RankEnd>> {
        let state = self.worker(worker)?;
        let pass = state.pass.take().context("no pass to complete")?;
        let completed = state.engine.complete_pass(pass, now_ms)?;
        self.refresh(worker);
        Ok(completed
            .effects
            .into_by_rank()
            .into_iter()
            .map(|rank| {
                let metrics = &rank.effects.forward_pass_metrics;
                RankEnd {
                    worker,
                    rank: rank.dp_rank,
                    work: metrics.sum_prefill_tokens + u64::from(metrics.num_decode_requests),
                    outputs: rank.effects.outputs,
                    lifecycle: rank.effects.lifecycle_events,
                    kv_events: rank.effects.kv_events,
                }
            })
            .collect())
    }

    /// Transfers to and from the host tier that are due on idle workers; `None` when there were none.
    pub(super) fn settle(&mut self, now_ms: f64) -> Result<Option<Vec<RankEnd>>> {
        let mut ends = Vec::new();
        let mut worked = false;
        for index in 0..self.workers.len() {
            let worker = self.worker(index)?;
            if !deadline(worker).is_some_and(|deadline| deadline <= now_ms) {
                continue;
            }
            let effects = worker.engine.process_internal_work(now_ms)?;
            worked = true;
            self.refresh(index);
            ends.extend(effects.into_by_rank().into_iter().map(|rank| RankEnd {
                worker: index,
                rank: rank.dp_rank,
                outputs: Vec::new(),
                lifecycle: Vec::new(),
                kv_events: rank.effects.kv_events,
                work: 0,
            }));
        }
        Ok(worked.then_some(ends))
    }

    /// The next transfer that falls due on an idle worker, ms.
    pub(super) fn next_deadline_ms(&self) -> Option<f64> {
        self.workers
            .iter()
            .filter_map(deadline)
            .min_by(f64::total_cmp)
    }

    /// Start a pass on the first ready worker on which something comes of it.
    pub(super) fn drive(&mut self, now_ms: f64) -> Result<Option<Started>> {
        for worker in std::mem::take(&mut self.deferred) {
            self.refresh(worker);
        }
        while let Some(index) = self.ready.pop_first() {
            let worker = self.worker(index)?;
            if !worker.is_ready() {
                continue;
            }
            let Some(pass) = worker.engine.execute_pass(now_ms)? else {
                self.refresh(index);
                continue;
            };
            worker.pass = Some(pass.pass_id);
            worker.busy_ms += pass.end_ms - now_ms;
            let admissions: Vec<_> = pass
                .by_rank
                .into_iter()
                .flat_map(|rank| {
                    let admissions = rank.effects.admissions.into_iter();
                    admissions.map(move |admission| (rank.dp_rank, admission))
                })
                .collect();
            if pass.end_ms > now_ms {
                self.settled(index)?;
                return Ok(Some(Started {
                    worker: index,
                    admissions,
                    end_ms: Some(pass.end_ms),
                    ends: Vec::new(),
                }));
            }
            let mut ends = self.complete(index, now_ms)?;
            if admissions.is_empty() {
                ends.retain(|end| {
                    !end.outputs.is_empty()
                        || !end.lifecycle.is_empty()
                        || !end.kv_events.is_empty()
                        || end.work > 0
                });
            }
            if !admissions.is_empty() || !ends.is_empty() {
                self.settled(index)?;
                return Ok(Some(Started {
                    worker: index,
                    admissions,
                    end_ms: None,
                    ends,
                }));
            }
            if self.ready.contains(&index) && self.retry(index, pass.same_timestamp_retry)? {
                continue;
            }
            self.settled(index)?;
            if self.ready.remove(&index) {
                self.deferred.insert(index);
            }
        }
        Ok(None)
    }

    /// Whether a pass without effect is to be followed by another one at once.
    fn retry(&mut self, index: usize, hint: SameTimestampRetry) -> Result<bool> {
        let worker = self.worker(index)?;
        match hint {
            SameTimestampRetry::Countdown { remaining } => {
                if worker.countdown.is_some_and(|before| remaining >= before) {
                    bail!("worker {index} counts down without end");
                }
                worker.countdown = Some(remaining);
                Ok(true)
            }
            SameTimestampRetry::Retry => {
                worker.idle_passes += 1;
                if worker.idle_passes >= MAX_IDLE_PASSES {
                    bail!(
                        "worker {index} starts passes that change nothing: a prompt that cannot fit its KV cache?"
                    );
                }
                Ok(true)
            }
            SameTimestampRetry::Exhausted | SameTimestampRetry::NotApplicable => Ok(false),
        }
    }

    fn settled(&mut self, index: usize) -> Result<()> {
        let worker = self.worker(index)?;
        worker.idle_passes = 0;
        worker.countdown = None;
        Ok(())
    }

    fn worker(&mut self, index: usize) -> Result<&mut Worker> {
        self.workers
            .get_mut(index)
            .with_context(|| format!("no worker {index}"))
    }

    fn refresh(&mut self, index: usize) {
        if self.workers.get(index).is_some_and(Worker::is_ready) {
            self.ready.insert(index);
        } else {
            self.ready.remove(&index);
        }
    }
}

fn deadline(worker: &Worker) -> Option<f64> {
    worker
        .pass
        .is_none()
        .then(|| worker.engine.next_internal_deadline_ms())
        .flatten()
        .filter(|deadline| deadline.is_finite())
}
