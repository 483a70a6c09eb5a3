// SPDX-License-Identifier: Apache-2.0

//! What one registration shares: every pool, every request ledger, and the clock.
//!
//! State belongs to a registration and never to a static, so that a lab can run many in one process.
//! The hub holds pools and ledgers weakly: they live as long as the policy or the classifier that the
//! host made, and vanish from reports with it.
//!
//! Lock order: ledger, then pool state. The request path takes neither, only the sessions of its pool where a
//! classifier named a worker.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dynamo_kv_router::WorkerType;
use parking_lot::Mutex;
use regime_core::{InFlight, Ledger, LedgerCounts, Outcome, Timestamp, WorkerKey};

use crate::clock::{Clock, SystemClock};
use crate::parameters::Checked;
use crate::periodic::Periodic;
use crate::pool::{Attached, Placement, Pool, PoolId, Ticket};
use crate::sessions::Turn;
use crate::{Options, ScoreProbe, TtftDelta};

/// How often discovery is compared with what is tracked.
const SWEEP: Duration = Duration::from_secs(1);

pub(crate) struct Hub {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) probe: Option<ScoreProbe>,
    /// Choices that each pool keeps for the host; absent where it wants none.
    export: Option<usize>,
    pools: Mutex<Vec<Weak<Pool>>>,
    feeds: Mutex<Vec<Weak<Feed>>>,
    sweep: Periodic,
}

/// Workers that discovery lists now.
pub(crate) type Discovery = Box<dyn Fn() -> Vec<WorkerKey> + Send + Sync>;

/// The ledger of one source of events, that is of the router of one model.
pub(crate) struct Feed {
    ledger: Mutex<Ledger<Attached>>,
    discovery: Discovery,
}

impl Hub {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            clock: options
                .clock
                .unwrap_or_else(|| Arc::new(SystemClock::default())),
            probe: options.score_probe,
            export: options.export_choices,
            pools: Mutex::default(),
            feeds: Mutex::default(),
            sweep: Periodic::default(),
        }
    }

    pub(crate) fn add_pool(&self, id: PoolId, parameters: Arc<Checked>) -> Arc<Pool> {
        let pool = Arc::new(Pool::new(id, parameters, self.export));
        self.pools.lock().push(Arc::downgrade(&pool));
        pool
    }

    pub(crate) fn add_feed(&self, ledger: Ledger<Attached>, discovery: Discovery) -> Arc<Feed> {
        let feed = Arc::new(Feed {
            ledger: Mutex::new(ledger),
            discovery,
        });
        self.feeds.lock().push(Arc::downgrade(&feed));
        feed
    }

    /// Live pools, by model, group and role.
    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        let mut pools = live(&self.pools);
        pools.sort_by(|a, b| {
            let key = |pool: &Pool| {
                (
                    pool.id.model.clone(),
                    pool.id.routing_group.clone(),
                    pool.id.role.as_str(),
                )
            };
            key(a).cmp(&key(b))
        });
        pools
    }

    /// Change a ledger, and hand what follows to the pools of the workers concerned.
    pub(crate) fn feed(
        &self,
        feed: &Feed,
        now: Timestamp,
        change: impl FnOnce(&mut Ledger<Attached>, &mut Vec<Outcome<Attached>>),
    ) {
        let mut outcomes = Vec::with_capacity(2);
        // Held while the pools learn, so that two events of one request cannot overtake each other.
        let mut ledger = feed.ledger.lock();
        change(&mut ledger, &mut outcomes);
        self.deliver(&outcomes, now);
        drop(ledger);
        self.sweep_if_due(now);
    }

    /// A request was dispatched: claim the decisions behind it, and book the attempt. Returns that of the
    /// worker's pool.
    pub(crate) fn sent(
        &self,
        feed: &Feed,
        id: &str,
        worker: WorkerKey,
        now: Timestamp,
    ) -> Option<Placement> {
        let mut attached = None;
        self.feed(feed, now, |ledger, outcomes| {
            attached = ledger.prompt_tokens(id).map(|prompt| {
                let pool = self.pool_of(worker);
                let prefill = self.prefill_pool_of(pool.as_deref());
                let claim = |pool: Arc<Pool>| {
                    pool.with_state(now, |state| state.claim(worker, prompt, now))
                };
                let claim_prefill = |pool: Arc<Pool>| {
                    pool.with_state(now, |state| state.claim_prefill(prompt, now))
                };
                Attached {
                    placement: pool.and_then(claim),
                    prefill: prefill.and_then(claim_prefill),
                }
            });
            ledger.sent(id, worker, now, attached, outcomes);
        });
        attached?.placement
    }

    /// The worker to which a turn had better return.
    pub(crate) fn session_target(&self, turn: &Turn<'_>, now: Timestamp) -> Option<WorkerKey> {
        // Elsewhere the worker that answers does not prefill, or nobody learns which one answered.
        let pools = live(&self.pools).into_iter();
        let mut pools = pools.filter(|pool| pool.id.role == WorkerType::Aggregated);
        pools.find_map(|pool| pool.session_target(turn, now))
    }

    pub(crate) fn observe_ttft(&self, model: &str, delta: &TtftDelta) {
        let now = self.clock.now();
        for pool in self.pools() {
            if pool.id.model == model && pool.id.role == WorkerType::Prefill {
                pool.observe_ttft(delta, now);
            }
        }
    }

    /// Bring everything to the present, as if something had happened: silence ages the state too.
    pub(crate) fn refresh(&self) -> Timestamp {
        let now = self.clock.now();
        self.sweep_if_due(now);
        for pool in self.pools() {
            pool.with_state(now, |_| ());
        }
        now
    }

    /// Attempts in flight on `worker`, over all ledgers.
    pub(crate) fn in_flight(&self, worker: WorkerKey) -> InFlight {
        live(&self.feeds)
            .iter()
            .map(|feed| feed.ledger.lock().in_flight(worker))
            .fold(InFlight::default(), |sum, load| InFlight {
                waiting: sum.waiting + load.waiting,
                running: sum.running + load.running,
            })
    }

    /// Open requests and totals of every ledger.
    pub(crate) fn ledgers(&self) -> Vec<(usize, LedgerCounts)> {
        live(&self.feeds)
            .iter()
            .map(|feed| {
                let ledger = feed.ledger.lock();
                (ledger.tracked(), *ledger.counts())
            })
            .collect()
    }

    fn deliver(&self, outcomes: &[Outcome<Attached>], now: Timestamp) {
        for outcome in outcomes {
            let pool = worker_of(outcome).and_then(|worker| self.pool_of(worker));
            if let Some(ticket) = prefill_of(outcome)
                && let Some(prefill) = self.prefill_pool_of(pool.as_deref())
            {
                prefill.with_state(now, |state| state.apply_downstream(ticket, outcome));
            }
            if let Some(pool) = pool {
                pool.with_state(now, |state| state.apply(outcome));
            }
        }
    }

    /// The pool that prefills for `pool`; where that is not ours, the only one there is.
    fn prefill_pool_of(&self, pool: Option<&Pool>) -> Option<Arc<Pool>> {
        let pools = self.pools.lock();
        let mut prefill = pools
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|other| other.id.role == WorkerType::Prefill);
        match pool {
            Some(pool) => prefill.find(|other| pool.id.is_served_by(&other.id)),
            None => prefill.next().filter(|_| prefill.next().is_none()),
        }
    }

    /// Worker ids are unique in a process, so a worker is in at most one pool.
    pub(crate) fn pool_of(&self, worker: WorkerKey) -> Option<Arc<Pool>> {
        self.pools
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .find(|pool| pool.snapshot().worker(worker).is_some())
    }

    /// Forget workers that discovery no longer lists, and requests nobody will end.
    fn sweep_if_due(&self, now: Timestamp) {
        if !self.sweep.claim(now, SWEEP) {
            return;
        }
        let mut registered = BTreeSet::new();
        for feed in live(&self.feeds) {
            let workers: BTreeSet<_> = (feed.discovery)().into_iter().collect();
            let mut outcomes = Vec::new();
            let mut ledger = feed.ledger.lock();
            ledger.expire(now, &mut outcomes);
            ledger.retain_workers(now, |worker| workers.contains(&worker), &mut outcomes);
            self.deliver(&outcomes, now);
            drop(ledger);
            registered.extend(workers);
        }
        for pool in self.pools() {
            pool.with_state(now, |state| {
                state.reconcile(&|worker| registered.contains(&worker));
            });
            let mut sessions = pool.sessions.lock();
            sessions.retain(|worker| registered.contains(&worker));
        }
    }
}

fn live<T>(list: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    let mut list = list.lock();
    list.retain(|item| item.strong_count() > 0);
    list.iter().filter_map(Weak::upgrade).collect()
}

fn prefill_of(outcome: &Outcome<Attached>) -> Option<Ticket> {
    match outcome {
        Outcome::Sent(_) => None,
        Outcome::FirstToken(first) => first.payload?.prefill,
        Outcome::Ended(ended) => ended.payload?.prefill,
    }
}

const fn worker_of(outcome: &Outcome<Attached>) -> Option<WorkerKey> {
    match outcome {
        Outcome::Sent(sent) => Some(sent.worker),
        Outcome::FirstToken(first) => Some(first.worker),
        Outcome::Ended(ended) => ended.worker,
    }
}
