// SPDX-License-Identifier: Apache-2.0

//! The tier ladder: what it takes to bring a KV block back, tier by tier.
//!
//! # Idea
//!
//! A block that lies in a lower tier must be brought into HBM before it can be used. That costs the
//! access latency of its tier once per request, and its bytes at the tier's bandwidth. Latency is paid
//! once, not per block, because engines hand the copies of a request to the tier as one batch. HBM (G1)
//! is where the block is wanted, so nothing is brought from there: it has a capacity, no speed.
//!
//! Going down, nothing gets faster: latency does not fall from tier to tier, and no tier has more
//! bandwidth than host memory, because what comes from a disk or the network crosses the same link to
//! the device. A ladder in another order is a mistake in the file and is refused. A store may have more
//! bandwidth than the disk, for a network line can be wider than an SSD.
//!
//! # Defaults
//!
//! Llama 3.1 70B with an FP8 cache, host memory behind one PCIe 5.0 ×16 link, an SSD on PCIe 4.0 ×4, a
//! store behind 100 Gb/s Ethernet. Bandwidths are line rates, which no transfer exceeds, so a measured
//! figure is better than any preset. A worker of several GPUs has as many links to host memory.
//!
//! # Source
//!
//! PCI Express Base Specification 4.0 and 5.0 (16 and 32 GT/s a lane, 128b/130b). IEEE 802.3 rates.
//! First-byte latency of object storage: "Best practices design patterns" of the Amazon S3 user guide,
//! 100 to 200 ms. A flash page read takes 50 to 100 µs by the data sheets of current enterprise drives;
//! the other latencies are our own estimates of a request's set-up.

use regime_core::Millis;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// Where a KV block can lie, from the nearest to the farthest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Device memory, HBM (G1).
    Device,
    /// Pinned host memory (G2).
    Host,
    /// Local SSD (G3).
    Disk,
    /// A network or shared store (G4).
    Shared,
}

impl Tier {
    /// Every tier, nearest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::Shared];
    /// The tiers that blocks must be brought from, nearest first. Arrays by lower tier follow this order.
    pub const LOWER: [Self; 3] = [Self::Host, Self::Disk, Self::Shared];

    /// The name in configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Shared => "shared",
        }
    }
}

/// Speed and size of one lower tier, as one worker sees it: all its GPUs together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TierSpeed {
    /// Time from a request for blocks to their first byte, ms. Paid once per request.
    pub latency_ms: f64,
    /// Bandwidth towards the device, GB/s (10⁹ bytes).
    pub bandwidth_gb_s: f64,
    /// Size, GB. Absent: not known, or without bound. Placement plans use it, the score does not.
    pub capacity_gb: Option<f64>,
}

impl TierSpeed {
    /// Host memory behind PCIe 4.0 ×16: 16 GT/s × 16 lanes × 128/130 / 8.
    pub const PCIE4_X16: Self = Self::new(0.05, 31.5);
    /// Host memory behind PCIe 5.0 ×16.
    pub const PCIE5_X16: Self = Self::new(0.05, 63.0);
    /// SSD on PCIe 4.0 ×4.
    pub const NVME_GEN4: Self = Self::new(0.1, 7.88);
    /// SSD on PCIe 5.0 ×4.
    pub const NVME_GEN5: Self = Self::new(0.1, 15.75);
    /// Store behind 100 Gb/s Ethernet.
    pub const NETWORK_100G: Self = Self::new(0.5, 12.5);
    /// Store behind 400 Gb/s Ethernet or InfiniBand NDR.
    pub const NETWORK_400G: Self = Self::new(0.5, 50.0);
    /// Object storage over 100 Gb/s.
    pub const OBJECT_STORE_100G: Self = Self::new(150.0, 12.5);

    /// A tier of unknown size.
    #[must_use]
    pub const fn new(latency_ms: f64, bandwidth_gb_s: f64) -> Self {
        Self {
            latency_ms,
            bandwidth_gb_s,
            capacity_gb: None,
        }
    }

    /// Time that `bytes` occupy the line, without latency.
    #[must_use]
    pub fn transfer(&self, bytes: f64) -> Millis {
        // GB/s are 10⁶ bytes a millisecond.
        Millis::new(bytes / (self.bandwidth_gb_s * 1e6))
    }
}

/// Shape of a model's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers that cache.
    pub layers: u32,
    /// KV heads in each.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Bytes of an element: 2 for BF16, 1 for FP8.
    pub element_bytes: u32,
}

impl KvShape {
    /// Llama 3.1 8B, BF16 cache: 131,072 bytes a token.
    pub const LLAMA_3_1_8B_BF16: Self = Self::grouped(32, 8, 128, 2);
    /// Llama 3.1 70B, FP8 cache: 163,840 bytes a token.
    pub const LLAMA_3_1_70B_FP8: Self = Self::grouped(80, 8, 128, 1);
    /// Llama 3.1 70B, BF16 cache: 327,680 bytes a token.
    pub const LLAMA_3_1_70B_BF16: Self = Self::grouped(80, 8, 128, 2);

    /// A cache with one key and one value per layer and KV head.
    #[must_use]
    pub const fn grouped(layers: u32, kv_heads: u32, head_dim: u32, element_bytes: u32) -> Self {
        Self {
            layers,
            kv_heads,
            head_dim,
            element_bytes,
        }
    }

    /// Bytes of one token over all layers: a key and a value.
    #[must_use]
    pub const fn bytes_per_token(&self) -> u64 {
        2 * self.layers as u64
            * self.kv_heads as u64
            * self.head_dim as u64
            * self.element_bytes as u64
    }
}

/// A tier of which a file names a part; the rest is that of a preset.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    latency_ms: Option<f64>,
    bandwidth_gb_s: Option<f64>,
    capacity_gb: Option<f64>,
}

/// Read a tier over `preset`; `null` is no tier.
fn read<'de, D: Deserializer<'de>>(
    preset: TierSpeed,
    deserializer: D,
) -> Result<Option<TierSpeed>, D::Error> {
    let written = Option::<Written>::deserialize(deserializer)?;
    Ok(written.map(|written| TierSpeed {
        latency_ms: written.latency_ms.unwrap_or(preset.latency_ms),
        bandwidth_gb_s: written.bandwidth_gb_s.unwrap_or(preset.bandwidth_gb_s),
        capacity_gb: written.capacity_gb,
    }))
}

fn host<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TierSpeed>, D::Error> {
    read(TierSpeed::PCIE5_X16, deserializer)
}

fn disk<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TierSpeed>, D::Error> {
    read(TierSpeed::NVME_GEN4, deserializer)
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TierSpeed>, D::Error> {
    read(TierSpeed::NETWORK_100G, deserializer)
}

/// The ladder as an operator writes it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LadderConfig {
    /// KV bytes of one token: layers × KV heads × head dimension × bytes × 2, over all ranks of a
    /// worker. A block is that times the block size, which the host knows.
    pub kv_bytes_per_token: f64,
    /// Size of device memory for KV blocks, GB. Placement plans use it, the score does not.
    pub device_capacity_gb: Option<f64>,
    /// Host memory; absent: blocks there are worth nothing.
    #[serde(deserialize_with = "host")]
    pub host: Option<TierSpeed>,
    /// Local SSD; absent: blocks there are worth nothing.
    #[serde(deserialize_with = "disk")]
    pub disk: Option<TierSpeed>,
    /// Shared store; absent: blocks there are worth nothing.
    #[serde(deserialize_with = "shared")]
    pub shared: Option<TierSpeed>,
    /// Learn from requests by how much the tiers are slower or faster than that, see
    /// [`LearnedLadder`](crate::LearnedLadder). The score uses it, placement plans do not.
    pub learn: bool,
}

impl Default for LadderConfig {
    fn default() -> Self {
        Self {
            kv_bytes_per_token: KvShape::LLAMA_3_1_70B_FP8.bytes_per_token() as f64,
            device_capacity_gb: None,
            host: Some(TierSpeed::PCIE5_X16),
            disk: Some(TierSpeed::NVME_GEN4),
            shared: Some(TierSpeed::NETWORK_100G),
            learn: true,
        }
    }
}

/// A ladder that was refused.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{key} is {value}; allowed: {allowed}")]
pub struct LadderError {
    /// Path of the key within the ladder.
    pub key: String,
    /// The refused value.
    pub value: f64,
    /// What would have been accepted.
    pub allowed: String,
}

/// A ladder whose values were checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ladder {
    config: LadderConfig,
}

impl Ladder {
    /// Check a configuration.
    ///
    /// # Errors
    /// Names the first key that is zero, negative, not finite or absurdly large, or faster than the tier
    /// above allows; its value and what is allowed.
    pub fn new(config: LadderConfig) -> Result<Self, LadderError> {
        positive("kv_bytes_per_token", config.kv_bytes_per_token)?;
        if let Some(capacity) = config.device_capacity_gb {
            positive("device_capacity_gb", capacity)?;
        }
        let ladder = Self { config };
        let mut above: Option<(Tier, f64)> = None;
        for tier in Tier::LOWER {
            let Some(speed) = ladder.speed(tier) else {
                continue;
            };
            let key = |name: &str| format!("{}.{name}", tier.name());
            positive(&key("latency_ms"), speed.latency_ms)?;
            positive(&key("bandwidth_gb_s"), speed.bandwidth_gb_s)?;
            if let Some(capacity) = speed.capacity_gb {
                positive(&key("capacity_gb"), capacity)?;
            }
            if let Some((upper, latency_ms)) = above
                && speed.latency_ms < latency_ms
            {
                return Err(LadderError {
                    key: key("latency_ms"),
                    value: speed.latency_ms,
                    allowed: format!("at least {latency_ms}, the latency of {}", upper.name()),
                });
            }
            above = Some((tier, speed.latency_ms));
            if let Some(host) = config.host
                && speed.bandwidth_gb_s > host.bandwidth_gb_s
            {
                return Err(LadderError {
                    key: key("bandwidth_gb_s"),
                    value: speed.bandwidth_gb_s,
                    allowed: format!("at most {}, the bandwidth of host", host.bandwidth_gb_s),
                });
            }
        }
        Ok(ladder)
    }

    /// As it was written.
    #[must_use]
    pub const fn config(&self) -> &LadderConfig {
        &self.config
    }

    /// Speed of a lower tier; absent for the device, and for a tier that the ladder lacks.
    #[must_use]
    pub const fn speed(&self, tier: Tier) -> Option<&TierSpeed> {
        match tier {
            Tier::Device => None,
            Tier::Host => self.config.host.as_ref(),
            Tier::Disk => self.config.disk.as_ref(),
            Tier::Shared => self.config.shared.as_ref(),
        }
    }

    /// Time to bring `bytes` from a lower tier, latency included; absent as its speed is.
    #[must_use]
    pub fn fetch_time(&self, tier: Tier, bytes: f64) -> Option<Millis> {
        let speed = self.speed(tier)?;
        Some(Millis::new(speed.latency_ms) + speed.transfer(bytes))
    }

    /// The same with tiers that take longer by `factors`, above zero, in the order of [`Tier::LOWER`].
    pub(crate) fn slowed(mut self, factors: [f64; Tier::LOWER.len()]) -> Self {
        let LadderConfig {
            host, disk, shared, ..
        } = &mut self.config;
        for (tier, factor) in [host, disk, shared].into_iter().zip(factors) {
            if let Some(speed) = tier {
                speed.latency_ms *= factor;
                speed.bandwidth_gb_s /= factor;
            }
        }
        self
    }

    /// Bytes of a block of `tokens` tokens.
    #[must_use]
    pub fn block_bytes(&self, tokens: u32) -> f64 {
        self.config.kv_bytes_per_token * f64::from(tokens)
    }

    /// Whole blocks of `tokens` tokens that fit into a tier; absent where the size is not known.
    #[must_use]
    pub fn capacity_blocks(&self, tier: Tier, tokens: u32) -> Option<u64> {
        let gigabytes = match tier {
            Tier::Device => self.config.device_capacity_gb,
            lower => self.speed(lower).and_then(|speed| speed.capacity_gb),
        };
        gigabytes.map(|size| (size * 1e9 / self.block_bytes(tokens.max(1))) as u64)
    }
}

/// Above zero and finite. The bounds keep every quotient inside a float.
fn positive(key: &str, value: f64) -> Result<(), LadderError> {
    // False for NaN, too.
    if (1e-9..=1e12).contains(&value) {
        Ok(())
    } else {
        Err(LadderError {
            key: key.to_owned(),
            value,
            allowed: "above 0 (from 1e-9), at most 1e12".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: LadderConfig) -> String {
        Ladder::new(config).unwrap_err().to_string()
    }

    #[test]
    fn a_token_is_a_key_and_a_value_per_layer_and_head() {
        // 2 × 80 layers × 8 heads × 128 × 1 byte.
        assert_eq!(KvShape::LLAMA_3_1_70B_FP8.bytes_per_token(), 163_840);
        assert_eq!(KvShape::LLAMA_3_1_8B_BF16.bytes_per_token(), 131_072);
        let ladder = Ladder::new(LadderConfig::default()).unwrap();
        assert_eq!(ladder.block_bytes(16), 2_621_440.0);
    }

    #[test]
    fn bytes_take_their_share_of_the_bandwidth() {
        // 63 MB at 63 GB/s.
        assert_eq!(TierSpeed::PCIE5_X16.transfer(63e6), Millis::new(1.0));
    }

    #[test]
    fn presets_are_the_line_rates() {
        let lanes = |gigatransfers: f64, lanes: f64| gigatransfers * lanes * 128.0 / 130.0 / 8.0;
        for (preset, rate) in [
            (TierSpeed::PCIE4_X16, lanes(16.0, 16.0)),
            (TierSpeed::PCIE5_X16, lanes(32.0, 16.0)),
            (TierSpeed::NVME_GEN4, lanes(16.0, 4.0)),
            (TierSpeed::NVME_GEN5, lanes(32.0, 4.0)),
            (TierSpeed::NETWORK_100G, 100.0 / 8.0),
            (TierSpeed::NETWORK_400G, 400.0 / 8.0),
        ] {
            assert!((preset.bandwidth_gb_s - rate).abs() < 0.02, "{preset:?}");
        }
    }

    #[test]
    fn zero_negative_and_non_finite_values_are_refused_by_name() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let tier = |speed| LadderConfig {
                disk: Some(speed),
                ..LadderConfig::default()
            };
            let good = TierSpeed::NVME_GEN4;
            let cases = [
                (
                    "disk.latency_ms",
                    tier(TierSpeed {
                        latency_ms: bad,
                        ..good
                    }),
                ),
                (
                    "disk.bandwidth_gb_s",
                    tier(TierSpeed {
                        bandwidth_gb_s: bad,
                        ..good
                    }),
                ),
                (
                    "disk.capacity_gb",
                    tier(TierSpeed {
                        capacity_gb: Some(bad),
                        ..good
                    }),
                ),
                (
                    "device_capacity_gb",
                    LadderConfig {
                        device_capacity_gb: Some(bad),
                        ..LadderConfig::default()
                    },
                ),
                (
                    "kv_bytes_per_token",
                    LadderConfig {
                        kv_bytes_per_token: bad,
                        ..LadderConfig::default()
                    },
                ),
            ];
            for (key, config) in cases {
                let message = refusal(config);
                assert_eq!(
                    message,
                    format!("{key} is {bad}; allowed: above 0 (from 1e-9), at most 1e12")
                );
            }
        }
    }

    #[test]
    fn a_tier_that_is_faster_than_the_one_above_is_refused() {
        let disk = |speed| LadderConfig {
            disk: Some(speed),
            ..LadderConfig::default()
        };
        assert_eq!(
            refusal(disk(TierSpeed::new(0.01, 5.0))),
            "disk.latency_ms is 0.01; allowed: at least 0.05, the latency of host"
        );
        assert_eq!(
            refusal(disk(TierSpeed::new(0.1, 70.0))),
            "disk.bandwidth_gb_s is 70; allowed: at most 63, the bandwidth of host"
        );
        // The neighbour above is the next tier that exists.
        let message = refusal(LadderConfig {
            disk: None,
            shared: Some(TierSpeed::new(0.01, 5.0)),
            ..LadderConfig::default()
        });
        assert!(
            message.ends_with("at least 0.05, the latency of host"),
            "{message}"
        );
    }

    #[test]
    fn a_store_may_have_a_wider_line_than_the_disk_but_no_shorter_delay() {
        let shared = |speed| LadderConfig {
            shared: Some(speed),
            ..LadderConfig::default()
        };
        assert!(Ladder::new(shared(TierSpeed::new(0.1, 50.0))).is_ok());
        assert_eq!(
            refusal(shared(TierSpeed::new(0.07, 50.0))),
            "shared.latency_ms is 0.07; allowed: at least 0.1, the latency of disk"
        );
    }

    #[test]
    fn every_preset_makes_a_ladder_in_its_place() {
        // A 400 Gb/s adapter fills more than PCIe 4.0 ×16, so it does not go with that host.
        let (gen4, gen5) = (TierSpeed::PCIE4_X16, TierSpeed::PCIE5_X16);
        for (host, shared) in [
            (gen4, TierSpeed::NETWORK_100G),
            (gen4, TierSpeed::OBJECT_STORE_100G),
            (gen5, TierSpeed::NETWORK_100G),
            (gen5, TierSpeed::NETWORK_400G),
            (gen5, TierSpeed::OBJECT_STORE_100G),
        ] {
            for disk in [TierSpeed::NVME_GEN4, TierSpeed::NVME_GEN5] {
                let config = LadderConfig {
                    host: Some(host),
                    disk: Some(disk),
                    shared: Some(shared),
                    ..LadderConfig::default()
                };
                assert!(Ladder::new(config).is_ok(), "{config:?}");
            }
        }
    }

    #[test]
    fn capacity_is_whole_blocks() {
        let ladder = Ladder::new(LadderConfig {
            kv_bytes_per_token: 1e6,
            device_capacity_gb: Some(0.1),
            host: Some(TierSpeed {
                capacity_gb: Some(1.0),
                ..TierSpeed::PCIE5_X16
            }),
            ..LadderConfig::default()
        })
        .unwrap();
        // 16 MB a block: 6.25 in 100 MB, 62.5 in a GB.
        assert_eq!(ladder.capacity_blocks(Tier::Device, 16), Some(6));
        assert_eq!(ladder.capacity_blocks(Tier::Host, 16), Some(62));
        assert_eq!(ladder.capacity_blocks(Tier::Disk, 16), None);
    }

    #[test]
    fn what_a_file_leaves_out_is_that_of_the_preset_and_null_is_no_tier() {
        let parsed: LadderConfig =
            serde_json::from_str(r#"{"disk": null, "host": {"bandwidth_gb_s": 20}}"#).unwrap();
        let expected = LadderConfig {
            host: Some(TierSpeed::new(TierSpeed::PCIE5_X16.latency_ms, 20.0)),
            disk: None,
            ..LadderConfig::default()
        };
        assert_eq!(parsed, expected);
        for bad in [r#"{"host": {"latency": 0.2}}"#, r#"{"dsik": null}"#] {
            assert!(serde_json::from_str::<LadderConfig>(bad).is_err(), "{bad}");
        }
    }
}
