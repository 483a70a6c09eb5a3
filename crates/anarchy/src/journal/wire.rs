// SPDX-License-Identifier: Apache-2.0

//! Lines as they are written.
//!
//! A span is held in whole microseconds and written in ms, which takes three decimals and no more. Each kind
//! of span has its range in its type, so that a value outside is refused where it stands in the line.

use std::fmt;

use regime_core::{Millis, Regime};
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Counts, Header, PoolName};
use crate::assignment::{as_millis, whole_micros};

/// An hour, [`MAX_FORECAST`](crate::MAX_FORECAST).
const HOUR: i64 = 3_600_000_000;
/// [`MAX_COST_MS`](crate::MAX_COST_MS), in µs.
const LONGEST: i64 = 1_000_000_000_000;

pub(super) type Wait = Span<0, HOUR>;
pub(super) type Own = Span<1, HOUR>;
pub(super) type Latency = Span<0, LONGEST>;
/// Since the start of the journal: up to 31 years.
pub(super) type At = Span<0, { 1_000 * LONGEST }>;

/// Names of all kinds of lines.
pub(super) const KINDS: [&str; 5] = ["header", "pool", "worker", "decision", "count"];

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Header(HeaderLine),
    Pool(PoolLine),
    Worker(WorkerLine),
    Decision(Decision),
    Count(CountLine),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeaderLine {
    pub(super) schema: String,
    pub(super) version: String,
    #[serde(flatten)]
    pub(super) header: Header,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PoolLine {
    pub(super) n: u32,
    #[serde(flatten)]
    pub(super) name: PoolName,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkerLine {
    pub(super) n: u32,
    pub(super) id: WorkerId,
    #[serde(default)]
    pub(super) rank: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Decision {
    pub(super) pool: u32,
    pub(super) at: At,
    #[serde(default)]
    pub(super) prompt: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) regime: Option<Regime>,
    pub(super) chosen: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) residence: Option<Latency>,
    #[serde(default, skip_serializing_if = "Latency::is_zero")]
    pub(super) held: Latency,
    #[serde(default, skip_serializing_if = "Latency::is_zero")]
    pub(super) seat_wait: Latency,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ttft: Option<Latency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) e2e: Option<Latency>,
    pub(super) rows: Vec<(u32, Wait, Own)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CountLine {
    pub(super) pool: u32,
    pub(super) at: At,
    #[serde(flatten)]
    pub(super) counts: Counts,
}

/// An id: a string of digits, as JSON readers that hold numbers as doubles lose digits; or a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerId(pub(super) u64);

impl Serialize for WorkerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for WorkerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = WorkerId;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, or its digits as a string")
            }
            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<WorkerId, E> {
                Ok(WorkerId(id))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<WorkerId, E> {
                let id = text.parse();
                id.map(WorkerId)
                    .map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Digits)
    }
}

/// A span of time from `LEAST` to `MOST` µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span<const LEAST: i64, const MOST: i64>(i64);

impl<const LEAST: i64, const MOST: i64> Span<LEAST, MOST> {
    /// In µs; `None` outside the range.
    pub(super) fn from_micros(micros: i64) -> Option<Self> {
        (LEAST..=MOST).contains(&micros).then_some(Self(micros))
    }

    /// Rounded to µs; `None` outside the range.
    pub(super) fn from_millis(span: Millis) -> Option<Self> {
        whole_micros(span.get()).and_then(Self::from_micros)
    }

    pub(super) const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    pub(super) const fn micros(self) -> i64 {
        self.0
    }

    pub(super) fn millis(self) -> Millis {
        as_millis(self.0)
    }

    /// The range in words.
    pub(super) fn allowed() -> String {
        format!("{} to {} ms", LEAST as f64 / 1e3, MOST as f64 / 1e3)
    }
}

impl<const LEAST: i64, const MOST: i64> Serialize for Span<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 % 1_000 == 0 {
            serializer.serialize_i64(self.0 / 1_000)
        } else {
            serializer.serialize_f64(self.0 as f64 / 1e3)
        }
    }
}

impl<'de, const LEAST: i64, const MOST: i64> Deserialize<'de> for Span<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        // Saturates, and a number of JSON is never NaN.
        let micros = (millis * 1e3).round() as i64;
        Self::from_micros(micros).ok_or_else(|| {
            let allowed = Self::allowed();
            D::Error::custom(format_args!("{millis} is outside of {allowed}"))
        })
    }
}
