// SPDX-License-Identifier: Apache-2.0

//! Router-policy files: generated ones, and private copies of given ones.
//!
//! Dynamo takes worker-selection policies only from a YAML file. `--router NAME` therefore writes one; it is private to
//! the process (mode 0600 in the temporary folder) and goes when the process does.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context as _;
use dynamo_kv_router::scheduling::RouterPolicyConfig;
use regime_policy::LateBinding;
use serde_json::json;
use serde_yaml::{Mapping, Value};
use tempfile::TempPath;

/// A file that routes the three token roles by one instance of `policy`, which bears the type's name, and installs
/// `classifier`. Encode workers keep Dynamo's built-in: they see neither tokens nor KV blocks.
#[must_use]
pub fn for_all_roles(policy: &str, classifier: Option<&str>) -> String {
    let mut file = json!({
        "worker_selection": {
            "aggregated": policy,
            "prefill": policy,
            "decode": policy,
            "instances": [{ "name": policy, "type": policy }],
        }
    });
    if let Some(classifier) = classifier {
        file["request_classifier"] = json!({ "type": classifier });
    }
    // JSON is YAML.
    file.to_string()
}

/// `file` as text for Dynamo, once Dynamo has parsed it without complaint.
///
/// # Errors
/// A file that cannot be read, is not a policy file, or has a name that is not Unicode.
pub fn checked_path(file: &Path) -> anyhow::Result<String> {
    // Dynamo names the file in some of its errors and not in others.
    RouterPolicyConfig::from_path(file).map_err(|error| {
        let text = error.to_string();
        let text = text
            .trim_start_matches("invalid router policy config: ")
            .to_owned();
        if text.contains(&*file.to_string_lossy()) {
            anyhow::anyhow!(text)
        } else {
            anyhow::anyhow!("{}: {text}", file.display())
        }
    })?;
    file.to_str()
        .map(str::to_owned)
        .with_context(|| format!("{}: file names must be Unicode", file.display()))
}

/// The instance that each role names in `file`. Dynamo keeps all but one of these to itself.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn selections(file: &Path) -> anyhow::Result<HashMap<String, String>> {
    let document = document(file)?;
    let selection = document.get("worker_selection").and_then(Value::as_mapping);
    let pairs = selection.into_iter().flatten();
    Ok(pairs
        .filter_map(|(role, name)| Some((role.as_str()?.to_owned(), name.as_str()?.to_owned())))
        .collect())
}

/// The text of `file` without `keys` in its `router:` section; `None` when it has none of them.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn without_router_keys(file: &Path, keys: &[&str]) -> anyhow::Result<Option<String>> {
    let mut document = document(file)?;
    let Some(router) = document.get_mut("router").and_then(Value::as_mapping_mut) else {
        return Ok(None);
    };
    let before = router.len();
    for key in keys {
        router.remove(*key);
    }
    let changed = router.len() < before;
    Ok(if changed {
        Some(serde_yaml::to_string(&document)?)
    } else {
        None
    })
}

/// Whether `file` defines queue classes, for all models or for one.
///
/// # Errors
/// A file that cannot be read or is not a policy file.
pub fn has_queue_classes(file: &Path) -> anyhow::Result<bool> {
    Ok(RouterPolicyConfig::from_path(file)?.has_routing_profiles())
}

/// The policy file `yaml`, or an empty one, with the queue classes of `binding`.
///
/// # Errors
/// A text that is no mapping, or a setting of `binding` out of its range.
pub fn with_late_binding(yaml: Option<&str>, binding: LateBinding) -> anyhow::Result<String> {
    let mut document: Mapping = yaml.map_or_else(|| Ok(Mapping::new()), serde_yaml::from_str)?;
    document.extend(binding.policy_file_keys()?);
    Ok(serde_yaml::to_string(&document)?)
}

/// Write `yaml` to a file that is deleted when the result is dropped.
///
/// # Errors
/// When the temporary folder cannot be written.
pub fn private(yaml: &str) -> anyhow::Result<TempPath> {
    let file = tempfile::Builder::new()
        .prefix("regime-router-policy-")
        .suffix(".yaml")
        .tempfile()
        .context("creating a policy file in the temporary folder")?;
    std::fs::write(file.path(), yaml)
        .with_context(|| format!("writing {}", file.path().display()))?;
    Ok(file.into_temp_path())
}

/// The text of `file`.
///
/// # Errors
/// A file that cannot be read.
pub fn text(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

fn document(file: &Path) -> anyhow::Result<Value> {
    serde_yaml::from_str(&text(file)?).with_context(|| format!("parsing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> TempPath {
        private(text).unwrap()
    }

    #[test]
    fn a_generated_file_selects_its_policy_for_every_token_role() {
        let path = file(&for_all_roles("a", Some("b")));
        let config = RouterPolicyConfig::from_path(&path).unwrap();
        assert_eq!(
            config
                .worker_selection()
                .unwrap()
                .instance("a")
                .unwrap()
                .policy_type(),
            "a"
        );
        assert!(config.request_classifier().is_some());
        let mut selections: Vec<_> = selections(&path).unwrap().into_iter().collect();
        selections.sort_unstable();
        let expected =
            ["aggregated", "decode", "prefill"].map(|role| (role.to_owned(), "a".to_owned()));
        assert_eq!(selections, expected);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = checked_path(Path::new("/no/such.yaml"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such.yaml"), "{error}");
    }

    #[test]
    fn a_mistake_names_the_file_and_the_key() {
        let path = file("worker_selectoin: {}\n");
        let error = checked_path(&path).unwrap_err().to_string();
        assert!(
            error.contains(&path.display().to_string()) && error.contains("worker_selectoin"),
            "{error}"
        );
    }

    #[test]
    fn a_role_that_names_no_instance_is_reported_with_the_file() {
        let path =
            file("worker_selection: { aggregated: other, instances: [{name: a, type: b}] }\n");
        let error = checked_path(&path).unwrap_err().to_string();
        assert!(
            error.contains(&path.display().to_string()) && error.contains("other"),
            "{error}"
        );
    }

    #[test]
    fn only_overridden_keys_leave_the_router_section() {
        let path = file("router: { router_ttl_secs: 7.0, router_event_threads: 2 }\n");
        let text = without_router_keys(&path, &["router_ttl_secs"])
            .unwrap()
            .unwrap();
        assert_eq!(text, "router:\n  router_event_threads: 2\n");
        assert_eq!(
            without_router_keys(&path, &["use_kv_events"]).unwrap(),
            None
        );
    }

    #[test]
    fn the_private_file_goes_with_its_owner() {
        let path = file("router: {}\n");
        let copy = path.to_path_buf();
        assert!(copy.exists());
        drop(path);
        assert!(!copy.exists());
    }
}
