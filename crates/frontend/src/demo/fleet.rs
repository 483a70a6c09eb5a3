// SPDX-License-Identifier: Apache-2.0

//! The demo's own fleet: this program once more, as `serve` with mock workers.
//!
//! A process of its own rather than tasks in this one, so that the clients' work does not slow the workers' clocks, and
//! so that the path from client to router is the real one. Its log goes to a file that nobody sees unless it fails: the
//! host logs a line for every request.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};

use super::plan;

/// Lines of the log that are worth showing after a failure.
const LAST_LINES: usize = 20;

/// A running fleet; ends when dropped.
pub struct Fleet {
    /// Address of its frontend.
    pub url: String,
    child: Child,
    log: NamedTempFile,
}

impl Fleet {
    /// Start it on a free port, with its decisions in `journal`. It serves some 0.5 s later.
    ///
    /// # Errors
    /// When there is no port, no temporary file, or no way to start this program.
    pub fn start(journal: Option<&Path>) -> Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let log = NamedTempFile::with_prefix("regime-demo-")?;
        let child = Command::new(std::env::current_exe()?)
            .args(["serve", "--http-host", "127.0.0.1"])
            .args(["--http-port", &port.to_string()])
            .args(["--mock-workers", &plan::WORKERS.to_string()])
            .args(["--mock-seats", &plan::SEATS_PER_WORKER.to_string()])
            .args(plan::TIMING)
            .args(
                journal
                    .into_iter()
                    .flat_map(|path| [Path::new("--journal"), path]),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen()?)
            .kill_on_drop(true)
            .spawn()
            .context("starting the fleet")?;
        Ok(Self {
            url: format!("http://{}:{port}", Ipv4Addr::LOCALHOST),
            child,
            log,
        })
    }

    /// Fail if it has ended.
    ///
    /// # Errors
    /// When it has ended, with the end of its log.
    pub fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the fleet ended with {status}:\n{}", self.complaints());
        }
        Ok(())
    }

    /// The end of its log, without the lines about requests that went well.
    #[must_use]
    pub fn complaints(&self) -> String {
        std::fs::read_to_string(self.log.path())
            .map_or_else(|error| error.to_string(), |log| complaints(&log))
    }
}

fn complaints(log: &str) -> String {
    let lines: Vec<_> = log
        .lines()
        .filter(|line| !line.contains(" INFO "))
        .collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_log_is_kept() {
        let log: Vec<String> = (1..=30).map(|line| line.to_string()).collect();
        let kept = complaints(&log.join("\n"));
        assert!(kept.starts_with("11\n") && kept.ends_with("\n30"));
    }

    #[test]
    fn lines_about_requests_that_went_well_are_left_out() {
        let log = "t  WARN a\nt  INFO route request completed\nt ERROR b";
        assert_eq!(complaints(log), "t  WARN a\nt ERROR b");
    }
}
