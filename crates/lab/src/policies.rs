// SPDX-License-Identifier: Apache-2.0

//! Policies by name, built the way a frontend builds them.
//!
//! A policy is a worker-selection type that is linked into a [`Catalog`], selected by a router-policy YAML
//! and resolved through Dynamo's own registry: the same factory and the same parameters as in a live
//! frontend. A name is a short form: `regime-aware` stands for the YAML that selects that type for every
//! role and has the queue classes of [`LateBinding`], as what a frontend generates. Besides, there are `default`, which is Dynamo's built-in selector, and the
//! [baselines](crate::baselines), which are no Dynamo policies.
//!
//! Users link their own crate with [`Catalog::with`]; see `examples/own_policy.rs`.
//!
//! Request classifiers do not run: Dynamo gives nobody but its own scheduler the means to call one. The
//! feedback and the targets that ours would give reach the policy through [`Lifecycle`] in virtual time, with the
//! parameters that the policy file gives to the classifier. The type
//! `thunderagent` therefore runs without its classifier, on load alone.
//!
//! Dynamo's variables `DYN_ROUTER_*_POLICY` beat every YAML, also here, and would silently replace the
//! policy under test. A run refuses to start while one is set.

use std::path::PathBuf;
use std::sync::Arc;

use dynamo_kv_router::plugins::worker_selection::WorkerSelectionPolicyFactory;
use dynamo_kv_router::plugins::{
    DYN_ROUTER_DECODE_POLICY, DYN_ROUTER_PREFILL_POLICY, DYN_ROUTER_WORKER_SELECTION_POLICY,
    RouterPluginRegistry, WorkerSelectionPolicyRegistryError,
};
use dynamo_kv_router::{KvRouterConfig, RoutingPartitionRef, WorkerSelector, WorkerType};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use regime_core::WorkerKey;
use regime_policy::{
    CLASSIFIER_TYPE, Clock, FeedbackParameters, Handle, LateBinding, ManualClock, POLICY_TYPE,
};
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use crate::adapter::{Chooser, WorkerConfig};
use crate::baselines::{BASELINES, baseline};
use crate::lifecycle::{Lifecycle, RegimeLifecycle};

/// Model name that policies see.
pub const MODEL: &str = "lab";

/// What the router of a pool asks: Dynamo's policy, or what a linker put [around](Link::around) it.
pub type Selector = Box<dyn WorkerSelector<WorkerConfig>>;

type Around = Box<dyn Fn(WorkerType, &KvRouterConfig, Selector) -> Selector>;

/// What a linked policy crate may use in a run.
pub struct Link<'a> {
    /// Where to register worker-selection types, as in a frontend.
    pub registry: &'a mut RouterPluginRegistry,
    /// Virtual time.
    pub clock: Arc<ManualClock>,
    /// Every worker of the fleet by its role, as discovery would list them.
    pub workers: Vec<(WorkerType, WorkerKey)>,
    /// Parameters of our own classifier.
    feedback: FeedbackParameters,
    /// Set by our own plugin, so that the run can report its state.
    handle: &'a mut Option<Handle>,
    around: &'a mut Vec<Around>,
}

impl Link<'_> {
    /// The handle of our own plugin, once it is linked.
    #[must_use]
    pub fn ours(&self) -> Option<Handle> {
        self.handle.clone()
    }

    /// Put something around the policy of every pool: a recorder, or a second policy that is asked the
    /// same and compared. `wrap` gets the role and the router settings of the pool. Baselines are no
    /// Dynamo policies and stay bare.
    pub fn around(
        &mut self,
        wrap: impl Fn(WorkerType, &KvRouterConfig, Selector) -> Selector + 'static,
    ) {
        self.around.push(Box::new(wrap));
    }
}

/// Links one crate into a run; returns what wants to be told of requests, if anything.
pub type Linker =
    Arc<dyn Fn(&mut Link<'_>) -> anyhow::Result<Option<Box<dyn Lifecycle>>> + Send + Sync>;

/// The policy crates that are linked in. State belongs to a run: every run links anew.
#[derive(Clone)]
pub struct Catalog {
    linkers: Vec<Linker>,
}

impl Default for Catalog {
    /// Dynamo's own catalog and ours.
    fn default() -> Self {
        Self {
            linkers: vec![Arc::new(link_dynamo), Arc::new(link_regime)],
        }
    }
}

fn link_dynamo(link: &mut Link<'_>) -> anyhow::Result<Option<Box<dyn Lifecycle>>> {
    dynamo_custom_policy_builtin::register(link.registry)?;
    Ok(None)
}

fn link_regime(link: &mut Link<'_>) -> anyhow::Result<Option<Box<dyn Lifecycle>>> {
    let options = regime_policy::Options {
        clock: Some(Arc::clone(&link.clock) as Arc<dyn Clock>),
        ..regime_policy::Options::default()
    };
    let handle = regime_policy::register_with(link.registry, options)?;
    let lifecycle = RegimeLifecycle::with_parameters(&handle, &link.workers, link.feedback)?;
    *link.handle = Some(handle);
    Ok(Some(Box::new(lifecycle)))
}

impl Catalog {
    /// The catalog with one more crate.
    #[must_use]
    pub fn with(
        mut self,
        linker: impl Fn(&mut Link<'_>) -> anyhow::Result<Option<Box<dyn Lifecycle>>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.linkers.push(Arc::new(linker));
        self
    }

    /// Every policy that can be named, sorted within `default`, the linked types and the baselines.
    ///
    /// # Errors
    /// When two linked crates claim one name.
    pub fn names(&self) -> Result<Vec<String>, PolicyError> {
        let linked = self.link(Arc::default(), Vec::new(), FeedbackParameters::default())?;
        // The registry lists its types only when asked for one that it does not have.
        let yaml = yaml_of(&json!({"type": "unlinked", "parameters": {}}), &Map::new());
        let config = config_of(&yaml).unwrap_or_default();
        let types = match linked.registry.resolve(&config) {
            Err(WorkerSelectionPolicyRegistryError::UnknownType { available, .. }) => available,
            _ => String::new(),
        };
        let types = types.split(", ").filter(|name| !name.is_empty());
        Ok(std::iter::once("default")
            .chain(types)
            .chain(BASELINES)
            .map(str::to_owned)
            .collect())
    }

    fn link(
        &self,
        clock: Arc<ManualClock>,
        workers: Vec<(WorkerType, WorkerKey)>,
        feedback: FeedbackParameters,
    ) -> Result<Linked, PolicyError> {
        let mut registry = dynamo_custom_policy_builtin::default_registry();
        let (mut handle, mut lifecycles, mut around) = (None, Vec::new(), Vec::new());
        for linker in &self.linkers {
            let mut link = Link {
                registry: &mut registry,
                clock: Arc::clone(&clock),
                workers: workers.clone(),
                feedback,
                handle: &mut handle,
                around: &mut around,
            };
            lifecycles.extend(linker(&mut link).map_err(PolicyError::Link)?);
        }
        Ok(Linked {
            registry,
            lifecycles,
            handle,
            around,
        })
    }
}

struct Linked {
    registry: RouterPluginRegistry,
    lifecycles: Vec<Box<dyn Lifecycle>>,
    handle: Option<Handle>,
    around: Vec<Around>,
}

/// A policy that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No such policy, and no file of that name.
    #[error(
        "unknown policy {name:?}; allowed are {allowed}, or the path of a router-policy YAML file"
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names of all policies.
        allowed: String,
    },
    /// Parameters given to a policy that has none.
    #[error(
        "policy {name:?} has no parameters, so {key:?} cannot be set; only linked policy types have"
    )]
    NoParameters {
        /// The policy.
        name: String,
        /// The first parameter.
        key: String,
    },
    /// Dynamo refused the YAML, the type or its parameters.
    #[error("policy {name:?}: {problem}")]
    Refused {
        /// The policy.
        name: String,
        /// Dynamo's words.
        problem: String,
    },
    /// A variable that would replace the policy.
    #[error("{variable}={value:?} would replace the policy under test: unset it")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// A linked crate failed to register.
    #[error("a linked policy crate failed to register: {0:#}")]
    Link(anyhow::Error),
    /// A policy file that cannot be read.
    #[error("policy file")]
    File(#[from] std::io::Error),
}

/// Which policy to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    label: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Dynamo's built-in selector.
    Default,
    /// A linked type with these parameters, for every role, and those of our own classifier.
    Linked(String, Map<String, Value>, Map<String, Value>),
    /// A router-policy YAML.
    File(PathBuf),
    Baseline(&'static str),
}

impl Policy {
    /// The policy of that name, or of the YAML file at that path.
    ///
    /// # Errors
    /// When there is neither.
    pub fn named(name: &str, catalog: &Catalog) -> Result<Self, PolicyError> {
        let kind = if name == "default" {
            Kind::Default
        } else if let Some(baseline) = BASELINES.iter().find(|baseline| **baseline == name) {
            Kind::Baseline(baseline)
        } else {
            let allowed = catalog.names()?;
            if allowed.iter().any(|allowed| allowed == name) {
                Kind::Linked(name.to_owned(), Map::new(), Map::new())
            } else if std::path::Path::new(name).is_file() {
                Kind::File(name.into())
            } else {
                return Err(PolicyError::Unknown {
                    name: name.to_owned(),
                    allowed: allowed.join(", "),
                });
            }
        };
        Ok(Self {
            label: name.to_owned(),
            kind,
        })
    }

    /// The policy with parameters of its type; `label` tells it from others of that type.
    ///
    /// # Errors
    /// When the policy is not a linked type. Whether the parameters exist shows when a run starts.
    pub fn with_parameters(
        mut self,
        parameters: Map<String, Value>,
        label: impl Into<String>,
    ) -> Result<Self, PolicyError> {
        let Some(key) = parameters.keys().next() else {
            return Ok(self);
        };
        let Kind::Linked(_, own, _) = &mut self.kind else {
            return Err(PolicyError::NoParameters {
                name: self.label,
                key: key.clone(),
            });
        };
        own.extend(parameters);
        self.label = label.into();
        Ok(self)
    }

    /// The policy with parameters of our own classifier; only a linked type can have any.
    #[must_use]
    pub(crate) fn with_classifier(mut self, parameters: Map<String, Value>) -> Self {
        if let Kind::Linked(_, _, classifier) = &mut self.kind {
            classifier.extend(parameters);
        }
        self
    }

    /// Name shown in results.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Build the policy and drop it again, to know before a run.
    ///
    /// # Errors
    /// When Dynamo refuses it, exactly as a frontend would at start-up.
    pub fn check(&self, catalog: &Catalog) -> Result<(), PolicyError> {
        self.build(catalog, 0, Vec::new(), true).map(drop)
    }

    /// Build the policy for one run; `own_queue` where the run asks for no queue itself.
    ///
    /// # Errors
    /// When Dynamo refuses it, exactly as a frontend would at start-up.
    pub(crate) fn build(
        &self,
        catalog: &Catalog,
        seed: u64,
        workers: Vec<(WorkerType, WorkerKey)>,
        own_queue: bool,
    ) -> Result<Built, PolicyError> {
        refuse_overrides(|name| std::env::var(name).ok())?;
        let refused = |problem: String| PolicyError::Refused {
            name: self.label.clone(),
            problem,
        };
        let yaml = match &self.kind {
            Kind::Default | Kind::Baseline(_) => None,
            Kind::Linked(name, parameters, classifier) => {
                let mut parameters = parameters.clone();
                let ours = name == POLICY_TYPE;
                if ours {
                    parameters.entry("seed").or_insert(json!(seed));
                }
                let instance = json!({"type": name, "parameters": parameters});
                let selection = yaml_of(&instance, classifier);
                Some(if ours && own_queue {
                    with_late_binding(selection).map_err(&refused)?
                } else {
                    selection
                })
            }
            Kind::File(path) => Some(std::fs::read_to_string(path)?),
        };
        let config = match yaml {
            Some(yaml) => config_of(&yaml).map_err(&refused)?,
            None => KvRouterConfig::default(),
        };
        let clock = Arc::<ManualClock>::default();
        let feedback = feedback_of(&config).map_err(refused)?;
        let linked = catalog.link(Arc::clone(&clock), workers, feedback)?;
        let factory = linked
            .registry
            .resolve(&config)
            .map_err(|error| refused(error.to_string()))?
            .ok_or_else(|| refused("the registry has no default".into()))?;
        config.validate_config().map_err(refused)?;
        Ok(Built {
            label: self.label.clone(),
            baseline: match self.kind {
                Kind::Baseline(name) => Some(name),
                _ => None,
            },
            factory,
            config,
            seed,
            clock,
            lifecycles: linked.lifecycles,
            handle: linked.handle,
            around: linked.around,
        })
    }
}

/// A policy at the start of a run.
pub(crate) struct Built {
    label: String,
    baseline: Option<&'static str>,
    factory: WorkerSelectionPolicyFactory,
    pub(crate) config: KvRouterConfig,
    seed: u64,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) lifecycles: Vec<Box<dyn Lifecycle>>,
    /// Present when the policy under test is ours.
    pub(crate) handle: Option<Handle>,
    around: Vec<Around>,
}

impl Built {
    /// The instance that chooses in the pool of `role`.
    pub(crate) fn chooser(
        &self,
        role: WorkerType,
        config: &KvRouterConfig,
    ) -> Result<Chooser, PolicyError> {
        let Some(name) = self.baseline else {
            let partition =
                RoutingPartitionRef::new(MODEL, dynamo_kv_router::DEFAULT_ROUTING_GROUP);
            let policy: Selector = Box::new((self.factory)(config, role, partition));
            let wrapped = self
                .around
                .iter()
                .fold(policy, |inner, wrap| wrap(role, config, inner));
            return Ok(Chooser::Policy(wrapped));
        };
        let rule = baseline(name, role).ok_or_else(|| PolicyError::Refused {
            name: self.label.clone(),
            problem: "no such baseline".into(),
        })?;
        let stream = self.seed ^ (u64::from(role == WorkerType::Decode) << 32);
        Ok(Chooser::Baseline(rule, Pcg64Mcg::seed_from_u64(stream)))
    }
}

/// The policy file that selects one instance for every role, and our classifier if it has parameters.
fn yaml_of(instance: &Value, classifier: &Map<String, Value>) -> String {
    let mut instance = instance.clone();
    instance["name"] = json!("main");
    let mut file = json!({"worker_selection": {
        "aggregated": "main", "prefill": "main", "decode": "main", "instances": [instance],
    }});
    if !classifier.is_empty() {
        file["request_classifier"] = json!({"type": CLASSIFIER_TYPE, "parameters": classifier});
    }
    // JSON is YAML.
    file.to_string()
}

/// The parameters that a policy file gives to our classifier.
fn feedback_of(config: &KvRouterConfig) -> Result<FeedbackParameters, String> {
    let classifier = config.request_classifier_config();
    match classifier.map_err(|error| error.to_string())? {
        Some(classifier) if classifier.classifier_type() == CLASSIFIER_TYPE => {
            serde_yaml::from_value(classifier.parameters().clone())
                .map_err(|error| format!("{CLASSIFIER_TYPE}: {error}"))
        }
        _ => Ok(FeedbackParameters::default()),
    }
}

/// The policy file with the classes of late binding.
fn with_late_binding(selection: String) -> Result<String, String> {
    let keys = LateBinding::default().policy_file_keys();
    let keys = keys.map_err(|error| error.to_string())?;
    let mut document: serde_yaml::Mapping =
        serde_yaml::from_str(&selection).map_err(|error| error.to_string())?;
    document.extend(keys);
    serde_yaml::to_string(&document).map_err(|error| error.to_string())
}

/// The configuration of a router whose policy file this is. Dynamo keeps the parsed file with the
/// configuration, so the file may go once this returns.
fn config_of(yaml: &str) -> Result<KvRouterConfig, String> {
    let file = NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), yaml).map_err(|error| error.to_string())?;
    let mut config = KvRouterConfig {
        router_policy_config: Some(file.path().display().to_string()),
        ..KvRouterConfig::default()
    };
    // Nobody knows the name of that file.
    let name = file.path().display().to_string();
    config
        .apply_policy_config()
        .map_err(|error| error.to_string().replace(&name, "the policy file"))?;
    Ok(config)
}

fn refuse_overrides(variable: impl Fn(&str) -> Option<String>) -> Result<(), PolicyError> {
    for name in [
        DYN_ROUTER_WORKER_SELECTION_POLICY,
        DYN_ROUTER_PREFILL_POLICY,
        DYN_ROUTER_DECODE_POLICY,
    ] {
        if let Some(value) = variable(name).filter(|value| !value.trim().is_empty()) {
            return Err(PolicyError::Environment {
                variable: name,
                value,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(policy: &Policy) -> Result<Built, PolicyError> {
        policy.build(&Catalog::default(), 1, Vec::new(), true)
    }

    #[test]
    fn every_linked_type_and_every_baseline_has_a_name_and_builds() {
        let catalog = Catalog::default();
        let names = catalog.names().unwrap();
        for name in [
            "default",
            "dynamo-default-cost-fn",
            "dynamo-two-tier-cost-fn",
            "thunderagent",
            "regime-aware",
            "lmetric",
        ] {
            assert!(
                names.iter().any(|known| known == name),
                "{name} in {names:?}"
            );
        }
        for name in names {
            let built = build(&Policy::named(&name, &catalog).unwrap()).unwrap();
            built.chooser(WorkerType::Decode, &built.config).unwrap();
        }
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_names() {
        let error = Policy::named("regime", &Catalog::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"regime\"")
                && error.contains("regime-aware")
                && error.contains("dualmap")
        );
    }

    #[test]
    fn a_misspelt_parameter_is_refused_as_at_start_up() {
        let policy = Policy::named("regime-aware", &Catalog::default()).unwrap();
        let policy = policy
            .with_parameters(Map::from_iter([("ewma_alhpa".into(), json!(0.2))]), "mine")
            .unwrap();
        let error = build(&policy).err().unwrap().to_string();
        assert!(
            error.contains("\"mine\"") && error.contains("ewma_alhpa"),
            "{error}"
        );
    }

    #[test]
    fn a_baseline_takes_no_parameters() {
        let policy = Policy::named("random", &Catalog::default()).unwrap();
        let error = policy
            .with_parameters(Map::from_iter([("seed".into(), json!(1))]), "mine")
            .unwrap_err();
        assert!(error.to_string().contains("has no parameters"));
    }

    #[test]
    fn a_policy_file_is_a_policy() {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        std::fs::write(
            file.path(),
            yaml_of(&json!({"type": "dynamo-two-tier-cost-fn"}), &Map::new()),
        )
        .unwrap();
        let policy = Policy::named(file.path().to_str().unwrap(), &Catalog::default()).unwrap();
        assert!(build(&policy).is_ok());
        std::fs::write(file.path(), "worker_selectoin: {}").unwrap();
        let error = build(&policy).err().unwrap().to_string();
        assert!(error.contains("worker_selectoin"), "{error}");
        let folder = std::env::temp_dir().display().to_string();
        assert!(
            !error
                .replace(file.path().to_str().unwrap(), "")
                .contains(&folder),
            "{error}"
        );
    }

    #[test]
    fn a_variable_that_would_replace_the_policy_is_refused_and_a_blank_one_is_not() {
        let set = |value: &'static str| {
            refuse_overrides(move |name| {
                (name == DYN_ROUTER_PREFILL_POLICY).then(|| value.to_owned())
            })
        };
        assert!(set(" ").is_ok());
        assert!(
            set("other")
                .unwrap_err()
                .to_string()
                .contains("DYN_ROUTER_PREFILL_POLICY=\"other\"")
        );
    }
}
