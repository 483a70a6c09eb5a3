// SPDX-License-Identifier: Apache-2.0

//! The page and its plots, from real runs and from hostile or empty results.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use quick_xml::Reader;
use quick_xml::events::Event;
use regime_lab::report::{self, RunDetail};
use regime_lab::{Load, LoadLevel, Provenance, Results, RunEntry};
use serde_json::json;
use support::{chat, engine, experiment, run};

/// A few runs with their details.
fn runs(policies: &[&str], topology: &str, seeds: u64) -> (Vec<RunEntry>, Vec<RunDetail>) {
    let mut runs = (Vec::new(), Vec::new());
    for policy in policies {
        for seed in 1..=seeds {
            let engine = engine("b200-70b", json!({ "max_num_seqs": 4 }));
            let mut trial = experiment(policy, chat(30, 4, 100.0, seed), engine, topology, seed);
            trial.load = Some(Load::Level(LoadLevel::Knee));
            let run = run(&trial);
            runs.0.push(RunEntry::new(&trial, &run));
            runs.1.push(RunDetail::from_run(&trial, &run));
        }
    }
    runs
}

/// Every file of the report, by name.
fn written(results: &Results, details: &[RunDetail]) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("report");
    report::write(&dir, results, details).unwrap();
    files(&dir)
}

fn files(dir: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    });
    entries.collect()
}

/// Text of an XML document, and a panic when it is not well-formed.
fn text_of(xml: &str) -> String {
    let mut reader = Reader::from_str(xml);
    let mut text = String::new();
    let mut depth = 0;
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => {
                assert!(start.attributes().all(|attribute| attribute.is_ok()));
                depth += 1;
            }
            Event::End(_) => depth -= 1,
            Event::Text(part) => text.push_str(&part.decode().unwrap()),
            Event::GeneralRef(name) => text.push_str(&format!("&{};", name.decode().unwrap())),
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    text
}

const PLOTS: [&str; 5] = [
    "ttft-over-time",
    "ttft-cdf",
    "load-per-worker",
    "cache-hits",
    "pareto",
];

#[test]
fn a_page_has_every_section_and_every_plot_is_a_file_too() {
    for topology in ["2", "1P2D"] {
        let (entries, details) = runs(&["default", "regime-aware", "random"], topology, 1);
        let files = written(&Results::new(Provenance::default(), entries), &details);
        let page = &files["index.html"];
        for part in [
            "All numbers are simulated",
            "Provenance",
            "aisimulate-core",
            "<caption>",
            "TTFT P99",
            "load knee",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg ").count(), PLOTS.len());
        assert!(!page.contains("NaN") && !page.contains("inf ") && !page.contains("<script"));
        let slug = topology.to_lowercase();
        for plot in PLOTS {
            let svg = &files[&format!("01-chat-{slug}-knee-{plot}.svg")];
            let text = text_of(svg);
            assert!(
                text.contains("simulated") && !text.contains("NaN"),
                "{plot}"
            );
        }
        assert_eq!(files.len(), PLOTS.len() + 1);
    }
}

#[test]
fn regimes_of_the_regime_aware_policy_are_recorded_in_order_and_shaded() {
    let (entries, details) = runs(&["regime-aware", "default"], "2", 1);
    let regimes = &details[0].pools[0].regimes;
    assert!(regimes.len() > 1, "{regimes:?}");
    assert_eq!(regimes[0].from_ms, 0.0);
    for pair in regimes.windows(2) {
        assert!(pair[0].from_ms <= pair[1].from_ms && pair[0].regime != pair[1].regime);
    }
    assert!(details[1].pools[0].regimes.is_empty());
    let files = written(&Results::new(Provenance::default(), entries), &details);
    let text = text_of(&files["01-chat-2-knee-ttft-over-time.svg"]);
    assert!(text.contains(&format!("regime {}", regimes[1].regime)));
}

#[test]
fn a_detail_that_was_kept_as_json_draws_the_same() {
    let (entries, details) = runs(&["regime-aware"], "2", 1);
    let results = Results::new(Provenance::default(), entries);
    let json = serde_json::to_string(&details).unwrap();
    let kept: Vec<RunDetail> = serde_json::from_str(&json).unwrap();
    assert_eq!(written(&results, &kept), written(&results, &details));
}

#[test]
fn hostile_names_are_escaped_everywhere() {
    let hostile = "</svg></style><script>alert('\"&\u{1}')</script>";
    let (mut entries, mut details) = runs(&["random", "round-robin"], "2", 1);
    for (entry, detail) in entries.iter_mut().zip(&mut details) {
        for name in [&mut entry.policy, &mut detail.policy] {
            name.insert_str(0, hostile);
        }
        (entry.workload, detail.workload) = (hostile.into(), hostile.into());
        (entry.engine, detail.engine) = (hostile.into(), hostile.into());
    }
    let provenance = Provenance {
        command: Some(hostile.into()),
        ..Provenance::default()
    };
    let files = written(&Results::new(provenance, entries), &details);
    assert_eq!(files.len(), PLOTS.len() + 1);
    for (name, text) in &files {
        assert!(
            !text.contains("<script") && !text.contains('\u{1}'),
            "{name}"
        );
        assert!(
            name.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        );
        if name.ends_with(".svg") {
            text_of(text);
        }
    }
}

#[test]
fn plots_of_an_earlier_page_go_and_other_files_stay() {
    let (entries, details) = runs(&["default"], "2", 1);
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "07-old-4-knee-pareto.svg",
        "mine-pareto.svg",
        "07-notes.svg",
    ] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let results = Results::new(Provenance::default(), entries);
    report::write(folder.path(), &results, &details).unwrap();
    let files = files(folder.path());
    assert!(!files.contains_key("07-old-4-knee-pareto.svg"));
    assert!(files.contains_key("mine-pareto.svg") && files.contains_key("07-notes.svg"));
    assert!(files.contains_key("01-chat-2-knee-pareto.svg"));
}

#[test]
fn no_runs_say_so() {
    let files = written(&Results::new(Provenance::default(), Vec::new()), &[]);
    assert_eq!(files.len(), 1);
    assert!(files["index.html"].contains("No runs."));
}

#[test]
fn a_run_that_completed_nothing_is_named_and_not_ranked() {
    let (mut entries, details) = runs(&["default", "random"], "2", 1);
    entries[1].metrics = regime_lab::Metrics {
        rejected: 7,
        // Such a P99 would win.
        ttft_ms: regime_lab::Distribution::of(vec![0.001; 200]),
        ..Default::default()
    };
    let files = written(&Results::new(Provenance::default(), entries), &details);
    let page = &files["index.html"];
    assert!(page.contains("<strong>Completed nothing</strong>: not ranked."));
    assert!(!page.contains("0.001 ms"));
}

#[test]
fn a_p99_from_few_samples_is_marked() {
    let (mut entries, details) = runs(&["default", "random"], "2", 1);
    let page = |entries: &[RunEntry]| {
        let results = Results::new(Provenance::default(), entries.to_vec());
        written(&results, &details)["index.html"].clone()
    };
    // 120 requests.
    assert!(!page(&entries).contains('†'));
    entries[0].metrics.ttft_ms = regime_lab::Distribution::of(vec![5.0; 99]);
    assert!(page(&entries).contains("<td>5 ms †</td>"));
}

#[test]
fn seeds_are_medians_and_groups_are_apart() {
    let (mut entries, mut details) = runs(&["default", "random"], "2", 3);
    for (run, p99) in entries
        .iter_mut()
        .zip([10.0, 70_000.0, 30.0, 20.0, 80_000.0, 40.0])
    {
        run.metrics.ttft_ms = regime_lab::Distribution::of(vec![p99; 100]);
    }
    let (more, their_details) = runs(&["default"], "1", 1);
    entries.extend(more);
    details.extend(their_details);
    let files = written(&Results::new(Provenance::default(), entries), &details);
    let page = &files["index.html"];
    assert!(page.contains("<td>30 ms</td>") && page.contains("Overview"));
    assert_eq!(page.matches("<section ").count(), 2);
    // The one in the middle is drawn.
    let text = text_of(&files["01-chat-2-knee-ttft-over-time.svg"]);
    assert!(text.contains("Seed 3."), "{text}");
    assert_eq!(files.len(), 2 * PLOTS.len() + 1);
}

#[test]
fn comparisons_stand_beside_the_runs_they_are_about() {
    let (entries, details) = runs(&["default", "random"], "2", 2);
    let mut results = Results::new(Provenance::default(), entries);
    assert!(!written(&results, &details)["index.html"].contains("Ratios to"));
    results.comparisons = regime_lab::experiments::compare(&results.runs, "default");
    let page = &written(&results, &details)["index.html"];
    assert!(page.contains("Ratios to default on the same arrivals"));
    assert!(page.contains("<th scope=\"col\">TTFT mean</th>"));
}

#[test]
fn the_best_policy_has_a_star_only_where_a_comparison_claims_it() {
    let (mut entries, _) = runs(&["default", "random"], "2", 2);
    // Seeds of default, then those of random.
    let stars = |entries: &mut Vec<RunEntry>, ttfts_ms: [f64; 4]| {
        for (run, ttft_ms) in entries.iter_mut().zip(ttfts_ms) {
            run.metrics = regime_lab::Metrics {
                completed: 200,
                peak_in_flight: 9,
                ttft_ms: regime_lab::Distribution::of(vec![ttft_ms; 200]),
                ..Default::default()
            };
        }
        let mut results = Results::new(Provenance::default(), entries.clone());
        results.comparisons = regime_lab::experiments::compare(&results.runs, "default");
        let page = written(&results, &[])["index.html"].clone();
        ["★ 20 ms", "★ 30 ms"].map(|star| page.contains(star))
    };
    // Half in both seeds; twice in both; and half in one, twice in the other.
    assert_eq!(stars(&mut entries, [30.0, 50.0, 15.0, 25.0]), [true, false]);
    assert_eq!(stars(&mut entries, [20.0, 40.0, 40.0, 80.0]), [false, true]);
    assert_eq!(
        stars(&mut entries, [20.0, 40.0, 10.0, 80.0]),
        [false, false]
    );
}

#[test]
fn a_page_of_a_suite_has_its_scoreboard() {
    let (entries, _) = runs(&["default", "random"], "2", 1);
    let mut results = Results::new(Provenance::default(), entries);
    assert!(!written(&results, &[])["index.html"].contains("Scoreboard"));
    results.scoreboard = regime_lab::experiments::scoreboard(&results.runs, "default");
    let page = written(&results, &[])["index.html"].clone();
    let geo = results.scoreboard[0].ttft_ms_mean.as_ref().unwrap().geo;
    assert!(page.contains("Scoreboard") && page.contains(&format!("<td>{geo:.3}</td>")));
    assert!(page.contains("title=\"chat/knee/2\""));
}

#[test]
fn what_queueing_expects_stands_beside_the_measured_wait_and_the_regimes_seen() {
    let (entries, _) = runs(&["default", "regime-aware"], "2", 1);
    let measured = entries[0].queueing().unwrap();
    assert!(measured.wait_ms > 0.0 && measured.prefill.servers == 2);
    let page = &written(&Results::new(Provenance::default(), entries), &[])["index.html"];
    assert!(page.contains("What queueing explains, and what it does not"));
    assert!(page.contains(measured.reading.words()));
    assert!(page.contains("aggregated: ") && page.contains("(regime-aware)"));
}

#[test]
fn loads_that_are_numbers_make_a_curve_from_three_on() {
    let entries = |loads: &[f64]| -> Vec<RunEntry> {
        let (base, _) = runs(&["default"], "2", 1);
        let at = |load: &f64| RunEntry {
            load: Some(Load::Number(*load)),
            ..base[0].clone()
        };
        loads.iter().map(at).collect()
    };
    let curve = |loads: &[f64]| {
        let files = written(&Results::new(Provenance::default(), entries(loads)), &[]);
        files.get("01-chat-2-b200-70b-ttft-over-load.svg").cloned()
    };
    assert_eq!(curve(&[1.0, 2.0]), None);
    let drawn = text_of(&curve(&[4.0, 1.0, 2.0]).unwrap());
    assert!(
        drawn.contains("never passes three times") && drawn.contains("expected by queueing"),
        "{drawn}"
    );
    assert!(!drawn.contains("NaN"));
}

#[test]
fn without_details_there_are_tables_and_the_front() {
    let (entries, _) = runs(&["default", "random"], "2", 1);
    let files = written(&Results::new(Provenance::default(), entries), &[]);
    assert!(files.contains_key("01-chat-2-knee-pareto.svg"));
    assert_eq!(files.len(), 2);
}
