// SPDX-License-Identifier: Apache-2.0

//! Time of a forward pass from a small table of measurements.
//!
//! The simulator asks a timing model how long a pass takes. Ours interpolates a table: prefill time by
//! new prompt tokens in the pass, and decode time by sequences in the batch and their mean context.
//! Between two entries the time is linear. Below the first and above the last entry of an axis the
//! table says nothing, so the nearest entry counts, except that prefill time goes on growing at the
//! slope of the last segment: a pass of twice the work cannot be free.
//!
//! Prefill time depends on new tokens only. Attention to a cached prefix costs something too, but the
//! measured tables do not separate it, and it is small beside the dense layers at the lengths covered.
//!
//! Measured decode times need not grow with the batch: kernels switch at small sizes, and on B200 a
//! batch of 1 is slower than one of 8. A policy that reads such quirks as load learns nonsense, so
//! `smooth` replaces each column by its closest non-decreasing column (isotonic regression).
//!
//! The format is CSV. Lines that start with `#` say where the figures come from. Then
//!
//! ```text
//! prefill,16,128,1024        new prompt tokens, increasing
//! ,9.3,11.9,34.5             ms for each
//! decode,128,1024            mean context in tokens, increasing
//! 1,12.2,12.3                sequences in the batch, then ms for each context
//! 64,9.3,9.5
//! ```
//!
//! Source of the shipped tables: NVIDIA's performance database for vLLM, queried once through
//! `aiconfigurator-core` (see the first lines of each file).

use aisimulate_core::TimingModel;

/// A table that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TableError {
    /// 1-based.
    pub line: usize,
    /// What is wrong and what is allowed.
    pub problem: String,
}

/// Pass times of one model on one system.
#[derive(Debug, Clone, PartialEq)]
pub struct TimingTable {
    prefill: Curve,
    /// Time by mean context, for each batch size; batch sizes increase.
    decode: Vec<(f64, Curve)>,
}

impl TimingTable {
    /// Read a table.
    ///
    /// # Errors
    /// On a missing block, a cell that is not a positive number, an axis that does not increase, or a
    /// row of another length than its axis.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let last = text.lines().count().max(1);
        let (line, tokens) = axis(lines.next(), "prefill", last)?;
        let prefill = match lines.next() {
            Some((line, row)) if row.starts_with(',') => {
                Curve::new(tokens, numbers(line, row)?, line)?
            }
            _ => {
                return Err(TableError {
                    line: line + 1,
                    problem:
                        "the ms of the prefill block must follow: a row that starts with a comma"
                            .into(),
                });
            }
        };
        let (line, contexts) = axis(lines.next(), "decode", last)?;
        let mut decode: Vec<(f64, Curve)> = Vec::new();
        for (line, row) in lines {
            let label = row.split(',').next().unwrap_or_default();
            let batch = number(line, label)?;
            if decode
                .last()
                .is_some_and(|(previous, _)| *previous >= batch)
            {
                return Err(TableError {
                    line,
                    problem: format!("batch {batch} does not increase"),
                });
            }
            decode.push((
                batch,
                Curve::new(contexts.clone(), numbers(line, row)?, line)?,
            ));
        }
        if decode.is_empty() {
            return Err(TableError {
                line: line + 1,
                problem: "the decode block needs at least one row".into(),
            });
        }
        Ok(Self { prefill, decode })
    }

    /// The table with decode times that do not fall as the batch grows.
    #[must_use]
    pub fn smooth(mut self) -> Self {
        let columns = self.decode.first().map_or(0, |(_, row)| row.y.len());
        for column in 0..columns {
            let times: Vec<f64> = self.decode.iter().map(|(_, row)| row.y[column]).collect();
            for ((_, row), time) in self.decode.iter_mut().zip(non_decreasing(&times)) {
                row.y[column] = time;
            }
        }
        self
    }

    /// Duration of a prefill pass over `tokens` new prompt tokens, ms; 0 for no tokens.
    #[must_use]
    pub fn prefill_ms(&self, tokens: usize) -> f64 {
        if tokens == 0 {
            return 0.0;
        }
        let (tokens, curve) = (tokens as f64, &self.prefill);
        match (curve.x.as_slice(), curve.y.as_slice()) {
            ([.., x0, x1], [.., y0, y1]) if tokens > *x1 => {
                y1 + (tokens - x1) * ((y1 - y0) / (x1 - x0)).max(0.0)
            }
            _ => curve.at(tokens),
        }
    }

    /// Duration of one decode step of `batch` sequences of `context` tokens in the mean, ms.
    #[must_use]
    pub fn decode_ms(&self, batch: usize, context: usize) -> f64 {
        if batch == 0 {
            return 0.0;
        }
        let (batch, context) = (batch as f64, context as f64);
        let above = self.decode.partition_point(|(size, _)| *size < batch);
        match (
            above
                .checked_sub(1)
                .and_then(|below| self.decode.get(below)),
            self.decode.get(above),
        ) {
            (Some((low, below)), Some((high, above))) => {
                let share = (batch - low) / (high - low);
                below.at(context) * (1.0 - share) + above.at(context) * share
            }
            (Some((_, only)), None) | (None, Some((_, only))) => only.at(context),
            (None, None) => 0.0,
        }
    }
}

impl TimingModel for TimingTable {
    fn prefill_batch_validation_can_fail(&self) -> bool {
        false
    }

    fn prefill_prediction_can_fail(&self) -> bool {
        false
    }

    fn predict_prefill_ms(
        &self,
        batch_size: usize,
        mean_isl: usize,
        mean_prefix: usize,
    ) -> anyhow::Result<f64> {
        Ok(self.prefill_ms(batch_size * mean_isl.saturating_sub(mean_prefix)))
    }

    fn predict_decode_ms(
        &self,
        batch_size: usize,
        _active_kv_tokens: usize,
        mean_context_length: usize,
        _total_kv_tokens: usize,
    ) -> anyhow::Result<f64> {
        Ok(self.decode_ms(batch_size, mean_context_length))
    }
}

/// A piecewise linear curve; at least one point, x increasing.
#[derive(Debug, Clone, PartialEq)]
struct Curve {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl Curve {
    fn new(x: Vec<f64>, y: Vec<f64>, line: usize) -> Result<Self, TableError> {
        if x.len() != y.len() {
            return Err(TableError {
                line,
                problem: format!("{} values for an axis of {}", y.len(), x.len()),
            });
        }
        Ok(Self { x, y })
    }

    fn at(&self, x: f64) -> f64 {
        let above = self.x.partition_point(|&point| point < x);
        let point = |index: usize| Some((*self.x.get(index)?, *self.y.get(index)?));
        match (above.checked_sub(1).and_then(point), point(above)) {
            (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
            (Some((_, y)), None) | (None, Some((_, y))) => y,
            (None, None) => 0.0,
        }
    }
}

/// The closest non-decreasing sequence in the sense of least squares: pool adjacent violators.
fn non_decreasing(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for &value in values {
        let (mut mean, mut size) = (value, 1);
        while let Some(&(before, count)) = pools.last()
            && before > mean
        {
            mean = (before * count as f64 + mean * size as f64) / (count + size) as f64;
            size += count;
            pools.pop();
        }
        pools.push((mean, size));
    }
    pools
        .into_iter()
        .flat_map(|(mean, size)| std::iter::repeat_n(mean, size))
        .collect()
}

fn axis(
    line: Option<(usize, &str)>,
    name: &str,
    last: usize,
) -> Result<(usize, Vec<f64>), TableError> {
    let Some((line, row)) = line.filter(|(_, row)| row.split(',').next() == Some(name)) else {
        return Err(TableError {
            line: line.map_or(last, |(line, _)| line),
            problem: format!("a row that starts with {name:?} is expected here"),
        });
    };
    let values = numbers(line, row)?;
    if values.is_empty() || values.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(TableError {
            line,
            problem: format!("the axis {name:?} must hold increasing numbers"),
        });
    }
    Ok((line, values))
}

/// The cells of a row after the first.
fn numbers(line: usize, row: &str) -> Result<Vec<f64>, TableError> {
    row.split(',')
        .skip(1)
        .map(|cell| number(line, cell))
        .collect()
}

fn number(line: usize, cell: &str) -> Result<f64, TableError> {
    cell.trim()
        .parse()
        .ok()
        .filter(|value: &f64| value.is_finite() && *value > 0.0)
        .ok_or_else(|| TableError {
            line,
            problem: format!("{cell:?} is not a number above 0"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str =
        "# made up\nprefill,100,200\n,10,30\ndecode,100,300\n1,8,12\n3,4,6\n5,20,20\n";

    fn table() -> TimingTable {
        TimingTable::parse(TABLE).unwrap()
    }

    #[test]
    fn prefill_time_is_linear_between_entries() {
        assert_eq!(table().prefill_ms(150), 20.0);
        assert_eq!(table().prefill_ms(100), 10.0);
        assert_eq!(table().prefill_ms(0), 0.0);
    }

    #[test]
    fn prefill_time_is_flat_below_the_table_and_keeps_its_slope_above() {
        assert_eq!(table().prefill_ms(1), 10.0);
        assert_eq!(table().prefill_ms(250), 40.0);
    }

    #[test]
    fn decode_time_is_bilinear_and_clamped() {
        // Half way between the batches and between the contexts: (10 + 5) / 2.
        assert_eq!(table().decode_ms(2, 200), 7.5);
        assert_eq!(table().decode_ms(9, 9_999), 20.0);
        assert_eq!(table().decode_ms(1, 1), 8.0);
        assert_eq!(table().decode_ms(0, 1), 0.0);
    }

    #[test]
    fn smoothing_pools_what_falls_with_the_batch() {
        let smooth = table().smooth();
        // 8 and 4 pool to 6; 20 stays.
        assert_eq!(
            [1, 3, 5].map(|batch| smooth.decode_ms(batch, 100)),
            [6.0, 6.0, 20.0]
        );
    }

    #[test]
    fn faults_name_line_and_value() {
        for (text, line, word) in [
            ("", 1, "prefill"),
            ("prefill,1,2\n1,2,3", 2, "comma"),
            ("prefill,2,1\n,1,2", 1, "increasing"),
            ("prefill,1,2\n,1\n", 2, "1 values for an axis of 2"),
            ("prefill,1\n,x\n", 2, "\"x\""),
            ("prefill,1\n,-2\n", 2, "\"-2\""),
            ("prefill,1\n,1\n", 2, "decode"),
            ("prefill,1\n,1\ndecode,1\n", 4, "at least one row"),
            ("prefill,1\n,1\ndecode,1\n2,1\n2,1", 5, "does not increase"),
        ] {
            let error = TimingTable::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.to_string().contains(word), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn smoothed_values_never_fall_and_keep_their_sum(values in prop::collection::vec(0.1..100.0f64, 1..30)) {
            let smooth = non_decreasing(&values);
            prop_assert!(smooth.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9));
            prop_assert!((smooth.iter().sum::<f64>() - values.iter().sum::<f64>()).abs() < 1e-6);
        }

        #[test]
        fn times_are_finite_and_positive(tokens in 1usize..1_000_000, batch in 1usize..5_000, context in 0usize..1_000_000) {
            let table = table();
            prop_assert!(table.prefill_ms(tokens) > 0.0 && table.prefill_ms(tokens).is_finite());
            prop_assert!(table.decode_ms(batch, context) > 0.0 && table.decode_ms(batch, context).is_finite());
        }
    }
}
