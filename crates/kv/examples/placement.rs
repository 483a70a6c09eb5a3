// SPDX-License-Identifier: Apache-2.0

//! The price of anarchy of placement, as the tables of `docs/tiers.md`.
//!
//! Workers hold blocks in host memory and can read each other's over the network; times are those of
//! the ladder's presets, per block of 16 tokens in runs of 32. Demand falls with the rank of a block as 1/rank,
//! the same on each worker.

use regime_core::Millis;
use regime_kv::{KvShape, ReplicationGame, TierSpeed};

const BLOCK_TOKENS: u64 = 16;
const RUN_BLOCKS: f64 = 32.0;
/// Recomputing a token, ms: Llama 3.1 70B in FP8 on four B200.
const TOKEN_MS: f64 = 0.025;

/// Time of one block of a run, latency shared.
fn block_time(speed: TierSpeed) -> Millis {
    let bytes = KvShape::LLAMA_3_1_70B_FP8.bytes_per_token() * BLOCK_TOKENS;
    Millis::new(speed.latency_ms / RUN_BLOCKS) + speed.transfer(bytes as f64)
}

fn game(
    workers: usize,
    blocks: usize,
    room: usize,
    peer: TierSpeed,
    price: f64,
) -> ReplicationGame {
    let demand = (1..=blocks).map(|rank| 1.0 / rank as f64).collect();
    ReplicationGame {
        demand: vec![demand; workers],
        room,
        local: block_time(TierSpeed::PCIE5_X16),
        peer: block_time(peer),
        store: None,
        recompute: Millis::new(TOKEN_MS * BLOCK_TOKENS as f64 * (1.0 + price)),
        replica: Millis::ZERO,
    }
}

fn main() {
    let networks = [
        ("10 Gb/s", TierSpeed::new(0.5, 1.25)),
        ("100 Gb/s", TierSpeed::NETWORK_100G),
        ("400 Gb/s", TierSpeed::NETWORK_400G),
    ];
    let regimes = [("below", 0.0), ("transition", 2.0), ("saturated", 16.0)];
    println!("Three workers, six blocks, room for two each: every placement.\n");
    println!(
        "| network | regime | peer / recompute | price of anarchy | of stability | equilibria |"
    );
    println!("|---|---|---|---|---|---|");
    for (network, speed) in networks {
        for (regime, price) in regimes {
            let game = game(3, 6, 2, speed, price);
            if let Some(found) = game.anarchy()
                && let (Some(anarchy), Some(stability)) =
                    (found.price_of_anarchy(), found.price_of_stability())
            {
                let ratio = game.peer.get() / game.recompute.get();
                let count = found.equilibria;
                println!(
                    "| {network} | {regime} | {ratio:.2} | {anarchy:.3} | {stability:.3} | {count} |"
                );
            }
        }
    }
    println!(
        "\nEight workers, 512 blocks, room for 64 each: the equilibrium that best responses reach.\n"
    );
    println!(
        "| network | regime | equilibrium / bound | planner / bound | nobody keeps anything / bound |"
    );
    println!("|---|---|---|---|---|");
    for (network, speed) in networks {
        for (regime, price) in regimes {
            let game = game(8, 512, 64, speed, price);
            let Some(reached) = game.equilibrium(game.empty()) else {
                println!("| {network} | {regime} | does not settle | | |");
                continue;
            };
            let bound = game.lower_bound();
            let over = |placement| game.social_cost(placement).get() / bound.get();
            println!(
                "| {network} | {regime} | {:.3} | {:.3} | {:.2} |",
                over(&reached),
                over(&game.greedy()),
                over(&game.empty()),
            );
        }
    }
}
