// SPDX-License-Identifier: Apache-2.0

//! The stock frontend with one way to break it: while the file named by `REGIME_TEST_PANIC_FILE` exists, every score
//! panics.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use regime_frontend::Extensions;

fn main() -> ExitCode {
    let mut extensions = Extensions::default();
    if let Some(file) = std::env::var_os("REGIME_TEST_PANIC_FILE").map(PathBuf::from) {
        extensions.policy_options.score_probe = Some(Arc::new(move |role| {
            assert!(!file.exists(), "injected fault in the {role} scorer");
        }));
    }
    regime_frontend::main_with(extensions)
}
