// SPDX-License-Identifier: Apache-2.0

//! The program from outside: what it prints, writes, refuses and returns.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A small fleet, so that a run takes milliseconds.
const SMALL: [&str; 4] = ["--engine", "fixed", "--requests", "60"];

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_regime-lab"))
        .args(args)
        .output()
        .unwrap()
}

fn ok(args: &[&str]) -> String {
    let output = lab(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it says when it refuses.
fn refused(args: &[&str]) -> String {
    let output = lab(args);
    assert!(!output.status.success(), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn results(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("results.json")).unwrap()).unwrap()
}

/// The file without what was measured on the wall.
fn without_wall(folder: &Path) -> String {
    let mut results = results(folder);
    for run in results["runs"].as_array_mut().unwrap() {
        assert!(run.as_object_mut().unwrap().remove("wall").is_some());
    }
    results.to_string()
}

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

#[test]
fn a_replay_prints_a_table_and_writes_both_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let replay = [
        "replay",
        "--policy",
        "regime-aware",
        "--workload",
        "chat",
        "--out",
        out,
    ];
    let table = ok(&with(&replay, &SMALL));
    assert!(
        table.contains("TTFT, ms") && table.contains("simulated"),
        "{table}"
    );
    assert!(table.contains("* from fewer than 100 samples"), "{table}");
    let results = results(folder.path());
    let run = &results["runs"][0];
    assert_eq!(
        (&run["policy"], &run["completed"]),
        (&"regime-aware".into(), &60.into())
    );
    let csv = std::fs::read_to_string(folder.path().join("results.csv")).unwrap();
    assert_eq!(csv.lines().count(), 2);
}

#[test]
fn json_is_the_file_and_quiet_is_silent() {
    let replay = with(
        &["replay", "--policy", "default", "--workload", "paper"],
        &SMALL,
    );
    let printed: Value = serde_json::from_str(&ok(&with(&replay, &["--json"]))).unwrap();
    assert_eq!(printed["schema"], "regime-lab.results.v1");
    assert_eq!(ok(&with(&replay, &["--quiet"])), "");
}

#[test]
fn a_report_is_one_page_for_a_replay() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let replay = [
        "replay",
        "--policy",
        "default",
        "--workload",
        "chat",
        "--quiet",
        "--report",
        out,
    ];
    ok(&with(&replay, &SMALL));
    let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("default"));
}

#[test]
fn a_wrong_name_is_refused_with_the_right_ones() {
    for (args, words) in [
        (
            &["replay", "--policy", "regime", "--workload", "chat"][..],
            "allowed are default",
        ),
        (
            &["replay", "--policy", "default", "--workload", "chatt"],
            "allowed: chat, chat-pauses, hotspot-shift",
        ),
        (
            &[
                "replay",
                "--policy",
                "default",
                "--workload",
                "chat",
                "--engine",
                "b300",
            ],
            "allowed are b200-70b",
        ),
        (
            &[
                "replay",
                "--policy",
                "default",
                "--workload",
                "chat",
                "--topology",
                "2P",
            ],
            "such as 2P3D",
        ),
        (
            &[
                "replay",
                "--policy",
                "default",
                "--workload",
                "chat",
                "--engine-set",
                "num_gpu_block=9",
            ],
            "num_gpu_blocks",
        ),
        (
            &[
                "replay",
                "--policy",
                "default",
                "--workload",
                "chat",
                "--rate",
                "0",
            ],
            "rate",
        ),
        (
            &[
                "compare",
                "--policies",
                "default,best",
                "--workloads",
                "chat",
            ],
            "\"best\"",
        ),
        (&["sweep", "--param", "calibrated.prise=1"], "prise"),
        (&["sweep", "--param", "omega"], "NAME=VALUE"),
        (
            &["suite", "standard", "--traces", "no-such-folder"],
            "no-such-folder",
        ),
        (
            &["suite", "standard", "--loads", "knee,heavy"],
            "light, knee, saturated",
        ),
        (
            &["suite", "stress", "--conditions", "nonsense"],
            "allowed are late-events, priors-high, priors-low, slow-worker, large-pools",
        ),
        (
            &["paper", "--fleets", "1P2D,2P2D"],
            "fleet \"2P2D\" is unknown; allowed are 1P2D, 1P5D, narrow-1P2D",
        ),
        (&["paper", "--concurrency", "0"], "at least 1"),
        (&["paper", "--size", "0"], "above 0, at most 100"),
        (
            &["paper", "--concurrency", "99999999"],
            "at most 1000000 of a generated workload",
        ),
    ] {
        let said = refused(args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn what_cannot_be_run_as_asked_gives_2_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below_a_file = file.join("out");
    let replay = ["replay", "--policy", "default", "--workload", "chat"];
    for (more, words) in [
        (
            &["--rate", "-1"][..],
            "rate is -1; allowed: 1e-6 to 1e6 requests a second",
        ),
        (&["--rate", "1e-300"], "1e-6 to 1e6"),
        (&["--seed", "-1"], "allowed is an integer from 0"),
        (
            &["--concurrency", "-1"],
            "allowed is an integer, at least 1",
        ),
        (
            &["--requests", "99999999999999"],
            "at most 1000000 of a generated workload",
        ),
        (
            &["--kv-event-lag-ms", "-1"],
            "kv_event_lag_ms is -1; allowed: 0 to",
        ),
        (
            &["--slowdowns", "-1,1"],
            "slowdowns is -1; allowed: numbers from 0.01 to 100",
        ),
        (
            &["--requests", "60", "--warm-up", "60"],
            "warm_up is 60; allowed: fewer than the requests of the run",
        ),
        (&["--policy", "regime"], ""),
        (&["--block-size", "16"], "are for traces"),
        (&["--out", below_a_file.to_str().unwrap()], "--out "),
        (&["--report", below_a_file.to_str().unwrap()], "--report "),
    ] {
        let output = lab(&with(&replay, more));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {said}");
        assert!(
            output.stdout.is_empty() && said.contains(words),
            "{more:?}: {said}"
        );
    }
    let seeds = [
        "compare",
        "--policies",
        "random",
        "--workloads",
        "chat",
        "--seeds",
    ];
    for count in ["10001", "-1"] {
        let said = refused(&with(&seeds, &[count]));
        assert!(said.contains("is not in 1..=10000"), "{said}");
    }
    let said = refused(&with(&seeds, &["2", "--seed", "18446744073709551615"]));
    assert!(
        said.contains("allowed with 2 seeds: 0 to 18446744073709551614"),
        "{said}"
    );
}

#[test]
fn the_load_of_a_run_is_told_with_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let replay = [
        "replay",
        "--policy",
        "default",
        "--workload",
        "paper",
        "--out",
    ];
    let replay = with(&replay, &[folder.path().to_str().unwrap()]);
    for (load, words, key, number) in [
        (["--rate", "4"], "at 4 requests/s", "rate", 4.0),
        (["--concurrency", "4"], "at 4 sessions", "concurrency", 4.0),
    ] {
        let table = ok(&with(&with(&replay, &SMALL), &load));
        assert!(table.contains(words), "{table}");
        let run = &results(folder.path())["runs"][0];
        assert_eq!(run["offered"][key].as_f64(), Some(number), "{run}");
        assert!(run.get("load_not_reached").is_none());
    }
    let searched = with(&with(&replay, &SMALL), &["--load", "knee"]);
    let table = ok(&searched);
    let run = &results(folder.path())["runs"][0];
    let sessions = run["offered"]["concurrency"].as_u64().unwrap();
    assert!(
        table.contains(&format!("at load knee ({sessions} sessions)")),
        "{table}"
    );
}

#[test]
fn a_load_that_no_try_reaches_is_marked() {
    // Passes take no time to speak of, and there is a seat for everybody.
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "compare",
        "--policies",
        "random",
        "--workloads",
        "decode-heavy",
        "--requests",
        "20",
        "--seeds",
        "1",
        "--load",
        "saturated",
        "--out",
        folder.path().to_str().unwrap(),
    ];
    let table = ok(&args);
    let note = "decode-heavy on 4 never reached saturated: the highest load tried stands for it";
    assert!(table.contains(note), "{table}");
    let results = results(folder.path());
    assert_eq!(results["runs"][0]["load_not_reached"], true);
    assert_eq!(results["comparisons"][0]["notes"][0], note);
}

#[test]
fn each_command_has_its_own_usual_number_of_seeds() {
    let small = ["--requests", "5", "--engine", "fixed", "--json"];
    let compare = ["compare", "--policies", "default", "--workloads", "paper"];
    let sweep = ["sweep", "--param", "tick_ms=100", "--workload", "paper"];
    for (args, seeds) in [(&compare[..], 20), (&sweep[..], 5)] {
        let results: Value = serde_json::from_str(&ok(&with(args, &small))).unwrap();
        assert_eq!(results["runs"].as_array().unwrap().len(), seeds, "{args:?}");
    }
    let suite = [
        "suite",
        "standard",
        "--engine",
        "fixed",
        "--workloads",
        "paper",
        "--topology",
        "1",
        "--loads",
        "light",
        "--policies",
        "default",
        "--size",
        "0.01",
        "--json",
    ];
    let results: Value = serde_json::from_str(&ok(&suite)).unwrap();
    assert_eq!(results["runs"].as_array().unwrap().len(), 3);
}

#[test]
fn a_workload_given_twice_runs_once() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "compare",
        "--policies",
        "random",
        "--workloads",
        "paper,paper",
        "--topology",
        "2,2",
        "--seeds",
        "1",
        "--out",
        folder.path().to_str().unwrap(),
    ];
    ok(&with(&args, &SMALL));
    assert_eq!(results(folder.path())["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_trace_with_faults_lists_them_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let workload = "trace:tests/data/traces/bad-many.jsonl";
    let args = [
        "replay",
        "--policy",
        "default",
        "--workload",
        workload,
        "--out",
        out.to_str().unwrap(),
    ];
    let said = refused(&args);
    assert!(said.contains("bad-many.jsonl:1: timestamp is -5"), "{said}");
    assert!(!out.exists());
}

#[test]
fn trace_check_summarises_a_good_file_and_lists_the_faults_of_a_bad_one() {
    let summary = ok(&["trace", "check", "tests/data/traces/mooncake.jsonl"]);
    assert!(summary.contains("ideal prefix hit rate"), "{summary}");
    let said = refused(&["trace", "check", "tests/data/traces/bad-many.jsonl"]);
    assert!(
        said.contains("10 faults") && said.contains(":7: delay is 9"),
        "{said}"
    );
    let faults = lab(&[
        "trace",
        "check",
        "--json",
        "tests/data/traces/bad-many.jsonl",
    ]);
    let faults: Value = serde_json::from_slice(&faults.stdout).unwrap();
    assert_eq!(
        (&faults["total"], &faults["faults"][0]["line"]),
        (&10.into(), &1.into())
    );
}

#[test]
fn the_lists_hold_every_name() {
    for (list, names) in [
        (
            "policies",
            &[
                "default",
                "regime-aware",
                "thunderagent",
                "lmetric",
                "dualmap",
            ][..],
        ),
        (
            "workloads",
            &["chat", "working-set", "paper-mixed", "trace:FILE"],
        ),
        ("engines", &["b200-70b", "h200-70b", "polynomial", "fixed"]),
    ] {
        let listed: Vec<Value> = serde_json::from_str(&ok(&[list, "--json"])).unwrap();
        for name in names {
            assert!(
                listed.iter().any(|it| it["name"] == **name),
                "{list}: {name}"
            );
        }
        assert!(ok(&[list]).contains(names[0]));
    }
}

#[test]
fn a_comparison_pairs_seeds_and_says_what_may_be_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let compare = [
        "compare",
        "--policies",
        "random",
        "--workloads",
        "chat,paper",
        "--seeds",
        "3",
        "--out",
        out,
    ];
    let table = ok(&with(&compare, &SMALL));
    assert!(table.contains("ratio to default"), "{table}");
    assert!(
        table.contains("P99 from fewer than 100 samples claims nothing"),
        "{table}"
    );
    let results = results(folder.path());
    // 2 workloads, 3 seeds, 2 policies.
    assert_eq!(results["runs"].as_array().unwrap().len(), 12);
    let comparison = &results["comparisons"][0];
    assert_eq!(
        (&comparison["policy"], &comparison["baseline"]),
        (&"random".into(), &"default".into())
    );
    assert_eq!(comparison["metrics"]["ttft_ms.mean"]["pairs"], 3);
    assert_eq!(
        comparison["metrics"]["ttft_ms.p99"]["verdict"],
        "few_samples"
    );
}

#[test]
fn requests_far_apart_have_no_winner() {
    // Field report BR-19: 100 requests, 30 s apart.
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("quiet.jsonl");
    let row = |index: usize| {
        let at_ms = 30_000 * index;
        format!(
            r#"{{"timestamp":{at_ms},"input_length":500,"output_length":20,"hash_ids":[{}]}}"#,
            index % 7
        )
    };
    let rows: Vec<String> = (0..100).map(row).collect();
    std::fs::write(&trace, rows.join("\n")).unwrap();
    let workload = format!("trace:{}", trace.display());
    let compare = [
        "compare",
        "--policies",
        "regime-aware,default",
        "--workloads",
        &workload,
        "--seeds",
        "2",
    ];
    let table = ok(&compare);
    assert!(
        table.contains("no contention, policies not distinguishable"),
        "{table}"
    );
    assert!(
        !table.contains("better:") && !table.contains("worse:"),
        "{table}"
    );
}

#[test]
fn a_run_that_completes_nothing_is_said_and_not_ranked() {
    // Cut before the first token.
    let cut = ["--max-time-ms", "1"];
    let replay = with(
        &["replay", "--policy", "default", "--workload", "paper"],
        &SMALL,
    );
    let failed = |args: &[&str]| {
        let output = lab(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = failed(&with(&replay, &cut));
    assert!(table.contains("nothing completed"), "{table}");
    let compare = with(
        &[
            "compare",
            "--policies",
            "random",
            "--workloads",
            "paper",
            "--seeds",
            "1",
        ],
        &SMALL,
    );
    let table = failed(&with(&compare, &cut));
    assert!(
        table.contains("completed nothing in 1 of 1 runs") && table.contains("not ranked"),
        "{table}"
    );
}

#[test]
fn a_sweep_marks_its_front() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let sweep = [
        "sweep",
        "--param",
        "omega=0.1,1",
        "--param",
        "tau=0,0.8",
        "--seeds",
        "1",
        "--out",
        out,
    ];
    let table = ok(&with(&sweep, &SMALL));
    assert!(table.contains("regime-aware omega=0.1 tau=0.8"), "{table}");
    let results = results(folder.path());
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    assert!(runs.iter().any(|run| run["pareto"] == true));
    assert!(runs.iter().all(|run| run["pareto"].is_boolean()));
}

#[test]
fn two_processes_and_any_number_of_threads_write_the_same() {
    // Field report BR-17.
    let written = |threads| {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_str().unwrap();
        let compare = [
            "compare",
            "--policies",
            "regime-aware,random,dualmap",
            "--workloads",
            "chat",
            "--seeds",
            "2",
            "--topology",
            "4,2P3D",
            "--threads",
            threads,
            "--out",
            out,
        ];
        ok(&with(&compare, &SMALL));
        without_wall(folder.path())
    };
    let once = written("1");
    assert!(once == written("1") && once == written("8"));
}

/// A suite of a few dozen runs.
fn suite<'a>(out: &'a str, policies: &'a str) -> Vec<&'a str> {
    vec![
        "suite",
        "standard",
        "--quick",
        "--engine",
        "fixed",
        "--workloads",
        "cold-burst",
        "--topology",
        "2",
        "--seeds",
        "1",
        "--size",
        "0.05",
        "--policies",
        policies,
        "--out",
        out,
    ]
}

#[test]
fn an_interrupted_suite_goes_on_and_gives_what_one_in_a_piece_gives() {
    let whole = tempfile::tempdir().unwrap();
    let table = ok(&suite(whole.path().to_str().unwrap(), "random"));
    assert!(
        table.contains("load knee") && table.contains("all loads, 3 cells"),
        "{table}"
    );
    let results = results(whole.path());
    let loads: Vec<_> = results["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["load"].clone())
        .collect();
    assert_eq!(
        loads,
        ["light", "light", "knee", "knee", "saturated", "saturated"]
    );

    let parts = tempfile::tempdir().unwrap();
    let journal = std::fs::read_to_string(whole.path().join("finished.jsonl")).unwrap();
    // The writer, all but the last run, and half of that one.
    let cut = &journal[..journal.len() - 40];
    std::fs::write(parts.path().join("finished.jsonl"), cut).unwrap();
    let again = lab(&suite(parts.path().to_str().unwrap(), "random"));
    let said = String::from_utf8(again.stderr).unwrap();
    let finished = cut.lines().count() - 2;
    assert!(
        said.contains(&format!("going on after {finished} finished runs")),
        "{said}"
    );
    assert!(without_wall(whole.path()) == without_wall(parts.path()));
    let resumed = std::fs::read_to_string(parts.path().join("finished.jsonl")).unwrap();
    assert_eq!(resumed.lines().count(), cut.lines().count() + 1);
}

#[test]
fn a_suite_of_one_load_has_one_board_and_one_row_for_each_workload() {
    let folder = tempfile::tempdir().unwrap();
    let mut args = suite(folder.path().to_str().unwrap(), "random,round-robin");
    args.extend(["--loads", "knee"]);
    let table = ok(&args);
    assert!(
        table.contains("all cells, 1 cells, seeds: 1") && !table.contains("load knee"),
        "{table}"
    );
    assert!(
        table.contains("random mean") && table.contains("round-robin P99"),
        "{table}"
    );
    let results = results(folder.path());
    assert_eq!(results["runs"].as_array().unwrap().len(), 3);
    let score = &results["scoreboard"][0];
    assert_eq!(
        (&score["policy"], &score["cells"], &score["seeds"]),
        (&"random".into(), &1.into(), &1.into())
    );
    // The one cell is the mean and the worst.
    let comparison = &results["comparisons"][0]["metrics"]["ttft_ms.mean"]["ratio"];
    let mean = &score["ttft_ms_mean"];
    let near =
        |value: &Value| (value.as_f64().unwrap() - comparison.as_f64().unwrap()).abs() < 1e-9;
    assert!(near(&mean["geo"]) && near(&mean["worst"]), "{score}");
    assert_eq!(mean["worst_cell"], "cold-burst/knee/2");
    assert!(score["vs_best"]["ttft_ms_p99"].is_number(), "{score}");
    assert!(score.get("condition").is_none(), "{score}");
}

#[test]
fn a_stress_suite_has_a_board_for_each_condition_and_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let stress = [
        "suite",
        "stress",
        "--quick",
        "--engine",
        "fixed",
        "--conditions",
        "priors-low,slow-worker,priors-low",
        "--policies",
        "regime-aware",
        "--seeds",
        "1",
        "--size",
        "0.02",
        "--out",
        folder.path().to_str().unwrap(),
    ];
    let table = ok(&stress);
    let board = |name| table.find(&format!("{name}, 2 cells, seeds: 1"));
    assert!(board("priors-low").unwrap() < board("slow-worker").unwrap());
    let once = results(folder.path());
    // 2 conditions, 2 workloads, 2 policies.
    let runs = once["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    for run in runs {
        let slow = run["condition"] == "slow-worker";
        assert_eq!(run["load"], "knee");
        assert_eq!(run["settings"].get("slowdowns").is_some(), slow, "{run}");
    }
    let boards: Vec<_> = once["scoreboard"]
        .as_array()
        .unwrap()
        .iter()
        .map(|score| (&score["condition"], &score["policy"]))
        .collect();
    assert_eq!(
        boards,
        [
            (&"priors-low".into(), &"regime-aware".into()),
            (&"slow-worker".into(), &"regime-aware".into())
        ]
    );
    let journal = std::fs::read_to_string(folder.path().join("finished.jsonl")).unwrap();
    // The first line is the writer's. Both conditions search two cells, in ten runs or more.
    let finished = journal.lines().count() - 1;
    assert!(finished >= 4 * 10 + 8);
    let again = lab(&stress);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(
        said.contains(&format!("going on after {finished} finished runs")),
        "{said}"
    );
    assert_eq!(results(folder.path()), once);
}

#[test]
fn a_small_reproduction_of_the_paper_is_judged_drawn_and_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let paper = [
        "paper",
        "--fleets",
        "narrow-1P5D,mixed-prompts",
        "--concurrency",
        "1,2,8",
        "--seeds",
        "1",
        "--size",
        "0.02",
        "--out",
        out,
        "--report",
        out,
    ];
    let table = ok(&paper);
    assert!(
        table.contains("66.4 to 21.5") && table.contains("not comparable"),
        "{table}"
    );
    let first = without_wall(folder.path());
    let results = results(folder.path());
    // Two fleets, three loads, four policies; sixteen pairs at 8 sessions, which is also the last load.
    assert_eq!(results["runs"].as_array().unwrap().len(), 24 + 16);
    let paper_report = &results["paper"];
    assert_eq!(paper_report["findings"].as_array().unwrap().len(), 4);
    assert_eq!(
        paper_report["sweeps"][0]["points"]
            .as_array()
            .unwrap()
            .len(),
        16
    );
    let slowdowns = paper_report["fleets"][0]["slowdowns"].as_array().unwrap();
    assert_eq!((slowdowns.len(), &slowdowns[0][1]), (3, &1.0.into()));
    let run = &results["runs"][0];
    assert_eq!(
        (&run["policy"], &run["queueing"]["reading"]),
        (&"paper-static".into(), &"no_wait".into())
    );
    let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    for part in [
        "The paper, reproduced",
        "Where policies separate",
        "What queueing explains",
        "Fixed τ and ω",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let curve = "01-paper-1p5d-b200-70b-narrow-ttft-over-load.svg";
    assert!(folder.path().join(curve).is_file());
    let again = lab(&paper);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(said.contains("going on after 40 finished runs"), "{said}");
    assert_eq!(without_wall(folder.path()), first);
}

#[test]
fn a_suite_of_tiers_is_compared_with_fixed_weights_and_has_a_page_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().to_str().unwrap();
    let table = ok(&[
        "suite",
        "tiers",
        "--quick",
        "--seeds",
        "1",
        "--size",
        "0.06",
        "--policies",
        "time,round-robin",
        "--out",
        to,
        "--report",
        to,
    ]);
    for condition in ["host-63", "slow-4", "omega-0.1", "omega-4"] {
        assert!(table.contains(&format!("{condition}, ")), "{condition}");
    }
    let results = results(folder.path());
    let runs = results["runs"].as_array().unwrap();
    // 2 links, workloads, sizes and loads; 2 scales of ω on 2 workloads at 2 loads; 3 policies.
    assert_eq!(runs.len(), (16 + 8) * 3);
    for run in runs {
        assert!(run["tier_point"]["cache_share"].is_number(), "{run}");
        assert!(run["tiers"]["host_read_gb"].is_number(), "{run}");
    }
    for score in results["scoreboard"].as_array().unwrap() {
        assert_eq!(score["baseline"], "weights");
    }
    let page = std::fs::read_to_string(folder.path().join("tiers.html")).unwrap();
    assert!(page.contains("regime-lab suite tiers"));
}

#[test]
fn a_folder_of_traces_is_added_and_other_files_in_it_passed_over() {
    let traces = tempfile::tempdir().unwrap();
    let row = |index: usize| {
        let at_ms = 100 * index;
        format!(
            r#"{{"timestamp":{at_ms},"input_length":500,"output_length":20,"hash_ids":[{}]}}"#,
            index % 7
        )
    };
    let rows: Vec<String> = (0..80).map(row).collect();
    std::fs::write(traces.path().join("a.jsonl"), rows.join("\n")).unwrap();
    std::fs::write(traces.path().join("README.md"), "about them").unwrap();
    std::fs::write(traces.path().join("meta.json"), r#"{"a":1}"#).unwrap();
    let out = tempfile::tempdir().unwrap();
    let mut args = suite(out.path().to_str().unwrap(), "random");
    args.extend(["--traces", traces.path().to_str().unwrap()]);
    let said = String::from_utf8(lab(&args).stderr).unwrap();
    for file in ["README.md", "meta.json"] {
        let path = traces.path().join(file).display().to_string();
        assert!(
            said.contains(&format!("passed over, since it is no trace: {path}")),
            "{said}"
        );
    }
    let results = results(out.path());
    let workloads: Vec<_> = results["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["workload"])
        .collect();
    assert_eq!(
        workloads.iter().filter(|name| **name == "trace:a").count(),
        6
    );
}

const JOURNAL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/journal/example.jsonl"
);

/// A copy of the example, changed.
fn journal(folder: &Path, change: impl Fn(String) -> String) -> String {
    let path = folder.join("changed.jsonl");
    let text = std::fs::read_to_string(JOURNAL).unwrap();
    std::fs::write(&path, change(text)).unwrap();
    path.display().to_string()
}

fn measured(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&with(&["anarchy", "--json"], args))).unwrap()
}

fn assert_ratios(anarchy: &Value, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        let found = anarchy[*name].as_f64().unwrap();
        assert!((found - value).abs() < 1e-12, "{name}: {anarchy}");
    }
}

#[test]
fn what_the_router_held_a_request_is_overload() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal(folder.path(), |text| {
        text.replace("\"ttft\":45", "\"held\":30,\"ttft\":45")
    });
    // 30 ms more for every assignment, and none more alone.
    assert_ratios(
        &measured(&[&path])["pools"][0]["anarchy"],
        &[
            ("policy_gap", 105.0 / 85.0),
            ("temporal_gap", 120.0 / 105.0),
            ("overload", 85.0 / 30.0),
            ("slowdown", 4.0),
        ],
    );
}

#[test]
fn the_documented_journal_has_the_figures_that_the_document_computes() {
    let document = include_str!("../../../docs/journal.md");
    assert!(document.contains(&std::fs::read_to_string(JOURNAL).unwrap()));
    let pool = &measured(&[JOURNAL])["pools"][0];
    let anarchy = &pool["anarchy"];
    assert_ratios(
        anarchy,
        &[
            ("policy_gap", 75.0 / 55.0),
            ("temporal_gap", 90.0 / 75.0),
            ("overload", 55.0 / 30.0),
            ("slowdown", 3.0),
            ("poa_hat", 90.0 / 55.0),
        ],
    );
    assert_eq!((&anarchy["n"], &anarchy["windows"]), (&3.into(), &2.into()));
    assert_eq!(anarchy["method"], "exact");
    assert_eq!(
        (&pool["records"], &pool["joined_share"]),
        (&4.into(), &0.8.into())
    );
    assert_eq!(pool["left_out"]["no_latency"], 1);
    let regimes = &pool["regimes"];
    assert_ratios(&regimes["below"]["anarchy"], &[("policy_gap", 1.2)]);
    assert_ratios(&regimes["saturated"]["anarchy"], &[("policy_gap", 1.5)]);
    let over_time = pool["over_time"].as_array().unwrap();
    assert_eq!(over_time.len(), 2);
    assert_eq!(over_time[1]["regime"], "saturated");
}

#[test]
fn end_to_end_the_expected_residence_is_on_both_sides() {
    let pool = &measured(&[JOURNAL, "--actual", "e2e"])["pools"][0];
    assert_ratios(
        &pool["anarchy"],
        &[
            ("policy_gap", 375.0 / 355.0),
            ("temporal_gap", 390.0 / 375.0),
            ("overload", 355.0 / 330.0),
        ],
    );
}

#[test]
fn windows_are_cut_as_asked() {
    // One decision each: 10, 20 and 45 chosen, but waits are now those of each row, so 10, 15 and 30 best.
    let pool = &measured(&[JOURNAL, "--window-count", "1"])["pools"][0];
    assert_eq!(pool["anarchy"]["windows"], 3);
    assert_ratios(&pool["anarchy"], &[("policy_gap", 75.0 / 55.0)]);
    // All in one: 10 + 20 + 30 on worker 0, where 10 + 20 and 10 on worker 1 had been possible.
    let pool = &measured(&[JOURNAL, "--window-ms", "2000"])["pools"][0];
    assert_eq!(pool["anarchy"]["windows"], 1);
    assert_ratios(&pool["anarchy"], &[("policy_gap", 60.0 / 40.0)]);
}

#[test]
fn a_measurement_prints_a_table_and_writes_files_and_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let table = ok(&["anarchy", JOURNAL, "--out", out, "--report", out]);
    for words in [
        "m/aggregated: 4 decisions, 80.0 %",
        "1.364",
        "in regime saturated",
        "not simulated",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let json: Value = serde_json::from_str(&read("anarchy.json")).unwrap();
    assert_eq!(json, measured(&[JOURNAL]));
    // A head, the whole, two regimes and two stretches of time.
    assert_eq!(read("anarchy.csv").lines().count(), 6);
    let page = read("anarchy.html");
    assert!(
        page.contains("Measured, not simulated") && page.contains("1.364"),
        "{page}"
    );
    for plot in ["anarchy-01-over-time.svg", "anarchy-01-by-regime.svg"] {
        assert!(
            page.contains(plot) && read(plot).starts_with("<svg"),
            "{plot}"
        );
    }
}

#[test]
fn journals_one_after_the_other_and_compressed_are_one_file() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read(JOURNAL).unwrap();
    let path = folder.path().join("twice.gz");
    let file = std::fs::File::create(&path).unwrap();
    let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    gz.write_all(&[text.clone(), text].concat()).unwrap();
    gz.finish().unwrap();
    let twice = measured(&[path.to_str().unwrap()]);
    let pool = &twice["pools"][0];
    assert_eq!(
        (&twice["source"]["journals"], &pool["records"]),
        (&2.into(), &8.into())
    );
    assert_eq!(pool["joined_share"], 0.8);
    // The same windows again: the same ratios.
    assert_ratios(&pool["anarchy"], &[("policy_gap", 75.0 / 55.0)]);
    assert_eq!(pool["anarchy"]["windows"], 4);
    // The second journal follows the first, which ended after 1200 ms.
    let last = pool["over_time"].as_array().unwrap().last().unwrap();
    assert_eq!(last["to_ms"], 2_200.0);
}

#[test]
fn a_line_at_fault_is_named_left_out_and_fails_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal(folder.path(), |text| {
        text.replace("[[0,0,10]", "[[0,-5,10]")
    });
    let output = lab(&["anarchy", &path, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("line 5: decision.rows[0][1]: -5 is outside of 0 to 3600000 ms"),
        "{said}"
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["source"]["faults"], &json["pools"][0]["records"]),
        (&1.into(), &3.into())
    );
}

#[test]
fn a_journal_that_a_crash_cut_off_is_measured_up_to_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal(folder.path(), |text| {
        text.trim_end()[..text.len() - 30].to_owned()
    });
    let json = measured(&[&path]);
    assert_eq!(
        (&json["source"]["cut_off"], &json["pools"][0]["records"]),
        (&1.into(), &4.into())
    );
    assert!(json["pools"][0].get("joined_share").is_none());
}

#[test]
fn a_journal_that_cannot_be_measured_as_asked_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let other = journal(folder.path(), |text| text.replace("1.0", "2.0"));
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for (args, words) in [
        (
            vec!["anarchy", "no-such-file"],
            "no-such-file: No such file",
        ),
        (
            vec!["anarchy", &other, "--out", out],
            "version is 2.0; allowed: 1.0 to 1.x",
        ),
        (
            vec![
                "anarchy",
                concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
                "--out",
                out,
            ],
            "no journal",
        ),
        (
            vec!["anarchy", JOURNAL, "--pool", "prefill"],
            "allowed in this journal: m/aggregated",
        ),
        (vec!["anarchy", JOURNAL, "--window-count", "0"], "1..=10000"),
        (vec!["anarchy", JOURNAL, "--window-ms", "0"], "1..=3600000"),
    ] {
        let said = refused(&args);
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(lab(&args).status.code(), Some(2), "{args:?}");
    }
    assert!(!Path::new(out).exists());
}

#[test]
fn a_journal_without_a_latency_has_no_estimate_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let header = "{\"header\":{\"schema\":\"regime.journal\",\"version\":\"1.0\"}}\n";
    let path = journal(folder.path(), |_| header.to_owned());
    let output = lab(&["anarchy", &path]);
    assert_eq!(output.status.code(), Some(1));
    let path = journal(folder.path(), |text| {
        text.replace("\"ttft\"", "\"later\"")
            .replace("\"e2e\"", "\"more\"")
    });
    let output = lab(&["anarchy", &path, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pool = &json["pools"][0];
    assert_eq!(
        (&pool["unavailable"], pool.get("anarchy")),
        (&"no_requests".into(), None)
    );
}
