// SPDX-License-Identifier: Apache-2.0

//! How many workers, and of which roles.
//!
//! Written as operators write it: `4` is four aggregated workers, `2P3D` is two prefill and three
//! decode workers.

use std::fmt;
use std::str::FromStr;

/// Workers of one fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Every worker does both phases.
    Aggregated {
        /// Number of workers, 1 to 1,024.
        workers: usize,
    },
    /// Prefill and decode on different workers, with a KV transfer between them.
    Disaggregated {
        /// Number of prefill workers, 1 to 1,024.
        prefill: usize,
        /// Number of decode workers, 1 to 1,024.
        decode: usize,
    },
}

/// Largest pool that can be simulated.
const MAX_WORKERS: usize = 1_024;

/// A topology that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "topology {given:?} is not understood; allowed are a number of workers from 1 to {MAX_WORKERS}, such as 4, \
     or prefill and decode workers, such as 2P3D"
)]
pub struct TopologyError {
    given: String,
}

impl Topology {
    /// All workers.
    #[must_use]
    pub const fn workers(self) -> usize {
        match self {
            Self::Aggregated { workers } => workers,
            Self::Disaggregated { prefill, decode } => prefill + decode,
        }
    }
}

impl FromStr for Topology {
    type Err = TopologyError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let error = || TopologyError {
            given: given.to_owned(),
        };
        let count = |digits: &str| {
            digits
                .parse()
                .ok()
                .filter(|count| (1..=MAX_WORKERS).contains(count))
                .ok_or_else(error)
        };
        let upper = given.trim().to_ascii_uppercase();
        let Some((prefill, rest)) = upper.split_once('P') else {
            return Ok(Self::Aggregated {
                workers: count(&upper)?,
            });
        };
        Ok(Self::Disaggregated {
            prefill: count(prefill)?,
            decode: count(rest.strip_suffix('D').ok_or_else(error)?)?,
        })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aggregated { workers } => write!(formatter, "{workers}"),
            Self::Disaggregated { prefill, decode } => write!(formatter, "{prefill}P{decode}D"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_kinds_are_read_and_written_back() {
        for name in ["1", "4", "32", "1P2D", "2P3D"] {
            assert_eq!(name.parse::<Topology>().unwrap().to_string(), name);
        }
        assert_eq!("2p3d".parse::<Topology>().unwrap().workers(), 5);
    }

    #[test]
    fn anything_else_is_refused_with_what_is_allowed() {
        for name in [
            "", "0", "-1", "P", "2P", "2P3", "0P3D", "2P0D", "4D", "2P3D4", "99999",
        ] {
            let error = name.parse::<Topology>().unwrap_err().to_string();
            assert!(error.contains("such as 2P3D"), "{name}: {error}");
        }
    }
}
