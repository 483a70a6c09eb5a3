// SPDX-License-Identifier: Apache-2.0

//! Dynamo's own router settings, under the names of the stock frontend.
//!
//! Dynamo reads the same variables in `kv_router_config_from_dynamo_env`, but drops values that do not parse; so they are
//! read here, strictly, and written into its configuration.

use std::path::PathBuf;

use clap::Args;
use dynamo_kv_router::config::{
    ApproximateCachePolicyKind, ConditionalDisaggPolicyKind, RouterQueuePolicy, SharedCacheType,
};
use dynamo_kv_router::{KvRouterConfig, TrackingHashAlgorithm};
use dynamo_llm::discovery::LoadThresholdConfig;
use dynamo_llm::entrypoint::RouterConfig;
use dynamo_llm::session_affinity::SessionAffinityMode;
use dynamo_runtime::pipeline::RouterMode;
use serde::Deserialize;

use crate::values::{fraction, non_negative, positive, switch};

/// Dynamo's router settings. Each is `None` when neither flag nor variable sets it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Routing settings (Dynamo's)")]
pub struct TuningArgs {
    /// Credit for one overlapping block on the device, in the built-in cost function [default: 1].
    #[arg(long, env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", value_name = "NUMBER", value_parser = non_negative)]
    pub router_kv_overlap_score_credit: Option<f64>,

    /// How fast that credit falls as a worker's prefill load rises above the least loaded one [default: 0].
    #[arg(long, env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", value_name = "NUMBER", value_parser = non_negative)]
    pub router_kv_overlap_score_credit_decay: Option<f64>,

    /// Weight of prefill load in the built-in cost function [default: 1].
    #[arg(long, env = "DYN_ROUTER_PREFILL_LOAD_SCALE", value_name = "NUMBER", value_parser = non_negative)]
    pub router_prefill_load_scale: Option<f64>,

    /// Blocks that one active request counts for in the built-in cost function [default: 0].
    #[arg(long, env = "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", value_name = "NUMBER", value_parser = non_negative)]
    pub router_decode_active_request_weight: Option<f64>,

    /// Worth of a block in host memory, against 1 on the device [default: 0.75].
    #[arg(long, env = "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", value_name = "0..1", value_parser = fraction)]
    pub router_host_cache_hit_weight: Option<f64>,

    /// Worth of a block on disk, against 1 on the device [default: 0.25].
    #[arg(long, env = "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", value_name = "0..1", value_parser = fraction)]
    pub router_disk_cache_hit_weight: Option<f64>,

    /// Worth of a block in the shared cache, against 1 on the device [default: 0.5 with a shared cache].
    #[arg(long, env = "DYN_SHARED_CACHE_MULTIPLIER", value_name = "0..1", value_parser = fraction)]
    pub shared_cache_multiplier: Option<f64>,

    /// Shared KV cache that the router asks: none or hicache [default: none].
    #[arg(long, env = "DYN_SHARED_CACHE_TYPE", value_name = "TYPE", value_parser = ["none", "hicache"])]
    pub shared_cache_type: Option<String>,

    /// Temperature of the built-in choice; 0 takes the cheapest worker [default: 0].
    #[arg(long, env = "DYN_ROUTER_TEMPERATURE", value_name = "NUMBER", value_parser = non_negative)]
    pub router_temperature: Option<f64>,

    /// Learn cached blocks from the workers' KV events; if not, predict them from routing decisions [default: true].
    #[arg(long, env = "DYN_ROUTER_USE_KV_EVENTS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub router_kv_events: Option<bool>,

    /// Share load between several frontends [default: false].
    #[arg(long, env = "DYN_ROUTER_REPLICA_SYNC", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub router_replica_sync: Option<bool>,

    /// Count the blocks that running requests hold [default: true].
    #[arg(long, env = "DYN_ROUTER_TRACK_ACTIVE_BLOCKS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub router_track_active_blocks: Option<bool>,

    /// Count generated blocks as well [default: false].
    #[arg(long, env = "DYN_ROUTER_TRACK_OUTPUT_BLOCKS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub router_track_output_blocks: Option<bool>,

    /// Assume that equal blocks of running requests are shared [default: true].
    #[arg(long, env = "DYN_ROUTER_ASSUME_KV_REUSE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub router_assume_kv_reuse: Option<bool>,

    /// Count prompt tokens that are still being prefilled [default: true].
    #[arg(long, env = "DYN_ROUTER_TRACK_PREFILL_TOKENS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub router_track_prefill_tokens: Option<bool>,

    /// Keep the prefixes of sessions [default: false].
    #[arg(long, env = "DYN_ENABLE_SESSION_PREFIX_INDEX", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub enable_session_prefix_index: Option<bool>,

    /// Ask an indexer that workers serve, instead of keeping one here [default: false].
    #[arg(long, env = "DYN_USE_REMOTE_INDEXER", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub use_remote_indexer: Option<bool>,

    /// Serve this router's indexer to others [default: false].
    #[arg(long, env = "DYN_SERVE_INDEXER", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub serve_indexer: Option<bool>,

    /// Seconds that a predicted block lives without KV events [default: 120].
    #[arg(long, env = "DYN_ROUTER_TTL_SECS", value_name = "SECONDS", value_parser = non_negative)]
    pub router_ttl_secs: Option<f64>,

    /// Without KV events, forget predicted blocks by age (ttl) or when the cache is full (lru) [default: ttl].
    #[arg(long, env = "DYN_ROUTER_APPROXIMATE_CACHE_POLICY", value_name = "POLICY", value_parser = ["ttl", "lru"])]
    pub router_approximate_cache_policy: Option<String>,

    /// With KV events, count routed blocks as cached for this many seconds before their event comes [default: off].
    #[arg(long, env = "DYN_ROUTER_PREDICTED_TTL_SECS", value_name = "SECONDS", value_parser = non_negative)]
    pub router_predicted_ttl_secs: Option<f64>,

    /// Threads of the KV indexer [default: 4].
    #[arg(long, env = "DYN_ROUTER_EVENT_THREADS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub router_event_threads: Option<u32>,

    /// Let requests with little left to prefill skip the prefill workers [default: false].
    #[arg(long, env = "DYN_ROUTER_CONDITIONAL_DISAGG", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub router_conditional_disagg: Option<bool>,

    /// When: {"policy": "isl_bounding" | "prefill_load" | "isl_or_load", "eff_isl_threshold": TOKENS,
    /// "eff_isl_ratio_threshold": 0..1, "prefill_busy_threshold": X, "decode_busy_threshold": X}.
    #[arg(long, env = "DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG", value_name = "JSON", value_parser = conditional_disagg)]
    pub router_conditional_disagg_config: Option<ConditionalDisagg>,

    /// Hash of the sequences that the router tracks [default: public-xxh3-v1].
    #[arg(long, env = "DYN_ROUTER_TRACKING_HASH", value_name = "HASH", value_parser = ["public-xxh3-v1", "keyed-xxh3-v1"])]
    pub router_tracking_hash: Option<String>,

    /// File with the 32-byte key of keyed-xxh3-v1.
    #[arg(long, env = "DYN_ROUTER_TRACKING_KEY_FILE", value_name = "FILE")]
    pub router_tracking_key_file: Option<PathBuf>,

    /// Name of that key.
    #[arg(long, env = "DYN_ROUTER_TRACKING_KEY_ID", value_name = "ID")]
    pub router_tracking_key_id: Option<String>,

    /// Queue in the router while every worker holds more than this share of its batch in prefill tokens [default: off].
    #[arg(long, env = "DYN_ROUTER_QUEUE_THRESHOLD", value_name = "NUMBER", value_parser = non_negative)]
    pub router_queue_threshold: Option<f64>,

    /// Order of that queue: fcfs, lcfs, or wspt [default: fcfs].
    #[arg(long, env = "DYN_ROUTER_QUEUE_POLICY", value_name = "ORDER", value_parser = ["fcfs", "lcfs", "wspt"])]
    pub router_queue_policy: Option<String>,

    /// Serve a model only when this many workers are there [default: 0].
    #[arg(long, env = "DYN_ROUTER_MIN_INITIAL_WORKERS", value_name = "N")]
    pub router_min_initial_workers: Option<usize>,

    /// Keep a session (header x-dynamo-session-id) on its worker for this many seconds of silence [default: off].
    #[arg(long, env = "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub router_session_affinity_ttl_secs: Option<u64>,

    /// hard: a session never leaves its worker; soft: it follows the router [default: hard].
    #[arg(long, env = "DYN_ROUTER_SESSION_AFFINITY_MODE", value_name = "MODE", value_parser = ["hard", "soft"])]
    pub router_session_affinity_mode: Option<String>,

    /// Refuse requests while every worker uses more than this share of its KV blocks [default: off].
    #[arg(long, env = "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", value_name = "0..1", value_parser = fraction)]
    pub active_decode_blocks_threshold: Option<f64>,

    /// Refuse requests while every worker holds more prefill tokens than this [default: off].
    #[arg(
        long,
        env = "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
        value_name = "TOKENS"
    )]
    pub active_prefill_tokens_threshold: Option<u64>,

    /// The same as a share of the batch [default: off].
    #[arg(long, env = "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC", value_name = "NUMBER", value_parser = positive)]
    pub active_prefill_tokens_threshold_frac: Option<f64>,

    /// Accepted for compatibility: Dynamo 1.6 reads the topology from the workers and ignores this [default: false].
    #[arg(long, env = "DYN_ENFORCE_DISAGG", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub enforce_disagg: Option<bool>,
}

/// When a request may skip the prefill workers. Absent keys keep Dynamo's defaults.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConditionalDisagg {
    policy: Option<ConditionalDisaggPolicyKind>,
    eff_isl_threshold: Option<usize>,
    eff_isl_ratio_threshold: Option<f64>,
    prefill_busy_threshold: Option<f64>,
    decode_busy_threshold: Option<f64>,
}

fn conditional_disagg(text: &str) -> Result<ConditionalDisagg, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("must be a JSON object of its settings: {error}"))
}

impl TuningArgs {
    /// Write what was given into `kv`; the result names those fields, by their key in the `router:` section.
    pub(super) fn apply(&self, kv: &mut KvRouterConfig) -> anyhow::Result<Vec<&'static str>> {
        let mut given = Vec::new();
        macro_rules! set {
            ($($field:ident = $value:expr;)*) => {
                $(if let Some(value) = $value {
                    kv.$field = value.into();
                    given.push(stringify!($field));
                })*
            };
        }
        let conditional = self
            .router_conditional_disagg_config
            .clone()
            .unwrap_or_default();
        set! {
            overlap_score_credit = self.router_kv_overlap_score_credit;
            overlap_score_credit_decay = self.router_kv_overlap_score_credit_decay;
            prefill_load_scale = self.router_prefill_load_scale;
            decode_active_request_weight = self.router_decode_active_request_weight;
            host_cache_hit_weight = self.router_host_cache_hit_weight;
            disk_cache_hit_weight = self.router_disk_cache_hit_weight;
            shared_cache_multiplier = self.shared_cache_multiplier;
            shared_cache_type = parsed::<SharedCacheType>(self.shared_cache_type.as_deref())?;
            router_temperature = self.router_temperature;
            use_kv_events = self.router_kv_events;
            router_replica_sync = self.router_replica_sync;
            router_track_active_blocks = self.router_track_active_blocks;
            router_track_output_blocks = self.router_track_output_blocks;
            router_assume_kv_reuse = self.router_assume_kv_reuse;
            router_track_prefill_tokens = self.router_track_prefill_tokens;
            enable_session_prefix_index = self.enable_session_prefix_index;
            use_remote_indexer = self.use_remote_indexer;
            serve_indexer = self.serve_indexer;
            router_tracking_hash = parsed::<TrackingHashAlgorithm>(self.router_tracking_hash.as_deref())?;
            router_tracking_key_file = self.router_tracking_key_file.clone();
            router_tracking_key_id = self.router_tracking_key_id.clone();
            conditional_disagg_enabled = self.router_conditional_disagg;
            conditional_disagg_policy = conditional.policy;
            conditional_disagg_eff_isl_threshold = conditional.eff_isl_threshold;
            conditional_disagg_eff_isl_ratio_threshold = conditional.eff_isl_ratio_threshold;
            conditional_disagg_prefill_busy_threshold = conditional.prefill_busy_threshold;
            conditional_disagg_decode_busy_threshold = conditional.decode_busy_threshold;
            router_ttl_secs = self.router_ttl_secs;
            router_approximate_cache_policy =
                parsed::<ApproximateCachePolicyKind>(self.router_approximate_cache_policy.as_deref())?;
            router_predicted_ttl_secs = self.router_predicted_ttl_secs;
            router_event_threads = self.router_event_threads;
            router_queue_threshold = self.router_queue_threshold;
            router_queue_policy = parsed::<RouterQueuePolicy>(self.router_queue_policy.as_deref())?;
        }
        Ok(given)
    }

    /// Dynamo's routing configuration around `kv`.
    pub(super) fn router_config(
        &self,
        mode: RouterMode,
        kv: KvRouterConfig,
    ) -> anyhow::Result<RouterConfig> {
        let mut config = RouterConfig::new(mode, kv);
        config.load_threshold_config = LoadThresholdConfig {
            active_decode_blocks_threshold: self.active_decode_blocks_threshold,
            active_prefill_tokens_threshold: self.active_prefill_tokens_threshold,
            active_prefill_tokens_threshold_frac: self.active_prefill_tokens_threshold_frac,
        };
        config.enforce_disagg = self.enforce_disagg.unwrap_or(false);
        config.session_affinity_ttl_secs = self.router_session_affinity_ttl_secs;
        if let Some(mode) =
            parsed::<SessionAffinityMode>(self.router_session_affinity_mode.as_deref())?
        {
            config.session_affinity_mode = mode;
        }
        Ok(config)
    }
}

fn parsed<T>(text: Option<&str>) -> anyhow::Result<Option<T>>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.map(|text| {
        text.parse()
            .map_err(|error: T::Err| anyhow::anyhow!("{error}"))
    })
    .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_settings_keep_dynamos_defaults() {
        let mut kv = KvRouterConfig::default();
        let given = TuningArgs::default().apply(&mut kv).unwrap();
        assert!(given.is_empty());
        assert_eq!(
            serde_json::to_value(&kv).unwrap(),
            serde_json::to_value(KvRouterConfig::default()).unwrap()
        );
    }

    #[test]
    fn given_settings_are_written_and_named() {
        let tuning = TuningArgs {
            router_temperature: Some(0.5),
            router_queue_threshold: Some(2.0),
            router_queue_policy: Some("wspt".into()),
            ..Default::default()
        };
        let mut kv = KvRouterConfig::default();
        let given = tuning.apply(&mut kv).unwrap();
        assert_eq!(
            given,
            [
                "router_temperature",
                "router_queue_threshold",
                "router_queue_policy"
            ]
        );
        assert_eq!(kv.router_temperature, 0.5);
        assert_eq!(kv.router_queue_threshold, Some(2.0));
        assert_eq!(kv.router_queue_policy, RouterQueuePolicy::Wspt);
    }

    #[test]
    fn conditional_disaggregation_takes_its_settings_as_json() {
        let config =
            conditional_disagg(r#"{"policy":"isl_or_load","eff_isl_threshold":4096}"#).unwrap();
        assert_eq!(config.policy, Some(ConditionalDisaggPolicyKind::IslOrLoad));
        assert_eq!(config.eff_isl_threshold, Some(4096));
        assert_eq!(config.prefill_busy_threshold, None);
    }

    #[test]
    fn an_unknown_setting_of_conditional_disaggregation_is_named() {
        let error = conditional_disagg(r#"{"eff_isl_treshold":4096}"#).unwrap_err();
        assert!(
            error.contains("eff_isl_treshold") && error.contains("eff_isl_threshold"),
            "{error}"
        );
    }
}
