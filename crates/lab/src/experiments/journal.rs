// SPDX-License-Identifier: Apache-2.0

//! Finished runs of a plan, so that an interrupted one goes on where it stopped.
//!
//! `finished.jsonl` gets a line for each finished run, at once. Its first line says who wrote it: the
//! versions in [`Provenance`], and size and time of the program, since another build may decide
//! otherwise. A file of another writer is begun anew; a line that was cut off is run again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::results::{Provenance, ResultsError, RunEntry};

/// Name of the file in its folder.
pub const JOURNAL: &str = "finished.jsonl";

/// Finished runs by their [key](super::Trial::key), in a file.
pub struct Journal {
    path: String,
    file: Mutex<File>,
    finished: HashMap<String, RunEntry>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Header {
    provenance: Provenance,
    program: String,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    run: RunEntry,
}

impl Journal {
    /// The journal in `folder`, which is made if need be. With `anew`, what is there is dropped.
    ///
    /// # Errors
    /// Of the file system.
    pub fn open(folder: &Path, anew: bool) -> Result<Self, ResultsError> {
        let path = folder.join(JOURNAL);
        let header = Header {
            provenance: Provenance::default(),
            program: program(),
        };
        let io = |source| ResultsError::Io {
            path: path.display().to_string(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(io)?;
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        let same = lines
            .next()
            .and_then(|line| serde_json::from_str::<Header>(line).ok())
            .is_some_and(|found| found == header);
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(io)?;
        if anew || !same {
            file.set_len(0).map_err(io)?;
            write_line(&mut file, &header).map_err(io)?;
            lines = "".lines();
        } else if !text.ends_with('\n') {
            file.write_all(b"\n").map_err(io)?;
        }
        let finished = lines
            .filter_map(|line| serde_json::from_str::<Line>(line).ok())
            .map(|line| (line.key, line.run))
            .collect();
        Ok(Self {
            path: path.display().to_string(),
            file: Mutex::new(file),
            finished,
        })
    }

    /// Runs that were finished when the journal was opened.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.finished.len()
    }

    pub(super) fn get(&self, key: &str) -> Option<&RunEntry> {
        self.finished.get(key)
    }

    pub(super) fn add(&self, key: String, run: &RunEntry) -> Result<(), ResultsError> {
        let line = Line {
            key,
            run: run.clone(),
        };
        write_line(&mut self.file.lock(), &line).map_err(|source| ResultsError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

/// A run as a reader of its JSON sees it: the last digit of a number may differ. So that a resumed plan
/// gives the same bytes as one in a piece, both go through here.
pub(super) fn as_read(run: RunEntry) -> RunEntry {
    let read = serde_json::to_string(&run)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    read.unwrap_or(run)
}

/// In one write, so that a line is whole or the last.
fn write_line(file: &mut File, line: &impl Serialize) -> std::io::Result<()> {
    let text = serde_json::to_string(line)? + "\n";
    file.write_all(text.as_bytes())
}

/// Tells the running program from another build of it.
fn program() -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata);
    let built = file.map(|file| format!("{} bytes of {:?}", file.len(), file.modified().ok()));
    built.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::run::Settings;

    fn entry(seed: u64) -> RunEntry {
        RunEntry {
            policy: "p".into(),
            condition: None,
            tier_point: None,
            workload: "w".into(),
            load: None,
            offered: None,
            load_not_reached: false,
            topology: "4".into(),
            engine: "e".into(),
            seed,
            settings: Settings::default(),
            metrics: Metrics::default(),
            anarchy: None,
            anarchy_unavailable: None,
            wall: None,
            more: serde_json::Map::new(),
        }
    }

    #[test]
    fn finished_runs_are_there_when_it_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), false).unwrap();
        journal.add("a".into(), &entry(1)).unwrap();
        assert_eq!(journal.finished(), 0);
        let again = Journal::open(folder.path(), false).unwrap();
        assert_eq!(again.get("a"), Some(&entry(1)));
        assert_eq!(Journal::open(folder.path(), true).unwrap().finished(), 0);
    }

    #[test]
    fn a_line_that_was_cut_off_is_dropped_and_the_next_one_kept() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), false).unwrap();
        journal.add("a".into(), &entry(1)).unwrap();
        let path = folder.path().join(JOURNAL);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let journal = Journal::open(folder.path(), false).unwrap();
        assert_eq!(journal.finished(), 0);
        journal.add("b".into(), &entry(2)).unwrap();
        let again = Journal::open(folder.path(), false).unwrap();
        assert_eq!((again.finished(), again.get("b")), (1, Some(&entry(2))));
    }

    #[test]
    fn the_file_of_another_program_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), false).unwrap();
        journal.add("a".into(), &entry(1)).unwrap();
        let path = folder.path().join(JOURNAL);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("\"program\":\"", "\"program\":\"0", 1)).unwrap();
        assert_eq!(Journal::open(folder.path(), false).unwrap().finished(), 0);
    }
}
