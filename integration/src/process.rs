// SPDX-License-Identifier: Apache-2.0

//! A child process with captured output that does not outlive its handle.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;

pub use nix::sys::signal::Signal;

/// A running child. Killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Start `command`, with both output streams going to the file `output`.
    ///
    /// # Errors
    /// When the file cannot be made or the program cannot be started.
    pub fn start(name: &str, mut command: Command, output: PathBuf) -> Result<Self> {
        let file = File::create(&output)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            output,
        })
    }

    /// Send a signal.
    ///
    /// # Errors
    /// When the process has already ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("already ended")?;
        kill(Pid::from_raw(i32::try_from(pid)?), signal)?;
        Ok(())
    }

    /// Wait for the end.
    ///
    /// # Errors
    /// When the process still runs after `limit`.
    pub async fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        timeout(limit, self.child.wait())
            .await
            .with_context(|| format!("{} still runs after {limit:?}", self.name))?
            .map_err(Into::into)
    }

    /// Fail if the process has ended: whatever one waits for will not come.
    ///
    /// # Errors
    /// When it has ended, with its output.
    pub fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}:\n{}", self.name, self.output());
        }
        Ok(())
    }

    /// What the process has printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read(&self.output).map_or_else(
            |error| format!("(no output: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        eprintln!("--- {} ---\n{}", self.name, self.output());
    }
}

/// What a process that ended left behind.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; absent when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Run `command` to its end.
    ///
    /// # Errors
    /// When it cannot be started or has not ended after `limit`.
    pub async fn of(mut command: Command, limit: Duration) -> Result<Self> {
        let output = timeout(
            limit,
            command.stdin(Stdio::null()).kill_on_drop(true).output(),
        )
        .await
        .with_context(|| format!("still runs after {limit:?}: {command:?}"))??;
        Ok(Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// Assert that the program refused to start the way a user deserves: exit code above 0, one line on standard error
    /// that holds every word of `words`, no backtrace.
    ///
    /// # Errors
    /// Says which of these does not hold.
    pub fn refused_with(&self, words: &[&str]) -> Result<()> {
        ensure!(
            self.code.is_some_and(|code| code > 0),
            "not refused: {self:?}"
        );
        let line = self.stderr.trim_end();
        ensure!(line.lines().count() == 1, "not one line: {self:?}");
        ensure!(!line.contains("backtrace"), "a backtrace: {line}");
        for word in words {
            ensure!(line.contains(word), "no {word:?} in: {line}");
        }
        Ok(())
    }
}
