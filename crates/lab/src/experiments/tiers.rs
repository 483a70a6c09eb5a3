// SPDX-License-Identifier: Apache-2.0

//! The suite of tiers: how cached blocks in host memory should count, with a device cache under pressure.
//!
//! # Idea
//!
//! A policy that values a block in host memory too high sends requests where they wait for the link, and one
//! that values it too low computes what was there. Which it is depends on the link, on how much of the working
//! set fits into device memory, on how much prompts share, and on the load. So each of them is varied, and the
//! same router runs with its ways of counting: `weights` (Dynamo's fixed shares), `time` (what a block saves
//! on this link), `time-preset` (the same by the ladder of the defaults, whatever the link is), `device`
//! (lower tiers count for nothing). The engine brings up whatever it finds in any case; only the router differs.
//!
//! - The working set is the distinct blocks that are asked for more than once; all blocks, where none is. Device
//!   memory of all workers together holds a share of it, and at least [`LEAST_ROOM`] of the longest request a
//!   worker. The host tier of each worker holds all of it, so that blocks leave device memory and not the worker.
//! - Links: 63 GB/s is PCIe 5.0 ×16. 10 GB/s and 0.1 ms are the simulator's own figures for a disk; its disk
//!   tier is open to its own replay alone, and tells no router of its blocks, so the second tier takes its
//!   place. 4 GB/s is slower than computing on the B200 preset: what is found there had better not be there.
//! - Sharing: none in `cold-burst`, conversations in `chat`, nearly all in `working-set`.
//! - `chat-pauses` and others are there for the asking, and with them what sessions leave in a host tier of
//!   which no event tells.
//! - ω, the value of a cached token, is scaled from 0.1 to 4 times the calibrated value at half of the working
//!   set and behind the fast link, where caches matter and loads pay.
//!
//! Loads are searched with the fast link and every KV event: an operator's traffic does not change with them.

use std::collections::HashMap;

use regime_kv::{LadderConfig, TierSpeed};
use regime_policy::POLICY_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::suite::{Part, sized_requests};
use crate::engines::{Engine, EngineError};
use crate::policies::{Catalog, Policy, PolicyError};
use crate::run::{LoadLevel, Settings};
use crate::topology::Topology;
use crate::workload::Workload;
use crate::workloads::{Generator, Scale, SourceError, WorkloadSource};

/// Device blocks of a worker over those of the longest request, at least.
const LEAST_ROOM: f64 = 1.1;
const WORKERS: usize = 4;
/// Share of the working set at which ω is scaled.
const OMEGA_SHARE: f64 = 0.5;

/// A run's place in the suite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TierPoint {
    /// Device blocks of all workers over the working set.
    pub cache_share: f64,
    /// Factor on the calibrated value of a cached token.
    pub omega_scale: f64,
}

/// What makes a part one of this suite.
#[derive(Debug, Clone)]
pub struct TierPart {
    /// What each worker runs.
    pub engine: Engine,
    /// What each worker runs while loads are searched.
    pub searched: Engine,
    /// Where its runs stand.
    pub point: TierPoint,
}

/// The link to the second tier.
struct Link {
    condition: &'static str,
    speed: TierSpeed,
}

const FAST: Link = Link {
    condition: "host-63",
    speed: TierSpeed::PCIE5_X16,
};
const DISK: Link = Link {
    condition: "disk-10",
    speed: TierSpeed::new(0.1, 10.0),
};
const SLOW: Link = Link {
    condition: "slow-4",
    speed: TierSpeed::new(0.05, 4.0),
};

/// Conditions of scaled ω, and the scale.
const OMEGAS: [(&str, f64); 4] = [
    ("omega-0.1", 0.1),
    ("omega-0.5", 0.5),
    ("omega-2", 2.0),
    ("omega-4", 4.0),
];

/// A suite that cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// An engine of it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A policy of it.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A workload of it.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Conditions that are none of its.
    #[error("conditions {given}: allowed are {allowed}")]
    NoCondition {
        /// What was asked for.
        given: String,
        /// All of them.
        allowed: String,
    },
    /// Bytes moved cannot be known.
    #[error("engine {0} does not say kv_cache_bytes_per_token, which a host tier needs")]
    NoBytes(String),
}

/// What the suite is made of.
pub struct TierSuite<'a> {
    /// A part of it: fewer workloads, links, shares and loads.
    pub quick: bool,
    /// Other workloads than the usual ones.
    pub workloads: Vec<Generator>,
    /// Conditions by name, in place of all.
    pub conditions: Vec<String>,
    /// Share of the standard number of requests.
    pub size: f64,
    /// The settings of a fleet.
    pub settings: Settings,
    /// The policies.
    pub catalog: &'a Catalog,
    /// Names of [`Self::POLICIES`], or of other policies; the baseline is always there.
    pub policies: Vec<String>,
    /// The engine with other settings of its section `engine`.
    pub engine: &'a dyn Fn(Map<String, Value>) -> Result<Engine, EngineError>,
}

impl TierSuite<'_> {
    /// What the others are compared with.
    pub const BASELINE: &'static str = "weights";
    /// The baseline that sends sessions back to what they left there, see `session_target`. Not among the usual
    /// policies: where KV events tell of lower tiers it is the baseline.
    pub const SESSION_TARGET: &'static str = "session-target";
    /// Every way to count blocks in lower tiers.
    pub const POLICIES: [&'static str; 4] = [Self::BASELINE, "time", "time-preset", "device"];

    /// The parts, those of one condition together.
    ///
    /// # Errors
    /// When an engine, a policy or a workload of it cannot be made.
    pub fn parts(&self) -> Result<Vec<Part>, TierError> {
        let (links, generators, shares): (&[Link], &[Generator], &[f64]) = if self.quick {
            (
                &[FAST, SLOW],
                &[Generator::Chat, Generator::WorkingSet],
                &[0.5, 1.0],
            )
        } else {
            (
                &[FAST, DISK, SLOW],
                &[Generator::ColdBurst, Generator::Chat, Generator::WorkingSet],
                &[0.1, 0.5, 1.0, 2.0],
            )
        };
        let generators = match self.workloads.as_slice() {
            [] => generators,
            workloads => workloads,
        };
        let (mut parts, mut scaled) = (Vec::new(), Vec::new());
        for link in links.iter().filter(|link| self.has(link.condition)) {
            for generator in generators {
                let places = self.places(*generator)?;
                for share in places.distinct(shares) {
                    parts.push(self.part(&places, link, link.condition, share, 1.0)?);
                }
            }
        }
        for (condition, omega) in OMEGAS {
            if self.quick && (0.5..=2.0).contains(&omega) || !self.has(condition) {
                continue;
            }
            let usual = [Generator::Chat, Generator::WorkingSet];
            for generator in usual.into_iter().filter(|it| generators.contains(it)) {
                let places = self.places(generator)?;
                scaled.push(self.part(&places, &FAST, condition, OMEGA_SHARE, omega)?);
            }
        }
        parts.extend(scaled);
        if parts.is_empty() {
            let links = [FAST, DISK, SLOW].map(|link| link.condition).into_iter();
            let omegas = OMEGAS.map(|(condition, _)| condition);
            return Err(TierError::NoCondition {
                given: self.conditions.join(", "),
                allowed: links.chain(omegas).collect::<Vec<_>>().join(", "),
            });
        }
        Ok(parts)
    }

    fn has(&self, condition: &str) -> bool {
        self.conditions.is_empty() || self.conditions.iter().any(|it| it == condition)
    }

    fn places(&self, generator: Generator) -> Result<Places, TierError> {
        let source = WorkloadSource::Generated(generator);
        let scale = Scale {
            requests: sized_requests(&source, WORKERS, self.size),
            block_size: (self.engine)(Map::new())?.block_size() as u32,
            ..generator.default_scale()
        };
        let workload = source.build(&scale)?;
        Ok(Places {
            working_set: working_set(&workload),
            longest: longest(&workload),
            source,
        })
    }

    fn part(
        &self,
        places: &Places,
        link: &Link,
        condition: &'static str,
        share: f64,
        omega_scale: f64,
    ) -> Result<Part, TierError> {
        let device_blocks = places.device_blocks(share);
        let cache_share = (device_blocks * WORKERS) as f64 / places.working_set as f64;
        let engine = |link: &Link| -> Result<Engine, TierError> {
            let engine = (self.engine)(Map::from_iter([
                ("num_gpu_blocks".to_owned(), json!(device_blocks)),
                (
                    "native_host_offload".to_owned(),
                    json!({
                        "num_host_blocks": places.working_set,
                        "h2d_bandwidth_gbps": link.speed.bandwidth_gb_s,
                        "d2h_bandwidth_gbps": link.speed.bandwidth_gb_s,
                        "latency_to_first_byte_ms": link.speed.latency_ms,
                    }),
                ),
            ]))?;
            let name = format!(
                "{}, cache {:.0} %, {}",
                engine.name(),
                100.0 * cache_share,
                link.condition
            );
            Ok(engine.renamed(name))
        };
        let (engine, searched) = (engine(link)?, engine(&FAST)?);
        let Some(bytes) = engine.kv_bytes_per_token() else {
            return Err(TierError::NoBytes(engine.name().to_owned()));
        };
        let mut names = vec![Self::BASELINE.to_owned()];
        let preset = LadderConfig::default();
        for name in &self.policies {
            // Where the preset is the truth, it is `time`.
            let twin = name.starts_with("time-preset")
                && preset.host == Some(link.speed)
                && preset.kv_bytes_per_token == bytes as f64;
            if !names.contains(name) && !twin {
                names.push(name.clone());
            }
        }
        let policy = |name: &String| self.policy(name, link.speed, bytes, omega_scale);
        let every = vec![LoadLevel::Light, LoadLevel::Knee, LoadLevel::Saturated];
        Ok(Part {
            condition: Some(condition),
            policies: names.iter().map(policy).collect::<Result<_, _>>()?,
            sources: vec![places.source.clone()],
            topologies: vec![Topology::Aggregated { workers: WORKERS }],
            loads: match self.quick || omega_scale != 1.0 {
                true => every[1..].to_vec(),
                false => every,
            },
            searched: Settings {
                device_events_only: false,
                ..self.settings.clone()
            },
            settings: self.settings.clone(),
            tiers: Some(TierPart {
                engine,
                searched,
                point: TierPoint {
                    cache_share,
                    omega_scale,
                },
            }),
        })
    }

    fn policy(
        &self,
        name: &str,
        speed: TierSpeed,
        bytes_per_token: u64,
        omega_scale: f64,
    ) -> Result<Policy, PolicyError> {
        let value = match name {
            Self::BASELINE => json!({"tier_value": "weights"}),
            "time" | "time-fixed" => json!({"tier_value": "time", "tiers": {
                "kv_bytes_per_token": bytes_per_token,
                "host": {"latency_ms": speed.latency_ms, "bandwidth_gb_s": speed.bandwidth_gb_s},
                "disk": null,
                "shared": null,
                "learn": name == "time",
            }}),
            "time-preset" => json!({"tier_value": "time"}),
            "time-preset-fixed" => json!({"tier_value": "time", "tiers": {"learn": false}}),
            "device" => json!({"tier_weights": {"host": 0, "disk": 0, "shared": 0}}),
            Self::SESSION_TARGET => json!({"session_affinity": "advisory"}),
            other => return Policy::named(other, self.catalog),
        };
        let Value::Object(mut parameters) = value else {
            return Policy::named(name, self.catalog);
        };
        parameters.insert("calibrated".to_owned(), json!({"omega_scale": omega_scale}));
        let mut policy =
            Policy::named(POLICY_TYPE, self.catalog)?.with_parameters(parameters, name)?;
        if name == Self::SESSION_TARGET {
            let target = json!({"enabled": true});
            policy = policy.with_classifier(Map::from_iter([("session_target".into(), target)]));
        }
        policy.check(self.catalog)?;
        Ok(policy)
    }
}

/// A workload and what it takes to cache it, in blocks.
struct Places {
    source: WorkloadSource,
    working_set: usize,
    longest: usize,
}

impl Places {
    /// The shares that make another device memory: in small ones the longest request may decide.
    fn distinct(&self, shares: &[f64]) -> Vec<f64> {
        let mut distinct = shares.to_vec();
        distinct.dedup_by_key(|share| self.device_blocks(*share));
        distinct
    }

    /// Device blocks of each worker, so that together they hold `share` of the working set.
    fn device_blocks(&self, share: f64) -> usize {
        let wanted = (share * self.working_set as f64 / WORKERS as f64).ceil();
        wanted.max((LEAST_ROOM * self.longest as f64).ceil()) as usize
    }
}

/// Distinct blocks that are asked for more than once; all of them where none is.
fn working_set(workload: &Workload) -> usize {
    let mut asked: HashMap<u64, bool> = HashMap::new();
    let turns = workload.sessions.iter().flat_map(|it| &it.turns);
    for id in turns.flat_map(|turn| &turn.hash_ids) {
        asked
            .entry(*id)
            .and_modify(|again| *again = true)
            .or_default();
    }
    match asked.values().filter(|again| **again).count() {
        0 => asked.len(),
        again => again,
    }
}

/// Blocks of the longest prompt with its answer.
fn longest(workload: &Workload) -> usize {
    let turns = workload.sessions.iter().flat_map(|it| &it.turns);
    let tokens = turns.map(|turn| turn.input_tokens + turn.output_tokens);
    let most = tokens.max().unwrap_or_default();
    most.div_ceil(workload.block_size) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::workload::{Arrivals, Session, Turn};

    fn workload(prompts: &[&[u64]]) -> Workload {
        let turn = |ids: &&[u64]| Turn {
            delay_ms: 0.0,
            input_tokens: ids.len() as u32 * 16,
            output_tokens: 8,
            hash_ids: ids.to_vec(),
            priority: None,
            policy_class: None,
        };
        Workload {
            name: "w".into(),
            block_size: 16,
            sessions: vec![Session {
                id: "s".into(),
                start_ms: 0.0,
                turns: prompts.iter().map(turn).collect(),
            }],
            arrivals: Arrivals::Open,
        }
    }

    fn parts(quick: bool) -> Vec<Part> {
        let suite = TierSuite {
            quick,
            workloads: Vec::new(),
            conditions: Vec::new(),
            size: 0.1,
            settings: Settings::default(),
            catalog: &Catalog::default(),
            policies: TierSuite::POLICIES.map(str::to_owned).to_vec(),
            engine: &|settings| Engine::load_with("b200-70b", &settings),
        };
        suite.parts().unwrap()
    }

    #[test]
    fn the_working_set_is_what_is_asked_for_again_or_else_everything() {
        assert_eq!(working_set(&workload(&[&[1, 2, 3], &[1, 2, 4], &[1]])), 2);
        assert_eq!(working_set(&workload(&[&[1, 2], &[3]])), 3);
        // 3 · 16 + 8 tokens.
        assert_eq!(longest(&workload(&[&[1], &[1, 2, 3]])), 4);
    }

    #[test]
    fn device_memory_holds_the_share_and_at_least_the_longest_request() {
        let places = Places {
            source: WorkloadSource::Generated(Generator::WorkingSet),
            working_set: 24_576,
            longest: 528,
        };
        // 12,288 / 4, and 1.1 · 528 = 580.8 where 246 / 4 would be too few.
        assert_eq!(places.device_blocks(0.5), 3_072);
        assert_eq!(places.device_blocks(0.01), 581);
        assert_eq!(places.distinct(&[0.01, 0.02, 0.5]), [0.01, 0.5]);
    }

    #[test]
    fn every_link_share_and_workload_has_a_part_of_its_own_and_one_search_for_all_links() {
        let parts = parts(false);
        // 3 links, 3 workloads, 4 shares; 4 scales on 2 workloads.
        assert_eq!(parts.len(), 36 + 8);
        let names = |of: fn(&TierPart) -> &Engine| -> HashSet<(String, String)> {
            parts
                .iter()
                .map(|part| {
                    let tiers = part.tiers.as_ref().unwrap();
                    (part.sources[0].name(), of(tiers).name().to_owned())
                })
                .collect()
        };
        assert_eq!(names(|it| &it.searched).len(), 12);
        assert_eq!(names(|it| &it.engine).len(), 36);
        let labels = |part: &Part| -> Vec<String> {
            let labels = part.policies.iter().map(|it| it.label().to_owned());
            labels.collect()
        };
        assert_eq!(labels(&parts[0]), ["weights", "time", "device"]);
        assert_eq!(
            labels(&parts[12]),
            ["weights", "time", "time-preset", "device"]
        );
    }

    #[test]
    fn omega_is_scaled_below_and_above_the_calibrated_value() {
        let mut scales: Vec<f64> = Vec::new();
        for part in parts(false) {
            let scale = part.tiers.unwrap().point.omega_scale;
            if !scales.contains(&scale) {
                scales.push(scale);
            }
        }
        assert_eq!(scales, [1.0, 0.1, 0.5, 2.0, 4.0]);
    }
}
