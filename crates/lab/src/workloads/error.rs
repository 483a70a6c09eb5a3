// SPDX-License-Identifier: Apache-2.0

//! Why a workload cannot be made.

use thiserror::Error;

use crate::traces::{ShapeError, TraceError};

use super::generator::Generator;

/// Why a workload cannot be made.
#[derive(Debug, Error)]
pub enum SourceError {
    /// No workload has this name.
    #[error("workload is {name:?}; allowed: {allowed}, trace:FILE", allowed = Generator::names())]
    UnknownName {
        /// The name that was asked for.
        name: String,
    },
    /// A number of [`super::Scale`] outside its range.
    #[error("{key} is {value}; allowed: {allowed}")]
    Scale {
        /// Its name.
        key: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The trace file cannot be used.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace cannot be cut or sped up as asked.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}
