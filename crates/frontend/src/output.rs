// SPDX-License-Identifier: Apache-2.0

//! Failures as one line on stderr, results on stdout.
//!
//! An operator reads the last line of a crashed container's log. So a failure is one line that starts with the program's
//! name and holds the whole chain of causes, never a backtrace: `RUST_BACKTRACE` changes nothing here.

use std::io::Write as _;
use std::process::ExitCode;

/// The chain of causes in one line, each said once: a cause that the outer message already quotes is left out.
#[must_use]
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = squeeze(&cause.to_string());
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// Print `error` and give the exit code for a run that failed.
pub fn report(error: &anyhow::Error) -> ExitCode {
    say(&one_line(error));
    ExitCode::FAILURE
}

/// Tell the operator something on stderr, under the program's name. A closed stderr is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "regime-frontend: {text}");
}

/// Print a result on stdout. A reader that went away (`… | head`) is no failure of ours.
pub fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Line breaks and runs of blanks become one blank.
#[must_use]
pub fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_of_causes_is_one_line() {
        let error = anyhow::anyhow!("no such\n  key").context("reading a.yaml");
        assert_eq!(one_line(&error), "reading a.yaml: no such key");
    }

    #[test]
    fn a_cause_that_the_outer_message_quotes_is_said_once() {
        let error = anyhow::anyhow!("key is missing").context("a.yaml: key is missing");
        assert_eq!(one_line(&error), "a.yaml: key is missing");
    }
}
