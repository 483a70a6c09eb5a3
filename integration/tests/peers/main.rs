// SPDX-License-Identifier: Apache-2.0

//! Our frontend among programs that others wrote: the OpenAI client in front, Dynamo's own Python workers behind.
//!
//! They come from PyPI into a virtual environment in the build directory, once; versions are pinned so that a failure is
//! ours. Needs `python3` with `venv`, and the network on the first run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use regime_frontend::mock::model_dir;
use regime_integration::{Bed, LIMIT, Outcome, Process, eventually};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Dynamo's packages go without their dependencies, which are engines and GPU libraries: the mock worker needs only the
/// three that follow.
const INSTALLS: [&[&str]; 2] = [
    &[
        "openai==3.57.0",
        "ai-dynamo-runtime==1.6.1",
        "pyyaml==6.0.4",
        "msgspec==0.23.0",
        "packaging==26.4",
    ],
    &["--no-deps", "ai-dynamo==1.6.1"],
];
/// Downloads about 100 MB.
const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// The interpreter that has the peers.
async fn python() -> Result<&'static Path> {
    static PYTHON: OnceCell<PathBuf> = OnceCell::const_new();
    PYTHON.get_or_try_init(install).await.map(PathBuf::as_path)
}

async fn install() -> Result<PathBuf> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let python = home.join("bin/python");
    // Written last, so that an interrupted installation is not taken for a whole one.
    let stamp = home.join("installed");
    let wanted = format!("{INSTALLS:?}");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    let run = async |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        succeeded(Outcome::of(command, INSTALL_LIMIT).await?)
    };
    let home = home.to_str().context("path is not UTF-8")?;
    run(Path::new("python3"), &["-m", "venv", "--clear", home]).await?;
    for packages in INSTALLS {
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ];
        run(&python, &[&pip, packages].concat()).await?;
    }
    fs::write(&stamp, wanted)?;
    Ok(python)
}

fn succeeded(outcome: Outcome) -> Result<()> {
    ensure!(outcome.code == Some(0), "{outcome:?}");
    Ok(())
}

/// Start Dynamo's Python mock worker process with `flags`, serving the toy model.
async fn stock_workers(bed: &Bed, flags: &[&str]) -> Result<Process> {
    let mut command = bed.run(python().await?);
    command
        .args(["-m", "dynamo.mocker", "--model-name", "toy", "--model-path"])
        .arg(model_dir::generated()?)
        .args(["--block-size", "16", "--num-gpu-blocks-override", "4096"])
        .args(flags)
        .env("DYN_HTTP_RPC_HOST", "127.0.0.1");
    bed.start("stock-worker", command)
}

#[tokio::test]
async fn the_openai_client_gets_whole_and_streamed_answers() -> Result<()> {
    let bed = Bed::new()?;
    let frontend = bed.serve(4, &["--mock-workers", "4"]).await?;
    let mut command = bed.run(python().await?);
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/openai_client.py"))
        .args([frontend.client.base(), &frontend.model]);
    succeeded(Outcome::of(command, LIMIT).await?)
}

#[tokio::test]
async fn stock_aggregated_workers_serve_and_report_their_caches() -> Result<()> {
    let bed = Bed::new()?;
    let _workers = stock_workers(&bed, &["--num-workers", "2"]).await?;
    let frontend = bed.serve(2, &[]).await?;
    let prompt: String = (3..67).map(|word| format!("w{word} ")).collect();
    let request = frontend.completion(&prompt).tokens(8).streaming();
    eventually("a cache hit", LIMIT, async || {
        let reply = frontend.client.send(&request).await?.ok()?;
        ensure!(reply.hit_rate().is_some_and(|rate| rate > 0.9), "{reply:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn stock_prefill_and_decode_workers_serve() -> Result<()> {
    let bed = Bed::new()?;
    let port = regime_integration::free_port()?.to_string();
    let prefill = [
        "--disaggregation-mode",
        "prefill",
        "--bootstrap-ports",
        &port,
    ];
    let _prefill = stock_workers(&bed, &prefill).await?;
    let _decode = stock_workers(&bed, &["--disaggregation-mode", "decode"]).await?;
    let frontend = bed.serve(2, &[]).await?;
    for _ in 0..10 {
        let request = frontend.chat("w3 w4 w5").tokens(8);
        let reply = frontend.client.send(&request).await?.ok()?;
        ensure!(reply.prefill_worker() != reply.decode_worker(), "{reply:?}");
        ensure!(reply.completion_tokens() == Some(8), "{reply:?}");
    }
    Ok(())
}
