// SPDX-License-Identifier: Apache-2.0

//! Linking the plugin into a host, and what the host gets back.

use std::sync::Arc;

use dynamo_kv_router::KvRouterConfig;
use dynamo_kv_router::plugins::request_classifier::{
    RequestClassifierContext, RequestClassifierFactory, RequestClassifierParameters,
    RequestClassifierProviderError,
};
use dynamo_kv_router::plugins::worker_selection::{
    WorkerSelectionPolicyFactory, WorkerSelectionPolicyParameters,
    WorkerSelectionPolicyProviderError,
};
use dynamo_kv_router::plugins::{RouterPluginRegistry, RouterPluginRegistryError};
use dynamo_kv_router::{RoutingPartitionRef, WorkerType};
use regime_core::{Ledger, LedgerConfig, WorkerKey};

use crate::classifier::{FeedbackClassifier, FeedbackParameters};
use crate::clock::Clock;
use crate::feedback::Feedback;
use crate::hub::Hub;
use crate::key_of;
use crate::metrics::Publisher;
use crate::observer::Observer;
use crate::parameters::{ParameterDoc, ParameterError, Parameters, documentation};
use crate::pool::{ExportCounts, JoinedChoice, PoolId};
use crate::report::{Report, report};
use crate::selection;

/// Name of the worker-selection type.
pub const POLICY_TYPE: &str = "regime-aware";
/// Name of the request-classifier type.
pub const CLASSIFIER_TYPE: &str = "regime-feedback";

/// Called with the role of the pool before each score, inside the panic guard: fault injection.
pub type ScoreProbe = Arc<dyn Fn(&'static str) + Send + Sync>;

/// What the host may bring along.
#[derive(Default)]
pub struct Options {
    /// Clock; the operating system's when absent.
    pub clock: Option<Arc<dyn Clock>>,
    /// Fault injection; none in production.
    pub score_probe: Option<ScoreProbe>,
    /// Keep every decision with what became of it, for [`Handle::take_choices`], so many for each pool
    /// between two calls. Absent: none.
    pub export_choices: Option<usize>,
}

/// New observations in the frontend's own TTFT histogram since the last call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TtftDelta {
    /// Upper bound of each bucket, ms, and the number of new observations in that bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of the new observations, ms.
    pub sum_ms: f64,
    /// Number of new observations.
    pub count: u64,
}

/// Decisions of one pool with what became of them.
#[derive(Debug, Clone)]
pub struct PoolChoices {
    /// Model served.
    pub model: String,
    /// Dynamo's routing group.
    pub routing_group: String,
    /// `aggregated` or `prefill`: other pools have no forecast.
    pub role: &'static str,
    /// Decisions whose requests have ended since the last call, or have had long enough; about in order.
    pub choices: Vec<JoinedChoice>,
    /// Totals since the start.
    pub counts: ExportCounts,
}

/// What a registration shares with its host. Clones share one state.
#[derive(Clone)]
pub struct Handle {
    hub: Arc<Hub>,
    publisher: Arc<Publisher>,
}

impl Handle {
    /// A state of its own that chooses nothing, for [`Handle::observer`].
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            hub: Arc::new(Hub::new(options)),
            publisher: Arc::new(Publisher::new()),
        }
    }

    /// Observe the pool of `role` while another policy chooses in it.
    ///
    /// # Errors
    /// As at start-up: names the first parameter out of range.
    pub fn observer(
        &self,
        parameters: Parameters,
        config: &KvRouterConfig,
        role: WorkerType,
        partition: RoutingPartitionRef<'_>,
    ) -> Result<Observer, ParameterError> {
        let id = PoolId::new(role, partition);
        let pool = self
            .hub
            .add_pool(id, Arc::new(parameters.for_role(role).check()?));
        Ok(Observer::new(pool, config, Arc::clone(&self.hub.clock)))
    }

    /// Everything believed now.
    #[must_use]
    pub fn report(&self) -> Report {
        report(&self.hub)
    }

    /// Write every metric through the `metrics` facade, from a fresh report, which is returned.
    pub fn publish_metrics(&self) -> Report {
        let report = self.report();
        self.publisher.publish(&report);
        report
    }

    /// Measure the Price of Anarchy of the windows that have settled since the last call. To be called
    /// about once a second, from a thread of the host's own: it computes for up to
    /// `anarchy.core_share` of that time, and without it nothing is measured.
    pub fn measure(&self) {
        for pool in self.hub.pools() {
            pool.measure(self.hub.clock.as_ref());
        }
    }

    /// Decisions with what became of them, since the last call; see [`Options::export_choices`].
    #[must_use]
    pub fn take_choices(&self) -> Vec<PoolChoices> {
        let now = self.hub.clock.now();
        let taken = self.hub.pools().into_iter().filter_map(|pool| {
            let (choices, counts) = pool.with_state(now, |state| {
                let meter = state.meter.as_mut();
                meter.map(|meter| meter.take_exported(now))
            })?;
            Some(PoolChoices {
                model: pool.id.model.clone(),
                routing_group: pool.id.routing_group.clone(),
                role: pool.id.role.as_str(),
                choices,
                counts,
            })
        });
        taken.collect()
    }

    /// A channel through which a host without Dynamo's classifier tells what became of requests.
    /// `discovery` lists the workers that exist; those that leave it are forgotten.
    #[must_use]
    pub fn feedback(
        &self,
        discovery: impl Fn() -> Vec<WorkerKey> + Send + Sync + 'static,
    ) -> Feedback {
        let config = LedgerConfig::default();
        let ledger = Ledger::new(config).unwrap_or_default();
        let feed = self.hub.add_feed(ledger, Box::new(discovery));
        Feedback::new(Arc::clone(&self.hub), feed, None, config.max_entries)
    }

    /// The same with the parameters of the classifier that it stands in for.
    ///
    /// # Errors
    /// As at start-up: names the first parameter out of range.
    pub fn feedback_with(
        &self,
        parameters: FeedbackParameters,
        discovery: impl Fn() -> Vec<WorkerKey> + Send + Sync + 'static,
    ) -> Result<Feedback, ParameterError> {
        let (ledger, sessions) = parameters.check()?;
        let feed = self.hub.add_feed(ledger, Box::new(discovery));
        let hub = Arc::clone(&self.hub);
        Ok(Feedback::new(hub, feed, sessions, parameters.max_requests))
    }

    /// Feed the TTFTs that the frontend itself measured for `model`. They stand in for first tokens in
    /// prefill pools, which no classifier event reaches.
    pub fn observe_frontend_ttft(&self, model: &str, delta: &TtftDelta) {
        self.hub.observe_ttft(model, delta);
    }
}

/// Parameters of `regime-aware`, in reading order.
#[must_use]
pub fn policy_parameters() -> Vec<ParameterDoc> {
    documentation()
}

/// Parameters of `regime-feedback`, in reading order.
#[must_use]
pub fn classifier_parameters() -> Vec<ParameterDoc> {
    let defaults = FeedbackParameters::default();
    let target = defaults.session_target;
    let row = |name, default: &dyn ToString, allowed, help| ParameterDoc {
        name,
        default: default.to_string(),
        allowed,
        help,
    };
    vec![
        row(
            "max_requests",
            &defaults.max_requests,
            "at least 1",
            "requests tracked at once; beyond it the oldest is closed as evicted",
        ),
        row(
            "max_age_s",
            &defaults.max_age_s,
            "above 0",
            "age at which a request that nothing ended is closed, s",
        ),
        row(
            "session_target.enabled",
            &target.enabled,
            "`true` or `false`",
            "prefer the worker that served a session last while its prefix is in a lower tier there of which no \
             KV event tells; only where engines have such a tier, and with `session_affinity: advisory`",
        ),
        row(
            "session_target.max_sessions",
            &target.max_sessions,
            "at least 1",
            "sessions remembered; beyond it the one served longest ago is forgotten",
        ),
        row(
            "session_target.max_age_s",
            &target.max_age_s,
            "0.001 to 1000000000",
            "time since its last turn at which a session is forgotten, s",
        ),
    ]
}

/// Register both types with default options.
///
/// # Errors
/// When the registry already holds one of the names.
pub fn register(registry: &mut RouterPluginRegistry) -> Result<Handle, RouterPluginRegistryError> {
    register_with(registry, Options::default())
}

/// Register both types with options of the host.
///
/// # Errors
/// When the registry already holds one of the names.
pub fn register_with(
    registry: &mut RouterPluginRegistry,
    options: Options,
) -> Result<Handle, RouterPluginRegistryError> {
    let handle = Handle::new(options);
    let hub = &handle.hub;
    registry.register_worker_selection(
        POLICY_TYPE,
        Arc::new({
            let hub = Arc::clone(hub);
            move |parameters: &WorkerSelectionPolicyParameters| {
                policy_factory(Arc::clone(&hub), parameters)
            }
        }),
    )?;
    registry.register_request_classifier(
        CLASSIFIER_TYPE,
        Arc::new({
            let hub = Arc::clone(hub);
            move |parameters: &RequestClassifierParameters| {
                classifier_factory(Arc::clone(&hub), parameters)
            }
        }),
    )?;
    Ok(handle)
}

fn policy_factory(
    hub: Arc<Hub>,
    parameters: &WorkerSelectionPolicyParameters,
) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    let parameters = parameters.deserialize::<Parameters>()?;
    let checked = |role| {
        let checked = parameters.clone().for_role(role).check();
        let refused =
            |error: ParameterError| WorkerSelectionPolicyProviderError::new(error.to_string());
        checked.map(Arc::new).map_err(refused)
    };
    let (prefill, others) = (
        checked(WorkerType::Prefill)?,
        checked(WorkerType::Aggregated)?,
    );
    Ok(Arc::new(
        move |config: &KvRouterConfig, role: WorkerType, partition: RoutingPartitionRef<'_>| {
            let parameters = match role {
                WorkerType::Prefill => &prefill,
                _ => &others,
            };
            let pool = hub.add_pool(PoolId::new(role, partition), Arc::clone(parameters));
            selection::policy(pool, config, Arc::clone(&hub.clock), hub.probe.clone()).0
        },
    ))
}

fn classifier_factory(
    hub: Arc<Hub>,
    parameters: &RequestClassifierParameters,
) -> Result<RequestClassifierFactory, RequestClassifierProviderError> {
    let parameters = parameters.deserialize::<FeedbackParameters>()?;
    let (ledger, sessions) = parameters
        .check()
        .map_err(|error| RequestClassifierProviderError::new(error.to_string()))?;
    Ok(Arc::new(move |context: RequestClassifierContext| {
        let discovered = context.clone();
        let discovery = move || {
            let workers = discovered.workers();
            workers
                .iter()
                .map(|worker| key_of(worker.worker()))
                .collect()
        };
        let feed = hub.add_feed(ledger.clone(), Box::new(discovery));
        let limit = parameters.max_requests;
        let feedback = Feedback::new(Arc::clone(&hub), feed, sessions, limit);
        Box::new(FeedbackClassifier::new(feedback, context, limit))
    }))
}
