// SPDX-License-Identifier: Apache-2.0

//! The fields of one request, as Mooncake and its agentic relatives write them.
//!
//! Hash ids stand for blocks, so there must be enough for the prompt. Surplus ones change nothing in the
//! replay; they hint at another block size and are a warning. An output of 0 tokens is refused in files
//! made for replay. In recordings it happens (a request that was cancelled, or one that only warmed a
//! cache) and becomes 1, because no request is answered without a first token.

use crate::workload::{REQUEST_TOKENS, Turn};

use super::fault::Findings;
use super::row::{Need, Row};

/// Takes prompt, output and scheduling fields of a row.
pub(crate) fn take_request(row: &mut Row<'_>, block_size: u32) -> Option<Turn> {
    let line = row.line();
    let findings = row.findings();
    let input = row.count(
        &["input_length", "input_tokens"],
        Need::Optional,
        REQUEST_TOKENS,
    );
    let output = row.count(
        &["output_length", "output_tokens"],
        Need::Required,
        REQUEST_TOKENS,
    );
    let hash_ids = row.ids(&["hash_ids"], Need::Required);
    let output_ids = row.ids(&["output_token_ids"], Need::Optional);
    let priority = row.signed(&["priority"], Need::Optional);
    let strict = row.count(&["strict_priority"], Need::Optional, 0..=u32::MAX);
    let policy_class = row.text(&["policy_class"], Need::Optional);

    if let (Some(ids), Some(output)) = (&output_ids, output) {
        if ids.len() != output as usize {
            let allowed = format!("{output} ids, the output length");
            row.fault(
                "output_token_ids",
                format!("a list of {}", ids.len()),
                allowed,
            );
        }
        findings.warn(
            "output_token_ids",
            Some(line),
            "output_token_ids are not used",
        );
    }
    if strict.is_some_and(|strict| strict > 0) {
        findings.warn("strict_priority", Some(line), "strict_priority is not used");
    }

    let hash_ids = hash_ids?;
    let input_tokens = match input {
        Some(input) => input,
        None => whole_blocks(row, &hash_ids, block_size)?,
    };
    let hash_ids = fitting(
        findings,
        line,
        &row.name("input_length"),
        input_tokens,
        hash_ids,
        block_size,
    )?;
    Some(Turn {
        delay_ms: 0.0,
        input_tokens,
        output_tokens: output?,
        hash_ids,
        priority,
        policy_class,
    })
}

/// The ids that a prompt needs; a fault when there are too few, a warning when there are more.
pub(crate) fn fitting(
    findings: &Findings,
    line: u64,
    field: &str,
    input_tokens: u32,
    mut hash_ids: Vec<u64>,
    block_size: u32,
) -> Option<Vec<u64>> {
    let needed = input_tokens.div_ceil(block_size) as usize;
    let given = hash_ids.len();
    if given < needed {
        let capacity = given as u64 * u64::from(block_size);
        let allowed =
            format!("at most {capacity}, what {given} hash ids hold at {block_size} tokens each");
        findings.fault(line, field, input_tokens, allowed);
        return None;
    }
    if given > needed {
        let unused = given - needed;
        findings.warn(
            "surplus ids",
            Some(line),
            format!(
                "{given} hash ids for {input_tokens} tokens at {block_size} tokens each: {unused} not used; \
                 is the block size right?"
            ),
        );
        hash_ids.truncate(needed);
    }
    Some(hash_ids)
}

/// An output length of a recording, at least 1.
pub(crate) fn recorded_output(findings: &Findings, line: u64, output: u32) -> u32 {
    if output == 0 {
        findings.warn(
            "zero output",
            Some(line),
            "the recorded output is 0 tokens; replayed as 1, the first token",
        );
    }
    output.max(1)
}

fn whole_blocks(row: &Row<'_>, hash_ids: &[u64], block_size: u32) -> Option<u32> {
    let tokens = hash_ids.len() as u64 * u64::from(block_size);
    match u32::try_from(tokens) {
        Ok(tokens) if REQUEST_TOKENS.contains(&tokens) => {
            row.findings().warn(
                "no input_length",
                Some(row.line()),
                format!("no input_length: {tokens} tokens, all that the hash ids hold"),
            );
            Some(tokens)
        }
        _ => {
            let value = format!("a list of {}", hash_ids.len());
            row.fault(
                "hash_ids",
                value,
                "ids for 1 to 10000000 tokens, or input_length",
            );
            None
        }
    }
}
