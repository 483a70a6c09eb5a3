// SPDX-License-Identifier: Apache-2.0

//! How long a mock forward pass takes.
//!
//! Three sources: fixed times (repeatable tests), Dynamo's built-in polynomial, or a table. A table is a small CSV file
//! with two blocks, as measured or modelled for one engine on one machine:
//!
//! ```csv
//! # comment
//! prefill,16,1024,8192
//! ,10,50,400
//! decode,128,4096
//! 1,8,9
//! 64,12,20
//! ```
//!
//! The first block gives the prefill pass in ms by prompt tokens that are computed. The second gives the decode step in ms
//! by sequences in the batch (rows) and mean context length in tokens (columns). Between points a table is linear; beyond
//! its ends the last segment goes on, since both costs keep growing, and below its first point the first value holds.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use dynamo_mocker::common::perf_model::{AisCallback, PerfModel};
use thiserror::Error;

/// Where pass times come from.
#[derive(Debug, Clone)]
pub enum Timing {
    /// The same time for every pass.
    Fixed,
    /// Dynamo's built-in polynomial.
    Polynomial,
    /// A table.
    Table(Arc<TimingTable>),
}

impl FromStr for Timing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fixed" => Ok(Self::Fixed),
            "polynomial" => Ok(Self::Polynomial),
            path => TimingTable::read(Path::new(path))
                .map(|table| Self::Table(Arc::new(table)))
                .map_err(|error| {
                    format!("is neither \"fixed\" nor \"polynomial\" nor a timing table: {error}")
                }),
        }
    }
}

/// A measured or modelled engine: prefill ms by tokens, decode ms by batch and context.
#[derive(Debug, Clone, PartialEq)]
pub struct TimingTable {
    /// (tokens, ms), tokens increasing; at least one point.
    prefill: Vec<(f64, f64)>,
    /// Context lengths in tokens, increasing; at least one.
    contexts: Vec<f64>,
    /// (batch, ms for each context), batches increasing; at least one row.
    decode: Vec<(f64, Vec<f64>)>,
}

/// What is wrong with a timing table.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TimingTableError {
    /// A field is not as it must be.
    #[error("line {line}, field {field}: \"{value}\" must be {allowed}")]
    Field {
        /// Line number from 1.
        line: usize,
        /// Field number from 1.
        field: usize,
        /// What stands there.
        value: String,
        /// What may stand there.
        allowed: &'static str,
    },
    /// A line has too few or too many fields.
    #[error("line {line}: {found} fields, but its block has {expected}")]
    Width {
        /// Line number from 1.
        line: usize,
        /// Fields on this line.
        found: usize,
        /// Fields on the block's first line.
        expected: usize,
    },
    /// A block is absent or empty.
    #[error("the \"{0}\" block is missing or empty")]
    Missing(&'static str),
}

impl TimingTable {
    /// Read a file.
    ///
    /// # Errors
    /// Names the file, and the line and field when one is wrong.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        text.parse()
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// A prefill pass over `tokens` tokens, ms.
    #[must_use]
    pub fn prefill_ms(&self, tokens: f64) -> f64 {
        interpolate(&self.prefill, tokens)
    }

    /// A decode step of `batch` sequences with a mean context of `context` tokens, ms.
    #[must_use]
    pub fn decode_ms(&self, batch: f64, context: f64) -> f64 {
        let at_context: Vec<(f64, f64)> = self
            .decode
            .iter()
            .map(|(batch, row)| {
                let points: Vec<_> = self
                    .contexts
                    .iter()
                    .copied()
                    .zip(row.iter().copied())
                    .collect();
                (*batch, interpolate(&points, context))
            })
            .collect();
        interpolate(&at_context, batch)
    }

    /// The mock engine's form of it.
    #[must_use]
    pub fn perf_model(self: Arc<Self>) -> PerfModel {
        PerfModel::from_ais_callback(Arc::new(Callback(self)))
    }
}

/// Dynamo's hook for an external timing model. It asks in sequences and tokens, which is how a table is laid out.
struct Callback(Arc<TimingTable>);

impl AisCallback for Callback {
    fn predict_prefill(
        &self,
        batch_size: usize,
        effective_isl: usize,
        _prefix: usize,
    ) -> anyhow::Result<f64> {
        // Cached tokens are not computed, so only the new ones of the whole batch count.
        Ok(self.0.prefill_ms((batch_size * effective_isl) as f64))
    }

    fn predict_decode(&self, batch_size: usize, isl: usize, _osl: usize) -> anyhow::Result<f64> {
        Ok(self.0.decode_ms(batch_size as f64, isl as f64))
    }
}

impl FromStr for TimingTable {
    type Err = TimingTableError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut prefill = Vec::new();
        let mut contexts = Vec::new();
        let mut decode: Vec<(f64, Vec<f64>)> = Vec::new();
        let mut header: Option<(Block, Vec<f64>)> = None;
        for (index, raw) in text.lines().enumerate() {
            if raw.trim().is_empty() || raw.trim_start().starts_with('#') {
                continue;
            }
            let line = Line::new(index + 1, raw);
            match line.fields[0] {
                "prefill" => header = Some((Block::Prefill, line.increasing()?)),
                "decode" => {
                    contexts = line.increasing()?;
                    header = Some((Block::Decode, contexts.clone()));
                }
                _ => match &header {
                    None => return Err(line.wrong(0, "the word prefill or decode")),
                    Some((Block::Prefill, tokens)) => {
                        if !line.fields[0].is_empty() {
                            return Err(line.wrong(0, "empty on the line of prefill times"));
                        }
                        prefill = tokens
                            .iter()
                            .copied()
                            .zip(line.times(tokens.len())?)
                            .collect();
                    }
                    Some((Block::Decode, contexts)) => {
                        let batch = line.number(0, "a batch size above the one before")?;
                        if decode.last().is_some_and(|(before, _)| *before >= batch) {
                            return Err(line.wrong(0, "a batch size above the one before"));
                        }
                        decode.push((batch, line.times(contexts.len())?));
                    }
                },
            }
        }
        if prefill.is_empty() {
            return Err(TimingTableError::Missing("prefill"));
        }
        if decode.is_empty() {
            return Err(TimingTableError::Missing("decode"));
        }
        Ok(Self {
            prefill,
            contexts,
            decode,
        })
    }
}

enum Block {
    Prefill,
    Decode,
}

struct Line<'a> {
    number: usize,
    fields: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn new(number: usize, text: &'a str) -> Self {
        Self {
            number,
            fields: text.split(',').map(str::trim).collect(),
        }
    }

    fn wrong(&self, field: usize, allowed: &'static str) -> TimingTableError {
        TimingTableError::Field {
            line: self.number,
            field: field + 1,
            value: self
                .fields
                .get(field)
                .copied()
                .unwrap_or_default()
                .to_owned(),
            allowed,
        }
    }

    fn number(&self, field: usize, allowed: &'static str) -> Result<f64, TimingTableError> {
        self.fields
            .get(field)
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or_else(|| self.wrong(field, allowed))
    }

    /// A header: positive numbers, each above the one before.
    fn increasing(&self) -> Result<Vec<f64>, TimingTableError> {
        const ALLOWED: &str = "a number above 0 and above the one before";
        let mut numbers: Vec<f64> = Vec::new();
        for field in 1..self.fields.len() {
            let number = self.number(field, ALLOWED)?;
            if numbers.last().is_some_and(|before| *before >= number) {
                return Err(self.wrong(field, ALLOWED));
            }
            numbers.push(number);
        }
        if numbers.is_empty() {
            Err(self.wrong(1, ALLOWED))
        } else {
            Ok(numbers)
        }
    }

    /// Times in ms behind the first field, as many as the block's header has columns.
    fn times(&self, expected: usize) -> Result<Vec<f64>, TimingTableError> {
        if self.fields.len() != expected + 1 {
            return Err(TimingTableError::Width {
                line: self.number,
                found: self.fields.len(),
                expected: expected + 1,
            });
        }
        (1..=expected)
            .map(|field| self.number(field, "a time in ms above 0"))
            .collect()
    }
}

/// Piecewise linear through `points` (x increasing, at least one): constant below, the last segment goes on above, never
/// below 0.
fn interpolate(points: &[(f64, f64)], x: f64) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return 0.0;
    };
    if x <= first.0 {
        return first.1;
    }
    let above = points.partition_point(|point| point.0 < x);
    let Some(pair) = points
        .get(above.min(points.len() - 1).saturating_sub(1)..)
        .filter(|rest| rest.len() > 1)
    else {
        return last.1;
    };
    let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
    (y0 + (y1 - y0) * (x - x0) / (x1 - x0)).max(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = "# synthetic\nprefill,100,200\n,10,30\ndecode,1000,2000\n1,4,8\n3,10,20\n";

    fn table() -> TimingTable {
        TABLE.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<TimingTable>().unwrap_err().to_string()
    }

    #[test]
    fn prefill_is_linear_between_points() {
        // Half way from 10 ms to 30 ms.
        assert_eq!(table().prefill_ms(150.0), 20.0);
        assert_eq!(table().prefill_ms(200.0), 30.0);
    }

    #[test]
    fn prefill_goes_on_beyond_the_last_point_and_holds_below_the_first() {
        // 20 ms for each further 100 tokens.
        assert_eq!(table().prefill_ms(300.0), 50.0);
        assert_eq!(table().prefill_ms(1.0), 10.0);
    }

    #[test]
    fn decode_is_linear_in_batch_and_context() {
        // At context 1500: 6 ms for batch 1, 15 ms for batch 3; batch 2 lies half way.
        assert_eq!(table().decode_ms(2.0, 1500.0), 10.5);
        assert_eq!(table().decode_ms(1.0, 1000.0), 4.0);
    }

    #[test]
    fn a_table_of_single_points_is_constant() {
        let table: TimingTable = "prefill,100\n,10\ndecode,1000\n1,4\n".parse().unwrap();
        assert_eq!(table.prefill_ms(5000.0), 10.0);
        assert_eq!(table.decode_ms(64.0, 9000.0), 4.0);
    }

    #[test]
    fn the_engine_counts_only_tokens_that_are_computed() {
        let model = Arc::new(table()).perf_model();
        // Two prompts of 100 tokens with 25 cached each: 150 tokens.
        assert_eq!(model.predict_prefill_time(2, 100, 25).unwrap(), 20.0);
        assert_eq!(model.predict_decode_time(2, 3000, 1500, 0).unwrap(), 10.5);
    }

    #[test]
    fn a_wrong_field_is_named_by_line_and_number() {
        assert_eq!(
            error("prefill,100,200\n,10,fast\n"),
            "line 2, field 3: \"fast\" must be a time in ms above 0"
        );
        assert_eq!(
            error("prefill,200,100\n"),
            "line 1, field 3: \"100\" must be a number above 0 and above the one before"
        );
        assert_eq!(
            error("x,1\n"),
            "line 1, field 1: \"x\" must be the word prefill or decode"
        );
        assert_eq!(
            error("prefill,1\n,1\ndecode,1\n4,1\n2,1\n"),
            "line 5, field 1: \"2\" must be a batch size above the one before"
        );
    }

    #[test]
    fn a_line_of_the_wrong_width_is_named() {
        assert_eq!(
            error("prefill,100,200\n,10\n"),
            "line 2: 2 fields, but its block has 3"
        );
    }

    #[test]
    fn a_missing_block_is_named() {
        assert_eq!(error(""), "the \"prefill\" block is missing or empty");
        assert_eq!(
            error("prefill,1\n,1\n"),
            "the \"decode\" block is missing or empty"
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = "no/such.csv".parse::<Timing>().unwrap_err();
        assert!(error.contains("no/such.csv"), "{error}");
    }

    #[test]
    fn the_shipped_tables_parse_and_grow() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/timing");
        for name in ["small.csv", "large.csv"] {
            let table = TimingTable::read(&folder.join(name)).unwrap();
            assert!(table.prefill_ms(8192.0) > table.prefill_ms(128.0), "{name}");
            assert!(
                table.decode_ms(256.0, 4096.0) > table.decode_ms(1.0, 128.0),
                "{name}"
            );
        }
    }

    proptest! {
        #[test]
        fn times_are_finite_and_never_negative(tokens in 0.0..1e7f64, batch in 0.0..1e4f64, context in 0.0..1e6f64) {
            let prefill = table().prefill_ms(tokens);
            let decode = table().decode_ms(batch, context);
            prop_assert!(prefill.is_finite() && prefill >= 0.0);
            prop_assert!(decode.is_finite() && decode >= 0.0);
        }

        #[test]
        fn any_text_either_parses_or_says_why(text in ".{0,80}") {
            let _ = text.parse::<TimingTable>();
        }
    }
}
