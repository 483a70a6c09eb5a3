// SPDX-License-Identifier: Apache-2.0

//! Trace formats, and how one is told from another.
//!
//! The content decides, not the name of the file: a header row or the keys of the first objects. One
//! pair cannot be told apart: Mooncake rows whose later turns hold the whole prompt or only the new
//! part. They are read as whole prompts, with a warning when the turns look like parts.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::content::lines;
use super::row::Fields;

/// `schema` of the header of agentic Mooncake files.
pub(crate) const AGENTIC_SCHEMA: &str = "dynamo.agentic_mooncake";
/// `schema` of every record of Dynamo's request trace.
pub(crate) const DYNAMO_SCHEMA: &str = "dynamo.request.trace.v1";

/// Of which a Mooncake row has at least one.
const MOONCAKE_FIELDS: [&str; 8] = [
    "timestamp",
    "created_time",
    "session_id",
    "input_length",
    "input_tokens",
    "output_length",
    "output_tokens",
    "hash_ids",
];

/// Format of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// One JSON object a request: `timestamp` ms, `input_length`, `output_length`, `hash_ids`.
    Mooncake,
    /// As Mooncake, but later turns of a session hold only what is new.
    MooncakeDelta,
    /// Dynamo's agentic Mooncake, version 2: a header, then requests that name what they wait for.
    AgenticMooncake,
    /// Its older form without header, with `wait_for` and `tool_wait_ms`.
    LegacyAgentic,
    /// Weka's agent traces: one object an agent run.
    Weka,
    /// What a Dynamo frontend records, `dynamo.request.trace.v1`.
    DynamoRequest,
    /// Azure's LLM inference traces: CSV of time and lengths.
    Azure,
}

/// A format name that is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("trace format is {name:?}; allowed: {allowed}", allowed = Format::names())]
pub struct UnknownFormatName {
    name: String,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 7] = [
        Self::Mooncake,
        Self::MooncakeDelta,
        Self::AgenticMooncake,
        Self::LegacyAgentic,
        Self::Weka,
        Self::DynamoRequest,
        Self::Azure,
    ];

    /// The name used in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::MooncakeDelta => "mooncake-delta",
            Self::AgenticMooncake => "agentic-mooncake",
            Self::LegacyAgentic => "legacy-agentic",
            Self::Weka => "weka",
            Self::DynamoRequest => "dynamo-request",
            Self::Azure => "azure",
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Tells the format from the content; nothing when it is like none of them.
    pub(crate) fn detect(content: &[u8]) -> Option<Self> {
        let mut first = lines(content);
        let (_, head) = first.next()?;
        if head.to_ascii_uppercase().starts_with(b"TIMESTAMP,") {
            return Some(Self::Azure);
        }
        let object = lines(content)
            .find_map(|(_, line)| serde_json::from_slice::<Fields>(line).ok())
            // One object printed over many lines.
            .or_else(|| serde_json::from_slice(content).ok());
        match object {
            Some(Fields(fields)) => Self::of_object(&fields, content),
            None => head.starts_with(b"{").then_some(Self::Mooncake),
        }
    }

    fn of_object(fields: &[(String, Value)], content: &[u8]) -> Option<Self> {
        let get = |name| fields.iter().find(|(key, _)| key == name).map(|(_, v)| v);
        let schema = get("schema").and_then(Value::as_str);
        let format = if schema == Some(AGENTIC_SCHEMA)
            || (schema.is_some() && get("hash_id_scope").is_some())
        {
            Self::AgenticMooncake
        } else if schema.is_some() || get("event_type").is_some() || get("event").is_some() {
            Self::DynamoRequest
        } else if get("requests").is_some() {
            Self::Weka
        } else if get("request_id").is_some() && any_row_waits(content) {
            Self::LegacyAgentic
        } else if MOONCAKE_FIELDS.iter().any(|name| get(name).is_some()) {
            Self::Mooncake
        } else {
            return None;
        };
        Some(format)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormatName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| UnknownFormatName {
                name: name.to_owned(),
            })
    }
}

/// The first row of a legacy agentic file waits for nothing, so it looks like a Mooncake row.
fn any_row_waits(content: &[u8]) -> bool {
    lines(content)
        .filter_map(|(_, line)| serde_json::from_slice::<Fields>(line).ok())
        .any(|Fields(fields)| {
            fields
                .iter()
                .any(|(key, _)| key == "wait_for" || key == "tool_wait_ms")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_known_by_its_name() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let error = "csv".parse::<Format>().unwrap_err().to_string();
        assert!(
            error.ends_with("legacy-agentic, weka, dynamo-request, azure"),
            "{error}"
        );
    }

    #[test]
    fn the_content_tells_the_format() {
        let cases: [(&str, Option<Format>); 11] = [
            (
                r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#,
                Some(Format::Mooncake),
            ),
            (
                r#"{"schema":"dynamo.agentic_mooncake","version":1}"#,
                Some(Format::AgenticMooncake),
            ),
            (
                "{\"request_id\":\"a\"}\n{\"request_id\":\"b\",\"wait_for\":[\"a\"]}",
                Some(Format::LegacyAgentic),
            ),
            (r#"{"id":"p","requests":[]}"#, Some(Format::Weka)),
            ("{\n\"id\":\"p\",\n\"requests\":[]\n}", Some(Format::Weka)),
            (
                r#"{"timestamp":1,"event":{"schema":"dynamo.request.trace.v1"}}"#,
                Some(Format::DynamoRequest),
            ),
            (
                r#"{"schema":"v9","event_type":"request_end"}"#,
                Some(Format::DynamoRequest),
            ),
            (
                "TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
                Some(Format::Azure),
            ),
            (r#"{"timestamp":0,"hash_ids":[11]"#, Some(Format::Mooncake)),
            (r#"{"a":1}"#, None),
            ("hello", None),
        ];
        for (content, format) in cases {
            assert_eq!(Format::detect(content.as_bytes()), format, "{content}");
        }
    }
}
