// SPDX-License-Identifier: Apache-2.0

//! Small workloads and runs for the tests.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part")]

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use regime_lab::{
    Arrivals, Catalog, Engine, Experiment, Policy, Run, Session, Topology, Turn, Workload,
};
use serde_json::{Map, Value};

/// Conversations: `sessions` of `turns` turns, a new one every `gap_ms` in the mean, 8 system prompts
/// of 1,024 tokens, 512 tokens and an answer of 32 to 160 tokens a turn, a second to think.
pub fn chat(sessions: usize, turns: usize, gap_ms: f64, seed: u64) -> Workload {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut next_id = 1_000;
    let mut start_ms = 0.0;
    let sessions = (0..sessions)
        .map(|index| {
            start_ms += -gap_ms * (1.0 - rng.random::<f64>()).ln();
            let system = rng.random_range(0..8);
            let mut hash_ids: Vec<u64> = (system * 64..system * 64 + 64).collect();
            let turns = (0..turns)
                .map(|turn| {
                    hash_ids.extend(next_id..next_id + 32);
                    next_id += 32;
                    Turn {
                        delay_ms: if turn == 0 { 0.0 } else { 1_000.0 },
                        input_tokens: hash_ids.len() as u32 * 16,
                        output_tokens: rng.random_range(32..=160),
                        hash_ids: hash_ids.clone(),
                        priority: None,
                        policy_class: None,
                    }
                })
                .collect();
            Session {
                id: format!("s{index}"),
                start_ms,
                turns,
            }
        })
        .collect();
    Workload {
        name: "chat".into(),
        block_size: 16,
        sessions,
        arrivals: Arrivals::Open,
    }
}

/// Single requests of 128 tokens, one of five templates, with these output lengths in turn.
pub fn templates(requests: usize, concurrency: usize, outputs: &[u32]) -> Workload {
    let sessions = (0..requests)
        .map(|index| Session {
            id: format!("r{index}"),
            start_ms: 0.0,
            turns: vec![Turn {
                delay_ms: 0.0,
                input_tokens: 128,
                output_tokens: outputs[index % outputs.len()],
                hash_ids: (0..8)
                    .map(|block| {
                        if block == 7 {
                            1_000 + index as u64
                        } else {
                            (index % 5 * 10) as u64 + block
                        }
                    })
                    .collect(),
                priority: None,
                policy_class: None,
            }],
        })
        .collect();
    Workload {
        name: "templates".into(),
        block_size: 16,
        sessions,
        arrivals: Arrivals::Closed { concurrency },
    }
}

pub fn engine(name: &str, settings: Value) -> Engine {
    let Value::Object(settings) = settings else {
        return Engine::load_with(name, &Map::new()).unwrap();
    };
    Engine::load_with(name, &settings).unwrap()
}

pub fn experiment(
    policy: &str,
    workload: Workload,
    engine: Engine,
    topology: &str,
    seed: u64,
) -> Experiment {
    Experiment::new(
        Policy::named(policy, &Catalog::default()).unwrap(),
        Arc::new(workload),
        engine,
        topology.parse::<Topology>().unwrap(),
        seed,
    )
}

pub fn run(experiment: &Experiment) -> Run {
    experiment.run(&Catalog::default()).unwrap()
}
