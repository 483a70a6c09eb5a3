// SPDX-License-Identifier: Apache-2.0

//! Linking: which router plugins this process holds.
//!
//! Dynamo's own named policies come first, then ours, then whatever the caller of [`main_with`](crate::main_with) adds. A
//! type name that is taken fails the start: two policies under one name would be a silent swap.

use dynamo_kv_router::plugins::{RouterPluginRegistry, RouterPluginRegistryError};
use regime_policy::{Handle, Options};

/// Registers further plugin types.
pub type Register =
    Box<dyn Fn(&mut RouterPluginRegistry) -> Result<(), RouterPluginRegistryError> + Send + Sync>;

/// What the caller of [`main_with`](crate::main_with) adds to the stock program.
#[derive(Default)]
pub struct Extensions {
    /// Options of the regime-aware policy, for instance a probe that injects faults.
    pub policy_options: Options,
    /// Further plugin types to link.
    pub register: Option<Register>,
}

/// The catalogue of linked plugins, and the handle that our own registration shares with the frontend.
pub struct Linked {
    /// Every linked policy and classifier type.
    pub registry: RouterPluginRegistry,
    /// State behind `/regime` and the `regime_router_*` metrics.
    pub handle: Handle,
}

/// Link Dynamo's policies, ours and the caller's.
///
/// # Errors
/// When two of them use the same type name.
pub fn link(extensions: Extensions) -> Result<Linked, RouterPluginRegistryError> {
    let mut registry = dynamo_llm::kv_router::plugins::router_plugin_registry();
    dynamo_custom_policy_builtin::register(&mut registry)?;
    let handle = regime_policy::register_with(&mut registry, extensions.policy_options)?;
    if let Some(register) = extensions.register {
        register(&mut registry)?;
    }
    Ok(Linked { registry, handle })
}
