// SPDX-License-Identifier: Apache-2.0

//! `regime-lab`: the library with the policies of Dynamo and our own.

use std::process::ExitCode;

fn main() -> ExitCode {
    regime_lab::cli::main_with(&regime_lab::Catalog::default())
}
