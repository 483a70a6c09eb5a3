// SPDX-License-Identifier: Apache-2.0

//! The lab and the frontend decide alike.
//!
//! A run of the lab carries a second policy: the one that the frontend's own start-up code builds from the
//! same policy file, with its own state and its own feedback. Both are asked every question of the run,
//! and both are told of every request.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use dynamo_kv_router::plugins::RouterPlugins;
use dynamo_kv_router::plugins::worker_selection::WorkerInputs;
use dynamo_kv_router::protocols::{WorkerSelectionResult, WorkerWithDpRank};
use dynamo_kv_router::scheduling::KvSchedulerError;
use dynamo_kv_router::{
    RoutingPartitionRef, WorkerSelectionInput, WorkerSelectionPolicy, WorkerSelector,
};
use regime_frontend::check::Roles;
use regime_frontend::cli::Sources;
use regime_frontend::link::link;
use regime_frontend::router::{PolicyArgs, Resolved, TuningArgs};
use regime_lab::workloads::{Generator, Scale};
use regime_lab::{
    Catalog, Engine, Experiment, MODEL, Policy, RegimeLifecycle, Selector, WorkerConfig,
};
use regime_policy::{Clock, Handle, ManualClock, Options};

/// What the lab's policy chose, and what the frontend's chose when asked the same.
type Decisions = Arc<Mutex<Vec<(WorkerWithDpRank, WorkerWithDpRank)>>>;

struct Pair {
    lab: Selector,
    frontend: WorkerSelectionPolicy,
    decisions: Decisions,
}

impl WorkerSelector<WorkerConfig> for Pair {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.lab.required_worker_inputs()
    }

    fn select_worker(
        &self,
        input: WorkerSelectionInput<'_, WorkerConfig>,
    ) -> Result<WorkerSelectionResult, KvSchedulerError> {
        let chosen = self.lab.select_worker(input)?;
        let frontend = self.frontend.select_worker(input)?;
        let pair = (chosen.worker, frontend.worker);
        self.decisions.lock().unwrap().push(pair);
        Ok(chosen)
    }
}

fn policy_file(parameters: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let yaml = format!(
        "worker_selection:
  aggregated: ours
  prefill: ours
  decode: ours
  instances:
    - name: ours
      type: regime-aware
      parameters: {{ {parameters} }}
request_classifier:
  type: regime-feedback
"
    );
    std::fs::write(file.path(), yaml).unwrap();
    file
}

/// Link, read the file and build its policies as `regime-frontend serve` does before it listens.
fn start_frontend(file: &Path, clock: Arc<ManualClock>) -> (Handle, RouterPlugins) {
    let linked = link(regime_frontend::Extensions {
        policy_options: Options {
            clock: Some(clock as Arc<dyn Clock>),
            ..Options::default()
        },
        register: None,
    })
    .unwrap();
    let policy = PolicyArgs {
        router_policy_config: Some(file.to_owned()),
        ..PolicyArgs::default()
    };
    let routing = Resolved::new(&policy, &TuningArgs::default(), &Sources::default()).unwrap();
    let roles = Roles::of(&routing, &Sources::default(), &policy).unwrap();
    let plugins = roles.resolve(&linked.registry, &routing).unwrap();
    (linked.handle, plugins)
}

/// The decisions of one chat run past its knee: the lab's policy from `lab`, the frontend's from `frontend`.
fn decisions(
    topology: &str,
    lab: &Path,
    frontend: &Path,
) -> Vec<(WorkerWithDpRank, WorkerWithDpRank)> {
    let decisions = Decisions::default();
    let catalog = Catalog::default().with({
        let (decisions, frontend) = (Arc::clone(&decisions), frontend.to_owned());
        move |run| {
            let (handle, plugins) = start_frontend(&frontend, Arc::clone(&run.clock));
            let told = RegimeLifecycle::new(&handle, &run.workers);
            let decisions = Arc::clone(&decisions);
            run.around(move |role, config, lab| {
                let partition =
                    RoutingPartitionRef::new(MODEL, dynamo_kv_router::DEFAULT_ROUTING_GROUP);
                let build = plugins.worker_selection().unwrap();
                Box::new(Pair {
                    lab,
                    frontend: build(config, role, partition),
                    decisions: Arc::clone(&decisions),
                })
            });
            Ok(Some(Box::new(told)))
        }
    });
    let scale = Scale {
        requests: 400,
        ..Generator::Chat.default_scale()
    };
    let experiment = Experiment::new(
        Policy::named(lab.to_str().unwrap(), &catalog).unwrap(),
        Arc::new(Generator::Chat.generate(&scale).unwrap()),
        Engine::load("b200-70b").unwrap(),
        topology.parse().unwrap(),
        1,
    );
    experiment.run(&catalog).unwrap();
    let decisions = decisions.lock().unwrap();
    decisions.clone()
}

fn differing(topology: &str, lab: &str, frontend: &str) -> usize {
    let (lab, frontend) = (policy_file(lab), policy_file(frontend));
    let decisions = decisions(topology, lab.path(), frontend.path());
    assert!(decisions.len() >= 400, "{}", decisions.len());
    let workers: HashSet<_> = decisions.iter().map(|(lab, _)| lab).collect();
    assert!(workers.len() >= 3, "{workers:?}");
    decisions
        .iter()
        .filter(|(lab, frontend)| lab != frontend)
        .count()
}

#[test]
fn the_same_file_decides_alike_in_the_lab_and_in_the_frontend() {
    for topology in ["4", "2P3D"] {
        for parameters in ["seed: 5", "seed: 5, cost: paper"] {
            let differing = differing(topology, parameters, parameters);
            assert_eq!(differing, 0, "{topology}, {parameters}");
        }
    }
}

#[test]
fn another_seed_in_the_file_shows_in_the_decisions() {
    assert!(differing("4", "seed: 5, cost: paper", "seed: 6, cost: paper") > 0);
}
