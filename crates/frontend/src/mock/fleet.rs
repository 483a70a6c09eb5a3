// SPDX-License-Identifier: Apache-2.0

//! Several mock workers in this process.

use clap::Args;
use futures::future::{join_all, select_all};

use super::model_dir;
use super::topology::Topology;
use super::worker::{EngineArgs, MockWorker, WorkerSpec};
use crate::discovery::Discovery;
use crate::values::positive;

/// A fleet in the frontend's own process.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Mock workers in this process")]
pub struct FleetArgs {
    /// Start this many aggregated mock workers.
    #[arg(long, value_name = "N", conflicts_with = "mock_topology", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub mock_workers: Option<u16>,

    /// Start mock workers in roles: 1P2D is one prefill and two decode workers, 4 is four aggregated ones.
    #[arg(long, value_name = "xPyD|N")]
    pub mock_topology: Option<Topology>,

    /// Speed of each worker in turn, prefill workers first, such as 1,1,0.4,1; replaces --mock-speedup.
    #[arg(long, value_name = "RATIO,…", value_delimiter = ',', value_parser = positive)]
    pub mock_speedups: Vec<f64>,
}

impl FleetArgs {
    /// The fleet that was asked for, if any.
    ///
    /// # Errors
    /// Names the flag that has no effect or does not fit.
    pub fn topology(&self) -> anyhow::Result<Option<Topology>> {
        let topology = self
            .mock_workers
            .map(|count| Topology::Aggregated(count.into()))
            .or(self.mock_topology);
        let speeds = self.mock_speedups.len();
        match topology {
            None => anyhow::ensure!(
                speeds == 0,
                "--mock-speedups needs --mock-workers or --mock-topology"
            ),
            Some(topology) => {
                let workers = topology.roles().len();
                anyhow::ensure!(
                    speeds == 0 || speeds == workers,
                    "--mock-speedups gives {speeds} speeds for {workers} workers"
                );
            }
        }
        Ok(topology)
    }

    /// The speed of worker `index`.
    fn speedup(&self, index: usize, engine: &EngineArgs) -> f64 {
        self.mock_speedups
            .get(index)
            .copied()
            .unwrap_or(engine.mock_speedup)
    }
}

/// Running mock workers.
#[derive(Debug)]
pub struct Fleet {
    workers: Vec<MockWorker>,
}

impl Fleet {
    /// Start the workers of `topology`.
    ///
    /// # Errors
    /// The first worker that cannot start.
    pub async fn start(
        topology: Topology,
        args: &FleetArgs,
        engine: &EngineArgs,
        namespace: &str,
        discovery: &Discovery,
    ) -> anyhow::Result<Self> {
        let model = model_dir::generated()?;
        let mut workers = Vec::new();
        for (index, role) in topology.roles().into_iter().enumerate() {
            let spec = WorkerSpec {
                role,
                namespace: namespace.to_owned(),
                model: model.clone(),
                engine: engine.clone(),
                speedup: args.speedup(index, engine),
            };
            workers.push(MockWorker::start(&spec, discovery).await?);
        }
        Ok(Self { workers })
    }

    /// The workers.
    #[must_use]
    pub fn workers(&self) -> &[MockWorker] {
        &self.workers
    }

    /// Wait for the first worker that fails. Pending while all run.
    pub async fn failed(&mut self) -> anyhow::Error {
        let watches = self.workers.iter_mut().map(|worker| {
            let name = format!("{} mock worker {}", worker.role, worker.instance_id);
            Box::pin(async move { (name, worker.ended().await) })
        });
        let ((name, ended), _, _) = select_all(watches).await;
        match ended {
            Ok(()) => anyhow::anyhow!("{name} ended"),
            Err(error) => error.context(format!("{name} failed")),
        }
    }

    /// Drain all workers.
    ///
    /// # Errors
    /// The first worker that failed.
    pub async fn stop(self) -> anyhow::Result<()> {
        join_all(self.workers.into_iter().map(MockWorker::stop))
            .await
            .into_iter()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(workers: Option<u16>, topology: Option<&str>, speeds: &[f64]) -> FleetArgs {
        FleetArgs {
            mock_workers: workers,
            mock_topology: topology.map(|text| text.parse().unwrap()),
            mock_speedups: speeds.to_vec(),
        }
    }

    #[test]
    fn either_flag_asks_for_a_fleet() {
        assert_eq!(args(None, None, &[]).topology().unwrap(), None);
        assert_eq!(
            args(Some(4), None, &[]).topology().unwrap(),
            Some(Topology::Aggregated(4))
        );
        assert_eq!(
            args(None, Some("1P2D"), &[]).topology().unwrap(),
            Some(Topology::Disaggregated {
                prefill: 1,
                decode: 2
            })
        );
    }

    #[test]
    fn there_must_be_one_speed_for_each_worker() {
        assert!(args(Some(2), None, &[1.0, 0.5]).topology().is_ok());
        let error = args(Some(4), None, &[1.0, 0.5]).topology().unwrap_err();
        assert_eq!(
            error.to_string(),
            "--mock-speedups gives 2 speeds for 4 workers"
        );
        let error = args(None, None, &[1.0]).topology().unwrap_err();
        assert_eq!(
            error.to_string(),
            "--mock-speedups needs --mock-workers or --mock-topology"
        );
    }
}
