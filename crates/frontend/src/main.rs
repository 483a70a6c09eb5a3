// SPDX-License-Identifier: Apache-2.0

//! `regime-frontend`: the library with nothing added.

use std::process::ExitCode;

fn main() -> ExitCode {
    regime_frontend::main_with(regime_frontend::Extensions::default())
}
