// SPDX-License-Identifier: Apache-2.0

//! `regime-lab detection` from outside, on a fleet so small that it takes seconds.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_regime-lab"))
        .arg("detection")
        .args(args)
        .output()
        .unwrap()
}

/// What a small detection writes into `folder` and prints.
fn detected(folder: &Path, threads: &str) -> (Value, String) {
    let folder_name = folder.to_str().unwrap();
    let small = [
        "--engine",
        "fixed",
        "--workloads",
        "decode-heavy",
        "--topology",
        "1,1P1D",
        "--size",
        "0.2",
        "--seeds",
        "1",
    ];
    let whereto = [
        "--out",
        folder_name,
        "--report",
        folder_name,
        "--threads",
        threads,
    ];
    let output = lab(&[&small[..], &whereto[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let results = std::fs::read(folder.join("results.json")).unwrap();
    (
        serde_json::from_slice(&results).unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn detectors_are_scored_in_each_kind_of_pool_alike_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (results, table) = detected(folder.path(), "2");
    let pools = results["detection"]["pools"].as_array().unwrap();
    let defaults = pools.iter().map(|pool| {
        let detectors = pool["detectors"].as_array().unwrap();
        let mut defaults = detectors.iter().filter(|it| it["default"] == true);
        let name = &defaults.next().unwrap()["detector"];
        assert!(defaults.next().is_none());
        // Into saturation and back, once by way of the knee.
        assert!(detectors.iter().all(|it| it["overall"]["changes"] == 5));
        (&pool["role"], name)
    });
    assert_eq!(
        defaults.collect::<Vec<_>>(),
        [
            (&"aggregated".into(), &"slowdown + waiting".into()),
            (&"prefill".into(), &"waiting".into())
        ]
    );
    assert!(table.contains("slowdown + waiting (default)"), "{table}");

    let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    assert!(page.contains("Detectors") && page.contains("<svg"));
    assert!(
        folder
            .path()
            .join("01-decode-heavy-1-detection.svg")
            .is_file()
    );

    let again = tempfile::tempdir().unwrap();
    assert_eq!(detected(again.path(), "1").0, results);
}

#[test]
fn a_workload_whose_offered_load_is_not_known_is_refused() {
    let output = lab(&["--workloads", "paper"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("a closed loop; allowed are those with a rate"),
        "{said}"
    );
}
