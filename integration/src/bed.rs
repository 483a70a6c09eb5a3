// SPDX-License-Identifier: Apache-2.0

//! One machine in miniature: a directory, and the processes that meet in it.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{Client, Outcome, Process, Request, eventually};

/// Longest wait for a start, a refusal or an end. Seconds are usual; a busy CI machine is not.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Held for reading by every bed, and for writing by one that must be alone.
static TURN: RwLock<()> = RwLock::new(());

/// Released when the bed goes.
enum Turn {
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
}

/// A directory in which frontends and workers find each other.
pub struct Bed {
    directory: TempDir,
    started: AtomicUsize,
    _turn: Turn,
}

impl Bed {
    /// An empty bed beside those of other tests. A test may have one at a time.
    ///
    /// # Errors
    /// When no temporary directory can be made.
    pub fn new() -> Result<Self> {
        // A test that failed has left nothing half done.
        Self::in_turn(Turn::Shared(
            TURN.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// An empty bed while no other test of this program has one: for what is measured in wall time. It waits for that.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn alone() -> Result<Self> {
        Self::in_turn(Turn::Alone(
            TURN.write().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    fn in_turn(turn: Turn) -> Result<Self> {
        let directory = TempDir::with_prefix("regime-")?;
        for name in ["home", "tmp", "discovery"] {
            fs::create_dir(directory.path().join(name))?;
        }
        Ok(Self {
            directory,
            started: AtomicUsize::new(0),
            _turn: turn,
        })
    }

    /// Where `name` lies in the bed.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Write a file into the bed and return its path as text, for a command line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// `program` in the environment of the bed: nothing of the caller's but `PATH`.
    #[must_use]
    pub fn run(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"))
            .env("DYN_DISCOVERY_BACKEND", "file")
            .env("DYN_FILE_KV", self.path("discovery"))
            .env("DYN_LOG", "warn")
            // Panics should say where. Messages to users must not change.
            .env("RUST_BACKTRACE", "1")
            .current_dir(self.directory.path());
        command
    }

    /// The frontend program with `arguments`.
    ///
    /// # Errors
    /// When the test does not run under Cargo, which builds the program and says where it is.
    pub fn program(&self, arguments: &[&str]) -> Result<Command> {
        let program = std::env::var_os("CARGO_BIN_EXE_regime-frontend-faulty").context(
            "CARGO_BIN_EXE_regime-frontend-faulty is not set: run the tests with `cargo test`",
        )?;
        let mut command = self.run(PathBuf::from(program));
        command.args(arguments);
        Ok(command)
    }

    /// Run the frontend program with `arguments` to its end.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn outcome(&self, arguments: &[&str]) -> Result<Outcome> {
        Outcome::of(self.program(arguments)?, LIMIT).await
    }

    /// Start `command` as a process of the bed.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, name: &str, command: Command) -> Result<Process> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        Process::start(name, command, self.path(&format!("{number}-{name}.log")))
    }

    /// Start `serve` with `flags` on a free port and wait until it has answered a request and sees `workers` workers.
    ///
    /// # Errors
    /// When it ends, or is not ready in time.
    pub async fn serve(&self, workers: usize, flags: &[&str]) -> Result<Frontend> {
        self.serve_by(workers, self.program(&["serve"])?, flags)
            .await
    }

    /// As [`Self::serve`], with a command that already holds arguments or variables.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_by(
        &self,
        workers: usize,
        mut command: Command,
        flags: &[&str],
    ) -> Result<Frontend> {
        let port = free_port()?;
        command
            .args(["--http-host", "127.0.0.1", "--http-port", &port.to_string()])
            .args(flags);
        let mut frontend = Frontend {
            process: self.start("frontend", command)?,
            client: Client::new(port)?,
            model: String::new(),
        };
        frontend.wait_for(workers).await?;
        Ok(frontend)
    }

    /// Start `worker` with `flags`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn worker(&self, flags: &[&str]) -> Result<Process> {
        let mut command = self.program(&["worker"])?;
        command.args(flags);
        self.start("worker", command)
    }
}

/// A port that was free a moment ago, chosen by the operating system.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// A frontend that has answered a request.
pub struct Frontend {
    /// Its process.
    pub process: Process,
    /// A client of it.
    pub client: Client,
    /// The model that it serves.
    pub model: String,
}

impl Frontend {
    /// Wait until discovery lists `workers` workers and a request is answered.
    ///
    /// # Errors
    /// When the process ends, or the deadline passes.
    pub async fn wait_for(&mut self, workers: usize) -> Result<()> {
        self.model = eventually("first answer", LIMIT, async || {
            self.process.must_run()?;
            let found = self.instances().await?.len();
            ensure!(found == workers, "{found} of {workers} workers");
            let models = self.client.json("/v1/models").await?;
            let model = models["data"][0]["id"].as_str().context("no model yet")?;
            self.client.send(&Request::chat(model, "w3")).await?.ok()?;
            Ok(model.to_owned())
        })
        .await?;
        Ok(())
    }

    /// Instance ids of the workers that discovery lists, sorted.
    ///
    /// # Errors
    /// When `/health` does not answer.
    pub async fn instances(&self) -> Result<Vec<u64>> {
        let health = self.client.json("/health").await?;
        let mut ids: Vec<u64> = health["instances"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|instance| instance["endpoint"] == "generate")
            .filter_map(|instance| instance["instance_id"].as_u64())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// The `/regime` document.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn regime(&self) -> Result<Value> {
        self.client.json("/regime").await
    }

    /// Check that the router has no request open, in its ledger or on a worker of its first pool.
    ///
    /// # Errors
    /// The `/regime` document, when it has.
    pub async fn nothing_in_flight(&self) -> Result<()> {
        let regime = self.regime().await?;
        let in_flight = &regime["pools"][0]["in_flight"];
        ensure!(
            regime["requests"]["tracked"] == 0
                && in_flight["waiting"] == 0
                && in_flight["running"] == 0,
            "{regime}"
        );
        Ok(())
    }

    /// A chat request with this frontend's model.
    #[must_use]
    pub fn chat(&self, prompt: &str) -> Request {
        Request::chat(&self.model, prompt)
    }

    /// A completion request with this frontend's model.
    #[must_use]
    pub fn completion(&self, prompt: &str) -> Request {
        Request::completion(&self.model, prompt)
    }
}
