// SPDX-License-Identifier: Apache-2.0

//! Which router decides, and with which settings.
//!
//! Three things can name a policy, and mixing them silently is how a fleet ends up on a router nobody chose:
//!
//! - `--router NAME` picks one without a file; the file is generated;
//! - `--router-policy-config FILE` says it all in Dynamo's YAML;
//! - `--router-prefill-policy`, `--router-decode-policy` and `DYN_ROUTER_WORKER_SELECTION_POLICY` name instances of that
//!   file for some or all roles.
//!
//! The first two together are a contradiction and end the start. With neither, the regime-aware policy routes: it is what
//! this program is for. It needs Dynamo's KV mode, so that is the default mode here, where `python -m dynamo.frontend`
//! defaults to round-robin.
//!
//! Dynamo applies the `router:` section of a policy file over flags and environment. Here a flag or a variable that was
//! given wins: the keys it overrides are left out of a private copy of the file. `--late-binding` adds its queue classes to
//! that copy, and is a contradiction when the file has classes of its own.

mod choice;
mod tuning;

pub use choice::{Choice, Mode, PolicyArgs, Router};
pub use tuning::{ConditionalDisagg, TuningArgs};

use anyhow::{Context as _, bail};
use dynamo_kv_router::KvRouterConfig;
use dynamo_kv_router::scheduling::PolicyProfile;
use dynamo_llm::entrypoint::RouterConfig;
use tempfile::TempPath;

use crate::cli::Sources;
use crate::policy_file;
use choice::name;

/// Everything Dynamo needs to know about routing, and the private policy file behind it.
#[derive(Debug)]
pub struct Resolved {
    /// For `LocalModelBuilder::router_config`.
    pub config: RouterConfig,
    /// The file as the operator knows it: what errors and start-up lines call it.
    pub origin: String,
    /// When requests wait in the router, one line for each class of its queue; empty when they never do.
    pub queue: Vec<String>,
    /// Deletes the private policy file when dropped.
    _file: Option<TempPath>,
}

impl Resolved {
    /// Combine flags, variables and the policy file.
    ///
    /// # Errors
    /// Contradicting settings, a policy file that cannot be read or parsed, or settings that Dynamo refuses.
    pub fn new(
        policy: &PolicyArgs,
        tuning: &TuningArgs,
        sources: &Sources,
    ) -> anyhow::Result<Self> {
        let choice = policy.choose(sources)?;
        let late_binding = policy.late_binding(&choice, tuning, sources)?;
        let mut kv = KvRouterConfig {
            router_prefill_policy: policy.router_prefill_policy.clone(),
            router_decode_policy: policy.router_decode_policy.clone(),
            ..Default::default()
        };
        let given = tuning.apply(&mut kv)?;
        let (mode, yaml, origin) = match &choice {
            Choice::Named(router) => (
                Mode::Kv,
                router.policy_yaml(),
                format!("--router {}", router.name()),
            ),
            Choice::Mode(mode) => (*mode, None, format!("router mode {}", name(*mode))),
            Choice::File(file) => {
                kv.router_policy_config = Some(policy_file::checked_path(file)?);
                let changed = policy_file::without_router_keys(file, &given)?;
                let origin = file.display().to_string();
                let copy = match late_binding {
                    None => changed,
                    Some(_) if policy_file::has_queue_classes(file)? => bail!(
                        "{} and the policy_classes of {origin} both choose the router's queue; give one of them",
                        sources.name("late_binding")
                    ),
                    Some(_) => Some(changed.map_or_else(|| policy_file::text(file), Ok)?),
                };
                (Mode::Kv, copy, origin)
            }
        };
        let yaml = match late_binding {
            None => yaml,
            Some(binding) => Some(policy_file::with_late_binding(yaml.as_deref(), binding)?),
        };
        let file = yaml.map(|yaml| policy_file::private(&yaml)).transpose()?;
        if let Some(file) = &file {
            kv.router_policy_config = Some(file.display().to_string());
        }
        kv.apply_policy_config()
            .map_err(|error| anyhow::anyhow!("{origin}: {error}"))?;
        kv.validate()
            .map_err(anyhow::Error::msg)
            .context("router settings")?;
        let queue_from = match &choice {
            _ if late_binding.is_some() => sources.name("late_binding"),
            Choice::File(file) if policy_file::has_queue_classes(file)? => origin.clone(),
            _ => sources.name("router_queue_threshold"),
        };
        let queue = match mode {
            Mode::Kv => queue(&kv.policy_profile(None)?, &queue_from),
            _ => Vec::new(),
        };
        Ok(Self {
            config: tuning.router_config(mode.into(), kv)?,
            origin,
            queue,
            _file: file,
        })
    }

    /// Dynamo's settings of its KV router.
    #[must_use]
    pub fn kv(&self) -> &KvRouterConfig {
        &self.config.kv_router_config
    }

    /// Whether policies route at all.
    #[must_use]
    pub fn is_kv(&self) -> bool {
        self.config.router_mode.is_kv_routing()
    }
}

/// When requests of each class wait. Profiles of single models are not told of.
fn queue(profile: &PolicyProfile, from: &str) -> Vec<String> {
    let held = profile
        .classes()
        .iter()
        .filter(|class| class.queueing_enabled());
    held.map(|class| {
        let tokens = class
            .prefill_busy_threshold
            .map(|tokens| format!("{tokens} prefill tokens"));
        let share = class
            .prefill_busy_threshold_frac
            .map(|share| format!("{share} of its batch in prefill tokens"));
        let thresholds: Vec<_> = tokens.into_iter().chain(share).collect();
        format!(
            "class {} waits while every worker has more than {} queued, {} ({from})",
            class.name,
            thresholds.join(" or "),
            class.queue_policy
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(
        file: Option<&str>,
        late_binding: impl Into<Option<bool>>,
        tuning: &TuningArgs,
    ) -> Result<Resolved, String> {
        let file = file.map(|text| policy_file::private(text).unwrap());
        let policy = PolicyArgs {
            router_policy_config: file.as_ref().map(|path| path.to_path_buf()),
            late_binding: late_binding.into(),
            ..Default::default()
        };
        Resolved::new(&policy, tuning, &Sources::default()).map_err(|error| error.to_string())
    }

    const SHORT_AND_LONG: [&str; 2] = [
        "class short-prompts waits while every worker has more than 8192 prefill tokens queued, fcfs (--late-binding)",
        "class long-prompts waits while every worker has more than 8192 prefill tokens queued, fcfs (--late-binding)",
    ];

    #[test]
    fn the_generated_file_has_the_classes_of_late_binding_unless_they_are_refused() {
        let resolved = |late_binding| resolved(None, late_binding, &TuningArgs::default()).unwrap();
        for late_binding in [None, Some(true)] {
            let resolved = resolved(late_binding);
            assert_eq!(resolved.queue, SHORT_AND_LONG);
            let selection = resolved.kv().worker_selection_config().unwrap().unwrap();
            assert_eq!(selection.instance_names(), ["regime-aware"]);
        }
        let refused = resolved(Some(false));
        assert!(refused.queue.is_empty());
        assert_eq!(
            refused.kv().policy_profile(None).unwrap().classes().len(),
            1
        );
    }

    #[test]
    fn nothing_waits_in_the_router_for_a_file_or_another_router_that_asks_for_no_queue() {
        let file = resolved(Some("router: {}"), None, &TuningArgs::default()).unwrap();
        assert!(file.queue.is_empty());
        let policy = PolicyArgs {
            router: Some(Router::Default),
            ..Default::default()
        };
        let other = Resolved::new(&policy, &TuningArgs::default(), &Sources::default()).unwrap();
        assert!(other.queue.is_empty());
    }

    #[test]
    fn late_binding_works_with_dynamos_default_router() {
        let policy = PolicyArgs {
            router: Some(Router::Default),
            late_binding: Some(true),
            ..Default::default()
        };
        let resolved = Resolved::new(&policy, &TuningArgs::default(), &Sources::default()).unwrap();
        assert_eq!(resolved.queue, SHORT_AND_LONG);
    }

    #[test]
    fn late_binding_adds_its_classes_to_a_copy_of_a_file_without_any() {
        let text = "router: { router_ttl_secs: 7.0, router_event_threads: 2 }\n";
        let tuning = TuningArgs {
            router_ttl_secs: Some(60.0),
            ..Default::default()
        };
        for (tuning, ttl_secs) in [(TuningArgs::default(), 7.0), (tuning, 60.0)] {
            let resolved = resolved(Some(text), true, &tuning).unwrap();
            assert_eq!(resolved.queue, SHORT_AND_LONG);
            assert_eq!(resolved.kv().router_ttl_secs, ttl_secs);
            assert_eq!(resolved.kv().router_event_threads, 2);
        }
    }

    const ONE_CLASS: &str = "
default_policy_family: all
uncached_isl_buckets: [{ min_tokens: 0, bucket: any }]
policy_classes: [{ name: all-of-them, policy_family: all, cache_bucket: any, quantum: 1, prefill_busy_threshold_frac: 2.0 }]
";

    #[test]
    fn late_binding_and_classes_of_the_file_contradict_each_other() {
        let error = resolved(Some(ONE_CLASS), true, &TuningArgs::default()).unwrap_err();
        assert!(
            error.starts_with("--late-binding and the policy_classes of /")
                && error.ends_with(" both choose the router's queue; give one of them"),
            "{error}"
        );
    }

    #[test]
    fn late_binding_and_a_queue_threshold_contradict_each_other() {
        let tuning = TuningArgs {
            router_queue_threshold: Some(2.0),
            ..Default::default()
        };
        assert_eq!(
            resolved(None, true, &tuning).unwrap_err(),
            "--late-binding and --router-queue-threshold (2) both choose the router's queue; give one of them"
        );
    }

    #[test]
    fn a_queue_of_the_file_or_of_a_flag_is_told_of_with_where_it_came_from() {
        let resolved_file = resolved(Some(ONE_CLASS), false, &TuningArgs::default()).unwrap();
        let expected = format!(
            "class all-of-them waits while every worker has more than 2 of its batch in prefill tokens queued, fcfs ({})",
            resolved_file.origin
        );
        assert_eq!(resolved_file.queue, [expected]);
        let tuning = TuningArgs {
            router_queue_threshold: Some(0.5),
            router_queue_policy: Some("wspt".into()),
            ..Default::default()
        };
        assert_eq!(
            resolved(None, None, &tuning).unwrap().queue,
            [
                "class default waits while every worker has more than 0.5 of its batch in prefill tokens queued, wspt (--router-queue-threshold)"
            ]
        );
    }

    #[test]
    fn a_flag_beats_the_router_section_of_the_policy_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "router: { router_ttl_secs: 7.0, router_event_threads: 2 }\n",
        )
        .unwrap();
        let policy = PolicyArgs {
            router_policy_config: Some(file.path().into()),
            ..Default::default()
        };
        let tuning = TuningArgs {
            router_ttl_secs: Some(60.0),
            ..Default::default()
        };
        let resolved = Resolved::new(&policy, &tuning, &Sources::default()).unwrap();
        assert_eq!(resolved.kv().router_ttl_secs, 60.0);
        assert_eq!(resolved.kv().router_event_threads, 2);
    }
}
