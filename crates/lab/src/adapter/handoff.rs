// SPDX-License-Identifier: Apache-2.0

//! From the prefill worker to the decode worker.
//!
//! NVIDIA's coordinator says which step comes next: submit the prefill, hold the source, reserve the
//! destination, transfer, activate, release the source; SGLang reserves first. This module carries the
//! steps out and reports back. Activation and release wait until the worker has no pass in flight.
//!
//! The first token leaves the decode worker after all of that, which is why the end of the prefill is
//! no time to first token.

use aisimulate_core::engine::{Command, CommandResult, HandoffId, LifecycleEvent, Output};
use aisimulate_core::replay::{
    HandoffAction, HandoffActionOutcome, HandoffCompletion, HandoffCoordinatorCore, HandoffFact,
    IssuedHandoffAction,
};
use anyhow::{Context, Result, bail};

use super::record::Ending;
use super::router::Placed;
use super::simulation::{Simulation, Stage, request_index, request_uuid};

const PREFILL: usize = 0;
const DECODE: usize = 1;

impl Simulation<'_> {
    /// A request arrived at a disaggregated fleet.
    pub(super) fn begin_handoff(&mut self, request: usize) -> Result<()> {
        let mut core = HandoffCoordinatorCore::new_with_fallback(
            HandoffId::new(request_uuid(request)),
            self.handoff_order,
            self.handoff_latency_ms,
        );
        let actions = core.start()?;
        self.live[request].handoff = Some(core);
        self.enqueue(request, actions);
        Ok(())
    }

    /// Carry out every step that can be carried out now.
    pub(super) fn hand_over(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some((request, issued)) = self.actions.pop_front() {
            any |= self.step(request, issued)?;
        }
        Ok(any)
    }

    /// The transfer of a request's KV blocks has ended.
    pub(super) fn transferred(&mut self, request: usize) -> Result<()> {
        let handoff_id = HandoffId::new(request_uuid(request));
        self.fact(request, HandoffFact::TransferCompleted { handoff_id })
    }

    /// A prefill worker has computed a prompt, or refused it.
    pub(super) fn prefill_output(&mut self, output: &Output) -> Result<()> {
        let request = request_index(output.request_id);
        if !output.completed {
            return Ok(());
        }
        if output.rejected {
            self.live[request].record.ending = Ending::Rejected;
            let handoff_id = HandoffId::new(output.request_id);
            return self.fact(request, HandoffFact::Failed { handoff_id });
        }
        let router = &mut self.pools[PREFILL].router;
        let placed = router.prefilled(output.request_id, self.now_ms)?;
        self.dispatch_all(PREFILL, placed)
    }

    pub(super) fn lifecycle_events(&mut self, events: Vec<LifecycleEvent>) -> Result<()> {
        for event in events {
            let (request_id, fact) = match event {
                LifecycleEvent::SourceHeld {
                    handoff_id,
                    request_id,
                    transfer_timing,
                } => (
                    request_id,
                    HandoffFact::SourceHeld {
                        handoff_id,
                        transfer_timing,
                    },
                ),
                LifecycleEvent::DestinationReserved {
                    handoff_id,
                    request_id,
                    transferable_prompt_tokens,
                } => (
                    request_id,
                    HandoffFact::DestinationReserved {
                        handoff_id,
                        transferable_prompt_tokens,
                    },
                ),
            };
            self.fact(request_index(request_id), fact)?;
        }
        Ok(())
    }

    /// Give a placed request to its engine.
    pub(super) fn dispatch_handoff(
        &mut self,
        pool: usize,
        request: usize,
        placed: Placed,
        issued: IssuedHandoffAction,
    ) -> Result<()> {
        let handoff_id = HandoffId::new(placed.id);
        let (command, outcome) = if pool == PREFILL {
            let command = Command::SubmitHandoffPrefill {
                handoff_id,
                request: self.engine_request(request, 1),
            };
            (command, HandoffActionOutcome::Submitted)
        } else {
            let command = Command::ReserveDestination {
                handoff_id,
                request: self.engine_request(request, self.live[request].output_tokens),
            };
            (command, HandoffActionOutcome::Accepted)
        };
        let (fleet, seat) = (&mut self.pools[pool].fleet, placed.seat);
        let effects = match fleet.command(seat.worker, seat.rank, command, self.now_ms) {
            Ok(effects) => effects,
            Err(error) => {
                let outcome = HandoffActionOutcome::Failed(format!("{error:#}"));
                return self.acknowledge(request, issued, outcome);
            }
        };
        let router = &mut self.pools[pool].router;
        router.observe(seat, effects.kv_events, self.now_ms)?;
        self.acknowledge(request, issued, outcome)?;
        self.lifecycle_events(effects.lifecycle_events)
    }

    /// Carry out one step; `false` when it must wait for a pass to end.
    fn step(&mut self, request: usize, issued: IssuedHandoffAction) -> Result<bool> {
        match issued.action {
            HandoffAction::SubmitPrefill { .. } => self.route(PREFILL, request, Some(issued))?,
            HandoffAction::ReserveDestination { .. } => {
                self.route(DECODE, request, Some(issued))?
            }
            HandoffAction::StartTransfer { delay_ms, .. } => {
                self.acknowledge(request, issued, HandoffActionOutcome::Scheduled)?;
                if delay_ms > 0.0 {
                    self.schedule_transfer(request, delay_ms);
                } else {
                    self.transferred(request)?;
                }
            }
            HandoffAction::ActivateDestination { handoff_id } => {
                return self.engine_step(
                    DECODE,
                    request,
                    issued,
                    Command::ActivateDestination { handoff_id },
                );
            }
            HandoffAction::ReleaseSource { handoff_id } => {
                return self.engine_step(
                    PREFILL,
                    request,
                    issued,
                    Command::ReleaseSource { handoff_id },
                );
            }
            HandoffAction::CancelSource { handoff_id } => {
                return self.engine_step(
                    PREFILL,
                    request,
                    issued,
                    Command::CancelSource { handoff_id },
                );
            }
            HandoffAction::CancelDestination { handoff_id } => {
                return self.engine_step(
                    DECODE,
                    request,
                    issued,
                    Command::CancelDestination { handoff_id },
                );
            }
            HandoffAction::Complete { .. } => self.handed_over(request)?,
        }
        Ok(true)
    }

    fn engine_step(
        &mut self,
        pool: usize,
        request: usize,
        issued: IssuedHandoffAction,
        command: Command,
    ) -> Result<bool> {
        let Stage::Placed(Placed { seat, .. }) = self.live[request].stages[pool] else {
            // Cancelled before a worker was chosen.
            let placed = self.leave(pool, request)?;
            self.acknowledge(request, issued, HandoffActionOutcome::Noop)?;
            self.dispatch_all(pool, placed)?;
            return Ok(true);
        };
        let state = &mut self.pools[pool];
        if state.fleet.is_busy(seat.worker) {
            let waiting = self.deferred.entry((pool, seat.worker)).or_default();
            waiting.push_back((request, issued));
            return Ok(false);
        }
        let effects = state
            .fleet
            .command(seat.worker, seat.rank, command, self.now_ms)?;
        state.router.observe(seat, effects.kv_events, self.now_ms)?;
        let outcome = match effects.result {
            CommandResult::Applied => HandoffActionOutcome::Applied,
            CommandResult::Noop => HandoffActionOutcome::Noop,
            _ => bail!("a hand-over step had the result {:?}", effects.result),
        };
        self.acknowledge(request, issued, outcome)?;
        self.lifecycle_events(effects.lifecycle_events)?;
        Ok(true)
    }

    /// The hand-over of a request has ended, well or not.
    fn handed_over(&mut self, request: usize) -> Result<()> {
        let core = self.live[request].handoff.as_ref();
        let completion = core.and_then(HandoffCoordinatorCore::completion);
        let placed = self.leave(PREFILL, request)?;
        self.dispatch_all(PREFILL, placed)?;
        if completion == Some(HandoffCompletion::Canceled) {
            let record = &mut self.live[request].record;
            if record.ending == Ending::Unfinished {
                record.ending = Ending::Failed;
            }
            self.abort(request);
            let placed = self.leave(DECODE, request)?;
            self.answer(request);
            self.dispatch_all(DECODE, placed)?;
        }
        Ok(())
    }

    fn fact(&mut self, request: usize, fact: HandoffFact) -> Result<()> {
        let core = self.live[request].handoff.as_mut();
        let actions = core.context("no hand-over is going on")?.on_fact(fact)?;
        self.enqueue(request, actions);
        Ok(())
    }

    fn acknowledge(
        &mut self,
        request: usize,
        issued: IssuedHandoffAction,
        outcome: HandoffActionOutcome,
    ) -> Result<()> {
        let core = self.live[request].handoff.as_mut();
        let core = core.context("no hand-over is going on")?;
        let actions = core.on_action_outcome(issued.id, outcome)?;
        self.enqueue(request, actions);
        Ok(())
    }

    fn enqueue(&mut self, request: usize, actions: Vec<IssuedHandoffAction>) {
        self.actions
            .extend(actions.into_iter().map(|action| (request, action)));
    }
}
