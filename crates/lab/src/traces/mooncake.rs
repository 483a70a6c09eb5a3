// SPDX-License-Identifier: Apache-2.0

//! Mooncake JSONL, with whole prompts or with deltas.
//!
//! A row without `session_id` is a session of its own. Rows of one session are its turns, in the order
//! of the file. The pause before a later turn is its `delay`; without one it is inferred as the
//! difference of the `timestamp`s, as Dynamo's loader does, although that difference contains the
//! service time of the turn before (field report SP-2): the summary says how many were inferred.
//!
//! In the delta form the prompt of a later turn is the whole prompt before, the answer to it, and the
//! new tokens. From the first answer on nothing can be shared with another session, so the blocks of
//! later turns get ids of their own.
//!
//! Source: the trace format of Mooncake (FAST '25), and Dynamo's extensions to it for sessions.

use std::collections::HashMap;

use crate::workload::{REQUEST_TOKENS, Session, Turn};

use super::blocks::{BlockIds, Prompt};
use super::content::lines;
use super::fault::Findings;
use super::raw::{Pauses, Raw};
use super::request::take_request;
use super::row::{Need, Row, Unknown};

/// What the rows of a session hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turns {
    WholePrompts,
    Deltas,
}

/// `open_loop`: every session needs a time of arrival.
pub(crate) fn read(
    content: &[u8],
    block_size: u32,
    open_loop: bool,
    turns: Turns,
    findings: &Findings,
) -> Raw {
    let mut sessions = Sessions {
        block_size,
        open_loop,
        deltas: (turns == Turns::Deltas).then(BlockIds::default),
        list: Vec::new(),
        by_id: HashMap::new(),
        request_ids: HashMap::new(),
        pauses: Pauses::default(),
    };
    for (line, text) in lines(content) {
        if let Some(row) = Row::parse(findings, line, text) {
            sessions.push(row);
        }
    }
    let raw = Raw {
        block_size,
        sessions: sessions.list.into_iter().map(|open| open.session).collect(),
        pauses: sessions.pauses,
        prefix_identity: true,
        ..Raw::default()
    };
    if turns == Turns::WholePrompts {
        warn_about_deltas(&raw, findings);
    }
    raw
}

struct Sessions {
    block_size: u32,
    open_loop: bool,
    /// Ids of the accumulated prompts; absent when rows hold whole prompts.
    deltas: Option<BlockIds>,
    list: Vec<Open>,
    by_id: HashMap<String, usize>,
    /// Line of each.
    request_ids: HashMap<String, u64>,
    pauses: Pauses,
}

/// A session that may get further turns.
struct Open {
    session: Session,
    last_stamp_ms: Option<f64>,
}

/// When a turn starts.
#[derive(Clone, Copy)]
struct Timing {
    stamp_ms: Option<f64>,
    delay_ms: Option<f64>,
    /// One of them is there and already reported as wrong.
    wrong: bool,
}

impl Timing {
    const STAMP: [&str; 2] = ["timestamp", "created_time"];
    const DELAY: [&str; 2] = ["delay", "delay_ms"];

    fn take(row: &mut Row<'_>) -> Self {
        let given = |names: &[&str]| names.iter().any(|name| row.has(name));
        let (stamped, delayed) = (given(&Self::STAMP), given(&Self::DELAY));
        let stamp_ms = row.time(&Self::STAMP, Need::Optional);
        let delay_ms = row.time(&Self::DELAY, Need::Optional);
        Self {
            stamp_ms,
            delay_ms,
            wrong: stamped && stamp_ms.is_none() || delayed && delay_ms.is_none(),
        }
    }

    /// Whether a time is absent from the row, not merely wrong.
    fn is_missing(self, time: Option<f64>) -> bool {
        time.is_none() && !self.wrong
    }
}

impl Sessions {
    fn push(&mut self, mut row: Row<'_>) {
        if let Some(id) = row.text(&["request_id"], Need::Optional)
            && let Some(before) = self.request_ids.insert(id.clone(), row.line())
        {
            row.findings().warn(
                "request_id",
                Some(row.line()),
                format!("request_id {id} is that of line {before}, too"),
            );
        }
        let timing = Timing::take(&mut row);
        let id = row.text(&["session_id"], Need::Optional);
        let turn = take_request(&mut row, self.block_size);
        let id = id.unwrap_or_else(|| format!("row-{}", row.line()));
        let before = self.by_id.get(&id).copied();
        let turn = turn.and_then(|turn| self.whole(before, &row, turn));
        match before {
            Some(at) => self.follow(at, &row, timing, turn),
            None => self.open(id, &row, timing, turn),
        }
        row.finish(Unknown::Refuse);
    }

    /// The turn with its whole prompt: of a delta, the prompt before, its answer and the new tokens.
    fn whole(&mut self, before: Option<usize>, row: &Row<'_>, turn: Turn) -> Option<Turn> {
        let Some(ids) = &mut self.deltas else {
            return Some(turn);
        };
        let last = before.and_then(|at| self.list.get(at)?.session.turns.last());
        let Some(last) = last else {
            let hash_ids = turn.hash_ids.iter().map(|id| ids.scoped(0, *id)).collect();
            return Some(Turn { hash_ids, ..turn });
        };
        let prompt = Prompt::new(last.input_tokens, last.hash_ids.clone());
        // Each summand is far below 32 bits.
        let new = last.output_tokens + turn.input_tokens;
        let fits = REQUEST_TOKENS.contains(&(last.input_tokens + new));
        let grown = fits.then(|| prompt.grown(new, self.block_size, ids));
        let Some(grown) = grown.flatten() else {
            let allowed = format!(
                "up to {} tokens together with the turns before",
                REQUEST_TOKENS.end()
            );
            row.fault("input_length", turn.input_tokens, allowed);
            return None;
        };
        Some(Turn {
            input_tokens: grown.tokens(),
            hash_ids: grown.into_ids(),
            ..turn
        })
    }

    fn open(&mut self, id: String, row: &Row<'_>, timing: Timing, turn: Option<Turn>) {
        if let Some(delay) = timing.delay_ms.filter(|delay| *delay > 0.0) {
            row.fault("delay", delay, "0 or none on the first turn of a session");
        }
        if timing.is_missing(timing.stamp_ms) && self.open_loop {
            row.fault(
                "timestamp",
                "missing",
                "ms since the start, on the first row of every session, unless replayed in a closed loop",
            );
        }
        self.by_id.insert(id.clone(), self.list.len());
        self.list.push(Open {
            session: Session {
                id,
                start_ms: timing.stamp_ms.unwrap_or(0.0),
                turns: turn.into_iter().collect(),
            },
            last_stamp_ms: timing.stamp_ms,
        });
    }

    fn follow(&mut self, at: usize, row: &Row<'_>, timing: Timing, turn: Option<Turn>) {
        let Some(open) = self.list.get_mut(at) else {
            return;
        };
        let id = &open.session.id;
        let stamps = timing.stamp_ms.zip(open.last_stamp_ms);
        if let Some((now, last)) = stamps.filter(|(now, last)| now < last) {
            let step = now - last;
            let allowed = format!(
                "at least {last}, the timestamp of the turn before in session {id} (the delay would be {step})"
            );
            row.fault("timestamp", now, allowed);
        }
        let delay_ms = match (timing.delay_ms, stamps) {
            (Some(delay_ms), _) => {
                self.pauses.explicit += 1;
                delay_ms
            }
            (None, Some((now, last))) => {
                let step = now - last;
                self.pauses.inferred += 1;
                row.findings().warn(
                    "inferred delay",
                    Some(row.line()),
                    format!(
                        "no delay in session {id}: inferred as {step} ms, the difference of the timestamps, \
                         which includes the service time of the turn before"
                    ),
                );
                step
            }
            (None, None) => {
                if timing.is_missing(None) {
                    let allowed =
                        format!("ms after the turn before in session {id}, or timestamps on both");
                    row.fault("delay", "missing", allowed);
                }
                0.0
            }
        };
        open.last_stamp_ms = timing.stamp_ms.or(open.last_stamp_ms);
        open.session
            .turns
            .extend(turn.map(|turn| Turn { delay_ms, ..turn }));
    }
}

/// Turns that hold whole prompts repeat what was said before.
fn warn_about_deltas(raw: &Raw, findings: &Findings) {
    let mut pairs = raw
        .sessions
        .iter()
        .flat_map(|session| session.turns.windows(2))
        .filter_map(|pair| match pair {
            [before, after] => Some((before, after)),
            _ => None,
        })
        .peekable();
    if pairs.peek().is_some()
        && pairs.all(|(before, after)| before.hash_ids.first() != after.hash_ids.first())
    {
        findings.warn(
            "deltas",
            None,
            "no turn starts as the turn before it: if the turns hold only what is new, read the file as \
             mooncake-delta",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_turn_is_the_prompt_before_its_answer_and_the_new_tokens() {
        let content = br#"{"session_id":"s","timestamp":0,"input_length":6,"output_length":2,"hash_ids":[10,11]}
{"session_id":"s","delay":5,"input_length":3,"output_length":1,"hash_ids":[12]}
{"session_id":"t","timestamp":0,"input_length":4,"output_length":1,"hash_ids":[10]}"#;
        let findings = Findings::new("t".into(), Vec::new());
        let raw = read(content, 4, true, Turns::Deltas, &findings);
        let turns: Vec<_> = raw
            .sessions
            .iter()
            .flat_map(|session| &session.turns)
            .map(|turn| (turn.input_tokens, turn.hash_ids.as_slice()))
            .collect();
        // 6 + 2 + 3 = 11 tokens: two blocks of before and a new one; t shares only the first block.
        assert_eq!(turns, [(6, [1, 2].as_slice()), (11, &[1, 2, 3]), (4, &[1])]);
    }
}
