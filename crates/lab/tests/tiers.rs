// SPDX-License-Identifier: Apache-2.0

//! Cached blocks in a host tier: what following them costs, and what the suite of tiers makes of it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dynamo_kv_router::WorkerType;
use regime_core::WorkerKey;
use regime_kv::TierFactor;
use regime_lab::experiments::{Found, Levels, Runner, Suite, TierSuite};
use regime_lab::report::write_tiers;
use regime_lab::workloads::{Generator, OfferedLoad, Scale};
use regime_lab::{
    Catalog, Engine, Experiment, Lifecycle, Link, Policy, Provenance, Results, Run, Settings,
    Workload,
};
use regime_policy::Handle;
use serde_json::{Map, Value, json};
use support::{chat, engine, run};

fn documents(requests: usize, rate: f64) -> Workload {
    let scale = Scale {
        requests,
        load: OfferedLoad::Rate(rate),
        ..Generator::WorkingSet.default_scale()
    };
    Generator::WorkingSet.generate(&scale).unwrap()
}

/// Four workers whose device memory holds a third of the documents, each with a host tier that holds all.
fn on_host_tier(gb_s: f64, parameters: Value) -> Run {
    run(&host_tier(gb_s, parameters))
}

fn host_tier(gb_s: f64, parameters: Value) -> Experiment {
    let Value::Object(parameters) = parameters else {
        panic!("no parameters")
    };
    let policy = Policy::named("regime-aware", &Catalog::default())
        .unwrap()
        .with_parameters(parameters, "mine")
        .unwrap();
    let host = json!({
        "num_host_blocks": 24_576, "latency_to_first_byte_ms": 0.05,
        "h2d_bandwidth_gbps": gb_s, "d2h_bandwidth_gbps": gb_s,
    });
    let settings = json!({"num_gpu_blocks": 2_048, "native_host_offload": host});
    Experiment::new(
        policy,
        Arc::new(documents(300, 4.0)),
        engine("b200-70b", settings),
        "4".parse().unwrap(),
        1,
    )
}

fn by_time(gb_s: f64) -> Value {
    json!({"tier_value": "time", "tiers": {
        "host": {"bandwidth_gb_s": gb_s}, "disk": null, "shared": null,
    }})
}

fn device_only() -> Value {
    json!({"tier_weights": {"host": 0.0, "disk": 0.0, "shared": 0.0}})
}

fn mean_ttft_ms(run: &Run) -> f64 {
    run.metrics.ttft_ms.unwrap().mean
}

#[test]
fn a_slow_host_tier_loses_when_it_is_followed_and_by_time_its_blocks_count_for_nothing() {
    // 0.04 ms a token, where computing one takes 0.03 ms.
    let followed = on_host_tier(4.0, json!({"tier_value": "weights"}));
    let seen = on_host_tier(4.0, by_time(4.0));
    assert!(
        mean_ttft_ms(&followed) > 1.15 * mean_ttft_ms(&seen),
        "{} and {}",
        mean_ttft_ms(&followed),
        mean_ttft_ms(&seen)
    );
    let without =
        json!({"tier_value": "time", "tiers": {"host": null, "disk": null, "shared": null}});
    let blind = on_host_tier(4.0, without);
    assert_eq!(seen.record.decisions.len(), 300);
    let workers = |run: &Run| -> Vec<usize> {
        let decisions = run.record.decisions.iter();
        decisions.map(|decision| decision.worker).collect()
    };
    assert_eq!(workers(&seen), workers(&blind));
    assert_ne!(workers(&seen), workers(&followed));
}

#[test]
fn a_fast_host_tier_is_worth_following_by_time() {
    let seen = on_host_tier(63.0, by_time(63.0));
    let blind = on_host_tier(63.0, device_only());
    assert!(mean_ttft_ms(&seen) < mean_ttft_ms(&blind));
}

/// Reads what is known of the host tier at each first token.
struct Reader(Handle, Arc<Mutex<Option<TierFactor>>>);

impl Lifecycle for Reader {
    fn first_token(&mut self, _: WorkerType, _: &str, _: WorkerKey, _: f64) {
        let pools = self.0.report().pools;
        *self.1.lock().unwrap() = pools.first().map(|pool| pool.tiers.factors["host"]);
    }
}

/// The factor at the end of a run where the ladder is that of the defaults, 63 GB/s.
fn learned(gb_s: f64) -> TierFactor {
    let read = Arc::default();
    let shared = Arc::clone(&read);
    let catalog = Catalog::default().with(move |link: &mut Link<'_>| {
        let reader = Reader(link.ours().unwrap(), Arc::clone(&shared));
        Ok(Some(Box::new(reader) as Box<dyn Lifecycle>))
    });
    host_tier(gb_s, json!({"tier_value": "time"}))
        .run(&catalog)
        .unwrap();
    let last: Option<TierFactor> = *read.lock().unwrap();
    last.unwrap()
}

#[test]
fn the_speed_of_the_link_is_learned_whatever_the_ladder_says() {
    for (gb_s, factor) in [(4.0, 15.75), (16.0, 63.0 / 16.0)] {
        let known = learned(gb_s);
        assert!(known.samples >= 3, "{known:?}");
        let off = known.factor / factor;
        assert!(
            (0.7..1.3).contains(&off),
            "{known:?}, the link says {factor}"
        );
    }
}

#[test]
fn hits_by_tier_add_up_to_the_reuse_and_what_was_brought_up_had_been_written_down() {
    let run = on_host_tier(63.0, by_time(63.0));
    let tiers = run.metrics.tiers.unwrap();
    let reuse = run.metrics.engine_reuse.unwrap();
    assert!((tiers.device_hits + tiers.host_hits - reuse).abs() < 1e-9);
    assert!(tiers.host_hits > 0.05, "{tiers:?}");
    let traffic = run.record.tiers.unwrap();
    // A prompt token is 163,840 bytes.
    let gb = traffic.host_tokens as f64 * 163_840.0 / 1e9;
    assert!((tiers.host_read_gb.unwrap() - gb).abs() < 1e-9);
    // Each of the 48 documents of 8,192 tokens that was asked for is written by some worker.
    assert!(traffic.written_tokens.unwrap() > 40 * 8_192);
    let alone = documents(20, 12.0);
    let without = Experiment::new(
        Policy::named("regime-aware", &Catalog::default()).unwrap(),
        Arc::new(alone),
        Engine::load("b200-70b").unwrap(),
        "4".parse().unwrap(),
        1,
    );
    assert_eq!(support::run(&without).metrics.tiers, None);
}

/// The parts of the quick suite with conversations, small enough for a test.
fn small_suite(catalog: &Catalog) -> Suite {
    let load = |settings: Map<String, Value>| Engine::load_with("b200-70b", &settings);
    let parts = TierSuite {
        quick: true,
        workloads: vec![Generator::Chat],
        conditions: Vec::new(),
        size: 0.03,
        settings: Settings::default(),
        catalog,
        policies: TierSuite::POLICIES.map(str::to_owned).to_vec(),
        engine: &load,
    }
    .parts()
    .unwrap();
    Suite {
        parts,
        engine: Engine::load("b200-70b").unwrap(),
        seeds: vec![1],
        size: 0.03,
    }
}

#[test]
fn the_suite_records_where_its_runs_stand_and_its_page_has_plots_over_cache_and_omega() {
    let catalog = Catalog::default();
    let suite = small_suite(&catalog);
    let rate = |rate| Found::given(OfferedLoad::Rate(rate));
    let levels = Levels {
        light: rate(5.0),
        knee: rate(10.0),
        saturated: rate(20.0),
    };
    // Two sizes of the cache, searched with the fast link for both links.
    assert_eq!(suite.cells().len(), 2);
    let trials = suite.trials(&[Some(levels); 2]);
    // Two loads and sizes: 3 policies behind the fast link and 4 behind the slow one. At two scales of ω: 3.
    assert_eq!(trials.len(), 2 * 2 * (3 + 4) + 2 * 2 * 3);
    assert!(!trials.iter().any(|trial| suite.plots(trial)));
    let runner = Runner {
        catalog: &catalog,
        threads: 1,
        journal: None,
        finished: &|| {},
    };
    let runs: Vec<_> = runner
        .run(&trials)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let scales: Vec<f64> = [0, runs.len() - 1]
        .map(|at| runs[at].tier_point.unwrap().omega_scale)
        .to_vec();
    assert_eq!(scales, [1.0, 4.0]);
    assert!(runs.iter().all(|run| run.metrics.tiers.is_some()));

    let folder = tempfile::tempdir().unwrap();
    let results = Results::new(Provenance::default(), runs);
    write_tiers(folder.path(), &results).unwrap();
    let page = std::fs::read_to_string(folder.path().join("tiers.html")).unwrap();
    assert!(page.contains("All numbers are simulated"));
    for plot in [
        "tiers-cache-host-63-chat.svg",
        "tiers-cache-slow-4-chat.svg",
        "tiers-omega-chat.svg",
    ] {
        let text = std::fs::read_to_string(folder.path().join(plot)).unwrap();
        let mut reader = quick_xml::Reader::from_str(&text);
        while reader.read_event().unwrap() != quick_xml::events::Event::Eof {}
        // A line for each policy of the condition and load.
        assert!(text.matches("<polyline").count() >= 6, "{plot}");
        assert!(page.contains(plot), "{plot}");
    }
    for row in ["host-63", "slow-4", "omega-4", "time-preset"] {
        assert!(page.contains(row), "{row}");
    }
}

/// Conversations on two workers that hold a few of them in device memory and all in a host tier of which
/// they tell nothing. `feedback` are parameters of the classifier.
fn conversations(selection: &str, feedback: &str) -> Run {
    let yaml = format!(
        "worker_selection: {{ aggregated: main, instances: [ {{ name: main, type: regime-aware, parameters: \
         {{{selection}}} }} ] }}\nrequest_classifier: {{ type: regime-feedback, parameters: {{{feedback}}} }}"
    );
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let host = json!({
        "num_host_blocks": 20_000, "latency_to_first_byte_ms": 0.05,
        "h2d_bandwidth_gbps": 63.0, "d2h_bandwidth_gbps": 63.0,
    });
    let settings = json!({"num_gpu_blocks": 1_024, "native_host_offload": host});
    let mut experiment = Experiment::new(
        Policy::named(file.path().to_str().unwrap(), &Catalog::default()).unwrap(),
        Arc::new(chat(40, 4, 150.0, 1)),
        engine("b200-70b", settings),
        "2".parse().unwrap(),
        1,
    );
    experiment.settings.device_events_only = true;
    run(&experiment)
}

/// Share of the later turns that were served where the turn before was.
fn returned(run: &Run) -> f64 {
    let mut last = HashMap::new();
    let (mut turns, mut same) = (0, 0);
    for request in &run.record.requests {
        let before = last.insert(request.session, request.prefill_worker);
        turns += usize::from(before.is_some());
        same += usize::from(before == Some(request.prefill_worker));
    }
    f64::from(same as u32) / f64::from(turns as u32)
}

#[test]
fn conversations_return_to_what_they_left_in_an_untold_tier_and_find_it_there() {
    let target = "session_target: {enabled: true}";
    let advisory = "session_affinity: advisory, seed: 1";
    let (off, on) = (conversations(advisory, ""), conversations(advisory, target));
    assert!(
        returned(&on) > returned(&off) + 0.1,
        "{} {}",
        returned(&on),
        returned(&off)
    );
    let host_hits = |run: &Run| run.metrics.tiers.unwrap().host_hits;
    assert!(host_hits(&on) > host_hits(&off));
    assert!(mean_ttft_ms(&on) < mean_ttft_ms(&off));
    let targets = |run: &Run| {
        run.report.as_ref().unwrap().pools[0]
            .decisions
            .session_targets
    };
    assert!(targets(&on) > 0);
    assert_eq!(targets(&off), 0);
    // A pool whose affinity is exclusive, and one that is saturated from its first request on.
    let saturated = "session_affinity: advisory, regime: {windows: 1, dwell_ms: 0, min_samples: 1}, \
         signals: {slowdown: {transition_enter: 1e-6, transition_leave: 1e-7, saturated_enter: 1e-5, \
         saturated_leave: 1e-6}}";
    for selection in ["session_affinity: exclusive", saturated] {
        assert_eq!(targets(&conversations(selection, target)), 0, "{selection}");
    }
}
