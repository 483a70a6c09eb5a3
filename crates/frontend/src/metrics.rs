// SPDX-License-Identifier: Apache-2.0

//! `regime_router_*` on the frontend's `/metrics`.
//!
//! The policy writes through the `metrics` facade, so it needs no handle on Dynamo. Before each scrape the frontend asks
//! it to write all its gauges anew, and renders them behind Dynamo's own metrics.
//!
//! A worker that left must not leave its series behind: worker ids are random, so a fleet that scales up and down would
//! grow the page without end (field report BR-18). Since every gauge is written for every scrape, one that was not is of
//! something gone; the exporter's idle rule, with no patience, drops it. Publishing and rendering are one step under a
//! lock, so that a second scraper cannot come between them and see live series as idle.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dynamo_runtime::DistributedRuntime;
use dynamo_runtime::metrics::MetricsHierarchy;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use regime_policy::Handle;

/// Install the facade's recorder for this process, and render it on `/metrics` of `distributed`.
///
/// # Errors
/// When another recorder is installed already.
pub fn install(distributed: &DistributedRuntime, handle: Handle) -> anyhow::Result<()> {
    let recorder = builder().build_recorder();
    let scrape = Scrape {
        handle,
        page: recorder.handle(),
        turn: Mutex::default(),
    };
    metrics::set_global_recorder(recorder).map_err(|error| anyhow::anyhow!("{error}"))?;
    distributed
        .get_metrics_registry()
        .add_expfmt_callback(Arc::new(move || Ok(scrape.render())));
    Ok(())
}

fn builder() -> PrometheusBuilder {
    PrometheusBuilder::new().idle_timeout(MetricKindMask::GAUGE, Some(Duration::ZERO))
}

struct Scrape {
    handle: Handle,
    page: PrometheusHandle,
    turn: Mutex<()>,
}

impl Scrape {
    fn render(&self) -> String {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle.publish_metrics();
        self.page.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_that_was_not_written_for_this_scrape_is_gone() {
        let recorder = builder().build_recorder();
        let page = recorder.handle();
        let write = |workers: &[&str]| {
            for worker in workers {
                metrics::gauge!("regime_router_load", "worker" => (*worker).to_owned()).set(1.0);
            }
        };
        metrics::with_local_recorder(&recorder, || {
            write(&["1", "2"]);
            let first = page.render();
            assert!(
                first.contains("worker=\"1\"") && first.contains("worker=\"2\""),
                "{first}"
            );
            write(&["2"]);
            let second = page.render();
            assert!(
                !second.contains("worker=\"1\"") && second.contains("worker=\"2\""),
                "{second}"
            );
        });
    }

    #[test]
    fn an_unchanged_gauge_stays() {
        let recorder = builder().build_recorder();
        let page = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            for _ in 0..3 {
                metrics::gauge!("regime_router_load").set(1.0);
                assert!(page.render().contains("regime_router_load 1"));
            }
        });
    }

    #[test]
    fn counters_stay_without_being_written() {
        let recorder = builder().build_recorder();
        let page = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            metrics::counter!("regime_router_decisions_total").increment(3)
        });
        for _ in 0..3 {
            assert!(page.render().contains("regime_router_decisions_total 3"));
        }
    }
}
