// SPDX-License-Identifier: Apache-2.0

//! Telling the policy what became of requests: a plain channel, driven by Dynamo's classifier events
//! or, in virtual time, by a simulator.
//!
//! Every call is stamped with the clock of the registration. Duplicated, lost and reordered events
//! are the ledger's business; none of them can leave a gauge behind.

use std::sync::Arc;

use hashlink::LinkedHashMap;
use parking_lot::Mutex;
use regime_core::{Timestamp, Tokens, WorkerKey};

use crate::clock::Clock;
use crate::hub::{Feed, Hub};
use crate::sessions::{SessionLimits, Turn};

/// One source of request events: the router of one model.
pub struct Feedback {
    hub: Arc<Hub>,
    feed: Arc<Feed>,
    /// Absent where sessions get no target.
    sessions: Option<OpenTurns>,
}

/// Open requests of all kinds, and the sessions that some belong to.
struct OpenTurns {
    limits: SessionLimits,
    max_requests: usize,
    /// Oldest first.
    open: Mutex<LinkedHashMap<String, OpenTurn>>,
}

struct OpenTurn {
    prompt: Tokens,
    session: Option<String>,
}

impl Feedback {
    pub(crate) fn new(
        hub: Arc<Hub>,
        feed: Arc<Feed>,
        sessions: Option<SessionLimits>,
        max_requests: usize,
    ) -> Self {
        let sessions = sessions.map(|limits| OpenTurns {
            limits,
            max_requests,
            open: Mutex::default(),
        });
        Self {
            hub,
            feed,
            sessions,
        }
    }

    /// The clock that stamps the events.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.hub.clock.as_ref()
    }

    /// A request of `prompt` tokens reached the router at `ingress`.
    pub fn classified(&self, id: &str, ingress: Timestamp, prompt: Tokens) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.classified(id, ingress, prompt, outcomes);
        });
        if let Some(turns) = &self.sessions {
            turns.begin(id, prompt);
        }
    }

    /// A classified request is a turn of `session`.
    pub fn joined(&self, id: &str, session: &str) {
        if let Some(turns) = &self.sessions {
            turns.join(id, session);
        }
    }

    /// The worker to which a turn of `session` had better return, because its prefix lies in a lower tier
    /// there of which no KV event tells; to be preferred, never to be obeyed. Nothing where sessions get no
    /// target. `device_blocks` tells how many blocks of `block_size` tokens a worker holds in device memory.
    pub fn session_target(
        &self,
        session: &str,
        prompt: Tokens,
        block_size: u32,
        device_blocks: &dyn Fn(WorkerKey) -> Option<u64>,
    ) -> Option<WorkerKey> {
        let turn = Turn {
            session,
            prompt,
            block_size: block_size.max(1),
            device_blocks,
            limits: self.sessions.as_ref()?.limits,
        };
        self.hub.session_target(&turn, self.clock().now())
    }

    /// The request was dispatched to `worker`, for the first time or again after a failure.
    pub fn sent(&self, id: &str, worker: WorkerKey) {
        let placement = self.hub.sent(&self.feed, id, worker, self.clock().now());
        if let Some(turns) = &self.sessions
            && let Some(prompt) = turns.prompt(id)
            && let Some(pool) = self.hub.pool_of(worker)
        {
            let computed = placement.map_or(prompt, |placement| placement.uncached);
            pool.sessions.lock().passed(worker, prompt, computed);
        }
    }

    /// The first response item arrived. `generated` is the number of tokens it carried, if known; zero
    /// is a false start, such as an error, and no first token.
    pub fn responding(&self, id: &str, worker: WorkerKey, generated: Option<u64>) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.responding(id, worker, now, generated, outcomes);
        });
    }

    /// The request was served; `context` is prompt plus generated tokens, if known.
    pub fn completed(&self, id: &str, worker: WorkerKey, context: Option<u64>) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.completed(id, worker, now, context, outcomes);
        });
        if let Some(turns) = &self.sessions
            && let Some(turn) = turns.end(id)
            && let Some(pool) = self.hub.pool_of(worker)
        {
            let context = context.map_or(turn.prompt, Tokens);
            let generated = Tokens(context.0.saturating_sub(turn.prompt.0));
            let mut sessions = pool.sessions.lock();
            sessions.passed(worker, generated, generated);
            if let Some(session) = turn.session {
                sessions.served(session, worker, context, now, turns.limits);
            }
        }
    }

    /// The request ended unserved, with or without an error; `worker` is absent when none was chosen.
    pub fn aborted(&self, id: &str, worker: Option<WorkerKey>, error: bool) {
        let now = self.clock().now();
        self.hub.feed(&self.feed, now, |ledger, outcomes| {
            ledger.aborted(id, worker, now, error, outcomes);
        });
        if let Some(turns) = &self.sessions {
            turns.end(id);
        }
    }
}

impl OpenTurns {
    fn begin(&self, id: &str, prompt: Tokens) {
        let mut open = self.open.lock();
        let turn = OpenTurn {
            prompt,
            session: None,
        };
        open.insert(id.to_owned(), turn);
        if open.len() > self.max_requests {
            open.pop_front();
        }
    }

    fn join(&self, id: &str, session: &str) {
        if let Some(turn) = self.open.lock().get_mut(id) {
            turn.session = Some(session.to_owned());
        }
    }

    fn prompt(&self, id: &str) -> Option<Tokens> {
        self.open.lock().get(id).map(|turn| turn.prompt)
    }

    fn end(&self, id: &str) -> Option<OpenTurn> {
        self.open.lock().remove(id)
    }
}
