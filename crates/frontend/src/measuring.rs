// SPDX-License-Identifier: Apache-2.0

//! The thread that measures the Price of Anarchy, and the journal of decisions.
//!
//! Once a second the router solves the windows that have settled, within the share of a core that its parameters allow,
//! and with `--journal` its decisions go into a file: see `regime_anarchy::journal` for the format. Both happen in a thread
//! of their own, so no request waits for them. A slow disk makes that thread late; meanwhile the router keeps
//! [`CHOICES_KEPT`] decisions of each pool and counts those beyond as lost. A disk that refuses ends the journal with one
//! line, and serving goes on.
//!
//! A file that exists is continued behind what it holds, as the format allows, so a restart loses nothing. The lock on it
//! keeps two frontends from writing into each other's lines.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use regime_anarchy::journal::{Counts, Header, JournalWriter, NotWritten, PoolName, Record};
use regime_core::{Millis, Timestamp};
use regime_policy::{Handle, JoinedChoice, PoolChoices};

use crate::output;

/// How often windows are measured and the journal is written.
const PERIOD: Duration = Duration::from_secs(1);

/// How long after a decision its window is closed, by default: the last ones are waited for.
const LAST_WINDOW: Duration = Duration::from_millis(250);

/// Decisions that each pool keeps for the journal: ten seconds at 1,000 requests/s.
pub const CHOICES_KEPT: usize = 10_000;

/// The running thread. It also ends, at its next turn, when this is dropped.
pub struct Measuring {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Measuring {
    /// Start to measure what `handle` sees, and to write it.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(handle: Handle, mut journal: Option<Journal>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("regime-anarchy".into())
            .spawn(move || {
                loop {
                    let last = stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                    if last && journal.is_some() {
                        std::thread::sleep(LAST_WINDOW);
                    }
                    handle.measure();
                    journal = journal
                        .take()
                        .and_then(|journal| journal.continued(&handle));
                    if last {
                        return;
                    }
                }
            })?;
        Ok(Self { stop, thread })
    }

    /// Measure and write what there is, and end.
    pub async fn finish(self) {
        let _ = self.stop.send(());
        // A thread that panicked has said so.
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

/// The journal of decisions in its file.
pub struct Journal {
    path: PathBuf,
    writer: JournalWriter<BufWriter<File>>,
    pools: BTreeMap<PoolName, Written>,
}

/// What became of the decisions of one pool.
#[derive(Default)]
struct Written {
    recorded: u64,
    /// Without a forecast that a reader would take.
    unusable: u64,
    /// As the file has it.
    counts: Counts,
}

impl Journal {
    /// Begin a journal in the file at `path`, behind those that it holds. `policies` says who decides, and `uptime` when the
    /// clock of the decisions began.
    ///
    /// # Errors
    /// When the file cannot be written, or another process writes it.
    pub fn open(path: &Path, policies: Vec<String>, uptime: Duration) -> anyhow::Result<Self> {
        let open = || -> io::Result<File> {
            let file = OpenOptions::new().append(true).create(true).open(path)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    Err(io::Error::other("another process writes this file"))
                }
                // Pipes and some network drives know no locks.
                Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
            }
        };
        let start = || -> io::Result<JournalWriter<BufWriter<File>>> {
            let mut file = open()?;
            if file.metadata().is_ok_and(|it| it.is_file() && it.len() > 0) {
                // The end of a line that a crash may have cut off.
                file.write_all(b"\n")?;
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
            let started = now.and_then(|now| now.checked_sub(uptime));
            let header = Header {
                producer: concat!("regime-frontend ", env!("CARGO_PKG_VERSION")).to_owned(),
                started_unix_ms: started.and_then(|it| u64::try_from(it.as_millis()).ok()),
                settings: [("policies".to_owned(), policies.into())]
                    .into_iter()
                    .collect(),
            };
            let mut writer = JournalWriter::new(BufWriter::new(file), header)?;
            writer.flush()?;
            Ok(writer)
        };
        let writer = start().with_context(|| format!("writing {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            writer,
            pools: BTreeMap::new(),
        })
    }

    /// With the newest decisions; `None`, said once, when the file refuses them.
    fn continued(mut self, handle: &Handle) -> Option<Self> {
        let at = Timestamp::from_millis(handle.report().uptime_ms);
        match self.write(handle.take_choices(), at) {
            Ok(()) => Some(self),
            Err(error) => {
                let path = self.path.display();
                output::say(&format!(
                    "journal {path}: {error}; no more is written into it"
                ));
                None
            }
        }
    }

    fn write(&mut self, pools: Vec<PoolChoices>, at: Timestamp) -> io::Result<()> {
        for pool in pools {
            let name = PoolName {
                model: pool.model,
                role: pool.role.to_owned(),
                routing_group: pool.routing_group,
            };
            let written = self.pools.entry(name.clone()).or_default();
            for choice in pool.choices {
                match self.writer.record(&name, &record(choice)) {
                    Ok(()) => written.recorded += 1,
                    Err(NotWritten::Unusable { .. }) => written.unusable += 1,
                    Err(NotWritten::Io(error)) => return Err(error),
                }
            }
            let counts = Counts {
                decisions: pool.counts.decisions,
                recorded: written.recorded,
                unjoined: pool.counts.unjoined,
                lost: pool.counts.lost + written.unusable,
            };
            if counts != written.counts {
                written.counts = counts;
                match self.writer.counts(&name, at, counts) {
                    Err(NotWritten::Io(error)) => return Err(error),
                    // After 31 years there are no more counts.
                    Ok(()) | Err(NotWritten::Unusable { .. }) => {}
                }
            }
        }
        self.writer.flush()
    }
}

fn record(choice: JoinedChoice) -> Record {
    Record {
        at: choice.at,
        prompt: choice.prompt_tokens,
        regime: Some(choice.regime),
        chosen: choice.chosen,
        candidates: choice.candidates,
        residence: Some(choice.residence.max(Millis::ZERO)),
        held: choice.held,
        seat_wait: choice.seat_wait,
        ttft: choice.ttft,
        e2e: choice.e2e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regime_anarchy::Candidate;
    use regime_anarchy::journal::{Entry, JournalReader};
    use regime_core::{Regime, Tokens, WorkerKey};
    use regime_policy::ExportCounts;

    const WORKER: WorkerKey = WorkerKey::new(7, 0);

    fn choice(number: u64, own_ms: f64) -> JoinedChoice {
        JoinedChoice {
            number,
            at: Timestamp::from_millis(number),
            prompt_tokens: Tokens(64),
            regime: Regime::Below,
            chosen: WORKER,
            candidates: vec![Candidate {
                worker: WORKER,
                wait: Millis::ZERO,
                own: Millis::new(own_ms),
            }],
            residence: Millis::new(100.0),
            held: Millis::ZERO,
            seat_wait: Millis::ZERO,
            ttft: Some(Millis::new(12.0)),
            e2e: Some(Millis::new(90.0)),
        }
    }

    fn pool(choices: Vec<JoinedChoice>, decisions: u64) -> PoolChoices {
        PoolChoices {
            model: "m".into(),
            routing_group: "default".into(),
            role: "aggregated",
            choices,
            counts: ExportCounts {
                decisions,
                unjoined: 1,
                lost: 2,
            },
        }
    }

    fn journal(path: &Path) -> anyhow::Result<Journal> {
        Journal::open(
            path,
            vec!["aggregated  regime-aware".into()],
            Duration::ZERO,
        )
    }

    fn entries(path: &Path) -> Vec<Entry> {
        let reader = JournalReader::new(io::BufReader::new(File::open(path).unwrap()));
        reader.map(Result::unwrap).collect()
    }

    fn counts(path: &Path) -> Vec<Counts> {
        let entries = entries(path).into_iter();
        let counts = entries.filter_map(|entry| match entry {
            Entry::Counts { counts, .. } => Some(counts),
            _ => None,
        });
        counts.collect()
    }

    #[test]
    fn decisions_are_in_the_file_as_soon_as_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut journal = journal(&path).unwrap();
        let pools = vec![pool(vec![choice(1, 10.0), choice(2, 10.0)], 6)];
        journal.write(pools, Timestamp::from_secs(1)).unwrap();
        let found = entries(&path);
        let [
            Entry::Begin(header),
            Entry::Decision { record: first, .. },
            _,
            Entry::Counts { counts, .. },
        ] = &found[..]
        else {
            panic!("{found:?}");
        };
        assert!(header.producer.starts_with("regime-frontend "));
        assert_eq!(header.settings["policies"][0], "aggregated  regime-aware");
        assert_eq!(*first, record(choice(1, 10.0)));
        let expected = Counts {
            decisions: 6,
            recorded: 2,
            unjoined: 1,
            lost: 2,
        };
        assert_eq!(*counts, expected);
    }

    #[test]
    fn a_decision_without_a_usable_forecast_is_counted_as_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut journal = journal(&path).unwrap();
        let pools = vec![pool(vec![choice(1, 0.0), choice(2, 10.0)], 5)];
        journal.write(pools, Timestamp::ORIGIN).unwrap();
        let [counts] = counts(&path)[..] else {
            panic!("one count");
        };
        assert_eq!((counts.recorded, counts.lost), (1, 3));
    }

    #[test]
    fn counts_that_did_not_change_are_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut journal = journal(&path).unwrap();
        for decisions in [5, 5, 6] {
            let pools = vec![pool(Vec::new(), decisions)];
            journal.write(pools, Timestamp::ORIGIN).unwrap();
        }
        assert_eq!(counts(&path).len(), 2);
    }

    #[test]
    fn a_restart_goes_on_behind_a_line_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        for _ in 0..2 {
            let mut journal = journal(&path).unwrap();
            let pools = vec![pool(vec![choice(1, 10.0)], 5)];
            journal.write(pools, Timestamp::ORIGIN).unwrap();
            drop(journal);
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(b"{\"decision\":{").unwrap();
        }
        let found = entries(&path);
        let begun = found.iter().filter(|it| matches!(it, Entry::Begin(_)));
        assert_eq!((begun.count(), found.len()), (2, 6));
    }

    #[test]
    fn a_file_that_another_frontend_writes_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let _first = journal(&path).unwrap();
        let error = format!("{:#}", journal(&path).err().unwrap());
        assert!(
            error.ends_with("a.jsonl: another process writes this file"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = journal(&folder.path().join("no/a.jsonl")).err().unwrap();
        assert!(error.to_string().ends_with("no/a.jsonl"), "{error}");
    }
}
