// SPDX-License-Identifier: Apache-2.0

//! The environment that Dynamo's own code will read.
//!
//! Some settings reach Dynamo only through the environment: the log filter, the number of workers to wait for, the
//! override of the policy file. To give them a default, or to let a flag beat them, the environment has to be changed
//! before the process starts: changing it while threads read it is undefined behaviour, which is why `set_var` is unsafe.
//! So [`settle`] replaces the process image with itself, once, under the corrected environment. The process id stays, and
//! nothing has been opened yet.
//!
//! Corrections that every run gets: blank `DYN_*` variables are removed, because Dynamo reads some of them as values (a
//! blank number is an error, a blank back end unknown); `DYN_LOG` becomes `LOG_FILTER` when unset; and colour codes are
//! switched off when the log is not read on a terminal.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context as _;

/// Dynamo's `info` logs every decision, and at `warn` two modules report each worker that joins, leaves or
/// drains, which is no reason to warn. The line for each finished request comes at any level: Dynamo lets its request spans through.
const LOG_FILTER: &str = "warn,dynamo_kv_router::sequences::multi_worker=error,dynamo_llm::entrypoint::input::endpoint=error";

/// Set in the second image to its own process id: corrections are applied once, whatever they do.
const MARK: &str = "REGIME_ENVIRONMENT_SETTLED_BY";

/// Dynamo's switch for colours in the log.
const NO_COLOURS: &str = "DYN_SDK_DISABLE_ANSI_LOGGING";

/// Changes to make before Dynamo reads its environment: a value to set, or `None` to remove.
pub type Changes = Vec<(OsString, Option<OsString>)>;

/// Apply `wanted` and the corrections that every run gets. Returns when the environment is as wanted.
///
/// # Errors
/// When this program cannot be started again.
pub fn settle(wanted: Changes) -> anyhow::Result<()> {
    let own_id = OsString::from(std::process::id().to_string());
    if std::env::var_os(MARK).as_ref() == Some(&own_id) {
        return Ok(());
    }
    let changes = changes(std::env::vars_os(), wanted, std::io::stderr().is_terminal());
    if changes.is_empty() {
        return Ok(());
    }
    let program = std::env::current_exe().context("finding this program")?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(&program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).env(MARK, own_id);
    for (name, value) in changes {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // `exec` returns only when it failed.
    Err(command.exec()).with_context(|| format!("starting {} again", program.display()))
}

/// What has to change so that `wanted` and the standing corrections hold.
fn changes(
    environment: impl Iterator<Item = (OsString, OsString)>,
    wanted: Changes,
    on_terminal: bool,
) -> Changes {
    let environment: Vec<_> = environment.collect();
    let value = |name: &OsStr| {
        environment
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    };
    let mut changes: Changes = wanted
        .into_iter()
        .filter(|(name, wanted)| value(name) != wanted.as_ref())
        .collect();
    let is_blank = |value: &OsString| value.to_str().is_some_and(|text| text.trim().is_empty());
    let decided = |changes: &Changes, name: &OsStr| changes.iter().any(|(known, _)| known == name);
    if value(OsStr::new("DYN_LOG")).is_none_or(is_blank) {
        changes.push(("DYN_LOG".into(), Some(LOG_FILTER.into())));
    }
    if !on_terminal && value(OsStr::new(NO_COLOURS)).is_none_or(is_blank) {
        changes.push((NO_COLOURS.into(), Some("1".into())));
    }
    for (name, value) in &environment {
        let is_dynamos = name.to_str().is_some_and(|name| name.starts_with("DYN_"));
        if is_dynamos && is_blank(value) && !decided(&changes, name) {
            changes.push((name.clone(), None));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(
        environment: &[(&str, &str)],
        wanted: &[(&str, Option<&str>)],
    ) -> Vec<(String, Option<String>)> {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        let wanted = wanted
            .iter()
            .map(|(name, value)| ((*name).into(), value.map(Into::into)))
            .collect();
        changes(environment.collect::<Vec<_>>().into_iter(), wanted, true)
            .into_iter()
            .map(|(name, value)| {
                (
                    name.into_string().unwrap(),
                    value.map(|value| value.into_string().unwrap()),
                )
            })
            .collect()
    }

    #[test]
    fn the_log_is_quiet_unless_a_filter_is_set() {
        let quiet = [("DYN_LOG".to_owned(), Some(LOG_FILTER.to_owned()))];
        assert_eq!(from(&[], &[]), quiet);
        assert_eq!(from(&[("DYN_LOG", " ")], &[]), quiet);
        assert_eq!(from(&[("DYN_LOG", "info")], &[]), []);
    }

    #[test]
    fn colours_are_off_when_the_log_is_not_on_a_terminal() {
        let environment = [(OsString::from("DYN_LOG"), OsString::from("warn"))];
        let off = vec![(OsString::from(NO_COLOURS), Some(OsString::from("1")))];
        assert_eq!(changes(environment.into_iter(), Changes::new(), false), off);
    }

    #[test]
    fn blank_variables_of_dynamo_are_removed_and_others_stay() {
        let environment = [
            ("DYN_LOG", "warn"),
            ("DYN_EVENT_PLANE", ""),
            ("OTHER", ""),
            ("DYN_HTTP_PORT", "1"),
        ];
        assert_eq!(
            from(&environment, &[]),
            [("DYN_EVENT_PLANE".to_owned(), None)]
        );
    }

    #[test]
    fn only_what_differs_is_changed() {
        let environment = [("DYN_LOG", "warn"), ("DYN_X", "2")];
        assert_eq!(
            from(&environment, &[("DYN_X", Some("2")), ("DYN_Y", None)]),
            []
        );
        assert_eq!(
            from(&environment, &[("DYN_X", None)]),
            [("DYN_X".to_owned(), None)]
        );
    }
}
