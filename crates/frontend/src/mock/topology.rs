// SPDX-License-Identifier: Apache-2.0

//! How many workers in which roles: `4` or `1P2D`.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Role {
    /// Prefill and decode.
    Aggregated,
    /// Prefill only; hands its KV blocks to a decode worker.
    Prefill,
    /// Decode only.
    Decode,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// A fleet's make-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// This many aggregated workers.
    Aggregated(usize),
    /// Disaggregated: prefill and decode workers, at least one of each.
    Disaggregated {
        /// Prefill workers.
        prefill: usize,
        /// Decode workers.
        decode: usize,
    },
}

/// More workers than this in one process are a typing mistake.
const MOST_WORKERS: usize = 512;

impl Topology {
    /// The role of each worker, prefill workers first.
    #[must_use]
    pub fn roles(self) -> Vec<Role> {
        match self {
            Self::Aggregated(count) => vec![Role::Aggregated; count],
            Self::Disaggregated { prefill, decode } => {
                let mut roles = vec![Role::Prefill; prefill];
                roles.resize(prefill + decode, Role::Decode);
                roles
            }
        }
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "must be N aggregated workers, such as 4, or xPyD, such as 1P2D, with 1 to {MOST_WORKERS} workers of each kind"
            )
        };
        let count = |digits: &str| {
            // `parse` alone would take "+4".
            Some(digits)
                .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .filter(|count| (1..=MOST_WORKERS).contains(count))
                .ok_or_else(wrong)
        };
        let text = text.trim().to_ascii_uppercase();
        match text.split_once('P') {
            None => Ok(Self::Aggregated(count(&text)?)),
            Some((prefill, rest)) => {
                let decode = rest.strip_suffix('D').ok_or_else(wrong)?;
                Ok(Self::Disaggregated {
                    prefill: count(prefill)?,
                    decode: count(decode)?,
                })
            }
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aggregated(count) => write!(f, "{count} aggregated"),
            Self::Disaggregated { prefill, decode } => {
                write!(f, "{prefill} prefill, {decode} decode")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_aggregated_workers() {
        assert_eq!("4".parse(), Ok(Topology::Aggregated(4)));
    }

    #[test]
    fn x_p_y_d_means_prefill_and_decode_workers() {
        let expected = Topology::Disaggregated {
            prefill: 1,
            decode: 2,
        };
        assert_eq!("1P2D".parse(), Ok(expected));
        assert_eq!("1p2d".parse(), Ok(expected));
        assert_eq!(
            expected.roles(),
            [Role::Prefill, Role::Decode, Role::Decode]
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "", "0", "-1", "+4", "4x", "P2D", "1P", "1P2", "0P2D", "1P0D", "1P2D3", "1D2P", "1.5",
            "513",
        ] {
            assert!(text.parse::<Topology>().is_err(), "{text:?}");
        }
    }
}
