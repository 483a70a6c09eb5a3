// SPDX-License-Identifier: Apache-2.0

//! A measurement as files.

use std::path::Path;

use super::{Measurement, Part, PoolMeasurement};
use crate::files::write_whole;
use crate::results::ResultsError;

/// Names of the files in their folder.
const JSON: &str = "anarchy.json";
const CSV: &str = "anarchy.csv";

const HEAD: [&str; 13] = [
    "model",
    "role",
    "routing_group",
    "part",
    "from_ms",
    "to_ms",
    "n",
    "windows",
    "slowdown",
    "policy_gap",
    "temporal_gap",
    "overload",
    "poa_hat",
];

impl Measurement {
    /// As JSON, with names as in the fields.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// As CSV: a row for each pool as a whole, for each of its regimes and for each stretch of time.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = csv::Writer::from_writer(Vec::new());
        // Writing to memory cannot fail.
        let _ = csv.write_record(HEAD);
        for pool in &self.pools {
            let _ = csv.write_record(row(pool, "all", None, &pool.whole));
            for (regime, part) in &pool.regimes {
                let _ = csv.write_record(row(pool, regime.as_str(), None, part));
            }
            for slice in &pool.over_time {
                let times = Some((slice.from_ms, slice.to_ms));
                let _ = csv.write_record(row(pool, "time", times, &slice.part));
            }
        }
        String::from_utf8(csv.into_inner().unwrap_or_default()).unwrap_or_default()
    }

    /// Write `anarchy.json` and `anarchy.csv` into `folder`.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, folder: &Path) -> Result<(), ResultsError> {
        for (name, text) in [(JSON, self.to_json()), (CSV, self.to_csv())] {
            write_whole(folder, name, &text).map_err(|source| ResultsError::Io {
                path: folder.join(name).display().to_string(),
                source,
            })?;
        }
        Ok(())
    }
}

fn row(
    pool: &PoolMeasurement,
    part: &str,
    times: Option<(f64, f64)>,
    figures: &Part,
) -> [String; HEAD.len()] {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let of =
        |value: fn(&regime_anarchy::Figures) -> f64| number(figures.anarchy.as_ref().map(value));
    [
        pool.name.model.clone(),
        pool.name.role.clone(),
        pool.name.routing_group.clone(),
        part.to_owned(),
        number(times.map(|(from, _)| from)),
        number(times.map(|(_, to)| to)),
        of(|it| it.n as f64),
        of(|it| it.windows as f64),
        of(|it| it.slowdown),
        of(|it| it.policy_gap),
        of(|it| it.temporal_gap),
        of(|it| it.overload),
        of(|it| it.poa_hat),
    ]
}
