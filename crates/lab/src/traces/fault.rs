// SPDX-License-Identifier: Apache-2.0

//! What a reader found: faults that refuse the file, and warnings that do not.
//!
//! A reader goes on after a fault, so that one run shows all that is wrong; the first [`LISTED`] are kept
//! and the rest is counted, because a file in the wrong format has one fault a line. Warnings of one
//! kind are folded into one with a count, for the same reason.

use std::cell::RefCell;
use std::fmt::{self, Display};

use serde::Serialize;
use thiserror::Error;

use super::format::Format;

/// Faults listed at most; further ones are only counted.
pub const LISTED: usize = 20;

/// Longest value shown in a message, characters.
const SHOWN: usize = 80;

/// One reason to refuse a trace file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The file as it was named.
    pub file: String,
    /// Line, 1-based.
    pub line: u64,
    /// Field of the row, with its path when nested; `line` for the row as a whole.
    pub field: String,
    /// What the field holds, shortened.
    pub value: String,
    /// What it may hold.
    pub allowed: String,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            field,
            value,
            allowed,
        } = self;
        write!(f, "{file}:{line}: {field} is {value}; allowed: {allowed}")
    }
}

/// All faults of a file: the first [`LISTED`] and how many there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Error)]
pub struct FaultList {
    /// The first [`LISTED`] faults, in the order of the file.
    pub faults: Vec<Fault>,
    /// Faults found, listed or not.
    pub total: usize,
}

impl Display for FaultList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.faults.iter().map(Fault::to_string).collect();
        f.write_str(&lines.join("\n"))?;
        match self.total - self.faults.len() {
            0 => Ok(()),
            1 => f.write_str("\nand one more fault"),
            more => write!(f, "\nand {more} more faults"),
        }
    }
}

/// Something in a trace file that a reader of the results should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// First line it holds for, 1-based; absent when it is about the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// How often it holds.
    pub count: u64,
    /// What was seen at the first place, and what was made of it.
    pub message: String,
}

impl Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)?;
        match self.count - 1 {
            0 => Ok(()),
            more => write!(f, " ({more} more like this)"),
        }
    }
}

/// Why a trace could not be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file system or the decompressor refused.
    #[error("cannot read {file}")]
    Read {
        /// The file as it was named.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The content is like none of the formats.
    #[error(
        "{file}:1: the content starts with {found}, which is no format that is known; allowed: {}",
        Format::names()
    )]
    UnknownFormat {
        /// The file as it was named.
        file: String,
        /// Its first line, shortened.
        found: String,
    },
    /// The rows are at fault.
    #[error(transparent)]
    Faults(#[from] FaultList),
}

/// Collects what the readers find in one file.
#[derive(Debug)]
pub(crate) struct Findings {
    file: String,
    ignored_fields: Vec<String>,
    found: RefCell<Found>,
}

#[derive(Debug, Default)]
struct Found {
    faults: Vec<Fault>,
    total: usize,
    warnings: Vec<(&'static str, Warning)>,
}

impl Findings {
    pub(crate) fn new(file: String, ignored_fields: Vec<String>) -> Self {
        Self {
            file,
            ignored_fields,
            found: RefCell::default(),
        }
    }

    pub(crate) fn ignores(&self, field: &str) -> bool {
        self.ignored_fields.iter().any(|ignored| ignored == field)
    }

    pub(crate) fn fault(
        &self,
        line: u64,
        field: impl Display,
        value: impl Display,
        allowed: impl Display,
    ) {
        let mut found = self.found.borrow_mut();
        found.total += 1;
        if found.faults.len() < LISTED {
            found.faults.push(Fault {
                file: self.file.clone(),
                line,
                field: field.to_string(),
                value: shortened(&value.to_string()),
                allowed: allowed.to_string(),
            });
        }
    }

    /// `kind` names the warning: further ones of the same kind only raise its count.
    pub(crate) fn warn(&self, kind: &'static str, line: Option<u64>, message: impl Display) {
        let mut found = self.found.borrow_mut();
        match found.warnings.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, warning)) => warning.count += 1,
            None => found.warnings.push((
                kind,
                Warning {
                    line,
                    count: 1,
                    message: message.to_string(),
                },
            )),
        }
    }

    pub(crate) fn has_faults(&self) -> bool {
        self.found.borrow().total > 0
    }

    /// The faults so far, if any.
    pub(crate) fn check(&self) -> Result<(), FaultList> {
        let mut found = self.found.borrow_mut();
        if found.total == 0 {
            return Ok(());
        }
        // Checks that need the whole file report after those of single lines.
        found.faults.sort_by_key(|fault| fault.line);
        Err(FaultList {
            faults: found.faults.clone(),
            total: found.total,
        })
    }

    pub(crate) fn into_warnings(self) -> Vec<Warning> {
        let found = self.found.into_inner();
        found
            .warnings
            .into_iter()
            .map(|(_, warning)| warning)
            .collect()
    }
}

/// At most [`SHOWN`] characters, on one line.
pub(crate) fn shortened(value: &str) -> String {
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    let value: String = value.chars().take(SHOWN + 1).map(escaped).collect();
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twenty_first_fault_is_counted_and_not_listed() {
        let findings = Findings::new("a.jsonl".into(), Vec::new());
        for line in 1..=21 {
            findings.fault(line, "input_length", 0, "at least 1");
        }
        let list = findings.check().unwrap_err();
        assert_eq!((list.faults.len(), list.total), (20, 21));
        let text = list.to_string();
        assert!(text.starts_with("a.jsonl:1: input_length is 0; allowed: at least 1\n"));
        assert!(
            text.ends_with(
                "a.jsonl:20: input_length is 0; allowed: at least 1\nand one more fault"
            )
        );
    }

    #[test]
    fn warnings_of_one_kind_are_one_with_a_count() {
        let findings = Findings::new("a.jsonl".into(), Vec::new());
        findings.warn("surplus", Some(3), "2 ids unused");
        findings.warn("surplus", Some(9), "1 id unused");
        findings.warn("clock", None, "absolute");
        let shown: Vec<String> = findings
            .into_warnings()
            .iter()
            .map(Warning::to_string)
            .collect();
        assert_eq!(
            shown,
            ["line 3: 2 ids unused (1 more like this)", "absolute"]
        );
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        assert_eq!(shortened(&"ü".repeat(81)), format!("{}…", "ü".repeat(80)));
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn a_value_of_many_lines_is_shown_on_one() {
        assert_eq!(shortened("a\nb\t"), "a\\nb\\t");
    }
}
